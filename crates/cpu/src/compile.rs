//! Makes nodes of a plan of the ops of a program.

use std::collections::HashMap;
use std::sync::Arc;

use crate::panel::PANEL_ROWS;
use tokenmill_backend::DeviceError;
use tokenmill_ir::{
    AttendSource, BufferId, CacheId, ColumnOrder, GateAct, HeadNorm, KvFormat, Limits, Mask,
    NormKind, Op, Operand, Program, RopeId, RouteRule, Rows as RowKind, Store, View, WeightId, op,
};

use crate::DEVICE;
use crate::attend::rope::Rotation;
use crate::attend::{ItemSource, Middles, SPLIT, Steady, head_groups};
use crate::caches::Cache;
use crate::exec::Outputs;
use crate::linear::{Encoding, Mode, scratch_lines};
use crate::math::exp;
use crate::ops::{
    attend, delta, elementwise, embed, experts, heads, latent, linear, norm, recurrent, rotate,
    sample, scan,
};
use crate::plan::{Draft, Resource, Split};
use crate::step::{Cols, Kernel, Needs};
use crate::weight::Weight;

/// A compilation under way.
pub(crate) struct Compiler<'a> {
    program: &'a Program,
    weights: &'a [Arc<Weight>],
    caches: &'a [Cache],
    limits: &'a Limits,
    mode: Mode,
    pub draft: Draft,
    pub needs: Needs,
    pub outputs: Outputs,
    /// Encoded views so far.
    encoded: HashMap<(Cols, Encoding, Option<ColumnOrder>), Cols>,
    /// What the attention that comes next stores.
    storing: Option<rotate::Store>,
    /// Every rotation, and where its angles lie.
    rotations: Vec<(Rotation, Cols)>,
    /// Rotations in the middle of tiles, of those that were needed.
    middles: HashMap<RopeId, Arc<Middles>>,
    /// What the keys of caches are kept without.
    steady: HashMap<CacheId, Arc<Steady>>,
}

type Done = Result<(), DeviceError>;

fn unsupported(what: impl Into<String>) -> DeviceError {
    DeviceError::Unsupported { device: DEVICE.into(), what: what.into() }
}

fn region(v: Cols) -> Resource {
    Resource::Region(v.region)
}

impl<'a> Compiler<'a> {
    pub fn new(
        program: &'a Program,
        weights: &'a [Arc<Weight>],
        caches: &'a [Cache],
        limits: &'a Limits,
        mode: Mode,
    ) -> Self {
        Self {
            program,
            weights,
            caches,
            limits,
            mode,
            draft: Draft::new(program),
            needs: Needs { row: 16, ..Needs::default() },
            outputs: Outputs { logits: None, hidden: Vec::new() },
            encoded: HashMap::new(),
            storing: None,
            rotations: Vec::new(),
            middles: HashMap::new(),
            steady: HashMap::new(),
        }
    }

    /// All nodes of the program.
    pub fn compile(&mut self) -> Done {
        for rope in &self.program.ropes {
            let factors = rope.factors.map(|w| self.weight(w));
            let factors = factors.as_deref().map(Weight::vector);
            if factors.is_some_and(|f| f.len() != rope.inv_freq.len()) {
                return Err(unsupported("a rotation with another number of factors than pairs"));
            }
            let rotation = Rotation::new(rope, factors);
            let cols = rotation.table_len();
            let at = self.draft.region(RowKind::Tokens, cols);
            let out = Cols { region: at, start: 0, cols };
            self.rotations.push((rotation.clone(), out));
            let kernel = rotate::Angles { rotation, out };
            self.draft.push(kernel, Split::Rows(RowKind::Tokens), &[], &[region(out)]);
        }
        let program = self.program;
        program.ops.iter().enumerate().try_for_each(|(i, op)| self.op(op, program.ops.get(i + 1)))
    }

    fn weight(&self, id: WeightId) -> Arc<Weight> {
        Arc::clone(&self.weights[id.0 as usize])
    }

    fn whole(&self, b: BufferId) -> Cols {
        let cols = self.program.buffers[b.0 as usize].cols as usize;
        Cols { region: b.0 as usize, start: 0, cols }
    }

    fn rows_of(&self, v: Cols) -> RowKind {
        self.draft.regions[v.region].rows
    }

    fn need_row(&mut self, len: usize) {
        self.needs.row = self.needs.row.max(len);
    }

    /// Adds a node divided by rows, reading whatever buffers the op reads.
    fn by_rows(&mut self, kernel: impl Kernel + 'static, op: &Op, gathers: bool) {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        let mut kind = RowKind::Tokens;
        for operand in op.operands() {
            match operand {
                Operand::Read(v) => reads.push(Resource::Region(v.buffer.0 as usize)),
                Operand::Write(b) => {
                    kind = self.program.buffers[b.0 as usize].rows;
                    writes.push(Resource::Region(b.0 as usize));
                }
                _ => {}
            }
        }
        let split = if gathers { Split::Gather(kind) } else { Split::Rows(kind) };
        self.draft.push(kernel, split, &reads, &writes);
    }

    fn op(&mut self, op: &Op, next: Option<&Op>) -> Done {
        match op {
            Op::Embed { .. } | Op::Input { .. } | Op::Gather { .. } => self.input(op),
            Op::Norm(norm) => self.norm(norm, op),
            Op::Linear { x, weight, out } => {
                let product = self.product(*x, *weight, self.whole(*out))?;
                self.linear(product);
            }
            Op::GatedLinear { x, gate, up, act, out } => {
                self.gated(*x, (*gate, *up), *act, self.whole(*out))?;
            }
            Op::RotateStore(rotate) => self.rotate(rotate, next),
            Op::Attend(attend) => self.attend(attend, op),
            Op::Map { expr, args, out } => {
                let args = args.iter().map(|&v| v.into()).collect();
                let out = self.whole(*out);
                let kernel = elementwise::Map::new(expr, args, out);
                self.need_row(kernel.depth * out.cols);
                self.by_rows(kernel, op, false);
            }
            Op::TakeRows { x, run, out } => {
                let (x, run, out) = ((*x).into(), *run as usize, self.whole(*out));
                let kernel = embed::TakeRows { x, run, out };
                self.by_rows(kernel, op, true);
            }
            Op::Pool { x, kind, normalise, out } => {
                let (x, out) = ((*x).into(), self.whole(*out));
                self.need_row(out.cols);
                let kernel = embed::Pool { x, kind: *kind, normalise: *normalise, out };
                self.by_rows(kernel, op, true);
            }
            Op::Head { x, weight, scale, softcap, out } => {
                let product = self.product(*x, *weight, self.whole(*out))?;
                let reads: Vec<_> = product.inputs.iter().map(|i| region(i.0)).collect();
                let writes = [region(product.out)];
                let split = Split::Product(self.rows_of(product.out));
                let kernel = linear::Head { product, scale: *scale, softcap: *softcap };
                self.draft.push(kernel, split, &reads, &writes);
            }
            Op::Sample { logits, hidden, more } => {
                let logits = logits.map(Cols::from);
                let hidden: Vec<Cols> =
                    [hidden].into_iter().chain(more).map(|&v| v.into()).collect();
                let reads: Vec<_> = logits.iter().chain(&hidden).map(|&v| region(v)).collect();
                self.outputs = Outputs { logits, hidden };
                let vocab = self.program.vocab as usize;
                self.draft.push(sample::Sample { logits, vocab }, Split::Own, &reads, &[]);
            }
            Op::HeadLinear { x, heads, weight, out } => {
                self.head_linear((*x).into(), *heads as usize, *weight, self.whole(*out))?;
            }
            Op::StoreLatent(store) => self.store_latent(store),
            Op::AttendLatent(attend) => self.attend_latent(attend),
            Op::Conv(conv) => self.conv(conv, op),
            Op::DeltaRule(rule) => self.delta_rule(rule, op),
            Op::Scan(scan) => self.scan(scan, op),
            Op::Route { x, router, rule, out } => {
                self.route(*x, *router, *rule, self.whole(*out))?;
            }
            Op::Experts(experts) => self.experts(experts)?,
        }
        Ok(())
    }

    /// What a program begins with.
    fn input(&mut self, op: &Op) {
        let input_cols = self.program.input_cols as usize;
        match op {
            Op::Embed { table, scale, positions, token_types, out } => {
                let out = self.whole(*out);
                self.need_row(out.cols);
                let optional = |w: &Option<WeightId>| w.map(|w| self.weight(w));
                let (positions, token_types) = (optional(positions), optional(token_types));
                let table = self.weight(*table);
                let scale = *scale;
                let kernel = embed::Embed { table, scale, positions, token_types, input_cols, out };
                self.by_rows(kernel, op, false);
            }
            Op::Input { start, out } => {
                let (start, out) = (*start as usize, self.whole(*out));
                self.by_rows(embed::Input { input_cols, start, out }, op, false);
            }
            Op::Gather { x, table, out } => {
                let (x, table, out) = ((*x).into(), self.weight(*table), self.whole(*out));
                self.need_row(out.cols);
                self.by_rows(embed::Gather { x, table, out }, op, false);
            }
            _ => {}
        }
    }

    fn norm(&mut self, norm: &op::Norm, op: &Op) {
        let of = |w: Option<WeightId>| w.map(|w| self.weight(w));
        let (weight, bias) = (of(norm.weight), of(norm.bias));
        let (weight, bias) = (weight.as_deref(), bias.as_deref());
        let kernel = norm::Norm {
            x: norm.x.into(),
            adds: norm.adds.iter().map(|&v| v.into()).collect(),
            sum: norm.sum.map(|b| self.whole(b)),
            rule: norm::Rule::new(norm.kind, norm.eps, weight, norm.offset, bias),
            groups: norm.groups as usize,
            gate: norm.gate.map(|(v, order)| (v.into(), order)),
            root: norm.root.map(|b| self.whole(b)),
            out: self.whole(norm.out),
        };
        // A gate is read after the sum is written, and may lie beside `x`.
        if let (Some(sum), None) = (kernel.sum, kernel.gate) {
            self.draft.succeed(sum.region, kernel.x.region);
        }
        self.by_rows(kernel, op, false);
    }

    /// The encoded form of a view, its columns in this order, made once.
    fn encode(&mut self, x: Cols, encoding: Encoding, order: Option<ColumnOrder>) -> Cols {
        let key = (x, encoding, order.clone());
        if let Some(known) = self.encoded.get(&key) {
            return *known;
        }
        let (kind, cols) = (self.rows_of(x), encoding.lines(x.cols) * 16);
        let out = Cols { region: self.draft.region(kind, cols), start: 0, cols };
        if order.is_some() {
            self.need_row(x.cols);
        }
        let kernel = linear::Encode { x, encoding, order, out };
        self.draft.push(kernel, Split::Rows(kind), &[region(x)], &[region(out)]);
        self.encoded.insert(key, out);
        out
    }

    /// A product and the encoding of its inputs.
    fn product(
        &mut self,
        x: View,
        weight: WeightId,
        out: Cols,
    ) -> Result<linear::Product, DeviceError> {
        let weight = self.weight(weight);
        let mut inputs = Vec::new();
        for panels in weight.panels() {
            let encoding = Encoding::of(panels.spec.layout(), self.mode);
            inputs.push((self.encode(x.into(), encoding, panels.order.clone()), encoding));
            self.needs.lines = self.needs.lines.max(scratch_lines(&panels.spec));
        }
        if inputs.is_empty() {
            return Err(unsupported("a product with a weight that is looked up by rows"));
        }
        Ok(linear::Product { weight, inputs, out })
    }

    /// Adds a product as a node.
    fn linear(&mut self, product: linear::Product) {
        let reads: Vec<_> = product.inputs.iter().map(|i| region(i.0)).collect();
        let (split, writes) = (Split::Product(self.rows_of(product.out)), [region(product.out)]);
        self.draft.push(linear::Linear(product), split, &reads, &writes);
    }

    fn gated(
        &mut self,
        x: View,
        (gate, up): (WeightId, WeightId),
        act: GateAct,
        out: Cols,
    ) -> Done {
        let cols = Cols { start: 0, ..out };
        let up_out = Cols { region: self.draft.region(self.rows_of(out), out.cols), ..cols };
        let gate = self.product(x, gate, out)?;
        let up = self.product(x, up, up_out)?;
        let reads = [&gate, &up].map(|p| region(p.inputs[0].0));
        let kind = self.rows_of(out);
        if gate.inputs.len() == 1 && up.inputs.len() == 1 {
            let writes = [region(out), region(up_out)];
            let kernel = linear::GatedLinear { gate, up, act };
            self.draft.push(kernel, Split::Product(kind), &reads, &writes);
            return Ok(());
        }
        // Runs of unlike formats are divided differently: both branches first, then the rest.
        let gate_out = Cols { region: self.draft.region(kind, out.cols), ..cols };
        for product in [linear::Product { out: gate_out, ..gate }, up] {
            self.linear(product);
        }
        let kernel = linear::Gate { gate: gate_out, up: up_out, act, out };
        let reads = [region(gate_out), region(up_out)];
        self.draft.push(kernel, Split::Rows(kind), &reads, &[region(out)]);
        Ok(())
    }

    /// Norm and rotation of heads of `dim` columns.
    fn head_rotation(
        &self,
        dim: u32,
        norm: &Option<HeadNorm>,
        rope: Option<RopeId>,
    ) -> rotate::HeadRotation {
        let norm = norm.as_ref().map(|n| rotate::HeadRule {
            kind: n.kind,
            weight: self.weight(n.weight).vector().to_vec(),
            offset: n.offset,
            eps: n.eps,
        });
        let rotation = rope.map(|r| self.rotations[r.0 as usize].clone());
        rotate::HeadRotation { dim: dim as usize, norm, rotation, position_scale: None }
    }

    fn rotate(&mut self, op: &op::RotateStore, next: Option<&Op>) {
        let (q, out) = (Cols::from(op.q), self.whole(op.out));
        let rotate = rotate::HeadRotation {
            position_scale: op.position_scale,
            ..self.head_rotation(op.head_dim, &op.q_norm, op.rope)
        };
        let (mut reads, mut writes) = (vec![region(q)], vec![region(out)]);
        reads.extend(rotate.rotation.as_ref().map(|r| region(r.1)));
        let mut split = Split::Rows(RowKind::Tokens);
        let storing = op.store.as_ref().map_or(rotate::Storing::None, |s| {
            let rotate = self.head_rotation(op.head_dim, &s.k_norm, op.rope);
            let cache = s.cache.0 as usize;
            let steady = self.steady(s, op.q, op.head_dim, op.rope);
            let store = rotate::Store { k: s.k.into(), v: s.v.into(), rotate, steady, cache };
            reads.extend([region(store.k), region(store.v)]);
            writes.push(Resource::Cache(cache));
            self.need_row(store.k.cols + op.head_dim as usize);
            match next {
                Some(Op::Attend(op::Attend { source: AttendSource::Cache(read), .. }))
                    if *read == s.cache =>
                {
                    self.storing = Some(store.clone());
                    rotate::Storing::Shared(store)
                }
                _ => {
                    split = Split::Own;
                    rotate::Storing::Here(store)
                }
            }
        });
        let kernel = rotate::RotateStore { q, rotate, storing, out };
        self.draft.push(kernel, split, &reads, &writes);
    }

    /// What the keys of a cache of few bits are kept without: the bias of the product that they are, if nothing but a
    /// rotation changes them.
    fn steady(
        &mut self,
        s: &Store,
        query: View,
        dim: u32,
        rope: Option<RopeId>,
    ) -> Option<Arc<Steady>> {
        let few_bits = matches!(
            self.program.caches[s.cache.0 as usize].format,
            KvFormat::Int8 | KvFormat::Int4 | KvFormat::K8V4
        );
        let capped = |op: &Op| match op {
            Op::Attend(op::Attend { source: AttendSource::Cache(read), softcap, .. }) => {
                *read == s.cache && softcap.is_some()
            }
            _ => false,
        };
        if !few_bits || s.k_norm.is_some() || self.program.ops.iter().any(capped) {
            return None;
        }
        let bias = self.bias_of(s.k).filter(|bias| bias.iter().any(|b| *b != 0.0))?;
        let queries = self.bias_of(query)?;
        let middles = rope.map(|id| {
            let (rotation, context) = (&self.rotations[id.0 as usize].0, self.limits.context);
            let new = || Arc::new(Middles::new(rotation, context as usize));
            Arc::clone(self.middles.entry(id).or_insert_with(new))
        });
        let steady = Arc::new(Steady::new(bias, &queries, dim as usize, middles));
        self.steady.insert(s.cache, Arc::clone(&steady));
        Some(steady)
    }

    /// The bias of the product that these columns are; none where they are something else.
    fn bias_of(&self, v: View) -> Option<Vec<f32>> {
        let weight = self.program.ops.iter().find_map(|op| match op {
            Op::Linear { weight, out, .. } if *out == v.buffer => Some(*weight),
            _ => None,
        });
        let mut bias = vec![0.0; v.cols as usize];
        self.weight(weight?).after(v.start as usize, &mut bias);
        Some(bias)
    }

    /// Which list of items has this source and these heads.
    fn items(&mut self, items: (ItemSource, usize, usize)) -> usize {
        let known = self.needs.items.iter().position(|known| *known == items);
        known.unwrap_or_else(|| {
            self.needs.items.push(items);
            self.needs.items.len() - 1
        })
    }

    /// Index of the cache that the next attention after `op` reads.
    fn next_cache(&self, op: &Op) -> Option<usize> {
        let mut later = self.program.ops.iter().skip_while(|o| !std::ptr::eq(*o, op)).skip(1);
        later.find_map(|op| match op {
            Op::Attend(op::Attend { source: AttendSource::Cache(cache), .. }) => {
                Some(cache.0 as usize)
            }
            _ => None,
        })
    }

    /// Splits of the keys that one row meets, at most.
    fn most_splits(&self, mask: &Mask) -> usize {
        let context = self.limits.context;
        // One more where a window begins within a split, one for the tokens of the step.
        match mask {
            Mask::Window(n) | Mask::Chunk(n) => {
                (*n).min(context).div_ceil(SPLIT as u32) as usize + 2
            }
            // (A step of few tokens has no blocks of more.)
            Mask::Block => 2,
            Mask::Causal | Mask::None | Mask::Around(_) => (context as usize).div_ceil(SPLIT) + 1,
        }
    }

    fn attend(&mut self, attend: &op::Attend, op: &Op) {
        let (q, out) = (Cols::from(attend.q), self.whole(attend.out));
        let heads = attend.heads as usize;
        let (kv_heads, v_dim) = (attend.kv_heads as usize, attend.v_dim as usize);
        let (mut reads, mut writes) = (vec![region(q)], vec![region(out)]);
        let store = self.storing.take();
        if let Some(s) = &store {
            reads.extend([region(s.k), region(s.v)]);
            reads.extend(s.rotate.rotation.as_ref().map(|r| region(r.1)));
            writes.push(Resource::Cache(s.cache));
        }
        let mut steady = None;
        let (source, item_source) = match &attend.source {
            AttendSource::Cache(cache) => {
                steady = self.steady.get(cache).cloned();
                let cache = cache.0 as usize;
                reads.push(Resource::Cache(cache));
                let group = self.caches[cache].group;
                (attend::Source::Cache(cache), ItemSource::Cache { group })
            }
            AttendSource::Fresh { k, v } => {
                let (k, v) = (Cols::from(*k), Cols::from(*v));
                reads.extend([region(k), region(v)]);
                (attend::Source::Fresh { k, v }, ItemSource::Fresh)
            }
        };
        let k_dim = q.cols / heads;
        let room = self.room((heads, kv_heads), (k_dim, v_dim), item_source, &attend.mask);
        let kernel = attend::Attend {
            q,
            out,
            heads,
            kv_heads,
            k_dim,
            v_dim,
            scale: attend.scale,
            softcap: attend.softcap,
            mask: attend.mask,
            blocks: attend.sees_blocks(),
            sinks: attend.sinks.map(|w| self.weight(w)),
            source,
            steady,
            next_cache: self.next_cache(op),
            store,
            room,
        };
        self.push_attend(kernel, reads, writes);
    }

    /// What an attention of those heads and columns works with.
    fn room(
        &mut self,
        (heads, kv_heads): (usize, usize),
        (k_dim, v_dim): (usize, usize),
        source: ItemSource,
        mask: &Mask,
    ) -> attend::Room {
        let needs = &mut self.needs.attention;
        needs.group = needs.group.max(heads / kv_heads);
        needs.k_dim = needs.k_dim.max(k_dim);
        needs.v_dim = needs.v_dim.max(v_dim);
        let items = self.items((source, heads, kv_heads));
        let max_splits = self.most_splits(mask);
        let parts = self.draft.flat(attend::parts_len(heads, v_dim, max_splits));
        self.needs.counters += 1;
        attend::Room { items, counter: self.needs.counters - 1, parts, max_splits }
    }

    /// Adds an attention, and the joining of its splits.
    fn push_attend(
        &mut self,
        kernel: attend::Attend,
        mut reads: Vec<Resource>,
        mut writes: Vec<Resource>,
    ) {
        let (join, parts) = (attend::Join(kernel.clone()), Resource::Region(kernel.room.parts));
        let out = region(kernel.out);
        writes.push(parts);
        self.draft.push(kernel, Split::Own, &reads, &writes);
        reads.push(parts);
        self.draft.push(join, Split::Few(RowKind::Tokens), &reads, &[out]);
    }

    fn head_linear(&mut self, x: Cols, heads: usize, weight: WeightId, out: Cols) -> Done {
        self.need_row(x.cols / heads);
        let kernel = heads::HeadLinear::new(x, self.weight(weight), heads, self.mode, out)
            .ok_or_else(|| unsupported("HeadLinear of several formats"))?;
        let (encoded, block, spec) = kernel.needs();
        self.need_block(encoded, block);
        self.needs.lines = self.needs.lines.max(spec.map_or(0, |s| scratch_lines(&s)));
        self.draft.push(kernel, Split::Own, &[region(x)], &[region(out)]);
        Ok(())
    }

    fn route(&mut self, x: View, router: WeightId, rule: RouteRule, out: Cols) -> Done {
        let cols = rule.experts as usize;
        let at = self.draft.region(RowKind::Tokens, cols);
        let logits = Cols { region: at, start: 0, cols };
        let product = self.product(x, router, logits)?;
        self.linear(product);
        let vector = |w: Option<WeightId>| w.map(|w| self.vector(w)).unwrap_or_default();
        let (choice_bias, gains) = (vector(rule.choice_bias), vector(rule.gains));
        let kernel = experts::Route { logits, rule, choice_bias, gains, out };
        self.need_row(kernel.needs());
        let split = Split::Rows(RowKind::Tokens);
        self.draft.push(kernel, split, &[region(logits)], &[region(out)]);
        Ok(())
    }

    fn need_block(&mut self, encoded: usize, block: usize) {
        self.needs.encoded = self.needs.encoded.max(encoded);
        self.needs.block = self.needs.block.max(block);
    }

    fn store_latent(&mut self, op: &op::StoreLatent) {
        let (latent, key) = (Cols::from(op.latent), Cols::from(op.key));
        let weight = self.weight(op.norm);
        let rule = norm::Rule::new(NormKind::Rms, op.eps, Some(&weight), 0.0, None);
        let rotate = self.head_rotation(key.cols as u32, &None, Some(op.rope));
        let mut reads = vec![region(latent), region(key)];
        reads.extend(rotate.rotation.as_ref().map(|r| region(r.1)));
        self.need_row(latent.cols + key.cols);
        let cache = op.cache.0 as usize;
        let kernel = latent::StoreLatent { latent, rule, key, rotate, cache };
        self.draft.push(kernel, Split::Own, &reads, &[Resource::Cache(cache)]);
    }

    fn attend_latent(&mut self, op: &op::AttendLatent) {
        let (q, q_rope) = (Cols::from(op.q_latent), Cols::from(op.q_rope));
        let (heads, cache, out) = (op.heads as usize, op.cache.0 as usize, self.whole(op.out));
        let (latent, rope) = (q.cols / heads, q_rope.cols / heads);
        let source = ItemSource::Cache { group: self.caches[cache].group };
        let (kv_heads, mask) = (head_groups(heads), Mask::Causal);
        let room = self.room((heads, kv_heads), (latent + rope, latent), source, &mask);
        let kernel = attend::Attend {
            q,
            out,
            heads,
            kv_heads,
            k_dim: latent + rope,
            v_dim: latent,
            scale: op.scale,
            softcap: None,
            mask,
            blocks: false,
            sinks: None,
            source: attend::Source::Latents { cache, q_rope },
            steady: None,
            next_cache: None,
            store: None,
            room,
        };
        let reads = vec![region(q), region(q_rope), Resource::Cache(cache)];
        self.push_attend(kernel, reads, vec![region(out)]);
    }

    fn vector(&self, w: WeightId) -> Vec<f32> {
        self.weight(w).vector().to_vec()
    }

    /// Rates are kept as −e^a_log.
    fn rates(&self, w: WeightId) -> Vec<f32> {
        self.vector(w).into_iter().map(|a| -exp(a)).collect()
    }

    fn conv(&mut self, conv: &op::Conv, op: &Op) {
        let (x, kernel) = (Cols::from(conv.x), conv.kernel as usize);
        let (weight, mut row) = (self.weight(conv.weight), vec![0.0; kernel]);
        let mut taps = vec![0.0; kernel * x.cols];
        for c in 0..x.cols {
            weight.row(c, &mut row);
            (0..kernel).for_each(|j| taps[j * x.cols + c] = row[j]);
        }
        let bias = conv.bias.map(|w| self.vector(w)).unwrap_or_default();
        let (cache, out) = (conv.state.0 as usize, self.whole(conv.out));
        let conv = recurrent::Conv { x, taps, kernel, bias, act: conv.act, cache, out };
        self.push_recurrent(conv, op, cache);
    }

    fn delta_rule(&mut self, rule: &op::DeltaRule, op: &Op) {
        let cache = rule.state.0 as usize;
        let kernel = delta::DeltaRule {
            q: rule.q.into(),
            k: rule.k.into(),
            v: rule.v.into(),
            a: rule.a.into(),
            b: rule.b.into(),
            rate: self.rates(rule.a_log),
            dt_bias: self.vector(rule.dt_bias),
            k_heads: rule.k_heads as usize,
            v_heads: rule.v_heads as usize,
            key_head: rule.key_head,
            cache,
            out: self.whole(rule.out),
        };
        self.need_row(kernel.needs());
        self.push_recurrent(kernel, op, cache);
    }

    fn scan(&mut self, scan: &op::Scan, op: &Op) {
        let cache = scan.state.0 as usize;
        let kernel = scan::Scan {
            x: scan.x.into(),
            b: scan.b.into(),
            c: scan.c.into(),
            dt: scan.dt.into(),
            rate: self.rates(scan.a_log),
            skip: self.vector(scan.skip),
            dt_bias: self.vector(scan.dt_bias),
            heads: scan.heads as usize,
            groups: scan.groups as usize,
            dt_limit: scan.dt_limit,
            cache,
            out: self.whole(scan.out),
        };
        self.need_row(kernel.needs());
        self.push_recurrent(kernel, op, cache);
    }

    fn push_recurrent(&mut self, kernel: impl Kernel + 'static, op: &Op, cache: usize) {
        let (mut reads, mut writes) = (Vec::new(), vec![Resource::Cache(cache)]);
        for operand in op.operands() {
            match operand {
                Operand::Read(v) => reads.push(region(v.into())),
                Operand::Write(b) => writes.push(Resource::Region(b.0 as usize)),
                _ => {}
            }
        }
        self.draft.push(kernel, Split::Own, &reads, &writes);
    }

    fn experts(&mut self, op: &op::Experts) -> Done {
        let (x, route, out) = (Cols::from(op.x), Cols::from(op.route), self.whole(op.out));
        let firsts = [op.gate, op.up, op.down];
        let all = |first: WeightId| -> Vec<_> {
            (0..op.experts).map(|e| self.weight(WeightId(first.0 + e))).collect()
        };
        let stored = |first: WeightId| self.program.weights[first.0 as usize].stored_bytes();
        let expert_bytes = firsts.map(stored).iter().sum();
        let [gate, up, down] = firsts.map(all);
        let [of_gate, of_up, of_down] =
            [self.encoding_of(&gate)?, self.encoding_of(&up)?, self.encoding_of(&down)?];
        let (top, ffn) = (route.cols / 2, gate.first().map_or(0, |w| w.rows));
        let inputs = [of_gate, of_up].map(|encoding| (self.encode(x, encoding, None), encoding));
        let mut slots = |cols: usize| {
            let at = self.draft.region(RowKind::Tokens, top * cols);
            Cols { region: at, start: 0, cols: top * cols }
        };
        let (inner, results) = (slots(ffn), slots(out.cols));
        let encoded = slots(of_down.lines(ffn) * 16);
        let lines = (of_gate.lines(x.cols) + of_up.lines(x.cols)).max(of_down.lines(ffn));
        let block = 2 * experts::SLOTS * experts::PANELS * PANEL_ROWS;
        self.need_block(experts::SLOTS * lines, block);
        let wanted =
            experts::Groups::needs(op.experts as usize, top * self.limits.step_tokens as usize);
        self.needs.order = self.needs.order.max(wanted);
        let counter = self.needs.counters;
        self.needs.counters += 2;
        let lie = |weights: &[Arc<Weight>]| {
            let all = weights.iter().flat_map(|w| w.panels());
            all.map(|p| p.spec.band_panels()).max().unwrap_or(1)
        };
        let together = [lie(&gate).max(lie(&up)), lie(&down)];
        let kernel = experts::ExpertsInner {
            route,
            gate,
            up,
            inputs,
            act: op.act,
            out: inner,
            counter,
            together: together[0],
            expert_bytes,
        };
        let reads = [region(route), region(inputs[0].0), region(inputs[1].0)];
        self.draft.push(kernel, Split::Own, &reads, &[region(inner)]);
        let kernel = experts::EncodeSlots { inner, top, encoding: of_down, out: encoded };
        let split = Split::Rows(RowKind::Tokens);
        self.draft.push(kernel, split, &[region(inner)], &[region(encoded)]);
        let (input, counter) = ((encoded, of_down), counter + 1);
        let (slots, together) = (results, together[1]);
        let kernel = experts::ExpertsDown { route, down, input, out: slots, counter, together };
        let reads = [region(route), region(encoded)];
        self.draft.push(kernel, Split::Own, &reads, &[region(results)]);
        let kernel = experts::Mix { route, slots: results, out };
        self.draft.push(kernel, split, &[region(route), region(results)], &[region(out)]);
        Ok(())
    }

    /// The encoding that all matrices of a kind read; each is one run of panels.
    fn encoding_of(&mut self, weights: &[Arc<Weight>]) -> Result<Encoding, DeviceError> {
        let mut found = None;
        for weight in weights {
            let [panels] = weight.panels() else {
                return Err(unsupported("an expert of several formats"));
            };
            let encoding = Encoding::of(panels.spec.layout(), self.mode);
            found = match found {
                None => Some(encoding),
                Some(known) if known == encoding => found,
                // Bytes of both classes: the finer.
                Some(known) if known.is_bytes() && encoding.is_bytes() => Some(Encoding::Int8),
                _ => return Err(unsupported("experts of unlike formats")),
            };
            self.needs.lines = self.needs.lines.max(scratch_lines(&panels.spec));
        }
        found.ok_or_else(|| unsupported("a layer without experts"))
    }
}

//! Turns the ops of a program into nodes of a plan.

use std::collections::HashMap;
use std::sync::Arc;

use tokenmill_backend::DeviceError;
use tokenmill_ir::{
    AttendSource, BufferId, HeadNorm, Op, Operand, Program, RopeId, Rows as RowKind, View, WeightId,
};

use crate::DEVICE;
use crate::attend::ItemSource;
use crate::attend::rope::Rotation;
use crate::caches::Cache;
use crate::exec::{Outputs, Wants};
use crate::linear::{Encoding, Mode, scratch_lines};
use crate::ops::{attend, elementwise, embed, linear, norm, rotate, sample};
use crate::plan::{Cols, Draft, Resource, Split};
use crate::weight::Weight;

/// A compilation under way.
pub(crate) struct Compiler<'a> {
    program: &'a Program,
    weights: &'a [Arc<Weight>],
    caches: &'a [Cache],
    mode: Mode,
    pub draft: Draft,
    pub wants: Wants,
    pub outputs: Outputs,
    /// Encoded views so far.
    encoded: HashMap<(usize, usize, usize, Encoding), Cols>,
    /// Every rotation, and where its angles lie.
    rotations: Vec<(Rotation, Cols)>,
}

type Done = Result<(), DeviceError>;

fn unsupported(what: impl Into<String>) -> DeviceError {
    DeviceError::Unsupported { device: DEVICE.into(), what: what.into() }
}

fn place(v: Cols) -> Resource {
    Resource::Place(v.place)
}

impl<'a> Compiler<'a> {
    pub fn new(
        program: &'a Program,
        weights: &'a [Arc<Weight>],
        caches: &'a [Cache],
        mode: Mode,
    ) -> Self {
        Self {
            program,
            weights,
            caches,
            mode,
            draft: Draft::new(program),
            wants: Wants { row: 16, ..Wants::default() },
            outputs: Outputs { logits: None, hidden: None },
            encoded: HashMap::new(),
            rotations: Vec::new(),
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
            let at = self.draft.place(RowKind::Tokens, cols);
            let out = Cols { place: at, start: 0, cols };
            self.rotations.push((rotation.clone(), out));
            let kernel = rotate::Angles { rotation, out };
            self.draft.push(kernel, Split::Rows(RowKind::Tokens), &[], &[place(out)]);
        }
        let program = self.program;
        program.ops.iter().try_for_each(|op| self.op(op))
    }

    fn weight(&self, id: WeightId) -> Arc<Weight> {
        Arc::clone(&self.weights[id.0 as usize])
    }

    fn whole(&self, b: BufferId) -> Cols {
        let cols = self.program.buffers[b.0 as usize].cols as usize;
        Cols { place: b.0 as usize, start: 0, cols }
    }

    fn rows_of(&self, v: Cols) -> RowKind {
        self.draft.places[v.place].rows
    }

    fn want_row(&mut self, len: usize) {
        self.wants.row = self.wants.row.max(len);
    }

    /// Adds a node divided by rows, reading whatever buffers the op reads.
    fn by_rows(&mut self, kernel: impl crate::exec::Kernel + 'static, op: &Op, gathers: bool) {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        let mut kind = RowKind::Tokens;
        for operand in op.operands() {
            match operand {
                Operand::Read(v) => reads.push(Resource::Place(v.buffer.0 as usize)),
                Operand::Write(b) => {
                    kind = self.program.buffers[b.0 as usize].rows;
                    writes.push(Resource::Place(b.0 as usize));
                }
                _ => {}
            }
        }
        let split = if gathers { Split::Gather(kind) } else { Split::Rows(kind) };
        self.draft.push(kernel, split, &reads, &writes);
    }

    fn op(&mut self, op: &Op) -> Done {
        match op {
            Op::Embed { table, scale, positions, token_types, out } => {
                let out = self.whole(*out);
                self.want_row(out.cols);
                let optional = |w: &Option<WeightId>| w.map(|w| self.weight(w));
                let (positions, token_types) = (optional(positions), optional(token_types));
                let table = self.weight(*table);
                let kernel = embed::Embed { table, scale: *scale, positions, token_types, out };
                self.by_rows(kernel, op, false);
            }
            Op::Norm { .. } => self.norm(op),
            Op::Linear { x, weight, out } => {
                let product = self.product(*x, *weight, self.whole(*out))?;
                let reads: Vec<_> = product.inputs.iter().map(|i| place(i.0)).collect();
                let writes = [place(product.out)];
                self.draft.push(linear::Linear(product), Split::Own, &reads, &writes);
            }
            Op::GatedLinear { .. } => self.gated(op)?,
            Op::RotateStore { .. } => self.rotate(op),
            Op::Attend { .. } => self.attend(op)?,
            Op::Map { expr, args, out } => {
                let args = args.iter().map(|&v| v.into()).collect();
                let out = self.whole(*out);
                let kernel = elementwise::Map::new(expr, args, out);
                self.want_row(kernel.depth * out.cols);
                self.by_rows(kernel, op, false);
            }
            Op::TakeRows { x, out } => {
                let kernel = embed::TakeRows { x: (*x).into(), out: self.whole(*out) };
                self.by_rows(kernel, op, true);
            }
            Op::Pool { x, kind, normalise, out } => {
                let (x, out) = ((*x).into(), self.whole(*out));
                self.want_row(out.cols);
                let kernel = embed::Pool { x, kind: *kind, normalise: *normalise, out };
                self.by_rows(kernel, op, true);
            }
            Op::Head { x, weight, scale, softcap, out } => {
                let product = self.product(*x, *weight, self.whole(*out))?;
                let reads: Vec<_> = product.inputs.iter().map(|i| place(i.0)).collect();
                let writes = [place(product.out)];
                let kernel = linear::Head { product, scale: *scale, softcap: *softcap };
                self.draft.push(kernel, Split::Own, &reads, &writes);
            }
            Op::Sample { logits, hidden } => {
                let (logits, hidden) = (logits.map(Cols::from), Cols::from(*hidden));
                self.outputs = Outputs { logits, hidden: Some(hidden) };
                let reads: Vec<_> = logits.into_iter().chain([hidden]).map(place).collect();
                let vocab = self.program.vocab as usize;
                self.draft.push(sample::Sample { logits, vocab }, Split::Own, &reads, &[]);
            }
            other => return Err(unsupported(other.name())),
        }
        Ok(())
    }

    fn norm(&mut self, op: &Op) {
        let Op::Norm { x, adds, sum, kind, weight, offset, bias, groups, gate, eps, out } = op
        else {
            return;
        };
        let of = |w: &Option<WeightId>| w.map(|w| self.weight(w));
        let (weight, bias) = (of(weight), of(bias));
        let rule = norm::Rule::new(*kind, *eps, weight.as_deref(), *offset, bias.as_deref());
        let kernel = norm::Norm {
            x: (*x).into(),
            adds: adds.iter().map(|&v| v.into()).collect(),
            sum: sum.map(|b| self.whole(b)),
            rule,
            groups: *groups as usize,
            gate: gate.map(|(v, order)| (v.into(), order)),
            out: self.whole(*out),
        };
        self.by_rows(kernel, op, false);
    }

    /// The encoded form of a view, made once.
    fn encode(&mut self, x: Cols, encoding: Encoding) -> Cols {
        let key = (x.place, x.start, x.cols, encoding);
        if let Some(known) = self.encoded.get(&key) {
            return *known;
        }
        let (kind, cols) = (self.rows_of(x), encoding.lines(x.cols) * 16);
        let out = Cols { place: self.draft.place(kind, cols), start: 0, cols };
        let kernel = linear::Encode { x, encoding, out };
        self.draft.push(kernel, Split::Rows(kind), &[place(x)], &[place(out)]);
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
            inputs.push((self.encode(x.into(), encoding), encoding));
            self.wants.lines = self.wants.lines.max(scratch_lines(&panels.spec));
        }
        if inputs.is_empty() {
            return Err(unsupported("a product with a weight that is looked up by rows"));
        }
        Ok(linear::Product { weight, inputs, out })
    }

    fn gated(&mut self, op: &Op) -> Done {
        let Op::GatedLinear { x, gate, up, act, out } = op else { return Ok(()) };
        let out = self.whole(*out);
        let cols = Cols { start: 0, ..out };
        let up_out = Cols { place: self.draft.place(self.rows_of(out), out.cols), ..cols };
        let gate = self.product(*x, *gate, out)?;
        let up = self.product(*x, *up, up_out)?;
        let (act, reads) = (*act, [&gate, &up].map(|p| place(p.inputs[0].0)));
        if gate.inputs.len() == 1 && up.inputs.len() == 1 {
            let writes = [place(out), place(up_out)];
            let kernel = linear::GatedLinear { gate, up, act };
            self.draft.push(kernel, Split::Own, &reads, &writes);
            return Ok(());
        }
        // Runs of unlike formats are divided differently: both branches first, then the rest.
        let kind = self.rows_of(out);
        let gate_out = Cols { place: self.draft.place(kind, out.cols), ..cols };
        for product in [linear::Product { out: gate_out, ..gate }, up] {
            let reads: Vec<_> = product.inputs.iter().map(|i| place(i.0)).collect();
            let writes = [place(product.out)];
            self.draft.push(linear::Linear(product), Split::Own, &reads, &writes);
        }
        let kernel = linear::Gate { gate: gate_out, up: up_out, act, out };
        let reads = [place(gate_out), place(up_out)];
        self.draft.push(kernel, Split::Rows(kind), &reads, &[place(out)]);
        Ok(())
    }

    /// Norm and rotation of heads of `dim` columns.
    fn turn(&self, dim: u32, norm: &Option<HeadNorm>, rope: Option<RopeId>) -> rotate::Turn {
        let norm = norm.as_ref().map(|n| rotate::HeadRule {
            kind: n.kind,
            weight: self.weight(n.weight).vector().to_vec(),
            offset: n.offset,
            eps: n.eps,
        });
        let rotation = rope.map(|r| self.rotations[r.0 as usize].clone());
        rotate::Turn { dim: dim as usize, norm, rotation }
    }

    fn rotate(&mut self, op: &Op) {
        let Op::RotateStore { q, head_dim, q_norm, rope, store, out, .. } = op else { return };
        let (q, out) = (Cols::from(*q), self.whole(*out));
        let turn = self.turn(*head_dim, q_norm, *rope);
        let (mut reads, mut writes) = (vec![place(q)], vec![place(out)]);
        reads.extend(turn.rotation.as_ref().map(|r| place(r.1)));
        let store = store.as_ref().map(|s| {
            let turn = self.turn(*head_dim, &s.k_norm, *rope);
            rotate::Store { k: s.k.into(), v: s.v.into(), turn, cache: s.cache.0 as usize }
        });
        if let Some(s) = &store {
            reads.extend([place(s.k), place(s.v)]);
            writes.push(Resource::Cache(s.cache));
            self.want_row(s.k.cols);
        }
        let kernel = rotate::RotateStore { q, turn, store, out };
        self.draft.push(kernel, Split::Own, &reads, &writes);
    }

    fn attend(&mut self, op: &Op) -> Done {
        let Op::Attend { q, heads, source, kv_heads, v_dim, scale, mask, softcap, sinks, out } = op
        else {
            return Ok(());
        };
        let (q, out) = (Cols::from(*q), self.whole(*out));
        let (heads, kv_heads, v_dim) = (*heads as usize, *kv_heads as usize, *v_dim as usize);
        let mut reads = vec![place(q)];
        let (source, item_source) = match source {
            AttendSource::Cache(cache) => {
                let cache = cache.0 as usize;
                reads.push(Resource::Cache(cache));
                let group = self.caches[cache].group;
                (attend::Source::Cache(cache), ItemSource::Cache { group })
            }
            AttendSource::Fresh { k, v } => {
                let (k, v) = (Cols::from(*k), Cols::from(*v));
                reads.extend([place(k), place(v)]);
                (attend::Source::Fresh { k, v }, ItemSource::Fresh)
            }
        };
        let want = &mut self.wants.attention;
        want.group = want.group.max(heads / kv_heads);
        want.k_dim = want.k_dim.max(q.cols / heads);
        want.v_dim = want.v_dim.max(v_dim);
        let items = (item_source, heads, kv_heads);
        let known = self.wants.items.iter().position(|known| *known == items);
        let list = known.unwrap_or(self.wants.items.len());
        if known.is_none() {
            self.wants.items.push(items);
        }
        let kernel = attend::Attend {
            q,
            out,
            heads,
            kv_heads,
            v_dim,
            scale: *scale,
            softcap: *softcap,
            mask: *mask,
            sinks: sinks.map(|w| self.weight(w)),
            source,
            items: list,
            counter: self.wants.counters,
        };
        self.wants.counters += 1;
        self.draft.push(kernel, Split::Own, &reads, &[place(out)]);
        Ok(())
    }
}

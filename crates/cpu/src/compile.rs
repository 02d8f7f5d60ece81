//! Turns the ops of a program into nodes of a plan.

use std::collections::HashMap;
use std::sync::Arc;

use tokenmill_backend::DeviceError;
use tokenmill_ir::{
    AttendSource, BufferId, HeadNorm, Limits, Mask, Op, Operand, Program, RopeId, Rows as RowKind,
    View, WeightId,
};

use crate::DEVICE;
use crate::exec::{Outputs, Wants};
use crate::kv::KvCache;
use crate::linear::{Encoding, Mode, scratch_lines};
use crate::ops::{attend, attention, elementwise, embed, linear, norm, rotate, sample};
use crate::plan::{Cols, Draft, NARROW, Resource, Split};
use crate::weight::Weight;

/// A compilation under way.
pub(crate) struct Compiler<'a> {
    program: &'a Program,
    weights: &'a [Arc<Weight>],
    limits: &'a Limits,
    caches: &'a [KvCache],
    mode: Mode,
    pub draft: Draft,
    pub wants: Wants,
    pub outputs: Outputs,
    /// Encoded views so far.
    encoded: HashMap<(usize, usize, usize, Encoding), Cols>,
    /// Angles of every rotation.
    angles: Vec<Cols>,
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
        caches: &'a [KvCache],
        limits: &'a Limits,
        mode: Mode,
    ) -> Self {
        Self {
            program,
            weights,
            limits,
            caches,
            mode,
            draft: Draft::new(program),
            wants: Wants { row: 16, ..Wants::default() },
            outputs: Outputs { logits: None, hidden: None },
            encoded: HashMap::new(),
            angles: Vec::new(),
        }
    }

    /// All nodes of the program.
    pub fn compile(&mut self) -> Done {
        for rope in &self.program.ropes {
            let cols = 2 * rope.inv_freq.len();
            let at = self.draft.place(RowKind::Tokens, cols);
            let out = Cols { place: at, start: 0, cols };
            let factors = rope.factors.map(|w| self.weight(w));
            let angles = embed::Angles::new(rope, factors.as_deref(), out);
            self.want_row(cols);
            self.draft.push(angles, Split::Rows(RowKind::Tokens), &[], &[place(out)]);
            self.angles.push(out);
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

    fn head_rule(&self, norm: &Option<HeadNorm>) -> Option<norm::Rule> {
        let n = norm.as_ref()?;
        let weight = self.weight(n.weight);
        Some(norm::Rule::new(n.kind, n.eps, Some(&weight), n.offset, None))
    }

    fn rotation(&self, rope: RopeId) -> rotate::Rotation {
        let pairing = self.program.ropes[rope.0 as usize].pairing;
        rotate::Rotation { angles: self.angles[rope.0 as usize], pairing }
    }

    fn rotate(&mut self, op: &Op) {
        let Op::RotateStore { q, heads, head_dim, q_norm, rope, store, out } = op else { return };
        let (q, out) = (Cols::from(*q), self.whole(*out));
        let rotation = rope.map(|r| self.rotation(r));
        let (mut reads, mut writes) = (vec![place(q)], vec![place(out)]);
        reads.extend(rotation.map(|r| place(r.angles)));
        let store = store.as_ref().map(|s| rotate::Store {
            k: s.k.into(),
            v: s.v.into(),
            kv_heads: s.kv_heads as usize,
            k_norm: self.head_rule(&s.k_norm),
            cache: s.cache.0 as usize,
        });
        if let Some(s) = &store {
            reads.extend([place(s.k), place(s.v)]);
            writes.push(Resource::Cache(s.cache));
        }
        let (heads, dim) = (*heads as usize, *head_dim as usize);
        self.want_row(dim);
        let q_norm = self.head_rule(q_norm);
        let kernel = rotate::RotateStore { q, heads, dim, q_norm, rotation, store, out };
        self.draft.push(kernel, Split::Own, &reads, &writes);
    }

    fn attend(&mut self, op: &Op) -> Done {
        let Op::Attend { q, heads, source, kv_heads, v_dim, scale, mask, softcap, sinks, out } = op
        else {
            return Ok(());
        };
        let AttendSource::Cache(cache) = source else {
            return Err(unsupported("Attend over fresh keys"));
        };
        let cache = cache.0 as usize;
        let (q, out) = (Cols::from(*q), self.whole(*out));
        let heads = *heads as usize;
        let max_chunks = match mask {
            Mask::Window(n) => (*n as usize).div_ceil(attention::CHUNK) + 1,
            _ => (self.limits.context as usize).div_ceil(attention::CHUNK).max(1),
        };
        let v_stride = self.caches[cache].v_stride;
        let step = attention::PARTIAL_HEAD + v_stride;
        let len = NARROW * heads * max_chunks * step;
        let partials = Cols { place: self.draft.flat(len), start: 0, cols: len };
        self.wants.v_stride = self.wants.v_stride.max(v_stride);
        self.want_row(v_stride);
        let kernel = attend::Attend {
            q,
            out,
            heads,
            kv_heads: *kv_heads as usize,
            k_dim: q.cols / heads,
            v_dim: *v_dim as usize,
            rule: attention::Rule { scale: *scale, softcap: *softcap },
            mask: *mask,
            sinks: sinks.map(|w| self.weight(w)),
            cache,
            counter: self.wants.counters,
            partials,
            max_chunks,
        };
        self.wants.counters += 1;
        let merge = attend::Merge(kernel.clone());
        let reads = [place(q), Resource::Cache(cache)];
        let writes = [place(out), place(partials)];
        self.draft.push(kernel, Split::Own, &reads, &writes);
        let few = Split::Few(RowKind::Tokens);
        self.draft.push(merge, few, &[place(partials)], &[place(out)]);
        Ok(())
    }
}

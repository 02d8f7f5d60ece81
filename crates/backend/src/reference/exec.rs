//! Runs a program op by op, keeping every buffer.

use std::sync::Arc;
use std::time::Duration;

use tokenmill_ir::sampling::SampleScratch;
use tokenmill_ir::{
    AttendSource, Batch, BlockId, BufferId, CacheId, HeadNorm, Limits, Op, Program, RopeId,
    Rows as RowKind, StepOutput, TokenId, TokenSource, View, WeightId,
};

use super::attention::{Attention, Keys, Rotation, attend, attend_latent, rotate, store};
use super::caches::Cache;
use super::matrix::Matrix;
use super::{dense, experts, recurrent, sampling};
use crate::batch_check::BatchRules;
use crate::{BlockBytes, DeviceError, Executable};

/// A column range of a buffer, row by row.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    data: &'a [f32],
    stride: usize,
    start: usize,
    pub cols: usize,
}

impl<'a> Rows<'a> {
    /// Whole rows of `cols`.
    pub fn of(data: &'a [f32], cols: usize) -> Self {
        Self { data, stride: cols, start: 0, cols }
    }

    pub fn count(&self) -> usize {
        self.data.len() / self.stride
    }

    pub fn row(&self, r: usize) -> &'a [f32] {
        &self.data[r * self.stride + self.start..][..self.cols]
    }
}

/// A program on the reference device.
pub(super) struct ReferenceExecutable {
    program: Program,
    weights: Arc<Vec<Matrix>>,
    rules: BatchRules,
    block_tokens: u32,
    /// Last step's buffers.
    buffers: Vec<Vec<f32>>,
    caches: Vec<Cache>,
    scratch: SampleScratch,
    /// Tokens sampled by the last step, one an output row.
    sampled: Vec<TokenId>,
    done: Option<StepOutput>,
}

impl ReferenceExecutable {
    pub fn new(
        program: &Program,
        weights: Arc<Vec<Matrix>>,
        limits: &Limits,
        block_tokens: u32,
    ) -> Result<Self, DeviceError> {
        let caches = program.caches.iter().map(|c| Cache::new(c, limits, block_tokens));
        Ok(Self {
            rules: BatchRules::new(program, limits, block_tokens),
            block_tokens,
            buffers: vec![Vec::new(); program.buffers.len()],
            caches: caches.collect::<Result<_, _>>()?,
            scratch: SampleScratch::new(program.vocab as usize),
            sampled: Vec::new(),
            done: None,
            program: program.clone(),
            weights,
        })
    }

    fn block_bytes(&self, group: usize) -> usize {
        let of_group = self.caches.iter().filter(|c| c.spec.group as usize == group);
        of_group.map(Cache::block_bytes).sum()
    }

    fn rows(&self, view: View) -> Rows<'_> {
        let (data, spec) = (&self.buffers[view.buffer.0 as usize], view.buffer);
        let stride = self.program.buffers[spec.0 as usize].cols as usize;
        Rows { data, stride, start: view.start as usize, cols: view.cols as usize }
    }

    fn weight(&self, id: WeightId) -> &Matrix {
        &self.weights[id.0 as usize]
    }

    fn rotation(&self, id: RopeId) -> Rotation<'_> {
        let rope = &self.program.ropes[id.0 as usize];
        Rotation { rope, factors: rope.factors.map(|w| self.weight(w)) }
    }

    fn head_norm<'a>(&'a self, norm: &'a Option<HeadNorm>) -> Option<(&'a HeadNorm, &'a Matrix)> {
        norm.as_ref().map(|n| (n, self.weight(n.weight)))
    }

    /// Borrows a cache away from the rest; [`Self::give_back`] returns it.
    fn take(&mut self, id: CacheId) -> Cache {
        self.caches[id.0 as usize].take()
    }

    fn give_back(&mut self, id: CacheId, cache: Cache) {
        self.caches[id.0 as usize] = cache;
    }

    fn run(&mut self, batch: &Batch) -> StepOutput {
        let mut out = StepOutput::default();
        for copy in &batch.copies {
            let group = |c: &&mut Cache| c.spec.group == copy.group;
            self.caches.iter_mut().filter(group).for_each(|c| c.copy(copy));
        }
        let ops = std::mem::take(&mut self.program.ops);
        for op in &ops {
            self.run_op(op, batch, &mut out);
        }
        self.program.ops = ops;
        self.sampled = out.sampled.iter().map(|s| s.token).collect();
        out
    }

    fn run_op(&mut self, op: &Op, batch: &Batch, served: &mut StepOutput) {
        match op {
            Op::Norm { sum, root, out, .. } => {
                let normed = self.norm(op);
                if let Some(sum) = sum {
                    self.buffers[sum.0 as usize] = normed.sums;
                }
                if let Some(root) = root {
                    self.buffers[root.0 as usize] = normed.roots;
                }
                self.buffers[out.0 as usize] = normed.out;
            }
            Op::RotateStore { .. } | Op::StoreLatent { .. } => self.store_op(op, batch),
            Op::Conv { .. } | Op::DeltaRule { .. } | Op::Scan { .. } => {
                self.recurrence(op, batch);
            }
            Op::Sample { logits, hidden } => {
                let mut scratch = std::mem::take(&mut self.scratch);
                let (logits, hidden) = (logits.map(|l| self.rows(l)), self.rows(*hidden));
                let vocab = self.program.vocab as usize;
                sampling::serve(logits, hidden, batch, vocab, &mut scratch, served);
                self.scratch = scratch;
            }
            _ => {
                if let Some((out, data)) = self.pure(op, batch) {
                    self.buffers[out.0 as usize] = data;
                }
            }
        }
    }

    fn norm(&self, op: &Op) -> dense::Normed {
        let Op::Norm { x, adds, kind, weight, offset, bias, groups, gate, eps, .. } = op else {
            return Default::default();
        };
        let norm = dense::Norm {
            kind: *kind,
            weight: weight.map(|w| self.weight(w)),
            offset: *offset,
            bias: bias.map(|w| self.weight(w)),
            groups: *groups as usize,
            eps: *eps,
        };
        let adds: Vec<_> = adds.iter().map(|a| self.rows(*a)).collect();
        let gate = gate.map(|(g, order)| (self.rows(g), order));
        dense::norm(&norm, self.rows(*x), &adds, gate)
    }

    /// Ops that read buffers and caches and write one buffer.
    fn pure(&self, op: &Op, batch: &Batch) -> Option<(BufferId, Vec<f32>)> {
        let data = match op {
            Op::Embed { table, scale, positions, token_types, .. } => {
                let optional = |w: &Option<WeightId>| w.map(|w| self.weight(w));
                let (positions, types) = (optional(positions), optional(token_types));
                let tokens: Vec<TokenId> = batch.tokens.iter().map(|t| self.token(t)).collect();
                dense::embed(self.weight(*table), *scale, positions, types, &tokens, batch)
            }
            Op::Linear { x, weight, .. } => dense::linear(self.rows(*x), self.weight(*weight)),
            Op::GatedLinear { x, gate, up, act, .. } => {
                dense::gated_linear(self.rows(*x), self.weight(*gate), self.weight(*up), *act)
            }
            Op::HeadLinear { x, heads, weight, .. } => {
                dense::head_linear(self.rows(*x), *heads as usize, self.weight(*weight))
            }
            Op::Map { expr, args, out } => {
                let spec = self.program.buffers[out.0 as usize];
                let rows = match spec.rows {
                    RowKind::Tokens => batch.tokens.len(),
                    RowKind::Outputs => batch.outputs.len(),
                };
                let args: Vec<_> = args.iter().map(|a| self.rows(*a)).collect();
                dense::map(expr, &args, rows, spec.cols as usize)
            }
            Op::TakeRows { x, .. } => dense::take_rows(self.rows(*x), batch),
            Op::Pool { x, kind, normalise, .. } => {
                dense::pool(self.rows(*x), *kind, *normalise, batch)
            }
            Op::Head { x, weight, scale, softcap, .. } => {
                dense::head(self.rows(*x), self.weight(*weight), *scale, *softcap)
            }
            Op::Route { x, router, rule, .. } => {
                let bias = rule.choice_bias.map(|w| self.weight(w));
                let gains = rule.gains.map(|w| self.weight(w));
                experts::route(self.rows(*x), self.weight(*router), rule, bias, gains)
            }
            Op::Experts { x, route, gate, up, down, act, out, .. } => {
                let of = |first: &WeightId, e: usize| self.weight(WeightId(first.0 + e as u32));
                let expert = |e| [of(gate, e), of(up, e), of(down, e)];
                let cols = self.program.buffers[out.0 as usize].cols as usize;
                experts::experts(self.rows(*x), self.rows(*route), expert, *act, cols)
            }
            Op::Attend { .. } | Op::AttendLatent { .. } => self.attend(op, batch),
            _ => return None,
        };
        let written = op.operands().into_iter().find_map(|o| match o {
            tokenmill_ir::Operand::Write(b) => Some(b),
            _ => None,
        });
        written.map(|b| (b, data))
    }

    fn token(&self, source: &TokenSource) -> TokenId {
        match *source {
            TokenSource::Id(id) => id,
            TokenSource::Sampled(row) => self.sampled[row as usize],
        }
    }

    fn attend(&self, op: &Op, batch: &Batch) -> Vec<f32> {
        match op {
            Op::Attend {
                q, heads, source, kv_heads, v_dim, scale, mask, softcap, sinks, ..
            } => {
                let keys = match source {
                    AttendSource::Cache(c) => Keys::Cache(&self.caches[c.0 as usize]),
                    AttendSource::Fresh { k, v } => {
                        Keys::Fresh { k: self.rows(*k), v: self.rows(*v) }
                    }
                };
                let attention = Attention {
                    heads: *heads as usize,
                    kv_heads: *kv_heads as usize,
                    v_dim: *v_dim as usize,
                    scale: *scale,
                    mask: *mask,
                    softcap: *softcap,
                    sinks: sinks.map(|w| self.weight(w)),
                };
                attend(&attention, self.rows(*q), keys, batch)
            }
            Op::AttendLatent { q_latent, q_rope, heads, cache, scale, .. } => {
                let (latent, rope) = (self.rows(*q_latent), self.rows(*q_rope));
                let cache = &self.caches[cache.0 as usize];
                attend_latent(latent, rope, *heads as usize, cache, *scale, batch)
            }
            _ => Vec::new(),
        }
    }

    fn store_op(&mut self, op: &Op, batch: &Batch) {
        let at = &batch.positions;
        match op {
            Op::RotateStore { q, head_dim, q_norm, rope, growth, store: kept, out, .. } => {
                let dim = *head_dim as usize;
                let rotation = rope.map(|r| self.rotation(r));
                let mut queries = rotate(self.rows(*q), dim, self.head_norm(q_norm), rotation, at);
                if let Some(growth) = growth {
                    let rows = queries.chunks_exact_mut(q.cols as usize);
                    for (row, &position) in rows.zip(at) {
                        let factor = growth.factor(position);
                        row.iter_mut().for_each(|x| *x *= factor);
                    }
                }
                if let Some(s) = kept {
                    let k = self.rows(s.k);
                    let keys = rotate(k, dim, self.head_norm(&s.k_norm), rotation, at);
                    let mut cache = self.take(s.cache);
                    store(&mut cache, 0, Rows::of(&keys, s.k.cols as usize), batch);
                    store(&mut cache, 1, self.rows(s.v), batch);
                    self.give_back(s.cache, cache);
                }
                self.buffers[out.0 as usize] = queries;
            }
            Op::StoreLatent { latent, norm, eps, key, rope, cache: id } => {
                let weight = self.weight(*norm);
                let of = dense::Norm {
                    kind: tokenmill_ir::NormKind::Rms,
                    weight: Some(weight),
                    offset: 0.0,
                    bias: None,
                    groups: 1,
                    eps: *eps,
                };
                let latents = dense::norm(&of, self.rows(*latent), &[], None).out;
                let dim = key.cols as usize;
                let keys = rotate(self.rows(*key), dim, None, Some(self.rotation(*rope)), at);
                let mut cache = self.take(*id);
                store(&mut cache, 0, Rows::of(&latents, latent.cols as usize), batch);
                store(&mut cache, 1, Rows::of(&keys, dim), batch);
                self.give_back(*id, cache);
            }
            _ => {}
        }
    }

    fn recurrence(&mut self, op: &Op, batch: &Batch) {
        let (id, out) = match op {
            Op::Conv { state, out, .. }
            | Op::DeltaRule { state, out, .. }
            | Op::Scan { state, out, .. } => (*state, *out),
            _ => return,
        };
        let mut cache = self.take(id);
        let data = match op {
            Op::Conv { x, weight, bias, act, .. } => {
                let bias = bias.map(|w| self.weight(w));
                let weight = self.weight(*weight);
                recurrent::conv(self.rows(*x), weight, bias, *act, &mut cache, batch)
            }
            Op::DeltaRule { q, k, v, a, b, a_log, dt_bias, k_heads, v_heads, key_head, .. } => {
                let delta = recurrent::Delta {
                    q: self.rows(*q),
                    k: self.rows(*k),
                    v: self.rows(*v),
                    a: self.rows(*a),
                    b: self.rows(*b),
                    a_log: self.weight(*a_log),
                    dt_bias: self.weight(*dt_bias),
                    k_heads: *k_heads as usize,
                    v_heads: *v_heads as usize,
                    key_head: *key_head,
                };
                recurrent::delta_rule(&delta, &mut cache, batch)
            }
            Op::Scan { x, b, c, dt, a_log, skip, dt_bias, heads, groups, dt_limit, .. } => {
                let scan = recurrent::Scan {
                    x: self.rows(*x),
                    b: self.rows(*b),
                    c: self.rows(*c),
                    dt: self.rows(*dt),
                    a_log: self.weight(*a_log),
                    skip: self.weight(*skip),
                    dt_bias: self.weight(*dt_bias),
                    heads: *heads as usize,
                    groups: *groups as usize,
                    dt_limit: *dt_limit,
                };
                recurrent::scan(&scan, &mut cache, batch)
            }
            _ => Vec::new(),
        };
        self.give_back(id, cache);
        self.buffers[out.0 as usize] = data;
    }
}

impl Executable for ReferenceExecutable {
    fn submit(&mut self, batch: &mut Batch) -> Result<(), DeviceError> {
        if self.done.is_some() {
            return Err(DeviceError::BadBatch("a step is already in flight".into()));
        }
        self.rules.check(batch, self.sampled.len())?;
        self.done = Some(self.run(batch));
        Ok(())
    }

    fn wait(&mut self, out: &mut StepOutput) -> Result<(), DeviceError> {
        let done = self.done.take();
        *out = done.ok_or_else(|| DeviceError::BadBatch("no step was submitted".into()))?;
        Ok(())
    }

    fn advance(&mut self, _: Duration) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn resize(&mut self, blocks: &[u32]) -> Result<(), DeviceError> {
        self.rules.resize(blocks)?;
        for cache in &mut self.caches {
            cache.forget_from(blocks[cache.spec.group as usize]);
        }
        Ok(())
    }

    fn blocks(&self) -> Result<BlockBytes, DeviceError> {
        let groups = 0..self.program.groups().len();
        let block_tokens = self.block_tokens;
        Ok(BlockBytes {
            layout: format!("reference, numerics 1, blocks 1 of {block_tokens}"),
            groups: groups.map(|g| self.block_bytes(g)).collect(),
        })
    }

    fn read_block(
        &mut self,
        group: usize,
        block: BlockId,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.rules.check_block((group, block), (out.len(), self.block_bytes(group)))?;
        let mut out = out;
        for cache in self.caches.iter().filter(|c| c.spec.group as usize == group) {
            let (now, rest) = out.split_at_mut(cache.block_bytes());
            cache.read_block(block, now);
            out = rest;
        }
        Ok(())
    }

    fn write_block(
        &mut self,
        group: usize,
        block: BlockId,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        self.rules.check_block((group, block), (bytes.len(), self.block_bytes(group)))?;
        let mut bytes = bytes;
        for cache in self.caches.iter_mut().filter(|c| c.spec.group as usize == group) {
            let (now, rest) = bytes.split_at(cache.block_bytes());
            cache.write_block(block, now);
            bytes = rest;
        }
        Ok(())
    }
}

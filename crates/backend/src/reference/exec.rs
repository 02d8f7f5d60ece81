//! Runs a program op by op, keeping every buffer.

use std::sync::Arc;
use std::time::Duration;

use tokenmill_ir::sampling::SampleScratch;
use tokenmill_ir::{
    AttendSource, Batch, BlockId, CacheId, HeadNorm, Limits, Op, Program, RopeId, Rows as RowKind,
    StepOutput, TokenId, TokenSource, View, WeightId, op,
};

use super::attention::{Attention, Keys, Rotation, attend, attend_latent, rotate, store};
use super::caches::Cache;
use super::matrix::Matrix;
use super::rows::Rows;
use super::{dense, experts, recurrent, sampling};
use crate::batch_check::BatchRules;
use crate::{BlockBytes, DeviceError, Executable};

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
        let (out, data) = match op {
            Op::Norm(norm) => return self.norm(norm),
            Op::StoreLatent(op) => return self.store_latent(op, batch),
            Op::Sample { logits, hidden, more } => {
                return self.sample(*logits, (*hidden, &more[..]), batch, served);
            }
            Op::RotateStore(op) => (op.out, self.rotate_store(op, batch)),
            Op::Attend(op) => (op.out, self.attend(op, batch)),
            Op::AttendLatent(op) => (op.out, self.attend_latent(op, batch)),
            Op::Conv(op) => (op.out, self.conv(op, batch)),
            Op::DeltaRule(op) => (op.out, self.delta_rule(op, batch)),
            Op::Scan(op) => (op.out, self.scan(op, batch)),
            Op::Experts(op) => (op.out, self.experts(op)),
            Op::Embed { table, scale, positions, token_types, out } => {
                let optional = |w: &Option<WeightId>| w.map(|w| self.weight(w));
                let (positions, types) = (optional(positions), optional(token_types));
                let tokens: Vec<TokenId> = batch.tokens.iter().map(|t| self.token(t)).collect();
                let table = self.weight(*table);
                let tokens = (&*tokens, self.program.input_cols as usize);
                (*out, dense::embed(table, *scale, positions, types, tokens, batch))
            }
            Op::Input { start, out } => {
                let cols = self.program.buffers[out.0 as usize].cols as usize;
                let all = self.program.input_cols as usize;
                (*out, dense::input(batch, all, *start as usize, cols))
            }
            Op::Gather { x, table, out } => {
                (*out, dense::gather(self.rows(*x), self.weight(*table)))
            }
            Op::Linear { x, weight, out } => {
                (*out, dense::linear(self.rows(*x), self.weight(*weight)))
            }
            Op::GatedLinear { x, gate, up, act, out } => {
                let (gate, up) = (self.weight(*gate), self.weight(*up));
                (*out, dense::gated_linear(self.rows(*x), gate, up, *act))
            }
            Op::HeadLinear { x, heads, weight, out } => {
                let (heads, weight) = (*heads as usize, self.weight(*weight));
                (*out, dense::head_linear(self.rows(*x), heads, weight))
            }
            Op::Map { expr, args, out } => {
                let spec = self.program.buffers[out.0 as usize];
                let rows = match spec.rows {
                    RowKind::Tokens => batch.tokens.len(),
                    RowKind::Outputs => batch.outputs.len(),
                };
                let args: Vec<_> = args.iter().map(|a| self.rows(*a)).collect();
                (*out, dense::map(expr, &args, rows, spec.cols as usize))
            }
            Op::TakeRows { x, run, out } => (*out, dense::take_rows(self.rows(*x), *run, batch)),
            Op::Pool { x, kind, normalise, out } => {
                (*out, dense::pool(self.rows(*x), *kind, *normalise, batch))
            }
            Op::Head { x, weight, scale, softcap, out } => {
                let weight = self.weight(*weight);
                (*out, dense::head(self.rows(*x), weight, *scale, *softcap))
            }
            Op::Route { x, router, rule, out } => {
                let bias = rule.choice_bias.map(|w| self.weight(w));
                let gains = rule.gains.map(|w| self.weight(w));
                let router = self.weight(*router);
                (*out, experts::route(self.rows(*x), router, rule, bias, gains))
            }
        };
        self.buffers[out.0 as usize] = data;
    }

    fn norm(&mut self, op: &op::Norm) {
        let norm = dense::Norm {
            kind: op.kind,
            weight: op.weight.map(|w| self.weight(w)),
            offset: op.offset,
            bias: op.bias.map(|w| self.weight(w)),
            groups: op.groups as usize,
            eps: op.eps,
        };
        let adds: Vec<_> = op.adds.iter().map(|a| self.rows(*a)).collect();
        let gate = op.gate.map(|(g, order)| (self.rows(g), order));
        let normed = dense::norm(&norm, self.rows(op.x), &adds, gate);
        if let Some(sum) = op.sum {
            self.buffers[sum.0 as usize] = normed.sums;
        }
        if let Some(root) = op.root {
            self.buffers[root.0 as usize] = normed.roots;
        }
        self.buffers[op.out.0 as usize] = normed.out;
    }

    fn sample(
        &mut self,
        logits: Option<View>,
        (hidden, more): (View, &[View]),
        batch: &Batch,
        served: &mut StepOutput,
    ) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let logits = logits.map(|l| self.rows(l));
        let hidden: Vec<_> = [hidden].iter().chain(more).map(|v| self.rows(*v)).collect();
        let vocab = self.program.vocab as usize;
        sampling::serve(logits, &hidden, batch, vocab, &mut scratch, served);
        self.scratch = scratch;
    }

    fn experts(&self, op: &op::Experts) -> Vec<f32> {
        let of = |first: WeightId, e: usize| self.weight(WeightId(first.0 + e as u32));
        let expert = |e| [of(op.gate, e), of(op.up, e), of(op.down, e)];
        let cols = self.program.buffers[op.out.0 as usize].cols as usize;
        experts::experts(self.rows(op.x), self.rows(op.route), expert, op.act, cols)
    }

    fn token(&self, source: &TokenSource) -> TokenId {
        match *source {
            TokenSource::Id(id) => id,
            TokenSource::Sampled(row) => self.sampled[row as usize],
            TokenSource::Embedding(_) => 0, // (nobody looks it up)
        }
    }

    fn attend(&self, op: &op::Attend, batch: &Batch) -> Vec<f32> {
        let keys = match op.source {
            AttendSource::Cache(c) => Keys::Cache(&self.caches[c.0 as usize]),
            AttendSource::Fresh { k, v } => Keys::Fresh { k: self.rows(k), v: self.rows(v) },
        };
        let attention = Attention {
            heads: op.heads as usize,
            kv_heads: op.kv_heads as usize,
            v_dim: op.v_dim as usize,
            scale: op.scale,
            mask: op.mask,
            blocks: op.sees_blocks(),
            softcap: op.softcap,
            sinks: op.sinks.map(|w| self.weight(w)),
        };
        attend(&attention, self.rows(op.q), keys, batch)
    }

    fn attend_latent(&self, op: &op::AttendLatent, batch: &Batch) -> Vec<f32> {
        let (latent, rope) = (self.rows(op.q_latent), self.rows(op.q_rope));
        let cache = &self.caches[op.cache.0 as usize];
        attend_latent(latent, rope, op.heads as usize, cache, op.scale, batch)
    }

    fn rotate_store(&mut self, op: &op::RotateStore, batch: &Batch) -> Vec<f32> {
        let dim = op.head_dim as usize;
        let rotation = op.rope.map(|r| self.rotation(r));
        let mut queries = rotate(self.rows(op.q), dim, self.head_norm(&op.q_norm), rotation, batch);
        if let Some(position_scale) = op.position_scale {
            let rows = queries.chunks_exact_mut(op.q.cols as usize);
            for (row, &position) in rows.zip(&batch.positions) {
                let factor = position_scale.factor(position);
                row.iter_mut().for_each(|x| *x *= factor);
            }
        }
        if let Some(s) = &op.store {
            let k = self.rows(s.k);
            let keys = rotate(k, dim, self.head_norm(&s.k_norm), rotation, batch);
            let mut cache = self.take(s.cache);
            store(&mut cache, 0, Rows::of(&keys, s.k.cols as usize), batch);
            store(&mut cache, 1, self.rows(s.v), batch);
            self.give_back(s.cache, cache);
        }
        queries
    }

    fn store_latent(&mut self, op: &op::StoreLatent, batch: &Batch) {
        let of = dense::Norm {
            kind: tokenmill_ir::NormKind::Rms,
            weight: Some(self.weight(op.norm)),
            offset: 0.0,
            bias: None,
            groups: 1,
            eps: op.eps,
        };
        let latents = dense::norm(&of, self.rows(op.latent), &[], None).out;
        let (dim, rotation) = (op.key.cols as usize, Some(self.rotation(op.rope)));
        let keys = rotate(self.rows(op.key), dim, None, rotation, batch);
        let mut cache = self.take(op.cache);
        store(&mut cache, 0, Rows::of(&latents, op.latent.cols as usize), batch);
        store(&mut cache, 1, Rows::of(&keys, dim), batch);
        self.give_back(op.cache, cache);
    }

    fn conv(&mut self, op: &op::Conv, batch: &Batch) -> Vec<f32> {
        let mut cache = self.take(op.state);
        let (weight, bias) = (self.weight(op.weight), op.bias.map(|w| self.weight(w)));
        let data = recurrent::conv(self.rows(op.x), weight, bias, op.act, &mut cache, batch);
        self.give_back(op.state, cache);
        data
    }

    fn delta_rule(&mut self, op: &op::DeltaRule, batch: &Batch) -> Vec<f32> {
        let mut cache = self.take(op.state);
        let delta = recurrent::Delta {
            q: self.rows(op.q),
            k: self.rows(op.k),
            v: self.rows(op.v),
            a: self.rows(op.a),
            b: self.rows(op.b),
            a_log: self.weight(op.a_log),
            dt_bias: self.weight(op.dt_bias),
            k_heads: op.k_heads as usize,
            v_heads: op.v_heads as usize,
            key_head: op.key_head,
        };
        let data = recurrent::delta_rule(&delta, &mut cache, batch);
        self.give_back(op.state, cache);
        data
    }

    fn scan(&mut self, op: &op::Scan, batch: &Batch) -> Vec<f32> {
        let mut cache = self.take(op.state);
        let scan = recurrent::Scan {
            x: self.rows(op.x),
            b: self.rows(op.b),
            c: self.rows(op.c),
            dt: self.rows(op.dt),
            a_log: self.weight(op.a_log),
            skip: self.weight(op.skip),
            dt_bias: self.weight(op.dt_bias),
            heads: op.heads as usize,
            groups: op.groups as usize,
            dt_limit: op.dt_limit,
        };
        let data = recurrent::scan(&scan, &mut cache, batch);
        self.give_back(op.state, cache);
        data
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

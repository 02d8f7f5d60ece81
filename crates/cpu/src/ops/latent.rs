//! Multi-head latent attention in its absorbed form: storing latents, attending to them.
//!
//! Numerics (version 1): keys fall into tiles of 32 by their index; in a tile a score is the sum
//! of the lane dots of the latent and of the rotated part, times `scale`. The online softmax goes
//! tile by tile; sums take one fma a key in order.

use tokenmill_ir::Rows as RowKind;

use super::norm::Rule;
use super::rotate::{Turn, slot_of};
use crate::attend::BLOCK_TOKENS;
use crate::exec::{Job, Kernel};
use crate::isa::Isa;
use crate::math::{dot, exp};
use crate::plan::Cols;

/// Normalises latents, rotates keys and stores both.
#[derive(Debug)]
pub(crate) struct StoreLatent {
    pub latent: Cols,
    pub rule: Rule,
    pub key: Cols,
    pub turn: Turn,
    pub cache: usize,
}

impl Kernel for StoreLatent {
    fn run(&self, job: &Job<'_>) {
        let cache = &job.step.caches[self.cache];
        for row in job.worker.share(job.count(RowKind::Tokens)) {
            let (block, slot) = slot_of(job, cache, row);
            // SAFETY: scratch is used here only.
            let scratch = unsafe { &mut job.scratch().row[..self.latent.cols + self.key.cols] };
            let (latent, key) = scratch.split_at_mut(self.latent.cols);
            latent.copy_from_slice(job.read(self.latent, row));
            key.copy_from_slice(job.read(self.key, row));
            self.rule.apply(job.step.isa, 0, latent);
            self.turn.apply(job, row, 0, key);
            // SAFETY: this token is this worker's, and a barrier follows.
            unsafe { cache.store_latent(block, slot, latent, key) };
        }
    }
}

/// Attention over latents, divided by tokens and groups of heads.
#[derive(Debug)]
pub(crate) struct AttendLatent {
    pub q_latent: Cols,
    pub q_rope: Cols,
    pub heads: usize,
    pub scale: f32,
    pub cache: usize,
    pub out: Cols,
}

/// Heads that share the decoding of latents.
const HEADS: usize = 8;

impl AttendLatent {
    /// f32 of scratch: a tile of latents and keys, scores, a maximum and a total a head.
    pub fn wants(&self) -> usize {
        let (latent, rope) = self.dims();
        BLOCK_TOKENS * (latent + rope + 1) + 2 * HEADS
    }

    fn dims(&self) -> (usize, usize) {
        (self.q_latent.cols / self.heads, self.q_rope.cols / self.heads)
    }

    /// One token, some heads.
    fn unit(&self, job: &Job<'_>, row: usize, heads: std::ops::Range<usize>) {
        let (isa, cache) = (job.step.isa, &job.step.caches[self.cache]);
        let (latent, rope) = self.dims();
        let spans = &job.step.batch.spans;
        let span = &spans[spans.partition_point(|s| (s.first + s.len) as usize <= row)];
        let keys = span.context as usize + row - span.first as usize + 1;
        let table = job.table(span, cache);
        // SAFETY: scratch is used here only.
        let (tile, rest) = unsafe {
            job.scratch().row[..self.wants()].split_at_mut(BLOCK_TOKENS * (latent + rope))
        };
        let (scores, states) = rest.split_at_mut(BLOCK_TOKENS);
        let column = |v: Cols, h: usize, n: usize| Cols { start: v.start + h * n, cols: n, ..v };
        for (h, state) in heads.clone().zip(states.as_chunks_mut::<2>().0) {
            *state = [f32::NEG_INFINITY, 0.0];
            // SAFETY: these heads of this row are this worker's.
            unsafe { job.write(column(self.out, h, latent), row) }.fill(0.0);
        }
        for (t, &block) in table[..keys.div_ceil(BLOCK_TOKENS)].iter().enumerate() {
            let count = BLOCK_TOKENS.min(keys - t * BLOCK_TOKENS);
            for (j, key) in tile.chunks_exact_mut(latent + rope).take(count).enumerate() {
                // SAFETY: stored before the last barrier.
                unsafe { cache.load_latent(block, j, key) };
            }
            for (h, state) in heads.clone().zip(states.as_chunks_mut::<2>().0) {
                let of_latent = job.read(column(self.q_latent, h, latent), row);
                let of_rope = job.read(column(self.q_rope, h, rope), row);
                let keys = tile.chunks_exact(latent + rope).take(count);
                for (score, key) in scores.iter_mut().zip(keys) {
                    let (c, k) = key.split_at(latent);
                    *score = (dot(isa, of_latent, c) + dot(isa, of_rope, k)) * self.scale;
                }
                // SAFETY: as above.
                let acc = unsafe { job.write(column(self.out, h, latent), row) };
                fold(isa, &mut scores[..count], tile, latent + rope, state, acc);
            }
        }
        for (h, state) in heads.zip(states.as_chunks::<2>().0) {
            // SAFETY: as above.
            let acc = unsafe { job.write(column(self.out, h, latent), row) };
            acc.iter_mut().for_each(|x| *x /= state[1]);
        }
    }
}

crate::math::per_isa! {
    /// Adds a tile to the running softmax of a head.
    fold(
        scores: &mut [f32],
        tile: &[f32],
        stride: usize,
        state: &mut [f32; 2],
        acc: &mut [f32]
    ) = fold_lanes;
}

#[inline(always)]
fn fold_lanes(
    scores: &mut [f32],
    tile: &[f32],
    stride: usize,
    state: &mut [f32; 2],
    acc: &mut [f32],
) {
    let top = scores.iter().fold(state[0], |top, &s| if s > top { s } else { top });
    if top > state[0] {
        let factor = if state[0] == f32::NEG_INFINITY { 0.0 } else { exp(state[0] - top) };
        *state = [top, state[1] * factor];
        acc.iter_mut().for_each(|x| *x *= factor);
    }
    for (score, key) in scores.iter().zip(tile.chunks_exact(stride)) {
        let p = exp(score - top);
        state[1] += p;
        for (acc, c) in acc.iter_mut().zip(key) {
            *acc = p.mul_add(*c, *acc);
        }
    }
}

impl Kernel for AttendLatent {
    fn run(&self, job: &Job<'_>) {
        let groups = self.heads.div_ceil(HEADS);
        for unit in job.worker.share(job.count(RowKind::Tokens) * groups) {
            let first = unit % groups * HEADS;
            self.unit(job, unit / groups, first..(first + HEADS).min(self.heads));
        }
    }
}

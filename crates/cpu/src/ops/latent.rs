//! Multi-head latent attention in its absorbed form: storing latents, attending to them.
//!
//! Numerics: NUMERICS.md, "Latents".

use tokenmill_ir::Rows as RowKind;

use super::norm::Rule;
use super::rotate::{HeadRotation, block_of};
use crate::attend::BLOCK_TOKENS;
use crate::isa::Isa;
use crate::math::{exp, tree};
use crate::step::{Cols, Job, Kernel};

/// Normalises latents, rotates keys and stores both.
#[derive(Debug)]
pub(crate) struct StoreLatent {
    pub latent: Cols,
    pub rule: Rule,
    pub key: Cols,
    pub rotate: HeadRotation,
    pub cache: usize,
}

impl Kernel for StoreLatent {
    fn run(&self, job: &Job<'_>) {
        let cache = &job.step.caches[self.cache];
        for row in job.worker.share(job.count(RowKind::Tokens)) {
            let (block, index) = block_of(job, cache, row);
            // SAFETY: scratch is used here only.
            let scratch = unsafe { &mut job.scratch().row[..self.latent.cols + self.key.cols] };
            let (latent, key) = scratch.split_at_mut(self.latent.cols);
            latent.copy_from_slice(job.read(self.latent, row));
            key.copy_from_slice(job.read(self.key, row));
            self.rule.apply(job.step.isa, 0, latent);
            self.rotate.apply(job, row, 0, key);
            // SAFETY: this token is this worker's, and a barrier follows.
            unsafe { cache.store_latent(block, index % BLOCK_TOKENS, latent, key) };
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
    pub fn needs(&self) -> usize {
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
            job.scratch().row[..self.needs()].split_at_mut(BLOCK_TOKENS * (latent + rope))
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
                unsafe { cache.load_latent(isa, block, j, key) };
            }
            for (h, state) in heads.clone().zip(states.as_chunks_mut::<2>().0) {
                let of_latent = job.read(column(self.q_latent, h, latent), row);
                let of_rope = job.read(column(self.q_rope, h, rope), row);
                let tile = &tile[..count * (latent + rope)];
                dots(isa, of_latent, of_rope, tile, self.scale, &mut scores[..count]);
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
    /// Scores of a tile's keys, `[latent | rotated part]` each, for one head.
    dots(
        of_latent: &[f32],
        of_rope: &[f32],
        tile: &[f32],
        scale: f32,
        scores: &mut [f32]
    ) = dots_lanes;
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
fn dots_lanes(of_latent: &[f32], of_rope: &[f32], tile: &[f32], scale: f32, scores: &mut [f32]) {
    let (latent, stride) = (of_latent.len(), of_latent.len() + of_rope.len());
    let keys = |first: usize| move |i: usize| &tile[(first + i) * stride..][..stride];
    let mut first = 0;
    // Four keys at a time: their sums do not wait for each other.
    while first + 4 <= scores.len() {
        let keys: [&[f32]; 4] = std::array::from_fn(keys(first));
        let c = dots_of(of_latent, keys.map(|k| &k[..latent]));
        let r = dots_of(of_rope, keys.map(|k| &k[latent..]));
        for i in 0..4 {
            scores[first + i] = (c[i] + r[i]) * scale;
        }
        first += 4;
    }
    for (i, score) in scores.iter_mut().enumerate().skip(first) {
        let (c, r) = keys(i)(0).split_at(latent);
        let (c, r) = (dots_of(of_latent, [c]), dots_of(of_rope, [r]));
        *score = (c[0] + r[0]) * scale;
    }
}

/// [`crate::math::dot`] of one vector with several.
#[inline(always)]
fn dots_of<const N: usize>(a: &[f32], b: [&[f32]; N]) -> [f32; N] {
    let mut lanes = [[0.0f32; 16]; N];
    let whole = a.len() / 16 * 16;
    for at in (0..whole).step_by(16) {
        let a = &a[at..at + 16];
        for (lanes, b) in lanes.iter_mut().zip(b) {
            let b = &b[at..at + 16];
            for i in 0..16 {
                lanes[i] = a[i].mul_add(b[i], lanes[i]);
            }
        }
    }
    for (lanes, b) in lanes.iter_mut().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(&a[whole..]).zip(&b[whole..]) {
            *lane = a.mul_add(*b, *lane);
        }
    }
    lanes.map(tree)
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
    scores.iter_mut().for_each(|s| *s = exp(*s - top));
    scores.iter().for_each(|p| state[1] += p);
    let blocks = acc.len() / 64;
    let (wide, rest) = acc.split_at_mut(blocks * 64);
    // Columns have nothing to do with each other: 64 at a time, summed over all keys.
    for (b, acc) in wide.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        let mut sums = *acc;
        for (p, key) in scores.iter().zip(tile.chunks_exact(stride)) {
            for (sum, c) in sums.iter_mut().zip(&key[64 * b..64 * b + 64]) {
                *sum = p.mul_add(*c, *sum);
            }
        }
        *acc = sums;
    }
    for (p, key) in scores.iter().zip(tile.chunks_exact(stride)) {
        for (acc, c) in rest.iter_mut().zip(&key[64 * blocks..]) {
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

//! Head norms, rotation of queries and keys, storing keys and values.

use tokenmill_ir::{RopePairing, Rows as RowKind};

use super::norm::Rule;
use crate::exec::{Job, Kernel};
use crate::isa::Isa;
use crate::kv::BLOCK;
use crate::plan::Cols;

/// Where a rotation's sines and cosines lie, and how columns pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rotation {
    pub angles: Cols,
    pub pairing: RopePairing,
}

impl Rotation {
    /// Rotates the first columns of a head.
    fn apply(&self, job: &Job<'_>, row: usize, head: &mut [f32]) {
        let (sin, cos) = job.read(self.angles, row).split_at(self.angles.cols / 2);
        turn(job.step.isa, head, sin, cos, self.pairing);
    }
}

crate::math::per_isa! {
    /// Turns the pairs of a head.
    turn(head: &mut [f32], sin: &[f32], cos: &[f32], pairing: RopePairing) = turn_lanes;
}

#[inline(always)]
fn turn_lanes(head: &mut [f32], sin: &[f32], cos: &[f32], pairing: RopePairing) {
    let n = sin.len();
    match pairing {
        RopePairing::Half => {
            let (a, b) = head[..2 * n].split_at_mut(n);
            for (((a, b), sin), cos) in a.iter_mut().zip(b).zip(sin).zip(cos) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
        RopePairing::Interleaved => {
            let pairs = head[..2 * n].as_chunks_mut::<2>().0;
            for ((pair, sin), cos) in pairs.iter_mut().zip(sin).zip(cos) {
                let [a, b] = *pair;
                *pair = [a * cos - b * sin, b * cos + a * sin];
            }
        }
    }
}

/// Keys and values to store.
#[derive(Debug)]
pub(crate) struct Store {
    pub k: Cols,
    pub v: Cols,
    pub kv_heads: usize,
    pub k_norm: Option<Rule>,
    /// Index of the cache.
    pub cache: usize,
}

/// Rotates queries; rotates and stores keys; stores values. Divided by tokens and heads.
#[derive(Debug)]
pub(crate) struct RotateStore {
    pub q: Cols,
    pub heads: usize,
    pub dim: usize,
    pub q_norm: Option<Rule>,
    pub rotation: Option<Rotation>,
    pub store: Option<Store>,
    pub out: Cols,
}

impl RotateStore {
    fn head(&self, job: &Job<'_>, row: usize, h: usize, norm: &Option<Rule>, x: &mut [f32]) {
        if let Some(rule) = norm {
            rule.apply(job.step.isa, h, x);
        }
        if let Some(rotation) = &self.rotation {
            rotation.apply(job, row, x);
        }
    }

    fn query(&self, job: &Job<'_>, row: usize, h: usize) {
        let head = |v: Cols| Cols { start: v.start + h * self.dim, cols: self.dim, ..v };
        // SAFETY: this head of this row is this worker's.
        let out = unsafe { job.write(head(self.out), row) };
        out.copy_from_slice(job.read(head(self.q), row));
        self.head(job, row, h, &self.q_norm, out);
    }

    fn key_and_value(&self, job: &Job<'_>, s: &Store, row: usize, h: usize) {
        let cache = &job.step.caches[s.cache];
        let spans = &job.step.batch.spans;
        let span = &spans[spans.partition_point(|s| (s.first + s.len) as usize <= row)];
        let index = span.context as usize + row - span.first as usize;
        let block = job.table(span, cache)[index / BLOCK];
        // SAFETY: scratch is used here only.
        let key = unsafe { &mut job.scratch().row[..self.dim] };
        let head = |v: Cols, dim: usize| Cols { start: v.start + h * dim, cols: dim, ..v };
        key.copy_from_slice(job.read(head(s.k, self.dim), row));
        self.head(job, row, h, &s.k_norm, key);
        let value = job.read(head(s.v, cache.v_dim), row);
        // SAFETY: this head of this token is this worker's, and a barrier follows.
        unsafe {
            cache.store_key(block, h, index % BLOCK, key);
            cache.store_value(block, h, index % BLOCK, value);
        }
    }
}

impl Kernel for RotateStore {
    fn run(&self, job: &Job<'_>) {
        let kv_heads = self.store.as_ref().map_or(0, |s| s.kv_heads);
        let units = self.heads + kv_heads;
        for unit in job.worker.share(job.count(RowKind::Tokens) * units) {
            let (row, h) = (unit / units, unit % units);
            match &self.store {
                Some(s) if h < kv_heads => self.key_and_value(job, s, row, h),
                _ => self.query(job, row, h - kv_heads),
            }
        }
    }
}

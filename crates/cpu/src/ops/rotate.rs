//! Angles of rotations, rotating queries, rotating and storing keys and values.

use std::ops::Range;
use std::sync::Arc;

use tokenmill_ir::{BlockId, NormKind, PositionScale, Rows as RowKind};

use crate::attend::rope::{HeadScale, Rotation};
use crate::attend::{BLOCK_TOKENS, Steady};
use crate::caches::{Cache, Shape};
use crate::step::{Cols, Job, Kernel, NARROW};

/// Cosines and sines of a rotation at the position of every token.
#[derive(Debug)]
pub(crate) struct Angles {
    pub rotation: Rotation,
    pub out: Cols,
}

impl Kernel for Angles {
    fn run(&self, job: &Job<'_>) {
        for r in job.rows(RowKind::Tokens) {
            let positions = job.step.batch.axes(r);
            // SAFETY: by rows.
            self.rotation.table(job.step.isa, positions, unsafe { job.write(self.out, r) });
        }
    }
}

/// Normalisation of heads.
#[derive(Debug, Clone)]
pub(crate) struct HeadRule {
    pub kind: NormKind,
    pub weight: Vec<f32>,
    pub offset: f32,
    pub eps: f32,
}

/// Norm, rotation and position scale of heads.
#[derive(Debug, Clone)]
pub(crate) struct HeadRotation {
    pub dim: usize,
    pub norm: Option<HeadRule>,
    /// The rotation and where its angles lie.
    pub rotation: Option<(Rotation, Cols)>,
    pub position_scale: Option<PositionScale>,
}

impl HeadRotation {
    /// Heads `first ..` of a row in place.
    pub fn apply(&self, job: &Job<'_>, row: usize, first: usize, heads: &mut [f32]) {
        let isa = job.step.isa;
        if let Some(n) = &self.norm {
            let own = n.weight.len() > self.dim;
            let weight = if own { &n.weight[first * self.dim..][..heads.len()] } else { &n.weight };
            let HeadRule { kind, offset, eps, .. } = *n;
            HeadScale { kind, weight, offset, eps }.apply(isa, self.dim, heads);
        }
        if let Some((rotation, angles)) = &self.rotation {
            rotation.apply(isa, job.read(*angles, row), self.dim, heads);
        }
        if let Some(position_scale) = self.position_scale {
            let factor = position_scale.factor(job.step.batch.positions[row]);
            heads.iter_mut().for_each(|x| *x *= factor);
        }
    }
}

/// Keys and values to store.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub k: Cols,
    pub v: Cols,
    pub rotate: HeadRotation,
    /// What keys are kept without.
    pub steady: Option<Arc<Steady>>,
    /// Index of the cache.
    pub cache: usize,
}

/// Who stores keys and values.
#[derive(Debug)]
pub(crate) enum Storing {
    /// Nobody.
    None,
    /// The worker that the token falls to.
    Here(Store),
    /// That worker with many tokens; with few, the attention that follows: rows are every
    /// worker's then.
    Shared(Store),
}

/// Rotates queries; rotates and stores keys; stores values.
#[derive(Debug)]
pub(crate) struct RotateStore {
    pub q: Cols,
    pub rotate: HeadRotation,
    pub storing: Storing,
    pub out: Cols,
}

/// The block of a token row, and its index in the sequence.
pub(crate) fn block_of(job: &Job<'_>, cache: &Cache, row: usize) -> (BlockId, usize) {
    let spans = &job.step.batch.spans;
    let span = &spans[spans.partition_point(|s| (s.first + s.len) as usize <= row)];
    let index = span.context as usize + row - span.first as usize;
    (job.table(span, cache)[index / BLOCK_TOKENS], index)
}

impl Store {
    /// Rotates and stores the keys, and stores the values, of key heads `heads` of a token row.
    ///
    /// # Safety
    /// They are this worker's, and whoever reads them meets a barrier first or is this worker.
    pub unsafe fn heads(&self, job: &Job<'_>, row: usize, heads: Range<usize>) {
        let cache = &job.step.caches[self.cache];
        let Shape::Paged(layout) = cache.shape else { return };
        let (block, index) = block_of(job, cache, row);
        let cols = |v: Cols, dim: usize| {
            let (start, cols) = (v.start + heads.start * dim, heads.len() * dim);
            job.read(Cols { start, cols, ..v }, row)
        };
        let keys = cols(self.k, layout.k_dim);
        // SAFETY: scratch is used here only.
        let (rotated, room) = unsafe { &mut job.scratch().row }.split_at_mut(keys.len());
        rotated.copy_from_slice(keys);
        self.rotate.apply(job, row, heads.start, rotated);
        let (isa, parts, values) = (job.step.isa, cache.parts(), cols(self.v, layout.v_dim));
        if let Some(steady) = &self.steady {
            steady.leave(isa, index, heads.start, rotated, room);
        }
        let slot = (block.0 as usize, index % BLOCK_TOKENS);
        // SAFETY: by contract.
        unsafe { layout.store_heads(isa, parts, slot, heads.start, rotated, values) };
    }
}

impl Kernel for RotateStore {
    fn run(&self, job: &Job<'_>) {
        let count = job.count(RowKind::Tokens);
        let (store, rows) = match &self.storing {
            Storing::None => (None, job.rows(RowKind::Tokens)),
            Storing::Here(s) => (Some(s), job.worker.share(count)),
            Storing::Shared(s) => ((count > NARROW).then_some(s), job.rows(RowKind::Tokens)),
        };
        for row in rows {
            // SAFETY: by rows.
            let out = unsafe { job.write(self.out, row) };
            out.copy_from_slice(job.read(self.q, row));
            self.rotate.apply(job, row, 0, out);
            if let Some(s) = store {
                // SAFETY: this token is this worker's, and a barrier follows.
                unsafe { s.heads(job, row, 0..s.k.cols / s.rotate.dim) };
            }
        }
    }
}

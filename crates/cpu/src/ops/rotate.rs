//! Angles of rotations, rotating queries, rotating and storing keys and values.

use tokenmill_ir::{BlockId, NormKind, Rows as RowKind};

use crate::attend::BLOCK_TOKENS;
use crate::attend::rope::{HeadScale, Rotation};
use crate::caches::{Cache, Shape};
use crate::exec::{Job, Kernel};
use crate::plan::Cols;

/// Cosines and sines of a rotation at the position of every token.
#[derive(Debug)]
pub(crate) struct Angles {
    pub rotation: Rotation,
    pub out: Cols,
}

impl Kernel for Angles {
    fn run(&self, job: &Job<'_>) {
        for r in job.rows(RowKind::Tokens) {
            let position = job.step.batch.positions[r];
            // SAFETY: by rows.
            self.rotation.table(job.step.isa, position, unsafe { job.write(self.out, r) });
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

/// Norm and rotation of heads.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    pub dim: usize,
    pub norm: Option<HeadRule>,
    /// The rotation and where its angles lie.
    pub rotation: Option<(Rotation, Cols)>,
}

impl Turn {
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
    }
}

/// Keys and values to store.
#[derive(Debug)]
pub(crate) struct Store {
    pub k: Cols,
    pub v: Cols,
    pub turn: Turn,
    /// Index of the cache.
    pub cache: usize,
}

/// Rotates queries; rotates and stores keys; stores values. Divided by tokens and heads.
#[derive(Debug)]
pub(crate) struct RotateStore {
    pub q: Cols,
    pub turn: Turn,
    pub store: Option<Store>,
    pub out: Cols,
}

/// The block and the place in it of a token row.
pub(crate) fn slot_of(job: &Job<'_>, cache: &Cache, row: usize) -> (BlockId, usize) {
    let spans = &job.step.batch.spans;
    let span = &spans[spans.partition_point(|s| (s.first + s.len) as usize <= row)];
    let index = span.context as usize + row - span.first as usize;
    (job.table(span, cache)[index / BLOCK_TOKENS], index % BLOCK_TOKENS)
}

impl RotateStore {
    fn query(&self, job: &Job<'_>, row: usize, h: usize) {
        let dim = self.turn.dim;
        let head = |v: Cols| Cols { start: v.start + h * dim, cols: dim, ..v };
        // SAFETY: this head of this row is this worker's.
        let out = unsafe { job.write(head(self.out), row) };
        out.copy_from_slice(job.read(head(self.q), row));
        self.turn.apply(job, row, h, out);
    }

    fn keys_and_values(job: &Job<'_>, s: &Store, row: usize) {
        let cache = &job.step.caches[s.cache];
        let Shape::Paged(layout) = cache.shape else { return };
        let (block, slot) = slot_of(job, cache, row);
        // SAFETY: scratch is used here only.
        let keys = unsafe { &mut job.scratch().row[..s.k.cols] };
        keys.copy_from_slice(job.read(s.k, row));
        s.turn.apply(job, row, 0, keys);
        let values = job.read(s.v, row);
        // SAFETY: this token is this worker's, and a barrier follows.
        unsafe {
            let parts = cache.parts();
            layout.store(job.step.isa, parts, block.0 as usize, slot, keys, values);
        }
    }
}

impl Kernel for RotateStore {
    fn run(&self, job: &Job<'_>) {
        let heads = self.q.cols / self.turn.dim;
        // Storing all keys and values of a token counts as many heads as there are.
        let stored = self.store.as_ref().map_or(0, |s| s.k.cols / self.turn.dim);
        let units = heads + stored;
        for unit in job.worker.share(job.count(RowKind::Tokens) * units) {
            let (row, h) = (unit / units, unit % units);
            match &self.store {
                Some(s) if h == 0 => Self::keys_and_values(job, s, row),
                Some(_) if h < stored => {}
                _ => self.query(job, row, h - stored),
            }
        }
    }
}

//! A step as kernels see it: rows of buffers, this worker's share of them, its scratch memory.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokenmill_ir::sampling::SampleScratch;
use tokenmill_ir::{Batch, BlockId, Rows as RowKind, Sampled, Span, TokenId, View};

use crate::attend::{self, Item, ItemSource};
use crate::caches::Cache;
use crate::isa::Isa;
use crate::linear::{Line, Prefetch};
use crate::memory::Parts;
use crate::pool::Worker;

/// Up to this many rows every worker computes them all.
pub(crate) const NARROW: usize = 2;

/// From this many tokens a worker on, products are divided by tokens: expanding a weight costs as
/// much as a few of them.
const WIDE_SHARE: usize = 64;

/// How many tokens a step has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// So few that every worker computes them all.
    Narrow,
    /// Rows are divided, products are divided by columns.
    Middle,
    /// All is divided by rows.
    Wide,
}

impl Width {
    /// Of so many tokens on so many workers.
    pub fn of(tokens: usize, workers: usize) -> Width {
        match tokens {
            0..=NARROW => Width::Narrow,
            _ if tokens < WIDE_SHARE * workers => Width::Middle,
            _ => Width::Wide,
        }
    }
}

/// Where a buffer lies: `stride` f32 from row to row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub rows: RowKind,
    pub stride: usize,
    /// Whether workers have copies of their own with few rows.
    pub copied: bool,
    /// Byte offset in the shared memory, and in each worker's own.
    pub shared: usize,
    pub own: usize,
    /// f32 of a region that is not made of rows.
    pub flat: Option<usize>,
}

/// A column range of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cols {
    pub region: usize,
    pub start: usize,
    pub cols: usize,
}

impl From<View> for Cols {
    fn from(v: View) -> Self {
        // The regions of a program's buffers come first, in order.
        let (start, cols) = (v.start as usize, v.cols as usize);
        Self { region: v.buffer.0 as usize, start, cols }
    }
}

/// Code of one node.
pub(crate) trait Kernel: Debug + Send + Sync {
    /// Does this worker's part.
    fn run(&self, job: &Job<'_>);
}

/// A worker's own memory.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub lines: Vec<Line>,
    /// What products prefetch.
    pub prefetch: Prefetch,
    pub attention: attend::Scratch,
    pub sample: SampleScratch,
    /// A row of logits, or whatever a kernel needs.
    pub row: Vec<f32>,
    /// Rows encoded for a product of this worker alone, and its results.
    pub encoded: Vec<Line>,
    pub block: Vec<f32>,
    /// Tokens by expert.
    pub order: Vec<u32>,
}

/// How much scratch the nodes of a program need.
#[derive(Debug, Clone, Default)]
pub(crate) struct Needs {
    pub lines: usize,
    pub attention: AttentionNeeds,
    pub row: usize,
    pub encoded: usize,
    pub block: usize,
    /// Numbers that sort tokens by expert.
    pub order: usize,
    /// Work counters.
    pub counters: usize,
    /// Distinct lists of attention items: source, heads, key heads.
    pub items: Vec<(ItemSource, usize, usize)>,
}

/// The largest shapes of attention.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AttentionNeeds {
    /// Query heads a key head.
    pub group: usize,
    pub k_dim: usize,
    pub v_dim: usize,
}

impl AttentionNeeds {
    pub fn scratch(self) -> attend::Scratch {
        attend::Scratch::new(self.group.max(1), 1, self.k_dim, self.v_dim)
    }
}

/// What a sampled row gave.
#[derive(Debug, Default)]
pub(crate) struct Served {
    pub sampled: Sampled,
    pub top: Vec<(TokenId, f32)>,
}

/// Experts whose weights a step has read, and their stored bytes.
#[derive(Debug, Default)]
pub(crate) struct ExpertReads {
    pub experts: AtomicU64,
    pub bytes: AtomicU64,
}

impl ExpertReads {
    /// So many experts of that size more.
    pub fn count(&self, experts: u64, bytes: u64) {
        self.experts.fetch_add(experts, Ordering::Relaxed);
        self.bytes.fetch_add(experts * bytes, Ordering::Relaxed);
    }
}

/// Everything a step reads.
pub(crate) struct Step<'a> {
    pub batch: &'a Batch,
    /// Tokens, known by now.
    pub ids: &'a [TokenId],
    pub isa: Isa,
    pub tokens: usize,
    pub width: Width,
    pub outputs: usize,
    pub caches: &'a [Cache],
    pub counters: &'a [AtomicUsize],
    pub experts: &'a ExpertReads,
    /// Lists of attention items.
    pub items: &'a [Vec<Item>],
    pub served: Parts<'a, Served>,
    pub regions: &'a [Region],
    /// First bytes of the memory all share, and of each worker's own.
    pub shared: *mut u8,
    pub own: *mut u8,
    pub own_bytes: usize,
    pub scratch: Parts<'a, Scratch>,
}

// SAFETY: the raw pointers are to memory of the executable, which outlives the step; workers
// write different parts of it, or meet at a barrier between writing and reading.
unsafe impl Sync for Step<'_> {}

/// A step on one worker.
pub(crate) struct Job<'a> {
    pub step: &'a Step<'a>,
    pub worker: Worker<'a>,
}

impl<'a> Job<'a> {
    /// Rows of that kind in this step.
    pub fn count(&self, kind: RowKind) -> usize {
        match kind {
            RowKind::Tokens => self.step.tokens,
            RowKind::Outputs => self.step.outputs,
        }
    }

    /// The rows this worker computes of a node by rows.
    pub fn rows(&self, kind: RowKind) -> Range<usize> {
        let count = self.count(kind);
        if count <= NARROW { 0..count } else { self.worker.share(count) }
    }

    /// The part of `units` and the rows that this worker computes of a product that has so many
    /// units of columns.
    pub fn product(&self, units: usize, kind: RowKind) -> (Range<usize>, Range<usize>) {
        let count = self.count(kind);
        match (kind, self.step.width) {
            (RowKind::Tokens, Width::Wide) => (0..units, self.worker.share(count)),
            _ => (self.worker.share(units), 0..count),
        }
    }

    /// What kind of rows a region has.
    pub fn kind(&self, region: usize) -> RowKind {
        self.step.regions[region].rows
    }

    /// f32 from row to row.
    pub fn stride(&self, region: usize) -> usize {
        self.step.regions[region].stride
    }

    /// The first row of a region, as this worker sees it.
    pub fn start(&self, region: usize) -> *mut f32 {
        self.start_of(region, self.worker.index())
    }

    /// The first row of a region, as worker `index` sees it.
    pub fn start_of(&self, region: usize, index: usize) -> *mut f32 {
        let p = &self.step.regions[region];
        let own = p.copied && index > 0 && self.count(p.rows) <= NARROW;
        // SAFETY: inside the memory of the plan.
        unsafe {
            if own {
                self.step.own.add((index - 1) * self.step.own_bytes + p.own).cast()
            } else {
                self.step.shared.add(p.shared).cast()
            }
        }
    }

    /// A row of a view.
    pub fn read(&self, v: Cols, row: usize) -> &'a [f32] {
        let p = &self.step.regions[v.region];
        debug_assert!(row < self.count(p.rows) && v.start + v.cols <= p.stride);
        // SAFETY: inside the region; the plan has a barrier, or the same worker, between writing
        // and reading it.
        unsafe {
            let first = self.start(v.region).add(row * p.stride + v.start);
            std::slice::from_raw_parts(first, v.cols)
        }
    }

    /// A row of a view, to write.
    ///
    /// # Safety
    /// The row (or these columns of it) is this worker's by the node's way of splitting.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn write(&self, v: Cols, row: usize) -> &'a mut [f32] {
        let p = &self.step.regions[v.region];
        debug_assert!(row < self.count(p.rows) && v.start + v.cols <= p.stride);
        // SAFETY: inside the region; alone by contract.
        unsafe {
            let first = self.start(v.region).add(row * p.stride + v.start);
            std::slice::from_raw_parts_mut(first, v.cols)
        }
    }

    /// This worker's scratch memory.
    ///
    /// # Safety
    /// One use at a time.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn scratch(&self) -> &'a mut Scratch {
        let index = self.worker.index();
        // SAFETY: workers have different indices; one use at a time by contract.
        unsafe { &mut self.step.scratch.part(index..index + 1)[0] }
    }

    /// The block table of a span for a cache.
    pub fn table(&self, span: &Span, cache: &Cache) -> &'a [BlockId] {
        &self.step.batch.tables[span.tables[cache.group] as usize..]
    }
}

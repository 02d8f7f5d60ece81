//! Attention: items of work taken as workers come free; with few tokens, splits of their keys are
//! computed apart and joined.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokenmill_ir::{BlockId, Mask};

use super::rotate::Store;
use crate::attend::{
    AttendJob, BLOCK_TOKENS, Item, Keys, Rows, SPLIT, Steady, attend, attend_split, join_splits,
};
use crate::caches::Shape;
use crate::isa::Isa;
use crate::memory::Parts;
use crate::step::{Cols, Job, Kernel, NARROW, Width};
use crate::weight::Weight;

/// Where keys and values are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    /// Index of the cache.
    Cache(usize),
    /// Index of a cache of latents, and the queries that meet the rotated keys beside them.
    Latents {
        cache: usize,
        q_rope: Cols,
    },
    Fresh {
        k: Cols,
        v: Cols,
    },
}

/// The attention of one layer.
#[derive(Debug, Clone)]
pub(crate) struct Attend {
    pub q: Cols,
    pub out: Cols,
    pub heads: usize,
    pub kv_heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub mask: Mask,
    /// Whether tokens see all of their block.
    pub blocks: bool,
    pub sinks: Option<Arc<Weight>>,
    pub source: Source,
    /// What the keys of the cache are without.
    pub steady: Option<Arc<Steady>>,
    /// Index of the cache that the next attention of the step reads.
    pub next_cache: Option<usize>,
    /// Keys and values to store first, with few tokens.
    pub store: Option<Store>,
    pub room: Room,
}

/// What the attention of a layer works with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Which list of items, and which counter.
    pub items: usize,
    pub counter: usize,
    /// Region of the splits' results, and most splits of an item.
    pub parts: usize,
    pub max_splits: usize,
}

/// f32 that the splits of few tokens take.
pub(crate) fn parts_len(heads: usize, v_dim: usize, max_splits: usize) -> usize {
    NARROW * heads * max_splits * (16 + v_dim.next_multiple_of(16))
}

/// All rows of a view.
fn rows<'a>(job: &Job<'a>, v: Cols) -> Rows<'a> {
    let stride = job.stride(v.region);
    let len = job.step.tokens.saturating_sub(1) * stride + v.cols;
    // SAFETY: inside the region; written before the last barrier.
    let data = unsafe { std::slice::from_raw_parts(job.start(v.region).add(v.start), len) };
    Rows { data, stride }
}

impl Attend {
    /// The work of this step; results go where this worker sees them.
    fn work<'a>(&'a self, job: &Job<'a>) -> Option<AttendJob<'a>> {
        let step = job.step;
        let last = step.tokens.checked_sub(1)?;
        let keys = match self.source {
            Source::Cache(cache) => {
                let cache = &step.caches[cache];
                let Shape::Paged(layout) = cache.shape else { return None };
                // SAFETY: what is read was stored before the last barrier.
                Keys::Cache { layout, bytes: unsafe { cache.bytes() }, tables: &step.batch.tables }
            }
            Source::Latents { cache, q_rope } => {
                let cache = &step.caches[cache];
                let Shape::Latent(layout) = cache.shape else { return None };
                // SAFETY: as above.
                let bytes = unsafe { cache.bytes() };
                let (tables, q_rope) = (&step.batch.tables, rows(job, q_rope));
                Keys::Latents { layout, bytes, tables, q_rope }
            }
            Source::Fresh { k, v } => Keys::Fresh { k: rows(job, k), v: rows(job, v) },
        };
        let out_stride = job.stride(self.out.region);
        let len = last * out_stride + self.out.cols;
        // SAFETY: inside the region; items write different parts of it.
        let out =
            unsafe { Parts::new(std::slice::from_raw_parts_mut(job.start(self.out.region), len)) };
        Some(AttendJob {
            heads: self.heads,
            kv_heads: self.kv_heads,
            k_dim: self.k_dim,
            v_dim: self.v_dim,
            scale: self.scale,
            mask: self.mask,
            blocks: if self.blocks { &step.batch.blocks } else { &[] },
            softcap: self.softcap,
            sinks: self.sinks.as_ref().map(|s| s.vector()),
            q: rows(job, self.q),
            keys,
            steady: self.steady.as_deref(),
            out,
            out_stride,
        })
    }

    /// Region of the results of all splits of few tokens.
    fn parts<'a>(&self, job: &Job<'a>) -> Parts<'a, f32> {
        let len = parts_len(self.heads, self.v_dim, self.room.max_splits);
        // SAFETY: the whole region; using parts of it is the unsafe of `Parts`.
        Parts::new(unsafe { std::slice::from_raw_parts_mut(job.start(self.room.parts), len) })
    }

    /// Few tokens: every split of every item is a unit of its own. Whoever has the last split of
    /// a head has all that hold keys of this step, and stores those first.
    fn few(&self, job: &Job<'_>, work: &AttendJob<'_>, items: &[Item]) {
        let total: usize = items.iter().map(|item| work.splits(item).len()).sum();
        let (mine, parts) = (job.worker.share(total), self.parts(job));
        let (mut unit, mut start) = (0, 0);
        for of_head in items.chunk_by(|a, b| (a.origin, a.kv_head) == (b.origin, b.kv_head)) {
            let units: usize = of_head.iter().map(|item| work.splits(item).len()).sum();
            let has_last = mine.contains(&(unit + units - 1));
            let fresh = if self.store.is_some() { of_head[0].index as usize } else { usize::MAX };
            if let Some(s) = self.store.as_ref().filter(|_| has_last) {
                for row in of_head.iter().flat_map(|i| i.row..i.row + i.tokens) {
                    let head = of_head[0].kv_head as usize;
                    // SAFETY: this head's new keys are read by this worker only, until the next
                    // barrier.
                    unsafe { s.heads(job, row as usize, head..head + 1) };
                }
            }
            for item in of_head {
                let len = work.part_len(item);
                for split in work.splits(item) {
                    let holds_new = (split + 1) * SPLIT > fresh;
                    let taken = if holds_new { has_last } else { mine.contains(&unit) };
                    if taken {
                        // SAFETY: every split has a part of its own and one worker; scratch is
                        // used here only.
                        unsafe {
                            let (part, scratch) = (parts.part(start..start + len), job.scratch());
                            let scratch = &mut scratch.attention;
                            attend_split(job.step.isa, work, item, split, part, scratch);
                        }
                    }
                    (unit, start) = (unit + 1, start + len);
                }
            }
        }
    }

    /// Many tokens: whole items, taken as workers come free.
    fn many(&self, job: &Job<'_>, work: &AttendJob<'_>, items: &[Item]) {
        let counter = &job.step.counters[self.room.counter];
        // The last items of a span see most keys: they go first.
        let take = || {
            let next = counter.fetch_add(1, Ordering::Relaxed);
            items.len().checked_sub(next + 1).map(|i| &items[i])
        };
        let mut next = take();
        while let Some(item) = next {
            next = take();
            // SAFETY: every item has one worker; scratch is used here only.
            unsafe { attend(job.step.isa, work, item, next, &mut job.scratch().attention) };
        }
    }
}

impl Attend {
    /// Has products prefetch keys and values of the next layer, those that are attended to first. Between prompts and
    /// few tokens only: with few tokens products read as fast as memory gives, prompts seldom wait for keys.
    fn prefetch_next(&self, job: &Job<'_>) {
        let step = job.step;
        // SAFETY: used here only.
        let prefetch = unsafe { &mut job.scratch().prefetch };
        let cache = self.next_cache.map(|next| &step.caches[next]);
        let worth = step.width == Width::Middle && step.isa == Isa::Avx512Bf16;
        let Some(cache) = cache.filter(|_| worth) else { return prefetch.set([]) };
        let (workers, worker) = (job.worker.count(), job.worker.index());
        let spans = step.batch.spans.iter().rev().skip(worker).step_by(workers);
        prefetch.set(spans.flat_map(|span| {
            let blocks = ((span.context + span.len) as usize).div_ceil(BLOCK_TOKENS);
            let table = &job.table(span, cache)[..blocks];
            table
                .iter()
                .filter(|&&block| block != BlockId::NONE)
                .map(|&block| cache.addresses(block))
        }));
    }
}

impl Kernel for Attend {
    fn run(&self, job: &Job<'_>) {
        let Some(work) = self.work(job) else { return };
        let items = &job.step.items[self.room.items];
        if job.step.tokens <= NARROW {
            self.few(job, &work, items);
        } else {
            self.many(job, &work, items);
            self.prefetch_next(job);
        }
    }
}

/// Joins the splits that [`Attend`] leaves with few tokens.
#[derive(Debug)]
pub(crate) struct Join(pub Attend);

/// Up to so many splits every worker joins all heads for itself; beyond, reading them costs more
/// than dividing the heads and waiting once more.
const JOINED_BY_ALL: usize = 8;

impl Join {
    /// Gives the results of an item to the other workers.
    ///
    /// # Safety
    /// They read them after the next barrier, and nobody else writes them.
    unsafe fn spread(&self, job: &Job<'_>, work: &AttendJob<'_>, item: &Item) {
        let cols = work.heads / work.kv_heads * work.v_dim;
        let of_head = item.kv_head as usize * cols;
        for row in item.row..item.row + item.tokens {
            let at = self.0.out.start + row as usize * work.out_stride + of_head;
            for other in (0..job.worker.count()).filter(|w| *w != job.worker.index()) {
                // SAFETY: inside both workers' rows; by contract.
                unsafe {
                    let to = job.start_of(self.0.out.region, other).add(at);
                    job.start(self.0.out.region).add(at).copy_to_nonoverlapping(to, cols);
                }
            }
        }
    }
}

impl Kernel for Join {
    fn run(&self, job: &Job<'_>) {
        let Some(work) = self.0.work(job) else { return };
        let items = &job.step.items[self.0.room.items];
        let most = items.iter().map(|item| work.splits(item).len()).max().unwrap_or(0);
        let divided = most > JOINED_BY_ALL && job.worker.count() > 1;
        let mine = if divided { job.worker.share(items.len()) } else { 0..items.len() };
        let mut start = 0;
        for (i, item) in items.iter().enumerate() {
            let len = work.part_len(item) * work.splits(item).len();
            if mine.contains(&i) {
                // SAFETY: parts were written before the last barrier and are only read now;
                // every worker has results and scratch of its own, and those of an item are
                // given to others by one worker, before a barrier.
                unsafe {
                    let first = job.start(self.0.room.parts).add(start);
                    let parts = std::slice::from_raw_parts(first, len);
                    let scratch = &mut job.scratch().attention;
                    join_splits(job.step.isa, &work, item, parts, scratch);
                    if divided {
                        self.spread(job, &work, item);
                    }
                }
            }
            start += len;
        }
        if divided {
            job.worker.barrier();
        }
    }
}

//! Attention: items of work taken as workers come free.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokenmill_ir::Mask;

use crate::attend::{AttendJob, Keys, Rows, attend};
use crate::caches::Shape;
use crate::exec::{Job, Kernel};
use crate::memory::Parts;
use crate::plan::Cols;
use crate::weight::Weight;

/// Where keys and values are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    /// Index of the cache.
    Cache(usize),
    Fresh {
        k: Cols,
        v: Cols,
    },
}

/// The attention of one layer.
#[derive(Debug)]
pub(crate) struct Attend {
    pub q: Cols,
    pub out: Cols,
    pub heads: usize,
    pub kv_heads: usize,
    pub v_dim: usize,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub mask: Mask,
    pub sinks: Option<Arc<Weight>>,
    pub source: Source,
    /// Which list of items, and which counter.
    pub items: usize,
    pub counter: usize,
}

/// All rows of a view.
fn rows<'a>(job: &Job<'a>, v: Cols) -> Rows<'a> {
    let stride = job.stride(v.place);
    let len = job.step.tokens.saturating_sub(1) * stride + v.cols;
    // SAFETY: inside the place; written before the last barrier.
    let data = unsafe { std::slice::from_raw_parts(job.start(v.place).add(v.start), len) };
    Rows { data, stride }
}

impl Kernel for Attend {
    fn run(&self, job: &Job<'_>) {
        let step = job.step;
        if step.tokens == 0 {
            return;
        }
        let keys = match self.source {
            Source::Cache(cache) => {
                let cache = &step.caches[cache];
                let Shape::Paged(layout) = cache.shape else { return };
                // SAFETY: what is read was stored before the last barrier.
                Keys::Cache { layout, bytes: unsafe { cache.bytes() }, tables: &step.batch.tables }
            }
            Source::Fresh { k, v } => Keys::Fresh { k: rows(job, k), v: rows(job, v) },
        };
        let out_stride = job.stride(self.out.place);
        let len = (step.tokens - 1) * out_stride + self.out.cols;
        // SAFETY: inside the place; items write different parts of it.
        let out =
            unsafe { Parts::new(std::slice::from_raw_parts_mut(job.start(self.out.place), len)) };
        let work = AttendJob {
            heads: self.heads,
            kv_heads: self.kv_heads,
            k_dim: self.q.cols / self.heads,
            v_dim: self.v_dim,
            scale: self.scale,
            mask: self.mask,
            softcap: self.softcap,
            sinks: self.sinks.as_ref().map(|s| s.vector()),
            q: rows(job, self.q),
            keys,
            out,
            out_stride,
        };
        // The last items of a span see most keys: they go first.
        let items = &step.items[self.items];
        let counter = &step.counters[self.counter];
        loop {
            let next = counter.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.len().checked_sub(next + 1).map(|i| &items[i]) else { return };
            // SAFETY: every item has one worker; scratch is used here only.
            unsafe { attend(step.isa, &work, item, &mut job.scratch().attention) };
        }
    }
}

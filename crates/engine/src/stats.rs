//! What the engine has done and holds, readable at any time from any thread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokenmill_ir::MAX_GROUPS;
use tokenmill_sched::{GroupCounts, Scheduler, Step};

use crate::tier::{Shared, TierStats};

/// Upper bounds of the step-time histogram, seconds; the last bucket has none.
pub const STEP_BOUNDS_S: [f64; 11] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0];

/// A snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineStats {
    /// Sequences that hold cache blocks.
    pub running: u32,
    /// Sequences that wait for blocks.
    pub waiting: u32,
    /// Requests accepted and not yet started.
    pub queued_requests: u32,
    /// Requests accepted and not yet ended.
    pub open_requests: u32,
    /// Blocks of each cache group; the first `group_count` are meant.
    pub groups: [GroupCounts; MAX_GROUPS],
    /// Cache groups.
    pub group_count: usize,
    /// Requests accepted.
    pub requests: u64,
    /// Requests that ended well.
    pub finished: u64,
    /// Requests whose receiver went away.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Prompt tokens of started sequences.
    pub prompt_tokens: u64,
    /// Of those, found in the prefix cache.
    pub cached_tokens: u64,
    /// Of those, read from disk.
    pub disk_tokens: u64,
    /// The cache on disk, where there is one.
    pub disk: Option<TierStats>,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Tokens computed, recomputed ones and drafts included.
    pub computed_tokens: u64,
    /// Draft tokens computed.
    pub drafted_tokens: u64,
    /// Draft tokens that were right.
    pub accepted_tokens: u64,
    /// Times a sequence gave up its blocks for an older one.
    pub preemptions: u64,
    /// Times the device had to be rebuilt.
    pub device_errors: u64,
    /// Steps.
    pub steps: u64,
    /// Their time, seconds.
    pub step_seconds: f64,
    /// Steps by duration: not more than each of [`STEP_BOUNDS_S`], then longer ones.
    pub step_histogram: [u64; STEP_BOUNDS_S.len() + 1],
}

/// The shared side: plain atomics, written by the engine thread alone except for the queue.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub queued: AtomicU32,
    pub open: AtomicU32,
    pub requests: AtomicU64,
    pub finished: AtomicU64,
    pub cancelled: AtomicU64,
    pub failed: AtomicU64,
    pub prompt_tokens: AtomicU64,
    pub cached_tokens: AtomicU64,
    pub disk_tokens: AtomicU64,
    pub disk: OnceLock<Arc<Shared>>,
    pub generated_tokens: AtomicU64,
    pub device_errors: AtomicU64,
    computed_tokens: AtomicU64,
    drafted_tokens: AtomicU64,
    accepted_tokens: AtomicU64,
    preemptions: AtomicU64,
    running: AtomicU32,
    waiting: AtomicU32,
    group_count: AtomicU32,
    groups: [[AtomicU32; 3]; MAX_GROUPS],
    steps: AtomicU64,
    step_micros: AtomicU64,
    step_histogram: [AtomicU64; STEP_BOUNDS_S.len() + 1],
}

/// One more of something.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Stats {
    /// After a step.
    pub fn step(&self, step: &Step) {
        count(&self.steps, 1);
        count(&self.computed_tokens, u64::from(step.tokens));
        let seconds = step.observed_s.unwrap_or(0.0);
        count(&self.step_micros, (seconds * 1e6) as u64);
        let bucket = STEP_BOUNDS_S.iter().position(|&b| seconds <= b);
        count(&self.step_histogram[bucket.unwrap_or(STEP_BOUNDS_S.len())], 1);
    }

    /// Copies what the scheduler knows.
    pub fn sizes(&self, sched: &Scheduler, groups: usize) {
        let c = sched.counts();
        self.running.store(c.running, Ordering::Relaxed);
        self.waiting.store(c.waiting, Ordering::Relaxed);
        self.preemptions.store(c.preemptions, Ordering::Relaxed);
        self.drafted_tokens.store(c.drafted, Ordering::Relaxed);
        self.accepted_tokens.store(c.accepted, Ordering::Relaxed);
        self.group_count.store(groups as u32, Ordering::Relaxed);
        for (g, cells) in self.groups.iter().enumerate().take(groups) {
            let n = sched.group_counts(g);
            for (cell, value) in cells.iter().zip([n.total, n.free, n.cached]) {
                cell.store(value, Ordering::Relaxed);
            }
        }
    }

    pub fn snapshot(&self) -> EngineStats {
        let small = |c: &AtomicU32| c.load(Ordering::Relaxed);
        let large = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let group = |[total, free, cached]: &[AtomicU32; 3]| GroupCounts {
            total: small(total),
            free: small(free),
            cached: small(cached),
        };
        EngineStats {
            running: small(&self.running),
            waiting: small(&self.waiting),
            queued_requests: small(&self.queued),
            open_requests: small(&self.open),
            groups: std::array::from_fn(|g| group(&self.groups[g])),
            group_count: small(&self.group_count) as usize,
            requests: large(&self.requests),
            finished: large(&self.finished),
            cancelled: large(&self.cancelled),
            failed: large(&self.failed),
            prompt_tokens: large(&self.prompt_tokens),
            cached_tokens: large(&self.cached_tokens),
            disk_tokens: large(&self.disk_tokens),
            disk: self.disk.get().map(|d| d.stats()),
            generated_tokens: large(&self.generated_tokens),
            computed_tokens: large(&self.computed_tokens),
            drafted_tokens: large(&self.drafted_tokens),
            accepted_tokens: large(&self.accepted_tokens),
            preemptions: large(&self.preemptions),
            device_errors: large(&self.device_errors),
            steps: large(&self.steps),
            step_seconds: large(&self.step_micros) as f64 * 1e-6,
            step_histogram: std::array::from_fn(|i| large(&self.step_histogram[i])),
        }
    }
}

//! What the engine has done and holds, readable at any time from any thread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokenmill_ir::{MAX_GROUPS, StepOutput};
use tokenmill_sched::{GroupCounts, Scheduler, Step};

use crate::ledger::{Memory, Reader};
use crate::queue::Queue;
use crate::request::Refusal;
use crate::tier::{Shared, TierStats};

/// Upper bounds of the step-time histogram, seconds; the last bucket has none.
pub const STEP_BOUNDS_S: [f64; 11] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0];

/// What one start counts for among those before it.
const START_WEIGHT: f64 = 0.1;

/// A snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineStats {
    /// Sequences that may run at once.
    pub places: u32,
    /// Sequences that hold cache blocks.
    pub running: u32,
    /// Sequences that wait for blocks.
    pub waiting: u32,
    /// Requests accepted and not yet started.
    pub queued_requests: u32,
    /// How long all that wait and one more would take to start, by how fast others started lately,
    /// seconds: the wait of a request that came now for the account with most requests waiting, or
    /// without accounts. Any other would wait less.
    pub wait_s: f64,
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
    /// What the model holds by the ledger of its host, where it has one.
    pub memory: Memory,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Tokens computed, recomputed ones and drafts included.
    pub computed_tokens: u64,
    /// Draft tokens computed.
    pub drafted_tokens: u64,
    /// Draft tokens that were right.
    pub accepted_tokens: u64,
    /// Experts whose weights were read, those of all layers and steps.
    pub expert_reads: u64,
    /// Their stored bytes.
    pub expert_bytes: u64,
    /// Tokens that leases keep in the cache.
    pub leased_tokens: u64,
    /// Leases that ended early, for a sequence that ran alone and needed the memory.
    pub broken_leases: u64,
    /// Times a sequence gave up its blocks for another, or waited a step for want of blocks.
    pub preemptions: u64,
    /// Times the device had to be rebuilt.
    pub device_errors: u64,
    /// Steps.
    pub steps: u64,
    /// Their time, seconds.
    pub step_seconds: f64,
    /// Time between steps that follow each other, seconds: planning, drafts, texts and events.
    pub host_seconds: f64,
    /// Longest time from one step's end to the next one's while streams went on, seconds: the
    /// longest gap between two tokens of a running stream.
    pub gap_max_s: f64,
    /// Longest such time that was predicted and thus promised, seconds.
    pub gap_bound_s: f64,
    /// Steps that took longer than promised.
    pub late_steps: u64,
    /// Steps by duration: not more than each of [`STEP_BOUNDS_S`], then longer ones.
    pub step_histogram: [u64; STEP_BOUNDS_S.len() + 1],
}

/// The shared side: plain atomics, written by the engine thread alone except for the queue.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub queue: Queue,
    /// Sequences that may run at once.
    pub places: AtomicU32,
    /// From one start to the next while others wait, smoothed; none yet: 0.
    start_micros: AtomicU64,
    pub open: AtomicU32,
    pub requests: AtomicU64,
    pub finished: AtomicU64,
    pub cancelled: AtomicU64,
    pub failed: AtomicU64,
    pub prompt_tokens: AtomicU64,
    pub cached_tokens: AtomicU64,
    pub disk_tokens: AtomicU64,
    pub disk: OnceLock<Arc<Shared>>,
    pub entry: OnceLock<Reader>,
    pub generated_tokens: AtomicU64,
    pub device_errors: AtomicU64,
    computed_tokens: AtomicU64,
    drafted_tokens: AtomicU64,
    accepted_tokens: AtomicU64,
    expert_reads: AtomicU64,
    expert_bytes: AtomicU64,
    leased_tokens: AtomicU64,
    broken_leases: AtomicU64,
    preemptions: AtomicU64,
    running: AtomicU32,
    waiting: AtomicU32,
    group_count: AtomicU32,
    groups: [[AtomicU32; 3]; MAX_GROUPS],
    steps: AtomicU64,
    step_micros: AtomicU64,
    host_micros: AtomicU64,
    gap_max_micros: AtomicU64,
    gap_bound_micros: AtomicU64,
    late_steps: AtomicU64,
    predicted_micros: AtomicU64,
    step_histogram: [AtomicU64; STEP_BOUNDS_S.len() + 1],
}

/// One more of something.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Stats {
    /// Before a step.
    pub fn begins(&self, step: &Step) {
        self.predicted_micros.store((step.predicted_s * 1e6) as u64, Ordering::Relaxed);
    }

    /// What the latest step was predicted to take.
    pub fn predicted(&self) -> Duration {
        Duration::from_micros(self.predicted_micros.load(Ordering::Relaxed))
    }

    /// Steps that have ended.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// A request started, that long after the one before, while others waited.
    pub fn started(&self, gap_s: f64) {
        let (old, new) = (self.start_micros.load(Ordering::Relaxed), gap_s.max(0.0) * 1e6);
        let weight = if old == 0 { 1.0 } else { START_WEIGHT };
        let smooth = old as f64 + weight * (new - old as f64);
        self.start_micros.store(smooth as u64, Ordering::Relaxed);
    }

    /// Sequences that could start at once. Where others wait already, it is for memory or for time in
    /// a step: no place helps.
    fn free_places(&self) -> u32 {
        let full = self.waiting.load(Ordering::Relaxed) > 0;
        let running = self.running.load(Ordering::Relaxed);
        if full { 0 } else { self.places.load(Ordering::Relaxed).saturating_sub(running) }
    }

    /// How long a request waits for a place behind that many others.
    fn wait(&self, before: u32) -> Duration {
        let starts = u64::from((before + 1).saturating_sub(self.free_places()));
        Duration::from_micros(starts.saturating_mul(self.start_micros.load(Ordering::Relaxed)))
    }

    /// Counts a request that waits, if not too many do and it need not wait too long.
    pub fn enter(&self, account: u64, limit: u32, longest: Duration) -> Result<(), Refusal> {
        let wait = self.wait(self.queue.before(account));
        if wait > longest {
            return Err(Refusal::LongWait { wait, limit: longest });
        }
        self.queue.enter(account, limit, self.free_places())
    }

    /// After a step that ended `gap_s` after the one before.
    pub fn step(&self, step: &Step, out: &StepOutput, gap_s: f64) {
        count(&self.steps, 1);
        count(&self.expert_reads, out.expert_reads);
        count(&self.expert_bytes, out.expert_bytes);
        if step.decoding {
            self.gap_max_micros.fetch_max((gap_s * 1e6) as u64, Ordering::Relaxed);
            let bound = (step.bound_s * 1e6).ceil() as u64;
            self.gap_bound_micros.fetch_max(bound, Ordering::Relaxed);
            count(&self.late_steps, u64::from((gap_s * 1e6) as u64 > bound));
        }
        count(&self.computed_tokens, u64::from(step.tokens));
        let seconds = step.observed_s.unwrap_or(0.0);
        count(&self.step_micros, (seconds * 1e6) as u64);
        count(&self.host_micros, ((gap_s - seconds) * 1e6) as u64);
        let bucket = STEP_BOUNDS_S.iter().position(|&b| seconds <= b);
        count(&self.step_histogram[bucket.unwrap_or(STEP_BOUNDS_S.len())], 1);
    }

    /// Copies what the scheduler knows.
    pub fn sizes(&self, sched: &Scheduler, groups: usize) {
        let c = sched.counts();
        self.running.store(c.running, Ordering::Relaxed);
        self.waiting.store(c.waiting, Ordering::Relaxed);
        self.preemptions.store(c.preemptions, Ordering::Relaxed);
        let leased = sched.leases().map(|l| u64::from(l.tokens)).sum();
        self.leased_tokens.store(leased, Ordering::Relaxed);
        self.broken_leases.store(c.broken_leases, Ordering::Relaxed);
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
            places: small(&self.places),
            running: small(&self.running),
            waiting: small(&self.waiting),
            queued_requests: self.queue.len(),
            wait_s: self.wait(self.queue.len()).as_secs_f64(),
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
            memory: self.entry.get().and_then(Reader::entry).map(|e| e.memory).unwrap_or_default(),
            generated_tokens: large(&self.generated_tokens),
            computed_tokens: large(&self.computed_tokens),
            drafted_tokens: large(&self.drafted_tokens),
            accepted_tokens: large(&self.accepted_tokens),
            expert_reads: large(&self.expert_reads),
            expert_bytes: large(&self.expert_bytes),
            leased_tokens: large(&self.leased_tokens),
            broken_leases: large(&self.broken_leases),
            preemptions: large(&self.preemptions),
            device_errors: large(&self.device_errors),
            steps: large(&self.steps),
            step_seconds: large(&self.step_micros) as f64 * 1e-6,
            host_seconds: large(&self.host_micros) as f64 * 1e-6,
            gap_max_s: large(&self.gap_max_micros) as f64 * 1e-6,
            gap_bound_s: large(&self.gap_bound_micros) as f64 * 1e-6,
            late_steps: large(&self.late_steps),
            step_histogram: std::array::from_fn(|i| large(&self.step_histogram[i])),
        }
    }
}

//! The worker pool of the kernels: one parallel region at a time, with barriers inside it.
//!
//! The calling thread is worker 0. Between regions workers spin for a short while and then
//! sleep; inside a region they meet at a barrier that also spins first, so that on free cores
//! a barrier costs a few cache misses, and on stolen cores nobody burns another's time for
//! long. Nothing is allocated per region.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Rounds of the waiting loop with a processor pause before a thread sleeps: one or two hundred
/// microseconds, longer than workers that have their cores wait for each other. It never yields:
/// with a busy process on its core that would cost a time slice, while a core that goes idle draws
/// the worker that is waited for to it.
const SPINS: u32 = 4000;

/// Where workers may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// Each worker on a core of its own, if the process may use that many.
    Pinned,
    /// Wherever the system puts them.
    Free,
}

/// A worker panicked; the region was abandoned by all workers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("worker {worker} panicked: {message}")]
pub struct WorkerPanic {
    /// The first worker that did.
    pub worker: usize,
    /// Its message.
    pub message: String,
}

/// A pool of `workers()` threads, the caller of [`Pool::run`] among them.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A pool for steps and uploads. An upload takes it piece by piece and lets a step that waits go
/// first, so that a step waits for a piece at most.
#[derive(Debug)]
pub(crate) struct SharedPool {
    pool: Mutex<Pool>,
    workers: usize,
    /// Steps that wait for the pool.
    steps: AtomicU32,
}

impl SharedPool {
    pub fn new(pool: Pool) -> Self {
        let workers = pool.workers();
        Self { pool: Mutex::new(pool), workers, steps: AtomicU32::new(0) }
    }

    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The pool for a step, or a part of one.
    pub fn for_step(&self) -> MutexGuard<'_, Pool> {
        self.steps.fetch_add(1, Ordering::SeqCst);
        let pool = lock(&self.pool);
        self.steps.fetch_sub(1, Ordering::SeqCst);
        pool
    }

    /// The pool for a piece of an upload.
    pub fn for_piece(&self) -> MutexGuard<'_, Pool> {
        while self.steps.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        lock(&self.pool)
    }
}

/// One worker's view of the region it runs in.
#[derive(Clone, Copy, Debug)]
pub struct Worker<'a> {
    index: usize,
    shared: &'a Shared,
}

impl Worker<'_> {
    /// Which worker this is: 0 is the caller.
    pub fn index(&self) -> usize {
        self.index
    }

    /// How many workers run the region.
    pub fn count(&self) -> usize {
        self.shared.count as usize
    }

    /// This worker's share of `0..total`: contiguous, as even as can be.
    pub fn share(&self, total: usize) -> std::ops::Range<usize> {
        let at = |index: usize| index * total / self.count();
        at(self.index)..at(self.index + 1)
    }

    /// Waits until every worker has come here. What one wrote before, all see after.
    ///
    /// Unwinds out of the region if another worker panicked.
    pub fn barrier(&self) {
        let shared = self.shared;
        let phase = shared.barrier.now();
        if shared.abandoned.load(Ordering::SeqCst) {
            resume_unwind(Box::new(Abandoned));
        }
        if shared.arrived.fetch_add(1, Ordering::AcqRel) + 1 == shared.count {
            shared.arrived.store(0, Ordering::Relaxed);
            shared.barrier.advance();
        } else {
            shared.barrier.wait(phase);
        }
        if shared.abandoned.load(Ordering::SeqCst) {
            resume_unwind(Box::new(Abandoned));
        }
    }
}

/// What workers unwind with when another one panicked.
struct Abandoned;

impl Pool {
    /// Starts `workers − 1` threads beside the caller; at least one worker, at most 1024.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn new(workers: usize, affinity: Affinity) -> std::io::Result<Pool> {
        let workers = workers.clamp(1, 1024);
        let shared = Arc::new(Shared {
            count: workers as u32,
            region: Gate::default(),
            finished: Gate::default(),
            barrier: Gate::default(),
            arrived: AtomicU32::new(0),
            running: AtomicU32::new(0),
            abandoned: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            body: Mutex::new(None),
            panic: Mutex::new(None),
        });
        let mut pool = Pool { shared, threads: Vec::with_capacity(workers - 1) };
        let cores = match affinity {
            Affinity::Pinned => cores_allowed(),
            Affinity::Free => Vec::new(),
        };
        let core = |index: usize| (cores.len() >= workers).then(|| cores[index]);
        for index in 1..workers {
            let (shared, core) = (Arc::clone(&pool.shared), core(index));
            let builder = std::thread::Builder::new().name(format!("worker {index}"));
            pool.threads.push(builder.spawn(move || {
                pin(core);
                shared.serve(index);
            })?);
        }
        pin(core(0));
        Ok(pool)
    }

    /// Number of workers, the caller included.
    pub fn workers(&self) -> usize {
        self.shared.count as usize
    }

    /// Runs `body` once on every worker and returns when all have finished.
    ///
    /// # Errors
    /// [`WorkerPanic`] if a worker panicked; the pool can be used again.
    pub fn run<F: Fn(Worker<'_>) + Sync>(&mut self, body: F) -> Result<(), WorkerPanic> {
        let shared = &*self.shared;
        let body: &(dyn Fn(Worker<'_>) + Sync) = &body;
        // SAFETY: only the lifetime is extended. Workers use the body between `advance` and
        // their count in `running`, and this function does not return before all have counted.
        let body = unsafe {
            std::mem::transmute::<&(dyn Fn(Worker<'_>) + Sync), &'static (dyn Fn(Worker<'_>) + Sync)>(
                body,
            )
        };
        if shared.count > 1 {
            *lock(&shared.body) = Some(body);
            shared.running.store(shared.count - 1, Ordering::SeqCst);
            shared.region.advance();
        }
        shared.work(0, body);
        loop {
            let phase = shared.finished.now();
            if shared.running.load(Ordering::SeqCst) == 0 {
                break;
            }
            shared.finished.wait(phase);
        }
        *lock(&shared.body) = None;
        shared.arrived.store(0, Ordering::SeqCst);
        shared.abandoned.store(false, Ordering::SeqCst);
        lock(&shared.panic).take().map_or(Ok(()), Err)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.region.advance();
        for thread in self.threads.drain(..) {
            // A worker catches every panic of a body, so there is nothing to report.
            let _ = thread.join();
        }
    }
}

type Body = &'static (dyn Fn(Worker<'_>) + Sync);

struct Shared {
    count: u32,
    /// Advances when a region begins (or the pool ends).
    region: Gate,
    /// Advances when the last worker leaves a region.
    finished: Gate,
    /// Advances when all workers have arrived.
    barrier: Gate,
    arrived: AtomicU32,
    /// Workers other than 0 still inside the region.
    running: AtomicU32,
    abandoned: AtomicBool,
    stop: AtomicBool,
    body: Mutex<Option<Body>>,
    panic: Mutex<Option<WorkerPanic>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Shared {
    /// The life of a worker thread: wait for a region, run it, count down.
    fn serve(&self, index: usize) {
        let mut seen = 0;
        loop {
            seen = self.region.wait(seen);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let body = *lock(&self.body);
            if let Some(body) = body {
                self.work(index, body);
            }
            if self.running.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.finished.advance();
            }
        }
    }

    /// Runs the body on one worker. A panic is recorded, and releases those at the barrier.
    fn work(&self, index: usize, body: &(dyn Fn(Worker<'_>) + Sync)) {
        let worker = Worker { index, shared: self };
        // The body is abandoned as a whole: nothing of it is looked at after a panic.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| body(worker))) {
            if !payload.is::<Abandoned>() {
                let message = message_of(&*payload);
                lock(&self.panic).get_or_insert(WorkerPanic { worker: index, message });
            }
            self.abandoned.store(true, Ordering::SeqCst);
            self.barrier.advance();
        }
    }
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "no message".to_owned(),
    }
}

/// A lock whose holders never leave it half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A counter that threads wait on: they spin, then sleep until it advances.
#[derive(Default)]
#[repr(align(128))] // a cache line pair of its own
struct Gate {
    value: AtomicU32,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Gate {
    fn now(&self) -> u32 {
        self.value.load(Ordering::SeqCst)
    }

    fn advance(&self) {
        self.value.fetch_add(1, Ordering::SeqCst);
        // A sleeper counts itself before it looks at the value a last time, so either it sees
        // the new value or it is seen here.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.lock));
            self.wake.notify_all();
        }
    }

    /// Waits until the value is no longer `seen`; returns it.
    fn wait(&self, seen: u32) -> u32 {
        for _ in 0..SPINS {
            let now = self.now();
            if now != seen {
                return now;
            }
            std::hint::spin_loop();
        }
        let mut guard = lock(&self.lock);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.now() == seen {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.now()
    }
}

/// The cores this process may run on; empty where the system does not say.
pub fn cores_allowed() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: a zeroed set is an empty set; the call fills it within its size.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) == 0 {
                let all = 0..libc::CPU_SETSIZE as usize;
                return all.filter(|&core| libc::CPU_ISSET(core, &set)).collect();
            }
        }
    }
    Vec::new()
}

/// Keeps the calling thread on `core`; where that is refused, it stays free.
fn pin(core: Option<usize>) {
    #[cfg(target_os = "linux")]
    if let Some(core) = core {
        // SAFETY: the set is a local of the size given; `core` came out of such a set.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(core, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = core;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn pool(workers: usize) -> Pool {
        Pool::new(workers, Affinity::Free).expect("threads")
    }

    #[test]
    fn every_worker_runs_once_and_shares_cover() {
        for workers in [1, 2, 3, 7] {
            let mut pool = pool(workers);
            for total in [0, 1, 5, 100] {
                let marks: Vec<AtomicUsize> = (0..total).map(|_| AtomicUsize::new(0)).collect();
                let runs = AtomicUsize::new(0);
                pool.run(|worker| {
                    runs.fetch_add(1, Ordering::Relaxed);
                    for i in worker.share(total) {
                        marks[i].fetch_add(1, Ordering::Relaxed);
                    }
                })
                .expect("no panic");
                assert_eq!(runs.into_inner(), workers);
                assert!(marks.into_iter().all(|m| m.into_inner() == 1));
            }
        }
    }

    #[test]
    fn a_barrier_separates_phases() {
        // More workers than cores: some must sleep, and still each phase is seen whole.
        let mut pool = pool(5);
        let cells: Vec<AtomicUsize> = (0..5).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..20 {
            cells.iter().for_each(|c| c.store(0, Ordering::Relaxed));
            pool.run(|worker| {
                for phase in 1..=30 {
                    cells[worker.index()].store(phase, Ordering::Relaxed);
                    worker.barrier();
                    assert!(cells.iter().all(|c| c.load(Ordering::Relaxed) == phase));
                    worker.barrier();
                }
            })
            .expect("no panic");
        }
    }

    #[test]
    fn a_panic_releases_the_others_and_the_pool_lives_on() {
        let mut pool = pool(4);
        for guilty in 0..4 {
            let result = pool.run(|worker| {
                worker.barrier();
                assert!(worker.index() != guilty, "worker {guilty} gives up");
                worker.barrier();
            });
            let panic = result.expect_err("a worker panicked");
            assert_eq!(panic.worker, guilty);
            assert_eq!(panic.message, format!("worker {guilty} gives up"));
            pool.run(|worker| worker.barrier()).expect("the next region runs");
        }
    }

    #[test]
    fn workers_that_slept_wake_up() {
        let mut pool = pool(3);
        let runs = AtomicUsize::new(0);
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            pool.run(|_| {
                runs.fetch_add(1, Ordering::Relaxed);
            })
            .expect("no panic");
        }
        assert_eq!(runs.into_inner(), 9);
    }
}

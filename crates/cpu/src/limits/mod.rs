//! What this machine can do at most, measured: reads from each level of memory, and multiply-adds
//! by the best instruction of each arithmetic. Every measured speed stands beside these.

mod caches;
mod rates;
mod reads;

use std::sync::Barrier;
use std::time::Instant;

pub use caches::{Caches, caches};
pub use rates::{Arithmetic, OpLimit, ops};
pub use reads::{Level, ReadLimit, ReadProbe, read};

/// Times a loop is run after one run that does not count.
const RUNS: usize = 7;

/// A rate of all threads together over some runs, units a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The fastest run: the limit.
    pub best: f64,
    /// The run in the middle.
    pub median: f64,
}

impl Rate {
    /// `units` done in each run's seconds.
    fn new(units: f64, mut seconds: [f64; RUNS]) -> Self {
        seconds.sort_unstable_by(f64::total_cmp);
        Self { best: units / seconds[0], median: units / seconds[RUNS / 2] }
    }
}

/// Seconds of each run of `body` on `threads` threads that start together, the slowest thread's.
/// `prepare` makes what a thread works on, on that thread, so that its pages lie near it.
fn timed<T>(
    threads: usize,
    prepare: impl Fn() -> T + Sync,
    body: impl Fn(&mut T) + Sync,
) -> [f64; RUNS] {
    let barrier = Barrier::new(threads);
    let one_thread = || {
        let mut on = prepare();
        let mut seconds = [0.0; RUNS];
        for run in 0..=RUNS {
            barrier.wait();
            let start = Instant::now();
            body(&mut on);
            if run > 0 {
                seconds[run - 1] = start.elapsed().as_secs_f64();
            }
        }
        seconds
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(one_thread)).collect();
        let mut slowest = one_thread();
        for other in others {
            let seconds = other.join().expect("the loops do not panic");
            for (slow, s) in slowest.iter_mut().zip(seconds) {
                *slow = slow.max(s);
            }
        }
        slowest
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_a_number_on_every_machine() {
        for arithmetic in Arithmetic::ALL {
            let limit = ops(1, arithmetic);
            let rate = limit.rate;
            assert!(rate.best >= rate.median && rate.median > 1e7, "{arithmetic:?} {limit:?}");
            assert!(rate.best < 1e15, "{arithmetic:?} {limit:?}");
        }
        let l2 = read(2, Level::L2, usize::MAX).expect("every machine has this");
        assert!(l2.rate.best >= l2.rate.median && l2.rate.median > 1e7, "{l2:?}");
        assert_eq!(l2.bytes % 2, 0);
        let probe = ReadProbe::new(2, Level::L2, usize::MAX).expect("every machine has this");
        let rate = probe.bytes_per_s();
        assert!(rate > 1e6 && rate < 1e15, "{rate}");
        assert!(ReadProbe::new(2, Level::Dram, 1 << 20).is_none());
    }

    #[test]
    fn the_slowest_thread_counts() {
        let next_key = std::sync::atomic::AtomicU64::new(1);
        let next = || next_key.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let seconds = timed(2, next, |ms| {
            std::thread::sleep(std::time::Duration::from_millis(*ms * *ms * 5));
        });
        assert!(seconds.iter().all(|&s| s >= 0.020), "{seconds:?}");
    }
}

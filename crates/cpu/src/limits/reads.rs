//! Sequential reads of all threads from one level of memory.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::{Caches, Rate, caches, timed};
use crate::memory::Buffer;

/// Where data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Each core's second-level cache.
    L2,
    /// The last cache, which cores share.
    L3,
    /// Main memory.
    Dram,
}

impl Level {
    /// All of them, nearest first.
    pub const ALL: [Level; 3] = [Level::L2, Level::L3, Level::Dram];

    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Level::L2 => "L2",
            Level::L3 => "L3",
            Level::Dram => "DRAM",
        }
    }
}

/// Reads measured at one level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadLimit {
    /// The level.
    pub level: Level,
    /// Bytes read in turn by all threads together: the working set that decides the level.
    pub bytes: usize,
    /// Bytes a second.
    pub rate: Rate,
}

/// A cache line.
type Line = [u8; 64];
/// Lines read in one round of a loop, into sums of their own.
const ROUND: usize = 4;
/// Lines that a stream prefetches.
const AHEAD: usize = 16;
/// Bytes a run reads at least; smaller sets are read several times.
const RUN_BYTES: usize = 256 << 20;
/// A set for main memory is this much larger than two last caches.
const DRAM_BYTES: usize = 512 << 20;

/// Measures reads from a level by that many threads, using at most `memory_bytes` of memory.
/// `None` where the level does not stand out from the one before, or memory does not allow it.
pub fn read(threads: usize, level: Level, memory_bytes: usize) -> Option<ReadLimit> {
    let threads = threads.max(1);
    let each = set_bytes(caches(), threads, level)?;
    let bytes = each.checked_mul(threads).filter(|&b| b <= memory_bytes)?;
    let passes = (RUN_BYTES / bytes).max(1);
    let all_have_memory = AtomicBool::new(true);
    // Pages are written to first: an untouched page is the system's one page of zeros, which
    // any cache holds.
    let prepare = || {
        let mut data = Buffer::zeroed(each).ok();
        match &mut data {
            Some(data) => data.bytes_mut().fill(1),
            None => all_have_memory.store(false, Ordering::Relaxed),
        }
        data
    };
    let measure = |stream: Stream| {
        let seconds = timed(threads, prepare, |data| {
            let bytes = data.as_ref().map_or(&[][..], Buffer::bytes);
            for _ in 0..passes {
                stream.read(black_box(bytes.as_chunks().0));
            }
        });
        Rate::new((bytes * passes) as f64, seconds)
    };
    // Some processors reach their limit only with several streams a core.
    let (one, four) = (measure(Stream::One), measure(Stream::Four));
    let rate = if one.best > four.best { one } else { four };
    all_have_memory.into_inner().then_some(ReadLimit { level, bytes, rate })
}

/// Parts that a probe reads one after the other.
const PROBE_PARTS: usize = 4;

/// Memory that is read once whenever it is asked: what a level gives at that moment, beside something
/// that is timed then. On some hosts neighbours or the host itself change it within seconds.
#[derive(Debug)]
pub struct ReadProbe {
    /// One for each thread.
    sets: Vec<Buffer>,
}

impl ReadProbe {
    /// A probe by that many threads, using at most `memory_bytes` of memory. `None` as of [`read`].
    pub fn new(threads: usize, level: Level, memory_bytes: usize) -> Option<ReadProbe> {
        let threads = threads.max(1);
        let each = set_bytes(caches(), threads, level)?;
        each.checked_mul(threads).filter(|&b| b <= memory_bytes)?;
        let set = || {
            let mut set = Buffer::zeroed(each).ok()?;
            set.bytes_mut().fill(1);
            Some(set)
        };
        std::thread::scope(|scope| {
            let filled: Vec<_> = (0..threads).map(|_| scope.spawn(set)).collect();
            let sets = filled.into_iter().map(|set| set.join().expect("filling does not panic"));
            Some(ReadProbe { sets: sets.collect::<Option<_>>()? })
        })
    }

    /// Reads everything once, a part after the other: bytes a second of all threads together, the
    /// slowest counts, in the fastest part.
    pub fn bytes_per_s(&self) -> f64 {
        let barrier = Barrier::new(self.sets.len());
        let one = |set: &Buffer| {
            let lines: &[Line] = set.bytes().as_chunks().0;
            let mut parts = lines.chunks(lines.len().div_ceil(PROBE_PARTS));
            std::array::from_fn::<f64, PROBE_PARTS, _>(|_| {
                let part = parts.next().unwrap_or_default();
                barrier.wait();
                let start = Instant::now();
                Stream::Four.read(black_box(part));
                part.len() as f64 / start.elapsed().as_secs_f64()
            })
        };
        let (first, others) = self.sets.split_first().expect("at least one thread");
        let slowest = std::thread::scope(|scope| {
            let others: Vec<_> = others.iter().map(|set| scope.spawn(|| one(set))).collect();
            let mut slowest = one(first);
            for other in others {
                let rates = other.join().expect("reading does not panic");
                for (slow, rate) in slowest.iter_mut().zip(rates) {
                    *slow = slow.min(rate);
                }
            }
            slowest
        });
        let lines_per_s = slowest.into_iter().fold(0.0, f64::max);
        lines_per_s * (self.sets.len() * size_of::<Line>()) as f64
    }
}

/// Bytes for each thread that lie in `level` and not in the one before.
fn set_bytes(caches: Caches, threads: usize, level: Level) -> Option<usize> {
    let Caches { l2_bytes, l3_bytes } = caches;
    let bytes = match level {
        Level::L2 => l2_bytes / 2,
        Level::L3 => (4 * l2_bytes).min(l3_bytes / 2 / threads),
        Level::Dram => (2 * l3_bytes + DRAM_BYTES).div_ceil(threads),
    };
    let stands_out = level != Level::L3 || bytes >= 2 * l2_bytes;
    let rounds = ROUND * size_of::<Line>();
    (stands_out && bytes >= rounds).then_some(bytes.next_multiple_of(rounds))
}

/// How a thread walks over its lines.
#[derive(Clone, Copy)]
enum Stream {
    /// From the first to the last.
    One,
    /// Four quarters side by side, prefetching lines.
    Four,
}

impl Stream {
    fn read(self, lines: &[Line]) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was found.
            return unsafe { self.read_avx2(lines) };
        }
        self.read_plain(lines);
    }

    /// The plain loops, compiled for wider registers.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn read_avx2(self, lines: &[Line]) {
        self.read_plain(lines);
    }

    #[inline(always)]
    fn read_plain(self, lines: &[Line]) {
        let mut sums = [[0u64; 8]; ROUND];
        match self {
            Stream::One => {
                for round in lines.as_chunks::<ROUND>().0 {
                    for (sum, line) in sums.iter_mut().zip(round) {
                        fold(sum, line);
                    }
                }
            }
            Stream::Four => {
                let quarter = lines.len() / ROUND;
                for i in 0..quarter {
                    for (part, sum) in sums.iter_mut().enumerate() {
                        let at = part * quarter + i;
                        prefetch(lines.as_ptr().wrapping_add(at + AHEAD));
                        fold(sum, &lines[at]);
                    }
                }
            }
        }
        black_box(sums);
    }
}

#[inline(always)]
fn fold(sum: &mut [u64; 8], line: &Line) {
    for (sum, word) in sum.iter_mut().zip(line.as_chunks::<8>().0) {
        *sum ^= u64::from_ne_bytes(*word);
    }
}

/// Asks for a line that may not exist.
#[inline(always)]
fn prefetch(line: *const Line) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it touches nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_lie_in_their_level() {
        const MIB: usize = 1 << 20;
        let server = Caches { l2_bytes: 2 * MIB, l3_bytes: 260 * MIB };
        let laptop = Caches { l2_bytes: 2 * MIB, l3_bytes: 24 * MIB };
        let small = Caches { l2_bytes: MIB, l3_bytes: 0 };
        let cases = [
            (server, 1, Level::L2, Some(MIB)),
            (server, 2, Level::L3, Some(8 * MIB)),
            (server, 2, Level::Dram, Some(516 * MIB)),
            // Eight cores' own caches are most of the last one: nothing to tell apart.
            (laptop, 8, Level::L3, None),
            (laptop, 8, Level::Dram, Some(70 * MIB)),
            (small, 1, Level::L3, None),
            (small, 1, Level::Dram, Some(512 * MIB)),
        ];
        for (caches, threads, level, expect) in cases {
            assert_eq!(set_bytes(caches, threads, level), expect, "{caches:?} {threads} {level:?}");
        }
        assert_eq!(read(1, Level::Dram, 1 << 20), None);
    }
}

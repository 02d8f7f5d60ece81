//! Sequential reads of all threads from one level of memory.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

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
/// Lines read in one turn of a loop, into sums of their own.
const TURN: usize = 4;
/// Lines that a stream asks for ahead.
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

/// Bytes for each thread that lie in `level` and not in the one before.
fn set_bytes(caches: Caches, threads: usize, level: Level) -> Option<usize> {
    let Caches { l2_bytes, l3_bytes } = caches;
    let bytes = match level {
        Level::L2 => l2_bytes / 2,
        Level::L3 => (4 * l2_bytes).min(l3_bytes / 2 / threads),
        Level::Dram => (2 * l3_bytes + DRAM_BYTES).div_ceil(threads),
    };
    let stands_out = level != Level::L3 || bytes >= 2 * l2_bytes;
    let turns = TURN * size_of::<Line>();
    (stands_out && bytes >= turns).then_some(bytes.next_multiple_of(turns))
}

/// How a thread walks over its lines.
#[derive(Clone, Copy)]
enum Stream {
    /// From the first to the last.
    One,
    /// Four quarters side by side, asking for lines ahead.
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
        let mut sums = [[0u64; 8]; TURN];
        match self {
            Stream::One => {
                for turn in lines.as_chunks::<TURN>().0 {
                    for (sum, line) in sums.iter_mut().zip(turn) {
                        fold(sum, line);
                    }
                }
            }
            Stream::Four => {
                let quarter = lines.len() / TURN;
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

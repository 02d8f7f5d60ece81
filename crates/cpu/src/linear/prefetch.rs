//! What is prefetched while products compute.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
use std::cell::Cell;
use std::ops::Range;

/// Ranges of memory that will be read soon: tiles of expanded panels prefetch some lines of them at every block.
///
/// With many sequences a step reads keys and values as fast as memory gives them, and cores wait; products leave
/// memory idle. A request is into the second-level cache: what does not stay there is in the last one.
#[derive(Debug)]
pub struct Prefetch {
    ranges: Vec<Range<*const u8>>,
    /// The range that is being prefetched, and from where on.
    range: Cell<usize>,
    at: Cell<*const u8>,
    end: Cell<*const u8>,
}

// SAFETY: the addresses are only prefetched, never read.
unsafe impl Send for Prefetch {}

impl Default for Prefetch {
    fn default() -> Self {
        let nothing = std::ptr::null();
        Prefetch {
            ranges: Vec::with_capacity(Self::MOST_RANGES),
            range: Cell::new(0),
            at: Cell::new(nothing),
            end: Cell::new(nothing),
        }
    }
}

impl Prefetch {
    /// Ranges taken at most.
    const MOST_RANGES: usize = 512;
    /// Bytes taken at most, a core's part of a last cache.
    const MOST_BYTES: usize = 4 << 20;
    /// Lines prefetched at a block of a tile. Measured on Zen 4 (bench/NOTES.md).
    #[cfg(target_arch = "x86_64")]
    const LINES: usize = 6;

    /// Asks for these ranges from now on, in order, and for nothing else: as many as are worth it.
    pub fn set(&mut self, ranges: impl IntoIterator<Item = Range<*const u8>>) {
        self.ranges.clear();
        let mut bytes = 0;
        let mut fits = |range: &Range<*const u8>| {
            bytes += range.end.addr() - range.start.addr();
            bytes <= Self::MOST_BYTES
        };
        let fitting = ranges.into_iter().take(Self::MOST_RANGES).take_while(|range| fits(range));
        self.ranges.extend(fitting);
        self.range.set(0);
        self.end.set(self.at.get());
    }

    /// Whether anything is left to prefetch.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn is_left(&self) -> bool {
        self.at.get() < self.end.get() || self.range.get() < self.ranges.len()
    }

    /// Asks for some lines.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn next(&self) {
        if self.at.get() >= self.end.get() {
            let Some(range) = self.ranges.get(self.range.get()) else { return };
            self.range.set(self.range.get() + 1);
            self.at.set(range.start);
            self.end.set(range.end);
        }
        let at = self.at.get();
        for line in 0..Self::LINES {
            // SAFETY: a prefetch may name any address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(64 * line).cast()) };
        }
        self.at.set(at.wrapping_add(64 * Self::LINES));
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn asks_for_every_range_in_order_and_no_more_than_is_worth_it() {
        let at = |i: usize| std::ptr::without_provenance::<u8>(i << 16);
        let range = |i: usize, lines: usize| at(i)..at(i).wrapping_add(64 * lines);
        let mut prefetch = Prefetch::default();
        prefetch.next();
        assert!(prefetch.at.get().is_null() && !prefetch.is_left(), "nothing to prefetch");
        prefetch.set([range(1, 13), range(2, 6)]);
        let mut lines = Vec::new();
        for call in 0..6 {
            assert_eq!(prefetch.is_left(), call < 4);
            prefetch.next();
            lines.push(prefetch.at.get().addr());
        }
        let first = 1 << 16;
        let second = (2 << 16) + 6 * 64;
        assert_eq!(lines, [first + 384, first + 768, first + 1152, second, second, second]);
        // Other ranges take the place of those that are left.
        prefetch.set([range(1, 13)]);
        prefetch.next();
        prefetch.set([range(3, 1)]);
        prefetch.next();
        assert_eq!(prefetch.at.get().addr(), (3 << 16) + 384);
        prefetch.set((0..1000).map(|i| range(i, 1000)));
        assert_eq!(prefetch.ranges.len(), Prefetch::MOST_BYTES / 64_000);
        prefetch.set((0..1000).map(|i| range(i, 1)));
        assert_eq!(prefetch.ranges.len(), Prefetch::MOST_RANGES);
        assert_eq!(prefetch.ranges.capacity(), Prefetch::MOST_RANGES, "grows in no step");
    }
}

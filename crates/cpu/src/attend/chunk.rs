//! Rows that kernels take at once.

use std::ops::Range;

use super::TILE;
use super::layout::GROUP;

/// Which of `keys` are in the tile whose first is `first`, relative to that.
#[inline(always)]
pub(super) fn in_tile(first: usize, keys: &Range<usize>) -> Range<usize> {
    let end = keys.end.clamp(first, first + TILE) - first;
    (keys.start.clamp(first, first + TILE) - first).min(end)..end
}

/// Rows that kernels take at once, and what they see of a tile.
pub(super) struct Chunk {
    /// Of an item.
    pub rows: Range<usize>,
    /// The first of them in its band.
    pub at: usize,
    /// Keys of the tile that any row sees.
    pub keys: Range<usize>,
    /// Whether all rows see the same.
    pub alike: bool,
}

impl Chunk {
    /// On the tile that begins with key `first`.
    #[inline(always)]
    pub fn new(first: usize, rows: Range<usize>, at: usize, seen: &[Range<usize>]) -> Chunk {
        // What rows see begins and ends in their order.
        let (head, tail) = (&seen[rows.start], &seen[rows.end - 1]);
        let keys = in_tile(first, &(head.start..tail.end));
        Chunk { rows, at, keys, alike: in_tile(first, head) == in_tile(first, tail) }
    }

    /// Groups with a key that any row sees.
    #[inline(always)]
    pub fn groups(&self) -> Range<usize> {
        self.keys.start / GROUP..self.keys.end.div_ceil(GROUP)
    }
}

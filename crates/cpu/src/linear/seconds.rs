//! Second lines of many tokens, put together block by block. Other blocks are loud in every token's row, but each block of
//! weights is best gone over by as many tokens as a tile has: one alone takes half of what six do (bench/NOTES.md).

use std::ops::Range;

use super::Line;
use super::bytes::ByteTile;
use super::encode::second_lines;

/// The second lines of a part's tokens, in order of blocks, and of tokens in each.
pub(super) struct Seconds<'a> {
    /// Where those of each block begin, and the end of all; nothing if there are none.
    starts: &'a [u32],
    /// The chain that each is added to, and those that tokens end with: from 1 on, 0 for tokens without any.
    chains: &'a [u32],
    pub of_tokens: &'a [u32],
    lines: &'a [Line],
    /// How many chains there are, with that of zeros.
    pub count: usize,
}

impl<'a> Seconds<'a> {
    pub const NONE: Seconds<'static> =
        Seconds { starts: &[], chains: &[], of_tokens: &[], lines: &[], count: 0 };

    /// Those of the rows `input` of `tile`'s shape; `scratch` has [`super::second_lines_together`].
    pub fn list(tile: &ByteTile, input: &[Line], scratch: &'a mut [Line]) -> Seconds<'a> {
        let blocks = tile.blocks;
        let rows = input.chunks_exact(tile.lines);
        let (lines, words) = scratch.split_at_mut(rows.len() * blocks);
        // SAFETY: a line is sixteen words.
        let (_, words, _) = unsafe { words.align_to_mut::<u32>() };
        let (starts, words) = words.split_at_mut(blocks + 1);
        let (of_tokens, chains) = words.split_at_mut(rows.len());
        starts.fill(0);
        let mut count = 1;
        // Counted first, a block's behind it, so that the sums up to each block are where it begins.
        for (row, chain) in rows.clone().zip(&mut *of_tokens) {
            let mut any = false;
            loud_blocks(row, blocks, |block| {
                (starts[block + 1], any) = (starts[block + 1] + 1, true)
            });
            *chain = if any { count } else { 0 };
            count += u32::from(any);
        }
        let mut all = 0;
        for start in &mut starts[1..] {
            // Until it is filled, a block's place is one further on.
            (*start, all) = (all, all + *start);
        }
        if all == 0 {
            return Seconds::NONE;
        }
        for (row, &chain) in rows.zip(&*of_tokens) {
            loud_blocks(row, blocks, |block| {
                let at = starts[block + 1] as usize;
                starts[block + 1] += 1;
                chains[at] = chain;
                lines[at] = row[second_lines(blocks) + block];
            });
        }
        let all = all as usize;
        let (chains, lines, count) = (&chains[..all], &lines[..all], count as usize);
        Seconds { starts, chains, of_tokens, lines, count }
    }

    /// Whether no block is loud.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Those of a block: chains, and lines.
    pub fn of(&self, block: usize) -> (&'a [u32], &'a [Line]) {
        let of: Range<usize> = self.starts[block] as usize..self.starts[block + 1] as usize;
        (&self.chains[of.clone()], &self.lines[of])
    }
}

/// Calls `each` with the loud ones of a row's blocks.
#[inline(always)]
fn loud_blocks(row: &[Line], blocks: usize, mut each: impl FnMut(usize)) {
    for word in 0..blocks.div_ceil(32) {
        let mut bits = row[blocks + word / 16].0[word % 16];
        while bits != 0 {
            each(word * 32 + bits.trailing_zeros() as usize);
            bits &= bits - 1;
        }
    }
}

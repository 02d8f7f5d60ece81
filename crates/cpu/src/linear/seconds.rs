//! Second lines of many tokens, put together block by block. Other blocks are loud in every token's row, but each block of
//! weights is best gone over by as many tokens as a tile has: one alone takes half of what six do (bench/NOTES.md).

use std::ops::Range;

use super::bytes::ByteTile;
use super::encode::second_lines;
use super::vector::Vector;
use super::{Line, groups, kind};

/// The second lines of a part's tokens, in order of blocks, and of tokens in each.
pub(super) struct Seconds<'a> {
    /// Where those of each block begin, and the end of all; nothing if there are none.
    starts: &'a [u32],
    lines: &'a [Line],
    /// The chain that each line is added to.
    chains: &'a [u32],
    /// The chain of each token: from 1 on, 0 for tokens without second lines, which stays zero.
    of_tokens: &'a [u32],
    /// How many chains there are, with that of zeros.
    count: usize,
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

    /// Has a tile at its first or another run of blocks add its chains of second lines, which are in `chains`: for each
    /// token of the part as many lines as it has panels, and those of zeros.
    pub fn begin<V: Vector>(&self, tile: &mut ByteTile, chains: &mut [Line]) {
        if self.starts.is_empty() {
            return;
        }
        let chains = &mut chains[..V::BYTE_TILE.0 * self.count];
        (tile.seconds, tile.second_of) = (chains.as_mut_ptr(), self.of_tokens.as_ptr());
        if !tile.resumes() {
            // SAFETY: lines of zeros. (A loop of stores in baseline instructions takes three times as long.)
            unsafe { tile.seconds.write_bytes(0, chains.len()) };
        }
    }

    /// At how many blocks `run` asks for weights, about.
    pub fn tiles(&self, blocks: Range<usize>, most: usize) -> usize {
        match (self.starts.get(blocks.start), self.starts.get(blocks.end)) {
            (Some(&start), Some(&end)) => {
                let lines = (end - start) as usize;
                lines.div_ceil(most).max(lines.min(blocks.len()))
            }
            _ => 0,
        }
    }

    /// Adds the second lines of a tile's run of blocks: up to `most` at once, as if they were rows of that one block.
    ///
    /// # Safety
    /// As [`Vector::byte_tile`]; `begin` was called.
    pub unsafe fn run<V: Vector, const KIND: u8>(&self, tile: &mut ByteTile, most: usize) {
        if self.starts.is_empty() {
            return;
        }
        let (chains, meanwhile) = (std::ptr::null_mut(), std::ptr::null());
        let mut one = *tile;
        (one.lines, one.chains, one.meanwhile) = (1, chains, meanwhile);
        for block in tile.first..tile.end {
            let of = self.starts[block] as usize..self.starts[block + 1] as usize;
            (one.first, one.end) = (block, block + 1);
            for group in groups(of, most) {
                one.input = self.lines[group.start..].as_ptr().wrapping_sub(block);
                one.second_of = self.chains[group.start..].as_ptr();
                // SAFETY: the chains, the panels' block and the lines are there.
                unsafe { V::byte_tile::<KIND>(group.len(), &one) };
                one.asked(1);
                tile.asked(1);
            }
            let group = V::BYTE_TILE.0 * const { kind::sizes(KIND).group };
            one.weights = one.weights.wrapping_add(group);
        }
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

//! Residual lines of many tokens, by block. Other blocks are outliers in every token's row, but each block of weights is best
//! gone over by several tokens at once: one alone takes half of what six do (bench/NOTES.md).

use std::ops::Range;

use super::encode::residual_lines;
use super::kind::OfKind;
use super::tiles::{ByteTile, Group, TOGETHER, Tiles};
use super::{Line, run_of};

/// The residual lines of a part's tokens, in order of blocks, and of tokens in each.
pub(super) struct Residuals<'a> {
    /// Where the groups of each block begin, and the end of all; nothing if there are none.
    starts: &'a [u32],
    groups: &'a [Group],
    /// The chain of each token likewise: from the second on; the first is for tokens without residual lines and stays zero.
    of_tokens: &'a [u32],
    /// How many chains there are: with that of zeros, and the one of which nobody asks, the last.
    count: usize,
}

/// Lines that [`Residuals::list`] needs for up to `tokens` tokens of `blocks` blocks.
pub(super) const fn scratch_lines(tokens: usize, blocks: usize) -> usize {
    let groups = tokens.div_ceil(TOGETHER) * blocks;
    // The first group may have to begin one word further on.
    let words = 2 * blocks + 2 + tokens + groups * (size_of::<Group>() / 4);
    words.div_ceil(16)
}

impl<'a> Residuals<'a> {
    pub const NONE: Residuals<'static> =
        Residuals { starts: &[], groups: &[], of_tokens: &[], count: 0 };

    /// Those of the rows `input` of `tile`'s shape; `scratch` has [`scratch_lines`].
    pub fn list<V: Tiles, K: OfKind>(
        tile: &ByteTile,
        input: &'a [Line],
        scratch: &'a mut [Line],
    ) -> Residuals<'a> {
        let panels = V::BYTE_TILE.0;
        let bytes = panels * const { K::KIND.expanded(V::EXPANDS).sizes().group };
        let blocks = tile.blocks;
        let rows = input.chunks_exact(tile.lines);
        // SAFETY: a line is sixteen words.
        let (_, words, _) = unsafe { scratch.align_to_mut::<u32>() };
        let (starts, words) = words.split_at_mut(blocks + 1);
        let (filled, words) = words.split_at_mut(blocks);
        let (of_tokens, words) = words.split_at_mut(rows.len());
        filled.fill(0);
        let chain_bytes = (panels * size_of::<Line>()) as u32;
        let mut count = 1;
        for (row, chain) in rows.clone().zip(&mut *of_tokens) {
            let mut any = false;
            outlier_blocks(row, blocks, |block| (filled[block], any) = (filled[block] + 1, true));
            *chain = if any { count * chain_bytes } else { 0 };
            count += u32::from(any);
        }
        if count == 1 {
            return Residuals::NONE;
        }
        // SAFETY: a group is words and addresses, of which all bits are legal.
        let (_, groups, _) = unsafe { words.align_to_mut::<Group>() };
        let mut all = 0;
        for (block, (start, filled)) in starts.iter_mut().zip(&mut *filled).enumerate() {
            let of_block = filled.div_ceil(TOGETHER as u32);
            let group = Group {
                lines: [input.as_ptr(); _],
                chains: [count * chain_bytes; _],
                weights: (block % run_of(blocks) * bytes) as u32,
                len: 0,
            };
            groups[all..all + of_block as usize].fill(group);
            (*start, *filled) = (all as u32, all as u32 * TOGETHER as u32);
            all += of_block as usize;
        }
        starts[blocks] = all as u32;
        for (row, &chain) in rows.zip(&*of_tokens) {
            outlier_blocks(row, blocks, |block| {
                let at = filled[block] as usize;
                filled[block] += 1;
                let group = &mut groups[at / TOGETHER];
                group.lines[at % TOGETHER] = &row[residual_lines(blocks) + block];
                group.chains[at % TOGETHER] = chain;
                group.len += 1;
            });
        }
        Residuals { starts, groups: &groups[..all], of_tokens, count: count as usize + 1 }
    }

    /// Has a tile at its first or another run of blocks add its chains of residual lines, which are in `chains`: for each
    /// token of the part as many lines as it has panels, and those of the two that are no token's.
    pub fn begin<V: Tiles>(&self, tile: &mut ByteTile, chains: &mut [Line]) {
        if self.starts.is_empty() {
            return;
        }
        let chains = &mut chains[..V::BYTE_TILE.0 * self.count];
        (tile.residuals, tile.residual_of) = (chains.as_mut_ptr(), self.of_tokens.as_ptr());
        if !tile.resumes() {
            // SAFETY: lines of zeros. (A loop of stores in baseline instructions takes three times as long.)
            unsafe { tile.residuals.write_bytes(0, chains.len()) };
        }
    }

    /// The groups of some blocks.
    fn groups(&self, blocks: Range<usize>) -> &[Group] {
        match (self.starts.get(blocks.start), self.starts.get(blocks.end)) {
            (Some(&start), Some(&end)) => &self.groups[start as usize..end as usize],
            _ => &[],
        }
    }

    /// At how many blocks `run` prefetches weights.
    pub fn tiles(&self, blocks: Range<usize>) -> usize {
        self.groups(blocks).len()
    }

    /// Adds the residual lines of a tile's run of blocks.
    ///
    /// # Safety
    /// As [`Tiles::byte_tile`]; `begin` was called.
    pub unsafe fn run<V: Tiles, K: OfKind>(&self, tile: &mut ByteTile) {
        let groups = self.groups(tile.first..tile.end);
        // SAFETY: the chains, the panels' blocks and the lines are there.
        unsafe { V::residual_lines::<K>(tile, groups) };
        tile.prefetched(groups.len());
    }
}

/// Calls `each` with the outliers of a row's blocks.
#[inline(always)]
fn outlier_blocks(row: &[Line], blocks: usize, mut each: impl FnMut(usize)) {
    for word in 0..blocks.div_ceil(32) {
        let mut bits = row[blocks + word / 16].0[word % 16];
        while bits != 0 {
            each(word * 32 + bits.trailing_zeros() as usize);
            bits &= bits - 1;
        }
    }
}

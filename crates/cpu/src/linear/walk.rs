//! How tiles go over blocks: one after the other, and over the second lines of the loud ones where a token has
//! them, found in the bits of the tokens' rows or in a list made of these. And what they ask memory for on their way.

use std::arch::asm;
use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

use tokenmill_quant::panel::PANEL_ROWS;

use super::bytes::ByteTile;
use super::encode::second_lines;
use super::{Line, groups, kind};

/// Which second line a tile adds: that of a token, or those of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Loud(u32);

impl Loud {
    /// Stands for all tokens of a tile.
    pub const ALL: usize = 255;
    /// Behind all blocks.
    const END: Loud = Loud(u32::MAX);

    fn new(block: usize, token: usize) -> Loud {
        Loud((block << 8 | token) as u32)
    }

    /// The block.
    #[inline(always)]
    pub fn block(self) -> usize {
        (self.0 >> 8) as usize
    }

    /// The token of the tile, or `ALL`.
    #[inline(always)]
    pub fn token(self) -> usize {
        (self.0 & 255) as usize
    }
}

/// The lists of second lines of every run of blocks and group of tokens, in scratch memory: found once for all
/// panels, where each would look through the bits of six rows.
pub(super) struct Louds<'a> {
    /// Where the list of each begins, the groups of the first run first; none where tiles need no lists.
    starts: &'a [u32],
    lists: &'a [Loud],
}

impl<'a> Louds<'a> {
    pub const NONE: Louds<'static> = Louds { starts: &[], lists: &[] };

    /// Of tokens in groups of up to `most`. Up to half of a group are added alone: usually it is one value
    /// that is far above the rest.
    pub fn list(
        tile: &ByteTile,
        input: &[Line],
        most: usize,
        scratch: &'a mut [Line],
    ) -> Louds<'a> {
        // SAFETY: a line is sixteen words.
        let (_, words, _) = unsafe { scratch.align_to_mut::<u32>() };
        let tokens = input.len() / tile.lines;
        let (run, count) = (tile.run(), tokens.div_ceil(most));
        let (starts, lists) = words.split_at_mut(tile.blocks.div_ceil(run) * count);
        // SAFETY: a word each.
        let (_, lists, _) = unsafe { lists.align_to_mut::<Loud>() };
        let bits = |token: usize, block: usize| {
            input[token * tile.lines + tile.blocks + block / 512].0[block / 32 % 16]
        };
        let mut len = 0;
        let mut push = |len: &mut usize, loud: Loud| {
            lists[*len] = loud;
            *len += 1;
        };
        let runs = (0..tile.blocks).step_by(run);
        let of_run = |first| groups(0..tokens, most).map(move |tokens| (first, tokens));
        for (start, (first, tokens)) in starts.iter_mut().zip(runs.flat_map(of_run)) {
            *start = len as u32;
            let end = (first + run).min(tile.blocks);
            for word in first / 32..end.div_ceil(32) {
                let mut any = tokens.clone().fold(0, |any, token| any | bits(token, word * 32));
                while any != 0 {
                    let block = word * 32 + any.trailing_zeros() as usize;
                    any &= any - 1;
                    if !(first..end).contains(&block) {
                        continue;
                    }
                    let is_loud = |token: &usize| bits(*token, block) >> (block % 32) & 1 == 1;
                    let count = tokens.clone().filter(is_loud).count() as u32;
                    if count > most as u32 / 2 || count == tokens.len() as u32 {
                        push(&mut len, Loud::new(block, Loud::ALL));
                        continue;
                    }
                    for token in tokens.clone().filter(is_loud) {
                        push(&mut len, Loud::new(block, token - tokens.start));
                    }
                }
            }
            push(&mut len, Loud::END);
        }
        Louds { starts, lists: &lists[..len] }
    }

    /// The list of a group of tokens in run `run` of blocks.
    pub fn of(&self, run: usize, groups: usize, group: usize) -> *const Loud {
        match self.starts.get(run * groups + group) {
            Some(&start) => self.lists[start as usize..].as_ptr(),
            None => std::ptr::null(),
        }
    }
}

/// The list of second lines of tiles that go by the bits of their rows.
pub(super) const NO_LIST: *const Loud = std::ptr::null();

/// Where a tile of W panels is in its columns.
pub(super) struct Walk {
    /// The first panel's group.
    pub scales: *const u8,
    /// Block within the group.
    pub b: usize,
    /// The first token's line.
    pub line: *const Line,
    /// Whether that is a second line.
    second: bool,
    block: usize,
    /// Loud blocks of the 32 that `block` is among, from `block` on.
    loud: u32,
    /// Packed weights to ask for next.
    pub ahead: *const u8,
}

impl Walk {
    /// At the first block, for C tokens.
    #[inline(always)]
    pub unsafe fn new<const C: usize>(t: &ByteTile) -> Walk {
        // SAFETY: as `loud_blocks`; inside the row.
        let (loud, line) =
            unsafe { (loud_blocks::<C>(t, t.first / 32) >> (t.first % 32), t.input.add(t.first)) };
        let (scales, ahead) = (t.weights, t.ahead);
        Walk { scales, b: 0, line, second: false, block: t.first, loud, ahead }
    }

    /// How many blocks from this on a tile may go over at once: up to the first that is loud, and that too. One for
    /// second lines, and where something is asked for after each block.
    #[inline(always)]
    pub fn stretch(&self, t: &ByteTile) -> usize {
        if self.second || t.asks_meanwhile() {
            return 1;
        }
        let quiet = self.loud.trailing_zeros() as usize;
        (quiet + 1).min(32 - self.block % 32).min(t.end - self.block)
    }

    /// Passes `blocks` that are not loud, of W panels expanded line by line.
    #[inline(always)]
    pub fn skip<const KIND: u8, const W: usize>(&mut self, blocks: usize) {
        self.block += blocks;
        self.loud >>= blocks;
        self.line = self.line.wrapping_add(blocks);
        self.scales = self.scales.wrapping_add(blocks * W * const { kind::sizes(KIND).group });
    }

    /// Whether the block is loud for any token, and these are not its second lines.
    #[inline(always)]
    pub fn is_loud(&self) -> bool {
        self.loud & 1 == 1 && !self.second
    }

    /// The tokens whose second lines are better added one by one, a bit each: those for which the block is loud, unless
    /// it is for more than three of four. Usually it is one token's value that is far above the rest.
    #[inline(always)]
    pub unsafe fn alone<const C: usize>(&self, t: &ByteTile) -> u32 {
        if !self.is_loud() {
            return 0;
        }
        let loud = (0..C).fold(0, |tokens, c| {
            // SAFETY: as `loud_blocks`.
            let word = unsafe { *loud_word(t, c, self.block / 32) };
            tokens | (word >> (self.block % 32) & 1) << c
        });
        if 4 * loud.count_ones() <= 3 * C as u32 { loud } else { 0 }
    }

    /// The first token's second line of the block.
    #[inline(always)]
    pub unsafe fn second_line(&self, t: &ByteTile) -> *const Line {
        // SAFETY: inside the row.
        unsafe { self.line.add(second_lines(t.blocks)) }
    }

    /// Has `next` go to the next block without the second lines of this.
    #[inline(always)]
    pub fn pass_second(&mut self) {
        self.second = true;
    }

    /// Goes to the second lines of a loud block, or else to the next block; false at the end.
    #[inline(always)]
    pub unsafe fn next<const KIND: u8, const W: usize, const C: usize>(
        &mut self,
        t: &ByteTile,
    ) -> bool {
        let sizes = const { kind::sizes(KIND) };
        // SAFETY: inside the rows and the panels.
        unsafe {
            if self.is_loud() {
                // Second lines of tokens for which the block is not loud are zero.
                (self.line, self.second) = (self.second_line(t), true);
                return true;
            }
            self.block += 1;
            if self.block == t.end {
                return false;
            }
            (self.line, self.second) = (t.input.add(self.block), false);
            self.loud >>= 1;
            if self.block.is_multiple_of(32) {
                self.loud = loud_blocks::<C>(t, self.block / 32);
            }
            self.b += 1;
            if self.b == sizes.blocks {
                self.b = 0;
                // Expanded panels lie line by line.
                let panels = if KIND >= kind::WIDE { W } else { 1 };
                self.scales = self.scales.add(sizes.group * panels);
            }
        }
        true
    }
}

/// Which of blocks 32·i .. are loud for any of the tile's tokens, a bit each.
#[inline(always)]
unsafe fn loud_blocks<const C: usize>(t: &ByteTile, i: usize) -> u32 {
    // SAFETY: the caller's.
    (0..C).fold(0, |loud, c| loud | unsafe { *loud_word(t, c, i) })
}

/// Where token `c` says which of blocks 32·i .. are loud.
#[inline(always)]
unsafe fn loud_word(t: &ByteTile, c: usize, i: usize) -> *const u32 {
    // SAFETY: the lines of bits follow those of the blocks.
    unsafe { t.input.add(c * t.lines + t.blocks).cast::<u32>().add(i) }
}

/// What tiles ask memory for on their way.
impl ByteTile {
    /// Asks for some of the weights of W panels that follow, from `ahead` on; returns what comes next.
    #[inline(always)]
    pub fn ask_ahead<const W: usize>(&self, mut ahead: *const u8) -> *const u8 {
        for _ in 0..self.ahead_lines {
            for w in 0..W {
                // SAFETY: a prefetch may name any address.
                unsafe {
                    _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(w * self.panel_bytes).cast());
                }
            }
            ahead = ahead.wrapping_add(64);
        }
        ahead
    }

    /// Asks for the lines that C tokens' results on W adjacent panels go to: nobody has touched them for long, stores
    /// leave in order, and those of the tile that follows would wait behind them.
    #[inline(always)]
    pub fn ask_for_results<const W: usize, const C: usize>(&self) {
        for i in 0..if self.waits() { 0 } else { W * C } {
            let line = self.out.wrapping_add(i / W * self.stride + i % W * PANEL_ROWS);
            // SAFETY: a prefetch may name any address, and does nothing on processors without this one. (The
            // intrinsic becomes one for reading, unless all code is compiled for processors that have it.)
            unsafe {
                asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
            }
        }
    }

    /// Whether memory is asked for what is wanted after all products.
    #[inline(always)]
    pub fn asks_meanwhile(&self) -> bool {
        !self.meanwhile.is_null()
    }

    /// Asks memory for what is wanted after all products.
    #[inline(always)]
    pub fn ask_meanwhile(&self) {
        // SAFETY: null, or the job's.
        if let Some(meanwhile) = unsafe { self.meanwhile.as_ref() } {
            meanwhile.ask();
        }
    }
}

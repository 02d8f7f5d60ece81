//! How tiles go over packed blocks: one after the other, and over the second lines of the loud ones where a token
//! has them. And what tiles ask memory for on their way.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

use crate::panel::PANEL_ROWS;

use super::bytes::ByteTile;
use super::encode::second_lines;
use super::{Line, kind};
use crate::memory::ask_to_write;

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
}

impl Walk {
    /// At the first block, for C tokens.
    #[inline(always)]
    pub unsafe fn new<const C: usize>(t: &ByteTile) -> Walk {
        // SAFETY: as `loud_blocks`; inside the row.
        let (loud, line) =
            unsafe { (loud_blocks::<C>(t, t.first / 32) >> (t.first % 32), t.input.add(t.first)) };
        Walk { scales: t.weights, b: 0, line, second: false, block: t.first, loud }
    }

    /// Whether these are the second lines of a block.
    #[inline(always)]
    pub fn is_second(&self) -> bool {
        self.second
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
            ask_to_write(self.out.wrapping_add(i / W * self.stride + i % W * PANEL_ROWS));
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

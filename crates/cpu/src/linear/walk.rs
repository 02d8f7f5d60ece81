//! How tiles go over packed blocks: one after the other, and over the residual lines of the outliers where a token
//! has them. And what tiles prefetch on their way.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

use crate::panel::PANEL_ROWS;

use super::Line;
use super::encode::residual_lines;
use super::kind::OfKind;
use super::tiles::ByteTile;
use crate::memory::prefetch_to_write;

/// Where a tile of W panels is in its columns.
pub(super) struct Walk {
    /// The first panel's group.
    pub scales: *const u8,
    /// Block within the group.
    pub b: usize,
    /// The first token's line.
    pub line: *const Line,
    /// Whether that is a residual line.
    residual: bool,
    block: usize,
    /// Outlier blocks of the 32 that `block` is among, from `block` on.
    outlier: u32,
}

impl Walk {
    /// At the first block, for C tokens.
    #[inline(always)]
    pub unsafe fn new<const C: usize>(t: &ByteTile) -> Walk {
        // SAFETY: as `outlier_blocks`; inside the row.
        let (outlier, line) = unsafe {
            (outlier_blocks::<C>(t, t.first / 32) >> (t.first % 32), t.input.add(t.first))
        };
        Walk { scales: t.weights, b: 0, line, residual: false, block: t.first, outlier }
    }

    /// Whether these are the residual lines of a block.
    #[inline(always)]
    pub fn is_residual(&self) -> bool {
        self.residual
    }

    /// Whether the block is an outlier for any token, and these are not its residual lines.
    #[inline(always)]
    pub fn is_outlier(&self) -> bool {
        self.outlier & 1 == 1 && !self.residual
    }

    /// The tokens whose residual lines are better added one by one, a bit each: those for which the block is an outlier, unless
    /// it is for more than three of four. Usually it is one token's value that is far above the rest.
    #[inline(always)]
    pub unsafe fn alone<const C: usize>(&self, t: &ByteTile) -> u32 {
        if !self.is_outlier() {
            return 0;
        }
        let outlier = (0..C).fold(0, |tokens, c| {
            // SAFETY: as `outlier_blocks`.
            let word = unsafe { *outlier_word(t, c, self.block / 32) };
            tokens | (word >> (self.block % 32) & 1) << c
        });
        if 4 * outlier.count_ones() <= 3 * C as u32 { outlier } else { 0 }
    }

    /// The first token's residual line of the block.
    #[inline(always)]
    pub unsafe fn residual_line(&self, t: &ByteTile) -> *const Line {
        // SAFETY: inside the row.
        unsafe { self.line.add(residual_lines(t.blocks)) }
    }

    /// Has `next` go to the next block without the residual lines of this.
    #[inline(always)]
    pub fn pass_residual(&mut self) {
        self.residual = true;
    }

    /// Goes to the residual lines of an outlier block, or else to the next block; false at the end.
    #[inline(always)]
    pub unsafe fn next<K: OfKind, const W: usize, const C: usize>(&mut self, t: &ByteTile) -> bool {
        let sizes = const { K::KIND.sizes() };
        // SAFETY: inside the rows and the panels.
        unsafe {
            if self.is_outlier() {
                // Residual lines of tokens for which the block is no outlier are zero.
                (self.line, self.residual) = (self.residual_line(t), true);
                return true;
            }
            self.block += 1;
            if self.block == t.end {
                return false;
            }
            (self.line, self.residual) = (t.input.add(self.block), false);
            self.outlier >>= 1;
            if self.block.is_multiple_of(32) {
                self.outlier = outlier_blocks::<C>(t, self.block / 32);
            }
            self.b += 1;
            if self.b == sizes.blocks {
                self.b = 0;
                // Expanded panels lie line by line.
                let panels = if K::KIND.is_wide() { W } else { 1 };
                self.scales = self.scales.add(sizes.group * panels);
            }
        }
        true
    }
}

/// Which of blocks 32·i .. are outliers for any of the tile's tokens, a bit each.
#[inline(always)]
unsafe fn outlier_blocks<const C: usize>(t: &ByteTile, i: usize) -> u32 {
    // SAFETY: the caller's.
    (0..C).fold(0, |outlier, c| outlier | unsafe { *outlier_word(t, c, i) })
}

/// Where token `c` says which of blocks 32·i .. are outliers.
#[inline(always)]
unsafe fn outlier_word(t: &ByteTile, c: usize, i: usize) -> *const u32 {
    // SAFETY: the lines of bits follow those of the blocks.
    unsafe { t.input.add(c * t.lines + t.blocks).cast::<u32>().add(i) }
}

/// What tiles prefetch on their way.
impl ByteTile {
    /// Prefetches some of the weights of W panels that follow, from `ahead` on; returns what comes next.
    #[inline(always)]
    pub fn prefetch_ahead<const W: usize>(&self, mut ahead: *const u8) -> *const u8 {
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

    /// Prefetches the lines that C tokens' results on W adjacent panels go to: nobody has touched them for long, stores
    /// leave in order, and those of the tile that follows would wait behind them.
    #[inline(always)]
    pub fn prefetch_results<const W: usize, const C: usize>(&self) {
        for i in 0..if self.waits() { 0 } else { W * C } {
            prefetch_to_write(self.out.wrapping_add(i / W * self.stride + i % W * PANEL_ROWS));
        }
    }

    /// Whether what follows all products is prefetched.
    #[inline(always)]
    pub fn prefetches(&self) -> bool {
        !self.prefetch.is_null()
    }

    /// Prefetches some of what follows all products.
    #[inline(always)]
    pub fn prefetch_some(&self) {
        // SAFETY: null, or the job's.
        if let Some(prefetch) = unsafe { self.prefetch.as_ref() } {
            prefetch.next();
        }
    }
}

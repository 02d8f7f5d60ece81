//! The tiles of an instruction set: what the linear layer calls, and what each call is given.

use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

use super::kind::{Expands, OfKind};
use super::{Line, Prefetch};
use crate::simd::Vector;
use tokenmill_quant::exl3::Codebook;

/// How far ahead of what it reads a tile prefetches, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// For the nearest cache.
    pub near: usize,
    /// For the second-level cache, unless zero.
    pub far: usize,
    /// Whether scales are prefetched, or codes alone.
    pub scales: bool,
}

impl Ahead {
    /// Prefetches the line at `line` + `near`, and the one at `line` + `far`.
    #[inline(always)]
    pub fn prefetch(self, line: *const u8) {
        // SAFETY: a prefetch may name any address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(self.near).cast());
            if self.far > 0 {
                _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(self.far).cast());
            }
        }
    }
}

/// The tiles of one instruction set, and how large they are.
pub(super) trait Tiles: Vector {
    /// Panels (at most 2), and most tokens, of a tile in the int8 arithmetic.
    const BYTE_TILE: (usize, usize);
    /// Most tokens for which a tile takes two packed panels from different halves of them.
    const TWO_STREAMS: usize;
    /// What a tile of one token prefetches ahead of packed panels, and one of more.
    const AHEAD: [Ahead; 2];
    /// The same for numbers of 16 bits, which have no scales.
    const FLOATS_AHEAD: Ahead;
    /// Most tokens of a tile of expanded panels, unless they are expanded to signs.
    const WIDE_TOKENS: usize;
    /// Whether the bf16 chain goes by pairs of columns.
    const PAIRS: bool;
    /// Most panels and tokens of a tile in the float arithmetics.
    const FLOAT_TILE: (usize, usize);
    /// Most tokens of a tile of more than one panel there.
    const PANELS_TO: usize;
    /// Lines of a chunk of columns of a tile's panels that is expanded to f32: a column of a panel is one.
    const CHUNK_LINES: usize;
    /// Most tokens for which tiles take the codes of floats apart themselves.
    const CODED_TOKENS: usize;
    /// Tokens from which on expanding panels to bytes first pays.
    const EXPAND_FROM: usize;
    /// What codes that may be any byte are expanded to.
    const EXPANDS: Expands;

    /// Runs a tile of `tokens` and as many panels as there may be in the int8 arithmetic.
    unsafe fn byte_tile<K: OfKind>(tokens: usize, t: &ByteTile);
    /// Adds the residual lines of `groups`, whose blocks are of `t`'s run of expanded panels, to their chains.
    unsafe fn residual_lines<K: OfKind>(t: &ByteTile, groups: &[Group]);
    /// Makes blocks of a trellis codes: `trellis::codes`.
    unsafe fn trellis_codes(of: Trellis, blocks: &TrellisBlocks);
    /// Runs one token on blocks as they are: `transformed::tile_of_one`.
    unsafe fn trellis_token(of: Trellis, t: &TrellisTile);
    /// Runs some tokens on the codes: `transformed::tile`.
    unsafe fn trellis_tile(tokens: usize, t: &TrellisTile);
    /// Expands a panel to bytes, or magnitudes and signs: `bytes::widen`.
    unsafe fn widen<K: OfKind>(panel: *const u8, blocks: usize, to: *mut u8);
    /// Runs a tile of `panels` × `tokens` in a float arithmetic.
    unsafe fn float_tile<K: OfKind>(panels: usize, tokens: usize, t: &FloatTile);
    /// Expands blocks of a panel to f32: `floats::expand`.
    unsafe fn expand<K: OfKind, const ROUND: bool>(
        panel: *const u8,
        first: usize,
        blocks: usize,
        to: *mut f32,
    );
    /// Expands pairs of bf16 columns to f32: `floats::expand_pairs`.
    unsafe fn expand_pairs(from: *const u8, pairs: usize, to: *mut f32);
}

/// One call of a tile kernel.
#[derive(Clone, Copy)]
pub(super) struct ByteTile {
    /// First panel; the other is `panel_bytes` further on, or line by line where they are expanded.
    pub weights: *const u8,
    pub panel_bytes: usize,
    /// Blocks of 32 columns of a row, and which of them to go over.
    pub blocks: usize,
    pub first: usize,
    pub end: usize,
    /// First token, and lines from one to the next.
    pub input: *const Line,
    pub lines: usize,
    /// Word of a line that integer sums start from.
    pub start: usize,
    /// First result, and f32s from one token to the next.
    pub out: *mut f32,
    pub stride: usize,
    /// f32s from the results of the first panel to those of the other.
    pub apart: usize,
    /// Rows of each panel to store.
    pub rows: [usize; 2],
    /// Whether the codes of expanded panels of kinds `Wide` and `WideMin` are below 16.
    pub narrow: bool,
    /// Where chains wait between runs of blocks, two lines a token.
    pub chains: *mut Line,
    /// The chains of residual lines of expanded panels, a line a panel each; null where no block of any token is an outlier.
    pub residuals: *mut Line,
    /// Where each token's is among them, in bytes.
    pub residual_of: *const u32,
    /// Packed weights that will be wanted next, lines of each panel to prefetch at a block, and
    /// how many there are.
    pub ahead: *const u8,
    pub ahead_lines: usize,
    pub ahead_left: usize,
    /// What else is prefetched, or null if nothing is left.
    pub prefetch: *const Prefetch,
}

/// One call of a tile kernel.
#[derive(Clone, Copy)]
pub(super) struct FloatTile {
    /// First panel; others follow at `panel_bytes`.
    pub weights: *const u8,
    pub panel_bytes: usize,
    pub cols: usize,
    /// First column of the first token, and words from one token to the next.
    pub input: *const f32,
    pub input_stride: usize,
    /// First result, and f32s from one token to the next, and from one panel to the next.
    pub out: *mut f32,
    pub stride: usize,
    pub apart: usize,
    /// Whether the chains go on from what is in `out`.
    pub resume: bool,
    /// Rows of the last panel that exist; those before it are whole.
    pub last_rows: usize,
}

/// Which trellis.
#[derive(Clone, Copy)]
pub(super) struct Trellis {
    pub codebook: Codebook,
    /// 1 to 8.
    pub bits: usize,
}

/// Some blocks of a panel that are made codes.
pub(super) struct TrellisBlocks {
    pub from: *const u8,
    pub count: usize,
    /// Room for `trellis::VECTORS` lines a block: 16 bits a code, `[vector][row][half]`.
    pub to: *mut Line,
}

/// One call of a tile kernel: some blocks of a panel on some tokens.
pub(super) struct TrellisTile {
    /// The blocks, or their codes.
    pub codes: *const u8,
    /// The first block, how many there are, and those of a row.
    pub first: usize,
    pub count: usize,
    pub blocks: usize,
    /// First token, lines from one to the next, and where spread lines begin.
    pub rows: *const Line,
    pub stride: usize,
    pub spread: usize,
    /// What codes are multiplied by, and what is added to that.
    pub scale: f32,
    pub min: f32,
    /// The sums of lines and of residual lines of the first token; two lines a token.
    pub sums: *mut Line,
}

/// Residual lines of one block that are gone over together, with AVX-512 always as many, so that a processor need not guess:
/// with more a line takes fewer loads, with fewer there are fewer gaps.
pub(super) const TOGETHER: usize = 4;

/// Residual lines of a block. Where there are fewer, any lines, added to a chain of which nobody asks.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Group {
    pub lines: [*const Line; TOGETHER],
    /// The chain that each is added to: where it lies among those of a tile, in bytes.
    pub chains: [u32; TOGETHER],
    /// Where the block begins in its run of expanded panels, in bytes.
    pub weights: u32,
    /// How many there are.
    pub len: u32,
}

impl Group {
    /// Prefetches the lines: those of the tokens are far from each other.
    #[inline(always)]
    pub fn prefetch(&self) {
        for line in self.lines {
            // SAFETY: a prefetch may name any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
        }
    }
}

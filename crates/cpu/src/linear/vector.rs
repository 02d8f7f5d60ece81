//! What a vector kernel asks of an instruction set: 16 lanes, one for each row of a panel.

use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

use super::bytes::ByteTile;
use super::floats::FloatTile;
use super::kind::Expands;
use super::residuals::Group;
use super::turned::TrellisTile;
use crate::isa::Isa;

/// How far ahead of what it reads a tile asks for more, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// For the nearest cache.
    pub near: usize,
    /// For the second-level cache, unless zero.
    pub far: usize,
    /// Whether scales are asked for, or codes alone.
    pub scales: bool,
}

impl Ahead {
    /// Asks for the line at `line` + `near`, and for the one at `line` + `far`.
    #[inline(always)]
    pub fn ask(self, line: *const u8) {
        // SAFETY: a prefetch may name any address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(self.near).cast());
            if self.far > 0 {
                _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(self.far).cast());
            }
        }
    }
}

/// Sixteen 32-bit lanes of one instruction set.
///
/// # Safety of the functions
/// All are `unsafe` for two reasons only: the instruction set must be available, and pointers
/// must cover what is read or written (64 bytes for codes and f32s, 32 for f16s, 16 for
/// bytes). They are inlined into `byte_tile`, `float_tile` and the like of the same
/// implementation, which enable the features.
pub(super) trait Vector {
    /// 16 × i32, or 64 bytes.
    type Int: Copy;
    /// 16 × f32.
    type Float: Copy;
    /// The same 32 bits in every lane.
    type Same: Copy;

    /// What the processors that choose this code have.
    const ISA: Isa;
    /// Panels (at most 2), and most tokens, of a tile in the int8 arithmetic.
    const BYTE_TILE: (usize, usize);
    /// Most tokens for which a tile takes two packed panels from different halves of them.
    const TWO_STREAMS: usize;
    /// What a tile of one token asks for ahead of packed panels, and one of more.
    const AHEAD: [Ahead; 2];
    /// The same for numbers of 16 bits, which have no scales.
    const FLOATS_AHEAD: Ahead;
    /// Most tokens of a tile of expanded panels, unless they are expanded to signs.
    const WIDE_TOKENS: usize;
    /// Whether the bf16 chain goes by pairs of columns.
    const PAIRS: bool;
    /// Most panels and tokens of a tile in the float arithmetics.
    const FLOAT_TILE: (usize, usize);
    /// Most tokens for which tiles take the codes of floats apart themselves.
    const CODED_TOKENS: usize;
    /// What the floats of `e4m3` are too small by.
    const E4M3_UNIT: f32;
    /// Tokens from which on expanding panels to bytes first pays.
    const EXPAND_FROM: usize;
    /// What codes that may be any byte are expanded to.
    const EXPANDS: Expands;

    /// `bits` in all lanes.
    unsafe fn same(bits: i32) -> Self::Same;
    /// The word at `from` in all lanes.
    unsafe fn same_at(from: *const i32) -> Self::Same;
    /// As a vector of integers.
    unsafe fn int(same: Self::Same) -> Self::Int;
    /// As a vector of floats.
    unsafe fn float(same: Self::Same) -> Self::Float;

    /// 64 bytes.
    unsafe fn load(from: *const u8) -> Self::Int;
    /// Stores 64 bytes.
    unsafe fn store(v: Self::Int, to: *mut u8);
    /// Each 16-bit part shifted left.
    unsafe fn left<const BITS: u32>(v: Self::Int) -> Self::Int;
    /// Each 16-bit part shifted right.
    unsafe fn right<const BITS: u32>(v: Self::Int) -> Self::Int;
    /// `v & mask`, the mask repeated in every byte.
    unsafe fn mask(v: Self::Int, mask: i8) -> Self::Int;
    /// `v | (bits & mask)`, the mask repeated in every byte.
    unsafe fn with_bits(v: Self::Int, bits: Self::Int, mask: i8) -> Self::Int;
    /// Each byte (0–15) replaced by its entry in `table`.
    unsafe fn look_up(v: Self::Int, table: &[u8; 16]) -> Self::Int;
    /// `sum` + Σ of 4 products unsigned byte × signed byte in each lane. Instruction sets without an
    /// instruction for it have tiles of their own.
    unsafe fn dot(sum: Self::Int, codes: Self::Int, bytes: Self::Same) -> Self::Int;

    /// What `dot_byte_sums` takes of the sums of two bytes of `low` and two of `high` in each 16-bit part.
    #[inline(always)]
    unsafe fn byte_sums(low: Self::Int, high: Self::Int) -> [Self::Int; 2] {
        [low, high]
    }
    /// `sum` + Σ of 2 products byte sum × signed byte in each lane; each byte stands twice in `bytes`, or as 16 bits
    /// where [`Self::byte_sums`] has added all four.
    #[inline(always)]
    unsafe fn dot_byte_sums(sum: Self::Int, of: [Self::Int; 2], bytes: Self::Same) -> Self::Int {
        // SAFETY: the caller's.
        unsafe { Self::dot(Self::dot(sum, of[0], bytes), of[1], bytes) }
    }
    /// Of bytes less 128: their magnitudes; all bits of the negative ones; in each 16-bit part minus the sum of the
    /// magnitudes of those. Only where codes expand to [`Expands::Signs`].
    unsafe fn taken_apart(v: Self::Int) -> [Self::Int; 3];
    /// The low halves of products of 16-bit parts, unsigned.
    unsafe fn times_low(v: Self::Int, same: Self::Same) -> Self::Int;
    /// The high halves of products of 16-bit parts, unsigned.
    unsafe fn times_high(v: Self::Int, same: Self::Same) -> Self::Int;
    /// Sums of 16-bit parts.
    unsafe fn plus16(a: Self::Int, b: Self::Int) -> Self::Int;
    /// Sums of lanes.
    unsafe fn plus32(a: Self::Int, b: Self::Int) -> Self::Int;
    /// Lanes 8–15 of `a`, then lanes 0–7 of `b`.
    unsafe fn middle(a: Self::Int, b: Self::Int) -> Self::Int;
    /// Lanes 8–15 moved up by one, the last to the first of them; the others are any.
    unsafe fn rotate_high(v: Self::Int) -> Self::Int;

    /// The bits of integers as floats.
    unsafe fn as_float(v: Self::Int) -> Self::Float;
    /// Byte `J` of every lane, unsigned, as a float.
    unsafe fn byte<const J: u32>(v: Self::Int) -> Self::Float;
    /// Byte `j` of every lane, an e4m3 float, as a float over `E4M3_UNIT`.
    unsafe fn e4m3(v: Self::Int, j: u32) -> Self::Float;
    /// The entry of `table` that four bits of every lane name, those from bit `from` on.
    unsafe fn entries(v: Self::Int, from: u32, table: &[f32; 16]) -> Self::Float;
    /// 16 unsigned bytes as floats.
    unsafe fn unsigned(from: *const u8) -> Self::Float;
    /// 16 signed bytes as floats.
    unsafe fn signed(from: *const u8) -> Self::Float;
    /// 16 bytes e as 2^(e − 128), subnormal below 2.
    unsafe fn powers(from: *const u8) -> Self::Float;
    /// 16 f16s.
    unsafe fn halves(from: *const u8) -> Self::Float;
    /// 16 f32s.
    unsafe fn floats(from: *const f32) -> Self::Float;
    /// Stores 16 f32s.
    unsafe fn store_floats(v: Self::Float, to: *mut f32);
    /// The first `rows` f32s, zeros after them.
    unsafe fn first_floats(from: *const f32, rows: usize) -> Self::Float;
    /// Stores the first `rows` f32s only.
    unsafe fn store_first(v: Self::Float, to: *mut f32, rows: usize);
    /// The bf16s in the high and in the low halves of the lanes: two columns.
    unsafe fn bf16_pair(from: *const u8) -> [Self::Float; 2];
    /// `sum` + the product of the high halves + that of the low halves, rounded after each; only where [`PAIRS`].
    ///
    /// [`PAIRS`]: Self::PAIRS
    unsafe fn dot_pairs(sum: Self::Float, weights: Self::Int, same: Self::Same) -> Self::Float;
    /// Rounded to bf16, ties to even; zero where products do not tell it from that.
    unsafe fn to_bf16(v: Self::Float) -> Self::Float;
    /// `a·b`.
    unsafe fn mul(a: Self::Float, b: Self::Float) -> Self::Float;
    /// `a + b`.
    unsafe fn add(a: Self::Float, b: Self::Float) -> Self::Float;
    /// `a − b`.
    unsafe fn sub(a: Self::Float, b: Self::Float) -> Self::Float;
    /// `a·b + c` rounded once.
    unsafe fn fma(a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float;
    /// `a·same + c` rounded once.
    unsafe fn fma_same(a: Self::Float, same: Self::Same, c: Self::Float) -> Self::Float;

    /// Runs a tile of `tokens` and as many panels as there may be in the int8 arithmetic.
    unsafe fn byte_tile<const KIND: u8>(tokens: usize, t: &ByteTile);
    /// Adds the residual lines of `groups`, whose blocks are of `t`'s run of expanded panels, to their chains.
    unsafe fn residual_lines<const KIND: u8>(t: &ByteTile, groups: &[Group]);
    /// Runs some tokens on a panel of a trellis: `turned::tile`.
    unsafe fn trellis_tile(tokens: usize, t: &TrellisTile);
    /// Expands a panel to bytes, or magnitudes and signs: `bytes::widen`.
    unsafe fn widen<const KIND: u8>(panel: *const u8, blocks: usize, to: *mut u8);
    /// Runs a tile of `panels` × `tokens` in a float arithmetic.
    unsafe fn float_tile<const KIND: u8>(panels: usize, tokens: usize, t: &FloatTile);
    /// Expands blocks of a panel to f32: `floats::expand`.
    unsafe fn expand<const KIND: u8, const ROUND: bool>(
        panel: *const u8,
        first: usize,
        blocks: usize,
        to: *mut f32,
    );
    /// Expands pairs of bf16 columns to f32: `floats::expand_pairs`.
    unsafe fn expand_pairs(from: *const u8, pairs: usize, to: *mut f32);
}

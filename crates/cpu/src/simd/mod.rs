//! Sixteen lanes of 32 bits, one for each row of a panel or key of a group: one trait, a file an instruction set.

mod avx2;
mod avx512;

use crate::isa::Isa;
pub(crate) use avx2::Avx2;
pub(crate) use avx512::Avx512;

/// Why an instruction set lacks some functions.
const NO_PAIRS: &str = "no sums of pairs of bf16 with this instruction set";

/// Sixteen 32-bit lanes of one instruction set.
///
/// # Safety of the functions
/// All are `unsafe` for two reasons only: the instruction set must be available, and pointers
/// must cover what is read or written (64 bytes for codes and f32s, 32 for f16s, 16 for
/// bytes). They are inlined into tiles of the same instruction set, which enable the features.
pub(crate) trait Vector: Sized {
    /// 16 × i32, or 64 bytes.
    type Int: Copy;
    /// 16 × f32.
    type Float: Copy;
    /// The same 32 bits in every lane.
    type Same: Copy;

    /// What the processors that choose this code have.
    const ISA: Isa;
    /// What the floats of `e4m3` are too small by.
    const E4M3_UNIT: f32;

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
    /// Each 16-bit part shifted left by `bits`.
    unsafe fn left_by(v: Self::Int, bits: u32) -> Self::Int;
    /// Each 16-bit part shifted right, likewise.
    unsafe fn right_by(v: Self::Int, bits: u32) -> Self::Int;
    /// Each lane shifted right.
    unsafe fn right32<const BITS: i32>(v: Self::Int) -> Self::Int;
    /// Words of a table: of each `EACH` (1, 2 or 4) that a byte names, which the table has, that of the lowest bits of
    /// the lane of `which`.
    unsafe fn words_at<const EACH: usize>(
        table: &[u32],
        bytes: *const u8,
        which: Self::Int,
    ) -> Self::Int;
    /// Words of a table of two of 2048: those that a byte and three bits of a half, from bit `BITS`·`run` on, name; of the
    /// second table where the next of four bits is set, or of three the highest bit of the half.
    unsafe fn words_of<const BITS: u32>(
        table: &[u32; 4096],
        bytes: *const u8,
        halves: *const u8,
        run: usize,
    ) -> Self::Int;
    /// Bits 28 + r of words: whether bits r and r + 4 of their bytes, those of the upper four left out, are odd in number.
    unsafe fn even_signs(v: Self::Int) -> Self::Int;
    /// `v & mask`, the mask repeated in every byte.
    unsafe fn mask(v: Self::Int, mask: i8) -> Self::Int;
    /// `v | (bits & mask)`, the mask repeated in every byte.
    unsafe fn with_bits(v: Self::Int, bits: Self::Int, mask: i8) -> Self::Int;
    /// Each byte (0–15) replaced by its entry in `table`.
    unsafe fn look_up(v: Self::Int, table: &[u8; 16]) -> Self::Int;
    /// `sum` + Σ of 4 products unsigned byte × signed byte in each lane. Instruction sets without an
    /// instruction for it have tiles of their own.
    unsafe fn dot_bytes(sum: Self::Int, codes: Self::Int, bytes: Self::Same) -> Self::Int;

    /// The sum of both unsigned bytes of each 16-bit part.
    unsafe fn byte_sums(v: Self::Int) -> Self::Int;
    /// f16s between 2⁻³ and 2, over 2⁻¹³: their signs and low 12 bits, the latter exclusive-or 0xb60, are those of 16-bit parts.
    unsafe fn short_halves(v: Self::Int) -> Self::Int;
    /// All bits of 16-bit parts of `a` that are not below those of `b`, unsigned.
    unsafe fn not_below(a: Self::Int, b: Self::Int) -> Self::Int;
    /// Of bytes less 128: their magnitudes; all bits of the negative ones; in each 16-bit part minus the sum of the
    /// magnitudes of those. Only without an instruction for dot products of bytes.
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
    /// 16 unsigned bytes, one to a lane.
    unsafe fn lanes(from: *const u8) -> Self::Int;
    /// 16 unsigned 16-bit numbers, one to a lane.
    unsafe fn halves(from: *const u8) -> Self::Int;
    /// The low nibbles of 8 bytes in lanes 0–7, the high ones in lanes 8–15.
    unsafe fn fours(from: *const u8) -> Self::Int;
    /// 16 signed bytes as floats.
    unsafe fn signed(from: *const u8) -> Self::Float;
    /// 16 bytes e as 2^(e − 128), subnormal below 2.
    unsafe fn powers(from: *const u8) -> Self::Float;
    /// 16 f16s.
    unsafe fn f16s(from: *const u8) -> Self::Float;
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

    // Of attention.

    /// `x` in all lanes.
    unsafe fn splat(x: f32) -> Self::Float;
    /// The greater; `b` where either is NaN.
    unsafe fn max(a: Self::Float, b: Self::Float) -> Self::Float;
    /// Lane r: the greatest of the 16 numbers of row r of 16; any of them or NaN if there is a NaN.
    unsafe fn greatest_of(rows: *const f32) -> Self::Float;
    /// Lane r: the sum of the 16 numbers of row r of 16, by the fixed tree.
    unsafe fn sum_of(rows: *const f32) -> Self::Float;
    /// `y·2ⁿ` rounded once, for y in \[0.5, 2\] and n in −151..=0, where `shifted` is
    /// n + 1.5·2²³.
    unsafe fn times_power(y: Self::Float, shifted: Self::Float) -> Self::Float;

    /// 16 bf16s.
    unsafe fn bf16s(from: *const u16) -> Self::Float;
    /// 16 bf16s, in the order in which they are made most cheaply.
    unsafe fn bf16s_apart(from: *const u16) -> Self::Float;
    /// The lanes of `bf16s_apart` in order.
    unsafe fn in_order(v: Self::Float) -> Self::Float;
    /// y·2ⁿ, y from 0.7 to 1.5 or NaN, where `shifted` is n + 1.5·2²³; 0 where `x` is below `QUICK_LEAST`.
    unsafe fn quick_power(y: Self::Float, shifted: Self::Float, x: Self::Float) -> Self::Float;
    /// Rounded to bf16, ties up; p ≥ 0 or NaN.
    unsafe fn short(p: Self::Float) -> Self::Float;
    /// 2q − 15 for the low and the high halves of 16 bytes.
    unsafe fn nibbles(from: *const u8) -> [Self::Float; 2];
    /// 32 signed bytes as 32 i16s.
    unsafe fn bytes(from: *const i8) -> Self::Int;
    /// 16 pairs of 16 bits, those of `high` in the high halves.
    unsafe fn pairs(high: *const u16, low: *const u16) -> Self::Int;
    /// 16 pairs of signed bytes as i16s, those of `high` in the high halves.
    unsafe fn byte_pairs(high: *const i8, low: *const i8) -> Self::Int;
    /// Stores word r of sixteen rows of 16 words, `stride` bytes apart, as vector r.
    unsafe fn transpose(from: *const u8, stride: usize, to: *mut u8);
    /// `sum` + Σ of 2 products i16 × i16 in each lane.
    unsafe fn dot_shorts(sum: Self::Int, a: Self::Int, b: Self::Int) -> Self::Int;
    /// As floats, rounded to nearest, ties to even.
    unsafe fn to_float(v: Self::Int) -> Self::Float;
    /// Stores the low 16 bits of the lanes of both in turn: 32 codes, to which 1.5·2²³ was added.
    unsafe fn store_codes(codes: [Self::Float; 2], to: *mut i16);

    // The rest is for bf16 chains only.

    /// Each lane with its halves exchanged.
    unsafe fn swap_halves(_v: Self::Int) -> Self::Int {
        unreachable!("{NO_PAIRS}")
    }
    /// `sum` + the product of the high halves of two pairs of bf16s, then + that of the low halves, each
    /// rounded once, where no factor but 0 is below 2⁻⁵⁶.
    unsafe fn add_pairs(_sum: Self::Float, _a: Self::Int, _b: Self::Int) -> Self::Float {
        unreachable!("{NO_PAIRS}")
    }
    /// The bits of both.
    unsafe fn and(_a: Self::Int, _b: Self::Int) -> Self::Int {
        unreachable!("{NO_PAIRS}")
    }
    /// Stores what `short` gives as 8 pairs, the first of each in the high half.
    unsafe fn store_pairs(_p: Self::Float, _to: *mut i16) {
        unreachable!("{NO_PAIRS}")
    }
}

//! What sums of scores and of values are made of, as the kernels of an instruction set compute them.

use std::ops::Range;

use super::layout::GROUP;
use crate::simd::Vector;

/// A way to sum products in 16 lanes.
///
/// # Safety of the functions
/// As those of [`Vector`].
pub(super) trait Sums<V: Vector> {
    /// Sixteen sums.
    type Sum: Copy;
    /// Sixteen factors of a step.
    type Factor: Copy;

    /// Keys, or columns of keys, of a step.
    const PER_STEP: usize;
    /// Whether the factors of a step lie in two stored rows.
    const TWO_ROWS: bool = false;
    /// Bytes of sixteen factors in a stored row.
    const ROW_BYTES: usize = 32;

    /// The steps that hold the keys of half a tile: the first and the end.
    #[inline(always)]
    fn steps(keys: Range<usize>) -> (usize, usize) {
        (keys.start / Self::PER_STEP, keys.end.div_ceil(Self::PER_STEP))
    }

    unsafe fn zero() -> Self::Sum;
    /// Factors as kernels read them: 64 bytes.
    unsafe fn load(from: *const u8) -> Self::Factor;
    /// Factors as they are stored, where steps are `step` bytes apart.
    unsafe fn stored(from: *const u8, step: usize) -> Self::Factor;
    /// Factors of the bits `seen`; those of kinds that scales make 0 stay.
    unsafe fn seen(factor: Self::Factor, seen: *const u32) -> Self::Factor;
    /// The word at `from` in all lanes.
    unsafe fn splat(from: *const f32) -> Self::Factor;
    unsafe fn add(sum: Self::Sum, a: Self::Factor, b: Self::Factor) -> Self::Sum;
    /// Sums of stored factors, whose lanes may have an order of their own, in order.
    unsafe fn in_order(sum: Self::Sum) -> Self::Sum;
    /// Scores but for what is common to a row; `scale` are those of the keys.
    unsafe fn score(sum: Self::Sum, scale: *const f32) -> V::Float;
    /// `out`, multiplied by `decay`, and the sums, whose scale is `scale`.
    unsafe fn join(sum: Self::Sum, out: V::Float, decay: f32, scale: *const f32) -> V::Float;
}

/// Numbers in f32; stored as bf16.
pub(super) struct Numbers;

/// Pairs of bf16 numbers, summed in f32.
pub(super) struct Pairs;

/// Pairs of integer codes; stored in so many bytes for 16 pairs.
pub(super) struct Codes<const ROW_BYTES: usize>;

/// Codes stored as bytes.
pub(super) type Bytes = Codes<32>;

/// Codes stored as they are.
pub(super) type Shorts = Codes<64>;

// SAFETY (every block below): the contract of `Vector`.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<V: Vector> Sums<V> for Numbers {
    type Sum = V::Float;
    type Factor = V::Float;

    const PER_STEP: usize = 1;

    #[inline(always)]
    unsafe fn zero() -> V::Float {
        unsafe { V::splat(0.0) }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> V::Float {
        unsafe { V::floats(from.cast()) }
    }
    #[inline(always)]
    unsafe fn stored(from: *const u8, _: usize) -> V::Float {
        unsafe { V::bf16s_apart(from.cast()) }
    }
    #[inline(always)]
    unsafe fn seen(factor: V::Float, _: *const u32) -> V::Float {
        factor
    }
    #[inline(always)]
    unsafe fn splat(from: *const f32) -> V::Float {
        unsafe { V::splat(*from) }
    }
    #[inline(always)]
    unsafe fn add(sum: V::Float, a: V::Float, b: V::Float) -> V::Float {
        unsafe { V::fma(a, b, sum) }
    }
    #[inline(always)]
    unsafe fn in_order(sum: V::Float) -> V::Float {
        unsafe { V::in_order(sum) }
    }
    #[inline(always)]
    unsafe fn score(sum: V::Float, _: *const f32) -> V::Float {
        sum
    }
    #[inline(always)]
    unsafe fn join(sum: V::Float, out: V::Float, decay: f32, _: *const f32) -> V::Float {
        unsafe { V::fma(out, V::splat(decay), sum) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl<V: Vector> Sums<V> for Pairs {
    type Sum = V::Float;
    type Factor = V::Int;

    const PER_STEP: usize = 2;
    const TWO_ROWS: bool = true;

    #[inline(always)]
    unsafe fn zero() -> V::Float {
        unsafe { V::splat(0.0) }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> V::Int {
        unsafe { V::load(from.cast()) }
    }
    #[inline(always)]
    unsafe fn stored(from: *const u8, step: usize) -> V::Int {
        unsafe { V::pairs(from.cast(), from.add(step / 2).cast()) }
    }
    #[inline(always)]
    unsafe fn seen(factor: V::Int, seen: *const u32) -> V::Int {
        unsafe { V::and(factor, V::int(V::same_at(seen.cast()))) }
    }
    #[inline(always)]
    unsafe fn splat(from: *const f32) -> V::Int {
        unsafe { V::int(V::same_at(from.cast())) }
    }
    #[inline(always)]
    unsafe fn add(sum: V::Float, a: V::Int, b: V::Int) -> V::Float {
        unsafe { V::add_pairs(sum, a, b) }
    }
    #[inline(always)]
    unsafe fn in_order(sum: V::Float) -> V::Float {
        sum
    }
    #[inline(always)]
    unsafe fn score(sum: V::Float, _: *const f32) -> V::Float {
        sum
    }
    #[inline(always)]
    unsafe fn join(sum: V::Float, out: V::Float, decay: f32, _: *const f32) -> V::Float {
        unsafe { V::fma(out, V::splat(decay), sum) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl<V: Vector, const ROW_BYTES: usize> Sums<V> for Codes<ROW_BYTES> {
    type Sum = V::Int;
    type Factor = V::Int;

    const PER_STEP: usize = 2;
    const ROW_BYTES: usize = ROW_BYTES;

    // Key i and key i + 16.
    #[inline(always)]
    fn steps(keys: Range<usize>) -> (usize, usize) {
        if keys.end <= GROUP {
            (keys.start, keys.end)
        } else if keys.start >= GROUP {
            (keys.start - GROUP, keys.end - GROUP)
        } else {
            (0, GROUP)
        }
    }

    #[inline(always)]
    unsafe fn zero() -> V::Int {
        unsafe { V::int(V::same(0)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> V::Int {
        unsafe { V::load(from.cast()) }
    }
    #[inline(always)]
    unsafe fn stored(from: *const u8, _: usize) -> V::Int {
        unsafe { if ROW_BYTES == 32 { V::bytes(from.cast()) } else { V::load(from.cast()) } }
    }
    #[inline(always)]
    unsafe fn seen(factor: V::Int, _: *const u32) -> V::Int {
        factor
    }
    #[inline(always)]
    unsafe fn splat(from: *const f32) -> V::Int {
        unsafe { V::int(V::same_at(from.cast())) }
    }
    #[inline(always)]
    unsafe fn add(sum: V::Int, a: V::Int, b: V::Int) -> V::Int {
        unsafe { V::dot_shorts(sum, a, b) }
    }
    #[inline(always)]
    unsafe fn in_order(sum: V::Int) -> V::Int {
        sum
    }
    #[inline(always)]
    unsafe fn score(sum: V::Int, scale: *const f32) -> V::Float {
        unsafe { V::mul(V::to_float(sum), V::floats(scale)) }
    }
    #[inline(always)]
    unsafe fn join(sum: V::Int, out: V::Float, decay: f32, scale: *const f32) -> V::Float {
        unsafe { V::fma(V::to_float(sum), V::splat(*scale), V::mul(out, V::splat(decay))) }
    }
}

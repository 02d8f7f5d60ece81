//! Walking a run of whole blocks, so that each format states only what one block means.

/// Calls `f` for every block of `B` bytes in `src` with its `W` weights in `dst`.
///
/// # Panics
/// If the lengths are not the same whole number of blocks: callers size both from the table.
pub(crate) fn decode_each<const B: usize, const W: usize>(
    src: &[u8],
    dst: &mut [f32],
    f: impl Fn(&[u8; B], &mut [f32; W]),
) {
    let (blocks, rest) = src.as_chunks::<B>();
    let (weights, left) = dst.as_chunks_mut::<W>();
    assert!(rest.is_empty() && left.is_empty() && blocks.len() == weights.len(), "block count");
    for (block, out) in blocks.iter().zip(weights) {
        f(block, out);
    }
}

/// Calls `f` for every `W` weights in `src` with their block of `B` bytes in `dst`.
///
/// # Panics
/// If the lengths are not the same whole number of blocks.
pub(crate) fn encode_each<const B: usize, const W: usize>(
    src: &[f32],
    dst: &mut [u8],
    f: impl Fn(&[f32; W], &mut [u8; B]),
) {
    let (weights, rest) = src.as_chunks::<W>();
    let (blocks, left) = dst.as_chunks_mut::<B>();
    assert!(rest.is_empty() && left.is_empty() && blocks.len() == weights.len(), "block count");
    for (weights, block) in weights.iter().zip(blocks) {
        f(weights, block);
    }
}

/// The f16 stored at byte `at` of a block, as f32.
#[inline]
pub(crate) fn f16_at(block: &[u8], at: usize) -> f32 {
    crate::float::f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// Stores `value` rounded to f16 at byte `at` of a block.
#[inline]
pub(crate) fn put_f16(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&crate::float::f32_to_f16(value).to_le_bytes());
}

/// `1 / d`, or 0 where `d` is 0: the multiplier the block encoders use.
#[inline]
pub(crate) fn inverse_or_zero(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The value of largest magnitude, the first one where several tie.
pub(crate) fn largest_magnitude(weights: &[f32]) -> f32 {
    weights
        .iter()
        .fold((0.0_f32, f32::NEG_INFINITY), |(best, size), &w| {
            if w.abs() > size { (w, w.abs()) } else { (best, size) }
        })
        .0
}

/// The smallest and the largest value.
pub(crate) fn min_and_max(weights: &[f32]) -> (f32, f32) {
    weights.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), &w| (lo.min(w), hi.max(w)))
}

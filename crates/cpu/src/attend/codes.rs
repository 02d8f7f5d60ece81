//! Numbers as integer codes with a scale.

use crate::math::ROUND;

/// Below this magnitude a row of codes is zero; from its inverse on it is NaN.
const TINY: f32 = f32::from_bits((127 - 100) << 23);
/// See [`TINY`].
const HUGE: f32 = f32::from_bits((127 + 100) << 23);

/// The greatest magnitude; NaN where there is a NaN.
#[inline(always)]
pub(super) fn top(x: &[f32]) -> f32 {
    // As integers, so that a NaN is the largest of all.
    f32::from_bits(x.iter().fold(0, |top, x| top.max(x.to_bits() & 0x7fff_ffff)))
}

/// What numbers of largest magnitude `top` are multiplied by to become codes up to `most` (0: all
/// codes are 0), and what codes are multiplied by.
#[inline(always)]
pub(super) fn code_scale(top: f32, most: f32) -> (f32, f32) {
    if top < TINY {
        (0.0, 0.0)
    } else if top < HUGE {
        (most / top, top / most)
    } else {
        (0.0, f32::NAN)
    }
}

/// `x·inverse` rounded once, ties to even, where it is a code; any where it is not a number.
#[inline(always)]
pub(super) fn short_code(x: f32, inverse: f32) -> i16 {
    x.mul_add(inverse, ROUND).to_bits() as i16
}

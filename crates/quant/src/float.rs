//! Exact conversions between f32 and the small float encodings: f16, bf16 and e8m0.
//!
//! NaNs behave as x86 `vcvtph2ps` and `vcvtps2ph` do (sign and top payload bits kept, quiet
//! bit set), so that vector code and this definition agree on every bit pattern.

/// f16 bits → f32, exact for every value including subnormals.
#[inline]
pub const fn f16_to_f32(bits: u16) -> f32 {
    let sign = ((bits & 0x8000) as u32) << 16;
    let exponent = ((bits >> 10) & 0x1f) as u32;
    let mantissa = (bits & 0x3ff) as u32;
    match (exponent, mantissa) {
        (0, 0) => f32::from_bits(sign),
        (0, m) => {
            // Subnormal: m·2⁻²⁴. Shift the leading one up to the implicit place (bit 10).
            let shift = m.leading_zeros() - 21;
            f32::from_bits(sign | ((113 - shift) << 23) | (((m << shift) & 0x3ff) << 13))
        }
        (31, 0) => f32::from_bits(sign | 0x7f80_0000),
        (31, m) => f32::from_bits(sign | 0x7fc0_0000 | (m << 13)),
        (e, m) => f32::from_bits(sign | ((e + 112) << 23) | (m << 13)),
    }
}

/// f32 → f16 bits, rounded to nearest, ties to even; overflow becomes infinity.
#[inline]
pub const fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00 | ((magnitude >> 13) & 0x3ff) as u16;
    }
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00; // 65520 and above round to infinity
    }
    if magnitude >= 0x3880_0000 {
        // Normal in f16 (≥ 2⁻¹⁴): rebias, round off 13 bits; a carry raises the exponent.
        let rebiased = magnitude - (112 << 23);
        return sign | ((rebiased + 0xfff + ((rebiased >> 13) & 1)) >> 13) as u16;
    }
    if magnitude <= 0x3300_0000 {
        return sign; // at most 2⁻²⁵, half the smallest subnormal: ties to even zero
    }
    // Subnormal in f16: round significand·2^(exponent−150) to a multiple of 2⁻²⁴.
    let drop = 126 - (magnitude >> 23); // 14..=24 bits fall off
    let significand = (magnitude & 0x7f_ffff) | 0x80_0000;
    let odd = (significand >> drop) & 1;
    sign | ((significand + (1 << (drop - 1)) - 1 + odd) >> drop) as u16
}

/// bf16 bits → f32: the upper half of the same encoding.
#[inline]
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The smallest magnitude that products of bf16 numbers tell from zero, 2⁻⁵⁶, as bf16 bits. Numbers from it on
/// are whole multiples of 2⁻⁶³, so their products and all sums of these are multiples of 2⁻¹²⁶: never
/// subnormal, whatever an instruction does with subnormals.
pub const BF16_LEAST: u16 = (127 - 56) << 7;

/// bf16 bits for a product: those of zero below [`BF16_LEAST`].
#[inline(always)]
pub const fn bf16_factor(bits: u16) -> u16 {
    if bits & 0x7fff < BF16_LEAST { 0 } else { bits }
}

/// A number rounded to bf16, to nearest, ties to even, for a product: 0 below [`BF16_LEAST`].
#[inline(always)]
pub const fn rounded_factor(value: f32) -> f32 {
    bf16_to_f32(bf16_factor(f32_to_bf16(value)))
}

/// f32 → bf16 bits, rounded to nearest, ties to even; NaNs are made quiet.
#[inline]
pub const fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits as u64 + 0x7fff + ((bits >> 16) & 1) as u64) >> 16) as u16
}

/// e8m0 exponent byte → 2^(e−127), exact including the subnormal 2⁻¹²⁷; 255 is NaN
/// (OCP Microscaling Formats 1.0).
#[inline]
pub const fn e8m0_to_f32(e: u8) -> f32 {
    match e {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        e => f32::from_bits((e as u32) << 23),
    }
}

/// e8m0 exponent byte → 2^(e−128), the scale of MXFP4's doubled value table. GGUF gives byte
/// 255 no NaN meaning: it is 2¹²⁷.
#[inline]
pub const fn e8m0_to_f32_half(e: u8) -> f32 {
    match e {
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        e => f32::from_bits(((e - 1) as u32) << 23),
    }
}

/// e4m3 byte (bias 7, no infinities) → f32, exact including subnormals. NaN has the codes 0x7f
/// and 0xff; they become ±480 here, the number they would be.
#[inline]
pub const fn e4m3_to_f32(bits: u8) -> f32 {
    let magnitude = f32::from_bits(((bits & 0x7f) as u32) << 20); // 2⁻¹²⁰ times the value
    let sign = ((bits & 0x80) as u32) << 24;
    f32::from_bits((magnitude * E4M3_UNIT).to_bits() | sign)
}

/// 2¹²⁰: what the bits of an e4m3, put in the place of an f32's, are too small by.
pub const E4M3_UNIT: f32 = f32::from_bits((127 + 120) << 23);

/// e5m2 byte → f32: the upper half of an f16.
#[inline]
pub const fn e5m2_to_f32(bits: u8) -> f32 {
    f16_to_f32((bits as u16) << 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The value of f16 bits from the definition, in f64 where every step is exact.
    fn f16_by_definition(bits: u16) -> f64 {
        let sign = if bits & 0x8000 != 0 { -1.0 } else { 1.0 };
        let (e, m) = (i32::from((bits >> 10) & 0x1f), f64::from(bits & 0x3ff));
        match e {
            0 => sign * m * 2f64.powi(-24),
            31 if m == 0.0 => sign * f64::INFINITY,
            31 => f64::NAN,
            e => sign * (1.0 + m / 1024.0) * 2f64.powi(e - 15),
        }
    }

    #[test]
    fn every_e4m3_is_its_definition() {
        for bits in 0..=u8::MAX {
            let (e, m) = (i32::from(bits >> 3 & 15), f32::from(bits & 7) / 8.0);
            let size = if e == 0 { m * 2f32.powi(-6) } else { (1.0 + m) * 2f32.powi(e - 7) };
            let expect = if bits & 0x80 != 0 { -size } else { size };
            assert_eq!(e4m3_to_f32(bits).to_bits(), expect.to_bits(), "{bits:#04x}");
        }
        assert_eq!(e5m2_to_f32(0x7b), 57344.0);
        assert_eq!(e5m2_to_f32(0x81), -(2f32.powi(-16)));
    }

    #[test]
    fn every_f16_decodes_to_its_definition_and_back() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            let expect = f16_by_definition(bits);
            if expect.is_nan() {
                assert!(value.is_nan() && value.is_sign_negative() == (bits & 0x8000 != 0));
                assert_eq!(f32_to_f16(value), bits | 0x200, "{bits:#06x}: quiet, payload kept");
            } else {
                assert_eq!(f64::from(value), expect, "{bits:#06x}");
                assert_eq!(f32_to_f16(value), bits, "{bits:#06x}: round trip");
            }
        }
    }

    #[test]
    fn f16_rounds_ties_to_even_between_all_neighbours() {
        for low in 0..0x7bff_u16 {
            let (a, b) = (f16_by_definition(low), f16_by_definition(low + 1));
            let middle = ((a + b) / 2.0) as f32; // exact: one more bit than f16 has
            let even = if low & 1 == 0 { low } else { low + 1 };
            assert_eq!(f32_to_f16(middle), even, "tie above {low:#06x}");
            assert_eq!(f32_to_f16(middle.next_up()), low + 1);
            assert_eq!(f32_to_f16(middle.next_down()), low);
            assert_eq!(f32_to_f16(-middle), even | 0x8000);
        }
        assert_eq!(f32_to_f16(65519.996), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(f32::MAX), 0x7c00);
        assert_eq!(f32_to_f16(f32::NEG_INFINITY), 0xfc00);
    }

    #[test]
    fn every_bf16_round_trips() {
        for bits in 0..=u16::MAX {
            let value = bf16_to_f32(bits);
            let expect = if value.is_nan() { bits | 0x40 } else { bits };
            assert_eq!(f32_to_bf16(value), expect, "{bits:#06x}");
        }
    }

    #[test]
    fn e8m0_is_a_power_of_two() {
        for e in 0..255_u8 {
            assert_eq!(f64::from(e8m0_to_f32(e)), 2f64.powi(i32::from(e) - 127), "{e}");
            assert_eq!(f64::from(e8m0_to_f32_half(e)), 2f64.powi(i32::from(e) - 128), "{e}");
        }
        assert!(e8m0_to_f32(255).is_nan());
        assert_eq!(f64::from(e8m0_to_f32_half(255)), 2f64.powi(127));
    }

    proptest! {
        #[test]
        fn bf16_is_the_nearest(bits: u32) {
            let value = f32::from_bits(bits);
            prop_assume!(value.is_finite());
            let got = f32_to_bf16(value);
            let below = (bits >> 16) as u16; // towards zero
            prop_assert!(got == below || got == below + 1);
            if below & 0x7fff < 0x7f7f {
                let distance = |b: u16| (f64::from(value) - f64::from(bf16_to_f32(b))).abs();
                let (down, up) = (distance(below), distance(below + 1));
                let stay = down < up || (down == up && below & 1 == 0);
                let expect = below + u16::from(!stay);
                prop_assert_eq!(got, expect);
            }
        }

        #[test]
        fn f16_is_the_nearest(bits: u32) {
            let value = f32::from_bits(bits);
            prop_assume!(value.abs() <= 65504.0);
            let got = f32_to_f16(value);
            let err = (f16_by_definition(got) - f64::from(value)).abs();
            for step in [-1_i32, 1] {
                let near = (i32::from(got & 0x7fff) + step).clamp(0, 0x7bff) as u16;
                let near = f16_by_definition(near | (got & 0x8000));
                prop_assert!(err <= (near - f64::from(value)).abs());
            }
        }
    }
}

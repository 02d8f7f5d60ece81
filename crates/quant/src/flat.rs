//! Formats that no file has as such: what tensors kept in several pieces are assembled to.
//!
//! Codes in column order with f32 scales beside them, so that integer scales, zero points,
//! f16 and bf16 scales and second-level scales of every family fit without loss:
//!
//! * `u4_N`: N weights, f32 `s`, f32 `m`, N nibbles, the even column in the low one;
//!   `u8_N` the same with bytes; `u2_N` with fields of two bits, the first column in the lowest; `u3_N` with those of the
//!   two low bits and, after them, fields of the third. w = q·s + m, rounded once.
//! * `fp4_f32`: 32 weights, two f32 scales of 16 columns, nibbles that are e2m1.
//!   w = (scale/2)·v, v from mxfp4's doubled table; what is stored is the half.
//! * `e4m3_32`: 32 weights, f32 scale below 256, e4m3 bytes. w = scale·value. There are no NaNs
//!   here: the codes 0x7f and 0xff are ±480, and whoever assembles refuses them.
//! * `nf4_64`, `fp4_64`: 64 weights, f32 scale, nibbles, the even column in the low one.
//!   w = value·scale, the value from [`NF4_VALUES`] (QLoRA, arXiv 2305.14314, appendix E) or
//!   [`FP4_VALUES`] (bitsandbytes' 4-bit floats: sign, 2 bits of exponent, 1 of mantissa, over 12).

use crate::blocks::decode_each;
use crate::coded::word_at;
use crate::float::e4m3_to_f32;
use crate::{Format, FormatId, MXFP4_VALUES_DOUBLED};

/// One row of the table for codes with a scale and a minimum.
macro_rules! flat {
    ($id:ident, $name:literal, $weights:literal, $bytes:literal, $code:expr) => {
        pub(crate) const $id: Format = Format {
            id: FormatId::$id,
            name: $name,
            block_weights: $weights,
            block_bytes: $bytes,
            ggml_type: None,
            decode: |src, dst| {
                decode_each(src, dst, |block: &[u8; $bytes], out: &mut [f32; $weights]| {
                    let (s, m) = (float_at(block, 0), float_at(block, 4));
                    for (c, out) in out.iter_mut().enumerate() {
                        let code: u8 = $code(&block[8..], c);
                        *out = f32::from(code).mul_add(s, m);
                    }
                });
            },
            encode: None,
        };
    };
}

flat!(U2_32, "u2_32", 32, 16, two_bits);
flat!(U2_64, "u2_64", 64, 24, two_bits);
flat!(U2_128, "u2_128", 128, 40, two_bits);
flat!(U3_32, "u3_32", 32, 20, three_bits);
flat!(U3_64, "u3_64", 64, 32, three_bits);
flat!(U3_128, "u3_128", 128, 56, three_bits);
flat!(U4_32, "u4_32", 32, 24, nibble);
flat!(U4_64, "u4_64", 64, 40, nibble);
flat!(U4_128, "u4_128", 128, 72, nibble);
flat!(U8_32, "u8_32", 32, 40, byte);
flat!(U8_64, "u8_64", 64, 72, byte);
flat!(U8_128, "u8_128", 128, 136, byte);

pub(crate) const FP4_F32: Format = Format {
    id: FormatId::FP4_F32,
    name: "fp4_f32",
    block_weights: 32,
    block_bytes: 24,
    ggml_type: None,
    decode: |src, dst| {
        decode_each(src, dst, |block: &[u8; 24], out: &mut [f32; 32]| {
            for (c, out) in out.iter_mut().enumerate() {
                let value = MXFP4_VALUES_DOUBLED[usize::from(nibble(&block[8..], c))];
                *out = f32::from(value) * float_at(block, c / 16 * 4);
            }
        });
    },
    encode: None,
};

pub(crate) const E4M3_32: Format = Format {
    id: FormatId::E4M3_32,
    name: "e4m3_32",
    block_weights: 32,
    block_bytes: 36,
    ggml_type: None,
    decode: |src, dst| {
        decode_each(src, dst, |block: &[u8; 36], out: &mut [f32; 32]| {
            for (c, out) in out.iter_mut().enumerate() {
                *out = e4m3_to_f32(block[4 + c]) * float_at(block, 0);
            }
        });
    },
    encode: None,
};

/// The values of NF4, as f32s.
pub const NF4_VALUES: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The values of bitsandbytes' FP4, as f32s.
pub const FP4_VALUES: [f32; 16] = {
    let twelfths = [0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0];
    let mut values = [0.0; 16];
    let mut code = 0;
    while code < 8 {
        values[code] = twelfths[code] / 12.0;
        values[code + 8] = 0.0 - values[code];
        code += 1;
    }
    values
};

/// One row of the table for indices into sixteen floats.
macro_rules! lookup {
    ($id:ident, $name:literal, $values:ident) => {
        pub(crate) const $id: Format = Format {
            id: FormatId::$id,
            name: $name,
            block_weights: 64,
            block_bytes: 36,
            ggml_type: None,
            decode: |src, dst| {
                decode_each(src, dst, |block: &[u8; 36], out: &mut [f32; 64]| {
                    for (c, out) in out.iter_mut().enumerate() {
                        *out = $values[usize::from(nibble(&block[4..], c))] * float_at(block, 0);
                    }
                });
            },
            encode: None,
        };
    };
}

lookup!(NF4_64, "nf4_64", NF4_VALUES);
lookup!(FP4_64, "fp4_64", FP4_VALUES);

fn float_at(block: &[u8], at: usize) -> f32 {
    f32::from_bits(word_at(block, at))
}

/// Code `c` of 2 bits.
pub(crate) fn two_bits(codes: &[u8], c: usize) -> u8 {
    codes[c / 4] >> (2 * (c % 4)) & 3
}

/// Code `c` of 3 bits; `codes` are those of a whole block.
pub(crate) fn three_bits(codes: &[u8], c: usize) -> u8 {
    let high = codes[codes.len() / 3 * 2 + c / 8] >> (c % 8) & 1;
    two_bits(codes, c) | high << 2
}

fn nibble(codes: &[u8], c: usize) -> u8 {
    codes[c / 2] >> (4 * (c % 2)) & 15
}

fn byte(codes: &[u8], c: usize) -> u8 {
    codes[c]
}

//! Little-endian primitives: `f32`, and the element types that files carry beside weights
//! (tables, packed words, buffers), listed so that a reader can name, size and bound them.
//!
//! `decode` converts each element to the nearest f32.

use crate::blocks::{decode_each, encode_each};
use crate::float::{e4m3_to_f32, e5m2_to_f32};
use crate::{Format, FormatId};

pub(crate) const F32: Format = Format {
    id: FormatId::F32,
    name: "f32",
    block_weights: 1,
    block_bytes: 4,
    ggml_type: Some(0),
    decode: |src, dst| {
        decode_each(src, dst, |b: &[u8; 4], w: &mut [f32; 1]| w[0] = f32::from_le_bytes(*b));
    },
    encode: Some(|src, dst| {
        encode_each(src, dst, |w: &[f32; 1], b: &mut [u8; 4]| *b = w[0].to_le_bytes());
    }),
};

/// One row of the table for a little-endian primitive of the given size.
macro_rules! plain {
    ($constant:ident, $id:ident, $name:literal, $ty:ty, $bytes:literal, $ggml:expr) => {
        pub(crate) const $constant: Format = Format {
            id: FormatId::$id,
            name: $name,
            block_weights: 1,
            block_bytes: $bytes,
            ggml_type: $ggml,
            decode: |src, dst| {
                decode_each(src, dst, |b: &[u8; $bytes], w: &mut [f32; 1]| {
                    w[0] = <$ty>::from_le_bytes(*b) as f32;
                });
            },
            encode: None,
        };
    };
}

plain!(U8, U8, "u8", u8, 1, None);
plain!(I8, I8, "i8", i8, 1, Some(24));
plain!(I16, I16, "i16", i16, 2, Some(25));
plain!(I32, I32, "i32", i32, 4, Some(26));
plain!(I64, I64, "i64", i64, 8, Some(27));
plain!(F64, F64, "f64", f64, 8, Some(28));

/// One row of the table for an 8-bit float, by the function that decodes it.
macro_rules! float8 {
    ($id:ident, $name:literal, $decode:expr) => {
        pub(crate) const $id: Format = Format {
            id: FormatId::$id,
            name: $name,
            block_weights: 1,
            block_bytes: 1,
            ggml_type: None,
            decode: |src, dst| {
                decode_each(src, dst, |b: &[u8; 1], w: &mut [f32; 1]| w[0] = $decode(b[0]));
            },
            encode: None,
        };
    };
}

float8!(F8_E4M3, "f8_e4m3", |bits: u8| match bits & 0x7f {
    0x7f => f32::NAN,
    _ => e4m3_to_f32(bits),
});
float8!(F8_E5M2, "f8_e5m2", e5m2_to_f32);

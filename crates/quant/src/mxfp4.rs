//! `mxfp4`: 32 weights, 17 bytes: e8m0 scale byte, 16 bytes of e2m1 nibbles (OCP MX 1.0).
//!
//! Byte j holds weight j in its low nibble and weight j + 16 in its high nibble (GGUF order).
//! w = 2^(e−128)·v with v from the doubled table, which keeps the values whole.

use crate::blocks::decode_each;
use crate::float::e8m0_to_f32_half;
use crate::{Format, FormatId};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::MXFP4,
    name: "mxfp4",
    block_weights: 32,
    block_bytes: 17,
    ggml_type: Some(39),
    decode: |src, dst| decode_each(src, dst, decode),
    encode: None,
};

/// Twice the e2m1 value of each nibble; code 8 (−0) is 0.
pub const MXFP4_VALUES_DOUBLED: [i8; 16] =
    [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

fn decode(block: &[u8; 17], out: &mut [f32; 32]) {
    let scale = e8m0_to_f32_half(block[0]);
    let value = |nibble: u8| scale * f32::from(MXFP4_VALUES_DOUBLED[usize::from(nibble)]);
    for (j, &byte) in block[1..].iter().enumerate() {
        out[j] = value(byte & 15);
        out[j + 16] = value(byte >> 4);
    }
}

//! `iq4_nl`: 32 weights, 18 bytes: f16 `d`, 16 bytes of nibbles.
//!
//! Byte j holds weight j in its low nibble and weight j + 16 in its high one. w = d·value.

use crate::blocks::{decode_each, f16_at};
use crate::{Format, FormatId};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::IQ4_NL,
    name: "iq4_nl",
    block_weights: 32,
    block_bytes: 18,
    ggml_type: Some(20),
    decode: |src, dst| decode_each(src, dst, decode),
    encode: None,
};

/// The value of each nibble.
pub(crate) const TABLE: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn decode(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (j, &byte) in block[2..].iter().enumerate() {
        out[j] = d * f32::from(TABLE[usize::from(byte & 15)]);
        out[j + 16] = d * f32::from(TABLE[usize::from(byte >> 4)]);
    }
}

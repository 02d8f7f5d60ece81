//! `q4_0`: 32 weights, 18 bytes: f16 `d`, 16 bytes of nibbles. w = d·(q − 8).
//!
//! Byte j holds weight j in its low nibble and weight j + 16 in its high nibble.

use crate::blocks::{
    decode_each, encode_each, f16_at, inverse_or_zero, largest_magnitude, put_f16,
};
use crate::{Format, FormatId};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::Q4_0,
    name: "q4_0",
    block_weights: 32,
    block_bytes: 18,
    ggml_type: Some(2),
    decode: |src, dst| decode_each(src, dst, decode),
    encode: Some(|src, dst| encode_each(src, dst, encode)),
};

fn decode(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (j, &byte) in block[2..].iter().enumerate() {
        out[j] = d * (f32::from(byte & 15) - 8.0);
        out[j + 16] = d * (f32::from(byte >> 4) - 8.0);
    }
}

/// The value of largest magnitude lands exactly on q = 0, the end of the range with 8 steps.
fn encode(weights: &[f32; 32], block: &mut [u8; 18]) {
    let d = largest_magnitude(weights) / -8.0;
    let inverse = inverse_or_zero(d);
    let q = |w: f32| ((w * inverse + 8.5) as u8).min(15);
    put_f16(block, 0, d);
    for j in 0..16 {
        block[2 + j] = q(weights[j]) | (q(weights[j + 16]) << 4);
    }
}

//! `q4_1`: 32 weights, 20 bytes: f16 `d`, f16 `m`, 16 bytes of nibbles. w = d·q + m.
//!
//! Byte j holds weight j in its low nibble and weight j + 16 in its high nibble.

use crate::blocks::{decode_each, encode_each, f16_at, inverse_or_zero, min_and_max, put_f16};
use crate::{Format, FormatId};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::Q4_1,
    name: "q4_1",
    block_weights: 32,
    block_bytes: 20,
    ggml_type: Some(3),
    decode: |src, dst| decode_each(src, dst, decode),
    encode: Some(|src, dst| encode_each(src, dst, encode)),
};

fn decode(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    for (j, &byte) in block[4..].iter().enumerate() {
        out[j] = d * f32::from(byte & 15) + m;
        out[j + 16] = d * f32::from(byte >> 4) + m;
    }
}

fn encode(weights: &[f32; 32], block: &mut [u8; 20]) {
    let (min, max) = min_and_max(weights);
    let d = (max - min) / 15.0;
    let inverse = inverse_or_zero(d);
    let q = |w: f32| (((w - min) * inverse + 0.5) as u8).min(15);
    put_f16(block, 0, d);
    put_f16(block, 2, min);
    for j in 0..16 {
        block[4 + j] = q(weights[j]) | (q(weights[j + 16]) << 4);
    }
}

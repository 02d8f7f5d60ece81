//! `q8_0`: 32 weights, 34 bytes: f16 `d`, 32 × i8. w = q·d.

use crate::blocks::{decode_each, encode_each, f16_at, inverse_or_zero, put_f16};
use crate::{Format, FormatId};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::Q8_0,
    name: "q8_0",
    block_weights: 32,
    block_bytes: 34,
    ggml_type: Some(8),
    decode: |src, dst| decode_each(src, dst, decode),
    encode: Some(|src, dst| encode_each(src, dst, encode)),
};

fn decode(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (out, &q) in out.iter_mut().zip(&block[2..]) {
        *out = f32::from(q as i8) * d;
    }
}

/// Symmetric, ±127 at the largest magnitude; halves round away from zero.
fn encode(weights: &[f32; 32], block: &mut [u8; 34]) {
    let d = weights.iter().fold(0.0_f32, |max, w| max.max(w.abs())) / 127.0;
    let inverse = inverse_or_zero(d);
    put_f16(block, 0, d);
    for (q, w) in block[2..].iter_mut().zip(weights) {
        *q = (w * inverse).round() as i8 as u8;
    }
}

//! `q5_0`: 32 weights, 22 bytes: f16 `d`, u32 `qh`, 16 bytes of nibbles. w = d·(q − 16).
//!
//! Byte j holds the low 4 bits of weights j and j + 16 (low, high nibble); bit i of `qh` is
//! the fifth bit of weight i.

use crate::blocks::{
    decode_each, encode_each, f16_at, inverse_or_zero, largest_magnitude, put_f16,
};
use crate::{Format, FormatId};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::Q5_0,
    name: "q5_0",
    block_weights: 32,
    block_bytes: 22,
    ggml_type: Some(6),
    decode: |src, dst| decode_each(src, dst, decode),
    encode: Some(|src, dst| encode_each(src, dst, encode)),
};

fn decode(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let q = unpack(&block[2..]);
    for (out, q) in out.iter_mut().zip(q) {
        *out = d * (f32::from(q) - 16.0);
    }
}

/// The value of largest magnitude lands exactly on q = 0, the end of the range with 16 steps.
fn encode(weights: &[f32; 32], block: &mut [u8; 22]) {
    let d = largest_magnitude(weights) / -16.0;
    let inverse = inverse_or_zero(d);
    let q = weights.map(|w| ((w * inverse + 16.5) as u8).min(31));
    put_f16(block, 0, d);
    pack(&q, &mut block[2..]);
}

/// `qh` (4 bytes) and nibbles (16 bytes) → 32 five-bit values.
pub(crate) fn unpack(bits: &[u8]) -> [u8; 32] {
    let high = u32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]);
    std::array::from_fn(|i| {
        let nibble = if i < 16 { bits[4 + i] & 15 } else { bits[4 + i - 16] >> 4 };
        nibble | (((high >> i) & 1) as u8) << 4
    })
}

/// 32 five-bit values → `qh` and nibbles, the inverse of [`unpack`].
pub(crate) fn pack(q: &[u8; 32], bits: &mut [u8]) {
    let high = q.iter().enumerate().fold(0_u32, |h, (i, &q)| h | u32::from(q >> 4) << i);
    bits[..4].copy_from_slice(&high.to_le_bytes());
    for j in 0..16 {
        bits[4 + j] = (q[j] & 15) | (q[j + 16] << 4);
    }
}

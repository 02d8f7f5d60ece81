//! `q3_k`: 256 weights, 110 bytes: 32 bytes `hmask`, 64 `qs`, 12 of scales, f16 `d`.
//!
//! Sixteen sub-blocks of 16 weights: w = (d·(sc − 32))·(q − 4). The low 2 bits of a weight lie
//! as in q2_k; the third is bit s / 2 of byte l of `hmask`, l the weight's place among 32.

use crate::blocks::{decode_each, f16_at};
use crate::{Format, FormatId};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::Q3_K,
    name: "q3_k",
    block_weights: 256,
    block_bytes: 110,
    ggml_type: Some(11),
    decode: |src, dst| decode_each(src, dst, decode),
    encode: None,
};

fn decode(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = f16_at(block, 108);
    for (s, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scale(&block[96..108], s));
        let (half, group, first) = (s / 8, s % 8 / 2, s % 2 * 16);
        let low = &block[32 + 32 * half + first..];
        for ((out, &low), &high) in out.iter_mut().zip(low).zip(&block[first..]) {
            let q = low >> (2 * group) & 3 | (high >> (s / 2) & 1) << 2;
            *out = scale * (f32::from(q) - 4.0);
        }
    }
}

/// The 6-bit scale, less 32, of sub-block `s` (0..16) in 12 bytes: 4 low bits in the nibbles of
/// the first eight, 2 high bits in the last four.
#[inline]
pub(crate) fn scale(scales: &[u8], s: usize) -> i8 {
    let low = scales[s % 8] >> (4 * (s / 8)) & 15;
    let high = scales[8 + s % 4] >> (2 * (s / 4)) & 3;
    (low | high << 4) as i8 - 32
}

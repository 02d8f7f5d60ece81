//! `q2_k`: 256 weights, 84 bytes: 16 bytes of scales, 64 `qs`, f16 `d`, f16 `dmin`.
//!
//! Sub-block s of 16 weights has a scale in the low nibble of byte s and a minimum in the high
//! one: w = (d·sc)·q − (dmin·m). Each half of 128 weights has 32 bytes of `qs`; its weight
//! 32·g + l is bits 2g, 2g + 1 of byte l.

use crate::blocks::{decode_each, f16_at};
use crate::{Format, FormatId};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::Q2_K,
    name: "q2_k",
    block_weights: 256,
    block_bytes: 84,
    ggml_type: Some(10),
    decode: |src, dst| decode_each(src, dst, decode),
    encode: None,
};

fn decode(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (s, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[s] & 15);
        let min = dmin * f32::from(block[s] >> 4);
        let (half, group) = (s / 8, s % 8 / 2);
        let codes = &block[16 + 32 * half + 16 * (s % 2)..];
        for (out, &byte) in out.iter_mut().zip(codes) {
            *out = scale * f32::from(byte >> (2 * group) & 3) - min;
        }
    }
}

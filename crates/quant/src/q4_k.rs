//! `q4_k`: 256 weights, 144 bytes: f16 `d`, f16 `dmin`, 12 bytes of scales, 128 of nibbles.
//!
//! Eight sub-blocks of 32 weights, each with a 6-bit scale and a 6-bit minimum:
//! w = (d·sc)·q − (dmin·m). Of each 32 bytes of nibbles the low ones are sub-block 2j, the
//! high ones sub-block 2j + 1.

use crate::blocks::{decode_each, f16_at};
use crate::{Format, FormatId};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::Q4_K,
    name: "q4_k",
    block_weights: 256,
    block_bytes: 144,
    ggml_type: Some(12),
    decode: |src, dst| decode_each(src, dst, decode),
    encode: None,
};

fn decode(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    for (s, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (sc, m) = scale_and_min(&block[4..16], s);
        let (scale, min) = (d * f32::from(sc), dmin * f32::from(m));
        let nibbles = &block[16 + 32 * (s / 2)..];
        for (out, &byte) in out.iter_mut().zip(nibbles) {
            *out = scale * f32::from((byte >> (4 * (s % 2))) & 15) - min;
        }
    }
}

/// The 6-bit scale and minimum of sub-block `s` (0..8) in the 12 bytes shared by q4_k and q5_k.
///
/// Sub-blocks 0–3 sit in the low 6 bits of bytes s and s + 4; of sub-blocks 4–7 the low 4 bits
/// are the nibbles of byte s + 4 and the high 2 bits the top of bytes s − 4 and s.
#[inline]
pub const fn scale_and_min(scales: &[u8], s: usize) -> (u8, u8) {
    if s < 4 {
        (scales[s] & 63, scales[s + 4] & 63)
    } else {
        let low = scales[s + 4];
        ((low & 15) | (scales[s - 4] >> 6) << 4, (low >> 4) | (scales[s] >> 6) << 4)
    }
}

//! `q5_k`: 256 weights, 176 bytes: q4_k with 32 bytes `qh` before the nibbles.
//!
//! Bit s of `qh[l]` is the fifth bit of weight l of sub-block s. w = (d·sc)·q − (dmin·m).

use crate::blocks::{decode_each, f16_at};
use crate::q4_k::scale_and_min;
use crate::{Format, FormatId};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::Q5_K,
    name: "q5_k",
    block_weights: 256,
    block_bytes: 176,
    ggml_type: Some(13),
    decode: |src, dst| decode_each(src, dst, decode),
    encode: None,
};

fn decode(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let high = &block[16..48];
    for (s, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (sc, m) = scale_and_min(&block[4..16], s);
        let (scale, min) = (d * f32::from(sc), dmin * f32::from(m));
        let nibbles = &block[48 + 32 * (s / 2)..];
        for ((out, &byte), &high) in out.iter_mut().zip(nibbles).zip(high) {
            let q = ((byte >> (4 * (s % 2))) & 15) | ((high >> s) & 1) << 4;
            *out = scale * f32::from(q) - min;
        }
    }
}

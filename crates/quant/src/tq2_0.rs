//! `tq2_0`: 256 weights, 66 bytes: 64 bytes `qs`, f16 `d`. w = d·(q − 1).
//!
//! Each half of 128 weights has 32 bytes; its weight 32·g + l is bits 2g, 2g + 1 of byte l.

use crate::blocks::{decode_each, f16_at};
use crate::{Format, FormatId};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::TQ2_0,
    name: "tq2_0",
    block_weights: 256,
    block_bytes: 66,
    ggml_type: Some(35),
    decode: |src, dst| decode_each(src, dst, decode),
    encode: None,
};

fn decode(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = f16_at(block, 64);
    for (c, out) in out.iter_mut().enumerate() {
        *out = d * (f32::from(code(block, c)) - 1.0);
    }
}

/// The code (0–3) of column `c`.
#[inline]
pub(crate) fn code(block: &[u8], c: usize) -> u8 {
    block[c / 128 * 32 + c % 32] >> (2 * (c / 32 % 4)) & 3
}

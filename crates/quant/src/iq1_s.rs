//! `iq1_s`: 256 weights, 50 bytes: f16 `d`, 32 bytes `qs`, 8 × u16 `qh`.
//!
//! Run r of eight columns has the code book index `qs[r]` with bits 8–10 from bits 3·(r mod 4)
//! of `qh[r / 4]`: values g of −1, 0, 1. For 32 columns `qh` also holds a 3-bit scale s (bits
//! 12–14) and the sign of δ = ±⅛ (bit 15: minus). w = d·(2s + 1)·(g + δ).

use crate::blocks::{decode_each, f16_at};
use crate::coded::{Coded, half_at};
use crate::{Format, FormatId, grids};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::IQ1_S,
    name: "iq1_s",
    block_weights: 256,
    block_bytes: 50,
    ggml_type: Some(19),
    decode: |src, dst| decode_each(src, dst, |b: &[u8; 50], w| read(b).decode(&TABLE, w)),
    encode: None,
};

/// Eight times g + δ; codes 8.. are those with a negative δ.
pub(crate) const TABLE: [i8; 16] = [-7, 1, 9, 0, 0, 0, 0, 0, -9, -1, 7, 0, 0, 0, 0, 0];

pub(crate) fn read(block: &[u8]) -> Coded {
    let mut coded = Coded::new(f16_at(block, 0) * 0.125);
    for s in 0..8 {
        let high = half_at(block, 34 + 2 * s);
        let minus = if high & 0x8000 == 0 { 0 } else { 0xff };
        for r in 4 * s..4 * s + 4 {
            let index = usize::from(block[2 + r]) | usize::from(high >> (3 * (r % 4)) & 7) << 8;
            coded.put_eight(r, grids::IQ1_S[index], minus);
        }
        coded.scales[2 * s..2 * s + 2].fill(2 * (high >> 12 & 7) as i8 + 1);
    }
    coded
}

//! `iq1_m`: 256 weights, 56 bytes: 32 bytes `qs`, 16 `qh`, 4 × u16 of scales.
//!
//! Run r of eight columns has a nibble of `qh`, low ones first: bits 8–10 of the index into
//! iq1_s's code book, and the sign of δ = ±⅛ (bit 3: minus). Each u16 holds four 3-bit scales
//! s for 16 columns; the top nibbles of the four are the f16 `d`. w = d·(2s + 1)·(g + δ).

use crate::blocks::decode_each;
use crate::coded::{Coded, half_at, iq1_m_scale};
use crate::float::f16_to_f32;
use crate::{Format, FormatId, grids, iq1_s};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::IQ1_M,
    name: "iq1_m",
    block_weights: 256,
    block_bytes: 56,
    ggml_type: Some(29),
    decode: |src, dst| decode_each(src, dst, |b: &[u8; 56], w| read(b).decode(&iq1_s::TABLE, w)),
    encode: None,
};

pub(crate) fn read(block: &[u8]) -> Coded {
    let quarter = |i: usize| half_at(block, 48 + 2 * i);
    let mut coded = Coded::new(f16_to_f32(iq1_m_scale(block)) * 0.125);
    for r in 0..32 {
        let nibble = block[32 + r / 2] >> (4 * (r % 2)) & 15;
        let index = usize::from(block[r]) | usize::from(nibble & 7) << 8;
        let minus = if nibble & 8 == 0 { 0 } else { 0xff };
        coded.put_eight(r, grids::IQ1_S[index], minus);
    }
    for (s, scale) in coded.scales.iter_mut().enumerate() {
        *scale = 2 * (quarter(s / 4) >> (3 * (s % 4)) & 7) as i8 + 1;
    }
    coded
}

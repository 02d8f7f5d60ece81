//! `iq2_s`: 256 weights, 82 bytes: f16 `d`, 32 bytes `qs`, 32 of signs, 8 `qh`, 8 of scales.
//!
//! Run r of eight columns has the code book index `qs[r]` with bits 8, 9 from bits 2r mod 8 of
//! `qh[r / 4]`, and a byte of signs. A 4-bit scale s for 16 columns, low nibbles first.
//! w = d·(½ + s)/4·(±magnitude).

use crate::blocks::{decode_each, f16_at};
use crate::coded::Coded;
use crate::{Format, FormatId, grids, iq2_xxs};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::IQ2_S,
    name: "iq2_s",
    block_weights: 256,
    block_bytes: 82,
    ggml_type: Some(22),
    decode: |src, dst| decode_each(src, dst, |b: &[u8; 82], w| read(b).decode(&iq2_xxs::TABLE, w)),
    encode: None,
};

pub(crate) fn read(block: &[u8]) -> Coded {
    let mut coded = Coded::new(f16_at(block, 0) * 0.125);
    for r in 0..32 {
        let high = usize::from(block[66 + r / 4] >> (2 * (r % 4)) & 3);
        let entry = grids::IQ2_S[usize::from(block[2 + r]) | high << 8];
        coded.put_eight(r, entry, block[34 + r]);
    }
    for (s, scale) in coded.scales.iter_mut().enumerate() {
        *scale = 2 * (block[74 + s / 2] >> (4 * (s % 2)) & 15) as i8 + 1;
    }
    coded
}

//! `iq3_s`: 256 weights, 110 bytes: f16 `d`, 64 bytes `qs`, 8 `qh`, 32 of signs, 4 of scales.
//!
//! Run r of four columns has the code book index `qs[r]` with bit 8 from bit r mod 8 of
//! `qh[r / 8]`. Each eight columns have a byte of signs; a 4-bit scale s for 32 columns, low
//! nibbles first. w = d·(1 + 2s)·(±magnitude).

use crate::blocks::{decode_each, f16_at};
use crate::coded::{Coded, with_negatives};
use crate::{Format, FormatId, grids};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::IQ3_S,
    name: "iq3_s",
    block_weights: 256,
    block_bytes: 110,
    ggml_type: Some(21),
    decode: |src, dst| decode_each(src, dst, |b: &[u8; 110], w| read(b).decode(&TABLE, w)),
    encode: None,
};

pub(crate) const TABLE: [i8; 16] = with_negatives([1, 3, 5, 7, 9, 11, 13, 15]);

pub(crate) fn read(block: &[u8]) -> Coded {
    let mut coded = Coded::new(f16_at(block, 0));
    for r in 0..64 {
        let high = usize::from(block[66 + r / 8] >> (r % 8) & 1);
        let entry = grids::IQ3_S[usize::from(block[2 + r]) | high << 8];
        coded.put_four(r, entry, block[74 + r / 2] >> (4 * (r % 2)));
    }
    for (s, scale) in coded.scales.iter_mut().enumerate() {
        *scale = 2 * (block[106 + s / 4] >> (4 * (s / 2 % 2)) & 15) as i8 + 1;
    }
    coded
}

//! `iq2_xs`: 256 weights, 74 bytes: f16 `d`, 32 × u16, 8 bytes of scales.
//!
//! Each u16 is a 9-bit index into the code book, eight magnitudes, and 7 bits of signs (the
//! eighth makes their number even). A 4-bit scale s for 16 columns, low nibbles first.
//! w = d·(½ + s)/4·(±magnitude).

use crate::blocks::{decode_each, f16_at};
use crate::coded::{Coded, even_signs, half_at};
use crate::{Format, FormatId, grids, iq2_xxs};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::IQ2_XS,
    name: "iq2_xs",
    block_weights: 256,
    block_bytes: 74,
    ggml_type: Some(17),
    decode: |src, dst| decode_each(src, dst, |b: &[u8; 74], w| read(b).decode(&iq2_xxs::TABLE, w)),
    encode: None,
};

pub(crate) fn read(block: &[u8]) -> Coded {
    let mut coded = Coded::new(f16_at(block, 0) * 0.125);
    for r in 0..32 {
        let code = half_at(block, 2 + 2 * r);
        let entry = grids::IQ2_XS[usize::from(code & 511)];
        coded.put_eight(r, entry, even_signs(u32::from(code >> 9)));
    }
    for (s, scale) in coded.scales.iter_mut().enumerate() {
        *scale = 2 * (block[66 + s / 2] >> (4 * (s % 2)) & 15) as i8 + 1;
    }
    coded
}

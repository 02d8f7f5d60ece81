//! `iq2_xxs`: 256 weights, 66 bytes: f16 `d`, then 8 bytes for each 32 columns.
//!
//! Four bytes index the code book, eight magnitudes each; a word holds 4 × 7 bits of signs (the
//! eighth makes their number even) and a 4-bit scale s. w = d·(½ + s)/4·(±magnitude).

use crate::blocks::{decode_each, f16_at};
use crate::coded::{Coded, even_signs, with_negatives, word_at};
use crate::{Format, FormatId, grids};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::IQ2_XXS,
    name: "iq2_xxs",
    block_weights: 256,
    block_bytes: 66,
    ggml_type: Some(16),
    decode: |src, dst| decode_each(src, dst, |b: &[u8; 66], w| read(b).decode(&TABLE, w)),
    encode: None,
};

/// The magnitudes of all 2-bit code books.
pub(crate) const TABLE: [i8; 16] = with_negatives([8, 25, 43, 0, 0, 0, 0, 0]);

pub(crate) fn read(block: &[u8]) -> Coded {
    let mut coded = Coded::new(f16_at(block, 0) * 0.125);
    for s in 0..8 {
        let signs = word_at(block, 2 + 8 * s + 4);
        for r in 0..4 {
            let entry = grids::IQ2_XXS[usize::from(block[2 + 8 * s + r])];
            coded.put_eight(4 * s + r, entry, even_signs(signs >> (7 * r)));
        }
        coded.scales[2 * s..2 * s + 2].fill(2 * (signs >> 28) as i8 + 1);
    }
    coded
}

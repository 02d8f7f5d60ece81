//! `iq3_xxs`: 256 weights, 98 bytes: f16 `d`, 64 bytes `qs`, a word for each 32 columns.
//!
//! Each byte of `qs` indexes the code book, four magnitudes. A word holds 4 × 7 bits of signs
//! (the eighth makes their number even) and a 4-bit scale s. w = d·(½ + s)/2·(±magnitude).

use crate::blocks::{decode_each, f16_at};
use crate::coded::{Coded, even_signs, with_negatives, word_at};
use crate::{Format, FormatId, grids};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::IQ3_XXS,
    name: "iq3_xxs",
    block_weights: 256,
    block_bytes: 98,
    ggml_type: Some(18),
    decode: |src, dst| decode_each(src, dst, |b: &[u8; 98], w| read(b).decode(&TABLE, w)),
    encode: None,
};

pub(crate) const TABLE: [i8; 16] = with_negatives([4, 12, 20, 28, 36, 44, 52, 62]);

pub(crate) fn read(block: &[u8]) -> Coded {
    let mut coded = Coded::new(f16_at(block, 0) * 0.25);
    for s in 0..8 {
        let word = word_at(block, 66 + 4 * s);
        for r in 0..8 {
            let entry = grids::IQ3_XXS[usize::from(block[2 + 8 * s + r])];
            let signs = even_signs(word >> (7 * (r / 2))) >> (4 * (r % 2));
            coded.put_four(8 * s + r, entry, signs);
        }
        coded.scales[2 * s..2 * s + 2].fill(2 * (word >> 28) as i8 + 1);
    }
    coded
}

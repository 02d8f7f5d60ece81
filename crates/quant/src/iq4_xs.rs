//! `iq4_xs`: 256 weights, 136 bytes: f16 `d`, u16 `scales_h`, 4 bytes `scales_l`, 128 of nibbles.
//!
//! Sub-block s of 32 columns has a 6-bit scale, low bits from nibble s of `scales_l`, high ones
//! from bits 2s of `scales_h`, less 32. Of its 16 bytes of nibbles the low ones are columns
//! 0–15, the high ones 16–31. w = (d·scale)·value, by the table of iq4_nl.

use crate::blocks::{decode_each, f16_at};
use crate::coded::{Coded, half_at};
use crate::{Format, FormatId, iq4_nl};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::IQ4_XS,
    name: "iq4_xs",
    block_weights: 256,
    block_bytes: 136,
    ggml_type: Some(23),
    decode: |src, dst| decode_each(src, dst, |b: &[u8; 136], w| read(b).decode(&iq4_nl::TABLE, w)),
    encode: None,
};

pub(crate) fn read(block: &[u8]) -> Coded {
    let mut coded = Coded::new(f16_at(block, 0));
    let high = half_at(block, 2);
    for s in 0..8 {
        let low = block[4 + s / 2] >> (4 * (s % 2)) & 15;
        let scale = low | ((high >> (2 * s) & 3) as u8) << 4;
        coded.scales[2 * s..2 * s + 2].fill(scale as i8 - 32);
        let (first, second) = coded.codes[32 * s..][..32].split_at_mut(16);
        let codes = first.iter_mut().zip(second);
        for ((first, second), byte) in codes.zip(&block[8 + 16 * s..][..16]) {
            (*first, *second) = (byte & 15, byte >> 4);
        }
    }
    coded
}

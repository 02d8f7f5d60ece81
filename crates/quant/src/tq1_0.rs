//! `tq1_0`: 256 weights, 54 bytes: 48 bytes `qs`, 4 `qh`, f16 `d`. w = d·t, t of −1, 0, 1.
//!
//! A byte holds five digits of base 3 (four in `qh`) as a fraction of 256: digit n is the whole
//! part of 3·(byte·3ⁿ mod 256)/256. Digits n of the first 32 bytes are weights 32·n + l, those
//! of the next 16 are 160 + 16·n + l, those of `qh` 240 + 4·n + l.

use crate::blocks::{decode_each, f16_at};
use crate::{Format, FormatId};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::TQ1_0,
    name: "tq1_0",
    block_weights: 256,
    block_bytes: 54,
    ggml_type: Some(34),
    decode: |src, dst| decode_each(src, dst, decode),
    encode: None,
};

fn decode(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = f16_at(block, 52);
    for (out, digit) in out.iter_mut().zip(digits(block)) {
        *out = d * (f32::from(digit) - 1.0);
    }
}

/// The digits (0–2) of a block in column order.
pub(crate) fn digits(block: &[u8]) -> [u8; 256] {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let mut digits = [0; 256];
    for (first, bytes) in [(0, &block[..32]), (160, &block[32..48]), (240, &block[48..52])] {
        let columns = digits[first..].chunks_mut(bytes.len());
        for (digits, power) in columns.zip(POWERS).take(if first == 240 { 4 } else { 5 }) {
            for (digit, byte) in digits.iter_mut().zip(bytes) {
                *digit = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as u8;
            }
        }
    }
    digits
}

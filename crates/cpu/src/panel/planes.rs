//! Codes and scales of one row in the planes of a block, and out of them again.

use super::BLOCK_COLS;
use super::layout::Group;

/// Stores the scales of the two halves of a block for one row.
pub(super) fn put_pair(scales: &mut [u8], at: usize, row: usize, pair: &[u8]) {
    scales[at + row] = pair[0];
    scales[at + 16 + row] = pair[1];
}

/// Stores the scales of the two halves of a block for one row, four bits each, where there are zeros.
pub(super) fn put_fours(scales: &mut [u8], at: usize, row: usize, pair: &[u8]) {
    for (half, value) in pair.iter().enumerate().take(2) {
        scales[at + 8 * half + row % 8] |= value << (row / 8 * 4);
    }
}

/// The same, signed ones of six bits, raised by 32.
pub(super) fn put_sixes(scales: &mut [u8], at: usize, row: usize, pair: &[u8]) {
    let (first, second) = (pair[0].wrapping_add(32), pair[1].wrapping_add(32));
    scales[at + row] = first | second << 6;
    scales[at + 16 + row % 8] |= (second >> 2) << (row / 8 * 4);
}

/// Stores an f32 for one row.
pub(super) fn put_float(scales: &mut [u8], at: usize, row: usize, value: f32) {
    scales[at + 4 * row..][..4].copy_from_slice(&value.to_le_bytes());
}

/// Stores the 32 codes of one row of a block in its planes.
#[inline(always)]
pub(super) fn put_codes(group: Group, row: usize, codes: &[u32; 8], block: &mut [u8]) {
    let (low, high) = block.split_at_mut(group.low_bytes);
    let put = |plane: &mut [u8], vector: usize, word: u32| {
        plane[64 * vector + 4 * row..][..4].copy_from_slice(&word.to_le_bytes());
    };
    let halves = codes.as_chunks::<4>().0.iter().enumerate();
    match group.low_bytes {
        512 => codes.iter().enumerate().for_each(|(g, &word)| put(low, g, word)),
        384 => {
            for (h, codes) in halves {
                for i in 0..3 {
                    put(low, 3 * h + i, codes[i] | (codes[3] >> (2 * i) & 0x0303_0303) << 6);
                }
            }
        }
        192 => three_bits(codes).iter().enumerate().for_each(|(i, &word)| put(low, i, word)),
        128 => halves.for_each(|(h, codes)| put(low, h, two_bits(codes))),
        _ => {
            for s in 0..4 {
                let nibbles = |word: u32| word & 0x0f0f_0f0f;
                put(low, s, nibbles(codes[2 * s]) | nibbles(codes[2 * s + 1]) << 4);
            }
        }
    }
    if group.high_bytes == 64 {
        let bits = codes.iter().enumerate();
        let bit = |c: &u32| (c >> 4) & 0x0101_0101;
        put(high, 0, bits.fold(0, |acc, (g, c)| acc | bit(c) << g));
    }
}

/// The two low bits of the codes of 16 columns, in a word.
fn two_bits(codes: &[u32; 4]) -> u32 {
    let bits = codes.iter().enumerate();
    bits.fold(0, |acc, (g, c)| acc | (c & 0x0303_0303) << (2 * g))
}

/// Codes below 8 of 32 columns in three words.
fn three_bits(codes: &[u32; 8]) -> [u32; 3] {
    let [a, b, c, d, e, f, g, h] = codes;
    let low = |word: &u32| (word & 0x0303_0303) << 6;
    let top = |word: &u32| (word & 0x0404_0404) << 4;
    [a | b << 3 | low(d), c | e << 3 | low(h), f | g << 3 | top(d) | top(h) << 1]
}

/// Step `g` of 4 columns of such words.
fn of_three_bits([x, y, z]: [u32; 3], g: usize) -> u32 {
    let rest = |word: u32, bit: u32| word >> 6 & 0x0303_0303 | (z >> bit & 0x0101_0101) << 2;
    match g {
        3 => rest(x, 6),
        7 => rest(y, 7),
        _ => [x, x >> 3, y, 0, y >> 3, z, z >> 3][g] & 0x0707_0707,
    }
}

/// The 32 codes of one row of a block, as bytes in column order.
pub(super) fn codes_of_row(group: Group, block: &[u8], row: usize) -> [u8; BLOCK_COLS] {
    let word = |at: usize, vector: usize| {
        let at = at + 64 * vector + 4 * row;
        u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
    };
    let mut codes = [0; BLOCK_COLS];
    for (g, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let low = match group.low_bytes {
            512 => word(0, g),
            384 if g % 4 < 3 => word(0, g / 4 * 3 + g % 4) & 0x3f3f_3f3f,
            384 => (0..3)
                .fold(0, |acc, i| acc | (word(0, g / 4 * 3 + i) >> 6 & 0x0303_0303) << (2 * i)),
            192 => of_three_bits([0, 1, 2].map(|i| word(0, i)), g),
            128 => (word(0, g / 4) >> (2 * (g % 4))) & 0x0303_0303,
            _ => (word(0, g / 2) >> (4 * (g % 2))) & 0x0f0f_0f0f,
        };
        let high = match group.high_bytes {
            64 => (word(group.low_bytes, 0) >> g) & 0x0101_0101,
            _ => 0,
        };
        *codes = (low | high << 4).to_le_bytes();
    }
    codes
}

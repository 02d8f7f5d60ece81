//! Blocks of 256 columns that are indices into sixteen values: the IQ formats.

use crate::FormatId;

/// One block, taken apart: w = (unit·scale)·table\[code\], every product exact in f32.
pub(crate) struct Coded {
    /// Index of each column into the format's table.
    pub codes: [u8; 256],
    /// Scale of each 16 columns.
    pub scales: [i8; 16],
    /// What the scales are multiples of.
    pub unit: f32,
}

impl Coded {
    /// A block of zero codes.
    pub fn new(unit: f32) -> Coded {
        Coded { codes: [0; 256], scales: [0; 16], unit }
    }

    /// The weights of the block.
    pub fn decode(&self, table: &[i8; 16], out: &mut [f32; 256]) {
        let subs = out.as_chunks_mut::<16>().0.iter_mut().zip(self.codes.as_chunks::<16>().0);
        for ((out, codes), &scale) in subs.zip(&self.scales) {
            let scale = self.unit * f32::from(scale);
            for (out, &code) in out.iter_mut().zip(codes) {
                *out = scale * f32::from(table[usize::from(code)]);
            }
        }
    }

    /// Sets columns 8·`run` .. from an entry of a code book of eight 2-bit indices; bit c of
    /// `signs` negates column c.
    pub fn put_eight(&mut self, run: usize, entry: u16, signs: u8) {
        let spread = |x: u64, shift: u32, mask: u64| (x | x << shift) & mask;
        let codes = spread(u64::from(entry), 24, 0x0000_00ff_0000_00ff);
        let codes = spread(spread(codes, 12, 0x000f_000f_000f_000f), 6, 0x0303_0303_0303_0303);
        let signs = spread(u64::from(signs), 28, 0x0000_000f_0000_000f);
        let signs = spread(spread(signs, 14, 0x0003_0003_0003_0003), 7, 0x0101_0101_0101_0101);
        self.codes[8 * run..8 * run + 8].copy_from_slice(&(codes | signs << 3).to_le_bytes());
    }

    /// Sets columns 4·`run` .. from an entry of a code book of four 3-bit indices; bit c of
    /// `signs` negates column c.
    pub fn put_four(&mut self, run: usize, entry: u16, signs: u8) {
        let (e, n) = (u32::from(entry), u32::from(signs));
        let codes = e & 7 | (e & 0o70) << 5 | (e & 0o700) << 10 | (e & 0o7000) << 15;
        let signs = (n & 1) << 3 | (n & 2) << 10 | (n & 4) << 17 | (n & 8) << 24;
        self.codes[4 * run..4 * run + 4].copy_from_slice(&(codes | signs).to_le_bytes());
    }
}

/// 32 columns of a block of indices into a code book, as they are stored.
pub struct Indexed {
    /// Bits of the f16 that scales are multiples of.
    pub d: u16,
    /// Entries of the code book: four of eight columns, or eight of four.
    pub indices: [u16; 8],
    /// Bit c: whether column c is negative, or in iq1 its δ.
    pub signs: u32,
    /// s of columns 0–15 and of columns 16–31: four bits, in iq1 three.
    pub scales: [u8; 2],
}

impl Indexed {
    /// Takes columns 32·`b` .. of a block apart.
    ///
    /// # Panics
    /// If the block is shorter, or its format has no code book.
    pub fn read(format: FormatId, block: &[u8], b: usize) -> Indexed {
        let byte = |at: usize| u16::from(block[at]);
        let pair = |scales: u8| [scales & 15, scales >> 4];
        let even = |r: usize, index: u32| u32::from(even_signs(index)) << (8 * r);
        let mut d = half_at(block, 0);
        let all_even = |word: u32| (0..4).fold(0, |signs, r| signs | even(r, word >> (7 * r)));
        let (indices, signs, scales): ([u16; 8], u32, [u8; 2]) = match format {
            FormatId::IQ2_XXS => {
                let word = word_at(block, 6 + 8 * b);
                let indices = std::array::from_fn(|r| byte(2 + 8 * b + r % 4));
                (indices, all_even(word), [(word >> 28) as u8; 2])
            }
            FormatId::IQ2_XS => {
                let codes: [u16; 8] =
                    std::array::from_fn(|r| half_at(block, 2 + 8 * b + 2 * (r % 4)));
                let signs = (0..4).fold(0, |signs, r| signs | even(r, u32::from(codes[r] >> 9)));
                (codes.map(|code| code & 511), signs, pair(block[66 + b]))
            }
            FormatId::IQ2_S => {
                let high = |r: usize| (byte(66 + b) >> (2 * r) & 3) << 8;
                let indices = std::array::from_fn(|r| byte(2 + 4 * b + r % 4) | high(r % 4));
                (indices, word_at(block, 34 + 4 * b), pair(block[74 + b]))
            }
            FormatId::IQ3_XXS => {
                let word = word_at(block, 66 + 4 * b);
                let indices = std::array::from_fn(|r| byte(2 + 8 * b + r));
                (indices, all_even(word), [(word >> 28) as u8; 2])
            }
            FormatId::IQ3_S => {
                let high = |r: usize| (byte(66 + b) >> r & 1) << 8;
                let indices = std::array::from_fn(|r| byte(2 + 8 * b + r) | high(r));
                let scale = block[106 + b / 2] >> (4 * (b % 2)) & 15;
                (indices, word_at(block, 74 + 4 * b), [scale; 2])
            }
            FormatId::IQ1_S => {
                let high = half_at(block, 34 + 2 * b);
                let upper = |r: usize| (high >> (3 * r) & 7) << 8;
                let indices = std::array::from_fn(|r| byte(2 + 4 * b + r % 4) | upper(r % 4));
                let minus = if high & 0x8000 == 0 { 0 } else { u32::MAX };
                (indices, minus, [(high >> 12 & 7) as u8; 2])
            }
            FormatId::IQ1_M => {
                d = iq1_m_scale(block);
                let high = half_at(block, 32 + 2 * b);
                let upper = |r: usize| (high >> (4 * r) & 7) << 8;
                let indices = std::array::from_fn(|r| byte(4 * b + r % 4) | upper(r % 4));
                let minus = |r: usize| u32::from(high >> (4 * r + 3) & 1) * (0xff << (8 * r));
                let scales = half_at(block, 48 + b / 2 * 2) >> (6 * (b % 2));
                let scales = [scales & 7, scales >> 3 & 7].map(|scale| scale as u8);
                (indices, (0..4).fold(0, |signs, r| signs | minus(r)), scales)
            }
            other => unreachable!("{other} has no code book"),
        };
        Indexed { d, indices, signs, scales }
    }
}

/// Bits of the f16 of a block of iq1_m, which four numbers have in their top nibbles.
pub(crate) fn iq1_m_scale(block: &[u8]) -> u16 {
    (0..4).fold(0, |d, i| d | (half_at(block, 48 + 2 * i) >> 12) << (4 * i))
}

/// The eight signs behind a 7-bit index: the eighth makes their number even.
pub(crate) const fn even_signs(index: u32) -> u8 {
    let low = index & 127;
    (low | (low.count_ones() & 1) << 7) as u8
}

/// A table of magnitudes: codes 8.. are the negatives of codes 0.. .
pub(crate) const fn with_negatives(magnitudes: [i8; 8]) -> [i8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 8 {
        table[i] = magnitudes[i];
        table[i + 8] = -magnitudes[i];
        i += 1;
    }
    table
}

/// The four bytes at `at` as a little-endian word.
pub(crate) fn word_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// The two bytes at `at` as a little-endian number.
pub(crate) fn half_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

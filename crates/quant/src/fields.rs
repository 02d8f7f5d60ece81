//! Taking a stored block apart into codes and scales, 32 columns at a time: what a device lays its
//! weights out from.

use crate::coded::Coded;
pub use crate::coded::Indexed;
use crate::nvfp4::e4m3_of_ue4m3;
use crate::{FormatId, MXFP4_VALUES_DOUBLED, scale_and_min};
use crate::{flat, grids, iq1_s, iq2_xxs, iq3_s, iq3_xxs, iq4_nl, iq4_xs, q3_k, tq1_0, tq2_0};

/// What the codes of a format stand for where they are indices; no meaning for other formats.
pub const fn code_values(format: FormatId) -> &'static [i8; 16] {
    match format {
        FormatId::IQ4_NL | FormatId::IQ4_XS => &iq4_nl::TABLE,
        FormatId::IQ3_XXS => &iq3_xxs::TABLE,
        FormatId::IQ3_S => &iq3_s::TABLE,
        FormatId::IQ1_S | FormatId::IQ1_M => &iq1_s::TABLE,
        FormatId::NVFP4 | FormatId::FP4_F32 | FormatId::MXFP4 => &MXFP4_VALUES_DOUBLED,
        _ => &iq2_xxs::TABLE,
    }
}

/// The code book of a format whose codes are runs of columns, lowest column in the lowest bits:
/// eight indices of 2 bits or four of 3 bits into [`code_values`]. Empty for other formats.
pub const fn code_book(format: FormatId) -> &'static [u16] {
    match format {
        FormatId::IQ1_S | FormatId::IQ1_M => &grids::IQ1_S,
        FormatId::IQ2_XXS => &grids::IQ2_XXS,
        FormatId::IQ2_XS => &grids::IQ2_XS,
        FormatId::IQ2_S => &grids::IQ2_S,
        FormatId::IQ3_XXS => &grids::IQ3_XXS,
        FormatId::IQ3_S => &grids::IQ3_S,
        _ => &[],
    }
}

/// One stored block of one row: up to 256 codes and their scales, as raw bits.
pub struct Fields {
    /// Codes of 4 columns to a word, lowest column in the lowest byte: `[block][step of 4]`.
    pub codes: [[u32; 8]; 8],
    /// f16 bits of the block scale (or the e8m0 byte of mxfp4).
    pub d: u16,
    /// f16 bits of the block minimum (or of the scale of the minima).
    pub m: u16,
    /// Sub-block scales: 8 of 32 columns, or 16 of 16 columns (four e4m3 bytes of nvfp4).
    pub sub_scales: [u8; 16],
    /// Sub-block minima: 8 of 32 columns, or 16 of 16 columns.
    pub sub_mins: [u8; 16],
    /// f32 scales: of each 16 columns; the unit of the sub-block scales; or scale and minimum.
    pub floats: [f32; 4],
}

impl Fields {
    /// All zero.
    pub const ZERO: Fields = Fields {
        codes: [[0; 8]; 8],
        d: 0,
        m: 0,
        sub_scales: [0; 16],
        sub_mins: [0; 16],
        floats: [0.0; 4],
    };

    /// Takes one stored block apart. `block` is exactly one block of a format of codes, and not of those of [`Indexed`].
    ///
    /// # Panics
    /// If the block is shorter, or the format has no codes.
    #[inline(always)]
    pub fn read(&mut self, format: FormatId, block: &[u8]) {
        let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
        match format {
            FormatId::Q4_0 => {
                self.d = half(0);
                self.codes[0] = halves(&block[2..18]);
            }
            FormatId::Q4_1 => {
                (self.d, self.m) = (half(0), half(2));
                self.codes[0] = halves(&block[4..20]);
            }
            FormatId::Q5_0 => {
                self.d = half(0);
                self.codes[0] = halves_and_bits(&block[6..22], word(block, 2));
            }
            FormatId::Q5_1 => {
                (self.d, self.m) = (half(0), half(2));
                self.codes[0] = halves_and_bits(&block[8..24], word(block, 4));
            }
            FormatId::Q8_0 => {
                self.d = half(0);
                for (g, code) in self.codes[0].iter_mut().enumerate() {
                    *code = word(block, 2 + 4 * g) ^ 0x8080_8080;
                }
            }
            FormatId::MXFP4 => {
                self.d = u16::from(block[0]);
                self.codes[0] = halves(&block[1..17]);
            }
            FormatId::Q4_K | FormatId::Q5_K => self.read_super45(format, block),
            FormatId::Q6_K => self.read_super6(block),
            FormatId::IQ4_NL => {
                self.d = half(0);
                self.codes[0] = halves(&block[2..18]);
            }
            FormatId::Q2_K => self.read_super2(block),
            FormatId::Q3_K => self.read_super3(block),
            FormatId::IQ4_XS => self.read_coded(&iq4_xs::read(block)),
            _ => self.read_other(format, block),
        }
    }

    /// Ternary formats, and those with f32 scales.
    #[inline(always)]
    fn read_other(&mut self, format: FormatId, block: &[u8]) {
        let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
        match format {
            FormatId::TQ1_0 => self.read_ternary(half(52), &tq1_0::digits(block)),
            FormatId::TQ2_0 => {
                self.read_ternary(half(64), &std::array::from_fn(|c| tq2_0::code(block, c)));
            }
            FormatId::NVFP4 => {
                (0..4).for_each(|s| self.sub_scales[s] = e4m3_of_ue4m3(block[s]));
                for (b, codes) in self.codes[..2].iter_mut().enumerate() {
                    *codes = std::array::from_fn(|g| {
                        let (sub, in_sub) = (2 * b + g / 4, g % 4);
                        word(block, 4 + 8 * sub + 4 * (in_sub % 2)) >> (4 * (in_sub / 2))
                            & 0x0f0f_0f0f
                    });
                }
            }
            FormatId::U2_32 | FormatId::U2_64 | FormatId::U2_128 => {
                self.read_floats(2, block);
                self.read_few(&block[8..], 4 * (block.len() - 8), flat::two_bits);
            }
            FormatId::U3_32 | FormatId::U3_64 | FormatId::U3_128 => {
                self.read_floats(2, block);
                self.read_few(&block[8..], (block.len() - 8) / 3 * 8, flat::three_bits);
            }
            FormatId::U4_32 | FormatId::U4_64 | FormatId::U4_128 | FormatId::FP4_F32 => {
                self.read_floats(2, block);
                self.read_pairs(&block[8..]);
            }
            FormatId::U8_32 | FormatId::U8_64 | FormatId::U8_128 => {
                self.read_floats(2, block);
                self.read_bytes(&block[8..]);
            }
            FormatId::E4M3_32 => {
                self.read_floats(1, block);
                self.read_bytes(&block[4..]);
            }
            FormatId::NF4_64 | FormatId::FP4_64 => {
                self.read_floats(1, block);
                self.read_pairs(&block[4..]);
            }
            _ => unreachable!("only layouts of codes have fields"),
        }
    }

    #[inline(always)]
    fn read_super45(&mut self, format: FormatId, block: &[u8]) {
        self.d = u16::from_le_bytes([block[0], block[1]]);
        self.m = u16::from_le_bytes([block[2], block[3]]);
        for s in 0..8 {
            (self.sub_scales[s], self.sub_mins[s]) = scale_and_min(&block[4..16], s);
        }
        let five = format == FormatId::Q5_K;
        let nibbles = if five { 48 } else { 16 };
        for (s, codes) in self.codes.iter_mut().enumerate() {
            for (g, code) in codes.iter_mut().enumerate() {
                let low = word(block, nibbles + 32 * (s / 2) + 4 * g) >> (4 * (s % 2));
                let high = if five { word(block, 16 + 4 * g) >> s } else { 0 };
                *code = (low & 0x0f0f_0f0f) | (high & 0x0101_0101) << 4;
            }
        }
    }

    /// The first `count` words as f32s.
    #[inline(always)]
    fn read_floats(&mut self, count: usize, block: &[u8]) {
        for (i, float) in self.floats[..count].iter_mut().enumerate() {
            *float = f32::from_bits(word(block, 4 * i));
        }
    }

    /// Codes of `count` columns, one by one.
    #[inline(always)]
    fn read_few(&mut self, bytes: &[u8], count: usize, code: impl Fn(&[u8], usize) -> u8) {
        for (b, codes) in self.codes[..count / 32].iter_mut().enumerate() {
            *codes = std::array::from_fn(|g| {
                let first = 32 * b + 4 * g;
                u32::from_le_bytes(std::array::from_fn(|j| code(bytes, first + j)))
            });
        }
    }

    /// Nibbles in column order, low one first.
    #[inline(always)]
    fn read_pairs(&mut self, bytes: &[u8]) {
        let pairs = bytes.as_chunks::<2>().0.iter();
        for (code, [a, b]) in self.codes.as_flattened_mut().iter_mut().zip(pairs) {
            *code = u32::from_le_bytes([a & 15, a >> 4, b & 15, b >> 4]);
        }
    }

    /// Bytes in column order.
    #[inline(always)]
    fn read_bytes(&mut self, bytes: &[u8]) {
        let words = bytes.as_chunks::<4>().0.iter();
        for (code, word) in self.codes.as_flattened_mut().iter_mut().zip(words) {
            *code = u32::from_le_bytes(*word);
        }
    }

    #[inline(always)]
    fn read_coded(&mut self, coded: &Coded) {
        self.floats[0] = coded.unit;
        self.sub_scales = coded.scales.map(|s| s as u8);
        self.read_bytes(&coded.codes);
    }

    /// Codes 0–3 of one scale, as codes around 8.
    fn read_ternary(&mut self, d: u16, codes: &[u8; 256]) {
        self.d = d;
        self.read_bytes(&codes.map(|code| code + 7));
    }

    #[inline(always)]
    fn read_super2(&mut self, block: &[u8]) {
        self.d = u16::from_le_bytes([block[80], block[81]]);
        self.m = u16::from_le_bytes([block[82], block[83]]);
        self.sub_scales = std::array::from_fn(|s| block[s] & 15);
        self.sub_mins = std::array::from_fn(|s| block[s] >> 4);
        self.read_two_bits(&block[16..80]);
    }

    #[inline(always)]
    fn read_super3(&mut self, block: &[u8]) {
        self.d = u16::from_le_bytes([block[108], block[109]]);
        self.sub_scales = std::array::from_fn(|s| q3_k::scale(&block[96..108], s) as u8);
        self.read_two_bits(&block[32..96]);
        for (b, codes) in self.codes.iter_mut().enumerate() {
            for (g, code) in codes.iter_mut().enumerate() {
                *code |= (word(block, 4 * g) >> b & 0x0101_0101) << 2;
            }
        }
    }

    /// The 2-bit codes of q2_k and q3_k.
    #[inline(always)]
    fn read_two_bits(&mut self, bytes: &[u8]) {
        for (b, codes) in self.codes.iter_mut().enumerate() {
            for (g, code) in codes.iter_mut().enumerate() {
                *code = word(bytes, 32 * (b / 4) + 4 * g) >> (2 * (b % 4)) & 0x0303_0303;
            }
        }
    }

    #[inline(always)]
    fn read_super6(&mut self, block: &[u8]) {
        self.d = u16::from_le_bytes([block[208], block[209]]);
        self.sub_scales.copy_from_slice(&block[192..208]);
        for (b, codes) in self.codes.iter_mut().enumerate() {
            let (half, group) = (b / 4, b % 4);
            for (g, code) in codes.iter_mut().enumerate() {
                let low = word(block, 64 * half + 32 * (group % 2) + 4 * g) >> (4 * (group / 2));
                let high = word(block, 128 + 32 * half + 4 * g) >> (2 * group);
                *code = (low & 0x0f0f_0f0f) | (high & 0x0303_0303) << 4;
            }
        }
    }
}

/// Four bytes as a little-endian word.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The 32 codes of a block of nibbles: low nibbles of 16 bytes are columns 0–15, high nibbles
/// columns 16–31.
#[inline(always)]
fn halves(bytes: &[u8]) -> [u32; 8] {
    const LOW: u32 = 0x0f0f_0f0f;
    let mut codes = [0; 8];
    for g in 0..4 {
        let nibbles = word(bytes, 4 * g);
        codes[g] = nibbles & LOW;
        codes[g + 4] = (nibbles >> 4) & LOW;
    }
    codes
}

/// The same with fifth bits: bit c of `high` is that of column c.
#[inline(always)]
fn halves_and_bits(bytes: &[u8], high: u32) -> [u32; 8] {
    let mut codes = halves(bytes);
    for (g, code) in codes.iter_mut().enumerate() {
        // Bits 4g..4g+4 of `high`, one to each byte, at bit 4.
        let bits = (high >> (4 * g)) & 15;
        let spread = (bits & 1) | (bits & 2) << 7 | (bits & 4) << 14 | (bits & 8) << 21;
        *code |= spread << 4;
    }
    codes
}

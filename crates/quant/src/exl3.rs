//! EXL3: codes that overlap, between Hadamard transforms of rows and columns.
//!
//! A tile of 16 columns k × 16 rows n is a ring of 256·bits bits; the weight at position t of the
//! ring is a function, the code book, of the 16 bits that end with bit (t + 1)·bits. Position
//! t = 8·lane + j is column `2·(lane % 4) + [0, 1, 8, 9][j % 4]`, row `lane / 4 + 8·(j / 4)`.
//! In the file the bits lie in 16-bit words, highest bit first, and the words of each pair are
//! exchanged.
//!
//! With V the values of a block of 128 × 128 and H the Hadamard matrix of ones,
//! `W[n][k] = (H·V·H)[n][k] · (suh[k]·svh[n]/128)`. The transforms are butterflies of f32 over
//! distances 1, 2, … 64, first along k, then along n; all else is exact but the last product.
//!
//! Source: the published layout; GPTQModel's `exllamav3_torch.py` states the same in torch.

use crate::float::f16_to_f32;
use crate::{Format, FormatId};

/// One row of the table: blocks of 128 × 128 of so many bits a weight. A block is the f16 suh of the columns, the f16
/// svh of the rows, the code book's byte and zeros up to [`HEADER_BYTES`], then the tiles of 16 rows, lowest column
/// first, one such row of tiles after the other.
macro_rules! trellis {
    ($id:ident, $name:literal, $bits:literal) => {
        pub(crate) const $id: Format = Format {
            id: FormatId::$id,
            name: $name,
            block_weights: WIDTH,
            block_bytes: block_bytes($bits) / WIDTH,
            ggml_type: None,
            decode: |src, dst| {
                let (rows, left) = dst.as_chunks_mut::<WIDTH>();
                let (out, more) = rows.as_chunks_mut::<WIDTH>();
                let whole = left.is_empty() && more.is_empty();
                assert!(whole && src.len() == out.len() * block_bytes($bits), "block count");
                for (block, out) in src.chunks_exact(block_bytes($bits)).zip(out) {
                    decode_stored($bits, block, out);
                }
            },
            encode: None,
        };
    };
}

trellis!(EXL3_1, "exl3_1", 1);
trellis!(EXL3_2, "exl3_2", 2);
trellis!(EXL3_3, "exl3_3", 3);
trellis!(EXL3_4, "exl3_4", 4);
trellis!(EXL3_5, "exl3_5", 5);
trellis!(EXL3_6, "exl3_6", 6);
trellis!(EXL3_7, "exl3_7", 7);
trellis!(EXL3_8, "exl3_8", 8);

/// The format of 1 to 8 bits a weight.
pub const fn of_bits(bits: usize) -> FormatId {
    match bits {
        1 => FormatId::EXL3_1,
        2 => FormatId::EXL3_2,
        3 => FormatId::EXL3_3,
        4 => FormatId::EXL3_4,
        5 => FormatId::EXL3_5,
        6 => FormatId::EXL3_6,
        7 => FormatId::EXL3_7,
        _ => FormatId::EXL3_8,
    }
}

/// Bits a weight of a format of these; `None` for others.
pub const fn bits_of(format: FormatId) -> Option<usize> {
    Some(match format {
        FormatId::EXL3_1 => 1,
        FormatId::EXL3_2 => 2,
        FormatId::EXL3_3 => 3,
        FormatId::EXL3_4 => 4,
        FormatId::EXL3_5 => 5,
        FormatId::EXL3_6 => 6,
        FormatId::EXL3_7 => 7,
        FormatId::EXL3_8 => 8,
        _ => return None,
    })
}

/// Bytes of a stored block of 128 × 128.
pub const fn block_bytes(bits: usize) -> usize {
    HEADER_BYTES + WIDTH / TILE * WIDTH / TILE * tile_bytes(bits)
}
/// Bytes of its factors and of the code book's byte, before the tiles.
pub const HEADER_BYTES: usize = FACTOR_BYTES + WIDTH;
/// Bytes of its factors.
pub const FACTOR_BYTES: usize = 4 * WIDTH;

/// The weights of a stored block, `[row][column]`.
fn decode_stored(bits: usize, block: &[u8], out: &mut [[f32; WIDTH]; WIDTH]) {
    let (header, tiles) = block.split_at(HEADER_BYTES);
    let (suh, svh) = header[..FACTOR_BYTES].split_at(2 * WIDTH);
    let codebook = Codebook::of(header[FACTOR_BYTES]);
    let block = Block { bits, codebook, suh: &halves(suh), svh: &halves(svh) };
    let at = |k: usize, n: usize| (n * WIDTH / TILE + k) * tile_bytes(bits);
    block.decode(|k, n| &tiles[at(k, n)..][..tile_bytes(bits)], out);
}

/// 128 f16s.
pub fn halves(bytes: &[u8]) -> [f32; WIDTH] {
    std::array::from_fn(|i| f16_to_f32(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])))
}

/// Rows and columns of a tile.
pub const TILE: usize = 16;
/// Numbers that a Hadamard transform mixes.
pub const WIDTH: usize = 128;

/// What the 16 bits of a state stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Codebook {
    /// The sum of two f16s made of the bits of state·89226354 + 64248484.
    ThreeInst = 0,
    /// The same of state·0xcbac1fed.
    Mcg = 1,
    /// The sum of the bytes of state·0x83dcd12d, scaled and shifted.
    Mul1 = 2,
}

/// The factor of [`Codebook::ThreeInst`].
pub const THREE_INST: u32 = 89_226_354;
/// What it adds to the product.
pub const THREE_INST_PLUS: u32 = 64_248_484;
/// The factor of [`Codebook::Mcg`], as files repeat it.
pub const MCG: u32 = 0xcbac_1fed;
/// The factor of [`Codebook::Mul1`].
pub const MUL1: u32 = 0x83dc_d12d;
/// What a byte sum of [`Codebook::Mul1`] is multiplied by: an f16.
pub const MUL1_SCALE: f32 = f16_to_f32(0x1eee);
/// What is added to that: 1024 · scale and an f16, exact.
pub const MUL1_MIN: f32 = 1024.0 * MUL1_SCALE + f16_to_f32(0xc931);

impl Codebook {
    /// The code book of a stored byte.
    pub const fn of(byte: u8) -> Codebook {
        match byte {
            0 => Codebook::ThreeInst,
            1 => Codebook::Mcg,
            _ => Codebook::Mul1,
        }
    }

    /// What a state stands for as an integer: the byte sum, 0–1020, or the sum of both f16s over 2⁻¹³, below 2¹⁵.
    #[inline]
    pub fn code(self, state: u16) -> i16 {
        let times = |factor: u32| u32::from(state).wrapping_mul(factor);
        match self {
            Codebook::ThreeInst => two_halves(times(THREE_INST).wrapping_add(THREE_INST_PLUS)),
            Codebook::Mcg => two_halves(times(MCG)),
            Codebook::Mul1 => times(MUL1).to_le_bytes().iter().map(|&b| i16::from(b)).sum(),
        }
    }

    /// What codes are multiplied by, and what is added to that: of [`Codebook::value`].
    pub const fn scale_min(self) -> (f32, f32) {
        match self {
            Codebook::ThreeInst | Codebook::Mcg => (1.0 / 8192.0, 0.0),
            Codebook::Mul1 => (MUL1_SCALE, MUL1_MIN),
        }
    }

    /// The value of a state, exact.
    #[inline]
    pub fn value(self, state: u16) -> f32 {
        let (scale, min) = self.scale_min();
        f32::from(self.code(state)).mul_add(scale, min)
    }
}

/// The sum of two f16s between 2⁻³ and 2 with the signs and low bits of `bits`, over 2⁻¹³.
#[inline]
fn two_halves(bits: u32) -> i16 {
    let bits = (bits & 0x8fff_8fff) ^ 0x3b60_3b60;
    let half = |bits: u32| {
        let size = (1024 + (bits & 1023) as i16) << ((bits >> 10 & 31) - 12);
        if bits >> 15 & 1 == 1 { -size } else { size }
    };
    half(bits & 0xffff) + half(bits >> 16)
}

/// Bytes of a stored tile.
pub const fn tile_bytes(bits: usize) -> usize {
    32 * bits
}

/// The column and the row of a position.
pub const fn place(t: usize) -> (usize, usize) {
    let (lane, j) = (t / 8, t % 8);
    (2 * (lane % 4) + [0, 1, 8, 9][j % 4], lane / 4 + j / 4 * 8)
}

/// The states of a stored tile of `bits` (1–8) bits a weight, in the order of positions.
///
/// # Panics
/// If `tile` is not `tile_bytes(bits)` long.
pub fn states(bits: usize, tile: &[u8]) -> [u16; 256] {
    assert_eq!(tile.len(), tile_bytes(bits), "bytes of a tile");
    let words = tile.as_chunks::<2>().0;
    let word = |i: usize| u32::from(u16::from_le_bytes(words[i ^ 1]));
    std::array::from_fn(|t| {
        let end = (t + 1) * bits;
        let before = word((end / 16 + words.len() - 1) % words.len());
        let after = word(end / 16 % words.len());
        ((before << 16 | after) >> (16 - end % 16)) as u16
    })
}

/// The Hadamard transform of 128 numbers, without a factor.
#[inline(always)]
pub fn hadamard(x: &mut [f32; WIDTH]) {
    for x in x.as_chunks_mut::<16>().0 {
        *x = near::<8>(near::<4>(near::<2>(near::<1>(*x))));
    }
    let mut distance = 16;
    while distance < WIDTH {
        for pair in x.chunks_exact_mut(2 * distance) {
            let (low, high) = pair.split_at_mut(distance);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        distance *= 2;
    }
}

/// Butterflies within 16 numbers, in a form that becomes a shuffle, a change of signs and a sum.
#[inline(always)]
fn near<const DISTANCE: usize>(x: [f32; 16]) -> [f32; 16] {
    std::array::from_fn(|i| {
        let sign = if i & DISTANCE == 0 { 0 } else { 1 << 31 };
        x[i ^ DISTANCE] + f32::from_bits(x[i].to_bits() ^ sign)
    })
}

/// A block of 128 rows × 128 columns as its pieces.
pub struct Block<'a> {
    /// Bits a weight: 1–8.
    pub bits: usize,
    /// What states stand for.
    pub codebook: Codebook,
    /// Factors of the columns.
    pub suh: &'a [f32; WIDTH],
    /// Factors of the rows.
    pub svh: &'a [f32; WIDTH],
}

impl Block<'_> {
    /// The weights, `[row][column]`; `tile(k, n)` are the bytes of a tile, counted in tiles.
    pub fn decode<'t>(
        &self,
        tile: impl Fn(usize, usize) -> &'t [u8],
        out: &mut [[f32; WIDTH]; WIDTH],
    ) {
        for n in 0..WIDTH / TILE {
            for k in 0..WIDTH / TILE {
                for (t, state) in states(self.bits, tile(k, n)).into_iter().enumerate() {
                    let (col, row) = place(t);
                    out[TILE * n + row][TILE * k + col] = self.codebook.value(state);
                }
            }
        }
        transform(out, self.suh, self.svh);
    }
}

/// Values of a block, `[row][column]`, to its weights.
pub fn transform(out: &mut [[f32; WIDTH]; WIDTH], suh: &[f32; WIDTH], svh: &[f32; WIDTH]) {
    out.iter_mut().for_each(hadamard);
    let mut distance = 1;
    while distance < WIDTH {
        for pair in out.chunks_exact_mut(2 * distance) {
            let (low, high) = pair.split_at_mut(distance);
            for (a, b) in low.as_flattened_mut().iter_mut().zip(high.as_flattened_mut()) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        distance *= 2;
    }
    for (row, svh) in out.iter_mut().zip(svh) {
        for (w, suh) in row.iter_mut().zip(suh) {
            *w *= suh * svh / WIDTH as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_cover_a_tile_once() {
        let mut seen = [[false; TILE]; TILE];
        for (col, row) in (0..256).map(place) {
            assert!(!std::mem::replace(&mut seen[row][col], true));
        }
    }

    #[test]
    fn a_state_is_the_window_that_ends_with_its_symbol() {
        // Symbols one after another, shifted into a register, as the format is described.
        for bits in 1..=8 {
            let tile: Vec<u8> =
                (0..tile_bytes(bits)).map(|i| (i * i * 37 + 11 * i) as u8).collect();
            let bit = |i: usize| {
                let word = (i / 16) ^ 1;
                let word = u16::from_le_bytes([tile[2 * word], tile[2 * word + 1]]);
                word >> (15 - i % 16) & 1
            };
            let states = states(bits, &tile);
            let mut register = 0u16;
            for round in 0..2 {
                for (t, state) in states.iter().enumerate() {
                    for b in 0..bits {
                        register = register << 1 | bit(t * bits + b);
                    }
                    assert!(round == 0 || register == *state, "{bits} bits, position {t}");
                }
            }
        }
    }

    #[test]
    fn values_are_exact_in_f32() {
        for state in 0..=u16::MAX {
            for codebook in [Codebook::ThreeInst, Codebook::Mcg, Codebook::Mul1] {
                let value = codebook.value(state);
                assert_eq!(value * 262_144.0, (value * 262_144.0).round(), "{codebook:?} {state}");
                assert!(value.abs() < 4.0);
            }
            let halves = |bits: u32| {
                let bits = (bits & 0x8fff_8fff) ^ 0x3b60_3b60;
                f16_to_f32(bits as u16) + f16_to_f32((bits >> 16) as u16)
            };
            let wide = u32::from(state);
            assert_eq!(Codebook::Mcg.value(state), halves(wide.wrapping_mul(0xcbac_1fed)));
            let three = wide.wrapping_mul(89_226_354).wrapping_add(64_248_484);
            assert_eq!(Codebook::ThreeInst.value(state), halves(three));
            let y = u32::from(state).wrapping_mul(MUL1).to_le_bytes();
            let sum: f64 = y.iter().map(|&b| f64::from(b)).sum();
            let [scale, bias] = [0x1eee, 0xc931].map(|h| f64::from(f16_to_f32(h)));
            assert_eq!(f64::from(Codebook::Mul1.value(state)), (1024.0 + sum) * scale + bias);
        }
    }

    #[test]
    fn the_transform_is_its_own_inverse_but_for_a_factor() {
        let start: [f32; WIDTH] = std::array::from_fn(|i| (i * i % 23) as f32 - 7.0);
        let mut x = start;
        hadamard(&mut x);
        assert_eq!(x[0], start.iter().sum::<f32>());
        hadamard(&mut x);
        assert_eq!(x, start.map(|v| v * 128.0));
    }
}

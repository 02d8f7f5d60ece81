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

/// Blocks of 128 × 128, 4 bits a weight, code book mul1: f16 suh of the columns, f16 svh of the
/// rows, then the tiles of 16 rows, lowest column first, one such row of tiles after the other.
pub(crate) const EXL3_4: Format = Format {
    id: FormatId::EXL3_4,
    name: "exl3_4",
    block_weights: WIDTH,
    block_bytes: BLOCK_BYTES / WIDTH,
    ggml_type: None,
    decode: |src, dst| {
        let (blocks, rest) = src.as_chunks::<BLOCK_BYTES>();
        let (rows, left) = dst.as_chunks_mut::<WIDTH>();
        let (out, more) = rows.as_chunks_mut::<WIDTH>();
        let whole = rest.is_empty() && left.is_empty() && more.is_empty();
        assert!(whole && blocks.len() == out.len(), "block count");
        for (block, out) in blocks.iter().zip(out) {
            decode_stored(block, out);
        }
    },
    encode: None,
};

/// Bytes of a stored block of 128 × 128 of `exl3_4`.
pub const BLOCK_BYTES: usize = FACTOR_BYTES + WIDTH / TILE * WIDTH / TILE * tile_bytes(4);
/// Bytes of its factors, before the tiles.
pub const FACTOR_BYTES: usize = 4 * WIDTH;

/// The weights of a stored block of `exl3_4`, `[row][column]`.
fn decode_stored(block: &[u8; BLOCK_BYTES], out: &mut [[f32; WIDTH]; WIDTH]) {
    let (factors, tiles) = block.split_at(FACTOR_BYTES);
    let (suh, svh) = factors.split_at(2 * WIDTH);
    let block = Block { bits: 4, codebook: Codebook::Mul1, suh: &halves(suh), svh: &halves(svh) };
    let at = |k: usize, n: usize| (n * WIDTH / TILE + k) * tile_bytes(4);
    block.decode(|k, n| &tiles[at(k, n)..][..tile_bytes(4)], out);
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
pub enum Codebook {
    /// The sum of two f16s made of the bits of state·89226354 + 64248484.
    ThreeInst,
    /// The same of state·0xcbac1fed.
    Mcg,
    /// The sum of the bytes of state·0x83dcd12d, scaled and shifted.
    Mul1,
}

/// The factor of [`Codebook::Mcg`], as files repeat it.
pub const MCG: u32 = 0xcbac_1fed;
/// The factor of [`Codebook::Mul1`].
pub const MUL1: u32 = 0x83dc_d12d;
/// What a byte sum of [`Codebook::Mul1`] is multiplied by: an f16.
pub const MUL1_SCALE: f32 = f16_to_f32(0x1eee);
/// What is added to that: 1024 · scale and an f16, exact.
pub const MUL1_MIN: f32 = 1024.0 * MUL1_SCALE + f16_to_f32(0xc931);

impl Codebook {
    /// The value of a state, exact.
    #[inline]
    pub fn value(self, state: u16) -> f32 {
        let state = u32::from(state);
        match self {
            Codebook::ThreeInst => {
                two_halves(state.wrapping_mul(89_226_354).wrapping_add(64_248_484))
            }
            Codebook::Mcg => two_halves(state.wrapping_mul(MCG)),
            Codebook::Mul1 => f32::from(mul1_sum(state as u16)).mul_add(MUL1_SCALE, MUL1_MIN),
        }
    }
}

/// The byte sum of [`Codebook::Mul1`]: 0–1020.
#[inline]
pub fn mul1_sum(state: u16) -> u16 {
    let bytes = u32::from(state).wrapping_mul(MUL1).to_le_bytes();
    bytes.iter().map(|&b| u16::from(b)).sum()
}

/// The sum of two f16s between 2⁻⁴ and 2 with the signs and low bits of `bits`.
#[inline]
fn two_halves(bits: u32) -> f32 {
    let bits = (bits & 0x8fff_8fff) ^ 0x3b60_3b60;
    f16_to_f32(bits as u16) + f16_to_f32((bits >> 16) as u16)
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

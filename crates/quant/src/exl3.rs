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

/// Rows and columns of a tile.
pub const TILE: usize = 16;
/// Numbers that a Hadamard transform mixes.
pub const TURN: usize = 128;

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
const MUL1_SCALE: f32 = f16_to_f32(0x1eee);
/// What is added to that: 1024 · scale and an f16, exact.
const MUL1_MIN: f32 = 1024.0 * MUL1_SCALE + f16_to_f32(0xc931);

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
            Codebook::Mul1 => {
                let bytes = state.wrapping_mul(MUL1).to_le_bytes();
                let sum: u32 = bytes.iter().map(|&b| u32::from(b)).sum();
                (sum as f32).mul_add(MUL1_SCALE, MUL1_MIN)
            }
        }
    }
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
#[inline]
pub fn hadamard(x: &mut [f32; TURN]) {
    let mut distance = 1;
    while distance < TURN {
        for pair in x.chunks_exact_mut(2 * distance) {
            let (low, high) = pair.split_at_mut(distance);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        distance *= 2;
    }
}

/// A block of 128 rows × 128 columns as its pieces.
pub struct Block<'a> {
    /// Bits a weight: 1–8.
    pub bits: usize,
    /// What states stand for.
    pub codebook: Codebook,
    /// Factors of the columns.
    pub suh: &'a [f32; TURN],
    /// Factors of the rows.
    pub svh: &'a [f32; TURN],
}

impl Block<'_> {
    /// The weights, `[row][column]`; `tile(k, n)` are the bytes of a tile, counted in tiles.
    pub fn decode<'t>(
        &self,
        tile: impl Fn(usize, usize) -> &'t [u8],
        out: &mut [[f32; TURN]; TURN],
    ) {
        for n in 0..TURN / TILE {
            for k in 0..TURN / TILE {
                for (t, state) in states(self.bits, tile(k, n)).into_iter().enumerate() {
                    let (col, row) = place(t);
                    out[TILE * n + row][TILE * k + col] = self.codebook.value(state);
                }
            }
        }
        out.iter_mut().for_each(hadamard);
        let mut distance = 1;
        while distance < TURN {
            for pair in out.chunks_exact_mut(2 * distance) {
                let (low, high) = pair.split_at_mut(distance);
                for (a, b) in low.as_flattened_mut().iter_mut().zip(high.as_flattened_mut()) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            distance *= 2;
        }
        for (row, svh) in out.iter_mut().zip(self.svh) {
            for (w, suh) in row.iter_mut().zip(self.suh) {
                *w *= suh * svh / TURN as f32;
            }
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
        let start: [f32; TURN] = std::array::from_fn(|i| (i * i % 23) as f32 - 7.0);
        let mut x = start;
        hadamard(&mut x);
        assert_eq!(x[0], start.iter().sum::<f32>());
        hadamard(&mut x);
        assert_eq!(x, start.map(|v| v * 128.0));
    }
}

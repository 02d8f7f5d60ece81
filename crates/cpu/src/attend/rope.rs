//! Head norms and rotation of query and key rows.
//!
//! Numerics: NUMERICS.md, "Rotations" and "Norms".

use tokenmill_ir::{NormKind, RopePairing};

use crate::isa::Isa;
use crate::math::{self, per_isa};

/// A rotation with its divisors applied; one a rope of the program.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    /// Pairing of columns.
    pub pairing: RopePairing,
    /// Angle per position of each pair, radians. [pairs]
    pub freq: Vec<f32>,
    /// Multiplies sine and cosine.
    pub magnitude: f32,
    /// The axis of each pair; empty: all the first.
    pub axes: Vec<u8>,
}

impl Rotation {
    /// The rotation of `rope`, with the numbers of its `factors` tensor where it has one.
    ///
    /// # Panics
    /// If the factors are not one a pair.
    pub fn new(rope: &tokenmill_ir::Rope, factors: Option<&[f32]>) -> Rotation {
        let mut freq = rope.inv_freq.clone();
        if let Some(factors) = factors {
            assert_eq!(factors.len(), freq.len(), "a factor a pair");
            freq.iter_mut().zip(factors).for_each(|(f, factor)| *f /= factor);
        }
        let (pairing, magnitude, axes) = (rope.pairing, rope.magnitude, rope.axes.clone());
        Rotation { pairing, freq, magnitude, axes }
    }

    /// f32s of the table of one position: see [`Rotation::table`].
    pub fn table_len(&self) -> usize {
        2 * self.freq.len()
    }

    /// Fills `table` for the positions of one token on all axes: cosines of all pairs, then sines.
    /// Once a token and step, for all layers and heads.
    ///
    /// # Panics
    /// If `table` is not `table_len()` long, or `isa` is not available.
    pub fn table(&self, isa: Isa, positions: [u32; 3], table: &mut [f32]) {
        assert_eq!(table.len(), self.table_len(), "table of a position");
        let positions = positions.map(|p| p as f32);
        match self.axes.is_empty() {
            true => fill_table(isa, positions[0], &self.freq, self.magnitude, table),
            false => fill_axes(isa, &positions, &self.axes, &self.freq, self.magnitude, table),
        }
    }

    /// Rotates the first columns of every head of a row in place. row [heads × dim]
    ///
    /// # Panics
    /// If the table has another length, a head is shorter than what rotates, the row is not whole
    /// heads, or `isa` is not available.
    pub fn apply(&self, isa: Isa, table: &[f32], dim: usize, row: &mut [f32]) {
        assert_eq!(table.len(), self.table_len(), "table of a position");
        assert!(self.table_len() <= dim && row.len().is_multiple_of(dim), "heads of a row");
        match self.pairing {
            RopePairing::Half => turn_halves(isa, table, dim, row),
            RopePairing::Interleaved => turn_pairs(isa, table, dim, row),
        }
    }
}

per_isa! {
    fill_table(position: f32, freq: &[f32], magnitude: f32, table: &mut [f32]) = table_of;
    fill_axes(at: &[f32; 3], axes: &[u8], freq: &[f32], magnitude: f32, table: &mut [f32]) = axes_of;
    turn_halves(table: &[f32], dim: usize, row: &mut [f32]) = halves;
    turn_pairs(table: &[f32], dim: usize, row: &mut [f32]) = neighbours;
    scale_head(head: &mut [f32], r: f32, weight: &[f32], offset: f32) = scaled;
    shift_head(head: &mut [f32], mean: f32) = shifted;
}

#[inline(always)]
fn table_of(position: f32, freq: &[f32], magnitude: f32, table: &mut [f32]) {
    let (cos, sin) = table.split_at_mut(freq.len());
    for ((f, cos), sin) in freq.iter().zip(cos).zip(sin) {
        let (s, c) = math::sin_cos(position * f);
        (*cos, *sin) = (c * magnitude, s * magnitude);
    }
}

#[inline(always)]
fn axes_of(at: &[f32; 3], axes: &[u8], freq: &[f32], magnitude: f32, table: &mut [f32]) {
    let (cos, sin) = table.split_at_mut(freq.len());
    for (((f, axis), cos), sin) in freq.iter().zip(axes).zip(cos).zip(sin) {
        let (s, c) = math::sin_cos(at[usize::from(*axis)] * f);
        (*cos, *sin) = (c * magnitude, s * magnitude);
    }
}

#[inline(always)]
fn rotate(x: f32, y: f32, cos: f32, sin: f32) -> (f32, f32) {
    (x.mul_add(cos, -(y * sin)), y.mul_add(cos, x * sin))
}

#[inline(always)]
pub(super) fn halves(table: &[f32], dim: usize, row: &mut [f32]) {
    let pairs = table.len() / 2;
    let (cos, sin) = table.split_at(pairs);
    for head in row.chunks_exact_mut(dim) {
        let (x, y) = head[..2 * pairs].split_at_mut(pairs);
        for (((x, y), cos), sin) in x.iter_mut().zip(y).zip(cos).zip(sin) {
            (*x, *y) = rotate(*x, *y, *cos, *sin);
        }
    }
}

#[inline(always)]
pub(super) fn neighbours(table: &[f32], dim: usize, row: &mut [f32]) {
    let pairs = table.len() / 2;
    let (cos, sin) = table.split_at(pairs);
    for head in row.chunks_exact_mut(dim) {
        for ((pair, cos), sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
            (pair[0], pair[1]) = rotate(pair[0], pair[1], *cos, *sin);
        }
    }
}

/// Normalisation of the heads of a row.
#[derive(Clone, Copy, Debug)]
pub struct HeadScale<'a> {
    /// Root-mean-square or layer.
    pub kind: NormKind,
    /// [dim], or [heads × dim] where every head has its own.
    pub weight: &'a [f32],
    /// Added to the weight.
    pub offset: f32,
    /// Added under the root.
    pub eps: f32,
}

impl HeadScale<'_> {
    /// Normalises every head of a row in place. row [heads × dim]
    ///
    /// # Panics
    /// If the weight is neither one head's nor the row's, or `isa` is not available.
    pub fn apply(&self, isa: Isa, dim: usize, row: &mut [f32]) {
        let own = self.weight.len() == row.len();
        assert!(own || self.weight.len() == dim, "weight of a head norm");
        assert!(row.len().is_multiple_of(dim), "heads of a row");
        for (i, head) in row.chunks_exact_mut(dim).enumerate() {
            let weight = if own { &self.weight[i * dim..][..dim] } else { self.weight };
            if self.kind == NormKind::Layer {
                let mean = math::sum(isa, head) / dim as f32;
                shift_head(isa, head, mean);
            }
            let square = math::dot(isa, head, head) / dim as f32;
            scale_head(isa, head, math::inverse_sqrt(square + self.eps), weight, self.offset);
        }
    }
}

#[inline(always)]
fn shifted(head: &mut [f32], mean: f32) {
    head.iter_mut().for_each(|x| *x -= mean);
}

#[inline(always)]
fn scaled(head: &mut [f32], r: f32, weight: &[f32], offset: f32) {
    for (x, w) in head.iter_mut().zip(weight) {
        *x = *x * r * (w + offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919) % 1009) as f32 / 200.0 - 2.5).collect()
    }

    fn rotation(pairing: RopePairing, pairs: usize) -> Rotation {
        let freq = |i| 10_000_f32.powf(-(i as f32) / pairs as f32);
        let inv_freq = (0..pairs).map(freq).collect();
        let rope = tokenmill_ir::Rope {
            pairing,
            inv_freq,
            factors: None,
            magnitude: 1.25,
            axes: Vec::new(),
        };
        let factors: Vec<f32> = (0..pairs).map(|i| 1.0 + i as f32 / 8.0).collect();
        Rotation::new(&rope, Some(&factors))
    }

    /// (pairing, pairs, columns of a head)
    const SHAPES: [(RopePairing, usize, usize); 6] = [
        (RopePairing::Half, 32, 64),
        (RopePairing::Half, 16, 80),
        (RopePairing::Half, 3, 7),
        (RopePairing::Interleaved, 64, 128),
        (RopePairing::Interleaved, 12, 24),
        (RopePairing::Interleaved, 5, 32),
    ];

    #[test]
    fn pairs_turn_by_their_angle() {
        for (pairing, pairs, dim) in SHAPES {
            let rotation = rotation(pairing, pairs);
            for position in [0, 1, 77, 100_000] {
                let mut table = vec![0.0; rotation.table_len()];
                rotation.table(Isa::Scalar, [position; 3], &mut table);
                let (before, mut after) = (row(3 * dim), row(3 * dim));
                rotation.apply(Isa::Scalar, &table, dim, &mut after);
                for (before, after) in before.chunks(dim).zip(after.chunks(dim)) {
                    for i in 0..pairs {
                        let (a, b) = match pairing {
                            RopePairing::Half => (i, i + pairs),
                            RopePairing::Interleaved => (2 * i, 2 * i + 1),
                        };
                        let angle = f64::from(position as f32 * rotation.freq[i]);
                        let (sin, cos) = angle.sin_cos();
                        let (x, y) = (f64::from(before[a]) * 1.25, f64::from(before[b]) * 1.25);
                        assert!((f64::from(after[a]) - (x * cos - y * sin)).abs() < 2e-6);
                        assert!((f64::from(after[b]) - (y * cos + x * sin)).abs() < 2e-6);
                    }
                    assert_eq!(before[2 * pairs..], after[2 * pairs..]);
                }
            }
        }
    }

    #[test]
    fn norms_are_near_f64() {
        let (x, dim) = (row(3 * 40), 40);
        for kind in [NormKind::Rms, NormKind::Layer] {
            for weight in [row(40), row(120)] {
                let norm = HeadScale { kind, weight: &weight, offset: 1.0, eps: 1e-5 };
                let mut got = x.clone();
                norm.apply(Isa::Scalar, dim, &mut got);
                for (h, (x, got)) in x.chunks(dim).zip(got.chunks(dim)).enumerate() {
                    let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                    let mean = match kind {
                        NormKind::Rms => 0.0,
                        NormKind::Layer => x.iter().sum::<f64>() / 40.0,
                    };
                    let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 40.0;
                    for (i, (x, got)) in x.iter().zip(got).enumerate() {
                        let w = f64::from(weight[(h * dim + i) % weight.len()]) + 1.0;
                        let expect = (x - mean) / (var + 1e-5).sqrt() * w;
                        assert!((f64::from(*got) - expect).abs() < 2e-6, "{got} {expect}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let bits = |x: &[f32]| -> Vec<u32> { x.iter().map(|x| x.to_bits()).collect() };
        for (pairing, pairs, dim) in SHAPES {
            let rotation = rotation(pairing, pairs);
            let run = |isa: Isa| {
                let (mut table, mut x) = (vec![0.0; rotation.table_len()], row(5 * dim));
                let weight = row(dim);
                for kind in [NormKind::Rms, NormKind::Layer] {
                    let norm = HeadScale { kind, weight: &weight, offset: 0.0, eps: 1e-6 };
                    norm.apply(isa, dim, &mut x);
                    rotation.table(isa, [12_345; 3], &mut table);
                    rotation.apply(isa, &table, dim, &mut x);
                }
                (bits(&table), bits(&x))
            };
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                assert!(run(isa) == run(Isa::Scalar), "{pairing:?} {dim} on {}", isa.name());
            }
        }
    }
}

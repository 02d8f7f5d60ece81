//! What all keys of a head have in common: the bias that is added before their rotation. It can be many times what
//! tells keys apart, and codes of few bits would be spent on it.
//!
//! Slow pairs of a rotation, which have the large biases, hardly rotate over the 64 keys of a tile. So int8 and int4
//! keep keys without the bias as it is rotated in the middle of their tile, and its product with a query, one number a
//! row and tile, is added to the scores of the tile: to their greatest, since weights are relative to that.
//!
//! A pair that rotates within a tile is away from the middle: of its bias only the mean over the tile is taken, sin(x)/x of
//! what it rotates by in half a tile, and nothing from x = π on. What is left is still large, and so are queries where they
//! have biases: columns of keys are divided by powers of two, and those of queries multiplied by them, so that neither
//! has outliers (decision 0009).

use std::f32::consts::PI;
use std::sync::Arc;

use tokenmill_ir::RopePairing;

use super::TILE;
use super::rope::{self, Rotation};
use crate::isa::Isa;
use crate::math::{per_isa, sin_cos};

/// A rotation in the middle of every tile.
#[derive(Debug)]
pub struct Middles {
    pairing: RopePairing,
    pairs: usize,
    /// How much of a pair is taken. [pairs]
    taken: Vec<f32>,
    /// Cosines, then sines, times what is taken. [tiles][2 × pairs]
    tables: Vec<f32>,
}

impl Middles {
    /// Of the tiles of `context` keys.
    pub fn new(rotation: &Rotation, context: usize) -> Middles {
        let pairs = rotation.freq.len();
        let taken: Vec<f32> = rotation.freq.iter().map(|freq| mean_over_tile(*freq)).collect();
        let mut tables = Vec::with_capacity(context.div_ceil(TILE) * 2 * pairs);
        for tile in 0..context.div_ceil(TILE) {
            let middle = (tile * TILE) as f32 + (TILE - 1) as f32 / 2.0;
            let rotated = rotation.freq.iter().zip(&taken).map(|(freq, taken)| {
                let (sin, cos) = sin_cos(middle * freq);
                let factor = taken * rotation.magnitude;
                (cos * factor, sin * factor)
            });
            let (cos, sin): (Vec<f32>, Vec<f32>) = rotated.unzip();
            tables.extend(cos);
            tables.extend(sin);
        }
        Middles { pairing: rotation.pairing, pairs, taken, tables }
    }

    /// The two columns of a pair.
    fn columns(&self, pair: usize) -> [usize; 2] {
        match self.pairing {
            RopePairing::Half => [pair, pair + self.pairs],
            RopePairing::Interleaved => [2 * pair, 2 * pair + 1],
        }
    }
}

/// The mean, over a tile, of the cosine of what a pair is away from the middle.
fn mean_over_tile(freq: f32) -> f32 {
    let half = (TILE / 2) as f32 * freq.abs();
    if half < 1e-3 {
        1.0
    } else if half < PI {
        sin_cos(half).0 / half
    } else {
        0.0
    }
}

/// The bias of a layer's keys.
#[derive(Debug)]
pub struct Steady {
    dim: usize,
    /// [kv_heads × dim]
    bias: Vec<f32>,
    /// What columns of keys are multiplied by, powers of two. [kv_heads × dim]
    of_keys: Vec<f32>,
    /// Their inverses, for queries.
    of_queries: Vec<f32>,
    middles: Option<Arc<Middles>>,
}

impl Steady {
    /// Of heads of `dim` columns, with the biases of the queries that meet them.
    ///
    /// # Panics
    /// If heads are no whole ones, or shorter than what rotates.
    pub fn new(
        bias: Vec<f32>,
        queries: &[f32],
        dim: usize,
        middles: Option<Arc<Middles>>,
    ) -> Steady {
        assert!(bias.len().is_multiple_of(dim), "biases of whole heads");
        assert!(queries.len().is_multiple_of(bias.len()), "as many queries for every key");
        assert!(middles.as_ref().is_none_or(|m| 2 * m.pairs <= dim), "pairs of a head");
        let mut of_queries = vec![1.0; bias.len()];
        if let Some(m) = &middles {
            let of_head = queries.len() / (bias.len() / dim);
            for (head, bias) in bias.chunks(dim).enumerate() {
                let queries = &queries[head * of_head..][..of_head];
                for (pair, taken) in m.taken.iter().enumerate() {
                    let columns = m.columns(pair);
                    let keys = mean_square(bias, dim, columns) * (1.0 - taken * taken);
                    let queries = mean_square(queries, dim, columns);
                    let factor = root_of_root((1.0 + keys) / (1.0 + queries));
                    columns.into_iter().for_each(|c| of_queries[head * dim + c] = factor);
                }
            }
        }
        let of_keys = of_queries.iter().map(|factor| 1.0 / factor).collect();
        Steady { dim, bias, of_keys, of_queries, middles }
    }

    /// What is taken from the keys of a head in a tile. [dim]
    #[inline(always)]
    pub(super) fn in_tile(&self, head: usize, tile: usize, out: &mut [f32]) {
        let out = &mut out[..self.dim];
        out.copy_from_slice(&self.bias[head * self.dim..][..self.dim]);
        let Some(m) = &self.middles else { return };
        let table = &m.tables[tile * 2 * m.pairs..][..2 * m.pairs];
        match m.pairing {
            RopePairing::Half => rope::halves(table, self.dim, out),
            RopePairing::Interleaved => rope::neighbours(table, self.dim, out),
        }
    }

    /// What the columns of the queries of a head are multiplied by.
    pub(super) fn of_queries(&self, head: usize) -> &[f32] {
        &self.of_queries[head * self.dim..][..self.dim]
    }

    /// Makes rotated keys, heads `first ..` of the one with index `index`, what is kept of them; `room` is as long.
    ///
    /// # Panics
    /// If there are no such heads, or the key is beyond the context.
    pub fn leave(&self, isa: Isa, index: usize, first: usize, keys: &mut [f32], room: &mut [f32]) {
        leave_rest(isa, self, index / TILE, first, keys, room);
    }
}

per_isa! {
    leave_rest(steady: &Steady, tile: usize, first: usize, keys: &mut [f32], room: &mut [f32]) = rest;
}

#[inline(always)]
fn rest(steady: &Steady, tile: usize, first: usize, keys: &mut [f32], room: &mut [f32]) {
    for (head, keys) in (first..).zip(keys.chunks_exact_mut(steady.dim)) {
        steady.in_tile(head, tile, room);
        let factors = &steady.of_keys[head * steady.dim..][..steady.dim];
        for ((key, bias), factor) in keys.iter_mut().zip(&*room).zip(factors) {
            *key = (*key - bias) * factor;
        }
    }
}

/// The mean square of two columns of heads.
fn mean_square(heads: &[f32], dim: usize, columns: [usize; 2]) -> f32 {
    let squares = heads.chunks_exact(dim).flat_map(|head| columns.map(|c| head[c] * head[c]));
    squares.sum::<f32>() / (2 * heads.len() / dim).max(1) as f32
}

/// A power of two near x^¼, x > 0; any where it is no number.
fn root_of_root(x: f32) -> f32 {
    let exponent = (x.to_bits() >> 23) as i32 - 127;
    2.0_f32.powi((exponent + 2).div_euclid(4))
}

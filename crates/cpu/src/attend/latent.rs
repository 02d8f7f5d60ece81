//! Latents as the keys and values of all heads (multi-head latent attention: DeepSeek-V2, arXiv 2405.04434), and how they lie.
//!
//! A query head meets a token's latent c and its rotated key k: `q_latent·c + q_rope·k`; the value is c. So a latent and the
//! key are one key of `latent + rope` columns for all heads, and its first `latent` columns are the value. All heads of
//! a token are rows of one item, and a tile of latents is made readable once for all of them.
//!
//! # Two forms
//!
//! This is the absorbed form; queries and results are taken into and out of the latent space by a product a head. The other form
//! expands every latent to keys and values of each head, and attends to those. Products a head, with the sizes of
//! DeepSeek-V2 and V3 (latent 512, rope 64, heads of 128 columns without a rotation and 128 of values):
//!
//! | form | a query and key | a query | a key, each step anew |
//! |---|---|---|---|
//! | absorbed | 512 + 64 + 512 = 1 088 | 512·(128 + 128) = 131 072 | 0 |
//! | expanded | 128 + 64 + 128 = 320 | 0 | 512·(128 + 128) = 131 072 |
//!
//! For t tokens over n keys the expanded form is less work where 131 072·(1/t − 1/n) < 768: from about 170 tokens of a
//! step on, at most 3.4 times less, and 120 times more for the one token of a decoding sequence. But the
//! two round differently. What a token becomes may not depend on how many others share its step (NUMERICS.md, rule 5): a
//! prompt's tokens may be computed again one at a time, after a preemption or as guesses of a draft. So one form is used
//! for all, and decoding leaves the choice of one.

use std::ops::Range;

use tokenmill_ir::KvFormat;
use tokenmill_quant::float::{bf16_factor, bf16_to_f32, f32_to_bf16};

use super::codes::{code_scale, short_code, top};
use super::layout::{BLOCK_TOKENS, GROUP, int8_code, int8_scale, is_codes};
use super::{AttendJob, Keys, STORED_MAX};
use crate::isa::Isa;
use crate::math::per_isa;
use crate::memory::Parts;

/// Bytes before the numbers of a row: the scales of its latent and of its key, used for codes only.
pub(super) const SCALES: usize = 8;
/// Columns of bytes whose products with codes of queries surely fit 32 bits: 512 · 32767 · 127 < 2³¹.
const BYTES_TOGETHER: usize = 512;
/// The same of 16-bit codes: few, so that queries have 13 bits.
const SHORTS_TOGETHER: usize = 128;

/// Most heads that are computed together: their queries and results fit the second-level cache beside a tile.
const HEADS_TOGETHER: usize = 32;

/// Shape of one layer's latents: blocks of 32 rows, `[scale, scale | latent | key]` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentLayout {
    /// How numbers are stored.
    pub format: KvFormat,
    /// Columns of a latent.
    pub latent: usize,
    /// Columns of a rotated key.
    pub rope: usize,
}

impl LatentLayout {
    /// Bytes of a number.
    pub(super) const fn number_bytes(&self) -> usize {
        match self.format {
            KvFormat::F32 => 4,
            KvFormat::Bf16 | KvFormat::Int16 => 2,
            KvFormat::Int8 | KvFormat::Int4 | KvFormat::K8V4 => 1,
        }
    }

    /// Bytes of a token.
    pub(super) const fn row_bytes(&self) -> usize {
        SCALES + ((self.latent + self.rope) * self.number_bytes()).next_multiple_of(4)
    }

    /// Bytes of a block: block `b` of a cache starts at byte `b · block_bytes()`.
    pub const fn block_bytes(&self) -> usize {
        BLOCK_TOKENS * self.row_bytes()
    }

    /// Stores one token: `slot` (0–31) of `block`. latent `[latent]` after its norm, key `[rope]` after its rotation.
    ///
    /// # Panics
    /// If a row has another length, or the slot is not in the cache.
    ///
    /// # Safety
    /// Nothing else may use that token at the same time; other tokens of the block may be stored at the same time.
    pub unsafe fn store(
        &self,
        isa: Isa,
        cache: Parts<'_, u8>,
        (block, slot): (usize, usize),
        latent: &[f32],
        key: &[f32],
    ) {
        assert_eq!((latent.len(), key.len()), (self.latent, self.rope), "columns of a latent");
        assert!(slot < BLOCK_TOKENS, "slot of the block");
        let start = block * self.block_bytes() + slot * self.row_bytes();
        // SAFETY: `part` checks the range; alone by contract.
        let to = unsafe { cache.part(start..start + self.row_bytes()) };
        store_row(isa, *self, to, latent, key);
    }

    /// The rows of a block from that slot on.
    #[inline(always)]
    pub(super) fn rows<'a>(&self, bytes: &'a [u8], block: usize, slot: usize) -> &'a [u8] {
        &bytes[block * self.block_bytes()..][..self.block_bytes()][slot * self.row_bytes()..]
    }

    /// The first numbers of a row, codes without their scale; returns the scales (1 where numbers are no codes).
    pub(super) fn numbers(&self, row: &[u8], out: &mut [f32]) -> [f32; 2] {
        let numbers = &row[SCALES..];
        for (i, out) in out.iter_mut().enumerate() {
            *out = match self.format {
                KvFormat::F32 => f32::from_le_bytes(numbers.as_chunks::<4>().0[i]),
                KvFormat::Bf16 => bf16_to_f32(u16::from_le_bytes(numbers.as_chunks::<2>().0[i])),
                KvFormat::Int16 => f32::from(i16::from_le_bytes(numbers.as_chunks::<2>().0[i])),
                _ => f32::from(numbers[i] as i8),
            };
        }
        if is_codes(self.format) { scales(row) } else { [1.0; 2] }
    }
}

/// The scales of a row of codes.
#[inline(always)]
pub(super) fn scales(row: &[u8]) -> [f32; 2] {
    let scales = row[..SCALES].as_chunks::<4>().0;
    [f32::from_le_bytes(scales[0]), f32::from_le_bytes(scales[1])]
}

/// Into how many groups the heads of a token are divided, which are computed apart: as few as have no more than 32.
pub fn head_groups(heads: usize) -> usize {
    let fits = |groups: &usize| heads.is_multiple_of(*groups) && heads / groups <= HEADS_TOGETHER;
    (1..=heads).find(fits).unwrap_or(1)
}

per_isa! {
    store_row(layout: LatentLayout, to: &mut [u8], latent: &[f32], key: &[f32]) = encode_row;
}

#[inline(always)]
fn encode_row(layout: LatentLayout, to: &mut [u8], latent: &[f32], key: &[f32]) {
    let (scales, numbers) = to.split_at_mut(SCALES);
    let (of_latent, of_key) = numbers.split_at_mut(latent.len() * layout.number_bytes());
    let scales = scales.as_chunks_mut::<4>().0;
    for ((x, to), scale) in [(latent, of_latent), (key, of_key)].into_iter().zip(scales) {
        let of_codes = match layout.format {
            KvFormat::F32 => put(x, to, 1.0, f32::to_le_bytes),
            KvFormat::Bf16 => put(x, to, 1.0, |x| bf16_factor(f32_to_bf16(x)).to_le_bytes()),
            KvFormat::Int16 => {
                let (inverse, scale) = code_scale(top(x), STORED_MAX);
                put(x, to, scale, |x| short_code(x, inverse).to_le_bytes())
            }
            KvFormat::Int8 | KvFormat::Int4 | KvFormat::K8V4 => {
                let scale = int8_scale(x);
                put(x, to, scale, |x| int8_code(x, scale).to_le_bytes())
            }
        };
        *scale = of_codes.to_le_bytes();
    }
}

/// Writes numbers, and returns their scale.
#[inline(always)]
fn put<const N: usize>(
    x: &[f32],
    to: &mut [u8],
    scale: f32,
    encode: impl Fn(f32) -> [u8; N],
) -> f32 {
    to.as_chunks_mut::<N>().0.iter_mut().zip(x).for_each(|(to, x)| *to = encode(*x));
    scale
}

/// Columns of a key whose products are summed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Which columns.
    pub cols: Range<usize>,
    /// The first of its steps among those of a key, and how many it has.
    pub first: usize,
    pub steps: usize,
    /// Which of a key's scales its codes have.
    pub scale: usize,
}

/// The segments of a key, in order.
#[derive(Clone, Debug)]
pub(super) struct Segments {
    /// Where the columns of either scale end.
    ends: [usize; 2],
    /// Most columns of a segment.
    most: usize,
    per_step: usize,
    col: usize,
    first: usize,
}

impl Iterator for Segments {
    type Item = Segment;

    #[inline(always)]
    fn next(&mut self) -> Option<Segment> {
        let (start, first) = (self.col, self.first);
        let scale = usize::from(start >= self.ends[0]);
        let end = self.ends[scale].min(start + self.most);
        if start >= end {
            return None;
        }
        let steps = (end - start).div_ceil(self.per_step);
        (self.col, self.first) = (end, first + steps);
        Some(Segment { cols: start..end, first, steps, scale })
    }
}

impl AttendJob<'_> {
    /// The segments of a key, where a step takes so many columns. Codes of latents and of keys have scales of their own; all
    /// else is one segment.
    #[inline(always)]
    pub(super) fn segments(&self, per_step: usize) -> Segments {
        let (ends, most) = match self.keys {
            Keys::Latents { layout, .. } if is_codes(layout.format) => {
                let shorts = layout.format == KvFormat::Int16;
                let most = if shorts { SHORTS_TOGETHER } else { BYTES_TOGETHER };
                ([layout.latent, self.k_dim], most)
            }
            _ => ([self.k_dim; 2], self.k_dim),
        };
        Segments { ends, most, per_step, col: 0, first: 0 }
    }

    /// Steps of a key.
    #[inline(always)]
    pub(super) fn key_steps(&self, per_step: usize) -> usize {
        match self.keys {
            Keys::Latents { .. } => self.segments(per_step).map(|segment| segment.steps).sum(),
            _ => self.k_dim.div_ceil(per_step),
        }
    }

    /// Whether keys are latents.
    #[inline(always)]
    pub(super) fn has_latents(&self) -> bool {
        matches!(self.keys, Keys::Latents { .. })
    }
}

/// Most segments of a key of so many columns.
pub(super) const fn most_segments(k_dim: usize) -> usize {
    k_dim.div_ceil(SHORTS_TOGETHER) + 1
}

/// Words from one row of values to the next: an odd number of cache lines, so that a column of them does not meet in
/// few sets of a cache.
pub(super) const fn value_stride(latent: usize) -> usize {
    (latent.div_ceil(GROUP) | 1) * GROUP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_divided_evenly_into_few_groups() {
        for (heads, groups) in [(1, 1), (5, 1), (16, 1), (20, 1), (40, 2), (64, 2), (128, 4)] {
            assert_eq!(head_groups(heads), groups, "{heads} heads");
        }
        assert_eq!(head_groups(0), 1);
    }

    #[test]
    fn a_row_is_read_back_through_its_format() {
        let x = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 16.0;
        let (latent, key): (Vec<f32>, Vec<f32>) =
            ((0..21).map(x).collect(), (30..37).map(|i| 8.0 * x(i)).collect());
        for format in [KvFormat::F32, KvFormat::Bf16, KvFormat::Int16, KvFormat::Int8] {
            let layout = LatentLayout { format, latent: 21, rope: 7 };
            let mut bytes = vec![0xff; 2 * layout.block_bytes()];
            // SAFETY: one thread.
            unsafe {
                layout.store(Isa::detect(), Parts::new(&mut bytes), (1, 9), &latent, &key);
            }
            let mut got = vec![0.0; 28];
            let scales = layout.numbers(layout.rows(&bytes, 1, 9), &mut got);
            let step = match format {
                KvFormat::F32 => 0.0,
                KvFormat::Bf16 => 1.0 / 256.0,
                KvFormat::Int16 => 0.5 / 4095.0,
                _ => 0.5 / 127.0,
            };
            for (part, scale, x) in [(0..21, scales[0], &latent), (21..28, scales[1], &key)] {
                let most = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                for (got, x) in got[part].iter().zip(x) {
                    assert!((got * scale - x).abs() <= 1.001 * step * most, "{format:?} {got} {x}");
                }
            }
            assert!(
                bytes[..layout.block_bytes() + 9 * layout.row_bytes()].iter().all(|b| *b == 0xff)
            );
        }
    }
}

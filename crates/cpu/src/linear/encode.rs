//! Activations as the linear kernels read them: lines of 64 bytes.
//!
//! The int8 encoding of 32 columns of one token is one line of 16 words:
//!
//! | word | holds |
//! |------|-------|
//! | 0–7  | a\[k\] as signed bytes, four to a word, lowest column lowest |
//! | 8    | s, f32 |
//! | 9    | −s·1.5·2²³, f32, exact because s has 22 significant bits |
//! | 10   | s·f32(Σa), f32 |
//! | 11–13 | B − 8·Σa, B − 16·Σa, B − 128·Σa |
//! | 14–15 | B − 32·Σa of columns 0–15, and of columns 16–31 |
//!
//! B is the bit pattern of the f32 1.5·2²³: adding an integer i, |i| < 2²², to that pattern
//! gives the f32 1.5·2²³ + i. A kernel starts its integer sum from B − zero·Σa and gets
//! s·f32(isum), correctly rounded, as one fma of the sum's bits with words 8 and 9.
//!
//! s = amax/127 with the two low bits of its significand cleared; a\[k\] = x\[k\]·(1/s) rounded
//! to nearest, ties to even. Both depend on nothing but the 32 columns.

use tokenmill_quant::float::{bf16_to_f32, f32_to_bf16};
use tokenmill_quant::panel::{BLOCK_COLS, PanelLayout};

use super::Mode;
use crate::isa::Isa;
use crate::math::per_isa;

/// 64 bytes of encoded activations, aligned so that a load never crosses a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Line(pub [u32; 16]);

impl Line {
    /// A line of zeros.
    pub const ZERO: Line = Line([0; 16]);
}

/// Word of a line that holds s.
pub(super) const SCALE: usize = 8;
/// Word that holds −s·1.5·2²³.
pub(super) const SCALE_BIAS: usize = 9;
/// Word that holds s·f32(Σa).
pub(super) const SUM: usize = 10;
/// Word that the integer sum starts from, by zero point; `None` for 0 (start from `BIAS`).
pub(super) const fn start_word(zero: u8) -> Option<usize> {
    match zero {
        8 => Some(11),
        16 => Some(12),
        128 => Some(13),
        32 => Some(14),
        _ => None,
    }
}
/// Bits of the f32 1.5·2²³.
pub(super) const BIAS: i32 = 0x4b40_0000;

/// Blocks below this magnitude encode as zero.
const TINY: f32 = f32::from_bits((127 - 100) << 23); // 2⁻¹⁰⁰
/// Blocks from this magnitude on encode as NaN.
const HUGE: f32 = f32::from_bits((127 + 100) << 23); // 2¹⁰⁰

/// How a row of activations is encoded for a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Encoding {
    /// Signed bytes with an f32 scale per 32 columns.
    Int8,
    /// f32 values rounded to bf16.
    Bf16,
    /// f32 values as they are.
    F32,
}

impl Encoding {
    /// The encoding a weight in `layout` reads in `mode`.
    pub const fn of(layout: PanelLayout, mode: Mode) -> Encoding {
        match (layout, mode) {
            (PanelLayout::F32 | PanelLayout::F16, _) | (_, Mode::F32) => Encoding::F32,
            (_, Mode::Bf16) => Encoding::Bf16,
            (PanelLayout::Bf16, Mode::Int8) => Encoding::F32,
            (_, Mode::Int8) => Encoding::Int8,
        }
    }

    /// Lines from one encoded row to the next: an odd number, so that rows a power of two
    /// apart do not share cache sets.
    pub const fn lines(self, cols: usize) -> usize {
        match self {
            Encoding::Int8 => cols.div_ceil(BLOCK_COLS) | 1,
            Encoding::Bf16 | Encoding::F32 => cols.div_ceil(16) | 1,
        }
    }

    /// Encodes one token's row `x` into `out`, `lines(x.len())` long.
    ///
    /// # Panics
    /// If `out` has another length, or `isa` is not available on this machine.
    pub fn encode(self, isa: Isa, x: &[f32], out: &mut [Line]) {
        assert_eq!(out.len(), self.lines(x.len()), "lines of an encoded row");
        assert!(isa.is_available(), "{} is not available here", isa.name());
        match self {
            Encoding::Int8 => encode_bytes(isa, x, out),
            Encoding::Bf16 => encode_rounded(isa, x, out),
            Encoding::F32 => encode_floats(isa, x, out),
        }
    }
}

per_isa! {
    /// A row as bytes with scales.
    encode_bytes(x: &[f32], out: &mut [Line]) = bytes_of_row;
    /// A row rounded to bf16.
    encode_rounded(x: &[f32], out: &mut [Line]) = rounded_row;
    /// A row as it is.
    encode_floats(x: &[f32], out: &mut [Line]) = float_row;
}

#[inline(always)]
fn bytes_of_row(x: &[f32], out: &mut [Line]) {
    let (whole, rest) = x.as_chunks::<BLOCK_COLS>();
    let (lines, tail) = out.split_at_mut(whole.len());
    for (x, line) in whole.iter().zip(lines) {
        *line = encode_block(x);
    }
    tail.fill(Line::ZERO);
    if let (false, Some(line)) = (rest.is_empty(), tail.first_mut()) {
        let mut block = [0.0; BLOCK_COLS];
        block[..rest.len()].copy_from_slice(rest);
        *line = encode_block(&block);
    }
}

#[inline(always)]
fn rounded_row(x: &[f32], out: &mut [Line]) {
    words_of_row(x, out, |x| bf16_to_f32(f32_to_bf16(x)).to_bits());
}

#[inline(always)]
fn float_row(x: &[f32], out: &mut [Line]) {
    words_of_row(x, out, f32::to_bits);
}

#[inline(always)]
fn words_of_row(x: &[f32], out: &mut [Line], word: impl Fn(f32) -> u32) {
    let (whole, rest) = x.as_chunks::<16>();
    let (lines, tail) = out.split_at_mut(whole.len());
    for (x, line) in whole.iter().zip(lines) {
        *line = Line(x.map(&word));
    }
    tail.fill(Line::ZERO);
    for (x, to) in rest.iter().zip(tail.iter_mut().flat_map(|line| &mut line.0)) {
        *to = word(*x);
    }
}

/// The int8 encoding of 32 columns.
#[inline(always)]
fn encode_block(x: &[f32; BLOCK_COLS]) -> Line {
    // As integers, so that a NaN is the largest of all.
    let amax = x.iter().fold(0, |top, x| top.max(x.to_bits() & 0x7fff_ffff));
    let amax = f32::from_bits(amax);
    if amax < TINY {
        return line_of(0.0, &[0; BLOCK_COLS]);
    }
    if amax.is_nan() || amax >= HUGE {
        return line_of(f32::NAN, &[0; BLOCK_COLS]);
    }
    let scale = f32::from_bits((amax / 127.0).to_bits() & !3);
    let inverse = 1.0 / scale;
    // Adding 1.5·2²³ rounds to a whole number, which is then in the low bits.
    let bias = f32::from_bits(BIAS as u32);
    line_of(scale, &x.map(|x| (x * inverse + bias).to_bits() as i8))
}

/// Lays out the codes and what the kernels need of their sums.
#[inline(always)]
fn line_of(scale: f32, codes: &[i8; BLOCK_COLS]) -> Line {
    let sum = |codes: &[i8]| codes.iter().map(|&a| i32::from(a)).sum::<i32>();
    let (low, high) = (sum(&codes[..16]), sum(&codes[16..]));
    let start = |zero: i32, sum: i32| (BIAS - zero * sum) as u32;
    let mut words = [0; 16];
    for (word, codes) in words.iter_mut().zip(codes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(codes.map(|a| a as u8));
    }
    words[SCALE] = scale.to_bits();
    words[SCALE_BIAS] = (scale * -f32::from_bits(BIAS as u32)).to_bits();
    words[SUM] = (scale * (low + high) as f32).to_bits();
    words[11] = start(8, low + high);
    words[12] = start(16, low + high);
    words[13] = start(128, low + high);
    words[14] = start(32, low);
    words[15] = start(32, high);
    Line(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of many magnitudes, with zeros, subnormals and what cannot be encoded.
    fn rows() -> Vec<Vec<f32>> {
        let mut seed = 5_u32;
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as f32 / 8_388_608.0 - 1.0
        };
        let mut rows: Vec<Vec<f32>> = (-34..36)
            .map(|e| (0..97 + (e + 34)).map(|_| next() * 10_f32.powi(e)).collect())
            .collect();
        rows.push(vec![0.0; 64]);
        rows.push(vec![-1e-40; 40]);
        rows.push([vec![1.0; 33], vec![f32::NAN]].concat());
        rows.push([vec![f32::NEG_INFINITY], vec![2.0; 70]].concat());
        // Halves between codes: 127 is the largest, so the scale is 1.
        rows.push((0..64).map(|i| if i % 32 == 0 { 127.0 } else { i as f32 - 32.5 }).collect());
        rows
    }

    #[test]
    fn bytes_follow_their_definition() {
        for x in rows() {
            let mut out = vec![Line::ZERO; Encoding::Int8.lines(x.len())];
            Encoding::Int8.encode(Isa::Scalar, &x, &mut out);
            for (x, Line(words)) in x.chunks(BLOCK_COLS).zip(&out) {
                let amax =
                    x.iter().fold(0.0_f32, |top, x| if x.is_nan() { *x } else { top.max(x.abs()) });
                let scale = f32::from_bits(words[SCALE]);
                if amax.is_nan() || amax >= HUGE {
                    assert!(scale.is_nan());
                    continue;
                }
                let mut sums = [0, 0];
                for (k, x) in x.iter().enumerate() {
                    let a = words[k / 4].to_le_bytes()[k % 4] as i8;
                    sums[k / 16] += i32::from(a);
                    let expect =
                        if amax < TINY { 0.0 } else { (x * (1.0 / scale)).round_ties_even() };
                    assert_eq!(f32::from(a), expect, "{x} with scale {scale}");
                    assert!((x - scale * f32::from(a)).abs() <= (0.501 * scale).max(TINY));
                }
                assert_eq!(scale.to_bits() & 3, 0);
                assert!(amax < TINY || (scale * 127.0 / amax - 1.0).abs() < 1e-6);
                let sum = sums[0] + sums[1];
                assert_eq!(
                    f64::from(f32::from_bits(words[SCALE_BIAS])),
                    f64::from(scale) * -12_582_912.0
                );
                assert_eq!(f32::from_bits(words[SUM]), scale * sum as f32);
                for (zero, word) in [(8, 11), (16, 12), (128, 13)] {
                    assert_eq!(start_word(zero), Some(word));
                    assert_eq!(words[word] as i32, BIAS - i32::from(zero) * sum);
                }
                assert_eq!(words[14] as i32, BIAS - 32 * sums[0]);
                assert_eq!(words[15] as i32, BIAS - 32 * sums[1]);
            }
        }
    }

    #[test]
    fn every_instruction_set_encodes_the_same_lines() {
        for x in rows() {
            for encoding in [Encoding::Int8, Encoding::Bf16, Encoding::F32] {
                let run = |isa: Isa| {
                    let mut out = vec![Line([7; 16]); encoding.lines(x.len())];
                    encoding.encode(isa, &x, &mut out);
                    out
                };
                for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                    assert!(run(isa) == run(Isa::Scalar), "{encoding:?} on {}", isa.name());
                }
            }
        }
    }
}

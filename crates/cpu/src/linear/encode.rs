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
//! What s, a, outliers and residual lines are: NUMERICS.md, "int8".
//!
//! A row is the lines of its blocks, then lines of bits that say which blocks are outliers (bit
//! b % 32 of word b / 32), then the residual lines, zero where the block is no outlier.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use std::ptr::from_ref;

use crate::panel::{BLOCK_COLS, PanelLayout};
use tokenmill_quant::float::rounded_factor;

use super::Mode;
use crate::isa::Isa;
use crate::math::{per_isa, tree};
use crate::memory::prefetch_to_write;

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
/// Words that hold B − 32·Σa of columns 0–15, and of columns 16–31.
pub(super) const HALF_SUM: usize = 14;
/// First of the words that integer sums start from.
const FIRST_START: usize = 11;
/// Word that the integer sum starts from, by zero point; `None` for 0 (start from `BIAS`).
pub(super) const fn start_word(zero: u8) -> Option<usize> {
    match zero {
        8 => Some(FIRST_START),
        16 => Some(12),
        128 => Some(13),
        32 => Some(HALF_SUM),
        _ => None,
    }
}
/// Lines before the residual lines of a row: those of its blocks, and the bits.
pub(super) const fn residual_lines(blocks: usize) -> usize {
    blocks + blocks.div_ceil(512)
}
/// Bits of the f32 1.5·2²³.
pub(super) const BIAS: i32 = 0x4b40_0000;

/// A block this many times above the mean magnitude of its row is an outlier.
const OUTLIER: f32 = 8.0;
/// The same for [`Encoding::Int8Coarse`].
const OUTLIER_COARSE: f32 = 16.0;
/// Blocks below this magnitude encode as zero.
pub(super) const TINY: f32 = f32::from_bits((127 - 100) << 23); // 2⁻¹⁰⁰
/// Blocks from this magnitude on encode as NaN.
pub(super) const HUGE: f32 = f32::from_bits((127 + 100) << 23); // 2¹⁰⁰

/// How a row of activations is encoded for a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Encoding {
    /// Signed bytes with an f32 scale per 32 columns; second bytes where a block is an outlier.
    Int8,
    /// The same with fewer outlier blocks, for weights whose own error is far larger.
    Int8Coarse,
    /// Values rounded to bf16: as f32s, or as pairs for an instruction set that multiplies pairs.
    Bf16,
    /// f32 values as they are.
    F32,
    /// f32 values as they are, which every product transforms by its own weight's factors and then
    /// encodes as `Int8`.
    Transformed,
}

/// Whether codes have at most four bits: what such a weight differs from its original by is far more than
/// what inputs in bytes add (`docs/decisions/0005`). Q4_1 is not among these types.
const fn is_coarse(layout: PanelLayout) -> bool {
    use PanelLayout::*;
    match layout.group() {
        Some(group) if layout.is_flat() => group.low_bytes <= 256,
        _ => matches!(
            layout,
            Zero4
                | Table4
                | HalfTable
                | Nvfp4
                | FloatTable16
                | Super2
                | Super3
                | Super4
                | Ternary
                | Iq2Xxs
                | Iq2Xs
                | Iq2S
                | Iq3Xxs
                | Iq3S
                | Iq1S
                | Iq1M
                | SuperTable
                | SuperTable16
        ),
    }
}

impl Encoding {
    /// The encoding a weight in `layout` reads in `mode`.
    pub const fn of(layout: PanelLayout, mode: Mode) -> Encoding {
        match (layout, mode) {
            // Weights that are transformed have this layout in the int8 mode alone.
            (PanelLayout::Trellis(_), _) => Encoding::Transformed,
            (PanelLayout::F32 | PanelLayout::F16 | PanelLayout::Lookup4, _) => Encoding::F32,
            (_, Mode::F32) => Encoding::F32,
            (_, Mode::Bf16) => Encoding::Bf16,
            (layout, Mode::Int8) if is_coarse(layout) => Encoding::Int8Coarse,
            (layout, Mode::Int8) if layout.is_integer() => Encoding::Int8,
            (PanelLayout::Bf16, Mode::Int8) => Encoding::Bf16,
            _ => Encoding::F32,
        }
    }

    /// Whether inputs are bytes.
    pub const fn is_bytes(self) -> bool {
        matches!(self, Encoding::Int8 | Encoding::Int8Coarse)
    }

    /// Whether the product itself transforms and encodes its input.
    pub const fn is_transformed(self) -> bool {
        matches!(self, Encoding::Transformed)
    }

    /// Lines from one encoded row to the next: an odd number, so that rows a power of two
    /// apart do not share cache sets.
    pub const fn lines(self, cols: usize) -> usize {
        match self {
            Encoding::Int8 | Encoding::Int8Coarse => {
                let blocks = cols.div_ceil(BLOCK_COLS);
                (residual_lines(blocks) + blocks) | 1
            }
            _ => cols.div_ceil(16) | 1,
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
            Encoding::Int8 => bytes(isa, x, OUTLIER, out),
            Encoding::Int8Coarse => bytes(isa, x, OUTLIER_COARSE, out),
            Encoding::Bf16 if isa == Isa::Avx512Bf16 => encode_pairs(isa, x, out),
            Encoding::Bf16 => encode_rounded(isa, x, out),
            Encoding::F32 | Encoding::Transformed => encode_floats(isa, x, out),
        }
    }
}

per_isa! {
    /// A row rounded to bf16.
    encode_rounded(x: &[f32], out: &mut [Line]) = rounded_row;
    /// A row rounded to bf16, in pairs of columns as they lie in panels.
    encode_pairs(x: &[f32], out: &mut [Line]) = pairs_of_row;
    /// A row as it is.
    encode_floats(x: &[f32], out: &mut [Line]) = float_row;
}

/// A row as bytes with scales; blocks above `outlier` times the mean magnitude have two.
fn bytes(isa: Isa, x: &[f32], outlier: f32, out: &mut [Line]) {
    match isa {
        Isa::Scalar => bytes_of_row::<Plain>(x, outlier, out),
        // SAFETY: the features are there.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni => unsafe { avx2::bytes_of_row(x, outlier, out) },
        // SAFETY: the features are there.
        #[cfg(target_arch = "x86_64")]
        _ => unsafe { avx512::bytes_of_row(x, outlier, out) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("an instruction set of x86-64"),
    }
}

/// How a block is encoded.
pub(super) trait Blocks {
    /// [`encode_block`].
    fn encode(x: &[f32; BLOCK_COLS], limit: f32, line: &mut Line, residual: &mut Line) -> bool;
}

/// [`encode_block`] itself.
struct Plain;

impl Blocks for Plain {
    #[inline(always)]
    fn encode(x: &[f32; BLOCK_COLS], limit: f32, line: &mut Line, residual: &mut Line) -> bool {
        encode_block(x, limit, line, residual)
    }
}

/// Lines of a row that are prefetched.
const LINES_AHEAD: usize = 8;

/// A row as bytes with scales.
#[inline(always)]
pub(super) fn bytes_of_row<B: Blocks>(x: &[f32], outlier: f32, out: &mut [Line]) {
    let blocks = x.len().div_ceil(BLOCK_COLS);
    let limit = outlier * (magnitude(x) / x.len() as f32);
    let (first, rest) = out.split_at_mut(blocks);
    let (bits, second) = rest.split_at_mut(residual_lines(blocks) - blocks);
    bits.fill(Line::ZERO);
    let (whole, rest) = x.as_chunks();
    let mut last = [0.0; BLOCK_COLS];
    last[..rest.len()].copy_from_slice(rest);
    // Blocks are read where they lie: put together with the last one they would go through a copy.
    for (b, (line, second)) in first.iter_mut().zip(second).enumerate() {
        // Stores leave in order: those of lines in no near cache would hold up all behind them.
        prefetch_to_write(from_ref(line).wrapping_add(LINES_AHEAD));
        prefetch_to_write(from_ref(second).wrapping_add(LINES_AHEAD));
        let block = whole.get(b).unwrap_or(&last);
        if B::encode(block, limit, line, second) {
            bits[b / 512].0[b / 32 % 16] |= 1 << (b % 32);
        }
    }
}

/// Σ |x| by the lanes and tree of all sums.
#[inline(always)]
fn magnitude(x: &[f32]) -> f32 {
    let (vectors, rest) = x.as_chunks::<16>();
    let mut lanes = [0.0; 16];
    for vector in vectors {
        for (lane, x) in lanes.iter_mut().zip(vector) {
            *lane += x.abs();
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += x.abs();
    }
    tree(lanes)
}

#[inline(always)]
fn rounded_row(x: &[f32], out: &mut [Line]) {
    words_of_row(x, out, |x| rounded_factor(x).to_bits());
}

#[inline(always)]
fn pairs_of_row(x: &[f32], out: &mut [Line]) {
    let (whole, rest) = x.as_chunks::<32>();
    let (lines, tail) = out.split_at_mut(whole.len());
    let pair = |first: f32, second: f32| {
        rounded_factor(first).to_bits() | rounded_factor(second).to_bits() >> 16
    };
    for (x, line) in whole.iter().zip(lines) {
        for (x, to) in x.as_chunks::<2>().0.iter().zip(&mut line.0) {
            *to = pair(x[0], x[1]);
        }
    }
    // A row of pairs is half as long as its lines; of what is not a whole line the rest is zero.
    if let Some(line) = tail.first_mut() {
        *line = Line::ZERO;
        for (x, to) in rest.chunks(2).zip(&mut line.0) {
            *to = pair(x[0], x.get(1).copied().unwrap_or(0.0));
        }
    }
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
        for (x, to) in x.iter().zip(&mut line.0) {
            *to = word(*x);
        }
    }
    tail.fill(Line::ZERO);
    for (x, to) in rest.iter().zip(tail.iter_mut().flat_map(|line| &mut line.0)) {
        *to = word(*x);
    }
}

/// Encodes 32 columns into a line, and what is left into a residual line if their magnitude is
/// above `limit`; says whether it is.
#[inline(always)]
pub(super) fn encode_block(
    x: &[f32; BLOCK_COLS],
    limit: f32,
    line: &mut Line,
    residual: &mut Line,
) -> bool {
    // As integers, so that a NaN is the largest of all.
    let amax = x.iter().fold(0, |top, x| top.max(x.to_bits() & 0x7fff_ffff));
    let amax = f32::from_bits(amax);
    *residual = SILENT;
    if amax < TINY {
        *line = SILENT;
        return false;
    }
    if amax.is_nan() || amax >= HUGE {
        *line = line_of(f32::NAN, &[0; BLOCK_COLS]);
        return false;
    }
    let scale = clear_low_bits(amax / 127.0);
    let codes = codes_of(x, scale);
    *line = line_of(scale, &codes);
    let outlier = amax > limit;
    if outlier {
        let mut left = *x;
        for (left, code) in left.iter_mut().zip(codes) {
            *left = (code as f32).mul_add(-scale, *left);
        }
        let scale = clear_low_bits(scale / 254.0);
        *residual = line_of(scale, &codes_of(&left, scale));
    }
    outlier
}

/// With a significand of 22 bits.
#[inline(always)]
pub(super) fn clear_low_bits(scale: f32) -> f32 {
    f32::from_bits(scale.to_bits() & !3)
}

// Loops instead of `map`, whose closures are compiled apart, without the instruction set.

#[inline(always)]
fn codes_of(x: &[f32; BLOCK_COLS], scale: f32) -> [i32; BLOCK_COLS] {
    let inverse = 1.0 / scale;
    // Adding 1.5·2²³ rounds to a whole number, which is then in the low bits.
    let bias = f32::from_bits(BIAS as u32);
    let mut codes = [0; BLOCK_COLS];
    for (code, x) in codes.iter_mut().zip(x) {
        *code = (x * inverse + bias).to_bits() as i32 - BIAS;
    }
    codes
}

/// A block of zeros.
pub(super) const SILENT: Line = {
    let mut words = [0; 16];
    words[SCALE_BIAS] = (-0.0_f32).to_bits();
    let mut i = FIRST_START;
    while i < 16 {
        words[i] = BIAS as u32;
        i += 1;
    }
    Line(words)
};

/// Lays out the codes and what the kernels need of their sums.
#[inline(always)]
fn line_of(scale: f32, codes: &[i32; BLOCK_COLS]) -> Line {
    let mut sums = [0; 16];
    let (low, high) = codes.split_at(16);
    for ((sum, low), high) in sums.iter_mut().zip(low).zip(high) {
        // Both sums at once, in halves of a word.
        *sum = low + (high << 16);
    }
    let both = sums.iter().sum::<i32>();
    let low = i32::from(both as i16);
    let high = (both - low) >> 16;
    let mut bytes = [0; BLOCK_COLS];
    for (byte, code) in bytes.iter_mut().zip(codes) {
        *byte = *code as u8;
    }
    let mut words = [0; 16];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    let start = |zero: i32, sum: i32| (BIAS - zero * sum) as u32;
    words[SCALE] = scale.to_bits();
    words[SCALE_BIAS] = (scale * -f32::from_bits(BIAS as u32)).to_bits();
    words[SUM] = (scale * (low + high) as f32).to_bits();
    words[FIRST_START] = start(8, low + high);
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
        // One outlier block of three.
        rows.push((0..96).map(|i| if i == 40 { 90.0 } else { (i as f32).sin() }).collect());
        // More blocks than are computed at once, of which some are outliers and some cannot be encoded.
        let mut long: Vec<f32> = (0..32 * 37 + 5).map(|_| next()).collect();
        rows.push(long.clone());
        for (i, x) in [(3, 40.0), (511, -70.0), (512, 50.0), (700, f32::NAN), (1188, 90.0)] {
            long[i] = x;
            rows.push(long.clone());
        }
        long[32 * 20..32 * 34].fill(0.0);
        long[32 * 22] = f32::INFINITY;
        rows.push(long[..32 * 36].to_vec());
        long[700] = 0.0;
        long[32 * 22] = -99.0;
        rows.push(long);
        // Halves between codes: 127 is the largest, so the scale is 1.
        rows.push((0..64).map(|i| if i % 32 == 0 { 127.0 } else { i as f32 - 32.5 }).collect());
        rows
    }

    /// Checks what a line says of itself; returns its scale and codes.
    fn check_line(Line(words): &Line) -> (f32, Vec<f32>) {
        let scale = f32::from_bits(words[SCALE]);
        let codes: Vec<i8> =
            words[..8].iter().flat_map(|w| w.to_le_bytes()).map(|a| a as i8).collect();
        let sum = |codes: &[i8]| codes.iter().map(|&a| i32::from(a)).sum::<i32>();
        let sums = [sum(&codes[..16]), sum(&codes[16..])];
        assert_eq!(scale.to_bits() & 3, 0);
        let bias = f64::from(f32::from_bits(words[SCALE_BIAS]));
        assert_eq!(bias, f64::from(scale) * -12_582_912.0, "exact");
        assert_eq!(f32::from_bits(words[SUM]), scale * (sums[0] + sums[1]) as f32);
        for (zero, word) in [(8, 11), (16, 12), (128, 13)] {
            assert_eq!(start_word(zero), Some(word));
            assert_eq!(words[word] as i32, BIAS - i32::from(zero) * (sums[0] + sums[1]));
        }
        assert_eq!(start_word(32), Some(14));
        assert_eq!([words[14] as i32, words[15] as i32], sums.map(|sum| BIAS - 32 * sum));
        (scale, codes.into_iter().map(f32::from).collect())
    }

    #[test]
    fn bytes_follow_their_definition() {
        let encodings = [(Encoding::Int8, OUTLIER), (Encoding::Int8Coarse, OUTLIER_COARSE)];
        for (x, (encoding, limit)) in rows().iter().flat_map(|x| encodings.map(|e| (x, e))) {
            let mut out = vec![Line::ZERO; encoding.lines(x.len())];
            encoding.encode(Isa::Scalar, x, &mut out);
            let blocks = x.len().div_ceil(BLOCK_COLS);
            let mean = x.iter().map(|x| f64::from(x.abs())).sum::<f64>() / x.len() as f64;
            for (b, x) in x.chunks(BLOCK_COLS).enumerate() {
                let amax = x.iter().fold(0.0, |top: f32, x| {
                    if x.is_nan() || top.is_nan() { f32::NAN } else { top.max(x.abs()) }
                });
                let outlier = out[blocks + b / 512].0[b / 32 % 16] >> (b % 32) & 1 == 1;
                if amax.is_nan() || amax >= HUGE {
                    assert!(f32::from_bits(out[b].0[SCALE]).is_nan() && !outlier);
                    continue;
                }
                let (scale, codes) = check_line(&out[b]);
                let (fine, second) = check_line(&out[residual_lines(blocks) + b]);
                if amax < TINY {
                    assert!(scale == 0.0 && fine == 0.0 && !outlier);
                    continue;
                }
                let times = f64::from(amax) / mean;
                assert_eq!(outlier, times > f64::from(limit), "{times}");
                assert!((scale * 127.0 / amax - 1.0).abs() < 1e-6);
                for ((x, a), a2) in x.iter().zip(codes).zip(second) {
                    assert_eq!(a, (x * (1.0 / scale)).round_ties_even(), "{x} by {scale}");
                    let exact = f64::from(*x) - f64::from(scale) * f64::from(a);
                    let left = exact - f64::from(fine) * f64::from(a2);
                    let step = if outlier { fine } else { scale };
                    assert!(left.abs() <= 0.501 * f64::from(step), "{x} by {scale}, {fine}");
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_encodes_the_same_lines() {
        for x in rows() {
            for encoding in [Encoding::Int8, Encoding::Int8Coarse, Encoding::Bf16, Encoding::F32] {
                let run = |isa: Isa| {
                    let mut out = vec![Line([7; 16]); encoding.lines(x.len())];
                    encoding.encode(isa, &x, &mut out);
                    out
                };
                for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                    if (encoding, isa) == (Encoding::Bf16, Isa::Avx512Bf16) {
                        let pair = |w: &[u32]| w[0] | w[1] >> 16;
                        let words = |lines: Vec<Line>| lines.into_iter().flat_map(|line| line.0);
                        let numbers: Vec<u32> = words(run(Isa::Scalar)).take(x.len() + 1).collect();
                        let pairs = words(run(isa)).take(x.len().div_ceil(2));
                        assert!(
                            pairs.eq(numbers.chunks_exact(2).map(pair)),
                            "{} in pairs",
                            x.len()
                        );
                        continue;
                    }
                    assert!(run(isa) == run(Isa::Scalar), "{encoding:?} on {}", isa.name());
                }
            }
        }
    }
}

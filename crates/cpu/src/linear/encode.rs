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
            Encoding::Int8 => {
                let used = x.len().div_ceil(BLOCK_COLS);
                for (x, line) in x.chunks(BLOCK_COLS).zip(&mut *out) {
                    let mut block = [0.0; BLOCK_COLS];
                    block[..x.len()].copy_from_slice(x);
                    *line = encode_block(&block);
                }
                out[used..].fill(Line::ZERO);
            }
            Encoding::Bf16 => store(x.iter().map(|&x| bf16_to_f32(f32_to_bf16(x))), out),
            Encoding::F32 => store(x.iter().copied(), out),
        }
    }
}

fn store(mut values: impl Iterator<Item = f32>, out: &mut [Line]) {
    for word in out.iter_mut().flat_map(|line| &mut line.0) {
        *word = values.next().unwrap_or(0.0).to_bits();
    }
}

/// The int8 encoding of 32 columns.
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
    line_of(scale, &x.map(|x| (x * inverse).round_ties_even() as i8))
}

/// Lays out the codes and what the kernels need of their sums.
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

//! The int8 chain with AMX tiles: 16 tokens × 16 rows × 32 columns to one instruction.
//!
//! The tile unit gives the exact integer sums of a block; AVX-512 then runs the same f32 chain
//! as everywhere, so the results have the same bits. A panel is first expanded to signed
//! codes (zero point taken off), which in the order of a panel are just what the unit needs.

use std::arch::asm;
use std::arch::x86_64::*;

use crate::panel::{BLOCK_COLS, PANEL_ROWS, PanelLayout};

use super::bytes::{scale_and_min, unpack};
use super::encode::{SCALE, SUM, residual_lines};
use super::kind::{self, Kind, OfKind};
use super::{Line, LinearJob};
use crate::simd::Avx512;

/// Tokens in a tile.
const TOKENS: usize = 16;
/// From this many tokens on, tiles do not lose to vectors: widening a weight for them costs as much
/// as sixteen tokens do.
const WORTH_FROM: usize = 96;
/// Encoded tokens kept in the L2 cache while panels pass by, in bytes.
const L2_BYTES: usize = 1 << 20;

/// Whether a job is one for tiles.
pub(super) fn is_worth(job: &LinearJob<'_>) -> bool {
    let kind = Kind::of(&job.spec);
    let coded = kind.is_coded() && kind != Kind::Ternary;
    job.encoding.is_bytes() && job.tokens >= WORTH_FROM && !coded
}

/// Computes a job of the int8 encoding.
///
/// # Safety
/// As [`super::linear`]; `job.check()` has passed; AVX-512 and AMX are available and granted.
pub(super) unsafe fn linear(job: &LinearJob<'_>, scratch: &mut [Line]) {
    // SAFETY: passed on.
    unsafe {
        match job.spec.layout() {
            PanelLayout::Zero4 => run::<kind::Zero4>(job, scratch),
            PanelLayout::Min4 => run::<kind::Min4>(job, scratch),
            PanelLayout::Zero5 => run::<kind::Zero5>(job, scratch),
            PanelLayout::Min5 => run::<kind::Min5>(job, scratch),
            PanelLayout::Zero8 => run::<kind::Zero8>(job, scratch),
            PanelLayout::Super4 => run::<kind::Super4>(job, scratch),
            PanelLayout::Super5 => run::<kind::Super5>(job, scratch),
            PanelLayout::Super6 => run::<kind::Super6>(job, scratch),
            PanelLayout::Table4 => run::<kind::Table4>(job, scratch),
            PanelLayout::Ternary => run::<kind::Ternary>(job, scratch),
            _ => unreachable!("not worth it, as asked before"),
        }
    }
}

/// One call of the tile kernel: a panel on up to 16 tokens.
struct Tile {
    /// The expanded panel.
    weights: *const u8,
    blocks: usize,
    /// First token, and lines from one to the next.
    input: *const Line,
    lines: usize,
    tokens: usize,
    out: *mut f32,
    stride: usize,
    /// Rows of the panel that exist.
    rows: usize,
}

/// Goes over tokens by what fits the L2 cache, then panels, then tokens by 16.
unsafe fn run<K: OfKind>(job: &LinearJob<'_>, scratch: &mut [Line]) {
    let lines = job.encoding.lines(job.spec.cols());
    let blocks = job.spec.cols() / BLOCK_COLS;
    // Of the residual lines some are read.
    let in_cache = (L2_BYTES / 64 / (blocks * 3 / 2)).max(TOKENS) / TOKENS * TOKENS;
    assert!(scratch.len() * 64 >= blocks * const { K::KIND.wide().sizes().group });
    let to = scratch.as_mut_ptr().cast::<u8>();
    // Every run of tokens but the last is a whole number of tiles.
    let rest = job.tokens % TOKENS;
    let halves = if const { K::KIND.has_halves() } { 2 } else { 1 };
    let shape = Shape::new(rest, BLOCK_COLS / halves);
    // SAFETY: `check` found every buffer as large as the shapes say; the shape is legal.
    unsafe {
        configure(&shape);
        for first in (0..job.tokens).step_by(in_cache) {
            let tokens = in_cache.min(job.tokens - first);
            for p in job.panels.clone() {
                let panel = job.weights[p * job.spec.panel_bytes()..].as_ptr();
                widen::<K>(panel, blocks, to);
                for from in (first..first + tokens).step_by(TOKENS) {
                    let tile = Tile {
                        weights: to.cast_const(),
                        blocks,
                        input: job.input[from * lines..].as_ptr(),
                        lines,
                        tokens: TOKENS.min(first + tokens - from),
                        out: job.out.start.add(from * job.out.stride + p * PANEL_ROWS),
                        stride: job.out.stride,
                        rows: job.rows_of_panel(p),
                    };
                    if tile.tokens == TOKENS {
                        tile_of::<K, true>(&tile);
                    } else {
                        tile_of::<K, false>(&tile);
                    }
                }
            }
        }
        release();
    }
}

/// The tile configuration, palette 1.
#[repr(C, align(64))]
struct Shape([u8; 64]);

impl Shape {
    /// Sums in tiles 0 and 1 (16 tokens) and 6 (`rest` tokens); activations in 2, 3 and 7;
    /// codes in 4 and 5. `depth` columns to a product.
    fn new(rest: usize, depth: usize) -> Shape {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        let rest = rest.max(1);
        let shapes = [(16, 64), (16, 64), (16, depth), (16, depth)];
        let shapes = shapes.into_iter().chain([(depth / 4, 64), (depth / 4, 64)]);
        for (i, (rows, row_bytes)) in shapes.chain([(rest, 64), (rest, depth)]).enumerate() {
            bytes[16 + 2 * i] = row_bytes as u8;
            bytes[48 + i] = rows as u8;
        }
        Shape(bytes)
    }
}

/// Sets up the tiles. The compiler never uses them, so they keep their state between `asm!`s.
///
/// # Safety
/// AMX is available and granted; `release` follows.
unsafe fn configure(shape: &Shape) {
    // SAFETY: reads 64 bytes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) shape, options(nostack)) }
}

/// Leaves the tiles unused, so that the system need not save them.
unsafe fn release() {
    // SAFETY: touches the tiles only.
    unsafe { asm!("tilerelease", options(nostack, nomem)) }
}

/// Starts the integer sums of one product in tiles 0, 2, 4 or 1, 3, 5 by `parity`, or in
/// 6, 7, 4 for the last tokens, and stores them to `sums`.
#[inline(always)]
unsafe fn product<const FULL: bool>(
    parity: usize,
    input: *const Line,
    lines: usize,
    codes: *const u8,
    at: usize,
    sums: *mut [Line; TOKENS],
) {
    macro_rules! product {
        ($sum:literal, $input:literal, $codes:literal) => {
            asm!(
                concat!("tilezero ", $sum),
                concat!("tileloadd ", $input, ", [{a} + {step}]"),
                concat!("tileloadd ", $codes, ", [{b} + {line}]"),
                concat!("tdpbssd ", $sum, ", ", $input, ", ", $codes),
                concat!("tilestored [{c} + {line}], ", $sum),
                a = in(reg) input.cast::<u8>().add(at),
                step = in(reg) lines * 64,
                b = in(reg) codes,
                line = in(reg) 64_usize,
                c = in(reg) sums,
                options(nostack)
            )
        };
    }
    // SAFETY: as the caller: the tiles are configured, the pointers cover what they load.
    unsafe {
        match (FULL, parity) {
            (false, _) => product!("tmm6", "tmm7", "tmm4"),
            (true, 0) => product!("tmm0", "tmm2", "tmm4"),
            (true, _) => product!("tmm1", "tmm3", "tmm5"),
        }
    }
}

/// One step of a chain: a block or half of one, on the first lines or the second.
#[derive(Clone, Copy)]
struct Step {
    block: usize,
    half: usize,
    residual: bool,
}

/// The steps of a chain in order, for the union of a tile's outlier blocks.
struct Steps<'a> {
    t: &'a Tile,
    halves: usize,
    next: Step,
    /// Outlier blocks of the 32 that `next` is among.
    outlier: u32,
}

impl Iterator for Steps<'_> {
    type Item = Step;

    #[inline(always)]
    fn next(&mut self) -> Option<Step> {
        let Step { block, half, residual } = self.next;
        if block == self.t.blocks {
            return None;
        }
        if block.is_multiple_of(32) && half == 0 && !residual {
            // SAFETY: the lines of bits follow those of the blocks.
            self.outlier = unsafe {
                let words = self.t.input.add(self.t.blocks).cast::<u32>().add(block / 32);
                let word = |i: usize| *words.add(i * self.t.lines * 16);
                (0..self.t.tokens).fold(0, |outlier, i| outlier | word(i))
            };
        }
        self.next = if half + 1 < self.halves {
            Step { block, half: half + 1, residual }
        } else if !residual && self.outlier >> (block % 32) & 1 == 1 {
            Step { block, half: 0, residual: true }
        } else {
            Step { block: block + 1, half: 0, residual: false }
        };
        Some(Step { block, half, residual })
    }
}

impl Step {
    /// The line of the first token.
    #[inline(always)]
    unsafe fn line(self, t: &Tile) -> *const Line {
        let residual = if self.residual { residual_lines(t.blocks) } else { 0 };
        // SAFETY: inside the row.
        unsafe { t.input.add(self.block + residual) }
    }
}

/// One panel on `FULL` 16 tokens or the last few.
///
/// # Safety
/// The pointers of `t` cover its tokens and blocks; the tiles are configured.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
unsafe fn tile_of<K: OfKind, const FULL: bool>(t: &Tile) {
    let sizes = const { K::KIND.wide().sizes() };
    let halves = if const { K::KIND.has_halves() } { 2 } else { 1 };
    let mut sums = [[Line::ZERO; TOKENS]; 2];
    // SAFETY: all pointers stay inside what the caller vouches for.
    unsafe {
        let start = |parity: usize, step: Step, sums: &mut [Line; TOKENS]| {
            let at = step.block * sizes.group + sizes.scales + step.half * 256;
            let line = step.line(t);
            product::<FULL>(parity, line, t.lines, t.weights.add(at), step.half * 16, sums);
        };
        let first = Step { block: 0, half: 0, residual: false };
        let mut steps = Steps { t, halves, next: first, outlier: 0 };
        let mut acc = [_mm512_setzero_ps(); TOKENS];
        // In memory, where few steps need them, and not in registers that all need.
        let mut residuals = acc;
        let residuals = std::hint::black_box(&mut residuals);
        let mut scale = |step: Step, sums: &[Line; TOKENS]| match step.residual {
            false => scale_sums::<K, FULL>(t, step, sums, &mut acc),
            true => scale_sums::<K, FULL>(t, step, sums, residuals),
        };
        let [even, odd] = &mut sums;
        let mut now = steps.next();
        if let Some(step) = now {
            start(0, step, even);
        }
        // The next product is under way while one is scaled.
        while let Some(step) = now {
            let then = steps.next();
            if let Some(then) = then {
                start(1, then, odd);
            }
            scale(step, even);
            now = None;
            if let Some(step) = then {
                now = steps.next();
                if let Some(now) = now {
                    start(0, now, even);
                }
                scale(step, odd);
            }
        }
        let mask = u16::MAX >> (PANEL_ROWS - t.rows);
        for (i, (first, second)) in acc.into_iter().zip(*residuals).enumerate() {
            if FULL || i < t.tokens {
                let y = _mm512_add_ps(_mm512_add_ps(first, second), _mm512_setzero_ps());
                _mm512_mask_storeu_ps(t.out.add(i * t.stride), mask, y);
            }
        }
    }
}

/// Adds the scaled integer sums of a block (or half of one), and the minima, to the chains.
#[inline(always)]
unsafe fn scale_sums<K: OfKind, const FULL: bool>(
    t: &Tile,
    step: Step,
    sums: &[Line; TOKENS],
    acc: &mut [__m512; TOKENS],
) {
    let sizes = const { K::KIND.wide().sizes() };
    // SAFETY: as the caller; tokens beyond the last are read as the last.
    unsafe {
        let scales = t.weights.add(step.block * sizes.group);
        let scale = _mm512_loadu_ps(scales.add(64 * step.half).cast());
        let line = step.line(t);
        for (i, (sum, acc)) in sums.iter().zip(acc).enumerate() {
            let i = if FULL { i } else { i.min(t.tokens - 1) };
            let words = line.add(i * t.lines).cast::<f32>();
            let isum = _mm512_cvtepi32_ps(_mm512_load_si512(sum.0.as_ptr().cast()));
            let product = _mm512_mul_ps(isum, _mm512_set1_ps(*words.add(SCALE)));
            *acc = _mm512_fmadd_ps(product, scale, *acc);
            if const { K::KIND.has_min() } {
                let min = _mm512_loadu_ps(scales.add(64).cast());
                *acc = _mm512_fmadd_ps(_mm512_set1_ps(*words.add(SUM)), min, *acc);
            }
        }
    }
}

/// Expands one panel to signed codes and f32 scales, laid out as its wide kind.
///
/// # Safety
/// `panel` holds `blocks` blocks of kind `K`, `to` has room for their expansion.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c,fma")]
unsafe fn widen<K: OfKind>(panel: *const u8, blocks: usize, to: *mut u8) {
    let sizes = const { K::KIND.sizes() };
    let wide = const { K::KIND.wide().sizes() };
    let zero = _mm512_set1_epi8(const { K::KIND.zero() as i8 });
    // SAFETY: all pointers stay inside what the caller vouches for.
    unsafe {
        for block in 0..blocks {
            let scales = panel.add(block / sizes.blocks * sizes.group);
            let b = block % sizes.blocks;
            let codes = scales.add(sizes.scales + b * sizes.codes);
            let to = to.add(block * wide.group);
            let (first, min) = scale_and_min::<Avx512, K, 0>(scales, b);
            _mm512_storeu_ps(to.cast(), first);
            if const { K::KIND.has_min() } {
                _mm512_storeu_ps(to.add(64).cast(), min);
            }
            if const { K::KIND.has_halves() } {
                let (second, _) = scale_and_min::<Avx512, K, 1>(scales, b);
                _mm512_storeu_ps(to.add(64).cast(), second);
            }
            let steps = [
                unpack::<Avx512, K, 0>(codes),
                unpack::<Avx512, K, 1>(codes),
                unpack::<Avx512, K, 2>(codes),
                unpack::<Avx512, K, 3>(codes),
            ];
            for (i, vector) in steps.as_flattened().iter().enumerate() {
                let signed = _mm512_sub_epi8(*vector, zero);
                _mm512_storeu_si512(to.add(wide.scales + 64 * i).cast(), signed);
            }
        }
    }
}

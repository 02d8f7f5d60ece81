//! Products with weights between Hadamard transforms: EXL3 of 4 bits.
//!
//! Numerics: NUMERICS.md, the end of "int8".
//!
//! A worker transforms the input for itself and computes whole bands of 128 rows, of which it stores its
//! own: what it gives does not depend on how rows are shared out.

#![allow(clippy::needless_range_loop)] // tiles are indexed by token

use crate::panel::trellis::{BLOCK, Band, codes, column};
use crate::panel::{BLOCK_COLS, PANEL_ROWS};
#[cfg(target_arch = "x86_64")]
use tokenmill_quant::exl3::MUL1;
use tokenmill_quant::exl3::{MUL1_MIN, MUL1_SCALE, WIDTH, hadamard};
use tokenmill_quant::float::f16_to_f32;

#[cfg(target_arch = "x86_64")]
use super::encode::{BIAS, SCALE_BIAS};
use super::encode::{SCALE, SUM, residual_lines};
#[cfg(target_arch = "x86_64")]
use super::tiles::{Tiles, TrellisTile};
use super::{Encoding, Line, LinearJob};
use crate::isa::Isa;
use crate::math::per_isa;
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx512;

/// Tokens that are transformed at once at most.
const TOKENS: usize = 32;
/// Panels of a band.
const PANELS: usize = WIDTH / PANEL_ROWS;
/// How far ahead of the codes a tile prefetches, in bytes.
#[cfg(target_arch = "x86_64")]
const PREFETCH: usize = 4096;

/// Bytes of encodings held, which should stay in a core's second-level cache.
const HELD_BYTES: usize = 1 << 20;

/// Lines of one token: its encoding, then the bytes of first and residual lines as tiles read them.
fn row_lines(cols: usize) -> usize {
    Encoding::Int8.lines(cols) + 2 * (cols / BLOCK_COLS)
}

/// Tokens whose encodings stay in the cache.
fn tokens_held(cols: usize) -> usize {
    (HELD_BYTES / 64 / row_lines(cols)).clamp(1, TOKENS)
}

/// Lines of scratch memory: tokens, a transformed row, the results of a band.
pub(super) fn scratch_lines(cols: usize) -> usize {
    tokens_held(cols) * (row_lines(cols) + WIDTH / 16) + cols / 16
}

/// Computes a job.
///
/// # Safety
/// As [`super::linear`]; `job.check()` has passed and the instruction set is available.
pub(super) unsafe fn linear(isa: Isa, job: &LinearJob<'_>, scratch: &mut [Line]) {
    let cols = job.spec.cols();
    let held = tokens_held(cols);
    let (encoded, rest) = scratch.split_at_mut(held * row_lines(cols));
    let (transformed, results) = floats_mut(rest).split_at_mut(cols);
    let band_bytes = PANELS * job.spec.panel_bytes();
    for first in (0..job.tokens).step_by(held) {
        let tokens = first..(first + held).min(job.tokens);
        let mut known: Option<&[u8]> = None;
        for band in job.panels.start / PANELS..job.panels.end.div_ceil(PANELS) {
            let bytes = &job.weights[band * band_bytes..][..band_bytes];
            let weights = Band::new(cols, bytes);
            if known != Some(weights.suh) {
                for (row, t) in encoded.chunks_exact_mut(row_lines(cols)).zip(tokens.clone()) {
                    encode(isa, job, t, weights.suh, transformed, row);
                }
                known = Some(weights.suh);
            }
            let results = &mut results[..tokens.len() * WIDTH];
            for (p, panel) in weights.panels.chunks_exact(cols / BLOCK_COLS * BLOCK).enumerate() {
                let results = &mut results[p * PANEL_ROWS..];
                // SAFETY: passed on; results have room for the band.
                unsafe { run(isa, panel, cols, encoded, results, tokens.len()) };
            }
            // What of the band is this worker's.
            let start = job.panels.start.max(band * PANELS) * PANEL_ROWS;
            let end = (job.panels.end.min((band + 1) * PANELS) * PANEL_ROWS).min(job.spec.rows());
            for (y, t) in results.as_chunks_mut::<WIDTH>().0.iter_mut().zip(tokens.clone()) {
                transform_back(isa, y, &weights.svh);
                let y = &y[start - band * WIDTH..end - band * WIDTH];
                let at = t * job.out.stride + start;
                assert!(at + y.len() <= job.out.len);
                // SAFETY: inside the output, and the caller keeps others away from it.
                unsafe { job.out.start.add(at).copy_from_nonoverlapping(y.as_ptr(), y.len()) };
            }
        }
    }
}

/// Lines as numbers.
fn floats_mut(lines: &mut [Line]) -> &mut [f32] {
    // SAFETY: a line is sixteen words, and all bits are legal in both.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * 16) }
}

/// Transforms token `t` and encodes it into `row`.
fn encode(
    isa: Isa,
    job: &LinearJob<'_>,
    t: usize,
    suh: &[u8],
    transformed: &mut [f32],
    row: &mut [Line],
) {
    let (cols, lines) = (job.spec.cols(), job.encoding.lines(job.spec.cols()));
    transform(isa, &job.input[t * lines..][..cols / 16], suh, transformed);
    let (plain, spread) = row.split_at_mut(Encoding::Int8.lines(cols));
    Encoding::Int8.encode(isa, transformed, plain);
    let blocks = cols / BLOCK_COLS;
    let (first, second) = spread.split_at_mut(blocks);
    let spread = if isa == Isa::Avx2 { spread_words } else { spread_bytes };
    spread(isa, &plain[..blocks], first);
    spread(isa, &plain[residual_lines(blocks)..][..blocks], second);
}

per_isa! {
    /// `out = H(suh · x)` for every 128 columns.
    transform(x: &[Line], suh: &[u8], out: &mut [f32]) = transform_lanes;
    /// `y = H(y) · svh / 128`.
    transform_back(y: &mut [f32; WIDTH], svh: &[f32; WIDTH]) = transform_back_lanes;
    /// Bytes of lines in the order of tiles.
    spread_bytes(lines: &[Line], out: &mut [Line]) = spread_lines::<false>;
    /// The same as words, for [`Avx2`].
    spread_words(lines: &[Line], out: &mut [Line]) = spread_lines::<true>;
}

#[inline(always)]
fn transform_lanes(x: &[Line], suh: &[u8], out: &mut [f32]) {
    let suh = suh.as_chunks::<{ 2 * WIDTH }>().0;
    let all = x.as_chunks::<{ WIDTH / 16 }>().0.iter().zip(suh);
    for ((x, suh), out) in all.zip(out.as_chunks_mut::<WIDTH>().0) {
        for (i, out) in out.iter_mut().enumerate() {
            let factor = f16_to_f32(u16::from_le_bytes([suh[2 * i], suh[2 * i + 1]]));
            *out = f32::from_bits(x[i / 16].0[i % 16]) * factor;
        }
        hadamard(out);
    }
}

#[inline(always)]
fn transform_back_lanes(y: &mut [f32; WIDTH], svh: &[f32; WIDTH]) {
    hadamard(y);
    for (y, svh) in y.iter_mut().zip(svh) {
        *y *= svh / WIDTH as f32;
    }
}

/// Word 4q + j has the byte of column k of vector q and symbol j twice, or as 16 bits, then that of k + 16.
#[inline(always)]
fn spread_lines<const WORDS: bool>(lines: &[Line], out: &mut [Line]) {
    for (Line(words), out) in lines.iter().zip(out) {
        let half = |k: usize| {
            let byte = (words[k / 4] >> (8 * (k % 4))) as i8;
            if WORDS { u32::from(byte as i16 as u16) } else { u32::from(byte as u8) * 0x0101 }
        };
        for (word, k) in out.0.iter_mut().zip(const { COLUMNS }) {
            *word = half(k) | half(k + 16) << 16;
        }
    }
}

/// The first column of each word of a spread line.
const COLUMNS: [usize; 16] = {
    let mut columns = [0; 16];
    let mut i = 0;
    while i < 16 {
        columns[i] = column(i / 4, 0, i % 4);
        i += 1;
    }
    columns
};

/// One panel on the encoded tokens; result t starts at 128·t of `out`.
///
/// # Safety
/// The instruction set is available; `out` has room for 16 rows of every token.
unsafe fn run(
    isa: Isa,
    panel: &[u8],
    cols: usize,
    encoded: &[Line],
    out: &mut [f32],
    tokens: usize,
) {
    assert!(encoded.len() >= tokens * row_lines(cols) && out.len() >= (tokens - 1) * WIDTH + 16);
    // SAFETY: as asked and asserted.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_unsafe))]
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => tiles::<Avx2<false>>(panel, cols, encoded, out, tokens),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => tiles::<Avx2<true>>(panel, cols, encoded, out, tokens),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => {
                tiles::<Avx512>(panel, cols, encoded, out, tokens)
            }
            _ => definition(panel, cols, encoded, out, tokens),
        }
    }
}

/// The same in plain Rust: the definition.
fn definition(panel: &[u8], cols: usize, encoded: &[Line], out: &mut [f32], tokens: usize) {
    let blocks = cols / BLOCK_COLS;
    for (t, row) in encoded.chunks_exact(row_lines(cols)).enumerate().take(tokens) {
        for lane in 0..PANEL_ROWS {
            let [mut first, mut second] = [0.0_f32; 2];
            for (b, block) in panel.chunks_exact(BLOCK).enumerate() {
                let codes = codes(block, lane);
                first = add_line(&codes, &row[b], first);
                if row[blocks + b / 512].0[b / 32 % 16] >> (b % 32) & 1 == 1 {
                    second = add_line(&codes, &row[residual_lines(blocks) + b], second);
                }
            }
            out[t * WIDTH + lane] = first + second + 0.0;
        }
    }
}

/// The steps of one block on one line.
fn add_line(codes: &[u16; BLOCK_COLS], Line(words): &Line, acc: f32) -> f32 {
    let a = words[..8].iter().flat_map(|w| w.to_le_bytes()).map(|a| i32::from(a as i8));
    let sum: i32 = codes.iter().zip(a).map(|(&q, a)| i32::from(q) * a).sum();
    let product = f32::from_bits(words[SCALE]) * sum as f32;
    f32::from_bits(words[SUM]).mul_add(MUL1_MIN, product.mul_add(MUL1_SCALE, acc))
}

#[cfg(target_arch = "x86_64")]
unsafe fn tiles<V: Tiles>(
    panel: &[u8],
    cols: usize,
    encoded: &[Line],
    out: &mut [f32],
    tokens: usize,
) {
    let groups = tokens.div_ceil(V::BYTE_TILE.1);
    for g in 0..groups {
        let at = |g: usize| g * tokens / groups;
        let tile = TrellisTile {
            codes: panel.as_ptr(),
            blocks: cols / BLOCK_COLS,
            rows: encoded[at(g) * row_lines(cols)..].as_ptr(),
            stride: row_lines(cols),
            spread: Encoding::Int8.lines(cols),
            out: out[at(g) * WIDTH..].as_mut_ptr(),
        };
        // SAFETY: the lengths were asserted.
        unsafe { V::trellis_tile(at(g + 1) - at(g), &tile) };
    }
}

/// A panel × C tokens: the body of [`Tiles::trellis_tile`].
///
/// # Safety
/// The pointers of `t` cover the panel, C tokens and their results.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn tile<V: Tiles, const C: usize>(t: &TrellisTile) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: all pointers stay inside what the caller vouches for; prefetches may not.
    unsafe {
        let mut acc = [V::float(V::same(0)); C];
        // In memory, where few blocks need them, and not in registers that all need.
        let mut residuals = acc;
        let residuals = std::hint::black_box(&mut residuals);
        for b in 0..t.blocks {
            let codes = t.codes.add(b * BLOCK);
            for i in 0..BLOCK / 64 {
                _mm_prefetch::<_MM_HINT_T0>(codes.wrapping_add(64 * i + PREFETCH).cast());
            }
            let word = |c: usize| {
                *t.rows.add(c * t.stride + t.blocks + b / 512).cast::<u32>().add(b / 32 % 16)
            };
            let outlier = (0..C).fold(0, |outlier, c| outlier | word(c)) >> (b % 32) & 1;
            add_block::<V, C>(t, codes, t.rows.add(b), t.spread, &mut acc);
            if outlier == 1 {
                // Residual lines of tokens for which the block is no outlier are zero.
                let line = t.rows.add(residual_lines(t.blocks) + b);
                let spread = t.spread + t.blocks - residual_lines(t.blocks);
                add_block::<V, C>(t, codes, line, spread, residuals);
            }
        }
        for c in 0..C {
            let y = V::add(V::add(acc[c], residuals[c]), V::float(V::same(0)));
            V::store_floats(y, t.out.add(c * WIDTH));
        }
    }
}

/// Adds one block: `line` is the first token's line, `spread` lines further on is its spread form.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn add_block<V: Tiles, const C: usize>(
    t: &TrellisTile,
    codes: *const u8,
    line: *const Line,
    spread: usize,
    acc: &mut [V::Float; C],
) {
    // SAFETY: as the caller.
    unsafe {
        let mut sums = [[V::int(V::same(BIAS)), V::int(V::same(0))]; C];
        let spread = line.add(spread);
        let [a, b] = [V::load(codes), V::load(codes.add(64))];
        let [c, d] = [V::load(codes.add(128)), V::load(codes.add(192))];
        add_vector::<V, 0, C>(t, a, V::middle(V::rotate_high(d), a), spread, &mut sums);
        add_vector::<V, 1, C>(t, b, V::middle(a, b), spread, &mut sums);
        add_vector::<V, 2, C>(t, c, V::middle(b, c), spread, &mut sums);
        add_vector::<V, 3, C>(t, d, V::middle(c, d), spread, &mut sums);
        let float = |x: f32| V::float(V::same(x.to_bits() as i32));
        for c in 0..C {
            let word = |word: usize| V::same_at(line.add(c * t.stride).cast::<i32>().add(word));
            let sum = V::as_float(V::plus32(sums[c][0], sums[c][1]));
            let product = V::fma_same(sum, word(SCALE), V::float(word(SCALE_BIAS)));
            acc[c] = V::fma(product, float(MUL1_SCALE), acc[c]);
            acc[c] = V::fma_same(float(MUL1_MIN), word(SUM), acc[c]);
        }
    }
}

/// Adds vector Q: four states in each word and that before it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn add_vector<V: Tiles, const Q: usize, const C: usize>(
    t: &TrellisTile,
    now: V::Int,
    before: V::Int,
    spread: *const Line,
    sums: &mut [[V::Int; 2]; C],
) {
    // SAFETY: as the caller.
    unsafe {
        let states = [
            V::with_bits(V::right::<12>(now), V::left::<4>(before), -1),
            V::with_bits(V::right::<8>(now), V::left::<8>(before), -1),
            V::with_bits(V::right::<4>(now), V::left::<12>(before), -1),
            now,
        ];
        let both = |half: u32| V::same((half << 16 | half) as i32);
        for j in 0..4 {
            let low = V::times_low(states[j], both(MUL1 & 0xffff));
            let carried = V::times_high(states[j], both(MUL1 & 0xffff));
            let high = V::plus16(carried, V::times_low(states[j], both(MUL1 >> 16)));
            let codes = V::byte_sums(low, high);
            for c in 0..C {
                let a = V::same_at(spread.add(c * t.stride).cast::<i32>().add(4 * Q + j));
                sums[c][j % 2] = V::dot_byte_sums(sums[c][j % 2], codes, a);
            }
        }
    }
}

//! Products with weights between Hadamard transforms: EXL3.
//!
//! Numerics: NUMERICS.md, the end of "int8".
//!
//! A worker transforms the input for itself and computes whole bands of 128 rows, of which it stores its
//! own: what it gives does not depend on how rows are shared out.

#![allow(clippy::needless_range_loop)] // tiles are indexed by token

use crate::panel::trellis::{Band, PANELS, block, codes, column};
use crate::panel::{BLOCK_COLS, PANEL_ROWS, PanelLayout};
use tokenmill_quant::exl3::{Codebook, WIDTH, hadamard};
use tokenmill_quant::float::f16_to_f32;

use super::encode::{SCALE, SUM, residual_lines};
#[cfg(target_arch = "x86_64")]
use super::tiles::{Tiles, Trellis, TrellisBlocks, TrellisTile};
#[cfg(target_arch = "x86_64")]
use super::trellis::{self, VECTORS};
use super::{Encoding, Line, LinearJob};
use crate::isa::Isa;
use crate::math::per_isa;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};

/// Tokens that are transformed at once at most.
const TOKENS: usize = 32;
/// Blocks of a panel that are made codes at a time: half of a nearest cache of 32 KiB.
const CHUNK: usize = 16;
/// Lines of their codes.
const CODE_LINES: usize = 16 * CHUNK;

/// Bytes of encodings held, which should stay in a core's second-level cache.
const HELD_BYTES: usize = 1 << 20;

/// Lines of one token: its encoding, then the bytes of first and residual lines as words, as tiles read them.
fn row_lines(cols: usize) -> usize {
    Encoding::Int8.lines(cols) + 2 * (cols / BLOCK_COLS)
}

/// Tokens whose encodings stay in the cache.
fn tokens_held(cols: usize) -> usize {
    (HELD_BYTES / 64 / row_lines(cols)).clamp(1, TOKENS)
}

/// Lines of scratch memory: tokens with their sums, codes, a transformed row, the results of a band.
pub(super) fn scratch_lines(cols: usize) -> usize {
    tokens_held(cols) * (row_lines(cols) + 2 + WIDTH / 16) + CODE_LINES + cols / 16
}

/// Computes a job.
///
/// # Safety
/// As [`super::linear`]; `job.check()` has passed and the instruction set is available.
pub(super) unsafe fn linear(isa: Isa, job: &LinearJob<'_>, scratch: &mut [Line]) {
    let cols = job.spec.cols();
    let held = tokens_held(cols);
    let PanelLayout::Trellis(bits) = job.spec.layout() else { return };
    let (encoded, rest) = scratch.split_at_mut(held * row_lines(cols));
    let (working, rest) = rest.split_at_mut(2 * held + CODE_LINES);
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
            let panel = Panel { bits: bits.into(), codebook: weights.codebook, cols };
            let panels = weights.panels.chunks_exact(cols / BLOCK_COLS * block(bits.into()));
            for (p, bytes) in panels.enumerate() {
                let results = &mut results[p * PANEL_ROWS..];
                // SAFETY: passed on.
                unsafe { panel.run(isa, bytes, encoded, working, results, tokens.len()) };
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
    let (plain, words) = row.split_at_mut(Encoding::Int8.lines(cols));
    Encoding::Int8.encode(isa, transformed, plain);
    let blocks = cols / BLOCK_COLS;
    let (first, second) = words.split_at_mut(blocks);
    spread(isa, &plain[..blocks], first);
    spread(isa, &plain[residual_lines(blocks)..][..blocks], second);
}

per_isa! {
    /// `out = H(suh · x)` for every 128 columns.
    transform(x: &[Line], suh: &[u8], out: &mut [f32]) = transform_lanes;
    /// `y = H(y) · svh / 128`.
    transform_back(y: &mut [f32; WIDTH], svh: &[f32; WIDTH]) = transform_back_lanes;
    /// Bytes of lines as words, in the order of tiles.
    spread(lines: &[Line], out: &mut [Line]) = spread_lines;
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

/// Word 4q + j has the byte of column k of vector q and symbol j as 16 bits, then that of k + 16.
#[inline(always)]
fn spread_lines(lines: &[Line], out: &mut [Line]) {
    for (Line(words), out) in lines.iter().zip(out) {
        let half = |k: usize| u32::from(i16::from((words[k / 4] >> (8 * (k % 4))) as i8) as u16);
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

/// What all panels of a band share.
#[derive(Clone, Copy)]
struct Panel {
    bits: usize,
    codebook: Codebook,
    cols: usize,
}

impl Panel {
    /// One panel on the encoded tokens; result t starts at 128·t of `out`. `working` has room for codes and sums.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn run(
        &self,
        isa: Isa,
        panel: &[u8],
        encoded: &[Line],
        working: &mut [Line],
        out: &mut [f32],
        tokens: usize,
    ) {
        let rows = row_lines(self.cols);
        assert!(encoded.len() >= tokens * rows && out.len() >= (tokens - 1) * WIDTH + 16);
        assert_eq!(panel.len(), self.cols / BLOCK_COLS * block(self.bits));
        let (sums, codes) = working.split_at_mut(2 * tokens);
        assert!(codes.len() >= CODE_LINES);
        // SAFETY: as asked and asserted.
        #[cfg_attr(not(target_arch = "x86_64"), allow(unused_unsafe))]
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => self.tiles::<Avx2<false>>(panel, encoded, sums, codes),
                #[cfg(target_arch = "x86_64")]
                Isa::AvxVnni => self.tiles::<Avx2<true>>(panel, encoded, sums, codes),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => {
                    self.tiles::<Avx512>(panel, encoded, sums, codes)
                }
                _ => self.definition(panel, encoded, sums),
            }
        }
        for (pair, out) in sums.as_chunks::<2>().0.iter().zip(out.chunks_mut(WIDTH)) {
            let [first, second] = pair;
            for (y, sums) in out.iter_mut().zip(first.0.iter().zip(&second.0)) {
                *y = f32::from_bits(*sums.0) + f32::from_bits(*sums.1) + 0.0;
            }
        }
    }

    /// The sums of lines and of residual lines of each token, in plain Rust: the definition.
    fn definition(&self, panel: &[u8], encoded: &[Line], sums: &mut [Line]) {
        let blocks = self.cols / BLOCK_COLS;
        sums.fill(Line::ZERO);
        for (b, block) in panel.chunks_exact(block(self.bits)).enumerate() {
            for lane in 0..PANEL_ROWS {
                let codes = codes(self.bits, self.codebook, block, lane);
                let rows = encoded.chunks_exact(row_lines(self.cols));
                for (row, sums) in rows.zip(sums.as_chunks_mut::<2>().0) {
                    let [first, second] = sums.each_mut().map(|Line(words)| &mut words[lane]);
                    *first = self.add_line(&codes, &row[b], *first);
                    if row[blocks + b / 512].0[b / 32 % 16] >> (b % 32) & 1 == 1 {
                        *second = self.add_line(&codes, &row[residual_lines(blocks) + b], *second);
                    }
                }
            }
        }
    }

    /// The steps of one block on one line; sums are bits of f32s.
    fn add_line(&self, codes: &[i16; BLOCK_COLS], Line(words): &Line, acc: u32) -> u32 {
        let (scale, min) = self.codebook.scale_min();
        let a = words[..8].iter().flat_map(|w| w.to_le_bytes()).map(|a| i32::from(a as i8));
        let sum: i32 = codes.iter().zip(a).map(|(&q, a)| i32::from(q) * a).sum();
        let product = f32::from_bits(words[SCALE]) * sum as f32;
        let acc = product.mul_add(scale, f32::from_bits(acc));
        f32::from_bits(words[SUM]).mul_add(min, acc).to_bits()
    }

    /// The same on vectors: blocks become codes, which all tokens pass over.
    ///
    /// # Safety
    /// The instruction set is available, and the lengths are as [`Self::run`] asserts.
    #[cfg(target_arch = "x86_64")]
    unsafe fn tiles<V: Tiles>(
        &self,
        panel: &[u8],
        encoded: &[Line],
        sums: &mut [Line],
        codes: &mut [Line],
    ) {
        let (blocks, tokens) = (self.cols / BLOCK_COLS, sums.len() / 2);
        let (scale, min) = self.codebook.scale_min();
        let of = Trellis { codebook: self.codebook, bits: self.bits };
        sums.fill(Line::ZERO);
        let tile = |codes: *const u8, first, count, start: usize, sums: &mut [Line]| TrellisTile {
            codes,
            first,
            count,
            blocks,
            rows: encoded[start * row_lines(self.cols)..].as_ptr(),
            stride: row_lines(self.cols),
            spread: Encoding::Int8.lines(self.cols),
            scale,
            min,
            sums: sums[2 * start..].as_mut_ptr(),
        };
        if tokens == 1 {
            let tile = tile(panel.as_ptr(), 0, blocks, 0, sums);
            // SAFETY: the lengths were asserted.
            return unsafe { V::trellis_token(of, &tile) };
        }
        for first in (0..blocks).step_by(CHUNK) {
            let count = CHUNK.min(blocks - first);
            let from = panel[first * block(self.bits)..].as_ptr();
            let made = TrellisBlocks { from, count, to: codes.as_mut_ptr() };
            // SAFETY: the blocks are there, and codes have room for as many.
            unsafe { V::trellis_codes(of, &made) };
            for group in super::groups(0..tokens, V::BYTE_TILE.1) {
                let tile = tile(codes.as_ptr().cast(), first, count, group.start, sums);
                // SAFETY: the lengths were asserted.
                unsafe { V::trellis_tile(group.len(), &tile) };
            }
        }
    }
}

/// The blocks of a panel × one token: the body of [`Tiles::trellis_token`]. No codes wait in memory.
///
/// # Safety
/// The pointers of `t` cover the blocks, the token and its sums.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn tile_of_one<V: Tiles, const BOOK: u8, const BITS: usize>(t: &TrellisTile) {
    // SAFETY: all pointers stay inside what the caller vouches for.
    unsafe {
        let mut acc = V::float(V::same(0));
        // In memory, where few blocks need it, and not in registers that all need.
        let mut second = acc;
        let second = std::hint::black_box(&mut second);
        for b in 0..t.blocks {
            let codes = t.codes.add(b * block(BITS));
            let word = *t.rows.add(t.blocks + b / 512).cast::<u32>().add(b / 32 % 16);
            acc = dot_block::<V, BOOK, BITS>(t, codes, t.rows.add(b), t.spread, acc);
            if word >> (b % 32) & 1 == 1 {
                let line = t.rows.add(residual_lines(t.blocks) + b);
                let spread = t.spread + t.blocks - residual_lines(t.blocks);
                *second = dot_block::<V, BOOK, BITS>(t, codes, line, spread, *second);
            }
        }
        V::store_floats(acc, t.sums.cast());
        V::store_floats(*second, t.sums.add(1).cast());
    }
}

/// `acc` with a block on a line, whose spread form is `spread` lines further on.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn dot_block<V: Tiles, const BOOK: u8, const BITS: usize>(
    t: &TrellisTile,
    codes: *const u8,
    line: *const Line,
    spread: usize,
    acc: V::Float,
) -> V::Float {
    // SAFETY: as the caller.
    unsafe {
        let words = line.add(spread).cast::<i32>();
        let windows = trellis::Windows::<V, BITS>::of(codes);
        let sum = windows.dot::<BOOK, 0>(V::int(V::same(0)), words);
        let more = windows.dot::<BOOK, 1>(V::int(V::same(0)), words);
        let sum = windows.dot::<BOOK, 2>(sum, words);
        let more = windows.dot::<BOOK, 3>(more, words);
        add_sum::<V>(t, V::plus32(sum, more), line, acc)
    }
}

/// `acc` with the sum of a block on a line.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn add_sum<V: Tiles>(
    t: &TrellisTile,
    sum: V::Int,
    line: *const Line,
    acc: V::Float,
) -> V::Float {
    // SAFETY: as the caller.
    unsafe {
        let word = |word: usize| V::same_at(line.cast::<i32>().add(word));
        let product = V::mul(V::to_float(sum), V::float(word(SCALE)));
        let acc = V::fma(product, V::splat(t.scale), acc);
        V::fma_same(V::splat(t.min), word(SUM), acc)
    }
}

/// The codes of a chunk × C tokens: the body of [`Tiles::trellis_tile`].
///
/// # Safety
/// The pointers of `t` cover the codes, C tokens and their sums.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn tile<V: Tiles, const C: usize>(t: &TrellisTile) {
    // SAFETY: all pointers stay inside what the caller vouches for.
    unsafe {
        let sums = |c: usize, line: usize| t.sums.add(2 * c + line).cast::<f32>();
        let mut acc: [V::Float; C] = std::array::from_fn(|c| V::floats(sums(c, 0)));
        for i in 0..t.count {
            let (b, codes) = (t.first + i, t.codes.cast::<Line>().add(VECTORS * i));
            let word = |c: usize| {
                *t.rows.add(c * t.stride + t.blocks + b / 512).cast::<u32>().add(b / 32 % 16)
            };
            let outlier = (0..C).fold(0, |outlier, c| outlier | word(c)) >> (b % 32) & 1;
            add_block::<V, C>(t, codes, t.rows.add(b), t.spread, &mut acc);
            if outlier == 1 {
                // Residual lines of tokens for which the block is no outlier are zero.
                let line = t.rows.add(residual_lines(t.blocks) + b);
                let spread = t.spread + t.blocks - residual_lines(t.blocks);
                // They wait in memory: few blocks need them, and registers all.
                let mut second: [V::Float; C] = std::array::from_fn(|c| V::floats(sums(c, 1)));
                add_block::<V, C>(t, codes, line, spread, &mut second);
                (0..C).for_each(|c| V::store_floats(second[c], sums(c, 1)));
            }
        }
        (0..C).for_each(|c| V::store_floats(acc[c], sums(c, 0)));
    }
}

/// Adds one block: `line` is the first token's line, `spread` lines further on is its spread form.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn add_block<V: Tiles, const C: usize>(
    t: &TrellisTile,
    codes: *const Line,
    line: *const Line,
    spread: usize,
    acc: &mut [V::Float; C],
) {
    // SAFETY: as the caller.
    unsafe {
        let mut sums = [V::int(V::same(0)); C];
        for i in 0..VECTORS {
            let codes = V::load(codes.add(i).cast());
            for c in 0..C {
                let words = line.add(spread + c * t.stride).cast::<i32>().add(i);
                sums[c] = V::dot_shorts(sums[c], codes, V::int(V::same_at(words)));
            }
        }
        for c in 0..C {
            acc[c] = add_sum::<V>(t, sums[c], line.add(c * t.stride), acc[c]);
        }
    }
}

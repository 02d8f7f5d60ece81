//! The int8 chain on vectors: lanes are rows, so each lane runs the scalar chain.
//!
//! A tile is W panels × C tokens: one dot product per panel, token and 4 columns, with the
//! token's 4 bytes the same in all lanes. Integer sums and f32 results both stay in
//! registers. With few tokens a tile reads the panels themselves; with many, the panels of a
//! tile are first expanded to bytes and f32 scales, once for all tokens.

#![allow(clippy::needless_range_loop)] // tiles are indexed by panel and token

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use tokenmill_quant::panel::{BLOCK_COLS, PANEL_ROWS, PanelLayout};

use super::encode::{BIAS, SCALE, SCALE_BIAS, SUM, second_lines, start_word};
use super::vector::Vector;
use super::{Line, LinearJob, kind};

/// Encoded tokens kept in the L2 cache while panels pass by, in bytes.
const L2_BYTES: usize = 1 << 20;
/// How far ahead of the codes a tile prefetches, in bytes.
const PREFETCH: usize = 8192;

/// Computes a job of the int8 encoding.
///
/// # Safety
/// As [`super::linear`]; `job.check()` has passed and the instruction set is available.
pub(super) unsafe fn linear<V: Vector>(job: &LinearJob<'_>, scratch: &mut [Line]) {
    // SAFETY: passed on.
    unsafe {
        match job.spec.layout() {
            PanelLayout::Zero4 => run::<V, { kind::ZERO4 }>(job, scratch),
            PanelLayout::Min4 => run::<V, { kind::MIN4 }>(job, scratch),
            PanelLayout::Zero5 => run::<V, { kind::ZERO5 }>(job, scratch),
            PanelLayout::Min5 => run::<V, { kind::MIN5 }>(job, scratch),
            PanelLayout::Zero8 => run::<V, { kind::ZERO8 }>(job, scratch),
            PanelLayout::Super4 => run::<V, { kind::SUPER4 }>(job, scratch),
            PanelLayout::Super5 => run::<V, { kind::SUPER5 }>(job, scratch),
            PanelLayout::Super6 => run::<V, { kind::SUPER6 }>(job, scratch),
            PanelLayout::Table4 => run::<V, { kind::TABLE4 }>(job, scratch),
            PanelLayout::Bf16 | PanelLayout::F16 | PanelLayout::F32 => {
                unreachable!("float layouts are not encoded as bytes")
            }
        }
    }
}

/// One call of a tile kernel.
#[derive(Clone, Copy)]
pub(super) struct ByteTile {
    /// First panel; others follow at `panel_bytes`.
    weights: *const u8,
    panel_bytes: usize,
    /// Blocks of 32 columns.
    blocks: usize,
    /// First token, and lines from one to the next.
    input: *const Line,
    lines: usize,
    /// Word of a line that integer sums start from.
    start: usize,
    /// First result, and f32s from one token to the next.
    out: *mut f32,
    stride: usize,
    /// Rows of each panel to store.
    rows: [usize; 2],
}

/// Goes over tokens by what fits the L2 cache, then panels, then tokens by tiles.
unsafe fn run<V: Vector, const KIND: u8>(job: &LinearJob<'_>, scratch: &mut [Line]) {
    let (most_panels, most_tokens) = V::BYTE_TILE;
    let lines = job.encoding.lines(job.spec.cols());
    // Of the second lines few are read.
    let in_cache = L2_BYTES / 64 / (job.spec.cols() / BLOCK_COLS * 5 / 4);
    let in_cache = in_cache.max(most_tokens) / most_tokens * most_tokens;
    let expand = job.tokens >= V::EXPAND_FROM && KIND != kind::ZERO8;
    let mut tile = ByteTile {
        weights: job.weights.as_ptr(),
        panel_bytes: job.spec.panel_bytes(),
        blocks: job.spec.cols() / BLOCK_COLS,
        input: job.input.as_ptr(),
        lines,
        start: start_word(job.spec.layout().zero()).unwrap_or(0),
        out: job.out.start,
        stride: job.out.stride,
        rows: [PANEL_ROWS; 2],
    };
    for first in (0..job.tokens).step_by(in_cache) {
        let tokens = in_cache.min(job.tokens - first);
        for p in job.panels.clone().step_by(most_panels) {
            let panels = most_panels.min(job.panels.end - p);
            tile.rows = std::array::from_fn(|i| match i < panels {
                true => job.rows_of_panel(p + i),
                false => 0,
            });
            let stored = &job.weights[p * job.spec.panel_bytes()..];
            (tile.weights, tile.panel_bytes) = (stored.as_ptr(), job.spec.panel_bytes());
            if expand {
                // SAFETY: the panels are in the weights.
                unsafe { widen_panels::<V, KIND>(&mut tile, panels, scratch) };
            }
            if panels < most_panels {
                // A tile of fewer panels is a whole one that reads its first panel again and
                // stores nothing for the others: half the kernels to make.
                tile.panel_bytes = 0;
            }
            let groups = tokens.div_ceil(most_tokens);
            for g in 0..groups {
                // Groups as even as can be: 5 tokens are 3 + 2, not 4 + 1.
                let (from, to) = (g * tokens / groups, (g + 1) * tokens / groups);
                tile.input = job.input[(first + from) * lines..].as_ptr();
                // SAFETY: `check` found every buffer as large as the shapes say, and a tile
                // stores only rows that exist.
                unsafe {
                    let at = (first + from) * job.out.stride + p * PANEL_ROWS;
                    tile.out = job.out.start.add(at);
                    if !expand {
                        V::byte_tile::<KIND>(to - from, &tile);
                        continue;
                    }
                    match kind::wide(KIND) {
                        kind::WIDE_MIN => {
                            V::byte_tile::<{ kind::WIDE_MIN }>(to - from, &tile);
                        }
                        kind::WIDE_HALVES => {
                            V::byte_tile::<{ kind::WIDE_HALVES }>(to - from, &tile);
                        }
                        _ => V::byte_tile::<{ kind::WIDE }>(to - from, &tile),
                    }
                }
            }
        }
    }
}

/// Expands the panels of a tile into `scratch` and points the tile there.
unsafe fn widen_panels<V: Vector, const KIND: u8>(
    tile: &mut ByteTile,
    panels: usize,
    scratch: &mut [Line],
) {
    let bytes = const { kind::sizes(kind::wide(KIND)).group } * tile.blocks;
    assert!(scratch.len() * 64 >= panels * bytes, "scratch");
    let to = scratch.as_mut_ptr().cast::<u8>();
    for i in 0..panels {
        // SAFETY: the panel is in the weights, its expansion in the scratch.
        unsafe {
            let panel = tile.weights.add(i * tile.panel_bytes);
            V::widen::<KIND>(panel, tile.blocks, to.add(i * bytes));
        }
    }
    (tile.weights, tile.panel_bytes) = (to.cast_const(), bytes);
}

/// W panels × C tokens over all columns: the body of [`Vector::byte_tile`].
///
/// # Safety
/// The pointers of `t` cover W panels and C tokens of `blocks` blocks.
#[inline(always)]
pub(super) unsafe fn tile<V: Vector, const KIND: u8, const W: usize, const C: usize>(t: &ByteTile) {
    let sizes = const { kind::sizes(KIND) };
    // SAFETY: all pointers stay inside what the caller vouches for; prefetches may not.
    unsafe {
        let mut acc = [[V::float(V::same(0)); C]; W];
        // One loop over all steps: a nested one would not keep the sums in registers.
        let (mut block, mut b, mut scales) = (0, 0, t.weights);
        let (mut line, mut second) = (t.input, false);
        let mut loud = loud_blocks::<C>(t, 0);
        loop {
            let codes = scales.add(sizes.scales + b * sizes.codes);
            // What was expanded is in the cache already.
            for w in 0..if KIND < kind::WIDE { W } else { 0 } {
                for i in 0..sizes.codes / 64 {
                    let at = codes.wrapping_add(w * t.panel_bytes + 64 * i + PREFETCH);
                    _mm_prefetch::<_MM_HINT_T0>(at.cast());
                }
            }
            add_block::<V, KIND, W, C>(t, scales, b, codes, line, &mut acc);
            if loud & 1 == 1 && !second {
                // Second lines of tokens for which the block is not loud are zero.
                (line, second) = (line.add(second_lines(t.blocks)), true);
                continue;
            }
            block += 1;
            if block == t.blocks {
                break;
            }
            (line, second, loud) = (t.input.add(block), false, loud >> 1);
            if block % 32 == 0 {
                loud = loud_blocks::<C>(t, block / 32);
            }
            b += 1;
            if b == sizes.blocks {
                (b, scales) = (0, scales.add(sizes.group));
            }
        }
        for c in 0..C {
            for w in 0..W {
                let to = t.out.add(c * t.stride + w * PANEL_ROWS);
                let y = V::add(acc[w][c], V::float(V::same(0)));
                V::store_first(y, to, t.rows[w]);
            }
        }
    }
}

/// Which of blocks 32·i .. are loud for any of the tile's tokens, a bit each.
#[inline(always)]
unsafe fn loud_blocks<const C: usize>(t: &ByteTile, i: usize) -> u32 {
    // SAFETY: the lines of bits follow those of the blocks.
    unsafe {
        let words = t.input.add(t.blocks).cast::<u32>().add(i);
        (0..C).fold(0, |loud, c| loud | *words.add(c * t.lines * 16))
    }
}

/// Word `word` of token c's line, in all lanes.
#[inline(always)]
unsafe fn word<V: Vector>(t: &ByteTile, line: *const Line, c: usize, word: usize) -> V::Same {
    // SAFETY: the line is inside the input.
    unsafe { V::same_at(line.add(c * t.lines).cast::<i32>().add(word)) }
}

/// Adds one block to the chains of a tile.
#[inline(always)]
unsafe fn add_block<V: Vector, const KIND: u8, const W: usize, const C: usize>(
    t: &ByteTile,
    scales: *const u8,
    b: usize,
    codes: *const u8,
    line: *const Line,
    acc: &mut [[V::Float; C]; W],
) {
    // SAFETY: as the caller.
    unsafe {
        let mut sums = start::<V, KIND, W, C>(t, line, 0);
        add_step::<V, KIND, 0, W, C>(t, codes, line, &mut sums);
        add_step::<V, KIND, 1, W, C>(t, codes, line, &mut sums);
        if const { kind::has_halves(KIND) } {
            scale_sums::<V, KIND, 0, W, C>(t, scales, b, line, &sums, acc);
            sums = start::<V, KIND, W, C>(t, line, 1);
        }
        add_step::<V, KIND, 2, W, C>(t, codes, line, &mut sums);
        add_step::<V, KIND, 3, W, C>(t, codes, line, &mut sums);
        scale_sums::<V, KIND, 1, W, C>(t, scales, b, line, &sums, acc);
    }
}

/// The integer sums at the start: the bits of 1.5·2²³, less what the zero point adds.
#[inline(always)]
unsafe fn start<V: Vector, const KIND: u8, const W: usize, const C: usize>(
    t: &ByteTile,
    line: *const Line,
    half: usize,
) -> [[V::Int; C]; W] {
    // SAFETY: as the caller.
    unsafe {
        let mut sums = [[V::int(V::same(BIAS)); C]; W];
        if !const { kind::has_min(KIND) } {
            for c in 0..C {
                let from = V::int(word::<V>(t, line, c, t.start + half));
                for sums in &mut sums {
                    sums[c] = from;
                }
            }
        }
        sums
    }
}

/// Adds 8 columns, `STEP` of the block, to the integer sums.
#[inline(always)]
unsafe fn add_step<V: Vector, const KIND: u8, const STEP: usize, const W: usize, const C: usize>(
    t: &ByteTile,
    codes: *const u8,
    line: *const Line,
    sums: &mut [[V::Int; C]; W],
) {
    // SAFETY: as the caller.
    unsafe {
        let mut q = [unpack::<V, KIND, STEP>(codes); W];
        for (w, q) in q.iter_mut().enumerate().skip(1) {
            *q = unpack::<V, KIND, STEP>(codes.add(w * t.panel_bytes));
        }
        for half in 0..2 {
            for c in 0..C {
                let a = word::<V>(t, line, c, 2 * STEP + half);
                for w in 0..W {
                    sums[w][c] = match KIND {
                        kind::ZERO8 => V::dot::<true>(sums[w][c], q[w][half], a),
                        _ => V::dot::<false>(sums[w][c], q[w][half], a),
                    };
                }
            }
        }
    }
}

/// Adds the scaled integer sums, and the minima, to the f32 chains.
#[inline(always)]
unsafe fn scale_sums<
    V: Vector,
    const KIND: u8,
    const HALF: usize,
    const W: usize,
    const C: usize,
>(
    t: &ByteTile,
    scales: *const u8,
    b: usize,
    line: *const Line,
    sums: &[[V::Int; C]; W],
    acc: &mut [[V::Float; C]; W],
) {
    // SAFETY: as the caller.
    unsafe {
        for w in 0..W {
            let scales = scales.add(w * t.panel_bytes);
            let (scale, min) = scale_and_min::<V, KIND, HALF>(scales, b);
            for c in 0..C {
                let biased = V::as_float(sums[w][c]);
                let bias = V::float(word::<V>(t, line, c, SCALE_BIAS));
                let product = V::fma_same(biased, word::<V>(t, line, c, SCALE), bias);
                acc[w][c] = V::fma(product, scale, acc[w][c]);
                if const { kind::has_min(KIND) } {
                    acc[w][c] = V::fma_same(min, word::<V>(t, line, c, SUM), acc[w][c]);
                }
            }
        }
    }
}

/// Codes of columns 8·STEP .. +4 and +4 .. +8 of a block, as bytes.
#[inline(always)]
pub(super) unsafe fn unpack<V: Vector, const KIND: u8, const STEP: usize>(
    codes: *const u8,
) -> [V::Int; 2] {
    use kind::{MIN5, SUPER5, SUPER6, TABLE4, ZERO5};
    /// The doubled e2m1 values, raised by 16.
    const TABLE: [u8; 16] = [16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4];
    // SAFETY: the block's planes are inside the panel.
    unsafe {
        if const { kind::sizes(KIND).low == 512 } {
            return [V::load(codes.add(128 * STEP)), V::load(codes.add(128 * STEP + 64))];
        }
        let nibbles = V::load(codes.add(64 * STEP));
        let low = V::mask(nibbles, 15);
        let high = V::mask(V::right::<4>(nibbles), 15);
        match KIND {
            ZERO5 | MIN5 | SUPER5 => {
                let plane = V::load(codes.add(256));
                let [a, b] = match STEP {
                    0 => [V::left::<4>(plane), V::left::<3>(plane)],
                    1 => [V::left::<2>(plane), V::left::<1>(plane)],
                    2 => [plane, V::right::<1>(plane)],
                    _ => [V::right::<2>(plane), V::right::<3>(plane)],
                };
                [V::with_bits(low, a, 0x10), V::with_bits(high, b, 0x10)]
            }
            SUPER6 => {
                let plane = V::load(codes.add(256 + 64 * (STEP / 2)));
                let [a, b] = match STEP % 2 {
                    0 => [V::left::<4>(plane), V::left::<2>(plane)],
                    _ => [plane, V::right::<2>(plane)],
                };
                [V::with_bits(low, a, 0x30), V::with_bits(high, b, 0x30)]
            }
            TABLE4 => [V::look_up(low, &TABLE), V::look_up(high, &TABLE)],
            _ => [low, high],
        }
    }
}

/// Scale (of half `HALF`) and minimum of block `b` of a group, for 16 rows.
#[inline(always)]
pub(super) unsafe fn scale_and_min<V: Vector, const KIND: u8, const HALF: usize>(
    scales: *const u8,
    b: usize,
) -> (V::Float, V::Float) {
    use kind::{MIN4, MIN5, SUPER4, SUPER5, SUPER6, TABLE4, WIDE, WIDE_HALVES, WIDE_MIN};
    // SAFETY: the group's scales are inside the panel.
    unsafe {
        let none = V::float(V::same(0));
        let full = |at: usize| V::floats(scales.add(at).cast());
        match KIND {
            MIN4 | MIN5 => (V::halves(scales), V::halves(scales.add(32))),
            SUPER4 | SUPER5 => {
                let scale = V::unsigned(scales.add(64 + 16 * b));
                let min = V::unsigned(scales.add(192 + 16 * b));
                let min = V::mul(V::halves(scales.add(32)), min);
                let min = V::sub(V::float(V::same((-0.0_f32).to_bits() as i32)), min);
                (V::mul(V::halves(scales), scale), min)
            }
            SUPER6 => {
                let scale = V::signed(scales.add(64 + 32 * b + 16 * HALF));
                (V::mul(V::halves(scales), scale), none)
            }
            TABLE4 => (V::powers(scales.add(16 * b)), none),
            WIDE => (full(0), none),
            WIDE_MIN => (full(0), full(64)),
            WIDE_HALVES => (full(64 * HALF), none),
            _ => (V::halves(scales.add(32 * b)), none),
        }
    }
}

/// Expands one panel to bytes and f32 scales, `[block]` of the group of the matching wide
/// kind: the body of [`Vector::widen`].
///
/// # Safety
/// `panel` holds `blocks` blocks of `KIND`, `to` has room for their expansion.
#[inline(always)]
pub(super) unsafe fn widen<V: Vector, const KIND: u8>(
    panel: *const u8,
    blocks: usize,
    to: *mut u8,
) {
    let sizes = const { kind::sizes(KIND) };
    let wide = const { kind::sizes(kind::wide(KIND)) };
    // SAFETY: all pointers stay inside what the caller vouches for.
    unsafe {
        for block in 0..blocks {
            let scales = panel.add(block / sizes.blocks * sizes.group);
            let b = block % sizes.blocks;
            let codes = scales.add(sizes.scales + b * sizes.codes);
            let to = to.add(block * wide.group);
            let (first, min) = scale_and_min::<V, KIND, 0>(scales, b);
            V::store_floats(first, to.cast());
            if const { kind::has_min(KIND) } {
                V::store_floats(min, to.add(64).cast());
            }
            if const { kind::has_halves(KIND) } {
                let (second, _) = scale_and_min::<V, KIND, 1>(scales, b);
                V::store_floats(second, to.add(64).cast());
            }
            let steps = [
                unpack::<V, KIND, 0>(codes),
                unpack::<V, KIND, 1>(codes),
                unpack::<V, KIND, 2>(codes),
                unpack::<V, KIND, 3>(codes),
            ];
            for (i, vector) in steps.as_flattened().iter().enumerate() {
                V::store(*vector, to.add(wide.scales + 64 * i));
            }
        }
    }
}

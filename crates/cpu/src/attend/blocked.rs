//! Attention by blocks: a tile of keys is widened once for all rows of an item, then a few rows
//! at a time are scored, weighted and summed in registers.
//!
//! Rows are ordered by token, then by head of the group.

use std::arch::asm;
use std::ops::Range;

use tokenmill_ir::KvFormat;
use tokenmill_quant::float::rounded_factor;

use super::chunk::{Chunk, in_tile};
use super::codes::{code_scale, short_code, top};
use super::latent::Segment;
use super::layout::{BLOCK_TOKENS, GROUP};
use super::mix::{MIX_MAX, mixed, transform_block, transform_blocks};
use super::scratch::{floats, shorts, words};
use super::sums::Sums;
use super::tiles::{ScoreTile, TileSource, Tiles, ValueTile};
use super::weights::{BandSums, meet_scores, weigh_rows};
use super::{AttendJob, BAND, Item, Kind, ROWS_AHEAD, Scratch, TILE, TILES, tiles, widen};
use crate::memory::prefetch;
use crate::simd::Vector;

/// Bytes of 16 words of a row as a kernel reads them.
#[inline(always)]
fn width<V: Vector, S: Sums<V>>(stored: bool) -> usize {
    if stored { S::ROW_BYTES } else { 64 }
}

/// Half lines that a kernel reads in a step of `N` stored vectors.
#[inline(always)]
fn half_lines<V: Vector, S: Sums<V>, const N: usize>() -> usize {
    N * S::ROW_BYTES / 32 * if S::TWO_ROWS { 2 } else { 1 }
}

/// 16 factors, as kernels read them or as they are stored.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn factors<V: Vector, S: Sums<V>, const STORED: bool>(
    from: *const u8,
    step: usize,
) -> S::Factor {
    // SAFETY: passed on.
    unsafe { if STORED { S::stored(from, step) } else { S::load(from) } }
}

/// Where part `part` begins of what is prefetched of the tile to come: of as many as `of` for each half, each as
/// many bytes as `steps` steps read, in the order in which they lie.
#[inline(always)]
fn ahead<V: Vector, S: Sums<V>, const N: usize>(
    next: [*const u8; 2],
    (part, of): (usize, usize),
    steps: usize,
) -> *const u8 {
    next[part / of % 2].wrapping_add(part % of * steps * half_lines::<V, S, N>() * 32)
}

/// Prefetches what lies `step` steps after `ahead`. Evenly over the steps, each line once: in bursts requests stall
/// until earlier ones are answered.
#[inline(always)]
fn fetch<V: Vector, S: Sums<V>, const N: usize>(ahead: *const u8, step: usize) {
    let half_lines = half_lines::<V, S, N>();
    for line in 0..half_lines.div_ceil(2) {
        tiles::fetch(ahead.wrapping_add((step * half_lines / 2 + line) * 64));
    }
}

/// The same address, but what is read there once more is not kept in a register.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block)] // nothing is read
fn anew<T>(mut at: *const T) -> *const T {
    // SAFETY: does nothing.
    unsafe { asm!("/* {0} */", inout(reg) at, options(nomem, nostack, preserves_flags)) };
    at
}

/// Scores of `R` rows by `N` groups of keys in each pass.
///
/// # Safety
/// As [`Vector`]; the tile's pointers cover its shapes.
#[inline(always)]
pub(super) unsafe fn scores<
    V: Tiles,
    S: Sums<V>,
    const STORED: bool,
    const N: usize,
    const R: usize,
>(
    t: &ScoreTile,
) {
    for pass in 0..t.passes {
        // SAFETY: passed on.
        unsafe {
            let mut sum = [[S::zero(); N]; R];
            let of = const { if N == 1 { BLOCK_TOKENS / GROUP } else { 1 } };
            let ahead = ahead::<V, S, N>(t.next, (pass, of), t.steps);
            for step in 0..t.steps {
                let at = |i| t.k.add(pass * N + i).read().add(t.k_start + step * t.k_step);
                if STORED {
                    fetch::<V, S, N>(ahead, step);
                }
                if const { N == V::FULL.0 && R == V::FULL.1 } {
                    for i in 0..N {
                        let (k, q) = (factors::<V, S, STORED>(at(i), t.k_step), anew(t.q));
                        for (r, sum) in sum.iter_mut().enumerate() {
                            sum[i] = S::add(sum[i], k, S::splat(q.add(r * t.q_stride + step)));
                        }
                    }
                    continue;
                }
                let mut k = [factors::<V, S, STORED>(at(0), t.k_step); N];
                for (i, k) in k.iter_mut().enumerate().skip(1) {
                    *k = factors::<V, S, STORED>(at(i), t.k_step);
                }
                for (r, sum) in sum.iter_mut().enumerate() {
                    let q = S::splat(t.q.add(r * t.q_stride + step));
                    for (sum, k) in sum.iter_mut().zip(k) {
                        *sum = S::add(*sum, k, q);
                    }
                }
            }
            for (r, sum) in sum.iter().enumerate() {
                let q_scale = V::splat(*t.q_scale.add(r));
                for (i, sum) in sum.iter().enumerate() {
                    let lane = (pass * N + i) * GROUP;
                    let sum = if STORED { S::in_order(*sum) } else { *sum };
                    let s = V::mul(S::score(sum, t.k_scale.wrapping_add(lane)), q_scale);
                    let to = t.s.add(r * TILE + lane);
                    V::store_floats(if t.adds { V::add(V::floats(to), s) } else { s }, to);
                }
            }
        }
    }
}

/// Outputs of `R` rows and `N` vectors of columns in each pass: decayed, and weighted values added.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
pub(super) unsafe fn values<
    V: Tiles,
    S: Sums<V>,
    const STORED: bool,
    const N: usize,
    const R: usize,
>(
    t: &ValueTile,
) {
    for first in (0..t.passes).map(|pass| pass * N) {
        // SAFETY: passed on.
        unsafe {
            let mut sum = [[S::zero(); N]; R];
            for (half, (start, end)) in t.steps.into_iter().enumerate() {
                let p = t.p.add(half * t.p_half);
                let part = (2 * (first / N) + half, t.passes);
                let ahead = ahead::<V, S, N>(t.next, part, t.p_half);
                for step in start..end {
                    let row = t.v[half].add(step * t.v_step + first * width::<V, S>(STORED));
                    if const { N == V::FULL.0 && R == V::FULL.1 } {
                        if STORED {
                            fetch::<V, S, N>(ahead, step);
                        }
                        for i in 0..N {
                            let v = factors::<V, S, STORED>(
                                row.add(i * width::<V, S>(STORED)),
                                t.v_step,
                            );
                            let p = anew(p);
                            for (r, sum) in sum.iter_mut().enumerate() {
                                sum[i] = S::add(sum[i], v, S::splat(p.add(r * t.p_stride + step)));
                            }
                        }
                        continue;
                    }
                    let mut v = [factors::<V, S, STORED>(row, t.v_step); N];
                    for (i, v) in v.iter_mut().enumerate().skip(1) {
                        *v = factors::<V, S, STORED>(row.add(i * width::<V, S>(STORED)), t.v_step);
                    }
                    if STORED {
                        let seen = t.seen.wrapping_add(half * t.p_half + step);
                        for v in &mut v {
                            *v = S::seen(*v, seen);
                        }
                        fetch::<V, S, N>(ahead, step);
                    }
                    for (r, sum) in sum.iter_mut().enumerate() {
                        let p = S::splat(p.add(r * t.p_stride + step));
                        for (sum, v) in sum.iter_mut().zip(v) {
                            *sum = S::add(*sum, v, p);
                        }
                    }
                }
            }
            for (r, sum) in sum.iter().enumerate() {
                for (i, sum) in sum.iter().enumerate() {
                    let col = (first + i) * GROUP;
                    let before = V::floats(t.before.add(r * t.before_stride + col));
                    let (decay, scale) = (*t.decay.add(r), t.p_scale.add(r));
                    let sum = if STORED { S::in_order(*sum) } else { *sum };
                    let out = t.out.add(r * t.v_cols + col);
                    V::store_floats(S::join(sum, before, decay, scale), out);
                }
            }
        }
    }
}

/// Queries as sums of this kind read them, and what their scores are multiplied by.
#[inline(always)]
pub(super) fn load_queries(job: &AttendJob<'_>, item: &Item, keys: Kind, scratch: &mut Scratch) {
    let (dim, format) = (job.k_dim, job.formats().0);
    let (rows, cols) = (job.rows(item), 2 * job.key_steps(2));
    for row in 0..rows {
        if row + ROWS_AHEAD < rows {
            let [ahead, beside] = job.query(item, row + ROWS_AHEAD);
            prefetch(ahead.as_ptr(), ahead.len());
            if !beside.is_empty() {
                prefetch(beside.as_ptr(), beside.len());
            }
        }
        let [mut from, beside] = job.query(item, row);
        // (No tile is there yet: there is room for a row where it will be.)
        if let Some(steady) = job.steady {
            let widened = &mut floats(&mut scratch.k)[..dim];
            let factors = steady.of_queries(item.kv_head as usize);
            let each = widened.iter_mut().zip(from).zip(factors);
            each.for_each(|((to, x), factor)| *to = x * factor);
            from = widened;
        } else if !beside.is_empty() {
            let widened = &mut floats(&mut scratch.k)[..dim];
            widened[..from.len()].copy_from_slice(from);
            widened[from.len()..].copy_from_slice(beside);
            from = widened;
        }
        match keys {
            Kind::Bytes | Kind::Shorts => {
                let to = &mut shorts(&mut scratch.q)[row * cols..][..cols];
                let mut buffer = [0.0; MIX_MAX];
                let turns = keys == Kind::Bytes && !job.has_latents();
                let from = if turns { mixed(from, &mut buffer) } else { from };
                for (i, segment) in job.segments(2).enumerate() {
                    let to = &mut to[2 * segment.first..][..2 * segment.steps];
                    let (to, odd) = to.split_at_mut(segment.cols.len());
                    // (One at most: a step takes two.)
                    odd.iter_mut().for_each(|last| *last = 0);
                    let most = job.query_codes(segment.cols.len());
                    let scale = encode(&from[segment.cols], most, to);
                    scratch.q_scale[i * scratch.rows + row] = job.scale * scale;
                }
            }
            Kind::Pairs => {
                scratch.q_scale[row] = job.scale;
                let to = &mut words(&mut scratch.q)[row * dim / 2..][..dim / 2];
                for (to, [high, low]) in to.iter_mut().zip(from.as_chunks::<2>().0) {
                    let [high, low] = [rounded_factor(*high), rounded_factor(*low)];
                    *to = (high.to_bits() | low.to_bits() >> 16) as i32;
                }
            }
            Kind::Numbers => {
                scratch.q_scale[row] = job.scale;
                let to = &mut floats(&mut scratch.q)[row * dim..][..dim];
                if format == KvFormat::Bf16 {
                    to.iter_mut().zip(from).for_each(|(to, x)| *to = rounded_factor(*x));
                    continue;
                }
                to.copy_from_slice(from);
                if format == KvFormat::Int4 {
                    transform_blocks(to, transform_block(dim));
                }
            }
        }
    }
}

/// Codes of a row of any numbers, up to `most`; returns the scale.
#[inline(always)]
fn encode(x: &[f32], most: f32, codes: &mut [i16]) -> f32 {
    let (inverse, scale) = code_scale(top(x), most);
    codes.iter_mut().zip(x).for_each(|(code, x)| *code = short_code(*x, inverse));
    scale
}

/// The keys `range`, all of one split, for every row of an item, into the scratch.
///
/// # Safety
/// The instruction set of `V` is available; the queries are loaded.
#[inline(always)]
pub(super) unsafe fn split<V: Tiles, K: Sums<V>, W: Sums<V>>(
    job: &AttendJob<'_>,
    item: &Item,
    range: Range<usize>,
    scratch: &mut Scratch,
) {
    let group = job.group();
    let rows = item.tokens as usize * group;
    for (token, rows) in scratch.seen[..rows].chunks_exact_mut(group).enumerate() {
        rows.fill(job.seen(item, token));
    }
    scratch.max[..rows].fill(f32::NEG_INFINITY);
    let tiles = range.start / TILE..range.end.div_ceil(TILE);
    // SAFETY: passed on.
    unsafe { shift_rows::<V>(job, item, tiles.clone(), scratch) };
    for tile in tiles.clone() {
        let first = tile * TILE;
        let mut sums = BandSums::new(tile - tiles.start);
        // SAFETY: passed on.
        unsafe {
            let source = widen::tile::<V, K, W>(job, item, tile, in_tile(first, &range), scratch);
            for start in (0..rows).step_by(BAND) {
                let rows = start..rows.min(start + BAND);
                band::<V, K, W>(job, &source, first, rows, &mut sums, scratch);
            }
        }
    }
}

/// What the scores of an item's rows are without in the tiles of a split.
///
/// # Safety
/// As [`split`].
#[inline(always)]
unsafe fn shift_rows<V: Vector>(
    job: &AttendJob<'_>,
    item: &Item,
    tiles: Range<usize>,
    scratch: &mut Scratch,
) {
    let Some(steady) = job.steady else { return };
    let (dim, group, head) = (job.k_dim, job.group(), item.kv_head as usize);
    let cols = dim.next_multiple_of(GROUP);
    let taken = floats(&mut scratch.steady);
    for (tile, taken) in tiles.zip(taken.chunks_exact_mut(cols)) {
        steady.in_tile(head, tile, taken);
        taken[dim..].fill(0.0);
    }
    let (taken, stride) = (&taken[..TILES * cols], scratch.shifts.len() / TILES * GROUP);
    let shifts = floats(&mut scratch.shifts).as_mut_ptr();
    // There are no scores yet. Rows that are not there have any numbers.
    let lanes = &mut scratch.s[..TILES * GROUP];
    for start in (0..job.rows(item)).step_by(GROUP) {
        for row in start..job.rows(item).min(start + GROUP) {
            let first = (head * group + row % group) * dim;
            let q = job.q.get(item.row as usize + row / group, first..first + dim);
            // SAFETY: passed on.
            let sums = unsafe { products::<V>(q, taken) };
            for (lanes, sum) in lanes.chunks_exact_mut(GROUP).zip(sums) {
                // SAFETY: 16 numbers.
                unsafe { V::store_floats(sum, lanes[row - start].0.as_mut_ptr()) };
            }
        }
        for (tile, lanes) in lanes.chunks_exact(GROUP).enumerate() {
            // SAFETY: 16 rows; a vector of the tile's shifts.
            unsafe {
                let sums = V::sum_of(lanes.as_ptr().cast());
                V::store_floats(
                    V::mul(sums, V::splat(job.scale)),
                    shifts.add(tile * stride + start),
                );
            }
        }
    }
}

/// Products of a row with one for each tile of a split, in lanes.
///
/// # Safety
/// As [`split`].
#[inline(always)]
unsafe fn products<V: Vector>(row: &[f32], others: &[f32]) -> [V::Float; TILES] {
    let cols = row.len().next_multiple_of(GROUP);
    assert_eq!(others.len(), TILES * cols, "a row for each tile");
    let (vectors, rest) = row.as_chunks::<GROUP>();
    let mut last = [0.0; GROUP];
    last[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(&last);
    // SAFETY: vectors of the rows.
    unsafe {
        let mut sums = [V::splat(0.0); TILES];
        for (i, vector) in vectors.iter().chain(last).enumerate() {
            let vector = V::floats(vector.as_ptr());
            for (tile, sum) in sums.iter_mut().enumerate() {
                let other = V::floats(others.as_ptr().add(tile * cols + i * GROUP));
                *sum = V::fma(vector, other, *sum);
            }
        }
        sums
    }
}

/// The keys of the tile that begins with key `first` for the rows of a band: all rows on the keys, then on the values, since
/// the first-level cache holds either.
///
/// # Safety
/// As [`split`].
#[inline(always)]
unsafe fn band<V: Tiles, K: Sums<V>, W: Sums<V>>(
    job: &AttendJob<'_>,
    source: &TileSource,
    first: usize,
    rows: Range<usize>,
    sums: &mut BandSums,
    scratch: &mut Scratch,
) {
    let chunks = || rows.clone().step_by(V::ROWS);
    let chunk = |start: usize, scratch: &Scratch| {
        let at = start - rows.start;
        Chunk::new(first, start..rows.end.min(start + V::ROWS), at, &scratch.seen)
    };
    // SAFETY: passed on; the scratch is as large as its shapes.
    unsafe {
        for (i, segment) in job.segments(K::PER_STEP).enumerate() {
            for start in chunks() {
                let chunk = chunk(start, scratch);
                if chunk.keys.is_empty() {
                    sums.see_nothing(job, &chunk, scratch);
                    continue;
                }
                score_rows::<V, K>(job, source, (i, &segment), &chunk, scratch);
                if segment.cols.end == job.k_dim {
                    meet_scores::<V>(job, first, &chunk, scratch);
                }
            }
        }
        sums.weigh::<V>(job, rows.clone(), scratch);
        for start in chunks() {
            let chunk = chunk(start, scratch);
            if !chunk.keys.is_empty() {
                weigh_rows::<V, W>(job, first, &chunk, sums, scratch);
            }
        }
        for start in chunks() {
            let chunk = chunk(start, scratch);
            if !chunk.keys.is_empty() {
                add_values::<V, W>(job, source, &chunk, sums, scratch);
            }
            source.prefetch_part(start / V::ROWS);
        }
    }
}

/// Scores of a chunk of rows: what segment `i` of the columns adds.
///
/// # Safety
/// As [`split`].
#[inline(always)]
unsafe fn score_rows<V: Tiles, S: Sums<V>>(
    job: &AttendJob<'_>,
    source: &TileSource,
    (i, segment): (usize, &Segment),
    chunk: &Chunk,
    scratch: &mut Scratch,
) {
    let q_stride = job.key_steps(S::PER_STEP);
    let (first, rows) = (chunk.rows.start, chunk.rows.len());
    for (group, count, passes) in passes(chunk.groups(), V::vectors(rows, source.keys_stored)) {
        let lane = group * GROUP;
        let t = ScoreTile {
            q: floats(&mut scratch.q)[first * q_stride + segment.first..].as_ptr(),
            q_stride,
            steps: segment.steps,
            passes,
            k: source.k[group..group + count * passes].as_ptr(),
            k_start: segment.first * source.k_step,
            k_step: source.k_step,
            next: source.next_k,
            s: floats(&mut scratch.s)[chunk.at * TILE + lane..].as_mut_ptr(),
            adds: i > 0,
            k_scale: floats(&mut scratch.scales)[2 * segment.scale * TILE + lane..].as_ptr(),
            q_scale: scratch.q_scale[i * scratch.rows + first..].as_ptr(),
        };
        // SAFETY: the groups are inside the tile, the rows inside `q` and `s`.
        unsafe {
            if source.keys_stored {
                V::scores::<S, true>(count, rows, &t);
            } else {
                V::scores::<S, false>(count, rows, &t);
            }
        }
    }
}

/// `all` in passes of `at_once`, and what is left in one more: the first of them, how many a pass, passes.
#[inline(always)]
fn passes(all: Range<usize>, at_once: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let (passes, left) = (all.len() / at_once, all.len() % at_once);
    let calls = [(all.start, at_once, passes), (all.end - left, left, 1)];
    calls.into_iter().filter(|&(_, count, passes)| count * passes > 0)
}

/// Adds the weighted values to the outputs of a chunk of rows.
///
/// # Safety
/// As [`split`].
#[inline(always)]
unsafe fn add_values<V: Tiles, S: Sums<V>>(
    job: &AttendJob<'_>,
    source: &TileSource,
    chunk: &Chunk,
    sums: &BandSums,
    scratch: &mut Scratch,
) {
    let (v_cols, rows) = (job.v_dim.next_multiple_of(GROUP), chunk.rows.len());
    // Steps are keys, or pairs of keys.
    let per_step = S::PER_STEP;
    let half = |h: usize| {
        let first = h * BLOCK_TOKENS;
        let inside = |key: usize| key.clamp(first, first + BLOCK_TOKENS) - first;
        S::steps(inside(chunk.keys.start)..inside(chunk.keys.end))
    };
    let weights = if per_step == 2 { &mut scratch.p } else { &mut scratch.s };
    let p = floats(weights)[chunk.at * TILE / per_step..].as_ptr();
    let at_once = V::vectors(rows, source.values_stored);
    // Stored, of a vector of columns.
    let bytes_of_half = source.v_step * (BLOCK_TOKENS / per_step) * GROUP / v_cols;
    for (vector, count, passes) in passes(0..v_cols / GROUP, at_once) {
        let col = vector * GROUP;
        let out = floats(&mut scratch.out)[chunk.rows.start * v_cols + col..].as_mut_ptr();
        let (before, before_stride) = match sums.begin {
            true => (floats(&mut scratch.zeros)[col..].as_ptr(), 0),
            false => (out.cast_const(), v_cols),
        };
        let start = vector * width::<V, S>(source.values_stored);
        let t = ValueTile {
            passes,
            p,
            p_stride: TILE / per_step,
            p_half: BLOCK_TOKENS / per_step,
            steps: [half(0), half(1)],
            v: source.v.map(|v| v.wrapping_add(start)),
            v_step: source.v_step,
            seen: source.seen_pairs.as_ptr(),
            next: source.next_v.map(|v| v.wrapping_add(vector * bytes_of_half)),
            v_cols,
            out,
            before,
            before_stride,
            decay: sums.decay[chunk.at..].as_ptr(),
            p_scale: sums.scale[chunk.at..].as_ptr(),
        };
        // SAFETY: columns of the rows of the chunk; keys of the tile.
        unsafe {
            if source.values_stored {
                V::values::<S, true>(count, rows, &t);
            } else {
                V::values::<S, false>(count, rows, &t);
            }
        }
    }
}

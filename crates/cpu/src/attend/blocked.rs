//! Attention by blocks: a tile of keys is widened once for all rows of an item, then a few rows
//! at a time are scored, weighted and summed in registers.
//!
//! Rows are ordered by token, then by head of the group.

use std::ops::Range;

use tokenmill_ir::KvFormat;

use super::layout::{BLOCK_TOKENS, GROUP};
use super::mix::{MIX_MAX, mixed, turn_block, turn_blocks};
use super::scalar::code_scale;
use super::scratch::{floats, shorts};
use super::vector::{ScoreTile, TilePlace, ValueTile, Vector};
use super::{AttendJob, BAND, CODE_MAX, Item, Scratch, TILE, widen};
use crate::math::tanh;

/// Bytes of 16 words as a kernel reads them.
const fn width(stored: bool) -> usize {
    if stored { 32 } else { 64 }
}

/// 16 numbers: f32, or stored as bf16.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn numbers<V: Vector, const STORED: bool>(from: *const u8) -> V::Float {
    // SAFETY: passed on.
    unsafe { if STORED { V::halves(from.cast()) } else { V::load(from.cast()) } }
}

/// 16 pairs of codes: i16, or stored as bytes.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn pairs<V: Vector, const STORED: bool>(from: *const u8) -> V::Int {
    // SAFETY: passed on.
    unsafe { if STORED { V::bytes(from.cast()) } else { V::load_int(from.cast()) } }
}

/// Asks for what the same step reads of the tile to come: one half of it in each turn, or both where a
/// turn has more groups. Spread over the steps the requests overlap with what the processor fetches by
/// itself; in one burst they stall.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn fetch_keys<V: Vector, const STORED: bool, const N: usize>(
    t: &ScoreTile,
    turn: usize,
    step: usize,
) {
    if STORED {
        // SAFETY: passed on. Two groups of a half, 32 bytes a step each.
        unsafe {
            V::fetch(t.next[turn % 2].wrapping_add(step * 64));
            if N > 2 {
                V::fetch(t.next[1].wrapping_add(step * 64));
            }
        }
    }
}

/// The same for the values of `N` vectors.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn fetch_values<V: Vector, const STORED: bool, const N: usize>(
    t: &ValueTile,
    first: usize,
    half: usize,
    step: usize,
) {
    if STORED {
        for i in (0..N).step_by(2) {
            // SAFETY: passed on.
            unsafe {
                V::fetch(t.next[half].wrapping_add(step * t.v_step + (first + i) * width(STORED)))
            };
        }
    }
}

/// Scores of `R` rows by `N` groups of keys in each turn.
///
/// # Safety
/// As [`Vector`]; the tile's pointers cover its shapes.
#[inline(always)]
pub(super) unsafe fn scores<
    V: Vector,
    const INT8: bool,
    const STORED: bool,
    const N: usize,
    const R: usize,
>(
    t: &ScoreTile,
) {
    // SAFETY: passed on.
    unsafe {
        for turn in 0..t.turns {
            if INT8 {
                score_codes::<V, STORED, N, R>(t, turn);
            } else {
                score_numbers::<V, STORED, N, R>(t, turn);
            }
        }
    }
}

/// [`scores`] in integers.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn score_codes<V: Vector, const STORED: bool, const N: usize, const R: usize>(
    t: &ScoreTile,
    turn: usize,
) {
    // SAFETY: passed on.
    unsafe {
        let mut sum = [[V::zero(); N]; R];
        for step in 0..t.steps {
            let mut k = [V::zero(); N];
            for (i, k) in k.iter_mut().enumerate() {
                *k = pairs::<V, STORED>(t.k.add(turn * N + i).read().add(step * t.k_step));
            }
            fetch_keys::<V, STORED, N>(t, turn, step);
            for (r, sum) in sum.iter_mut().enumerate() {
                let q = V::splat_pair(t.q.add(r * t.steps + step).cast());
                for (sum, k) in sum.iter_mut().zip(k) {
                    *sum = V::dot(*sum, k, q);
                }
            }
        }
        for (r, sum) in sum.iter().enumerate() {
            let q_scale = V::splat(*t.q_scale.add(r));
            for (i, sum) in sum.iter().enumerate() {
                let lane = (turn * N + i) * GROUP;
                let s = V::mul(V::to_float(*sum), V::load(t.k_scale.add(lane)));
                V::store(V::mul(s, q_scale), t.s.add(r * TILE + lane));
            }
        }
    }
}

/// [`scores`] in f32.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn score_numbers<V: Vector, const STORED: bool, const N: usize, const R: usize>(
    t: &ScoreTile,
    turn: usize,
) {
    // SAFETY: passed on.
    unsafe {
        let mut sum = [[V::splat(0.0); N]; R];
        for step in 0..t.steps {
            let mut k = [V::splat(0.0); N];
            for (i, k) in k.iter_mut().enumerate() {
                *k = numbers::<V, STORED>(t.k.add(turn * N + i).read().add(step * t.k_step));
            }
            fetch_keys::<V, STORED, N>(t, turn, step);
            for (r, sum) in sum.iter_mut().enumerate() {
                let q = V::splat(*t.q.add(r * t.steps + step));
                for (sum, k) in sum.iter_mut().zip(k) {
                    *sum = V::fma(q, k, *sum);
                }
            }
        }
        for (r, sum) in sum.iter().enumerate() {
            for (i, sum) in sum.iter().enumerate() {
                V::store(*sum, t.s.add(r * TILE + (turn * N + i) * GROUP));
            }
        }
    }
}

/// Outputs of `R` rows and `N` vectors of columns in each turn: decayed, then weighted values added.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
pub(super) unsafe fn values<
    V: Vector,
    const INT8: bool,
    const STORED: bool,
    const N: usize,
    const R: usize,
>(
    t: &ValueTile,
) {
    // SAFETY: passed on.
    unsafe {
        for turn in 0..t.turns {
            if INT8 {
                value_codes::<V, STORED, N, R>(t, turn * N);
            } else {
                value_numbers::<V, STORED, N, R>(t, turn * N);
            }
        }
    }
}

/// [`values`] in integers, from the vector `first` on.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn value_codes<V: Vector, const STORED: bool, const N: usize, const R: usize>(
    t: &ValueTile,
    first: usize,
) {
    // SAFETY: passed on.
    unsafe {
        let mut sum = [[V::zero(); N]; R];
        for (half, (start, end)) in t.steps.into_iter().enumerate() {
            let p = t.p.add(half * t.p_half);
            for step in start..end {
                let mut v = [V::zero(); N];
                for (i, v) in v.iter_mut().enumerate() {
                    let at = step * t.v_step + (first + i) * width(STORED);
                    *v = pairs::<V, STORED>(t.v[half].add(at));
                }
                fetch_values::<V, STORED, N>(t, first, half, step);
                for (r, sum) in sum.iter_mut().enumerate() {
                    let p = V::splat_pair(p.add(r * t.p_stride + step).cast());
                    for (sum, v) in sum.iter_mut().zip(v) {
                        *sum = V::dot(*sum, v, p);
                    }
                }
            }
        }
        for (r, sum) in sum.iter().enumerate() {
            let scale = V::splat(*t.p_scale.add(r));
            for (i, sum) in sum.iter().enumerate() {
                let out = t.out.add(r * t.v_cols + (first + i) * GROUP);
                let decayed = V::mul(V::load(out), V::splat(*t.decay.add(r)));
                V::store(V::fma(V::to_float(*sum), scale, decayed), out);
            }
        }
    }
}

/// [`values`] in f32, from the vector `first` on.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn value_numbers<V: Vector, const STORED: bool, const N: usize, const R: usize>(
    t: &ValueTile,
    first: usize,
) {
    // SAFETY: passed on.
    unsafe {
        let mut sum = [[V::splat(0.0); N]; R];
        for (r, sum) in sum.iter_mut().enumerate() {
            for (i, sum) in sum.iter_mut().enumerate() {
                let out = V::load(t.out.add(r * t.v_cols + (first + i) * GROUP));
                *sum = V::mul(out, V::splat(*t.decay.add(r)));
            }
        }
        for (half, (start, end)) in t.steps.into_iter().enumerate() {
            let p = t.p.add(half * t.p_half);
            for step in start..end {
                let mut v = [V::splat(0.0); N];
                for (i, v) in v.iter_mut().enumerate() {
                    let at = step * t.v_step + (first + i) * width(STORED);
                    *v = numbers::<V, STORED>(t.v[half].add(at));
                }
                fetch_values::<V, STORED, N>(t, first, half, step);
                for (r, sum) in sum.iter_mut().enumerate() {
                    let p = V::splat(*p.add(r * t.p_stride + step));
                    for (sum, v) in sum.iter_mut().zip(v) {
                        *sum = V::fma(p, v, *sum);
                    }
                }
            }
        }
        for (r, sum) in sum.iter().enumerate() {
            for (i, sum) in sum.iter().enumerate() {
                V::store(*sum, t.out.add(r * t.v_cols + (first + i) * GROUP));
            }
        }
    }
}

/// e^x for x ≤ 0 or NaN, the bits of [`crate::math::exp`].
#[inline(always)]
unsafe fn exp_of_negative<V: Vector>(x: V::Float) -> V::Float {
    // SAFETY: registers only.
    unsafe {
        let round = V::splat(12_582_912.0); // 1.5·2²³
        let x = V::max(V::splat(-104.0), x);
        let shifted = V::fma(x, V::splat(std::f32::consts::LOG2_E), round);
        let n = V::sub(shifted, round);
        let r = V::fma(n, V::splat(-std::f32::consts::LN_2), x);
        let r = V::fma(V::splat(1.904_654_3e-9), n, r);
        let p = V::splat(1.979_032_2e-4);
        let p = V::fma(p, r, V::splat(1.394_469e-3));
        let p = V::fma(p, r, V::splat(8.333_498e-3));
        let p = V::fma(p, r, V::splat(4.166_629_5e-2));
        let p = V::fma(p, r, V::splat(1.666_666_6e-1));
        let p = V::fma(p, r, V::splat(0.5));
        let y = V::add(V::fma(V::mul(r, r), p, r), V::splat(1.0));
        V::times_power(y, shifted)
    }
}

/// Scaled queries, or their codes.
#[inline(always)]
pub(super) fn load_queries(job: &AttendJob<'_>, item: &Item, scratch: &mut Scratch) {
    let (dim, group, keys) = (job.k_dim, job.group(), job.formats().0);
    for row in 0..item.tokens as usize * group {
        let first = (item.kv_head as usize * group + row % group) * dim;
        let from = job.q.get(item.row as usize + row / group, first..first + dim);
        if keys == KvFormat::Int8 {
            let cols = dim.next_multiple_of(2);
            let to = &mut shorts(&mut scratch.q)[row * cols..][..cols];
            to[dim..].fill(0);
            let mut buffer = [0.0; MIX_MAX];
            let from = mixed(from, &mut buffer);
            scratch.q_scale[row] = encode(from, job.query_codes(), &mut to[..dim]) * job.scale;
        } else {
            let to = &mut floats(&mut scratch.q)[row * dim..][..dim];
            to.copy_from_slice(from);
            if keys == KvFormat::Int4 {
                turn_blocks(to, turn_block(dim));
            }
            to.iter_mut().for_each(|x| *x *= job.scale);
        }
    }
}

/// Codes of a row of any numbers, up to `most`; returns the scale.
#[inline(always)]
fn encode(x: &[f32], most: f32, codes: &mut [i16]) -> f32 {
    let top = x.iter().fold(0, |top, x| top.max(x.to_bits() & 0x7fff_ffff));
    let (inverse, scale) = code_scale(f32::from_bits(top), most);
    for (code, x) in codes.iter_mut().zip(x) {
        *code = (x * inverse).round_ties_even() as i16;
    }
    scale
}

/// The keys `range`, all of one split, for every row of an item, into the scratch.
///
/// # Safety
/// The instruction set of `V` is available; the queries are loaded.
#[inline(always)]
pub(super) unsafe fn split<V: Vector, const KEYS8: bool, const VALUES8: bool>(
    job: &AttendJob<'_>,
    item: &Item,
    range: Range<usize>,
    scratch: &mut Scratch,
) {
    let (group, v_cols) = (job.group(), job.v_dim.next_multiple_of(GROUP));
    let rows = item.tokens as usize * group;
    for (token, rows) in scratch.seen[..rows].chunks_exact_mut(group).enumerate() {
        rows.fill(job.seen(item.index as usize + token, item.keys as usize));
    }
    scratch.max[..rows].fill(f32::NEG_INFINITY);
    floats(&mut scratch.sum)[..rows * GROUP].fill(0.0);
    floats(&mut scratch.out)[..rows * v_cols].fill(0.0);
    for tile in range.start / TILE..range.end.div_ceil(TILE) {
        let of_tile = |keys: Range<usize>| {
            let first = tile * TILE;
            let end = keys.end.clamp(first, first + TILE) - first;
            (keys.start.clamp(first, first + TILE) - first).min(end)..end
        };
        // SAFETY: passed on.
        let place = unsafe { widen::tile::<V>(job, item, tile, of_tile(range.clone()), scratch) };
        for first in (0..rows).step_by(BAND) {
            let band = first..rows.min(first + BAND);
            let chunks = band.clone().step_by(V::ROWS);
            let chunks = chunks.map(|start| start..band.end.min(start + V::ROWS));
            // What any row of a chunk sees.
            let seen_by = |rows: &Range<usize>, seen: &[Range<usize>]| {
                of_tile(seen[rows.start].start..seen[rows.end - 1].end)
            };
            let mut factors = [([0.0; GROUP], [0.0; GROUP]); BAND / 3];
            // SAFETY: passed on; the scratch is as large as its shapes.
            unsafe {
                // All rows of the band on the keys, then on the values: the first-level cache
                // holds either.
                for (chunk, (decay, p_scale)) in chunks.clone().zip(&mut factors) {
                    let keys = seen_by(&chunk, &scratch.seen);
                    if keys.is_empty() {
                        continue;
                    }
                    let at = chunk.start - first;
                    score_rows::<V, KEYS8>(job, &place, chunk.clone(), at, keys.clone(), scratch);
                    for row in chunk.clone() {
                        let seen = of_tile(scratch.seen[row].clone());
                        let s = &mut floats(&mut scratch.s)[(row - first) * TILE..][..TILE];
                        cover(job, &keys, seen, s);
                    }
                    weigh::<V>(chunk.clone(), at, &keys, decay, scratch);
                    if VALUES8 {
                        encode_weights::<V>(chunk.len(), at, &keys, p_scale, scratch);
                    }
                }
                for (chunk, factors) in chunks.zip(&factors) {
                    let keys = seen_by(&chunk, &scratch.seen);
                    if !keys.is_empty() {
                        let at = chunk.start - first;
                        add_values::<V, VALUES8>(job, &place, chunk, at, keys, factors, scratch);
                    }
                }
            }
        }
    }
}

/// Groups that hold `keys`.
#[inline(always)]
fn groups(keys: &Range<usize>) -> Range<usize> {
    keys.start / GROUP..keys.end.div_ceil(GROUP)
}

/// Scores of a chunk of rows, which begins `at` rows into its band.
///
/// # Safety
/// As [`split`].
#[inline(always)]
unsafe fn score_rows<V: Vector, const INT8: bool>(
    job: &AttendJob<'_>,
    place: &TilePlace,
    chunk: Range<usize>,
    at: usize,
    keys: Range<usize>,
    scratch: &mut Scratch,
) {
    let steps = if INT8 { job.k_dim.div_ceil(2) } else { job.k_dim };
    for (group, count, turns) in turns(groups(&keys), V::vectors(chunk.len())) {
        let lane = group * GROUP;
        let t = ScoreTile {
            q: floats(&mut scratch.q)[chunk.start * steps..].as_ptr(),
            steps,
            turns,
            k: place.k[group..group + count * turns].as_ptr(),
            k_step: place.k_step,
            next: place.next_k,
            s: floats(&mut scratch.s)[at * TILE + lane..].as_mut_ptr(),
            k_scale: floats(&mut scratch.scales)[lane..].as_ptr(),
            q_scale: scratch.q_scale[chunk.start..].as_ptr(),
        };
        // SAFETY: the groups are inside the tile, the rows inside `q` and `s`.
        unsafe {
            if place.keys_stored {
                V::scores::<INT8, true>(count, chunk.len(), &t);
            } else {
                V::scores::<INT8, false>(count, chunk.len(), &t);
            }
        }
    }
}

/// `all` in turns of `at_once`, and what is left in one more: the first of them, how many a turn, turns.
#[inline(always)]
fn turns(all: Range<usize>, at_once: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let (turns, left) = (all.len() / at_once, all.len() % at_once);
    let calls = [(all.start, at_once, turns), (all.end - left, left, 1)];
    calls.into_iter().filter(|&(_, count, turns)| count * turns > 0)
}

/// Caps the scores, and makes those of keys that the row does not see −∞.
#[inline(always)]
fn cover(job: &AttendJob<'_>, keys: &Range<usize>, seen: Range<usize>, s: &mut [f32]) {
    let groups = groups(keys);
    let s = &mut s[groups.start * GROUP..groups.end * GROUP];
    if let Some(cap) = job.softcap {
        for vector in s.as_chunks_mut::<GROUP>().0 {
            for s in vector {
                *s = tanh(*s / cap) * cap;
            }
        }
    }
    let first = groups.start * GROUP;
    let end = (seen.end.max(first) - first).min(s.len());
    let start = (seen.start.max(first) - first).min(end);
    if start > 0 || end < s.len() {
        s[end..].fill(f32::NEG_INFINITY);
        s[..start].fill(f32::NEG_INFINITY);
    }
}

/// Turns the scores of a chunk of rows into weights, and adds them up; `decay` becomes what the
/// rows' outputs are multiplied by.
///
/// # Safety
/// As [`split`].
#[inline(always)]
unsafe fn weigh<V: Vector>(
    chunk: Range<usize>,
    at: usize,
    keys: &Range<usize>,
    decay: &mut [f32; GROUP],
    scratch: &mut Scratch,
) {
    let groups = groups(keys);
    let s = floats(&mut scratch.s)[at * TILE..][..V::ROWS * TILE].as_mut_ptr();
    let mut base = [0.0; GROUP];
    // SAFETY: rows and groups of the tile; registers.
    unsafe {
        for (i, max) in scratch.max[chunk.clone()].iter_mut().enumerate() {
            let s = s.add(i * TILE);
            let mut top = V::load(s.add(groups.start * GROUP));
            for group in groups.start + 1..groups.end {
                top = V::max(top, V::load(s.add(group * GROUP)));
            }
            let new = max.max(V::greatest(top));
            base[i] = if new == f32::NEG_INFINITY { 0.0 } else { new };
            decay[i] = *max - base[i];
            *max = new;
        }
        let exp = exp_of_negative::<V>(V::load(decay.as_ptr()));
        V::store(exp, decay.as_mut_ptr());
        for (i, sum) in scratch.sum[chunk].iter_mut().enumerate() {
            let base = V::splat(base[i]);
            let mut lanes = V::mul(V::load(sum.0.as_ptr()), V::splat(decay[i]));
            for group in groups.clone() {
                let s = s.add(i * TILE + group * GROUP);
                let p = exp_of_negative::<V>(V::sub(V::load(s), base));
                V::store(p, s);
                lanes = V::add(lanes, p);
            }
            V::store(lanes, sum.0.as_mut_ptr());
        }
    }
}

/// Codes of the weights of `rows` rows times the scales of the values; `p_scale` becomes the
/// scales of the codes.
///
/// # Safety
/// As [`split`].
#[inline(always)]
unsafe fn encode_weights<V: Vector>(
    rows: usize,
    at: usize,
    keys: &Range<usize>,
    p_scale: &mut [f32; GROUP],
    scratch: &mut Scratch,
) {
    let groups = groups(keys);
    let s = floats(&mut scratch.s)[at * TILE..][..V::ROWS * TILE].as_mut_ptr();
    let v_scale = floats(&mut scratch.scales)[TILE..].as_ptr();
    let codes = shorts(&mut scratch.p)[at * TILE..][..V::ROWS * TILE].as_mut_ptr();
    for (i, p_scale) in p_scale[..rows].iter_mut().enumerate() {
        // SAFETY: rows and groups of the tile; registers.
        unsafe {
            let (s, codes) = (s.add(i * TILE), codes.add(i * TILE));
            let mut top = V::splat(0.0);
            for group in groups.clone() {
                let at = group * GROUP;
                let w = V::mul(V::load(s.add(at)), V::load(v_scale.add(at)));
                V::store(w, s.add(at));
                top = V::greater_bits(top, w);
            }
            let (inverse, scale) = code_scale(V::greatest_bits(top), CODE_MAX);
            for group in groups.clone() {
                let w = V::mul(V::load(s.add(group * GROUP)), V::splat(inverse));
                V::store_codes(w, codes.add(group * GROUP));
            }
            *p_scale = scale;
        }
    }
}

/// Adds the weighted values to the outputs of a chunk of rows.
///
/// # Safety
/// As [`split`].
#[inline(always)]
unsafe fn add_values<V: Vector, const INT8: bool>(
    job: &AttendJob<'_>,
    place: &TilePlace,
    chunk: Range<usize>,
    at: usize,
    keys: Range<usize>,
    (decay, p_scale): &([f32; GROUP], [f32; GROUP]),
    scratch: &mut Scratch,
) {
    let v_cols = job.v_dim.next_multiple_of(GROUP);
    // Steps are keys, or pairs of keys.
    let per_step = if INT8 { 2 } else { 1 };
    let half = |h: usize| {
        let first = h * BLOCK_TOKENS;
        let inside = |key: usize| key.clamp(first, first + BLOCK_TOKENS) - first;
        (inside(keys.start) / per_step, inside(keys.end).div_ceil(per_step))
    };
    let weights = if INT8 { &mut scratch.p } else { &mut scratch.s };
    let p = floats(weights)[at * TILE / per_step..].as_ptr();
    for (vector, count, turns) in turns(0..v_cols / GROUP, V::vectors(chunk.len())) {
        let col = vector * GROUP;
        let at = vector * width(place.values_stored);
        let t = ValueTile {
            turns,
            p,
            p_stride: TILE / per_step,
            p_half: BLOCK_TOKENS / per_step,
            steps: [half(0), half(1)],
            v: place.v.map(|v| v.wrapping_add(at)),
            v_step: place.v_step,
            next: place.next_v.map(|v| v.wrapping_add(at)),
            v_cols,
            out: floats(&mut scratch.out)[chunk.start * v_cols + col..].as_mut_ptr(),
            decay: decay.as_ptr(),
            p_scale: p_scale.as_ptr(),
        };
        // SAFETY: columns of the rows of the chunk; keys of the tile.
        unsafe {
            if place.values_stored {
                V::values::<INT8, true>(count, chunk.len(), &t);
            } else {
                V::values::<INT8, false>(count, chunk.len(), &t);
            }
        }
    }
}

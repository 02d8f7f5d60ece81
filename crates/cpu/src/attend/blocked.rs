//! Attention by blocks: a tile of keys is widened once for all rows of an item, then a few rows
//! at a time are scored, weighted and summed in registers.
//!
//! Rows are ordered by token, then by head of the group.

use std::arch::asm;
use std::ops::Range;

use tokenmill_ir::KvFormat;
use tokenmill_quant::float::rounded_factor;

use super::codes::{code_scale, short_code, top};
use super::layout::{BLOCK_TOKENS, GROUP, is_codes};
use super::mix::{MIX_MAX, mixed, turn_block, turn_blocks};
use super::scalar::QUICK_POWERS;
use super::scratch::{floats, shorts, words};
use super::sums::Sums;
use super::vector::{ScoreTile, TilePlace, ValueTile, Vector};
use super::{AttendJob, BAND, Item, Kind, Scratch, TILE, widen};
use crate::math::{ROUND, tanh};

/// Bytes of 16 words of a row as a kernel reads them.
#[inline(always)]
fn width<V: Vector, S: Sums<V>>(stored: bool) -> usize {
    if stored { S::STORED } else { 64 }
}

/// Half lines that a kernel reads in a step of `N` stored vectors.
#[inline(always)]
fn half_lines<V: Vector, S: Sums<V>, const N: usize>() -> usize {
    N * S::STORED / 32 * if S::TWO_ROWS { 2 } else { 1 }
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

/// Where part `part` begins of what is asked for of the tile to come: of as many as `of` for each half, each as
/// many bytes as `steps` steps read, in the order in which they lie.
#[inline(always)]
fn ahead<V: Vector, S: Sums<V>, const N: usize>(
    next: [*const u8; 2],
    (part, of): (usize, usize),
    steps: usize,
) -> *const u8 {
    next[part / of % 2].wrapping_add(part % of * steps * half_lines::<V, S, N>() * 32)
}

/// Asks for what lies `step` steps after `ahead`. Evenly over the steps, each line once: in bursts requests stall
/// until earlier ones are answered.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn fetch<V: Vector, S: Sums<V>, const N: usize>(ahead: *const u8, step: usize) {
    let half_lines = half_lines::<V, S, N>();
    for line in 0..half_lines.div_ceil(2) {
        // SAFETY: passed on.
        unsafe { V::fetch(ahead.wrapping_add((step * half_lines / 2 + line) * 64)) };
    }
}

/// The same address, but what is read there once more is not kept in a register meanwhile.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block)] // nothing is read
fn anew<T>(mut at: *const T) -> *const T {
    // SAFETY: does nothing.
    unsafe { asm!("/* {0} */", inout(reg) at, options(nomem, nostack, preserves_flags)) };
    at
}

/// Scores of `R` rows by `N` groups of keys in each turn.
///
/// # Safety
/// As [`Vector`]; the tile's pointers cover its shapes.
#[inline(always)]
pub(super) unsafe fn scores<
    V: Vector,
    S: Sums<V>,
    const STORED: bool,
    const N: usize,
    const R: usize,
>(
    t: &ScoreTile,
) {
    for turn in 0..t.turns {
        // SAFETY: passed on.
        unsafe {
            let mut sum = [[S::zero(); N]; R];
            let of = const { if N == 1 { BLOCK_TOKENS / GROUP } else { 1 } };
            let ahead = ahead::<V, S, N>(t.next, (turn, of), t.steps);
            for step in 0..t.steps {
                let at = |i| t.k.add(turn * N + i).read().add(step * t.k_step);
                if STORED {
                    fetch::<V, S, N>(ahead, step);
                }
                if const { N == V::FULL.0 && R == V::FULL.1 } {
                    for i in 0..N {
                        let (k, q) = (factors::<V, S, STORED>(at(i), t.k_step), anew(t.q));
                        for (r, sum) in sum.iter_mut().enumerate() {
                            sum[i] = S::add(sum[i], k, S::splat(q.add(r * t.steps + step)));
                        }
                    }
                    continue;
                }
                let mut k = [factors::<V, S, STORED>(at(0), t.k_step); N];
                for (i, k) in k.iter_mut().enumerate().skip(1) {
                    *k = factors::<V, S, STORED>(at(i), t.k_step);
                }
                for (r, sum) in sum.iter_mut().enumerate() {
                    let q = S::splat(t.q.add(r * t.steps + step));
                    for (sum, k) in sum.iter_mut().zip(k) {
                        *sum = S::add(*sum, k, q);
                    }
                }
            }
            for (r, sum) in sum.iter().enumerate() {
                let q_scale = V::splat(*t.q_scale.add(r));
                for (i, sum) in sum.iter().enumerate() {
                    let lane = (turn * N + i) * GROUP;
                    let sum = if STORED { S::in_order(*sum) } else { *sum };
                    let s = S::score(sum, t.k_scale.wrapping_add(lane));
                    V::store(V::mul(s, q_scale), t.s.add(r * TILE + lane));
                }
            }
        }
    }
}

/// Outputs of `R` rows and `N` vectors of columns in each turn: decayed, and weighted values added.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
pub(super) unsafe fn values<
    V: Vector,
    S: Sums<V>,
    const STORED: bool,
    const N: usize,
    const R: usize,
>(
    t: &ValueTile,
) {
    for first in (0..t.turns).map(|turn| turn * N) {
        // SAFETY: passed on.
        unsafe {
            let mut sum = [[S::zero(); N]; R];
            for (half, (start, end)) in t.steps.into_iter().enumerate() {
                let p = t.p.add(half * t.p_half);
                let part = (2 * (first / N) + half, t.turns);
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
                    let out = t.out.add(r * t.v_cols + (first + i) * GROUP);
                    let (decay, scale) = (*t.decay.add(r), t.p_scale.add(r));
                    let sum = if STORED { S::in_order(*sum) } else { *sum };
                    V::store(S::join(sum, V::load(out), decay, scale), out);
                }
            }
        }
    }
}

/// e^x for x ≤ 0 or NaN, the bits of [`crate::math::exp`].
#[inline(always)]
unsafe fn exp_of_negative<V: Vector>(x: V::Float) -> V::Float {
    // SAFETY: registers only.
    unsafe {
        let round = V::splat(ROUND);
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

/// The same to 7.5e-5, the bits of `scalar::quick_exp`.
#[inline(always)]
unsafe fn quick_exp<V: Vector>(x: V::Float) -> V::Float {
    // SAFETY: registers only.
    unsafe {
        let [c0, c1, c2, c3] = QUICK_POWERS;
        let (round, factor) = (V::splat(ROUND), V::splat(std::f32::consts::LOG2_E));
        let shifted = V::fma(x, factor, round);
        let f = V::fma(x, factor, V::sub(round, shifted));
        let y = V::fma(V::splat(c3), f, V::splat(c2));
        let y = V::fma(V::fma(y, f, V::splat(c1)), f, V::splat(c0));
        V::quick_power(y, shifted, x)
    }
}

/// Queries as sums of this kind read them, and what their scores are multiplied by.
#[inline(always)]
pub(super) fn load_queries(job: &AttendJob<'_>, item: &Item, keys: Kind, scratch: &mut Scratch) {
    let (dim, group, format) = (job.k_dim, job.group(), job.formats().0);
    for row in 0..item.tokens as usize * group {
        let first = (item.kv_head as usize * group + row % group) * dim;
        let from = job.q.get(item.row as usize + row / group, first..first + dim);
        scratch.q_scale[row] = job.scale;
        match keys {
            Kind::Bytes | Kind::Shorts => {
                let cols = dim.next_multiple_of(2);
                let to = &mut shorts(&mut scratch.q)[row * cols..][..cols];
                to[dim..].fill(0);
                let mut buffer = [0.0; MIX_MAX];
                let from = if keys == Kind::Bytes { mixed(from, &mut buffer) } else { from };
                scratch.q_scale[row] *= encode(from, job.query_codes(), &mut to[..dim]);
            }
            Kind::Pairs => {
                let to = &mut words(&mut scratch.q)[row * dim / 2..][..dim / 2];
                for (to, [high, low]) in to.iter_mut().zip(from.as_chunks::<2>().0) {
                    let [high, low] = [rounded_factor(*high), rounded_factor(*low)];
                    *to = (high.to_bits() | low.to_bits() >> 16) as i32;
                }
            }
            Kind::Numbers => {
                let to = &mut floats(&mut scratch.q)[row * dim..][..dim];
                if format == KvFormat::Bf16 {
                    to.iter_mut().zip(from).for_each(|(to, x)| *to = rounded_factor(*x));
                    continue;
                }
                to.copy_from_slice(from);
                if format == KvFormat::Int4 {
                    turn_blocks(to, turn_block(dim));
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
pub(super) unsafe fn split<V: Vector, K: Sums<V>, W: Sums<V>>(
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
    let values = job.formats().1;
    let (codes, short) = (is_codes(values), values == KvFormat::Bf16);
    for tile in range.start / TILE..range.end.div_ceil(TILE) {
        let of_tile = |keys: Range<usize>| {
            let first = tile * TILE;
            let end = keys.end.clamp(first, first + TILE) - first;
            (keys.start.clamp(first, first + TILE) - first).min(end)..end
        };
        // SAFETY: passed on.
        let place =
            unsafe { widen::tile::<V, K, W>(job, item, tile, of_tile(range.clone()), scratch) };
        for first in (0..rows).step_by(BAND) {
            let band = first..rows.min(first + BAND);
            let chunks = band.clone().step_by(V::ROWS);
            let chunks = chunks.map(|start| start..band.end.min(start + V::ROWS));
            // What any row of a chunk sees.
            let seen_by = |rows: &Range<usize>, seen: &[Range<usize>]| {
                of_tile(seen[rows.start].start..seen[rows.end - 1].end)
            };
            // Whether all rows of a chunk see the same: what they see begins and ends in their order.
            let alike = |rows: &Range<usize>, seen: &[Range<usize>]| {
                of_tile(seen[rows.start].clone()) == of_tile(seen[rows.end - 1].clone())
            };
            let mut sums = BandSums::new();
            // SAFETY: passed on; the scratch is as large as its shapes.
            unsafe {
                // All rows of the band on the keys, then on the values: the first-level cache
                // holds either.
                for chunk in chunks.clone() {
                    let keys = seen_by(&chunk, &scratch.seen);
                    if keys.is_empty() {
                        continue;
                    }
                    let at = chunk.start - first;
                    score_rows::<V, K>(job, &place, chunk.clone(), at, keys.clone(), scratch);
                    let whole = alike(&chunk, &scratch.seen)
                        && job.softcap.is_none()
                        && (keys.start % GROUP, keys.end % GROUP) == (0, 0);
                    for (row, at) in chunk.zip(at..) {
                        let s = &mut floats(&mut scratch.s)[at * TILE..][..TILE];
                        if !whole {
                            cover(job, &keys, of_tile(scratch.seen[row].clone()), s);
                        }
                        sums.base[at] = greatest::<V>(s, groups(&keys));
                    }
                }
                sums.meet::<V>(&mut scratch.max[first..], codes);
                let mut scaling = Scaling::new();
                for chunk in chunks.clone() {
                    let keys = seen_by(&chunk, &scratch.seen);
                    if keys.is_empty() {
                        continue;
                    }
                    let alike = alike(&chunk, &scratch.seen);
                    for (row, at) in chunk.map(|row| (row, row - first)) {
                        let groups = groups(&keys);
                        if codes {
                            let seen = match alike {
                                true => keys.clone(),
                                false => of_tile(scratch.seen[row].clone()),
                            };
                            let scales = &floats(&mut scratch.scales)[TILE..];
                            scaling.of(seen, scales, job.weight_codes());
                            sums.scale[at] = scaling.scale * sums.join[at];
                            weigh_codes::<V>(&sums, &scaling, row, at, groups, scratch);
                            continue;
                        }
                        weigh::<V>(&sums, row, at, groups.clone(), short, scratch);
                        if W::PER_STEP == 2 {
                            pair_weights::<V>(at, groups, scratch);
                        }
                    }
                }
                for chunk in chunks {
                    let keys = seen_by(&chunk, &scratch.seen);
                    if !keys.is_empty() {
                        let at = chunk.start - first;
                        add_values::<V, W>(job, &place, chunk, at, keys, &sums, scratch);
                    }
                }
            }
        }
    }
}

/// Factors of the sums of a band's rows on one tile.
struct BandSums {
    /// The greatest score, −∞ for rows that see none; then what is subtracted from scores.
    base: [f32; BAND_LANES],
    /// What sums so far are multiplied by.
    decay: [f32; BAND_LANES],
    /// What the tile's are multiplied by, where weights are codes.
    join: [f32; BAND_LANES],
    /// What products of codes are multiplied by.
    scale: [f32; BAND_LANES],
}

/// Rows of a band in whole vectors.
const BAND_LANES: usize = BAND.next_multiple_of(GROUP);

impl BandSums {
    fn new() -> Self {
        let zeros = [0.0; BAND_LANES];
        Self { base: [f32::NEG_INFINITY; BAND_LANES], decay: zeros, join: zeros, scale: zeros }
    }

    /// Makes the factors from the greatest scores and the maxima so far, which grow; weights are relative to the
    /// tile's greatest if `own`, else to the maximum of both.
    ///
    /// # Safety
    /// The instruction set of `V` is available.
    #[inline(always)]
    unsafe fn meet<V: Vector>(&mut self, max: &mut [f32], own: bool) {
        let max = max[..BAND_LANES].as_mut_ptr();
        for first in (0..BAND_LANES).step_by(GROUP) {
            // SAFETY: 16 numbers of each.
            unsafe {
                let base = self.base.as_mut_ptr().add(first);
                let (top, before) = (V::load(base), V::load(max.add(first)));
                let new = V::max(top, before);
                // Nothing is greater than the least number where nothing was seen: differences are −∞.
                let finite = |x| V::max(V::splat(f32::MIN), x);
                let decay = exp_of_negative::<V>(V::sub(before, finite(new)));
                let join = exp_of_negative::<V>(V::sub(top, finite(new)));
                V::store(new, max.add(first));
                V::store(finite(if own { top } else { new }), base);
                V::store(decay, self.decay.as_mut_ptr().add(first));
                V::store(join, self.join.as_mut_ptr().add(first));
            }
        }
    }
}

/// How the weights of rows that see the same keys of a tile become codes.
struct Scaling {
    seen: Range<usize>,
    /// What weights are multiplied by.
    factors: [f32; TILE],
    /// What codes are multiplied by.
    scale: f32,
}

impl Scaling {
    /// Of no key.
    fn new() -> Self {
        Self { seen: 0..0, factors: [0.0; TILE], scale: 0.0 }
    }

    /// Those of the keys `seen` of a tile whose values have those scales, for codes up to `most`.
    #[inline(always)]
    fn of(&mut self, seen: Range<usize>, scales: &[f32], most: f32) {
        if seen != self.seen {
            let (inverse, scale) = code_scale(top(&scales[seen.clone()]), most);
            self.factors
                .iter_mut()
                .zip(scales)
                .for_each(|(factor, scale)| *factor = scale * inverse);
            (self.seen, self.scale) = (seen, scale);
        }
    }
}

/// The greatest score of a row.
///
/// # Safety
/// As [`split`].
#[inline(always)]
unsafe fn greatest<V: Vector>(s: &[f32], groups: Range<usize>) -> f32 {
    let s = s[..groups.end * GROUP].as_ptr();
    // SAFETY: groups of the row; registers.
    unsafe {
        let mut top = V::load(s.add(groups.start * GROUP));
        for group in groups.start + 1..groups.end {
            top = V::max(top, V::load(s.add(group * GROUP)));
        }
        V::greatest(top)
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
unsafe fn score_rows<V: Vector, S: Sums<V>>(
    job: &AttendJob<'_>,
    place: &TilePlace,
    chunk: Range<usize>,
    at: usize,
    keys: Range<usize>,
    scratch: &mut Scratch,
) {
    let steps = job.k_dim.div_ceil(S::PER_STEP);
    for (group, count, turns) in turns(groups(&keys), V::vectors(chunk.len(), place.keys_stored)) {
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
                V::scores::<S, true>(count, chunk.len(), &t);
            } else {
                V::scores::<S, false>(count, chunk.len(), &t);
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

/// Turns the scores of a row into weights, in bf16 if `short`, and adds them up.
///
/// # Safety
/// As [`split`].
#[inline(always)]
unsafe fn weigh<V: Vector>(
    sums: &BandSums,
    row: usize,
    at: usize,
    groups: Range<usize>,
    short: bool,
    scratch: &mut Scratch,
) {
    let s = floats(&mut scratch.s)[at * TILE..][..TILE].as_mut_ptr();
    let sum = scratch.sum[row].0.as_mut_ptr();
    // SAFETY: groups of the tile; registers.
    unsafe {
        let base = V::splat(sums.base[at]);
        let mut lanes = V::mul(V::load(sum), V::splat(sums.decay[at]));
        for group in groups {
            let s = s.add(group * GROUP);
            let x = V::sub(V::load(s), base);
            let p = if short { V::short(quick_exp::<V>(x)) } else { exp_of_negative::<V>(x) };
            V::store(p, s);
            lanes = V::add(lanes, p);
        }
        V::store(lanes, sum);
    }
}

/// Turns the scores of a row into codes of weights times the scales of values, and adds the weights up.
///
/// # Safety
/// As [`split`].
#[inline(always)]
unsafe fn weigh_codes<V: Vector>(
    sums: &BandSums,
    scaling: &Scaling,
    row: usize,
    at: usize,
    groups: Range<usize>,
    scratch: &mut Scratch,
) {
    let s = floats(&mut scratch.s)[at * TILE..][..TILE].as_ptr();
    let codes = shorts(&mut scratch.p)[at * TILE..][..TILE].as_mut_ptr();
    let sum = scratch.sum[row].0.as_mut_ptr();
    // SAFETY: groups of the tile; registers.
    unsafe {
        let (base, zero) = (V::splat(sums.base[at]), V::splat(ROUND));
        let mut lanes = V::splat(0.0);
        // Both groups of half a tile; one that nobody sees has zeros.
        for half in groups.start / 2..groups.end.div_ceil(2) {
            let mut code = [zero; 2];
            for (group, code) in (2 * half..).zip(&mut code) {
                if groups.contains(&group) {
                    let p = quick_exp::<V>(V::sub(V::load(s.add(group * GROUP)), base));
                    lanes = V::add(lanes, p);
                    *code = V::fma(p, V::load(scaling.factors.as_ptr().add(group * GROUP)), zero);
                }
            }
            V::store_codes(code, codes.add(half * BLOCK_TOKENS));
        }
        let before = V::mul(V::load(sum), V::splat(sums.decay[at]));
        V::store(V::fma(lanes, V::splat(sums.join[at]), before), sum);
    }
}

/// Pairs of the weights of a row.
///
/// # Safety
/// As [`split`].
#[inline(always)]
unsafe fn pair_weights<V: Vector>(at: usize, groups: Range<usize>, scratch: &mut Scratch) {
    let s = floats(&mut scratch.s)[at * TILE..][..TILE].as_ptr();
    let to = shorts(&mut scratch.p)[at * TILE..][..TILE].as_mut_ptr();
    for first in groups.map(|group| group * GROUP) {
        // SAFETY: groups of the tile; registers.
        unsafe { V::store_pairs(V::load(s.add(first)), to.add(first)) };
    }
}

/// Adds the weighted values to the outputs of a chunk of rows.
///
/// # Safety
/// As [`split`].
#[inline(always)]
unsafe fn add_values<V: Vector, S: Sums<V>>(
    job: &AttendJob<'_>,
    place: &TilePlace,
    chunk: Range<usize>,
    at: usize,
    keys: Range<usize>,
    sums: &BandSums,
    scratch: &mut Scratch,
) {
    let v_cols = job.v_dim.next_multiple_of(GROUP);
    // Steps are keys, or pairs of keys.
    let per_step = S::PER_STEP;
    let half = |h: usize| {
        let first = h * BLOCK_TOKENS;
        let inside = |key: usize| key.clamp(first, first + BLOCK_TOKENS) - first;
        S::steps(inside(keys.start)..inside(keys.end))
    };
    let weights = if per_step == 2 { &mut scratch.p } else { &mut scratch.s };
    let p = floats(weights)[at * TILE / per_step..].as_ptr();
    let at_once = V::vectors(chunk.len(), place.values_stored);
    // Stored, of a vector of columns.
    let bytes_of_half = place.v_step * (BLOCK_TOKENS / per_step) * GROUP / v_cols;
    for (vector, count, turns) in turns(0..v_cols / GROUP, at_once) {
        let col = vector * GROUP;
        let start = vector * width::<V, S>(place.values_stored);
        let t = ValueTile {
            turns,
            p,
            p_stride: TILE / per_step,
            p_half: BLOCK_TOKENS / per_step,
            steps: [half(0), half(1)],
            v: place.v.map(|v| v.wrapping_add(start)),
            v_step: place.v_step,
            seen: place.seen_pairs.as_ptr(),
            next: place.next_v.map(|v| v.wrapping_add(vector * bytes_of_half)),
            v_cols,
            out: floats(&mut scratch.out)[chunk.start * v_cols + col..].as_mut_ptr(),
            decay: sums.decay[at..].as_ptr(),
            p_scale: sums.scale[at..].as_ptr(),
        };
        // SAFETY: columns of the rows of the chunk; keys of the tile.
        unsafe {
            if place.values_stored {
                V::values::<S, true>(count, chunk.len(), &t);
            } else {
                V::values::<S, false>(count, chunk.len(), &t);
            }
        }
    }
}

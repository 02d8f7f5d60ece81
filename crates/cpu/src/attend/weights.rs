//! From scores to weights: the rows of a band on one tile.

use std::ops::Range;

use tokenmill_ir::KvFormat;

use super::chunk::{Chunk, in_tile};
use super::codes::{code_scale, top};
use super::layout::{BLOCK_TOKENS, GROUP, is_codes};
use super::scalar::QUICK_POWERS;
use super::scratch::{Lanes, floats, shorts};
use super::sums::Sums;
use super::{AttendJob, BAND, Scratch, TILE, TILES};
use crate::math::{ROUND, tanh};
use crate::simd::Vector;

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

/// Factors of the sums of a band's rows on one tile, of one band after the other.
pub(super) struct BandSums {
    /// Whether the tile is the first of its split: sums and outputs before it are zeros, not what the scratch holds.
    pub begin: bool,
    /// Which tile of its split it is.
    tile: usize,
    /// How weights become codes.
    scaling: Scaling,
    /// What is subtracted from scores.
    base: [f32; BAND],
    /// What sums so far are multiplied by.
    pub decay: [f32; BAND],
    /// What the tile's are multiplied by, where weights are codes.
    join: [f32; BAND],
    /// What products of codes are multiplied by.
    pub scale: [f32; BAND],
}

impl BandSums {
    /// Of no band yet, on that tile of a split.
    pub fn new(tile: usize) -> Self {
        let (begin, scaling, zeros) = (tile == 0, Scaling::new(), [0.0; BAND]);
        Self { begin, tile, scaling, base: zeros, decay: zeros, join: zeros, scale: zeros }
    }

    /// For a chunk whose rows see nothing of the tile.
    #[inline(always)]
    pub fn see_nothing(&self, job: &AttendJob<'_>, chunk: &Chunk, scratch: &mut Scratch) {
        scratch.tops[chunk.at..][..chunk.rows.len()].fill(NOTHING);
        if self.begin {
            let cols = job.v_dim.div_ceil(GROUP);
            scratch.sum[chunk.rows.clone()].fill(Lanes([0.0; GROUP]));
            scratch.out[chunk.rows.start * cols..chunk.rows.end * cols].fill(Lanes([0.0; GROUP]));
        }
    }

    /// Makes the factors of a band's rows from their greatest scores and the maxima so far, which grow. Where weights are
    /// codes they are relative to the tile's greatest score, else to the greatest so far. Scores may be without a shift.
    ///
    /// # Safety
    /// The instruction set of `V` is available.
    #[inline(always)]
    pub unsafe fn weigh<V: Vector>(
        &mut self,
        job: &AttendJob<'_>,
        rows: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let codes = is_codes(job.formats().1);
        let lanes = rows.len().next_multiple_of(GROUP);
        assert!(lanes <= BAND, "rows of a band");
        scratch.tops[rows.len()..lanes].fill(NOTHING);
        let tops = floats(&mut scratch.tops).as_ptr();
        let of_tile = scratch.shifts.len() / TILES * GROUP * self.tile + rows.start;
        let shifts = job.steady.map(|_| floats(&mut scratch.shifts)[of_tile..][..lanes].as_ptr());
        let max = scratch.max[rows.start..][..lanes].as_mut_ptr();
        for first in (0..lanes).step_by(GROUP) {
            // SAFETY: 16 rows of the greatest scores, 16 numbers of each of the others.
            unsafe {
                let (top, before) =
                    (V::greatest_of(tops.add(first * GROUP)), V::floats(max.add(first)));
                let least = V::splat(f32::MIN);
                let shift = shifts.map(|shifts| V::floats(shifts.add(first)));
                let whole = shift.map_or(top, |shift| V::add(top, shift));
                let new = V::max(whole, before);
                let base = V::max(least, new);
                let decay = exp_of_negative::<V>(V::sub(before, base));
                V::store_floats(new, max.add(first));
                V::store_floats(decay, self.decay.as_mut_ptr().add(first));
                // Nothing is greater than the least number where nothing was seen: differences are −∞.
                let of_weights = match shift {
                    _ if codes => V::max(top, least),
                    None => V::max(new, least),
                    // Not below what it is subtracted from, whatever was rounded.
                    Some(shift) => V::max(V::sub(base, shift), V::max(top, least)),
                };
                V::store_floats(of_weights, self.base.as_mut_ptr().add(first));
                if codes {
                    let join = exp_of_negative::<V>(V::sub(whole, base));
                    V::store_floats(join, self.join.as_mut_ptr().add(first));
                }
            }
        }
    }
}

/// The greatest scores of a row that sees nothing.
const NOTHING: Lanes = Lanes([f32::NEG_INFINITY; GROUP]);

/// Caps and covers the scores of a chunk on the tile that begins with key `first`, and finds the greatest of each
/// row, in lanes.
///
/// # Safety
/// The instruction set of `V` is available.
#[inline(always)]
pub(super) unsafe fn meet_scores<V: Vector>(
    job: &AttendJob<'_>,
    first: usize,
    chunk: &Chunk,
    scratch: &mut Scratch,
) {
    let whole = (chunk.keys.start % GROUP, chunk.keys.end % GROUP) == (0, 0);
    let plain = whole && chunk.alike && job.softcap.is_none();
    let groups = chunk.groups();
    for (row, at) in chunk.rows.clone().zip(chunk.at..) {
        let s = &mut floats(&mut scratch.s)[at * TILE..][..TILE];
        if !plain {
            cover(job, chunk, in_tile(first, &scratch.seen[row]), s);
        }
        let s = s.as_ptr();
        // SAFETY: groups of the row; registers.
        unsafe {
            let mut top = V::floats(s.add(groups.start * GROUP));
            if groups.len() == TILE / GROUP {
                // Without a question in between.
                top = V::max(top, V::floats(s.add(GROUP)));
                top = V::max(top, V::max(V::floats(s.add(2 * GROUP)), V::floats(s.add(3 * GROUP))));
            } else {
                for group in groups.start + 1..groups.end {
                    top = V::max(top, V::floats(s.add(group * GROUP)));
                }
            }
            V::store_floats(top, scratch.tops[at].0.as_mut_ptr());
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

/// Caps the scores, and makes those of keys that the row does not see −∞.
#[inline(always)]
fn cover(job: &AttendJob<'_>, chunk: &Chunk, seen: Range<usize>, s: &mut [f32]) {
    let groups = chunk.groups();
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

/// Makes weights of the scores of a chunk's rows on the tile that begins with key `first`.
///
/// # Safety
/// The instruction set of `V` is available.
#[inline(always)]
pub(super) unsafe fn weigh_rows<V: Vector, W: Sums<V>>(
    job: &AttendJob<'_>,
    first: usize,
    chunk: &Chunk,
    sums: &mut BandSums,
    scratch: &mut Scratch,
) {
    let values = job.formats().1;
    for (row, at) in chunk.rows.clone().zip(chunk.at..) {
        // SAFETY: passed on.
        unsafe {
            if is_codes(values) {
                let seen = match chunk.alike {
                    true => chunk.keys.clone(),
                    false => in_tile(first, &scratch.seen[row]),
                };
                let scales = &floats(&mut scratch.scales)[TILE..];
                sums.scaling.of(seen, scales, job.weight_codes());
                sums.scale[at] = sums.scaling.scale * sums.join[at];
                weigh_codes::<V>(sums, row, at, chunk.groups(), scratch);
                continue;
            }
            let short = values == KvFormat::Bf16;
            weigh::<V>(sums, row, at, chunk.groups(), short, scratch);
            if W::TWO_ROWS {
                pair_weights::<V>(at, chunk.groups(), scratch);
            }
        }
    }
}

/// Makes weights of the scores of a row, in bf16 if `short`, and adds them up.
///
/// # Safety
/// As [`weigh_rows`].
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
    let [before, sum] = sum_of(sums, row, scratch);
    // SAFETY: groups of the tile; registers.
    unsafe {
        let base = V::splat(sums.base[at]);
        let mut lanes = V::mul(V::floats(before), V::splat(sums.decay[at]));
        for group in groups {
            let s = s.add(group * GROUP);
            let x = V::sub(V::floats(s), base);
            let p = if short { V::short(quick_exp::<V>(x)) } else { exp_of_negative::<V>(x) };
            V::store_floats(p, s);
            lanes = V::add(lanes, p);
        }
        V::store_floats(lanes, sum);
    }
}

/// Makes codes of the scores of a row: weights times the scales of values, and adds the weights up.
///
/// # Safety
/// As [`weigh_rows`].
#[inline(always)]
unsafe fn weigh_codes<V: Vector>(
    sums: &BandSums,
    row: usize,
    at: usize,
    groups: Range<usize>,
    scratch: &mut Scratch,
) {
    let s = floats(&mut scratch.s)[at * TILE..][..TILE].as_ptr();
    let codes = shorts(&mut scratch.p)[at * TILE..][..TILE].as_mut_ptr();
    let [before, sum] = sum_of(sums, row, scratch);
    // SAFETY: groups of the tile; registers.
    unsafe {
        let (base, zero) = (V::splat(sums.base[at]), V::splat(ROUND));
        let mut lanes = V::splat(0.0);
        macro_rules! code_of {
            ($group:expr) => {{
                let p = quick_exp::<V>(V::sub(V::floats(s.add($group * GROUP)), base));
                lanes = V::add(lanes, p);
                V::fma(p, V::floats(sums.scaling.factors.as_ptr().add($group * GROUP)), zero)
            }};
        }
        if groups.len() == TILE / GROUP {
            // Without a question in between.
            for half in 0..2 {
                let code = [code_of!(2 * half), code_of!(2 * half + 1)];
                V::store_codes(code, codes.add(half * BLOCK_TOKENS));
            }
        } else {
            // Both groups of half a tile; one that nobody sees has zeros.
            for half in groups.start / 2..groups.end.div_ceil(2) {
                let mut code = [zero; 2];
                for (group, code) in (2 * half..).zip(&mut code) {
                    if groups.contains(&group) {
                        *code = code_of!(group);
                    }
                }
                V::store_codes(code, codes.add(half * BLOCK_TOKENS));
            }
        }
        let before = V::mul(V::floats(before), V::splat(sums.decay[at]));
        V::store_floats(V::fma(lanes, V::splat(sums.join[at]), before), sum);
    }
}

/// Where the sum of a row is before the tile, and where it is after.
#[inline(always)]
fn sum_of(sums: &BandSums, row: usize, scratch: &mut Scratch) -> [*mut f32; 2] {
    let sum = scratch.sum[row].0.as_mut_ptr();
    [if sums.begin { scratch.zeros[0].0.as_mut_ptr() } else { sum }, sum]
}

/// Pairs of the weights of a row.
///
/// # Safety
/// As [`weigh_rows`].
#[inline(always)]
unsafe fn pair_weights<V: Vector>(at: usize, groups: Range<usize>, scratch: &mut Scratch) {
    let s = floats(&mut scratch.s)[at * TILE..][..TILE].as_ptr();
    let to = shorts(&mut scratch.p)[at * TILE..][..TILE].as_mut_ptr();
    for first in groups.map(|group| group * GROUP) {
        // SAFETY: groups of the tile; registers.
        unsafe { V::store_pairs(V::floats(s.add(first)), to.add(first)) };
    }
}

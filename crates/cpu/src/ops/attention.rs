//! Attention over paged keys and values: the kernel.
//!
//! # Numerics (version 1)
//!
//! Keys are taken in chunks of 256 at absolute indices, each in tiles of 32. A query's score with
//! a key is one fma chain over the columns in order, times the key's scale (bytes), times
//! `scale`, capped. Within a chunk, from `m = −∞, l = 0, acc = 0`, tile after tile that holds a
//! visible key:
//!
//! ```text
//! m' = max(m, scores)     l, acc ·= e^(m−m') where m' > m
//! p  = e^(s−m'), 0 for keys that are not visible;  l += Σp by lanes and tree
//! acc = fma(p · scale of the value, v, acc)        key after key
//! ```
//!
//! Chunks are merged in order, the first visible one taken as it is; then a sink joins, then
//! `acc / l`. None of it depends on other queries, on how many are computed at once, or on who
//! computes a chunk: a chunk may be computed apart and merged later.

use tokenmill_ir::{BlockId, KvFormat};

use crate::isa::Isa;
use crate::kv::{BLOCK, KvCache};
use crate::lanes::{LANES, Lanes};
use crate::math::{exp, tanh, tree};

/// Keys in a chunk.
pub(crate) const CHUNK: usize = 256;
/// Queries computed at once.
pub(crate) const QUERIES: usize = 64;
/// f32 before the sums of a partial result: maximum and total.
pub(crate) const PARTIAL_HEAD: usize = 16;

/// What all queries of an attention share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub scale: f32,
    pub softcap: Option<f32>,
}

/// A query and the keys it sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query {
    pub q: *const f32,
    pub first: usize,
    pub end: usize,
}

/// Running maxima, totals and weighted sums of up to [`QUERIES`] queries.
#[derive(Debug)]
pub(crate) struct State {
    max: [f32; QUERIES],
    total: [f32; QUERIES],
    acc: Vec<f32>,
}

impl State {
    fn new(v_stride: usize) -> Self {
        Self { max: [0.0; QUERIES], total: [0.0; QUERIES], acc: vec![0.0; QUERIES * v_stride] }
    }
}

/// A worker's memory for attention.
#[derive(Debug)]
pub(crate) struct Scratch {
    p: Box<[[f32; BLOCK]; QUERIES]>,
    chunk: State,
    whole: State,
}

impl Scratch {
    pub fn new(v_stride: usize) -> Self {
        let p = Box::new([[0.0; BLOCK]; QUERIES]);
        Self { p, chunk: State::new(v_stride), whole: State::new(v_stride) }
    }
}

/// Queries that share one key head of one sequence.
#[derive(Clone, Copy)]
pub(crate) struct Unit<'a> {
    pub rule: Rule,
    pub cache: &'a KvCache,
    pub table: &'a [BlockId],
    pub head: usize,
    pub queries: &'a [Query],
}

impl Unit<'_> {
    /// First and last key that any query sees.
    fn seen(&self) -> (usize, usize) {
        let first = self.queries.iter().map(|q| q.first).min().unwrap_or(0);
        let end = self.queries.iter().map(|q| q.end).max().unwrap_or(0);
        (first, end)
    }
}

/// Computes one chunk of a unit as partial results: per query maximum and total, then its sums
/// from [`PARTIAL_HEAD`] on, at `to(query)`.
///
/// # Safety
/// Query pointers are good for the cache's key columns; `to` gives places for
/// `PARTIAL_HEAD + v_stride` f32 that nobody else uses.
pub(crate) unsafe fn partial(
    isa: Isa,
    unit: &Unit<'_>,
    chunk: usize,
    scratch: &mut Scratch,
    to: impl Fn(usize) -> *mut f32,
) {
    // SAFETY: the contract is the caller's own.
    unsafe { run_chunk(isa, unit, chunk, scratch) };
    let width = unit.cache.v_stride;
    for i in 0..unit.queries.len() {
        // SAFETY: by contract.
        let to = unsafe { std::slice::from_raw_parts_mut(to(i), PARTIAL_HEAD + width) };
        (to[0], to[1]) = (scratch.chunk.max[i], scratch.chunk.total[i]);
        to[PARTIAL_HEAD..].copy_from_slice(&scratch.chunk.acc[i * width..][..width]);
    }
}

/// Computes all chunks of a unit; `out(query)` receives its `v_dim` results.
///
/// # Safety
/// As [`partial`], with places for `v_dim` f32.
pub(crate) unsafe fn whole(
    isa: Isa,
    unit: &Unit<'_>,
    sinks: impl Fn(usize) -> Option<f32>,
    scratch: &mut Scratch,
    out: impl Fn(usize) -> *mut f32,
) {
    let (first, end) = unit.seen();
    let width = unit.cache.v_stride;
    let mut begun = [false; QUERIES];
    for chunk in first / CHUNK..end.div_ceil(CHUNK) {
        // SAFETY: the contract is the caller's own.
        unsafe { run_chunk(isa, unit, chunk, scratch) };
        let (part, sum) = (&scratch.chunk, &mut scratch.whole);
        for (i, q) in unit.queries.iter().enumerate() {
            if q.first >= (chunk + 1) * CHUNK || q.end <= chunk * CHUNK {
                continue;
            }
            let acc = &part.acc[i * width..][..width];
            let to = &mut sum.acc[i * width..][..width];
            if begun[i] {
                let (max, total) = (&mut sum.max[i], &mut sum.total[i]);
                merge(isa, max, total, to, &[part.max[i], part.total[i]], acc);
            } else {
                (sum.max[i], sum.total[i]) = (part.max[i], part.total[i]);
                to.copy_from_slice(acc);
                begun[i] = true;
            }
        }
    }
    for i in 0..unit.queries.len() {
        let sum = &scratch.whole;
        let acc = &sum.acc[i * width..][..unit.cache.v_dim];
        // SAFETY: by contract.
        let out = unsafe { std::slice::from_raw_parts_mut(out(i), acc.len()) };
        finish(isa, sum.max[i], sum.total[i], acc, sinks(i), out);
    }
}

/// Merges the partial results of consecutive chunks, `parts` of them `step` f32 apart, and
/// finishes.
pub(crate) fn merge_partials(
    isa: Isa,
    parts: &[f32],
    step: usize,
    sink: Option<f32>,
    acc: &mut [f32],
    out: &mut [f32],
) {
    let width = step - PARTIAL_HEAD;
    let acc = &mut acc[..width];
    let (mut max, mut total) = (parts[0], parts[1]);
    acc.copy_from_slice(&parts[PARTIAL_HEAD..step]);
    for part in parts[step..].chunks_exact(step) {
        merge(isa, &mut max, &mut total, acc, &part[..2], &part[PARTIAL_HEAD..]);
    }
    finish(isa, max, total, &acc[..out.len()], sink, out);
}

crate::math::per_isa! {
    /// Joins the sums of a later chunk to those before it.
    merge(max: &mut f32, total: &mut f32, acc: &mut [f32], head: &[f32], part: &[f32])
        = merge_lanes;
    /// Adds a sink to the denominator and divides.
    finish(max: f32, total: f32, acc: &[f32], sink: Option<f32>, out: &mut [f32])
        = finish_lanes;
}

#[inline(always)]
fn merge_lanes(max: &mut f32, total: &mut f32, acc: &mut [f32], head: &[f32], part: &[f32]) {
    let top = if head[0] > *max { head[0] } else { *max };
    let (old, new) = (exp(*max - top), exp(head[0] - top));
    *total = total.mul_add(old, head[1] * new);
    *max = top;
    for (acc, part) in acc.iter_mut().zip(part) {
        *acc = acc.mul_add(old, part * new);
    }
}

#[inline(always)]
fn finish_lanes(max: f32, total: f32, acc: &[f32], sink: Option<f32>, out: &mut [f32]) {
    let (mut factor, mut total) = (1.0, total);
    if let Some(sink) = sink {
        let top = if sink > max { sink } else { max };
        factor = exp(max - top);
        total = total.mul_add(factor, exp(sink - top));
    }
    for (out, acc) in out.iter_mut().zip(acc) {
        // A sum of zero has one sign, whatever masked keys were passed over.
        *out = acc * factor / total + 0.0;
    }
}

/// One chunk into `scratch.chunk`, on the registers of `isa` and elements of the cache's format.
unsafe fn run_chunk(isa: Isa, unit: &Unit<'_>, chunk: usize, scratch: &mut Scratch) {
    assert!(unit.queries.len() <= QUERIES);
    // SAFETY: the contract is that of `partial`; devices only take an instruction set that is
    // available.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => avx512(unit, chunk, scratch),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2(unit, chunk, scratch),
            _ => of_format::<[f32; LANES]>(unit, chunk, scratch),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn avx512(unit: &Unit<'_>, chunk: usize, scratch: &mut Scratch) {
    // SAFETY: as `run_chunk`.
    unsafe { of_format::<crate::lanes::x86::Zmm>(unit, chunk, scratch) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2(unit: &Unit<'_>, chunk: usize, scratch: &mut Scratch) {
    // SAFETY: as `run_chunk`.
    unsafe { of_format::<crate::lanes::x86::Ymm2>(unit, chunk, scratch) }
}

#[inline(always)]
unsafe fn of_format<L: Lanes>(unit: &Unit<'_>, chunk: usize, scratch: &mut Scratch) {
    // SAFETY: as `run_chunk`.
    unsafe {
        match unit.cache.format {
            KvFormat::F32 => tiles::<L, f32>(unit, chunk, scratch),
            KvFormat::Bf16 => tiles::<L, u16>(unit, chunk, scratch),
            KvFormat::Int8 => tiles::<L, i8>(unit, chunk, scratch),
        }
    }
}

/// A stored element.
trait Element: Copy {
    unsafe fn lanes<L: Lanes>(from: *const Self) -> L;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(from: *const Self) -> L {
        // SAFETY: the contract of `Lanes`.
        unsafe { L::load(from) }
    }
}

impl Element for u16 {
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(from: *const Self) -> L {
        // SAFETY: the contract of `Lanes`.
        unsafe { L::load_bf16(from) }
    }
}

impl Element for i8 {
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(from: *const Self) -> L {
        // SAFETY: the contract of `Lanes`.
        unsafe { L::load_i8(from) }
    }
}

#[inline(always)]
unsafe fn tiles<L: Lanes, E: Element>(unit: &Unit<'_>, chunk: usize, scratch: &mut Scratch) {
    let (cache, count) = (unit.cache, unit.queries.len());
    let width = cache.v_stride;
    let Scratch { p, chunk: state, .. } = scratch;
    state.max[..count].fill(f32::NEG_INFINITY);
    state.total[..count].fill(0.0);
    state.acc[..count * width].fill(0.0);
    let (first, end) = unit.seen();
    let (first, end) = (first.max(chunk * CHUNK), end.min((chunk + 1) * CHUNK));
    for tile in first / BLOCK..end.div_ceil(BLOCK) {
        let base = cache.head(unit.table[tile], unit.head);
        let place = |q: &Query| {
            let from = q.first.max(tile * BLOCK).min((tile + 1) * BLOCK) - tile * BLOCK;
            let to = q.end.max(tile * BLOCK).min((tile + 1) * BLOCK) - tile * BLOCK;
            (from, to)
        };
        let scales = |at: usize| {
            // SAFETY: 32 scales lie there in a cache of bytes.
            let read = || unsafe { *base.add(at).cast::<[f32; BLOCK]>() };
            (cache.format == KvFormat::Int8).then(read)
        };
        let (k_scales, v_scales) = (scales(cache.k_scales_at), scales(cache.v_scales_at));
        // SAFETY: a block holds `k_dim × 32` keys; query pointers by contract.
        unsafe { all_scores::<L, E>(unit.queries, base.cast(), cache.k_dim, &mut p[..]) };
        let (mut lowest, mut highest) = (BLOCK, 0);
        for (i, q) in unit.queries.iter().enumerate() {
            let (from, to) = place(q);
            if from >= to {
                p[i] = [0.0; BLOCK];
                continue;
            }
            (lowest, highest) = (lowest.min(from), highest.max(to));
            let acc = &mut state.acc[i * width..][..width];
            let (max, total) = (&mut state.max[i], &mut state.total[i]);
            soften(&mut p[i], from..to, &unit.rule, &k_scales, max, total, acc);
            if let Some(scales) = &v_scales {
                p[i].iter_mut().zip(scales).for_each(|(p, s)| *p *= s);
            }
        }
        // SAFETY: a block holds `32 × v_stride` values; the sums are `count × v_stride`.
        unsafe {
            let v = base.add(cache.values_at).cast::<E>();
            all_values::<L, E>(&p[..count], v, width, lowest..highest, &mut state.acc);
        }
    }
}

/// Scores to weights: a tile's part of the online softmax.
#[inline(always)]
fn soften(
    p: &mut [f32; BLOCK],
    seen: std::ops::Range<usize>,
    rule: &Rule,
    k_scales: &Option<[f32; BLOCK]>,
    max: &mut f32,
    total: &mut f32,
    acc: &mut [f32],
) {
    let mut s = *p;
    if let Some(scales) = k_scales {
        for (s, scale) in s.iter_mut().zip(scales) {
            *s *= scale;
        }
    }
    for s in &mut s {
        *s *= rule.scale;
    }
    if let Some(cap) = rule.softcap {
        for s in &mut s {
            *s = cap * tanh(*s / cap);
        }
    }
    let visible: [bool; BLOCK] = std::array::from_fn(|i| i >= seen.start && i < seen.end);
    let mut tops = [f32::NEG_INFINITY; LANES];
    for i in 0..BLOCK {
        let top = &mut tops[i % LANES];
        *top = if visible[i] && s[i] > *top { s[i] } else { *top };
    }
    let top = tops.into_iter().fold(*max, |top, s| if s > top { s } else { top });
    if top > *max {
        let factor = if *max == f32::NEG_INFINITY { 0.0 } else { exp(*max - top) };
        *max = top;
        *total *= factor;
        for acc in acc.iter_mut() {
            *acc *= factor;
        }
    }
    for i in 0..BLOCK {
        let e = exp(s[i] - top);
        p[i] = if visible[i] { e } else { 0.0 };
    }
    *total += tree(std::array::from_fn(|i| p[i] + p[i + LANES]));
}

/// Scores of all queries with the 32 keys of a tile, four queries at a time.
#[inline(always)]
unsafe fn all_scores<L: Lanes, E: Element>(
    queries: &[Query],
    k: *const E,
    dim: usize,
    p: &mut [[f32; BLOCK]],
) {
    // SAFETY: by contract of the caller.
    unsafe {
        let (fours, rest) = queries.as_chunks::<4>();
        let mut at = 0;
        for four in fours {
            scores::<L, E, 4>(four, k, dim, &mut p[at..]);
            at += 4;
        }
        match rest {
            [a] => scores::<L, E, 1>(&[*a], k, dim, &mut p[at..]),
            [a, b] => scores::<L, E, 2>(&[*a, *b], k, dim, &mut p[at..]),
            [a, b, c] => scores::<L, E, 3>(&[*a, *b, *c], k, dim, &mut p[at..]),
            _ => {}
        }
    }
}

#[inline(always)]
unsafe fn scores<L: Lanes, E: Element, const N: usize>(
    queries: &[Query; N],
    k: *const E,
    dim: usize,
    p: &mut [[f32; BLOCK]],
) {
    // SAFETY: `dim` numbers a query, `dim × 32` keys, by contract of the caller.
    unsafe {
        let mut acc = [[L::splat(0.0); 2]; N];
        for d in 0..dim {
            let low = E::lanes::<L>(k.add(d * BLOCK));
            let high = E::lanes::<L>(k.add(d * BLOCK + LANES));
            for n in 0..N {
                let q = L::splat(*queries[n].q.add(d));
                acc[n] = [q.fma(low, acc[n][0]), q.fma(high, acc[n][1])];
            }
        }
        for n in 0..N {
            acc[n][0].store(p[n].as_mut_ptr());
            acc[n][1].store(p[n].as_mut_ptr().add(LANES));
        }
    }
}

/// Adds the weighted values of a tile's `keys` to the sums of all queries, four at a time.
#[inline(always)]
unsafe fn all_values<L: Lanes, E: Element>(
    p: &[[f32; BLOCK]],
    v: *const E,
    width: usize,
    keys: std::ops::Range<usize>,
    acc: &mut [f32],
) {
    assert!(acc.len() >= p.len() * width && keys.end <= BLOCK);
    let mut at = 0;
    // SAFETY: `32 × width` values by contract of the caller; the sums were just measured.
    unsafe {
        let (fours, rest) = p.as_chunks::<4>();
        for four in fours {
            values::<L, E, 4>(four, v, width, &keys, acc[at * width..].as_mut_ptr());
            at += 4;
        }
        let acc = acc.as_mut_ptr().add(at * width);
        match rest {
            [a] => values::<L, E, 1>(&[*a], v, width, &keys, acc),
            [a, b] => values::<L, E, 2>(&[*a, *b], v, width, &keys, acc),
            [a, b, c] => values::<L, E, 3>(&[*a, *b, *c], v, width, &keys, acc),
            _ => {}
        }
    }
}

#[inline(always)]
unsafe fn values<L: Lanes, E: Element, const N: usize>(
    p: &[[f32; BLOCK]; N],
    v: *const E,
    width: usize,
    keys: &std::ops::Range<usize>,
    acc: *mut f32,
) {
    let mut col = 0;
    // SAFETY: as `all_values`; `width` is a multiple of sixteen.
    unsafe {
        while col + 4 * LANES <= width {
            columns::<L, E, N, 4>(p, v.add(col), width, keys, acc.add(col));
            col += 4 * LANES;
        }
        while col < width {
            columns::<L, E, N, 1>(p, v.add(col), width, keys, acc.add(col));
            col += LANES;
        }
    }
}

#[inline(always)]
unsafe fn columns<L: Lanes, E: Element, const N: usize, const C: usize>(
    p: &[[f32; BLOCK]; N],
    v: *const E,
    width: usize,
    keys: &std::ops::Range<usize>,
    acc: *mut f32,
) {
    // SAFETY: as `all_values`.
    unsafe {
        let mut sums = [[L::splat(0.0); C]; N];
        for (n, sums) in sums.iter_mut().enumerate() {
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = L::load(acc.add(n * width + c * LANES));
            }
        }
        for j in keys.clone() {
            let mut row = [L::splat(0.0); C];
            for (c, x) in row.iter_mut().enumerate() {
                *x = E::lanes::<L>(v.add(j * width + c * LANES));
            }
            for n in 0..N {
                let weight = L::splat(p[n][j]);
                for c in 0..C {
                    sums[n][c] = weight.fma(row[c], sums[n][c]);
                }
            }
        }
        for (n, sums) in sums.iter().enumerate() {
            for (c, sum) in sums.iter().enumerate() {
                sum.store(acc.add(n * width + c * LANES));
            }
        }
    }
}

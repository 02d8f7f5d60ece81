//! Attention row by row in plain Rust: the definition of every result.

use std::ops::Range;

use tokenmill_ir::KvFormat;
use tokenmill_quant::float::rounded_factor;

use super::codes::{code_scale, short_code, top};
use super::latent::Segment;
use super::layout::{BLOCK_TOKENS, GROUP, is_codes};
use super::mix::{is_mixed, transform_block, transform_blocks};
use super::scratch::{floats, words};
use super::{AttendJob, Item, Keys, Scratch, TILE};
use crate::isa::Isa;
use crate::math::{QUICK_LEAST, ROUND, dot, exp, tanh};

/// Computes the keys `range`, all of one split, for every row of an item, into the scratch.
pub(super) fn split(job: &AttendJob<'_>, item: &Item, range: Range<usize>, scratch: &mut Scratch) {
    let group = job.group();
    let v_cols = job.v_dim.next_multiple_of(GROUP);
    let mut read = Reader {
        job,
        item,
        number: &mut floats(&mut scratch.v)[..job.k_dim.max(job.v_dim)],
        sums: &mut words(&mut scratch.k)[..job.v_dim],
        steady: &mut floats(&mut scratch.steady)[..job.k_dim],
    };
    for row in 0..item.tokens as usize * group {
        let room = (floats(&mut scratch.q), &mut scratch.q_scale[..]);
        let query = Query::new(job, item.kv_head as usize, job.query(item, row), room);
        let seen = job.seen(item, row / group);
        let seen = seen.start.max(range.start)..seen.end.min(range.end);
        let out = &mut floats(&mut scratch.out)[row * v_cols..][..job.v_dim];
        (scratch.max[row], scratch.sum[row].0) = row_of_split(&mut read, &query, seen, out);
    }
}

/// A query: numbers or codes, and what the scores of each segment are multiplied by.
struct Query<'a> {
    row: &'a [f32],
    scales: &'a [f32],
    /// As it came, where keys are without a bias.
    given: &'a [f32],
}

impl<'a> Query<'a> {
    fn new(
        job: &AttendJob<'_>,
        head: usize,
        [query, beside]: [&'a [f32]; 2],
        (row, scales): (&'a mut [f32], &'a mut [f32]),
    ) -> Query<'a> {
        let row = &mut row[..job.k_dim];
        let keys = job.formats().0;
        row[..query.len()].copy_from_slice(query);
        row[query.len()..].copy_from_slice(beside);
        if let Some(steady) = job.steady {
            row.iter_mut().zip(steady.of_queries(head)).for_each(|(x, factor)| *x *= factor);
        }
        match keys {
            KvFormat::Int8 if is_mixed(query.len()) && !job.has_latents() => {
                transform_blocks(row, query.len());
            }
            KvFormat::Int4 => transform_blocks(row, transform_block(query.len())),
            KvFormat::Bf16 => row.iter_mut().for_each(|x| *x = rounded_factor(*x)),
            _ => {}
        }
        for (segment, scale) in job.segments(1).zip(&mut *scales) {
            let most = job.query_codes(segment.cols.len());
            let codes = if is_codes(keys) { encode(&mut row[segment.cols], most) } else { 1.0 };
            *scale = codes * job.scale;
        }
        Query { row, scales, given: query }
    }
}

/// 2ᶠ = Σ c[i]·fⁱ for |f| ≤ ½, to 7.5e-5 of it: a minimax fit.
pub(super) const QUICK_POWERS: [f32; 4] = [0.999_928_06, 0.693_260_97, 0.242_611_13, 0.055_171_67];

/// e^x for x ≤ 0 to 7.5e-5 of it, below 1.
fn quick_exp(x: f32) -> f32 {
    if x < QUICK_LEAST {
        return 0.0;
    }
    let [c0, c1, c2, c3] = QUICK_POWERS;
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let f = x.mul_add(std::f32::consts::LOG2_E, ROUND - shifted);
    let y = c3.mul_add(f, c2).mul_add(f, c1).mul_add(f, c0);
    // n is in the lowest bits of `shifted`; the others are shifted out.
    f32::from_bits(y.to_bits().wrapping_add(shifted.to_bits() << 23))
}

/// The same in bf16, ties up.
fn short_exp(x: f32) -> f32 {
    f32::from_bits(quick_exp(x).to_bits().wrapping_add(0x8000) & 0xffff_0000)
}

/// Replaces numbers by their codes, up to `most`; returns the scale.
fn encode(x: &mut [f32], most: f32) -> f32 {
    let (inverse, scale) = code_scale(top(x), most);
    x.iter_mut().for_each(|x| *x = f32::from(short_code(*x, inverse)));
    scale
}

/// The keys `seen`, all of one split, for one row: its maximum and sums.
fn row_of_split(
    read: &mut Reader<'_>,
    query: &Query<'_>,
    seen: Range<usize>,
    out: &mut [f32],
) -> (f32, [f32; 16]) {
    let (mut max, mut lanes) = (f32::NEG_INFINITY, [0.0_f32; 16]);
    out.fill(0.0);
    let mut at = seen.start;
    while at < seen.end {
        let end = seen.end.min((at / TILE + 1) * TILE);
        let mut weights = [0.0; TILE];
        let weights = &mut weights[..end - at];
        for (j, s) in weights.iter_mut().enumerate() {
            *s = read.score(query, at + j);
        }
        let own = weights.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        let shift = read.shift(query, at / TILE);
        let whole = shift.map_or(own, |shift| own + shift);
        let new = max.max(whole);
        let base = finite(new);
        let (c, mut e) = (exp(max - base), 1.0);
        lanes.iter_mut().for_each(|l| *l *= c);
        if is_codes(read.job.formats().1) {
            e = exp(whole - base);
            let mut sums = [0.0_f32; 16];
            for (j, p) in weights.iter_mut().enumerate() {
                *p = quick_exp(*p - finite(own));
                sums[(at + j) % 16] += *p;
            }
            lanes.iter_mut().zip(sums).for_each(|(l, sum)| *l = sum.mul_add(e, *l));
        } else {
            // Not below what it is subtracted from, whatever was rounded.
            let base = shift.map_or(base, |shift| finite(own).max(base - shift));
            for (j, p) in weights.iter_mut().enumerate() {
                *p = match read.job.formats().1 {
                    KvFormat::Bf16 => short_exp(*p - base),
                    _ => exp(*p - base),
                };
                lanes[(at + j) % 16] += *p;
            }
        }
        max = new;
        read.add_values(at, weights, (c, e), out);
        at = end;
    }
    (max, lanes)
}

/// The greatest score, 0 where there is none.
fn finite(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// Which rows of a cache.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Keys,
    Values,
}

/// Reads keys and values one by one.
struct Reader<'a> {
    job: &'a AttendJob<'a>,
    item: &'a Item,
    /// The key or value read last; codes for int16 and int8.
    number: &'a mut [f32],
    sums: &'a mut [i32],
    /// What the keys of a tile are without.
    steady: &'a mut [f32],
}

impl Reader<'_> {
    /// Reads a key or value; returns its scales: of a latent and the key beside it, else the same twice.
    fn read(&mut self, index: usize, part: Part) -> [f32; 2] {
        let (job, item, number) = (self.job, self.item, &mut *self.number);
        let head = item.kv_head as usize;
        match job.keys {
            Keys::Cache { layout, bytes, tables } => {
                let block = tables[item.origin as usize + index / BLOCK_TOKENS].0 as usize;
                let bytes = &bytes[layout.head_at(block, head)..];
                let slot = index % BLOCK_TOKENS;
                [match part {
                    Part::Keys => layout.key(bytes, slot, &mut number[..job.k_dim]),
                    Part::Values => layout.value(bytes, slot, &mut number[..job.v_dim]),
                }; 2]
            }
            Keys::Latents { layout, bytes, tables, .. } => {
                let block = tables[item.origin as usize + index / BLOCK_TOKENS].0 as usize;
                let row = layout.rows(bytes, block, index % BLOCK_TOKENS);
                let cols = if part == Part::Keys { job.k_dim } else { job.v_dim };
                layout.numbers(row, &mut number[..cols])
            }
            Keys::Fresh { k, v } => {
                let (rows, dim) = if part == Part::Keys { (k, job.k_dim) } else { (v, job.v_dim) };
                let row = rows.get(item.origin as usize + index, head * dim..(head + 1) * dim);
                number[..dim].copy_from_slice(row);
                [1.0; 2]
            }
        }
    }

    /// What the scores of a tile are without.
    fn shift(&mut self, query: &Query<'_>, tile: usize) -> Option<f32> {
        let steady = self.job.steady?;
        steady.in_tile(self.item.kv_head as usize, tile, self.steady);
        Some(dot(Isa::Scalar, query.given, self.steady) * self.job.scale)
    }

    /// The score of a key, but for that.
    fn score(&mut self, query: &Query<'_>, index: usize) -> f32 {
        let k_scales = self.read(index, Part::Keys);
        let of_segment = |(segment, q_scale): (Segment, &f32)| {
            let pairs = query.row[segment.cols.clone()].iter().zip(&self.number[segment.cols]);
            if is_codes(self.job.formats().0) {
                let sum: i32 = pairs.map(|(&q, &k)| q as i32 * k as i32).sum();
                sum as f32 * k_scales[segment.scale] * q_scale
            } else {
                pairs.fold(0.0, |s, (q, k)| q.mul_add(*k, s)) * q_scale
            }
        };
        let segments = self.job.segments(1).zip(query.scales).map(of_segment);
        let s = segments.reduce(|sum, s| sum + s).unwrap_or_default();
        self.job.softcap.map_or(s, |cap| tanh(s / cap) * cap)
    }

    /// Multiplies `out` by `decay` and adds the values of the keys from index `at` on, all of one tile, by weights
    /// that are multiplied by `join` (1 where they are no codes).
    fn add_values(
        &mut self,
        at: usize,
        weights: &mut [f32],
        (decay, join): (f32, f32),
        out: &mut [f32],
    ) {
        if !is_codes(self.job.formats().1) {
            let mut sums = vec![0.0_f32; out.len()];
            for (j, p) in weights.iter().enumerate() {
                self.read(at + j, Part::Values);
                sums.iter_mut().zip(&*self.number).for_each(|(sum, v)| *sum = p.mul_add(*v, *sum));
            }
            out.iter_mut().zip(sums).for_each(|(o, sum)| *o = o.mul_add(decay, sum));
            return;
        }
        let mut scales = [0.0; TILE];
        for (j, scale) in scales[..weights.len()].iter_mut().enumerate() {
            [*scale, _] = self.read(at + j, Part::Values);
        }
        let (inverse, scale) = code_scale(top(&scales), self.job.weight_codes());
        for (p, of_value) in weights.iter_mut().zip(scales) {
            *p = f32::from(short_code(*p, of_value * inverse));
        }
        let scale = scale * join;
        self.sums.fill(0);
        for (j, a) in weights.iter().enumerate() {
            self.read(at + j, Part::Values);
            let pairs = self.sums.iter_mut().zip(&*self.number);
            pairs.for_each(|(sum, v)| *sum += *a as i32 * *v as i32);
        }
        for (o, sum) in out.iter_mut().zip(&*self.sums) {
            *o = (*sum as f32).mul_add(scale, *o * decay);
        }
    }
}

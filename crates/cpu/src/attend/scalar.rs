//! Attention row by row in plain Rust: the definition of every result.

use std::ops::Range;

use super::layout::BLOCK_TOKENS;
use super::scratch::{floats, words};
use super::{AttendJob, CODE_MAX, HUGE, Item, Keys, SPLIT, Scratch, TILE, TINY};
use crate::math::{exp, tanh, tree};

/// Computes an item.
///
/// # Safety
/// As [`super::attend`].
pub(super) unsafe fn attend(job: &AttendJob<'_>, item: &Item, scratch: &mut Scratch) {
    let group = job.group();
    for token in 0..item.tokens as usize {
        for head in item.kv_head as usize * group..(item.kv_head as usize + 1) * group {
            let at = (item.row as usize + token) * job.out_stride + head * job.v_dim;
            // SAFETY: the item's own columns.
            let out = unsafe { job.out.part(at..at + job.v_dim) };
            row(job, item, token, head, scratch, out);
        }
    }
}

/// What a split, or several, have come to.
struct State<'a> {
    max: f32,
    sum: f32,
    out: &'a mut [f32],
}

/// One query head of one token.
fn row(
    job: &AttendJob<'_>,
    item: &Item,
    token: usize,
    head: usize,
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    let query = job.q.get(item.row as usize + token, head * job.k_dim..(head + 1) * job.k_dim);
    let query = Query::new(job, query, floats(&mut scratch.q));
    let part = &mut floats(&mut scratch.out)[..job.v_dim];
    let mut read = Reader {
        job,
        item,
        number: &mut floats(&mut scratch.v)[..job.k_dim.max(job.v_dim)],
        sums: &mut words(&mut scratch.total_out)[..job.v_dim],
    };
    let seen = job.seen(item.index as usize + token, item.keys as usize);
    let mut total = State { max: f32::NEG_INFINITY, sum: 0.0, out };
    total.out.fill(0.0);
    let mut at = seen.start;
    while at < seen.end {
        let end = seen.end.min((at / SPLIT + 1) * SPLIT);
        let state = split(&mut read, &query, at..end, part);
        merge(&mut total, &state);
        at = end;
    }
    finish(&mut total, job.sinks.map(|s| s[head]));
}

/// A query: scaled numbers, or codes with their scale.
struct Query<'a> {
    row: &'a [f32],
    scale: f32,
}

impl<'a> Query<'a> {
    fn new(job: &AttendJob<'_>, query: &[f32], row: &'a mut [f32]) -> Query<'a> {
        let row = &mut row[..query.len()];
        if job.is_int8() {
            row.copy_from_slice(query);
            let scale = encode(row, job.query_codes()) * job.scale;
            return Query { row, scale };
        }
        for (row, q) in row.iter_mut().zip(query) {
            *row = q * job.scale;
        }
        Query { row, scale: 1.0 }
    }
}

/// Replaces numbers by their codes, up to `most`; returns the scale.
fn encode(x: &mut [f32], most: f32) -> f32 {
    let top = x.iter().fold(0, |top, x| top.max(x.to_bits() & 0x7fff_ffff));
    let (inverse, scale) = code_scale(f32::from_bits(top), most);
    for x in x {
        *x = if inverse == 0.0 { 0.0 } else { (*x * inverse).round_ties_even() };
    }
    scale
}

/// What numbers of largest magnitude `top` are multiplied by to become codes up to `most` (0: all
/// codes are 0), and what codes are multiplied by.
#[inline(always)]
pub(super) fn code_scale(top: f32, most: f32) -> (f32, f32) {
    if top < TINY {
        (0.0, 0.0)
    } else if top < HUGE {
        (most / top, top / most)
    } else {
        (0.0, f32::NAN)
    }
}

/// The keys `seen`, all of one split.
fn split<'a>(
    read: &mut Reader<'_>,
    query: &Query<'_>,
    seen: Range<usize>,
    out: &'a mut [f32],
) -> State<'a> {
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
        let new = weights.iter().fold(max, |a, &b| a.max(b));
        let base = if new == f32::NEG_INFINITY { 0.0 } else { new };
        let c = exp(max - base);
        lanes.iter_mut().for_each(|l| *l *= c);
        out.iter_mut().for_each(|o| *o *= c);
        for (j, p) in weights.iter_mut().enumerate() {
            *p = exp(*p - base);
            lanes[(at + j) % 16] += *p;
        }
        max = new;
        read.add_values(at, weights, out);
        at = end;
    }
    State { max, sum: tree(lanes), out }
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
    /// The key or value read last; codes for int8.
    number: &'a mut [f32],
    sums: &'a mut [i32],
}

impl Reader<'_> {
    /// Reads a key or value; returns its scale.
    fn read(&mut self, index: usize, part: Part) -> f32 {
        let (job, item, number) = (self.job, self.item, &mut *self.number);
        let head = item.kv_head as usize;
        match job.keys {
            Keys::Cache { layout, bytes, tables } => {
                let block = tables[item.origin as usize + index / BLOCK_TOKENS].0 as usize;
                let bytes = &bytes[layout.head_at(block, head)..];
                let slot = index % BLOCK_TOKENS;
                match part {
                    Part::Keys => layout.key(bytes, slot, &mut number[..job.k_dim]),
                    Part::Values => layout.value(bytes, slot, &mut number[..job.v_dim]),
                }
            }
            Keys::Fresh { k, v } => {
                let (rows, dim) = if part == Part::Keys { (k, job.k_dim) } else { (v, job.v_dim) };
                let row = rows.get(item.origin as usize + index, head * dim..(head + 1) * dim);
                number[..dim].copy_from_slice(row);
                1.0
            }
        }
    }

    /// The score of a key.
    fn score(&mut self, query: &Query<'_>, index: usize) -> f32 {
        let k_scale = self.read(index, Part::Keys);
        let pairs = query.row.iter().zip(&*self.number);
        let s = if self.job.is_int8() {
            let sum: i32 = pairs.map(|(&q, &k)| q as i32 * k as i32).sum();
            sum as f32 * k_scale * query.scale
        } else {
            pairs.fold(0.0, |s, (q, k)| q.mul_add(*k, s))
        };
        self.job.softcap.map_or(s, |cap| tanh(s / cap) * cap)
    }

    /// Adds the weighted values of the keys from index `at` on, all of one tile.
    fn add_values(&mut self, at: usize, weights: &mut [f32], out: &mut [f32]) {
        if !self.job.is_int8() {
            for (j, p) in weights.iter().enumerate() {
                self.read(at + j, Part::Values);
                out.iter_mut().zip(&*self.number).for_each(|(o, v)| *o = p.mul_add(*v, *o));
            }
            return;
        }
        for (j, p) in weights.iter_mut().enumerate() {
            *p *= self.read(at + j, Part::Values);
        }
        let scale = encode(weights, CODE_MAX);
        self.sums.fill(0);
        for (j, a) in weights.iter().enumerate() {
            self.read(at + j, Part::Values);
            let pairs = self.sums.iter_mut().zip(&*self.number);
            pairs.for_each(|(sum, v)| *sum += *a as i32 * *v as i32);
        }
        for (o, sum) in out.iter_mut().zip(&*self.sums) {
            *o = (*sum as f32).mul_add(scale, *o);
        }
    }
}

/// A later split joins the total.
fn merge(total: &mut State<'_>, split: &State<'_>) {
    if split.sum == 0.0 {
        return;
    }
    if total.sum == 0.0 {
        (total.max, total.sum) = (split.max, split.sum);
        total.out.copy_from_slice(split.out);
        return;
    }
    let max = total.max.max(split.max);
    let (x, y) = (exp(total.max - max), exp(split.max - max));
    total.max = max;
    total.sum = total.sum.mul_add(x, split.sum * y);
    for (o, part) in total.out.iter_mut().zip(&*split.out) {
        *o = o.mul_add(x, part * y);
    }
}

/// The sink joins, and the sums become results.
fn finish(total: &mut State<'_>, sink: Option<f32>) {
    if let Some(sink) = sink {
        let max = total.max.max(sink);
        let x = exp(total.max - max);
        total.sum = total.sum.mul_add(x, exp(sink - max));
        total.out.iter_mut().for_each(|o| *o *= x);
    } else if total.sum == 0.0 {
        return;
    }
    let inverse = 1.0 / total.sum;
    total.out.iter_mut().for_each(|o| *o = o.mul_add(inverse, 0.0));
}

//! Recurrences in token order, divided by channels or heads.
//!
//! Numerics (version 1): a convolution starts from its bias and takes one fma a tap, oldest first.
//! Delta rule and scan decay the state (one product), then sum over key columns by one fma each in
//! order (delta rule) or over state columns by lanes and tree (scan). States are f32 between
//! tokens, so chunks do not show.

use std::ops::Range;

use tokenmill_ir::{Act, BlockId, Rows as RowKind, Span};

use super::linear::activate;
use crate::caches::Cache;
use crate::exec::{Job, Kernel};
use crate::isa::Isa;
use crate::math::{exp, inverse_sqrt, sigmoid, tree};
use crate::plan::Cols;

/// Tokens that a state is taken through while it lies in the nearest cache.
const TOKENS: usize = 16;
/// Taps of a convolution that are added together.
const TAPS: usize = 8;

/// Slot to read (`NONE`: zeros) and slot to write of a span.
fn slots(job: &Job<'_>, span: &Span, cache: &Cache) -> (BlockId, BlockId) {
    let table = job.table(span, cache);
    (table[0], table[1])
}

/// Brings numbers `range` of a span's state to its write slot and gives them, to change.
///
/// # Safety
/// This worker alone uses `range` of both slots.
#[allow(clippy::mut_from_ref)]
unsafe fn state(cache: &Cache, slots: (BlockId, BlockId), range: Range<usize>) -> &mut [f32] {
    let (read, write) = slots;
    // SAFETY: by contract; the two slots are different here.
    unsafe {
        let to = cache.state(write, range.clone());
        if read == BlockId::NONE {
            to.fill(0.0);
        } else if read != write {
            to.copy_from_slice(cache.state(read, range));
        }
        to
    }
}

/// `ln(1 + e^x)`.
fn softplus(x: f32) -> f32 {
    let small = tokenmill_ir::math::ln(1.0 + f64::from(exp(-x.abs())));
    if x.is_nan() { x } else { (f64::from(if x > 0.0 { x } else { 0.0 }) + small) as f32 }
}

/// Depthwise causal convolution, divided by channels.
#[derive(Debug)]
pub(crate) struct Conv {
    pub x: Cols,
    /// [kernel, channels]
    pub taps: Vec<f32>,
    pub kernel: usize,
    /// [channels]; empty: zeros
    pub bias: Vec<f32>,
    pub act: Option<Act>,
    pub cache: usize,
    pub out: Cols,
}

impl Conv {
    fn span(&self, job: &Job<'_>, span: &Span, channels: &Range<usize>) {
        let cache = &job.step.caches[self.cache];
        let (all, kept) = (self.x.cols, self.kernel - 1);
        let (first, len) = (span.first as usize, span.len as usize);
        let slots = slots(job, span, cache);
        // Row j of the tail, these channels only.
        let tail = |j: usize| {
            let range = j * all + channels.start..j * all + channels.end;
            // SAFETY: these channels are this worker's.
            unsafe { state(cache, slots, range) }
        };
        let of = |v: Cols| Cols { start: v.start + channels.start, cols: channels.len(), ..v };
        for j in 0..kept {
            tail(j); // from the slot that is read to the one that is written
        }
        let held = (slots.1, slots.1);
        let past = |j: usize| {
            let range = j * all + channels.start..j * all + channels.end;
            // SAFETY: as above.
            unsafe { state(cache, held, range) }
        };
        let isa = job.step.isa;
        for i in 0..len {
            // SAFETY: these channels are this worker's.
            let out = unsafe { job.write(of(self.out), first + i) };
            match self.bias.get(channels.clone()) {
                Some(bias) => out.copy_from_slice(bias),
                None => out.fill(0.0),
            }
            for start in (0..self.kernel).step_by(TAPS) {
                let taps = start..(start + TAPS).min(self.kernel);
                let mut rows: [&[f32]; TAPS] = [&[]; TAPS];
                for (row, j) in rows.iter_mut().zip(taps.clone()) {
                    *row = match i + j >= kept {
                        true => job.read(of(self.x), first + i + j - kept),
                        false => past(i + j),
                    };
                }
                let taps = &self.taps[start * all + channels.start..];
                add_taps(isa, out, (taps, all), &rows[..self.kernel.min(start + TAPS) - start]);
            }
            if let Some(act) = self.act {
                activate(isa, out, act);
            }
        }
        for j in 0..kept {
            if len + j >= kept {
                past(j).copy_from_slice(job.read(of(self.x), first + len + j - kept));
            } else {
                let from = past(len + j);
                past(j).copy_from_slice(from);
            }
        }
    }
}

crate::math::per_isa! {
    /// `out[c] = fma(taps[j · stride + c], rows[j][c], out[c])` for every row j in order; `taps` are
    /// given with their stride.
    add_taps(out: &mut [f32], taps: (&[f32], usize), rows: &[&[f32]]) = add_taps_lanes;
    /// Some tokens of the delta rule for one head; `s` is `[k_dim][v_dim]`.
    delta_tokens(s: &mut [f32], tokens: &mut [f32], gates: &[[f32; 2]], dims: [usize; 2])
        = delta_lanes;
    /// Some tokens of the scan for one head; `s` is `[head_dim][state_dim]`.
    scan_tokens(
        s: &mut [f32],
        tokens: &mut [f32],
        gates: &[[f32; 2]],
        skip: f32,
        dims: [usize; 2]
    ) = scan_lanes;
    /// `x / √(Σx² + 1e-6)`, times `scale`.
    unit(x: &[f32], scale: f32, out: &mut [f32]) = unit_lanes;
}

#[inline(always)]
fn add_taps_lanes(out: &mut [f32], (taps, stride): (&[f32], usize), rows: &[&[f32]]) {
    let (blocks, rest) = out.as_chunks_mut::<64>();
    let done = blocks.len() * 64;
    for (b, out) in blocks.iter_mut().enumerate() {
        let mut sums = *out;
        for (j, row) in rows.iter().enumerate() {
            let (taps, row) = (&taps[j * stride + 64 * b..][..64], &row[64 * b..][..64]);
            for ((sum, tap), x) in sums.iter_mut().zip(taps).zip(row) {
                *sum = tap.mul_add(*x, *sum);
            }
        }
        *out = sums;
    }
    for (j, row) in rows.iter().enumerate() {
        let taps = &taps[j * stride + done..];
        for ((out, tap), x) in rest.iter_mut().zip(taps).zip(&row[done..]) {
            *out = tap.mul_add(*x, *out);
        }
    }
}

/// `tokens`: of each its q, k, v and, to be written, its result. `gates`: decay of the state, β.
///
/// Columns of the state have nothing to do with each other: some at a time, which stay in the
/// nearest cache for all tokens.
#[inline(always)]
fn delta_lanes(s: &mut [f32], tokens: &mut [f32], gates: &[[f32; 2]], dims: [usize; 2]) {
    let v_dim = dims[1];
    let mut col = 0;
    while col + 64 <= v_dim {
        delta_columns::<4, 16>(s, col, tokens, gates, dims);
        col += 64;
    }
    while col + 16 <= v_dim {
        delta_columns::<1, 16>(s, col, tokens, gates, dims);
        col += 16;
    }
    while col < v_dim {
        delta_columns::<1, 1>(s, col, tokens, gates, dims);
        col += 1;
    }
}

/// Columns `col .. col + W·L` of the state.
#[inline(always)]
fn delta_columns<const W: usize, const L: usize>(
    s: &mut [f32],
    col: usize,
    tokens: &mut [f32],
    gates: &[[f32; 2]],
    [k_dim, v_dim]: [usize; 2],
) {
    for (token, [decay, beta]) in tokens.chunks_exact_mut(2 * (k_dim + v_dim)).zip(gates) {
        let (q, rest) = token.split_at_mut(k_dim);
        let (k, rest) = rest.split_at_mut(k_dim);
        let (v, out) = rest.split_at_mut(v_dim);
        let (v, out) = (&v[col..col + W * L], &mut out[col..col + W * L]);
        let mut held = [[0.0f32; L]; W];
        for (row, k) in s.chunks_exact_mut(v_dim).zip(k.iter()) {
            let row = row[col..col + W * L].as_chunks_mut::<L>().0;
            for (s, held) in row.iter_mut().zip(&mut held) {
                for (s, held) in s.iter_mut().zip(held) {
                    *s *= decay;
                    *held = k.mul_add(*s, *held);
                }
            }
        }
        for (held, v) in held.as_flattened_mut().iter_mut().zip(v.iter()) {
            *held = beta * (v - *held);
        }
        let mut sums = [[0.0f32; L]; W];
        for ((row, k), q) in s.chunks_exact_mut(v_dim).zip(k.iter()).zip(q.iter()) {
            let row = row[col..col + W * L].as_chunks_mut::<L>().0;
            for ((s, delta), sum) in row.iter_mut().zip(&held).zip(&mut sums) {
                for ((s, delta), sum) in s.iter_mut().zip(delta).zip(sum) {
                    *s = k.mul_add(*delta, *s);
                    *sum = q.mul_add(*s, *sum);
                }
            }
        }
        out.copy_from_slice(sums.as_flattened());
    }
}

/// `tokens`: of each its b, c, x and, to be written, its result. `gates`: decay of the state, step
/// size.
///
/// Rows of the state have nothing to do with each other: four at a time, which stay in the nearest
/// cache for all tokens.
#[inline(always)]
fn scan_lanes(s: &mut [f32], tokens: &mut [f32], gates: &[[f32; 2]], skip: f32, dims: [usize; 2]) {
    let [dim, state_dim] = dims;
    let mut first = 0;
    while first + 4 <= dim {
        let rows = &mut s[first * state_dim..(first + 4) * state_dim];
        scan_rows::<4>(rows, first, tokens, gates, skip, dims);
        first += 4;
    }
    for (i, row) in s.chunks_exact_mut(state_dim).enumerate().skip(first) {
        scan_rows::<1>(row, i, tokens, gates, skip, dims);
    }
}

/// `R` rows of the state, from row `first` of the head on.
#[inline(always)]
fn scan_rows<const R: usize>(
    s: &mut [f32],
    first: usize,
    tokens: &mut [f32],
    gates: &[[f32; 2]],
    skip: f32,
    [dim, state_dim]: [usize; 2],
) {
    let whole = state_dim / 16 * 16;
    for (token, &[decay, step]) in tokens.chunks_exact_mut(2 * (dim + state_dim)).zip(gates) {
        let (b, rest) = token.split_at_mut(state_dim);
        let (c, rest) = rest.split_at_mut(state_dim);
        let (x, out) = rest.split_at_mut(dim);
        let (x, out) = (&x[first..first + R], &mut out[first..first + R]);
        let mut lanes = [[0.0f32; 16]; R];
        for at in (0..whole).step_by(16) {
            let (b, c) = (&b[at..at + 16], &c[at..at + 16]);
            for r in 0..R {
                let input = step * x[r];
                let s = &mut s[r * state_dim + at..][..16];
                for i in 0..16 {
                    s[i] = s[i].mul_add(decay, input * b[i]);
                    lanes[r][i] = s[i].mul_add(c[i], lanes[r][i]);
                }
            }
        }
        for r in 0..R {
            let input = step * x[r];
            let s = &mut s[r * state_dim..(r + 1) * state_dim];
            for (i, at) in (whole..state_dim).enumerate() {
                s[at] = s[at].mul_add(decay, input * b[at]);
                lanes[r][i] = s[at].mul_add(c[at], lanes[r][i]);
            }
            out[r] = skip.mul_add(x[r], tree(lanes[r]));
        }
    }
}

#[inline(always)]
fn unit_lanes(x: &[f32], scale: f32, out: &mut [f32]) {
    let mut lanes = [0.0f32; 16];
    for chunk in x.chunks(16) {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = x.mul_add(*x, *lane);
        }
    }
    let factor = inverse_sqrt(tree(lanes) + 1e-6) * scale;
    for (out, x) in out.iter_mut().zip(x) {
        *out = x * factor;
    }
}

impl Kernel for Conv {
    fn run(&self, job: &Job<'_>) {
        let channels = job.worker.share(self.x.cols);
        if channels.is_empty() {
            return;
        }
        for span in &job.step.batch.spans {
            self.span(job, span, &channels);
        }
    }
}

/// Gated delta rule, divided by value heads.
#[derive(Debug)]
pub(crate) struct DeltaRule {
    pub q: Cols,
    pub k: Cols,
    pub v: Cols,
    pub a: Cols,
    pub b: Cols,
    /// `−e^a_log`. [v_heads]
    pub rate: Vec<f32>,
    pub dt_bias: Vec<f32>,
    pub k_heads: usize,
    pub v_heads: usize,
    pub cache: usize,
    pub out: Cols,
}

impl DeltaRule {
    fn dims(&self) -> (usize, usize) {
        (self.k.cols / self.k_heads, self.v.cols / self.v_heads)
    }

    /// f32 of scratch: q, k, v and result of some tokens.
    pub fn wants(&self) -> usize {
        let (k_dim, v_dim) = self.dims();
        TOKENS * 2 * (k_dim + v_dim)
    }

    fn head(&self, job: &Job<'_>, span: &Span, h: usize) {
        let (k_dim, v_dim) = self.dims();
        let cache = &job.step.caches[self.cache];
        let range = h * k_dim * v_dim..(h + 1) * k_dim * v_dim;
        // SAFETY: this head is this worker's; scratch is used here only.
        let (s, scratch) = unsafe {
            let s = state(cache, slots(job, span, cache), range);
            (s, &mut job.scratch().row[..self.wants()])
        };
        let group = h / (self.v_heads / self.k_heads);
        let isa = job.step.isa;
        for rows in pieces(span) {
            let mut gates = [[0.0; 2]; TOKENS];
            let each = 2 * (k_dim + v_dim);
            for ((row, token), gate) in
                rows.clone().zip(scratch.chunks_exact_mut(each)).zip(&mut gates)
            {
                let (q, rest) = token.split_at_mut(k_dim);
                let (k, rest) = rest.split_at_mut(k_dim);
                unit(isa, job.read(part(self.q, group, k_dim), row), scale_of(k_dim), q);
                unit(isa, job.read(part(self.k, group, k_dim), row), 1.0, k);
                rest[..v_dim].copy_from_slice(job.read(part(self.v, h, v_dim), row));
                let a = job.read(part(self.a, h, 1), row)[0] + self.dt_bias[h];
                let beta = sigmoid(job.read(part(self.b, h, 1), row)[0]);
                *gate = [exp(self.rate[h] * softplus(a)), beta];
            }
            let tokens = &mut scratch[..rows.len() * each];
            delta_tokens(isa, s, tokens, &gates[..rows.len()], [k_dim, v_dim]);
            for (row, token) in rows.zip(tokens.chunks_exact(each)) {
                // SAFETY: this head of the row is this worker's.
                let out = unsafe { job.write(part(self.out, h, v_dim), row) };
                out.copy_from_slice(&token[each - v_dim..]);
            }
        }
    }
}

/// Part `i` of a view of parts of `n` columns.
fn part(v: Cols, i: usize, n: usize) -> Cols {
    Cols { start: v.start + i * n, cols: n, ..v }
}

/// Rows of a span, some at a time.
fn pieces(span: &Span) -> impl Iterator<Item = Range<usize>> {
    let all = span.first as usize..(span.first + span.len) as usize;
    let end = all.end;
    all.step_by(TOKENS).map(move |first| first..(first + TOKENS).min(end))
}

/// `1 / √n`.
fn scale_of(n: usize) -> f32 {
    inverse_sqrt(n as f32)
}

impl Kernel for DeltaRule {
    fn run(&self, job: &Job<'_>) {
        for h in job.worker.share(self.v_heads) {
            for span in &job.step.batch.spans {
                self.head(job, span, h);
            }
        }
    }
}

/// Selective scan, divided by heads.
#[derive(Debug)]
pub(crate) struct Scan {
    pub x: Cols,
    pub b: Cols,
    pub c: Cols,
    pub dt: Cols,
    /// `−e^a_log`. [heads]
    pub rate: Vec<f32>,
    pub skip: Vec<f32>,
    pub dt_bias: Vec<f32>,
    pub heads: usize,
    pub groups: usize,
    pub dt_limit: (f32, f32),
    pub cache: usize,
    pub out: Cols,
}

impl Scan {
    fn dims(&self) -> (usize, usize) {
        (self.x.cols / self.heads, self.b.cols / self.groups)
    }

    /// f32 of scratch: b, c, x and result of some tokens.
    pub fn wants(&self) -> usize {
        let (dim, state_dim) = self.dims();
        TOKENS * 2 * (dim + state_dim)
    }

    fn head(&self, job: &Job<'_>, span: &Span, h: usize) {
        let (dim, state_dim) = self.dims();
        let cache = &job.step.caches[self.cache];
        let range = h * dim * state_dim..(h + 1) * dim * state_dim;
        // SAFETY: this head is this worker's; scratch is used here only.
        let (s, scratch) = unsafe {
            let s = state(cache, slots(job, span, cache), range);
            (s, &mut job.scratch().row[..self.wants()])
        };
        let group = h / (self.heads / self.groups);
        let isa = job.step.isa;
        for rows in pieces(span) {
            let mut gates = [[0.0; 2]; TOKENS];
            let each = 2 * (dim + state_dim);
            for ((row, token), gate) in
                rows.clone().zip(scratch.chunks_exact_mut(each)).zip(&mut gates)
            {
                let (b, rest) = token.split_at_mut(state_dim);
                let (c, rest) = rest.split_at_mut(state_dim);
                b.copy_from_slice(job.read(part(self.b, group, state_dim), row));
                c.copy_from_slice(job.read(part(self.c, group, state_dim), row));
                rest[..dim].copy_from_slice(job.read(part(self.x, h, dim), row));
                let mut step = softplus(job.read(part(self.dt, h, 1), row)[0] + self.dt_bias[h]);
                step = if step < self.dt_limit.0 { self.dt_limit.0 } else { step };
                step = if step > self.dt_limit.1 { self.dt_limit.1 } else { step };
                *gate = [exp(self.rate[h] * step), step];
            }
            let tokens = &mut scratch[..rows.len() * each];
            scan_tokens(isa, s, tokens, &gates[..rows.len()], self.skip[h], [dim, state_dim]);
            for (row, token) in rows.zip(tokens.chunks_exact(each)) {
                // SAFETY: this head of the row is this worker's.
                let out = unsafe { job.write(part(self.out, h, dim), row) };
                out.copy_from_slice(&token[each - dim..]);
            }
        }
    }
}

impl Kernel for Scan {
    fn run(&self, job: &Job<'_>) {
        debug_assert_eq!(job.kind(self.out.place), RowKind::Tokens);
        for h in job.worker.share(self.heads) {
            for span in &job.step.batch.spans {
                self.head(job, span, h);
            }
        }
    }
}

//! Recurrences in token order, divided by channels or heads.
//!
//! Numerics: NUMERICS.md, "Recurrences".

use std::ops::Range;

use tokenmill_ir::{Act, BlockId, KeyHead, Rows as RowKind, Span};

use super::linear::activate;
use crate::caches::Cache;
use crate::isa::Isa;
use crate::math::{exp, inverse_sqrt, sigmoid, tree};
use crate::step::{Cols, Job, Kernel};

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
        for i in 0..len {
            // SAFETY: these channels are this worker's.
            let out = unsafe { job.write(of(self.out), first + i) };
            match self.bias.get(channels.clone()) {
                Some(bias) => out.copy_from_slice(bias),
                None => out.fill(0.0),
            }
            for j in 0..self.kernel {
                let taps = &self.taps[j * all..][channels.clone()];
                if i + j >= kept {
                    multiply_add(
                        job.step.isa,
                        out,
                        taps,
                        job.read(of(self.x), first + i + j - kept),
                    );
                } else {
                    multiply_add(job.step.isa, out, taps, past(i + j));
                }
            }
            if let Some(act) = self.act {
                activate(job.step.isa, out, act);
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
    /// `out = fma(a, b, out)`.
    multiply_add(out: &mut [f32], a: &[f32], b: &[f32]) = multiply_add_lanes;
    /// One token of the delta rule for one head; `s` is `[k_dim][v_dim]`.
    delta_step(
        s: &mut [f32],
        qkv: [&[f32]; 3],
        gates: [f32; 2],
        held: &mut [f32],
        out: &mut [f32]
    ) = delta_lanes;
    /// One token of the scan for one head; `s` is `[head_dim][state_dim]`.
    scan_step(
        s: &mut [f32],
        x: &[f32],
        b: &[f32],
        c: &[f32],
        numbers: [f32; 3],
        out: &mut [f32]
    ) = scan_lanes;
    /// `x / √(Σx² + 1e-6)`, times `scale`.
    unit(x: &[f32], scale: f32, out: &mut [f32]) = unit_lanes;
}

#[inline(always)]
fn multiply_add_lanes(out: &mut [f32], a: &[f32], b: &[f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a.mul_add(*b, *out);
    }
}

/// `gates`: decay of the state, β.
#[inline(always)]
fn delta_lanes(
    s: &mut [f32],
    qkv: [&[f32]; 3],
    gates: [f32; 2],
    held: &mut [f32],
    out: &mut [f32],
) {
    let ([q, k, v], [decay, beta]) = (qkv, gates);
    held.fill(0.0);
    out.fill(0.0);
    for (row, k) in s.chunks_exact_mut(v.len()).zip(k) {
        for (s, held) in row.iter_mut().zip(held.iter_mut()) {
            *s *= decay;
            *held = k.mul_add(*s, *held);
        }
    }
    for (held, v) in held.iter_mut().zip(v) {
        *held = beta * (v - *held);
    }
    for ((row, k), q) in s.chunks_exact_mut(v.len()).zip(k).zip(q) {
        for ((s, delta), out) in row.iter_mut().zip(held.iter()).zip(out.iter_mut()) {
            *s = k.mul_add(*delta, *s);
            *out = q.mul_add(*s, *out);
        }
    }
}

/// `numbers`: decay of the state, step size, skip.
#[inline(always)]
fn scan_lanes(s: &mut [f32], x: &[f32], b: &[f32], c: &[f32], numbers: [f32; 3], out: &mut [f32]) {
    let [decay, step, skip] = numbers;
    for ((row, x), out) in s.chunks_exact_mut(b.len()).zip(x).zip(out) {
        let input = step * x;
        let mut lanes = [0.0f32; 16];
        let (rows, row_rest) = row.as_chunks_mut::<16>();
        let (bs, b_rest) = b.as_chunks::<16>();
        let (cs, c_rest) = c.as_chunks::<16>();
        for ((s, b), c) in rows.iter_mut().zip(bs).zip(cs) {
            for i in 0..16 {
                s[i] = s[i].mul_add(decay, input * b[i]);
                lanes[i] = s[i].mul_add(c[i], lanes[i]);
            }
        }
        let rest = row_rest.iter_mut().zip(b_rest).zip(c_rest);
        for (((s, b), c), lane) in rest.zip(&mut lanes) {
            *s = s.mul_add(decay, input * b);
            *lane = s.mul_add(*c, *lane);
        }
        *out = skip.mul_add(*x, tree(lanes));
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
    pub key_head: KeyHead,
    pub cache: usize,
    pub out: Cols,
}

impl DeltaRule {
    fn dims(&self) -> (usize, usize) {
        (self.k.cols / self.k_heads, self.v.cols / self.v_heads)
    }

    /// f32 of scratch.
    pub fn needs(&self) -> usize {
        let (k_dim, v_dim) = self.dims();
        2 * k_dim + v_dim
    }

    fn head(&self, job: &Job<'_>, span: &Span, h: usize) {
        let (k_dim, v_dim) = self.dims();
        let cache = &job.step.caches[self.cache];
        let range = h * k_dim * v_dim..(h + 1) * k_dim * v_dim;
        // SAFETY: this head is this worker's; scratch is used here only.
        let (s, scratch) = unsafe {
            let s = state(cache, slots(job, span, cache), range);
            (s, &mut job.scratch().row[..self.needs()])
        };
        let (q, rest) = scratch.split_at_mut(k_dim);
        let (k, held) = rest.split_at_mut(k_dim);
        let group = self.key_head.of(h, self.k_heads, self.v_heads);
        let one = |v: Cols, i: usize, n: usize| Cols { start: v.start + i * n, cols: n, ..v };
        let isa = job.step.isa;
        for row in span.first as usize..(span.first + span.len) as usize {
            unit(isa, job.read(one(self.q, group, k_dim), row), scale_of(k_dim), q);
            unit(isa, job.read(one(self.k, group, k_dim), row), 1.0, k);
            let a = job.read(one(self.a, h, 1), row)[0] + self.dt_bias[h];
            let decay = exp(self.rate[h] * softplus(a));
            let beta = sigmoid(job.read(one(self.b, h, 1), row)[0]);
            let v = job.read(one(self.v, h, v_dim), row);
            // SAFETY: this head of the row is this worker's.
            let out = unsafe { job.write(one(self.out, h, v_dim), row) };
            delta_step(isa, s, [q, k, v], [decay, beta], held, out);
        }
    }
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
    fn head(&self, job: &Job<'_>, span: &Span, h: usize) {
        let (dim, state_dim) = (self.x.cols / self.heads, self.b.cols / self.groups);
        let cache = &job.step.caches[self.cache];
        let range = h * dim * state_dim..(h + 1) * dim * state_dim;
        // SAFETY: this head is this worker's.
        let s = unsafe { state(cache, slots(job, span, cache), range) };
        let group = h / (self.heads / self.groups);
        let one = |v: Cols, i: usize, n: usize| Cols { start: v.start + i * n, cols: n, ..v };
        for row in span.first as usize..(span.first + span.len) as usize {
            let mut step = softplus(job.read(one(self.dt, h, 1), row)[0] + self.dt_bias[h]);
            step = if step < self.dt_limit.0 { self.dt_limit.0 } else { step };
            step = if step > self.dt_limit.1 { self.dt_limit.1 } else { step };
            let numbers = [exp(self.rate[h] * step), step, self.skip[h]];
            let x = job.read(one(self.x, h, dim), row);
            let b = job.read(one(self.b, group, state_dim), row);
            let c = job.read(one(self.c, group, state_dim), row);
            // SAFETY: this head of the row is this worker's.
            let out = unsafe { job.write(one(self.out, h, dim), row) };
            scan_step(job.step.isa, s, x, b, c, numbers, out);
        }
    }
}

impl Kernel for Scan {
    fn run(&self, job: &Job<'_>) {
        debug_assert_eq!(job.kind(self.out.region), RowKind::Tokens);
        for h in job.worker.share(self.heads) {
            for span in &job.step.batch.spans {
                self.head(job, span, h);
            }
        }
    }
}

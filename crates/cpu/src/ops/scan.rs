//! The selective scan of Mamba-2 (arXiv 2405.21060), divided by heads.
//!
//! A head's state is `[head_dim][state_dim]`, and its rows do not meet: a part of a row is taken through some tokens
//! in registers. Every number is computed as if each token went through the whole state alone.
//!
//! Numerics: NUMERICS.md, "Recurrences".

use tokenmill_ir::{Rows as RowKind, Span};

use super::recurrent::{slots, softplus, state};
use crate::isa::Isa;
use crate::math::{exp, tree};
use crate::step::{Cols, Job, Kernel};

/// Tokens that a row is taken through at once: what they bring fits the first-level cache.
const TOKENS: usize = 16;
/// Columns of a row in registers; the rest of a row is taken as it is.
const PART: usize = 64;
/// Sums of a row, added by a tree.
const LANES: usize = 16;

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

/// What some tokens bring to a head.
pub(crate) struct Tokens<'a> {
    /// [tokens][state_dim]
    b: &'a [f32],
    c: &'a [f32],
    /// Decay of the state and size of the step. [tokens]
    steps: &'a [[f32; 2]],
    /// Inputs, then results. [tokens][head_dim]
    x: &'a mut [f32],
    skip: f32,
}

crate::math::per_isa! {
    /// Takes the state of a head through some tokens.
    through(s: &mut [f32], tokens: &mut Tokens<'_>) = through_rows;
}

#[inline(always)]
fn through_rows(s: &mut [f32], tokens: &mut Tokens<'_>) {
    let Tokens { b, c, steps, x, skip } = tokens;
    let (dim, state_dim) = (x.len() / steps.len(), b.len() / steps.len());
    let mut sums = [[0.0; LANES]; TOKENS];
    let mut pushes = [[0.0; 2]; TOKENS];
    for (r, row) in s.chunks_exact_mut(state_dim).enumerate() {
        for (t, (push, [decay, step])) in pushes.iter_mut().zip(*steps).enumerate() {
            *push = [*decay, step * x[t * dim + r]];
        }
        let (pushes, sums) = (&pushes[..steps.len()], &mut sums[..steps.len()]);
        sums.fill([0.0; LANES]);
        let (parts, rest) = row.as_chunks_mut::<PART>();
        let done = parts.len() * PART;
        for (i, part) in parts.iter_mut().enumerate() {
            through_part(part, [b, c], i * PART, pushes, sums);
        }
        if !rest.is_empty() {
            through_rest(rest, [b, c], done, pushes, sums);
        }
        for (t, sums) in sums.iter().enumerate() {
            let x = &mut x[t * dim + r];
            *x = skip.mul_add(*x, tree(*sums));
        }
    }
}

/// Columns `at ..` of a row through all tokens. `bc`: [tokens][state_dim]; `pushes`: decay, input.
#[inline(always)]
fn through_part(
    part: &mut [f32; PART],
    [b, c]: [&[f32]; 2],
    at: usize,
    pushes: &[[f32; 2]],
    sums: &mut [[f32; LANES]],
) {
    let state_dim = b.len() / pushes.len();
    let mut s = *part;
    for (t, ([decay, input], sums)) in pushes.iter().zip(sums).enumerate() {
        let row = t * state_dim + at..t * state_dim + at + PART;
        let (b, c) = (b[row.clone()].as_chunks::<LANES>().0, c[row].as_chunks::<LANES>().0);
        let mut lanes = *sums;
        for ((s, b), c) in s.as_chunks_mut::<LANES>().0.iter_mut().zip(b).zip(c) {
            for i in 0..LANES {
                s[i] = s[i].mul_add(*decay, input * b[i]);
                lanes[i] = s[i].mul_add(c[i], lanes[i]);
            }
        }
        *sums = lanes;
    }
    *part = s;
}

/// The same of fewer columns.
#[inline(always)]
fn through_rest(
    s: &mut [f32],
    [b, c]: [&[f32]; 2],
    at: usize,
    pushes: &[[f32; 2]],
    sums: &mut [[f32; LANES]],
) {
    let state_dim = b.len() / pushes.len();
    let each = b.chunks_exact(state_dim).zip(c.chunks_exact(state_dim));
    for (((b, c), [decay, input]), sums) in each.zip(pushes).zip(sums) {
        for (i, ((s, b), c)) in s.iter_mut().zip(&b[at..]).zip(&c[at..]).enumerate() {
            *s = s.mul_add(*decay, input * b);
            sums[i % LANES] = s.mul_add(*c, sums[i % LANES]);
        }
    }
}

impl Scan {
    fn dims(&self) -> (usize, usize) {
        (self.x.cols / self.heads, self.b.cols / self.groups)
    }

    /// f32 of scratch.
    pub fn needs(&self) -> usize {
        let (dim, state_dim) = self.dims();
        TOKENS * (2 * state_dim + dim)
    }

    fn head(&self, job: &Job<'_>, span: &Span, h: usize) {
        let (dim, state_dim) = self.dims();
        let cache = &job.step.caches[self.cache];
        let range = h * dim * state_dim..(h + 1) * dim * state_dim;
        // SAFETY: this head is this worker's; scratch is used here only.
        let (s, scratch) = unsafe {
            let s = state(cache, slots(job, span, cache), range);
            (s, &mut job.scratch().row[..self.needs()])
        };
        let (b, rest) = scratch.split_at_mut(TOKENS * state_dim);
        let (c, x) = rest.split_at_mut(TOKENS * state_dim);
        let group = h / (self.heads / self.groups);
        let one = |v: Cols, i: usize, n: usize| Cols { start: v.start + i * n, cols: n, ..v };
        let end = (span.first + span.len) as usize;
        for first in (span.first as usize..end).step_by(TOKENS) {
            let count = TOKENS.min(end - first);
            let mut steps = [[0.0; 2]; TOKENS];
            for (t, step) in steps[..count].iter_mut().enumerate() {
                let row = first + t;
                *step = self.step(job, h, row);
                let states = t * state_dim..(t + 1) * state_dim;
                b[states.clone()].copy_from_slice(job.read(one(self.b, group, state_dim), row));
                c[states].copy_from_slice(job.read(one(self.c, group, state_dim), row));
                x[t * dim..][..dim].copy_from_slice(job.read(one(self.x, h, dim), row));
            }
            let mut tokens = Tokens {
                b: &b[..count * state_dim],
                c: &c[..count * state_dim],
                steps: &steps[..count],
                x: &mut x[..count * dim],
                skip: self.skip[h],
            };
            through(job.step.isa, s, &mut tokens);
            for (t, x) in tokens.x.chunks_exact(dim).enumerate() {
                // SAFETY: this head of the row is this worker's.
                unsafe { job.write(one(self.out, h, dim), first + t) }.copy_from_slice(x);
            }
        }
    }

    /// Decay of the state and size of the step at a token.
    fn step(&self, job: &Job<'_>, h: usize, row: usize) -> [f32; 2] {
        let dt = Cols { start: self.dt.start + h, cols: 1, ..self.dt };
        let mut step = softplus(job.read(dt, row)[0] + self.dt_bias[h]);
        step = if step < self.dt_limit.0 { self.dt_limit.0 } else { step };
        step = if step > self.dt_limit.1 { self.dt_limit.1 } else { step };
        [exp(self.rate[h] * step), step]
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: a token at a time through the whole state.
    fn defined(s: &mut [f32], x: &[f32], bc: [&[f32]; 2], numbers: [f32; 3]) -> Vec<f32> {
        let ([b, c], [decay, step, skip]) = (bc, numbers);
        let one = |(row, x): (&mut [f32], &f32)| {
            let mut lanes = [0.0f32; LANES];
            for (i, s) in row.iter_mut().enumerate() {
                *s = s.mul_add(decay, step * x * b[i]);
                lanes[i % LANES] = s.mul_add(c[i], lanes[i % LANES]);
            }
            skip.mul_add(*x, tree(lanes))
        };
        s.chunks_exact_mut(b.len()).zip(x).map(one).collect()
    }

    #[test]
    fn parts_give_the_bits_of_the_definition() {
        let number = |i: usize| ((i * 7919 + 13) % 997) as f32 / 498.5 - 1.0;
        let numbers = |from, n| (from..from + n).map(number).collect::<Vec<f32>>();
        for (dim, state_dim, count) in [(5, 64, 1), (3, 150, 2), (4, 256, TOKENS), (2, 7, 9)] {
            let (b, c) = (numbers(1, count * state_dim), numbers(2000, count * state_dim));
            let x = numbers(4000, count * dim);
            let steps: Vec<[f32; 2]> =
                (0..count).map(|t| [0.9 + 0.01 * number(t), 0.5 + 0.4 * number(t + 50)]).collect();
            let (start, mut expected) = (numbers(9000, dim * state_dim), Vec::new());
            let mut state = start.clone();
            for t in 0..count {
                let of = t * state_dim..(t + 1) * state_dim;
                let bc = [&b[of.clone()], &c[of]];
                let [decay, step] = steps[t];
                let x = &x[t * dim..(t + 1) * dim];
                expected.extend(defined(&mut state, x, bc, [decay, step, 0.7]));
            }
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                let (mut s, mut x) = (start.clone(), x.clone());
                let mut tokens = Tokens { b: &b, c: &c, steps: &steps, x: &mut x, skip: 0.7 };
                through(isa, &mut s, &mut tokens);
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
                let what = format!("{} {dim} {state_dim} {count}", isa.name());
                assert_eq!((bits(&s), bits(&x)), (bits(&state), bits(&expected)), "{what}");
            }
        }
    }
}

//! The gated delta rule (arXiv 2412.06464), divided by value heads.
//!
//! A head's state is `[k_dim][v_dim]`, and its columns do not meet: a panel of some of them is taken through all tokens
//! of a span before the next, so that it stays in the first-level cache, and what is summed over its rows stays in
//! registers. Every number is computed as if each token went through the whole state alone.
//!
//! Numerics: NUMERICS.md, "Recurrences".

use tokenmill_ir::{KeyHead, Span};

use super::recurrent::{slots, softplus, state};
use crate::isa::Isa;
use crate::math::{exp, inverse_sqrt, sigmoid, tree};
use crate::step::{Cols, Job, Kernel};

/// Tokens that a panel is taken through at once.
const TOKENS: usize = 32;
/// Columns of a panel; the rest of a state goes through panels of fewer.
const PANEL: usize = 32;

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

/// Some tokens of a head.
pub(crate) struct Tokens<'a> {
    /// Unit keys and scaled unit queries. [tokens][k_dim]
    keys: &'a [f32],
    queries: &'a [f32],
    /// Decay of the state before the token, β. [tokens]
    gates: &'a [[f32; 2]],
    /// Values, then results. [tokens][v_dim]
    values: &'a mut [f32],
}

crate::math::per_isa! {
    /// Takes the state of a head through some tokens.
    through(s: &mut [f32], tokens: &mut Tokens<'_>, panel: &mut [f32]) = through_panels;
    /// `x / √(Σx² + 1e-6)`, times `scale`.
    unit(x: &[f32], scale: f32, out: &mut [f32]) = unit_lanes;
}

#[inline(always)]
fn through_panels(s: &mut [f32], tokens: &mut Tokens<'_>, panel: &mut [f32]) {
    let v_dim = tokens.values.len() / tokens.gates.len();
    if tokens.gates.len() == 1 {
        return through_whole(s, tokens, panel);
    }
    let mut at = 0;
    while at + PANEL <= v_dim {
        through_panel::<PANEL>(s, tokens, panel, at..v_dim);
        at += PANEL;
    }
    while at < v_dim {
        through_panel::<1>(s, tokens, panel, at..v_dim);
        at += 1;
    }
}

/// One token through the state as it lies: there is nothing to keep near.
#[inline(always)]
fn through_whole(s: &mut [f32], tokens: &mut Tokens<'_>, sums: &mut [f32]) {
    let Tokens { keys, queries, gates: [[decay, beta]], values } = tokens else {
        unreachable!("one token")
    };
    let v_dim = values.len();
    let (held, out) = sums[..2 * v_dim].split_at_mut(v_dim);
    held.fill(0.0);
    out.fill(0.0);
    for (row, k) in s.chunks_exact_mut(v_dim).zip(*keys) {
        for (s, held) in row.iter_mut().zip(&mut *held) {
            *s *= decay;
            *held = k.mul_add(*s, *held);
        }
    }
    for (held, v) in held.iter_mut().zip(&**values) {
        *held = beta * (v - *held);
    }
    for ((row, k), q) in s.chunks_exact_mut(v_dim).zip(*keys).zip(*queries) {
        for ((s, delta), out) in row.iter_mut().zip(&*held).zip(&mut *out) {
            *s = k.mul_add(*delta, *s);
            *out = q.mul_add(*s, *out);
        }
    }
    values.copy_from_slice(out);
}

/// Columns `N` from the first of `cols` on, of rows that end where `cols` does.
#[inline(always)]
fn through_panel<const N: usize>(
    s: &mut [f32],
    tokens: &mut Tokens<'_>,
    panel: &mut [f32],
    cols: std::ops::Range<usize>,
) {
    let Tokens { keys, queries, gates, values } = tokens;
    let (at, v_dim, k_dim) = (cols.start, cols.end, keys.len() / gates.len());
    let panel = &mut panel.as_chunks_mut::<N>().0[..k_dim];
    for (row, s) in panel.iter_mut().zip(s.chunks_exact(v_dim)) {
        row.copy_from_slice(&s[at..at + N]);
    }
    let mut held = decayed(panel, &keys[..k_dim], gates[0][0]);
    let each = keys.chunks_exact(k_dim).zip(queries.chunks_exact(k_dim));
    for (t, (k, q)) in each.enumerate() {
        let value = &mut values[t * v_dim + at..][..N];
        for (held, value) in held.iter_mut().zip(&*value) {
            *held = gates[t][1] * (value - *held);
        }
        let out = match gates.get(t + 1) {
            Some([decay, _]) => {
                let next = &keys[(t + 1) * k_dim..][..k_dim];
                let (out, next) = pushed_and_decayed(panel, [k, q, next], held, *decay);
                held = next;
                out
            }
            None => pushed(panel, [k, q], held),
        };
        value.copy_from_slice(&out);
    }
    for (s, row) in s.chunks_exact_mut(v_dim).zip(panel) {
        s[at..at + N].copy_from_slice(row);
    }
}

/// Decays the state; what it then holds at a key.
#[inline(always)]
fn decayed<const N: usize>(panel: &mut [[f32; N]], k: &[f32], decay: f32) -> [f32; N] {
    let mut held = [0.0; N];
    for (row, k) in panel.iter_mut().zip(k) {
        for (s, held) in row.iter_mut().zip(&mut held) {
            *s *= decay;
            *held = k.mul_add(*s, *held);
        }
    }
    held
}

/// Adds `delta` at a key; what the state then holds at a query.
#[inline(always)]
fn pushed<const N: usize>(
    panel: &mut [[f32; N]],
    [k, q]: [&[f32]; 2],
    delta: [f32; N],
) -> [f32; N] {
    let mut out = [0.0; N];
    for ((row, k), q) in panel.iter_mut().zip(k).zip(q) {
        for ((s, delta), out) in row.iter_mut().zip(&delta).zip(&mut out) {
            *s = k.mul_add(*delta, *s);
            *out = q.mul_add(*s, *out);
        }
    }
    out
}

/// Both, the next token's decay after this one's addition, in one walk.
#[inline(always)]
fn pushed_and_decayed<const N: usize>(
    panel: &mut [[f32; N]],
    [k, q, next]: [&[f32]; 3],
    delta: [f32; N],
    decay: f32,
) -> ([f32; N], [f32; N]) {
    let (mut out, mut held) = ([0.0; N], [0.0; N]);
    for (((row, k), q), next) in panel.iter_mut().zip(k).zip(q).zip(next) {
        let mut s = *row;
        for ((s, delta), out) in s.iter_mut().zip(&delta).zip(&mut out) {
            *s = k.mul_add(*delta, *s);
            *out = q.mul_add(*s, *out);
        }
        for (s, held) in s.iter_mut().zip(&mut held) {
            *s *= decay;
            *held = next.mul_add(*s, *held);
        }
        *row = s;
    }
    (out, held)
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

impl DeltaRule {
    fn dims(&self) -> (usize, usize) {
        (self.k.cols / self.k_heads, self.v.cols / self.v_heads)
    }

    /// f32 of scratch.
    pub fn needs(&self) -> usize {
        let (k_dim, v_dim) = self.dims();
        TOKENS * (2 * k_dim + v_dim + 2) + self.panel()
    }

    /// Of it, f32 of a panel, or of two rows of values.
    fn panel(&self) -> usize {
        let (k_dim, v_dim) = self.dims();
        (PANEL * k_dim).max(2 * v_dim)
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
        let (keys, rest) = scratch.split_at_mut(TOKENS * k_dim);
        let (queries, rest) = rest.split_at_mut(TOKENS * k_dim);
        let (values, rest) = rest.split_at_mut(TOKENS * v_dim);
        let (gates, panel) = rest.split_at_mut(TOKENS * 2);
        let gates = gates.as_chunks_mut::<2>().0;
        let group = self.key_head.of(h, self.k_heads, self.v_heads);
        let isa = job.step.isa;
        let end = (span.first + span.len) as usize;
        for first in (span.first as usize..end).step_by(TOKENS) {
            let count = TOKENS.min(end - first);
            for t in 0..count {
                let row = first + t;
                let q = job.read(one(self.q, group, k_dim), row);
                unit(isa, q, scale_of(k_dim), &mut queries[t * k_dim..][..k_dim]);
                let k = job.read(one(self.k, group, k_dim), row);
                unit(isa, k, 1.0, &mut keys[t * k_dim..][..k_dim]);
                let a = job.read(one(self.a, h, 1), row)[0] + self.dt_bias[h];
                let decay = exp(self.rate[h] * softplus(a));
                gates[t] = [decay, sigmoid(job.read(one(self.b, h, 1), row)[0])];
                let v = job.read(one(self.v, h, v_dim), row);
                values[t * v_dim..][..v_dim].copy_from_slice(v);
            }
            let mut tokens = Tokens {
                keys: &keys[..count * k_dim],
                queries: &queries[..count * k_dim],
                gates: &gates[..count],
                values: &mut values[..count * v_dim],
            };
            through(isa, s, &mut tokens, panel);
            for (t, value) in tokens.values.chunks_exact(v_dim).enumerate() {
                // SAFETY: this head of the row is this worker's.
                let out = unsafe { job.write(one(self.out, h, v_dim), first + t) };
                out.copy_from_slice(value);
            }
        }
    }
}

/// Part `i` of `v`, which has parts of `n` columns.
fn one(v: Cols, i: usize, n: usize) -> Cols {
    Cols { start: v.start + i * n, cols: n, ..v }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: a token at a time through the whole state.
    fn defined(s: &mut [f32], [q, k, v]: [&[f32]; 3], [decay, beta]: [f32; 2]) -> Vec<f32> {
        let (mut held, mut out) = (vec![0.0f32; v.len()], vec![0.0f32; v.len()]);
        for (row, k) in s.chunks_exact_mut(v.len()).zip(k) {
            for (s, held) in row.iter_mut().zip(&mut held) {
                *s *= decay;
                *held = k.mul_add(*s, *held);
            }
        }
        for ((row, k), q) in s.chunks_exact_mut(v.len()).zip(k).zip(q) {
            for (j, s) in row.iter_mut().enumerate() {
                *s = k.mul_add(beta * (v[j] - held[j]), *s);
                out[j] = q.mul_add(*s, out[j]);
            }
        }
        out
    }

    #[test]
    fn panels_give_the_bits_of_the_definition() {
        let number = |i: usize| ((i * 7919 + 13) % 997) as f32 / 498.5 - 1.0;
        let numbers = |from, n| (from..from + n).map(number).collect::<Vec<f32>>();
        for (k_dim, v_dim, count) in [(24, 16, 1), (24, 35, 2), (64, 96, TOKENS), (3, 5, 7)] {
            let (keys, queries) = (numbers(1, count * k_dim), numbers(2000, count * k_dim));
            let values = numbers(4000, count * v_dim);
            let gates: Vec<[f32; 2]> =
                (0..count).map(|t| [0.9 + 0.01 * number(t), 0.5 + 0.4 * number(t + 50)]).collect();
            let (start, mut expected) = (numbers(9000, k_dim * v_dim), Vec::new());
            let mut state = start.clone();
            for t in 0..count {
                let row = |of: &'_ [f32], n: usize| of[t * n..(t + 1) * n].to_vec();
                let (q, k, v) = (row(&queries, k_dim), row(&keys, k_dim), row(&values, v_dim));
                expected.extend(defined(&mut state, [&q, &k, &v], gates[t]));
            }
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                let (mut s, mut values) = (start.clone(), values.clone());
                let mut tokens =
                    Tokens { keys: &keys, queries: &queries, gates: &gates, values: &mut values };
                through(isa, &mut s, &mut tokens, &mut vec![0.0; PANEL * k_dim + 2 * v_dim]);
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
                let what = format!("{} {k_dim} {v_dim} {count}", isa.name());
                assert_eq!((bits(&s), bits(&values)), (bits(&state), bits(&expected)), "{what}");
            }
        }
    }
}

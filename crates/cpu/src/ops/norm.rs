//! Norms, with the sums and gates around them.
//!
//! Numerics: NUMERICS.md, "Norms".

use tokenmill_ir::{GateOrder, NormKind};

use crate::isa::Isa;
use crate::math::{inverse_sqrt, silu, tree};
use crate::step::{Cols, Job, Kernel};
use crate::weight::Weight;

/// A norm's numbers.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    kind: NormKind,
    eps: f32,
    /// Weight and offset together; empty: 1.
    factor: Vec<f32>,
    bias: Vec<f32>,
}

impl Rule {
    pub fn new(
        kind: NormKind,
        eps: f32,
        weight: Option<&Weight>,
        offset: f32,
        bias: Option<&Weight>,
    ) -> Self {
        let factor = weight.map(|w| w.vector().iter().map(|w| w + offset).collect());
        let bias = bias.map(|b| b.vector().to_vec());
        Self { kind, eps, factor: factor.unwrap_or_default(), bias: bias.unwrap_or_default() }
    }

    /// Normalises group `g` of a row in place; returns the divisor.
    pub fn apply(&self, isa: Isa, g: usize, x: &mut [f32]) -> f32 {
        let len = x.len();
        let of_group = |list: &[f32]| {
            if list.len() > len { g * len..(g + 1) * len } else { 0..list.len() }
        };
        let factor = &self.factor[of_group(&self.factor)];
        let bias = &self.bias[of_group(&self.bias)];
        normalise(isa, x, self.kind, self.eps, factor, bias)
    }
}

crate::math::per_isa! {
    /// One norm in place; an empty factor is 1, an empty bias 0. Returns the divisor.
    normalise(x: &mut [f32], kind: NormKind, eps: f32, factor: &[f32], bias: &[f32]) -> f32
        = normalise_lanes;
    /// `out = x + more`.
    sum_of(out: &mut [f32], x: &[f32], more: &[f32]) = sum_lanes;
    /// `x += add`.
    add(x: &mut [f32], more: &[f32]) = add_lanes;
    /// `x *= silu(gate)`.
    gate_by(x: &mut [f32], gate: &[f32]) = gate_lanes;
}

#[inline(always)]
fn normalise_lanes(x: &mut [f32], kind: NormKind, eps: f32, factor: &[f32], bias: &[f32]) -> f32 {
    let n = x.len() as f32;
    if kind == NormKind::Layer {
        let mean = lanes_of(x, |lane, x| lane + x) / n;
        for x in x.iter_mut() {
            *x -= mean;
        }
    }
    let square = lanes_of(x, |lane, x| x.mul_add(x, lane));
    let square = square / n + eps;
    let scale = inverse_sqrt(square);
    for x in x.iter_mut() {
        *x *= scale;
    }
    for (x, f) in x.iter_mut().zip(factor) {
        *x *= f;
    }
    for (x, b) in x.iter_mut().zip(bias) {
        *x += b;
    }
    square.sqrt()
}

/// A sum by sixteen lanes and the tree.
#[inline(always)]
fn lanes_of(x: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; 16];
    let (vectors, rest) = x.as_chunks::<16>();
    for vector in vectors {
        for (lane, &x) in lanes.iter_mut().zip(vector) {
            *lane = f(*lane, x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = f(*lane, x);
    }
    tree(lanes)
}

#[inline(always)]
fn sum_lanes(out: &mut [f32], x: &[f32], more: &[f32]) {
    for ((out, x), m) in out.iter_mut().zip(x).zip(more) {
        *out = x + m;
    }
}

#[inline(always)]
fn add_lanes(x: &mut [f32], more: &[f32]) {
    for (x, m) in x.iter_mut().zip(more) {
        *x += m;
    }
}

#[inline(always)]
fn gate_lanes(x: &mut [f32], gate: &[f32]) {
    for (x, &g) in x.iter_mut().zip(gate) {
        *x *= silu(g);
    }
}

/// `sum = x + adds…`, `out = norm(sum)`.
#[derive(Debug)]
pub(crate) struct Norm {
    pub x: Cols,
    pub adds: Vec<Cols>,
    pub sum: Option<Cols>,
    pub rule: Rule,
    pub groups: usize,
    pub gate: Option<(Cols, GateOrder)>,
    pub root: Option<Cols>,
    pub out: Cols,
}

impl Kernel for Norm {
    fn run(&self, job: &Job<'_>) {
        let isa = job.step.isa;
        for r in job.rows(job.kind(self.out.region)) {
            // SAFETY: by rows.
            let out = unsafe { job.write(self.out, r) };
            let x = job.read(self.x, r);
            match self.adds.split_first() {
                None => out.copy_from_slice(x),
                Some((first, rest)) => {
                    sum_of(isa, out, x, job.read(*first, r));
                    for more in rest {
                        add(isa, out, job.read(*more, r));
                    }
                }
            }
            if let Some(sum) = self.sum {
                // SAFETY: by rows.
                unsafe { job.write(sum, r) }.copy_from_slice(out);
            }
            if let Some((gate, GateOrder::BeforeNorm)) = self.gate {
                gate_by(isa, out, job.read(gate, r));
            }
            for (g, group) in out.chunks_exact_mut(self.out.cols / self.groups).enumerate() {
                let root = self.rule.apply(isa, g, group);
                if let Some(at) = self.root {
                    // SAFETY: by rows.
                    unsafe { job.write(at, r) }.fill(root);
                }
            }
            if let Some((gate, GateOrder::AfterNorm)) = self.gate {
                gate_by(isa, out, job.read(gate, r));
            }
        }
    }
}

//! Products with weights: encoding of their inputs, plain and gated layers, the head.

use std::ops::Range;
use std::sync::Arc;

use crate::panel::PANEL_ROWS;
use crate::step::{Cols, Job, Kernel};
use tokenmill_ir::{Act, ColumnOrder, GateAct};

use crate::isa::Isa;
use crate::linear::{Encoding, Line, LinearJob, OutView, linear, parts};
use crate::math::{erf, exp, sigmoid, silu, tanh};
use crate::memory::prefetch;
use crate::weight::{Panels, Weight};

/// Encodes rows for the products that read them.
#[derive(Debug)]
pub(crate) struct Encode {
    pub x: Cols,
    pub encoding: Encoding,
    /// The column of `x` that each column encoded is, where they are in another order.
    pub order: Option<ColumnOrder>,
    /// Lines as f32 words.
    pub out: Cols,
}

impl Kernel for Encode {
    fn run(&self, job: &Job<'_>) {
        for r in job.rows(job.kind(self.out.region)) {
            // SAFETY: by rows.
            let lines = lines_mut(unsafe { job.write(self.out, r) });
            let x = job.read(self.x, r);
            // SAFETY: used here only.
            let x = in_order(x, self.order.as_deref(), unsafe { &mut job.scratch().row });
            self.encoding.encode(job.step.isa, x, lines);
        }
    }
}

/// The columns of a row in another order, put together in `row`.
pub(crate) fn in_order<'a>(x: &'a [f32], order: Option<&[u32]>, row: &'a mut [f32]) -> &'a [f32] {
    let Some(order) = order else { return x };
    let row = &mut row[..order.len()];
    for (to, &k) in row.iter_mut().zip(order) {
        *to = x[k as usize];
    }
    row
}

/// Words of an encoded row as its lines.
pub(crate) fn lines_mut(words: &mut [f32]) -> &mut [Line] {
    assert_eq!(words.as_ptr().align_offset(align_of::<Line>()), 0, "rows of regions are aligned");
    // SAFETY: aligned; a line is sixteen words, and all bits are legal in both.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<Line>(), words.len() / 16) }
}

/// Words of an encoded row as its lines.
pub(crate) fn lines_of(words: &[f32]) -> &[Line] {
    assert_eq!(words.as_ptr().align_offset(align_of::<Line>()), 0, "rows of regions are aligned");
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<Line>(), words.len() / 16) }
}

/// One weight times encoded rows.
#[derive(Debug)]
pub(crate) struct Product {
    pub weight: Arc<Weight>,
    /// For every run of panels: its input and its encoding.
    pub inputs: Vec<(Cols, Encoding)>,
    pub out: Cols,
}

impl Product {
    /// This worker's part of every run; biases and factors included.
    fn run_share(&self, job: &Job<'_>) {
        for i in 0..self.inputs.len() {
            let panels = self.weight.panels()[i].spec.panels();
            let (panels, rows) = job.product(panels, job.kind(self.out.region));
            self.run_panels(job, i, panels, rows);
        }
    }

    /// Some panels of run `i` on some rows.
    fn run_panels(&self, job: &Job<'_>, i: usize, range: Range<usize>, rows: Range<usize>) {
        let (panels, (input, encoding)) = (&self.weight.panels()[i], &self.inputs[i]);
        let tokens = rows.len();
        if tokens == 0 || range.is_empty() {
            return;
        }
        let stride = job.stride(self.out.region);
        let len = (tokens - 1) * stride + panels.spec.rows();
        let lines = encoding.lines(panels.spec.cols());
        // SAFETY: inputs are rows of lines, one after another; workers write different columns
        // or rows of the output.
        unsafe {
            let input = job.start(input.region).cast::<Line>().add(rows.start * lines);
            let input = std::slice::from_raw_parts(input, tokens * lines);
            let first = self.out.start + panels.row + rows.start * stride;
            let first = job.start(self.out.region).add(first);
            let out = OutView::new(std::slice::from_raw_parts_mut(first, len), stride);
            let scratch = job.scratch();
            let work = LinearJob {
                spec: panels.spec,
                weights: panels.bytes(),
                panels: range.clone(),
                encoding: *encoding,
                input,
                tokens,
                out,
                prefetch: Some(&scratch.prefetch),
            };
            linear(job.step.isa, &work, &mut scratch.lines);
        }
        self.after(job, panels, range, rows);
    }

    /// Adds biases, multiplies by factors.
    fn after(&self, job: &Job<'_>, panels: &Panels, range: Range<usize>, rows: Range<usize>) {
        if !self.weight.has_after() {
            return;
        }
        let cols = columns(panels, range);
        for r in rows {
            let view = Cols { start: self.out.start + cols.start, cols: cols.len(), ..self.out };
            // SAFETY: this worker's part of the product.
            self.weight.after(cols.start, unsafe { job.write(view, r) });
        }
    }
}

/// Rows of the weight (columns of the result) in some panels.
fn columns(panels: &Panels, range: Range<usize>) -> Range<usize> {
    let end = (range.end * PANEL_ROWS).min(panels.spec.rows());
    panels.row + (range.start * PANEL_ROWS).min(end)..panels.row + end
}

/// `out = x · weightᵀ + bias`.
#[derive(Debug)]
pub(crate) struct Linear(pub Product);

impl Kernel for Linear {
    fn run(&self, job: &Job<'_>) {
        self.0.run_share(job);
    }
}

/// Panels computed by both branches before they are combined, when there are many rows.
const GATED_PANELS: usize = 16;
/// Rows for which a worker computes all its panels of one branch, then of the other: weights are
/// then read in long runs.
const FEW_ROWS: usize = 8;

/// `out = act(x · gateᵀ, x · upᵀ)`: the gate is computed where the result goes. Both weights have
/// one run of panels.
#[derive(Debug)]
pub(crate) struct GatedLinear {
    pub gate: Product,
    pub up: Product,
    pub act: GateAct,
}

impl Kernel for GatedLinear {
    fn run(&self, job: &Job<'_>) {
        let spec = &self.gate.weight.panels()[0].spec;
        let (share, all) = job.product(spec.panels(), job.kind(self.gate.out.region));
        let tokens = all.len();
        let encoding = self.gate.inputs[0].1;
        // A product that encodes for itself would do it again at every step.
        let whole = tokens <= FEW_ROWS || encoding.is_transformed();
        let step = if whole { share.len().max(1) } else { GATED_PANELS };
        // Rows that stay in the cache go by all panels before the next rows do.
        for rows in parts(job.step.isa, spec, encoding, all) {
            for first in share.clone().step_by(step) {
                self.run_panels(job, first..(first + step).min(share.end), rows.clone());
            }
        }
    }
}

impl GatedLinear {
    /// Some panels of both branches on some rows, combined.
    fn run_panels(&self, job: &Job<'_>, range: Range<usize>, rows: Range<usize>) {
        self.gate.run_panels(job, 0, range.clone(), rows.clone());
        self.up.run_panels(job, 0, range.clone(), rows.clone());
        let cols = columns(&self.gate.weight.panels()[0], range);
        let view = |of: Cols| Cols { start: of.start + cols.start, cols: cols.len(), ..of };
        for r in rows.clone() {
            // Rows are far from each other, and few columns of each are wanted.
            if r + 1 < rows.end {
                for of in [&self.gate, &self.up] {
                    let next = job.read(view(of.out), r + 1);
                    prefetch(next.as_ptr(), next.len());
                }
            }
            let up = job.read(view(self.up.out), r);
            // SAFETY: this worker's part of the product.
            let gate = unsafe { job.write(view(self.gate.out), r) };
            combine(job.step.isa, gate, up, self.act);
        }
    }
}

/// Gate and linear branch as rows of their own.
#[derive(Debug)]
pub(crate) struct Gate {
    pub gate: Cols,
    pub up: Cols,
    pub act: GateAct,
    pub out: Cols,
}

impl Kernel for Gate {
    fn run(&self, job: &Job<'_>) {
        for r in job.rows(job.kind(self.out.region)) {
            // SAFETY: by rows.
            let out = unsafe { job.write(self.out, r) };
            out.copy_from_slice(job.read(self.gate, r));
            combine(job.step.isa, out, job.read(self.up, r), self.act);
        }
    }
}

crate::math::per_isa! {
    /// `gate = act(gate, up)`.
    combine(gate: &mut [f32], up: &[f32], act: GateAct) = combine_lanes;
    /// `x = act(x)`.
    activate(x: &mut [f32], act: Act) = activate_lanes;
    /// `x = cap(scale · x)`.
    scale_and_cap(x: &mut [f32], scale: f32, softcap: Option<f32>) = cap_lanes;
}

#[inline(always)]
fn combine_lanes(gate: &mut [f32], up: &[f32], act: GateAct) {
    match act {
        GateAct::Plain(Act::Silu) => {
            for (g, &u) in gate.iter_mut().zip(up) {
                *g = silu(*g) * u;
            }
        }
        GateAct::Plain(act) => {
            activate_lanes(gate, act);
            for (g, &u) in gate.iter_mut().zip(up) {
                *g *= u;
            }
        }
        GateAct::Clamped { alpha, limit } => {
            for (g, &u) in gate.iter_mut().zip(up) {
                let x = if *g > limit { limit } else { *g };
                let u = if u > limit { limit } else { u };
                let u = if u < -limit { -limit } else { u };
                *g = (u + 1.0) * (x / (1.0 + exp(-(alpha * x))));
            }
        }
    }
}

/// The activations, one loop each.
#[inline(always)]
fn activate_lanes(x: &mut [f32], act: Act) {
    match act {
        Act::Silu => each(x, silu),
        Act::Gelu => each(x, |x| 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))),
        Act::GeluTanh => each(x, |x| {
            let inner = 0.797_884_6 * (0.044715 * x * x).mul_add(x, x);
            0.5 * x * (1.0 + tanh(inner))
        }),
        Act::Relu => each(x, |x| if x < 0.0 { 0.0 } else { x }),
        Act::ReluSquared => each(x, |x| if x < 0.0 { 0.0 } else { x * x }),
    }
}

#[inline(always)]
pub(crate) fn each(x: &mut [f32], f: impl Fn(f32) -> f32) {
    for x in x {
        *x = f(*x);
    }
}

#[inline(always)]
fn cap_lanes(x: &mut [f32], scale: f32, softcap: Option<f32>) {
    if scale != 1.0 {
        each(x, |x| x * scale);
    }
    if let Some(c) = softcap {
        each(x, |x| c * tanh(x / c));
    }
}

crate::math::per_isa! {
    /// Logistic function of every element.
    sigmoid_all(x: &mut [f32]) = sigmoid_lanes;
}

#[inline(always)]
fn sigmoid_lanes(x: &mut [f32]) {
    each(x, sigmoid);
}

/// Logits.
#[derive(Debug)]
pub(crate) struct Head {
    pub product: Product,
    pub scale: f32,
    pub softcap: Option<f32>,
}

impl Kernel for Head {
    fn run(&self, job: &Job<'_>) {
        self.product.run_share(job);
        if self.scale == 1.0 && self.softcap.is_none() {
            return;
        }
        let out = self.product.out;
        for panels in self.product.weight.panels() {
            let (share, rows) = job.product(panels.spec.panels(), job.kind(out.region));
            let cols = columns(panels, share);
            for r in rows {
                let view = Cols { start: out.start + cols.start, cols: cols.len(), ..out };
                // SAFETY: this worker's part of the product.
                let row = unsafe { job.write(view, r) };
                scale_and_cap(job.step.isa, row, self.scale, self.softcap);
            }
        }
    }
}

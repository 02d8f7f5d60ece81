//! Routing tokens to experts, and the experts: tokens are gathered by expert, workers divide the
//! rows of its matrices.
//!
//! Numerics (version 1): an expert's products are those of the linear layer, so a token's result
//! does not depend on who shares its experts; slots are added in order, each product rounded.

use std::ops::Range;
use std::sync::Arc;

use tokenmill_ir::{GateAct, GroupRule, RouteRule, RouteScore, Rows as RowKind};
use tokenmill_quant::panel::PANEL_ROWS;

use super::heads::ROWS;
use super::linear::combine;
use crate::exec::{Job, Kernel, Scratch};
use crate::isa::Isa;
use crate::linear::{Encoding, Line, LinearJob, OutView, linear};
use crate::math::{exp, sigmoid};
use crate::plan::Cols;
use crate::weight::Weight;

/// Chooses experts from router logits.
#[derive(Debug)]
pub(crate) struct Route {
    pub logits: Cols,
    pub rule: RouteRule,
    /// Added to scores for the choice; empty: zeros.
    pub choice_bias: Vec<f32>,
    pub out: Cols,
}

impl Route {
    /// f32 of scratch: scores, choices, totals of groups.
    pub fn wants(&self) -> usize {
        2 * self.logits.cols + self.rule.groups.map_or(0, |g| 2 * g.groups as usize)
    }
}

/// The best index that is left, which is then struck out; ties go to the lower.
fn take_best(scores: &mut [f32]) -> usize {
    let mut best = 0;
    for (i, &s) in scores.iter().enumerate() {
        if s > scores[best] {
            best = i;
        }
    }
    scores[best] = f32::NEG_INFINITY;
    best
}

fn softmax(x: &mut [f32]) {
    let top = x.iter().fold(f32::NEG_INFINITY, |top, &x| if x > top { x } else { top });
    x.iter_mut().for_each(|x| *x = exp(*x - top));
    let sum: f32 = x.iter().sum();
    x.iter_mut().for_each(|x| *x /= sum);
}

/// Puts experts outside the best groups at −∞. A group counts its two best scores.
fn keep_groups(choice: &mut [f32], rule: GroupRule, totals: &mut [f32]) {
    let (totals, kept) = totals.split_at_mut(rule.groups as usize);
    let size = choice.len() / totals.len();
    for (total, group) in totals.iter_mut().zip(choice.chunks_exact(size)) {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for &s in group {
            if s > first {
                (first, second) = (s, first);
            } else if s > second {
                second = s;
            }
        }
        *total = if size > 1 { first + second } else { first };
    }
    kept.fill(0.0);
    for _ in 0..rule.keep.min(rule.groups) {
        kept[take_best(totals)] = 1.0;
    }
    for (group, kept) in choice.chunks_exact_mut(size).zip(kept) {
        if *kept == 0.0 {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

impl Kernel for Route {
    fn run(&self, job: &Job<'_>) {
        let rule = &self.rule;
        for r in job.rows(RowKind::Tokens) {
            // SAFETY: by rows; scratch is used here only.
            let (out, scratch) =
                unsafe { (job.write(self.out, r), &mut job.scratch().row[..self.wants()]) };
            let (scores, rest) = scratch.split_at_mut(self.logits.cols);
            let (choice, totals) = rest.split_at_mut(self.logits.cols);
            scores.copy_from_slice(job.read(self.logits, r));
            match rule.score {
                RouteScore::Softmax => softmax(scores),
                RouteScore::SoftmaxOfTop => {}
                RouteScore::Sigmoid => scores.iter_mut().for_each(|s| *s = sigmoid(*s)),
            }
            choice.copy_from_slice(scores);
            choice.iter_mut().zip(&self.choice_bias).for_each(|(c, b)| *c += b);
            if let Some(groups) = rule.groups {
                keep_groups(choice, groups, totals);
            }
            let (ids, weights) = out.split_at_mut(rule.top as usize);
            for (id, weight) in ids.iter_mut().zip(weights.iter_mut()) {
                let best = take_best(choice);
                (*id, *weight) = (best as f32, scores[best]);
            }
            if rule.score == RouteScore::SoftmaxOfTop {
                softmax(weights);
            }
            if rule.normalise {
                let sum = weights.iter().sum::<f32>() + 1e-20;
                weights.iter_mut().for_each(|w| *w /= sum);
            }
            weights.iter_mut().for_each(|w| *w *= rule.scale);
        }
    }
}

/// Which tokens go to which expert.
struct Groups<'a> {
    /// Ends of the experts' runs in `order`.
    ends: &'a [u32],
    /// Token · top + slot, by expert, then by token.
    order: &'a [u32],
}

impl Groups<'_> {
    fn of(&self, expert: usize) -> &[u32] {
        let start = if expert == 0 { 0 } else { self.ends[expert - 1] };
        &self.order[start as usize..self.ends[expert] as usize]
    }
}

/// Sorts the choices of all tokens by expert.
fn group<'a>(job: &Job<'_>, route: Cols, experts: usize, room: &'a mut [u32]) -> Groups<'a> {
    let top = route.cols / 2;
    let count = job.count(RowKind::Tokens) * top;
    let (ends, order) = room.split_at_mut(experts);
    let order = &mut order[..count];
    let expert = |i: usize| (job.read(route, i / top)[i % top] as usize).min(experts - 1);
    ends.fill(0);
    for i in 0..count {
        ends[expert(i)] += 1;
    }
    let mut start = 0;
    for end in ends.iter_mut() {
        start += std::mem::replace(end, start);
    }
    for i in 0..count {
        let at = &mut ends[expert(i)];
        order[*at as usize] = i as u32;
        *at += 1;
    }
    Groups { ends, order }
}

/// Gathered rows, encoded.
struct Gathered<'a> {
    encoding: Encoding,
    input: &'a [Line],
    tokens: usize,
}

impl Gathered<'_> {
    /// Some panels of a weight with one run of them, into `block` `[tokens, weight rows]`;
    /// returns the columns computed.
    fn product(
        &self,
        isa: Isa,
        weight: &Weight,
        panels: Range<usize>,
        block: &mut [f32],
        scratch: &mut [Line],
    ) -> Range<usize> {
        let run = &weight.panels()[0];
        let rows = run.spec.rows();
        let cols = panels.start * PANEL_ROWS..(panels.end * PANEL_ROWS).min(rows);
        let block = &mut block[..self.tokens * rows];
        let out = OutView::new(block, rows);
        let Self { encoding, input, tokens } = *self;
        let (spec, weights) = (run.spec, run.bytes());
        let work = LinearJob { spec, weights, panels, encoding, input, tokens, out };
        // SAFETY: the block is this worker's own.
        unsafe { linear(isa, &work, scratch) };
        for row in block.chunks_exact_mut(rows) {
            weight.after(cols.start, &mut row[cols.clone()]);
        }
        cols
    }
}

/// `inner[slot] = act(gate[e](x), up[e](x))` for the chosen experts, divided by panels.
#[derive(Debug)]
pub(crate) struct ExpertsInner {
    pub route: Cols,
    pub gate: Vec<Arc<Weight>>,
    pub up: Vec<Arc<Weight>>,
    /// Encoded input and its encoding, for gates and for ups.
    pub inputs: [(Cols, Encoding); 2],
    pub act: GateAct,
    /// [tokens, top × ffn]
    pub out: Cols,
}

/// Gathers rows of lines: row `at(i)` of `input` becomes row i.
fn gather(job: &Job<'_>, input: Cols, rows: &[u32], top: usize, to: &mut [Line]) {
    let lines = input.cols / 16;
    for (row, to) in rows.iter().zip(to.chunks_exact_mut(lines)) {
        let words = job.read(input, *row as usize / top);
        for (line, words) in to.iter_mut().zip(words.as_chunks::<16>().0) {
            line.0 = words.map(f32::to_bits);
        }
    }
}

impl Kernel for ExpertsInner {
    fn run(&self, job: &Job<'_>) {
        let (isa, top) = (job.step.isa, self.route.cols / 2);
        let ffn = self.out.cols / top;
        // SAFETY: scratch is used here only.
        let Scratch { lines, encoded, block, order, .. } = unsafe { job.scratch() };
        let groups = group(job, self.route, self.gate.len(), order);
        let share = job.worker.share(ffn.div_ceil(PANEL_ROWS));
        if share.is_empty() {
            return;
        }
        let (gates, ups) = block.split_at_mut(ROWS * ffn);
        for (e, (gate, up)) in self.gate.iter().zip(&self.up).enumerate() {
            for rows in groups.of(e).chunks(ROWS) {
                let mut both = |i: usize, weight: &Weight, block: &mut [f32]| {
                    let (input, encoding) = self.inputs[i];
                    gather(job, input, rows, top, encoded);
                    let tokens = rows.len();
                    Gathered { encoding, input: encoded, tokens }.product(
                        isa,
                        weight,
                        share.clone(),
                        block,
                        lines,
                    )
                };
                let cols = both(0, gate, gates);
                both(1, up, ups);
                for (r, &row) in rows.iter().enumerate() {
                    let at = r * ffn + cols.start..r * ffn + cols.end;
                    let gate = &mut gates[at.clone()];
                    combine(isa, gate, &ups[at], self.act);
                    let start = self.out.start + row as usize % top * ffn + cols.start;
                    let view = Cols { start, cols: cols.len(), ..self.out };
                    // SAFETY: these columns are this worker's.
                    unsafe { job.write(view, row as usize / top) }.copy_from_slice(gate);
                }
            }
        }
    }
}

/// `out[slot] = down[e](inner[slot])`, divided by panels.
#[derive(Debug)]
pub(crate) struct ExpertsDown {
    pub route: Cols,
    pub down: Vec<Arc<Weight>>,
    /// [tokens, top × ffn]
    pub inner: Cols,
    pub encoding: Encoding,
    /// [tokens, top × hidden]
    pub out: Cols,
}

impl Kernel for ExpertsDown {
    fn run(&self, job: &Job<'_>) {
        let (isa, top) = (job.step.isa, self.route.cols / 2);
        let (ffn, hidden) = (self.inner.cols / top, self.out.cols / top);
        // SAFETY: scratch is used here only.
        let Scratch { lines, encoded, block, order, .. } = unsafe { job.scratch() };
        let groups = group(job, self.route, self.down.len(), order);
        let share = job.worker.share(hidden.div_ceil(PANEL_ROWS));
        if share.is_empty() {
            return;
        }
        for (e, down) in self.down.iter().enumerate() {
            for rows in groups.of(e).chunks(ROWS) {
                let each = self.encoding.lines(ffn);
                for (&row, to) in rows.iter().zip(encoded.chunks_exact_mut(each)) {
                    let start = self.inner.start + row as usize % top * ffn;
                    let view = Cols { start, cols: ffn, ..self.inner };
                    self.encoding.encode(isa, job.read(view, row as usize / top), to);
                }
                let (encoding, tokens) = (self.encoding, rows.len());
                let gathered = Gathered { encoding, input: encoded, tokens };
                let cols = gathered.product(isa, down, share.clone(), block, lines);
                for (r, &row) in rows.iter().enumerate() {
                    let start = self.out.start + row as usize % top * hidden + cols.start;
                    let view = Cols { start, cols: cols.len(), ..self.out };
                    let result = &block[r * hidden..][cols.clone()];
                    // SAFETY: these columns are this worker's.
                    unsafe { job.write(view, row as usize / top) }.copy_from_slice(result);
                }
            }
        }
    }
}

/// `out = Σ_slot w[slot] · y[slot]`, in slot order.
#[derive(Debug)]
pub(crate) struct Mix {
    pub route: Cols,
    pub slots: Cols,
    pub out: Cols,
}

impl Kernel for Mix {
    fn run(&self, job: &Job<'_>) {
        for r in job.rows(RowKind::Tokens) {
            // SAFETY: by rows.
            let out = unsafe { job.write(self.out, r) };
            out.fill(0.0);
            let weights = &job.read(self.route, r)[self.route.cols / 2..];
            let slots = job.read(self.slots, r);
            for (w, slot) in weights.iter().zip(slots.chunks_exact(out.len())) {
                out.iter_mut().zip(slot).for_each(|(o, y)| *o += w * y);
            }
        }
    }
}

//! Routing tokens to experts, and the experts: tokens are gathered by expert; workers divide the
//! rows of all used experts' matrices.
//!
//! Numerics: NUMERICS.md, "Experts".

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::panel::PANEL_ROWS;
use crate::step::{Cols, Job, Kernel, NARROW, Scratch};
use tokenmill_ir::{GateAct, GroupRule, RouteRule, RouteScore, Rows as RowKind};

use super::linear::{combine, lines_mut, lines_of};
use crate::isa::Isa;
use crate::linear::{Encoding, Line, LinearJob, OutView, linear};
use crate::math::{exp, sigmoid};
use crate::weight::Weight;

/// Slots of one expert that are computed together.
pub(crate) const SLOTS: usize = 128;
/// Panels of a matrix whose results for these slots are held together.
pub(crate) const PANELS: usize = 32;
/// Pieces of work a worker should find, so that all end at about the same time.
const PIECES: usize = 4;

/// Chooses experts from router logits.
#[derive(Debug)]
pub(crate) struct Route {
    pub logits: Cols,
    pub rule: RouteRule,
    /// Added to scores for the choice; empty: zeros.
    pub choice_bias: Vec<f32>,
    /// Of each expert; empty: 1.
    pub gains: Vec<f32>,
    pub out: Cols,
}

impl Route {
    /// f32 of scratch: scores, choices, totals of groups.
    pub fn needs(&self) -> usize {
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

/// Puts experts outside the best groups at −∞. A group counts its best score or two.
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
        *total = if size > 1 && rule.best > 1 { first + second } else { first };
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
                unsafe { (job.write(self.out, r), &mut job.scratch().row[..self.needs()]) };
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
            if !self.gains.is_empty() {
                let gains = ids.iter().map(|id| self.gains[*id as usize]);
                weights.iter_mut().zip(gains).for_each(|(w, gain)| *w *= gain);
            }
        }
    }
}

/// Which tokens go to which expert.
pub(crate) struct Groups<'a> {
    /// Ends of the experts' runs in `slots`.
    ends: &'a [u32],
    /// Token · top + number among the token's choices: by expert, then by token.
    slots: &'a [u32],
    /// Experts that are used, those with most tokens first.
    used: &'a [u32],
}

impl<'a> Groups<'a> {
    /// Numbers of scratch for that many experts and slots.
    pub fn needs(experts: usize, slots: usize) -> usize {
        2 * experts + slots
    }

    /// Sorts the choices of all tokens by expert.
    fn new(job: &Job<'_>, route: Cols, experts: usize, room: &'a mut [u32]) -> Self {
        let top = route.cols / 2;
        let count = job.count(RowKind::Tokens) * top;
        let (ends, room) = room.split_at_mut(experts);
        let (used, slots) = room.split_at_mut(experts);
        let slots = &mut slots[..count];
        let expert = |i: usize| (job.read(route, i / top)[i % top] as usize).min(experts - 1);
        ends.fill(0);
        for i in 0..count {
            ends[expert(i)] += 1;
        }
        let mut n = 0;
        for e in (0..experts).filter(|&e| ends[e] > 0) {
            used[n] = e as u32;
            n += 1;
        }
        used[..n].sort_unstable_by_key(|&e| (std::cmp::Reverse(ends[e as usize]), e));
        let mut start = 0;
        for end in ends.iter_mut() {
            start += std::mem::replace(end, start);
        }
        for i in 0..count {
            let at = &mut ends[expert(i)];
            slots[*at as usize] = i as u32;
            *at += 1;
        }
        Groups { ends, slots, used: &used[..n] }
    }

    /// The slots of an expert.
    fn of(&self, expert: usize) -> &'a [u32] {
        let start = if expert == 0 { 0 } else { self.ends[expert - 1] };
        &self.slots[start as usize..self.ends[expert] as usize]
    }

    /// Calls `work` with an expert and some of its `panels`, until all workers together have
    /// done every one that is used.
    ///
    /// With few tokens the panels of all used experts are one row of them, of which each worker
    /// has an equal share. With many, workers take whole experts as they come (or parts, where
    /// experts are few). Panels that are `together` are never cut.
    fn divide(
        &self,
        job: &Job<'_>,
        (panels, together): (usize, usize),
        counter: usize,
        mut work: impl FnMut(usize, Range<usize>),
    ) {
        let each = together.max(2);
        let (used, pairs) = (self.used.len(), panels.div_ceil(each));
        let mut some = |i: usize, pairs: Range<usize>| {
            work(self.used[i] as usize, each * pairs.start..(each * pairs.end).min(panels));
        };
        if job.count(RowKind::Tokens) <= NARROW {
            let share = job.worker.share(used * pairs);
            for i in 0..used {
                let (start, end) = (share.start.max(i * pairs), share.end.min((i + 1) * pairs));
                if start < end {
                    some(i, start - i * pairs..end - i * pairs);
                }
            }
            return;
        }
        let cuts = (PIECES * job.worker.count()).div_ceil(used.max(1)).min(pairs);
        loop {
            let next = job.step.counters[counter].fetch_add(1, Ordering::Relaxed);
            let (i, cut) = (next / cuts, next % cuts);
            if i >= used {
                break;
            }
            some(i, cut * pairs / cuts..(cut + 1) * pairs / cuts);
        }
    }
}

/// Rows of lines of some slots: where they are if it is one, else brought together in `room`.
fn gather<'a>(
    job: &Job<'a>,
    slots: &[u32],
    row_of: impl Fn(usize) -> (Cols, usize),
    room: &'a mut [Line],
) -> &'a [Line] {
    let row = |slot: u32| {
        let (view, row) = row_of(slot as usize);
        lines_of(job.read(view, row))
    };
    if let [slot] = *slots {
        return row(slot);
    }
    let mut len = 0;
    for &slot in slots {
        let lines = row(slot);
        room[len..len + lines.len()].copy_from_slice(lines);
        len += lines.len();
    }
    &room[..len]
}

/// A product of gathered rows.
#[derive(Clone, Copy)]
struct Gathered<'a> {
    isa: Isa,
    encoding: Encoding,
    input: &'a [Line],
    slots: usize,
}

impl Gathered<'_> {
    /// Some panels of a weight with one run of them, into `block` `[slots, columns]`.
    fn product(
        &self,
        weight: &Weight,
        panels: Range<usize>,
        block: &mut [f32],
        scratch: &mut [Line],
    ) {
        let run = &weight.panels()[0];
        let (size, first) = (run.spec.panel_bytes(), panels.start * PANEL_ROWS);
        let spec = run.spec.part(panels.clone());
        let work = LinearJob {
            spec,
            weights: &run.bytes()[panels.start * size..panels.end * size],
            panels: 0..spec.panels(),
            encoding: self.encoding,
            input: self.input,
            tokens: self.slots,
            out: OutView::new(block, spec.rows()),
            prefetch: None,
        };
        // SAFETY: the block is this worker's own.
        unsafe { linear(self.isa, &work, scratch) };
        if weight.has_after() {
            block.chunks_exact_mut(spec.rows()).for_each(|row| weight.after(first, row));
        }
    }
}

/// Panels `all`, so many at a time that results of many slots stay in the cache, with the columns
/// they give in a result of `rows`.
fn blocks(all: Range<usize>, rows: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    all.clone().step_by(PANELS).map(move |first| {
        let panels = first..(first + PANELS).min(all.end);
        let cols = panels.start * PANEL_ROWS..(panels.end * PANEL_ROWS).min(rows);
        (panels, cols)
    })
}

/// `inner[slot] = act(gate[e](x), up[e](x))` for the chosen experts.
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
    /// Work counter.
    pub counter: usize,
    /// Panels of a matrix that lie together, at most [`PANELS`].
    pub together: usize,
    /// Stored bytes of one expert, all three matrices.
    pub expert_bytes: u64,
}

impl Kernel for ExpertsInner {
    fn run(&self, job: &Job<'_>) {
        let (isa, top) = (job.step.isa, self.route.cols / 2);
        let ffn = self.out.cols / top;
        // SAFETY: scratch is used here only.
        let Scratch { lines, encoded, block, order, .. } = unsafe { job.scratch() };
        let groups = Groups::new(job, self.route, self.gate.len(), order);
        if job.worker.index() == 0 {
            job.step.experts.count(groups.used.len() as u64, self.expert_bytes);
        }
        let (first, second) = encoded.split_at_mut(SLOTS * self.inputs[0].0.cols / 16);
        let (gates, ups) = block.split_at_mut(SLOTS * PANELS * PANEL_ROWS);
        groups.divide(job, (ffn.div_ceil(PANEL_ROWS), self.together), self.counter, |e, panels| {
            for slots in groups.of(e).chunks(SLOTS) {
                let row = |i: usize| move |slot: usize| (self.inputs[i].0, slot / top);
                let gathered = |i: usize, input| {
                    let (encoding, slots) = (self.inputs[i].1, slots.len());
                    Gathered { isa, encoding, input, slots }
                };
                let gate = gathered(0, gather(job, slots, row(0), first));
                let up = match self.inputs[0] == self.inputs[1] {
                    true => gate,
                    false => gathered(1, gather(job, slots, row(1), second)),
                };
                for (panels, cols) in blocks(panels.clone(), ffn) {
                    let gates = &mut gates[..slots.len() * cols.len()];
                    let ups = &mut ups[..slots.len() * cols.len()];
                    gate.product(&self.gate[e], panels.clone(), gates, lines);
                    up.product(&self.up[e], panels, ups, lines);
                    combine(isa, gates, ups, self.act);
                    // SAFETY: these columns of these slots are this worker's.
                    unsafe { put(job, self.out, top, slots, cols, gates) };
                }
            }
        });
    }
}

/// Puts rows of `block` into columns `cols` of slots: `out` is `[tokens, top × …]`.
///
/// # Safety
/// Nobody else uses these columns of these slots.
unsafe fn put(
    job: &Job<'_>,
    out: Cols,
    top: usize,
    slots: &[u32],
    cols: Range<usize>,
    block: &[f32],
) {
    for (&slot, row) in slots.iter().zip(block.chunks_exact(cols.len())) {
        let (token, choice) = (slot as usize / top, slot as usize % top);
        let start = out.start + choice * (out.cols / top) + cols.start;
        // SAFETY: by contract.
        unsafe { job.write(Cols { start, cols: cols.len(), ..out }, token) }.copy_from_slice(row);
    }
}

/// Encodes the inner rows of all slots for the down products.
#[derive(Debug)]
pub(crate) struct EncodeSlots {
    /// [tokens, top × ffn]
    pub inner: Cols,
    pub top: usize,
    pub encoding: Encoding,
    /// Lines as f32 words. [tokens, top × lines]
    pub out: Cols,
}

impl Kernel for EncodeSlots {
    fn run(&self, job: &Job<'_>) {
        let ffn = self.inner.cols / self.top;
        for r in job.rows(RowKind::Tokens) {
            // SAFETY: by rows.
            let lines = lines_mut(unsafe { job.write(self.out, r) });
            let slots = job.read(self.inner, r).chunks_exact(ffn);
            for (x, lines) in slots.zip(lines.chunks_exact_mut(self.encoding.lines(ffn))) {
                self.encoding.encode(job.step.isa, x, lines);
            }
        }
    }
}

/// `out[slot] = down[e](inner[slot])`.
#[derive(Debug)]
pub(crate) struct ExpertsDown {
    pub route: Cols,
    pub down: Vec<Arc<Weight>>,
    /// Encoded inner rows and their encoding. [tokens, top × lines]
    pub input: (Cols, Encoding),
    /// [tokens, top × hidden]
    pub out: Cols,
    /// Work counter.
    pub counter: usize,
    /// Panels of a matrix that lie together, at most [`PANELS`].
    pub together: usize,
}

impl Kernel for ExpertsDown {
    fn run(&self, job: &Job<'_>) {
        let (isa, top) = (job.step.isa, self.route.cols / 2);
        let hidden = self.out.cols / top;
        let (input, encoding) = self.input;
        let words = input.cols / top;
        // SAFETY: scratch is used here only.
        let Scratch { lines, encoded, block, order, .. } = unsafe { job.scratch() };
        let groups = Groups::new(job, self.route, self.down.len(), order);
        groups.divide(
            job,
            (hidden.div_ceil(PANEL_ROWS), self.together),
            self.counter,
            |e, panels| {
                for slots in groups.of(e).chunks(SLOTS) {
                    let row = |slot: usize| {
                        let start = input.start + slot % top * words;
                        (Cols { start, cols: words, ..input }, slot / top)
                    };
                    let rows = gather(job, slots, row, encoded);
                    let gathered = Gathered { isa, encoding, input: rows, slots: slots.len() };
                    for (panels, cols) in blocks(panels.clone(), hidden) {
                        let block = &mut block[..slots.len() * cols.len()];
                        gathered.product(&self.down[e], panels, block, lines);
                        // SAFETY: these columns of these slots are this worker's.
                        unsafe { put(job, self.out, top, slots, cols, block) };
                    }
                }
            },
        );
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

//! Embedding rows, rows in the place of tokens, rows with an output, pooling.

use std::sync::Arc;

use tokenmill_ir::{PoolKind, Rows as RowKind, TokenSource};

use crate::math::{inverse_sqrt, sum};
use crate::step::{Cols, Job, Kernel};
use crate::weight::Weight;

/// The row of `cols` numbers that stands in the place of the token of row `r`, if one does.
fn given<'a>(job: &Job<'a>, r: usize, cols: usize) -> Option<&'a [f32]> {
    match job.step.batch.tokens[r] {
        TokenSource::Embedding(row) => {
            Some(&job.step.batch.embeddings[row as usize * cols..][..cols])
        }
        _ => None,
    }
}

/// `scale · table[token] (+ positions[p]) (+ token_types[t])`, or a row in the place of a token.
#[derive(Debug)]
pub(crate) struct Embed {
    pub table: Arc<Weight>,
    pub scale: f32,
    pub positions: Option<Arc<Weight>>,
    pub token_types: Option<Arc<Weight>>,
    pub input_cols: usize,
    pub out: Cols,
}

impl Kernel for Embed {
    fn run(&self, job: &Job<'_>) {
        for r in job.rows(RowKind::Tokens) {
            // SAFETY: by rows; scratch is used here only.
            let (out, scratch) = unsafe { (job.write(self.out, r), job.scratch()) };
            match given(job, r, self.input_cols) {
                Some(row) => out.copy_from_slice(&row[..out.len()]),
                None => {
                    self.table.row(job.step.ids[r] as usize, out);
                    out.iter_mut().for_each(|x| *x *= self.scale);
                }
            }
            let position = job.step.batch.positions[r] as usize;
            let last = self.token_types.as_ref().map_or(0, |t| t.rows.saturating_sub(1));
            let kind = (job.step.batch.token_type(r) as usize).min(last);
            for (table, row) in [(&self.positions, position), (&self.token_types, kind)] {
                let Some(table) = table else { continue };
                let extra = &mut scratch.row[..out.len()];
                table.row(row, extra);
                out.iter_mut().zip(extra).for_each(|(x, add)| *x += *add);
            }
        }
    }
}

/// Columns of the rows that stand in the place of tokens.
#[derive(Debug)]
pub(crate) struct Input {
    pub input_cols: usize,
    pub start: usize,
    pub out: Cols,
}

impl Kernel for Input {
    fn run(&self, job: &Job<'_>) {
        for r in job.rows(RowKind::Tokens) {
            // SAFETY: by rows.
            let out = unsafe { job.write(self.out, r) };
            match given(job, r, self.input_cols) {
                Some(row) => out.copy_from_slice(&row[self.start..][..out.len()]),
                None => out.fill(0.0),
            }
        }
    }
}

/// `Σ w[i] · table[id[i]]`.
#[derive(Debug)]
pub(crate) struct Gather {
    pub x: Cols,
    pub table: Arc<Weight>,
    pub out: Cols,
}

impl Kernel for Gather {
    fn run(&self, job: &Job<'_>) {
        let last = self.table.rows.saturating_sub(1);
        for r in job.rows(RowKind::Tokens) {
            // SAFETY: by rows; scratch is used here only.
            let (out, scratch) = unsafe { (job.write(self.out, r), job.scratch()) };
            let (ids, weights) = job.read(self.x, r).split_at(self.x.cols / 2);
            let row = &mut scratch.row[..out.len()];
            out.fill(0.0);
            for (id, weight) in ids.iter().zip(weights).filter(|(_, weight)| **weight != 0.0) {
                self.table.row((*id as usize).min(last), row);
                out.iter_mut().zip(&*row).for_each(|(o, x)| *o += weight * x);
            }
        }
    }
}

/// Token rows that have an output, each with the `run − 1` after it.
#[derive(Debug)]
pub(crate) struct TakeRows {
    pub x: Cols,
    pub run: usize,
    pub out: Cols,
}

impl Kernel for TakeRows {
    fn run(&self, job: &Job<'_>) {
        for r in job.rows(RowKind::Outputs) {
            let row = job.step.batch.outputs[r].row as usize;
            // SAFETY: by rows.
            let out = unsafe { job.write(self.out, r) };
            for (i, out) in out.chunks_exact_mut(self.x.cols).take(self.run).enumerate() {
                out.copy_from_slice(job.read(self.x, row + i));
            }
        }
    }
}

/// One vector an output row: that of the span around it.
#[derive(Debug)]
pub(crate) struct Pool {
    pub x: Cols,
    pub kind: PoolKind,
    pub normalise: bool,
    pub out: Cols,
}

impl Kernel for Pool {
    fn run(&self, job: &Job<'_>) {
        for r in job.rows(RowKind::Outputs) {
            let row = job.step.batch.outputs[r].row;
            let around = |s: &&tokenmill_ir::Span| (s.first..s.first + s.len).contains(&row);
            let Some(span) = job.step.batch.spans.iter().find(around) else { continue };
            let (first, last) = (span.first as usize, (span.first + span.len) as usize - 1);
            // SAFETY: by rows; scratch is used here only.
            let (out, scratch) = unsafe { (job.write(self.out, r), job.scratch()) };
            let from = if self.kind == PoolKind::Last { last } else { first };
            out.copy_from_slice(job.read(self.x, from));
            if self.kind == PoolKind::Mean {
                for row in first + 1..=last {
                    out.iter_mut().zip(job.read(self.x, row)).for_each(|(o, x)| *o += x);
                }
                out.iter_mut().for_each(|o| *o /= span.len as f32);
            }
            if self.normalise {
                let squares = &mut scratch.row[..out.len()];
                squares.iter_mut().zip(&*out).for_each(|(s, o)| *s = o * o);
                let square = sum(job.step.isa, squares);
                let factor = if square > 0.0 { inverse_sqrt(square) } else { 0.0 };
                out.iter_mut().for_each(|o| *o *= factor);
            }
        }
    }
}

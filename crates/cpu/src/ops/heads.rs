//! One small product a head.

use std::sync::Arc;

use crate::panel::{PANEL_ROWS, PanelSpec};
use crate::step::{Cols, Job, Kernel};

use crate::linear::{Encoding, LinearJob, OutView, linear};
use crate::ops::linear::in_order;
use crate::weight::Weight;

/// Rows of a product taken at once from scratch memory.
pub(crate) const ROWS: usize = 32;

/// Rows `first .. first + rows` of a weight as whole panels.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// First byte and shape of the panels around them.
    start: usize,
    spec: PanelSpec,
    /// Rows of the panels before the first one wanted.
    skip: usize,
}

/// `out[h] = x[h] · weight[h]ᵀ`, divided by heads. The weight has one run of panels.
#[derive(Debug)]
pub(crate) struct HeadLinear {
    x: Cols,
    weight: Arc<Weight>,
    encoding: Encoding,
    pieces: Vec<Piece>,
    out: Cols,
}

impl HeadLinear {
    /// `None` if the weight is not one run of panels.
    pub fn new(
        x: Cols,
        weight: Arc<Weight>,
        heads: usize,
        mode: crate::Mode,
        out: Cols,
    ) -> Option<Self> {
        let [panels] = weight.panels() else { return None };
        let spec = panels.spec;
        let rows = out.cols / heads;
        let piece = |h: usize| {
            let (first, end) = (h * rows / PANEL_ROWS, ((h + 1) * rows).div_ceil(PANEL_ROWS));
            let all = (spec.rows() - first * PANEL_ROWS).min((end - first) * PANEL_ROWS);
            let around = spec.of_rows(all);
            let start = first * spec.panel_bytes();
            Piece { start, spec: around, skip: h * rows - first * PANEL_ROWS }
        };
        let pieces = (0..heads).map(piece).collect();
        let encoding = Encoding::of(spec.layout(), mode);
        Some(Self { x, encoding, pieces, out, weight })
    }

    /// Lines of encoded rows, f32 of results that a worker needs at a time; the largest piece.
    pub fn needs(&self) -> (usize, usize, Option<PanelSpec>) {
        let lines = self.pieces.first().map_or(0, |p| self.encoding.lines(p.spec.cols()));
        let rows = self.pieces.iter().map(|p| p.spec.rows()).max().unwrap_or(0);
        let spec = self.pieces.iter().map(|p| p.spec).max_by_key(PanelSpec::bytes);
        (ROWS * lines, ROWS * rows, spec)
    }

    /// One head of rows `first .. first + count`.
    fn run_rows(&self, job: &Job<'_>, h: usize, first: usize, count: usize) {
        let piece = &self.pieces[h];
        let (isa, spec) = (job.step.isa, piece.spec);
        let panels = &self.weight.panels()[0];
        // SAFETY: scratch is used here only.
        let scratch = unsafe { job.scratch() };
        let lines = self.encoding.lines(spec.cols());
        let input = &mut scratch.encoded[..count * lines];
        for (r, line) in input.chunks_exact_mut(lines).enumerate() {
            let head = Cols { start: self.x.start + h * spec.cols(), cols: spec.cols(), ..self.x };
            let x = in_order(job.read(head, first + r), panels.order.as_deref(), &mut scratch.row);
            self.encoding.encode(isa, x, line);
        }
        let results = &mut scratch.block[..count * spec.rows()];
        let work = LinearJob {
            spec,
            weights: &panels.bytes()[piece.start..][..spec.bytes()],
            panels: 0..spec.panels(),
            encoding: self.encoding,
            input,
            tokens: count,
            out: OutView::new(results, spec.rows()),
            prefetch: None,
        };
        // SAFETY: the results are this worker's own.
        unsafe { linear(isa, &work, &mut scratch.lines) };
        let rows = self.out.cols / self.pieces.len();
        for (r, result) in scratch.block.chunks_exact(spec.rows()).take(count).enumerate() {
            let view = Cols { start: self.out.start + h * rows, cols: rows, ..self.out };
            // SAFETY: this head is this worker's.
            let out = unsafe { job.write(view, first + r) };
            out.copy_from_slice(&result[piece.skip..][..rows]);
            self.weight.after(h * rows, out);
        }
    }
}

impl Kernel for HeadLinear {
    fn run(&self, job: &Job<'_>) {
        let count = job.count(job.kind(self.out.region));
        for h in job.worker.share(self.pieces.len()) {
            for first in (0..count).step_by(ROWS) {
                self.run_rows(job, h, first, ROWS.min(count - first));
            }
        }
    }
}

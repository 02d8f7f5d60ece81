//! The linear layer in plain Rust: the definition of every result.

use crate::panel::{BLOCK_COLS, Lane, PANEL_ROWS, PanelLayout, bf16_at};
use tokenmill_quant::float::{bf16_to_f32, f16_to_f32, rounded_factor};

use super::encode::{SCALE, residual_lines};
use super::{Encoding, Line, LinearJob};

/// Tokens that share the unpacking of a weight.
const TOKENS: usize = 8;

/// Computes a job.
///
/// # Safety
/// As [`super::linear`]; `job.check()` has passed.
pub(super) unsafe fn linear(job: &LinearJob<'_>) {
    let lines = job.encoding.lines(job.spec.cols());
    for p in job.panels.clone() {
        let bytes = job.spec.panel_bytes();
        let panel = &job.weights[p * bytes..][..bytes];
        for lane in 0..job.rows_of_panel(p) {
            for first in (0..job.tokens).step_by(TOKENS) {
                let tokens = TOKENS.min(job.tokens - first);
                let rows = &job.input[first * lines..][..tokens * lines];
                let y = match job.encoding {
                    encoding if encoding.is_bytes() => dot_bytes(job, panel, lane, rows),
                    _ => dot_floats(job, panel, lane, rows),
                };
                for (t, y) in y.into_iter().enumerate().take(tokens) {
                    let at = (first + t) * job.out.stride + p * PANEL_ROWS + lane;
                    assert!(at < job.out.len);
                    // SAFETY: inside the output, and the caller keeps others away from it.
                    unsafe { job.out.start.add(at).write(y) };
                }
            }
        }
    }
}

/// One row of the weight on up to 8 tokens by the int8 chain.
fn dot_bytes(job: &LinearJob<'_>, panel: &[u8], lane: usize, rows: &[Line]) -> [f32; TOKENS] {
    let layout = job.spec.layout();
    let lines = job.encoding.lines(job.spec.cols());
    let blocks = job.spec.cols() / BLOCK_COLS;
    // Of first and of residual lines.
    let mut acc = [[0.0_f32; 2]; TOKENS];
    for b in 0..blocks {
        let weights = job.spec.lane(panel, b, lane);
        for ([first, second], row) in acc.iter_mut().zip(rows.chunks_exact(lines)) {
            *first = add_block(layout, &weights, &row[b], *first);
            if row[blocks + b / 512].0[b / 32 % 16] >> (b % 32) & 1 == 1 {
                *second = add_block(layout, &weights, &row[residual_lines(blocks) + b], *second);
            }
        }
    }
    acc.map(|[first, second]| first + second + 0.0)
}

/// The steps of one block on one line.
fn add_block(layout: PanelLayout, weights: &Lane, Line(words): &Line, mut acc: f32) -> f32 {
    let scale = f32::from_bits(words[SCALE]);
    let mut products = [0; BLOCK_COLS];
    for (k, (product, code)) in products.iter_mut().zip(weights.codes).enumerate() {
        let a = words[k / 4].to_le_bytes()[k % 4] as i8;
        *product = (i32::from(code) - i32::from(weights.zero)) * i32::from(a);
    }
    let scale_cols = layout.scale_cols();
    for (i, products) in products.chunks(scale_cols).enumerate() {
        let isum: i32 = products.iter().sum();
        acc = (scale * isum as f32).mul_add(weights.scales[i], acc);
        if layout.has_min() {
            let bytes = words[i * scale_cols / 4..][..scale_cols / 4].iter();
            let sum: i32 = bytes.flat_map(|w| w.to_le_bytes()).map(|a| i32::from(a as i8)).sum();
            acc = (scale * sum as f32).mul_add(weights.mins[i], acc);
        }
    }
    acc
}

/// One row of the weight on up to 8 tokens by the f32 and bf16 chains.
fn dot_floats(job: &LinearJob<'_>, panel: &[u8], lane: usize, rows: &[Line]) -> [f32; TOKENS] {
    let cols = job.spec.cols();
    let lines = job.encoding.lines(cols);
    let mut acc = [0.0_f32; TOKENS];
    for first in (0..cols).step_by(BLOCK_COLS) {
        let mut w = [0.0; BLOCK_COLS];
        let w = &mut w[..BLOCK_COLS.min(cols - first)];
        weights_of_block(job, panel, lane, first, w);
        for (acc, row) in acc.iter_mut().zip(rows.chunks_exact(lines)) {
            let x = row[first / 16..].iter().flat_map(|line| line.0).map(f32::from_bits);
            *acc = w.iter().zip(x).fold(*acc, |acc, (w, x)| w.mul_add(x, acc));
        }
    }
    acc
}

/// Weights of columns `first ..` of one row, rounded if the arithmetic is bf16.
fn weights_of_block(job: &LinearJob<'_>, panel: &[u8], lane: usize, first: usize, out: &mut [f32]) {
    let half = |at: usize| u16::from_le_bytes([panel[at], panel[at + 1]]);
    let layout = job.spec.layout();
    if layout.group().is_some() {
        let weights = job.spec.lane(panel, first / BLOCK_COLS, lane).weights();
        out.copy_from_slice(&weights[..out.len()]);
    } else {
        for (k, out) in (first..).zip(&mut *out) {
            let at = k * PANEL_ROWS + lane;
            *out = match layout {
                PanelLayout::Bf16 => bf16_to_f32(half(bf16_at(k, lane))),
                PanelLayout::F16 => f16_to_f32(half(2 * at)),
                _ => f32::from_bits(u32::from(half(4 * at)) | u32::from(half(4 * at + 2)) << 16),
            };
        }
    }
    if job.encoding == Encoding::Bf16 {
        for w in out {
            *w = rounded_factor(*w);
        }
    }
}

//! The linear layer in plain Rust: the definition of every result.

use tokenmill_quant::float::{bf16_to_f32, f16_to_f32, f32_to_bf16};
use tokenmill_quant::panel::{BLOCK_COLS, PANEL_ROWS, PanelLayout};

use super::encode::{SCALE, SUM};
use super::{Encoding, Line, LinearJob};

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
            for t in 0..job.tokens {
                let row = &job.input[t * lines..][..lines];
                let y = match job.encoding {
                    Encoding::Int8 => dot_bytes(job, panel, lane, row),
                    Encoding::F32 | Encoding::Bf16 => dot_floats(job, panel, lane, row),
                };
                let at = t * job.out.stride + p * PANEL_ROWS + lane;
                assert!(at < job.out.len);
                // SAFETY: inside the output, and the caller keeps others away from it.
                unsafe { job.out.start.add(at).write(y) };
            }
        }
    }
}

/// One output of the int8 chain.
fn dot_bytes(job: &LinearJob<'_>, panel: &[u8], lane: usize, row: &[Line]) -> f32 {
    let layout = job.spec.layout();
    let mut acc = 0.0_f32;
    for (b, Line(words)) in row[..job.spec.cols() / BLOCK_COLS].iter().enumerate() {
        let weights = job.spec.lane(panel, b, lane);
        let scale = f32::from_bits(words[SCALE]);
        let mut products = [0; BLOCK_COLS];
        for (k, (product, code)) in products.iter_mut().zip(weights.codes).enumerate() {
            let a = words[k / 4].to_le_bytes()[k % 4] as i8;
            *product = (i32::from(code) - i32::from(weights.zero)) * i32::from(a);
        }
        for part in products.chunks(layout.scale_cols()).zip(weights.scales) {
            let isum: i32 = part.0.iter().sum();
            acc = (scale * isum as f32).mul_add(part.1, acc);
        }
        if layout.has_min() {
            acc = f32::from_bits(words[SUM]).mul_add(weights.min, acc);
        }
    }
    acc
}

/// One output of the f32 and bf16 chains.
fn dot_floats(job: &LinearJob<'_>, panel: &[u8], lane: usize, row: &[Line]) -> f32 {
    let cols = job.spec.cols();
    let x = row.iter().flat_map(|line| line.0).map(f32::from_bits);
    let round = |w: f32| match job.encoding {
        Encoding::Bf16 => bf16_to_f32(f32_to_bf16(w)),
        _ => w,
    };
    let half = |at: usize| u16::from_le_bytes([panel[at], panel[at + 1]]);
    let weight = |k: usize| match job.spec.layout() {
        PanelLayout::Bf16 => bf16_to_f32(half((k / 2 * PANEL_ROWS + lane) * 4 + k % 2 * 2)),
        PanelLayout::F16 => f16_to_f32(half((k * PANEL_ROWS + lane) * 2)),
        PanelLayout::F32 => {
            let at = (k * PANEL_ROWS + lane) * 4;
            f32::from_le_bytes([panel[at], panel[at + 1], panel[at + 2], panel[at + 3]])
        }
        _ => {
            let b = job.spec.lane(panel, k / BLOCK_COLS, lane);
            let k = k % BLOCK_COLS;
            (f32::from(b.codes[k]) - f32::from(b.zero)) * b.scales[k / 16] + b.min
        }
    };
    (0..cols).zip(x).fold(0.0, |acc, (k, x)| round(weight(k)).mul_add(x, acc))
}

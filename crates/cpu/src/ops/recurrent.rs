//! The convolution along tokens, divided by channels, and what recurrences have in common.
//!
//! Numerics: NUMERICS.md, "Recurrences".

use std::ops::Range;

use tokenmill_ir::{Act, BlockId, Span};

use super::linear::activate;
use crate::caches::Cache;
use crate::isa::Isa;
use crate::math::exp;
use crate::step::{Cols, Job, Kernel};

/// Slot to read (`NONE`: zeros) and slot to write of a span.
pub(super) fn slots(job: &Job<'_>, span: &Span, cache: &Cache) -> (BlockId, BlockId) {
    let table = job.table(span, cache);
    (table[0], table[1])
}

/// Brings numbers `range` of a span's state to its write slot and gives them, to change.
///
/// # Safety
/// This worker alone uses `range` of both slots.
#[allow(clippy::mut_from_ref)]
pub(super) unsafe fn state(
    cache: &Cache,
    slots: (BlockId, BlockId),
    range: Range<usize>,
) -> &mut [f32] {
    let (read, write) = slots;
    // SAFETY: by contract; the two slots are different here.
    unsafe {
        let to = cache.state(write, range.clone());
        if read == BlockId::NONE {
            to.fill(0.0);
        } else if read != write {
            to.copy_from_slice(cache.state(read, range));
        }
        to
    }
}

/// `ln(1 + e^x)`.
pub(super) fn softplus(x: f32) -> f32 {
    let small = tokenmill_ir::math::ln(1.0 + f64::from(exp(-x.abs())));
    if x.is_nan() { x } else { (f64::from(if x > 0.0 { x } else { 0.0 }) + small) as f32 }
}

/// Depthwise causal convolution, divided by channels.
#[derive(Debug)]
pub(crate) struct Conv {
    pub x: Cols,
    /// [kernel, channels]
    pub taps: Vec<f32>,
    pub kernel: usize,
    /// [channels]; empty: zeros
    pub bias: Vec<f32>,
    pub act: Option<Act>,
    pub cache: usize,
    pub out: Cols,
}

impl Conv {
    fn span(&self, job: &Job<'_>, span: &Span, channels: &Range<usize>) {
        let cache = &job.step.caches[self.cache];
        let (all, kept) = (self.x.cols, self.kernel - 1);
        let (first, len) = (span.first as usize, span.len as usize);
        let slots = slots(job, span, cache);
        // Row j of the tail, these channels only.
        let tail = |j: usize| {
            let range = j * all + channels.start..j * all + channels.end;
            // SAFETY: these channels are this worker's.
            unsafe { state(cache, slots, range) }
        };
        let of = |v: Cols| Cols { start: v.start + channels.start, cols: channels.len(), ..v };
        for j in 0..kept {
            tail(j); // from the slot that is read to the one that is written
        }
        let held = (slots.1, slots.1);
        let past = |j: usize| {
            let range = j * all + channels.start..j * all + channels.end;
            // SAFETY: as above.
            unsafe { state(cache, held, range) }
        };
        for i in 0..len {
            // SAFETY: these channels are this worker's.
            let out = unsafe { job.write(of(self.out), first + i) };
            match self.bias.get(channels.clone()) {
                Some(bias) => out.copy_from_slice(bias),
                None => out.fill(0.0),
            }
            for j in 0..self.kernel {
                let taps = &self.taps[j * all..][channels.clone()];
                if i + j >= kept {
                    multiply_add(
                        job.step.isa,
                        out,
                        taps,
                        job.read(of(self.x), first + i + j - kept),
                    );
                } else {
                    multiply_add(job.step.isa, out, taps, past(i + j));
                }
            }
            if let Some(act) = self.act {
                activate(job.step.isa, out, act);
            }
        }
        for j in 0..kept {
            if len + j >= kept {
                past(j).copy_from_slice(job.read(of(self.x), first + len + j - kept));
            } else {
                let from = past(len + j);
                past(j).copy_from_slice(from);
            }
        }
    }
}

crate::math::per_isa! {
    /// `out = fma(a, b, out)`.
    multiply_add(out: &mut [f32], a: &[f32], b: &[f32]) = multiply_add_lanes;
}

#[inline(always)]
fn multiply_add_lanes(out: &mut [f32], a: &[f32], b: &[f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a.mul_add(*b, *out);
    }
}

impl Kernel for Conv {
    fn run(&self, job: &Job<'_>) {
        let channels = job.worker.share(self.x.cols);
        if channels.is_empty() {
            return;
        }
        for span in &job.step.batch.spans {
            self.span(job, span, &channels);
        }
    }
}

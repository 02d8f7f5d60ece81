//! Tokens chosen from logits.

use tokenmill_backend::DeviceError;
use tokenmill_ir::math::VOCAB_CHUNK;
use tokenmill_ir::{Rows as RowKind, View};

use super::{Draft, Extent, Ptr};
use crate::failure::unsupported;
use crate::kernels::Kernel;

/// Words of what is known of a run of logits, and of what is chosen, beside alternatives
/// (kernels/args.h, `Chunk` and `Chosen`).
const CHUNK_WORDS: u32 = 8;
const CHOSEN_WORDS: u32 = 4;
/// Threads of a block; candidates that it sorts together.
const THREADS: u32 = 256;
const MANY: u32 = 1024;

impl Draft<'_> {
    pub(super) fn sample(&mut self, logits: Option<View>, hidden: View) -> Result<(), DeviceError> {
        (self.served.logits, self.served.hidden) = (logits, Some(hidden));
        let Some(view) = logits else { return Ok(()) };
        if self.top > MANY {
            let what = format!("log-probabilities of {} alternatives, at most {MANY}", self.top);
            return Err(unsupported(what));
        }
        let (rows, vocab, outputs) = (self.view(view), view.cols, RowKind::Outputs);
        let runs = vocab.div_ceil(VOCAB_CHUNK as u32);
        let words = CHOSEN_WORDS + 2 * self.top;
        let drawn = self.scratch(outputs, 1, vocab);
        let chunks = self.scratch(outputs, 1, runs * CHUNK_WORDS);
        let chosen = self.scratch(outputs, 1, words);
        if let Ptr::Place(place, _) = chosen.ptr {
            self.served.chosen = Some((place, words));
        }
        let p = vec![Ptr::Step, rows.ptr, drawn.ptr, chunks.ptr];
        let n = vec![vocab, rows.ld, runs];
        let many = [Extent::fixed(runs.into()), Extent::rows(outputs), Extent::ONE];
        for kernel in [Kernel::SampleAdjust, Kernel::SampleWeigh] {
            self.launch(kernel, many, (THREADS, 0), (p.clone(), n.clone(), Vec::new()))?;
        }
        let (mut p, mut n) = (p, n);
        p.push(chosen.ptr);
        n.push(words);
        let grid = [Extent::rows(outputs), Extent::ONE, Extent::ONE];
        self.launch(Kernel::SampleChoose, grid, (THREADS, 0), (p, n, Vec::new()))
    }
}

//! Storing latents; attending to them is `ops::attend`.
//!
//! Numerics: NUMERICS.md, "Latents".

use tokenmill_ir::Rows as RowKind;

use super::norm::Rule;
use super::rotate::{HeadRotation, block_of};
use crate::attend::BLOCK_TOKENS;
use crate::caches::Shape;
use crate::step::{Cols, Job, Kernel};

/// Normalises latents, rotates keys and stores both.
#[derive(Debug)]
pub(crate) struct StoreLatent {
    pub latent: Cols,
    pub rule: Rule,
    pub key: Cols,
    pub rotate: HeadRotation,
    pub cache: usize,
}

impl Kernel for StoreLatent {
    fn run(&self, job: &Job<'_>) {
        let cache = &job.step.caches[self.cache];
        let Shape::Latent(layout) = cache.shape else { return };
        for row in job.worker.share(job.count(RowKind::Tokens)) {
            let (block, index) = block_of(job, cache, row);
            // SAFETY: scratch is used here only.
            let scratch = unsafe { &mut job.scratch().row[..self.latent.cols + self.key.cols] };
            let (latent, key) = scratch.split_at_mut(self.latent.cols);
            latent.copy_from_slice(job.read(self.latent, row));
            key.copy_from_slice(job.read(self.key, row));
            let isa = job.step.isa;
            self.rule.apply(isa, 0, latent);
            self.rotate.apply(job, row, 0, key);
            let slot = (block.0 as usize, index % BLOCK_TOKENS);
            // SAFETY: this token is this worker's, and a barrier follows.
            unsafe { layout.store(isa, cache.parts(), slot, latent, key) };
        }
    }
}

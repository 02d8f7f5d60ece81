//! OLMo 2: norms after each part instead of before, norms over all queries and keys.

use tokenmill_ir::RopePairing;

use super::{Arch, llama, olmo3};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{ModelSpec, Norm, QkNorm};

pub const ARCH: Arch = Arch { name: "olmo2", spellings: &["olmo2"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    // GGUF calls OLMo 3 so too.
    match h.is_gguf() && h.opt_u32(WINDOW)?.is_some() {
        true => olmo3::spec(h),
        false => plain(h),
    }
}

/// The layers without windows.
pub fn plain(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec_with(h, RopePairing::Half)?;
    let norm = Norm::rms(h.f32(RMS_EPS)?);
    model.attention_mut().for_each(|(_, a)| a.qk_norm = QkNorm::Whole(norm));
    for branch in model.branches_mut() {
        branch.norm_out = branch.norm_in.take();
    }
    Ok(model)
}

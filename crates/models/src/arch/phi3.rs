//! Phi-3 and Phi-4: Llama with fused projections (found in the file) and LongRoPE.

use tokenmill_ir::{Mask, RopePairing};

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{ModelSpec, RopeScaling};

pub const ARCH: Arch = Arch { name: "phi3", spellings: &["phi3"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec_with(h, RopePairing::Half)?;
    let window = h.opt_u32(WINDOW)?;
    let mut long = false;
    for (_, a) in model.attention_mut() {
        if let Some(window) = window {
            a.mask = Mask::Window(window);
        }
        long |= a.rope.as_ref().is_some_and(|r| {
            matches!(r.scaling, RopeScaling::Factors { .. } | RopeScaling::Tensor { .. })
        });
    }
    // Only the short factors are used, so sequences end where they stop holding.
    let key = h.own("original_max_position_embeddings", "rope.scaling.original_context_length");
    if let (true, Some(original)) = (long, h.meta().opt_u32(&key)?) {
        model.context = original;
    }
    Ok(model)
}

//! Command R7B: parallel residual, layer norms without bias, windows with positions and full layers
//! without.

use tokenmill_ir::{Mask, RopePairing};

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::*;

pub const ARCH: Arch = Arch { name: "cohere2", spellings: &["cohere2"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let norm = Norm::layer(h.f32(LAYER_EPS)?);
    let mut model = llama::spec_norm(h, RopePairing::Interleaved, norm)?;
    one_norm(&mut model);
    let window = h.u32(WINDOW)?;
    let full = h.full_layers("sliding_attention", 4, false)?;
    for (i, a) in model.attention_mut() {
        if full[i] {
            a.rope = None;
        } else {
            a.mask = Mask::Window(window);
        }
    }
    let scale = h.opt_f32(LOGIT_SCALE)?.unwrap_or(0.0625);
    model.output = Output::Logits { scale, softcap: None };
    Ok(model)
}

/// Both branches of a layer read the stream through its one norm.
pub fn one_norm(model: &mut ModelSpec) {
    for layer in &mut model.layers {
        layer.join = Join::Parallel;
        layer.branches[1].norm_in = None;
    }
}

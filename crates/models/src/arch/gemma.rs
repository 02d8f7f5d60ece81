//! Gemma: Llama with a scaled embedding, GELU, norm weights stored around 0.

use tokenmill_ir::{Act, RopePairing};

use super::{Arch, gemma2, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{Ffn, ModelSpec};

pub const ARCH: Arch = Arch { name: "gemma", spellings: &["gemma"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let norm = gemma2::gemma_norm(h)?;
    let mut model = llama::spec_norm(h, RopePairing::Half, norm)?;
    let act = match h.activation(Act::GeluTanh)? {
        // Files that say "gelu" were trained with the tanh form.
        Act::Gelu => Act::GeluTanh,
        act => act,
    };
    for (_, f) in model.ffn_mut() {
        if let Ffn::Gated { width, .. } = *f {
            *f = Ffn::gated(width, act);
        }
    }
    model.embed.scale = (model.hidden as f32).sqrt();
    Ok(model)
}

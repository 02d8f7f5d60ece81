//! Ministral 3: Mistral whose queries grow slowly behind the original context.

use tokenmill_ir::{Mask, PositionScale, RopePairing};

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{ModelSpec, RopeScaling};

pub const ARCH: Arch = Arch { name: "ministral3", spellings: &["ministral3", "mistral3"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    // llama.cpp's converter permutes query and key rows to pair neighbours.
    let pairing = if h.is_gguf() { RopePairing::Interleaved } else { RopePairing::Half };
    let mut model = llama::spec_with(h, pairing)?;
    let beta = match h.is_gguf() {
        true => h.meta().opt_f64(&h.own("", "attention.temperature_scale"))?,
        false => h.rope_number("llama_4_scaling_beta")?,
    };
    if beta.is_none() && !h.is_gguf() {
        return Err(ModelError::unsupported("llama_4_scaling_beta", "absent beside rope_type"));
    }
    let window = h.window()?;
    let length = h.meta().opt_f64(&h.own("", "attention.temperature_length"))?;
    for (_, a) in model.attention_mut() {
        if let Some(window) = window {
            a.mask = Mask::Window(window);
        }
        let Some(beta) = beta.filter(|b| *b != 0.0) else { continue };
        let scaling = a.rope.as_ref().map(|r| &r.scaling);
        if let Some(RopeScaling::Yarn { original, .. } | RopeScaling::Llama3 { original, .. }) =
            scaling
        {
            if let Some(length) = length.filter(|l| *l != 0.0 && l != original) {
                return Err(ModelError::unsupported("attention.temperature_length", length));
            }
            a.position_scale =
                Some(PositionScale { beta: beta as f32, every: *original as u32, offset: 0 });
        } else {
            let found = format!("{beta} without an original context");
            return Err(ModelError::unsupported("llama_4_scaling_beta", found));
        }
    }
    Ok(model)
}

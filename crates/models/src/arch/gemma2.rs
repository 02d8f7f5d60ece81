//! Gemma 2: sandwich norms with offset weights, alternating windows, capped scores and logits.

use tokenmill_ir::{Act, RopePairing};

use super::{Arch, llama, mistral};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{Ffn, ModelSpec, Norm, Output};

pub const ARCH: Arch = Arch { name: "gemma2", spellings: &["gemma2"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = sandwich(h, 46)?;
    let softcap = h.opt_f32(ATTENTION_SOFTCAP)?;
    model.attention_mut().for_each(|(_, a)| a.softcap = softcap);
    h.u32(WINDOW)?;
    mistral::windows(h, &mut model, |i| i % 2 == 0)?;
    Ok(model)
}

/// What Gemma 2 and 3 share: scaled embedding, norms around every part, scale by the query's width.
/// The 27B models, known in GGUF by their number of layers, have another, `hidden / heads`.
pub fn sandwich(h: &Hyper<'_>, layers_of_27b: usize) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec_with(h, RopePairing::Half)?;
    let norm = gemma_norm(h)?;
    let act = h.activation(Act::GeluTanh)?;
    for branch in model.branches_mut() {
        branch.norm_in = Some(norm);
        branch.norm_out = Some(norm);
    }
    let mut query_dim = h.meta().opt_f32("query_pre_attn_scalar")?;
    if h.is_gguf() && model.layers.len() == layers_of_27b {
        query_dim = Some((model.hidden / h.u32(HEADS)?.max(1)) as f32);
    }
    for (_, a) in model.attention_mut() {
        a.scale = 1.0 / query_dim.unwrap_or(a.head_dim as f32).sqrt();
    }
    for (_, f) in model.ffn_mut() {
        if let Ffn::Gated { width, .. } = *f {
            *f = Ffn::gated(width, act);
        }
    }
    model.embed.scale = (model.hidden as f32).sqrt();
    model.final_norm = Some(norm);
    model.output = Output::Logits { scale: 1.0, softcap: h.opt_f32(FINAL_SOFTCAP)? };
    Ok(model)
}

/// Weights are stored around 0 in Hugging Face files, around 1 in GGUF.
pub fn gemma_norm(h: &Hyper<'_>) -> Result<Norm, ModelError> {
    let offset = if h.is_gguf() { 0.0 } else { 1.0 };
    Ok(Norm { offset, ..Norm::rms(h.f32(RMS_EPS)?) })
}

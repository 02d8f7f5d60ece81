//! Granite: Llama with scalar factors on embeddings, branches, attention and logits.

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{ModelSpec, Output};

pub const ARCH: Arch = Arch { name: "granite", spellings: &["granite"], spec };

pub fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec(h)?;
    model.embed.scale = h.opt_f32(EMBED_SCALE)?.unwrap_or(1.0);
    let residual = h.opt_f32(RESIDUAL_SCALE)?.unwrap_or(1.0);
    model.branches_mut().for_each(|b| b.scale = residual);
    if let Some(scale) = h.opt_f32(ATTENTION_SCALE)? {
        model.attention_mut().for_each(|(_, a)| a.scale = scale);
    }
    let divisor = h.opt_f32(LOGIT_SCALE)?.unwrap_or(1.0);
    model.output = Output::Logits { scale: 1.0 / divisor, softcap: None };
    Ok(model)
}

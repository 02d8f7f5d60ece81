//! Qwen3: Llama with a norm on each query and key head.

use super::{Arch, qwen2};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{ModelSpec, Norm, QkNorm};

pub const ARCH: Arch =
    Arch { name: "qwen3", spellings: &["qwen3", "qwen3_vl_text", "qwen3vl"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = qwen2::spec(h)?;
    norms(h, &mut model)?;
    Ok(model)
}

/// Norms of queries and keys.
pub fn norms(h: &Hyper<'_>, model: &mut ModelSpec) -> Result<(), ModelError> {
    let norm = Norm::rms(h.f32(RMS_EPS)?);
    model.attention_mut().for_each(|(_, a)| a.qk_norm = QkNorm::Head(norm));
    Ok(())
}

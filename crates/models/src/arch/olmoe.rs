//! OLMoE: norms over all queries and keys, routed experts.

use tokenmill_ir::RopePairing;

use super::{Arch, llama, qwen3_moe};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{Ffn, ModelSpec, Norm, QkNorm};

pub const ARCH: Arch = Arch { name: "olmoe", spellings: &["olmoe"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    if let Some(clip) = h.meta().opt_f32("clip_qkv")? {
        return Err(ModelError::unsupported("clip_qkv", clip));
    }
    let mut model = llama::spec_with(h, RopePairing::Half)?;
    let norm = Norm::rms(h.f32(RMS_EPS)?);
    model.attention_mut().for_each(|(_, a)| a.qk_norm = QkNorm::Whole(norm));
    let mut experts = qwen3_moe::softmax_experts(h)?;
    experts.normalise = h.meta().opt_bool("norm_topk_prob")?.unwrap_or(false);
    model.ffn_mut().for_each(|(_, f)| *f = Ffn::Experts(experts.clone()));
    Ok(model)
}

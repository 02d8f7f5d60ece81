//! Qwen2 MoE: Qwen2 with routed experts and a gated shared one.

use super::{Arch, qwen2, qwen3_moe};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{Ffn, ModelSpec, SharedExpert};

pub const ARCH: Arch = Arch { name: "qwen2_moe", spellings: &["qwen2_moe", "qwen2moe"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    // Every other of the first layers, where windows are used at all.
    let end = h.meta().opt_u32("max_window_layers")?.unwrap_or(0) as usize;
    let used = h.meta().opt_bool("use_sliding_window")?.unwrap_or(false);
    if used && h.window()?.is_none() {
        return Err(ModelError::unsupported("sliding_window", "null beside use_sliding_window"));
    }
    let mut model = qwen2::with_windows(h, |i| i % 2 == 0 && i < end)?;
    let mut experts = qwen3_moe::softmax_experts(h)?;
    experts.normalise = h.meta().opt_bool("norm_topk_prob")?.unwrap_or(false);
    let width = h.u32(SHARED_FFN)?;
    experts.shared = Some(SharedExpert { width, gated: true });
    let sparse = qwen3_moe::sparse_layers(h, model.layers.len())?;
    for (_, ffn) in model.ffn_mut().filter(|(i, _)| sparse[*i]) {
        *ffn = Ffn::Experts(experts.clone());
    }
    Ok(model)
}

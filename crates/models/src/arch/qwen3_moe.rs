//! Qwen3 MoE: Qwen3 with routed experts.

use tokenmill_ir::{Act, GateAct, RouteScore};

use super::{Arch, qwen3};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{Experts, Ffn, GateUp, ModelSpec, Weigh};

pub const ARCH: Arch = Arch { name: "qwen3_moe", spellings: &["qwen3_moe", "qwen3moe"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = qwen3::spec(h)?;
    let experts = softmax_experts(h)?;
    let sparse = sparse_layers(h, model.layers.len())?;
    for (_, ffn) in model.ffn_mut().filter(|(i, _)| sparse[*i]) {
        *ffn = Ffn::Experts(experts.clone());
    }
    Ok(model)
}

/// Softmax over all experts, the best renormalised where the file says so.
pub fn softmax_experts(h: &Hyper<'_>) -> Result<Experts, ModelError> {
    Ok(Experts {
        count: h.u32(EXPERTS)?,
        top: h.u32(EXPERTS_USED)?,
        width: h.expert_width()?,
        act: GateAct::Plain(Act::Silu),
        score: RouteScore::Softmax,
        groups: None,
        normalise: h.meta().opt_bool("norm_topk_prob")?.unwrap_or(true),
        scale: 1.0,
        weigh: Weigh::Output,
        fused: GateUp::Halves,
        shared: None,
    })
}

/// Which layers have experts: every `decoder_sparse_step`-th, but for `mlp_only_layers`.
pub fn sparse_layers(h: &Hyper<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    let step = h.meta().opt_u32("decoder_sparse_step")?.unwrap_or(1).max(1) as usize;
    let dense = h.meta().opt_list("mlp_only_layers")?.unwrap_or_default();
    let is_dense = |i: usize| dense.iter().any(|v| v.as_u32() == Some(i as u32));
    Ok((0..layers).map(|i| (i + 1) % step == 0 && !is_dense(i)).collect())
}

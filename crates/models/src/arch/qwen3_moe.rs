//! Qwen3 MoE: Qwen3 with routed experts.

use tokenmill_ir::{Act, GateAct, RouteScore};

use super::{Arch, qwen2, qwen3};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{Experts, Ffn, GateUp, ModelSpec, Weigh};

pub const ARCH: Arch = Arch {
    name: "qwen3_moe",
    spellings: &["qwen3_moe", "qwen3moe", "qwen3_vl_moe_text", "qwen3vlmoe"],
    spec,
};

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = qwen2::with_windows(h, |_| true)?;
    qwen3::norms(h, &mut model)?;
    let mut experts = softmax_experts(h)?;
    if h.class().is_some_and(|c| c.name == "qwen3_vl_moe_text") {
        experts.fused = GateUp::Turned;
    }
    let sparse = sparse_layers(h, model.layers.len())?;
    for (_, ffn) in model.ffn_mut().filter(|(i, _)| sparse[*i]) {
        *ffn = Ffn::Experts(experts.clone());
    }
    Ok(model)
}

/// Softmax over all experts, the best renormalised where the file says so.
pub fn softmax_experts(h: &Hyper<'_>) -> Result<Experts, ModelError> {
    let m = h.meta();
    let normalise = m.opt_bool(&h.own("norm_topk_prob", "expert_weights_norm"))?;
    // (ollama's converter calls it so.)
    let other = m.opt_bool(&h.own("", "norm_top_k_prob"))?;
    Ok(Experts {
        count: h.u32(EXPERTS)?,
        top: h.u32(EXPERTS_USED)?,
        width: h.expert_width()?,
        act: GateAct::Plain(h.activation(Act::Silu)?),
        score: scoring(h, RouteScore::Softmax)?,
        groups: None,
        normalise: normalise.or(other).unwrap_or(true),
        scale: weights_scale(h)?,
        weigh: Weigh::Output,
        fused: GateUp::Halves,
        shared: None,
    })
}

/// How experts are scored where GGUF says so, else the `usual` way.
pub fn scoring(h: &Hyper<'_>, usual: RouteScore) -> Result<RouteScore, ModelError> {
    let key = h.own("", "expert_gating_func");
    match h.meta().opt_u32(&key)?.filter(|_| h.is_gguf()) {
        None | Some(0) => Ok(usual),
        Some(1) => Ok(RouteScore::Softmax),
        Some(2) => Ok(RouteScore::Sigmoid),
        Some(3) => Ok(RouteScore::SoftmaxOfTop),
        Some(other) => Err(ModelError::unsupported(&key, other)),
    }
}

/// What multiplies the weights of experts in GGUF; 0 is no factor.
fn weights_scale(h: &Hyper<'_>) -> Result<f32, ModelError> {
    let scale = h.meta().opt_f32(&h.own("", "expert_weights_scale"))?;
    Ok(scale.filter(|s| *s != 0.0 && h.is_gguf()).unwrap_or(1.0))
}

/// Which layers have experts: every `decoder_sparse_step`-th, but for `mlp_only_layers`.
pub fn sparse_layers(h: &Hyper<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    if h.u32(EXPERTS)? == 0 {
        return Ok(vec![false; layers]);
    }
    let step = h.meta().opt_u32("decoder_sparse_step")?.unwrap_or(1).max(1) as usize;
    let dense = h.meta().opt_list("mlp_only_layers")?.unwrap_or_default();
    let is_dense = |i: usize| dense.iter().any(|v| v.as_u32() == Some(i as u32));
    Ok((0..layers).map(|i| (i + 1) % step == 0 && !is_dense(i)).collect())
}

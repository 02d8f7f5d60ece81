//! Qwen3-Next: three gated-delta-net layers to one of gated attention, experts with a gated shared
//! one.

use super::{Arch, gemma2, llama, mamba2, qwen3_moe};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::*;
use tokenmill_ir::{KeyHead, RopePairing};

pub const ARCH: Arch = Arch { name: "qwen3_next", spellings: &["qwen3_next", "qwen3next"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = mixed_layers(h, KeyHead::Grouped)?;
    let ffn = Ffn::Experts(experts(h)?);
    let sparse = qwen3_moe::sparse_layers(h, model.layers.len())?;
    for (_, f) in model.ffn_mut().filter(|(i, _)| sparse[*i]) {
        *f = ffn.clone();
    }
    Ok(model)
}

/// Softmax routing with a gated shared expert.
pub fn experts(h: &Hyper<'_>) -> Result<Experts, ModelError> {
    let width = h.u32(SHARED_FFN)?;
    let shared = Some(SharedExpert { width, gated: true });
    Ok(Experts { shared, ..qwen3_moe::softmax_experts(h)? })
}

/// The layers with dense feed-forward parts.
pub fn mixed_layers(h: &Hyper<'_>, key_head: KeyHead) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec_with(h, RopePairing::Half)?;
    let norm = gemma2::gemma_norm(h)?; // weights stored around 0
    model.final_norm = Some(norm);
    model.branches_mut().for_each(|b| b.norm_in = Some(norm));
    for (_, a) in model.attention_mut() {
        a.gated = true;
        a.qk_norm = QkNorm::Head(norm);
    }
    let delta = delta_net(h, key_head)?;
    let full = h.full_layers("linear_attention", 4, false)?;
    for (layer, _) in model.layers.iter_mut().zip(full).filter(|(_, full)| !full) {
        layer.branches[0].body = Body::Mix(vec![Mixer::DeltaNet(delta.clone())]);
    }
    Ok(model)
}

fn delta_net(h: &Hyper<'_>, key_head: KeyHead) -> Result<DeltaNet, ModelError> {
    h.silu()?;
    let read = |hf, gguf| h.meta().u32(&h.own(hf, gguf));
    let k_heads = read("linear_num_key_heads", "ssm.group_count")?;
    let v_heads = read("linear_num_value_heads", "ssm.time_step_rank")?;
    if k_heads == 0 || v_heads == 0 || v_heads % k_heads != 0 {
        let heads = format!("{v_heads} on {k_heads} key heads");
        return Err(ModelError::unsupported("linear_num_value_heads", heads));
    }
    let v_dim = match h.is_gguf() {
        true => mamba2::columns(h, v_heads)?,
        false => read("linear_value_head_dim", "")?,
    };
    Ok(DeltaNet {
        k_heads,
        v_heads,
        k_dim: read("linear_key_head_dim", "ssm.state_size")?,
        v_dim,
        key_head,
        kernel: read("linear_conv_kernel_dim", "ssm.conv_kernel")?,
        norm: Norm::rms(h.f32(RMS_EPS)?),
    })
}

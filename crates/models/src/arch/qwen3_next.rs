//! Qwen3-Next: three gated-delta-net layers to one of gated attention, experts with a gated shared
//! one.

use super::{Arch, gemma2, llama, qwen3_moe};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::*;
use tokenmill_ir::{MetaValue, RopePairing};

pub const ARCH: Arch = Arch { name: "qwen3_next", spellings: &["qwen3_next"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = mixed_layers(h)?;
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
pub fn mixed_layers(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let m = h.meta();
    let mut model = llama::spec_with(h, RopePairing::Half)?;
    let norm = gemma2::gemma_norm(h)?; // weights stored around 0
    model.final_norm = Some(norm);
    model.branches_mut().for_each(|b| b.norm_in = Some(norm));
    for (_, a) in model.attention_mut() {
        a.gated = true;
        a.qk_norm = QkNorm::Head(norm);
    }
    let delta = DeltaNet {
        k_heads: m.u32("linear_num_key_heads")?,
        v_heads: m.u32("linear_num_value_heads")?,
        k_dim: m.u32("linear_key_head_dim")?,
        v_dim: m.u32("linear_value_head_dim")?,
        kernel: m.u32("linear_conv_kernel_dim")?,
        norm: Norm::rms(h.f32(RMS_EPS)?),
    };
    let every = m.opt_u32("full_attention_interval")?.unwrap_or(4).max(1) as usize;
    let types = m.opt_list("layer_types")?;
    for (i, layer) in model.layers.iter_mut().enumerate() {
        let full = match types {
            Some(list) => list.get(i).and_then(MetaValue::as_str) == Some("full_attention"),
            None => (i + 1) % every == 0,
        };
        if !full {
            layer.branches[0].body = Body::Mix(vec![Mixer::DeltaNet(delta.clone())]);
        }
    }
    Ok(model)
}

//! Qwen3-Next: three gated-delta-net layers to one of gated attention, experts with a gated shared
//! one.

use super::{Arch, gemma2, llama, qwen3_moe};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::*;
use tokenmill_ir::{MetaValue, RopePairing};

pub const ARCH: Arch = Arch { name: "qwen3_next", spellings: &["qwen3_next"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
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
    let mut experts = qwen3_moe::softmax_experts(h)?;
    let width = m.u32("shared_expert_intermediate_size")?;
    experts.shared = Some(SharedExpert { width, gated: true });
    let sparse = qwen3_moe::sparse_layers(h, model.layers.len())?;
    for (_, ffn) in model.ffn_mut().filter(|(i, _)| sparse[*i]) {
        *ffn = Ffn::Experts(experts.clone());
    }
    Ok(model)
}

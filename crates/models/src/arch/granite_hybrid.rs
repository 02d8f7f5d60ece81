//! Granite 4: Granite with Mamba-2 in most layers, mostly without positions, with or without
//! experts.

use super::{Arch, granite, granitemoe, mamba2};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{Body, Ffn, Mixer, ModelSpec};

pub const ARCH: Arch =
    Arch { name: "granitemoehybrid", spellings: &["granitemoehybrid", "granitehybrid"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = granite::spec(h)?;
    let positions = match h.is_gguf() {
        // llama.cpp's converter keeps it there.
        true => h.meta().opt_bool(&h.own("", "rope.scaling.finetuned"))?.unwrap_or(true),
        false => h.meta().opt_str("position_embedding_type")? == Some("rope"),
    };
    if !positions {
        model.attention_mut().for_each(|(_, a)| a.rope = None);
    }
    let kinds = h.kinds(&["full_attention", "linear_attention"], |_| "linear_attention")?;
    h.silu()?;
    let mamba = mamba2::mixer(h, &MAMBA, h.f32(RMS_EPS)?)?;
    for (i, layer) in model.layers.iter_mut().enumerate() {
        let attends = match h.is_gguf() {
            true => h.layer_u32(KV_HEADS, i)? != Some(0),
            false => kinds[i] == "full_attention",
        };
        if !attends {
            layer.branches[0].body = Body::Mix(vec![Mixer::Mamba(mamba.clone())]);
        }
    }
    h.opt_u32(EXPERTS_USED)?; // of no consequence without experts
    let ffn = match h.opt_u32(EXPERTS)? {
        None | Some(0) => Ffn::gated(h.u32(SHARED_FFN)?, tokenmill_ir::Act::Silu),
        Some(_) => Ffn::Experts(granitemoe::experts(h)?),
    };
    model.ffn_mut().for_each(|(_, f)| *f = ffn.clone());
    Ok(model)
}

const MAMBA: mamba2::Keys = mamba2::Keys {
    heads: "mamba_n_heads",
    head_dim: "mamba_d_head",
    groups: "mamba_n_groups",
    state: "mamba_d_state",
    kernel: "mamba_d_conv",
};

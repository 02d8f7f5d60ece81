//! gpt-oss: attention sinks, alternating windows, biases everywhere, clamped gated experts.

use tokenmill_ir::{GateAct, Mask, MetaValue, RopePairing, RouteScore, TensorInfo};

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::names::{Role, find_opt};
use crate::spec::{Experts, Ffn, GateUp, ModelSpec, RopeScaling, RopeSpec, Weigh};

pub const ARCH: Arch = Arch { name: "gpt_oss", spellings: &["gpt_oss", "gpt-oss"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec_with(h, RopePairing::Half)?;
    let window = h.u32(WINDOW)?;
    let types = h.meta().opt_list("layer_types")?;
    for (i, a) in model.attention_mut() {
        a.sinks = true;
        let windowed = match types {
            Some(list) => list.get(i).and_then(MetaValue::as_str) == Some("sliding_attention"),
            None => i % 2 == 0,
        };
        if windowed {
            a.mask = Mask::Window(window);
        }
        // llama.cpp's files do not say that the bounds are not rounded.
        match &mut a.rope {
            Some(RopeSpec { scaling: RopeScaling::Yarn { truncate, .. }, .. }) if h.is_gguf() => {
                *truncate = false;
            }
            _ => {}
        }
    }
    let limit = h.meta().opt_f32("swiglu_limit")?.unwrap_or(7.0);
    let experts = Experts {
        count: h.u32(EXPERTS)?,
        top: h.u32(EXPERTS_USED)?,
        width: h.expert_width()?,
        act: GateAct::Clamped { alpha: 1.702, limit },
        score: RouteScore::SoftmaxOfTop,
        groups: None,
        normalise: false,
        scale: 1.0,
        weigh: Weigh::Output,
        fused: layout(h),
        shared: None,
    };
    model.ffn_mut().for_each(|(_, f)| *f = Ffn::Experts(experts.clone()));
    Ok(model)
}

/// MXFP4 experts are stored by rows; those of 16 bits as transformers multiplies them, by columns.
/// Where hidden and inner size are equal the shapes do not show which.
fn layout(h: &Hyper<'_>) -> GateUp {
    let plain = |t: &TensorInfo| t.format.info().block_weights == 1;
    match find_opt(h.checkpoint(), Role::ExpertsGateUp, 0, 0) {
        Some(t) if !h.is_gguf() && plain(t) => GateUp::TurnedAlternate,
        Some(_) if h.is_gguf() => GateUp::Halves,
        _ => GateUp::Alternate,
    }
}

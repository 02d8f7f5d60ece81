//! Llama 4, its text part: rotated layers that attend within chunks, full layers without positions
//! whose queries grow, one expert a token that takes its weight in, beside a shared one.

use tokenmill_ir::{Act, GateAct, Mask, MetaValue, PositionScale, RopePairing, RouteScore};

use super::{Arch, llama, qwen3_moe, smollm3};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::*;

pub const ARCH: Arch = Arch { name: "llama4", spellings: &["llama4", "llama4_text"], spec };

/// What llama.cpp's files do not say is as in Meta's models.
const CHUNK: u32 = 8192;

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let m = h.meta();
    let mut model = llama::spec_with(h, RopePairing::Interleaved)?;
    // Files of llama.cpp for models without chunks say so.
    let whole = h.opt_u32(WINDOW)? == Some(0);
    if !whole {
        smollm3::without_positions(h, &mut model)?;
    }
    let norm = Norm::rms(h.f32(RMS_EPS)?);
    let normed =
        m.opt_bool("use_qk_norm")?.unwrap_or(!h.is_gguf() || h.opt_u32(EXPERTS)? != Some(128));
    // Chunks are of layers with positions, unless the file lists others.
    let chunk = match h.is_gguf() {
        true => Some(CHUNK).filter(|_| !whole),
        false => m.opt_u32("attention_chunk_size")?,
    };
    let rotated: Vec<bool> = model.attention_mut().map(|(_, a)| a.rope.is_some()).collect();
    let kinds = h.kinds(&["full_attention", "chunked_attention"], |i| {
        let chunked = chunk.is_some() && rotated.get(i) == Some(&true);
        if chunked { "chunked_attention" } else { "full_attention" }
    })?;
    let position_scale = PositionScale {
        beta: m.opt_f32("attn_scale")?.unwrap_or(0.1),
        every: m.opt_u32("floor_scale")?.unwrap_or(CHUNK),
        offset: 1,
    };
    // Early files have a number here.
    let grows = m.get("attn_temperature_tuning").is_none_or(|v| match v.as_f64() {
        Some(number) => number != 0.0,
        None => *v != MetaValue::Bool(false),
    });
    for (i, a) in model.attention_mut() {
        let magnitude = match a.rope.as_ref().map(|r| &r.scaling) {
            Some(RopeScaling::Yarn { magnitude, .. } | RopeScaling::Factors { magnitude, .. }) => {
                *magnitude
            }
            _ => 1.0,
        };
        if normed && magnitude != 1.0 {
            // Queries and keys are divided by their lengths after the rotation.
            let found = format!("a magnitude of {magnitude} (rope_parameters) before a norm");
            return Err(ModelError::unsupported("rope_scaling", found));
        }
        match a.rope {
            Some(_) if normed => a.qk_norm = QkNorm::Unit(norm),
            None if grows => a.position_scale = Some(position_scale),
            _ => {}
        }
        if kinds[i] == "chunked_attention" {
            a.mask = Mask::Chunk(chunk.unwrap_or(CHUNK).max(1));
        }
    }
    feed_forward(h, &mut model)?;
    Ok(model)
}

/// Experts in every `interleave_moe_layer_step`-th layer or those listed, the others dense.
fn feed_forward(h: &Hyper<'_>, model: &mut ModelSpec) -> Result<(), ModelError> {
    let m = h.meta();
    let dense = m.u32(&h.own("intermediate_size_mlp", "feed_forward_length"))?;
    let width = h.expert_width()?;
    let act = h.activation(Act::Silu)?;
    let experts = Experts {
        count: h.opt_u32(EXPERTS)?.unwrap_or(0),
        top: h.opt_u32(EXPERTS_USED)?.unwrap_or(1),
        width,
        act: GateAct::Plain(act),
        score: qwen3_moe::scoring(h, RouteScore::Sigmoid)?,
        groups: None,
        normalise: false,
        scale: 1.0,
        weigh: Weigh::Input,
        fused: if h.is_gguf() { GateUp::Halves } else { GateUp::Turned },
        shared: Some(SharedExpert { width, gated: false }),
    };
    if experts.top != 1 {
        // The weight of an expert multiplies its input, of which there is one.
        return Err(ModelError::unsupported(&h.name(EXPERTS_USED), experts.top));
    }
    let step = m.opt_u32(&h.own("interleave_moe_layer_step", "interleave_moe_layer_step"))?;
    let step = step.unwrap_or(1) as usize;
    let list = m.opt_list("moe_layers")?;
    for (i, ffn) in model.ffn_mut() {
        let routed = match list {
            Some(list) => list.iter().any(|l| l.as_u32().is_some_and(|l| l as usize == i)),
            None => step > 0 && (i + 1).is_multiple_of(step),
        };
        *ffn = match routed {
            true => Ffn::Experts(experts.clone()),
            false => Ffn::gated(dense, act),
        };
    }
    Ok(())
}

//! Gemma 4: Gemma 3's sandwich with plain norm weights, unscaled scores, normalised values, wider
//! heads in full layers; small models with inputs for each layer and shared keys, others with
//! experts beside the dense part.

use tokenmill_ir::{Act, GateAct, Mask, MetaValue, RopePairing};

use super::{Arch, llama, qwen3_moe};
use crate::error::ModelError;
use crate::hyper::*;
use crate::params::shown;
use crate::spec::*;

pub const ARCH: Arch = Arch { name: "gemma4", spellings: &["gemma4", "gemma4_text"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let m = h.meta();
    let mut model = llama::spec_with(h, RopePairing::Half)?;
    let norm = Norm::rms(h.f32(RMS_EPS)?);
    let act = h.activation(Act::GeluTanh)?;
    let mut full = h.full_layers("sliding_attention", 6, false)?;
    full.iter_mut().last().into_iter().for_each(|last| *last = true);
    for (i, a) in model.attention_mut() {
        attention(h, a, i, full[i])?;
        (a.qk_norm, a.v_norm) = (QkNorm::Head(norm), Some(norm));
    }
    let own = share_keys(h, &mut model, &full)?;
    let wide = !h.is_gguf() && m.opt_bool("use_double_wide_mlp")?.unwrap_or(false);
    if let Some(other) = m.opt_str("use_bidirectional_attention")?.filter(|v| *v != "vision") {
        return Err(ModelError::unsupported("use_bidirectional_attention", other));
    }
    let routed = h.is_gguf() || m.opt_bool("enable_moe_block")?.unwrap_or(false);
    if routed && !h.is_gguf() {
        h.u32(EXPERTS)?;
    }
    let experts = match h.opt_u32(EXPERTS)?.filter(|n| *n > 0 && routed) {
        Some(_) => Some(Experts {
            act: GateAct::Plain(act),
            normalise: true,
            fused: GateUp::Halves,
            ..qwen3_moe::softmax_experts(h)?
        }),
        None => None,
    };
    for (i, f) in model.ffn_mut() {
        if let Ffn::Gated { width, .. } = *f {
            *f = match &experts {
                Some(experts) => Ffn::Beside { width, act, norm, experts: experts.clone() },
                None => Ffn::gated(if wide && i >= own { 2 * width } else { width }, act),
            };
        }
    }
    model.branches_mut().for_each(|b| b.norm_out = Some(norm));
    layer_inputs(h, &mut model, norm, act)?;
    model.layers.iter_mut().for_each(|l| l.scaled = true);
    model.embed.scale = (model.hidden as f32).sqrt();
    model.output = Output::Logits { scale: 1.0, softcap: h.opt_f32(FINAL_SOFTCAP)? };
    Ok(model)
}

/// What differs between windowed and full layers.
fn attention(h: &Hyper<'_>, a: &mut Attention, i: usize, full: bool) -> Result<(), ModelError> {
    let m = h.meta();
    a.scale = 1.0;
    let kind = if full { "full_attention" } else { "sliding_attention" };
    let (mut theta, mut scaling) = (h.theta(kind)?, h.rope_scaling(kind)?);
    if !full {
        a.mask = Mask::Window(h.u32(WINDOW)?);
    }
    match (h.is_gguf(), full) {
        (false, _) => widths(h, a, i, full)?,
        (true, true) => {
            scaling = RopeScaling::Tensor { magnitude: 1.0 };
            let v = crate::names::find_opt(h.checkpoint(), crate::names::Role::V, i, 0);
            if v.is_none() {
                a.kv = KvSource::KeysAreValues;
            }
        }
        (true, false) => {
            let own = |key: &str| h.own("", key);
            scaling = RopeScaling::None;
            a.head_dim = m.u32(&own("attention.key_length_swa"))?;
            let key = own("rope.dimension_count_swa");
            if let Some(other) = m.opt_u32(&key)?.filter(|d| *d != a.head_dim) {
                return Err(ModelError::unsupported(&key, other));
            }
            theta = m.opt_f64(&own("rope.freq_base_swa"))?.unwrap_or(10_000.0);
        }
    }
    let (dims, pairing) = (a.head_dim, RopePairing::Half);
    a.rope = Some(RopeSpec { dims, theta, pairing, scaling, axes: Axes::One });
    Ok(())
}

/// Heads of a layer and their columns: as config.json has them for this layer, else full layers
/// have others than windowed ones.
fn widths(h: &Hyper<'_>, a: &mut Attention, i: usize, full: bool) -> Result<(), ModelError> {
    let m = h.meta();
    for key in ["rope_scaling", "rope_theta"] {
        if let Some(value) = m.get(key) {
            // (transformers reads neither for this family.)
            return Err(ModelError::unsupported(key, shown(value)));
        }
    }
    let kind = if full { "full_attention" } else { "sliding_attention" };
    let map = h.rope_map(kind)?;
    for key in ["rope_theta", "rope_type"] {
        // (Nothing fills in what such a map lacks.)
        if m.map("rope_parameters")?.is_some() && map.get(key).is_none() {
            let key = format!("rope_parameters.{kind}.{key}");
            return Err(ModelError::unsupported(&key, "absent"));
        }
    }
    if full && m.opt_bool("attention_k_eq_v")?.unwrap_or(false) {
        a.kv = KvSource::KeysAreValues;
    }
    let usual_dim = m.opt_u32("global_head_dim")?.unwrap_or(512);
    let usual_heads = m.opt_u32("num_global_key_value_heads")?;
    let Some(by_layer) = m.map("per_layer_config")? else {
        if full {
            a.head_dim = usual_dim;
        }
        if a.kv == KvSource::KeysAreValues {
            a.kv_heads = usual_heads.unwrap_or(a.kv_heads);
        }
        return Ok(());
    };
    let Some(MetaValue::Map(own)) = by_layer.get(&i.to_string()) else { return Ok(()) };
    for (key, value) in own.iter() {
        match (key, value.as_u32()) {
            ("head_dim", Some(width)) => a.head_dim = width,
            ("num_key_value_heads", Some(heads)) => a.kv_heads = heads,
            _ => {
                let key = format!("per_layer_config.{i}.{key}");
                return Err(ModelError::unsupported(&key, shown(value)));
            }
        }
    }
    Ok(())
}

/// Lets the last layers read the keys of the last one of the same kind that has its own; returns
/// how many have.
pub fn share_keys(
    h: &Hyper<'_>,
    model: &mut ModelSpec,
    full: &[bool],
) -> Result<usize, ModelError> {
    let key = h.own("num_kv_shared_layers", "attention.shared_kv_layers");
    let shared = h.meta().opt_u32(&key)?.unwrap_or(0) as usize;
    let own = model.layers.len().saturating_sub(shared);
    for (i, a) in model.attention_mut().filter(|(i, _)| *i >= own) {
        let source = (0..own).rev().find(|&l| full[l] == full[i]).unwrap_or(0);
        a.kv = KvSource::Layer(source);
    }
    Ok(own)
}

/// The layers' own inputs, if the model has them.
pub fn layer_inputs(
    h: &Hyper<'_>,
    model: &mut ModelSpec,
    norm: Norm,
    act: Act,
) -> Result<(), ModelError> {
    let key = h.own("hidden_size_per_layer_input", "embedding_length_per_layer_input");
    let Some(width) = h.meta().opt_u32(&key)?.filter(|w| *w > 0) else { return Ok(()) };
    model.embed.per_layer = Some(PerLayer {
        width,
        norm,
        scale: (width as f32).sqrt(),
        projection_scale: 1.0 / (model.hidden as f32).sqrt(),
    });
    for layer in &mut model.layers {
        let body = Body::LayerInput(act);
        let norm_out = Some(norm);
        layer.branches.push(Branch { norm_in: None, norm_out, ..Branch::pre(norm, body) });
    }
    Ok(())
}

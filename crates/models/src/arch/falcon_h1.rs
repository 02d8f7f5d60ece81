//! Falcon-H1: attention and Mamba-2 side by side in every layer, scalar factors everywhere.

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::*;
use tokenmill_ir::{Act, GateAct, GateOrder, MetaError, MetaValue, RopePairing};

pub const ARCH: Arch = Arch { name: "falcon_h1", spellings: &["falcon_h1"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let m = h.meta();
    let one = |key: &str| -> Result<f32, MetaError> { Ok(m.opt_f32(key)?.unwrap_or(1.0)) };
    let mut model = llama::spec_with(h, RopePairing::Half)?;
    let order = match m.opt_bool("mamba_norm_before_gate")?.unwrap_or(true) {
        true => GateOrder::AfterNorm,
        false => GateOrder::BeforeNorm,
    };
    let limit = floats(m, "time_step_limit", [0.0, f32::INFINITY])?;
    let mamba = Mamba {
        heads: m.u32("mamba_n_heads")?,
        head_dim: m.u32("mamba_d_head")?,
        groups: m.u32("mamba_n_groups")?,
        state_dim: m.u32("mamba_d_state")?,
        kernel: m.u32("mamba_d_conv")?,
        dt_limit: (limit[0], limit[1]),
        norm: m
            .opt_bool("mamba_rms_norm")?
            .unwrap_or(false)
            .then_some((Norm::rms(h.f32(RMS_EPS)?), order)),
        in_scale: one("ssm_in_multiplier")?,
        out_scale: one("ssm_out_multiplier")?,
        part_scales: floats(m, "ssm_multipliers", [1.0; 5])?,
    };
    let multipliers = Multipliers {
        input: one("attention_in_multiplier")?,
        key: one("key_multiplier")?,
        output: one("attention_out_multiplier")?,
    };
    model.attention_mut().for_each(|(_, a)| a.multipliers = multipliers);
    let [gate_scale, out_scale] = floats(m, "mlp_multipliers", [1.0; 2])?;
    for branch in model.branches_mut() {
        match &mut branch.body {
            Body::Mix(mixers) => mixers.insert(0, Mixer::Mamba(mamba.clone())),
            Body::Ffn(ffn) => {
                if let Ffn::Gated { width, .. } = *ffn {
                    let act = GateAct::Plain(Act::Silu);
                    *ffn = Ffn::Gated { width, act, gate_scale, out_scale, cutoff: None };
                }
            }
            Body::LayerInput(_) => {}
        }
    }
    model.embed.scale = one("embedding_multiplier")?;
    model.output = Output::Logits { scale: one("lm_head_multiplier")?, softcap: None };
    Ok(model)
}

/// A list of exactly N numbers, or the default.
fn floats<const N: usize>(
    m: &tokenmill_ir::Meta,
    key: &str,
    default: [f32; N],
) -> Result<[f32; N], ModelError> {
    let Some(list) = m.opt_list(key)? else { return Ok(default) };
    let numbers: Vec<f32> = list.iter().filter_map(MetaValue::as_f64).map(|x| x as f32).collect();
    <[f32; N]>::try_from(numbers)
        .map_err(|v| ModelError::unsupported(key, format!("a list of {} numbers", v.len())))
}

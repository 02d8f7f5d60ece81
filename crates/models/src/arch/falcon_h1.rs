//! Falcon-H1: attention and Mamba-2 side by side in every layer, scalar factors everywhere.

use tokenmill_ir::{Act, GateAct, GateOrder, MetaError, RopePairing};

use super::{Arch, llama, mamba2};
use crate::error::ModelError;
use crate::hyper::*;
use crate::names::{Role, find_opt};
use crate::spec::*;

pub const ARCH: Arch = Arch { name: "falcon_h1", spellings: &["falcon_h1", "falcon-h1"], spec };

const KEYS: mamba2::Keys = mamba2::Keys {
    heads: "mamba_n_heads",
    head_dim: "mamba_d_head",
    groups: "mamba_n_groups",
    state: "mamba_d_state",
    kernel: "mamba_d_conv",
};

/// llama.cpp's converter multiplies its files' weights by all factors, so none of the keys is there.
fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let m = h.meta();
    let has = |role| find_opt(h.checkpoint(), role, 0, 0).is_some();
    if h.is_gguf() && !has(Role::Head) {
        // The embedding's own factor would be in the logits.
        return Err(ModelError::unsupported("output.weight", "absent"));
    }
    let one = |key: &str| -> Result<f32, MetaError> { Ok(m.opt_f32(key)?.unwrap_or(1.0)) };
    let mut model = llama::spec_with(h, RopePairing::Half)?;
    let order = match m.opt_bool("mamba_norm_before_gate")?.unwrap_or(!h.is_gguf()) {
        true => GateOrder::AfterNorm,
        false => GateOrder::BeforeNorm,
    };
    let eps = h.f32(RMS_EPS)?;
    let mamba = Mamba {
        norm: has(Role::MambaNorm).then_some((Norm::rms(eps), order)),
        in_scale: one("ssm_in_multiplier")?,
        out_scale: one("ssm_out_multiplier")?,
        part_scales: h.numbers("ssm_multipliers", [1.0; 5])?,
        ..mamba2::mixer(h, &KEYS, eps)?
    };
    let multipliers = Multipliers {
        input: one("attention_in_multiplier")?,
        key: one("key_multiplier")?,
        output: one("attention_out_multiplier")?,
    };
    model.attention_mut().for_each(|(_, a)| a.multipliers = multipliers);
    let [gate_scale, out_scale] = h.numbers("mlp_multipliers", [1.0; 2])?;
    for branch in model.branches_mut() {
        match &mut branch.body {
            Body::Mix(mixers) => mixers.insert(0, Mixer::Mamba(mamba.clone())),
            Body::Ffn(ffn) => {
                if let Ffn::Gated { width, .. } = *ffn {
                    let act = GateAct::Plain(Act::Silu); // `mixer` refuses others
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

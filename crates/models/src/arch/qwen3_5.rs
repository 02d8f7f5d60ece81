//! Qwen3.5: Qwen3-Next's layers with projections stored apart, dense or with experts.

use tokenmill_ir::KeyHead;

use super::{Arch, qwen3_next};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{Experts, Ffn, GateUp, ModelSpec};

pub const ARCH: Arch =
    Arch { name: "qwen3_5", spellings: &["qwen3_5", "qwen3_5_text", "qwen35"], spec };
pub const MOE: Arch = Arch {
    name: "qwen3_5_moe",
    spellings: &["qwen3_5_moe", "qwen3_5_moe_text", "qwen35moe"],
    spec: with_experts,
};

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    // llama.cpp's converter moves the value heads of this family.
    qwen3_next::mixed_layers(h, if h.is_gguf() { KeyHead::Tiled } else { KeyHead::Grouped })
}

fn with_experts(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = spec(h)?;
    let experts = Experts { fused: GateUp::Halves, ..qwen3_next::experts(h)? };
    model.ffn_mut().for_each(|(_, f)| *f = Ffn::Experts(experts.clone()));
    Ok(model)
}

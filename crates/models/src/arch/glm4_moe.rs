//! GLM-4.5: Qwen-like attention with half of each head rotated, DeepSeek-V3's experts.

use tokenmill_ir::RopePairing;

use super::{Arch, deepseek_v3, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::names::{Role, find_opt};
use crate::spec::{ModelSpec, Norm, QkNorm};

pub const ARCH: Arch =
    Arch { name: "glm4_moe", spellings: &["glm4_moe", "glm4moe", "glm4v_moe_text"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec_with(h, RopePairing::Half)?;
    if find_opt(h.checkpoint(), Role::QNorm, 0, 0).is_some() {
        let norm = Norm::rms(h.f32(RMS_EPS)?);
        model.attention_mut().for_each(|(_, a)| a.qk_norm = QkNorm::Head(norm));
    }
    deepseek_v3::experts(h, &mut model)?;
    Ok(model)
}

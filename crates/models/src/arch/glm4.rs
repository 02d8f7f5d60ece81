//! GLM-4: Llama with half of each head rotated in pairs of neighbours, fused gate and up, biases on
//! queries, keys and values (found in the file); the 0414 models have norms after each part too.

use tokenmill_ir::RopePairing;

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::names::{Role, find_opt};
use crate::spec::{ModelSpec, Norm};

pub const ARCH: Arch = Arch { name: "glm4", spellings: &["glm4", "glm", "glm4v_text"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec_with(h, RopePairing::Interleaved)?;
    if find_opt(h.checkpoint(), Role::FfnPostNorm, 0, 0).is_some() {
        let norm = Norm::rms(h.f32(RMS_EPS)?);
        model.branches_mut().for_each(|b| b.norm_out = Some(norm));
    }
    Ok(model)
}

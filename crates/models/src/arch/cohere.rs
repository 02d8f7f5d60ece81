//! Command R: parallel residual, layer norms without bias, a norm for every query and key head
//! where the file has them.

use tokenmill_ir::RopePairing;

use super::{Arch, cohere2, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::names::{Role, find_opt};
use crate::spec::*;

pub const ARCH: Arch = Arch { name: "cohere", spellings: &["cohere", "command-r"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let norm = Norm::layer(h.f32(LAYER_EPS)?);
    let mut model = llama::spec_norm(h, RopePairing::Interleaved, norm)?;
    cohere2::one_norm(&mut model);
    if find_opt(h.checkpoint(), Role::QNorm, 0, 0).is_some() {
        model.attention_mut().for_each(|(_, a)| a.qk_norm = QkNorm::Head(norm));
    }
    let scale = h.opt_f32(LOGIT_SCALE)?.unwrap_or(0.0625);
    model.output = Output::Logits { scale, softcap: None };
    Ok(model)
}

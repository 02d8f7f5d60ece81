//! Mixtral: Mistral with routed experts.

use super::{Arch, llama, qwen3_moe};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{Experts, Ffn, ModelSpec};

pub const ARCH: Arch = Arch { name: "mixtral", spellings: &["mixtral"], spec };

pub fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec(h)?;
    let experts = Experts { normalise: true, ..qwen3_moe::softmax_experts(h)? };
    model.ffn_mut().for_each(|(_, f)| *f = Ffn::Experts(experts.clone()));
    Ok(model)
}

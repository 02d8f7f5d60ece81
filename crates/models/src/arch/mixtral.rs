//! Mixtral: Mistral with routed experts.

use super::{Arch, llama, mistral, qwen3_moe};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{Experts, Ffn, ModelSpec};

pub const ARCH: Arch = Arch { name: "mixtral", spellings: &["mixtral"], spec };

pub fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec(h)?;
    mistral::windows(h, &mut model, |_| true)?;
    let experts = Experts { normalise: true, ..qwen3_moe::softmax_experts(h)? };
    model.ffn_mut().for_each(|(_, f)| *f = Ffn::Experts(experts.clone()));
    Ok(model)
}

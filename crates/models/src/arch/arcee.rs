//! Arcee AFM: Llama with a plain feed-forward part of squared ReLU.

use tokenmill_ir::Act;

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::ModelSpec;

pub const ARCH: Arch = Arch { name: "arcee", spellings: &["arcee"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec(h)?;
    model.plain_ffn(h.activation(Act::ReluSquared)?);
    Ok(model)
}

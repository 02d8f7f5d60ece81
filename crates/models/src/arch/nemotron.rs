//! Nemotron and Minitron: layer norms stored around 0, squared ReLU, half of each head rotated.

use tokenmill_ir::{Act, RopePairing};

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{ModelSpec, Norm};

pub const ARCH: Arch = Arch { name: "nemotron", spellings: &["nemotron"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    // llama.cpp's converter adds the one.
    let offset = if h.is_gguf() { 0.0 } else { 1.0 };
    let norm = Norm { offset, ..Norm::layer(h.f32(LAYER_EPS)?) };
    let mut model = llama::spec_norm(h, RopePairing::Half, norm)?;
    model.plain_ffn(h.activation(Act::ReluSquared)?);
    Ok(model)
}

//! Phi-1.5 and Phi-2: parallel residual with one layer norm, biases everywhere, part of each head
//! rotated, a plain feed-forward part.

use tokenmill_ir::{Act, RopePairing};

use super::{Arch, cohere2, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{ModelSpec, Norm};

pub const ARCH: Arch = Arch { name: "phi", spellings: &["phi", "phi2"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    if h.meta().opt_bool("qk_layernorm")?.unwrap_or(false) {
        return Err(ModelError::unsupported("qk_layernorm", true));
    }
    let mut model = llama::spec_norm(h, RopePairing::Half, Norm::layer(h.f32(LAYER_EPS)?))?;
    model.plain_ffn(h.activation(Act::GeluTanh)?);
    cohere2::one_norm(&mut model);
    Ok(model)
}

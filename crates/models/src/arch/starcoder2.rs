//! StarCoder2: layer norms, biases everywhere, a plain feed-forward part, a window.

use tokenmill_ir::{Act, Mask, RopePairing};

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{ModelSpec, Norm};

pub const ARCH: Arch = Arch { name: "starcoder2", spellings: &["starcoder2"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec_norm(h, RopePairing::Half, Norm::layer(h.f32(LAYER_EPS)?))?;
    model.plain_ffn(h.activation(Act::GeluTanh)?);
    if let Some(window) = h.window()? {
        model.attention_mut().for_each(|(_, a)| a.mask = Mask::Window(window));
    }
    Ok(model)
}

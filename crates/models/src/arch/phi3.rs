//! Phi-3 and Phi-4: Llama with fused projections (found in the file) and LongRoPE.

use tokenmill_ir::{Mask, RopePairing};

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::ModelSpec;

pub const ARCH: Arch = Arch { name: "phi3", spellings: &["phi3"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec_with(h, RopePairing::Half)?;
    if let Some(window) = h.window()? {
        model.attention_mut().for_each(|(_, a)| a.mask = Mask::Window(window));
    }
    Ok(model)
}

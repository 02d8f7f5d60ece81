//! Mistral: Llama with a sliding window in early models.

use tokenmill_ir::Mask;

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::ModelSpec;

pub const ARCH: Arch = Arch { name: "mistral", spellings: &["mistral", "ministral"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec(h)?;
    if let Some(window) = h.opt_u32(WINDOW)? {
        model.attention_mut().for_each(|(_, a)| a.mask = Mask::Window(window));
    }
    Ok(model)
}

//! Qwen2: Llama with biases on queries, keys and values (found in the file).

use tokenmill_ir::{Mask, RopePairing};

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::ModelSpec;

pub const ARCH: Arch = Arch { name: "qwen2", spellings: &["qwen2"], spec };

pub fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec_with(h, RopePairing::Half)?;
    // A window, where it is used at all, starts at layer `max_window_layers`.
    if h.meta().opt_bool("use_sliding_window")?.unwrap_or(false) {
        let first = h.meta().opt_u32("max_window_layers")?.unwrap_or(0) as usize;
        if let Some(window) = h.opt_u32(WINDOW)? {
            let late = model.attention_mut().filter(|(i, _)| *i >= first);
            late.for_each(|(_, a)| a.mask = Mask::Window(window));
        }
    }
    Ok(model)
}

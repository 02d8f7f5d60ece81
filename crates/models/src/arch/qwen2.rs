//! Qwen2: Llama with biases on queries, keys and values (found in the file).

use tokenmill_ir::RopePairing;

use super::{Arch, llama, mistral};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::ModelSpec;

pub const ARCH: Arch = Arch {
    name: "qwen2",
    // (The language models of Qwen2-VL and Qwen2.5-VL.)
    spellings: &["qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2vl"],
    spec,
};

pub fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    // A window, where it is used at all, starts at layer `max_window_layers`.
    let first = h.meta().opt_u32("max_window_layers")?.unwrap_or(0) as usize;
    with_windows(h, |i| i >= first)
}

/// The layers, those with a window where the model uses one.
pub fn with_windows(h: &Hyper<'_>, usual: impl Fn(usize) -> bool) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec_with(h, RopePairing::Half)?;
    let used = h.meta().opt_bool("use_sliding_window")?.unwrap_or(false);
    if used {
        mistral::windows(h, &mut model, usual)?;
    } else if !h.is_gguf() {
        h.opt_u32(WINDOW)?;
        h.kinds(&["full_attention"], |_| "full_attention")?;
    }
    Ok(model)
}

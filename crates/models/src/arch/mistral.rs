//! Mistral: Llama with a sliding window in early models, in some layers of Ministral.

use tokenmill_ir::Mask;

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::ModelSpec;

pub const ARCH: Arch = Arch { name: "mistral", spellings: &["mistral", "ministral"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec(h)?;
    windows(h, &mut model, |_| true)?;
    Ok(model)
}

/// Gives layers the window: those that the file lists, else the `usual` ones.
pub fn windows(
    h: &Hyper<'_>,
    model: &mut ModelSpec,
    usual: impl Fn(usize) -> bool,
) -> Result<(), ModelError> {
    let window = h.window()?;
    let kinds = h.kinds(&["full_attention", "sliding_attention"], |i| {
        if window.is_some() && usual(i) { "sliding_attention" } else { "full_attention" }
    })?;
    for (i, a) in model.attention_mut().filter(|(i, _)| kinds[*i] == "sliding_attention") {
        let Some(window) = window else {
            let found = format!("sliding_attention in layer {i}, without a window");
            return Err(ModelError::unsupported("layer_types", found));
        };
        a.mask = Mask::Window(window);
    }
    Ok(())
}

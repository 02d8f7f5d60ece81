//! SmolLM3: Llama with layers that have no positions.

use tokenmill_ir::MetaValue;

use super::{Arch, llama, mistral};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::ModelSpec;

pub const ARCH: Arch = Arch { name: "smollm3", spellings: &["smollm3"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec(h)?;
    without_positions(h, &mut model)?;
    // A window, where it is used at all, is of the layers without positions.
    let used = h.meta().opt_bool("use_sliding_window")?.unwrap_or(false);
    let bare: Vec<usize> =
        model.attention_mut().filter(|(_, a)| a.rope.is_none()).map(|(i, _)| i).collect();
    mistral::windows(h, &mut model, |i| used && bare.contains(&i))?;
    Ok(model)
}

/// Takes the rotation from layers whose `no_rope_layers` is 0; without that list, from every
/// `no_rope_layer_interval`-th.
pub fn without_positions(h: &Hyper<'_>, model: &mut ModelSpec) -> Result<(), ModelError> {
    // (Llama 4 takes an empty list for none.)
    let llama4 = h.class().is_some_and(|c| c.name == "llama4_text");
    let list = h.meta().opt_list("no_rope_layers")?.filter(|l| !l.is_empty() || !llama4);
    let every = h.meta().opt_u32("no_rope_layer_interval")?.unwrap_or(4).max(1) as usize;
    let layers = model.layers.len();
    if let Some(list) = list.filter(|l| l.len() < layers) {
        let found = format!("a list of {} for {layers} layers", list.len());
        return Err(ModelError::unsupported("no_rope_layers", found));
    }
    for (i, a) in model.attention_mut() {
        let bare = match list {
            Some(list) => list.get(i).and_then(MetaValue::as_u32) == Some(0),
            None => (i + 1) % every == 0,
        };
        if bare {
            a.rope = None;
        }
    }
    Ok(())
}

//! Command R7B: parallel residual, layer norms without bias, windows with positions and full layers
//! without.

use tokenmill_ir::{Mask, RopePairing};

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::*;

pub const ARCH: Arch = Arch { name: "cohere2", spellings: &["cohere2"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let m = h.meta();
    let norm = Norm::layer(h.f32(LAYER_EPS)?);
    let mut model = llama::spec_norm(h, RopePairing::Interleaved, norm)?;
    model.layers.iter_mut().for_each(|l| l.join = Join::Parallel);
    let window = h.u32(WINDOW)?;
    let pattern = m.opt_u32("sliding_window_pattern")?.unwrap_or(4).max(1) as usize;
    let types = m.opt_list("layer_types")?;
    for (i, a) in model.attention_mut() {
        let full = match types {
            Some(list) => list.get(i).and_then(|v| v.as_str()) == Some("full_attention"),
            None => (i + 1) % pattern == 0,
        };
        if full {
            a.rope = None;
        } else {
            a.mask = Mask::Window(window);
        }
    }
    let scale = h.opt_f32(LOGIT_SCALE)?.unwrap_or(0.0625);
    model.output = Output::Logits { scale, softcap: None };
    Ok(model)
}

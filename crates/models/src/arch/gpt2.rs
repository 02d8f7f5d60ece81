//! GPT-2: learned positions, layer norms, biases everywhere, matrices stored transposed.

use tokenmill_ir::{Act, RopePairing};

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{Ffn, ModelSpec, Norm};

pub const ARCH: Arch = Arch { name: "gpt2", spellings: &["gpt2"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec_norm(h, RopePairing::Half, Norm::layer(h.f32(LAYER_EPS)?))?;
    let scaled = h.meta().opt_bool("scale_attn_weights")?.unwrap_or(true);
    let by_layer = h.meta().opt_bool("scale_attn_by_inverse_layer_idx")?.unwrap_or(false);
    for (i, a) in model.attention_mut() {
        a.rope = None;
        let scale = if scaled { a.scale } else { 1.0 };
        a.scale = if by_layer { scale / (i + 1) as f32 } else { scale };
    }
    model.embed.positions = Some(0);
    let width = h.opt_u32(FFN)?.unwrap_or(4 * model.hidden);
    let act = h.activation(Act::GeluTanh)?;
    model.ffn_mut().for_each(|(_, f)| *f = Ffn::Plain { width, act });
    Ok(model)
}

//! GPT-2: learned positions, layer norms, biases everywhere, matrices stored transposed.

use tokenmill_ir::{Act, RopePairing};

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{Ffn, ModelSpec, Norm};

pub const ARCH: Arch = Arch { name: "gpt2", spellings: &["gpt2"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec_norm(h, RopePairing::Half, Norm::layer(h.f32(LAYER_EPS)?))?;
    model.attention_mut().for_each(|(_, a)| a.rope = None);
    model.embed.positions = Some(0);
    let width = h.opt_u32(FFN)?.unwrap_or(4 * model.hidden);
    let act = h.activation(Act::GeluTanh)?;
    model.ffn_mut().for_each(|(_, f)| *f = Ffn::Plain { width, act });
    Ok(model)
}

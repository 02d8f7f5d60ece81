//! GPT-NeoX and Pythia: parallel residual with a norm for each part, part of each head rotated,
//! queries, keys and values stored head by head.

use tokenmill_ir::{Act, RopePairing};

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{Join, ModelSpec, Norm};

pub const ARCH: Arch = Arch { name: "gpt_neox", spellings: &["gpt_neox", "gptneox"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec_norm(h, RopePairing::Half, Norm::layer(h.f32(LAYER_EPS)?))?;
    model.plain_ffn(h.activation(Act::Gelu)?);
    let own = h.own("use_parallel_residual", "use_parallel_residual");
    if h.meta().opt_bool(&own)?.unwrap_or(true) {
        model.layers.iter_mut().for_each(|l| l.join = Join::Parallel);
    }
    Ok(model)
}

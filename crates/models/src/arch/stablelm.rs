//! StableLM: layer norms, a quarter of each head rotated; in some models both parts of a layer read
//! one norm, and heads are normalised.

use tokenmill_ir::RopePairing;

use super::{Arch, cohere2, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::names::{Role, find_opt};
use crate::spec::{ModelSpec, Norm};

pub const ARCH: Arch = Arch { name: "stablelm", spellings: &["stablelm"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    if h.meta().opt_bool("qk_layernorm")?.unwrap_or(false) {
        return Err(ModelError::unsupported("qk_layernorm", true));
    }
    let mut model = llama::spec_norm(h, RopePairing::Half, Norm::layer(h.f32(LAYER_EPS)?))?;
    let parallel = find_opt(h.checkpoint(), Role::FfnNorm, 0, 0).is_none();
    let key = h.own("use_parallel_residual", "use_parallel_residual");
    if let Some(said) = h.meta().opt_bool(&key)?.filter(|said| *said != parallel) {
        let norms = if parallel { "one norm" } else { "two norms" };
        return Err(ModelError::unsupported(&key, format!("{said} with {norms} a layer")));
    }
    if parallel {
        cohere2::one_norm(&mut model);
    }
    Ok(model)
}

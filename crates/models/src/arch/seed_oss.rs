//! Seed-OSS: Llama with biases on queries, keys and values (found in the file).

use tokenmill_ir::RopePairing;

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::ModelSpec;

pub const ARCH: Arch = Arch { name: "seed_oss", spellings: &["seed_oss"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    llama::spec_with(h, RopePairing::Half)
}

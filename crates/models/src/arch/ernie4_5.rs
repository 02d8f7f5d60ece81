//! ERNIE 4.5: Llama that rotates pairs of neighbours.

use tokenmill_ir::RopePairing;

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::ModelSpec;

pub const ARCH: Arch = Arch { name: "ernie4_5", spellings: &["ernie4_5"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    llama::spec_with(h, RopePairing::Interleaved)
}

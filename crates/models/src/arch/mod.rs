//! One file per architecture: a function from hyper-parameters to a [`ModelSpec`].

mod bert;
mod cohere2;
mod deepseek_v3;
mod falcon_h1;
mod gemma2;
mod gemma3;
mod gpt_oss;
mod granite;
mod lfm2;
mod llama;
mod mistral;
mod mixtral;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod qwen3_next;

use tokenmill_ir::Checkpoint;

use crate::error::ModelError;
use crate::hyper::Hyper;
use crate::spec::ModelSpec;

/// An architecture.
#[derive(Debug, Clone, Copy)]
pub struct Arch {
    /// The folder of its golden test; also its name in the documentation.
    pub name: &'static str,
    /// How files spell it: `model_type` of config.json, `general.architecture` of GGUF.
    pub spellings: &'static [&'static str],
    /// What it is.
    pub spec: fn(&Hyper<'_>) -> Result<ModelSpec, ModelError>,
}

/// All architectures.
pub const ARCHS: &[Arch] = &[
    llama::ARCH,
    mistral::ARCH,
    mixtral::ARCH,
    qwen2::ARCH,
    qwen3::ARCH,
    qwen3_moe::ARCH,
    qwen3_next::ARCH,
    gemma2::ARCH,
    gemma3::ARCH,
    gpt_oss::ARCH,
    deepseek_v3::ARCH,
    falcon_h1::ARCH,
    lfm2::ARCH,
    cohere2::ARCH,
    phi3::ARCH,
    olmo2::ARCH,
    granite::ARCH,
    bert::ARCH,
];

/// The spec of a checkpoint.
pub fn spec_of(checkpoint: &Checkpoint) -> Result<ModelSpec, ModelError> {
    let hyper = Hyper::new(checkpoint);
    let found = hyper.arch_name()?;
    let arch = ARCHS.iter().find(|a| a.spellings.contains(&found)).ok_or_else(|| {
        let known: Vec<&str> = ARCHS.iter().flat_map(|a| a.spellings).copied().collect();
        ModelError::UnknownArch { found: found.to_owned(), known: known.join(", ") }
    })?;
    let mut spec = (arch.spec)(&hyper)?;
    spec.arch = arch.name;
    Ok(spec)
}

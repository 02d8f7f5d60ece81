//! One file per architecture: a function from hyper-parameters to a [`ModelSpec`].

mod arcee;
mod bert;
pub(crate) mod clip;
mod cohere;
mod cohere2;
mod deepseek_v2;
mod deepseek_v3;
mod ernie4_5;
mod exaone4;
mod falcon_h1;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm4;
mod glm4_moe;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod granitemoe;
mod lfm2;
mod llama;
mod llama4;
mod mamba2;
mod minimax_m2;
mod ministral3;
mod mistral;
mod mixtral;
mod modernbert;
mod nemotron;
mod nomic_bert;
mod olmo2;
mod olmo3;
mod olmoe;
mod phi;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_moe;
mod qwen3_next;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;
#[cfg(test)]
mod tests;

use tokenmill_ir::{Checkpoint, PoolKind};

use crate::error::{ModelError, shortened};
use crate::flags;
use crate::hyper::{FFN, Hyper};
use crate::limits::Checked;
use crate::spec::{Ffn, ModelSpec, Output};

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
    llama4::ARCH,
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
    smollm3::ARCH,
    gemma::ARCH,
    glm4::ARCH,
    glm4_moe::ARCH,
    deepseek_v2::ARCH,
    olmo3::ARCH,
    olmoe::ARCH,
    cohere::ARCH,
    exaone4::ARCH,
    starcoder2::ARCH,
    nemotron::ARCH,
    stablelm::ARCH,
    phi::ARCH,
    gpt2::ARCH,
    gpt_neox::ARCH,
    ministral3::ARCH,
    seed_oss::ARCH,
    arcee::ARCH,
    ernie4_5::ARCH,
    qwen2_moe::ARCH,
    granitemoe::ARCH,
    granite_hybrid::ARCH,
    mamba2::ARCH,
    minimax_m2::ARCH,
    gemma4::ARCH,
    gemma3n::ARCH,
    qwen3_5::ARCH,
    qwen3_5::MOE,
    bert::ARCH,
    bert::XLM_ROBERTA,
    bert::DISTILBERT,
    bert::ELECTRA,
    nomic_bert::ARCH,
    modernbert::ARCH,
    clip::ARCH,
    clip::SIGLIP,
];

/// The spec of a checkpoint.
pub fn spec_of(checkpoint: &Checkpoint) -> Result<ModelSpec, ModelError> {
    let hyper = Hyper::new(checkpoint)?;
    let found = hyper.arch_name();
    // (A config.json of a class that is not recorded could not be read without guessing.)
    let known = hyper.is_gguf() || hyper.class().is_some();
    let arch = ARCHS.iter().find(|a| known && a.spellings.contains(&found));
    let arch = arch.ok_or_else(|| unknown(found))?;
    let mut spec = (arch.spec)(&hyper)?;
    spec.arch = arch.name;
    spec.draft_layers = hyper.draft_layers()?;
    // The head of a decoder reads the last token.
    if hyper.is_classifier()? && matches!(spec.output, Output::Logits { .. }) {
        spec.output = Output::Score { kind: PoolKind::Last, act: None, norm: None };
    }
    // Layers whose width no key says.
    let none = |f: &Ffn| matches!(f, Ffn::Gated { width: 0, .. } | Ffn::Plain { width: 0, .. });
    if spec.ffn_mut().any(|(_, ffn)| none(ffn)) {
        hyper.u32(FFN)?;
    }
    if let (Some(kind), false) = (hyper.pooling()?, matches!(spec.output, Output::Score { .. })) {
        spec.output = Output::Pooled { kind, normalise: true };
    }
    Checked::of(&spec, checkpoint.tensors.len(), &|key| hyper.name(key))?;
    flags::check(&hyper, &spec)?;
    hyper.check_all_read()?;
    Ok(spec)
}

/// The error of a name that no architecture has.
fn unknown(found: &str) -> ModelError {
    const BEGINNING: usize = 4;
    let begins = |name: &&str| {
        found.get(..BEGINNING).is_some_and(|begin| name.starts_with(&begin.to_ascii_lowercase()))
    };
    let near: Vec<&str> = ARCHS.iter().flat_map(|a| a.spellings).copied().filter(begins).collect();
    let near = match near.as_slice() {
        [] => String::new(),
        near => format!(" ({})", near[..near.len().min(10)].join(", ")),
    };
    ModelError::UnknownArch { found: shortened(found.to_owned()), near }
}

//! Nomic BERT: BERT with rotary positions and a gated feed-forward part.

use tokenmill_ir::{Act, RopePairing};

use super::{Arch, bert};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::*;

pub const ARCH: Arch = Arch { name: "nomic_bert", spellings: &["nomic_bert", "nomic-bert"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = bert::spec(h)?;
    model.embed.positions = None;
    let rope = h.rope(h.head_dim()?, RopePairing::Half)?;
    model.context = model.context.min(h.short_context(&rope.scaling)?.unwrap_or(u32::MAX));
    model.attention_mut().for_each(|(_, a)| a.rope = Some(rope.clone()));
    let act = h.activation(Act::Silu)?;
    for (_, f) in model.ffn_mut() {
        if let Ffn::Plain { width, .. } = *f {
            *f = Ffn::gated(width, act);
        }
    }
    Ok(model)
}

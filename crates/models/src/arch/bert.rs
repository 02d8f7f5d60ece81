//! BERT, MiniLM, RoBERTa, XLM-R, DistilBERT and ELECTRA: learned positions, norms after each sum,
//! attention in both directions, pooled.

use tokenmill_ir::{Act, Mask, PoolKind, Unary};

use super::Arch;
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::*;

pub const ARCH: Arch = Arch { name: "bert", spellings: &["bert"], spec };
pub const XLM_ROBERTA: Arch = Arch {
    name: "xlm_roberta",
    spellings: &["xlm-roberta", "roberta", "camembert"],
    spec: roberta,
};

pub const DISTILBERT: Arch =
    Arch { name: "distilbert", spellings: &["distilbert"], spec: distilbert };
pub const ELECTRA: Arch = Arch { name: "electra", spellings: &["electra"], spec: electra };

/// Its epsilon is no key; behind the dense part of its classifier is no tangent.
fn distilbert(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = spec_of(h, 1e-12)?;
    if let Output::Score { act, .. } = &mut model.output {
        *act = Some(Unary::Act(Act::Relu));
    }
    Ok(model)
}

/// Embeddings may be narrower than the layers.
fn electra(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = spec(h)?;
    let width = h.meta().opt_u32("embedding_size")?;
    model.embed.width = width.filter(|&width| width != model.hidden);
    if let Output::Score { act, .. } = &mut model.output {
        *act = Some(Unary::Act(Act::Gelu));
    }
    Ok(model)
}

/// Positions begin after the padding token's.
fn roberta(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = spec(h)?;
    let first = h.meta().opt_u32("pad_token_id")?.unwrap_or(1) + 1;
    model.embed.positions = Some(first);
    model.context = model.context.saturating_sub(first);
    Ok(model)
}

pub fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    spec_of(h, h.f32(LAYER_EPS)?)
}

fn spec_of(h: &Hyper<'_>, eps: f32) -> Result<ModelSpec, ModelError> {
    if h.meta().opt_bool("is_decoder")?.unwrap_or(false) {
        // Its tokens would not see those behind them.
        return Err(ModelError::unsupported("is_decoder", true));
    }
    let norm = Norm::layer(eps);
    let heads = h.u32(HEADS)?;
    let attention = Attention::plain(heads, h.head_dim()?, Mask::None);
    let ffn = Ffn::Plain { width: h.u32(FFN)?, act: h.activation(Act::Gelu)? };
    let after = |body| Branch { norm_in: None, norm_sum: Some(norm), ..Branch::pre(norm, body) };
    let layer = Layer {
        branches: vec![after(Body::Mix(vec![Mixer::Attention(attention)])), after(Body::Ffn(ffn))],
        join: Join::Sequential,
        scaled: false,
    };
    Ok(ModelSpec {
        arch: ARCH.name,
        vocab: h.vocab()?,
        hidden: h.u32(HIDDEN)?,
        context: h.u32(CONTEXT)?,
        embed: Embed { positions: Some(0), norm: Some(norm), ..Embed::PLAIN },
        layers: vec![layer; h.layers()? as usize],
        final_norm: None,
        // The classifier's dense part is the pooler, or is called so.
        output: match h.is_classifier()? {
            true => Output::Score { kind: PoolKind::First, act: Some(Unary::Tanh), norm: None },
            false => Output::Pooled { kind: PoolKind::Mean, normalise: true },
        },
        streams: None,
        draft_layers: 0,
        media: 0,
    })
}

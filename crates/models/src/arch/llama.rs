//! Llama: pre-norm, grouped-query attention with rotary positions, gated feed-forward.

use tokenmill_ir::{Act, Mask, RopePairing};

use super::{Arch, mixtral};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::*;

pub const ARCH: Arch = Arch { name: "llama", spellings: &["llama"], spec: spec_or_experts };

fn spec_or_experts(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    // GGUF calls Mixtral so too.
    match h.is_gguf() && h.opt_u32(EXPERTS)?.is_some_and(|n| n > 0) {
        true => mixtral::spec(h),
        false => spec(h),
    }
}

pub fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    // llama.cpp's converter permutes query and key rows of this family to pair neighbours.
    let pairing = if h.is_gguf() { RopePairing::Interleaved } else { RopePairing::Half };
    spec_with(h, pairing)
}

/// The same layers with another pairing of rotated columns.
pub fn spec_with(h: &Hyper<'_>, pairing: RopePairing) -> Result<ModelSpec, ModelError> {
    spec_norm(h, pairing, Norm::rms(h.f32(RMS_EPS)?))
}

/// The same layers with another norm too.
pub fn spec_norm(h: &Hyper<'_>, pairing: RopePairing, norm: Norm) -> Result<ModelSpec, ModelError> {
    let heads = h.u32(HEADS)?;
    let head_dim = h.head_dim()?;
    let rope = h.rope(head_dim, pairing)?;
    // Only short factors are computed, so sequences end where they stop holding.
    let short = h.short_context(&rope.scaling)?.unwrap_or(u32::MAX);
    let act = h.activation(Act::Silu)?;
    let layer = |i: usize| -> Result<Layer, ModelError> {
        let attention = Attention {
            heads,
            kv_heads: h.layer_u32(KV_HEADS, i)?.unwrap_or(heads),
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            rope: Some(rope.clone()),
            position_scale: None,
            qk_norm: QkNorm::None,
            v_norm: None,
            kv: KvSource::Own,
            mask: Mask::Causal,
            softcap: None,
            sinks: false,
            gated: false,
            multipliers: Multipliers::ONE,
            blocks: false,
        };
        let width = h.layer_u32(FFN, i)?.unwrap_or(0);
        Ok(Layer {
            branches: vec![
                Branch::pre(norm, Body::Mix(vec![Mixer::Attention(attention)])),
                Branch::pre(norm, Body::Ffn(Ffn::gated(width, act))),
            ],
            join: Join::Sequential,
            scaled: false,
        })
    };
    Ok(ModelSpec {
        arch: ARCH.name,
        vocab: h.vocab()?,
        hidden: h.u32(HIDDEN)?,
        context: h.u32(CONTEXT)?.min(short),
        embed: Embed::PLAIN,
        layers: (0..h.layers()? as usize).map(layer).collect::<Result<_, _>>()?,
        final_norm: Some(norm),
        output: Output::Logits { scale: 1.0, softcap: None },
        streams: None,
        draft_layers: 0,
        media: 0,
    })
}

//! BERT and MiniLM: learned positions, norms after each sum, attention in both directions, pooled.

use tokenmill_ir::{Act, Mask, PoolKind};

use super::Arch;
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::*;

pub const ARCH: Arch = Arch { name: "bert", spellings: &["bert"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let norm = Norm::layer(h.f32(LAYER_EPS)?);
    let heads = h.u32(HEADS)?;
    let head_dim = h.head_dim()?;
    let attention = Attention {
        heads,
        kv_heads: heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        rope: None,
        qk_norm: QkNorm::None,
        mask: Mask::None,
        softcap: None,
        sinks: false,
        gated: false,
        multipliers: Multipliers::ONE,
    };
    let ffn = Ffn::Plain { width: h.u32(FFN)?, act: h.activation(Act::Gelu)? };
    let after = |body| Branch { norm_in: None, norm_sum: Some(norm), ..Branch::pre(norm, body) };
    let layer = Layer {
        branches: vec![after(Body::Mix(vec![Mixer::Attention(attention)])), after(Body::Ffn(ffn))],
        join: Join::Sequential,
    };
    Ok(ModelSpec {
        arch: ARCH.name,
        vocab: h.vocab()?,
        hidden: h.u32(HIDDEN)?,
        context: h.u32(CONTEXT)?,
        embed: Embed { scale: 1.0, learned_positions: true, norm: Some(norm) },
        layers: vec![layer; h.u32(LAYERS)? as usize],
        final_norm: None,
        output: Output::Pooled { kind: PoolKind::Mean, normalise: true },
    })
}

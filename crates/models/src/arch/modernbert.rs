//! ModernBERT: norms before each part (the first layer's is the embedding's), rotary positions, two
//! layers of nearby keys to one of all.

use tokenmill_ir::{Act, Mask, PoolKind, RopePairing, Unary};

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::*;

pub const ARCH: Arch = Arch { name: "modernbert", spellings: &["modernbert", "modern-bert"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let m = h.meta();
    let norm = Norm::layer(h.f32(LAYER_EPS)?);
    let mut model = llama::spec_norm(h, RopePairing::Half, norm)?;
    model.embed.norm = Some(norm);
    if let Some(first) = model.layers.first_mut() {
        first.branches[0].norm_in = None;
    }
    let near = m.u32(&h.own("local_attention", "attention.sliding_window"))? / 2;
    let full = h.full_layers(3, true)?;
    let theta = |nested: &str, flat: String| -> Result<f64, ModelError> {
        match m.opt_f64(&flat)? {
            Some(theta) => Ok(theta),
            None => h.theta(nested),
        }
    };
    let global = theta("full_attention", h.own("global_rope_theta", "rope.freq_base"))?;
    let local = theta("sliding_attention", h.own("local_rope_theta", "rope.freq_base_swa"))?;
    for (i, a) in model.attention_mut() {
        a.mask = if full[i] { Mask::None } else { Mask::Around(near) };
        a.rope.iter_mut().for_each(|r| r.theta = if full[i] { global } else { local });
    }
    let act = h.activation(Act::Gelu)?;
    for (_, f) in model.ffn_mut() {
        if let Ffn::Gated { width, .. } = *f {
            *f = Ffn::gated(width, act);
        }
    }
    model.output = Output::Pooled { kind: PoolKind::Mean, normalise: true };
    if h.is_classifier()? {
        let kind = match m.opt_str("classifier_pooling")? {
            None | Some("cls") => PoolKind::First,
            Some("mean") => PoolKind::Mean,
            Some(other) => return Err(ModelError::unsupported("classifier_pooling", other)),
        };
        let act = match m.opt_str("classifier_activation")? {
            None => Act::Gelu,
            Some(name) => Hyper::activation_of("classifier_activation", name)?,
        };
        model.output = Output::Score { kind, act: Some(Unary::Act(act)), norm: Some(norm) };
    }
    Ok(model)
}

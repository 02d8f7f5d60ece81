//! LFM2: gated short convolutions with attention in a few layers.

use super::{Arch, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::*;
use tokenmill_ir::RopePairing;

pub const ARCH: Arch = Arch { name: "lfm2", spellings: &["lfm2"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let m = h.meta();
    let mut model = llama::spec_with(h, RopePairing::Half)?;
    let norm = Norm::rms(h.f32(RMS_EPS)?);
    model.attention_mut().for_each(|(_, a)| a.qk_norm = QkNorm::Head(norm));
    let kernel = m.u32(&h.own("conv_L_cache", "shortconv.l_cache"))?;
    let listed = m.opt_list("full_attn_idxs")?;
    let full = |i: usize| listed.is_none_or(|l| l.iter().any(|v| v.as_u32() == Some(i as u32)));
    let kinds = h.kinds(&["full_attention", "conv"], |i| match full(i) {
        true => "full_attention",
        false => "conv",
    })?;
    for (i, layer) in model.layers.iter_mut().enumerate() {
        let attends = match h.is_gguf() {
            true => h.layer_u32(KV_HEADS, i)? != Some(0),
            false => kinds[i] == "full_attention",
        };
        if !attends {
            layer.branches[0].body = Body::Mix(vec![Mixer::ShortConv(ShortConv { kernel })]);
        }
    }
    let width = ffn_width(h)?;
    for (_, f) in model.ffn_mut() {
        *f = Ffn::gated(width, tokenmill_ir::Act::Silu);
    }
    Ok(model)
}

/// Two thirds of the stated width, times a factor, rounded up to a multiple.
fn ffn_width(h: &Hyper<'_>) -> Result<u32, ModelError> {
    let m = h.meta();
    let stated = match m.opt_u32("block_ff_dim")? {
        Some(width) => width,
        None => h.u32(FFN)?,
    };
    if h.is_gguf() || !m.opt_bool("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(stated);
    }
    let factor = m.opt_f64("block_ffn_dim_multiplier")?.unwrap_or(1.0);
    let multiple = m.opt_u32("block_multiple_of")?.unwrap_or(256).max(1);
    let width = (f64::from(2 * stated / 3) * factor) as u32;
    Ok(width.div_ceil(multiple).saturating_mul(multiple))
}

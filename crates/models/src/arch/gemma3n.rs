//! Gemma 3n, its text part: Gemma 4's small models with several streams, a low-rank path beside each
//! mixer, and layers whose gates are mostly zero.

use tokenmill_ir::{Act, Mask, MetaValue, RopePairing};

use super::{Arch, gemma3, gemma4, llama};
use crate::error::ModelError;
use crate::hyper::*;
use crate::names::{Role, find};
use crate::spec::*;

pub const ARCH: Arch = Arch { name: "gemma3n", spellings: &["gemma3n", "gemma3n_text"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = llama::spec_with(h, RopePairing::Half)?;
    let norm = Norm::rms(h.f32(RMS_EPS)?);
    let act = h.activation(Act::GeluTanh)?;
    let full = h.full_layers("sliding_attention", 5, false)?;
    let window = h.u32(WINDOW)?;
    let full_rope = (h.theta("full_attention")?, h.rope_scaling("full_attention")?);
    let local_rope = match h.is_gguf() {
        true => (gemma3::local_theta(h)?, full_rope.1.clone()),
        false => (gemma3::local_theta(h)?, h.rope_scaling("sliding_attention")?),
    };
    for (i, a) in model.attention_mut() {
        (a.scale, a.qk_norm, a.v_norm) = (1.0, QkNorm::Head(norm), Some(norm));
        let Some(rope) = &mut a.rope else { continue };
        let (theta, scaling) = if full[i] { &full_rope } else { &local_rope };
        (rope.theta, rope.scaling) = (*theta, scaling.clone());
        if !full[i] {
            a.mask = Mask::Window(window);
        }
    }
    gemma4::share_keys(h, &mut model, &full)?;
    let cutoffs = cutoffs(h, model.layers.len())?;
    for (i, f) in model.ffn_mut() {
        if let Ffn::Gated { width, .. } = *f {
            *f = Ffn::gated(width, act);
        }
        if let Ffn::Gated { cutoff, .. } = f {
            *cutoff = cutoffs[i];
        }
    }
    model.branches_mut().for_each(|b| b.norm_out = Some(norm));
    gemma4::layer_inputs(h, &mut model, norm, act)?;
    model.streams = Some(streams(h, norm)?);
    model.embed.scale = (model.hidden as f32).sqrt();
    model.output = Output::Logits { scale: 1.0, softcap: h.opt_f32(FINAL_SOFTCAP)? };
    Ok(model)
}

fn streams(h: &Hyper<'_>, norm: Norm) -> Result<Streams, ModelError> {
    let m = h.meta();
    let active = m.opt_u32(&h.own("altup_active_idx", "altup.active_idx"))?.unwrap_or(0);
    if active != 0 {
        return Err(ModelError::unsupported("altup_active_idx", active));
    }
    // llama.cpp's files do not say it.
    let rank = u32::try_from(find(h.checkpoint(), Role::LowRankDown, 0)?.rows()).unwrap_or(0);
    if let Some(other) = m.opt_u32("laurel_rank")?.filter(|r| *r != rank) {
        return Err(ModelError::unsupported("laurel_rank", format!("{other} beside {rank} rows")));
    }
    let scaled = m.opt_bool("altup_correct_scale")?.unwrap_or(true);
    if !scaled && find(h.checkpoint(), Role::StreamScale, 0).is_ok() {
        let found = "false beside the tensor it is about";
        return Err(ModelError::unsupported("altup_correct_scale", found));
    }
    Ok(Streams {
        count: m.opt_u32(&h.own("altup_num_inputs", "altup.num_inputs"))?.unwrap_or(4),
        norm,
        rank,
        scaled,
    })
}

/// Above how many standard deviations gates count, for each layer; none: all do.
fn cutoffs(h: &Hyper<'_>, layers: usize) -> Result<Vec<Option<f32>>, ModelError> {
    let key = h.own("activation_sparsity_pattern", "activation_sparsity_scale");
    let list = h.meta().opt_list(&key)?;
    if let Some(list) = list.filter(|l| l.len() != layers) {
        let found = format!("a list of {} for {layers} layers", list.len());
        return Err(ModelError::unsupported(&key, found));
    }
    let cutoff = |i: usize| -> Result<Option<f32>, ModelError> {
        let number = match list.and_then(|l| l.get(i)) {
            // (GGUF has deviations: −∞ where all count.)
            Some(MetaValue::Float(x)) if h.is_gguf() && *x == f64::NEG_INFINITY => None,
            Some(value) => Some(h.meta().real(&key, value)?),
            None if !h.is_gguf() && layers > 10 && i < 10 => Some(0.95),
            None => None,
        };
        Ok(match h.is_gguf() {
            true => number.filter(|d| *d > -100.0).map(|d| d as f32),
            false => number.filter(|p| *p > 0.0).map(|p| deviations(p) as f32),
        })
    };
    (0..layers).map(cutoff).collect()
}

/// Standard deviations below which a `part` (0 < part < 1) of normally distributed numbers lies.
fn deviations(part: f64) -> f64 {
    if part < 0.5 {
        return -deviations(1.0 - part);
    }
    let mut z = 0.0f64;
    for _ in 0..64 {
        // Φ(z) = ½ + φ(z) · (z + z³/3 + z⁵/15 + …); Newton's steps come from below.
        let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let (mut sum, mut term) = (0.0, z);
        for i in 1..200 {
            sum += term;
            term *= z * z / f64::from(2 * i + 1);
        }
        z += (part - 0.5 - density * sum) / density;
    }
    z
}

#[cfg(test)]
mod tests {
    #[test]
    fn deviations_are_quantiles_of_the_normal_distribution() {
        for (part, expect) in [(0.5, 0.0), (0.95, 1.644_853_626_951_472), (0.1, -1.281_551_565_5)] {
            let found = super::deviations(part);
            assert!((found - expect).abs() < 1e-9, "{part}: {found}");
        }
    }
}

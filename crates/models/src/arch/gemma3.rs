//! Gemma 3: Gemma 2's sandwich with head norms, five windowed layers to a full one, and a rotary
//! base for each kind.

use tokenmill_ir::Mask;

use super::{Arch, gemma2};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{ModelSpec, QkNorm, RopeScaling};

pub const ARCH: Arch = Arch { name: "gemma3", spellings: &["gemma3", "gemma3_text"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = gemma2::sandwich(h, 62)?;
    let norm = gemma2::gemma_norm(h)?;
    let window = h.u32(WINDOW)?;
    let full = h.full_layers("sliding_attention", 6, false)?;
    let local_theta = local_theta(h)?;
    let (theta, scaling) = (h.theta("full_attention")?, h.rope_scaling("full_attention")?);
    let local_scaling = match h.is_gguf() {
        true => RopeScaling::None,
        false => h.rope_scaling("sliding_attention")?,
    };
    for (i, a) in model.attention_mut() {
        a.qk_norm = QkNorm::Head(norm);
        let Some(rope) = &mut a.rope else { continue };
        if full[i] {
            (rope.theta, rope.scaling) = (theta, scaling.clone());
        } else {
            (rope.theta, rope.scaling) = (local_theta, local_scaling.clone());
            a.mask = Mask::Window(window);
        }
    }
    Ok(model)
}

/// The rotary base of windowed layers.
pub fn local_theta(h: &Hyper<'_>) -> Result<f64, ModelError> {
    match h.is_gguf() {
        true => {
            let base = |key: &str| h.meta().opt_f64(&h.own("", key));
            let theta = base("rope.freq_base_swa")?.or(base("rope.local.freq_base")?);
            Ok(theta.or(base("rope.freq_base_local")?).unwrap_or(10_000.0))
        }
        false => h.theta("sliding_attention"),
    }
}

//! OLMo 3: OLMo 2 with windows; only full layers stretch their rotation.

use tokenmill_ir::Mask;

use super::{Arch, olmo2};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{ModelSpec, RopeScaling};

pub const ARCH: Arch = Arch { name: "olmo3", spellings: &["olmo3"], spec };

pub fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = olmo2::plain(h)?;
    let window = h.u32(WINDOW)?;
    let full = h.full_layers("sliding_attention", 4, false)?;
    let (theta, scaling) = (h.theta("full_attention")?, h.rope_scaling("full_attention")?);
    let (local, local_scaling) = match h.is_gguf() {
        true => {
            let local = h.meta().opt_f64(&h.own("", "rope.freq_base_swa"))?;
            (local.unwrap_or(theta), RopeScaling::None)
        }
        false => (h.theta("sliding_attention")?, h.rope_scaling("sliding_attention")?),
    };
    for (i, a) in model.attention_mut() {
        if !full[i] {
            a.mask = Mask::Window(window);
        }
        if let Some(r) = &mut a.rope {
            (r.theta, r.scaling) =
                if full[i] { (theta, scaling.clone()) } else { (local, local_scaling.clone()) };
        }
    }
    Ok(model)
}

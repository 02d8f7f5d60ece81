//! EXAONE 4: OLMo 2's norms after each part, head norms; the hybrid models have windows with
//! positions and full layers without.

use tokenmill_ir::Mask;

use super::{Arch, olmo2};
use crate::error::ModelError;
use crate::hyper::*;
use crate::spec::{ModelSpec, Norm, QkNorm};

pub const ARCH: Arch = Arch { name: "exaone4", spellings: &["exaone4"], spec };

fn spec(h: &Hyper<'_>) -> Result<ModelSpec, ModelError> {
    let mut model = olmo2::plain(h)?;
    let norm = Norm::rms(h.f32(RMS_EPS)?);
    let window = h.window()?;
    let full = h.full_layers("sliding_attention", 4, false)?;
    for (i, a) in model.attention_mut() {
        a.qk_norm = QkNorm::Head(norm);
        let Some(window) = window else {
            if h.meta().is_written("layer_types") && !full[i] {
                return Err(ModelError::unsupported("sliding_window", "null beside such layers"));
            }
            continue;
        };
        if full[i] {
            a.rope = None;
        } else {
            a.mask = Mask::Window(window);
        }
    }
    Ok(model)
}

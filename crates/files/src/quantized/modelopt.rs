//! NVIDIA ModelOpt: NVFP4 (`.weight` u8, `.weight_scale` e4m3, `.weight_scale_2` f32, which
//! multiplies) and FP8 (`.weight` e4m3, `.weight_scale` f32).

use super::fp4::{self, Global};
use super::fp8;
use super::module::{Assembly, scalar};
use crate::error::LoadError;

pub(super) fn assemble(to: &mut Assembly<'_>) -> Result<(), LoadError> {
    to.drop_activation_scales();
    for module in to.take("weight_scale_2", &["weight", "weight_scale", "weight_scale_2"]) {
        let global = Global::Times(scalar(to.files, module.piece("weight_scale_2")?)?);
        fp4::push(&module, ["weight", "weight_scale"], global, to)?;
    }
    for module in to.take("weight_scale", &["weight", "weight_scale"]) {
        fp8::push(&module, module.piece("weight")?.clone(), "weight_scale", None, to)?;
    }
    Ok(())
}

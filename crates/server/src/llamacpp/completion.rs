//! POST /completion and /completions

use super::answer::answered;
use super::content::{has_images, no_media, prompts_of, shown};
use super::options;
use crate::ask::{Ask, Generate, Input};
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Notes};

/// Reads a request for text behind one prompt or several.
///
/// # Errors
/// 400 of the request.
pub fn read(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let model = fields.text("model")?;
    let input = match fields.require("prompt")? {
        one if has_images(&one) => shown(one, "prompt", notes)?,
        other => {
            let prompts = prompts_of(other, limits.prompts, "prompt", notes)?;
            Input::Prompts { prompts, echo: false, suffix: None }
        }
    };
    for name in ["image_data", "multimodal_data"] {
        no_media(&mut fields, name)?;
    }
    let (manner, form) = options::read(&mut fields, limits, notes)?;
    options::finish(fields, notes)?;
    Ok(answered(Generate { model, input, manner }, form))
}

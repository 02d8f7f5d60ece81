//! POST /completion and /completions

use super::answer::answered;
use super::content::{no_media, prompts_of};
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
    let prompts = prompts_of(fields.require("prompt")?, limits.prompts, "prompt", notes)?;
    for name in ["image_data", "multimodal_data"] {
        no_media(&mut fields, name)?;
    }
    let (manner, form) = options::read(&mut fields, limits, notes)?;
    options::finish(fields, notes)?;
    let input = Input::Prompts { prompts, echo: false, suffix: None };
    Ok(answered(Generate { model, input, manner }, form))
}

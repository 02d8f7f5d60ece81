//! POST /infill: what stands between two texts, perhaps beside other files.

use serde_json::Value;

use super::answer::answered;
use super::options;
use crate::ask::{Ask, Generate, Infill, Input};
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Notes, list, text};

/// The name of a file that has none.
const UNNAMED: &str = "tmp";

/// Reads a request for the middle of a text. What is typed already (`prompt`) goes on from what is before it.
///
/// # Errors
/// 400 of the request.
pub fn read(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let model = fields.text("model")?;
    let mut before = text(fields.require("input_prefix")?, "input_prefix")?;
    let behind = text(fields.require("input_suffix")?, "input_suffix")?;
    before.extend(fields.text("prompt")?);
    let files = match fields.take("input_extra") {
        Some(value) => files(value, limits.inputs, notes)?,
        None => Vec::new(),
    };
    let (manner, form) = options::read(&mut fields, limits, notes)?;
    options::finish(fields, notes)?;
    let input = Input::Infill(Infill { before, behind, files });
    Ok(answered(Generate { model, input, manner }, form))
}

/// Names and texts of files.
fn files(value: Value, most: usize, notes: &mut Notes) -> Result<Vec<(String, String)>, ApiError> {
    let one = |(i, item)| {
        let mut fields = Fields::of(item, &format!("input_extra[{i}]"))?;
        let found = text(fields.require("text")?, &fields.path("text"))?;
        let name = fields.text("filename")?.unwrap_or_else(|| UNNAMED.to_owned());
        fields.finish(&[], notes)?;
        Ok((name, found))
    };
    list(value, most, "input_extra")?.into_iter().enumerate().map(one).collect()
}

//! Embedding requests: texts or tokens in, one vector each.

use base64::prelude::{BASE64_STANDARD, Engine};
use serde::Serialize;

use super::completion::prompts_of;
use super::parameters::{IGNORED, timeout};
use crate::ask::{Ask, Found, Measure, Numbers, NumbersHead};
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Notes};

/// Reads an embedding request.
///
/// # Errors
/// 400 of the request.
pub fn read(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let model = fields.text("model")?;
    let inputs = prompts_of(fields.require("input")?, limits.inputs, "input")?;
    let dimensions = fields.count("dimensions", 1..=u32::MAX)?;
    let base64 = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => {
            let message = "encoding_format must be \"float\" or \"base64\"";
            return Err(ApiError::bad("encoding_format", message));
        }
    };
    let (user, timeout) = (fields.text("user")?, timeout(&mut fields)?);
    fields.finish(IGNORED, notes)?;
    let measure = Measure::Embed { inputs, dimensions };
    let write = Box::new(move |head: &NumbersHead, found| body(head, found, base64));
    Ok(Ask::Numbers { ask: Numbers { model, measure, user, timeout }, write })
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Item>,
    model: &'a str,
    usage: Usage,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
}

#[derive(Serialize)]
struct Item {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Numbers(Vec<f32>),
    Base64(String),
}

/// Tokens taken; requests for numbers have no others.
#[derive(Serialize)]
pub struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
}

impl Usage {
    /// Of those answers.
    pub fn of(found: &Found) -> Self {
        Self { prompt_tokens: found.prompt_tokens, total_tokens: found.prompt_tokens }
    }
}

/// The answer.
fn body(head: &NumbersHead, found: Found, in_base64: bool) -> String {
    let usage = Usage::of(&found);
    let item = |(index, numbers): (usize, Vec<f32>)| {
        let embedding = match in_base64 {
            true => Vector::Base64(base64(&numbers)),
            false => Vector::Numbers(numbers),
        };
        Item { object: "embedding", index, embedding }
    };
    let data = found.rows.into_iter().enumerate().map(item).collect();
    let (model, warnings) = (&*head.model, &*head.warnings);
    let list = List { object: "list", data, model, usage, warnings };
    serde_json::to_string(&list).unwrap_or_default() // (numbers and texts always are JSON)
}

/// Little-endian f32s as base64 (RFC 4648, padded).
fn base64(numbers: &[f32]) -> String {
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_base64() {
        let cases: &[(&[f32], &str)] = &[
            (&[], ""),
            (&[1.0], "AACAPw=="),
            (&[1.0, -2.5], "AACAPwAAIMA="),
            (&[0.0, 1.0, 0.5], "AAAAAAAAgD8AAAA/"),
        ];
        for (numbers, expect) in cases {
            assert_eq!(base64(numbers), *expect, "{numbers:?}");
        }
    }
}

//! Embedding requests: texts or tokens in, one vector each.

use axum::Json;
use axum::response::{IntoResponse, Response};
use base64::prelude::{BASE64_STANDARD, Engine};
use serde::Serialize;
use tokenmill_engine::Rows;
use tokenmill_text::Special;

use super::completion::{Prompt, prompts_of};
use super::parameters::{IGNORED, timeout};
use super::rows::{Asked, check};
use super::{not_encoded, reach};
use crate::error::ApiError;
use crate::fields::{Fields, Notes};
use crate::shared::Shared;
use crate::workshop::Wanted;

/// What the answer needs beside the rows.
pub struct Form {
    model: String,
    /// Columns kept; the rest is cut off and the length made 1 again.
    dimensions: Option<u32>,
    base64: bool,
    warnings: Vec<String>,
}

/// Reads an embedding request and tokenises it.
///
/// # Errors
/// 400 and 404 of the request.
pub fn prepare(
    shared: &Shared,
    mut fields: Fields,
    wanted: Wanted<'_>,
) -> Result<Asked<Form>, ApiError> {
    let name = fields.text("model")?;
    let given = prompts_of(fields.require("input")?, shared.config.limits.inputs, "input")?;
    let model = shared.model(name.as_deref())?.clone();
    let served = &model.served;
    if served.engine.vocab() > 0 || served.engine.width() == 1 {
        let message = format!("the model {:?} gives no embeddings", served.name());
        return Err(ApiError::unsupported("model", message));
    }
    let width = served.engine.width();
    let dimensions = fields.count("dimensions", 1..=width)?;
    let base64 = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => {
            let message = "encoding_format must be \"float\" or \"base64\"";
            return Err(ApiError::bad("encoding_format", message));
        }
    };
    let (user, timeout) = (fields.text("user")?, timeout(&mut fields)?);
    let mut notes = Notes::new(shared.config.strict);
    fields.finish(IGNORED, &mut notes)?;
    let warnings = shared.told(notes);
    let encoder = served.tokenizer.within(reach(&model, wanted));
    let tokens = |prompt| match prompt {
        Prompt::Tokens(ids) => Ok(ids),
        // The text is data: control tokens spelled out in it are text.
        Prompt::Text(text) => encoder.prompt(&text, Special::Plain),
    };
    let inputs: Result<Vec<_>, _> = given.into_iter().map(tokens).collect();
    let inputs = inputs.map_err(|e| not_encoded(e, &model, "input"))?;
    check(&model, &inputs, "input")?;
    let form = Form { model: served.name().to_owned(), dimensions, base64, warnings };
    Ok(Asked { model, inputs, seconds: Vec::new(), user, timeout, rest: form })
}

#[derive(Serialize)]
struct List {
    object: &'static str,
    data: Vec<Item>,
    model: String,
    usage: Usage,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
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
    pub fn of(answers: &[Rows]) -> Self {
        let tokens = answers.iter().map(|a| u64::from(a.prompt_tokens)).sum();
        Self { prompt_tokens: tokens, total_tokens: tokens }
    }
}

/// The answer.
pub fn answer(_: &Shared, form: Form, rows: Vec<Rows>) -> Response {
    let usage = Usage::of(&rows);
    let item = |(index, row): (usize, Rows)| {
        let numbers = match form.dimensions {
            Some(columns) => shortened(row.numbers, columns as usize),
            None => row.numbers,
        };
        let embedding = match form.base64 {
            true => Vector::Base64(base64(&numbers)),
            false => Vector::Numbers(numbers),
        };
        Item { object: "embedding", index, embedding }
    };
    let data = rows.into_iter().enumerate().map(item).collect();
    let list = List { object: "list", data, model: form.model, usage, warnings: form.warnings };
    Json(list).into_response()
}

/// The first columns, of length 1.
fn shortened(mut numbers: Vec<f32>, columns: usize) -> Vec<f32> {
    numbers.truncate(columns);
    let length = numbers.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        numbers.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
    numbers
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

    #[test]
    fn fewer_dimensions_have_length_one() {
        assert_eq!(shortened(vec![3.0, 4.0, 12.0], 2), [0.6, 0.8]);
        assert_eq!(shortened(vec![0.0, 0.0, 1.0], 2), [0.0, 0.0]);
    }
}

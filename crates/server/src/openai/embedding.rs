//! Embedding requests: texts, tokens or images in, one vector each.

use base64::prelude::{BASE64_STANDARD, Engine};
use serde::Serialize;

use serde_json::Value;

use super::chat::image_of;
use super::completion::{ids, prompts_of};
use super::parameters::{IGNORED, timeout};
use crate::ask::{Ask, Found, Item as Asked, Measure, Numbers, NumbersHead, Prompt};
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Notes, list, wrong};
use crate::images;

/// Reads an embedding request.
///
/// # Errors
/// 400 of the request.
pub fn read(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let model = fields.text("model")?;
    let inputs = inputs(&mut fields, limits, notes)?;
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

/// What becomes vectors: `input`, or vLLM's `messages`.
fn inputs(fields: &mut Fields, limits: &Limits, notes: &mut Notes) -> Result<Vec<Asked>, ApiError> {
    const KEY: &str = "input";
    if let Some(messages) = fields.take("messages") {
        if fields.has(KEY) {
            return Err(ApiError::bad("messages", "input and messages: one of them at most"));
        }
        return Ok(vec![of_messages(messages, notes)?]);
    }
    match fields.require(KEY)? {
        one @ Value::Object(_) => Ok(vec![item(one, KEY, notes)?]),
        Value::Array(items) if items.iter().any(Value::is_object) => {
            let items = list(Value::Array(items), limits.inputs, KEY)?;
            let one = |(i, value)| match (value, format!("{KEY}[{i}]")) {
                (Value::String(text), _) => Ok(Asked::Text(Prompt::Text(text))),
                (Value::Array(tokens), path) => {
                    Ok(Asked::Text(Prompt::Tokens(ids(tokens, &path)?)))
                }
                (value, path) => item(value, &path, notes),
            };
            items.into_iter().enumerate().map(one).collect()
        }
        value => {
            let prompts = prompts_of(value, limits.inputs, KEY)?;
            Ok(prompts.into_iter().map(Asked::Text).collect())
        }
    }
}

/// A text or an image: `{"text": …}` or `{"image": …}` as Jina has it, or a part of a message.
fn item(value: Value, path: &str, notes: &mut Notes) -> Result<Asked, ApiError> {
    const KINDS: [&str; 3] = ["text", "image", "image_url"];
    let mut fields = Fields::of(value, path)?;
    let kind = fields.text("type")?;
    let held: Vec<&str> = KINDS.into_iter().filter(|name| fields.has(name)).collect();
    let [name] = held[..] else {
        let message = format!("{path} must hold one of {}: each is a vector", KINDS.join(", "));
        return Err(ApiError::bad(path, message));
    };
    if let Some(other) = kind.filter(|kind| kind != name) {
        let other = crate::fields::shown(&other);
        let message = format!("{path} is of type {other:?}, and holds {name}");
        return Err(ApiError::bad(fields.path("type"), message));
    }
    let (value, of) = (fields.require(name)?, fields.path(name));
    let found = match (name, value) {
        ("text", Value::String(text)) => Asked::Text(Prompt::Text(text)),
        // (Its file in base64 needs no address.)
        ("image", Value::String(data)) if !data.contains(':') => {
            Asked::Image(images::of_base64(path.to_owned(), &data, (None, &of))?)
        }
        ("text", other) => return Err(wrong(&of, "a string", &other)),
        (_, value) => Asked::Image(image_of(path, value, &of, notes)?),
    };
    fields.finish(&[], notes)?;
    Ok(found)
}

/// vLLM's form: a message that is one text, or one image.
fn of_messages(value: Value, notes: &mut Notes) -> Result<Asked, ApiError> {
    let one = |list: Vec<Value>, path: &str| match <[Value; 1]>::try_from(list) {
        Ok([only]) => Ok(only),
        Err(list) => {
            let message = format!("{path} has {} items: a vector is of one", list.len());
            Err(ApiError::bad(path, message))
        }
    };
    let message = one(list(value, usize::MAX, "messages")?, "messages")?;
    let mut fields = Fields::of(message, "messages[0]")?;
    fields.text("role")?;
    let (content, path) = (fields.require("content")?, fields.path("content"));
    fields.finish(&[], notes)?;
    match content {
        Value::String(text) => Ok(Asked::Text(Prompt::Text(text))),
        Value::Array(parts) => item(one(parts, &path)?, &format!("{path}[0]"), notes),
        other => Err(wrong(&path, "a string or an array of one part", &other)),
    }
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
    use serde_json::json;

    use super::*;

    fn read_of(body: Value) -> Result<Vec<Asked>, ApiError> {
        let mut fields = Fields::of(body, "")?;
        inputs(&mut fields, &Limits::default(), &mut Notes::new(true))
    }

    #[test]
    fn items_are_texts_or_images() {
        let url = "data:image/png;base64,aGVsbG8=";
        let text = Asked::Text(Prompt::Text("a".into()));
        let said = |content: Value| json!({ "messages": [{ "role": "user", "content": content }] });
        let part = json!({ "type": "image_url", "image_url": { "url": url } });
        for (body, images, texts) in [
            (json!({ "input": ["a", { "text": "a" }, [1, 2]] }), 0, 2),
            (json!({ "input": { "image": url } }), 1, 0),
            (json!({ "input": [{ "image": "aGVsbG8=" }, { "text": "a" }, part] }), 2, 1),
            (said(json!("a")), 0, 1),
            (said(json!([{ "type": "text", "text": "a" }])), 0, 1),
            (said(json!([part])), 1, 0),
        ] {
            let found = read_of(body.clone()).expect("read");
            let is_image = |item: &&Asked| matches!(item, Asked::Image(_));
            assert_eq!(found.iter().filter(is_image).count(), images, "{body}");
            assert_eq!(found.iter().filter(|item| **item == text).count(), texts, "{body}");
        }
        for (body, path) in [
            (json!({ "input": [{}] }), "input[0]"),
            (json!({ "input": [{ "text": "a", "image": url }] }), "input[0]"),
            (json!({ "input": [{ "video": url }] }), "input[0]"),
            (json!({ "input": [{ "image": "ftp://a" }] }), "input[0].image"),
            (json!({ "input": [{ "image": "#" }] }), "input[0].image"),
            (json!({ "input": [{ "text": 1 }] }), "input[0].text"),
            (json!({ "input": [{ "type": "text", "image": url }] }), "input[0].type"),
            (json!({ "input": [{ "text": "a", "task": "b" }] }), "input[0].task"),
            (json!({ "input": [{ "text": "a" }, 1] }), "input[1]"),
            (json!({ "messages": [] }), "messages"),
            (json!({ "messages": [{ "content": ["a"] }] }), "messages[0].content[0]"),
            (json!({ "messages": [{ "content": [] }] }), "messages[0].content"),
            (json!({ "input": "a", "messages": [] }), "messages"),
            (json!({}), "input"),
        ] {
            let error = read_of(body.clone()).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some(path), "{body}");
        }
    }

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

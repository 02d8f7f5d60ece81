//! Prompts and texts in llama.cpp's forms: a string, token ids, both in turns, an object with either, or
//! several of these.

use serde_json::Value;

use crate::ask::{Input, Prompt};
use crate::error::ApiError;
use crate::fields::{Fields, Notes, list, text, wrong};
use crate::images::{self, Image};
use crate::openai::completion::ids;

/// One prompt or several, at most `most`; `name` is the member's.
///
/// # Errors
/// 400 naming the first that is none.
pub fn prompts_of(
    value: Value,
    most: usize,
    name: &str,
    notes: &mut Notes,
) -> Result<Vec<Prompt>, ApiError> {
    match value {
        Value::Array(items) if !items.iter().any(Value::is_number) => {
            if items.is_empty() {
                return Err(ApiError::bad(name, format!("{name} is empty")));
            }
            let items = list(Value::Array(items), most, name)?.into_iter().enumerate();
            items.map(|(i, item)| prompt_of(item, &format!("{name}[{i}]"), notes)).collect()
        }
        one => Ok(vec![prompt_of(one, name, notes)?]),
    }
}

/// One prompt.
///
/// # Errors
/// 400 naming the first part that is none.
pub fn prompt_of(value: Value, path: &str, notes: &mut Notes) -> Result<Prompt, ApiError> {
    match value {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(items) => parts(items, path),
        Value::Object(_) => object(value, path, notes),
        other => Err(wrong(path, "a string, token ids or both in turns", &other)),
    }
}

/// Texts and tokens in turns.
fn parts(items: Vec<Value>, path: &str) -> Result<Prompt, ApiError> {
    if items.iter().all(Value::is_number) {
        return Ok(Prompt::Tokens(ids(items, path)?));
    }
    let one = |(i, item): (usize, Value)| match item {
        Value::String(text) => Ok(Prompt::Text(text)),
        number @ Value::Number(_) => {
            Ok(Prompt::Tokens(ids(vec![number], &format!("{path}[{i}]"))?))
        }
        other => Err(wrong(&format!("{path}[{i}]"), "a string or a token id", &other)),
    };
    items.into_iter().enumerate().map(one).collect::<Result<_, _>>().map(Prompt::Mixed)
}

/// An object with a prompt in it, by llama.cpp's names or as parts of a message.
fn object(value: Value, path: &str, notes: &mut Notes) -> Result<Prompt, ApiError> {
    let mut fields = Fields::of(value, path)?;
    no_media(&mut fields, "multimodal_data")?;
    let prompt = match fields.take("content") {
        Some(parts) => {
            let path = fields.path("content");
            let parts = list(parts, usize::MAX, &path)?.into_iter().enumerate();
            let texts = parts.map(|(i, part)| text_part(part, &format!("{path}[{i}]"), notes));
            Prompt::Text(texts.collect::<Result<String, _>>()?)
        }
        None => {
            let path = fields.path("prompt_string");
            prompt_of(fields.require("prompt_string")?, &path, notes)?
        }
    };
    fields.finish(&[], notes)?;
    Ok(prompt)
}

/// Stands in a text where an image comes.
pub const MARK: &str = "<__media__>";

/// Whether a prompt is an object with images.
pub fn has_images(value: &Value) -> bool {
    let data = value.get("multimodal_data").and_then(Value::as_array);
    data.is_some_and(|data| !data.is_empty())
}

/// A text with a mark for each of its images, and these in base64.
///
/// # Errors
/// 400 naming what is none, and for more or fewer marks.
pub fn shown(value: Value, path: &str, notes: &mut Notes) -> Result<Input, ApiError> {
    let mut fields = Fields::of(value, path)?;
    let (said, data) = (fields.path("prompt_string"), fields.path("multimodal_data"));
    let prompt = text(fields.require("prompt_string")?, &said)?;
    let files = list(fields.require("multimodal_data")?, usize::MAX, &data)?;
    let image = |(i, file)| {
        let path = format!("{data}[{i}]");
        let file = text(file, &path)?;
        images::of_base64(path.clone(), &file, (None, &path))
    };
    let images: Vec<Image> = files.into_iter().enumerate().map(image).collect::<Result<_, _>>()?;
    fields.finish(&[], notes)?;
    let (marks, count) = (prompt.matches(MARK).count(), images.len());
    if marks != count {
        let message = format!("{said} has {marks} times {MARK}, for {count} images");
        return Err(ApiError::bad(said, message));
    }
    Ok(Input::Shown { text: prompt, images })
}

fn text_part(part: Value, path: &str, notes: &mut Notes) -> Result<String, ApiError> {
    let mut fields = Fields::of(part, path)?;
    let kind = fields.path("type");
    if text(fields.require("type")?, &kind)? != "text" {
        return Err(ApiError::unsupported(path, format!("{path}: {NO_MEDIA}")));
    }
    let found = text(fields.require("text")?, &fields.path("text"))?;
    fields.finish(&[], notes)?;
    Ok(found)
}

const NO_MEDIA: &str = "there are no images, audio or video here; for models that see /v1/chat/completions \
    takes images, and /completion a prompt with prompt_string and multimodal_data";

/// Refuses images and the like, unless there are none.
///
/// # Errors
/// That one.
pub fn no_media(fields: &mut Fields, name: &str) -> Result<(), ApiError> {
    match fields.take(name) {
        None => Ok(()),
        Some(Value::Array(items)) if items.is_empty() => Ok(()),
        Some(_) => {
            let path = fields.path(name);
            Err(ApiError::unsupported(&path, format!("{path}: {NO_MEDIA}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn prompts_come_in_all_forms() {
        let text = |t: &str| Prompt::Text(t.into());
        let mixed =
            Prompt::Mixed(vec![Prompt::Tokens(vec![1]), text("a"), Prompt::Tokens(vec![2])]);
        let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
        for (given, expect) in [
            (json!("a"), vec![text("a")]),
            (json!([1, 2]), vec![Prompt::Tokens(vec![1, 2])]),
            (json!([1, "a", 2]), vec![mixed.clone()]),
            (json!(["a", [1], [1, "a", 2]]), vec![text("a"), Prompt::Tokens(vec![1]), mixed]),
            (json!({ "prompt_string": "a" }), vec![text("a")]),
            (
                json!([{ "prompt_string": [3], "multimodal_data": [] }]),
                vec![Prompt::Tokens(vec![3])],
            ),
            (json!({ "content": parts }), vec![text("ab")]),
        ] {
            let mut notes = Notes::new(true);
            assert_eq!(
                prompts_of(given.clone(), 9, "prompt", &mut notes).unwrap(),
                expect,
                "{given}"
            );
        }
        let image = json!([{ "type": "image_url", "image_url": { "url": "data:" } }]);
        for (given, expect) in [
            (json!(7), "prompt"),
            (json!([]), "prompt"),
            (json!(["a", "b", "c"]), "prompt"),
            (json!([1, -1]), "prompt[1]"),
            (json!(["a", [1, {}]]), "prompt[1][1]"),
            (json!({ "prompt_string": "a", "multimodal_data": ["x"] }), "prompt.multimodal_data"),
            (json!({ "content": image }), "prompt.content[0]"),
            (json!({ "text": "a" }), "prompt.prompt_string"),
        ] {
            let mut notes = Notes::new(true);
            let error = prompts_of(given.clone(), 2, "prompt", &mut notes).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some(expect), "{given}");
        }
    }
}

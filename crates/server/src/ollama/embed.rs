//! POST /api/embed, its older form /api/embeddings, and /api/rerank, which Ollama has not.

use serde_json::{Value, json};

use super::manner::IGNORED;
use super::{options, told_name};
use crate::ask::{
    Ask, Found, Generate, Input, Item, Manner, Measure, Numbers, NumbersHead, Prompt,
};
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Notes};
use crate::openai::completion::prompts_of;
use crate::openai::rerank::{Ranked, best, ranked};

/// Reads a request for a vector of each text.
///
/// # Errors
/// 400 of the request.
pub fn read(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let model = fields.text("model")?;
    let inputs = match fields.require("input")? {
        Value::Array(list) if list.is_empty() => Vec::new(),
        Value::String(text) if text.is_empty() => Vec::new(),
        value => prompts_of(value, limits.inputs, "input")?,
    };
    // (0 is what a client sends that asks for none.)
    let dimensions = fields.count("dimensions", 0..=u32::MAX)?.filter(|columns| *columns > 0);
    finish(fields, limits, notes)?;
    if inputs.is_empty() {
        let name = model.clone().unwrap_or_default();
        return Ok(nothing(model, json!({ "model": name, "embeddings": [] })));
    }
    let write = Box::new(|head: &NumbersHead, found: Found| {
        let (model, tokens) = (told_name(&head.model), found.prompt_tokens);
        let body = json!({ "model": model, "embeddings": found.rows, "prompt_eval_count": tokens });
        warned(body, head).to_string()
    });
    let inputs = inputs.into_iter().map(Item::Text).collect();
    Ok(asked(model, Measure::Embed { inputs, dimensions }, write))
}

/// Reads the older form: one text, one vector.
///
/// # Errors
/// 400 of the request.
pub fn read_one(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let model = fields.text("model")?;
    let prompt = fields.text("prompt")?.unwrap_or_default();
    finish(fields, limits, notes)?;
    if prompt.is_empty() {
        return Ok(nothing(model, json!({ "embedding": [] })));
    }
    let write = Box::new(|head: &NumbersHead, found: Found| {
        let body = json!({ "embedding": found.rows.into_iter().next().unwrap_or_default() });
        warned(body, head).to_string()
    });
    let inputs = vec![Item::Text(Prompt::Text(prompt))];
    Ok(asked(model, Measure::Embed { inputs, dimensions: None }, write))
}

/// Reads a request for the order of documents by their relevance to a query.
///
/// # Errors
/// 400 of the request.
pub fn rank(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let Ranked { model, query, documents, top } = ranked(&mut fields, limits, notes)?;
    finish(fields, limits, notes)?;
    let told = documents.clone();
    let write = Box::new(move |head: &NumbersHead, found: Found| {
        let result = |(index, score): (usize, f32)| json!({ "index": index, "document": told.get(index), "relevance_score": score });
        let results: Vec<Value> = best(&found, top).into_iter().map(result).collect();
        let (model, tokens) = (told_name(&head.model), found.prompt_tokens);
        let body = json!({ "model": model, "results": results, "prompt_eval_count": tokens });
        warned(body, head).to_string()
    });
    Ok(asked(model, Measure::Rank { query, documents }, write))
}

/// Options change no vector: they are read, so that what is wrong is told.
fn finish(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<(), ApiError> {
    options::of(&mut fields, limits, notes)?;
    if fields.get("truncate") == Some(&Value::Bool(false)) {
        fields.take("truncate");
    }
    fields.finish(IGNORED, notes)
}

fn asked(model: Option<String>, measure: Measure, write: crate::ask::WriteNumbers) -> Ask {
    Ask::Numbers { ask: Numbers { model, measure, user: None, timeout: None }, write }
}

/// Only wants the model there, or gone.
fn nothing(model: Option<String>, body: Value) -> Ask {
    let input = Input::Prompts { prompts: Vec::new(), echo: false, suffix: None };
    let ask = Generate { model, input, manner: Manner::default() };
    Ask::Count { ask: Box::new(ask), write: Box::new(move |_, _| body) }
}

fn warned(mut body: Value, head: &NumbersHead) -> Value {
    if !head.warnings.is_empty() {
        body["warnings"] = json!(head.warnings);
    }
    body
}

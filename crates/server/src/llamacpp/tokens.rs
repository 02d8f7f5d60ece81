//! POST /tokenize, /detokenize and /apply-template: a model's vocabulary and its template.

use serde_json::{Value, json};
use tokenmill_ir::TokenId;
use tokenmill_text::{Special, Tokenizer};

use super::content::prompt_of;
use crate::ask::{Ask, Generate, Input, Prompt};
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Notes, list, wrong};
use crate::openai::chat;
use crate::openai::completion::ids;
use crate::prepare::{not_encoded, plain_tokens, reach, rendered, text_of, tokens};
use crate::shared::Model;
use crate::workshop::Wanted;

/// Reads a request for the tokens of a text, or of texts and tokens in turns.
///
/// # Errors
/// 400 of the request.
pub fn tokenize(mut fields: Fields, _: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let model = fields.text("model")?;
    let content = match fields.take("content") {
        Some(value @ (Value::String(_) | Value::Array(_))) => prompt_of(value, "content", notes)?,
        Some(other) => return Err(wrong("content", "a string, or strings and token ids", &other)),
        None => Prompt::Tokens(Vec::new()),
    };
    let add_special = fields.flag("add_special")?.unwrap_or(false);
    let special = match fields.flag("parse_special")? {
        Some(false) => Special::Plain,
        _ => Special::Parse,
    };
    let with_pieces = fields.flag("with_pieces")?.unwrap_or(false);
    fields.finish(&[], notes)?;
    let look = move |model: &Model, warnings: &[String], wanted: Wanted<'_>| {
        let tokenizer = &model.served.tokenizer;
        let encoder = tokenizer.within(reach(model, wanted));
        let ids = match add_special {
            true => tokens(content, &encoder, special),
            false => plain_tokens(std::slice::from_ref(&content), &encoder, special),
        };
        let ids = ids.map_err(|e| not_encoded(e, model, "content"))?;
        let told: Vec<Value> = match with_pieces {
            true => ids.iter().map(|id| piece(*id, tokenizer)).collect(),
            false => ids.into_iter().map(Value::from).collect(),
        };
        Ok(warned(json!({ "tokens": told }), warnings))
    };
    Ok(Ask::Look { model, look: Box::new(look) })
}

/// A token with its text, or its bytes where they are none.
fn piece(id: TokenId, tokenizer: &Tokenizer) -> Value {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    let piece = std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), Value::from);
    json!({ "id": id, "piece": piece })
}

/// Reads a request for the text of tokens; control tokens are told by their names.
///
/// # Errors
/// 400 of the request.
pub fn detokenize(mut fields: Fields, _: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let model = fields.text("model")?;
    let listed = match fields.take("tokens") {
        Some(value) => ids(list(value, usize::MAX, "tokens")?, "tokens")?,
        None => Vec::new(),
    };
    fields.finish(&[], notes)?;
    let look = move |model: &Model, warnings: &[String], _: Wanted<'_>| {
        let tokenizer = &model.served.tokenizer;
        let size = tokenizer.vocab_size();
        let stranger = listed.iter().position(|id| *id as usize >= size);
        if let Some(at) = stranger {
            let path = format!("tokens[{at}]");
            let message = format!("{path} is {}: the vocabulary has {size} tokens", listed[at]);
            return Err(ApiError::bad(path, message));
        }
        Ok(warned(json!({ "content": text_of(&listed, tokenizer) }), warnings))
    };
    Ok(Ask::Look { model, look: Box::new(look) })
}

/// Reads a chat request of OpenAI's form, of which the prompt is told that it becomes.
///
/// # Errors
/// 400 of the request.
pub fn apply_template(fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let Ask::Generate { ask, .. } = chat::read(fields, limits, notes)? else {
        return Err(ApiError::internal());
    };
    let Generate { model, input: Input::Conversation(talk), manner } = *ask else {
        return Err(ApiError::internal());
    };
    let look = move |model: &Model, warnings: &[String], _: Wanted<'_>| {
        let prompt = rendered(model, talk, &manner)?.prompt;
        Ok(warned(json!({ "prompt": prompt.text() }), warnings))
    };
    Ok(Ask::Look { model, look: Box::new(look) })
}

fn warned(mut body: Value, warnings: &[String]) -> Value {
    if !warnings.is_empty() {
        body["warnings"] = json!(warnings);
    }
    body
}

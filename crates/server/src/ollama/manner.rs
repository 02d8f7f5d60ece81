//! What of chat and generate is the same: how the answer is made and delivered.

use serde_json::{Map, Value};
use tokenmill_engine::constraint::Constraint;

use super::options;
use crate::ask::{Constrained, Manner, Thinking};
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Ignored, Notes, Unsupported, shown, wrong};
use crate::openai::thinking::{Said, repeats};

/// Members that change no answer here.
pub const IGNORED: &[Ignored] = &[
    Ignored { name: "shift", because: "an answer ends where the context does" },
    Ignored { name: "truncate", because: "a prompt that does not fit is refused, never cut" },
];

/// Members that ask for what is not built, unless they ask for nothing.
pub const UNBUILT: &[Unsupported] =
    &[Unsupported { name: "_debug_render_only", neutral: |v| *v == false }];

/// What both calls say.
pub struct Common {
    /// How to answer.
    pub manner: Manner,
    /// Variables of the template.
    pub variables: Option<Map<String, Value>>,
    /// As it comes.
    pub stream: bool,
}

/// Reads it.
///
/// # Errors
/// 400 naming the first member that is wrong.
pub fn common(fields: &mut Fields, limits: &Limits, notes: &mut Notes) -> Result<Common, ApiError> {
    let options::Said { sampling, context } = options::of(fields, limits, notes)?;
    let (variables, thinking) = think(fields)?;
    let manner = Manner {
        sampling,
        context,
        thinking,
        logprobs: logprobs(fields, limits)?,
        constrained: format(fields)?,
        repeats: repeats(fields, notes)?,
        ..Manner::default()
    };
    // What asks for what is done anyway is no reason for a word.
    for name in ["shift", "truncate"] {
        if fields.get(name) == Some(&Value::Bool(false)) {
            fields.take(name);
        }
    }
    let stream = fields.flag("stream")?.unwrap_or(true);
    Ok(Common { manner, variables, stream })
}

/// `think`: whether the model thinks before it answers, or how much.
fn think(fields: &mut Fields) -> Result<Said, ApiError> {
    let variables = |all: &[(&str, Value)]| {
        let all = all.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        Some(all.collect::<Map<String, Value>>())
    };
    let on = ("enable_thinking", Value::Bool(true));
    match fields.take("think") {
        None => Ok((None, None)),
        Some(Value::Bool(true)) => Ok((variables(&[on]), None)),
        Some(Value::Bool(false)) => {
            let off = [("enable_thinking", Value::Bool(false))];
            Ok((variables(&off), Some(Thinking { tokens: 0, param: "think" })))
        }
        Some(Value::String(word)) if ["low", "medium", "high", "max"].contains(&&*word) => {
            Ok((variables(&[on, ("reasoning_effort", word.into())]), None))
        }
        Some(Value::String(word)) => {
            let message =
                format!("think is {:?}: true, false, low, medium, high or max", shown(&word));
            Err(ApiError::bad("think", message))
        }
        Some(other) => Err(wrong("think", "true, false or a level", &other)),
    }
}

/// `format`: what the answer holds; an empty text asks for nothing.
fn format(fields: &mut Fields) -> Result<Option<Constrained>, ApiError> {
    let what = match fields.take("format") {
        None => return Ok(None),
        Some(Value::String(word)) if word.is_empty() => return Ok(None),
        Some(Value::String(word)) if word == "json" => Constraint::JsonObject,
        Some(schema @ Value::Object(_)) => Constraint::JsonSchema(schema),
        Some(Value::String(word)) => {
            let message = format!("format is {:?}: it must be json or a schema", shown(&word));
            return Err(ApiError::bad("format", message));
        }
        Some(other) => return Err(wrong("format", "\"json\" or a schema", &other)),
    };
    Ok(Some(Constrained { what, param: "format" }))
}

/// `logprobs` switches, `top_logprobs` counts alternatives.
fn logprobs(fields: &mut Fields, limits: &Limits) -> Result<Option<u32>, ApiError> {
    let on = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=limits.top_logprobs)?;
    match (on, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, Some(n)) if n > 0 => {
            Err(ApiError::bad("top_logprobs", "top_logprobs needs \"logprobs\": true"))
        }
        (false, _) => Ok(None),
    }
}

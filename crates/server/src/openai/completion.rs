//! Text completion requests: prompts as text or tokens.

use serde_json::Value;
use tokenmill_ir::TokenId;

use super::answer::{Kind, answered};
use super::parameters::{self, IGNORED, UNBUILT};
use crate::ask::{Ask, Generate, Input, Prompt};
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Notes, Unsupported, list, wrong};

/// Tokens of an answer when none are named, as the dialect has it.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// Members that ask for what is not built yet, unless they ask for nothing.
const UNSUPPORTED: &[Unsupported] = &[Unsupported { name: "best_of", neutral: |v| *v == 1 }];

/// Reads a completion request.
///
/// # Errors
/// 400 of the request.
pub fn read(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let model = fields.text("model")?;
    let prompts = prompts_of(fields.require("prompt")?, limits.prompts, "prompt")?;
    let logprobs = fields.count("logprobs", 0..=limits.top_logprobs)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    let suffix = fields.text("suffix")?.filter(|suffix| !suffix.is_empty());
    if echo && suffix.is_some() {
        let message =
            "echo: what stands between a prompt and a suffix does not begin with the prompt";
        return Err(ApiError::bad("echo", message));
    }
    // Here an answer may be empty: a prompt is read, and perhaps told.
    let is_empty = fields.get("max_tokens").and_then(Value::as_u64) == Some(0);
    if is_empty {
        fields.take("max_tokens");
    }
    // Texts are gone on with as the model would: who wants an end for repeats says so.
    let is_broken = fields.has("repetition_detection");
    let mut manner = parameters::read(&mut fields, limits, notes)?;
    manner.repeats = manner.repeats.filter(|_| is_broken);
    if is_empty && manner.sampling.max_tokens.replace(0).is_some() {
        let message = "max_tokens is 0 and max_completion_tokens is not";
        return Err(ApiError::bad("max_completion_tokens", message));
    }
    (manner.logprobs, manner.default_tokens) = (logprobs, Some(DEFAULT_MAX_TOKENS));
    manner.tells_ids = fields.flag("return_token_ids")?.unwrap_or(false);
    let delivery = parameters::delivery(&mut fields, notes)?;
    fields.refuse(UNSUPPORTED)?;
    fields.refuse(UNBUILT)?;
    fields.finish(IGNORED, notes)?;
    let ask = Generate { model, input: Input::Prompts { prompts, echo, suffix }, manner };
    Ok(answered(Kind::Text, ask, delivery))
}

/// A string, tokens, or a list of either, at most `most`; `name` is the member's.
///
/// # Errors
/// 400 naming the first that is none.
pub(crate) fn prompts_of(value: Value, most: usize, name: &str) -> Result<Vec<Prompt>, ApiError> {
    let items = match value {
        Value::String(text) => return Ok(vec![Prompt::Text(text)]),
        Value::Array(items) => items,
        other => return Err(wrong(name, "a string or an array", &other)),
    };
    if items.is_empty() {
        return Err(ApiError::bad(name, format!("{name} is empty")));
    }
    if items.iter().all(Value::is_number) {
        return Ok(vec![Prompt::Tokens(ids(items, name)?)]);
    }
    let one = |(i, item)| {
        let path = format!("{name}[{i}]");
        match item {
            Value::String(text) => Ok(Prompt::Text(text)),
            Value::Array(items) => Ok(Prompt::Tokens(ids(items, &path)?)),
            other => Err(wrong(&path, "a string or an array of token ids", &other)),
        }
    };
    list(Value::Array(items), most, name)?.into_iter().enumerate().map(one).collect()
}

pub(crate) fn ids(items: Vec<Value>, path: &str) -> Result<Vec<TokenId>, ApiError> {
    let id = |(i, item): (usize, Value)| {
        let id = item.as_u64().and_then(|id| TokenId::try_from(id).ok());
        id.ok_or_else(|| {
            let path = format!("{path}[{i}]");
            match item.is_number() {
                true => ApiError::bad(&path, format!("{path} is {item}, which is no token id")),
                false => wrong(&path, "a token id", &item),
            }
        })
    };
    items.into_iter().enumerate().map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn prompts_come_in_four_forms() {
        let text = |t: &str| Prompt::Text(t.into());
        let cases = [
            (json!("a"), vec![text("a")]),
            (json!(["a", "b"]), vec![text("a"), text("b")]),
            (json!([1, 2]), vec![Prompt::Tokens(vec![1, 2])]),
            (json!([[1], [2, 3]]), vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])]),
            (json!([[1], "b"]), vec![Prompt::Tokens(vec![1]), text("b")]),
        ];
        for (given, expect) in cases {
            assert_eq!(prompts_of(given.clone(), 9, "prompt").unwrap(), expect, "{given}");
        }
    }

    #[test]
    fn wrong_prompts_are_named() {
        let cases = [
            (json!(7), "prompt"),
            (json!({}), "prompt"),
            (json!([]), "prompt"),
            (json!(["a", "b", "c"]), "prompt"),
            (json!([-1]), "prompt[0]"),
            (json!([1, 1.5]), "prompt[1]"),
            (json!([1u64 << 32]), "prompt[0]"),
            (json!(["a", 1]), "prompt[1]"),
            (json!([[1, "a"]]), "prompt[0][1]"),
        ];
        for (given, expect) in cases {
            let error = prompts_of(given.clone(), 2, "prompt").expect_err("refused");
            assert_eq!(error.param.as_deref(), Some(expect), "{given}");
        }
    }
}

//! How long an answer may reason, by the names of several servers, and when it is ended because it
//! repeats itself.

use serde_json::{Map, Value};
use tokenmill_engine::RepeatRule;

use crate::ask::Thinking;
use crate::error::ApiError;
use crate::fields::{Fields, Notes, Unsupported, wrong};

/// Members that limit the reasoning: vLLM's, llama.cpp's two, and those of Qwen's service and of
/// programs that speak to several.
const BUDGETS: &[&str] = &[
    "thinking_token_budget",
    "thinking_budget_tokens",
    "reasoning_budget_tokens",
    "reasoning_budget",
    "thinking_budget",
];

/// How much a model should think, for those whose template asks.
const EFFORTS: &[&str] = &["minimal", "low", "medium", "high", "xhigh", "max"];

/// Members of `reasoning` that are not built, unless they ask for nothing.
const UNSUPPORTED: &[Unsupported] = &[Unsupported { name: "exclude", neutral: |v| *v == false }];

/// Fewest copies that are a repeat.
const LEAST_COPIES: u32 = 2;

/// What a request says of reasoning: variables of the template, and a limit.
pub(crate) type Said = (Option<Map<String, Value>>, Option<Thinking>);

/// The limit that a request names; -1 is none.
///
/// # Errors
/// 400 for what is no such number, and for two that differ.
pub(crate) fn budget(fields: &mut Fields) -> Result<Option<Thinking>, ApiError> {
    let mut found = None;
    for &param in BUDGETS {
        let tokens = fields.integer(param, -1..=i64::from(u32::MAX))?;
        let said = tokens.and_then(|n| u32::try_from(n).ok());
        found = either(found, said.map(|tokens| Thinking { tokens, param }))?;
    }
    Ok(found)
}

/// One limit, by whichever member.
///
/// # Errors
/// 400 for two that differ.
pub(crate) fn either(
    one: Option<Thinking>,
    other: Option<Thinking>,
) -> Result<Option<Thinking>, ApiError> {
    match (one, other) {
        (Some(a), Some(b)) if a.tokens != b.tokens => {
            let message = format!("{} is {} and {} is {}", a.param, a.tokens, b.param, b.tokens);
            Err(ApiError::bad(b.param, message))
        }
        _ => Ok(one.or(other)),
    }
}

/// `max_tokens` of `reasoning`.
///
/// # Errors
/// 400 for what is no number of tokens.
pub(crate) fn most(reasoning: &mut Fields) -> Result<Option<Thinking>, ApiError> {
    let tokens = reasoning.count("max_tokens", 0..=u32::MAX)?;
    Ok(tokens.map(|tokens| Thinking { tokens, param: "reasoning.max_tokens" }))
}

/// Variables of the template: those of `chat_template_kwargs`, which stand above the members that mean
/// the same for all models.
///
/// # Errors
/// 400 where that is no object.
pub(crate) fn kwargs(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    match fields.take("chat_template_kwargs") {
        None => Ok(Map::new()),
        Some(Value::Object(members)) => {
            Ok(members.into_iter().filter(|(_, value)| !value.is_null()).collect())
        }
        Some(other) => Err(wrong("chat_template_kwargs", "an object", &other)),
    }
}

/// The template's variable that says how much the model should think.
///
/// # Errors
/// 400 for a word that means no such thing.
pub(crate) fn effort_variable(
    effort: Option<&str>,
    path: &str,
) -> Result<Option<(&'static str, Value)>, ApiError> {
    match effort {
        None => Ok(None),
        Some("none") => Ok(Some(("enable_thinking", false.into()))),
        Some(effort) if EFFORTS.contains(&effort) => Ok(Some(("reasoning_effort", effort.into()))),
        Some(_) => {
            let message = format!("{path} must be none or one of {}", EFFORTS.join(", "));
            Err(ApiError::bad(path, message))
        }
    }
}

/// What a chat request says of reasoning, for the template and for the answer.
///
/// # Errors
/// 400 naming the first member that is wrong.
pub(crate) fn of_chat(fields: &mut Fields, notes: &mut Notes) -> Result<Said, ApiError> {
    let mut variables = kwargs(fields)?;
    let mut limit = None;
    let mut said = Vec::new();
    let effort = fields.text("reasoning_effort")?;
    said.extend(effort_variable(effort.as_deref(), "reasoning_effort")?);
    said.extend(fields.flag("enable_thinking")?.map(|on| ("enable_thinking", on.into())));
    if let Some(value) = fields.take("reasoning") {
        let mut fields = Fields::of(value, "reasoning")?;
        let effort = fields.text("effort")?;
        said.extend(effort_variable(effort.as_deref(), "reasoning.effort")?);
        said.extend(fields.flag("enabled")?.map(|on| ("enable_thinking", on.into())));
        limit = most(&mut fields)?;
        fields.refuse(UNSUPPORTED)?;
        fields.finish(&[], notes)?;
    }
    for (name, value) in said {
        variables.entry(name).or_insert(value);
    }
    Ok((Some(variables).filter(|variables| !variables.is_empty()), limit))
}

/// When an answer is ended because it repeats itself: true, false, or by vLLM's numbers.
///
/// # Errors
/// 400 for numbers beyond what is looked for.
pub(crate) fn repeats(
    fields: &mut Fields,
    notes: &mut Notes,
) -> Result<Option<RepeatRule>, ApiError> {
    const NAME: &str = "repetition_detection";
    let value = match fields.take(NAME) {
        None | Some(Value::Bool(true)) => return Ok(Some(RepeatRule::USUAL)),
        Some(Value::Bool(false)) => return Ok(None),
        Some(value @ Value::Object(_)) => value,
        Some(other) => return Err(wrong(NAME, "true, false or an object", &other)),
    };
    let mut fields = Fields::of(value, NAME)?;
    let longest = fields.count("max_pattern_size", 0..=RepeatRule::LONGEST)?.unwrap_or(0);
    let shortest = fields.count("min_pattern_size", 0..=RepeatRule::LONGEST)?.unwrap_or(0).max(1);
    let copies = fields.count("min_count", 0..=u32::MAX)?.unwrap_or(0);
    fields.finish(&[], notes)?;
    if longest == 0 {
        return Ok(None);
    }
    if shortest > longest || copies < LEAST_COPIES {
        let message = format!(
            "{NAME}: copies of {shortest} to {longest} tokens, {copies} of them at least: a repeat is \
             of a size from min_pattern_size to max_pattern_size, and min_count is {LEAST_COPIES} or more"
        );
        return Err(ApiError::bad(NAME, message));
    }
    Ok(Some(RepeatRule::copies((shortest, longest), copies)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(body: Value) -> Fields {
        Fields::of(body, "").expect("an object")
    }

    #[test]
    fn a_budget_has_many_names() {
        let found = |body: Value| budget(&mut of(body)).map(|t| t.map(|t| t.tokens));
        assert_eq!(found(json!({})), Ok(None));
        for name in BUDGETS {
            let body = |n: Value| Value::from_iter([(*name, n)]);
            assert_eq!(found(body(json!(7))), Ok(Some(7)), "{name}");
            assert_eq!(found(body(json!(0))), Ok(Some(0)), "{name}");
            assert_eq!(found(body(json!(-1))), Ok(None), "{name}");
            assert!(found(body(json!(-2))).is_err() && found(body(json!("7"))).is_err(), "{name}");
        }
        let both = |a, b| found(json!({ "thinking_budget": a, "thinking_token_budget": b }));
        assert_eq!((both(5, 5), both(5, -1)), (Ok(Some(5)), Ok(Some(5))));
        assert!(both(5, 6).is_err());
    }

    #[test]
    fn reasoning_says_how_much_and_how_long() {
        let mut notes = Notes::new(true);
        let mut read = |body: Value| of_chat(&mut of(body), &mut notes);
        let (variables, limit) = read(json!({
            "reasoning": { "effort": "low", "max_tokens": 9, "enabled": true, "exclude": false },
        }))
        .expect("read");
        let expect = json!({ "reasoning_effort": "low", "enable_thinking": true });
        assert_eq!(variables.map(Value::Object), Some(expect));
        assert_eq!(limit.map(|t| t.tokens), Some(9));
        let (variables, _) = read(json!({
            "chat_template_kwargs": { "enable_thinking": true }, "reasoning": { "effort": "none" },
        }))
        .expect("read");
        assert_eq!(variables.map(Value::Object), Some(json!({ "enable_thinking": true })));
        assert!(read(json!({ "reasoning": { "exclude": true } })).is_err());
        assert!(read(json!({ "reasoning": { "effort": "much" } })).is_err());
    }

    #[test]
    fn repeats_are_looked_for_as_is_said() {
        let mut notes = Notes::new(true);
        let mut read =
            |value: Value| repeats(&mut of(json!({ "repetition_detection": value })), &mut notes);
        assert_eq!(read(Value::Null), Ok(Some(RepeatRule::USUAL)));
        assert_eq!(read(json!(true)), Ok(Some(RepeatRule::USUAL)));
        assert_eq!(read(json!(false)), Ok(None));
        assert_eq!(read(json!({ "max_pattern_size": 0 })), Ok(None));
        let rule = json!({ "max_pattern_size": 20, "min_pattern_size": 2, "min_count": 3 });
        assert_eq!(read(rule), Ok(Some(RepeatRule::copies((2, 20), 3))));
        for wrong in [
            json!(7),
            json!({ "max_pattern_size": 20 }),
            json!({ "max_pattern_size": 2000, "min_count": 3 }),
            json!({ "max_pattern_size": 2, "min_pattern_size": 3, "min_count": 3 }),
            json!({ "max_pattern_size": 2, "min_count": 3, "x": 1 }),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }
}

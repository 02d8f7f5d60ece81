//! The parameters chat and completion share.

use std::time::Duration;

use serde_json::Value;
use tokenmill_engine::{DraftMode, SamplingValues};
use tokenmill_ir::TokenId;

use super::{constraint, leases, samplers, thinking};
use crate::ask::Manner;
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Ignored, Notes, Unsupported, list, number, text, wrong};

/// Members that change no answer here.
pub const IGNORED: &[Ignored] = &[
    Ignored { name: "safety_identifier", because: "this server keeps no accounts of end users" },
    Ignored { name: "metadata", because: "this server stores no answers" },
    Ignored { name: "store", because: "this server stores no answers" },
    Ignored { name: "service_tier", because: "there is one tier" },
];

/// Members of other servers that would change an answer and are not built, unless they ask for
/// nothing.
pub const UNBUILT: &[Unsupported] = &[
    Unsupported { name: "allowed_token_ids", neutral: |_| false },
    Unsupported { name: "include_stop_str_in_output", neutral: |v| *v == false },
    Unsupported { name: "length_penalty", neutral: |v| is(v, 1.0) },
    Unsupported { name: "logits_processors", neutral: is_empty_list },
    Unsupported { name: "no_repeat_ngram_size", neutral: |v| is(v, 0.0) },
    Unsupported { name: "prompt_logprobs", neutral: |_| false },
    Unsupported { name: "skip_special_tokens", neutral: |v| *v == true },
    Unsupported { name: "truncate_prompt_tokens", neutral: |_| false },
    Unsupported { name: "use_beam_search", neutral: |v| *v == false },
];

fn is(value: &Value, number: f64) -> bool {
    value.as_f64() == Some(number)
}

/// Whether a member that lists what to do lists nothing.
pub fn is_empty_list(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

/// Reads them; log-probabilities and predictions have names of their own in each call.
///
/// # Errors
/// 400 naming the first that is wrong.
pub fn read(fields: &mut Fields, limits: &Limits, notes: &mut Notes) -> Result<Manner, ApiError> {
    Ok(Manner {
        sampling: values(fields, limits)?,
        default_tokens: None,
        logprobs: None,
        choices: fields.count("n", 1..=limits.choices)?.unwrap_or(1),
        ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
        also_end: samplers::stop_token_ids(fields, limits)?,
        logit_bias: logit_bias(fields, limits)?,
        biased_texts: Vec::new(),
        constrained: constraint::read(fields, limits, notes)?,
        context: None,
        thinking: thinking::budget(fields)?,
        repeats: thinking::repeats(fields, notes)?,
        draft: draft(fields)?,
        prediction: String::new(),
        priority: priority(fields)?,
        timeout: timeout(fields)?,
        diagnose: fields.flag("diagnostics")?.unwrap_or(false),
        lease: leases::read(fields, notes)?,
        tells_prompts: false,
        tells_ids: false,
        user: fields.text("user")?,
    })
}

/// How the answer is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// As it comes.
    pub stream: bool,
    /// A stream ends with the tokens counted.
    pub include_usage: bool,
}

/// Reads that.
///
/// # Errors
/// 400 naming the first that is wrong.
pub fn delivery(fields: &mut Fields, notes: &mut Notes) -> Result<Delivery, ApiError> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    Ok(Delivery { stream, include_usage: include_usage(fields, stream, notes)? })
}

/// What the request says of how to sample.
fn values(fields: &mut Fields, limits: &Limits) -> Result<SamplingValues, ApiError> {
    let mut values = SamplingValues {
        temperature: fields.number("temperature", 0.0..=2.0)?,
        top_p: fields.number("top_p", 0.0..=1.0)?.map(|p| p.max(f32::MIN_POSITIVE)),
        top_k: top_k(fields)?,
        min_p: fields.number("min_p", 0.0..=1.0)?,
        repeat_penalty: repeat_penalty(fields)?,
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?,
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?,
        seed: seed(fields)?,
        max_tokens: max_tokens(fields)?,
        stop: stop(fields, "stop", limits)?,
        ..SamplingValues::default()
    };
    samplers::read(fields, &mut values)?;
    Ok(values)
}

/// By vLLM's name or by llama.cpp's and Ollama's.
fn repeat_penalty(fields: &mut Fields) -> Result<Option<f32>, ApiError> {
    let one = fields.number("repetition_penalty", 0.01..=10.0)?;
    let other = fields.number("repeat_penalty", 0.01..=10.0)?;
    match (one, other) {
        (Some(a), Some(b)) if a != b => {
            let message = format!("repetition_penalty is {a} and repeat_penalty is {b}");
            Err(ApiError::bad("repeat_penalty", message))
        }
        _ => Ok(one.or(other)),
    }
}

/// All tokens for -1 and 0, as others have it.
pub(crate) fn top_k(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let found = fields.integer("top_k", -1..=i64::from(u32::MAX))?;
    Ok(found.map(|k| u32::try_from(k).unwrap_or(0)))
}

/// Any whole number of 64 bits, signed or not.
pub(crate) fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    let path = fields.path("seed");
    let read = |value: Value| {
        let signed = value.as_i64().map(|n| n as u64);
        value.as_u64().or(signed).ok_or_else(|| wrong(&path, "a whole number of 64 bits", &value))
    };
    fields.take("seed").map(read).transpose()
}

/// Under its old or its new name; both only if they agree.
fn max_tokens(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let old = fields.count("max_tokens", 1..=u32::MAX)?;
    let new = fields.count("max_completion_tokens", 1..=u32::MAX)?;
    match (old, new) {
        (Some(a), Some(b)) if a != b => {
            let message = format!("max_tokens is {a} and max_completion_tokens is {b}");
            Err(ApiError::bad("max_completion_tokens", message))
        }
        _ => Ok(new.or(old)),
    }
}

/// An extension: how long it may take, seconds.
///
/// # Errors
/// 400 for what is no such time.
pub fn timeout(fields: &mut Fields) -> Result<Option<Duration>, ApiError> {
    Ok(fields.number("timeout", 0.0..=86_400.0)?.map(Duration::from_secs_f32))
}

/// An extension others have too: smaller comes first.
pub(crate) fn priority(fields: &mut Fields) -> Result<i32, ApiError> {
    let all = i64::from(i32::MIN)..=i64::from(i32::MAX);
    let found = fields.integer("priority", all)?.unwrap_or(0);
    Ok(i32::try_from(found).unwrap_or(0))
}

/// An extension: where guesses of the next tokens come from.
pub(crate) fn draft(fields: &mut Fields) -> Result<Option<DraftMode>, ApiError> {
    let Some(asked) = fields.text("draft")? else { return Ok(None) };
    let known = DraftMode::NAMES.iter().find(|(name, _)| *name == asked);
    known.map(|(_, mode)| Some(*mode)).ok_or_else(|| {
        let names = DraftMode::NAMES.map(|(name, _)| name).join(", ");
        ApiError::bad("draft", format!("draft must be one of {names}"))
    })
}

/// Texts before which an answer ends, in the member of that name.
///
/// # Errors
/// 400 for empty ones, and beyond the limits.
pub(crate) fn stop(
    fields: &mut Fields,
    name: &str,
    limits: &Limits,
) -> Result<Option<Vec<String>>, ApiError> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    let items = match value {
        Value::String(_) => vec![value],
        other => list(other, limits.stops, name)?,
    };
    let read = |(i, item)| {
        let path = format!("{name}[{i}]");
        let text = text(item, &path)?;
        match text.len() {
            0 => Err(ApiError::bad(&path, format!("{path} is empty"))),
            n if n > limits.stop_bytes => {
                let most = limits.stop_bytes;
                Err(ApiError::bad(&path, format!("{path} has {n} bytes, the limit is {most}")))
            }
            _ => Ok(text),
        }
    };
    items.into_iter().enumerate().map(read).collect::<Result<_, _>>().map(Some)
}

fn logit_bias(fields: &mut Fields, limits: &Limits) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let Some(value) = fields.take("logit_bias") else { return Ok(Vec::new()) };
    let Value::Object(members) = value else {
        return Err(wrong("logit_bias", "an object of token ids", &value));
    };
    if members.len() > limits.logit_bias {
        let (found, most) = (members.len(), limits.logit_bias);
        let message = format!("logit_bias has {found} tokens, the limit is {most}");
        return Err(ApiError::bad("logit_bias", message));
    }
    let read = |(key, value): (&String, &Value)| {
        let id = key.parse::<TokenId>().ok().filter(|id| id.to_string() == *key);
        let id = id.ok_or_else(|| {
            ApiError::bad("logit_bias", "the keys of logit_bias must be token ids")
        })?;
        Ok((id, number(value, -100.0..=100.0, &format!("logit_bias.{id}"))?))
    };
    members.iter().filter(|(_, value)| !value.is_null()).map(read).collect()
}

fn include_usage(fields: &mut Fields, stream: bool, notes: &mut Notes) -> Result<bool, ApiError> {
    let Some(value) = fields.take("stream_options") else { return Ok(false) };
    if !stream {
        let message = "stream_options is for requests with \"stream\": true";
        return Err(ApiError::bad("stream_options", message));
    }
    let mut options = Fields::of(value, "stream_options")?;
    let include = options.flag("include_usage")?.unwrap_or(false);
    if options.flag("include_obfuscation")?.unwrap_or(false) {
        let path = "stream_options.include_obfuscation";
        return Err(ApiError::unsupported(path, "obfuscation is not supported"));
    }
    options.finish(&[], notes)?;
    Ok(include)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parameters(body: Value) -> Result<Manner, ApiError> {
        both(body).map(|(manner, _)| manner)
    }

    fn both(body: Value) -> Result<(Manner, Delivery), ApiError> {
        let (mut fields, mut notes) = (Fields::of(body, "")?, Notes::new(true));
        let manner = read(&mut fields, &Limits::default(), &mut notes)?;
        let delivery = delivery(&mut fields, &mut notes)?;
        fields.refuse(UNBUILT)?;
        fields.finish(IGNORED, &mut notes)?;
        Ok((manner, delivery))
    }

    #[test]
    fn silence_and_null_are_the_same() {
        let (p, delivery) = both(json!({})).unwrap();
        assert_eq!((&p.sampling, p.choices), (&SamplingValues::default(), 1));
        assert!(!delivery.stream);
        let nulls = json!({
            "temperature": null, "stop": null, "n": null, "seed": null, "min_tokens": null,
            "stop_token_ids": null, "guided_json": null, "logit_bias": null, "nobody_knows": null,
            "stream_options": null, "cache_control": null,
        });
        assert_eq!(parameters(nulls).unwrap(), p);
        assert_eq!(parameters(json!({ "logit_bias": { "5": null } })).unwrap(), p);
        let stream = both(json!({ "stream": true })).unwrap();
        let options = json!({ "include_usage": null, "include_obfuscation": null, "x": null });
        let options = json!({ "stream": true, "stream_options": options });
        assert_eq!(both(options).unwrap(), stream);
    }

    #[test]
    fn what_other_servers_have_is_refused_where_it_asks_for_something() {
        let cases = [
            ("no_repeat_ngram_size", json!(0), json!(3)),
            ("skip_special_tokens", json!(true), json!(false)),
            ("length_penalty", json!(1), json!(2)),
        ];
        for (name, nothing, something) in cases {
            let body = |value: &Value| Value::from_iter([(name, value.clone())]);
            assert!(parameters(body(&nothing)).is_ok(), "{name}");
            let error = parameters(body(&something)).expect_err(name);
            assert_eq!((error.code, error.param.as_deref()), (Some("unsupported"), Some(name)));
        }
    }

    #[test]
    fn limits_hold_at_the_limit_and_not_beyond() {
        let many = |n: usize| vec!["x"; n];
        let bias = |n: usize| -> Value { (0..n).map(|i| (i.to_string(), json!(1))).collect() };
        let cases: Vec<(&str, Value, Value)> = vec![
            ("temperature", json!(2), json!(2.0001)),
            ("temperature", json!(0), json!(-0.0001)),
            ("temperature", json!(1e-9), json!("1")),
            ("top_p", json!(0), json!(1.1)),
            ("top_k", json!(-1), json!(-2)),
            ("top_k", json!(u32::MAX), json!(1u64 << 32)),
            ("min_p", json!(1), json!(1.01)),
            ("repetition_penalty", json!(10), json!(0)),
            ("repeat_penalty", json!(10), json!(0)),
            ("presence_penalty", json!(-2), json!(-2.1)),
            ("frequency_penalty", json!(2), json!(2.1)),
            ("n", json!(8), json!(9)),
            ("n", json!(1), json!(0)),
            ("max_tokens", json!(1), json!(0)),
            ("max_tokens", json!(u32::MAX), json!(1.5)),
            ("max_completion_tokens", json!(1), json!(-1)),
            ("seed", json!(i64::MIN), json!(0.5)),
            ("seed", json!(u64::MAX), json!("1")),
            ("stop", json!(many(16)), json!(many(17))),
            ("stop", json!("x".repeat(256)), json!("x".repeat(257))),
            ("stop", json!([]), json!("")),
            ("stop", json!(["a"]), json!(["a", ""])),
            ("stop", json!("a"), json!([1])),
            ("logit_bias", bias(1024), bias(1025)),
            ("logit_bias", json!({ "1": -100 }), json!({ "1": -100.5 })),
            ("logit_bias", json!({}), json!({ "01": 1 })),
            ("logit_bias", json!({ "7": 0.5 }), json!({ "-1": 1 })),
            ("logit_bias", json!({}), json!([])),
            ("ignore_eos", json!(true), json!(1)),
            ("stop_token_ids", json!([0]), json!([-1])),
            ("stop_token_ids", json!([]), json!([""])),
            ("priority", json!(-5), json!(0.5)),
            ("timeout", json!(0.5), json!(-1)),
            ("user", json!("u"), json!(1)),
            ("draft", json!("model"), json!("other")),
            ("draft", json!("none"), json!(1)),
            ("stream", json!(false), json!("true")),
        ];
        for (name, good, bad) in cases {
            let body = |value: &Value| Value::from_iter([(name, value.clone())]);
            assert!(parameters(body(&good)).is_ok(), "{name}: {good}");
            let error = parameters(body(&bad)).expect_err(name);
            let param = error.param.clone().unwrap_or_default();
            assert!(param.starts_with(name), "{name}: {error:?}");
        }
    }

    #[test]
    fn stream_options_need_a_stream() {
        assert!(parameters(json!({ "stream_options": {} })).is_err());
        let p = both(json!({ "stream": true, "stream_options": { "include_usage": true } }));
        assert!(p.unwrap().1.include_usage);
        let p = parameters(json!({ "stream": true, "stream_options": { "other": true } }));
        assert_eq!(p.unwrap_err().param.as_deref(), Some("stream_options.other"));
    }

    #[test]
    fn two_names_of_one_limit_must_agree() {
        let both = |a, b| parameters(json!({ "max_tokens": a, "max_completion_tokens": b }));
        assert_eq!(both(5, 5).unwrap().sampling.max_tokens, Some(5));
        assert!(both(5, 6).is_err());
    }
}

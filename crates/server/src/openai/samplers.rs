//! Samplers that OpenAI's API does not have, by the names that llama.cpp's server and vLLM gave them.

use tokenmill_engine::{SamplingValues, sampling};

use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, list, text};

/// Texts that may not come, or that end a run, at most; bytes of one.
const MOST_TEXTS: usize = 256;
const MOST_BYTES: usize = 256;

/// Reads them.
///
/// # Errors
/// 400 naming the first that is wrong.
pub(crate) fn read(fields: &mut Fields, values: &mut SamplingValues) -> Result<(), ApiError> {
    values.typical_p = part(fields, "typical_p")?;
    values.top_n_sigma = fields.number("top_n_sigma", -1.0..=1000.0)?;
    values.xtc_probability = fields.number("xtc_probability", 0.0..=1.0)?;
    values.xtc_threshold = fields.number("xtc_threshold", 0.0..=1.0)?;
    values.dynatemp_range = fields.number("dynatemp_range", 0.0..=100.0)?;
    values.dynatemp_exponent = fields.number("dynatemp_exponent", 0.0..=100.0)?;
    values.mirostat = mirostat(fields)?;
    values.mirostat_tau = fields.number("mirostat_tau", 0.0..=100.0)?;
    values.mirostat_eta = fields.number("mirostat_eta", 0.0..=10.0)?;
    values.repeat_last_n = last_n(fields, "repeat_last_n")?;
    values.dry_multiplier = fields.number("dry_multiplier", 0.0..=100.0)?;
    values.dry_base = fields.number("dry_base", 1.0..=100.0)?;
    values.dry_allowed_length = fields.count("dry_allowed_length", 0..=u32::MAX)?;
    values.dry_penalty_last_n = last_n(fields, "dry_penalty_last_n")?;
    values.dry_sequence_breakers = texts(fields, "dry_sequence_breakers")?;
    values.bad_words = texts(fields, "bad_words")?;
    values.min_tokens = fields.count("min_tokens", 0..=u32::MAX)?;
    order(fields, values)
}

/// Tokens that end an answer, beside the model's own.
///
/// # Errors
/// 400 for what is no list of tokens.
pub(crate) fn stop_token_ids(fields: &mut Fields, limits: &Limits) -> Result<Vec<u32>, ApiError> {
    const NAME: &str = "stop_token_ids";
    let Some(value) = fields.take(NAME) else { return Ok(Vec::new()) };
    let items = list(value, limits.logit_bias, NAME)?;
    let read = |item: &serde_json::Value| item.as_u64().and_then(|n| u32::try_from(n).ok());
    let ids: Option<Vec<u32>> = items.iter().map(read).collect();
    ids.ok_or_else(|| ApiError::bad(NAME, "stop_token_ids must be a list of token ids"))
}

/// A part of all probability, more than none of it.
fn part(fields: &mut Fields, name: &'static str) -> Result<Option<f32>, ApiError> {
    Ok(fields.number(name, 0.0..=1.0)?.map(|p| p.max(f32::MIN_POSITIVE)))
}

/// Version 2, or none; the first is not built.
///
/// # Errors
/// 400 for that and for what is no version.
pub(crate) fn mirostat(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let version = fields.count("mirostat", 0..=2)?;
    if version == Some(1) {
        let path = fields.path("mirostat");
        let message = format!("{path}: version 1 is not supported; 2 is");
        return Err(ApiError::unsupported(path, message));
    }
    Ok(version)
}

/// All of the text for -1.
///
/// # Errors
/// 400 for what is no such number.
pub(crate) fn last_n(fields: &mut Fields, name: &'static str) -> Result<Option<u32>, ApiError> {
    let found = fields.integer(name, -1..=i64::from(u32::MAX))?;
    Ok(found.map(|n| u32::try_from(n).unwrap_or(u32::MAX)))
}

fn texts(fields: &mut Fields, name: &'static str) -> Result<Option<Vec<String>>, ApiError> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    let read = |(i, item)| {
        let path = format!("{name}[{i}]");
        let text = text(item, &path)?;
        match text.len() {
            1..=MOST_BYTES => Ok(text),
            n => {
                let message = format!("{path} has {n} bytes, 1 to {MOST_BYTES} are allowed");
                Err(ApiError::bad(&path, message))
            }
        }
    };
    list(value, MOST_TEXTS, name)?
        .into_iter()
        .enumerate()
        .map(read)
        .collect::<Result<_, _>>()
        .map(Some)
}

/// `samplers`: a list of names, or names with `;` between them.
fn order(fields: &mut Fields, values: &mut SamplingValues) -> Result<(), ApiError> {
    const NAME: &str = "samplers";
    let names: Vec<String> = match fields.take(NAME) {
        None => return Ok(()),
        Some(serde_json::Value::String(names)) => {
            names.split(';').filter(|n| !n.is_empty()).map(str::to_owned).collect()
        }
        Some(value) => {
            let items = list(value, 32, NAME)?.into_iter().enumerate();
            items.map(|(i, item)| text(item, &format!("{NAME}[{i}]"))).collect::<Result<_, _>>()?
        }
    };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let read = sampling::order(&names, values);
    read.map_err(|why| ApiError::bad(NAME, format!("{NAME}: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn values(body: Value) -> Result<SamplingValues, ApiError> {
        let (mut fields, mut values) = (Fields::of(body, "")?, SamplingValues::default());
        read(&mut fields, &mut values)?;
        Ok(values)
    }

    #[test]
    fn an_order_is_read_by_names_and_who_is_not_named_is_off() {
        let read = values(json!({ "samplers": ["dry", "top_k", "typ_p", "temperature"] })).unwrap();
        assert_eq!(read.samplers.unwrap().to_string(), "top_k;typ_p;temperature");
        assert_eq!((read.repeat_penalty, read.dry_multiplier), (Some(1.0), None));
        let text = values(json!({ "samplers": "penalties;temp;xtc" })).unwrap();
        assert_eq!(text.samplers.unwrap().to_string(), "temperature;xtc");
        assert_eq!((text.repeat_penalty, text.dry_multiplier), (None, Some(0.0)));
        for (list, why) in [
            (json!(["top_k", "penalties"]), "penalties comes before"),
            (json!(["top_k", "top_k"]), "named twice"),
            (json!(["infill"]), "no sampler is called \"infill\""),
        ] {
            let error = values(json!({ "samplers": list })).unwrap_err();
            assert!(error.message.contains(why), "{}", error.message);
        }
    }

    #[test]
    fn limits_hold_at_the_limit_and_not_beyond() {
        let many = |n: usize| vec!["x"; n];
        for (name, good, bad) in [
            ("typical_p", json!(0), json!(1.01)),
            ("top_n_sigma", json!(-1), json!(-2)),
            ("xtc_probability", json!(1), json!(1.1)),
            ("xtc_threshold", json!(0), json!(-0.1)),
            ("mirostat", json!(2), json!(1)),
            ("mirostat", json!(0), json!(3)),
            ("mirostat_tau", json!(100), json!(101)),
            ("mirostat_eta", json!(10), json!(10.1)),
            ("dynatemp_range", json!(100), json!(-1)),
            ("dynatemp_exponent", json!(100), json!(101)),
            ("repeat_last_n", json!(-1), json!(-2)),
            ("dry_multiplier", json!(0), json!(-1)),
            ("dry_base", json!(1), json!(0.9)),
            ("dry_allowed_length", json!(0), json!(-1)),
            ("dry_penalty_last_n", json!(-1), json!(0.5)),
            ("dry_sequence_breakers", json!(many(256)), json!(many(257))),
            ("bad_words", json!(["x".repeat(256)]), json!(["x".repeat(257)])),
            ("bad_words", json!([]), json!([""])),
            ("min_tokens", json!(0), json!(-1)),
            ("samplers", json!([]), json!([1])),
        ] {
            let body = |value: &Value| Value::from_iter([(name, value.clone())]);
            assert!(values(body(&good)).is_ok(), "{name}: {good}");
            let error = values(body(&bad)).expect_err(name);
            assert!(error.param.clone().unwrap_or_default().starts_with(name), "{error:?}");
        }
    }
}

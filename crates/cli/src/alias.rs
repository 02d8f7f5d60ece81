//! `serve --alias`: other names of models, with defaults and templates of their own.

use std::path::PathBuf;

use serde_json::{Map, Value};
use tokenmill_ir::Defaults;
use tokenmill_server::Alias;

use crate::failure::Failure;

/// An alias as it is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    name: String,
    model: String,
    defaults: Defaults,
    template: Option<PathBuf>,
}

/// The keys beside the model.
const KEYS: &str = "system, template, temperature, top_k, top_p, min_p, repeat_penalty, \
    presence_penalty, frequency_penalty, seed, max_tokens, stop";

/// Reads `NAME=MODEL`, `NAME=MODEL,key=value,...` or `NAME={JSON}`; files of settings give this last
/// form.
///
/// # Errors
/// What of it cannot be used.
pub fn parse(text: &str) -> Result<Asked, String> {
    let (name, rest) = text.split_once('=').ok_or("an alias is NAME=MODEL[,key=value...]")?;
    let name = name.trim();
    let is_odd = |c: char| c.is_control() || c.is_whitespace();
    if name.is_empty() || name.contains(is_odd) || name.starts_with("any:") {
        return Err(format!("{name:?} is no name: it has no blanks and does not begin with any:"));
    }
    let members = match rest.trim_start().starts_with('{') {
        true => serde_json::from_str(rest).map_err(|e| format!("{name}: {e}"))?,
        false => listed(rest)?,
    };
    asked(name, members).map_err(|why| format!("{name}: {why}"))
}

/// `MODEL,key=value,...`; a value goes on behind a comma that no key follows.
fn listed(text: &str) -> Result<Map<String, Value>, String> {
    let mut parts = text.split(',');
    let model = parts.next().unwrap_or_default().trim();
    let mut members = Map::from_iter([("model".to_owned(), model.into())]);
    let mut last: Option<String> = None;
    for part in parts {
        let key = part.split_once('=').map(|(key, value)| (key.trim(), value));
        let known = key.filter(|(key, _)| KEYS.split(", ").any(|known| known == spelled(key)));
        match (known, key, &last) {
            (Some((key, value)), ..) => {
                last = Some(spelled(key));
                members.insert(spelled(key), value.into());
            }
            (None, None, Some(key)) => {
                let before = members.get(key).and_then(Value::as_str).unwrap_or_default();
                let value = format!("{before},{part}");
                members.insert(key.clone(), value.into());
            }
            (None, Some((key, _)), _) => return Err(format!("there is no key {key:?}: {KEYS}")),
            (None, None, None) => return Err(format!("{part:?} is no key=value: {KEYS}")),
        }
    }
    Ok(members)
}

/// Keys are those of requests; files of settings may have `-` for `_`.
fn spelled(key: &str) -> String {
    key.replace('-', "_")
}

fn asked(name: &str, members: Map<String, Value>) -> Result<Asked, String> {
    let mut asked = Asked {
        name: name.to_owned(),
        model: String::new(),
        defaults: Defaults::default(),
        template: None,
    };
    for (key, value) in members {
        let (key, sampling) = (spelled(&key), &mut asked.defaults.sampling);
        let real = |least: f64, most: f64| number(&value, least, most).map(Some);
        let whole = |least: u64, most: u64| count(&value, least, most).map(Some);
        let told = |why: String| format!("{key}: {why}");
        match key.as_str() {
            "model" => asked.model = words(&value).map_err(told)?,
            "system" => asked.defaults.system = Some(words(&value).map_err(told)?),
            "template" => asked.template = Some(words(&value).map_err(told)?.into()),
            "temperature" => sampling.temperature = real(0.0, 100.0).map_err(told)?,
            "top_p" => sampling.top_p = real(f64::MIN_POSITIVE, 1.0).map_err(told)?,
            "min_p" => sampling.min_p = real(0.0, 1.0).map_err(told)?,
            "repeat_penalty" => {
                sampling.repeat_penalty = real(f64::MIN_POSITIVE, 100.0).map_err(told)?;
            }
            "presence_penalty" => sampling.presence_penalty = real(-100.0, 100.0).map_err(told)?,
            "frequency_penalty" => {
                sampling.frequency_penalty = real(-100.0, 100.0).map_err(told)?
            }
            "top_k" => sampling.top_k = whole(0, u32::MAX.into()).map_err(told)?.map(|n| n as u32),
            "seed" => sampling.seed = whole(0, u64::MAX).map_err(told)?,
            "max_tokens" => {
                sampling.max_tokens = whole(1, 1 << 24).map_err(told)?.map(|n| n as u32);
            }
            "stop" => sampling.stop = Some(stops(&value).map_err(told)?),
            _ => return Err(format!("there is no key {key:?}: model, {KEYS}")),
        }
    }
    match asked.model.is_empty() {
        true => Err("no model is named".to_owned()),
        false => Ok(asked),
    }
}

fn words(value: &Value) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("a text, not {value}"))
}

fn number(value: &Value, least: f64, most: f64) -> Result<f32, String> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
    let number = number.filter(|n| (least..=most).contains(n)).map(|n| n as f32);
    let least =
        if least == f64::MIN_POSITIVE { "more than 0".to_owned() } else { least.to_string() };
    number.ok_or_else(|| format!("a number from {least} to {most}, not {value}"))
}

fn count(value: &Value, least: u64, most: u64) -> Result<u64, String> {
    let number = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok());
    let number = number.filter(|n| (least..=most).contains(n));
    number.ok_or_else(|| format!("a whole number from {least} to {most}, not {value}"))
}

fn stops(value: &Value) -> Result<Vec<String>, String> {
    let one = |value: &Value| match value.as_str() {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("a text that ends answers, not {value}")),
    };
    match value {
        Value::Array(list) => list.iter().map(one).collect(),
        value => Ok(vec![one(value)?]),
    }
}

/// The aliases with their templates.
///
/// # Errors
/// A template that cannot be read, or used.
pub fn read(all: &[Asked]) -> Result<Vec<Alias>, Failure> {
    all.iter().map(with_template).collect()
}

fn with_template(asked: &Asked) -> Result<Alias, Failure> {
    let Asked { name, model, defaults, template } = asked.clone();
    let read = |path: PathBuf| -> Result<String, Failure> {
        let failed = |e: &dyn std::fmt::Display| {
            Failure::new(format!("the alias {name} cannot use {}", path.display()), e)
        };
        let source = std::fs::read_to_string(&path).map_err(|e| failed(&e))?;
        // That it can be read at all is known before any model is.
        let tokens = tokenmill_text::TemplateTokens::default();
        tokenmill_text::ChatTemplate::new(&source, tokens).map_err(|e| failed(&e))?;
        Ok(source)
    };
    let template = template.map(read).transpose()?;
    Ok(Alias { name: asked.name.clone(), model, defaults, template })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenmill_ir::SamplingValues;

    #[test]
    fn aliases_are_read_in_both_forms() {
        let expect = Asked {
            name: "terse".into(),
            model: "user/repo:q8".into(),
            defaults: Defaults {
                system: Some("Be brief, please.".into()),
                sampling: SamplingValues {
                    temperature: Some(0.5),
                    max_tokens: Some(9),
                    stop: Some(vec!["\n".into()]),
                    ..SamplingValues::default()
                },
                ..Defaults::default()
            },
            template: Some("t.jinja".into()),
        };
        for text in [
            "terse=user/repo:q8,system=Be brief, please.,temperature=0.5,max-tokens=9,stop=\n,template=t.jinja",
            r#"terse={"model": "user/repo:q8", "system": "Be brief, please.", "temperature": 0.5,
               "max_tokens": 9, "stop": ["\n"], "template": "t.jinja"}"#,
        ] {
            assert_eq!(parse(text).as_ref(), Ok(&expect), "{text}");
        }
        for (text, expect) in [
            ("a", "NAME=MODEL"),
            ("=b", "no name"),
            ("any:chat=b", "no name"),
            ("a=", "no model"),
            ("a=b,temp=1", "no key \"temp\""),
            ("a=b,c", "no key=value"),
            ("a=b,temperature=-1", "a number from 0 to 100"),
            ("a=b,top_p=0", "more than 0"),
            ("a=b,max_tokens=0", "from 1 to"),
            ("a=b,stop=", "ends answers"),
            (r#"a={"model": 1}"#, "a text, not 1"),
            (r#"a={"model": "b", "x": 1}"#, "no key \"x\""),
        ] {
            let why = parse(text).expect_err(text);
            assert!(why.contains(expect), "{text}: {why}");
        }
    }
}

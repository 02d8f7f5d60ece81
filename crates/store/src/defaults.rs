//! What an Ollama model says of how it is run, as values. Pure.

use crate::error::shown;
use serde_json::Value;
use tokenmill_ir::Defaults;

/// Parameters about how another program uses its machine; no answer depends on them.
const MACHINE: &[&str] = &[
    "f16_kv",
    "low_vram",
    "main_gpu",
    "num_batch",
    "num_gpu",
    "num_gqa",
    "num_keep",
    "num_thread",
    "numa",
    "use_mlock",
    "use_mmap",
    "vocab_only",
];

/// From Ollama's parameters, a JSON object; what is wrong comes back as text.
pub(crate) fn from_ollama(text: &[u8]) -> Result<Defaults, String> {
    let value: Value = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    let members = value.as_object().ok_or("the parameters are no JSON object")?;
    let mut defaults = Defaults::default();
    for (name, value) in members {
        if !MACHINE.contains(&name.as_str()) {
            take(&mut defaults, name, value).ok_or_else(|| {
                format!("{} = {} makes no sense", shown(name), shown(&value.to_string()))
            })?;
        }
    }
    Ok(defaults)
}

/// `None` for a value that the parameter cannot have.
fn take(defaults: &mut Defaults, name: &str, value: &Value) -> Option<()> {
    let number =
        |low: f64, high: f64| value.as_f64().filter(|n| (low..=high).contains(n)).map(|n| n as f32);
    // Whole numbers; -1 and the like stand for "no limit".
    let count = || {
        let whole = value.as_i64()?;
        if whole < 0 { Some(0) } else { u32::try_from(whole).ok() }
    };
    let s = &mut defaults.sampling;
    match name {
        "temperature" => s.temperature = Some(number(0.0, 2.0)?),
        "top_k" => s.top_k = Some(count()?),
        "top_p" => s.top_p = Some(number(0.0, 1.0)?.max(f32::MIN_POSITIVE)),
        "min_p" => s.min_p = Some(number(0.0, 1.0)?),
        "typical_p" => s.typical_p = Some(number(0.0, 1.0)?.max(f32::MIN_POSITIVE)),
        "mirostat" if value.as_f64() != Some(1.0) => s.mirostat = Some(number(0.0, 2.0)? as u32),
        "mirostat_tau" => s.mirostat_tau = Some(number(0.0, 100.0)?),
        "mirostat_eta" => s.mirostat_eta = Some(number(0.0, 10.0)?),
        "repeat_last_n" => {
            let n = value.as_i64()?;
            s.repeat_last_n = Some(if n < 0 { u32::MAX } else { u32::try_from(n).ok()? });
        }
        "repeat_penalty" => s.repeat_penalty = Some(number(0.01, 10.0)?),
        "presence_penalty" => s.presence_penalty = Some(number(-2.0, 2.0)?),
        "frequency_penalty" => s.frequency_penalty = Some(number(-2.0, 2.0)?),
        // -1 is "from the clock", which is what no seed is here.
        "seed" => s.seed = u64::try_from(value.as_i64()?).ok(),
        "num_predict" => s.max_tokens = Some(count()?).filter(|n| *n > 0),
        "num_ctx" => defaults.context = Some(count()?).filter(|n| *n > 0),
        "stop" => s.stop = Some(texts(value)?),
        _ => {
            let value = shown(&value.to_string());
            defaults.unused.push(format!("{} {value}", shown(name)));
        }
    }
    Some(())
}

fn texts(value: &Value) -> Option<Vec<String>> {
    let text = |v: &Value| v.as_str().filter(|t| !t.is_empty()).map(str::to_string);
    match value {
        Value::Array(list) => list.iter().map(text).collect(),
        one => text(one).map(|t| vec![t]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Result<Vec<String>, String> {
        from_ollama(text.as_bytes()).map(|d| d.lines())
    }

    #[test]
    fn parameters_become_values() {
        let table: &[(&str, &[&str])] = &[
            ("{}", &[]),
            (r#"{"temperature":0.6,"top_p":1}"#, &["temperature 0.6", "top_p 1"]),
            (r#"{"num_ctx":4096,"num_predict":-1,"seed":-1}"#, &["ctx 4096"]),
            (r#"{"num_predict":9,"seed":7,"top_k":40}"#, &["top_k 40", "seed 7", "max_tokens 9"]),
            (r#"{"stop":["<a>","\n"]}"#, &[r#"stop "<a>""#, r#"stop "\n""#]),
            (r#"{"stop":"x","num_gpu":3,"use_mmap":true}"#, &[r#"stop "x""#]),
            (
                r#"{"mirostat":2,"typical_p":0.5,"repeat_last_n":64}"#,
                &["typical_p 0.5", "mirostat 2", "repeat_last_n 64"],
            ),
            (r#"{"mirostat":1,"tfs_z":0.5}"#, &["not used: mirostat 1", "not used: tfs_z 0.5"]),
        ];
        for (text, expect) in table {
            assert_eq!(lines(text).unwrap(), *expect, "{text}");
        }
    }

    #[test]
    fn aliases_have_parameters_that_make_sense() {
        for alias in crate::name::ALIASES {
            let found = lines(alias.parameters).unwrap();
            let smollm2 = alias.name.starts_with("smollm2");
            let expect: &[&str] = if smollm2 { &["temperature 0.2", "top_p 0.9"] } else { &[] };
            assert_eq!(found, expect, "{}", alias.name);
        }
    }

    #[test]
    fn senseless_parameters_are_refused() {
        for text in [
            "",
            "[]",
            "{",
            r#"{"temperature":"warm"}"#,
            r#"{"temperature":-1}"#,
            r#"{"temperature":1e300}"#,
            r#"{"top_p":2}"#,
            r#"{"top_k":1.5}"#,
            r#"{"num_ctx":99999999999}"#,
            r#"{"stop":[1]}"#,
            r#"{"stop":[""]}"#,
            r#"{"seed":"x"}"#,
        ] {
            assert!(lines(text).is_err(), "{text}");
        }
    }
}

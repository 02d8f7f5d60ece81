//! How a model's packager wants it to be run: the parameters and the system message of an Ollama
//! model, as values. Pure.

use crate::error::shown;
use serde_json::Value;

/// What is said of how to sample, by a request, a command line or a packager; `None` where they are
/// silent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingValues {
    /// 0: always the likeliest token.
    pub temperature: Option<f32>,
    /// Only the k likeliest; 0: all.
    pub top_k: Option<u32>,
    /// Only the likeliest with this much probability together.
    pub top_p: Option<f32>,
    /// Only tokens with this part of the best one's probability.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens seen before.
    pub repeat_penalty: Option<f32>,
    /// Taken from the logits of tokens seen before.
    pub presence_penalty: Option<f32>,
    /// Taken from the logits of tokens seen before, once for each time.
    pub frequency_penalty: Option<f32>,
    /// Seed.
    pub seed: Option<u64>,
    /// Most tokens to generate.
    pub max_tokens: Option<u32>,
    /// Texts that end an answer.
    pub stop: Option<Vec<String>>,
}

impl SamplingValues {
    /// These values, and where they are silent those of `under`.
    pub fn or(self, under: Self) -> Self {
        Self {
            temperature: self.temperature.or(under.temperature),
            top_k: self.top_k.or(under.top_k),
            top_p: self.top_p.or(under.top_p),
            min_p: self.min_p.or(under.min_p),
            repeat_penalty: self.repeat_penalty.or(under.repeat_penalty),
            presence_penalty: self.presence_penalty.or(under.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(under.frequency_penalty),
            seed: self.seed.or(under.seed),
            max_tokens: self.max_tokens.or(under.max_tokens),
            stop: self.stop.or(under.stop),
        }
    }

    /// One line for each value, as `name value`.
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            lines.extend(value.map(|value| format!("{name} {value}")));
        };
        let number = |n: Option<f32>| n.map(|n| n.to_string());
        let count = |n: Option<u32>| n.map(|n| n.to_string());
        add("temperature", number(self.temperature));
        add("top_k", count(self.top_k));
        add("top_p", number(self.top_p));
        add("min_p", number(self.min_p));
        add("repeat_penalty", number(self.repeat_penalty));
        add("presence_penalty", number(self.presence_penalty));
        add("frequency_penalty", number(self.frequency_penalty));
        add("seed", self.seed.map(|n| n.to_string()));
        add("max_tokens", count(self.max_tokens));
        for stop in self.stop.iter().flatten() {
            add("stop", Some(format!("{stop:?}")));
        }
        lines
    }
}

/// What a model's packager says of how it is run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Defaults {
    /// How to sample.
    pub sampling: SamplingValues,
    /// Longest sequence, tokens.
    pub context: Option<u32>,
    /// System message of conversations that bring none.
    pub system: Option<String>,
    /// Length of a template in Go's language. It is not run: the model file has its own.
    pub template_bytes: Option<u64>,
    /// What the packager also says and this program does not follow, one phrase each.
    pub unused: Vec<String>,
}

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

impl Defaults {
    /// From Ollama's parameters, a JSON object; what is wrong comes back as text.
    pub(crate) fn from_ollama(text: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(text).map_err(|e| e.to_string())?;
        let members = value.as_object().ok_or("the parameters are no JSON object")?;
        let mut defaults = Self::default();
        for (name, value) in members {
            if !MACHINE.contains(&name.as_str()) {
                defaults.take(name, value).ok_or_else(|| {
                    format!("{} = {} makes no sense", shown(name), shown(&value.to_string()))
                })?;
            }
        }
        Ok(defaults)
    }

    /// `None` for a value that the parameter cannot have.
    fn take(&mut self, name: &str, value: &Value) -> Option<()> {
        let number = |low: f64, high: f64| {
            value.as_f64().filter(|n| (low..=high).contains(n)).map(|n| n as f32)
        };
        // Whole numbers; -1 and the like stand for "no limit".
        let count = || {
            let whole = value.as_i64()?;
            if whole < 0 { Some(0) } else { u32::try_from(whole).ok() }
        };
        let s = &mut self.sampling;
        match name {
            "temperature" => s.temperature = Some(number(0.0, 2.0)?),
            "top_k" => s.top_k = Some(count()?),
            "top_p" => s.top_p = Some(number(0.0, 1.0)?.max(f32::MIN_POSITIVE)),
            "min_p" => s.min_p = Some(number(0.0, 1.0)?),
            "repeat_penalty" => s.repeat_penalty = Some(number(0.01, 10.0)?),
            "presence_penalty" => s.presence_penalty = Some(number(-2.0, 2.0)?),
            "frequency_penalty" => s.frequency_penalty = Some(number(-2.0, 2.0)?),
            // -1 is "from the clock", which is what no seed is here.
            "seed" => s.seed = u64::try_from(value.as_i64()?).ok(),
            "num_predict" => s.max_tokens = Some(count()?).filter(|n| *n > 0),
            "num_ctx" => self.context = Some(count()?).filter(|n| *n > 0),
            "stop" => s.stop = Some(texts(value)?),
            _ => {
                let value = shown(&value.to_string());
                self.unused.push(format!("{} {value}", shown(name)));
            }
        }
        Some(())
    }

    /// These, and where they are silent those of `under`.
    pub fn or(self, under: Self) -> Self {
        Self {
            sampling: self.sampling.or(under.sampling),
            context: self.context.or(under.context),
            system: self.system.or(under.system),
            template_bytes: self.template_bytes.or(under.template_bytes),
            unused: [self.unused, under.unused].concat(),
        }
    }

    /// One line for each default, as `name value`.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = self.sampling.lines();
        let mut add = |name: &str, value: Option<String>| {
            lines.extend(value.map(|value| format!("{name} {value}")));
        };
        add("ctx", self.context.map(|n| n.to_string()));
        add("system", self.system.as_ref().map(|text| format!("{:?}", shown(text))));
        let template =
            |n| format!("in Go's language ({n} bytes), not run: the model file's own is");
        add("template", self.template_bytes.map(template));
        for what in &self.unused {
            add("not used:", Some(what.clone()));
        }
        lines
    }
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
        Defaults::from_ollama(text.as_bytes()).map(|d| d.lines())
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
                r#"{"mirostat":2,"typical_p":0.5}"#,
                &["not used: mirostat 2", "not used: typical_p 0.5"],
            ),
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
    fn who_speaks_first_is_heard() {
        let says = |temperature, max_tokens| SamplingValues {
            temperature,
            max_tokens,
            ..SamplingValues::default()
        };
        let cases = [
            (says(None, None), says(Some(0.5), Some(9)), says(Some(0.5), Some(9))),
            (says(Some(0.0), None), says(Some(0.5), Some(7)), says(Some(0.0), Some(7))),
            (says(None, Some(3)), says(None, Some(7)), says(None, Some(3))),
        ];
        for (first, under, expect) in cases {
            assert_eq!(first.clone().or(under.clone()), expect, "{first:?} {under:?}");
        }
        let stops = |list: &[&str]| SamplingValues {
            stop: Some(list.iter().map(|s| s.to_string()).collect()),
            ..SamplingValues::default()
        };
        assert_eq!(stops(&[]).or(stops(&["x"])), stops(&[]), "no stops is a word too");
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

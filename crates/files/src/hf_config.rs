//! `config.json` and `generation_config.json` of a Hugging Face folder, as [`Meta`].
//!
//! Python's JSON has `Infinity`, `-Infinity` and `NaN`, and newer transformers write
//! `{"__float__": "Infinity"}`: both become floats.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use tokenmill_ir::{Meta, MetaValue};

use crate::budget::{Budget, ENTRY_BYTES};
use crate::error::LoadError;
use crate::quantized::Quantization;
use crate::safetensors::{Text, charge, parse_json};

/// Memory that a configuration may take beside the multiple of its file, bytes.
const BASE_BYTES: u64 = 16 << 20;
/// Longest configuration file, bytes.
pub(crate) const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// Python's spellings of the floats that JSON lacks.
const NON_FINITE: [(&str, f64); 3] =
    [("Infinity", f64::INFINITY), ("-Infinity", f64::NEG_INFINITY), ("NaN", f64::NAN)];

/// Reads a JSON map; `path` is for error messages.
///
/// # Errors
/// [`LoadError::Invalid`] if it is not a JSON map, [`LoadError::TooLarge`] if it unfolds too far.
pub fn parse(path: &Path, json: &[u8]) -> Result<Meta, LoadError> {
    let json = quote_non_finite(json);
    let budget = Budget::new(BASE_BYTES, json.len() as u64);
    match parse_json(path, "config", &json, &budget, |d| Value(&budget).deserialize(d))? {
        MetaValue::Map(meta) => Ok(*meta),
        _ => Err(LoadError::invalid(path, "config", "a JSON map", "another JSON value")),
    }
}

/// Refuses a checkpoint whose weights are quantised in a way that cannot be read.
///
/// # Errors
/// [`LoadError::Unsupported`], naming the method or key.
pub fn check_quantization(path: &Path, meta: &Meta) -> Result<(), LoadError> {
    Quantization::parse(path, meta).map(drop)
}

/// Puts quotes around `Infinity`, `-Infinity` and `NaN` outside strings.
fn quote_non_finite(json: &[u8]) -> Cow<'_, [u8]> {
    let mut out: Option<Vec<u8>> = None;
    let (mut copied, mut at, mut in_string) = (0, 0, false);
    while at < json.len() {
        match json[at] {
            b'\\' if in_string => at += 1,
            b'"' => in_string = !in_string,
            b'I' | b'-' | b'N' if !in_string => {
                let rest = &json[at..];
                let word = NON_FINITE.iter().find(|(word, _)| rest.starts_with(word.as_bytes()));
                if let Some((word, _)) = word {
                    let out = out.get_or_insert_with(Vec::new);
                    out.extend_from_slice(&json[copied..at]);
                    out.push(b'"');
                    out.extend_from_slice(word.as_bytes());
                    out.push(b'"');
                    at += word.len();
                    copied = at;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    match out {
        None => Cow::Borrowed(json),
        Some(mut out) => {
            out.extend_from_slice(&json[copied..]);
            Cow::Owned(out)
        }
    }
}

/// Any JSON value.
struct Value<'b>(&'b Budget);

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = MetaValue;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<MetaValue, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = MetaValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<MetaValue, E> {
        Ok(MetaValue::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<MetaValue, E> {
        Ok(MetaValue::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<MetaValue, E> {
        Ok(MetaValue::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<MetaValue, E> {
        Ok(i64::try_from(value).map_or(MetaValue::Uint(value), MetaValue::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<MetaValue, E> {
        Ok(MetaValue::Float(value))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<MetaValue, E> {
        if let Some(&(_, value)) = NON_FINITE.iter().find(|(word, _)| *word == text) {
            return Ok(MetaValue::Float(value));
        }
        charge(self.0, text.len() as u64)?;
        Ok(MetaValue::Str(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<MetaValue, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(Value(self.0))? {
            charge(self.0, 3 * size_of::<MetaValue>() as u64)?; // a list doubles as it grows
            list.push(value);
        }
        Ok(MetaValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MetaValue, A::Error> {
        let mut meta = Meta::new();
        while let Some(key) = map.next_key_seed(Text(self.0))? {
            charge(self.0, key.len() as u64 + ENTRY_BYTES)?;
            let value = map.next_value_seed(Value(self.0))?;
            meta.insert(key, value); // the last of two wins, as in Python
        }
        let mut pairs = meta.iter();
        if let (Some(("__float__", &MetaValue::Float(value))), None) = (pairs.next(), pairs.next())
        {
            return Ok(MetaValue::Float(value));
        }
        drop(pairs);
        Ok(MetaValue::Map(Box::new(meta)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Meta, LoadError> {
        parse(Path::new("config.json"), json.as_bytes())
    }

    #[test]
    fn json_values_keep_their_types_and_order() {
        let meta = read(
            r#"{"hidden_size": 576, "eps": 1e-05, "tie": true, "x": null, "a": [1, 2.5, "s"],
                "big": 18446744073709551615, "rope_scaling": {"type": "yarn", "factor": 4.0}}"#,
        )
        .unwrap();
        assert_eq!(meta.u32("hidden_size").unwrap(), 576);
        assert_eq!(meta.opt_f64("eps").unwrap(), Some(1e-5));
        assert_eq!(meta.opt_bool("tie").unwrap(), Some(true));
        assert_eq!(meta.get("x"), None);
        assert_eq!(meta.get("big"), Some(&MetaValue::Uint(u64::MAX)));
        assert_eq!(meta.str("rope_scaling.type").unwrap(), "yarn");
        let list = [MetaValue::Int(1), MetaValue::Float(2.5), MetaValue::Str("s".into())];
        assert_eq!(meta.opt_list("a").unwrap().unwrap(), list);
        let keys: Vec<&str> = meta.iter().map(|(k, _)| k).collect();
        assert_eq!(keys, ["hidden_size", "eps", "tie", "x", "a", "big", "rope_scaling"]);
    }

    #[test]
    fn python_floats_are_floats_outside_strings_only() {
        let meta = read(
            r#"{"limit": [0.0, Infinity], "low": -Infinity, "nan": NaN, "n": -12,
                "text": "not \"Infinity\" here: NaN", "v5": {"__float__": "Infinity"}}"#,
        )
        .unwrap();
        assert_eq!(
            meta.opt_list("limit").unwrap().unwrap(),
            [MetaValue::Float(0.0), MetaValue::Float(f64::INFINITY)]
        );
        assert_eq!(meta.opt_f64("low").unwrap(), Some(f64::NEG_INFINITY));
        assert!(meta.opt_f64("nan").unwrap().unwrap().is_nan());
        assert_eq!(meta.get("n"), Some(&MetaValue::Int(-12)));
        assert_eq!(meta.str("text").unwrap(), "not \"Infinity\" here: NaN");
        assert_eq!(meta.opt_f64("v5").unwrap(), Some(f64::INFINITY));
    }

    #[test]
    fn what_is_not_a_json_map_is_refused() {
        for json in ["", "[]", "3", "{", "{\"a\": }", "{} {}", "{\"a\": \"\u{0}\"}", "{1: 2}"] {
            assert!(matches!(read(json), Err(LoadError::Invalid { .. })), "{json:?}");
        }
        let deep = format!("{{\"a\": {}", "[".repeat(100_000));
        assert!(matches!(read(&deep), Err(LoadError::Invalid { .. })));
        let wide = format!("{{\"a\": [{}0]}}", "0,".repeat(400_000));
        assert!(matches!(read(&wide), Err(LoadError::TooLarge { .. })));
    }
}

//! What a scenario wants of a value: where it stands, and what must hold of it.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use regex::Regex;
use serde_json::{Value, json};

/// The values at a path: dotted names, `*` for all elements, `?word` for the first one named so;
/// one of several paths gives their sum.
pub fn found(body: &Value, path: &Value) -> Option<Value> {
    match path {
        Value::Array(paths) => {
            let number = |path| found(body, path).and_then(|value| value.as_f64());
            Some(json!(paths.iter().filter_map(number).sum::<f64>()))
        }
        path => at(body, &names(path.as_str().expect("a path"))),
    }
}

/// The names of a path; `\.` is a dot in one.
fn names(path: &str) -> Vec<String> {
    let plain = path.replace("\\.", "\u{0}");
    let names = plain.split('.').filter(|name| !name.is_empty());
    names.map(|name| name.replace('\u{0}', ".")).collect()
}

fn at(value: &Value, names: &[String]) -> Option<Value> {
    let Some((name, rest)) = names.split_first() else { return Some(value.clone()) };
    match (value, name.as_str()) {
        (Value::Array(list), "*") => {
            Some(list.iter().filter_map(|one| at(one, rest)).collect::<Vec<_>>().into())
        }
        (Value::Array(list), name) if name.starts_with('?') => {
            let word = &name[1..];
            let is_named = |one: &&Value| {
                let names = ["name", "model", "id"].iter().filter_map(|key| one[*key].as_str());
                names.into_iter().any(|name| name.contains(word))
            };
            at(list.iter().find(is_named)?, rest)
        }
        (Value::Array(list), name) => at(list.get(name.parse::<usize>().ok()?)?, rest),
        (value, name) => at(value.get(name)?, rest),
    }
}

/// Whether a pattern occurs in what is told.
fn matches(pattern: &Value, text: &str) -> bool {
    let pattern = pattern.as_str().expect("a pattern");
    Regex::new(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}")).is_match(text)
}

/// What is wrong with a value, if anything.
pub fn wrong(found: Option<&Value>, check: &str, wanted: &Value) -> Option<String> {
    let holds = match (found, check) {
        (found, "absent") => found.is_none(),
        (found, "exists") => found.is_some(),
        (found, "null") => found.is_none_or(Value::is_null),
        (None, _) => false,
        (Some(found), check) => of_value(found, check, wanted)
            .or_else(|| of_list(found, check, wanted))
            .or_else(|| of_text(found, check, wanted))
            .unwrap_or_else(|| panic!("no check is called {check}")),
    };
    (!holds).then(|| format!("{} {check} {wanted}", found.unwrap_or(&json!("nothing"))))
}

fn equal(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "str" | "string" => value.is_string(),
        "int" | "integer" => value.is_i64() || value.is_u64(),
        "float" | "number" => value.is_number(),
        "bool" => value.is_boolean(),
        "dict" | "object" => value.is_object(),
        "list" | "array" => value.is_array(),
        other => panic!("no type is called {other}"),
    }
}

fn length(value: &Value) -> Option<usize> {
    match value {
        Value::Array(list) => Some(list.len()),
        Value::Object(members) => Some(members.len()),
        Value::String(text) => Some(text.chars().count()),
        _ => None,
    }
}

fn contains(found: &Value, wanted: &Value) -> bool {
    match found {
        Value::Array(list) => list.iter().any(|one| equal(one, wanted)),
        Value::Object(members) => wanted.as_str().is_some_and(|key| members.contains_key(key)),
        other => shown(other).contains(&shown(wanted)),
    }
}

fn of_value(found: &Value, check: &str, wanted: &Value) -> Option<bool> {
    let numbers = |holds: fn(f64, f64) -> bool| {
        found.as_f64().zip(wanted.as_f64()).is_some_and(|(a, b)| holds(a, b))
    };
    let count = |holds: fn(u64, u64) -> bool| {
        length(found).zip(wanted.as_u64()).is_some_and(|(a, b)| holds(a as u64, b))
    };
    Some(match check {
        "eq" => equal(found, wanted),
        "ne" => !equal(found, wanted),
        "in" => wanted.as_array().expect("a list").iter().any(|one| equal(one, found)),
        "type" => has_type(found, wanted.as_str().expect("a type")),
        "has" => contains(found, wanted),
        "lacks" => !contains(found, wanted),
        "len" => count(|a, b| a == b),
        "len_ge" => count(|a, b| a >= b),
        "ge" => numbers(|a, b| a >= b),
        "le" => numbers(|a, b| a <= b),
        "gt" => numbers(|a, b| a > b),
        "lt" => numbers(|a, b| a < b),
        "valid" => {
            let parsed = match found {
                Value::String(text) => serde_json::from_str(text).unwrap_or(json!("\u{0}no JSON")),
                other => other.clone(),
            };
            jsonschema::is_valid(wanted, &parsed)
        }
        "keys" => {
            let keys: Vec<&String> = found.as_object().into_iter().flat_map(|o| o.keys()).collect();
            json!(keys) == *wanted
        }
        _ => return None,
    })
}

fn of_list(found: &Value, check: &str, wanted: &Value) -> Option<bool> {
    let list = || found.as_array().map(Vec::as_slice).unwrap_or_default();
    let texts = || list().iter().map(shown);
    let numbers = || list().iter().filter_map(Value::as_f64).collect::<Vec<f64>>();
    Some(match check {
        "all_type" => list().iter().all(|one| has_type(one, wanted.as_str().expect("a type"))),
        "all_re" => texts().all(|text| matches(wanted, &text)),
        "some_re" => texts().any(|text| matches(wanted, &text)),
        "none_re" => !texts().any(|text| matches(wanted, &text)),
        "count_re" => {
            let count = texts().filter(|text| matches(&wanted[0], text)).count();
            wanted[1] == json!(count)
        }
        "unique" => {
            let mut all: Vec<String> = texts().collect();
            all.sort_unstable();
            all.windows(2).all(|pair| pair[0] != pair[1])
        }
        "desc" => numbers().windows(2).all(|pair| pair[0] >= pair[1]),
        "join_eq" => *wanted == json!(texts().collect::<String>()),
        "norm1" => (numbers().iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-3,
        "b64f32" => {
            let bytes = found.as_str().and_then(|text| STANDARD.decode(text).ok());
            let bytes = bytes.unwrap_or_default();
            let floats =
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            let wanted = wanted.as_array().expect("floats").iter().filter_map(Value::as_f64);
            let wanted: Vec<f32> = wanted.map(|x| x as f32).collect();
            bytes.len() == 4 * wanted.len() && floats.eq(wanted)
        }
        _ => return None,
    })
}

fn of_text(found: &Value, check: &str, wanted: &Value) -> Option<bool> {
    Some(match check {
        "re" => matches(wanted, &shown(found)),
        "nre" => !matches(wanted, &shown(found)),
        "json" => serde_json::from_str::<Value>(&shown(found)).is_ok(),
        "rfc3339" => seconds(&shown(found)).is_some(),
        "in_s" => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs_f64();
            let ahead = seconds(&shown(found)).map(|time| time - now);
            let bounds = [&wanted[0], &wanted[1]].map(|bound| bound.as_f64().expect("a bound"));
            ahead.is_some_and(|ahead| (bounds[0]..=bounds[1]).contains(&ahead))
        }
        _ => return None,
    })
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Seconds since 1970 of a time as RFC 3339 has it.
fn seconds(text: &str) -> Option<f64> {
    let form = r"^(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d(?:\.\d+)?)([Zz]|[+-]\d\d:\d\d)$";
    let parts = Regex::new(form).expect("a pattern").captures(text)?;
    let number = |at: usize| parts[at].parse::<f64>().ok();
    let (year, month, day) = (number(1)?, number(2)?, number(3)?);
    // Days of the civil calendar, from March on.
    let shifted = if month <= 2.0 { year - 1.0 } else { year };
    let (era, of_year) = ((shifted / 400.0).floor(), (month + 9.0) % 12.0);
    let in_era = shifted - era * 400.0;
    let day_of_year = ((153.0 * of_year + 2.0) / 5.0).floor() + day - 1.0;
    let days = in_era * 365.0 + (in_era / 4.0).floor() - (in_era / 100.0).floor() + day_of_year;
    let days = era * 146_097.0 + days - 719_468.0;
    let zone = match parts[7].len() {
        1 => 0.0,
        _ => {
            let sign = if parts[7].starts_with('-') { -1.0 } else { 1.0 };
            let part = |range: std::ops::Range<usize>| {
                parts[7].get(range).and_then(|text| text.parse::<f64>().ok())
            };
            sign * (part(1..3)? * 3600.0 + part(4..6)? * 60.0)
        }
    };
    Some(days * 86_400.0 + number(4)? * 3600.0 + number(5)? * 60.0 + number(6)? - zone)
}

#[test]
fn checks_can_fail() {
    let body = json!({
        "a": {"b.c": [1, 2]}, "l": [{"name": "small-x", "n": 3}, {"name": "big", "n": 2}],
        "t": "1970-01-02T00:00:01.5+01:00", "s": "[1]", "f": "AACAPwAAAEA=",
    });
    for (path, check, wanted, holds) in [
        (json!("a.b\\.c.1"), "eq", json!(2.0), true),
        (json!("a.b\\.c"), "desc", json!(null), false),
        (json!("a.x"), "absent", json!(null), true),
        (json!("a.x"), "re", json!("."), false),
        (json!("l.*.n"), "desc", json!(null), true),
        (json!("l.*.name"), "count_re", json!(["small", 1]), true),
        (json!("l.*.name"), "none_re", json!("big"), false),
        (json!("l.?big.n"), "type", json!("int"), true),
        (json!(["l.0.n", "l.1.n", "l.2.n"]), "eq", json!(5), true),
        (json!("l.*.name"), "unique", json!(null), true),
        (json!("l"), "len_ge", json!(3), false),
        (json!("t"), "rfc3339", json!(null), true),
        (json!("t"), "in_s", json!([0, 10]), false),
        (json!("s"), "valid", json!({"type": "array", "maxItems": 1}), true),
        (json!("s"), "valid", json!({"type": "object"}), false),
        (json!("f"), "b64f32", json!([1.0, 2.0]), true),
        (json!("f"), "b64f32", json!([1.0]), false),
        (json!("l.0"), "keys", json!(["name", "n"]), true),
    ] {
        let fault = wrong(found(&body, &path).as_ref(), check, &wanted);
        assert_eq!(fault.is_none(), holds, "{path} {check} {wanted}: {fault:?}");
    }
    assert_eq!(seconds("1970-01-02T00:00:01.5+01:00"), Some(86_400.0 + 1.5 - 3600.0));
    assert_eq!(seconds("2026-11-27T12:00:00Z"), Some(1_795_780_800.0));
}

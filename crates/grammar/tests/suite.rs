//! JSON-Schema-Test-Suite: each schema is enforced or refused by name, and what is enforced takes
//! no invalid instance.

mod bytes;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};

use bytes::holds;
use serde_json::{Map, Value};
use tokenmill_grammar::{Constraint, Refused, Settings, compile};

const DRAFTS: &[&str] = &["draft4", "draft6", "draft7", "draft2019-09", "draft2020-12"];
/// The newest suite in which a case is looked for; the one whose `$schema` the others lack.
const SUITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/suite.zip");

/// Names in order of their first mention.
fn mentioned(schema: &Value, names: &mut Vec<String>) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                if !names.contains(key) {
                    names.push(key.clone());
                }
                mentioned(value, names);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| mentioned(item, names)),
        Value::String(s) if !names.contains(s) => names.push(s.clone()),
        _ => {}
    }
}

fn ordered(value: &Value, names: &[String]) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.iter().map(|v| ordered(v, names)).collect()),
        Value::Object(map) => {
            let mut pairs: Vec<_> = map.iter().collect();
            pairs.sort_by_key(|(k, _)| names.iter().position(|n| n == *k).unwrap_or(usize::MAX));
            let pairs = pairs.into_iter().map(|(k, v)| (k.clone(), ordered(v, names)));
            Value::Object(pairs.collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

#[derive(Default)]
struct Count {
    enforced: usize,
    refused: BTreeMap<String, usize>,
    valid_taken: usize,
    valid_not: BTreeMap<String, usize>,
    invalid: usize,
}

fn name_of(refused: &Refused) -> String {
    match refused {
        Refused::Keyword { keyword, .. } => keyword.clone(),
        Refused::Unsatisfiable { keywords, .. } => format!("unsatisfiable: {keywords}"),
        other => other.to_string(),
    }
}

#[test]
fn no_invalid_instance_is_taken() {
    let file = std::fs::File::open(SUITE).unwrap();
    let mut zip = zip::ZipArchive::new(file).unwrap();
    let vocabulary = bytes::bytes();
    let mut wrong: Vec<String> = Vec::new();
    for draft in DRAFTS {
        let mut count = Count::default();
        let rows = BufReader::new(zip.by_name(&format!("{draft}.jsonl")).unwrap());
        for row in rows.lines() {
            let row: Value = serde_json::from_str(&row.unwrap()).unwrap();
            let (schema, title) = (&row["schema"], format!("{} {}", row["file"], row["name"]));
            let valid = row["valid"].as_array().unwrap();
            let constraint = Constraint::JsonSchema(schema.clone());
            let grammar = match compile(&constraint, &vocabulary, &Settings::default()) {
                Ok(grammar) => grammar,
                Err(refused) => {
                    // Nothing is refused as unsatisfiable that has a value.
                    let is_empty = matches!(refused, Refused::Unsatisfiable { .. });
                    if is_empty && !valid.is_empty() && *draft != "draft4" {
                        wrong.push(format!("{draft} {title}: {refused}; takes {}", valid[0]));
                    }
                    // A refusal that names no keyword is a gap in the reader.
                    if matches!(refused, Refused::Syntax { .. }) {
                        wrong.push(format!("{draft} {title}: {refused}"));
                    }
                    *count.refused.entry(name_of(&refused)).or_default() += 1;
                    continue;
                }
            };
            count.enforced += 1;
            let mut names = Vec::new();
            mentioned(schema, &mut names);
            let forms = |v: &Value| [v.to_string(), ordered(v, &names).to_string()];
            for instance in row["invalid"].as_array().unwrap() {
                count.invalid += 1;
                if let Some(text) = forms(instance).iter().find(|t| holds(&grammar, t)) {
                    wrong.push(format!("{draft} {title}: takes {text} under {schema}"));
                }
            }
            for instance in valid {
                if forms(instance).iter().any(|t| holds(&grammar, t)) {
                    count.valid_taken += 1;
                } else {
                    *count.valid_not.entry(format!("{title}: {instance}")).or_default() += 1;
                }
            }
        }
        let refused: usize = count.refused.values().sum();
        println!("{draft}: {} schemas enforced, {refused} refused", count.enforced);
        println!("  refused by {:?}", count.refused);
        println!("  invalid instances turned away: {}", count.invalid);
        let not: usize = count.valid_not.values().sum();
        println!("  valid instances taken: {}, not: {not}", count.valid_taken);
        for text in count.valid_not.keys() {
            println!("    {}", text.chars().take(140).collect::<String>());
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

//! Outputs of 20 families of models, each with what a client must get of it, whole and however it
//! is cut. Every case goes back to a public report on another engine (`source`).

mod answers;

use std::sync::Arc;

use answers::{Answer, at_every_split};
use serde_json::Value;
use tokenmill_output::Tool;

#[test]
fn every_output_is_told_apart_as_it_should() {
    let mut wrong = Vec::new();
    let mut cases = 0;
    for line in include_str!("cases.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let (text, family) = (case["text"].as_str().unwrap(), case["family"].as_str().unwrap());
        let (begun, cut) = (case["prompt_opens_think"] == true, case["finish"] == "length");
        let answer = at_every_split(family, &offered(&case["tools"]), begun, text, cut);
        if let Some(why) = differs(&case, &answer) {
            wrong.push(format!("{}: {why}\n  {text:?}\n  {answer:?}", case["id"]));
        }
        cases += 1;
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(cases, 135);
}

fn offered(tools: &Value) -> Arc<[Tool]> {
    let functions = tools.as_array().unwrap().iter().map(|tool| &tool["function"]);
    let tool = |function: &Value| Tool {
        name: function["name"].as_str().unwrap().to_owned(),
        parameters: function["parameters"].clone(),
        input: None,
    };
    functions.map(tool).collect()
}

/// How an answer differs from the one that is right.
fn differs(case: &Value, answer: &Answer) -> Option<String> {
    let expect = &case["expect"];
    let loose = case["loose_space"] == true;
    let same = |expect: &Value, got: &str| {
        let expect = expect.as_str().unwrap_or_default();
        match loose {
            true => expect.split_whitespace().eq(got.split_whitespace()),
            false => expect.trim() == got.trim(),
        }
    };
    if !same(&expect["reasoning"], &answer.reasoning) {
        return Some("reasoning".to_owned());
    }
    if !same(&expect["content"], &answer.content) {
        return Some("content".to_owned());
    }
    let calls = expect["tool_calls"].as_array().unwrap();
    if calls.len() != answer.calls.len() {
        return Some(format!("{} calls, not {}", answer.calls.len(), calls.len()));
    }
    for (expect, (name, arguments)) in calls.iter().zip(&answer.calls) {
        let Ok(arguments) = serde_json::from_str::<Value>(arguments) else {
            return Some(format!("no JSON: {arguments}"));
        };
        if expect["name"] != name.as_str() || !equal(&expect["arguments"], &arguments) {
            return Some(format!("{name} {arguments}"));
        }
    }
    let is_cut = case["finish"] == "length";
    match &answer.cut {
        Some(_) if !is_cut => Some("a call without an end".to_owned()),
        Some((name, _)) if case["cut"]["name"] != name.as_str() => Some(format!("cut {name}")),
        Some((_, text)) if serde_json::from_str::<Value>(text).is_ok() => Some("whole".to_owned()),
        _ => None,
    }
}

/// Equal as JSON values: 5 and 5.0 are, 5 and "5" are not.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}

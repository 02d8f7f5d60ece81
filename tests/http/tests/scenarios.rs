//! What went wrong with constraints in other servers, as their trackers tell it: scenarios of
//! requests and what must come of each, over a model that would say anything.

use regex::Regex;
use serde_json::{Value, json};
use tokenmill_http_tests::{Reply, Setup, Site};

const SCENARIOS: &str = include_str!("../fixtures/constraints.jsonl");

/// A value at a dotted path; names of members hold no dots here.
fn at<'a>(body: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(body, |value, name| match name.parse::<usize>() {
        Ok(index) => &value[index],
        Err(_) => &value[name],
    })
}

/// Whether a pattern occurs in what is told; such that the crate lacks are rewritten in fixtures.
fn matches(pattern: &str, text: &str) -> bool {
    Regex::new(pattern).expect("a pattern").is_match(text)
}

/// What is wrong with a value, if anything.
fn wrong(found: &Value, check: &str, wanted: &Value) -> Option<String> {
    let text = found.as_str().unwrap_or_default();
    let holds = match check {
        "eq" => found == wanted,
        "in" => wanted.as_array().expect("a list").contains(found),
        "re" => matches(wanted.as_str().expect("a pattern"), text),
        "nre" => !matches(wanted.as_str().expect("a pattern"), text),
        "valid" => {
            let document = serde_json::from_str(text).unwrap_or(json!("\u{0}no JSON"));
            jsonschema::is_valid(wanted, &document)
        }
        other => panic!("no check is called {other}"),
    };
    (!holds).then(|| format!("{found} {check} {wanted}"))
}

/// Everything wrong with a reply.
fn faults(reply: &Reply, expect: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (name, wanted) in expect.as_object().expect("members") {
        match name.as_str() {
            "status" => {
                let fits = |one: &Value| *one == json!(reply.status);
                if !wanted.as_array().map_or_else(|| fits(wanted), |list| list.iter().any(fits)) {
                    found.push(format!("status {} for {wanted}", reply.status));
                }
            }
            "json" => {
                let body: Value = serde_json::from_str(&reply.body).unwrap_or_default();
                for row in wanted.as_array().expect("rows") {
                    let path = row[0].as_str().expect("a path");
                    let check = row[1].as_str().expect("a check");
                    found.extend(wrong(at(&body, path), check, &row[2]));
                }
            }
            "text" => {
                for row in wanted.as_array().expect("rows") {
                    let check = row[0].as_str().expect("a check");
                    found.extend(wrong(&json!(reply.body), check, &row[1]));
                }
            }
            "any" => {
                let cases = wanted.as_array().expect("cases").iter();
                let each: Vec<_> = cases.map(|expect| faults(reply, expect)).collect();
                if each.iter().all(|faults| !faults.is_empty()) {
                    found.push(format!("none of {each:?}"));
                }
            }
            // How long it takes is no matter of a test.
            "max_s" => {}
            other => panic!("nothing is called {other}"),
        }
    }
    found
}

#[test]
fn what_goes_wrong_elsewhere_goes_right() {
    let site = Site::with(Setup { context: 2048, blocks: 1000, ..Setup::default() });
    let (mut steps, mut later) = (0, 0);
    for line in SCENARIOS.lines() {
        let scenario: Value = serde_json::from_str(line).expect("a scenario");
        for (number, step) in scenario["steps"].as_array().expect("steps").iter().enumerate() {
            let (method, path) = (&step["method"], step["path"].as_str().expect("a path"));
            // llama.cpp's own route comes with its dialect.
            if path == "/completion" {
                later += 1;
                continue;
            }
            let mut body = step["body"].clone();
            body["model"].take(); // the only one there is
            // A model that never closed a string would never end one: of bytes, each is a token.
            body["logit_bias"] = json!({ "34": 6 });
            let reply = match *method == "GET" {
                true => site.client.get(path),
                false => site.client.post(path, &body),
            };
            let faults = faults(&reply, &step["expect"]);
            assert!(faults.is_empty(), "{} step {number}: {faults:?}: {reply:?}", scenario["id"]);
            steps += 1;
        }
    }
    assert!(steps > 30 && later < 3, "{steps} steps, {later} later");
}

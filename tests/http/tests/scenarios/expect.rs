//! What a scenario wants of a reply: of its status, its body, and its events one by one.

use regex::Regex;
use serde_json::{Value, json};
use tokenmill_http_tests::Reply;

use crate::checks::{found, wrong};

/// Everything wrong with a reply.
pub fn faults(reply: &Reply, expect: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, wanted) in expect.as_object().expect("members") {
        match name.as_str() {
            "status" => {
                let fits = |one: &Value| *one == json!(reply.status);
                if !wanted.as_array().map_or_else(|| fits(wanted), |list| list.iter().any(fits)) {
                    faults.push(format!("status {} for {wanted}", reply.status));
                }
            }
            "json" => {
                let body: Value = serde_json::from_str(&reply.body).unwrap_or_default();
                faults.extend(rows(wanted, |path| found(&body, path)));
            }
            "header" => faults.extend(rows(wanted, |name| {
                reply.header(name.as_str().expect("a name")).map(Value::from)
            })),
            "text" => {
                for row in wanted.as_array().expect("rows") {
                    let check = row[0].as_str().expect("a check");
                    faults.extend(wrong(Some(&json!(reply.body)), check, &row[1]));
                }
            }
            "any" => {
                let cases = wanted.as_array().expect("cases").iter();
                let each: Vec<_> = cases.map(|expect| self::faults(reply, expect)).collect();
                if each.iter().all(|faults| !faults.is_empty()) {
                    faults.push(format!("none of {each:?}"));
                }
            }
            "sse" => faults.extend(of_events(&sse(&reply.body), wanted)),
            "ndjson" => faults.extend(of_events(&lines(&reply.body), wanted)),
            // How long it takes is no matter of a test.
            "max_s" => {}
            other => panic!("nothing is called {other}"),
        }
    }
    faults
}

/// Rows of a path, a check and mostly a value.
fn rows(rows: &Value, find: impl Fn(&Value) -> Option<Value>) -> Vec<String> {
    let row = |row: &Value| {
        let check = row[1].as_str().expect("a check");
        let fault = wrong(find(&row[0]).as_ref(), check, &row[2]);
        fault.map(|fault| format!("{}: {fault}", row[0]))
    };
    rows.as_array().expect("rows").iter().filter_map(row).collect()
}

/// An event: its name, whether that stood before its data, and the data.
#[derive(Debug)]
struct Event {
    name: String,
    is_named: bool,
    data: Value,
}

fn sse(body: &str) -> Vec<Event> {
    let mut events = Vec::new();
    for block in body.replace("\r\n", "\n").split("\n\n") {
        let of = |name: &str| {
            let lines = block.lines().filter_map(|line| line.strip_prefix(name));
            let lines: Vec<&str> = lines.map(str::trim_start).collect();
            (!lines.is_empty()).then(|| lines.join("\n"))
        };
        let (named, Some(data)) = (of("event:"), of("data:")) else { continue };
        if data == "[DONE]" {
            events.push(Event { name: data, is_named: false, data: Value::Null });
            continue;
        }
        let data: Value = serde_json::from_str(&data).unwrap_or_else(|e| panic!("{e}: {data}"));
        let is_named = named.is_some();
        let kind = data["type"].as_str().map(str::to_owned);
        let name = named.or(kind).unwrap_or_else(|| "chunk".to_owned());
        events.push(Event { name, is_named, data });
    }
    events
}

fn lines(body: &str) -> Vec<Event> {
    let line = |line: &str| {
        let data: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let name = if data["done"] == true { "done" } else { "line" };
        Event { name: name.to_owned(), is_named: false, data }
    };
    body.lines().filter(|text| !text.is_empty()).map(line).collect()
}

fn of_events(events: &[Event], expect: &Value) -> Vec<String> {
    let told: Vec<&Event> = events.iter().filter(|event| !event.data.is_null()).collect();
    let all = |path: &Value| told.iter().filter_map(|event| found(&event.data, path)).collect();
    let mut faults = Vec::new();
    for (name, wanted) in expect.as_object().expect("members") {
        match name.as_str() {
            "order" => {
                let names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
                let (names, pattern) = (names.join(" "), wanted.as_str().expect("a pattern"));
                if !Regex::new(pattern).expect("a pattern").is_match(&names) {
                    faults.push(format!("the order is {names}"));
                }
            }
            "each" => {
                for event in &told {
                    let has = |row: &&Value| found(&event.data, &row[0]).is_some();
                    let own = wanted.as_array().expect("rows").iter().filter(has);
                    let own: Value = own.cloned().collect::<Vec<_>>().into();
                    faults.extend(rows(&own, |path| found(&event.data, path)));
                }
            }
            "at" => {
                for (name, wanted) in wanted.as_object().expect("names") {
                    match told.iter().find(|event| event.name == *name) {
                        Some(event) => {
                            faults.extend(rows(wanted, |path| found(&event.data, path)));
                        }
                        None => faults.push(format!("no event is called {name}")),
                    }
                }
            }
            "last" => match told.last() {
                Some(event) => faults.extend(rows(wanted, |path| found(&event.data, path))),
                None => faults.push("no event".to_owned()),
            },
            "concat" => faults.extend(rows(wanted, |path| {
                let values: Vec<Value> = all(path);
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                Some(values.iter().map(text).collect::<String>().into())
            })),
            "same" | "step1" => {
                for path in wanted.as_array().expect("paths") {
                    let values: Vec<Value> = all(path);
                    let fits = |pair: &[Value]| match name.as_str() {
                        "same" => pair[0] == pair[1],
                        _ => pair[0].as_i64().map(|n| n + 1) == pair[1].as_i64(),
                    };
                    if values.is_empty() || !values.windows(2).all(fits) {
                        faults.push(format!("{path} {name}: {values:?}"));
                    }
                }
            }
            "names_are_types" => {
                let fits = |event: &&&Event| event.is_named && event.data["type"] == event.name;
                let other = told.iter().find(|event| !fits(event));
                faults.extend(other.map(|event| format!("its name is no type: {event:?}")));
            }
            other => panic!("nothing of events is called {other}"),
        }
    }
    faults
}

#[test]
fn events_can_be_wrong() {
    let body = ": ping\n\nevent: a\ndata: {\"type\": \"a\", \"n\": 0, \"t\": \"x\"}\n\n\
                data: {\"n\": 1, \"t\": \"y\"}\n\ndata: [DONE]\n\n";
    let events = sse(body);
    for (expect, count) in [
        (json!({"order": "^a chunk \\[DONE\\]$", "step1": ["n"]}), 0),
        (json!({"order": "^a \\[DONE\\]$", "same": ["n"]}), 2),
        (json!({"concat": [["t", "eq", "xy"]], "last": [["n", "eq", 1]]}), 0),
        (json!({"each": [["type", "eq", "a"]], "at": {"chunk": [["n", "eq", 1]]}}), 0),
        (json!({"each": [["n", "eq", 1]], "at": {"b": []}, "names_are_types": true}), 3),
    ] {
        let found = of_events(&events, &expect);
        assert_eq!(found.len(), count, "{expect}: {found:?}");
    }
    let events = lines("{\"done\": false}\n{\"done\": true}\n");
    assert_eq!(of_events(&events, &json!({"order": "^line done$"})), Vec::<String>::new());
}

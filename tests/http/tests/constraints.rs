//! Answers that are held to something: whatever the model would rather say, what comes is of that
//! form, by every name other servers have for it, and the same bytes whoever else asks.

use serde_json::{Value, json};
use tokenmill_http_tests::{Client, Setup, Site};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// A schema whose every document is short.
fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "color": { "enum": ["red", "blau", "緑"] },
            "count": { "type": "integer", "minimum": 3, "maximum": 40 },
            "sure": { "type": "boolean" },
            "tags": { "type": "array", "maxItems": 2, "items": { "const": "x" } },
        },
        "required": ["color", "count", "sure"],
        "additionalProperties": false,
    })
}

fn holds(text: &str) -> bool {
    let Ok(Value::Object(found)) = serde_json::from_str::<Value>(text) else { return false };
    let color = ["red", "blau", "緑"].iter().any(|c| found.get("color") == Some(&json!(c)));
    let count = found.get("count").and_then(Value::as_u64).is_some_and(|n| (3..=40).contains(&n));
    let sure = found.get("sure").is_some_and(Value::is_boolean);
    let tags = found.get("tags").is_none_or(|tags| {
        tags.as_array().is_some_and(|t| t.len() <= 2 && t.iter().all(|tag| tag == "x"))
    });
    color && count && sure && tags && found.len() <= 4
}

fn body(path: &str, extra: &Value) -> Value {
    let mut body = match path {
        CHAT => json!({ "messages": [{ "role": "user", "content": "Hi" }] }),
        _ => json!({ "prompt": "Once" }),
    };
    body["max_tokens"] = json!(200);
    let members = extra.as_object().expect("members").clone();
    body.as_object_mut().expect("members").extend(members);
    body
}

/// Text and end of every choice.
fn ask(client: Client, path: &str, extra: &Value) -> Vec<(String, String)> {
    let reply = client.post(path, &body(path, extra));
    assert_eq!(reply.status, 200, "{extra}: {reply:?}");
    let choices = reply.json()["choices"].as_array().expect("choices").clone();
    let text = |choice: &Value| {
        let text = if path == CHAT { &choice["message"]["content"] } else { &choice["text"] };
        let finish = choice["finish_reason"].as_str().expect("a reason").to_owned();
        (text.as_str().expect("a text").to_owned(), finish)
    };
    choices.iter().map(text).collect()
}

/// The same of a stream.
fn streamed(client: Client, path: &str, extra: &Value) -> Vec<(String, String)> {
    let mut body = body(path, extra);
    body["stream"] = json!(true);
    let mut choices: Vec<(String, String)> = Vec::new();
    for event in client.stream(path, &body).finish().events() {
        if event == "[DONE]" {
            continue;
        }
        let chunk: Value = serde_json::from_str(&event).expect("JSON");
        for part in chunk["choices"].as_array().expect("choices") {
            let at = part["index"].as_u64().expect("an index") as usize;
            choices.resize(choices.len().max(at + 1), Default::default());
            let text = if path == CHAT { &part["delta"]["content"] } else { &part["text"] };
            choices[at].0.push_str(text.as_str().unwrap_or_default());
            choices[at].1.push_str(part["finish_reason"].as_str().unwrap_or_default());
        }
    }
    choices
}

#[test]
fn every_name_holds_whatever_is_drawn() {
    let site = Site::new();
    let is_json = |text: &str| holds(text);
    let is_object =
        |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object());
    let is_word = |text: &str| ["left", "right"].contains(&text);
    let is_code = |text: &str| {
        let bytes = text.as_bytes();
        bytes.len() == 5 && bytes[2] == b'-' && text.replace('-', "").len() == 4
    };
    let gbnf = "root ::= word\nword ::= \"left\" | \"right\"";
    let lark = "start: \"left\" | \"right\"";
    let named = json!({ "name": "n", "strict": true, "schema": schema() });
    let small = json!({
        "type": "object", "properties": { "a": { "type": "boolean" } }, "additionalProperties": false,
    });
    type Check<'a> = &'a dyn Fn(&str) -> bool;
    let cases: [(Value, Check<'_>); 13] = [
        (json!({ "response_format": { "type": "json_schema", "json_schema": named } }), &is_json),
        (json!({ "response_format": { "type": "json_object", "schema": schema() } }), &is_json),
        (json!({ "json_schema": schema() }), &is_json),
        (json!({ "guided_json": schema().to_string() }), &is_json),
        (json!({ "structured_outputs": { "json": schema() } }), &is_json),
        (json!({ "json_schema": small }), &is_object),
        (json!({ "structured_outputs": { "choice": ["left", "right"] } }), &is_word),
        (json!({ "guided_choice": ["left", "right"] }), &is_word),
        (json!({ "guided_regex": "[a-f]{2}-[0-9]{2}" }), &is_code),
        (json!({ "structured_outputs": { "regex": "[a-f]{2}-[0-9]{2}" } }), &is_code),
        (json!({ "grammar": gbnf }), &is_word),
        (json!({ "guided_grammar": gbnf }), &is_word),
        (json!({ "structured_outputs": { "grammar": lark } }), &is_word),
    ];
    for (extra, check) in &cases {
        for (path, temperature) in [(CHAT, 0.0), (TEXT, 1.0), (CHAT, 2.0)] {
            let mut extra = extra.clone();
            extra["temperature"] = json!(temperature);
            extra["seed"] = json!(11);
            extra["n"] = json!(3);
            let found = ask(site.client, path, &extra);
            assert_eq!(found.len(), 3);
            for (text, finish) in &found {
                assert!(check(text) && finish == "stop", "{extra}: {text:?} {finish}");
            }
            assert_eq!(streamed(site.client, path, &extra), found, "{extra}");
        }
    }
}

#[test]
fn an_answer_is_the_same_whoever_else_asks() {
    let site = Site::with(Setup { blocks: 60, ..Setup::default() });
    let held = |seed: u64| json!({ "json_schema": schema(), "temperature": 1.2, "seed": seed, "logprobs": null });
    let free = json!({ "temperature": 1, "seed": 5, "max_tokens": 40, "ignore_eos": true });
    let alone: Vec<_> = (0..6).map(|seed| ask(site.client, CHAT, &held(seed))).collect();
    let alone_free = ask(site.client, TEXT, &free);
    for draft in ["none", "ngram", "suffix"] {
        std::thread::scope(|scope| {
            for (seed, expect) in (0..6).zip(&alone) {
                let mut extra = held(seed);
                extra["draft"] = json!(draft);
                let client = site.client;
                scope.spawn(move || assert_eq!(&ask(client, CHAT, &extra), expect, "{draft}"));
            }
            for _ in 0..2 {
                let (client, free, expect) = (site.client, &free, &alone_free);
                scope.spawn(move || assert_eq!(&ask(client, TEXT, free), expect));
            }
        });
    }
    let mut told = held(3);
    told["logprobs"] = json!(true);
    told["top_logprobs"] = json!(2);
    assert_eq!(ask(site.client, CHAT, &told), alone[3], "log-probabilities change nothing");
}

#[test]
fn the_order_of_properties_is_that_of_each_request() {
    let site = Site::new();
    let ordered = |names: [&str; 2]| {
        let flag = json!({ "type": "boolean" });
        let properties: Value = names.iter().map(|name| (*name, flag.clone())).collect();
        json!({ "json_schema": {
            "type": "object", "properties": properties, "required": names,
            "additionalProperties": false,
        } })
    };
    for names in [["first", "then"], ["then", "first"], ["first", "then"]] {
        let found = ask(site.client, TEXT, &ordered(names));
        assert!(found[0].0.starts_with(&format!("{{\"{}\":", names[0])), "{names:?}: {found:?}");
    }
}

#[test]
fn what_is_cut_says_so() {
    let site = Site::new();
    let long = json!({
        "json_schema": { "type": "array", "items": { "type": "integer" }, "minItems": 50 },
        "max_tokens": 20, "temperature": 1, "seed": 3,
    });
    for (text, finish) in ask(site.client, TEXT, &long) {
        assert!(text.starts_with('[') && finish == "length", "{text:?} {finish}");
        assert_eq!(text.len(), 20, "a token is a byte here");
    }
}

#[test]
fn what_cannot_be_held_is_refused_by_name() {
    let site = Site::new();
    let schema = |schema: Value| json!({ "json_schema": schema });
    let cases = [
        (schema(json!({ "type": "strin" })), "json_schema", "strin"),
        (schema(json!({ "properties": { "a": 7 } })), "json_schema", "a"),
        (schema(json!({ "type": "array", "uniqueItems": true })), "json_schema", "uniqueItems"),
        (schema(json!({ "$ref": "http://example.com/x" })), "json_schema", "$ref"),
        (schema(json!({ "type": "string", "enum": [1] })), "json_schema", "enum"),
        (json!({ "guided_regex": "(" }), "guided_regex", "guided_regex"),
        (json!({ "grammar": "root ::= missing" }), "grammar", "missing"),
        (json!({ "json_schema": {}, "grammar": "root ::= \"a\"" }), "grammar", "json_schema"),
        (json!({ "json_schema": {}, "ignore_eos": true }), "ignore_eos", "grammar"),
    ];
    for (extra, param, word) in cases {
        for path in [CHAT, TEXT] {
            let reply = site.client.post(path, &body(path, &extra));
            assert_eq!(reply.status, 400, "{extra}: {reply:?}");
            assert_eq!(reply.error("param"), param, "{extra}: {reply:?}");
            assert!(reply.error("message").contains(word), "{extra}: {reply:?}");
        }
    }
    let fine = ask(site.client, TEXT, &json!({ "guided_choice": ["yes"] }));
    assert_eq!(fine, [("yes".to_owned(), "stop".to_owned())], "the server goes on");
}

//! What a server tells of its requests: where their time went and their prompts' tokens came from,
//! receipts and their replay, traces, metrics as they are documented.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokenmill_device_tests::sim::SimControl;
use tokenmill_http_tests::{Client, Reply, Setup, Site};
use tokenmill_server::{RECEIPT_HEADER, SEED_HEADER, Traces, differences, spawn};

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const JSON: (&str, &str) = ("content-type", "application/json");

fn post(client: &Client, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
    let headers: Vec<_> = [JSON].into_iter().chain(headers.iter().copied()).collect();
    let reply = client.send("POST", path, &headers, body.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{path}: {reply:?}");
    reply
}

/// What is told of a request once it has ended.
fn told(site: &Site, headers: &[(&str, &str)], id: &str) -> Value {
    let path = format!("/requests/{id}");
    let ended = |reply: &Reply| {
        reply.status == 200
            && reply.json()["state"] == "ended"
            && reply.json()["prompts"][0]["finish_reason"].is_string()
    };
    site.wait_until("the request has ended", |site| {
        ended(&site.client.send("GET", &path, headers, b""))
    });
    site.client.send("GET", &path, headers, b"").json()
}

#[test]
fn a_request_is_told_where_its_time_went_and_its_prompt_came_from() {
    let mut setup = Setup { blocks: 60, ..Setup::default() };
    setup.server.api_keys = vec!["a".into(), "b".into(), "c".into()];
    let site = Site::with(setup);
    let (first, second) = ([("authorization", "Bearer a")], [("authorization", "Bearer b")]);
    let long = |end: &str| format!("{}{end}", "swordfish ".repeat(20));
    let body = |prompt: String| json!({ "prompt": prompt, "max_tokens": 4, "ignore_eos": true });
    let ask = |prompt: String| {
        let reply = post(&site.client, TEXT, &second, &body(prompt));
        let id = reply.header("x-request-id").expect("an id").to_owned();
        let answer = reply.json()["id"].as_str().expect("an id").replace("cmpl-", "req-");
        assert_eq!(id, answer, "an answer bears its request's id");
        told(&site, &second, &id)
    };
    let miss = |told: &Value| {
        let prompt = &told["prompts"][0];
        let reason = prompt["miss"]["reason"].as_str().expect("a reason").to_owned();
        let sum = ["memory_tokens", "disk_tokens", "computed_tokens"].map(|n| prompt[n].as_u64());
        assert_eq!(sum.iter().flatten().sum::<u64>(), prompt["prompt_tokens"].as_u64().unwrap());
        (reason, prompt["memory_tokens"].as_u64().expect("a count"))
    };
    let new = ask(long("x"));
    assert_eq!(miss(&new), ("new".into(), 0), "{new}");
    assert_eq!(miss(&ask(long("x"))), ("none".into(), 192), "all whole blocks but the last");
    assert_eq!(miss(&ask(long(&"y".repeat(20)))), ("differs".into(), 192));
    assert_eq!(miss(&ask("short".into())).0, "short");
    for i in 0..6 {
        ask(format!("{i} {}", long("")));
    }
    assert_eq!(miss(&ask(long("x"))).0, "evicted");
    let parts = new["parts"].as_object().expect("parts");
    let total = parts["total"].as_f64().expect("a number");
    let sum: f64 =
        parts.iter().filter(|(n, _)| *n != "total").filter_map(|(_, v)| v.as_f64()).sum();
    assert!((sum - total).abs() < 2e-5, "each part is told to the microsecond: {new}");
    assert!(parts["answer"].as_f64() > Some(0.0) && parts["prompt"].as_f64() > Some(0.0), "{new}");
    assert_eq!(new["completion_tokens"], 4, "{new}");
    assert!(!new.to_string().contains("swordfish"), "no word of what was asked");
    // Who asked, and who runs the server.
    let path = format!("/requests/{}", new["id"].as_str().expect("an id"));
    let status = |key: &str| {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        let listed = site.client.send("GET", "/requests", &headers, b"").json();
        let count = listed["data"].as_array().map_or(0, Vec::len);
        (site.client.send("GET", &path, &headers, b"").status, count)
    };
    assert_eq!((status("a"), status("b"), status("c")), ((200, 11), (200, 11), (404, 0)));
    assert_eq!(site.client.get("/requests").status, 401);
    // An id of the client's own is kept, and one that is none is not.
    let chosen = [("authorization", "Bearer a"), ("x-request-id", "mine-1")];
    let reply = post(&site.client, TEXT, &chosen, &body("hi".into()));
    assert_eq!(reply.header("x-request-id"), Some("mine-1"));
    assert_eq!(told(&site, &first, "mine-1")["status"], 200);
    let odd = [("authorization", "Bearer a"), ("x-request-id", "a b")];
    let reply = post(&site.client, TEXT, &odd, &body("hi".into()));
    assert!(reply.header("x-request-id").expect("an id").starts_with("req-"));
}

/// A server of two models whose receipts are stored.
fn two(folder: &Path, template: Option<&'static str>) -> (tokenmill_server::Running, Client) {
    let mut setup = Setup { template, ..Setup::default() };
    setup.server.receipts = Some(folder.to_owned());
    let models = ["one", "two"].map(|name| {
        let mut model = setup.model(&SimControl::default());
        model.names = vec![name.to_owned()];
        model
    });
    let server = spawn(setup.server, models.to_vec()).expect("the server starts");
    let client = Client::new(server.address());
    (server, client)
}

/// Requests of every kind: (path, body).
fn mixed() -> Vec<(&'static str, Value)> {
    let say = |text: &str| json!([{ "role": "user", "content": text }]);
    let tool = json!({ "type": "function", "function": {
        "name": "look", "parameters": { "type": "object", "properties": { "at": { "type": "string" } } },
    } });
    let schema = json!({ "type": "object", "properties": { "n": { "enum": [1, 22, 333] } },
        "required": ["n"], "additionalProperties": false });
    let held = json!({ "type": "json_schema", "json_schema": { "name": "s", "schema": schema } });
    vec![
        (
            CHAT,
            json!({ "model": "one", "messages": say("a"), "max_tokens": 12, "temperature": 1.0 }),
        ),
        (
            CHAT,
            json!({ "model": "two", "messages": say("b"), "max_tokens": 12, "n": 2, "seed": 3 }),
        ),
        (
            CHAT,
            json!({ "model": "one", "messages": say("c"), "max_tokens": 60,
            "response_format": held, "temperature": 0.9 }),
        ),
        (
            CHAT,
            json!({ "model": "two", "messages": say("d"), "max_tokens": 40, "tools": [tool],
            "tool_choice": "required", "temperature": 0.8 }),
        ),
        (
            TEXT,
            json!({ "model": "one", "prompt": ["x y x y x y", "z"], "max_tokens": 20,
            "prediction": { "type": "content", "content": "x y x y" }, "temperature": 0.7 }),
        ),
        ("/v1/messages", json!({ "model": "two", "messages": say("e"), "max_tokens": 9 })),
        (
            "/api/chat",
            json!({ "model": "one", "messages": say("f"), "options": { "num_predict": 9 } }),
        ),
    ]
}

#[test]
fn receipts_of_a_mixed_load_are_replayed_and_what_changed_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, client) = two(folder.path(), None);
    let asked: Vec<(&str, Value)> = mixed()
        .into_iter()
        .flat_map(|(path, body)| {
            let mut streamed = body.clone();
            streamed["stream"] = json!(true);
            [(path, body), (path, streamed)]
        })
        .collect();
    std::thread::scope(|scope| {
        for (path, body) in &asked {
            scope.spawn(move || post(&client, path, &[], body));
        }
    });
    let read = |path: std::path::PathBuf| -> Option<Value> {
        serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
    };
    let stored = || -> Vec<Value> {
        let files = std::fs::read_dir(folder.path()).expect("a folder");
        files.filter_map(|file| read(file.expect("a file").path())).collect()
    };
    for _ in 0..1000 {
        if stored().len() == asked.len() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let receipts = stored();
    assert_eq!(receipts.len(), asked.len(), "streams too");
    let again = |client: &Client, receipt: &Value| -> Value {
        let mut body = receipt["request"]["body"].clone();
        body["stream"] = json!(false);
        let seed = receipt["sampling"]["seed"].to_string();
        let headers = [(RECEIPT_HEADER, "1"), (SEED_HEADER, seed.as_str())];
        let path = receipt["request"]["path"].as_str().expect("a path");
        post(client, path, &headers, &body).json()["tokenmill_receipt"].clone()
    };
    for receipt in &receipts {
        let now = again(&client, receipt);
        let mut differs = differences(receipt, &now);
        differs.retain(|(part, ..)| *part != "the request's body"); // (it streamed)
        assert_eq!(differs, [], "{receipt}\n{now}");
    }
    drop(server);
    let other = "{% for m in messages %}{{ m.content }}!{% endfor %}";
    let (_server, client) = two(folder.path(), Some(other));
    let chat = receipts.iter().find(|r| r["request"]["body"]["seed"] == 3).expect("a receipt");
    let now = again(&client, chat);
    let parts: Vec<&str> = differences(chat, &now).iter().map(|(part, ..)| *part).collect();
    assert!(
        parts.contains(&"the chat template") && parts.contains(&"the prompt's tokens"),
        "{parts:?}"
    );
}

#[test]
fn a_receipt_comes_with_an_answer_that_asks_for_one() {
    let site = Site::new();
    let mut body = json!({ "prompt": "hi", "max_tokens": 3, "tokenmill_receipt": true });
    let answer = post(&site.client, TEXT, &[], &body).json();
    let receipt = &answer["tokenmill_receipt"];
    assert!(receipt["answer"]["sha256"].is_string() && receipt["request"].get("body").is_none());
    assert!(answer.get("warnings").is_none(), "{answer}");
    body["stream"] = json!(true);
    let reply = post(&site.client, TEXT, &[], &body);
    let id = reply.header("x-request-id").expect("an id");
    let told = told(&site, &[], id);
    assert_eq!(told["receipt"]["answer"]["completion_tokens"], 3, "of a stream: {told}");
    // A list of answers has one, in its first part.
    let several = json!({ "prompt": ["a", "b"], "n_predict": 2, "tokenmill_receipt": true });
    let answers = post(&site.client, "/completion", &[], &several).json();
    let receipt = &answers[0]["tokenmill_receipt"];
    assert_eq!(receipt["answer"]["completion_tokens"], 4, "{answers}");
    assert!(answers[1]["content"].is_string() && answers[1].get("tokenmill_receipt").is_none());
    let plain = post(&site.client, TEXT, &[], &json!({ "prompt": "hi", "max_tokens": 1 })).json();
    assert!(plain.get("tokenmill_receipt").is_none(), "nobody asked: {plain}");
}

#[test]
fn traces_have_the_stages_of_a_request_below_its_caller() {
    let (traces, spans) = Traces::new();
    let mut setup = Setup::default();
    setup.server.traces = Some(traces);
    let site = Site::with(setup);
    let parent = [("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")];
    post(&site.client, TEXT, &parent, &json!({ "prompt": "hi", "max_tokens": 3 }));
    let found = spans.recv_timeout(Duration::from_secs(10)).expect("spans");
    let names: Vec<&str> = found.iter().filter_map(|span| span["name"].as_str()).collect();
    assert_eq!(names, ["POST /v1/completions", "prepare", "queue", "prompt", "answer", "deliver"]);
    assert_eq!(found[0]["parentSpanId"], "00f067aa0ba902b7");
    for span in &found {
        assert_eq!(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
    }
    for pair in found[1..].windows(2) {
        assert_eq!(pair[0]["endTimeUnixNano"], pair[1]["startTimeUnixNano"], "{pair:?}");
        assert_eq!(pair[1]["parentSpanId"], found[0]["spanId"]);
    }
    assert_eq!(found[0]["startTimeUnixNano"], found[1]["startTimeUnixNano"]);
    assert_eq!(found[0]["endTimeUnixNano"], found[5]["endTimeUnixNano"]);
}

fn docs(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(path).expect("a page")
}

/// Names of metrics in a text of expressions.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = text.split(|c: char| !is_part(c));
    let own = words.filter(|word| word.starts_with("tokenmill_") || word.starts_with("vllm:"));
    let plain = |word: &str| {
        let ends = ["_bucket", "_sum", "_count"];
        ends.iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word).to_owned()
    };
    own.map(plain).collect()
}

#[test]
fn every_metric_is_documented_and_every_one_of_the_dashboard_is_exported() {
    let site = Site::new();
    post(&site.client, TEXT, &[], &json!({ "prompt": "hi", "max_tokens": 2 }));
    let page = site.client.get("/metrics").body;
    let exported: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .map(str::to_owned)
        .collect();
    let dashboard: Value = serde_json::from_str(&docs("grafana.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let exprs = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let exprs: Vec<&str> = exprs.filter_map(|target| target["expr"].as_str()).collect();
    let shown = named(&exprs.join(" "));
    assert!(shown.len() > 15, "{shown:?}");
    let missing: Vec<&String> = shown.difference(&exported).collect();
    assert!(missing.is_empty(), "the dashboard asks for {missing:?}");
    let page = docs("metrics.md");
    let table: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
    let table = named(&table.join(" "));
    let untold: Vec<&String> = exported.difference(&table).collect();
    assert!(untold.is_empty(), "docs/metrics.md lacks {untold:?}");
    // (Those of models that come and go are not exported here.)
    let residents = |name: &&String| !name.starts_with("tokenmill_model");
    let gone: Vec<&String> = table.difference(&exported).filter(residents).collect();
    assert!(gone.is_empty(), "docs/metrics.md tells of {gone:?}");
    let finished = "vllm:request_success_total{model_name=\"sim\",finished_reason=\"length\"}";
    assert_eq!(site.metric(finished), 1.0);
    assert_eq!(site.metric("tokenmill_request_queue_seconds_count{model_name=\"sim\"}"), 1.0);
}

#[test]
fn the_description_takes_what_readers_take_and_refuses_what_they_refuse() {
    let site = Site::new();
    let page = site.client.get("/openapi.json").json();
    let say = json!([{ "role": "user", "content": "a" }]);
    for (path, body, is_taken) in [
        (CHAT, json!({ "messages": say, "max_tokens": 2, "stop": "x", "seed": null }), true),
        (CHAT, json!({ "messages": say, "max_tokens": 2.0, "stop": ["x"], "n": 1 }), true),
        (CHAT, json!({ "messages": say, "max_tokens": 2, "temperature": 0, "x": {} }), true),
        (TEXT, json!({ "prompt": [97, 98], "max_tokens": 2, "echo": false }), true),
        ("/v1/responses", json!({ "input": "a", "max_output_tokens": 2 }), true),
        ("/v1/messages", json!({ "messages": say, "max_tokens": 2, "system": "s" }), true),
        ("/api/chat", json!({ "messages": say, "options": { "num_predict": 2 } }), true),
        ("/api/chat", json!({}), true),
        ("/completion", json!({ "prompt": "a", "n_predict": 2, "stop": ["x"] }), true),
        ("/tokenize", json!({ "content": "a" }), true),
        (CHAT, json!({ "max_tokens": 2 }), false),
        (CHAT, json!({ "messages": "a" }), false),
        (CHAT, json!({ "messages": say, "temperature": "warm" }), false),
        (CHAT, json!({ "messages": say, "max_tokens": 1.5 }), false),
        (CHAT, json!({ "messages": say, "stream": 1 }), false),
        (TEXT, json!({ "prompt": 5 }), false),
        ("/v1/messages", json!({ "messages": say }), false),
        ("/v1/embeddings", json!({ "input": true }), false),
        ("/completion", json!({ "prompt": "a", "n_predict": "2" }), false),
    ] {
        let content = &page["paths"][path]["post"]["requestBody"]["content"];
        let schema = jsonschema::validator_for(&content["application/json"]["schema"]);
        let is_told = schema.expect("a schema").is_valid(&body);
        let status = site.client.post(path, &body).status;
        let expected = if is_taken { 200 } else { 400 };
        assert_eq!((is_told, status), (is_taken, expected), "{path}: {body}");
    }
}

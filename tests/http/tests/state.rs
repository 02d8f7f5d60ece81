//! What a server keeps: answers, conversations, files and batches; whose they are, how long they stay,
//! and that a process which ends in the middle leaves them whole.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokenmill_http_tests::{Client, Reply, Setup, Site};
use tokenmill_server::{
    Key, KeyLimits, ServeError, ServerConfig, StateConfig, UnixClock, digest, spawn,
};

const BOUNDARY: &str = "----part";
const DAY: u64 = 24 * 3600;

/// A clock that a test sets, seconds since 1970.
#[derive(Clone)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_800_000_000)))
    }

    fn pass(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }
}

fn kept(dir: &Path, clock: &Clock) -> ServerConfig {
    let mut server = ServerConfig::new(([127, 0, 0, 1], 0).into());
    let clock = Arc::clone(&clock.0);
    let clock = UnixClock::new(move || clock.load(Ordering::SeqCst));
    server.state = Some(StateConfig { clock, ..StateConfig::new(dir) });
    server
}

fn site(server: ServerConfig) -> Site {
    Site::with(Setup { server, context: 2048, blocks: 1000, ..Setup::default() })
}

/// Who asks: a client with a key, or none.
#[derive(Clone, Copy)]
struct Asks<'a>(Client, &'a str);

impl Asks<'_> {
    fn send(&self, method: &str, path: &str, body: &Value) -> Reply {
        let bearer = format!("Bearer {}", self.1);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut headers = vec![("content-type", "application/json")];
        if !self.1.is_empty() {
            headers.push(("authorization", &bearer));
        }
        self.0.send(method, path, &headers, body.as_bytes())
    }

    fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &Value::Null)
    }

    fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, body)
    }

    fn delete(&self, path: &str) -> Reply {
        self.send("DELETE", path, &Value::Null)
    }

    fn upload(&self, parts: &[(&str, &str)]) -> Reply {
        let mut form = String::new();
        for (name, text) in parts {
            let file = if *name == "file" { "; filename=\"in.jsonl\"" } else { "" };
            let head = format!("content-disposition: form-data; name=\"{name}\"{file}");
            form.push_str(&format!("--{BOUNDARY}\r\n{head}\r\n\r\n{text}\r\n"));
        }
        form.push_str(&format!("--{BOUNDARY}--\r\n"));
        let kind = format!("multipart/form-data; boundary={BOUNDARY}");
        let bearer = format!("Bearer {}", self.1);
        let mut headers = vec![("content-type", kind.as_str())];
        if !self.1.is_empty() {
            headers.push(("authorization", &bearer));
        }
        self.0.send("POST", "/v1/files", &headers, form.as_bytes())
    }

    fn file(&self, text: &str) -> String {
        let reply = self.upload(&[("purpose", "batch"), ("file", text)]);
        assert_eq!(reply.status, 200, "{reply:?}");
        text_of(&reply.json()["id"])
    }

    fn batch(&self, lines: &str) -> String {
        let ask = json!({
            "input_file_id": self.file(lines), "endpoint": "/v1/completions",
            "completion_window": "24h",
        });
        let reply = self.post("/v1/batches", &ask);
        assert_eq!(reply.status, 200, "{reply:?}");
        text_of(&reply.json()["id"])
    }

    /// Asks for an object until it has a status.
    fn until(&self, path: &str, member: &str, wanted: &str) -> Value {
        let begun = Instant::now();
        loop {
            let told = self.get(path).json();
            if told[member] == wanted {
                return told;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{wanted}: {told}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The lines of a file.
    fn lines(&self, id: &Value) -> Vec<Value> {
        let reply = self.get(&format!("/v1/files/{}/content", text_of(id)));
        assert_eq!(reply.status, 200, "{reply:?}");
        let read = |line| serde_json::from_str(line).expect("JSON");
        reply.body.lines().map(read).collect()
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("a text, not {value}")).to_owned()
}

fn ask(more: Value) -> Value {
    let mut ask = json!({ "model": "sim", "input": "Hi", "max_output_tokens": 4, "seed": 1 });
    for (name, value) in more.as_object().expect("an object") {
        ask[name] = value.clone();
    }
    ask
}

fn line(id: &str, more: Value) -> String {
    let mut body = json!({ "model": "sim", "prompt": "Hi", "max_tokens": 4 });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    let url = "/v1/completions";
    format!("{}\n", json!({ "custom_id": id, "method": "POST", "url": url, "body": body }))
}

#[test]
fn an_answer_goes_on_from_what_was_said_and_nothing_else() {
    let (folder, clock) = (tempfile::tempdir().expect("a folder"), Clock::new());
    let site = site(kept(folder.path(), &clock));
    let asks = Asks(site.client, "");
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let first = ask(json!({
        "instructions": "Answer in capitals. ".repeat(20),
        "tools": [{ "type": "function", "name": "now", "parameters": schema }],
        "tool_choice": "none",
        "text": { "format": { "type": "json_schema", "name": "n", "schema": schema } },
        "metadata": { "a": "b" },
    }));
    let one = asks.post("/v1/responses", &first).json();
    assert_eq!((&one["store"], &one["status"]), (&json!(true), &json!("completed")), "{one}");
    let id = text_of(&one["id"]);
    assert_eq!(asks.get(&format!("/v1/responses/{id}")).json(), one);
    // What stands behind it is asked as if all was said again, without what was asked beside it.
    let next = json!({ "input": "More", "previous_response_id": id, "ignore_eos": true });
    let two = asks.post("/v1/responses", &ask(next)).json();
    assert_eq!(two["previous_response_id"], id.as_str());
    let silent = [&two["instructions"], &two["tools"], &two["text"]["format"]["type"]];
    assert_eq!(silent, [&Value::Null, &json!([]), &json!("text")]);
    let mut said = vec![json!({ "role": "user", "content": "Hi" })];
    said.extend(one["output"].as_array().expect("items").iter().cloned());
    said.push(json!({ "role": "user", "content": "More" }));
    let whole = ask(json!({ "input": said, "store": false, "ignore_eos": true }));
    let whole = asks.post("/v1/responses", &whole).json();
    assert_eq!(whole["store"], false);
    assert_eq!(two["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
    assert_eq!(two["output"][0]["content"], whole["output"][0]["content"]);
    let missing = format!("/v1/responses/{}", text_of(&whole["id"]));
    assert_eq!(asks.get(&missing).status, 404);
    // A stream is kept as it ended, and counts go on from it too.
    let next = json!({ "input": "And", "previous_response_id": two["id"], "stream": true });
    let events = asks.post("/v1/responses", &ask(next)).events();
    let last: Value = serde_json::from_str(events.last().expect("events")).expect("JSON");
    let three = &last["response"];
    let place = format!("/v1/responses/{}", text_of(&three["id"]));
    assert_eq!(asks.get(&place).json(), *three);
    let counted = json!({ "input": "X", "previous_response_id": three["id"] });
    let counted = asks.post("/v1/responses/input_tokens", &counted).json();
    assert!(counted["input_tokens"].as_u64() > three["usage"]["input_tokens"].as_u64());
    let items = asks.get(&format!("{place}/input_items?order=asc&limit=2")).json();
    assert_eq!(items["has_more"], true);
    assert_eq!(items["data"][0]["content"][0]["text"], "Hi");
    let rest = format!("{place}/input_items?order=asc&after={}", text_of(&items["last_id"]));
    let rest = asks.get(&rest).json();
    assert_eq!(
        (rest["data"].as_array().map(Vec::len), &rest["has_more"]),
        (Some(3), &json!(false))
    );
    assert_eq!(rest["data"][2]["content"][0]["text"], "And");
    assert_eq!(asks.get(&format!("{place}/input_items?after=x")).status, 400);
    assert_eq!(asks.get(&format!("{place}?stream=true")).status, 400);
    // Where one is gone, nothing stands behind it.
    let told = asks.delete(&format!("/v1/responses/{id}")).json();
    assert_eq!((&told["deleted"], &told["id"]), (&json!(true), &json!(id)));
    for (id, word) in [(&three["id"], id.as_str()), (&json!("resp_' OR 1=1 --"), "no response")] {
        let reply = asks.post("/v1/responses", &ask(json!({ "previous_response_id": id })));
        assert_eq!((reply.status, reply.error("param").as_str()), (400, "previous_response_id"));
        assert_eq!(reply.error("code"), "previous_response_not_found");
        assert!(reply.error("message").contains(word), "{reply:?}");
    }
    site.settle();
}

#[test]
fn an_answer_in_the_background_is_polled_and_cancelled() {
    let (folder, clock) = (tempfile::tempdir().expect("a folder"), Clock::new());
    let mut setup = Setup { server: kept(folder.path(), &clock), ..Setup::default() };
    (setup.context, setup.blocks, setup.step) = (2048, 1000, Duration::from_millis(2));
    let site = Site::with(setup);
    let asks = Asks(site.client, "");
    let begun = asks.post("/v1/responses", &ask(json!({ "background": true }))).json();
    assert_eq!((&begun["status"], &begun["background"]), (&json!("in_progress"), &json!(true)));
    let place = format!("/v1/responses/{}", text_of(&begun["id"]));
    let begin = Instant::now();
    let done = loop {
        let told = asks.get(&place).json();
        if told["status"] != "in_progress" {
            break told;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{told}");
    };
    let whole = asks.post("/v1/responses", &ask(json!({}))).json();
    assert_eq!(done["output"][0]["content"], whole["output"][0]["content"]);
    assert_eq!(done["status"], whole["status"]);
    assert_eq!(asks.post(&format!("{place}/cancel"), &Value::Null).json(), done, "it has ended");
    let long = json!({ "background": true, "max_output_tokens": 1900, "ignore_eos": true });
    let begun = asks.post("/v1/responses", &ask(long.clone())).json();
    let place = format!("/v1/responses/{}", text_of(&begun["id"]));
    let behind = ask(json!({ "previous_response_id": begun["id"] }));
    assert_eq!(asks.post("/v1/responses", &behind).status, 400, "it has not ended");
    let told = asks.post(&format!("{place}/cancel"), &Value::Null).json();
    assert_eq!(told["status"], "cancelled");
    site.settle();
    assert_eq!(asks.get(&place).json()["status"], "cancelled");
    // One that is deleted ends too, and stays away.
    let begun = asks.post("/v1/responses", &ask(long)).json();
    let place = format!("/v1/responses/{}", text_of(&begun["id"]));
    assert_eq!(asks.delete(&place).status, 200);
    site.settle();
    assert_eq!(asks.get(&place).status, 404);
    for (more, param) in [
        (json!({ "background": true, "store": false }), "background"),
        (json!({ "background": true, "stream": true }), "background"),
        (json!({ "previous_response_id": "a", "conversation": "b" }), "previous_response_id"),
    ] {
        let reply = asks.post("/v1/responses", &ask(more));
        assert_eq!((reply.status, reply.error("param").as_str()), (400, param), "{reply:?}");
    }
    let whole = text_of(&whole["id"]);
    let reply = asks.post(&format!("/v1/responses/{whole}/cancel"), &Value::Null);
    assert_eq!((reply.status, reply.error("message").contains("background")), (400, true));
}

#[test]
fn a_conversation_takes_what_is_asked_and_answered() {
    let (folder, clock) = (tempfile::tempdir().expect("a folder"), Clock::new());
    let site = site(kept(folder.path(), &clock));
    let asks = Asks(site.client, "");
    let new = json!({
        "metadata": { "topic": "rivers" },
        "items": [{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "Yes?" }],
    });
    let talk = asks.post("/v1/conversations", &new).json();
    assert_eq!(
        (&talk["object"], &talk["metadata"]["topic"]),
        (&json!("conversation"), &json!("rivers"))
    );
    let place = format!("/v1/conversations/{}", text_of(&talk["id"]));
    let told = asks.post(&place, &json!({ "metadata": { "topic": "seas" } })).json();
    assert_eq!(told["metadata"]["topic"], "seas");
    assert_eq!(asks.get(&place).json(), told);
    let more = json!({ "input": "More", "conversation": { "id": talk["id"] }, "ignore_eos": true });
    let one = asks.post("/v1/responses", &ask(more)).json();
    assert_eq!(one["conversation"]["id"], talk["id"]);
    let said = json!([
        { "role": "user", "content": "Hi" }, { "role": "assistant", "content": "Yes?" },
        { "role": "user", "content": "More" },
    ]);
    let whole = ask(json!({ "input": said, "ignore_eos": true, "store": false }));
    let whole = asks.post("/v1/responses", &whole).json();
    assert_eq!(one["output"][0]["content"], whole["output"][0]["content"]);
    let items = asks.get(&format!("{place}/items?order=asc")).json();
    let texts: Vec<&Value> =
        items["data"].as_array().expect("items").iter().map(|i| &i["content"][0]["text"]).collect();
    assert_eq!(texts[..3], [&json!("Hi"), &json!("Yes?"), &json!("More")]);
    assert_eq!(items["data"][3], one["output"][0]);
    let reply = asks.post("/v1/responses", &ask(json!({ "previous_response_id": one["id"] })));
    assert!(reply.status == 400 && reply.error("message").contains("conversation"), "{reply:?}");
    let added = json!({ "items": [{ "role": "user", "content": "Also" }] });
    let added = asks.post(&format!("{place}/items"), &added).json();
    let item = format!("{place}/items/{}", text_of(&added["data"][0]["id"]));
    assert_eq!(asks.get(&item).json()["content"][0]["text"], "Also");
    assert_eq!(asks.delete(&item).json()["id"], talk["id"]);
    assert_eq!(asks.get(&item).status, 404);
    let wrong = json!({ "items": [{ "type": "message", "role": "king", "content": "a" }] });
    let reply = asks.post(&format!("{place}/items"), &wrong);
    assert_eq!((reply.status, reply.error("param").as_str()), (400, "items[0].role"));
    let last = asks.get(&format!("{place}/items?limit=1")).json();
    assert_eq!((&last["data"][0], &last["has_more"]), (&one["output"][0], &json!(true)));
    assert_eq!(asks.delete(&place).json()["deleted"], true);
    for path in [place.clone(), format!("{place}/items"), "/v1/conversations/';--".to_owned()] {
        assert_eq!(asks.get(&path).status, 404, "{path}");
    }
    let gone = asks.post("/v1/responses", &ask(json!({ "conversation": talk["id"] })));
    assert_eq!(gone.status, 404, "{gone:?}");
    assert_eq!(asks.get(&format!("/v1/responses/{}", text_of(&one["id"]))).status, 200);
}

#[test]
fn nobody_sees_what_another_key_left() {
    let (folder, clock) = (tempfile::tempdir().expect("a folder"), Clock::new());
    let mut server = kept(folder.path(), &clock);
    server.api_keys = vec!["alpha".into(), "beta".into()];
    let site = site(server);
    let (ann, bob) = (Asks(site.client, "alpha"), Asks(site.client, "beta"));
    let response = text_of(&ann.post("/v1/responses", &ask(json!({}))).json()["id"]);
    let talk = text_of(&ann.post("/v1/conversations", &json!({})).json()["id"]);
    let file = ann.file("{}");
    let batch = ann.batch(&line("a", json!({})));
    let requests = json!({ "requests": [{ "custom_id": "a", "params": {
        "model": "sim", "max_tokens": 2, "messages": [{ "role": "user", "content": "Hi" }],
    } }] });
    let messages = text_of(&ann.post("/v1/messages/batches", &requests).json()["id"]);
    ann.until(&format!("/v1/batches/{batch}"), "status", "completed");
    let ended =
        ann.until(&format!("/v1/messages/batches/{messages}"), "processing_status", "ended");
    assert_eq!(ended["request_counts"]["succeeded"], 1, "{ended}");
    let paths = [
        format!("/v1/responses/{response}"),
        format!("/v1/responses/{response}/input_items"),
        format!("/v1/conversations/{talk}"),
        format!("/v1/conversations/{talk}/items"),
        format!("/v1/files/{file}"),
        format!("/v1/files/{file}/content"),
        format!("/v1/batches/{batch}"),
        format!("/v1/messages/batches/{messages}"),
        format!("/v1/messages/batches/{messages}/results"),
    ];
    for path in &paths {
        assert_eq!((ann.get(path).status, bob.get(path).status), (200, 404), "{path}");
    }
    for path in ["/v1/files", "/v1/batches", "/v1/messages/batches"] {
        let count = |asks: Asks| asks.get(path).json()["data"].as_array().map(Vec::len);
        assert_eq!(count(bob), Some(0), "{path}");
        assert!(count(ann) > Some(0), "{path}");
    }
    for (method, path) in [
        ("POST", format!("/v1/responses/{response}/cancel")),
        ("POST", format!("/v1/batches/{batch}/cancel")),
        ("POST", format!("/v1/messages/batches/{messages}/cancel")),
        ("DELETE", format!("/v1/responses/{response}")),
        ("DELETE", format!("/v1/conversations/{talk}")),
        ("DELETE", format!("/v1/files/{file}")),
        ("DELETE", format!("/v1/messages/batches/{messages}")),
    ] {
        assert_eq!(bob.send(method, &path, &Value::Null).status, 404, "{method} {path}");
    }
    let behind = ask(json!({ "previous_response_id": response }));
    assert_eq!(bob.post("/v1/responses", &behind).status, 400);
    assert_eq!(bob.post("/v1/responses", &ask(json!({ "conversation": talk }))).status, 404);
    let stolen = json!({
        "input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h",
    });
    assert_eq!(bob.post("/v1/batches", &stolen).status, 400);
    assert_eq!(ann.get(&paths[0]).status, 200, "it is still there");
}

#[test]
fn what_is_not_used_ends_and_what_is_used_stays() {
    let (folder, clock) = (tempfile::tempdir().expect("a folder"), Clock::new());
    let mut server = kept(folder.path(), &clock);
    server.state.iter_mut().for_each(|state| state.ttl = Duration::from_secs(10 * DAY));
    let site = site(server);
    let asks = Asks(site.client, "");
    let one = asks.post("/v1/responses", &ask(json!({}))).json();
    let alone = asks.post("/v1/responses", &ask(json!({}))).json();
    let file = asks.file("{}");
    let short = asks.upload(&[
        ("purpose", "user_data"),
        ("expires_after[anchor]", "created_at"),
        ("expires_after[seconds]", "3600"),
        ("file", "x"),
    ]);
    let short = short.json();
    assert_eq!(short["expires_at"], 1_800_000_000 + 3600);
    clock.pass(3600);
    assert_eq!(asks.get(&format!("/v1/files/{}", text_of(&short["id"]))).status, 404);
    clock.pass(9 * DAY);
    let two = ask(json!({ "previous_response_id": one["id"] }));
    let two = asks.post("/v1/responses", &two).json();
    clock.pass(DAY);
    let place = |told: &Value| format!("/v1/responses/{}", text_of(&told["id"]));
    assert_eq!([&one, &two, &alone].map(|told| asks.get(&place(told)).status), [200, 200, 404]);
    assert_eq!(asks.get(&format!("/v1/files/{file}")).status, 404);
    assert_eq!(asks.get("/v1/files").json()["data"], json!([]));
    clock.pass(10 * DAY);
    let reply = asks.post("/v1/responses", &ask(json!({ "previous_response_id": two["id"] })));
    assert_eq!(reply.error("code"), "previous_response_not_found");
}

#[test]
fn a_batch_answers_each_line_once_and_says_which_failed() {
    let (folder, clock) = (tempfile::tempdir().expect("a folder"), Clock::new());
    let site = site(kept(folder.path(), &clock));
    let asks = Asks(site.client, "");
    let lines: String = (0..20).map(|n| line(&format!("line {n}"), json!({ "seed": n }))).collect();
    let bad = line("bad", json!({ "temperature": 9 })) + &line("stream", json!({ "stream": true }));
    let batch = asks.batch(&format!("{lines}{bad}"));
    let told = asks.until(&format!("/v1/batches/{batch}"), "status", "completed");
    let counts = json!({ "total": 22, "completed": 20, "failed": 2 });
    assert_eq!(told["request_counts"], counts, "{told}");
    let answers = asks.lines(&told["output_file_id"]);
    let names: Vec<String> = answers.iter().map(|line| text_of(&line["custom_id"])).collect();
    assert_eq!(names, (0..20).map(|n| format!("line {n}")).collect::<Vec<_>>());
    for (n, answer) in answers.iter().enumerate() {
        let ask = json!({ "model": "sim", "prompt": "Hi", "max_tokens": 4, "seed": n });
        let same = asks.post("/v1/completions", &ask).json();
        let body = &answer["response"]["body"];
        assert_eq!(body["choices"], same["choices"], "line {n}");
        assert_eq!(
            (&answer["response"]["status_code"], &answer["error"]),
            (&json!(200), &Value::Null)
        );
    }
    let errors = asks.lines(&told["error_file_id"]);
    let names: Vec<String> = errors.iter().map(|line| text_of(&line["custom_id"])).collect();
    assert_eq!(names, ["bad", "stream"]);
    for (error, param) in errors.iter().zip(["temperature", "stream"]) {
        assert_eq!(error["response"]["status_code"], 400);
        assert_eq!(error["response"]["body"]["error"]["param"], param);
        assert!(text_of(&error["error"]["message"]).contains(param), "{error}");
    }
    let listed = asks.get("/v1/files?purpose=batch_output&limit=1").json();
    assert_eq!(
        (listed["data"].as_array().map(Vec::len), &listed["has_more"]),
        (Some(1), &json!(true))
    );
    let listed = asks.get("/v1/batches").json();
    assert_eq!(listed["data"][0]["id"], batch.as_str());
    for (more, param) in [
        (json!({ "input_file_id": "file-1" }), "input_file_id"),
        (json!({ "endpoint": "/v1/images" }), "endpoint"),
        (json!({ "completion_window": "1h" }), "completion_window"),
    ] {
        let mut ask = json!({
            "input_file_id": asks.file("{}"), "endpoint": "/v1/completions",
            "completion_window": "24h",
        });
        ask.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
        let reply = asks.post("/v1/batches", &ask);
        assert_eq!((reply.status, reply.error("param").as_str()), (400, param), "{reply:?}");
    }
    site.settle();
}

#[test]
fn lines_keep_to_their_key_and_stand_back_for_others() {
    let (folder, clock) = (tempfile::tempdir().expect("a folder"), Clock::new());
    let mut server = kept(folder.path(), &clock);
    let limits = KeyLimits { at_once: Some(2), context: Some(20), ..KeyLimits::default() };
    let metrics = KeyLimits { metrics: true, ..KeyLimits::default() };
    let key =
        |name: &str, limits| Key { name: name.into(), digest: digest(name.as_bytes()), limits };
    server.keys = Some(vec![key("ann", limits), key("bob", metrics)]);
    let mut setup = Setup { server, context: 2048, blocks: 1000, ..Setup::default() };
    setup.step = Duration::from_millis(2);
    let site = Site::with(setup);
    let (ann, bob) = (Asks(site.client, "ann"), Asks(site.client, "bob"));
    let open = || {
        let page = bob.get("/metrics").body;
        let name = "tokenmill_http_requests_in_flight ";
        let found = page.lines().find_map(|line| line.strip_prefix(name)).expect("a number");
        found.parse::<f64>().expect("a number")
    };
    let most_open = |batch: &str, asks: Asks, lines: u64| {
        let (mut most, begun) = (0.0f64, Instant::now());
        while asks.get(batch).json()["request_counts"]["completed"].as_u64() < Some(lines) {
            most = most.max(open());
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not go on");
        }
        most
    };
    // A prompt of more tokens than the key may have is refused; of two at once one is left to its holder.
    let lines: String = (0..12).map(|n| line(&format!("l{n}"), json!({}))).collect();
    let long = line("long", json!({ "prompt": "x".repeat(40) }));
    let batch = format!("/v1/batches/{}", ann.batch(&format!("{lines}{long}")));
    let most = most_open(&batch, ann, 12);
    assert!(most <= 1.0, "{most}");
    let told = ann.until(&batch, "status", "completed");
    assert_eq!(told["request_counts"], json!({ "total": 13, "completed": 12, "failed": 1 }));
    // While somebody else is answered, one line at a time.
    let ask = json!({
        "model": "sim", "prompt": "Hi", "max_tokens": 1900, "ignore_eos": true, "stream": true,
    });
    let headers = [("content-type", "application/json"), ("authorization", "Bearer bob")];
    let body = ask.to_string();
    let mut stream = site.client.open("POST", "/v1/completions", &headers, body.as_bytes());
    stream.event().expect("it has begun");
    let lines: String = (0..40).map(|n| line(&format!("l{n}"), json!({}))).collect();
    let batch = format!("/v1/batches/{}", bob.batch(&lines));
    let most = most_open(&batch, bob, 10);
    assert!((1.0..=2.0).contains(&most), "the stream and a line, not {most}");
    drop(stream);
    bob.until(&batch, "status", "completed");
}

#[test]
fn a_batch_goes_on_with_the_next_process() {
    let (folder, clock) = (tempfile::tempdir().expect("a folder"), Clock::new());
    let begin = || {
        let mut setup = Setup { server: kept(folder.path(), &clock), ..Setup::default() };
        (setup.step, setup.context, setup.blocks) = (Duration::from_millis(5), 2048, 1000);
        Site::with(setup)
    };
    let lines: String = (0..60).map(|n| line(&format!("l{n}"), json!({ "seed": n }))).collect();
    let (mut batch, mut background) = (String::new(), String::new());
    let mut done = Vec::new();
    for round in 0.. {
        let site = begin();
        let asks = Asks(site.client, "");
        if round == 0 {
            batch = asks.batch(&lines);
            let long = json!({ "background": true, "max_output_tokens": 1900, "ignore_eos": true });
            background = text_of(&asks.post("/v1/responses", &ask(long)).json()["id"]);
        }
        let place = format!("/v1/batches/{batch}");
        let begun = Instant::now();
        let told = loop {
            let told = asks.get(&place).json();
            let count = told["request_counts"]["completed"].as_u64().unwrap_or(0);
            if told["status"] == "completed" || count >= done.last().unwrap_or(&0) + 15 {
                break told;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{told}");
        };
        done.push(told["request_counts"]["completed"].as_u64().unwrap_or(0));
        if told["status"] == "completed" {
            let answers = asks.lines(&told["output_file_id"]);
            let names: Vec<String> = answers.iter().map(|l| text_of(&l["custom_id"])).collect();
            assert_eq!(names, (0..60).map(|n| format!("l{n}")).collect::<Vec<_>>());
            let told = asks.get(&format!("/v1/responses/{background}")).json();
            assert_eq!(
                (&told["status"], &told["error"]["code"]),
                (&json!("failed"), &json!("server_error"))
            );
            break;
        }
        // (Dropped as it is: nobody says goodbye to what is in flight.)
    }
    assert!(done.len() > 2, "it was never broken off: {done:?}");
}

#[test]
fn a_batch_that_is_cancelled_or_late_says_of_each_line_what_came_of_it() {
    let (folder, clock) = (tempfile::tempdir().expect("a folder"), Clock::new());
    let mut setup = Setup { server: kept(folder.path(), &clock), ..Setup::default() };
    setup.step = Duration::from_millis(2);
    let site = Site::with(setup);
    let asks = Asks(site.client, "");
    let long = || {
        (0..40).map(|n| line(&format!("l{n}"), json!({ "max_tokens": 400, "ignore_eos": true })))
    };
    for (end, word) in [("cancelled", "batch_cancelled"), ("expired", "batch_expired")] {
        let file = asks.file(&long().collect::<String>());
        let new = json!({ "input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h" });
        let batch = text_of(&asks.post("/v1/batches", &new).json()["id"]);
        let place = format!("/v1/batches/{batch}");
        asks.until(&place, "status", "in_progress");
        assert_eq!(asks.delete(&format!("/v1/files/{file}")).status, 400, "it is being read");
        match end {
            "cancelled" => {
                let told = asks.post(&format!("{place}/cancel"), &Value::Null).json();
                assert!(["cancelling", "cancelled"].contains(&text_of(&told["status"]).as_str()));
            }
            _ => clock.pass(DAY),
        }
        let told = asks.until(&place, "status", end);
        let rest = asks.lines(&told["error_file_id"]);
        assert!(
            rest.iter().all(|line| line["error"]["code"] == word && line["response"].is_null())
        );
        let good = match &told["output_file_id"] {
            Value::Null => 0,
            id => asks.lines(id).len(),
        };
        let counts = &told["request_counts"];
        assert_eq!(good + rest.len(), 40);
        assert_eq!((&counts["completed"], &counts["failed"]), (&json!(good), &json!(rest.len())));
        assert_eq!(asks.delete(&format!("/v1/files/{file}")).status, 200);
    }
    site.settle();
}

#[test]
fn message_batches_are_answered_in_their_own_form() {
    let (folder, clock) = (tempfile::tempdir().expect("a folder"), Clock::new());
    let site = site(kept(folder.path(), &clock));
    let asks = Asks(site.client, "");
    let request = |id: &str, tokens: i64| {
        let messages = json!([{ "role": "user", "content": "Hi" }]);
        let params =
            json!({ "model": "sim", "max_tokens": tokens, "seed": 1, "messages": messages });
        json!({ "custom_id": id, "params": params })
    };
    let ask = json!({ "requests": [request("good", 3), request("bad", -1)] });
    let begun = asks.post("/v1/messages/batches", &ask).json();
    assert_eq!(begun["type"], "message_batch");
    let place = format!("/v1/messages/batches/{}", text_of(&begun["id"]));
    let told = asks.until(&place, "processing_status", "ended");
    let counts =
        json!({ "processing": 0, "succeeded": 1, "errored": 1, "canceled": 0, "expired": 0 });
    assert_eq!(told["request_counts"], counts);
    assert!(text_of(&told["results_url"]).ends_with(&format!("{place}/results")), "{told}");
    assert_eq!(told["ended_at"], "2027-01-15T08:00:00Z");
    let results = asks.get(&format!("{place}/results"));
    let lines: Vec<Value> =
        results.body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines[0]["result"]["type"], "succeeded");
    assert_eq!(lines[0]["result"]["message"]["usage"]["output_tokens"], 3);
    assert_eq!(lines[1]["result"]["type"], "errored");
    assert_eq!(lines[1]["result"]["error"]["error"]["type"], "invalid_request_error");
    assert_eq!(asks.get("/v1/files").json()["data"], json!([]), "its files are its own");
    let listed = asks.get("/v1/messages/batches?limit=1").json();
    assert_eq!(listed["data"][0]["id"], begun["id"]);
    for wrong in
        [json!([]), json!([request("a", 1), request("a", 1)]), json!([{ "custom_id": "a" }])]
    {
        let reply = asks.post("/v1/messages/batches", &json!({ "requests": wrong }));
        assert_eq!((reply.status, &reply.json()["type"]), (400, &json!("error")), "{reply:?}");
    }
    assert_eq!(asks.delete(&place).json()["type"], "message_batch_deleted");
    let reply = asks.get(&place);
    assert_eq!((reply.status, reply.error("type").as_str()), (404, "not_found_error"));
    let left = std::fs::read_dir(folder.path().join("files")).expect("a folder").count();
    assert_eq!(left, 0, "nothing of it is left");
}

#[test]
fn files_are_bounded_and_come_back_as_they_went() {
    let (folder, clock) = (tempfile::tempdir().expect("a folder"), Clock::new());
    let mut server = kept(folder.path(), &clock);
    (server.limits.file_bytes, server.limits.files_bytes) = (1000, 2500);
    let site = site(server);
    let asks = Asks(site.client, "");
    let text = "<script>alert(1)</script>\r\n--".to_owned() + &"x".repeat(900);
    let id = asks.file(&text);
    let content = asks.get(&format!("/v1/files/{id}/content"));
    assert_eq!(content.body, text);
    assert_eq!(content.header("content-type"), Some("application/octet-stream"));
    assert_eq!(content.header("x-content-type-options"), Some("nosniff"));
    let told = asks.get(&format!("/v1/files/{id}")).json();
    assert_eq!((&told["bytes"], &told["filename"]), (&json!(text.len()), &json!("in.jsonl")));
    let send = |parts: &[(&str, &str)]| asks.upload(parts).status;
    let batch = ("purpose", "batch");
    assert_eq!(send(&[batch, ("file", &"x".repeat(1000))]), 200);
    assert_eq!(send(&[batch, ("file", &"x".repeat(1001))]), 413);
    assert_eq!(send(&[batch, ("file", &"x".repeat(100_000))]), 413);
    assert_eq!(send(&[batch, ("file", &"x".repeat(900))]), 413, "all together");
    assert_eq!(send(&[("file", "x")]), 400);
    assert_eq!(send(&[batch]), 400);
    assert_eq!(send(&[("purpose", "fine-tune"), ("file", "x")]), 400);
    assert_eq!(send(&[batch, ("file", "x"), ("file", "y")]), 400);
    assert_eq!(send(&[batch, ("other", "x"), ("file", "x")]), 400);
    assert_eq!(asks.post("/v1/files", &json!({})).status, 415);
    let kind = ("content-type", "multipart/form-data; boundary=b");
    let broken = b"--b\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\nx";
    assert_eq!(site.client.send("POST", "/v1/files", &[kind], broken).status, 400);
    for id in ["..%2f..%2fetc%2fpasswd", "%27%20OR%201%3D1%20--", "..", "state.db"] {
        for path in [format!("/v1/files/{id}"), format!("/v1/files/{id}/content")] {
            let reply = asks.get(&path);
            assert_eq!(reply.status, 404, "{path}: {reply:?}");
        }
    }
    assert_eq!(asks.delete(&format!("/v1/files/{id}")).json()["deleted"], true);
    assert_eq!(send(&[batch, ("file", &"x".repeat(900))]), 200, "there is room again");
    let files = std::fs::read_dir(folder.path().join("files")).expect("a folder").count();
    assert_eq!(files, 2, "nothing is left of what was refused");
}

#[cfg(unix)]
#[test]
fn what_lies_on_disk_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, clock) = (tempfile::tempdir().expect("a folder"), Clock::new());
    let dir = folder.path().join("new/state");
    let site = site(kept(&dir, &clock));
    let asks = Asks(site.client, "");
    asks.file("x");
    asks.post("/v1/responses", &ask(json!({})));
    let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!([mode(&dir), mode(&dir.join("files"))], [0o700; 2]);
    let mut seen = 0;
    for place in [&dir, &dir.join("files")] {
        for entry in std::fs::read_dir(place).expect("a folder").map(|e| e.expect("one").path()) {
            if entry.is_file() {
                assert_eq!(mode(&entry), 0o600, "{}", entry.display());
                seen += 1;
            }
        }
    }
    assert!(seen >= 3, "the database, its log, a file");
}

#[test]
fn a_full_or_unwritable_folder_is_told() {
    let (folder, clock) = (tempfile::tempdir().expect("a folder"), Clock::new());
    let no_folder = folder.path().join("file");
    std::fs::write(&no_folder, "x").expect("written");
    let start = |dir: &Path| {
        let model = Setup::default().model(&Default::default());
        let engine = model.engine.clone();
        let started = spawn(kept(dir, &clock), vec![model]);
        engine.shut_down();
        started.map(drop).map_err(|error| error.to_string())
    };
    let error = start(&no_folder).expect_err("refused");
    assert!(error.contains("cannot keep anything in") && error.contains("file"), "{error}");
    let other = folder.path().join("other");
    std::fs::create_dir(&other).expect("a folder");
    std::fs::write(other.join("state.db"), "no database at all, but a text").expect("written");
    let error = start(&other).expect_err("refused");
    assert!(error.contains("no database of this program"), "{error}");
    // A database that may have no more pages: what is asked is answered, and says that it is not kept.
    let mut server = kept(&folder.path().join("small"), &clock);
    server.limits.state_bytes = 30 * 4096;
    let site = site(server);
    let asks = Asks(site.client, "");
    let long = "x".repeat(1500);
    let full = (0..200).find_map(|_| {
        let reply = asks.post("/v1/responses", &ask(json!({ "input": long })));
        assert_eq!(reply.status, 200, "{reply:?}");
        Some(reply.json()).filter(|told| told["store"] == false)
    });
    let full = full.expect("it gets full");
    assert!(text_of(&full["warnings"][0]).contains("full"), "{full}");
    let reply = asks.post("/v1/responses", &ask(json!({ "input": long, "background": true })));
    assert_eq!((reply.status, reply.error("code").as_str()), (507, "state_full"), "{reply:?}");
    let reply = asks.post("/v1/conversations", &json!({ "metadata": { "a": "x".repeat(500) } }));
    assert!([200, 507].contains(&reply.status), "{reply:?}");
    let running: Result<_, ServeError> = {
        let model = Setup::default().model(&Default::default());
        let engine = model.engine.clone();
        let second = spawn(kept(&folder.path().join("small"), &clock), vec![model]).map(drop);
        engine.shut_down();
        second
    };
    let error = running.expect_err("one server at a time").to_string();
    assert!(error.contains("another server has it"), "{error}");
}

#[test]
fn without_a_folder_nothing_is_kept() {
    let site = Site::new();
    let asks = Asks(site.client, "");
    for path in ["/v1/files", "/v1/batches", "/v1/messages/batches", "/v1/conversations/x"] {
        let reply = asks.get(path);
        assert!(reply.status == 404 && reply.error("message").contains("--state"), "{reply:?}");
    }
    for path in ["/v1/batches", "/v1/conversations", "/v1/messages/batches"] {
        assert_eq!(asks.post(path, &json!({})).status, 404, "{path}");
    }
    assert_eq!(asks.upload(&[("purpose", "batch"), ("file", "x")]).status, 404);
    for name in ["previous_response_id", "conversation"] {
        let reply = asks.post("/v1/responses", &ask(json!({ name: "x" })));
        assert_eq!((reply.status, reply.error("param").as_str()), (400, name));
    }
    assert_eq!(asks.post("/v1/responses", &ask(json!({}))).json()["store"], false);
}

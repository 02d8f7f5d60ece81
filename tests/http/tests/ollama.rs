//! Ollama's dialect from outside: what its clients ask, and what they read.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokenmill_http_tests::{Client, Reply, Setup, ShelfSite, Site, free_address};

fn lines(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.header("content-type"), Some("application/x-ndjson"), "{reply:?}");
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    reply.body.lines().map(line).collect()
}

fn error(reply: &Reply) -> String {
    reply.json()["error"].as_str().unwrap_or_else(|| panic!("no words: {reply:?}")).to_owned()
}

fn talk(text: &str) -> Value {
    json!({ "model": "sim", "messages": [{ "role": "user", "content": text }] })
}

fn with(mut body: Value, members: Value) -> Value {
    let members = members.as_object().expect("members").clone();
    body.as_object_mut().expect("a body").extend(members);
    body
}

const PAGE: &str = include_str!("../../../docs/ollama.md");

/// The rows of a section's table: a member, an example, what becomes of it.
fn rows(section: &str) -> Vec<[String; 3]> {
    let text = PAGE.split(&format!("\n## {section}\n")).nth(1).expect("a section");
    let text = text.split("\n## ").next().unwrap_or_default();
    let cell = |cell: &str| cell.trim().trim_matches('`').to_owned();
    let row = |line: &str| {
        let cells: Vec<String> = line.trim_matches('|').split(" | ").map(cell).collect();
        [cells[0].clone(), cells[1].clone(), cells[2].clone()]
    };
    text.lines().filter(|line| line.starts_with("| `")).map(row).collect()
}

#[test]
fn the_page_says_what_becomes_of_members_that_change_models() {
    for (section, method, path, base) in [
        ("Show", "POST", "/api/show", json!({ "model": "big" })),
        ("Create", "POST", "/api/create", json!({ "model": "made", "from": "big" })),
        ("Copy", "POST", "/api/copy", json!({ "source": "big", "destination": "copied" })),
        ("Delete", "DELETE", "/api/delete", json!({})),
        ("Pull", "POST", "/api/pull", json!({ "model": "other", "stream": false })),
    ] {
        for [member, example, becomes] in rows(section) {
            let site = ShelfSite::new(Setup::default(), 1000, &[("sim", 100), ("big", 300)]);
            let mut body = base.clone();
            body[&member] = serde_json::from_str(&example).expect("an example");
            let reply = site.client.send(method, path, &[], body.to_string().as_bytes());
            let told = match becomes.as_str() {
                "refused" => (reply.status, error(&reply).contains(&member)) == (400, true),
                "warned" => {
                    reply.status == 200 && reply.body.contains(&format!("{member} was ignored"))
                }
                _ => reply.status == 200 && !reply.body.contains("was ignored"),
            };
            assert!(told, "{section} {member} {becomes}: {reply:?}");
        }
    }
}

/// The names that a list tells.
fn names(client: &Client, path: &str) -> Vec<String> {
    let reply = client.get(path).json();
    let models = reply["models"].as_array().expect("models").clone();
    models.iter().map(|model| model["model"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_stream_says_what_the_whole_answer_says() {
    let site = Site::new();
    let options = json!({ "options": { "num_predict": 4, "temperature": 0 } });
    for (path, body, place) in [
        ("/api/chat", talk("Hello"), "/message/content"),
        ("/api/generate", json!({ "model": "sim:latest", "prompt": "Hello" }), "/response"),
        ("/api/generate", json!({ "prompt": "Hello", "raw": true }), "/response"),
    ] {
        let body = with(body, options.clone());
        let stream = lines(&site.client.post(path, &body));
        let whole = site.client.post(path, &with(body, json!({ "stream": false }))).json();
        let said = |line: &Value| line.pointer(place).expect("a text").as_str().map(str::to_owned);
        let joined: String = stream.iter().filter_map(said).collect();
        assert_eq!(Some(joined), said(&whole), "{path}");
        let (last, rest) = stream.split_last().expect("a last line");
        assert!(rest.iter().all(|line| line["done"] == false) && last["done"] == true);
        for answer in [last, &whole] {
            assert_eq!(
                (&answer["done_reason"], &answer["model"]),
                (&json!("length"), &json!("sim"))
            );
            assert_eq!(answer["eval_count"], 4);
            let nanos =
                |name: &str| answer[name].as_u64().unwrap_or_else(|| panic!("{name}: {answer}"));
            let parts = ["load_duration", "prompt_eval_duration", "eval_duration"].map(nanos);
            assert_eq!(parts.iter().sum::<u64>(), nanos("total_duration"));
        }
        assert_eq!(last["prompt_eval_count"], whole["prompt_eval_count"]);
    }
}

#[test]
fn tokens_are_told_with_their_logprobs_in_both_forms() {
    let site = Site::new();
    let asked = json!({
        "logprobs": true, "top_logprobs": 2, "options": { "num_predict": 5, "temperature": 0 },
    });
    let body = with(talk("Hi"), asked);
    let told = |answer: &Value| answer["logprobs"].as_array().cloned().unwrap_or_default();
    let whole = told(
        &site.client.post("/api/chat", &with(body.clone(), json!({ "stream": false }))).json(),
    );
    let stream: Vec<Value> =
        lines(&site.client.post("/api/chat", &body)).iter().flat_map(told).collect();
    assert_eq!((whole.len(), &whole), (5, &stream));
    assert_eq!(whole[0]["top_logprobs"].as_array().map(Vec::len), Some(2));
    let reply = site.client.post("/api/chat", &with(talk("Hi"), json!({ "top_logprobs": 2 })));
    assert_eq!((reply.status, error(&reply).contains("logprobs")), (400, true));
}

#[test]
fn what_agents_send_is_answered() {
    let site = Site::with(Setup { context: 1024, blocks: 400, ..Setup::default() });
    // cline: tools, a choice, ids and names with results, a context.
    let tool = |name: &str| {
        let items = json!({ "type": "array", "items": { "type": "string" } });
        let schema = json!({
            "type": "object", "properties": { "commands": items }, "required": ["commands"],
        });
        json!({ "type": "function", "function": {
            "name": name, "description": "d", "parameters": schema,
        } })
    };
    let call = json!({ "id": "T2IqFRKKmIu2vzTZ", "type": "function", "function": {
        "name": "run", "arguments": { "commands": ["ls"] },
    } });
    let body = json!({
        "model": "sim", "stream": true, "tool_choice": "auto", "tools": [tool("run"), tool("read")],
        "options": { "num_ctx": 32768, "num_predict": 4 },
        "messages": [
            { "role": "system", "content": "s" },
            { "role": "user", "content": "List the files." },
            { "role": "assistant", "content": "Let me look. ", "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "T2IqFRKKmIu2vzTZ", "tool_name": "run", "content": "a" },
        ],
    });
    let stream = lines(&site.client.post("/api/chat", &body));
    let last = stream.last().expect("a last line");
    assert_eq!(last["done"], true);
    let warnings = last["warnings"].to_string();
    assert!(warnings.contains("32768") && warnings.contains("1024 here"), "{warnings}");
    // aider: models by their old member, images that are none, no type of the body.
    let shown = site.client.post("/api/show", &json!({ "name": "sim" })).json();
    assert_eq!(shown["model_info"]["model.context_length"], 1024);
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    let body = json!({
        "model": "sim", "stream": true, "options": { "temperature": 0, "num_ctx": 500, "num_predict": 3 },
        "messages": [{ "role": "user", "content": "q", "images": [] }],
    });
    let reply = site.client.send("POST", "/api/chat", &[], body.to_string().as_bytes());
    assert_eq!(lines(&reply).last().expect("a last line")["eval_count"], 3);
    // codex: a version that it takes, and the model among the names.
    let version = site.client.get("/api/version").json()["version"].clone();
    let numbers: Vec<u32> = version
        .as_str()
        .expect("a text")
        .split('.')
        .map(|n| n.parse().expect("a number"))
        .collect();
    assert!(numbers >= vec![0, 13, 4], "{version}");
    assert_eq!(names(&site.client, "/api/tags"), ["sim"]);
}

#[test]
fn a_smaller_context_limits_the_request() {
    let site = Site::new();
    let asked = |context: u32| {
        let options = json!({ "num_ctx": context, "num_predict": -1, "temperature": 0 });
        let body =
            json!({ "prompt": "0123456789", "raw": true, "stream": false, "options": options });
        site.client.post("/api/generate", &body)
    };
    let answer = asked(25).json();
    let count = |name: &str| answer[name].as_u64().unwrap_or(0);
    assert_eq!((answer["done_reason"].as_str(), count("eval_count")), (Some("length"), 15));
    let reply = asked(10);
    assert_eq!((reply.status, error(&reply).contains("asked for is 10 tokens")), (400, true));
    assert!(asked(9000).json()["warnings"].to_string().contains("9000"));
}

#[test]
fn what_cannot_be_done_is_refused_by_name() {
    let site = Site::new();
    for (path, members, word) in [
        ("/api/chat", json!({ "options": { "mirostat": 1 } }), "options.mirostat"),
        ("/api/chat", json!({ "options": "none" }), "options"),
        ("/api/chat", json!({ "format": "xml" }), "format"),
        ("/api/chat", json!({ "think": "a lot" }), "think"),
        ("/api/chat", json!({ "keep_alive": "5 parsecs" }), "keep_alive"),
        ("/api/generate", json!({ "prompt": "a", "template": "{{ .Prompt }}" }), "template"),
        ("/api/generate", json!({ "prompt": "a", "context": [1, 2] }), "context"),
        ("/api/generate", json!({ "prompt": "a", "suffix": "b" }), "infill"),
        ("/api/generate", json!({ "prompt": "a", "images": ["aGVsbG8="] }), "image"),
        ("/api/embed", json!({ "input": "a" }), "embeddings"),
        ("/api/rerank", json!({ "query": "a", "documents": ["b"] }), "ranks"),
        ("/api/push", json!({}), "pushed"),
        ("/api/blobs/sha256:00", json!({}), "from"),
        ("/api/create", json!({ "from": "sim", "files": { "a": "sha256:b" } }), "files"),
        ("/api/create", json!({ "from": "sim", "quantize": "q4_K_M" }), "quantize"),
        ("/api/create", json!({}), "from"),
    ] {
        let reply = site.client.post(path, &with(talk("Hi"), members.clone()));
        assert_eq!(reply.status, 400, "{path} {members}: {reply:?}");
        assert!(error(&reply).contains(word), "{path} {members}: {reply:?}");
    }
    for (method, path) in [("GET", "/api/nothing"), ("GET", "/api/chat"), ("POST", "/api/tags")] {
        let reply = site.client.send(method, path, &[], b"");
        assert!([404, 405].contains(&reply.status), "{reply:?}");
        error(&reply);
    }
    let reply = site.client.post("/api/show", &json!({ "model": "nope" }));
    assert_eq!((reply.status, error(&reply).contains("nope")), (404, true));
}

#[test]
fn bodies_say_what_they_like_but_for_pages() {
    let site = Site::new();
    let body =
        with(talk("Hi"), json!({ "stream": false, "options": { "num_predict": 1 } })).to_string();
    let form = ("content-type", "application/x-www-form-urlencoded");
    let status = |headers: &[(&str, &str)]| {
        site.client.send("POST", "/api/chat", headers, body.as_bytes()).status
    };
    assert_eq!(status(&[form]), 200, "as curl says it");
    assert_eq!(status(&[]), 200);
    assert_eq!(status(&[form, ("sec-fetch-site", "cross-site")]), 415);
    assert_eq!(status(&[form, ("origin", "http://evil.example")]), 403);
    let own = format!("http://{}", site.client.address());
    assert_eq!(status(&[form, ("origin", &own)]), 415);
    let elsewhere = site.client.send("POST", "/v1/chat/completions", &[], body.as_bytes());
    assert_eq!(elsewhere.status, 415);
}

#[test]
fn it_listens_on_more_ports() {
    let free = free_address();
    let mut setup = Setup::default();
    setup.server.also = vec![free.port()];
    let site = Site::with(setup);
    assert_eq!(names(&Client::new(free), "/api/tags"), names(&site.client, "/api/tags"));
}

fn shelf() -> ShelfSite {
    ShelfSite::new(Setup::default(), 1000, &[("small", 100), ("big", 300)])
}

#[test]
fn nothing_asked_loads_and_lets_go() {
    let site = shelf();
    let ask = |members: Value| {
        site.client.post("/api/generate", &with(json!({ "model": "small" }), members))
    };
    assert_eq!(ask(json!({ "keep_alive": 0 })).json()["done_reason"], "unload");
    assert_eq!(site.seen("small").0, 0, "it was not loaded for that");
    let loaded = ask(json!({ "keep_alive": -1 })).json();
    assert_eq!((&loaded["done_reason"], &loaded["response"]), (&json!("load"), &json!("")));
    let there = site.client.get("/api/ps").json();
    let entry = &there["models"][0];
    assert_eq!((&entry["name"], &entry["size"]), (&json!("small"), &json!(100)));
    assert_eq!(
        (&entry["details"]["family"], &entry["context_length"]),
        (&json!("sim"), &json!(512))
    );
    assert!(entry["expires_at"].as_str().expect("a time") > "2100", "{entry}");
    assert_eq!(ask(json!({ "keep_alive": "0s" })).json()["done_reason"], "unload");
    assert_eq!(names(&site.client, "/api/ps"), Vec::<String>::new());
    assert_eq!(site.seen("small").0, 1);
    let reply = site.client.post("/api/chat", &json!({ "model": "none", "keep_alive": 0 }));
    assert_eq!((reply.status, error(&reply).contains("none")), (404, true));
}

#[test]
fn a_model_is_made_of_another_and_shares_its_weights() {
    let site = shelf();
    let made = site.client.post(
        "/api/create",
        &json!({
            "model": "mario", "from": "small", "system": "You are Mario.",
            "parameters": { "temperature": 0, "num_predict": 4, "stop": ["\u{1}"] },
            "messages": [{ "role": "user", "content": "Who are you?" }], "license": "mine",
        }),
    );
    assert_eq!(lines(&made).last(), Some(&json!({ "status": "success" })));
    assert_eq!(names(&site.client, "/api/tags"), ["small", "big", "mario:latest"]);
    let shown = site.client.post("/api/show", &json!({ "model": "mario" })).json();
    assert_eq!((&shown["system"], &shown["license"]), (&json!("You are Mario."), &json!("mine")));
    assert_eq!(shown["details"]["parent_model"], "small");
    assert!(shown["parameters"].as_str().expect("a text").contains("num_predict"), "{shown}");
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "stream": false });
    let ask = |model: &str| {
        let reply = site.client.post("/api/chat", &with(body.clone(), json!({ "model": model })));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    };
    let (plain, other) = (ask("small"), ask("mario"));
    assert_eq!((&other["model"], &other["eval_count"]), (&json!("mario:latest"), &json!(4)));
    let longer = ["prompt_eval_count"].map(|n| (other[n].as_u64(), plain[n].as_u64()));
    assert!(longer[0].0 > longer[0].1.map(|n| n + 30), "{longer:?}");
    assert_eq!(site.seen("small").0, 1, "one copy of the weights");
    assert_eq!(names(&site.client, "/api/ps"), ["small"]);
    // Other dialects find it too.
    let listed = site.client.get("/v1/models/mario").json();
    assert_eq!(
        (&listed["id"], &listed["status"]["value"]),
        (&json!("mario:latest"), &json!("loaded"))
    );
    let copied =
        site.client.post("/api/copy", &json!({ "source": "mario", "destination": "me/luigi:1" }));
    assert_eq!(copied.status, 200, "{copied:?}");
    assert_eq!(ask("me/luigi:1")["prompt_eval_count"], other["prompt_eval_count"]);
    let delete = |model: &str| {
        let body = json!({ "model": model }).to_string();
        site.client.send("DELETE", "/api/delete", &[], body.as_bytes()).status
    };
    assert_eq!((delete("mario"), delete("mario")), (200, 404));
    assert_eq!(names(&site.client, "/api/tags"), ["small", "big", "me/luigi:1"]);
    assert_eq!(delete("small"), 200);
    assert_eq!(names(&site.client, "/api/tags"), ["big"]);
    for (body, word) in [
        (json!({ "model": "big", "from": "big" }), "files of its own"),
        (json!({ "model": "../x", "from": "big" }), "form"),
        (json!({ "model": "x", "from": "big", "parameters": { "top_p": 7 } }), "parameters.top_p"),
        (json!({ "model": "x", "from": "big", "template": "{{ .Licence }}" }), ".Licence"),
    ] {
        let reply = site.client.post("/api/create", &body);
        assert_eq!((reply.status, error(&reply).contains(word)), (400, true), "{reply:?}");
    }
}

#[test]
fn a_made_model_may_have_a_template_of_its_own() {
    let site = shelf();
    let count = |template: Option<&str>| {
        let body =
            json!({ "model": "made", "from": "small", "template": template, "stream": false });
        let made = site.client.post("/api/create", &body);
        assert_eq!(made.json(), json!({ "status": "success" }));
        let body = json!({
            "model": "made", "messages": [{ "role": "user", "content": "12345" }], "stream": false,
            "options": { "num_predict": 1 },
        });
        let answer = site.client.post("/api/chat", &body).json();
        answer["prompt_eval_count"].as_u64().expect("tokens")
    };
    // Of bytes: five, and what stands around them.
    assert_eq!(count(Some("{{ .Prompt }}")), 5);
    assert_eq!(count(Some("[{{ .Prompt }}]{{ .Response }}!")), 7);
    assert!(count(None) > 20);
    let shown = site.client.post("/api/show", &json!({ "model": "made" })).json();
    assert_eq!(shown["template"], "");
}

#[test]
fn a_pull_tells_how_far_it_is() {
    let site = shelf();
    site.shelf().broken.insert("nope".into(), "there is no such model".into());
    let told = lines(&site.client.post("/api/pull", &json!({ "model": "other" })));
    assert_eq!(told.first(), Some(&json!({ "status": "pulling manifest" })));
    assert_eq!(told.last(), Some(&json!({ "status": "success" })));
    let bytes = json!({
        "status": "pulling model.gguf", "digest": "model.gguf", "total": 100, "completed": 50,
    });
    assert!(told.contains(&bytes), "{told:?}");
    assert!(names(&site.client, "/api/tags").contains(&"other".to_owned()));
    let whole = site.client.post("/api/pull", &json!({ "name": "another", "stream": false }));
    assert_eq!(whole.json(), json!({ "status": "success" }));
    let failed = lines(&site.client.post("/api/pull", &json!({ "model": "nope" })));
    assert_eq!(failed.last(), Some(&json!({ "error": "there is no such model" })));
    let whole = site.client.post("/api/pull", &json!({ "model": "nope", "stream": false }));
    assert_eq!((whole.status, error(&whole).as_str()), (400, "there is no such model"));
}

#[test]
fn a_pull_stops_when_its_client_leaves() {
    let site = shelf();
    let body = |stream: bool| json!({ "model": "endless", "stream": stream }).to_string();
    let headers = [("content-type", "application/json")];
    let left = || site.shelf().broken_off;
    let wait = |expect: u32| {
        let start = Instant::now();
        while left() < expect {
            assert!(start.elapsed() < Duration::from_secs(10), "{} of {expect} stopped", left());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // Two pull the same; one of them leaves.
    let one = site.client.open("POST", "/api/pull", &headers, body(true).as_bytes());
    let other = site.client.open("POST", "/api/pull", &headers, body(true).as_bytes());
    drop(one);
    wait(1);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(left(), 1, "the other one goes on");
    drop(other);
    wait(2);
    // The same where only the end is waited for.
    let mut socket = site.client.connect();
    let body = body(false);
    let head = format!(
        "POST /api/pull HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    std::io::Write::write_all(&mut socket, head.as_bytes()).expect("sent");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(left(), 2);
    drop(socket);
    wait(3);
    assert!(!names(&site.client, "/api/tags").contains(&"endless".to_owned()));
}

#[test]
fn only_the_first_key_changes_models() {
    let mut setup = Setup::default();
    setup.server.api_keys = ["first", "second"].map(str::to_owned).into();
    let site = ShelfSite::new(setup, 1000, &[("small", 100)]);
    for (method, path, body) in [
        ("POST", "/api/pull", json!({ "model": "other", "stream": false })),
        ("POST", "/api/create", json!({ "model": "mario", "from": "small" })),
        ("POST", "/api/copy", json!({ "source": "small", "destination": "copy" })),
        ("DELETE", "/api/delete", json!({ "model": "copy" })),
    ] {
        let status = |key: &str| {
            let (key, kind) = (format!("Bearer {key}"), ("content-type", "application/json"));
            let headers = [("authorization", key.as_str()), kind];
            let reply = site.client.send(method, path, &headers, body.to_string().as_bytes());
            if reply.status != 200 {
                error(&reply);
            }
            reply.status
        };
        assert_eq!(["none", "second", "first"].map(status), [401, 403, 200], "{path}");
    }
}

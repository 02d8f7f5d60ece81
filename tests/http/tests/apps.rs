//! What two apps send to Ollama's routes and OpenAI's, and what they read of the answers. `apps.json` holds their
//! requests: those of Open WebUI (0.12.4) come out of its own functions that turn its page's settings into requests,
//! those of Continue are written as its Ollama provider writes them.

use serde_json::{Value, json};
use tokenmill_http_tests::{Reply, Setup, ShelfSite, Site};

/// Requests of an app: name, path, body.
fn sent(app: &str) -> Vec<(String, String, Value)> {
    let rows: Vec<Value> = serde_json::from_str(include_str!("apps.json")).expect("JSON");
    let text = |row: &Value, key: &str| row[key].as_str().expect("a text").to_owned();
    let of = rows.into_iter().filter(|row| row["app"] == app);
    of.map(|row| (text(&row, "name"), text(&row, "path"), row["body"].clone())).collect()
}

fn site() -> Site {
    Site::with(Setup { infill: true, context: 1024, blocks: 400, ..Setup::default() })
}

/// What Ollama's clients read of an answer: texts of its lines, the last one by itself.
fn told(name: &str, reply: &Reply, place: &str) -> (String, Value) {
    assert_eq!(reply.status, 200, "{name}: {reply:?}");
    let lines: Vec<Value> = match reply.header("content-type") {
        Some("application/x-ndjson") => {
            reply.body.lines().map(|line| serde_json::from_str(line).expect("a line")).collect()
        }
        _ => vec![reply.json()],
    };
    let text = |line: &Value| line.pointer(place).and_then(Value::as_str).map(str::to_owned);
    let texts = lines.iter().map(|line| text(line).unwrap_or_else(|| panic!("{name}: {line}")));
    (texts.collect(), lines.last().expect("a line").clone())
}

/// The end of an answer: why, and the counts that apps show.
fn check_end(name: &str, end: &Value) {
    assert_eq!(end["done"], true, "{name}: {end}");
    assert!(matches!(end["done_reason"].as_str(), Some("stop" | "length")), "{name}: {end}");
    for count in ["prompt_eval_count", "eval_count", "total_duration", "eval_duration"] {
        assert!(end[count].as_u64().is_some_and(|n| n > 0), "{name}: {count} of {end}");
    }
}

fn check_ollama(site: &Site, app: &str) {
    for (name, path, body) in sent(app) {
        let reply = site.client.post(&path, &body);
        match path.as_str() {
            _ if name == "chat with an image" => {
                assert_eq!(reply.status, 400, "{name}: {reply:?}");
                assert!(reply.body.contains("image"), "it says what it cannot read: {reply:?}");
            }
            "/api/chat" => {
                let (_, end) = told(&name, &reply, "/message/content");
                assert_eq!(end["message"]["role"], "assistant");
                check_end(&name, &end);
            }
            "/api/generate" if body["keep_alive"] != json!(0) => {
                check_end(&name, &told(&name, &reply, "/response").1);
            }
            // A server of one model keeps it, and says so; one with several lets go.
            _ if name == "unload" => {
                assert_eq!(reply.status, 400, "{name}: {reply:?}");
                let shelf = ShelfSite::new(Setup::default(), 1000, &[("sim", 100), ("big", 300)]);
                let reply = shelf.client.post(&path, &body);
                assert_eq!(
                    (reply.status, reply.json()["done_reason"].clone()),
                    (200, json!("unload"))
                );
            }
            _ => assert_eq!(reply.status, 200, "{name}: {reply:?}"),
        }
    }
}

#[test]
fn open_webui_is_answered_on_ollamas_routes() {
    let site = site();
    check_ollama(&site, "Open WebUI");
    // What its lists read: names and details of models, what is loaded, a version.
    let models = site.client.get("/api/tags").json();
    let model = &models["models"][0];
    for key in ["/name", "/model", "/modified_at", "/digest", "/details/family"] {
        assert!(model.pointer(key).is_some_and(Value::is_string), "{key} of {model}");
    }
    assert!(site.client.get("/api/ps").json()["models"].is_array());
    assert!(site.client.get("/api/version").json()["version"].is_string());
}

#[test]
fn open_webui_is_answered_on_openais_routes() {
    let site = site();
    let path = "/v1/chat/completions";
    for (name, _, body) in sent("Open WebUI").into_iter().filter(|row| row.1 == path) {
        let reply = site.client.post(path, &body);
        assert_eq!(reply.status, 200, "{name}: {reply:?}");
        if body["stream"] == false {
            assert!(reply.json()["choices"][0]["message"]["content"].is_string(), "{reply:?}");
            continue;
        }
        let data: Vec<&str> =
            reply.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(data.last(), Some(&"[DONE]"), "{name}: {reply:?}");
        let chunks: Vec<Value> = data[..data.len() - 1]
            .iter()
            .map(|text| serde_json::from_str(text).expect("a chunk"))
            .collect();
        assert!(chunks.iter().any(|c| c["choices"][0]["finish_reason"].is_string()), "{name}");
        if body["stream_options"]["include_usage"] == true {
            let usage = &chunks.last().expect("a chunk")["usage"];
            assert!(usage["prompt_tokens"].as_u64() > Some(0), "{name}: {usage}");
        }
    }
    let models = site.client.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "sim", "{models}");
}

#[test]
fn continue_is_answered_and_learns_what_it_looks_for() {
    let site = site();
    check_ollama(&site, "Continue");
    let page = site.client.post("/api/show", &json!({ "name": "sim" })).json();
    // It fills text in where the template names a suffix, and takes every line of parameters apart as a word and a value.
    assert!(page["template"].as_str().expect("a template").contains(".Suffix"), "{page}");
    for line in page["parameters"].as_str().expect("lines").lines() {
        assert_eq!(line.split_whitespace().count(), 2, "{line}");
    }
    let without = Site::new().client.post("/api/show", &json!({ "name": "sim" })).json();
    assert!(!without["template"].as_str().expect("a template").contains(".Suffix"), "{without}");
}

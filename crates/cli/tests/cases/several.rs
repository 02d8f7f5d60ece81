//! Several models served at once: each answers by its name as it does alone.

use serde_json::{Value, json};

use crate::program::{Server, case, refusal};

const NAMES: [&str; 3] = [
    "template-that-looks-for-a-control-token",
    "byte-level-vocabulary-with-a-sentencepiece-decoder",
    "bert-reranker-with-a-classifier",
];

fn path(name: &str) -> String {
    case(name).to_str().expect("UTF-8").to_owned()
}

/// What a model says to a text, or how it ranks two.
fn answer(server: &Server, name: &str) -> Value {
    let (path, body, part) = match name.starts_with("bert") {
        true => ("/v1/rerank", json!({ "query": "a b", "documents": ["a", "b c"] }), "results"),
        false => (
            "/v1/completions",
            json!({ "prompt": "a b c a b", "max_tokens": 24, "temperature": 0, "logprobs": 2 }),
            "choices",
        ),
    };
    let mut body = body;
    body["model"] = json!(name);
    let reply = server.client.post(path, &body);
    assert_eq!(reply.status, 200, "{name}: {reply:?}");
    reply.json()[part].clone()
}

#[test]
fn several_models_answer_as_each_alone() {
    let alone: Vec<Value> =
        NAMES.iter().map(|name| answer(&Server::start(&[&path(name)]), name)).collect();
    let paths = NAMES.map(path);
    let server = Server::start(&[&paths[0], &paths[1], &paths[2]]);
    let listed = server.client.get("/v1/models").json();
    let ids: Vec<&str> = listed["data"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|m| m["id"].as_str())
        .collect();
    assert_eq!(ids, NAMES);
    for _ in 0..2 {
        std::thread::scope(|scope| {
            for (name, alone) in NAMES.iter().zip(&alone) {
                let server = &server;
                scope.spawn(move || {
                    for _ in 0..4 {
                        assert_eq!(answer(server, name), *alone, "{name}");
                    }
                });
            }
        });
    }
    let missing = server.client.post("/v1/completions", &json!({ "model": "c", "prompt": "a" }));
    assert_eq!(missing.status, 404, "{missing:?}");
}

#[test]
fn what_cannot_be_served_together_is_told() {
    let both = NAMES.map(path);
    let told = refusal(&["serve", &both[0], &both[0]]);
    assert!(told.contains("two models of one name"), "{told}");
    let told = refusal(&["serve", &both[0], &both[1], "--served-model-name", "a"]);
    assert!(told.contains("--served-model-name is for one model"), "{told}");
    let told = refusal(&["serve", &both[0], &both[1], "--mem", "30MB"]);
    assert!(told.contains("do not fit together"), "{told}");
}

//! Several models served at once: each answers by its name as it does alone.

use serde_json::{Value, json};

use crate::program::{Server, answer as answer_of, case, refusal};

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

/// A line of the metrics.
fn metric(server: &Server, name: &str) -> u64 {
    let page = server.client.get("/metrics").body;
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}: {page}"))
}

/// The state of a model.
fn status(server: &Server, name: &str) -> Value {
    server.client.get(&format!("/v1/models/{name}")).json()["status"].clone()
}

#[test]
fn two_models_take_turns_in_the_memory_of_one() {
    let (a, b) = (path(NAMES[0]), path(NAMES[1]));
    let serve = |mem: &str| {
        let small = ["--slots", "1", "--ctx", "64", "--keep-alive", "5m", "--mem", mem];
        Server::start(&[&[a.as_str(), b.as_str()][..], &small[..]].concat())
    };
    let wide = serve("1G");
    let both = [NAMES[0], NAMES[1]];
    let alone: Vec<Value> = both.iter().map(|name| answer(&wide, name)).collect();
    let bytes = both.map(|name| status(&wide, name)["bytes"].as_u64().expect("loaded"));
    assert_eq!(metric(&wide, "tokenmill_models_bytes"), bytes[0] + bytes[1]);
    let process = (1u64 << 30) - metric(&wide, "tokenmill_models_cap_bytes");
    drop(wide);
    // Room for the larger one, not for both.
    let most = bytes[0].max(bytes[1]);
    let narrow = serve(&format!("{}K", (process + most).div_ceil(1024)));
    let cap = metric(&narrow, "tokenmill_models_cap_bytes");
    assert!(cap < bytes[0] + bytes[1], "{cap} of {bytes:?}");
    let mut held = (0, 0);
    for turn in 0..50 {
        let (name, other) = (both[turn % 2], both[(turn + 1) % 2]);
        assert_eq!(answer(&narrow, name), alone[turn % 2], "turn {turn}");
        assert_eq!(status(&narrow, name)["bytes"], bytes[turn % 2], "the same each time");
        assert_eq!(status(&narrow, other)["value"], "unloaded");
        assert_eq!(metric(&narrow, "tokenmill_models_bytes"), bytes[turn % 2]);
        #[cfg(target_os = "linux")]
        match turn {
            9 => held = (narrow.status("RssAnon:"), narrow.status("Threads:")),
            49 => {
                let (anon_kib, threads) = (narrow.status("RssAnon:"), narrow.status("Threads:"));
                assert!(anon_kib <= held.0 + 4096, "{anon_kib} KiB after {held:?}");
                assert!(threads <= held.1 + 1, "{threads} threads after {held:?}");
            }
            _ => {}
        }
    }
    // (The first was there from the start.)
    assert_eq!(metric(&narrow, "tokenmill_model_loads_total"), 49);
    assert_eq!(metric(&narrow, "tokenmill_model_evictions_total"), 49);
    let url = format!("http://{}", narrow.client.address());
    let listed = answer_of(&["ps", "--json", "--url", &url]);
    assert!(listed.contains(NAMES[1]) && !listed.contains(NAMES[0]), "{listed}");
    answer_of(&["stop", NAMES[1], "--url", &url]);
    assert_eq!(metric(&narrow, "tokenmill_models_bytes"), 0);
    assert_eq!(answer_of(&["ps", "--url", &url]), "");
    let told = refusal(&["stop", "c", "--url", &url]);
    assert!(told.contains("404"), "{told}");
}

#[test]
fn a_reranker_that_is_only_listed_is_loaded_beside_and_instead_of_a_chat_model() {
    let (chat, ranks) = (path(NAMES[0]), path(NAMES[2]));
    let alone = answer(&Server::start(&[&ranks]), NAMES[2]);
    let serve = |mem: &str| {
        let turns = ["--slots", "1", "--ctx", "64", "--keep-alive", "5m", "--mem", mem];
        Server::start(&[&[chat.as_str(), ranks.as_str()][..], &turns[..]].concat())
    };
    let wide = serve("1G");
    answer_of(&["stop", NAMES[2], "--url", &format!("http://{}", wide.client.address())]);
    assert_eq!(status(&wide, NAMES[2])["value"], "unloaded");
    answer(&wide, NAMES[0]);
    assert_eq!(answer(&wide, NAMES[2]), alone);
    assert_eq!(status(&wide, NAMES[0])["value"], "loaded", "there is room for both");
    let bytes = [0, 2].map(|i| status(&wide, NAMES[i])["bytes"].as_u64().expect("loaded"));
    let process = (1u64 << 30) - metric(&wide, "tokenmill_models_cap_bytes");
    drop(wide);
    let most = bytes[0].max(bytes[1]);
    let narrow = serve(&format!("{}K", (process + most).div_ceil(1024)));
    for _ in 0..2 {
        answer(&narrow, NAMES[0]);
        assert_eq!(answer(&narrow, NAMES[2]), alone);
        assert_eq!(status(&narrow, NAMES[0])["value"], "unloaded");
    }
    // What a model cannot do is said by it, once it is there.
    let texts = json!({ "model": NAMES[0], "input": "a" });
    let reply = narrow.client.post("/v1/embeddings", &texts);
    assert_eq!(reply.status, 400, "{reply:?}");
}

#[test]
fn a_server_without_models_says_so_and_answers() {
    let server = Server::start(&[]);
    assert_eq!(server.client.get("/v1/models").json()["data"], json!([]));
    assert_eq!(server.client.get("/health").status, 200);
    let reply = server.client.post("/v1/completions", &json!({ "model": "a", "prompt": "a" }));
    assert_eq!((reply.status, reply.error("code").as_str()), (404, "model_not_found"));
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
    let told = refusal(&["serve", &both[0], "--pin", "c"]);
    assert!(told.contains("cannot pin c"), "{told}");
    let told = refusal(&["serve", "--draft-model", &both[0]]);
    assert!(told.contains("--draft-model is for one model"), "{told}");
}

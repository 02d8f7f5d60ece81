//! Models that come and go: what other servers' trackers tell of, each with the right outcome.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokenmill_http_tests::{Client, Reply, Setup, ShelfSite};

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const NAMES: [&str; 3] = ["small", "big", "other"];

/// Room for one of them.
fn one() -> ShelfSite {
    ShelfSite::new(Setup::default(), 100, &[("small", 60), ("big", 70), ("other", 80)])
}

fn ask(client: &Client, model: &str, extra: Value) -> Reply {
    let mut body = json!({ "model": model, "prompt": "go", "max_tokens": 4, "seed": 1 });
    for (key, value) in extra.as_object().expect("an object") {
        body[key] = value.clone();
    }
    client.post(TEXT, &body)
}

fn answered(site: &ShelfSite, model: &str) -> Value {
    let reply = ask(&site.client, model, json!({}));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

fn in_s(status: &Value) -> Option<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    status["expires_at"].as_u64().map(|at| at.saturating_sub(now))
}

#[test]
fn a_name_that_nobody_has_loads_nothing() {
    let site = one();
    answered(&site, "small");
    let name = "totally-made-up:99b";
    let chat = json!({ "model": name, "messages": [{ "role": "user", "content": "a" }] });
    let mut stream = chat.clone();
    stream["stream"] = true.into();
    for (path, body) in [
        (CHAT, chat),
        (CHAT, stream),
        ("/v1/responses", json!({ "model": name, "input": "a" })),
        ("/models/load", json!({ "model": name })),
        ("/models/unload", json!({ "model": name })),
        ("/models/load", json!({ "model": "/etc/passwd" })),
    ] {
        let reply = site.client.post(path, &body);
        assert_eq!(
            (reply.status, reply.error("code").as_str()),
            (404, "model_not_found"),
            "{path}"
        );
        assert!(reply.header("content-type").is_some_and(|t| t.contains("json")), "{reply:?}");
    }
    assert_eq!(site.shelf().loads.len(), 1);
    assert_eq!(ask(&site.client, "small", json!({ "model": null })).status, 400, "of several");
}

#[test]
fn an_answer_names_the_model_that_ran_by_the_id_that_is_listed() {
    let site = one();
    assert_eq!(answered(&site, "user/small:q8")["model"], "small");
    let body = json!({ "model": "user/big:q8", "prompt": "go", "max_tokens": 3 });
    for event in site.client.stream(TEXT, &body).finish().events() {
        let event: Value = serde_json::from_str(&event).unwrap_or(json!({ "model": "big" }));
        assert_eq!(event["model"], "big");
    }
}

#[test]
fn keep_alive_has_the_forms_that_clients_send() {
    let site = one();
    for keep in [json!("5m"), json!(300), json!("300s"), json!("300")] {
        assert_eq!(ask(&site.client, "small", json!({ "keep_alive": keep })).status, 200, "{keep}");
        site.wait_for("small", "loaded");
        let left = in_s(&site.status("small")).expect("it goes");
        assert!((295..=301).contains(&left), "{keep}: {left}");
    }
    for keep in [json!(-1), json!("-1"), json!("-1m")] {
        assert_eq!(ask(&site.client, "small", json!({ "keep_alive": keep })).status, 200, "{keep}");
        assert_eq!(in_s(&site.status("small")), None, "{keep}");
    }
    assert_eq!(ask(&site.client, "small", json!({ "ttl": 600 })).status, 200);
    assert!(in_s(&site.status("small")).is_some_and(|left| left > 590));
    for keep in [json!("5 parsecs"), json!("soon"), json!([5]), json!("")] {
        let reply = ask(&site.client, "small", json!({ "keep_alive": keep }));
        assert_eq!(
            (reply.status, reply.json()["error"]["param"].clone()),
            (400, json!("keep_alive"))
        );
    }
    assert_eq!(ask(&site.client, "small", json!({ "keep_alive": 0 })).status, 200);
    site.wait_for("small", "unloaded");
    assert_eq!(site.shelf().resident.len(), 0);
}

#[test]
fn cold_requests_share_one_load_and_loading_what_is_loaded_succeeds() {
    let site = one();
    site.shelf().slow = Duration::from_millis(60);
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let ask = || scope.spawn(|| answered(&site, "small")["choices"].clone());
        let threads: Vec<_> = (0..6).map(|_| ask()).collect();
        threads.into_iter().map(|thread| thread.join().expect("an answer")).collect()
    });
    assert!(answers.iter().all(|one| *one == answers[0]), "{answers:?}");
    for _ in 0..2 {
        let reply = site.client.post("/models/load", &json!({ "model": "small" }));
        assert_eq!((reply.status, &reply.json()["success"]), (200, &json!(true)), "{reply:?}");
        assert_eq!(reply.json()["status"]["value"], "loaded");
    }
    assert_eq!(site.shelf().loads["small"], 1);
    for _ in 0..2 {
        let reply = site.client.post("/models/unload", &json!({ "model": "small" }));
        assert_eq!((reply.status, &reply.json()["status"]["value"]), (200, &json!("unloaded")));
    }
    assert_eq!(site.seen("small"), (1, 0, vec![]));
}

#[test]
fn who_streams_ends_as_alone_before_his_model_goes_for_another() {
    let setup = Setup { step: Duration::from_millis(2), ..Setup::default() };
    let site = ShelfSite::new(setup, 100, &[("small", 60), ("big", 70)]);
    let body = json!({ "model": "small", "prompt": "go", "max_tokens": 60, "ignore_eos": true,
        "seed": 1 });
    let texts = |reply: Reply| -> String {
        let text = |event: &String| {
            let event: Value = serde_json::from_str(event).ok()?;
            event["choices"][0]["text"].as_str().map(str::to_owned)
        };
        assert_eq!(reply.events().last().map(String::as_str), Some("[DONE]"), "{reply:?}");
        reply.events().iter().filter_map(text).collect()
    };
    let alone = texts(site.client.stream(TEXT, &body).finish());
    let stream = site.client.stream(TEXT, &body);
    let other = std::thread::spawn({
        let client = site.client;
        move || ask(&client, "big", json!({})).status
    });
    assert_eq!(texts(stream.finish()), alone);
    assert_eq!(other.join().expect("an answer"), 200);
    assert_eq!(site.shelf().most_bytes, 70);
}

#[test]
fn caches_of_idle_models_make_room_before_a_model_goes() {
    let site = ShelfSite::new(Setup::default(), 100, &[("small", 60), ("big", 70)]);
    site.shelf().floors = [("small".to_owned(), 30), ("big".to_owned(), 40)].into();
    let first = answered(&site, "small")["choices"].clone();
    answered(&site, "big");
    assert_eq!(site.shelf().shrunk, ["small"]);
    for name in ["small", "big"] {
        assert_eq!(site.status(name)["value"], "loaded");
        assert_eq!(site.shelf().loads[name], 1, "it was never sent away");
    }
    assert_eq!(answered(&site, "small")["choices"], first, "with small caches too");
    // Alone again, and wanted again for another: its caches were large meanwhile.
    site.client.post("/models/unload", &json!({ "model": "big" }));
    site.wait_until("the caches grow", |site| held(site) == 60.0);
    assert_eq!(answered(&site, "small")["choices"], first);
    answered(&site, "big");
    let shelf = site.shelf();
    assert_eq!((shelf.shrunk.len(), shelf.loads["small"], shelf.most_bytes), (2, 1, 100));
}

/// What models hold by the metrics.
fn held(site: &ShelfSite) -> f64 {
    let metrics = site.client.get("/metrics").body;
    let line = metrics.lines().find_map(|l| l.strip_prefix("tokenmill_models_bytes "));
    line.and_then(|value| value.parse().ok()).expect("a number")
}

#[test]
fn time_to_live_starts_when_the_answer_ends() {
    let setup = Setup { step: Duration::from_millis(5), ..Setup::default() };
    let site = ShelfSite::new(setup, 100, &[("small", 60)]);
    let body = json!({ "model": "small", "prompt": "go", "max_tokens": 50, "ignore_eos": true,
        "keep_alive": "50ms" });
    let reply = site.client.stream(TEXT, &body).finish();
    assert_eq!(reply.events().last().map(String::as_str), Some("[DONE]"), "{reply:?}");
    site.wait_for("small", "unloaded");
    assert_eq!(site.shelf().loads["small"], 1);
}

#[test]
fn models_are_listed_once_loaded_or_not() {
    let site = one();
    let listed = || site.client.get("/v1/models");
    let ids = |reply: Reply| -> Vec<String> {
        let data = reply.json()["data"].as_array().expect("data").clone();
        data.iter().map(|one| one["id"].as_str().expect("an id").to_owned()).collect()
    };
    assert_eq!(ids(listed()), NAMES);
    answered(&site, "big");
    assert_eq!(ids(listed()), NAMES);
    site.client.post("/models/unload", &json!({ "model": "big" }));
    assert_eq!(ids(listed()), NAMES);
    assert!(!listed().body.contains("fail"), "{}", listed().body);
    for path in ["/health", "/readyz", "/v1/models/big", "/v1/models/user/big:q8"] {
        assert_eq!(site.client.get(path).status, 200, "{path}");
    }
    let metrics = site.client.get("/metrics").body;
    for line in [
        "tokenmill_models{state=\"unloaded\"} 3",
        "tokenmill_model_loaded{model_name=\"big\"} 0",
        "tokenmill_models_bytes 0",
        "tokenmill_models_cap_bytes 100",
        "tokenmill_model_loads_total 1",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line}: {metrics}");
    }
}

#[test]
fn a_load_that_failed_is_told_and_can_be_tried_again() {
    let site = one();
    site.shelf().broken.insert("small".into(), "cut off at byte 12".into());
    answered(&site, "big");
    let reply = ask(&site.client, "small", json!({}));
    assert_eq!((reply.status, reply.error("code").as_str()), (400, "model_not_loaded"));
    assert!(reply.error("message").contains("cut off at byte 12"), "{reply:?}");
    let status = site.status("small");
    assert_eq!((&status["value"], &status["failed"]), (&json!("unloaded"), &json!(true)));
    assert_eq!(status["reason"], "cut off at byte 12");
    assert_eq!(site.status("big")["value"], "loaded", "it was not sent away for nothing");
    assert_eq!(site.status("other"), json!({ "value": "unloaded" }), "never tried");
    site.shelf().broken.clear();
    answered(&site, "small");
    assert_eq!(site.status("small").get("failed"), None);
}

#[test]
fn a_loading_model_is_not_sent_away_and_who_waits_is_told_when_to_come_back() {
    let mut setup = Setup::default();
    // (Long enough for the load to have begun: who is late then is told that it goes on.)
    setup.server.timeouts.load = Duration::from_secs(1);
    let site = ShelfSite::new(setup, 100, &[("small", 60), ("big", 70), ("huge", 700)]);
    site.shelf().held = true;
    let first = std::thread::spawn({
        let client = site.client;
        move || ask(&client, "small", json!({}))
    });
    site.wait_for("small", "loading");
    let reply = ask(&site.client, "big", json!({}));
    assert_eq!((reply.status, reply.error("code").as_str()), (503, "model_not_ready"), "{reply:?}");
    assert!(reply.header("retry-after").is_some());
    let reply = first.join().expect("an answer");
    assert_eq!((reply.status, reply.error("code").as_str()), (503, "model_not_ready"), "{reply:?}");
    assert!(reply.error("message").contains("still loading"), "{reply:?}");
    site.shelf().held = false;
    site.wait_for("small", "loaded");
    answered(&site, "small");
    assert_eq!(site.seen("small"), (1, 0, vec!["small".to_owned()]));
    let reply = ask(&site.client, "huge", json!({}));
    assert_eq!((reply.status, reply.error("code").as_str()), (503, "model_too_large"), "{reply:?}");
    assert_eq!(site.status("small")["value"], "loaded");
}

#[test]
fn a_load_that_nobody_waits_for_gives_its_memory_back() {
    let site = ShelfSite::new(Setup::default(), 200, &[("small", 60), ("big", 70)]);
    answered(&site, "small");
    site.shelf().held = true;
    let socket = {
        let body = json!({ "model": "big", "prompt": "go" }).to_string();
        site.client.begin(body.len(), body.as_bytes())
    };
    site.wait_for("big", "loading");
    drop(socket);
    site.wait_for("big", "unloaded");
    assert_eq!(site.shelf().resident.keys().collect::<Vec<_>>(), ["small"]);
    let waiting = std::thread::spawn({
        let client = site.client;
        move || ask(&client, "big", json!({}))
    });
    site.wait_for("big", "loading");
    let reply = site.client.post("/models/unload", &json!({ "model": "big" }));
    assert_eq!(reply.json()["status"]["value"], "unloaded", "{reply:?}");
    let reply = waiting.join().expect("an answer");
    assert_eq!((reply.status, reply.error("code").as_str()), (503, "model_unloaded"), "{reply:?}");
    assert_eq!(site.seen("small"), (1, 2, vec!["small".to_owned()]));
    assert_eq!(site.status("small")["value"], "loaded", "nobody touched it");
}

#[test]
fn any_order_of_requests_gets_answers_within_the_cap() {
    let sizes = [("small", 40), ("big", 50), ("other", 45), ("last", 30)];
    let site = ShelfSite::new(Setup::default(), 100, &sizes);
    site.shelf().slow = Duration::from_millis(3);
    let expect = answered(&site, "small")["choices"].clone();
    std::thread::scope(|scope| {
        for client in 0..8u64 {
            let (site, expect) = (&site, &expect);
            scope.spawn(move || {
                for i in 0..12u64 {
                    let (model, _) = sizes[((client * 7 + i * i) % 4) as usize];
                    match (client + i) % 6 {
                        0 => drop(
                            site.client.stream(TEXT, &json!({ "model": model, "prompt": "a" })),
                        ),
                        1 => {
                            site.client.post("/models/unload", &json!({ "model": model }));
                        }
                        _ => {
                            let reply = ask(&site.client, model, json!({}));
                            // (Unloaded while it was loading.)
                            if reply.status != 503 || reply.error("code") != "model_unloaded" {
                                assert_eq!(reply.json()["choices"], *expect, "{reply:?}");
                                assert_eq!(reply.json()["model"], model);
                            }
                        }
                    }
                }
            });
        }
    });
    let most = site.shelf().most_bytes;
    assert!(most > 50 && most <= 100, "{most}");
}

#[test]
fn who_asks_by_ability_hears_which_model_and_why() {
    let site = one();
    let largest = answered(&site, "any:chat,ctx>=512");
    assert_eq!(largest["model"], "other");
    let why = "other answers: the largest that can, not in memory yet, 512 tokens of context";
    assert_eq!(largest["warnings"], json!([why]));
    answered(&site, "small");
    let there = answered(&site, "any:chat");
    assert_eq!(there["model"], "small", "it is in memory");
    assert!(there["warnings"].to_string().contains("in memory, 512"), "{there}");
    for (name, status) in [("any:tools", 404), ("any:ctx>=1k", 404), ("any:wings", 400)] {
        assert_eq!(ask(&site.client, name, json!({})).status, status, "{name}");
    }
}

#[test]
fn an_embedder_that_is_listed_answers_beside_chat_models() {
    let sizes = [("small", 60), ("vectors", 40), ("other", 50)];
    let site = ShelfSite::new(Setup::default(), 140, &sizes);
    site.shelf().embedders = vec!["vectors".into()];
    answered(&site, "small");
    let embed = |path: &str, model: &str| {
        site.client.post(path, &json!({ "model": model, "input": ["ab", "c"] }))
    };
    let first = embed("/v1/embeddings", "vectors");
    assert_eq!((first.status, &first.json()["model"]), (200, &json!("vectors")), "{first:?}");
    let rows = first.json()["data"].as_array().expect("rows").clone();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row["embedding"].as_array().is_some_and(|v| v.len() == 8)));
    assert_eq!(site.seen("vectors"), (1, 0, vec!["small".to_owned(), "vectors".to_owned()]));
    // By another name, by ability, and over the other dialects: the same numbers of the same load.
    for (path, model) in [
        ("/v1/embeddings", "user/vectors:q8"),
        ("/v1/embeddings", "any:embeddings"),
        ("/api/embed", "vectors"),
        ("/embedding", "vectors"),
    ] {
        let reply = embed(path, model);
        assert_eq!(reply.status, 200, "{path} {model}: {reply:?}");
        let told = match (path, reply.json()) {
            ("/v1/embeddings", told) => told["data"][0]["embedding"].clone(),
            ("/api/embed", told) => told["embeddings"][0].clone(),
            (_, told) => told[0]["embedding"][0].clone(),
        };
        assert_eq!(told.as_array().map(Vec::len), Some(8), "{path}: {told}");
    }
    assert_eq!(site.shelf().loads["vectors"], 1);
    // Who asks the wrong one is told so, and nobody makes room for one that is not there.
    for wrong in ["small", "other", "user/other:q8"] {
        let refused = embed("/v1/embeddings", wrong);
        assert_eq!((refused.status, refused.error("param").as_str()), (400, "model"), "{wrong}");
    }
    assert_eq!(site.seen("other").0, 0);
    assert_eq!(site.status("small")["value"], "loaded");
    let chat = json!({ "model": "vectors", "messages": [{ "role": "user", "content": "a" }] });
    assert_eq!(site.client.post(CHAT, &chat).status, 400);
    let nameless = site.client.post("/v1/embeddings", &json!({ "input": "a" }));
    assert_eq!(nameless.status, 400, "of several: {nameless:?}");
    answered(&site, "small");
}

#[test]
fn only_the_first_key_unloads_for_everybody() {
    let mut setup = Setup::default();
    setup.server.api_keys = vec!["one".into(), "two".into()];
    let site = ShelfSite::new(setup, 100, &[("small", 60)]);
    let post = |path: &str, key: &str| {
        let bearer = format!("Bearer {key}");
        let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
        site.client.send("POST", path, &headers, br#"{"model": "small"}"#)
    };
    assert_eq!(post("/models/load", "two").status, 200);
    let refused = post("/models/unload", "two");
    assert_eq!((refused.status, refused.error("code").as_str()), (403, "unload_not_allowed"));
    assert_eq!(post("/models/unload", "one").json()["status"]["value"], "unloaded");
    assert_eq!(post("/models/unload", "three").status, 401);
}

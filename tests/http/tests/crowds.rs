//! One client against all others: whatever it holds, keeps coming or asks for, a small request of
//! somebody else is answered.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tokenmill_http_tests::{Setup, Site};

const TEXT: &str = "/v1/completions";

fn small() -> Value {
    json!({ "prompt": "a", "max_tokens": 1 })
}

#[test]
fn bodies_that_never_come_take_no_places() {
    let mut setup = Setup::default();
    setup.server.limits.requests = 2;
    let site = Site::with(setup);
    let _held: Vec<TcpStream> = (0..40).map(|_| site.client.begin(60, b"{\"pro")).collect();
    for _ in 0..3 {
        assert_eq!(site.client.post(TEXT, &small()).status, 200);
    }
    assert_eq!(site.metric("tokenmill_http_requests_in_flight"), 0.0);
}

#[test]
fn where_there_are_too_many_connections_those_go_that_ask_nothing() {
    let mut setup = Setup { step: Duration::from_millis(2), ..Setup::default() };
    setup.server.limits.connections = 8;
    let site = Site::with(setup);
    let mut body = small();
    (body["max_tokens"], body["ignore_eos"]) = (json!(300), json!(true));
    let mut stream = site.client.stream(TEXT, &body);
    stream.event().expect("a first event");
    let silent = (0..30).map(|i| match i % 2 {
        0 => site.client.connect(),
        _ => site.client.begin(60, b"{"),
    });
    let _silent: Vec<TcpStream> = silent.collect();
    assert_eq!(site.client.post(TEXT, &small()).status, 200);
    assert_eq!(site.client.get("/health").status, 200);
    let events = stream.finish().events();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"), "who is answered stays");
}

#[test]
fn large_bodies_that_stop_coming_give_their_memory_up() {
    let mut setup = Setup::default();
    setup.server.limits.body_bytes = 1 << 20;
    setup.server.limits.bodies_bytes = 2 << 20;
    let site = Site::with(setup);
    let part = vec![b' '; 900 << 10];
    let stalled: Vec<TcpStream> = (0..3).map(|_| site.client.begin(1 << 20, &part)).collect();
    let long = format!("{{\"prompt\":\"{}\"}}", "a".repeat(900 << 10));
    assert_eq!(site.client.post(TEXT, &small()).status, 200, "at once");
    let reply = site.client.post_text(TEXT, &long);
    assert_eq!((reply.status, reply.error("code").as_str()), (400, "context_length_exceeded"));
    drop(stalled);
}

#[test]
fn a_prompt_that_cannot_fit_is_not_read_to_its_end() {
    let site = Site::new();
    for (prompt, least) in [("a".repeat(520), 520), ("a".repeat(8 << 20), 1025)] {
        let reply = site.client.post(TEXT, &json!({ "prompt": prompt }));
        assert_eq!((reply.status, reply.error("code").as_str()), (400, "context_length_exceeded"));
        let message = reply.error("message");
        let number = |word: &str| word.trim_matches(|c: char| !c.is_ascii_digit()).parse().ok();
        let told: Vec<u64> = message.split(' ').filter_map(number).collect();
        assert!(told.iter().any(|n| *n >= least) && told.contains(&512), "{message}");
    }
}

#[test]
fn the_prompts_of_one_request_are_taken_as_there_is_room() {
    let site = Site::with(Setup { sequences: 2, queue: 1, ..Setup::default() });
    let prompts: Vec<String> = (0..10).map(|i| format!("prompt {i}")).collect();
    let ask = |prompt: Value| json!({ "prompt": prompt, "max_tokens": 3, "seed": 1 });
    let reply = site.client.post(TEXT, &ask(json!(prompts)));
    assert_eq!(reply.status, 200, "{reply:?}");
    let all = reply.json();
    for (i, prompt) in prompts.iter().enumerate() {
        let one = site.client.post(TEXT, &ask(json!(prompt))).json();
        assert_eq!(all["choices"][i]["text"], one["choices"][0]["text"], "{prompt}");
    }
    site.settle();
}

/// The sum of what requests were told they used is what the metrics count.
#[test]
fn prompt_tokens_are_counted_once() {
    let site = Site::with(Setup { step: Duration::from_millis(1), ..Setup::default() });
    let long = "x".repeat(100);
    let asks = [
        json!({ "prompt": "hello", "max_tokens": 1 }),
        json!({ "prompt": "hello", "max_tokens": 3, "n": 4, "seed": 2 }),
        json!({ "prompt": ["one", "two and more"], "max_tokens": 2, "n": 2 }),
        json!({ "prompt": long, "max_tokens": 2 }),
        json!({ "prompt": long, "max_tokens": 2 }),
        json!({ "prompt": "stream", "max_tokens": 2, "ignore_eos": true }),
    ];
    let (mut prompt, mut cached) = (0.0, 0.0);
    for ask in &asks {
        let usage = site.client.post(TEXT, ask).json()["usage"].clone();
        prompt += usage["prompt_tokens"].as_f64().expect("a number");
        cached += usage["prompt_tokens_details"]["cached_tokens"].as_f64().expect("a number");
        let counted = ["tokenmill_prompt_tokens_total", "vllm:prompt_tokens_total"];
        for name in counted {
            assert_eq!(site.metric(&format!("{name}{{model_name=\"sim\"}}")), prompt, "{ask}");
        }
        let name = "tokenmill_cached_tokens_total{model_name=\"sim\"}";
        assert_eq!(site.metric(name), cached, "{ask}");
    }
    assert!(cached >= 96.0, "the same prompt again: {cached}");
    let gone = json!({ "prompt": "gone", "max_tokens": 400, "ignore_eos": true, "n": 3 });
    drop(site.client.stream(TEXT, &gone));
    site.settle();
    let counted = site.metric("tokenmill_prompt_tokens_total{model_name=\"sim\"}");
    assert!(counted == prompt || counted == prompt + 4.0, "{counted} after {prompt}");
}

#[test]
fn errors_do_not_give_back_what_was_sent() {
    let site = Site::new();
    let long = "A".repeat(1 << 20);
    let wide = "\u{200b}".repeat(1 << 20);
    let bodies = [
        format!("{{\"{long}\":1,\"{long}\":2}}"),
        format!("{{\"{wide}\":1,\"{wide}\":2}}"),
        format!("{{\"prompt\":[[\"{long}\"]]}}"),
        format!("{{\"prompt\":[[1{}.5]]}}", "0".repeat(200)),
        format!("{{\"prompt\":\"a\",\"model\":\"{wide}\"}}"),
        format!("{{\"prompt\":\"a\",\"draft\":\"{long}\",\"stop\":[\"{long}\"]}}"),
        format!("{{\"prompt\":\"a\",\"logit_bias\":{{\"{long}\":1}}}}"),
        format!("{{\"messages\":[{{\"role\":\"{long}\",\"content\":\"a\"}}]}}"),
    ];
    for body in bodies {
        for path in [TEXT, "/v1/chat/completions", "/v1/embeddings", "/v1/rerank"] {
            let reply = site.client.post_text(path, &body);
            assert!((400..500).contains(&reply.status), "{path}: {}", reply.status);
            assert!(reply.body.len() < 4096, "{path}: {} bytes", reply.body.len());
        }
    }
}

#[test]
fn the_metrics_are_for_who_runs_the_server() {
    let mut setup = Setup::default();
    setup.server.api_keys = vec!["one".into(), "two".into()];
    let get = |site: &Site, key: &str| {
        let bearer = format!("Bearer {key}");
        site.client.send("GET", "/metrics", &[("authorization", &bearer)], b"")
    };
    let site = Site::with(setup);
    let statuses = ["one", "two", "three"].map(|key| get(&site, key).status);
    assert_eq!(statuses, [200, 403, 401]);
    let told = get(&site, "two");
    assert_eq!(told.error("code"), "metrics_not_allowed");
    assert!(told.error("message").contains("--metrics-key"));
    let mut setup = Setup::default();
    setup.server.api_keys = vec!["one".into()];
    setup.server.metrics_key = Some("watch".into());
    let site = Site::with(setup);
    let statuses = ["watch", "one", "three"].map(|key| get(&site, key).status);
    assert_eq!(statuses, [200, 403, 401]);
    let bearer = [("authorization", "Bearer watch"), ("content-type", "application/json")];
    let body = small().to_string();
    assert_eq!(site.client.send("POST", TEXT, &bearer, body.as_bytes()).status, 401);
}

/// Connections of one client, each of which is a file of this process twice.
const CROWD: usize = 2000;

#[test]
fn two_thousand_connections_that_ask_nothing_hold_up_nobody() {
    let needed = 2 * CROWD as u64 + 200;
    let files = rlimit::increase_nofile_limit(needed).unwrap_or(0);
    if files < needed {
        println!("left out: {files} open files are allowed, {needed} are needed");
        return;
    }
    let site = Site::new();
    let begun = b"GET /health HTTP/1.1\r\nhost: localhost\r\n";
    let mut crowd: Vec<TcpStream> = (0..CROWD)
        .map(|i| {
            let mut socket = site.client.connect();
            // Some have begun to ask.
            let part = &begun[..if i % 2 == 0 { 0 } else { i % begun.len() }];
            socket.write_all(part).expect("sent");
            socket
        })
        .collect();
    assert_eq!(site.client.post(TEXT, &small()).status, 200);
    let open = site.metric("tokenmill_http_connections");
    assert!(open >= CROWD as f64, "{open} are open");
    for (i, socket) in crowd.iter_mut().enumerate() {
        let sent = if i % 2 == 0 { 0 } else { i % begun.len() };
        let rest = [&begun[sent..], b"connection: close\r\n\r\n"].concat();
        socket.write_all(&rest).expect("it is still open");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{i}: {answer}");
    }
    site.wait_until("all are gone", |site| site.metric("tokenmill_http_connections") <= 2.0);
}

//! What clients do to a server that others use too.

use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokenmill_http_tests::Reply;

use crate::program::{Server, case, json as read};

const TEXT: &str = "/v1/completions";

/// A small model.
fn model() -> String {
    case("template-that-looks-for-a-control-token").to_str().expect("UTF-8").to_owned()
}

/// A request that anybody might make.
fn small() -> Value {
    json!({ "prompt": "a", "max_tokens": 1 })
}

/// The page of metrics.
fn metric(server: &Server, name: &str, headers: &[(&str, &str)]) -> f64 {
    let page = server.client.send("GET", "/metrics", headers, b"");
    assert_eq!(page.status, 200, "{page:?}");
    let line = page.body.lines().find(|line| line.starts_with(&format!("{name}{{")));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {}", page.body))
}

#[test]
fn bodies_that_never_come() {
    rlimit::increase_nofile_limit(4096).expect("as many sockets");
    let server = Server::start(&[&model()]);
    let _held: Vec<TcpStream> = (0..1100).map(|_| server.client.begin(60, b"{\"pro")).collect();
    assert_eq!(server.client.post(TEXT, &small()).status, 200);
    for path in ["/health", "/metrics"] {
        assert_eq!(server.client.get(path).status, 200, "{path}");
    }
}

#[test]
fn error_reflects_its_input() {
    let server = Server::start(&[&model()]);
    let (long, wide) = ("A".repeat(15 << 20), "\u{200b}".repeat(5 << 20));
    for body in [
        format!("{{\"{long}\":1,\"{long}\":2}}"),
        format!("{{\"prompt\":[[\"{long}\"]]}}"),
        format!("{{\"{wide}\":1,\"{wide}\":2}}"),
    ] {
        let reply = server.client.post_text(TEXT, &body);
        assert!((400..500).contains(&reply.status) && reply.body.len() < 4096, "{reply:?}");
    }
}

#[cfg(unix)]
#[test]
fn file_size_limit_ends_the_server() {
    let kept = tempfile::tempdir().expect("a folder");
    let folder = kept.path().to_str().expect("UTF-8");
    let server = Server::limited("ulimit -f 40", &[&model(), "--kv-dir", folder]);
    let ask = |i: u32| {
        let prompt: Vec<u32> = (0..400).map(|at| 3 + (at * 7 + i * 13) % 20).collect();
        server.client.post(TEXT, &json!({ "prompt": prompt, "max_tokens": 1 }))
    };
    let unwritten = "tokenmill_disk_runs_unwritten_total";
    for i in 0..20 {
        assert_eq!(ask(i).status, 200, "prompt {i}");
        if metric(&server, unwritten, &[]) > 0.0 {
            break;
        }
    }
    // (What is written is written beside the answers.)
    let begun = Instant::now();
    while metric(&server, unwritten, &[]) == 0.0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the limit was never met");
        sleep(Duration::from_millis(50));
    }
    assert_eq!(server.client.post(TEXT, &small()).status, 200);
}

#[test]
fn long_prompts_of_clients_gone() {
    let server = Server::start(&[&model()]);
    let prompt = "abcdefghijklmnopqrstuvwxyz".repeat((8 << 20) / 26);
    let body = json!({ "prompt": prompt, "max_tokens": 1 }).to_string();
    let gone: Vec<TcpStream> =
        (0..4).map(|_| server.client.begin(body.len(), body.as_bytes())).collect();
    drop(gone);
    assert_eq!(server.client.post(TEXT, &small()).status, 200);
    let told = server.client.post_text(TEXT, &body);
    assert_eq!((told.status, told.error("code").as_str()), (400, "context_length_exceeded"));
}

#[test]
fn metrics_tell_of_other_keys() {
    let server = Server::start(&[&model(), "--api-key", "A", "--api-key", "B"]);
    let get = |key: &str| -> Reply {
        server.client.send("GET", "/metrics", &[("authorization", &format!("Bearer {key}"))], b"")
    };
    assert_eq!(get("A").status, 200);
    let other = get("B");
    assert_eq!((other.status, other.error("code").as_str()), (403, "metrics_not_allowed"));
    assert_eq!(get("C").status, 401);
    let watched = Server::start(&[&model(), "--api-key", "A", "--metrics-key", "M"]);
    let name = "tokenmill_requests_accepted_total";
    assert_eq!(metric(&watched, name, &[("x-api-key", "M")]), 0.0);
    assert_eq!(watched.client.get("/metrics").status, 401);
}

#[test]
fn prompt_tokens_counted_by_metrics() {
    let server = Server::start(&[&model()]);
    let request = read(&case("prompt-tokens-counted-by-metrics").join("request.json"));
    let mut one = request.clone();
    one["n"] = json!(1);
    let mut told = 0.0;
    for request in [one, request] {
        let reply = server.client.post(TEXT, &request);
        assert_eq!(reply.status, 200, "{reply:?}");
        told += reply.json()["usage"]["prompt_tokens"].as_f64().expect("a number");
        for name in ["tokenmill_prompt_tokens_total", "vllm:prompt_tokens_total"] {
            assert_eq!(metric(&server, name, &[]), told, "{request}");
        }
    }
}

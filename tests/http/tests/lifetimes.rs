//! What happens when things end early: clients that go away, full queues, draining, faults. And
//! models that come and go.

#[path = "lifetimes/models.rs"]
mod models;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokenmill_http_tests::{Setup, Site};

const TEXT: &str = "/v1/completions";

fn slow() -> Setup {
    Setup { step: Duration::from_millis(5), ..Setup::default() }
}

fn long(extra: Value) -> Value {
    let mut body = json!({ "prompt": "go", "max_tokens": 400, "ignore_eos": true, "seed": 1 });
    for (key, value) in extra.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

fn cancelled(site: &Site) -> f64 {
    site.metric("tokenmill_requests_total{model_name=\"sim\",outcome=\"cancelled\"}")
}

#[test]
fn a_reader_that_goes_away_frees_its_blocks() {
    let site = Site::with(slow());
    for events in [0, 1, 2, 10] {
        let mut stream = site.client.stream(TEXT, &long(json!({ "n": 2 })));
        for _ in 0..events {
            stream.event().expect("an event");
        }
        site.wait_until("blocks are in use", |site| site.used_blocks() > 0.0);
        drop(stream);
        site.settle();
    }
    assert_eq!(cancelled(&site), 4.0);
    let generated = site.metric("tokenmill_generated_tokens_total{model_name=\"sim\"}");
    assert!(generated < 1000.0, "{generated} tokens for readers that were gone");
}

#[test]
fn a_client_that_hangs_up_on_a_whole_answer_cancels_it() {
    let site = Site::with(slow());
    let body = long(json!({})).to_string();
    let head = format!(
        "POST {TEXT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut socket = site.client.connect();
    std::io::Write::write_all(&mut socket, head.as_bytes()).expect("sent");
    site.wait_until("blocks are in use", |site| site.used_blocks() > 0.0);
    drop(socket);
    site.settle();
    assert_eq!(cancelled(&site), 1.0);
}

#[test]
fn a_client_that_only_stops_sending_gets_its_answer() {
    let site = Site::with(slow());
    for streamed in [false, true] {
        let body = long(json!({ "max_tokens": 40, "stream": streamed })).to_string();
        let head = format!(
            "POST {TEXT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut socket = site.client.connect();
        std::io::Write::write_all(&mut socket, head.as_bytes()).expect("sent");
        socket.shutdown(std::net::Shutdown::Write).expect("said to be all");
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut socket, &mut answer).expect("an answer");
        let last = answer.split("HTTP/1.1 ").last().unwrap_or_default();
        assert!(last.starts_with("200"), "{answer}");
        let end = if streamed { "[DONE]" } else { "\"usage\"" };
        assert!(answer.contains(end), "{answer}");
    }
    site.settle();
    assert_eq!(cancelled(&site), 0.0);
}

#[test]
fn a_queued_client_may_go_away_too() {
    let step = Duration::from_millis(20);
    let site = Site::with(Setup { sequences: 1, step, ..Setup::default() });
    let first = site.client.stream(TEXT, &long(json!({})));
    site.wait_until("the first runs", |site| site.used_blocks() > 0.0);
    let second = site.client.stream(TEXT, &long(json!({})));
    let third = site.client.stream(TEXT, &long(json!({ "max_tokens": 3 })));
    let waiting = "tokenmill_requests_open{model_name=\"sim\"}";
    site.wait_until("three are open", |site| site.metric(waiting) == 3.0);
    let left = Instant::now();
    drop(second);
    site.wait_until("one has left the queue", |site| site.metric(waiting) == 2.0);
    assert!(left.elapsed() < Duration::from_secs(2), "long before the first one ends");
    drop(first);
    assert_eq!(third.finish().events().pop().as_deref(), Some("[DONE]"));
    site.settle();
}

#[test]
fn a_full_queue_says_429_and_recovers() {
    let site = Site::with(Setup { sequences: 1, queue: 2, ..slow() });
    let mut running = Vec::new();
    let refused = loop {
        let stream = site.client.stream(TEXT, &long(json!({})));
        if stream.reply.status != 200 {
            break stream.finish();
        }
        running.push(stream);
        assert!(running.len() < 20, "no limit");
        std::thread::sleep(Duration::from_millis(30));
    };
    assert_eq!((refused.status, refused.error("code").as_str()), (429, "queue_full"));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.error("type"), "rate_limit_error");
    assert_eq!(site.client.get("/health").status, 200);
    drop(running);
    site.settle();
    assert_eq!(site.client.post(TEXT, &json!({ "prompt": "a", "max_tokens": 1 })).status, 200);
}

#[test]
fn the_server_has_a_limit_of_its_own() {
    let mut setup = slow();
    setup.server.limits.requests = 4; // of which one address may have half
    let site = Site::with(setup);
    let one = site.client.stream(TEXT, &long(json!({})));
    let _two = site.client.stream(TEXT, &long(json!({})));
    let start = Instant::now();
    let refused = site.client.post(TEXT, &long(json!({})));
    assert_eq!((refused.status, refused.error("code").as_str()), (429, "queue_full"));
    assert!(start.elapsed() < Duration::from_secs(1));
    drop(one);
    site.wait_until("a place is free", |site| {
        site.metric("tokenmill_http_requests_in_flight") == 1.0
    });
    assert_eq!(site.client.post(TEXT, &json!({ "prompt": "a", "max_tokens": 1 })).status, 200);
}

#[test]
fn draining_finishes_what_is_in_progress_and_takes_no_more() {
    let mut site = Site::with(slow());
    let mut stream = site.client.stream(TEXT, &long(json!({ "max_tokens": 400 })));
    stream.event().expect("a first event");
    let server = site.server.take().expect("the server");
    server.drain();
    let ready = site.client.get("/readyz");
    assert_eq!(ready.status, 503);
    assert_eq!(site.client.get("/livez").status, 200);
    let refused = site.client.post(TEXT, &long(json!({})));
    assert_eq!((refused.status, refused.error("code").as_str()), (503, "shutting_down"));
    assert!(refused.header("retry-after").is_some());
    site.control.delay(Duration::ZERO);
    let reply = stream.finish();
    assert_eq!(reply.events().pop().as_deref(), Some("[DONE]"), "finished in full");
    let start = Instant::now();
    server.wait().expect("ends well");
    assert!(start.elapsed() < Duration::from_secs(2));
    assert!(std::net::TcpStream::connect(site.client.address()).is_err(), "nobody listens");
}

#[test]
fn what_outlasts_the_draining_gets_an_error_and_no_done() {
    let mut setup = Setup { step: Duration::from_millis(20), ..Setup::default() };
    setup.server.timeouts.drain = Duration::from_millis(300);
    let mut site = Site::with(setup);
    let mut stream = site.client.stream(TEXT, &long(json!({})));
    stream.event().expect("a first event");
    let server = site.server.take().expect("the server");
    let start = Instant::now();
    server.drain();
    let reply = stream.finish();
    let last = reply.events().pop().expect("a last event");
    let error: Value = serde_json::from_str(&last).expect("JSON");
    assert_eq!(error["error"]["code"], "shutting_down", "{last}");
    assert!(!reply.body.contains("[DONE]"));
    server.wait().expect("ends well");
    assert!(start.elapsed() < Duration::from_secs(3));
    let open = site.engine.stats().open_requests;
    assert!(open <= 1, "the request was cancelled, {open} are open");
}

#[test]
fn a_second_signal_cuts_at_once() {
    let mut site = Site::with(Setup { step: Duration::from_millis(20), ..Setup::default() });
    let stream = site.client.stream(TEXT, &long(json!({})));
    let whole = std::thread::spawn({
        let client = site.client;
        move || client.post(TEXT, &long(json!({})))
    });
    site.wait_until("both run", |site| site.metric("tokenmill_http_requests_in_flight") == 2.0);
    let server = site.server.take().expect("the server");
    let start = Instant::now();
    server.drain();
    server.stop();
    assert!(!stream.finish().body.contains("[DONE]"));
    let reply = whole.join().expect("a reply");
    assert_eq!((reply.status, reply.error("code").as_str()), (503, "shutting_down"));
    server.wait().expect("ends well");
    assert!(start.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_row_that_is_no_number_fails_its_request_only() {
    let site = Site::with(slow());
    site.control.nan_on(u32::from(b'#'));
    // The others can never sample the token that breaks.
    let healthy = long(json!({ "max_tokens": 60, "logit_bias": { "35": -100 } }));
    let expect = site.client.post(TEXT, &healthy).json()["choices"].clone();
    let others: Vec<_> = (0..3)
        .map(|_| {
            let (client, body) = (site.client, healthy.clone());
            std::thread::spawn(move || client.post(TEXT, &body))
        })
        .collect();
    let broken = site.client.post(TEXT, &json!({ "prompt": "a#", "max_tokens": 5 }));
    assert_eq!((broken.status, broken.error("code").as_str()), (500, "not_a_number"));
    let stream = site.client.stream(TEXT, &json!({ "prompt": "b#", "max_tokens": 5 })).finish();
    assert_eq!(stream.status, 200, "the head was sent before the row was computed");
    assert!(stream.body.contains("not_a_number") && !stream.body.contains("[DONE]"));
    for other in others {
        let reply = other.join().expect("a reply");
        assert_eq!(reply.json()["choices"], expect, "{reply:?}");
    }
    site.settle();
}

#[test]
fn faults_of_the_device_do_not_show_in_answers() {
    let site = Site::new();
    let body = long(json!({ "max_tokens": 50 }));
    let expect = site.client.post(TEXT, &body).json()["choices"].clone();
    let steps = site.control.steps();
    site.control.fail_at(steps + 10);
    site.control.panic_at(steps + 100);
    for _ in 0..3 {
        let reply = site.client.post(TEXT, &body);
        assert_eq!(reply.json()["choices"], expect, "{reply:?}");
    }
    assert!(site.metric("tokenmill_device_errors_total{model_name=\"sim\"}") >= 1.0);
    site.settle();
}

#[test]
fn a_device_that_keeps_failing_is_a_500_and_no_hang() {
    let site = Site::new();
    let steps = site.control.steps();
    (0..100).for_each(|i| site.control.fail_at(steps + i));
    let reply = site.client.post(TEXT, &long(json!({})));
    assert_eq!(reply.status, 500, "{reply:?}");
    assert!(!reply.body.contains("told to fail"), "{reply:?}");
    assert_eq!(site.client.get("/health").status, 200);
}

#[test]
fn a_reader_that_stops_reading_is_cut_and_others_are_not_held_up() {
    let mut setup = Setup::default();
    setup.server.limits.backlog_bytes = 64 << 10;
    setup.server.timeouts.write_stall = Duration::from_millis(300);
    setup.context = 4096;
    setup.blocks = 2000;
    let site = Site::with(setup);
    // Far more than the sockets' buffers hold: alternatives at every position, eight times.
    let body = json!({
        "prompt": "go", "max_tokens": 4000, "ignore_eos": true, "logprobs": 20, "n": 8,
    });
    let stopped = site.client.stream(TEXT, &body);
    let small = site.client.post(TEXT, &json!({ "prompt": "a", "max_tokens": 5 }));
    assert_eq!(small.status, 200);
    site.settle();
    let rest = stopped.finish().body;
    assert!(!rest.contains("[DONE]"), "it was cut");
}

#[test]
fn many_clients_at_once_get_their_own_answers() {
    let site = Site::with(Setup { sequences: 8, blocks: 120, ..Setup::default() });
    let ask = |i: u64| {
        let body = json!({
            "prompt": format!("client {i}"), "max_tokens": 60, "ignore_eos": true, "seed": i,
        });
        (site.client, body)
    };
    let alone: Vec<Value> = (0..16)
        .map(ask)
        .map(|(client, body)| client.post(TEXT, &body).json()["choices"].clone())
        .collect();
    let together: Vec<_> = (0..16)
        .map(ask)
        .enumerate()
        .map(|(i, (client, body))| {
            std::thread::spawn(move || {
                if i % 4 == 3 {
                    drop(client.stream(TEXT, &body)); // goes away at once
                }
                client.post(TEXT, &body).json()["choices"].clone()
            })
        })
        .collect();
    for (expect, thread) in alone.iter().zip(together) {
        assert_eq!(thread.join().expect("an answer"), *expect);
    }
    site.settle();
}

#[test]
fn a_silent_stream_shows_that_it_lives() {
    let mut setup = Setup { step: Duration::from_millis(300), ..Setup::default() };
    setup.server.timeouts.ping = Duration::from_millis(50);
    let site = Site::with(setup);
    let reply = site.client.stream(TEXT, &long(json!({ "max_tokens": 2 }))).finish();
    assert!(reply.body.lines().any(|line| line == ": ping"), "{}", reply.body);
    assert_eq!(reply.events().pop().as_deref(), Some("[DONE]"), "pings are no events");
}

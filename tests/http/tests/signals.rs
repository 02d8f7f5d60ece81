//! SIGTERM and SIGINT to a real process: it drains and ends with status 0; a second signal hurries.
#![cfg(unix)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokenmill_http_tests::{Client, Stream};

struct Process {
    child: Child,
    client: Client,
}

impl Process {
    fn start(step_ms: u32, drain_ms: u32) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_serve-sim"))
            .args(["127.0.0.1:0", &step_ms.to_string(), &drain_ms.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the process starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("its address");
        let client = Client::new(line.trim().parse().expect("an address"));
        Self { child, client }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status().expect("kill runs");
        assert!(sent.success());
    }

    fn stream(&self, tokens: u32) -> Stream {
        let body = json!({ "prompt": "go", "max_tokens": tokens, "ignore_eos": true });
        let mut stream = self.client.stream("/v1/completions", &body);
        stream.event().expect("a first event");
        stream
    }

    /// The exit code, and how long it took.
    fn end(mut self) -> (Option<i32>, Duration) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(15) {
            if let Some(status) = self.child.try_wait().expect("its status") {
                return (status.code(), start.elapsed());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.child.kill().expect("killed");
        panic!("the process did not end");
    }
}

fn drained(process: &Process) -> bool {
    process.client.get("/readyz").status == 503
}

fn wait_until_drained(process: &Process) {
    let start = Instant::now();
    while !drained(process) {
        assert!(start.elapsed() < Duration::from_secs(5), "never drained");
    }
}

#[test]
fn a_signal_lets_answers_finish() {
    for name in ["-TERM", "-INT"] {
        let process = Process::start(5, 10_000);
        let stream = process.stream(400);
        process.signal(name);
        wait_until_drained(&process);
        assert_eq!(stream.finish().events().pop().as_deref(), Some("[DONE]"));
        let (code, took) = process.end();
        assert_eq!(code, Some(0));
        assert!(took < Duration::from_secs(4), "{took:?}");
    }
}

#[test]
fn a_signal_ends_what_takes_too_long() {
    let process = Process::start(20, 300);
    let stream = process.stream(3000);
    process.signal("-TERM");
    let reply = stream.finish();
    let last: Value =
        serde_json::from_str(&reply.events().pop().expect("a last event")).expect("JSON");
    assert_eq!(last["error"]["code"], "shutting_down");
    assert!(!reply.body.contains("[DONE]"));
    assert_eq!(process.end().0, Some(0));
}

#[test]
fn a_second_signal_does_not_wait() {
    let process = Process::start(20, 60_000);
    let stream = process.stream(3000);
    process.signal("-TERM");
    wait_until_drained(&process);
    process.signal("-TERM");
    assert!(!stream.finish().body.contains("[DONE]"));
    let (code, took) = process.end();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn an_idle_server_ends_at_once() {
    let process = Process::start(0, 60_000);
    let _kept = process.client.connect();
    process.signal("-INT");
    let (code, took) = process.end();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(4), "{took:?}");
}

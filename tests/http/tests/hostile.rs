//! Bytes and bodies made to break things: many mutations of good requests, each answered by a 4xx
//! or a 200, with the server as healthy after as before.

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::{Value, json};
use tokenmill_http_tests::Site;
use tokenmill_ir::sampling::splitmix;

/// Random numbers of a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = splitmix(self.0);
        (self.0 % n.max(1) as u64) as usize
    }
}

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

const SEEDS: &[(&str, &str)] = &[
    (
        CHAT,
        r#"{"model":"sim","messages":[{"role":"user","content":"hi"}],"max_tokens":2,"stop":"a"}"#,
    ),
    (
        TEXT,
        r#"{"prompt":[1,2,3],"max_tokens":2,"logprobs":2,"n":2,"logit_bias":{"5":1.5},"seed":-3}"#,
    ),
    (
        CHAT,
        r#"{"messages":[{"role":"system","content":[{"type":"text","text":"x"}]}],"max_tokens":1}"#,
    ),
    (TEXT, r#"{"prompt":["some text","and more"],"max_tokens":3,"stop":"e","temperature":0.5}"#),
];

/// Pieces that parsers stumble over.
const PIECES: &[&str] = &[
    "null",
    "-0",
    "1e999",
    "18446744073709551616",
    "{}",
    "[]",
    "[[[[[[[[",
    "\"",
    "\\u0000",
    "\\ud83d",
    "\u{202e}",
    ",",
    ":",
    "}",
    "true",
    "9007199254740993",
    "-1",
    "\"\\",
    "\u{0}",
];

fn mutated(text: &str, draw: &mut Draw) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for _ in 0..=draw.below(3) {
        let at = draw.below(chars.len());
        match draw.below(8) {
            // Often only another letter or digit: many of those stay good requests.
            4.. => {
                let other = draw.below(128) as u8 as char;
                let fits = |c: &char| c.is_ascii_alphanumeric() && other.is_ascii_alphanumeric();
                if let Some(c) = chars.get_mut(at).filter(|c| fits(c)) {
                    *c = other;
                }
            }
            0 => {
                chars.remove(at.min(chars.len().saturating_sub(1)));
            }
            1 => {
                let piece = PIECES[draw.below(PIECES.len())];
                chars.splice(at..at, piece.chars());
            }
            2 => chars.truncate(at.max(1)),
            _ => {
                let end = (at + draw.below(12)).min(chars.len());
                let piece = PIECES[draw.below(PIECES.len())];
                chars.splice(at..end, piece.chars());
            }
        }
    }
    chars.into_iter().collect()
}

/// One request and its status over a connection that is kept.
fn ask(socket: &mut std::net::TcpStream, path: &str, body: &str) -> u16 {
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).expect("the connection is kept");
    let mut seen = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        let read = socket.read(&mut bytes).expect("an answer");
        assert!(read > 0, "closed on {body}");
        seen.extend_from_slice(&bytes[..read]);
        let text = String::from_utf8_lossy(&seen);
        let Some((head, rest)) = text.split_once("\r\n\r\n") else { continue };
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        let find = |name: &str| head.lines().find_map(|l| l.strip_prefix(name).map(str::to_owned));
        match find("content-length: ").and_then(|v| v.parse::<usize>().ok()) {
            Some(length) if rest.len() >= length => return status,
            None if rest.ends_with("0\r\n\r\n") => return status,
            _ => {}
        }
    }
}

#[test]
fn mutated_bodies_are_answered() {
    let site = Site::new();
    let mut draw = Draw(7);
    let mut socket = site.client.connect();
    let mut counts = [0; 2];
    for round in 0..1500 {
        let (path, seed) = SEEDS[draw.below(SEEDS.len())];
        let body = mutated(seed, &mut draw);
        let status = ask(&mut socket, path, &body);
        assert!([200, 400, 404].contains(&status), "{status} in round {round}: {body}");
        counts[usize::from(status == 200)] += 1;
    }
    assert!(counts[0] > 100 && counts[1] > 100, "both kinds were met: {counts:?}");
    site.settle();
    let canary = json!({ "prompt": "a", "max_tokens": 3, "seed": 1 });
    assert_eq!(site.client.post("/v1/completions", &canary).status, 200);
}

#[test]
fn bytes_that_are_no_http_close_the_connection_only() {
    let site = Site::new();
    let mut draw = Draw(11);
    let good = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for round in 0..200 {
        let mut bytes = good.to_vec();
        for _ in 0..=draw.below(4) {
            let at = draw.below(bytes.len());
            bytes[at] = draw.below(256) as u8;
        }
        let mut socket = site.client.connect();
        socket.set_read_timeout(Some(Duration::from_millis(5))).expect("a timeout");
        let _ = socket.write_all(&bytes);
        let mut answer = [0; 64];
        if let Ok(read) = socket.read(&mut answer) {
            let text = String::from_utf8_lossy(&answer[..read]);
            assert!(!text.starts_with("HTTP/1.1 5"), "round {round}: {text}");
        }
    }
    let smuggle = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n\
                   content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n\
                   0\r\n\r\nGET /x HTTP/1.1\r\n\r\n";
    let status = site.client.raw(smuggle.as_bytes()).reply.status;
    assert!((400..500).contains(&status), "{status}");
    assert_eq!(site.client.get("/health").status, 200);
}

#[test]
fn long_prompts_of_every_kind_are_answered() {
    let site = Site::new();
    let kinds: [(&str, String); 6] = [
        ("spaces", " ".repeat(200_000)),
        ("one letter", "a".repeat(200_000)),
        ("line breaks", "\n".repeat(200_000)),
        ("family emoji", "👩‍👩‍👧‍👦".repeat(8_000)),
        ("combining marks", format!("e{}", "\u{301}".repeat(100_000))),
        ("brackets", "[{(".repeat(60_000)),
    ];
    for (name, prompt) in kinds {
        let body = json!({ "prompt": prompt, "max_tokens": 1 });
        let reply = site.client.post("/v1/completions", &body);
        assert_eq!(
            (reply.status, reply.error("code").as_str()),
            (400, "context_length_exceeded"),
            "{name}"
        );
        let body: Value = json!({ "messages": [{ "role": "user", "content": prompt }] });
        let reply = site.client.post("/v1/chat/completions", &body);
        assert_eq!(
            (reply.status, reply.error("code").as_str()),
            (400, "context_length_exceeded"),
            "{name}"
        );
    }
    assert_eq!(site.client.get("/health").status, 200);
}

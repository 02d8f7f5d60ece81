//! Bytes and bodies made to break things: many mutations of good requests, each answered by a 4xx
//! or a 200, with the server as healthy after as before.

#[path = "hostile/wire.rs"]
mod wire;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokenmill_golden_tests::Sample;
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
    (
        CHAT,
        r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null},{"role":
        "user","content":"b"}],"max_completion_tokens":2,"stream":true,"stream_options":{
        "include_usage":true},"top_p":0.9,"top_k":40,"min_p":0.1,"logprobs":true,"top_logprobs":3}"#,
    ),
    (
        TEXT,
        r#"{"prompt":"a","max_tokens":2,"echo":true,"user":"me","priority":-3,"timeout":5.5,"draft":
        "suffix","ignore_eos":true,"repetition_penalty":1.1,"presence_penalty":0.5,"diagnostics":true}"#,
    ),
    (
        "/v1/cache/leases",
        r#"{"prompt":"keep this","prompt_cache_key":"k","prompt_cache_retention":"5m"}"#,
    ),
    ("/v1/embeddings", r#"{"input":["a",[1,2]],"dimensions":4,"encoding_format":"base64"}"#),
    ("/v1/rerank", r#"{"query":"a","documents":["b",{"text":"c"}],"top_n":1}"#),
    (
        "/completion",
        r#"{"prompt":[1,"a",{"prompt_string":"b"}],"n_predict":2,"logit_bias":[[5,1.5],["c",false]],
        "n_probs":2,"samplers":"kt","response_fields":["content"],"stop":["d"],"n_cmpl":2}"#,
    ),
    ("/tokenize", r#"{"content":["a",7,"b"],"add_special":true,"with_pieces":true}"#),
    ("/detokenize", r#"{"tokens":[1,2,259]}"#),
];

/// Values that are of another type, size or sign than any reader may think.
fn odd(draw: &mut Draw) -> Value {
    let deep = |n: usize| (0..n).fold(json!(0), |inner, _| json!([inner]));
    match draw.below(16) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(0),
        4 => json!(u64::MAX),
        5 => json!(i64::MIN),
        6 => json!(1e308),
        7 => json!(-0.0),
        8 => json!(0.5),
        9 => json!(""),
        10 => json!("\u{0}\u{202e}<|im_end|>"),
        11 => json!("x".repeat(1 << draw.below(16))),
        12 => json!([]),
        13 => json!({ "": [{}] }),
        14 => deep(draw.below(80)),
        _ => json!(vec![json!(7); draw.below(5000)]),
    }
}

/// Puts an odd value, a stranger or a copy somewhere into the tree, or takes something out.
fn changed(value: &mut Value, draw: &mut Draw) {
    let inside = match value {
        Value::Array(items) if !items.is_empty() => {
            let at = draw.below(items.len());
            match draw.below(6) {
                0 => items.push(odd(draw)),
                1 => items.extend(vec![items[at].clone(); draw.below(300)]),
                _ => return enter(&mut items[at], draw),
            }
            true
        }
        Value::Object(members) if !members.is_empty() => {
            let at = draw.below(members.len());
            let name = members.keys().nth(at).cloned().unwrap_or_default();
            match draw.below(8) {
                0 => members.shift_remove(&name),
                1 => members.insert(format!("{name}x"), odd(draw)),
                _ => return enter(&mut members[&name], draw),
            };
            true
        }
        _ => false,
    };
    if !inside {
        *value = odd(draw);
    }
}

/// Changes a value, or something in it.
fn enter(value: &mut Value, draw: &mut Draw) {
    match draw.below(3) {
        0 => *value = odd(draw),
        _ => changed(value, draw),
    }
}

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

/// 1 500 bodies, 6 000 where the whole test is asked for: half with changed characters, half with
/// changed values.
#[test]
fn mutated_bodies_are_answered() {
    let site = Site::new();
    let (sample, mut draw) = (Sample::from_env(), Draw(7));
    let canary = || {
        let body = json!({ "prompt": "The same bytes", "max_tokens": 12, "temperature": 0 });
        let reply = site.client.post(TEXT, &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["choices"].to_string()
    };
    let before = canary();
    let mut socket = site.client.connect();
    let (mut counts, mut slowest) = ([0; 2], (Duration::ZERO, String::new()));
    for round in 0..6000 {
        let (path, seed) = SEEDS[draw.below(SEEDS.len())];
        let body = match round % 2 {
            0 => mutated(seed, &mut draw),
            _ => {
                let mut value = serde_json::from_str(seed).expect("a seed");
                (0..=draw.below(2)).for_each(|_| changed(&mut value, &mut draw));
                value.to_string()
            }
        };
        if !sample.has(round, 4) {
            continue;
        }
        let start = Instant::now();
        let status = ask(&mut socket, path, &body);
        slowest = slowest.max((start.elapsed(), body.chars().take(200).collect()));
        let known = [200, 400, 404, 504];
        assert!(known.contains(&status), "{status} in round {round}: {body}");
        counts[usize::from(status == 200)] += 1;
    }
    println!("{} refused, {} answered; the slowest: {slowest:?}", counts[0], counts[1]);
    assert!(counts[0] > 100 && counts[1] > 100, "both kinds were met: {counts:?}");
    site.settle();
    assert_eq!(canary(), before, "the same answer after");
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

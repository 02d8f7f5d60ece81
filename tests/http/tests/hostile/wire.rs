//! Requests that two readers could take for different ones, and clients that send slowly: whatever a
//! request says of its own length, nothing behind it is taken for another one that it is not.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;
use tokenmill_http_tests::{Setup, Site};

/// What a smuggled request would ask for: an answer that names it shows that it was one.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
/// The head of a completion, but for what tells its body's length.
const POST: &str = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n\
                    content-type: application/json\r\n";
const BODY: &str = r#"{"prompt":"a","max_tokens":1}"#;

/// The statuses of all answers to these bytes, and what was answered.
fn answers(site: &Site, bytes: &str) -> (Vec<u16>, String) {
    let mut socket = site.client.connect();
    let _ = socket.write_all(bytes.as_bytes()); // it may be cut off
    let mut seen = Vec::new();
    let mut part = [0; 4096];
    // (Who is cut off before all he sent was read may be reset after the answer.)
    while let Ok(read @ 1..) = socket.read(&mut part) {
        seen.extend_from_slice(&part[..read]);
    }
    let text = String::from_utf8_lossy(&seen).into_owned();
    let status = |answer: &str| answer.split(' ').next().and_then(|s| s.parse().ok());
    let statuses = text.split("HTTP/1.1 ").skip(1).filter_map(status).collect();
    (statuses, text)
}

/// All of these are refused with that status (0: cut off without a word), and nothing behind them is
/// read as a request.
fn are_refused(site: &Site, cases: &[(String, u16)]) {
    for (request, status) in cases {
        let (statuses, text) = answers(site, &format!("{request}{SMUGGLED}"));
        let expect: &[u16] = if *status == 0 { &[] } else { std::slice::from_ref(status) };
        assert_eq!(statuses, expect, "{request:?}: {text}");
        assert!(!text.contains("smuggled"), "{request:?}: {text}");
    }
    assert_eq!(site.client.get("/health").status, 200);
}

#[test]
fn bodies_have_one_length() {
    let site = Site::new();
    let headed = |headers: &str| format!("{POST}{headers}\r\n\r\n");
    let long = (5 + SMUGGLED.len()).to_string();
    let mut cases = Vec::new();
    // The chunks count, and the connection ends with them.
    for (first, second) in [
        (format!("content-length: {long}"), "transfer-encoding: chunked".to_owned()),
        ("transfer-encoding: chunked".to_owned(), format!("content-length: {long}")),
        ("Transfer-Encoding: CHUNKED".to_owned(), "Content-Length: 5".to_owned()),
    ] {
        cases.push((headed(&format!("{first}\r\n{second}")) + "0\r\n\r\n", 400));
    }
    for lengths in [
        "content-length: 29\r\ncontent-length: 5",
        "content-length: 29, 29",
        "content-length: 29,5",
        "content-length: +29",
        "content-length: -1",
        "content-length: 0x1d",
        "content-length: 2 9",
        "content-length: 29;",
        "content-length:",
        "content-length: 99999999999999999999999",
    ] {
        cases.push((headed(lengths) + BODY, 400));
    }
    cases.push((headed("content-length: 18446744073709551615") + BODY, 431));
    for coding in [
        "xchunked",
        "chunked, identity",
        "identity",
        "chunked;q=1",
        "\"chunked\"",
        "chunked\r\ntransfer-encoding: identity",
        "chunked\u{b}",
    ] {
        cases.push((headed(&format!("transfer-encoding: {coding}")) + "0\r\n\r\n", 400));
    }
    for coding in ["gzip, chunked", "chunked, chunked", "identity\r\ntransfer-encoding: chunked"] {
        let request = headed(&format!("connection: close\r\ntransfer-encoding: {coding}"));
        cases.push((request + "0\r\n\r\n", 501));
    }
    let old = POST.replace("HTTP/1.1", "HTTP/1.0");
    cases.push((format!("{old}transfer-encoding: chunked\r\n\r\n0\r\n\r\n"), 400));
    are_refused(&site, &cases);
    // What is said twice and the same is said once (RFC 9110, 8.6).
    let twice = "content-length: 29\r\ncontent-length: 29\r\nconnection: close";
    assert_eq!(answers(&site, &(headed(twice) + BODY)).0, [200]);
    let padded = "content-length: \t29 \r\nconnection: close";
    assert_eq!(answers(&site, &(headed(padded) + BODY)).0, [200]);
}

#[test]
fn chunks_have_one_form() {
    let site = Site::new();
    let head = format!("{POST}transfer-encoding: chunked\r\n\r\n");
    let chunked = |chunks: &str| (format!("{head}{chunks}"), 400);
    let cases = [
        chunked("g\r\n"),
        chunked("-1\r\n"),
        chunked("+5\r\nhello\r\n0\r\n\r\n"),
        chunked("0x5\r\nhello\r\n0\r\n\r\n"),
        chunked("1_0\r\n"),
        chunked("\r\n"),
        chunked(";a\r\n"),
        chunked("5\nhello\n0\n\n"),
        chunked("5;a\nb\r\nhello\r\n0\r\n\r\n"),
        chunked("5\rXhello\r\n0\r\n\r\n"),
        chunked("3\r\nhello\r\n0\r\n\r\n"),
        chunked("5\r\nhelloXX0\r\n\r\n"),
        chunked("ffffffffffffffff1\r\n"),
        chunked("fffffffffffffffff\r\nhello\r\n0\r\n\r\n"),
    ];
    are_refused(&site, &cases);
    let good = format!("{POST}connection: close\r\ntransfer-encoding: chunked\r\n\r\n");
    for chunks in [
        format!("1d\r\n{BODY}\r\n0\r\n\r\n"),
        format!("01D;name=value\r\n{BODY}\r\n0\r\ncontent-length: 5\r\n\r\n"),
    ] {
        assert_eq!(answers(&site, &format!("{good}{chunks}")).0, [200], "{chunks}");
    }
}

#[test]
fn heads_have_one_form() {
    let site = Site::new();
    let get = |lines: &str| format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n\r\n");
    let first = |line: &str| format!("{line}\r\nhost: localhost\r\n\r\n");
    let many = |n: usize| get(&vec!["x: y"; n].join("\r\n"));
    let mut cases: Vec<(String, u16)> = [
        get("x: a\r\n folded"),
        get("content-length:\r\n 5"),
        get("content-length : 5"),
        get("transfer-encoding\t: chunked"),
        get("content length: 5"),
        get(": 5"),
        get("content-length"),
        get("content-length\0: 5"),
        get("x: a\0b"),
        get("x: a\rcontent-length: 5"),
        first("GET /health HTTP/1.2"),
        first("GET /health HTTP/2.0"),
        first("GET  /health HTTP/1.1"),
        first("GET /health"),
        first("GET /hea lth HTTP/1.1"),
        first("G\u{0}T /health HTTP/1.1"),
        get("host: localhost\r\nconnection: close"),
    ]
    .map(|request| (request, 400))
    .into();
    // A line that ends with LF alone is one line to some and two to others.
    cases.extend(
        [
            get(&format!("x: a\ncontent-length: {}", SMUGGLED.len())),
            "GET /health HTTP/1.1\nhost: localhost\n\n".to_owned(),
            // (HTTP/2 begins so.)
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
            "GET /health HTTP/1.1\r\nhost: localhost\r\n\n".to_owned(),
        ]
        .map(|request| (request, 0)),
    );
    cases.push((many(100), 431)); // and the Host
    cases.push((get(&format!("x: {}", "y".repeat(40 << 10))), 431));
    cases.push((first(&format!("GET /{} HTTP/1.1", "y".repeat(70 << 10))), 431));
    are_refused(&site, &cases);
    let most = many(98).replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    assert_eq!(answers(&site, &most).0, [200]);
}

#[test]
fn a_url_with_another_host_is_another_host() {
    let site = Site::new();
    let cases = [
        ("http://evil.example/health", "localhost", 403),
        ("http://localhost/health", "evil.example", 403),
        ("http://localhost@evil.example/health", "localhost", 403),
        ("http://localhost:1@evil.example/health", "localhost", 403),
        ("http://localhost/health", "localhost", 200),
        ("http://127.0.0.1:9/health", "[::1]", 200),
        ("/health#/v1/models", "localhost", 200),
        ("//evil.example/health", "localhost", 404),
        ("/health", "localhost@evil.example", 403),
        ("/health", "localhost, evil.example", 403),
    ];
    for (target, host, status) in cases {
        let request = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        assert_eq!(answers(&site, &request).0, [status], "{target} {host}");
    }
}

/// Sends one byte after the other until it is cut off; what it was told.
fn trickle(mut socket: TcpStream, byte: &[u8]) -> String {
    socket.set_read_timeout(Some(Duration::from_millis(10))).expect("a timeout");
    let (mut told, mut part) = (Vec::new(), [0; 4096]);
    for _ in 0..1000 {
        let gone = socket.write_all(byte).is_err();
        match socket.read(&mut part) {
            Ok(0) => return String::from_utf8_lossy(&told).into_owned(),
            Ok(read) => told.extend_from_slice(&part[..read]),
            Err(error) if gone || error.kind() == std::io::ErrorKind::ConnectionReset => {
                return String::from_utf8_lossy(&told).into_owned();
            }
            Err(_) => {} // nothing yet
        }
    }
    panic!("it may go on for ever");
}

#[test]
fn who_sends_slowly_is_cut_off_and_holds_up_nobody() {
    let mut setup = Setup::default();
    setup.server.timeouts.header = Duration::from_millis(300);
    setup.server.timeouts.body = Duration::from_millis(300);
    let site = Site::with(setup);
    std::thread::scope(|scope| {
        let heads: Vec<_> = (0..8)
            .map(|_| {
                let mut socket = site.client.connect();
                socket.write_all(b"GET /health HTTP/1.1\r\nx: ").expect("sent");
                scope.spawn(move || trickle(socket, b"y"))
            })
            .collect();
        let body = site.client.begin(100_000, b"{");
        let body = scope.spawn(move || trickle(body, b" "));
        let chunks = format!("{POST}transfer-encoding: chunked\r\n\r\n1\r\n{{\r\n");
        let mut chunked = site.client.connect();
        chunked.write_all(chunks.as_bytes()).expect("sent");
        let chunked = scope.spawn(move || trickle(chunked, b"1\r\n \r\n"));
        let one = json!({ "prompt": "a", "max_tokens": 1 });
        assert_eq!(site.client.post("/v1/completions", &one).status, 200);
        for head in heads {
            let told = head.join().expect("cut off");
            assert!(!told.contains("HTTP/1.1 2"), "{told}");
        }
        for slow in [body, chunked] {
            let told = slow.join().expect("cut off");
            assert!(told.starts_with("HTTP/1.1 408"), "{told}");
        }
    });
    assert_eq!(site.metric("tokenmill_http_requests_in_flight"), 0.0);
}

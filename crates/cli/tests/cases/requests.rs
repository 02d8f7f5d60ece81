//! What clients send over HTTP.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use serde_json::{Value, json};
use tokenmill_http_tests::{Client, Reply};

use crate::program::{Server, answer, case, command, json as read, refusal};

const CHAT: &str = "/v1/chat/completions";

/// A small chat model.
fn model() -> String {
    case("template-that-looks-for-a-control-token").to_str().expect("UTF-8").to_owned()
}

/// The answer to a case's request; it must be one.
fn answered(server: &Server, name: &str) -> Value {
    let reply = server.client.post(CHAT, &read(&case(name).join("request.json")));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

#[test]
fn answer_of_the_official_client_sent_back() {
    let server = Server::start(&[&model()]);
    let reply = answered(&server, "answer-of-the-official-client-sent-back");
    assert!(reply.get("warnings").is_none(), "{reply}");
    let messages = |annotations: Value| {
        let earlier = json!({ "role": "assistant", "content": "a", "annotations": annotations });
        json!({ "messages": [{ "role": "user", "content": "b" }, earlier], "max_tokens": 1 })
    };
    let empty = server.client.post(CHAT, &messages(json!([]))).json();
    assert!(empty.get("warnings").is_none(), "{empty}");
    let some = server.client.post(CHAT, &messages(json!([{ "type": "url_citation" }]))).json();
    assert!(some["warnings"].to_string().contains("messages[1].annotations"), "{some}");
}

#[test]
fn assistant_message_with_null_content() {
    let server = Server::start(&[&model()]);
    let name = "assistant-message-with-null-content";
    let found = answered(&server, name);
    let mut request = read(&case(name).join("request.json"));
    for at in [1, 3] {
        request["messages"][at]["content"] = json!("");
    }
    let strings = server.client.post(CHAT, &request).json();
    assert_eq!(found["usage"]["prompt_tokens"], strings["usage"]["prompt_tokens"]);
    for role in ["user", "system"] {
        let body = json!({ "messages": [{ "role": role, "content": null }] });
        let reply = server.client.post(CHAT, &body);
        assert_eq!(reply.status, 400, "{role}");
        assert!(reply.error("message").contains("null"), "{reply:?}");
    }
}

#[test]
fn null_member_that_is_not_known() {
    let server = Server::start(&[&model()]);
    answered(&server, "null-member-that-is-not-known");
    let part = json!({ "type": "text", "text": "hi", "image_url": null, "detail": null });
    let nested = json!({
        "messages": [{ "role": "user", "content": [part], "weight": null }],
        "max_tokens": 1, "stream": true, "stream_options": { "include_usage": null, "x": null },
    });
    let reply = server.client.post(CHAT, &nested);
    assert_eq!(reply.status, 200, "{reply:?}");
    let asks = json!({
        "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 1, "truncate_prompt_tokens": 2,
    });
    assert_eq!(server.client.post(CHAT, &asks).error("param"), "truncate_prompt_tokens");
    let strict = Server::start(&[&model(), "--strict"]);
    answered(&strict, "null-member-that-is-not-known");
    let unknown = json!({ "messages": [{ "role": "user", "content": "hi" }], "colour": 1 });
    assert_eq!(strict.client.post(CHAT, &unknown).error("code"), "unknown_field");
}

/// The preflight and the request of the case, sent byte for byte.
fn browser(client: Client) -> (Reply, Reply) {
    let path = case("browser-page-of-another-origin").join("request.http");
    let text = std::fs::read_to_string(path).expect("the request").replace("\r\n", "\n");
    let (head, rest) = text.split_once("\n\n").expect("a preflight");
    let (second, body) = rest.split_once("\n\n").expect("a request");
    let wire = |head: &str, body: &str| {
        format!("{}\r\nConnection: close\r\n\r\n{body}", head.replace('\n', "\r\n"))
    };
    let preflight = client.raw(wire(head, "").as_bytes()).reply;
    (preflight, client.raw(wire(second, body).as_bytes()).finish())
}

#[test]
fn browser_page_of_another_origin() {
    const PAGE: &str = "http://localhost:5173";
    let server = Server::start(&[&model(), "--allow-origin", PAGE]);
    let (preflight, answer) = browser(server.client);
    assert!((200..300).contains(&preflight.status), "{preflight:?}");
    assert_eq!(answer.status, 200, "{answer:?}");
    for reply in [&preflight, &answer] {
        assert_eq!(reply.header("access-control-allow-origin"), Some(PAGE), "{reply:?}");
    }
    let allowed = preflight.header("access-control-allow-headers").expect("headers").to_owned();
    for name in ["authorization", "content-type", "x-stainless-os"] {
        assert!(allowed.to_lowercase().contains(name), "{allowed}");
    }
    assert!(preflight.header("access-control-allow-methods").is_some_and(|m| m.contains("POST")));
    let other = Server::start(&[&model(), "--allow-origin", "https://chat.example"]);
    for server in [Server::start(&[&model()]), other] {
        let (preflight, answer) = browser(server.client);
        assert_eq!((preflight.status, answer.status), (403, 403));
        assert!(answer.error("message").contains("--allow-origin"), "{answer:?}");
    }
    let named = Server::start(&[&model(), "--allow-host", "host.docker.internal"]);
    let host = |name| named.client.send("GET", "/v1/models", &[("host", name)], b"").status;
    assert_eq!((host("host.docker.internal:8080"), host("evil.example")), (200, 403));
}

#[test]
fn origins_that_open_too_much_are_refused() {
    for (args, word) in [
        (["--allow-origin", "*"], "tokenmill key add"),
        (["--allow-origin", "null"], "tokenmill key add"),
        (["--allow-origin", "http://localhost:5173/"], "write http://localhost:5173"),
        (["--allow-host", "http://box.lan"], "write box.lan"),
    ] {
        let told = refusal(&["serve", &model(), args[0], args[1]]);
        assert!(told.contains(word), "{told}");
    }
}

#[test]
fn sampling_defaults_are_the_same_everywhere() {
    let home = tempfile::tempdir().expect("a folder");
    let folder = home.path().join("model");
    std::fs::create_dir(&folder).expect("a folder");
    for entry in std::fs::read_dir(model()).expect("the model").flatten() {
        std::fs::copy(entry.path(), folder.join(entry.file_name())).expect("copied");
    }
    let path = folder.to_str().expect("UTF-8");
    let defaults = |path: &str| {
        let models = Server::start(&[path]).client.get("/v1/models").json();
        models["data"][0]["defaults"].clone()
    };
    let plain = defaults(path);
    assert_eq!((&plain["temperature"], &plain["top_p"]), (&json!(0.8), &json!(0.95)));
    // Its context is shorter than what answers have by default.
    assert_eq!((&plain["min_p"], &plain["max_completion_tokens"]), (&json!(0.05), &json!(512)));
    let shown = answer(&["show", path]);
    assert!(shown.contains("temperature 0.8, top_p 0.95, min_p 0.05, at most 4096"), "{shown}");
    let config = json!({
        "do_sample": true, "temperature": 0.6, "top_p": 0.9, "max_new_tokens": 7,
        "no_repeat_ngram_size": 3, "eos_token_id": 2,
    });
    std::fs::write(folder.join("generation_config.json"), config.to_string()).expect("written");
    let followed = defaults(path);
    assert_eq!((&followed["temperature"], &followed["top_p"]), (&json!(0.6), &json!(0.9)));
    assert_eq!((&followed["top_k"], &followed["min_p"]), (&json!(50), &json!(0.0)));
    assert_eq!(followed["max_completion_tokens"], json!(7));
    let shown = answer(&["show", path]);
    assert!(shown.contains("temperature 0.6, top_k 50, top_p 0.9, at most 7 tokens"), "{shown}");
    assert!(shown.contains("no_repeat_ngram_size 3"), "{shown}");
    let output = crate::program::run(&["run", path, "hi", "--json", "--seed", "3"]);
    let told = crate::program::text(&output.stderr);
    assert!(told.contains("no_repeat_ngram_size 3"), "{told}");
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(said["completion_tokens"].as_u64().is_some_and(|n| n <= 7), "{said}");
}

/// What `serve` writes after it listens, until it has drained.
fn log(args: &[&str], ask: impl Fn(Client)) -> String {
    let home = tempfile::tempdir().expect("a folder");
    let mut child = command(home.path())
        .arg("serve")
        .args(args)
        .args(["--port", "0", "--api-key", "first,the-second-key"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut told = BufReader::new(child.stderr.take().expect("piped"));
    let client = loop {
        let mut line = String::new();
        assert!(told.read_line(&mut line).expect("text") > 0, "it ended");
        if let Some((_, address)) = line.split_once("listening on http://") {
            let address = address.split_whitespace().next().unwrap_or_default();
            break Client::new(address.parse().expect("an address"));
        }
    };
    ask(client);
    let pid = child.id().to_string();
    let sent = std::process::Command::new("kill").args(["-TERM", &pid]).status();
    assert!(sent.expect("kill runs").success());
    let mut rest = String::new();
    told.read_to_string(&mut rest).expect("text");
    assert!(child.wait().expect("its status").success());
    rest
}

#[cfg(unix)]
#[test]
fn each_request_has_a_line_without_its_words() {
    let ask = |client: Client| {
        let body = json!({
            "messages": [{ "role": "user", "content": "a secret of mine" }], "max_tokens": 3,
        });
        let headers =
            [("content-type", "application/json"), ("authorization", "Bearer the-second-key")];
        let path = "/v1/chat/completions?token=hidden";
        let reply = client.send("POST", path, &headers, body.to_string().as_bytes());
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(client.get("/v1/models").status, 401);
        assert_eq!(client.get("/health").status, 200);
    };
    let model = model();
    let plain = log(&[&model], ask);
    let lines: Vec<&str> = plain.lines().filter(|line| line.contains("request")).collect();
    assert_eq!(lines.len(), 2, "{plain}");
    for word in [
        "method=\"POST\"",
        "path=\"/v1/chat/completions\"",
        "status=200",
        "account=\"key 2\"",
        "completion_tokens=",
        "first_token_s=",
        "end=\"finished\"",
    ] {
        assert!(lines[0].contains(word), "{word} in {plain}");
    }
    assert!(lines[1].contains("status=401") && lines[1].contains("end=\"refused\""), "{plain}");
    for word in ["secret of mine", "second-key", "hidden", "\u{1b}"] {
        assert!(!plain.contains(word), "{word} in {plain}");
    }
    assert!(plain.contains("drained"), "{plain}");
    let json = log(&[&model, "--log-format", "json"], ask);
    let first = json.lines().find(|line| line.contains("chat/completions")).expect("a line");
    let first: Value = serde_json::from_str(first).expect("JSON");
    assert_eq!(first["fields"]["status"], json!(200), "{first}");
    let quiet = log(&[&model, "--quiet"], ask);
    assert!(!quiet.contains("status="), "{quiet}");
}

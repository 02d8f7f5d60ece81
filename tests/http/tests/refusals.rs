//! What is refused: by which status, with which words, and that nothing else leaks out.

use std::io::Write;

use serde_json::{Value, json};
use tokenmill_http_tests::{Reply, Setup, Site};
use tokenmill_server::ImageHosts;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// Error bodies have one shape and tell nothing of the machine.
fn check_error(reply: &Reply) {
    let error = &reply.json()["error"];
    for member in ["message", "type", "param", "code"] {
        assert!(error.get(member).is_some(), "{member} in {reply:?}");
    }
    assert!(!reply.error("message").is_empty() && !reply.error("type").is_empty(), "{reply:?}");
    for leak in ["panicked at", ".rs:", "/home/", "/root/", "/usr/", "/tmp/", "/work", "0x"] {
        assert!(!reply.body.contains(leak), "{leak} in {}", reply.body);
    }
}

#[test]
fn bad_requests_are_named() {
    let mut setup = Setup::default();
    setup.server.strict = true;
    let site = Site::with(setup);
    let user = json!([{ "role": "user", "content": "a" }]);
    let chat = |name: &str, value: Value| {
        let mut body = json!({ "messages": user, "max_tokens": 1 });
        body[name] = value;
        (CHAT, body, name.to_owned())
    };
    let text = |name: &str, value: Value| {
        let mut body = json!({ "prompt": "a", "max_tokens": 1 });
        body[name] = value;
        (TEXT, body, name.to_owned())
    };
    let cases = [
        (CHAT, json!([]), "body".into()),
        (CHAT, json!({}), "messages".into()),
        (TEXT, json!({}), "prompt".into()),
        (TEXT, json!({ "prompt": "" }), "prompt".into()),
        (TEXT, json!({ "prompt": [260] }), "prompt".into()),
        (TEXT, json!({ "prompt": [4_294_967_295u32] }), "prompt".into()),
        chat("messages", json!([])),
        chat("messages", json!("hi")),
        chat("model", json!(7)),
        chat("temprature", json!(1)),
        chat("temperature", json!(-1)),
        chat("temperature", json!("hot")),
        chat("top_p", json!(1.5)),
        chat("n", json!(0)),
        chat("n", json!(9)),
        chat("n", json!(16384)),
        chat("max_tokens", json!(0)),
        chat("max_tokens", json!(-5)),
        chat("seed", json!(1.5)),
        chat("stop", json!([""])),
        chat("logit_bias", json!({ "300": 1 })),
        chat("top_logprobs", json!(3)),
        chat("stream_options", json!({ "include_usage": true })),
        chat("chat_template", json!("{{ 1 }}")),
        chat("chat_template_kwargs", json!({ "messages": [] })),
        chat("prompt", json!("a")),
        text("messages", json!([])),
        text("logprobs", json!(21)),
        text("logprobs", json!(true)),
        text("n", json!(1e300)),
    ];
    for (path, body, param) in cases {
        let reply = site.client.post(path, &body);
        assert_eq!(reply.status, 400, "{body}: {reply:?}");
        check_error(&reply);
        let named = reply.error("param");
        // Some values are only wrong once a model looks at them.
        let late = ["logit_bias", "chat_template_kwargs"].contains(&param.as_str());
        assert!(named.starts_with(&param) || late, "{body}: {reply:?}");
    }
    site.settle();
    assert_eq!(site.control.steps(), 0, "nothing reached the device");
}

#[test]
fn what_nobody_knows_is_told_and_counted() {
    let site = Site::new();
    let known = json!({
        "messages": [{ "role": "user", "content": "a" }], "max_tokens": 1,
        "nothing": null, "stream_options": null,
    });
    let reply = site.client.post(CHAT, &known);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.json().get("warnings").is_none());
    let part = json!({ "type": "text", "text": "a", "shade": 3, "none": null });
    let unknown = json!({
        "messages": [{ "role": "user", "content": [part], "mood": "good" }], "max_tokens": 1,
        "temprature": 1,
    });
    let reply = site.client.post(CHAT, &unknown);
    assert_eq!(reply.status, 200, "{reply:?}");
    let told = reply.json()["warnings"].to_string();
    for name in ["messages[0].content[0].shade", "messages[0].mood", "temprature"] {
        assert!(told.contains(&format!("{name} was ignored")), "{name} in {told}");
    }
    let first = site.client.stream(CHAT, &unknown).event().expect("an event");
    assert!(first.contains("temprature was ignored"), "{first}");
    assert_eq!(site.metric("tokenmill_unknown_members_total"), 6.0);
    let lease = site.client.post("/v1/cache/leases", &unknown).json();
    assert!(lease["warnings"].to_string().contains("temprature"), "{lease}");
    assert_eq!(site.client.send("DELETE", "/v1/cache/leases", &[], b"").status, 200);
    let refused = site.client.post(
        CHAT,
        &json!({
            "messages": [{ "role": "user", "content": null }], "max_tokens": 1,
        }),
    );
    assert_eq!((refused.status, refused.error("param").as_str()), (400, "messages[0].content"));
    assert!(refused.error("message").contains("null"), "{refused:?}");
    site.settle();
}

#[test]
fn a_mark_in_a_message_keeps_the_prompt() {
    let site = Site::new();
    let marked =
        json!({ "type": "text", "text": "x".repeat(64), "cache_control": { "type": "ephemeral" } });
    let body = json!({ "messages": [{ "role": "user", "content": [marked] }], "max_tokens": 1 });
    let reply = site.client.post(CHAT, &body).json();
    let kept = &reply["usage"]["prompt_tokens_details"]["leased_tokens"];
    assert!(kept.as_u64().is_some_and(|n| n > 0), "{reply}");
    let wrong = json!({ "type": "text", "text": "x", "cache_control": { "type": "forever" } });
    let body = json!({ "messages": [{ "role": "user", "content": [wrong] }] });
    let reply = site.client.post(CHAT, &body);
    assert_eq!(reply.error("param"), "messages[0].content[0].cache_control.type");
}

#[test]
fn what_is_not_built_says_so() {
    let site = Site::new();
    let cases = [
        (CHAT, "functions", json!([{}])),
        (CHAT, "modalities", json!(["text", "audio"])),
        (CHAT, "audio", json!({})),
        (CHAT, "chat_template", json!("{{ 1 }}")),
        (CHAT, "no_repeat_ngram_size", json!(5)),
        (CHAT, "mirostat", json!(1)),
        (TEXT, "use_beam_search", json!(true)),
        (TEXT, "suffix", json!("b")),
        (TEXT, "best_of", json!(2)),
    ];
    for (path, name, value) in cases {
        let mut body = json!({ "max_tokens": 1 });
        match path {
            CHAT => body["messages"] = json!([{ "role": "user", "content": "a" }]),
            _ => body["prompt"] = json!("a"),
        }
        body[name] = value;
        let reply = site.client.post(path, &body);
        assert_eq!(reply.status, 400, "{body}");
        check_error(&reply);
        assert_eq!(
            (reply.error("code"), reply.error("param")),
            ("unsupported".into(), name.into())
        );
    }
    let image = json!({ "type": "image_url", "image_url": { "url": "http://127.0.0.1:1/" } });
    let body = json!({ "messages": [{ "role": "user", "content": [image] }] });
    let reply = site.client.post(CHAT, &body);
    assert_eq!((reply.status, reply.error("code").as_str()), (400, "unsupported"));
    assert_eq!(reply.error("param"), "messages[0].content[0]");
    let harmless = json!({
        "messages": [{ "role": "user", "content": "a" }], "max_tokens": 1, "tools": [],
        "tool_choice": "none", "response_format": { "type": "text", "json_schema": null },
        "modalities": ["text"], "min_tokens": 0, "stop_token_ids": [],
    });
    assert_eq!(site.client.post(CHAT, &harmless).status, 200);
}

#[test]
fn images_are_refused_by_their_place_in_every_dialect() {
    let mut setup = Setup::default();
    setup.server.fetch_images = Some(ImageHosts::default());
    let site = Site::with(setup);
    let user = |part: Value| json!([{ "role": "user", "content": [part] }]);
    let openai = |url: &str| {
        let part = json!({ "type": "image_url", "image_url": { "url": url } });
        (CHAT, json!({ "messages": user(part) }))
    };
    let responses = |url: &str| {
        let part = json!({ "type": "input_image", "image_url": url, "detail": "auto" });
        ("/v1/responses", json!({ "model": "sim", "input": user(part) }))
    };
    let anthropic = |source: Value| {
        let messages = user(json!({ "type": "image", "source": source }));
        ("/v1/messages", json!({ "model": "sim", "max_tokens": 1, "messages": messages }))
    };
    let ollama = |data: &str| {
        let messages = json!([{ "role": "user", "content": "q", "images": [data] }]);
        ("/api/chat", json!({ "model": "sim", "messages": messages }))
    };
    let (png, svg) = ("data:image/png;base64,iVBORw0KGgo=", "data:image/svg+xml;base64,PHN2Zy8+");
    let base64 =
        |kind: &str, data: &str| json!({ "type": "base64", "media_type": kind, "data": data });
    // What is well said is refused for the model's sake, before anything is fetched or decoded.
    for ((path, body), word) in [
        (openai(png), "messages[0].content[0]"),
        (openai("http://127.0.0.1:1/a.png"), "messages[0].content[0]"),
        (responses(png), "input[0].content[0]"),
        (anthropic(base64("image/png", "iVBORw0KGgo=")), "messages[0].content[0]"),
        (
            anthropic(json!({ "type": "url", "url": "https://example.com/" })),
            "messages[0].content[0]",
        ),
        (ollama("iVBORw0KGgo="), "messages[0].images[0]"),
    ] {
        let reply = site.client.post(path, &body);
        assert_eq!(reply.status, 400, "{path}: {reply:?}");
        let told = format!("{word} is an image; the model");
        assert!(reply.body.contains(&told) && reply.body.contains("takes text"), "{reply:?}");
    }
    // What is no image is a fault of the request.
    for ((path, body), word) in [
        (openai(svg), "messages[0].content[0].image_url.url is of type"),
        (openai("data:image/png;base64,*"), "messages[0].content[0].image_url.url is not base64"),
        (openai("file:///etc/passwd"), "messages[0].content[0].image_url.url is no data, http"),
        (responses("data:,"), "input[0].content[0].image_url"),
        (anthropic(base64("application/pdf", "JVBERi0=")), "source.data is of type"),
        (anthropic(base64("image/png", "")), "source.data has no bytes"),
        (anthropic(json!({ "type": "file", "file_id": "f" })), "source.type"),
        (ollama("*"), "messages[0].images[0] is not base64"),
    ] {
        let reply = site.client.post(path, &body);
        assert_eq!(reply.status, 400, "{path}: {reply:?}");
        assert!(reply.body.contains(word), "{word}: {reply:?}");
    }
}

#[test]
fn bad_json_is_a_400_and_nothing_worse() {
    let site = Site::new();
    let deep = format!("{{\"messages\":{}", "[".repeat(1_000_000));
    let cases = [
        "",
        "{",
        "nul",
        "{\"prompt\":\"a\"",
        "{\"prompt\":\"a\",}",
        "{\"prompt\":\"a\"} {}",
        "{\"prompt\":\"a\",\"prompt\":\"b\"}",
        "{\"prompt\":\"\\ud800\"}",
        "{\"prompt\":\"a\",\"temperature\":NaN}",
        "{\"prompt\":\"a\",\"temperature\":1e999}",
        "{\"prompt\":\"a\",\"temperature\":-Infinity}",
        "{\"prompt\":\"a\",\"n\":99999999999999999999}",
        "{prompt:'a'}",
        "\u{feff}{\"prompt\":\"a\"}",
        &deep,
    ];
    for body in cases {
        let shown: String = body.chars().take(60).collect();
        let reply = site.client.post_text(TEXT, body);
        assert_eq!(reply.status, 400, "{shown}: {reply:?}");
        check_error(&reply);
        assert_eq!(site.client.get("/health").status, 200, "{shown}");
    }
    let headers = [("content-type", "application/json")];
    let broken = site.client.send("POST", TEXT, &headers, b"{\"prompt\":\"\xff\"}");
    assert_eq!((broken.status, broken.error("code").as_str()), (400, "invalid_json"));
    assert_eq!(site.control.steps(), 0);
}

#[test]
fn a_body_at_the_limit_is_read_and_one_beyond_is_not() {
    let mut setup = Setup::default();
    setup.server.limits.body_bytes = 1000;
    let site = Site::with(setup);
    let body = |bytes: usize| {
        let head = "{\"prompt\":[97],\"max_tokens\":1,\"user\":\"";
        format!("{head}{}\"}}", "u".repeat(bytes - head.len() - 2))
    };
    assert_eq!(site.client.post_text(TEXT, &body(1000)).status, 200);
    let over = site.client.post_text(TEXT, &body(1001));
    assert_eq!(over.status, 413);
    check_error(&over);
    for (bytes, status) in [(1000, 200), (1001, 413)] {
        let text = body(bytes);
        let (first, second) = text.split_at(bytes / 2);
        let chunk = |part: &str| format!("{:x}\r\n{part}\r\n", part.len());
        let request = format!(
            "POST {TEXT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             connection: close\r\ntransfer-encoding: chunked\r\n\r\n{}{}0\r\n\r\n",
            chunk(first),
            chunk(second)
        );
        assert_eq!(site.client.raw(request.as_bytes()).reply.status, status, "{bytes} in chunks");
    }
}

#[test]
fn long_bodies_wait_for_each_other_and_all_are_answered() {
    let mut setup = Setup::default();
    setup.server.limits.body_bytes = 4 << 20;
    setup.server.limits.bodies_bytes = 8 << 20; // of which one address may have half
    let site = Site::with(setup);
    let asking: Vec<_> = (0..4)
        .map(|_| {
            let client = site.client;
            let body = json!({ "prompt": "a", "max_tokens": 1, "user": "u".repeat(3 << 20) });
            std::thread::spawn(move || client.post(TEXT, &body).status)
        })
        .collect();
    for thread in asking {
        assert_eq!(thread.join().expect("a reply"), 200);
    }
    let mut stuck = site.client.connect();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n\
                content-type: application/json\r\ncontent-length: 3000000\r\n\r\n";
    stuck.write_all(head.as_bytes()).expect("sent");
    stuck.write_all(&vec![b' '; 2 << 20]).expect("sent");
    let small = json!({ "prompt": "a", "max_tokens": 1 });
    assert_eq!(site.client.post(TEXT, &small).status, 200, "short ones do not wait");
    drop(stuck);
    site.settle();
}

#[test]
fn a_prompt_that_leaves_no_room_is_refused_with_the_numbers() {
    let site = Site::new();
    let ask = |tokens: usize| {
        let body = json!({ "prompt": vec![97; tokens], "max_tokens": 50, "ignore_eos": true });
        site.client.post(TEXT, &body)
    };
    let fits = ask(511);
    assert_eq!((fits.status, fits.json()["usage"]["completion_tokens"].as_u64()), (200, Some(1)));
    for tokens in [512, 513, 5000] {
        let over = ask(tokens);
        assert_eq!((over.status, over.error("code").as_str()), (400, "context_length_exceeded"));
        check_error(&over);
        let message = over.error("message");
        assert!(message.contains(&tokens.to_string()) && message.contains("512"), "{message}");
    }
    let long = json!({ "messages": [{ "role": "user", "content": "word ".repeat(1000) }] });
    let over = site.client.post(CHAT, &long);
    assert_eq!((over.status, over.error("param").as_str()), (400, "messages"));
    assert_eq!(over.error("code"), "context_length_exceeded");
}

#[test]
fn prompts_and_messages_have_a_limit() {
    let mut setup = Setup::default();
    setup.server.limits.prompts = 3;
    setup.server.limits.messages = 3;
    let site = Site::with(setup);
    for (count, status) in [(3, 200), (4, 400)] {
        let body = json!({ "prompt": vec!["a"; count], "max_tokens": 1 });
        assert_eq!(site.client.post(TEXT, &body).status, status, "{count} prompts");
        let message = json!({ "role": "user", "content": "a" });
        let body = json!({ "messages": vec![message; count], "max_tokens": 1 });
        assert_eq!(site.client.post(CHAT, &body).status, status, "{count} messages");
    }
}

#[test]
fn only_json_is_taken() {
    let site = Site::new();
    let body = br#"{"prompt":"a","max_tokens":1}"#;
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""] {
        let reply = site.client.send("POST", TEXT, &[("content-type", kind)], body);
        assert_eq!(reply.status, 415, "{kind}");
        check_error(&reply);
    }
    assert_eq!(site.client.send("POST", TEXT, &[], body).status, 415);
    let headers = [("content-type", "application/json; charset=utf-8")];
    assert_eq!(site.client.send("POST", TEXT, &headers, body).status, 200);
}

#[test]
fn unknown_paths_methods_and_models() {
    let site = Site::new();
    let cases = [
        ("POST", "/", 405),
        ("GET", "/v1", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/%0d%0aset-cookie:x", 404),
        ("POST", "/health", 405),
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models/sim", 405),
        ("PUT", TEXT, 405),
    ];
    for (method, path, status) in cases {
        let reply = site.client.send(method, path, &[], b"");
        assert_eq!(reply.status, status, "{method} {path}");
        check_error(&reply);
    }
    for (path, meant) in [
        ("/v1/v1/messages", "there is /v1/messages:"),
        ("/v1/api/chat", "there is /api/chat:"),
        ("/v1/chat/completions/chat/completions", "there is /chat/completions:"),
    ] {
        let message = site.client.send("POST", path, &[], b"").error("message");
        assert!(message.contains(meant), "{message}");
    }
    let body = json!({ "model": "gpt-4\r\nx: y", "prompt": "a" });
    let reply = site.client.post(TEXT, &body);
    assert_eq!((reply.status, reply.error("code").as_str()), (404, "model_not_found"));
    assert!(reply.error("message").contains("sim"));
    check_error(&reply);
}

#[test]
fn a_model_without_a_template_does_not_chat() {
    let site = Site::with(Setup { chat: false, ..Setup::default() });
    let body = json!({ "messages": [{ "role": "user", "content": "a" }] });
    let reply = site.client.post(CHAT, &body);
    assert_eq!((reply.status, reply.error("code").as_str()), (400, "no_chat_template"));
    let body = json!({ "prompt": "a", "max_tokens": 1 });
    assert_eq!(site.client.post(TEXT, &body).status, 200);
}

#[test]
fn headers_have_limits_and_a_time() {
    let mut setup = Setup::default();
    setup.server.timeouts.header = std::time::Duration::from_millis(300);
    setup.server.timeouts.body = std::time::Duration::from_millis(300);
    let site = Site::with(setup);
    let long = "x".repeat(64 << 10);
    let reply = site.client.send("GET", "/health", &[("x-long", long.as_str())], b"");
    assert_eq!(reply.status, 431);
    let names: Vec<String> = (0..200).map(|i| format!("x-{i}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    assert_eq!(site.client.send("GET", "/health", &many, b"").status, 431);
    // A head that never ends: the connection is closed without a word.
    let mut slow = site.client.connect();
    slow.write_all(b"GET /health HTTP/1.1\r\nhost: local").expect("sent");
    let mut rest = String::new();
    let read = std::io::Read::read_to_string(&mut slow, &mut rest);
    assert!(read.is_err() || rest.is_empty() || rest.starts_with("HTTP/1.1 408"), "{rest}");
    // A body that never comes.
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n\
                content-type: application/json\r\ncontent-length: 50\r\n\r\n{";
    let reply = site.client.raw(head.as_bytes()).reply;
    assert_eq!(reply.status, 408);
    assert_eq!(site.client.get("/health").status, 200);
    site.settle();
}

//! Seeing inside a server of a real model: `explain`, receipts and `replay`, traces to a collector.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::program::{Server, answer, case, refusal};

/// A copy of a small chat model, whose files may be changed.
fn model(folder: &Path) -> String {
    let from = case("template-that-looks-for-a-control-token");
    let to = folder.join("model");
    fs::create_dir(&to).expect("a folder");
    for file in fs::read_dir(from).expect("a folder") {
        let file = file.expect("a file");
        fs::copy(file.path(), to.join(file.file_name())).expect("copied");
    }
    to.to_str().expect("UTF-8").to_owned()
}

fn url(server: &Server) -> String {
    format!("http://{}", server.client.address())
}

/// The only receipt in a folder.
fn receipt(folder: &Path) -> String {
    for _ in 0..1000 {
        let files: Vec<_> = fs::read_dir(folder).expect("a folder").flatten().collect();
        let whole = files.first().and_then(|file| fs::read_to_string(file.path()).ok());
        if whole.is_some_and(|text| text.ends_with("}\n")) {
            return files[0].path().to_str().expect("UTF-8").to_owned();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no receipt in {}", folder.display())
}

#[test]
fn a_receipt_is_replayed_and_what_is_another_thing_now_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, receipts) = (model(folder.path()), folder.path().join("receipts"));
    let place = receipts.to_str().expect("UTF-8");
    let server = Server::start(&[&model, "--receipts", place]);
    let body = json!({
        "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 12, "temperature": 1.0,
        "stream": true, "ignore_eos": true,
    });
    let reply = server.client.post("/v1/chat/completions", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    let id = reply.header("x-request-id").expect("an id");
    let receipt = receipt(&receipts);
    assert!(receipt.ends_with(&format!("{id}.json")), "{receipt}");
    let at = url(&server);
    let told = answer(&["explain", id, "--url", &at]);
    for expect in
        [id, "PART", "steps that computed its answer", "computed (", "12 tokens of answer"]
    {
        assert!(told.contains(expect), "{expect} in\n{told}");
    }
    let parts: Value =
        serde_json::from_str(&answer(&["explain", id, "--json", "--url", &at])).expect("JSON");
    assert_eq!(parts["prompts"][0]["completion_tokens"], 12, "{parts}");
    assert!(answer(&["explain", "--url", &at]).contains(id));
    assert!(refusal(&["explain", "req-none", "--url", &at]).contains("req-none"));
    assert!(answer(&["replay", &receipt, "--url", &at]).contains("the same answer"));
    drop(server);
    // Another form of keys and values: named, whether the bytes are others or not.
    let server = Server::start(&[&model, "--kv", "f32"]);
    let found = crate::program::run(&["replay", &receipt, "--json", "--url", &url(&server)]);
    let found: Value = serde_json::from_slice(&found.stdout).expect("JSON");
    let parts = |found: &Value| -> Vec<String> {
        let all = found["differences"].as_array().expect("a list").iter();
        all.map(|one| one["part"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(parts(&found), ["the KV format"], "{found}");
    drop(server);
    // One weight and the template.
    let weights = Path::new(&model).join("model.safetensors");
    let mut bytes = fs::read(&weights).expect("weights");
    let last = bytes.len() - 2;
    bytes[last] ^= 0x10;
    fs::write(&weights, bytes).expect("written");
    let settings = Path::new(&model).join("tokenizer_config.json");
    let mut text: Value =
        serde_json::from_str(&fs::read_to_string(&settings).expect("text")).expect("JSON");
    let template = text["chat_template"].as_str().expect("a template").to_owned();
    text["chat_template"] = json!(format!("{template} and more"));
    fs::write(&settings, text.to_string()).expect("written");
    let server = Server::start(&[&model]);
    let found = crate::program::run(&["replay", &receipt, "--json", "--url", &url(&server)]);
    let found: Value = serde_json::from_slice(&found.stdout).expect("JSON");
    let named = parts(&found);
    for part in ["the model's weights", "the chat template", "the prompt's tokens"] {
        assert!(named.iter().any(|name| name == part), "{part}: {found}");
    }
    assert_eq!(found["same"], false, "{found}");
}

#[test]
fn traces_come_to_a_collector_and_lines_of_the_log_bear_the_id() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = model(folder.path());
    let collector = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = format!("http://{}", collector.local_addr().expect("an address"));
    let server = Server::start(&[&model, "--otlp", &at, "--log-format", "json"]);
    let body = json!({ "prompt": "swordfish", "max_tokens": 2 });
    let reply = server.client.post("/v1/completions", &body);
    let id = reply.header("x-request-id").expect("an id").to_owned();
    let (mut socket, _) = collector.accept().expect("it is told");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let (mut text, mut part) = (String::new(), [0; 4096]);
    while !text.contains(&id) {
        let n = socket.read(&mut part).expect("more");
        assert!(n > 0, "cut: {text}");
        text.push_str(&String::from_utf8_lossy(&part[..n]));
    }
    socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").expect("answered");
    assert!(text.starts_with("POST /v1/traces HTTP/1.1"), "{text}");
    assert!(text.contains("resourceSpans") && !text.contains("swordfish"), "{text}");
    let said = server.said();
    let line = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut lines = line.filter(|line| line["fields"]["message"] == "request");
    let line = lines.next().expect("a line");
    assert_eq!(line["fields"]["id"], json!(id), "{line}");
    assert!(!said.contains("swordfish"));
}

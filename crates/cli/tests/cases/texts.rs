//! Tokenizers, templates and what they are given.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::program::{Server, answer, case, json as read, refusal, run, text};

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A chat's prompt is these tokens: their number, and the first token after them, are the same.
fn asks(folder: &str) {
    let folder = case(folder);
    let server = Server::start(&[path(&folder)]);
    let mut chat = read(&folder.join("request.json"));
    let ids = read(&folder.join("expect.json"))["prompt_ids"].clone();
    let count = ids.as_array().expect("a list").len();
    for (name, value) in [("max_tokens", json!(1)), ("temperature", json!(0))] {
        chat[name] = value;
    }
    let mut plain = json!({"prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 3});
    (chat["logprobs"], chat["top_logprobs"]) = (json!(true), json!(3));
    for body in [&mut chat, &mut plain] {
        body["model"] = server.client.get("/v1/models").json()["data"][0]["id"].clone();
    }
    let chat = server.client.post("/v1/chat/completions", &chat).json();
    let plain = server.client.post("/v1/completions", &plain).json();
    assert_eq!(chat["usage"]["prompt_tokens"], count, "{chat}");
    let found: Vec<&Value> = chat["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        .as_array()
        .unwrap_or_else(|| panic!("{chat}"))
        .iter()
        .map(|entry| &entry["logprob"])
        .collect();
    let expected = plain["choices"][0]["logprobs"]["top_logprobs"][0].as_object();
    let expected: Vec<&Value> = expected.unwrap_or_else(|| panic!("{plain}")).values().collect();
    assert_eq!(found, expected, "{chat}\n{plain}");
}

/// A cause is told once, and on one line, whatever the file writes into it.
#[test]
fn causes_of_templates_are_told_once() {
    let home = tempfile::tempdir().expect("a folder");
    let from = case("template-that-looks-for-a-control-token");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(from.join(name), home.path().join(name)).expect("copied");
    }
    let model = home.path().to_str().expect("UTF-8");
    for (template, cause) in [
        ("{% if %}", "the chat template is not valid: line 1: "),
        ("{{ raise_exception('a\nb\n') }}", "the chat template refused the messages: a b"),
    ] {
        std::fs::write(home.path().join("chat_template.jinja"), template).expect("written");
        let told = refusal(&["run", model, "hello"]);
        assert_eq!(told.matches(cause).count(), 1, "{told}");
        let lines: Vec<&str> = told.lines().skip_while(|l| !l.starts_with("error: ")).collect();
        assert!(lines.len() < 4 && lines.get(1).is_some_and(|l| l.contains(cause)), "{told}");
    }
}

#[test]
fn template_that_looks_for_a_control_token() {
    asks("template-that-looks-for-a-control-token");
}

#[test]
fn text_parts_and_a_template_that_reads_parts() {
    asks("text-parts-and-a-template-that-reads-parts");
}

#[test]
fn content_forms_that_templates_read() {
    let model = case("text-parts-and-a-template-that-reads-parts");
    let list = read(&case("content-forms-that-templates-read").join("templates.json"));
    for entry in list.as_array().expect("a list") {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["config.json", "model.safetensors", "tokenizer.json"] {
            fs::copy(model.join(name), folder.path().join(name)).expect("copied");
        }
        let mut config = read(&model.join("tokenizer_config.json"));
        config["chat_template"] = entry["template"].clone();
        let config = serde_json::to_vec(&config).expect("JSON");
        fs::write(folder.path().join("tokenizer_config.json"), config).expect("written");
        let server = Server::start(&[path(folder.path())]);
        let model = server.client.get("/v1/models").json()["data"][0]["id"].clone();
        let mut chat = json!({"model": model, "max_tokens": 1, "temperature": 0});
        let mut plain = chat.clone();
        (chat["messages"], plain["prompt"]) = (entry["messages"].clone(), entry["prompt"].clone());
        (chat["logprobs"], plain["logprobs"]) = (json!(true), json!(1));
        let chat = server.client.post("/v1/chat/completions", &chat).json();
        let plain = server.client.post("/v1/completions", &plain).json();
        assert!(plain["usage"]["prompt_tokens"].is_u64(), "{plain}");
        let found = &chat["usage"]["prompt_tokens"];
        assert_eq!(*found, plain["usage"]["prompt_tokens"], "{}: {chat}", entry["name"]);
        let found = &chat["choices"][0]["logprobs"]["content"][0]["logprob"];
        let expect = &plain["choices"][0]["logprobs"]["token_logprobs"][0];
        assert_eq!(found, expect, "{}: {chat}\n{plain}", entry["name"]);
    }
}

#[test]
fn byte_level_vocabulary_with_a_sentencepiece_decoder() {
    let folder = case("byte-level-vocabulary-with-a-sentencepiece-decoder");
    let other = tempfile::tempdir().expect("a folder");
    for name in ["config.json", "model.safetensors", "tokenizer_config.json"] {
        fs::copy(folder.join(name), other.path().join(name)).expect("copied");
    }
    let file = folder.join("tokenizer_no_decoder.json");
    fs::copy(file, other.path().join("tokenizer.json")).expect("copied");
    for folder in [folder.as_path(), other.path()] {
        let said = answer(&["run", path(folder), "Z", "--raw", "--temp", "0", "-n", "20"]);
        assert!(said.starts_with("A fox runs!"), "{said:?}");
    }
    let server = Server::start(&[path(&folder)]);
    let model = server.client.get("/v1/models").json()["data"][0]["id"].clone();
    let mut body = json!({"model": model, "prompt": "Z", "max_tokens": 20, "temperature": 0});
    let whole = server.client.post("/v1/completions", &body).json();
    assert!(whole["choices"][0]["text"].as_str().is_some_and(|t| t.starts_with("A fox runs!")));
    body["stream"] = json!(true);
    let events = server.client.stream("/v1/completions", &body).finish().events();
    let texts = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let texts = texts.map(|e| e["choices"][0]["text"].as_str().unwrap_or_default().to_owned());
    assert_eq!(texts.collect::<String>(), whole["choices"][0]["text"], "{events:?}");
}

#[test]
fn gguf_without_pre_tokenizer() {
    let file = case("gguf-without-pre-tokenizer").join("model.gguf");
    let told = answer(&["lint", path(&file)]);
    assert!(told.contains("(guessed_pre_tokenizer)"), "{told}");
    let output = run(&["run", path(&file), "hi", "--raw", "-n", "1"]);
    let told = text(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert_eq!(told.matches("tokenizer.ggml.pre").count(), 1, "{told}");
}

#[test]
fn template_width_of_a_format() {
    let folder = case("template-width-of-a-format");
    let told = refusal(&["run", path(&folder), "hi"]);
    assert!(told.contains("too much time or memory"), "{told}");
    refusal(&["lint", path(&folder)]);
    let server = Server::start(&[path(&folder)]);
    let model = server.client.get("/v1/models").json()["data"][0]["id"].clone();
    let body = json!({"model": model, "messages": [{"role": "user", "content": "hi"}]});
    for _ in 0..2 {
        assert_eq!(server.client.post("/v1/chat/completions", &body).status, 400);
    }
}

#[test]
fn template_work_that_no_fuel_counts() {
    let folder = case("template-work-that-no-fuel-counts");
    let told = refusal(&["run", path(&folder), "hi"]);
    assert!(told.contains("too much time or memory"), "{told}");
}

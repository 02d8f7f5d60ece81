//! A program with a model inside: alone in a folder it answers as the model file does.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::program::{Server, answer, case, command, refusal, text};

/// What is asked: a model file without a chat template.
const ASK: [&str; 7] = ["hi there", "--raw", "-n", "8", "--temp", "0", "--json"];

fn model() -> String {
    let file = case("gguf-without-pre-tokenizer").join("model.gguf");
    file.to_str().expect("UTF-8").to_owned()
}

/// That program in an empty home, started where nothing else is.
fn program(path: &Path, home: &Path) -> Command {
    let plain = command(home);
    let mut command = Command::new(path);
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(home).stdin(Stdio::null());
    command
}

fn run(path: &Path, home: &Path, args: &[&str], input: &str) -> Output {
    let mut command = program(path, home);
    let command = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
    let command = command.stderr(Stdio::piped());
    // (A process that another test starts may hold a program that was just written for a moment.)
    let mut child = loop {
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {}
            child => break child.expect("it starts"),
        }
    };
    // (One that fails early reads nothing.)
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    child.wait_with_output().expect("it ends")
}

/// The text and token counts of an answer as JSON.
fn said(out: &str) -> Value {
    let line: Value = serde_json::from_str(out.trim()).unwrap_or_else(|e| panic!("{e}: {out}"));
    json!({ "text": line["text"], "tokens": line["completion_tokens"] })
}

#[test]
fn a_bundle_needs_no_file_but_itself() {
    let (made, moved, home) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let out = made.path().join("made");
    let copy = made.path().join("copy.gguf");
    fs::copy(model(), &copy).expect("copied");
    let args =
        ["bundle", copy.to_str().unwrap(), "--name", "tiny/one", "-o", out.to_str().unwrap()];
    answer(&args);
    let told = refusal(&args);
    assert!(told.contains("it is there already"), "{told}");
    let path = moved.path().join("program");
    fs::rename(&out, &path).expect("moved");
    drop(made);
    let expect = said(&answer(&[&["run", &model()][..], &ASK[..]].concat()));
    assert!(!expect["text"].as_str().expect("a text").is_empty(), "{expect}");
    let good = |args: &[&str], input: &str| {
        let output = run(&path, home.path(), args, input);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{args:?}: {out}\n{err}");
        out
    };
    assert_eq!(said(&good(&[&["run"][..], &ASK[..]].concat(), "")), expect);
    assert_eq!(said(&good(&ASK[1..], ASK[0])), expect, "without a command it runs");
    let shown = good(&["show"], "");
    assert!(shown.starts_with("tiny/one "), "{shown}");
    assert!(good(&["inspect", "--meta"], "").contains("general.architecture"));
    assert!(good(&["--version"], "").starts_with("tokenmill "));
    let mut serve = program(&path, home.path());
    serve.args(["serve", "--no-seal-key"]);
    let server = Server::of(serve, tempfile::tempdir().unwrap());
    assert_eq!(server.client.get("/v1/models").json()["data"][0]["id"], "tiny/one");
    let body = json!({ "model": "tiny/one", "prompt": ASK[0], "max_tokens": 8, "temperature": 0 });
    let reply = server.client.post("/v1/completions", &body);
    assert_eq!(reply.json()["choices"][0]["text"], expect["text"], "{reply:?}");
    drop(server);
    // Nothing was unpacked.
    for folder in [moved.path(), home.path()] {
        let names: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(names.iter().all(|name| name == "program"), "{names:?}");
    }
    // Cut off: in the model, and right behind it.
    let whole = fs::metadata(&path).unwrap().len();
    for bytes in [whole - 1, whole - 60_000] {
        fs::File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
        let output = run(&path, home.path(), &["run", "hi"], "");
        let err = text(&output.stderr);
        let expect = format!("it has {bytes} bytes of {whole}");
        assert!(!output.status.success() && err.contains(&expect), "{err}");
    }
}

#[test]
fn what_is_no_single_gguf_is_not_bundled() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("out");
    let folder = case("template-that-looks-for-a-control-token");
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for model in [folder.to_str().unwrap(), text] {
        let told = refusal(&["bundle", model, "-o", out.to_str().unwrap()]);
        assert!(told.contains("safetensors") || told.contains("cannot read"), "{told}");
        assert!(!out.exists());
    }
}

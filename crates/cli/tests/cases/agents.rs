//! `launch`: each agent's settings are written, used and put back, whatever happens in between.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::program::{self, Server, case, text};

const KEY: &str = "key-of-a-test";
/// Its name in the API.
const MODEL: &str = "template-that-looks-for-a-control-token";

fn serve() -> Server {
    let model = case(MODEL);
    Server::start(&[model.to_str().expect("UTF-8"), "--api-key", KEY])
}

/// A home, and a folder of programs in it.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().expect("a folder"));
        fs::create_dir(home.path("bin")).expect("made");
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, bytes).expect("written");
        path
    }

    /// An agent that is a script; `$HOME` is this home.
    fn program(&self, name: &str, script: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.write(&format!("bin/{name}"), format!("#!/bin/sh\n{script}\n").as_bytes());
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("set");
    }

    /// All files, with what is in them.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let (mut found, mut folders) = (Vec::new(), vec![self.0.path().to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => found.push((path.clone(), fs::read(&path).expect("read"))),
                }
            }
        }
        found.sort();
        found
    }

    fn command(&self, server: &Server, args: &[&str]) -> Command {
        let mut command = program::command(self.0.path());
        let path = format!("{}:/usr/bin:/bin", self.path("bin").display());
        let url = format!("http://{}", server.client.address());
        command.env("XDG_CONFIG_HOME", self.path(".config")).env("PATH", path);
        command.env("TOKENMILL_API_KEY", KEY).env_remove("CODEX_HOME");
        command.arg("launch").args(&args[..1]).args(["--url", &url]).args(&args[1..]);
        command
    }

    /// Status, standard output and standard error.
    fn launch(&self, server: &Server, args: &[&str]) -> (Option<i32>, String, String) {
        let output = self.command(server, args).output().expect("it starts");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }
}

fn read(path: &Path) -> Value {
    program::json(path)
}

/// Where an agent's client library asks, and with which key, by what was written and by the variables
/// and arguments that it is started with.
fn asks(agent: &str, home: &Home, said: &str) -> (String, String) {
    let word = |value: &Value| value.as_str().expect("a text").to_owned();
    let variable = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("no {name}: {said}")).to_owned()
    };
    let chat = |base: String| format!("{base}/chat/completions");
    match agent {
        "codex" => {
            let file = fs::read_to_string(home.path(".codex/config.toml")).expect("written");
            let has = |line: &str| assert!(file.lines().any(|l| l == line), "{line}: {file}");
            has("[model_providers.tokenmill]");
            has("wire_api = \"responses\"");
            has("supports_websockets = false");
            has("env_key = \"TOKENMILL_API_KEY\"");
            has("model_context_window = 512");
            let base = file.lines().find_map(|l| l.strip_prefix("base_url = ")).expect("a URL");
            (format!("{}/responses", base.trim_matches('"')), variable("TOKENMILL_API_KEY"))
        }
        "opencode" | "kilo" => {
            let own = format!(".config/{agent}/tokenmill.json");
            assert!(variable(&format!("{}_CONFIG", agent.to_uppercase())).ends_with(&own));
            let file = read(&home.path(&own));
            let provider = &file["provider"]["tokenmill"];
            assert_eq!(provider["npm"], "@ai-sdk/openai-compatible");
            assert_eq!(file["model"], format!("tokenmill/{MODEL}"));
            assert_eq!(provider["models"][MODEL]["limit"]["context"], 512);
            assert_eq!(provider["options"]["apiKey"], "{env:TOKENMILL_API_KEY}");
            (chat(word(&provider["options"]["baseURL"])), variable("TOKENMILL_API_KEY"))
        }
        "pi" => {
            let file = read(&home.path(".pi/agent/models.json"));
            let provider = &file["providers"]["tokenmill"];
            assert_eq!(provider["api"], "openai-completions");
            assert_eq!(provider["models"][0]["contextWindow"], 512);
            (chat(word(&provider["baseUrl"])), word(&provider["apiKey"]))
        }
        "cline" => {
            let file = read(&home.path(".cline/tokenmill.json"));
            assert_eq!(file["lastUsedProvider"], "openai-compatible");
            assert!(variable("CLINE_PROVIDER_SETTINGS_PATH").ends_with("/.cline/tokenmill.json"));
            let settings = &file["providers"]["openai-compatible"]["settings"];
            (chat(word(&settings["baseUrl"])), word(&settings["apiKey"]))
        }
        "continue" => {
            let file = fs::read_to_string(home.path(".continue/tokenmill.yaml")).expect("written");
            let line = |name: &str| {
                let found = file.lines().find_map(|l| l.trim().strip_prefix(name));
                found.unwrap_or_else(|| panic!("no {name}: {file}")).trim_matches('"').to_owned()
            };
            assert_eq!(
                (line("provider: "), line("contextLength: ")),
                ("openai".into(), "512".into())
            );
            (chat(line("apiBase: ")), line("apiKey: "))
        }
        "qwen" => (chat(variable("OPENAI_BASE_URL")), variable("OPENAI_API_KEY")),
        "aider" => (chat(variable("OPENAI_API_BASE")), variable("OPENAI_API_KEY")),
        other => panic!("{other} is not in the table"),
    }
}

#[test]
fn agents_ask_where_launch_sends_them() {
    let server = serve();
    let recorded = read(&case("agents-ask-where-launch-sends-them").join("requests.json"));
    for row in recorded.as_array().expect("a list") {
        let agent = row["agent"].as_str().expect("a name");
        let home = Home::new();
        let program = if agent == "continue" { "cn" } else { agent };
        // What it was started with, and a copy of its settings before they are put back.
        let keep =
            "mkdir -p \"$HOME/seen\"; cd \"$HOME\"; cp -r .[!.]* \"$HOME/seen/\" 2>/dev/null";
        home.program(program, &format!("env; echo \"ARGS=$*\"; {keep}; exit 0"));
        let before = home.files();
        let (status, said, err) = home.launch(&server, &[agent, "--", "task"]);
        assert_eq!(status, Some(0), "{agent}: {err}");
        assert!(said.lines().any(|l| l.starts_with("ARGS=") && l.ends_with("task")), "{said}");
        let seen = Home(tempfile::tempdir().expect("a folder"));
        if home.path("seen").exists() {
            fs::remove_dir(seen.0.path()).expect("empty");
            fs::rename(home.path("seen"), seen.0.path()).expect("moved");
        }
        let (url, key) = asks(agent, &seen, &said);
        assert_eq!(home.files(), before, "{agent}: all is as it was");
        let path = url.strip_prefix(&format!("http://{}", server.client.address()));
        assert_eq!(path, row["path"].as_str(), "{agent}");
        let headers = row["headers"].as_array().expect("a list");
        assert!(headers.contains(&json!("authorization")), "{agent}");
        let body = match agent {
            "codex" => json!({ "model": MODEL, "input": "a", "max_output_tokens": 1 }),
            _ => json!({ "model": MODEL, "messages": [{ "role": "user", "content": "a" }],
                "max_tokens": 1 }),
        };
        let bearer = format!("Bearer {key}");
        let head = [("content-type", "application/json"), ("authorization", bearer.as_str())];
        let path = path.unwrap_or_default();
        let reply = server.client.send("POST", path, &head, body.to_string().as_bytes());
        assert_eq!(reply.status, 200, "{agent}: {reply:?}");
    }
}

#[test]
fn settings_are_kept_through_whatever_happens() {
    let server = serve();
    let home = Home::new();
    let own = b"# mine\r\nmodel = \"x\"\r\n\r\n[projects.\"/a\"]\ntrust_level = \"trusted\"\n";
    let file = home.write(".codex/config.toml", own);
    let config = || fs::read(&file).expect("there");
    let before = home.files();
    // Nothing is written by --print.
    let (status, out, _) = home.launch(&server, &["codex", "--print"]);
    assert!(status == Some(0) && out.contains("supports_websockets = false"), "{out}");
    assert_eq!(home.files(), before);
    // What it ends with is told, and the file is as it was.
    home.program("codex", "cat \"$HOME/.codex/config.toml\"; exit 7");
    let before = home.files();
    let (status, out, err) = home.launch(&server, &["codex"]);
    assert_eq!(status, Some(7), "{err}");
    assert!(out.contains("# mine") && out.contains("trust_level") && out.contains("tokenmill"));
    assert!(!out.contains("\"x\""), "{out}");
    assert_eq!(home.files(), before);
    // Killed meanwhile: the next one, or --restore, knows what was there.
    home.program("codex", "kill -9 $PPID; sleep 0.1; exit 0");
    let before = home.files();
    let killed = home.launch(&server, &["codex"]).0;
    assert_eq!(killed, None, "a signal");
    assert!(config() != own);
    let (status, _, err) = home.launch(&server, &["codex", "--write"]);
    assert_eq!(status, Some(0), "{err}");
    assert!(config() != own);
    assert_eq!(home.launch(&server, &["codex", "--restore"]).0, Some(0));
    assert_eq!(home.files(), before);
    // What the agent itself writes stays, and ours goes.
    home.program("codex", "printf '[new]\\nx = 1\\n' >> \"$HOME/.codex/config.toml\"");
    let (status, _, err) = home.launch(&server, &["codex"]);
    assert!(status == Some(0) && err.contains("is taken out"), "{err}");
    let now = text(&config()).replace("\r\n", "\n");
    assert_eq!(now, text(own).replace("\r\n", "\n") + "[new]\nx = 1\n");
    fs::write(&file, own).expect("written");
    assert!(!file.with_file_name("config.toml.tokenmill-written").exists());
    // Where it changes ours too, its file stays, and what was before is still there.
    home.program("codex", "sed -i 's/^model = .*/model = \"z\"/' \"$HOME/.codex/config.toml\"");
    let (status, _, err) = home.launch(&server, &["codex"]);
    assert_eq!(status, Some(0), "{err}");
    assert!(err.contains("was changed since") && err.contains("mv "), "{err}");
    assert!(text(&config()).contains("\"z\""));
    let original = file.with_file_name("config.toml.tokenmill-original");
    assert_eq!(fs::read(&original).expect("kept"), own);
    assert_eq!(home.launch(&server, &["codex", "--restore"]).0, Some(1));
    // It says what it is to say again, so that nothing need be written; then ours goes here too.
    let now = text(&config()).replace("\"z\"", &format!("\"{MODEL}\""));
    fs::write(&file, now + "[new]\n").expect("written");
    home.program("codex", "exit 0");
    assert_eq!(home.launch(&server, &["codex"]).0, Some(0));
    let now = text(&config());
    assert!(
        now.contains("\"x\"") && now.ends_with("[new]\n") && !now.contains("tokenmill"),
        "{now}"
    );
    assert!(!original.exists());
}

#[test]
fn what_cannot_be_launched_is_told() {
    let server = serve();
    let home = Home::new();
    for (args, expect) in [
        (&["claude"][..], "there is no program claude"),
        (&["claude", "--write"], "there is no file to write"),
        (&["aider", "--model", "other"], "does not serve other"),
    ] {
        let (status, _, err) = home.launch(&server, args);
        assert!(status == Some(1) && err.contains(expect), "{args:?}: {err}");
    }
    let file = home.write(".pi/agent/models.json", b"{ 1 }");
    let (status, _, err) = home.launch(&server, &["pi", "--write"]);
    assert!(status == Some(1) && err.contains("cannot edit"), "{err}");
    assert_eq!(fs::read(file).expect("there"), b"{ 1 }");
    // Not installed: nothing is written, or its settings are if that is asked for, and stay.
    let file = home.write(".pi/agent/models.json", b"{\n  // mine\n  \"a\": [1,],\n}\n");
    let before = home.files();
    let (status, _, err) = home.launch(&server, &["pi"]);
    assert!(status == Some(1) && err.contains("there is no program pi"), "{err}");
    assert_eq!(home.files(), before);
    let (status, _, err) = home.launch(&server, &["pi", "--write"]);
    assert!(status == Some(0) && err.contains("not installed"), "{err}");
    let now = fs::read_to_string(&file).expect("there");
    assert!(now.starts_with("{\n  // mine\n  \"a\": [1,],\n  \"providers\": {"), "{now}");
    assert_eq!(home.launch(&server, &["pi", "--restore"]).0, Some(0));
    assert_eq!(fs::read(&file).expect("there"), b"{\n  // mine\n  \"a\": [1,],\n}\n");
    // By its variables alone.
    home.program("claude", "env; echo \"ARGS=$*\"");
    let before = home.files();
    let (status, out, err) = home.launch(&server, &["claude", "--", "-p", "hello"]);
    assert_eq!(status, Some(0), "{err}");
    let url = format!("ANTHROPIC_BASE_URL=http://{}", server.client.address());
    for line in [url.as_str(), "ANTHROPIC_AUTH_TOKEN=key-of-a-test", "ARGS=-p hello"] {
        assert!(out.lines().any(|l| l == line), "{line}: {out}");
    }
    assert_eq!(home.files(), before);
}

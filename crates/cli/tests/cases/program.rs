//! The program under test: run to its end, or serving.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokenmill_http_tests::Client;

/// The folder of a case.
pub fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases").join(name)
}

/// A JSON file of a case.
pub fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The program with nothing of this machine's: no models, no keys, no hub.
pub fn command(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokenmill"));
    for name in ["HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS", "TOKENMILL_API_KEY"] {
        command.env_remove(name);
    }
    command
        .env("HOME", home)
        .env("XDG_DATA_HOME", home.join("data"))
        .env("XDG_CACHE_HOME", home.join("cache"))
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("HF_ENDPOINT", "http://127.0.0.1:9")
        .stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub fn run(args: &[&str]) -> Output {
    let home = tempfile::tempdir().expect("a folder");
    command(home.path()).args(args).output().expect("the program starts")
}

/// Standard output of a run that must succeed.
pub fn answer(args: &[&str]) -> String {
    let output = run(args);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{args:?}: {}\n{out}\n{err}", output.status);
    out
}

/// Standard error of a run that must end with status 1 (a told failure, no panic).
pub fn refusal(args: &[&str]) -> String {
    let output = run(args);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{args:?}\n{out}\n{err}");
    err
}

/// What a program printed.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `score` of the model gives the log-probabilities of a file like expect.json.
pub fn scores(model: &Path, expect: &Path) {
    let expect = json(expect);
    let list = |key: &str| expect[key].as_array().expect("a list").clone();
    let ids: Vec<String> = list("ids").iter().map(Value::to_string).collect();
    let model = model.to_str().expect("UTF-8");
    let out = answer(&[
        "score",
        model,
        "--ids",
        &ids.join(","),
        "--mode",
        "f32",
        "--kv",
        "f32",
        "--json",
    ]);
    let found: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let expected = list("logprobs");
    assert_eq!(found.len(), expected.len());
    let tolerance = expect["tolerance"].as_f64().expect("a tolerance");
    for (at, (line, expected)) in found.iter().zip(&expected).enumerate() {
        match (line["logprob"].as_f64(), expected.as_f64()) {
            (Some(a), Some(b)) => assert!((a - b).abs() <= tolerance, "{at}: {a}, not {b}"),
            (a, b) => assert_eq!(a, b, "{at}"),
        }
    }
}

/// `serve`, until it is dropped.
pub struct Server {
    child: Child,
    /// Asks it.
    pub client: Client,
    _home: tempfile::TempDir,
    said: Arc<Mutex<String>>,
}

impl Server {
    /// Serves with these arguments on a free port.
    pub fn start(args: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        Self::start_in(home, args)
    }

    /// The same with a home of its own, which may have settings.
    pub fn start_in(home: tempfile::TempDir, args: &[&str]) -> Self {
        let mut command = command(home.path());
        command.arg("serve").args(args);
        Self::of(command, home)
    }

    /// What it has said on its standard error.
    pub fn said(&self) -> String {
        self.said.lock().expect("no panic").clone()
    }

    /// A number of its line in /proc, such as `RssAnon:` (KiB) and `Threads:`.
    pub fn status(&self, line: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).expect("it runs");
        let found = text.lines().find_map(|l| l.strip_prefix(line)?.split_whitespace().next());
        found.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {line}"))
    }

    /// Sends it a signal, such as `HUP`.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &id]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// The same under a limit of the shell's, such as `ulimit -f 100`.
    pub fn limited(limit: &str, args: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let plain = command(home.path());
        let mut command = Command::new("sh");
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.arg("-c").arg(format!("{limit}; exec \"$0\" \"$@\"")).arg(plain.get_program());
        command.arg("serve").args(args).stdin(Stdio::null());
        Self::of(command, home)
    }

    /// The program of a command, until it is dropped.
    pub fn of(mut command: Command, home: tempfile::TempDir) -> Self {
        let command = command.args(["--port", "0"]).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut told = String::new();
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let address: SocketAddr = loop {
            let line = lines.next().unwrap_or_else(|| panic!("it ended: {told}")).expect("text");
            let found = line.split_once("listening on ").and_then(|(_, url)| url.split_once("://"));
            let word = found.map(|(_, rest)| rest.split_whitespace().next().unwrap_or_default());
            if let Some(address) = word {
                break address.parse().expect("an address");
            }
            told.push_str(&line);
            told.push('\n');
        };
        // Whatever it says later must not fill the pipe.
        let said = Arc::new(Mutex::new(told));
        let heard = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut heard = heard.lock().expect("no panic");
                heard.push_str(&line);
                heard.push('\n');
            }
        });
        Self { child, client: Client::new(address), _home: home, said }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! What goes wrong in other servers, as their trackers tell it: scenarios of requests, and what
//! must come of each. Here over models that would say anything; `.ci/real-model` plays the same against
//! real ones.

mod checks;
mod expect;
mod steps;

use std::any::Any;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokenmill_http_tests::{Client, Setup, ShelfSite, Site};
use tokenmill_server::{ServerConfig, StateConfig};

use steps::{Done, Server, play};

const SCENARIOS: &str = include_str!("../../fixtures/service.jsonl");

/// Paths of dialects that are not there yet; a slash at the end: and all below.
const LATER: &[&str] = &[];

/// Scenarios that a simulated model alone plays, and why.
const SIMULATED: &[(&str, &str)] = &[(
    "ollama-tool-calls-are-objects",
    "a model of 0.5B writes its call into a fence of code, which is text (docs/tools.md)",
)];

fn scenarios() -> Vec<Value> {
    SCENARIOS.lines().map(|line| serde_json::from_str(line).expect("a scenario")).collect()
}

/// What is logged, all tests together.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn logged() -> Option<String> {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    Some(String::from_utf8_lossy(&log).into_owned())
}

/// What leads a model that would say anything to what a scenario is about.
fn leads(id: &str, path: &str) -> Value {
    match (id, path) {
        ("messages-stop-sequence-is-named", _) => json!({ "guided_choice": ["1 2 3 4 5 6 7 8 9"] }),
        // Of bytes, each is a token; and one call.
        ("messages-tool-stream", _) => json!({
            "max_tokens": 200, "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
        }),
        // What it says is a text, and the word in question comes.
        ("llamacpp-logit-bias-forms", "/completion") => {
            json!({ "grammar": "root ::= [a-z]+" })
        }
        ("llamacpp-stops-and-timings", "/completion") => {
            json!({ "grammar": "root ::= \" four one two three four one two three\"" })
        }
        // A model that never closed a string would never end one.
        (_, "/v1/chat/completions") => json!({ "logit_bias": { "34": 6 } }),
        // Likewise; a real model is asked for any JSON.
        ("ollama-forms-of-format", "/api/chat") => json!({ "format": {
            "type": "object", "properties": { "a": { "enum": [1] } }, "required": ["a"],
            "additionalProperties": false,
        } }),
        // An answer that takes a while.
        ("time-to-live-starts-at-the-end", "/api/generate") => {
            json!({ "format": { "enum": ["a river that has run through a wide land for long"] } })
        }
        _ => Value::Null,
    }
}

fn setup(context: u32) -> Setup {
    let step = Duration::from_millis(1);
    Setup { context, blocks: 1000, sequences: 4, step, ..Setup::default() }
}

/// A simulated site in the place of the server that a scenario asks for, and who asks it.
fn site(name: &str) -> (Box<dyn Any>, Client) {
    if name == "two" {
        let site = ShelfSite::new(setup(2048), 1000, &[("small", 100), ("big", 300)]);
        let client = site.client;
        return (Box::new(site), client);
    }
    if name == "state" {
        let folder = tempfile::tempdir().expect("a folder");
        let mut server = ServerConfig::new(([127, 0, 0, 1], 0).into());
        server.state = Some(StateConfig::new(folder.path()));
        let site = Site::with(Setup { server, ..setup(2048) });
        let client = site.client;
        return (Box::new((site, folder)), client);
    }
    let site = simulated(name);
    let client = site.client;
    (Box::new(site), client)
}

fn simulated(name: &str) -> Site {
    let mut server = ServerConfig::new(([127, 0, 0, 1], 0).into());
    match name {
        "smol" => Site::with(setup(2048)),
        "qwen" => Site::with(setup(4096)),
        "embed" => Site::with(Setup { columns: Some(32), ..setup(512) }),
        "keyed" => {
            server.api_keys = ["k-alpha-7f3d91", "k-beta-02c8aa"].map(str::to_owned).into();
            Site::with(Setup { server, ..setup(2048) })
        }
        "cors" => {
            server.allowed_origins.push("http://app.example:3000".to_owned());
            Site::with(Setup { server, ..setup(2048) })
        }
        other => panic!("no server is called {other}"),
    }
}

#[test]
fn what_goes_wrong_elsewhere_goes_right() {
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log);
    log.with_max_level(tracing::Level::INFO).init();
    let mut all = Done::default();
    let mut played = Vec::new();
    for name in ["smol", "qwen", "keyed", "cors", "two", "embed", "state"] {
        let (_site, client) = site(name);
        let server = Server { client, log: logged, pid: None, leads };
        for scenario in scenarios().iter().filter(|scenario| scenario["server"] == name) {
            let id = scenario["id"].as_str().expect("a name");
            let done = play(scenario, &server, LATER);
            played.extend((done.steps > 0).then(|| id.to_owned()));
            all.steps += done.steps;
            all.left_out.extend(done.left_out);
        }
    }
    let rest: Vec<String> = scenarios()
        .iter()
        .map(|scenario| scenario["id"].as_str().expect("a name").to_owned())
        .filter(|id| !played.contains(id))
        .collect();
    println!("{} scenarios, {} steps; none of {rest:?}", played.len(), all.steps);
    println!("left out: {:?}", all.left_out);
    assert!(played.len() > 25 && all.steps > 80, "{} steps of {}", all.steps, played.len());
}

/// The same with a real model: `TOKENMILL_SCENARIOS` is its server's name here and its address.
#[test]
#[ignore = "asks a server that runs already"]
fn what_goes_wrong_elsewhere_goes_right_with_a_real_model() {
    let told = std::env::var("TOKENMILL_SCENARIOS").expect("TOKENMILL_SCENARIOS=NAME=ADDRESS");
    let (name, address) = told.split_once('=').expect("NAME=ADDRESS");
    let client = Client::new(address.parse().expect("an address"));
    let server = Server { client, log: || None, pid: None, leads: |_, _| Value::Null };
    let is_simulated = |id: &Value| SIMULATED.iter().any(|(simulated, _)| id == simulated);
    let of_name = scenarios()
        .into_iter()
        .filter(|scenario| scenario["server"] == name && !is_simulated(&scenario["id"]));
    let mut all = Done::default();
    for scenario in of_name.filter(|scenario| scenario["of"] == "answers") {
        let done = play(&scenario, &server, LATER);
        println!("{}: {} steps", scenario["id"], done.steps);
        all.steps += done.steps;
    }
    assert!(all.steps > 0, "no scenario is for a server called {name}");
}

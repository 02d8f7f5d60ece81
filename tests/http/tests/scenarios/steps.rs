//! A scenario's steps, one after another, against a server that listens somewhere.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use tokenmill_http_tests::{Client, Reply};

use crate::checks::{found, wrong};
use crate::expect::faults;

/// A server that scenarios are told to.
pub struct Server {
    pub client: Client,
    /// What it has logged so far; `None` where nobody sees.
    pub log: fn() -> Option<String>,
    /// Its process, where that is not this one.
    pub pid: Option<u32>,
    /// Members of a request on that path, by the scenario, that lead its model.
    pub leads: fn(&str, &str) -> Value,
}

/// An address that nobody may ask.
struct Listener {
    url: String,
    hits: Arc<AtomicUsize>,
}

impl Listener {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let hits = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&hits);
        // It ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::SeqCst);
                drop(stream);
            }
        });
        Self { url: format!("http://{address}"), hits }
    }
}

/// What was made of a scenario's steps.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub steps: usize,
    pub left_out: Vec<String>,
}

/// A scenario under way.
pub struct Scenario<'a> {
    id: &'a str,
    server: &'a Server,
    values: BTreeMap<String, Value>,
    listener: Option<Listener>,
    done: Done,
}

/// Plays a scenario; steps on paths that begin with one of `later` are left out by name.
///
/// # Panics
/// If a step's reply is not what it ought to be.
pub fn play(scenario: &Value, server: &Server, later: &[&str]) -> Done {
    let id = scenario["id"].as_str().expect("a name");
    let models = server.client.get("/v1/models");
    let models: Value = serde_json::from_str(&models.body).unwrap_or_default();
    let mut values = BTreeMap::new();
    for (name, word) in [("model", ""), ("small", "small"), ("big", "big")] {
        let names = models["data"].as_array().into_iter().flatten().map(|model| &model["id"]);
        let mut names = names.filter(|name| name.as_str().is_some_and(|n| n.contains(word)));
        if let Some(found) = names.next() {
            values.insert(name.to_owned(), found.clone());
        }
    }
    // (A server with keys does not list its models to everybody; any name is refused so.)
    values.entry("model".to_owned()).or_insert_with(|| json!("sim"));
    let mut play = Scenario { id, server, values, listener: None, done: Done::default() };
    if scenario["steps"].to_string().contains("{{listener}}") {
        let listener = Listener::new();
        play.values.insert("listener".into(), listener.url.clone().into());
        play.listener = Some(listener);
    }
    for (number, step) in scenario["steps"].as_array().expect("steps").iter().enumerate() {
        let told = format!("{id} step {number}");
        match step["parallel"].as_array() {
            Some(steps) => {
                let each = std::thread::scope(|scope| {
                    let play = &play;
                    let one = |step| scope.spawn(move || play.step(step, later));
                    let open: Vec<_> = steps.iter().map(one).collect();
                    open.into_iter().map(|one| one.join().expect(&told)).collect::<Vec<_>>()
                });
                each.into_iter().for_each(|made| play.take(made, &told));
            }
            None => {
                let made = play.step(step, later);
                play.take(made, &told);
            }
        }
    }
    play.done
}

/// What came of a step.
enum Made {
    /// What is wrong, and values to keep.
    Checked(Vec<String>, Vec<(String, Value)>),
    LeftOut(String),
}

impl Scenario<'_> {
    fn take(&mut self, made: Made, told: &str) {
        match made {
            Made::LeftOut(path) => self.done.left_out.push(path),
            Made::Checked(faults, saved) => {
                assert!(faults.is_empty(), "{told}: {faults:#?}");
                self.values.extend(saved);
                self.done.steps += 1;
            }
        }
    }

    fn step(&self, step: &Value, later: &[&str]) -> Made {
        let checked = |faults| Made::Checked(faults, Vec::new());
        if let Some(rows) = step["log"].as_array() {
            let Some(log) = (self.server.log)() else { return Made::LeftOut("log".to_owned()) };
            let row = |row: &Value| {
                wrong(Some(&json!(log)), row[0].as_str().expect("a check"), &self.filled(&row[1]))
            };
            return checked(rows.iter().filter_map(row).collect());
        }
        if let Some(seconds) = step["sleep"].as_f64() {
            std::thread::sleep(Duration::from_secs_f64(seconds));
            return checked(Vec::new());
        }
        if let Some(row) = step["rss_mb"].as_array() {
            let check = row[0].as_str().expect("a check");
            let Some(resident) = resident_mb(self.server.pid) else {
                return Made::LeftOut("rss_mb".to_owned());
            };
            return checked(wrong(Some(&json!(resident)), check, &row[1]).into_iter().collect());
        }
        if let Some(wanted) = step["listener_hits"].as_u64() {
            let hits = self.listener.as_ref().map_or(0, |l| l.hits.load(Ordering::SeqCst));
            let fault = (hits as u64 != wanted).then(|| format!("{hits} asked the listener"));
            return checked(fault.into_iter().collect());
        }
        let path = self.filled(&step["path"]);
        let path = path.as_str().expect("a path");
        let is_later = |begin: &&str| {
            path == begin.trim_end_matches('/') || {
                begin.ends_with('/') && path.starts_with(*begin)
            }
        };
        match later.iter().any(is_later) {
            true => Made::LeftOut(path.to_owned()),
            false => self.asked(step, path),
        }
    }

    /// A request, again and again where it may take a time until it holds.
    fn asked(&self, step: &Value, path: &str) -> Made {
        std::thread::sleep(Duration::from_secs_f64(step["delay"].as_f64().unwrap_or(0.0)));
        let patience = Duration::from_secs_f64(step["until_s"].as_f64().unwrap_or(0.0));
        let (begun, expect) = (Instant::now(), self.filled(&step["expect"]));
        loop {
            let Some(reply) = self.send(step, path) else {
                return Made::Checked(Vec::new(), Vec::new());
            };
            let found_faults = match expect.is_object() {
                true => faults(&reply, &expect),
                false => Vec::new(),
            };
            if !found_faults.is_empty() && begun.elapsed() < patience {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            let body: Value = serde_json::from_str(&reply.body).unwrap_or_default();
            let mut saved = Vec::new();
            for (name, path) in step["save"].as_object().into_iter().flatten() {
                saved.push((name.clone(), found(&body, path).unwrap_or_default()));
            }
            let mut told = found_faults;
            if !told.is_empty() {
                let body: String = reply.body.chars().take(4000).collect();
                told.push(format!("{} {body}", reply.status));
            }
            return Made::Checked(told, saved);
        }
    }

    /// Sends a request; none where its client hangs up.
    fn send(&self, step: &Value, path: &str) -> Option<Reply> {
        let mut headers: Vec<(String, String)> = Vec::new();
        for (name, value) in self.filled(&step["headers"]).as_object().into_iter().flatten() {
            headers.push((name.clone(), value.as_str().expect("a text").to_owned()));
        }
        let (kind, body) = self.body(step, path);
        if let Some(kind) = kind.filter(|_| !headers.iter().any(|(name, _)| name == "content-type"))
        {
            headers.push(("content-type".to_owned(), kind));
        }
        let headers: Vec<(&str, &str)> = headers.iter().map(|(a, b)| (&**a, &**b)).collect();
        let method = step["method"].as_str().expect("a method");
        if let Some(seconds) = step["abort_s"].as_f64() {
            let client = self.server.client;
            let mut socket = client.connect();
            let head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", client.address());
            let lines: String =
                headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let length = format!("content-length: {}\r\n\r\n", body.len());
            let whole = [head.as_bytes(), lines.as_bytes(), length.as_bytes(), &body].concat();
            std::io::Write::write_all(&mut socket, &whole).expect("sent");
            let patience = Duration::from_secs_f64(seconds.max(0.001));
            socket.set_read_timeout(Some(patience)).expect("a timeout");
            let begun = Instant::now();
            let mut some = [0; 4096];
            while begun.elapsed() < patience && socket.read(&mut some).is_ok_and(|n| n > 0) {}
            return None;
        }
        let stream = self.server.client.open(method, path, &headers, &body);
        // (What stands behind such a head is the length of a body that does not come.)
        Some(if method == "HEAD" { stream.reply.clone() } else { stream.finish() })
    }

    /// The body of a request and its type.
    fn body(&self, step: &Value, path: &str) -> (Option<String>, Vec<u8>) {
        if let Some(raw) = step["raw"].as_str() {
            return (Some("application/json".to_owned()), raw.as_bytes().to_vec());
        }
        if let Some(coded) = step["body_b64"].as_str() {
            let bytes = STANDARD.decode(coded).expect("base64");
            return (Some("application/json".to_owned()), bytes);
        }
        if let Some(parts) = self.filled(&step["multipart"]).as_object() {
            return (Some(format!("multipart/form-data; boundary={BOUNDARY}")), form(parts));
        }
        let mut body = made(&self.filled(&step["body"]));
        if let (Some(body), Value::Object(leads)) =
            (body.as_object_mut(), (self.server.leads)(self.id, path))
        {
            body.extend(leads);
        }
        match body {
            Value::Null => (None, Vec::new()),
            body => (Some("application/json".to_owned()), body.to_string().into_bytes()),
        }
    }

    /// A value with those that were saved in the places of their names.
    fn filled(&self, value: &Value) -> Value {
        match value {
            Value::Array(list) => list.iter().map(|one| self.filled(one)).collect(),
            Value::Object(members) => {
                let key = |name: &String| match self.filled(&Value::from(name.as_str())) {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                members.iter().map(|(name, value)| (key(name), self.filled(value))).collect()
            }
            Value::String(text) if text.contains("{{") => {
                let whole = text.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}"));
                if let Some(value) = whole.and_then(|name| self.values.get(name)) {
                    return value.clone();
                }
                let fill = |text: String, (name, value): (&String, &Value)| {
                    let plain = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    text.replace(&format!("{{{{{name}}}}}"), &plain)
                };
                self.values.iter().fold(text.clone(), fill).into()
            }
            other => other.clone(),
        }
    }
}

const BOUNDARY: &str = "----a-boundary-that-no-part-has";

/// A form: texts, and files as a name with a content.
fn form(parts: &Map<String, Value>) -> Vec<u8> {
    let mut body = String::new();
    for (name, value) in parts {
        body.push_str(&format!("--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"{name}\""));
        match value {
            Value::Array(file) => {
                let text = |at: usize| file[at].as_str().expect("a text");
                let (file, content) = (text(0), text(1));
                let kind = "content-type: application/octet-stream";
                body.push_str(&format!("; filename=\"{file}\"\r\n{kind}\r\n\r\n{content}\r\n"));
            }
            other => {
                let text = other.as_str().expect("a text");
                body.push_str(&format!("\r\n\r\n{text}\r\n"));
            }
        }
    }
    body.push_str(&format!("--{BOUNDARY}--\r\n"));
    body.into_bytes()
}

/// A body with what scenarios write short: long texts, and schemas in schemas.
fn made(value: &Value) -> Value {
    match value {
        Value::Array(list) => list.iter().map(made).collect(),
        Value::Object(members) => {
            if let Some(parts) = members.get("$repeat").and_then(Value::as_array) {
                let part = |part: &Value| {
                    let times = usize::try_from(part[1].as_u64().expect("a number"));
                    part[0].as_str().expect("a text").repeat(times.expect("a small number"))
                };
                return parts.iter().map(part).collect::<String>().into();
            }
            if let Some(nest) = members.get("$nest") {
                let deeper = |inner: Value, _| json!({ "type": "array", "items": inner });
                return (0..nest[0].as_u64().expect("a number")).fold(made(&nest[1]), deeper);
            }
            members.iter().map(|(name, value)| (name.clone(), made(value))).collect()
        }
        other => other.clone(),
    }
}

/// Resident memory of a process, or of this one.
fn resident_mb(pid: Option<u32>) -> Option<f64> {
    let place = pid.map_or("self".to_owned(), |pid| pid.to_string());
    let status = std::fs::read_to_string(format!("/proc/{place}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kilobytes / 1024.0)
}

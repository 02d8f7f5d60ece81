//! What is asked of a server that runs: `ps` and `stop`.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::args::{Ps, Running};
use crate::failure::{Failure, size, tell};

/// For a server to answer; one that unloads a model waits for its answers.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest answer that is read, bytes.
const MOST_BYTES: u64 = 16 << 20;

/// `ps`.
pub fn ps(args: &Ps) -> Result<(), Failure> {
    let listed = ask(&args.running, "GET", "/v1/models", "")?;
    let all = listed["data"].as_array().cloned().unwrap_or_default();
    let is_shown = |one: &&Value| args.all || one["status"]["value"] != "unloaded";
    let mut out = std::io::stdout().lock();
    let shown: Vec<&Value> = all.iter().filter(is_shown).collect();
    if shown.is_empty() {
        tell!("no model is in memory; {} can be asked for", all.len());
    }
    for one in shown {
        let line = match args.json {
            true => json!({ "id": one["id"], "status": one["status"] }).to_string(),
            false => line(one),
        };
        writeln!(out, "{line}").map_err(Failure::output)?;
    }
    Ok(())
}

/// A model for people: state, size, name, and until when it stays or why it failed.
fn line(model: &Value) -> String {
    let (id, status) = (&model["id"], &model["status"]);
    let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let bytes = status["bytes"].as_u64().map_or("-".to_owned(), size);
    let state = if status["failed"] == true { "failed".to_owned() } else { word(&status["value"]) };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let more = match (&status["expires_at"], &status["reason"]) {
        (_, Value::String(reason)) => reason.clone(),
        (Value::Number(at), _) => {
            format!("for {} s more", at.as_u64().unwrap_or(0).saturating_sub(now))
        }
        _ if status["pinned"] == true => "pinned".to_owned(),
        _ => String::new(),
    };
    format!("{state:<10} {bytes:>10}  {}  {more}", word(id)).trim_end().to_owned()
}

/// `stop`.
pub fn stop(model: &str, running: &Running) -> Result<(), Failure> {
    let done = ask(running, "POST", "/models/unload", &json!({ "model": model }).to_string())?;
    let state = done["status"]["value"].as_str().unwrap_or("unloaded");
    tell!("{}: {state}", done["model"].as_str().unwrap_or(model));
    Ok(())
}

/// One request, and the JSON of its answer.
fn ask(running: &Running, method: &str, path: &str, body: &str) -> Result<Value, Failure> {
    let url = running.url.trim_end_matches('/');
    let cannot = |e: &dyn std::fmt::Display| {
        Failure::new(format!("no answer from {url}"), e).fix("tokenmill serve, or --url URL")
    };
    let Some(host) = url.strip_prefix("http://").filter(|host| !host.contains('/')) else {
        return Err(Failure::new(format!("{url} is no address"), "such as http://127.0.0.1:8080"));
    };
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n",
        body.len()
    );
    // The first of several: who set them runs the server.
    let key = running.api_key.as_deref().and_then(|keys| keys.split(',').next());
    if let Some(key) = key.filter(|key| !key.is_empty() && !key.contains(char::is_control)) {
        head.push_str(&format!("authorization: Bearer {key}\r\n"));
    }
    let place =
        if host.rsplit_once(':').is_some() { host.to_owned() } else { format!("{host}:80") };
    let address = place.to_socket_addrs().map_err(|e| cannot(&e))?.next();
    let address = address.ok_or_else(|| cannot(&"no such host"))?;
    let mut socket = TcpStream::connect_timeout(&address, PATIENCE).map_err(|e| cannot(&e))?;
    let mut answer = Vec::new();
    let mut talk = || {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.write_all(format!("{head}\r\n{body}").as_bytes())?;
        Read::by_ref(&mut socket).take(MOST_BYTES).read_to_end(&mut answer)
    };
    talk().map_err(|e| cannot(&e))?;
    told(url, &answer)
}

/// The JSON of an answer, or what it refuses.
fn told(url: &str, answer: &[u8]) -> Result<Value, Failure> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).unwrap_or("?");
    let value: Value = serde_json::from_str(body).unwrap_or_default();
    if status == "200" && !value.is_null() {
        return Ok(value);
    }
    let message = value["error"]["message"].as_str().unwrap_or("that is no answer of tokenmill's");
    let failure = Failure::new(format!("{url} answers {status}"), message);
    Err(match status {
        "401" | "403" => failure.fix("add --api-key KEY"),
        _ => failure,
    })
}

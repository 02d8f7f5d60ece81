//! What is asked of a server that runs: `ps` and `stop`.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::args::{Ps, Running};
use crate::failure::{Failure, size, tell};
use crate::remote::Remote;

/// `ps`.
pub fn ps(args: &Ps) -> Result<(), Failure> {
    let listed = Remote::of(&args.running)?.get("/v1/models")?;
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
    let root = model["root"].as_str().filter(|root| id != root);
    let of = root.map_or(String::new(), |root| format!("alias of {root} "));
    format!("{state:<10} {bytes:>10}  {}  {of}{more}", word(id)).trim_end().to_owned()
}

/// `stop`.
pub fn stop(model: &str, running: &Running) -> Result<(), Failure> {
    let done = Remote::of(running)?.post("/models/unload", &json!({ "model": model }))?;
    let state = done["status"]["value"].as_str().unwrap_or("unloaded");
    tell!("{}: {state}", done["model"].as_str().unwrap_or(model));
    Ok(())
}

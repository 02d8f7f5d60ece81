//! `replay`: a receipt's request asked again, and whether the same bytes came, or what is another thing now.

use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use tokenmill_server::{RECEIPT_HEADER, SEED_HEADER, differences};

use crate::args::Replay;
use crate::failure::{Failure, tell};
use crate::remote::Remote;

/// Runs the command.
pub fn replay(args: &Replay) -> Result<(), Failure> {
    let receipt = read(&args.receipt)?;
    let mut body = match (&args.request, &receipt["request"]["body"]) {
        (Some(path), _) => read(path)?,
        (None, Value::Null) => {
            let detail = "it was told with an answer; only stored ones (serve --receipts) have it";
            return Err(Failure::new("the receipt has no request in it", detail)
                .fix("add --request FILE with the body that was sent"));
        }
        (None, body) => body.clone(),
    };
    let path = receipt["request"]["path"].as_str().filter(|path| path.starts_with('/'));
    let path = path.ok_or_else(|| no_receipt(&args.receipt, "it names no path"))?;
    let answer = receipt.pointer("/answer/sha256").and_then(Value::as_str);
    let answer = answer.ok_or_else(|| no_receipt(&args.receipt, "it names no answer"))?;
    if !body.is_object() {
        return Err(Failure::new("that is no request", "its body is no object"));
    }
    // (Digests are of what came, however it was sent.)
    body["stream"] = json!(false);
    if let Some(model) = &args.model {
        body["model"] = json!(model);
    }
    let mut headers = vec![(RECEIPT_HEADER.to_owned(), "1".to_owned())];
    if let Some(seed) = receipt.pointer("/sampling/seed").and_then(Value::as_u64) {
        headers.push((SEED_HEADER.to_owned(), seed.to_string()));
    }
    let read_by = receipt["request"]["headers"].as_object().into_iter().flatten();
    let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
    headers.extend(read_by.filter_map(text));
    let answered = Remote::of(&args.running)?.post_with(path, &body, &headers)?;
    let whole = answered.get(0).unwrap_or(&answered); // of a list the first part
    let now = &whole["tokenmill_receipt"];
    let same = now.pointer("/answer/sha256").and_then(Value::as_str) == Some(answer);
    let others = differs(&receipt, now);
    let mut out = std::io::stdout().lock();
    if args.json {
        let told = |(part, was, is): &(&str, String, String)| json!({ "part": part, "was": was, "is": is });
        let found: Vec<Value> = others.iter().map(told).collect();
        let line = json!({ "same": same, "differences": found, "receipt": now });
        writeln!(out, "{line}").map_err(Failure::output)?;
    } else {
        others.iter().for_each(|(part, was, is)| tell!("{part}: {was}, now {is}"));
        if same {
            writeln!(out, "the same answer: {answer}").map_err(Failure::output)?;
        }
    }
    match same {
        true => Ok(()),
        false if others.is_empty() => {
            let detail = "nothing that the answer depends on differs: please report this";
            Err(Failure::new("another answer", detail))
        }
        false => {
            let parts: Vec<&str> = others.iter().map(|(part, ..)| *part).collect();
            Err(Failure::new("another answer", format!("other than then: {}", parts.join(", "))))
        }
    }
}

/// What differs but the answer; the body is sent anew and its digest tells nothing.
fn differs(before: &Value, now: &Value) -> Vec<(&'static str, String, String)> {
    let mut found = differences(before, now);
    found.retain(|(part, ..)| !matches!(*part, "the answer" | "the request's body"));
    found
}

fn read(path: &Path) -> Result<Value, Failure> {
    let failed =
        |e: &dyn std::fmt::Display| Failure::new(format!("cannot read {}", path.display()), e);
    let text = fs::read_to_string(path).map_err(|e| failed(&e))?;
    serde_json::from_str(&text).map_err(|e| failed(&e))
}

fn no_receipt(path: &Path, why: &str) -> Failure {
    Failure::new(format!("{} is no receipt", path.display()), why)
}

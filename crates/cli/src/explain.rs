//! `explain`: where each millisecond of a request went, and each token of its prompt came from.

use std::fmt::Write as _;
use std::io::Write;

use serde_json::Value;

use crate::args::Explain;
use crate::failure::{Failure, printable};
use crate::remote::Remote;

/// Characters of the bar.
const BAR: usize = 60;

/// Parts in the order in which they come, each with its letter in the bar and what it is.
const PARTS: [(&str, char, &str); 17] = [
    ("read", 'r', "the request came in"),
    ("load", 'l', "its model was loaded"),
    ("prepare", 't', "template, tokens, grammar"),
    ("inbox", 'i', "the device was in a step"),
    ("disk", 'd', "its prompt was read from disk"),
    ("queue", 'q', "it waited for a place"),
    ("blocks", 'k', "it waited for memory that others had"),
    ("prompt", 'P', "steps that computed its prompt"),
    ("answer", 'A', "steps that computed its answer"),
    ("mask", 'm', "steps without it: it had no mask yet"),
    ("memory", 'b', "steps without it: its blocks were given to others"),
    ("room", 'n', "steps without it: there was no room"),
    ("models", 'o', "turns of other models"),
    ("host", 'h', "between steps: plans, masks, drafts, texts"),
    ("deliver", 'w', "the answer was written, read by the client"),
    ("rest", 'x', "others of its prompts, and the writing"),
    ("now", '.', "since its last step"),
];

/// Runs the command.
pub fn explain(args: &Explain) -> Result<(), Failure> {
    let remote = Remote::of(&args.running)?;
    let mut out = std::io::stdout().lock();
    let text = match &args.id {
        None => {
            let listed = remote.get("/requests")?;
            if args.json { format!("{listed}\n") } else { list(&listed) }
        }
        Some(id) => {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
            if !id.chars().all(plain) {
                return Err(Failure::new("that is no request's id", printable(id))
                    .fix("tokenmill explain lists them"));
            }
            let found = remote.get(&format!("/requests/{id}"))?;
            if args.json { format!("{found}\n") } else { explained(&found) }
        }
    };
    out.write_all(text.as_bytes()).map_err(Failure::output)
}

fn word(value: &Value) -> String {
    printable(value.as_str().unwrap_or("-"))
}

fn millis(value: &Value) -> String {
    value.as_f64().map_or("-".to_owned(), |seconds| format!("{:.1}", seconds * 1e3))
}

fn count(value: &Value) -> String {
    value.as_u64().map_or("-".to_owned(), |count| count.to_string())
}

/// The requests that are known, the last one first.
fn list(listed: &Value) -> String {
    let mut text = format!(
        "{:<22} {:<8} {:<10} {:>9} {:>9} {:>7} {:>7} {:>7}  {}\n",
        "ID", "STATE", "END", "MS", "FIRST MS", "PROMPT", "CACHED", "ANSWER", "MODEL"
    );
    for one in listed["data"].as_array().into_iter().flatten() {
        let end = match &one["finish_reason"] {
            Value::Null => word(&one["end"]),
            reason => word(reason),
        };
        let _ = writeln!(
            text,
            "{:<22} {:<8} {end:<10} {:>9} {:>9} {:>7} {:>7} {:>7}  {}",
            word(&one["id"]),
            word(&one["state"]),
            millis(&one["seconds"]),
            millis(&one["first_token_s"]),
            count(&one["prompt_tokens"]),
            count(&one["cached_tokens"]),
            count(&one["completion_tokens"]),
            word(&one["model"]),
        );
    }
    text
}

/// All that is known of a request.
fn explained(one: &Value) -> String {
    let mut text = format!(
        "{} · {} · {} · {} ({})\n\n",
        word(&one["id"]),
        word(&one["path"]),
        word(&one["model"]),
        word(&one["end"]),
        word(&one["finish_reason"]),
    );
    let parts = &one["parts"];
    let total = parts["total"].as_f64().unwrap_or(0.0);
    let _ = writeln!(text, "{:<9} {:>10} {:>6}    WHAT", "PART", "MS", "SHARE");
    for (name, letter, what) in PARTS {
        let seconds = parts[name].as_f64().unwrap_or(0.0);
        if seconds > 0.0 {
            let share = 100.0 * seconds / total.max(1e-9);
            let ms = seconds * 1e3;
            let _ = writeln!(text, "{name:<9} {ms:>10.1} {share:>5.1}%  {letter} {what}");
        }
    }
    let _ = writeln!(text, "{:<9} {:>10.1} {:>6}", "total", total * 1e3, "100%");
    let _ = writeln!(text, "[{}]\n", bar(parts, total));
    let prompts = one["prompts"].as_array().map_or(&[][..], Vec::as_slice);
    for (n, prompt) in (1..).zip(prompts) {
        let title = if prompts.len() > 1 { format!("prompt {n}: ") } else { String::new() };
        text.push_str(&of_prompt(&title, prompt));
    }
    text
}

/// The parts as a line of letters, each a sixtieth of the time; those that are shorter have none.
fn bar(parts: &Value, total: f64) -> String {
    let (mut line, mut sum) = (String::new(), 0.0);
    for (name, letter, _) in PARTS {
        sum += parts[name].as_f64().unwrap_or(0.0);
        let end = (sum / total.max(1e-9) * BAR as f64).round() as usize;
        while line.len() < end.min(BAR) {
            line.push(letter);
        }
    }
    format!("{line:<BAR$}")
}

fn of_prompt(title: &str, prompt: &Value) -> String {
    let n = |name: &str| prompt[name].as_u64().unwrap_or(0);
    let mut text = format!(
        "{title}{} tokens of prompt: {} from memory, {} from disk, {} computed",
        n("prompt_tokens"),
        n("memory_tokens"),
        n("disk_tokens"),
        n("computed_tokens"),
    );
    if let Some(why) = prompt["miss"]["why"].as_str() {
        let _ = write!(text, " ({why})");
    }
    text.push('\n');
    for chunk in prompt["chunks"].as_array().into_iter().flatten() {
        let (step, tokens) = (&chunk["step"], &chunk["tokens"]);
        let _ =
            writeln!(text, "  step {step}: {tokens} tokens in {} ms", millis(&chunk["seconds"]));
    }
    let shown = prompt["chunks"].as_array().map_or(0, Vec::len) as u64;
    if n("chunk_count") > shown {
        let _ = writeln!(text, "  (the last line is of {} steps)", n("chunk_count") - shown + 1);
    }
    if let Some(first) = prompt["to_first_token"].as_object() {
        let some = first.iter().filter(|(_, value)| value.as_f64().is_some_and(|v| v > 0.0));
        let told: Vec<String> = some.map(|(name, v)| format!("{name} {}", millis(v))).collect();
        let sum: f64 = first.values().filter_map(Value::as_f64).sum();
        let _ = writeln!(
            text,
            "  first token {:.1} ms after the engine had it: {}",
            sum * 1e3,
            told.join(" + ")
        );
    }
    let drafts = &prompt["drafts"];
    let _ = writeln!(
        text,
        "  {} tokens of answer in {} steps (from {} to {}), {} of {} drafts right, displaced {} times",
        n("completion_tokens"),
        n("steps"),
        n("first_step"),
        n("last_step"),
        drafts["accepted"],
        drafts["verified"],
        n("displaced"),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_bar_has_each_part_at_its_length() {
        let parts = json!({ "queue": 0.5, "prompt": 0.25, "answer": 0.25 });
        let line = bar(&parts, 1.0);
        assert_eq!(line, format!("{}{}{}", "q".repeat(30), "P".repeat(15), "A".repeat(15)));
        assert_eq!(bar(&json!({}), 0.0).trim(), "");
    }

    #[test]
    fn columns_stand_below_their_names() {
        let text = list(&json!({ "data": [
            { "id": "req-1", "prompt_tokens": 31, "cached_tokens": 0, "completion_tokens": null },
        ] }));
        let [names, row] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        for (name, value) in [("PROMPT", " 31"), ("CACHED", " 0"), ("ANSWER", " -")] {
            let end = names.find(name).expect("a name") + name.len();
            assert!(row[..end].ends_with(value), "{text}");
        }
    }

    #[test]
    fn a_request_is_explained() {
        let one = json!({
            "id": "req-1", "path": "/v1/x", "model": "m", "end": "finished", "finish_reason": "stop",
            "parts": { "queue": 0.1, "answer": 0.3, "total": 0.4 },
            "prompts": [{
                "prompt_tokens": 40, "memory_tokens": 32, "disk_tokens": 0, "computed_tokens": 8,
                "miss": { "why": "because" }, "chunks": [{ "step": 3, "tokens": 8, "seconds": 0.05 }],
                "to_first_token": { "queue": 0.1, "answer": 0.0 },
                "drafts": { "verified": 4, "accepted": 3 }, "completion_tokens": 7, "steps": 4,
            }],
        });
        let text = explained(&one);
        for expect in [
            "queue          100.0  25.0%  q it waited",
            "40 tokens of prompt: 32 from memory, 0 from disk, 8 computed (because)",
            "step 3: 8 tokens in 50.0 ms",
            "first token 100.0 ms after the engine had it: queue 100.0",
            "7 tokens of answer in 4 steps (from 0 to 0), 3 of 4 drafts right",
        ] {
            assert!(text.contains(expect), "{expect} in\n{text}");
        }
    }
}

//! `top`: what a running server does, from its `/metrics` and `/v1/models`, drawn anew each second.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::args::Top;
use crate::failure::{Failure, printable, size};
use crate::interrupt;
use crate::remote::Remote;

/// How often an end is looked for while nothing is drawn.
const LOOK: Duration = Duration::from_millis(50);
/// Widest name that is shown whole, characters.
const NAME_CHARS: usize = 32;
/// To the upper left, and from there: rest of a line, of the screen.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K\n";
const CLEAR_REST: &str = "\x1b[J";
/// Another screen, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Runs the command.
pub fn top(args: &Top) -> Result<(), Failure> {
    let remote = Remote::of(&args.running)?;
    let mut out = std::io::stdout();
    if args.once {
        let first = Seen::of(&remote)?;
        thread::sleep(args.every);
        let frame = frame(&remote.url, &first, &Seen::of(&remote)?);
        return out.write_all(frame.as_bytes()).map_err(Failure::output);
    }
    if !out.is_terminal() {
        return Err(Failure::new("cannot draw", "the output is no terminal").fix("--once"));
    }
    let ended = interrupt::watch()?;
    let mut before = Seen::of(&remote)?;
    let mut draw = |text: &str| {
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::output)
    };
    draw(ENTER)?;
    let drawn = loop {
        if !pause(args.every, &ended) {
            break Ok(());
        }
        let now = match Seen::of(&remote) {
            Ok(now) => now,
            Err(failure) => break Err(failure),
        };
        let frame = frame(&remote.url, &before, &now).replace('\n', CLEAR_LINE);
        draw(&format!("{HOME}{frame}{CLEAR_REST}"))?;
        before = now;
    };
    draw(LEAVE)?;
    drawn
}

/// Waits; false if that was interrupted.
fn pause(time: Duration, ended: &AtomicBool) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < time {
        if ended.load(Ordering::Relaxed) {
            return false;
        }
        thread::sleep(LOOK.min(time));
    }
    !ended.load(Ordering::Relaxed)
}

/// What a server said at a time.
struct Seen {
    at: Instant,
    lines: Vec<Line>,
    models: Vec<Value>,
}

/// A line of the metrics.
#[derive(Debug, PartialEq)]
struct Line {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Seen {
    fn of(remote: &Remote) -> Result<Self, Failure> {
        let page = remote.text("/metrics")?;
        let listed = remote.get("/v1/models")?;
        let models = listed["data"].as_array().cloned().unwrap_or_default();
        let lines = page.lines().filter_map(line).collect();
        Ok(Self { at: Instant::now(), lines, models })
    }

    /// A number of one model, of all where none is named; where several lines fit, their sum.
    fn sum(&self, name: &str, model: Option<&str>, labels: &[(&str, &str)]) -> f64 {
        let is_meant = |line: &&Line| {
            let has =
                |(name, value): &(&str, &str)| line.labels.get(*name).is_some_and(|v| v == value);
            let of = |model| line.labels.get("model_name").is_some_and(|v| v == model);
            line.name == name && model.is_none_or(of) && labels.iter().all(has)
        };
        // (A sum of nothing would be -0.)
        self.lines.iter().filter(is_meant).fold(0.0, |sum, line| sum + line.value)
    }
}

/// A line of the Prometheus text format; none for comments.
fn line(text: &str) -> Option<Line> {
    let (head, value) = text.rsplit_once(' ')?;
    let (name, mut rest) = head.split_once('{').unwrap_or((head, ""));
    let mut labels = BTreeMap::new();
    while let Some((label, more)) = rest.split_once("=\"") {
        let (mut value, mut escaped, mut end) = (String::new(), false, more.len());
        for (at, c) in more.char_indices() {
            match c {
                '"' if !escaped => {
                    end = at;
                    break;
                }
                '\\' if !escaped => escaped = true,
                c => {
                    value.push(if escaped && c == 'n' { '\n' } else { c });
                    escaped = false;
                }
            }
        }
        labels.insert(label.trim_start_matches(',').to_owned(), value);
        rest = more.get(end + 1..).unwrap_or_default();
    }
    let value = value.parse().ok().filter(|_| !name.starts_with('#'))?;
    Some(Line { name: name.to_owned(), labels, value })
}

/// A screen: the server in a line, then its models.
fn frame(url: &str, before: &Seen, now: &Seen) -> String {
    let rate = |name: &str| rate(before, now, name, None);
    let count = |name: &str| now.sum(name, None, &[]);
    let (held, cap) = (count("tokenmill_models_bytes"), count("tokenmill_models_cap_bytes"));
    let memory = match cap > 0.0 {
        true => format!(" · models hold {} of {}", size(held as u64), size(cap as u64)),
        false => String::new(),
    };
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{url} · up {} · {} requests{memory}",
        time(count("tokenmill_uptime_seconds")),
        count("tokenmill_http_requests_in_flight"),
    );
    let _ = writeln!(
        text,
        "{:.1} tokens/s generated · {:.1} tokens/s computed · {} refused · {} preemptions\n",
        rate("tokenmill_generated_tokens_total"),
        rate("tokenmill_computed_tokens_total"),
        now.sum("tokenmill_http_responses_total", None, &[("status", "429")]),
        count("tokenmill_preemptions_total"),
    );
    let _ = writeln!(
        text,
        "{:<NAME_CHARS$} {:>9} {:>9} {:>9} {:>7} {:>7} {:>11} {:>6} {:>6}",
        "MODEL",
        "STATE",
        "MEMORY",
        "TOKENS/S",
        "RUNNING",
        "WAITING",
        "KV BLOCKS",
        "CACHED",
        "GUESS"
    );
    // (An alias has the numbers of its model.)
    let is_alias = |model: &&Value| model["root"].is_string() && model["root"] != model["id"];
    for model in now.models.iter().filter(|model| !is_alias(model)) {
        text.push_str(&row(model, before, now));
    }
    text
}

/// A number a second, of one model or of all.
fn rate(before: &Seen, now: &Seen, name: &str, model: Option<&str>) -> f64 {
    let seconds = (now.at - before.at).as_secs_f64().max(1e-9);
    (now.sum(name, model, &[]) - before.sum(name, model, &[])).max(0.0) / seconds
}

/// The line of a model.
fn row(model: &Value, before: &Seen, now: &Seen) -> String {
    let name = model["id"].as_str().unwrap_or("?");
    let state = model["status"]["value"].as_str().unwrap_or("?");
    let of = |metric: &str, labels: &[(&str, &str)]| now.sum(metric, Some(name), labels);
    let memory = of("tokenmill_memory_bytes", &[]);
    let total = of("tokenmill_kv_blocks", &[("state", "total")]);
    let used = of("tokenmill_kv_blocks", &[("state", "used")]);
    let cells = match state {
        "loaded" => [
            size(memory as u64),
            format!("{:.1}", rate(before, now, "tokenmill_generated_tokens_total", Some(name))),
            of("tokenmill_sequences_running", &[]).to_string(),
            of("tokenmill_sequences_waiting", &[]).to_string(),
            format!("{used}/{total}"),
            share(
                of("tokenmill_cached_tokens_total", &[]),
                of("tokenmill_prompt_tokens_total", &[]),
            ),
            share(
                of("tokenmill_accepted_draft_tokens_total", &[]),
                of("tokenmill_drafted_tokens_total", &[]),
            ),
        ],
        _ => std::array::from_fn(|_| "-".to_owned()),
    };
    let [memory, tokens, running, waiting, blocks, cached, guessed] = cells;
    format!(
        "{:<NAME_CHARS$} {state:>9} {memory:>9} {tokens:>9} {running:>7} {waiting:>7} \
         {blocks:>11} {cached:>6} {guessed:>6}\n",
        shortened(&printable(name)),
    )
}

/// A part as per cent.
fn share(part: f64, all: f64) -> String {
    if all > 0.0 { format!("{:.0}%", 100.0 * part / all) } else { "-".to_owned() }
}

/// A name in the width of its column; its end tells more.
fn shortened(name: &str) -> String {
    let chars = name.chars().count();
    match chars > NAME_CHARS {
        true => format!("…{}", name.chars().skip(chars - NAME_CHARS + 1).collect::<String>()),
        false => name.to_owned(),
    }
}

/// A time for people.
fn time(seconds: f64) -> String {
    let s = seconds as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min", s / 60),
        _ => format!("{} h {} min", s / 3600, s / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(page: &str, at: Instant) -> Seen {
        let model =
            |id: &str, state: &str| serde_json::json!({ "id": id, "status": { "value": state } });
        let models = vec![model("a \"b\"", "loaded"), model("c", "unloaded")];
        Seen { at, lines: page.lines().filter_map(line).collect(), models }
    }

    #[test]
    fn lines_are_read_with_their_labels() {
        let found = line(r#"a_b{model_name="a \"b\"\n",state="used"} 5e1"#).expect("a line");
        let labels = [("model_name", "a \"b\"\n"), ("state", "used")];
        let labels = labels.map(|(a, b)| (a.to_owned(), b.to_owned())).into();
        assert_eq!(found, Line { name: "a_b".into(), labels, value: 50.0 });
        assert_eq!(line("# HELP a_b some words 5"), None);
        assert_eq!(line("a_b 2").map(|l| l.value), Some(2.0));
    }

    #[test]
    fn a_frame_tells_of_rates_and_models() {
        let page = |tokens: u32| {
            format!(
                "tokenmill_uptime_seconds 3700\n\
                 tokenmill_generated_tokens_total{{model_name=\"a \\\"b\\\"\"}} {tokens}\n\
                 tokenmill_prompt_tokens_total{{model_name=\"a \\\"b\\\"\"}} 200\n\
                 tokenmill_cached_tokens_total{{model_name=\"a \\\"b\\\"\"}} 50\n\
                 tokenmill_kv_blocks{{model_name=\"a \\\"b\\\"\",group=\"0\",state=\"total\"}} 64\n\
                 tokenmill_kv_blocks{{model_name=\"a \\\"b\\\"\",group=\"0\",state=\"used\"}} 3\n"
            )
        };
        let begin = Instant::now();
        let text = frame(
            "http://h",
            &seen(&page(10), begin),
            &seen(&page(30), begin + Duration::from_secs(2)),
        );
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("http://h · up 1 h 1 min"), "{text}");
        assert!(lines[1].starts_with("10.0 tokens/s generated"), "{text}");
        let words: Vec<&str> = lines[4].split_whitespace().collect();
        assert_eq!(words, ["a", "\"b\"", "loaded", "0", "B", "10.0", "0", "0", "3/64", "25%", "-"]);
        assert!(lines[5].starts_with("c ") && lines[5].contains("unloaded"), "{text}");
    }
}

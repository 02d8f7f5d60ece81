//! `bench serve`: a server under load.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokenmill_loadgen::{
    Agents, Api, Arrival, History, Lengths, LoadError, Run, Spread, Summary, Target, Workload, run,
    run_agents,
};

use super::args::{self, Endpoint, Serve};
use super::report;
use crate::failure::Failure;

/// Runs the command.
pub fn serve(args: &Serve) -> Result<(), Failure> {
    let api = api_of(args)?;
    let spawned =
        args.spawn.as_ref().map(|model| Spawned::start(model, &args.flags)).transpose()?;
    let url = match (&spawned, &args.url) {
        (Some(server), _) => server.url.clone(),
        (None, Some(url)) => url.clone(),
        (None, None) => return Err(Failure::new("nothing to load", "no server was named")),
    };
    let target = Target {
        url,
        api,
        model: args.model.clone(),
        small_model: args.agents.small_model.clone(),
        api_key: args.api_key.clone(),
        extra: extra(&args.extra)?,
        patience: Duration::from_secs(args.timeout),
    };
    let seen = load(args, &target).map_err(|e| cannot_load(&target.url, e))?;
    let summary = Summary::of(&seen);
    let of_what = format!("{} at {} · {}", seen.model, target.url, workload_in_words(args));
    let text = match args.json {
        true => format!("{}\n", as_json(args, &seen.model, &summary)),
        false => format!("{of_what}\n\n{}", table(args, &summary)),
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(Failure::output)?;
    if let Some(file) = &args.html {
        let page = report::page(&of_what, &table(args, &summary), &summary, &seen);
        let cannot = |e| Failure::new(format!("cannot write {}", file.display()), e);
        std::fs::write(file, page).map_err(cannot)?;
    }
    match summary.errors.first() {
        Some((most, _)) if summary.completion_tokens == 0 => {
            Err(Failure::new("every request failed", most))
        }
        _ => Ok(()),
    }
}

/// The endpoint that is driven.
fn api_of(args: &Serve) -> Result<Api, Failure> {
    let agent = is_agent(args);
    Ok(match args.api {
        None if agent => Api::Chat,
        Some(Endpoint::Completions) if agent => {
            let why = "completions have no tools";
            return Err(Failure::new("cannot play agents", why).fix("add --api chat"));
        }
        None | Some(Endpoint::Completions) => Api::Completions,
        Some(Endpoint::Chat) => Api::Chat,
        Some(Endpoint::Responses) => Api::Responses,
        Some(Endpoint::Messages) => Api::Messages,
        Some(Endpoint::Ollama) => Api::Ollama,
    })
}

fn is_agent(args: &Serve) -> bool {
    args.workload == args::Workload::Agent
}

/// Sessions, requests of each and words of a message or result, as asked or by default.
fn sizes(args: &Serve) -> (usize, u32, Lengths) {
    let (sessions, turns, prompt) = match args.workload {
        args::Workload::Words => (32, 1, Lengths::Fixed(256)),
        args::Workload::Agent => (8, 8, Lengths::LogNormal(120.0, 1.0)),
    };
    let sessions = args.sessions.unwrap_or(sessions);
    (sessions, args.turns.unwrap_or(turns), args.prompt.unwrap_or(prompt))
}

/// Runs the workload.
fn load(args: &Serve, target: &Target) -> Result<Run, LoadError> {
    let arrival = match args.rate {
        Some(rate) => Arrival::Open { rate },
        None => Arrival::Closed { clients: args.concurrency },
    };
    let (sessions, turns, prompt) = sizes(args);
    if is_agent(args) {
        let agents = Agents {
            seed: args.seed,
            sessions,
            turns,
            result: prompt,
            answer: args.output,
            pause_s: args.agents.pause.as_secs_f64(),
            profiles: args.agents.profiles.clone(),
            history: match args.agents.history {
                args::History::Seeded => History::Seeded,
                args::History::Model => History::Model,
            },
        };
        return run_agents(target, &agents, arrival, args.warmup);
    }
    let workload = Workload {
        seed: args.seed,
        sessions,
        turns,
        prompt,
        output: args.output,
        prefix_words: args.prefix,
        prefix_groups: args.prefix_groups,
    };
    run(target, &workload, arrival, args.warmup)
}

fn cannot_load(url: &str, error: LoadError) -> Failure {
    let failure = Failure::new(format!("cannot load {url}"), &error);
    match error {
        LoadError::Status { status: 401 | 403, .. } => failure.fix("add --api-key KEY"),
        LoadError::NoModel => failure.fix("add --model NAME"),
        LoadError::Connection(_) => failure.fix("tokenmill bench serve --spawn MODEL"),
        _ => failure,
    }
}

fn extra(text: &str) -> Result<Map<String, Value>, Failure> {
    match serde_json::from_str(text) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(_) => Err(Failure::new("bad --extra", "it is no JSON object")),
        Err(e) => Err(Failure::new("bad --extra", e)),
    }
}

fn workload_in_words(args: &Serve) -> String {
    let mut words = match args.rate {
        Some(rate) => format!("open loop, {rate} sessions/s"),
        None => format!("closed loop, {} at a time", args.concurrency),
    };
    let (sessions, turns, prompt) = sizes(args);
    words += &format!(" · {sessions} sessions");
    if turns > 1 {
        words += &format!(" of {turns} turns");
    }
    if is_agent(args) {
        let names: Vec<&str> = args.agents.profiles.iter().map(|p| p.name).collect();
        let names = if names.is_empty() { "all agents".to_owned() } else { names.join(", ") };
        let history = match args.agents.history {
            args::History::Seeded => "seeded",
            args::History::Model => "the model's",
        };
        let pause = args.agents.pause.as_secs_f64();
        words += &format!(" of {names} · results {prompt}, answers {}", args.output);
        words += &format!(", {history} history, tools {pause} s");
    } else {
        words += &format!(" · prompt {prompt}, output {}", args.output);
    }
    if args.prefix > 0 {
        words += &format!(", {} shared in {} groups", args.prefix, args.prefix_groups);
    }
    words + &format!(" · seed {}", args.seed)
}

/// For people.
fn table(args: &Serve, s: &Summary) -> String {
    let cached = s.cached_tokens.map_or("unknown".to_owned(), |n| {
        format!("{n} ({:.0} %)", 100.0 * n as f64 / s.prompt_tokens.max(1) as f64)
    });
    let mut text = format!(
        "requests   {} in {:.2} s ({:.2}/s), {} failed, {} answers shorter than asked\n\
         tokens     {} in ({} cached), {} out\n\
         throughput {:.1} tok/s out, {:.1} tok/s in\n\n\
         ms             mean      p50      p90      p95      p99      max\n",
        s.requests,
        s.wall_s,
        s.requests as f64 / s.wall_s,
        s.errors.iter().map(|e| e.1).sum::<usize>(),
        s.short,
        s.prompt_tokens,
        cached,
        s.completion_tokens,
        s.output_tok_s(),
        s.input_tok_s(),
    );
    for (name, spread) in s.spreads() {
        let Spread { mean, p50, p90, p95, p99, max } = spread;
        text += &format!("{name:<10}");
        for seconds in [mean, p50, p90, p95, p99, max] {
            text += &format!(" {:>8.2}", 1e3 * seconds);
        }
        text += "\n";
    }
    if is_agent(args) {
        text += &agents_table(s);
    }
    for (error, times) in &s.errors {
        text += &format!("failed {times} times: {error}\n");
    }
    text
}

/// What is asked of agents beside the rest.
fn agents_table(s: &Summary) -> String {
    let kinds: Vec<String> = s.kinds.iter().map(|(k, n)| format!("{n} {}", k.name())).collect();
    let mut text = format!(
        "\nspeed      {:.2} tok/s: 1 ÷ the latency ÷ tokens that 9 of 10 requests keep to\n\
         sessions   {} of {} finished; requests: {}\n\n\
         turn       answers   TTFT p50 ms   TTFT p90 ms   cached\n",
        s.p90_tok_s,
        s.finished,
        s.sessions,
        kinds.join(", "),
    );
    for turn in &s.turns {
        let cached = turn.cached.map_or("–".to_owned(), |part| format!("{:.0} %", 100.0 * part));
        let (p50, p90) = (1e3 * turn.ttft.p50, 1e3 * turn.ttft.p90);
        let (number, answers) = (turn.turn + 1, turn.answers);
        text += &format!("{number:<10} {answers:>7} {p50:>13.1} {p90:>13.1} {cached:>8}\n");
    }
    text
}

fn as_json(args: &Serve, model: &str, s: &Summary) -> Value {
    let ms = |spread: Spread| {
        let Spread { mean, p50, p90, p95, p99, max } = spread;
        let ms = |seconds: f64| (1e6 * seconds).round() / 1e3;
        let (mean, p50, p90) = (ms(mean), ms(p50), ms(p90));
        json!({"mean": mean, "p50": p50, "p90": p90, "p95": ms(p95), "p99": ms(p99), "max": ms(max)})
    };
    let counts = |all: &[(String, usize)]| -> Map<String, Value> {
        all.iter().map(|(name, n)| (name.clone(), json!(n))).collect()
    };
    let kinds: Map<String, Value> =
        s.kinds.iter().map(|(kind, n)| (kind.name().to_owned(), json!(n))).collect();
    let turns: Vec<Value> = s
        .turns
        .iter()
        .map(|t| {
            json!({"turn": t.turn + 1, "answers": t.answers, "ttft_ms": ms(t.ttft), "cached": t.cached})
        })
        .collect();
    json!({
        "model": model,
        "workload": workload_in_words(args),
        "concurrency": args.rate.is_none().then_some(args.concurrency),
        "rate": args.rate,
        "seed": args.seed,
        "requests": s.requests,
        "kinds": kinds,
        "sessions": s.sessions,
        "finished": s.finished,
        "errors": counts(&s.errors),
        "errors_by_kind": counts(&s.kinds_of_errors),
        "short": s.short,
        "wall_s": s.wall_s,
        "req_s": s.requests as f64 / s.wall_s,
        "in_tok": s.prompt_tokens,
        "cached_tok": s.cached_tokens,
        "out_tok": s.completion_tokens,
        "in_tok_s": s.input_tok_s(),
        "out_tok_s": s.output_tok_s(),
        "ttft_ms": ms(s.ttft),
        "tpot_ms": ms(s.tpot),
        "itl_ms": ms(s.itl),
        "latency_ms": ms(s.latency),
        "normalised_latency_ms": ms(s.normalised),
        "p90_tok_s": s.p90_tok_s,
        "turns": turns,
    })
}

/// A server of our own, ended when dropped.
struct Spawned {
    child: Child,
    url: String,
}

impl Spawned {
    /// Starts this program as a server on a free port and waits until it listens.
    fn start(model: &str, flags: &[String]) -> Result<Spawned, Failure> {
        let cannot = |why: String| Failure::new(format!("cannot serve {model}"), why);
        let program = std::env::current_exe().map_err(|e| cannot(e.to_string()))?;
        let mut child = Command::new(program)
            .args(["serve", model, "--port", "0"])
            .args(flags)
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| cannot(e.to_string()))?;
        let output = child.stderr.take();
        let mut spawned = Spawned { child, url: String::new() };
        let mut lines = BufReader::new(output.ok_or_else(|| cannot("no output".into()))?).lines();
        let mut said = Vec::new();
        for line in lines.by_ref().map_while(Result::ok) {
            if let Some((_, rest)) = line.split_once("listening on ") {
                spawned.url = rest.split(' ').next().unwrap_or_default().to_owned();
                // Read on, or the server would block on a full pipe.
                std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
                return Ok(spawned);
            }
            said.push(line);
        }
        Err(cannot(said.join("\n  ")))
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        // Nothing is left to save: a killed server loses no file.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

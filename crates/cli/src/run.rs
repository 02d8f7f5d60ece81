//! `run`: one answer, or a chat.

use std::io::{IsTerminal, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::{Value, json};
use tokenmill_engine::start::Served;
use tokenmill_engine::{Event, Request, StopReason, Usage};
use tokenmill_ir::SamplingParams;
use tokenmill_store::Defaults;
use tokenmill_text::{DateTime, RenderOptions, Special, Tokenizer};

use crate::args::{Run, Sampling};
use crate::failure::Failure;
use crate::{chat, model};

/// Runs the command.
pub fn run(args: &Run) -> Result<(), Failure> {
    let started = Instant::now();
    let prompt = match &args.prompt {
        Some(prompt) => Some(prompt.clone()),
        None if std::io::stdin().is_terminal() => None,
        None => Some(read_stdin()?),
    };
    let args = &with_defaults(args.clone(), model::defaults(&args.model)?);
    let served = model::start(&args.model, &args.machine, 1, 16)?;
    let Some(prompt) = prompt else { return chat::chat(args, &served) };
    let messages = conversation(args.system.as_deref(), &prompt);
    let tokens = match args.raw {
        true => {
            let tokenizer = tokenizer(&served)?;
            let encoded = tokenizer.encode_prompt(&prompt, Special::Parse);
            encoded.map_err(|e| Failure::new("cannot read the prompt", e))?
        }
        false => encode(&served, &messages)?,
    };
    let request = request(&args.sampling, tokens);
    let stop = Arc::new(AtomicBool::new(false));
    let answer = generate(&served, request, &stop, |text| match args.json {
        true => Ok(()),
        false => show(text),
    })?;
    if args.json {
        let line = answer.json(&args.model, started);
        return writeln!(std::io::stdout(), "{line}").map_err(Failure::output);
    }
    show("\n")?;
    eprintln!("{}", answer.speed_line(started));
    Ok(())
}

/// The command line, and where it is silent what the model's packager says.
fn with_defaults(mut args: Run, defaults: Defaults) -> Run {
    args.system = args.system.or(defaults.system);
    args.machine.ctx = args.machine.ctx.or(defaults.context);
    let s = &mut args.sampling;
    s.temp = s.temp.or(defaults.temperature);
    s.top_k = s.top_k.or(defaults.top_k);
    s.top_p = s.top_p.or(defaults.top_p);
    s.min_p = s.min_p.or(defaults.min_p);
    s.repeat_penalty = s.repeat_penalty.or(defaults.repeat_penalty);
    s.presence_penalty = s.presence_penalty.or(defaults.presence_penalty);
    s.frequency_penalty = s.frequency_penalty.or(defaults.frequency_penalty);
    s.seed = s.seed.or(defaults.seed);
    s.max_tokens = s.max_tokens.or(defaults.max_tokens);
    if s.stop.is_empty() {
        s.stop = defaults.stop;
    }
    args
}

fn read_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().take(64 << 20).read_to_string(&mut text);
    read.map_err(|e| Failure::new("cannot read the standard input", e))?;
    if text.trim().is_empty() {
        return Err(Failure::new("there is no prompt", "the standard input is empty")
            .fix("tokenmill run MODEL \"your question\""));
    }
    Ok(text)
}

/// A system message, if any, and one question.
fn conversation(system: Option<&str>, prompt: &str) -> Vec<Value> {
    let system = system.map(|text| json!({"role": "system", "content": text}));
    system.into_iter().chain([json!({"role": "user", "content": prompt})]).collect()
}

/// The tokenizer, or an error that says what works without one.
pub fn tokenizer(served: &Served) -> Result<&Tokenizer, Failure> {
    served.tokenizer.as_deref().ok_or_else(|| {
        Failure::new("the model has no tokenizer", "its files hold weights only")
            .fix("tokenmill score MODEL --ids 1,2,3")
    })
}

/// Messages through the chat template, or the last one as plain text for models without.
pub fn encode(served: &Served, messages: &[Value]) -> Result<Vec<u32>, Failure> {
    let tokenizer = tokenizer(served)?;
    let template = served.template.as_ref().map_err(|e| {
        Failure::new("cannot chat with this model", e)
            .fix("add --raw to continue the text as it is")
    })?;
    let options =
        RenderOptions { add_generation_prompt: true, now: now(), ..RenderOptions::default() };
    let fail = |e: &dyn std::fmt::Display| Failure::new("cannot build the prompt", e);
    let messages = template.readable(messages);
    let rendered = template.render(&messages, &options).map_err(|e| fail(&e))?;
    tokenizer.encode_rendered(&rendered).map_err(|e| fail(&e))
}

/// The time for templates that print a date.
fn now() -> DateTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    DateTime::from_unix_seconds(since.map_or(0, |d| d.as_secs()))
}

/// A request with the command line's sampling.
pub fn request(sampling: &Sampling, tokens: Vec<u32>) -> Request {
    let clock = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |d| d.as_nanos() as u64)
    };
    let seed = sampling.seed.unwrap_or_else(clock);
    tracing::debug!(seed, "sampling");
    let greedy = SamplingParams::default();
    Request {
        sampling: SamplingParams {
            temperature: sampling.temp.unwrap_or(greedy.temperature),
            top_k: sampling.top_k.unwrap_or(greedy.top_k),
            top_p: sampling.top_p.unwrap_or(greedy.top_p),
            min_p: sampling.min_p.unwrap_or(greedy.min_p),
            repetition_penalty: sampling.repeat_penalty.unwrap_or(greedy.repetition_penalty),
            presence_penalty: sampling.presence_penalty.unwrap_or(greedy.presence_penalty),
            frequency_penalty: sampling.frequency_penalty.unwrap_or(greedy.frequency_penalty),
            seed,
            ..greedy
        },
        max_tokens: sampling.max_tokens,
        stop: sampling.stop.clone(),
        ..Request::new(tokens)
    }
}

/// A finished answer.
pub struct Answer {
    /// Its text.
    pub text: String,
    /// Why it ended; `None` when it was stopped.
    pub reason: Option<StopReason>,
    usage: Usage,
    submitted: Instant,
    first: Option<Instant>,
    last: Instant,
}

/// Runs a request; `show` gets the text as it comes. Setting `stop` ends it.
pub fn generate(
    served: &Served,
    request: Request,
    stop: &AtomicBool,
    mut show: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<Answer, Failure> {
    let submitted = Instant::now();
    let prompt_tokens = request.prompt.len() as u32;
    let events = served.engine.submit(request)?;
    let mut answer = Answer {
        text: String::new(),
        reason: None,
        usage: Usage { prompt_tokens, ..Usage::default() },
        submitted,
        first: None,
        last: submitted,
    };
    for event in events {
        match event {
            Event::Text { text, tokens, .. } => {
                answer.last = Instant::now();
                answer.first.get_or_insert(answer.last);
                answer.usage.completion_tokens += tokens.len() as u32;
                show(&text)?;
                answer.text.push_str(&text);
            }
            Event::Done { reason, .. } => answer.reason = Some(reason),
            Event::Prefix(_) => {}
            Event::Finished(usage) => answer.usage = usage,
            Event::Failed(error) => return Err(error.into()),
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(answer)
}

/// Writes text at once.
pub fn show(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::output)
}

impl Answer {
    /// Prompt tokens a second and generated tokens a second.
    fn speeds(&self) -> (f64, f64) {
        let first = self.first.unwrap_or(self.last);
        let computed =
            self.usage.prompt_tokens - self.usage.cached_tokens.min(self.usage.prompt_tokens);
        let prefill = first.duration_since(self.submitted).as_secs_f64();
        let decode = self.last.duration_since(first).as_secs_f64();
        let decoded = f64::from(self.usage.completion_tokens.saturating_sub(1));
        (f64::from(computed) / prefill.max(1e-9), decoded / decode.max(1e-9))
    }

    /// One line about the speed.
    pub fn speed_line(&self, started: Instant) -> String {
        let (prefill, decode) = self.speeds();
        let first = self.first.unwrap_or(self.last);
        let reason = match &self.reason {
            Some(StopReason::Length) => " (length limit)",
            _ => "",
        };
        format!(
            "[{} prompt tokens, {prefill:.0} tok/s · {} generated{reason}, {decode:.1} tok/s · \
             first token after {:.2} s]",
            self.usage.prompt_tokens,
            self.usage.completion_tokens,
            first.duration_since(started).as_secs_f64(),
        )
    }

    fn json(&self, model: &str, started: Instant) -> Value {
        let (prefill, decode) = self.speeds();
        let first = self.first.unwrap_or(self.last);
        json!({
            "model": model,
            "text": self.text,
            "finish_reason": match self.reason {
                Some(StopReason::Length) => "length",
                Some(_) => "stop",
                None => "cancelled",
            },
            "prompt_tokens": self.usage.prompt_tokens,
            "cached_tokens": self.usage.cached_tokens,
            "completion_tokens": self.usage.completion_tokens,
            "accepted_draft_tokens": self.usage.accepted_drafts,
            "rejected_draft_tokens": self.usage.rejected_drafts,
            "prompt_tok_s": prefill,
            "tok_s": decode,
            "first_token_s": first.duration_since(started).as_secs_f64(),
        })
    }
}

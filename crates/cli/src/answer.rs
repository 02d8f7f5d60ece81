//! One answer on the command line: a prompt of messages, a request, and the text as it comes.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tokenmill_engine::start::Served;
use tokenmill_engine::{Engine, EngineStats, Event, Request, SamplingValues, StopReason, Usage};
use tokenmill_text::{DateTime, Reach, RenderOptions, Tokenizer};

use crate::args::Sampling;
use crate::failure::{Failure, refused};

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
    let rendered = template.render_readable(messages, &options).map_err(|e| fail(&e))?;
    tokenizer.encode_rendered(&rendered).map_err(|e| fail(&e))
}

/// The time for templates that print a date.
fn now() -> DateTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    DateTime::from_unix_seconds(since.map_or(0, |d| d.as_secs()))
}

/// A request with the command line's sampling, and where it is silent the packager's.
///
/// # Errors
/// Those of the tokenizer.
pub fn request(said: &Sampling, served: &Served, tokens: Vec<u32>) -> Result<Request, Failure> {
    let said = said.more.values().or(SamplingValues {
        temperature: said.temp,
        top_k: said.top_k,
        top_p: said.top_p,
        min_p: said.min_p,
        repeat_penalty: said.repeat_penalty,
        presence_penalty: said.presence_penalty,
        frequency_penalty: said.frequency_penalty,
        seed: said.seed,
        max_tokens: said.max_tokens,
        stop: Some(said.stop.clone()).filter(|list| !list.is_empty()),
        ..SamplingValues::default()
    });
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let clock = since.map_or(0, |d| d.as_nanos() as u64);
    let chosen = tokenmill_engine::Sampling::new(said, &served.defaults.sampling, clock);
    tracing::debug!(seed = chosen.params.seed, "sampling: {}", chosen.line(None));
    let left = served.engine.longest().saturating_sub(tokens.len() as u32);
    let rules = tokenizer(served)?.within(Reach::ALL);
    let rules = chosen.rules(&rules).map_err(|e| Failure::new("cannot read the samplers", e))?;
    Ok(Request {
        sampling: chosen.params,
        rules,
        max_tokens: Some(chosen.tokens(left)),
        stop: chosen.stop,
        ..Request::new(tokens)
    })
}

/// A finished answer.
pub struct Answer {
    /// Its text.
    pub text: String,
    /// Why it ended; `None` when it was stopped.
    pub reason: Option<StopReason>,
    usage: Usage,
    /// Most tokens of prompt and answer together.
    longest: u32,
    submitted: Instant,
    first: Option<Instant>,
    /// Tokens that came with the first text: no time passed between them.
    first_tokens: u32,
    last: Instant,
}

/// How long to wait for an event before looking for Ctrl-C.
const TICK: Duration = Duration::from_millis(100);

/// Runs a request; `show` gets the text as it comes. Setting `stop` ends it.
pub fn generate(
    served: &Served,
    request: Request,
    stop: &AtomicBool,
    mut show: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<Answer, Failure> {
    let submitted = Instant::now();
    let prompt_tokens = request.prompt.len() as u32;
    let reading = Reading::new(&served.engine, prompt_tokens);
    let events = served.engine.submit(request);
    let events = events.map_err(|refusal| refused(refusal, served.fit.most_context))?;
    let mut answer = Answer {
        text: String::new(),
        reason: None,
        usage: Usage { prompt_tokens, ..Usage::default() },
        longest: served.engine.longest(),
        submitted,
        first: None,
        first_tokens: 0,
        last: submitted,
    };
    while !stop.load(Ordering::Relaxed) {
        match events.recv_timeout(TICK) {
            Ok(Event::Piece { piece, tokens, .. }) => {
                reading.end();
                answer.add(piece.text(), tokens.len() as u32);
                show(piece.text())?;
            }
            Ok(Event::Done { reason, .. }) => {
                reading.end();
                // The first token may be the one that ends it: then there is no text.
                answer.first.get_or_insert_with(Instant::now);
                answer.reason = Some(reason);
            }
            Ok(Event::Prefix(_) | Event::Rows(_) | Event::Repeats { .. }) => {}
            Ok(Event::Finished(usage)) => answer.usage = usage,
            Ok(Event::Failed(error)) => return Err(error.into()),
            Err(RecvTimeoutError::Timeout) if answer.first.is_none() => reading.show(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(answer),
        }
    }
    answer.usage.cached_tokens = reading.cached();
    Ok(answer)
}

/// How much of a long prompt is read, on a terminal.
struct Reading<'a> {
    engine: &'a Engine,
    before: EngineStats,
    since: Instant,
    bar: ProgressBar,
}

/// Prompts that are read sooner need no progress.
const SOON: Duration = Duration::from_secs(1);

impl<'a> Reading<'a> {
    fn new(engine: &'a Engine, prompt_tokens: u32) -> Self {
        let bar = ProgressBar::new(prompt_tokens.into());
        let style =
            ProgressStyle::with_template("reading the prompt [{bar:30}] {pos}/{len} tokens");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { engine, before: engine.stats(), since: Instant::now(), bar }
    }

    fn cached(&self) -> u32 {
        let cached = self.engine.stats().cached_tokens - self.before.cached_tokens;
        u32::try_from(cached).unwrap_or(u32::MAX)
    }

    fn show(&self) {
        if self.since.elapsed() >= SOON {
            let computed = self.engine.stats().computed_tokens - self.before.computed_tokens;
            let read = computed + u64::from(self.cached());
            self.bar.set_position(read.min(self.bar.length().unwrap_or(read)));
        }
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Writes text at once.
pub fn show(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::output)
}

/// Tokens a second; none where the time is too short to tell.
fn speed(tokens: u32, time: Duration) -> Option<f64> {
    let seconds = time.as_secs_f64();
    (tokens > 0 && seconds >= 1e-3).then(|| f64::from(tokens) / seconds)
}

impl Answer {
    fn add(&mut self, text: &str, tokens: u32) {
        self.last = Instant::now();
        if self.first.is_none() {
            (self.first, self.first_tokens) = (Some(self.last), tokens);
        }
        self.usage.completion_tokens += tokens;
        self.text.push_str(text);
    }

    /// Whether Ctrl-C ended it.
    pub fn is_stopped(&self) -> bool {
        self.reason.is_none()
    }

    /// Computed prompt tokens a second and generated tokens a second.
    fn speeds(&self) -> (Option<f64>, Option<f64>) {
        let first = self.first.unwrap_or(self.last);
        let computed = self.usage.prompt_tokens.saturating_sub(self.usage.cached_tokens);
        let decoded = self.usage.completion_tokens.saturating_sub(self.first_tokens);
        let prefill = speed(computed, first.duration_since(self.submitted));
        (prefill, speed(decoded, self.last.saturating_duration_since(first)))
    }

    /// One line about the speed; the first token is counted from `started`.
    pub fn speed_line(&self, started: Instant) -> String {
        let (prefill, decode) = self.speeds();
        let Usage { prompt_tokens, cached_tokens, completion_tokens, .. } = self.usage;
        let rate = |rate: Option<f64>, digits| {
            rate.map(|rate| format!(", {rate:.digits$} tok/s")).unwrap_or_default()
        };
        let cached = match cached_tokens {
            0 => String::new(),
            n => format!(" ({n} cached)"),
        };
        let full = prompt_tokens.saturating_add(completion_tokens) >= self.longest;
        let reason = match &self.reason {
            Some(StopReason::Length) if full => {
                format!(" (the context of {} tokens is full)", self.longest)
            }
            Some(StopReason::Length) => " (length limit)".to_owned(),
            Some(_) => String::new(),
            None => " (stopped)".to_owned(),
        };
        let first = self.first.map(|first| {
            let seconds = first.duration_since(started).as_secs_f64();
            format!(" · first token after {seconds:.2} s")
        });
        format!(
            "[{prompt_tokens} prompt tokens{cached}{} · {completion_tokens} generated{reason}{}{}]",
            rate(prefill, 0),
            rate(decode, 1),
            first.unwrap_or_default(),
        )
    }

    /// As one line of JSON.
    pub fn json(&self, model: &str, started: Instant) -> Value {
        let (prefill, decode) = self.speeds();
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
            "first_token_s": self.first.map(|first| first.duration_since(started).as_secs_f64()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer to a prompt of 120 tokens, 100 of them cached, whose first text came after 100 ms
    /// and whose last came `decode_ms` later.
    fn answer(first_tokens: u32, completion_tokens: u32, decode_ms: u64) -> (Answer, Instant) {
        let submitted = Instant::now();
        let first = submitted + Duration::from_millis(100);
        let usage =
            Usage { prompt_tokens: 120, cached_tokens: 100, completion_tokens, ..Usage::default() };
        let answer = Answer {
            text: String::new(),
            reason: Some(StopReason::EndOfText),
            usage,
            longest: 200,
            submitted,
            first: Some(first),
            first_tokens,
            last: first + Duration::from_millis(decode_ms),
        };
        (answer, submitted)
    }

    #[test]
    fn speeds_count_what_was_computed_in_the_time_that_passed() {
        let line = |(answer, started): (Answer, Instant)| answer.speed_line(started);
        assert_eq!(
            line(answer(1, 11, 500)),
            "[120 prompt tokens (100 cached), 200 tok/s · 11 generated, 20.0 tok/s · \
             first token after 0.10 s]"
        );
        for (first_tokens, generated) in [(1, 1), (5, 5), (1, 5)] {
            // All in one moment: no speed can be told.
            let line = line(answer(first_tokens, generated, 0));
            assert!(line.contains(&format!("{generated} generated · first")), "{line}");
        }
    }

    #[test]
    fn why_it_ended() {
        for (reason, generated, expect) in [
            (Some(StopReason::Length), 11, "(length limit)"),
            (Some(StopReason::Length), 80, "(the context of 200 tokens is full)"),
            (None, 11, "(stopped)"),
        ] {
            let (mut answer, started) = answer(1, generated, 500);
            answer.reason = reason;
            let line = answer.speed_line(started);
            assert!(line.contains(expect), "{line}");
        }
        let (mut none, started) = answer(0, 0, 0);
        (none.first, none.last, none.reason) = (None, none.submitted, None);
        assert_eq!(
            none.speed_line(started),
            "[120 prompt tokens (100 cached) · 0 generated (stopped)]"
        );
    }
}

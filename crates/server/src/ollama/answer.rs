//! Answers as lines of JSON, and the same in one piece.

use serde_json::{Value, json};
use tokenmill_engine::{Divergence, StopReason, TokenInfo, Usage};
use tokenmill_output::Piece;
use tokenmill_text::DateTime;

use super::{error_body, told_name};
use crate::ask::{Ask, Called, Choice, Generate, Head, Input, Manner, Took, Writer};
use crate::error::ApiError;
use crate::openai::answer::told;
use crate::shared::unix_seconds;

/// Which of the two shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `/api/chat`
    Chat,
    /// `/api/generate`
    Generate,
}

/// A request for text whose answer has that shape.
pub fn answered(kind: Kind, ask: Generate, stream: bool) -> Ask {
    let writer = Box::new(move |head| Box::new(Answer::new(kind, head)) as Box<dyn Writer>);
    Ask::Generate { ask: Box::new(ask), stream, writer }
}

/// A request that only wants its model there, or gone: one object, whether it asks for a stream or not.
pub fn loaded(kind: Kind, model: Option<String>, lets_go: bool) -> Ask {
    let name = model.clone().unwrap_or_default();
    let write = move |_: usize, warnings: &[String]| {
        let head = Head { model: name, created: unix_seconds(), ..Head::default() };
        let answer = Answer::new(kind, head);
        let mut line = answer.line(&Says::default());
        line["done"] = true.into();
        line["done_reason"] = if lets_go { "unload" } else { "load" }.into();
        if !warnings.is_empty() {
            line["warnings"] = json!(warnings);
        }
        line
    };
    let input = Input::Prompts { prompts: Vec::new(), echo: false, suffix: None };
    let ask = Generate { model, input, manner: Manner::default() };
    Ask::Count { ask: Box::new(ask), write: Box::new(write) }
}

/// A time as RFC 3339 has it.
pub fn time(unix_seconds: u64) -> String {
    DateTime::from_unix_seconds(unix_seconds).strftime("%Y-%m-%dT%H:%M:%SZ")
}

/// What a line says.
#[derive(Debug, Default)]
struct Says<'a> {
    text: &'a str,
    thinking: &'a str,
    calls: &'a [Value],
}

/// Writes one answer.
#[derive(Debug)]
pub struct Answer {
    kind: Kind,
    head: Head,
    created: String,
    /// The call that is being written.
    call: Option<Called>,
    /// Calls that were told.
    calls: usize,
    /// Tokens of which nothing was told yet.
    tokens: Vec<Value>,
    finish: Option<StopReason>,
    took: Took,
    /// Warnings that came with the end.
    late: Vec<String>,
}

impl Answer {
    /// An answer with that head.
    pub fn new(kind: Kind, head: Head) -> Self {
        let (call, calls, tokens, finish) = (None, 0, Vec::new(), None);
        let (created, took, late) = (time(head.created), Took::default(), Vec::new());
        Self { kind, head, created, call, calls, tokens, finish, took, late }
    }

    fn line(&self, says: &Says<'_>) -> Value {
        let mut line =
            json!({ "model": told_name(&self.head.model), "created_at": self.created.as_str() });
        let place = match self.kind {
            Kind::Chat => {
                line["message"] = json!({ "role": "assistant", "content": says.text });
                &mut line["message"]
            }
            Kind::Generate => {
                line["response"] = says.text.into();
                &mut line
            }
        };
        if !says.thinking.is_empty() {
            place["thinking"] = says.thinking.into();
        }
        if !says.calls.is_empty() {
            place["tool_calls"] = says.calls.into();
        }
        line["done"] = false.into();
        line
    }

    /// A call as an object.
    fn call(&self, number: usize, call: &Called) -> Value {
        let arguments = match serde_json::from_str(&call.arguments) {
            Ok(object @ Value::Object(_)) => object,
            _ if call.arguments.trim().is_empty() => json!({}),
            _ => json!({ "INVALID_JSON": call.arguments }),
        };
        let id = format!("call_{:016x}{number:03}", self.head.ticket);
        let function = json!({ "index": number, "name": call.name, "arguments": arguments });
        json!({ "id": id, "function": function })
    }

    /// One more line, with the tokens of which nothing was told.
    fn push(&mut self, mut line: Value, out: &mut String) {
        if !self.tokens.is_empty() {
            line["logprobs"] = std::mem::take(&mut self.tokens).into();
        }
        out.push_str(&line.to_string());
        out.push('\n');
    }

    /// Makes a line the last one.
    fn end(&self, line: &mut Value, usage: Usage) {
        line["done"] = true.into();
        line["done_reason"] = match self.finish {
            Some(StopReason::Length) => "length".into(),
            _ => "stop".into(),
        };
        let Took { waited, prompt, answer } = self.took;
        let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        line["total_duration"] = nanos(waited + prompt + answer).into();
        line["load_duration"] = nanos(waited).into();
        line["prompt_eval_count"] = usage.prompt_tokens.into();
        line["prompt_eval_duration"] = nanos(prompt).into();
        line["eval_count"] = usage.completion_tokens.into();
        line["eval_duration"] = nanos(answer).into();
        let warnings = [&self.head.warnings[..], &self.late].concat();
        if !warnings.is_empty() {
            line["warnings"] = json!(warnings);
        }
    }
}

impl Writer for Answer {
    fn head(&self) -> &Head {
        &self.head
    }

    fn open(&mut self, _: &mut String) {}

    fn piece(&mut self, _: usize, piece: &Piece, tokens: &[TokenInfo], out: &mut String) {
        if self.head.logprobs {
            self.tokens.extend(tokens.iter().map(logprob));
        }
        let line = match piece {
            Piece::Text(text) if text.is_empty() => return,
            Piece::Text(text) => self.line(&Says { text, ..Says::default() }),
            Piece::Reasoning(text) if text.is_empty() => return,
            Piece::Reasoning(thinking) => self.line(&Says { thinking, ..Says::default() }),
            Piece::CallStart { name } => {
                self.call = Some(Called { name: name.clone(), ..Called::default() });
                return;
            }
            Piece::CallArguments(text) => {
                self.call.iter_mut().for_each(|call| call.arguments.push_str(text));
                return;
            }
            Piece::CallEnd => {
                let Some(call) = self.call.take() else { return };
                let calls = [self.call(self.calls, &call)];
                self.calls += 1;
                self.line(&Says { calls: &calls, ..Says::default() })
            }
        };
        self.push(line, out);
    }

    fn warn(&mut self, _: usize, warning: String) {
        self.late.push(warning);
    }

    fn done(&mut self, _: usize, finish: &StopReason, _: &mut String) {
        self.finish = Some(finish.clone());
    }

    fn prefix(&mut self, _: usize, _: Option<&Divergence>, _: &mut String) {}

    fn close(&mut self, usage: Usage, out: &mut String) {
        let mut line = self.line(&Says::default());
        self.end(&mut line, usage);
        self.push(line, out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        out.push_str(&format!("{}\n", error_body(error)));
    }

    fn took(&mut self, took: Took) {
        self.took = took;
    }

    fn media(&self) -> &'static str {
        "application/x-ndjson"
    }

    /// Nothing but a blank before the next line: clients parse every line.
    fn ping(&self) -> &'static str {
        " "
    }

    fn whole(&mut self, choices: &[Choice], usage: Usage) -> Value {
        let none = Choice::default();
        let choice = choices.first().unwrap_or(&none);
        self.finish.clone_from(&choice.finish);
        let calls = choice.calls();
        let whole = calls.iter().filter(|call| call.whole).enumerate();
        let calls: Vec<Value> = whole.map(|(number, call)| self.call(number, call)).collect();
        let (text, thinking) = (choice.text(), choice.reasoning());
        let mut line = self.line(&Says { text: &text, thinking: &thinking, calls: &calls });
        self.end(&mut line, usage);
        if self.head.logprobs {
            line["logprobs"] = choice.tokens.iter().map(logprob).collect();
        }
        line
    }
}

/// A token with its log-probability and alternatives.
fn logprob(token: &TokenInfo) -> Value {
    let one = |bytes: &[u8], logprob: f32| {
        let text = String::from_utf8_lossy(bytes);
        json!({ "token": text, "logprob": told(logprob), "bytes": bytes })
    };
    let mut value = one(&token.bytes, token.logprob.unwrap_or(f32::NEG_INFINITY));
    if !token.top.is_empty() {
        value["top_logprobs"] = token.top.iter().map(|t| one(&t.bytes, t.logprob)).collect();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn pieces() -> Vec<Piece> {
        vec![
            Piece::Reasoning("r".into()),
            Piece::Text("a".into()),
            Piece::CallStart { name: "f".into() },
            Piece::CallArguments("{\"x\":".into()),
            Piece::CallArguments("1}".into()),
            Piece::CallEnd,
        ]
    }

    fn answer(kind: Kind) -> Answer {
        let model = "ollama:m:latest".to_owned();
        let mut answer =
            Answer::new(kind, Head { model, warnings: vec!["w".into()], ..Head::default() });
        let time = Duration::from_nanos;
        answer.took(Took { waited: time(1), prompt: time(20), answer: time(300) });
        answer
    }

    #[test]
    fn a_stream_is_lines_of_which_the_last_is_done() {
        let (mut answer, mut out) = (answer(Kind::Chat), String::new());
        answer.open(&mut out);
        pieces().iter().for_each(|piece| answer.piece(0, piece, &[], &mut out));
        answer.done(0, &StopReason::Calls, &mut out);
        let usage = Usage { prompt_tokens: 3, completion_tokens: 4, ..Usage::default() };
        answer.close(usage, &mut out);
        let lines: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(lines.len(), 4);
        let says = |at: usize| &lines[at]["message"];
        assert_eq!((&says(0)["thinking"], &says(1)["content"]), (&json!("r"), &json!("a")));
        let call = &says(2)["tool_calls"][0]["function"];
        assert_eq!(*call, json!({ "index": 0, "name": "f", "arguments": { "x": 1 } }));
        let last = &lines[3];
        assert_eq!((&last["done_reason"], &last["eval_count"]), (&json!("stop"), &json!(4)));
        assert_eq!((&last["total_duration"], &last["load_duration"]), (&json!(321), &json!(1)));
        assert_eq!((&last["model"], &last["warnings"]), (&json!("m:latest"), &json!(["w"])));
        assert!(lines[..3].iter().all(|line| line["done"] == false && line["model"] == "m:latest"));
    }

    #[test]
    fn a_whole_answer_says_what_its_stream_says() {
        let choice =
            Choice { pieces: pieces(), finish: Some(StopReason::Length), ..Choice::default() };
        for (kind, place) in [(Kind::Chat, "/message"), (Kind::Generate, "")] {
            let whole = answer(kind).whole(std::slice::from_ref(&choice), Usage::default());
            let said = whole.pointer(place).expect("its place");
            let text = if kind == Kind::Chat { "content" } else { "response" };
            assert_eq!((&said[text], &said["thinking"]), (&json!("a"), &json!("r")));
            assert_eq!(said["tool_calls"][0]["function"]["arguments"], json!({ "x": 1 }));
            assert_eq!((&whole["done"], &whole["done_reason"]), (&json!(true), &json!("length")));
        }
    }
}

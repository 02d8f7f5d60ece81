//! Answers as JSON: whole objects and chunks of a stream, for chat and for text completion.

use serde_json::{Map, Value, json};
use tokenmill_engine::{Divergence, StopReason, TokenInfo, TopToken, Usage};
use tokenmill_output::Piece;

use super::error_body;
use super::parameters::Delivery;
use crate::ask::{Ask, Choice, Generate, Head, MakeWriter, Writer};
use crate::error::ApiError;

/// Least log-probability told; JSON has no infinity.
const LEAST_LOGPROB: f32 = -9999.0;

/// Which of the two shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Text,
}

/// A request for text whose answer has that shape.
pub fn answered(kind: Kind, ask: Generate, delivery: Delivery) -> Ask {
    let Delivery { stream, include_usage } = delivery;
    let writer: MakeWriter = Box::new(move |head| Box::new(Answer::new(kind, head, include_usage)));
    Ask::Generate { ask: Box::new(ask), stream, writer }
}

/// Writes the parts of one answer.
#[derive(Debug, Clone)]
pub struct Answer {
    kind: Kind,
    head: Head,
    id: String,
    /// Whether a stream ends with the tokens counted.
    include_usage: bool,
    /// Characters before the next token, for each choice.
    offsets: Vec<usize>,
    /// Calls begun in each choice.
    calls: Vec<usize>,
    /// Why prompts were not found in the cache, one a prompt, where that was asked.
    misses: Vec<Value>,
    /// Warnings of the choice that ends next; of all in a whole answer.
    late: Vec<String>,
}

impl Answer {
    /// An answer with that head.
    pub fn new(kind: Kind, head: Head, include_usage: bool) -> Self {
        let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        // (Where its tokens are told, so is where each begins.)
        let echoed = |i: usize| {
            let text = head.echo.get(i / (head.choices as usize).max(1));
            text.filter(|_| head.echoed.is_empty()).map_or(0, |text| text.chars().count())
        };
        Self {
            id: format!("{prefix}-{:016x}", head.ticket),
            offsets: (0..head.all_choices()).map(echoed).collect(),
            calls: vec![0; head.all_choices()],
            misses: Vec::new(),
            late: Vec::new(),
            kind,
            head,
            include_usage,
        }
    }

    /// A choice that has ended.
    fn whole_choice(&mut self, index: usize, choice: &Choice) -> Value {
        let logprobs = match self.echoed(index) {
            [] => self.logprobs_of(index, &choice.tokens),
            echoed => {
                let tokens = [echoed, &choice.tokens[..]].concat();
                self.logprobs_of(index, &tokens)
            }
        };
        let finish = choice.finish.as_ref().map(finish_reason);
        let mut told = match self.kind {
            Kind::Chat => json!({
                "index": index,
                "message": self.message(index, choice),
                "logprobs": logprobs,
                "finish_reason": finish,
            }),
            Kind::Text => {
                let text = format!("{}{}", self.echo(index), choice.text());
                json!({
                    "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish,
                })
            }
        };
        self.tell_ids(&choice.tokens, &mut told);
        if self.kind == Kind::Text {
            self.tell_prompt(index, &mut told);
        }
        told
    }

    /// Puts the ids of tokens into a choice, where they are told.
    fn tell_ids(&self, tokens: &[TokenInfo], choice: &mut Value) {
        if self.tells_ids() {
            choice["token_ids"] = tokens.iter().map(|token| token.id).collect();
        }
    }

    /// Puts the ids of a choice's prompt where they are told.
    fn tell_prompt(&self, index: usize, place: &mut Value) {
        let prompt = index / (self.head.choices as usize).max(1);
        if let Some(ids) = self.head.told_ids.get(prompt) {
            place["prompt_token_ids"] = json!(ids);
        }
    }

    fn tells_ids(&self) -> bool {
        !self.head.told_ids.is_empty()
    }

    /// What an assistant said, in a chat.
    fn message(&self, index: usize, choice: &Choice) -> Value {
        let (text, reasoning, calls) = (choice.text(), choice.reasoning(), choice.calls());
        let calls = calls.iter().enumerate().filter(|(_, call)| call.whole);
        let calls: Vec<Value> = calls
            .map(|(number, call)| {
                let function = json!({ "name": call.name, "arguments": call.arguments });
                let id = self.call_id(index, number);
                json!({ "id": id, "type": "function", "function": function })
            })
            .collect();
        let content = match text.trim().is_empty() && !calls.is_empty() {
            true => Value::Null,
            false => text.into(),
        };
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        message
    }

    /// What a client calls a call.
    fn call_id(&self, index: usize, number: usize) -> String {
        format!("call_{:016x}{index:02}{number:03}", self.head.ticket)
    }

    /// Takes note of where a prompt leaves the nearest cached one.
    fn diagnosed(&mut self, prompt: usize, found: Option<&Divergence>) {
        let reason = missed(&self.head, found);
        self.misses.resize(self.misses.len().max(prompt + 1), Value::Null);
        self.misses[prompt] = reason;
    }

    /// A chunk that tells it.
    fn diagnosis(&self) -> Value {
        let mut chunk = self.stream_object(Vec::new());
        chunk["diagnostics"] = self.diagnostics().unwrap_or_default();
        chunk
    }

    /// In the form Anthropic's API has; a list where there are several prompts.
    fn diagnostics(&self) -> Option<Value> {
        match &self.misses[..] {
            [] => None,
            [one] => Some(json!({ "cache_miss_reason": one })),
            several => Some(json!({ "cache_miss_reasons": several })),
        }
    }

    /// What a stream begins with: the role of each choice, or the echoed prompts; and warnings.
    fn opening(&mut self) -> Vec<Value> {
        let choices = 0..self.head.all_choices();
        let mut chunks: Vec<Value> =
            choices.filter_map(|index| self.opening_choice(index)).collect();
        if self.kind == Kind::Chat
            && let Some(chunk) = chunks.first_mut()
        {
            self.tell_prompt(0, chunk);
        }
        if !self.head.warnings.is_empty() {
            // Every chunk has a choice: clients read the first one's text without looking.
            if chunks.is_empty() {
                let text =
                    json!({ "index": 0, "text": "", "logprobs": null, "finish_reason": null });
                chunks.push(self.chunk(text));
            }
            if let Some(Value::Object(chunk)) = chunks.first_mut() {
                chunk.insert("warnings".into(), json!(self.head.warnings));
            }
        }
        chunks
    }

    fn opening_choice(&mut self, index: usize) -> Option<Value> {
        let choice = match self.kind {
            Kind::Chat => {
                let delta = json!({ "role": "assistant", "content": "" });
                self.chat_delta(index, delta, Value::Null, None)
            }
            Kind::Text if self.head.echo.is_empty() && !self.tells_ids() => return None,
            Kind::Text => {
                let logprobs = match self.echoed(index) {
                    [] => Value::Null,
                    echoed => {
                        let tokens = echoed.to_vec();
                        self.text_logprobs(index, &tokens)
                    }
                };
                let text = self.echo(index);
                let mut choice = json!({
                    "index": index, "text": text, "logprobs": logprobs, "finish_reason": null,
                });
                self.tell_ids(&[], &mut choice);
                self.tell_prompt(index, &mut choice);
                choice
            }
        };
        Some(self.chunk(choice))
    }

    /// More of a choice; `None` when there is nothing to tell.
    fn more(&mut self, index: usize, piece: &Piece, tokens: &[TokenInfo]) -> Option<Value> {
        let told = (self.head.logprobs || self.tells_ids()) && !tokens.is_empty();
        let text = piece.text();
        if text.is_empty() && !told {
            return None;
        }
        let logprobs = if told { self.logprobs_of(index, tokens) } else { Value::Null };
        let mut choice = match self.kind {
            Kind::Chat => {
                let delta = self.delta(index, piece);
                self.chat_delta(index, delta, logprobs, None)
            }
            Kind::Text => {
                json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": null })
            }
        };
        self.tell_ids(tokens, &mut choice);
        Some(self.chunk(choice))
    }

    /// What a chunk of a chat adds.
    fn delta(&mut self, index: usize, piece: &Piece) -> Value {
        let begun = self.calls.get(index).copied().unwrap_or(0);
        match piece {
            Piece::Text(text) => json!({ "content": text }),
            Piece::Reasoning(text) => json!({ "reasoning_content": text }),
            Piece::CallStart { name } => {
                let function = json!({ "name": name, "arguments": "" });
                let id = self.call_id(index, begun);
                self.calls.get_mut(index).into_iter().for_each(|calls| *calls += 1);
                json!({ "tool_calls": [
                    { "index": begun, "id": id, "type": "function", "function": function },
                ] })
            }
            Piece::CallArguments(text) => {
                let function = json!({ "arguments": text });
                json!({ "tool_calls": [
                    { "index": begun.saturating_sub(1), "function": function },
                ] })
            }
            Piece::CallEnd => json!({}),
        }
    }

    /// The tokens counted, if they were asked for.
    fn closing(&self, usage: Usage) -> Option<Value> {
        let mut chunk = self.include_usage.then(|| self.stream_object(Vec::new()))?;
        chunk["usage"] = usage_object(usage);
        Some(chunk)
    }

    /// The tokens of the prompt that a choice begins with, where they are told.
    fn echoed(&self, index: usize) -> &[TokenInfo] {
        let prompt = index / (self.head.choices as usize).max(1);
        self.head.echoed.get(prompt).map_or(&[], Vec::as_slice)
    }

    fn echo(&self, index: usize) -> &str {
        let prompt = index / (self.head.choices as usize).max(1);
        self.head.echo.get(prompt).map_or("", String::as_str)
    }

    fn envelope(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
        let fingerprint = concat!("tokenmill-", env!("CARGO_PKG_VERSION"));
        [
            ("id", Value::from(self.id.as_str())),
            ("object", object.into()),
            ("created", self.head.created.into()),
            ("model", self.head.model.as_str().into()),
            ("system_fingerprint", fingerprint.into()),
            ("choices", choices.into()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into_iter()
        .collect()
    }

    fn stream_object(&self, choices: Vec<Value>) -> Value {
        let object = match self.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Text => "text_completion",
        };
        let mut chunk = self.envelope(object, choices);
        if self.include_usage {
            chunk.insert("usage".into(), Value::Null);
        }
        Value::Object(chunk)
    }

    fn chunk(&self, choice: Value) -> Value {
        self.stream_object(vec![choice])
    }

    fn chat_delta(
        &self,
        index: usize,
        delta: Value,
        logprobs: Value,
        finish: Option<&str>,
    ) -> Value {
        json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish })
    }

    fn logprobs_of(&mut self, index: usize, tokens: &[TokenInfo]) -> Value {
        if !self.head.logprobs {
            return Value::Null;
        }
        match self.kind {
            Kind::Chat => json!({
                "content": tokens.iter().map(chat_logprob).collect::<Vec<_>>(), "refusal": null,
            }),
            Kind::Text => self.text_logprobs(index, tokens),
        }
    }

    /// Four lists of the same length; `text_offset` counts characters from the start of the text. The
    /// token that came is among the alternatives, in its place or as one more.
    fn text_logprobs(&mut self, index: usize, tokens: &[TokenInfo]) -> Value {
        let mut offsets = Vec::with_capacity(tokens.len());
        if let Some(at) = self.offsets.get_mut(index) {
            for token in tokens {
                offsets.push(*at);
                *at += token.bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
            }
        }
        let top = |token: &TokenInfo| -> Value {
            let Some(own) = token.logprob else { return Value::Null };
            let mut top: Map<String, Value> =
                token.top.iter().map(|t| (token_word(&t.bytes), json!(told(t.logprob)))).collect();
            if !token.top.iter().any(|t| t.id == token.id) {
                top.entry(token_word(&token.bytes)).or_insert(json!(told(own)));
            }
            Value::Object(top)
        };
        json!({
            "tokens": tokens.iter().map(|t| token_word(&t.bytes)).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|t| t.logprob.map(told)).collect::<Vec<_>>(),
            "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
            "text_offset": offsets,
        })
    }
}

impl Writer for Answer {
    fn head(&self) -> &Head {
        &self.head
    }

    fn open(&mut self, out: &mut String) {
        self.opening().iter().for_each(|chunk| push(out, chunk));
    }

    fn piece(&mut self, choice: usize, piece: &Piece, tokens: &[TokenInfo], out: &mut String) {
        let chunk = self.more(choice, piece, tokens);
        chunk.iter().for_each(|chunk| push(out, chunk));
    }

    fn warn(&mut self, _: usize, warning: String) {
        self.late.push(warning);
    }

    fn done(&mut self, choice: usize, finish: &StopReason, out: &mut String) {
        let finish = finish_reason(finish);
        let choice = match self.kind {
            Kind::Chat => self.chat_delta(choice, json!({}), Value::Null, Some(finish)),
            Kind::Text => {
                json!({ "index": choice, "text": "", "logprobs": null, "finish_reason": finish })
            }
        };
        let mut chunk = self.chunk(choice);
        if !self.late.is_empty() {
            chunk["warnings"] = json!(std::mem::take(&mut self.late));
        }
        push(out, &chunk);
    }

    fn prefix(&mut self, prompt: usize, found: Option<&Divergence>, out: &mut String) {
        self.diagnosed(prompt, found);
        push(out, &self.diagnosis());
    }

    fn close(&mut self, usage: Usage, out: &mut String) {
        self.closing(usage).iter().for_each(|chunk| push(out, chunk));
        out.push_str("data: [DONE]\n\n");
    }

    fn wants_tokens(&self) -> bool {
        self.head.logprobs || self.tells_ids()
    }

    /// Without `[DONE]`.
    fn fail(&mut self, error: &ApiError, out: &mut String) {
        push(out, &error_body(error));
    }

    fn whole(&mut self, choices: &[Choice], usage: Usage) -> Value {
        let object = match self.kind {
            Kind::Chat => "chat.completion",
            Kind::Text => "text_completion",
        };
        let choices = choices.iter().enumerate();
        let choices = choices.map(|(index, choice)| self.whole_choice(index, choice)).collect();
        let mut whole = Value::Object(self.envelope(object, choices));
        if self.kind == Kind::Chat {
            self.tell_prompt(0, &mut whole);
        }
        whole["usage"] = usage_object(usage);
        let warnings = [&self.head.warnings[..], &self.late].concat();
        if !warnings.is_empty() {
            whole["warnings"] = json!(warnings);
        }
        if let Some(diagnostics) = self.diagnostics() {
            whole["diagnostics"] = diagnostics;
        }
        whole
    }
}

/// One event. JSON escapes line breaks: an event is one line.
fn push(out: &mut String, chunk: &Value) {
    out.push_str("data: ");
    out.push_str(&chunk.to_string());
    out.push_str("\n\n");
}

/// Why a prompt was not found in the cache; null where it was.
pub(crate) fn missed(head: &Head, found: Option<&Divergence>) -> Value {
    match found {
        None => json!({ "type": "previous_message_not_found" }),
        // All but the part of a block that every request computes.
        Some(d) if d.cached.is_none() || d.common_tokens == d.prompt_tokens => Value::Null,
        Some(d) => {
            let at = d.common_tokens as usize;
            let part = head.parts.iter().find(|p| p.end > at).or(head.parts.last());
            let in_system = part.is_some_and(|p| p.is_system);
            json!({
                "type": if in_system { "system_changed" } else { "messages_changed" },
                "cache_missed_input_tokens": d.prompt_tokens - d.common_tokens,
                "token_offset": d.common_tokens,
                "message_index": part.map(|p| p.index),
                "cached_text": d.cached,
                "prompt_text": d.prompt,
            })
        }
    }
}

/// A token as it is told with its log-probability.
pub(super) fn chat_logprob(token: &TokenInfo) -> Value {
    let top = |t: &TopToken| {
        json!({
            "token": String::from_utf8_lossy(&t.bytes),
            "logprob": told(t.logprob),
            "bytes": t.bytes,
        })
    };
    json!({
        "token": String::from_utf8_lossy(&token.bytes),
        "logprob": token.logprob.map(told),
        "bytes": token.bytes,
        "top_logprobs": token.top.iter().map(top).collect::<Vec<_>>(),
    })
}

pub(crate) fn told(logprob: f32) -> f32 {
    logprob.max(LEAST_LOGPROB)
}

/// A token as a key: its text, or its bytes where they are no text by themselves.
fn token_word(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let hex: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("bytes:{hex}")
        }
    }
}

fn finish_reason(reason: &StopReason) -> &'static str {
    match reason {
        StopReason::EndOfText | StopReason::StopText(_) => "stop",
        StopReason::Calls => "tool_calls",
        StopReason::Length => "length",
    }
}

fn usage_object(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "disk_tokens": usage.disk_tokens,
            "leased_tokens": usage.leased_tokens,
        },
        "completion_tokens_details": {
            "accepted_prediction_tokens": usage.accepted_drafts,
            "rejected_prediction_tokens": usage.rejected_drafts,
            "reasoning_tokens": usage.reasoning_tokens,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        Head {
            ticket: 0xab,
            created: 7,
            model: "m".into(),
            prompts: 2,
            choices: 2,
            logprobs: true,
            warnings: vec!["w".into()],
            ..Head::default()
        }
    }

    fn token(bytes: &[u8]) -> TokenInfo {
        let top = vec![TopToken { id: 2, bytes: b"b".to_vec(), logprob: f32::NEG_INFINITY }];
        TokenInfo { id: 1, bytes: bytes.to_vec(), logprob: Some(-0.5), top }
    }

    fn text(text: &str) -> Piece {
        Piece::Text(text.into())
    }

    #[test]
    fn reasoning_and_calls_have_places_of_their_own() {
        let mut answer = Answer::new(Kind::Chat, Head { logprobs: false, ..head() }, false);
        let pieces = [
            Piece::Reasoning("r".into()),
            text("t"),
            Piece::CallStart { name: "f".into() },
            Piece::CallArguments("{}".into()),
            Piece::CallEnd,
            Piece::CallStart { name: "g".into() },
        ];
        let mut choice = Choice { finish: Some(StopReason::Calls), ..Choice::default() };
        let mut deltas = Vec::new();
        for piece in pieces {
            let chunk = answer.more(1, &piece, &[]);
            deltas.extend(chunk.map(|chunk| chunk["choices"][0]["delta"].clone()));
            choice.add(piece);
        }
        let call = |number: usize, name: &str| {
            let id = format!("call_00000000000000ab01{number:03}");
            let function = json!({ "name": name, "arguments": "" });
            json!({ "tool_calls": [
                { "index": number, "id": id, "type": "function", "function": function },
            ] })
        };
        let more = json!({ "tool_calls": [{ "index": 0, "function": { "arguments": "{}" } }] });
        let told = [
            json!({ "reasoning_content": "r" }),
            json!({ "content": "t" }),
            call(0, "f"),
            more,
            call(1, "g"),
        ];
        assert_eq!(deltas, told);
        let whole = answer.whole_choice(1, &choice);
        assert_eq!(whole["finish_reason"], "tool_calls");
        assert_eq!(whole["message"]["reasoning_content"], "r");
        let calls = whole["message"]["tool_calls"].as_array().expect("calls");
        assert_eq!(calls.len(), 1, "the second never ended");
        assert_eq!(calls[0]["function"], json!({ "name": "f", "arguments": "{}" }));
        assert_eq!(calls[0]["id"], "call_00000000000000ab01000");
    }

    #[test]
    fn choices_are_numbered_over_all_prompts() {
        let head = head();
        assert_eq!((head.all_choices(), head.index(0, 1), head.index(1, 0)), (4, 1, 2));
    }

    #[test]
    fn offsets_count_characters_over_chunks() {
        let head = Head { echo: vec!["ab".into(), "".into()], ..head() };
        let mut answer = Answer::new(Kind::Text, head, true);
        let first = answer.more(0, &text("aé"), &[token(b"a"), token("é".as_bytes())]).unwrap();
        let second = answer.more(0, &text("x"), &[token(b"x")]).unwrap();
        assert_eq!(first["choices"][0]["logprobs"]["text_offset"], json!([2, 3]));
        assert_eq!(second["choices"][0]["logprobs"]["text_offset"], json!([4]));
        let other = answer.more(2, &text("x"), &[token(b"x")]).unwrap();
        assert_eq!(other["choices"][0]["logprobs"]["text_offset"], json!([0]));
    }

    #[test]
    fn chat_logprobs_carry_bytes_and_no_infinity() {
        let mut answer = Answer::new(Kind::Chat, head(), true);
        let chunk = answer.more(1, &text(""), &[token(&[0xff])]).unwrap();
        let content = &chunk["choices"][0]["logprobs"]["content"][0];
        assert_eq!(content["bytes"], json!([255]));
        assert_eq!(content["top_logprobs"][0]["logprob"], json!(-9999.0));
        assert_eq!(answer.more(1, &text(""), &[]), None);
    }

    #[test]
    fn a_stream_opens_with_roles_and_warnings_and_closes_with_usage() {
        let mut answer = Answer::new(Kind::Chat, head(), true);
        let opening = answer.opening();
        assert_eq!(opening.len(), 4);
        assert_eq!(opening[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(opening[0]["warnings"], json!(["w"]));
        assert_eq!(opening[1]["usage"], Value::Null);
        let usage = Usage {
            prompt_tokens: 3,
            cached_tokens: 1,
            completion_tokens: 4,
            accepted_drafts: 2,
            ..Usage::default()
        };
        let closing = answer.closing(usage).unwrap();
        assert_eq!(closing["usage"]["total_tokens"], 7);
        let details = json!({
            "accepted_prediction_tokens": 2, "rejected_prediction_tokens": 0, "reasoning_tokens": 0,
        });
        assert_eq!(closing["usage"]["completion_tokens_details"], details);
        assert_eq!(closing["choices"], json!([]));
        let opening = Answer::new(Kind::Text, head(), true).opening();
        assert_eq!((opening.len(), &opening[0]["warnings"]), (1, &json!(["w"])));
        assert_eq!(opening[0]["choices"][0]["text"], "", "clients read it without looking");
        let silent = Head { warnings: vec![], ..head() };
        let mut silent = Answer::new(Kind::Text, silent, false);
        assert!(silent.opening().is_empty() && silent.closing(usage).is_none());
    }

    #[test]
    fn tokens_that_are_no_text_are_told_as_bytes() {
        assert_eq!(token_word(&[0xe2, 0x80]), "bytes:\\xe2\\x80");
        assert_eq!(token_word("é".as_bytes()), "é");
    }
}

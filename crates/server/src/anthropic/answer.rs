//! Messages as they are answered: whole, and as events whose blocks never interleave.

use serde_json::{Value, json};
use tokenmill_engine::{Divergence, StopReason, TokenInfo, Usage};
use tokenmill_output::Piece;

use super::error_body;
use crate::ask::{Called, Choice, Head, Writer};
use crate::error::ApiError;
use crate::openai::answer::missed;

/// What thinking is signed with. Clients send back only what is signed, and whoever sends it is
/// believed: it is text of a prompt like any other.
const SIGNATURE: &str = "dG9rZW5taWxs";

/// How a request wants its answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Shape {
    /// The texts that it named to stop at.
    pub stops: Vec<String>,
    /// Thinking has its place, without its text.
    pub thinking_omitted: bool,
}

/// Kinds of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    Call,
}

/// Writes one answer.
#[derive(Debug)]
pub struct Answer {
    head: Head,
    shape: Shape,
    /// The block that is being written.
    open: Option<Block>,
    /// Blocks begun.
    blocks: usize,
    /// Calls begun.
    calls: usize,
    /// Blanks that are no block of text unless more text follows.
    blank: String,
    finish: Option<StopReason>,
    /// Why the prompt was not found in the cache, where that was asked.
    miss: Option<Value>,
    /// Warnings that came with the end.
    late: Vec<String>,
}

impl Answer {
    /// An answer with that head.
    pub fn new(head: Head, shape: Shape) -> Self {
        let (open, finish, miss, late) = (None, None, None, Vec::new());
        Self { head, shape, open, blocks: 0, calls: 0, blank: String::new(), finish, miss, late }
    }

    /// The message without what it says.
    fn envelope(&self, content: Vec<Value>, stop: (Value, Value), usage: Value) -> Value {
        let mut message = json!({
            "id": format!("msg_{:016x}", self.head.ticket),
            "type": "message",
            "role": "assistant",
            "model": self.head.model,
            "content": content,
            "stop_reason": stop.0,
            "stop_sequence": stop.1,
            "usage": usage,
        });
        let warnings = [&self.head.warnings[..], &self.late].concat();
        if !warnings.is_empty() {
            message["warnings"] = json!(warnings);
        }
        message
    }

    /// Why it ended, and at which of the request's texts.
    fn stop(&self, finish: Option<&StopReason>) -> (Value, Value) {
        match finish {
            None => (Value::Null, Value::Null),
            Some(StopReason::Calls) => ("tool_use".into(), Value::Null),
            Some(StopReason::Length) => ("max_tokens".into(), Value::Null),
            Some(StopReason::StopText(text)) if self.shape.stops.contains(text) => {
                ("stop_sequence".into(), text.as_str().into())
            }
            // (A packager's text ends a turn as its token does.)
            Some(StopReason::StopText(_) | StopReason::EndOfText) => {
                ("end_turn".into(), Value::Null)
            }
        }
    }

    fn diagnostics(&self) -> Option<Value> {
        self.miss.as_ref().map(|miss| json!({ "cache_miss_reason": miss }))
    }

    /// What a client calls a call.
    fn call_id(&self, number: usize) -> String {
        format!("toolu_{:016x}{number:03}", self.head.ticket)
    }

    /// A block of what the model thought.
    fn thinking(&self, text: &str) -> Value {
        let text = if self.shape.thinking_omitted { "" } else { text };
        json!({ "type": "thinking", "thinking": text, "signature": SIGNATURE })
    }

    fn call(&self, number: usize, call: &Called) -> Value {
        let id = self.call_id(number);
        json!({ "type": "tool_use", "id": id, "name": call.name, "input": input(&call.arguments) })
    }

    /// The blocks of a whole answer: those of a stream, but for a call that was cut.
    fn content(&self, choice: &Choice) -> Vec<Value> {
        let calls = choice.calls();
        let block = |part: Part| match part {
            Part::Thinking(text) => Some(self.thinking(&text)),
            Part::Text(text) => Some(json!({ "type": "text", "text": text })),
            Part::Call(number) => {
                let call = calls.get(number).filter(|call| call.whole)?;
                Some(self.call(number, call))
            }
        };
        parts(&choice.pieces).into_iter().filter_map(block).collect()
    }

    /// Begins a block of that kind, unless one is open.
    fn enter(&mut self, block: Block, begins: Value, out: &mut String) {
        if self.open == Some(block) && block != Block::Call {
            return;
        }
        self.leave(out);
        let start =
            json!({ "type": "content_block_start", "index": self.blocks, "content_block": begins });
        push(out, &start);
        self.open = Some(block);
        self.blocks += 1;
    }

    /// Ends the open block.
    fn leave(&mut self, out: &mut String) {
        let Some(block) = self.open else { return };
        if block == Block::Thinking {
            self.delta(json!({ "type": "signature_delta", "signature": SIGNATURE }), out);
        }
        let index = self.blocks.saturating_sub(1);
        push(out, &json!({ "type": "content_block_stop", "index": index }));
        self.open = None;
    }

    /// More of the open block.
    fn delta(&self, delta: Value, out: &mut String) {
        let index = self.blocks.saturating_sub(1);
        push(out, &json!({ "type": "content_block_delta", "index": index, "delta": delta }));
    }

    fn text(&mut self, text: &str, out: &mut String) {
        if text.is_empty() {
            return;
        }
        if self.open != Some(Block::Text) && text.trim().is_empty() {
            self.blank.push_str(text);
            return;
        }
        let text = std::mem::take(&mut self.blank) + text;
        self.enter(Block::Text, json!({ "type": "text", "text": "" }), out);
        self.delta(json!({ "type": "text_delta", "text": text }), out);
    }
}

impl Writer for Answer {
    fn head(&self) -> &Head {
        &self.head
    }

    fn open(&mut self, out: &mut String) {
        let begun = Usage {
            prompt_tokens: u32::try_from(self.head.prompt_tokens).unwrap_or(u32::MAX),
            ..Usage::default()
        };
        let message = self.envelope(Vec::new(), self.stop(None), usage_object(begun));
        push(out, &json!({ "type": "message_start", "message": message }));
    }

    fn piece(&mut self, _: usize, piece: &Piece, _: &[TokenInfo], out: &mut String) {
        match piece {
            Piece::Text(text) => self.text(text, out),
            Piece::Reasoning(text) if text.is_empty() => {}
            Piece::Reasoning(text) => {
                let begins = json!({ "type": "thinking", "thinking": "", "signature": "" });
                self.enter(Block::Thinking, begins, out);
                if !self.shape.thinking_omitted {
                    self.delta(json!({ "type": "thinking_delta", "thinking": text }), out);
                }
            }
            Piece::CallStart { name } => {
                self.blank.clear();
                let id = self.call_id(self.calls);
                self.calls += 1;
                let begins = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                self.enter(Block::Call, begins, out);
            }
            Piece::CallArguments(text) if text.is_empty() => {}
            Piece::CallArguments(text) => {
                self.delta(json!({ "type": "input_json_delta", "partial_json": text }), out);
            }
            Piece::CallEnd => self.leave(out),
        }
    }

    fn warn(&mut self, _: usize, warning: String) {
        self.late.push(warning);
    }

    fn done(&mut self, _: usize, finish: &StopReason, _: &mut String) {
        self.finish = Some(finish.clone());
    }

    fn prefix(&mut self, _: usize, found: Option<&Divergence>, _: &mut String) {
        self.miss = Some(missed(&self.head, found));
    }

    fn close(&mut self, usage: Usage, out: &mut String) {
        let blank = std::mem::take(&mut self.blank);
        if self.blocks == 0 && !blank.is_empty() {
            self.enter(Block::Text, json!({ "type": "text", "text": "" }), out);
            self.delta(json!({ "type": "text_delta", "text": blank }), out);
        }
        self.leave(out);
        let (reason, sequence) = self.stop(self.finish.as_ref());
        let mut last = json!({
            "type": "message_delta",
            "delta": { "stop_reason": reason, "stop_sequence": sequence },
            "usage": usage_object(usage),
        });
        if let Some(diagnostics) = self.diagnostics() {
            last["diagnostics"] = diagnostics;
        }
        if !self.late.is_empty() {
            last["warnings"] = json!(self.late);
        }
        push(out, &last);
        push(out, &json!({ "type": "message_stop" }));
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        push(out, &error_body(error));
    }

    fn ping(&self) -> &'static str {
        "event: ping\ndata: {\"type\":\"ping\"}\n\n"
    }

    fn whole(&mut self, choices: &[Choice], usage: Usage) -> Value {
        let choice = choices.first();
        let content = choice.map_or_else(Vec::new, |choice| self.content(choice));
        let stop = self.stop(choice.and_then(|choice| choice.finish.as_ref()));
        let mut message = self.envelope(content, stop, usage_object(usage));
        if let Some(diagnostics) = self.diagnostics() {
            message["diagnostics"] = diagnostics;
        }
        message
    }
}

/// A block of a whole answer.
enum Part {
    Thinking(String),
    Text(String),
    /// By its number.
    Call(usize),
}

/// What stands in which block. Blanks are text only behind text or before it, and where there is
/// nothing else.
fn parts(pieces: &[Piece]) -> Vec<Part> {
    let (mut parts, mut blank, mut calls) = (Vec::new(), String::new(), 0);
    for piece in pieces {
        match (piece, parts.last_mut()) {
            (Piece::Text(more), Some(Part::Text(text))) => text.push_str(more),
            (Piece::Text(more), _) if more.trim().is_empty() => blank.push_str(more),
            (Piece::Text(more), _) => parts.push(Part::Text(std::mem::take(&mut blank) + more)),
            (Piece::Reasoning(more), Some(Part::Thinking(text))) => text.push_str(more),
            (Piece::Reasoning(more), _) if more.is_empty() => {}
            (Piece::Reasoning(more), _) => parts.push(Part::Thinking(more.clone())),
            (Piece::CallStart { .. }, _) => {
                blank.clear();
                parts.push(Part::Call(calls));
                calls += 1;
            }
            (Piece::CallArguments(_) | Piece::CallEnd, _) => {}
        }
    }
    if parts.is_empty() && !blank.is_empty() {
        parts.push(Part::Text(blank));
    }
    parts
}

/// One event, named as its data is. JSON escapes line breaks: an event is two lines.
fn push(out: &mut String, event: &Value) {
    let name = event["type"].as_str().unwrap_or_default();
    out.push_str(&format!("event: {name}\ndata: {event}\n\n"));
}

/// Arguments as an object; what is none stands under the name that Anthropic has for it.
fn input(arguments: &str) -> Value {
    match (arguments.trim(), serde_json::from_str(arguments)) {
        ("", _) => json!({}),
        (_, Ok(object @ Value::Object(_))) => object,
        _ => json!({ "INVALID_JSON": arguments }),
    }
}

/// Tokens counted: those read from the cache, and those that a lease newly keeps there, are no input
/// tokens here.
fn usage_object(usage: Usage) -> Value {
    let left = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
    let kept = usage.leased_tokens.saturating_sub(usage.cached_tokens).min(left);
    json!({
        "input_tokens": left - kept,
        "cache_creation_input_tokens": kept,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "thinking_tokens": usage.reasoning_tokens },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        Head {
            ticket: 0xab,
            model: "m".into(),
            prompts: 1,
            choices: 1,
            prompt_tokens: 9,
            ..Head::default()
        }
    }

    fn usage() -> Usage {
        Usage { prompt_tokens: 9, cached_tokens: 4, completion_tokens: 5, ..Usage::default() }
    }

    fn text(text: &str) -> Piece {
        Piece::Text(text.into())
    }

    fn reasoning(text: &str) -> Piece {
        Piece::Reasoning(text.into())
    }

    fn call(name: &str, arguments: &[&str]) -> Vec<Piece> {
        let arguments = arguments.iter().map(|text| Piece::CallArguments((*text).to_owned()));
        let begin = Piece::CallStart { name: name.into() };
        std::iter::once(begin).chain(arguments).chain([Piece::CallEnd]).collect()
    }

    /// All events of a stream, one a line, and the whole message.
    fn written(pieces: &[Piece], finish: StopReason, shape: Shape) -> (Vec<Value>, Value) {
        let mut answer = Answer::new(head(), shape.clone());
        let mut out = String::new();
        answer.open(&mut out);
        let mut choice = Choice::default();
        for piece in pieces {
            answer.piece(0, piece, &[], &mut out);
            choice.add(piece.clone());
        }
        answer.done(0, &finish, &mut out);
        answer.close(usage(), &mut out);
        choice.finish = Some(finish);
        let event = |event: &str| {
            let (name, data) = event.split_once('\n').expect("two lines");
            let data: Value =
                serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
            assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
            data
        };
        let events = out.trim_end().split("\n\n").map(event).collect();
        (events, Answer::new(head(), shape).whole(&[choice], usage()))
    }

    /// What a client puts together from the events of a stream.
    fn put_together(events: &[Value]) -> Vec<Value> {
        let mut blocks: Vec<Value> = Vec::new();
        let mut json = String::new();
        for event in events {
            let delta = &event["delta"];
            let add = |old: &Value, more: &Value| {
                json!(format!("{}{}", old.as_str().unwrap(), more.as_str().unwrap()))
            };
            match event["type"].as_str().unwrap() {
                "content_block_start" => {
                    assert_eq!(event["index"], blocks.len());
                    blocks.push(event["content_block"].clone());
                    json.clear();
                }
                "content_block_delta" => {
                    assert_eq!(event["index"], blocks.len() - 1);
                    let block = blocks.last_mut().unwrap();
                    match delta["type"].as_str().unwrap() {
                        "text_delta" => block["text"] = add(&block["text"], &delta["text"]),
                        "thinking_delta" => {
                            block["thinking"] = add(&block["thinking"], &delta["thinking"]);
                        }
                        "signature_delta" => block["signature"] = delta["signature"].clone(),
                        "input_json_delta" => json += delta["partial_json"].as_str().unwrap(),
                        other => panic!("{other}"),
                    }
                }
                "content_block_stop" => {
                    let block = blocks.last_mut().unwrap();
                    if block["type"] == "tool_use" {
                        block["input"] = input(&json);
                    }
                }
                _ => {}
            }
        }
        blocks
    }

    #[test]
    fn a_whole_stream_is_this() {
        let mut pieces =
            vec![reasoning("Let me"), reasoning(" see."), text("\n\n"), text("Yes"), text(".")];
        pieces.extend(call("lookup", &["{\"word\": ", "\"river\"}"]));
        let (events, _) = written(&pieces, StopReason::Calls, Shape::default());
        let told: Vec<String> = events.iter().map(Value::to_string).collect();
        let expect = include_str!("stream.jsonl");
        assert_eq!(told.join("\n"), expect.trim_end());
    }

    #[test]
    fn a_stream_and_a_whole_say_the_same() {
        let many = |lists: &[&[Piece]]| lists.concat();
        let thought = [reasoning("r")];
        let cases = [
            (vec![], StopReason::EndOfText, "end_turn", ""),
            (vec![text("")], StopReason::EndOfText, "end_turn", ""),
            (vec![text(" \n")], StopReason::Length, "max_tokens", "text"),
            (
                vec![text(" "), text("a"), text(" "), text("b")],
                StopReason::EndOfText,
                "end_turn",
                "text",
            ),
            (many(&[&thought, &[text("\n\n")]]), StopReason::EndOfText, "end_turn", "thinking"),
            (
                many(&[&thought, &[text("\n"), text("a")]]),
                StopReason::EndOfText,
                "end_turn",
                "thinking text",
            ),
            (many(&[&[text("\n")], &call("f", &[])]), StopReason::Calls, "tool_use", "tool_use"),
            (
                many(&[&thought, &[text("a")], &call("f", &["{\"a\":1}"]), &call("g", &["{}"])]),
                StopReason::Calls,
                "tool_use",
                "thinking text tool_use tool_use",
            ),
            (call("f", &["not JSON"]), StopReason::Calls, "tool_use", "tool_use"),
        ];
        for (pieces, finish, stop, kinds) in cases {
            let (events, whole) = written(&pieces, finish, Shape::default());
            let content = whole["content"].as_array().expect("blocks");
            assert_eq!(&put_together(&events), content, "{pieces:?}");
            let found: Vec<&str> = content.iter().filter_map(|b| b["type"].as_str()).collect();
            assert_eq!(found.join(" "), kinds, "{pieces:?}");
            let last = &events[events.len() - 2];
            assert_eq!(
                (&last["delta"]["stop_reason"], &whole["stop_reason"]),
                (&json!(stop), &json!(stop))
            );
            assert_eq!(last["usage"], whole["usage"]);
        }
    }

    #[test]
    fn blocks_never_interleave_and_all_end() {
        let mut pieces = vec![text("a"), reasoning("r"), text("b")];
        pieces.extend(call("f", &["{}"]));
        pieces.push(text("c"));
        pieces.push(Piece::CallStart { name: "g".into() });
        pieces.push(Piece::CallArguments("{\"cut".into()));
        let (events, whole) = written(&pieces, StopReason::Length, Shape::default());
        let mut open = None;
        for event in &events {
            match event["type"].as_str().unwrap() {
                "content_block_start" => assert!(open.replace(event["index"].clone()).is_none()),
                "content_block_delta" => assert_eq!(open.as_ref(), Some(&event["index"])),
                "content_block_stop" => assert_eq!(open.take().as_ref(), Some(&event["index"])),
                _ => assert!(open.is_none(), "{event}"),
            }
        }
        assert_eq!(events.iter().filter(|e| e["type"] == "content_block_start").count(), 6);
        let kinds: Vec<&Value> =
            whole["content"].as_array().unwrap().iter().map(|b| &b["type"]).collect();
        let expect = ["text", "thinking", "text", "tool_use", "text"];
        assert_eq!(kinds, expect, "the second call was cut");
        let mut told = put_together(&events);
        told.pop();
        assert_eq!(whole["content"], json!(told));
        assert_eq!(whole["stop_reason"], "max_tokens");
    }

    #[test]
    fn a_call_that_broke_off_is_no_use_of_a_tool() {
        let begin = Piece::CallStart { name: "f".into() };
        let pieces = [begin, Piece::CallArguments("{\"a".into()), text("no")];
        let (events, whole) = written(&pieces, StopReason::EndOfText, Shape::default());
        assert_eq!(events[events.len() - 2]["delta"]["stop_reason"], "end_turn");
        assert_eq!(whole["stop_reason"], "end_turn");
        assert_eq!(whole["content"], json!([{ "type": "text", "text": "no" }]));
    }

    #[test]
    fn a_stop_text_of_the_request_is_named() {
        let shape = Shape { stops: vec!["4".into()], ..Shape::default() };
        for (text, reason, sequence) in
            [("4", "stop_sequence", json!("4")), ("</s>", "end_turn", Value::Null)]
        {
            let finish = StopReason::StopText(text.into());
            let (events, whole) = written(&[self::text("123")], finish, shape.clone());
            let delta = &events[events.len() - 2]["delta"];
            for told in [delta, &whole] {
                assert_eq!(
                    (&told["stop_reason"], &told["stop_sequence"]),
                    (&json!(reason), &sequence)
                );
            }
        }
    }

    #[test]
    fn thinking_may_be_left_out_with_its_place_kept() {
        let shape = Shape { thinking_omitted: true, ..Shape::default() };
        let (events, whole) =
            written(&[reasoning("secret"), text("a")], StopReason::EndOfText, shape);
        assert!(!json!([events, whole]).to_string().contains("secret"));
        assert_eq!(whole["content"][0]["signature"], SIGNATURE);
        assert_eq!(&put_together(&events), whole["content"].as_array().unwrap());
    }

    #[test]
    fn what_is_cached_is_no_input() {
        let of = |prompt_tokens, cached_tokens, leased_tokens| {
            let told =
                usage_object(Usage { prompt_tokens, cached_tokens, leased_tokens, ..usage() });
            ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"]
                .map(|name| told[name].as_u64().unwrap())
        };
        for (usage, expect) in [
            ((100, 0, 0), [100, 0, 0]),
            ((100, 64, 0), [36, 0, 64]),
            ((100, 0, 96), [4, 96, 0]),
            ((100, 64, 96), [4, 32, 64]),
            ((100, 96, 64), [4, 0, 96]),
        ] {
            assert_eq!(of(usage.0, usage.1, usage.2), expect, "{usage:?}");
        }
    }

    #[test]
    fn warnings_and_misses_are_told() {
        let warned = Head { warnings: vec!["w".into()], ..head() };
        let mut answer = Answer::new(warned, Shape::default());
        let mut out = String::new();
        answer.open(&mut out);
        assert!(out.contains("\"warnings\":[\"w\"]"), "{out}");
        answer.prefix(0, None, &mut out);
        answer.close(usage(), &mut out);
        let miss = json!({ "cache_miss_reason": { "type": "previous_message_not_found" } });
        assert!(out.contains(&format!("\"diagnostics\":{miss}")), "{out}");
        let whole = answer.whole(&[Choice::default()], usage());
        assert_eq!((&whole["warnings"], &whole["diagnostics"]), (&json!(["w"]), &miss));
    }

    #[test]
    fn an_error_is_an_event() {
        let mut out = String::new();
        Answer::new(head(), Shape::default()).fail(&ApiError::internal(), &mut out);
        assert!(
            out.starts_with(
                "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\""
            ),
            "{out}"
        );
    }
}

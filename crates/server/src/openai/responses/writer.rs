//! A response as JSON: the whole object, and the events of a stream. Both come from the same pieces
//! by the same steps, so they say the same.

use serde_json::{Map, Value, json};
use tokenmill_engine::{Divergence, StopReason, TokenInfo, Usage};
use tokenmill_output::Piece;
use tokio::task::block_in_place;

use super::catalogue::{Form, Known};
use super::input::Input;
use super::request::Style;
use crate::ask::{Choice, Head, Left, Writer};
use crate::error::ApiError;
use crate::openai::answer::{chat_logprob, missed};
use crate::seal::Kind;

/// Writes one response.
#[derive(Debug)]
pub struct Answer {
    head: Head,
    style: Style,
    /// Events so far.
    events: u64,
    /// Nobody reads events: all is told at the end.
    silent: bool,
    /// Items that have ended.
    output: Vec<Value>,
    /// The item that is coming.
    open: Option<Item>,
    /// White space that is no text yet: between reasoning and calls it is none.
    held: (String, Vec<Value>),
    finish: Option<StopReason>,
    /// Why the prompt was not found in the cache, where that was asked.
    missed: Option<Value>,
    /// It is kept from its beginning on.
    is_begun: bool,
}

/// An item of the output.
#[derive(Debug)]
struct Item {
    id: String,
    what: What,
}

#[derive(Debug)]
enum What {
    Reasoning(String),
    Message { text: String, logprobs: Vec<Value> },
    Call { tool: Known, call_id: String, arguments: String, input: Input },
    Compaction(String),
}

/// How an item ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    InProgress,
    Completed,
    Incomplete,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
        }
    }
}

impl Answer {
    /// A response with that head.
    pub fn new(head: Head, style: Style) -> Self {
        let (held, missed) = ((String::new(), Vec::new()), None);
        let (output, open, finish) = (Vec::new(), None, None);
        let (silent, is_begun) = (false, false);
        Self { head, style, events: 0, silent, output, open, held, finish, missed, is_begun }
    }

    fn id(&self) -> String {
        format!("resp_{:016x}", self.head.ticket)
    }

    /// The response, kept where it is to be; where it cannot be, it says so.
    fn kept(&self, mut response: Value) -> Value {
        let Some(keep) = &self.style.keep else { return response };
        let end = || keep.end(&self.id(), &response, self.is_begun);
        if let Err(error) = block_in_place(end) {
            let warning = format!("the answer was not stored: {}", error.told());
            response["store"] = false.into();
            match response["warnings"].as_array_mut() {
                Some(warnings) => warnings.push(warning.into()),
                None => response["warnings"] = json!([warning]),
            }
        }
        response
    }

    /// One event. JSON escapes line breaks: its data is one line.
    fn event(&mut self, out: &mut String, name: &str, members: Value) {
        if self.silent {
            return;
        }
        let mut event = Map::new();
        event.insert("type".into(), name.into());
        event.insert("sequence_number".into(), self.events.into());
        if let Value::Object(members) = members {
            event.extend(members);
        }
        self.events += 1;
        out.push_str(&format!("event: {name}\ndata: {}\n\n", Value::Object(event)));
    }

    /// An event of the item that is coming: of its part, where it has one.
    fn of_item(&mut self, out: &mut String, name: &str, members: Value) {
        let Some(item) = &self.open else { return };
        let mut all = Map::new();
        all.insert("item_id".into(), item.id.as_str().into());
        all.insert("output_index".into(), self.output.len().into());
        match &item.what {
            What::Reasoning(_) if self.style.summary => {
                all.insert("summary_index".into(), 0.into());
            }
            What::Reasoning(_) | What::Message { .. } => {
                all.insert("content_index".into(), 0.into());
            }
            What::Call { .. } | What::Compaction(_) => {}
        }
        if let Value::Object(members) = members {
            all.extend(members);
        }
        self.event(out, name, Value::Object(all));
    }

    /// The next item begins.
    fn begin(&mut self, out: &mut String, what: What) {
        self.end_before(out);
        let number = self.output.len();
        let prefix = match &what {
            What::Reasoning(_) => "rs",
            What::Message { .. } => "msg",
            What::Compaction(_) => "cmp",
            What::Call { tool, .. } => match tool.form {
                Form::Function => "fc",
                Form::Custom => "ctc",
                Form::Search => "tsc",
            },
        };
        let id = format!("{prefix}_{:016x}{number:03}", self.head.ticket);
        let item = Item { id, what };
        let mut added = self.item(&item, Status::InProgress);
        for list in ["content", "summary"] {
            if let Some(list) = added.get_mut(list) {
                *list = json!([]);
            }
        }
        self.open = Some(item);
        let added = json!({ "output_index": number, "item": added });
        self.event(out, "response.output_item.added", added);
        if let Some((name, part)) = self.part() {
            self.of_item(out, &format!("response.{name}.added"), json!({ "part": part }));
        }
    }

    /// The part of the open item as it is, and the name of its events.
    fn part(&self) -> Option<(&'static str, Value)> {
        match &self.open.as_ref()?.what {
            What::Reasoning(text) if self.style.summary => {
                let part = json!({ "type": "summary_text", "text": text });
                Some(("reasoning_summary_part", part))
            }
            What::Reasoning(text) => {
                Some(("content_part", json!({ "type": "reasoning_text", "text": text })))
            }
            What::Message { text, logprobs } => Some(("content_part", text_part(text, logprobs))),
            What::Call { .. } | What::Compaction(_) => None,
        }
    }

    /// The open item ends, for another begins. A call without an end of its own broke off.
    fn end_before(&mut self, out: &mut String) {
        let is_call = matches!(self.open, Some(Item { what: What::Call { .. }, .. }));
        self.end(out, if is_call { Status::Incomplete } else { Status::Completed });
    }

    /// The open item ends so, if there is one.
    fn end(&mut self, out: &mut String, status: Status) {
        self.flush(out);
        if status == Status::Completed {
            self.complete(out);
        }
        if let Some((name, members)) = self.told(status) {
            self.of_item(out, name, members);
        }
        if let Some((name, part)) = self.part() {
            self.of_item(out, &format!("response.{name}.done"), json!({ "part": part }));
        }
        let Some(item) = self.open.take() else { return };
        let done = self.item(&item, status);
        let index = self.output.len();
        let event = json!({ "output_index": index, "item": done });
        self.event(out, "response.output_item.done", event);
        self.output.push(done);
    }

    /// The open item is a call that has come to its end: what of its arguments was waited for.
    fn complete(&mut self, out: &mut String) {
        let Some(Item { what: What::Call { arguments, input, tool, .. }, .. }) = &mut self.open
        else {
            return;
        };
        if tool.form == Form::Custom {
            let more = input.finish();
            if !more.is_empty() {
                let name = "response.custom_tool_call_input.delta";
                self.of_item(out, name, json!({ "delta": more }));
            }
        } else if arguments.trim().is_empty() {
            *arguments = "{}".to_owned();
        }
    }

    /// The event that says the open item's text again, all of it.
    fn told(&self, status: Status) -> Option<(&'static str, Value)> {
        match &self.open.as_ref()?.what {
            What::Reasoning(text) => {
                let name = match self.style.summary {
                    true => "response.reasoning_summary_text.done",
                    false => "response.reasoning_text.done",
                };
                Some((name, json!({ "text": text })))
            }
            What::Message { text, logprobs } => {
                let members = json!({ "text": text, "logprobs": logprobs });
                Some(("response.output_text.done", members))
            }
            // (A call that was cut has no end.)
            What::Call { tool, arguments, input, .. } if status == Status::Completed => {
                match tool.form {
                    Form::Function => {
                        let members = json!({ "name": tool.name, "arguments": arguments });
                        Some(("response.function_call_arguments.done", members))
                    }
                    Form::Custom => {
                        let members = json!({ "input": input.text });
                        Some(("response.custom_tool_call_input.done", members))
                    }
                    Form::Search => None,
                }
            }
            What::Call { .. } | What::Compaction(_) => None,
        }
    }

    /// An item as it is.
    fn item(&self, item: &Item, status: Status) -> Value {
        let (id, number) = (item.id.as_str(), self.output.len());
        let mut value = match &item.what {
            What::Reasoning(text) => self.reasoning(id, number, text),
            What::Message { text, logprobs } => json!({
                "type": "message", "id": id, "role": "assistant",
                "content": [text_part(text, logprobs)],
            }),
            What::Compaction(text) => {
                let sealed = match status {
                    Status::InProgress => None,
                    _ => self.sealed(Kind::Summary, number, text),
                };
                let sealed = sealed.unwrap_or_default();
                return json!({ "type": "compaction", "id": id, "encrypted_content": sealed });
            }
            What::Call { tool, call_id, arguments, input } => {
                call(id, tool, call_id, (arguments, input))
            }
        };
        value["status"] = status.name().into();
        value
    }

    fn reasoning(&self, id: &str, number: usize, text: &str) -> Value {
        let sealed = match self.style.sealed && !text.is_empty() {
            true => self.sealed(Kind::Reasoning, number, text),
            false => None,
        };
        match self.style.summary {
            true => json!({
                "type": "reasoning", "id": id,
                "summary": [{ "type": "summary_text", "text": text }],
                "encrypted_content": sealed,
            }),
            false => json!({
                "type": "reasoning", "id": id, "summary": [],
                "content": [{ "type": "reasoning_text", "text": text }],
                "encrypted_content": sealed,
            }),
        }
    }

    fn sealed(&self, kind: Kind, number: usize, text: &str) -> Option<String> {
        let number = u32::try_from(number).ok()?;
        self.style.seal.seal(kind, (self.head.ticket, number), text)
    }

    /// More text, or white space that may be some.
    fn text(&mut self, out: &mut String, text: &str, tokens: &[TokenInfo]) {
        if !matches!(self.open, Some(Item { what: What::Message { .. }, .. })) {
            self.held.0.push_str(text);
            self.held.1.extend(self.logprobs(tokens));
            if self.held.0.trim().is_empty() {
                return;
            }
            return self.tell_held(out);
        }
        let mut more = self.logprobs(tokens);
        if text.is_empty() {
            // Tokens of a character that is not whole: they are told with it.
            return self.held.1.append(&mut more);
        }
        let mut told = std::mem::take(&mut self.held.1);
        told.append(&mut more);
        self.delta(out, text, told);
    }

    /// What was held is text: a message begins with it.
    fn tell_held(&mut self, out: &mut String) {
        let (text, told) = std::mem::take(&mut self.held);
        self.begin(out, What::Message { text: String::new(), logprobs: Vec::new() });
        if !text.is_empty() || !told.is_empty() {
            self.delta(out, &text, told);
        }
    }

    /// Tokens whose text never came are told at the end of their message.
    fn flush(&mut self, out: &mut String) {
        let is_message = matches!(self.open, Some(Item { what: What::Message { .. }, .. }));
        if is_message && !self.held.1.is_empty() {
            let (text, told) = std::mem::take(&mut self.held);
            self.delta(out, &text, told);
        }
    }

    fn delta(&mut self, out: &mut String, more: &str, told: Vec<Value>) {
        let members = json!({ "delta": more, "logprobs": told });
        self.of_item(out, "response.output_text.delta", members);
        if let Some(Item { what: What::Message { text, logprobs }, .. }) = &mut self.open {
            text.push_str(more);
            logprobs.extend(told);
        }
    }

    fn logprobs(&self, tokens: &[TokenInfo]) -> Vec<Value> {
        match self.head.logprobs {
            true => tokens.iter().map(chat_logprob).collect(),
            false => Vec::new(),
        }
    }

    fn thought(&mut self, out: &mut String, more: &str) {
        self.flush(out);
        self.held = Default::default();
        if !matches!(self.open, Some(Item { what: What::Reasoning(_), .. })) {
            self.begin(out, What::Reasoning(String::new()));
        }
        let name = match self.style.summary {
            true => "response.reasoning_summary_text.delta",
            false => "response.reasoning_text.delta",
        };
        self.of_item(out, name, json!({ "delta": more }));
        if let Some(Item { what: What::Reasoning(text), .. }) = &mut self.open {
            text.push_str(more);
        }
    }

    fn call(&mut self, out: &mut String, name: &str) {
        self.flush(out);
        self.held = Default::default();
        let known = self.style.tools.iter().find(|tool| tool.offered == name).cloned();
        let tool = known.unwrap_or_else(|| Known {
            offered: name.to_owned(),
            form: Form::Function,
            name: name.to_owned(),
            namespace: None,
        });
        // An item that is open ends first, and is counted.
        self.end_before(out);
        let call_id = format!("call_{:016x}{:03}", self.head.ticket, self.output.len());
        let (arguments, input) = (String::new(), Input::default());
        self.begin(out, What::Call { tool, call_id, arguments, input });
    }

    fn arguments(&mut self, out: &mut String, more: &str) {
        let Some(Item { what: What::Call { tool, arguments, input, .. }, .. }) = &mut self.open
        else {
            return;
        };
        arguments.push_str(more);
        let (name, delta) = match tool.form {
            Form::Function => ("response.function_call_arguments.delta", more.to_owned()),
            Form::Custom => ("response.custom_tool_call_input.delta", input.push(more)),
            Form::Search => return,
        };
        if !delta.is_empty() {
            self.of_item(out, name, json!({ "delta": delta }));
        }
    }

    /// More of a summary, which is told at its end.
    fn summed_up(&mut self, out: &mut String, more: &str) {
        if self.open.is_none() {
            self.begin(out, What::Compaction(String::new()));
        }
        if let Some(Item { what: What::Compaction(text), .. }) = &mut self.open {
            text.push_str(more);
        }
    }

    /// The response as it is.
    fn response(&self, status: &str, error: Value, usage: Option<Usage>) -> Value {
        let why = match status {
            "incomplete" => json!({ "reason": "max_output_tokens" }),
            _ => Value::Null,
        };
        let mut response = Map::new();
        for (name, value) in [
            ("id", self.id().into()),
            ("object", "response".into()),
            ("created_at", self.head.created.into()),
            ("status", status.into()),
            ("background", self.style.keep.as_ref().is_some_and(|keep| keep.background).into()),
            ("error", error),
            ("incomplete_details", why),
            ("model", self.head.model.as_str().into()),
            ("output", self.output.clone().into()),
        ] {
            response.insert(name.into(), value);
        }
        response.extend(self.style.echo.clone());
        response.insert("usage".into(), usage.map(usage_object).unwrap_or_default());
        if !self.head.warnings.is_empty() {
            response.insert("warnings".into(), json!(self.head.warnings));
        }
        if let Some(missed) = &self.missed {
            response.insert("diagnostics".into(), json!({ "cache_miss_reason": missed }));
        }
        Value::Object(response)
    }

    /// A summary that was asked for by its own path.
    fn compacted(&mut self, usage: Usage) -> Value {
        let mut warnings = std::mem::take(&mut self.head.warnings);
        if self.status() == "incomplete" {
            warnings.push("the summary was cut by max_output_tokens or the context".to_owned());
        }
        let mut told = json!({
            "id": self.id(),
            "object": "response.compaction",
            "created_at": self.head.created,
            "output": self.output,
            "usage": usage_object(usage),
        });
        if !warnings.is_empty() {
            told["warnings"] = json!(warnings);
        }
        told
    }

    /// How it ended.
    fn status(&self) -> &'static str {
        match self.finish {
            Some(StopReason::Length) => "incomplete",
            _ => "completed",
        }
    }
}

impl Writer for Answer {
    fn leave(&mut self) -> Result<Option<Left>, ApiError> {
        let Some(keep) = self.style.keep.as_ref().filter(|keep| keep.background) else {
            return Ok(None);
        };
        let told = self.response("in_progress", Value::Null, None);
        let end = block_in_place(|| keep.begin(&self.id(), &told))?;
        self.is_begun = true;
        Ok(Some(Left { told, end }))
    }

    fn head(&self) -> &Head {
        &self.head
    }

    fn open(&mut self, out: &mut String) {
        let response = self.response("in_progress", Value::Null, None);
        self.event(out, "response.created", json!({ "response": response.clone() }));
        self.event(out, "response.in_progress", json!({ "response": response }));
    }

    fn piece(&mut self, choice: usize, piece: &Piece, tokens: &[TokenInfo], out: &mut String) {
        if choice > 0 {
            return;
        }
        if self.style.compacts {
            let is_text = matches!(piece, Piece::Text(_));
            self.summed_up(out, if is_text { piece.text() } else { "" });
            // Whatever the model does: a client that waits hears of it.
            return self.of_item(out, "response.compaction.compacting", json!({}));
        }
        match piece {
            Piece::Text(text) => self.text(out, text, tokens),
            Piece::Reasoning(text) => self.thought(out, text),
            Piece::CallStart { name } => self.call(out, name),
            Piece::CallArguments(text) => self.arguments(out, text),
            Piece::CallEnd => self.end(out, Status::Completed),
        }
    }

    fn warn(&mut self, choice: usize, warning: String) {
        if choice == 0 {
            self.head.warnings.push(warning);
        }
    }

    fn done(&mut self, choice: usize, finish: &StopReason, out: &mut String) {
        if choice > 0 {
            return;
        }
        self.finish = Some(finish.clone());
        if self.style.compacts {
            self.summed_up(out, "");
        } else if self.open.is_none() && self.output.is_empty() {
            self.tell_held(out);
        }
        // (A call is open only where it was cut.)
        let is_call = matches!(self.open, Some(Item { what: What::Call { .. }, .. }));
        let status = match *finish == StopReason::Length || is_call {
            true => Status::Incomplete,
            false => Status::Completed,
        };
        self.end(out, status);
    }

    fn prefix(&mut self, _: usize, found: Option<&Divergence>, _: &mut String) {
        self.missed = Some(missed(&self.head, found));
    }

    fn close(&mut self, usage: Usage, out: &mut String) {
        let status = self.status();
        let response = self.kept(self.response(status, Value::Null, Some(usage)));
        self.event(out, &format!("response.{status}"), json!({ "response": response }));
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        let code = match (error.status.as_u16(), error.code) {
            // (Who asks for it later cannot wait for this server.)
            (503, _) if self.is_begun => "server_error",
            (429 | 503, _) => "rate_limit_exceeded",
            (400..500, Some(code)) => code,
            _ => "server_error",
        };
        let told = json!({ "code": code, "message": error.told() });
        let mut response = self.response("failed", told, None);
        if self.is_begun {
            response = self.kept(response);
        }
        self.event(out, "response.failed", json!({ "response": response }));
    }

    fn whole(&mut self, choices: &[Choice], usage: Usage) -> Value {
        self.silent = true;
        let mut out = String::new();
        for choice in choices.iter().take(1) {
            for (i, piece) in choice.pieces.iter().enumerate() {
                self.piece(0, piece, choice.tokens_of(i), &mut out);
            }
            let finish = choice.finish.clone().unwrap_or(StopReason::EndOfText);
            self.done(0, &finish, &mut out);
        }
        if self.style.alone {
            return self.compacted(usage);
        }
        self.kept(self.response(self.status(), Value::Null, Some(usage)))
    }
}

fn text_part(text: &str, logprobs: &[Value]) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs })
}

/// A call as its client knows it.
fn call(id: &str, tool: &Known, call_id: &str, (arguments, input): (&str, &Input)) -> Value {
    let mut value = match tool.form {
        Form::Function => json!({
            "type": "function_call", "id": id, "call_id": call_id,
            "name": tool.name, "arguments": arguments,
        }),
        Form::Custom => json!({
            "type": "custom_tool_call", "id": id, "call_id": call_id,
            "name": tool.name, "input": input.text,
        }),
        Form::Search => {
            let text = |_| Value::from(arguments);
            let arguments = serde_json::from_str(arguments).unwrap_or_else(text);
            json!({
                "type": "tool_search_call", "id": id, "call_id": call_id,
                "execution": "client", "arguments": arguments,
            })
        }
    };
    if let Some(namespace) = &tool.namespace {
        value["namespace"] = namespace.as_str().into();
    }
    value
}

fn usage_object(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": 0,
            "disk_tokens": usage.disk_tokens,
            "leased_tokens": usage.leased_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
        "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
    })
}

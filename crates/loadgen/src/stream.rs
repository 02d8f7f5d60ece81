//! A streamed answer of any dialect: what it said, and when each part of it came.

use std::time::Instant;

use serde_json::Value;

use crate::client::LoadError;
use crate::dialect::{Api, Call};

/// A line of a stream that is longer than this is no event.
pub(crate) const MOST_LINE_BYTES: usize = 16 << 20;
/// Most calls of an answer: what says more is no answer.
const MOST_CALLS: usize = 1000;

/// What came back.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// When each piece of text, of reasoning or of a call came.
    pub events: Vec<Instant>,
    /// Reasoning.
    pub reasoning: String,
    /// Text.
    pub text: String,
    /// Calls; the last one's arguments may be cut off.
    pub calls: Vec<Call>,
    /// The server's figures, if it gave any.
    pub usage: Usage,
}

/// Token counts as the server gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Of the answer.
    pub completion_tokens: Option<u64>,
    /// Prompt tokens that the server did not compute again. Ollama's API does not tell.
    pub cached_tokens: Option<u64>,
}

/// Server-sent events, or Ollama's lines, as they come in pieces.
pub(crate) struct Stream {
    api: Api,
    /// An unfinished line.
    partial: Vec<u8>,
    /// Whether it said so itself.
    ended: bool,
    /// Nothing counts from here on.
    done: bool,
    answer: Answer,
}

impl Stream {
    pub(crate) fn new(api: Api) -> Self {
        let (partial, answer) = (Vec::new(), Answer::default());
        Stream { api, partial, ended: false, done: false, answer }
    }

    pub(crate) fn take(&mut self, bytes: &[u8], now: Instant) -> Result<(), LoadError> {
        self.partial.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(length) = self.partial[start..].iter().position(|&b| b == b'\n') {
            let line = self.partial[start..start + length].trim_ascii().to_vec();
            start += length + 1;
            self.line(&line, now)?;
        }
        self.partial.drain(..start);
        if self.partial.len() > MOST_LINE_BYTES {
            return Err(LoadError::Stream("a line without an end".to_owned()));
        }
        Ok(())
    }

    /// The answer, if the stream was whole.
    pub(crate) fn finish(self) -> Result<Answer, LoadError> {
        match self.ended {
            true => Ok(self.answer),
            false => Err(LoadError::Stream("it broke off".to_owned())),
        }
    }

    fn line(&mut self, line: &[u8], now: Instant) -> Result<(), LoadError> {
        let data = match self.api {
            Api::Ollama => Some(line).filter(|line| !line.is_empty()),
            _ => line.strip_prefix(b"data:").map(<[u8]>::trim_ascii),
        };
        let Some(data) = data.filter(|_| !self.done) else { return Ok(()) };
        if data == b"[DONE]" {
            (self.ended, self.done) = (true, true);
            return Ok(());
        }
        let event: Value =
            serde_json::from_slice(data).map_err(|e| LoadError::Stream(e.to_string()))?;
        if let Some(error) =
            [&event["error"], &event["response"]["error"]].into_iter().find(|e| !e.is_null())
        {
            return Err(told(error));
        }
        match self.api {
            Api::Completions | Api::Chat => self.openai(&event, now),
            Api::Responses => self.responses(&event, now),
            Api::Messages => self.messages(&event, now),
            Api::Ollama => self.ollama(&event, now),
        }
    }

    fn openai(&mut self, event: &Value, now: Instant) -> Result<(), LoadError> {
        let usage = &mut self.answer.usage;
        let told = &event["usage"];
        or_new(&mut usage.prompt_tokens, &told["prompt_tokens"]);
        or_new(&mut usage.completion_tokens, &told["completion_tokens"]);
        // llama.cpp's own figures, where its usage is silent.
        for cached in
            [&event["timings"]["cache_n"], &told["prompt_tokens_details"]["cached_tokens"]]
        {
            or_new(&mut usage.cached_tokens, cached);
        }
        let choice = &event["choices"][0];
        if choice.is_null() {
            return Ok(());
        }
        let delta = &choice["delta"];
        let reasoning = [&delta["reasoning_content"], &delta["reasoning"]];
        let reasoning = reasoning.into_iter().find_map(|r| r.as_str()).unwrap_or_default();
        let text = choice["text"].as_str().or(delta["content"].as_str()).unwrap_or_default();
        let calls = delta["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        for call in calls {
            let index = call["index"].as_u64().map_or(self.answer.calls.len(), |i| i as usize);
            let open = self.call(index)?;
            let function = &call["function"];
            or_text(&mut open.id, &call["id"]);
            or_text(&mut open.name, &function["name"]);
            open.arguments += function["arguments"].as_str().unwrap_or_default();
        }
        // An empty piece in the middle is a token whose text is not whole yet; the one with the
        // role is none.
        let last = choice["finish_reason"].is_string();
        let in_the_middle = !last && !delta["role"].is_string();
        if !reasoning.is_empty() || !text.is_empty() || !calls.is_empty() || in_the_middle {
            self.answer.events.push(now);
        }
        self.answer.reasoning += reasoning;
        self.answer.text += text;
        self.ended |= last;
        Ok(())
    }

    fn responses(&mut self, event: &Value, now: Instant) -> Result<(), LoadError> {
        let delta = event["delta"].as_str().unwrap_or_default();
        match event["type"].as_str().unwrap_or_default() {
            "response.output_text.delta" => self.piece(delta, false, now),
            "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => {
                self.piece(delta, true, now);
            }
            "response.function_call_arguments.delta" => self.answer.events.push(now),
            "response.output_item.done" if event["item"]["type"] == "function_call" => {
                let text = |name: &str| event["item"][name].as_str().unwrap_or_default().to_owned();
                let (id, name, arguments) = (text("call_id"), text("name"), text("arguments"));
                *self.call(self.answer.calls.len())? = Call { id, name, arguments };
            }
            "response.completed" | "response.incomplete" => {
                let (usage, told) = (&mut self.answer.usage, &event["response"]["usage"]);
                or_new(&mut usage.prompt_tokens, &told["input_tokens"]);
                or_new(&mut usage.completion_tokens, &told["output_tokens"]);
                or_new(&mut usage.cached_tokens, &told["input_tokens_details"]["cached_tokens"]);
                self.ended = true;
            }
            "error" => return Err(told(event)),
            _ => {}
        }
        Ok(())
    }

    fn messages(&mut self, event: &Value, now: Instant) -> Result<(), LoadError> {
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => self.messages_usage(&event["message"]["usage"]),
            "message_delta" => self.messages_usage(&event["usage"]),
            "message_stop" => self.ended = true,
            "content_block_start" if event["content_block"]["type"] == "tool_use" => {
                let call = self.call(self.answer.calls.len())?;
                or_text(&mut call.id, &event["content_block"]["id"]);
                or_text(&mut call.name, &event["content_block"]["name"]);
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                if let Some(text) = delta["text"].as_str() {
                    self.piece(text, false, now);
                } else if let Some(text) = delta["thinking"].as_str() {
                    self.piece(text, true, now);
                } else if let Some(json) = delta["partial_json"].as_str() {
                    self.answer.events.push(now);
                    if let Some(call) = self.answer.calls.last_mut() {
                        call.arguments += json;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// All of a prompt is what was read anew, what was kept and what was cached.
    fn messages_usage(&mut self, told: &Value) {
        let usage = &mut self.answer.usage;
        or_new(&mut usage.cached_tokens, &told["cache_read_input_tokens"]);
        or_new(&mut usage.completion_tokens, &told["output_tokens"]);
        if let Some(input) = told["input_tokens"].as_u64() {
            let of = |name: &str| told[name].as_u64().unwrap_or(0);
            let cache = of("cache_read_input_tokens") + of("cache_creation_input_tokens");
            usage.prompt_tokens = Some(input + cache);
        }
    }

    fn ollama(&mut self, event: &Value, now: Instant) -> Result<(), LoadError> {
        let message = &event["message"];
        let text = |name: &str| message[name].as_str().unwrap_or_default();
        let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        if !text("thinking").is_empty() || !text("content").is_empty() || !calls.is_empty() {
            self.answer.events.push(now);
        }
        self.answer.reasoning += text("thinking");
        self.answer.text += text("content");
        for told in calls {
            let function = &told["function"];
            let call = self.call(self.answer.calls.len())?;
            or_text(&mut call.id, &told["id"]);
            or_text(&mut call.name, &function["name"]);
            call.arguments = function["arguments"].to_string();
        }
        or_new(&mut self.answer.usage.prompt_tokens, &event["prompt_eval_count"]);
        or_new(&mut self.answer.usage.completion_tokens, &event["eval_count"]);
        self.ended |= event["done"] == true;
        Ok(())
    }

    fn piece(&mut self, text: &str, reasoning: bool, now: Instant) {
        self.answer.events.push(now);
        match reasoning {
            true => self.answer.reasoning += text,
            false => self.answer.text += text,
        }
    }

    /// The call of that place, made if it is new.
    fn call(&mut self, index: usize) -> Result<&mut Call, LoadError> {
        if index >= MOST_CALLS {
            return Err(LoadError::Stream(format!("a call with the index {index}")));
        }
        let calls = &mut self.answer.calls;
        calls.resize(calls.len().max(index + 1), Call::default());
        Ok(&mut calls[index])
    }
}

/// What a server says of an error: an object with a message, or a text.
fn told(error: &Value) -> LoadError {
    let message = error["message"].as_str().or(error.as_str());
    let message = message.map_or_else(|| error.to_string(), str::to_owned);
    LoadError::Stream(message.chars().take(200).collect())
}

fn or_new(known: &mut Option<u64>, told: &Value) {
    *known = told.as_u64().or(*known);
}

fn or_text(known: &mut String, told: &Value) {
    if let Some(text) = told.as_str().filter(|text| !text.is_empty()) {
        text.clone_into(known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds a stream cut at every multiple of `size` bytes.
    fn read(api: Api, stream: &str, size: usize) -> Result<Answer, LoadError> {
        let now = Instant::now();
        let mut events = Stream::new(api);
        for chunk in stream.as_bytes().chunks(size) {
            events.take(chunk, now)?;
        }
        events.finish()
    }

    const COMPLETION: &str = "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n\
        : ping\n\ndata: {\"choices\":[{\"text\":\"\",\"finish_reason\":null}]}\r\n\r\n\
        data: {\"choices\":[{\"text\":\"é\",\"finish_reason\":\"length\"}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3},\
        \"timings\":{\"cache_n\":4}}\n\ndata: [DONE]\n\nrest";
    const CHAT: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n\
        data: {\"choices\":[{\"delta\":{}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"é\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\
        \"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";

    #[test]
    fn completions_and_chats_count_the_same() {
        for size in [1, 7, 10_000] {
            for (api, stream) in [(Api::Completions, COMPLETION), (Api::Chat, CHAT)] {
                let answer = read(api, stream, size).expect("a stream");
                assert_eq!((answer.text.as_str(), answer.events.len()), ("aé", 3));
                let usage = answer.usage;
                assert_eq!((usage.prompt_tokens, usage.completion_tokens), (Some(9), Some(3)));
                assert_eq!(usage.cached_tokens, Some(4));
            }
        }
    }

    const CALLED: [(Api, &str); 4] = [
        (
            Api::Chat,
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"reasoning_content\":\"h\"}}]}\n\n\
             data: {\"choices\":[{\"delta\":{\"content\":\"t\"}}]}\n\n\
             data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\
             \"function\":{\"name\":\"look\",\"arguments\":\"\"}}]}}]}\n\n\
             data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\
             \"function\":{\"arguments\":\"{\\\"a\\\":1}\"}}]}}]}\n\n\
             data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n\
             data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4,\
             \"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
        ),
        (
            Api::Responses,
            "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"error\":null}}\n\n\
             data: {\"type\":\"response.reasoning_text.delta\",\"delta\":\"h\"}\n\n\
             data: {\"type\":\"response.output_text.delta\",\"delta\":\"t\"}\n\n\
             data: {\"type\":\"response.output_text.done\",\"text\":\"t\"}\n\n\
             data: {\"type\":\"response.function_call_arguments.delta\",\"delta\":\"{\"}\n\n\
             data: {\"type\":\"response.function_call_arguments.delta\",\"delta\":\"}\"}\n\n\
             data: {\"type\":\"response.output_item.done\",\"item\":{\"type\":\"function_call\",\
             \"call_id\":\"c\",\"name\":\"look\",\"arguments\":\"{\\\"a\\\":1}\"}}\n\n\
             data: {\"type\":\"response.incomplete\",\"response\":{\"usage\":{\"input_tokens\":9,\
             \"input_tokens_details\":{\"cached_tokens\":4},\"output_tokens\":4}}}\n\n",
        ),
        (
            Api::Messages,
            "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":2,\
             \"cache_read_input_tokens\":4,\"cache_creation_input_tokens\":3,\"output_tokens\":0}}}\n\n\
             data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"h\"}}\n\n\
             data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"t\"}}\n\n\
             data: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"tool_use\",\
             \"id\":\"c\",\"name\":\"look\",\"input\":{}}}\n\n\
             data: {\"type\":\"content_block_delta\",\"delta\":{\"partial_json\":\"{\\\"a\\\"\"}}\n\n\
             data: {\"type\":\"content_block_delta\",\"delta\":{\"partial_json\":\":1}\"}}\n\n\
             data: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"output_tokens\":4}}\n\n\
             data: {\"type\":\"message_stop\"}\n\n",
        ),
        (
            Api::Ollama,
            "{\"message\":{\"role\":\"assistant\",\"thinking\":\"h\"},\"done\":false}\n\
             {\"message\":{\"content\":\"t\"},\"done\":false}\n\
             {\"message\":{\"content\":\"\",\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":\"look\",\
             \"arguments\":{\"a\":1}}}]},\"done\":false}\n\
             {\"message\":{\"content\":\"\"},\"done\":true,\"prompt_eval_count\":9,\"eval_count\":4}\n",
        ),
    ];

    #[test]
    fn calls_and_figures_are_read_in_every_dialect() {
        for (api, stream) in CALLED {
            for size in [1, 11, 10_000] {
                let answer = read(api, stream, size).expect("a stream");
                assert_eq!(
                    (answer.reasoning.as_str(), answer.text.as_str()),
                    ("h", "t"),
                    "{api:?}"
                );
                let arguments = "{\"a\":1}".to_owned();
                let call = Call { id: "c".into(), name: "look".into(), arguments };
                assert_eq!(answer.calls, [call], "{api:?}");
                let usage = answer.usage;
                assert_eq!((usage.prompt_tokens, usage.completion_tokens), (Some(9), Some(4)));
                let cached = (api != Api::Ollama).then_some(4);
                assert_eq!(usage.cached_tokens, cached, "{api:?}");
                assert_eq!(answer.events.len(), if api == Api::Ollama { 3 } else { 4 }, "{api:?}");
            }
            // Every dialect says when it ends.
            let last = stream.trim_end().rfind('\n').map_or("", |at| &stream[..at]);
            let cut =
                if api == Api::Chat { "data: {\"choices\":[{\"delta\":{}}]}\n" } else { last };
            let error = read(api, cut, 100).unwrap_err().to_string();
            assert_eq!(error, "stream: it broke off", "{api:?}");
        }
    }

    #[test]
    fn broken_streams_are_errors() {
        let told = |api, stream: &str| read(api, stream, 100).unwrap_err().to_string();
        let object = "data: {\"error\":{\"message\":\"no room\"}}\n\n";
        assert_eq!(told(Api::Chat, object), "stream: no room");
        assert_eq!(told(Api::Messages, object), "stream: no room");
        assert_eq!(told(Api::Ollama, "{\"error\":\"no room\"}\n"), "stream: no room");
        let failed = "data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"message\":\"no room\"}}}\n\n";
        assert_eq!(told(Api::Responses, failed), "stream: no room");
        let error = "data: {\"type\":\"error\",\"message\":\"no room\"}\n\n";
        assert_eq!(told(Api::Responses, error), "stream: no room");
        assert!(told(Api::Chat, "data: <html>\n").starts_with("stream: "));
    }
}

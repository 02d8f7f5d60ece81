//! Chat requests: messages to prompt tokens.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokenmill_text::{DateTime, Encoder, RenderOptions, Special, TemplateError, Tokenizer};

use super::answer::{Kind, Part};
use super::parameters::{self, IGNORED, Parameters, UNBUILT, is_empty_list};
use super::{Draft, Prepared, leases, not_encoded, reach};
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Notes, Unsupported, list, text, wrong};
use crate::shared::{Model, Shared, unix_seconds};
use crate::workshop::Wanted;

/// Members that ask for what is not built yet, unless they ask for nothing.
const UNSUPPORTED: &[Unsupported] = &[
    Unsupported { name: "tools", neutral: is_empty_list },
    Unsupported { name: "tool_choice", neutral: |v| v == "none" || v == "auto" },
    Unsupported { name: "functions", neutral: is_empty_list },
    Unsupported { name: "function_call", neutral: |v| v == "none" || v == "auto" },
    Unsupported { name: "response_format", neutral: |v| *v == json!({ "type": "text" }) },
    Unsupported { name: "modalities", neutral: |v| *v == json!(["text"]) },
    Unsupported { name: "audio", neutral: |_| false },
    Unsupported { name: "reasoning_effort", neutral: |_| false },
    Unsupported { name: "verbosity", neutral: |_| false },
    Unsupported { name: "web_search_options", neutral: |_| false },
    Unsupported { name: "moderation", neutral: |_| false },
    // Members of other servers.
    Unsupported { name: "add_generation_prompt", neutral: |v| *v == true },
    Unsupported { name: "add_special_tokens", neutral: |v| *v == false },
    Unsupported { name: "chat_template", neutral: |_| false },
    Unsupported { name: "continue_final_message", neutral: |v| *v == false },
    Unsupported { name: "documents", neutral: is_empty_list },
    Unsupported { name: "echo", neutral: |v| *v == false },
    Unsupported { name: "enable_thinking", neutral: |_| false },
];

/// Roles, and what templates call them.
const ROLES: &[(&str, &str)] = &[
    ("system", "system"),
    ("developer", "system"),
    ("user", "user"),
    ("assistant", "assistant"),
    ("tool", "tool"),
];

/// What of a message is not built yet.
const MESSAGE_UNSUPPORTED: &[Unsupported] = &[
    Unsupported { name: "tool_calls", neutral: is_empty_list },
    Unsupported { name: "function_call", neutral: |_| false },
    Unsupported { name: "audio", neutral: |_| false },
];

/// Reads a chat request and tokenises it.
///
/// # Errors
/// 400 and 404 of the request; 500 if the tokenizer fails.
pub fn prepare(
    shared: &Shared,
    mut fields: Fields,
    wanted: Wanted<'_>,
) -> Result<Prepared, ApiError> {
    let limits = &shared.config.limits;
    let name = fields.text("model")?;
    let mut reader = Reader::new(shared.config.strict);
    let mut messages = reader.messages(fields.require("messages")?, limits)?;
    let model = shared.model(name.as_deref())?.clone();
    let defaults = &model.served.defaults;
    if let Some(system) = &defaults.system
        && messages.iter().all(|message| message["role"] != "system")
    {
        messages.insert(0, json!({"role": "system", "content": system}));
    }
    let kwargs = kwargs(&mut fields)?;
    let predicted = reader.prediction(&mut fields)?;
    let logprobs = logprobs(&mut fields, limits)?;
    let Reader { mut notes, kept } = reader;
    let mut parameters = parameters::read(&mut fields, shared, &defaults.sampling, &mut notes)?;
    parameters.sampling.params.logprobs = logprobs;
    parameters.lease = leases::longer(parameters.lease, kept);
    fields.refuse(UNSUPPORTED)?;
    fields.refuse(UNBUILT)?;
    fields.finish(IGNORED, &mut notes)?;
    let warnings = shared.told(notes);
    let encoder = model.served.tokenizer.within(reach(&model, wanted));
    let (prompt, parts) = prompt(&model, &messages, kwargs.as_ref(), &parameters, &encoder)?;
    let prediction = encoder.encode(&predicted, Special::Plain);
    let prediction = prediction.map_err(|e| not_encoded(e, &model, "prediction"))?;
    let (prompts, param) = (vec![prompt], "messages");
    let (kind, echo) = (Kind::Chat, Vec::new());
    Draft { shared, kind, model, parameters, warnings, prompts, param, echo, prediction, parts }
        .finish()
}

fn prompt(
    model: &Model,
    messages: &[Value],
    kwargs: Option<&Map<String, Value>>,
    parameters: &Parameters,
    encoder: &Encoder<'_>,
) -> Result<(Vec<u32>, Vec<Part>), ApiError> {
    let template = model.served.template.as_ref().map_err(|why| {
        let message = match why {
            TemplateError::Missing => "the model has no chat template".to_owned(),
            other => other.to_string(),
        };
        let message = format!("{message}; use /v1/completions");
        ApiError { code: Some("no_chat_template"), ..ApiError::bad("messages", message) }
    })?;
    let options = RenderOptions {
        add_generation_prompt: true,
        now: DateTime::from_unix_seconds(unix_seconds()),
        kwargs,
        ..RenderOptions::default()
    };
    let messages = &*template.readable(messages);
    let rendered = template.render(messages, &options);
    let rendered = rendered.map_err(|e| ApiError::bad("messages", e.to_string()))?;
    let tokens = encoder.rendered(&rendered);
    let tokens = tokens.map_err(|e| not_encoded(e, model, "messages"))?;
    let parts = match parameters.diagnose {
        true => parts(messages, &rendered.text(), &tokens, &model.served.tokenizer),
        false => Vec::new(),
    };
    Ok((tokens, parts))
}

/// Where each message ends in the prompt, in tokens.
fn parts(messages: &[Value], text: &str, tokens: &[u32], tokenizer: &Tokenizer) -> Vec<Part> {
    let (mut at, mut token, mut bytes) = (0, 0, 0);
    let part = |(index, message): (usize, &Value)| {
        for content in texts(&message["content"]) {
            let found = text.get(at..).and_then(|rest| rest.find(content));
            at = found.map_or(at, |from| at + from + content.len());
        }
        while bytes < at && token < tokens.len() {
            bytes += tokenizer.token_bytes(tokens[token]).map_or(0, <[u8]>::len);
            token += 1;
        }
        let kind = if message["role"] == "system" { "system_changed" } else { "messages_changed" };
        Part { end: token, kind, index }
    };
    messages.iter().enumerate().map(part).collect()
}

/// Extra variables of the template, such as `enable_thinking`.
fn kwargs(fields: &mut Fields) -> Result<Option<Map<String, Value>>, ApiError> {
    match fields.take("chat_template_kwargs") {
        None => Ok(None),
        Some(Value::Object(members)) => {
            Ok(Some(members.into_iter().filter(|(_, value)| !value.is_null()).collect()))
        }
        Some(other) => Err(wrong("chat_template_kwargs", "an object", &other)),
    }
}

/// `logprobs` switches, `top_logprobs` counts alternatives.
fn logprobs(fields: &mut Fields, limits: &Limits) -> Result<Option<u32>, ApiError> {
    let on = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=limits.top_logprobs)?;
    match (on, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, Some(n)) if n > 0 => {
            Err(ApiError::bad("top_logprobs", "top_logprobs needs \"logprobs\": true"))
        }
        (false, _) => Ok(None),
    }
}

/// The texts of a content: the string, or those of its parts.
fn texts(content: &Value) -> Vec<&str> {
    match content.as_array() {
        Some(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        None => content.as_str().into_iter().collect(),
    }
}

/// Reads messages, and what they say beside their texts.
struct Reader {
    notes: Notes,
    /// How long a mark in a message or a part asks that the prompt stays in the cache.
    kept: Option<Duration>,
}

impl Reader {
    fn new(strict: bool) -> Self {
        Self { notes: Notes::new(strict), kept: None }
    }

    fn messages(&mut self, value: Value, limits: &Limits) -> Result<Vec<Value>, ApiError> {
        let items = list(value, limits.messages, "messages")?;
        if items.is_empty() {
            return Err(ApiError::bad("messages", "messages is empty"));
        }
        items.into_iter().enumerate().map(|(i, item)| self.message(item, i)).collect()
    }

    /// A message as templates want it: `role`, `content` as it was sent, and who spoke.
    fn message(&mut self, value: Value, i: usize) -> Result<Value, ApiError> {
        let path = format!("messages[{i}]");
        let mut fields = Fields::of(value, &path)?;
        let role = text(fields.require("role")?, &fields.path("role"))?;
        let Some((_, role)) = ROLES.iter().find(|(name, _)| *name == role) else {
            let known: Vec<&str> = ROLES.iter().map(|(name, _)| *name).collect();
            let message = format!("{path}.role must be one of {}", known.join(", "));
            return Err(ApiError::bad(fields.path("role"), message));
        };
        fields.refuse(MESSAGE_UNSUPPORTED)?;
        // An answer may have been empty; a question or an instruction is not.
        let refused = fields.text("refusal")?.unwrap_or_default();
        let content = match *role == "assistant" && !fields.has("content") {
            true => refused.into(),
            false if !refused.is_empty() => {
                let path = fields.path("refusal");
                return Err(ApiError::bad(&path, format!("{path} stands beside a content")));
            }
            false => self.content(fields.require("content")?, &fields.path("content"))?,
        };
        self.mark(&mut fields)?;
        if fields.take("annotations").is_some_and(|v| !is_empty_list(&v)) {
            self.notes
                .add(format!("{path}.annotations was ignored: templates have no place for it"));
        }
        let mut message = Map::new();
        message.insert("role".into(), (*role).into());
        message.insert("content".into(), content);
        for (name, only) in [
            ("name", None),
            ("tool_call_id", Some("tool")),
            ("reasoning_content", Some("assistant")),
        ] {
            if only.is_none_or(|only| only == *role)
                && let Some(text) = fields.text(name)?
            {
                message.insert(name.into(), text.into());
            }
        }
        fields.finish(&[], &mut self.notes)?;
        Ok(Value::Object(message))
    }

    /// A string, or text parts: the template says which it reads.
    fn content(&mut self, value: Value, path: &str) -> Result<Value, ApiError> {
        let parts = match value {
            Value::String(_) => return Ok(value),
            Value::Array(parts) => parts,
            other => return Err(wrong(path, "a string or an array of parts", &other)),
        };
        let part = |(i, part): (usize, Value)| self.part(part, &format!("{path}[{i}]"));
        parts.into_iter().enumerate().map(part).collect::<Result<Vec<_>, _>>().map(Value::Array)
    }

    /// A part that holds text.
    fn part(&mut self, value: Value, path: &str) -> Result<Value, ApiError> {
        let mut fields = Fields::of(value, path)?;
        let kind = text(fields.require("type")?, &fields.path("type"))?;
        // What an assistant said when it would not answer is what it said.
        let name = if kind == "refusal" { "refusal" } else { "text" };
        if kind != name {
            let kind = crate::fields::shown(&kind);
            let message = format!("{path} is of type {kind:?}; this model takes text");
            return Err(ApiError::unsupported(path, message));
        }
        let text = text(fields.require(name)?, &fields.path(name))?;
        self.mark(&mut fields)?;
        fields.finish(&[], &mut self.notes)?;
        Ok(json!({ "type": "text", "text": text }))
    }

    /// `cache_control` of a message or a part: the prompt stays for the longest time marked.
    fn mark(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        self.kept = self.kept.max(leases::marked(fields, &mut self.notes)?);
        Ok(())
    }

    /// The text the answer is expected to repeat; empty without one.
    fn prediction(&mut self, fields: &mut Fields) -> Result<String, ApiError> {
        let Some(value) = fields.take("prediction") else { return Ok(String::new()) };
        let mut fields = Fields::of(value, "prediction")?;
        let path = fields.path("type");
        if text(fields.require("type")?, &path)? != "content" {
            return Err(ApiError::unsupported(&path, format!("{path} must be \"content\"")));
        }
        let found = self.content(fields.require("content")?, &fields.path("content"))?;
        fields.finish(&[], &mut self.notes)?;
        Ok(texts(&found).join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(value: Value, i: usize) -> Result<Value, ApiError> {
        Reader::new(true).message(value, i)
    }

    /// The message as templates get it, and what was told.
    fn told(value: Value) -> (Value, Vec<String>, Option<Duration>) {
        let mut reader = Reader::new(false);
        let message = reader.message(value, 0).unwrap();
        (message, reader.notes.into_list(), reader.kept)
    }

    #[test]
    fn messages_become_what_templates_want() {
        let cases = [
            (json!({"role":"user","content":"a"}), json!({"role":"user","content":"a"})),
            (json!({"role":"developer","content":"a"}), json!({"role":"system","content":"a"})),
            (
                json!({"role":"user","content":[
                    {"type":"text","text":"a"}, {"type":"text","text":"b"},
                ]}),
                json!({"role":"user","content":[
                    {"type":"text","text":"a"}, {"type":"text","text":"b"},
                ]}),
            ),
            (
                json!({"role":"tool","content":"4","tool_call_id":"x","name":"sum"}),
                json!({"role":"tool","content":"4","name":"sum","tool_call_id":"x"}),
            ),
            (
                json!({"role":"assistant","content":"a","tool_calls":[],"refusal":null}),
                json!({"role":"assistant","content":"a"}),
            ),
            (json!({"role":"assistant"}), json!({"role":"assistant","content":""})),
            (
                json!({"role":"assistant","content":null,"tool_calls":null,"refusal":""}),
                json!({"role":"assistant","content":""}),
            ),
            (
                json!({"role":"assistant","content":[],"annotations":[],"audio":null}),
                json!({"role":"assistant","content":[]}),
            ),
            (
                json!({"role":"user","content":[
                    {"type":"text","text":"a","annotations":null,"image_url":null},
                ],"weight":null}),
                json!({"role":"user","content":[{"type":"text","text":"a"}]}),
            ),
            (
                json!({"role":"assistant","content":"a","reasoning_content":"r","name":null}),
                json!({"role":"assistant","content":"a","reasoning_content":"r"}),
            ),
            (
                json!({"role":"assistant","content":null,"refusal":"no"}),
                json!({"role":"assistant","content":"no"}),
            ),
            (
                json!({"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}),
                json!({"role":"assistant","content":[{"type":"text","text":"no"}]}),
            ),
        ];
        for (given, expect) in cases {
            assert_eq!(message(given.clone(), 0).unwrap(), expect, "{given}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            (json!("hi"), "messages[3]"),
            (json!({"content":"a"}), "messages[3].role"),
            (json!({"role":"bot","content":"a"}), "messages[3].role"),
            (json!({"role":"user"}), "messages[3].content"),
            (json!({"role":"user","content":7}), "messages[3].content"),
            (json!({"role":"user","content":["a"]}), "messages[3].content[0]"),
            (json!({"role":"user","content":[{"type":"text"}]}), "messages[3].content[0].text"),
            (
                json!({"role":"user","content":[
                    {"type":"text","text":"a"}, {"type":"image_url","image_url":{}},
                ]}),
                "messages[3].content[1]",
            ),
            (json!({"role":"user","content":"a","nam":"b"}), "messages[3].nam"),
            (json!({"role":"user","content":"a","tool_call_id":"b"}), "messages[3].tool_call_id"),
            (json!({"role":"assistant","content":"a","tool_calls":[{}]}), "messages[3].tool_calls"),
        ];
        for (given, expect) in cases {
            let error = message(given.clone(), 3).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some(expect), "{given}");
        }
    }

    #[test]
    fn what_has_no_effect_in_a_message_is_told() {
        let unknown = |name: &str| format!("{name} was ignored: it is not a field of this request");
        let minutes = |n: u64| Some(Duration::from_secs(60 * n));
        let hour = json!({"type":"ephemeral","ttl":"1h"});
        let cases = [
            (
                json!({"role":"user","content":"a","nam":"b"}),
                vec![unknown("messages[0].nam")],
                None,
            ),
            (
                json!({"role":"user","content":"a","tool_call_id":"b"}),
                vec![unknown("messages[0].tool_call_id")],
                None,
            ),
            (
                json!({"role":"user","content":[{"type":"text","text":"a","x":1}]}),
                vec![unknown("messages[0].content[0].x")],
                None,
            ),
            (
                json!({"role":"assistant","content":"a","annotations":[{"type":"url_citation"}]}),
                vec!["messages[0].annotations was ignored: templates have no place for it".into()],
                None,
            ),
            (
                json!({"role":"user","content":[
                    {"type":"text","text":"a","cache_control":{"type":"ephemeral"}},
                    {"type":"text","text":"b","cache_control":null},
                ]}),
                vec![],
                minutes(5),
            ),
            (json!({"role":"user","content":"a","cache_control":hour}), vec![], minutes(60)),
        ];
        for (given, notes, kept) in cases {
            let (_, found, time) = told(given.clone());
            assert_eq!((found, time), (notes, kept), "{given}");
        }
    }

    #[test]
    fn an_empty_question_says_null() {
        for role in ["user", "system", "developer", "tool"] {
            let error = message(json!({"role": role, "content": null}), 1).expect_err("refused");
            assert_eq!(error.message, "messages[1].content must not be null", "{role}");
            let error = message(json!({"role": role}), 1).expect_err("refused");
            assert_eq!(error.message, "messages[1].content is missing", "{role}");
        }
    }

    #[test]
    fn a_chat_has_between_one_and_the_most_messages() {
        let limits = Limits { messages: 2, ..Limits::default() };
        let chat = |n: usize| json!(vec![json!({"role":"user","content":"a"}); n]);
        let read = |chat| Reader::new(false).messages(chat, &limits);
        assert!(read(chat(0)).is_err());
        assert!(read(chat(2)).is_ok());
        assert!(read(chat(3)).is_err());
    }

    #[test]
    fn alternatives_need_the_switch() {
        let limits = Limits::default();
        let read = |v: Value| logprobs(&mut Fields::of(v, "").unwrap(), &limits);
        assert_eq!(read(json!({})), Ok(None));
        assert_eq!(read(json!({"logprobs":true})), Ok(Some(0)));
        assert_eq!(read(json!({"logprobs":true,"top_logprobs":20})), Ok(Some(20)));
        assert!(read(json!({"logprobs":true,"top_logprobs":21})).is_err());
        assert!(read(json!({"top_logprobs":1})).is_err());
        assert!(read(json!({"logprobs":2})).is_err());
    }
}

//! Chat requests: messages and how to answer them.

use std::time::Duration;

use serde_json::{Value, json};

use super::answer::{Kind, answered};
use super::parameters::{self, IGNORED, UNBUILT, is_empty_list};
use super::{leases, thinking, tools};
use crate::ask::{Ask, Generate, Input};
use crate::config::Limits;
use crate::conversation::{Content, Conversation, Message, Part, Role};
use crate::error::ApiError;
use crate::fields::{Fields, Ignored, Notes, Unsupported, list, text, wrong};
use crate::images::{self, Image};

/// Members that ask for what is not built yet, unless they ask for nothing.
const UNSUPPORTED: &[Unsupported] = &[
    Unsupported { name: "functions", neutral: is_empty_list },
    Unsupported { name: "function_call", neutral: |v| v == "none" || v == "auto" },
    Unsupported { name: "modalities", neutral: |v| *v == json!(["text"]) },
    Unsupported { name: "audio", neutral: |_| false },
    Unsupported { name: "moderation", neutral: |_| false },
    // Members of other servers.
    Unsupported { name: "add_special_tokens", neutral: |v| *v == false },
    Unsupported { name: "chat_template", neutral: |_| false },
    Unsupported { name: "documents", neutral: is_empty_list },
    Unsupported { name: "echo", neutral: |v| *v == false },
];

/// Members that only chat has and that change no answer here.
const CHAT_IGNORED: &[Ignored] = &[
    Ignored { name: "verbosity", because: "models are not told how much to say" },
    Ignored { name: "web_search_options", because: "this server searches no web" },
];

/// Roles, and what they are here.
const ROLES: &[(&str, Role)] = &[
    ("system", Role::System),
    ("developer", Role::System),
    ("user", Role::User),
    ("assistant", Role::Assistant),
    ("tool", Role::Tool),
];

/// What of a message is not built yet.
const MESSAGE_UNSUPPORTED: &[Unsupported] = &[
    Unsupported { name: "function_call", neutral: |_| false },
    Unsupported { name: "audio", neutral: |_| false },
];

/// Members of images that change no answer here.
const IMAGE_IGNORED: &[Ignored] =
    &[Ignored { name: "detail", because: "the model says how closely it looks" }];

/// Reads a chat request.
///
/// # Errors
/// 400 of the request.
pub fn read(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let model = fields.text("model")?;
    let mut reader = Reader { limits, notes, kept: None };
    let messages = reader.messages(fields.require("messages")?)?;
    let tools = tools::read(&mut fields, limits, reader.notes)?;
    let (variables, limit) = thinking::of_chat(&mut fields, reader.notes)?;
    let continues = continues(&mut fields, &messages)?;
    let prediction = reader.prediction(&mut fields)?;
    let logprobs = logprobs(&mut fields, limits)?;
    let Reader { notes, kept, .. } = reader;
    let mut manner = parameters::read(&mut fields, limits, notes)?;
    (manner.logprobs, manner.prediction) = (logprobs, prediction);
    manner.thinking = thinking::either(manner.thinking, limit)?;
    manner.lease = leases::longer(manner.lease, kept);
    manner.tells_ids = fields.flag("return_token_ids")?.unwrap_or(false);
    let delivery = parameters::delivery(&mut fields, notes)?;
    fields.refuse(UNSUPPORTED)?;
    fields.refuse(UNBUILT)?;
    fields.finish(&[IGNORED, CHAT_IGNORED].concat(), notes)?;
    let talk = Conversation { messages, tools, variables, continues };
    let input = Input::Conversation(talk);
    Ok(answered(Kind::Chat, Generate { model, input, manner }, delivery))
}

/// Whether the answer goes on with the last message.
fn continues(fields: &mut Fields, messages: &[Message]) -> Result<bool, ApiError> {
    let continues = fields.flag("continue_final_message")?.unwrap_or(false);
    let begins = fields.flag("add_generation_prompt")?;
    let last = messages.last().map(|message| message.role);
    if continues && last != Some(Role::Assistant) {
        let message = "continue_final_message: the last message is not the assistant's";
        return Err(ApiError::bad("continue_final_message", message));
    }
    if continues == begins.unwrap_or(!continues) {
        let message = "add_generation_prompt is true but where continue_final_message is";
        return Err(ApiError::bad("add_generation_prompt", message));
    }
    Ok(continues)
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

/// Reads messages, and what they say beside their texts.
struct Reader<'a> {
    limits: &'a Limits,
    notes: &'a mut Notes,
    /// How long a mark in a message or a part asks that the prompt stays in the cache.
    kept: Option<Duration>,
}

impl Reader<'_> {
    fn messages(&mut self, value: Value) -> Result<Vec<Message>, ApiError> {
        let items = list(value, self.limits.messages, "messages")?;
        if items.is_empty() {
            return Err(ApiError::bad("messages", "messages is empty"));
        }
        items.into_iter().enumerate().map(|(i, item)| self.message(item, i)).collect()
    }

    /// A message: its role, its content as it was sent, and who spoke.
    fn message(&mut self, value: Value, i: usize) -> Result<Message, ApiError> {
        let path = format!("messages[{i}]");
        let mut fields = Fields::of(value, &path)?;
        let role = text(fields.require("role")?, &fields.path("role"))?;
        let Some(&(_, role)) = ROLES.iter().find(|(name, _)| *name == role) else {
            let known: Vec<&str> = ROLES.iter().map(|(name, _)| *name).collect();
            let message = format!("{path}.role must be one of {}", known.join(", "));
            return Err(ApiError::bad(fields.path("role"), message));
        };
        fields.refuse(MESSAGE_UNSUPPORTED)?;
        // An answer may have been empty; a question or an instruction is not.
        let refused = fields.text("refusal")?.unwrap_or_default();
        let content = match role == Role::Assistant && !fields.has("content") {
            true => Content::Text(refused),
            false if !refused.is_empty() => {
                let path = fields.path("refusal");
                return Err(ApiError::bad(&path, format!("{path} stands beside a content")));
            }
            false => {
                let (value, path) = (fields.require("content")?, fields.path("content"));
                self.content(value, &path, matches!(role, Role::User | Role::Tool))?
            }
        };
        self.mark(&mut fields)?;
        if fields.take("annotations").is_some_and(|v| !is_empty_list(&v)) {
            self.notes
                .add(format!("{path}.annotations was ignored: templates have no place for it"));
        }
        let mut message = Message { content, ..Message::text(role, "") };
        message.name = fields.text("name")?;
        if role == Role::Tool {
            message.call_id = fields.text("tool_call_id")?;
        }
        if role == Role::Assistant {
            let (one, other) = (fields.text("reasoning_content")?, fields.text("reasoning")?);
            message.reasoning = one.or(other).filter(|text| !text.is_empty());
            message.calls = tools::calls(&mut fields, self.limits, self.notes)?;
        }
        fields.finish(&[], self.notes)?;
        Ok(message)
    }

    /// A string, or parts: the template says which it reads. Where somebody `shows` something, they
    /// may be images.
    fn content(&mut self, value: Value, path: &str, shows: bool) -> Result<Content, ApiError> {
        let parts = match value {
            Value::String(text) => return Ok(Content::Text(text)),
            Value::Array(parts) => parts,
            other => return Err(wrong(path, "a string or an array of parts", &other)),
        };
        let part = |(i, part): (usize, Value)| self.part(part, &format!("{path}[{i}]"), shows);
        parts.into_iter().enumerate().map(part).collect::<Result<_, _>>().map(Content::Parts)
    }

    /// A part that holds text, or an image.
    fn part(&mut self, value: Value, path: &str, shows: bool) -> Result<Part, ApiError> {
        let mut fields = Fields::of(value, path)?;
        let kind = text(fields.require("type")?, &fields.path("type"))?;
        if kind == "image_url" && shows {
            let (value, of) = (fields.require("image_url")?, fields.path("image_url"));
            let image = image_of(path, value, &of, self.notes)?;
            self.mark(&mut fields)?;
            fields.finish(&[], self.notes)?;
            return Ok(Part::Image(image));
        }
        // What an assistant said when it would not answer is what it said.
        let name = if kind == "refusal" { "refusal" } else { "text" };
        if kind != name {
            let kind = crate::fields::shown(&kind);
            let message = format!("{path} is of type {kind:?}; this model takes text");
            return Err(ApiError::unsupported(path, message));
        }
        let text = text(fields.require(name)?, &fields.path(name))?;
        self.mark(&mut fields)?;
        fields.finish(&[], self.notes)?;
        Ok(Part::Text(text))
    }

    /// `cache_control` of a message or a part: the prompt stays for the longest time marked.
    fn mark(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        self.kept = self.kept.max(leases::marked(fields, self.notes)?);
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
        let found = self.content(fields.require("content")?, &fields.path("content"), false)?;
        fields.finish(&[], self.notes)?;
        Ok(found.texts().collect::<Vec<_>>().join("\n"))
    }
}

/// `image_url`: an object, or the address itself; `of` is where it stands.
///
/// # Errors
/// 400 for what is no such thing.
pub(super) fn image_of(
    path: &str,
    value: Value,
    of: &str,
    notes: &mut Notes,
) -> Result<Image, ApiError> {
    let url = match value {
        Value::String(url) => return images::of_url(path.to_owned(), &url, of),
        value => {
            let mut fields = Fields::of(value, of)?;
            let url = text(fields.require("url")?, &fields.path("url"))?;
            fields.finish(IMAGE_IGNORED, notes)?;
            url
        }
    };
    images::of_url(path.to_owned(), &url, &format!("{of}.url"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message as templates get it.
    fn message(value: Value, i: usize) -> Result<Value, ApiError> {
        let mut reader =
            Reader { limits: &Limits::default(), notes: &mut Notes::new(true), kept: None };
        let messages = vec![reader.message(value, i)?];
        Ok(Conversation { messages, ..Conversation::default() }.values(false).remove(0))
    }

    /// What was told of a message.
    fn told(value: Value) -> (Vec<String>, Option<Duration>) {
        let mut notes = Notes::new(false);
        let limits = Limits::default();
        let mut reader = Reader { limits: &limits, notes: &mut notes, kept: None };
        reader.message(value, 0).unwrap();
        let kept = reader.kept;
        (notes.into_list(), kept)
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
                json!({"role":"tool","content":"4","name":"sum","tool_call_id":"call00000"}),
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
                "messages[3].content[1].image_url.url",
            ),
            (
                json!({"role":"system","content":[{"type":"image_url","image_url":"data:,"}]}),
                "messages[3].content[0]",
            ),
            (
                json!({"role":"user","content":[{"type":"image_url","image_url":"data:,"}]}),
                "messages[3].content[0].image_url",
            ),
            (json!({"role":"user","content":"a","nam":"b"}), "messages[3].nam"),
            (json!({"role":"user","content":"a","tool_call_id":"b"}), "messages[3].tool_call_id"),
            (
                json!({"role":"assistant","content":"a","tool_calls":[{}]}),
                "messages[3].tool_calls[0].function",
            ),
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
            assert_eq!(told(given.clone()), (notes, kept), "{given}");
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
        let read = |chat| {
            let mut notes = Notes::new(false);
            Reader { limits: &limits, notes: &mut notes, kept: None }.messages(chat)
        };
        assert!(read(chat(0)).is_err());
        assert!(read(chat(2)).is_ok());
        assert!(read(chat(3)).is_err());
    }

    #[test]
    fn what_only_hosting_services_have_is_warned_of() {
        let body = json!({
            "messages": [{ "role": "user", "content": "a" }],
            "verbosity": "low", "web_search_options": {},
        });
        let mut notes = Notes::new(true);
        read(Fields::of(body, "").unwrap(), &Limits::default(), &mut notes).map(drop).unwrap();
        let told = [
            "verbosity was ignored: models are not told how much to say",
            "web_search_options was ignored: this server searches no web",
        ];
        assert_eq!(notes.into_list(), told);
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

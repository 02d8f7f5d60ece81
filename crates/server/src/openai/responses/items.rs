//! The input of a Responses request: a text, or items that are put together to messages. What an
//! answer consisted of (reasoning, text, calls) is one message of the assistant again; ids of items
//! are no part of a prompt.

use serde_json::{Value, json};

use super::catalogue::{Catalogue, Source};
use crate::config::Limits;
use crate::conversation::{Call, Content, Message, Part, Role};
use crate::error::ApiError;
use crate::fields::{Fields, Notes, list, shown, text, wrong};
use crate::images::{self, Image};
use crate::seal::Kind;

/// Members of items that are no part of a prompt, and of which nobody needs to be told.
const SILENT: &[&str] = &[
    "id",
    "status",
    "phase",
    "caller",
    "created_by",
    "async",
    "internal_chat_message_metadata_passthrough",
];

/// What becomes of each type of item: docs/responses.md has a row for each.
#[cfg(test)]
pub const ITEMS: &[(&str, &str)] = &[
    ("message", "a message; of role `developer` and `system` too where it stands"),
    (
        "reasoning",
        "what was thought in that answer: sealed by this server, else as `content` or `summary`",
    ),
    ("function_call", "a call of that answer"),
    ("function_call_output", "what a tool found"),
    ("custom_tool_call", "a call of that answer"),
    ("custom_tool_call_output", "what a tool found"),
    ("tool_search_call", "a call of that answer"),
    ("tool_search_output", "its tools can be called from now on, and stand where it does"),
    ("additional_tools", "its tools can be called, as those of `tools`"),
    ("compaction", "the summary in it, where this server sealed it"),
    ("compaction_trigger", "last: the answer is one `compaction` item"),
    ("item_reference", "refused: the item itself is sent"),
];

/// Roles, and what they are here.
const ROLES: &[(&str, Role)] = &[
    ("user", Role::User),
    ("assistant", Role::Assistant),
    ("system", Role::System),
    ("developer", Role::System),
];

/// Types of parts that are texts, and the member that holds them.
const TEXTS: &[(&str, &str)] = &[
    ("input_text", "text"),
    ("output_text", "text"),
    ("text", "text"),
    ("summary_text", "text"),
    ("reasoning_text", "text"),
    ("refusal", "refusal"),
];

/// Types of parts that are known and not built yet.
const UNBUILT_PARTS: &[&str] =
    &["input_file", "input_audio", "input_video", "computer_screenshot", "image_url"];

/// Members of parts that are no part of a prompt.
const PART_SILENT: &[&str] = &["annotations", "logprobs", "prompt_cache_breakpoint", "detail"];

/// What the model is told to write for a compaction.
const SUM_UP: &str = "Sum up this conversation for whoever goes on with it and sees nothing else of it: what was \
    asked, what was done and found, what is decided, what is left to do. Keep names, paths, numbers \
    and the user's wishes as they were said. Answer with the summary alone, and call no tool.";

/// An input, read.
#[derive(Debug, Default, PartialEq)]
pub struct Read {
    /// The messages, without what asks for a summary of them.
    pub messages: Vec<Message>,
    /// The answer is a summary of them.
    pub compacts: bool,
}

/// Reads an input, behind what was said before it; tools that stand in it come into the catalogue.
///
/// # Errors
/// 400 naming the first item that is wrong.
pub fn read(
    (before, value): (Vec<Value>, Value),
    catalogue: &mut Catalogue,
    limits: &Limits,
    notes: &mut Notes,
) -> Result<Read, ApiError> {
    let items = match value {
        Value::String(text) if before.is_empty() => {
            let messages = vec![Message::text(Role::User, text)];
            return Ok(Read { messages, compacts: false });
        }
        Value::String(text) => vec![json!({ "role": "user", "content": text })],
        items => list(items, limits.messages, "input")?,
    };
    let said = before.len();
    if said + items.len() > limits.messages {
        let (found, most) = (items.len(), limits.messages);
        let message =
            format!("input has {found} items behind {said}, the limit is {most} together");
        return Err(ApiError::bad("input", message));
    }
    let mut fields = Vec::with_capacity(said + items.len());
    for (i, item) in before.into_iter().chain(items).enumerate() {
        let path = match i.checked_sub(said) {
            Some(own) => format!("input[{own}]"),
            None => format!("before[{i}]"),
        };
        fields.push((Fields::of(item, &path)?, Vec::new()));
    }
    // Tools first: items of calls name them.
    for (fields, names) in &mut fields {
        if let Some(tools) = fields.take("tools") {
            let path = fields.path("tools");
            let is_found = fields.get("type").is_some_and(|kind| kind == "tool_search_output");
            let source = if is_found { Source::Found } else { Source::Item };
            *names = catalogue.add(tools, (&path, source), limits, notes)?;
        }
    }
    let count = fields.len();
    let mut reader = Reader { catalogue, notes, messages: Vec::new(), open: None };
    let mut compacts = false;
    for (i, (fields, names)) in fields.into_iter().enumerate() {
        let triggered = reader.item(fields, names)?;
        if triggered && i + 1 < count {
            let path = format!("input[{}]", i.saturating_sub(said));
            reader.notes.add(format!("{path} was ignored: something follows it"));
        }
        compacts = triggered;
    }
    Ok(Read { messages: reader.ended(), compacts })
}

/// What the model is asked for a summary with, behind what it sums up.
pub fn sum_up() -> Message {
    Message::text(Role::User, SUM_UP)
}

struct Reader<'a> {
    catalogue: &'a Catalogue,
    notes: &'a mut Notes,
    messages: Vec<Message>,
    /// An answer whose items are still coming.
    open: Option<Message>,
}

impl Reader<'_> {
    /// Takes an item with the tools that stood in it; whether it asks for a compaction.
    fn item(&mut self, mut fields: Fields, tools: Vec<String>) -> Result<bool, ApiError> {
        let kind = match fields.text("type")? {
            Some(kind) => kind,
            None if fields.has("role") => "message".to_owned(),
            None => "item_reference".to_owned(),
        };
        let path = fields.path("").trim_end_matches('.').to_owned();
        let ids = (fields.text("call_id")?, fields.text("namespace")?);
        SILENT.iter().for_each(|name| drop(fields.take(name)));
        match kind.as_str() {
            "message" => self.message(&mut fields)?,
            "reasoning" => self.reasoning(&mut fields)?,
            "function_call" | "custom_tool_call" | "tool_search_call" => {
                self.call(&kind, &mut fields, ids)?;
            }
            "function_call_output" | "custom_tool_call_output" => {
                fields.take("name");
                let path = fields.path("output");
                let content = self.told(fields.take("output"), &path, true)?;
                self.result(content, ids.0);
            }
            "tool_search_output" => {
                fields.take("execution");
                let found = self.catalogue.found(&tools);
                self.result(Content::Text(found), ids.0);
            }
            "additional_tools" => drop(fields.take("role")),
            "compaction" | "compaction_summary" | "context_compaction" => {
                self.compaction(&mut fields, &path)?;
            }
            "compaction_trigger" => return Ok(true),
            "item_reference" => {
                let message = format!("{path} is a reference: send the item itself");
                return Err(ApiError::unsupported(path, message));
            }
            other => {
                let kind = shown(other);
                self.notes.add(format!("{path} was ignored: items of type {kind} are not read"));
                return Ok(false);
            }
        }
        fields.finish(&[], self.notes)?;
        Ok(false)
    }

    fn message(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        let path = fields.path("role");
        let word = text(fields.require("role")?, &path)?;
        let Some(&(_, role)) = ROLES.iter().find(|(name, _)| *name == word) else {
            let known: Vec<&str> = ROLES.iter().map(|(name, _)| *name).collect();
            let message = format!("{path} must be one of {}", known.join(", "));
            return Err(ApiError::bad(path, message));
        };
        let path = fields.path("content");
        if role != Role::Assistant {
            let value = fields.require("content")?;
            let content = self.told(Some(value), &path, role == Role::User)?;
            self.close();
            self.messages.push(Message { content, ..Message::text(role, "") });
            return Ok(());
        }
        let content = self.content(fields.take("content"), &path)?;
        let answer = self.answer(|open| !open.calls.is_empty());
        answer.content = joined(std::mem::replace(&mut answer.content, nothing()), content);
        Ok(())
    }

    /// What was thought before what follows in that answer.
    fn reasoning(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        let sealed = fields.text("encrypted_content")?;
        let opened = sealed.as_deref().and_then(|s| self.notes.seal().open(Kind::Reasoning, s));
        let (content, summary) = (fields.path("content"), fields.path("summary"));
        let content = self.content(fields.take("content"), &content)?;
        let summary = self.content(fields.take("summary"), &summary)?;
        let text_of = |content: &Content| content.texts().collect::<Vec<_>>().join("\n");
        let found = [opened.clone().unwrap_or_default(), text_of(&content), text_of(&summary)];
        if sealed.is_some() && opened.is_none() {
            let path = fields.path("encrypted_content");
            self.notes.add(format!("{path} was ignored: this server, as it runs, did not seal it"));
        }
        let Some(text) = found.into_iter().find(|text| !text.is_empty()) else { return Ok(()) };
        let answer = self.answer(|open| {
            !open.calls.is_empty() || open.content.texts().any(|text| !text.is_empty())
        });
        match &mut answer.reasoning {
            Some(before) => before.push_str(&format!("\n{text}")),
            none => *none = Some(text),
        }
        Ok(())
    }

    /// A call as templates know it.
    fn call(
        &mut self,
        kind: &str,
        fields: &mut Fields,
        (id, namespace): (Option<String>, Option<String>),
    ) -> Result<(), ApiError> {
        let id = id.unwrap_or_default();
        let name = match kind {
            "tool_search_call" => {
                fields.take("execution");
                self.catalogue.search_name()
            }
            _ => {
                let name = text(fields.require("name")?, &fields.path("name"))?;
                self.catalogue.offered_name(namespace.as_deref(), &name)
            }
        };
        let member = if kind == "custom_tool_call" { "input" } else { "arguments" };
        let path = fields.path(member);
        let call = match (kind, fields.take(member)) {
            (_, None) => Call { id, name, arguments: json!({}) },
            ("custom_tool_call", Some(Value::String(input))) => {
                Call { id, name, arguments: json!({ "input": input }) }
            }
            (_, Some(Value::String(text))) => Call::of_text(id, name, &text),
            ("tool_search_call", Some(arguments @ Value::Object(_))) => {
                Call { id, name, arguments }
            }
            (_, Some(other)) => return Err(wrong(&path, "a string", &other)),
        };
        self.answer(|_| false).calls.push(call);
        Ok(())
    }

    fn result(&mut self, content: Content, call_id: Option<String>) {
        self.close();
        self.messages.push(Message { content, call_id, ..Message::text(Role::Tool, "") });
    }

    /// What stands for everything before it.
    fn compaction(&mut self, fields: &mut Fields, path: &str) -> Result<(), ApiError> {
        let sealed = fields.text("encrypted_content")?.unwrap_or_default();
        match self.notes.seal().open(Kind::Summary, &sealed) {
            Some(summary) => {
                self.close();
                let text = format!("What was said before this, summed up:\n\n{summary}");
                self.messages.push(Message::text(Role::User, text));
            }
            None => self
                .notes
                .add(format!("{path} was ignored: this server, as it runs, did not seal it")),
        }
        Ok(())
    }

    /// The answer whose items are coming; a new one where the open one is over.
    fn answer(&mut self, is_over: impl Fn(&Message) -> bool) -> &mut Message {
        if self.open.as_ref().is_some_and(is_over) {
            self.close();
        }
        self.open.get_or_insert_with(|| Message::text(Role::Assistant, ""))
    }

    fn close(&mut self) {
        self.messages.extend(self.open.take());
    }

    fn ended(mut self) -> Vec<Message> {
        self.close();
        self.messages
    }

    /// A string, or parts that are texts.
    fn content(&mut self, value: Option<Value>, path: &str) -> Result<Content, ApiError> {
        self.told(value, path, false)
    }

    /// The same; where somebody `shows` something, parts may be images.
    fn told(&mut self, value: Option<Value>, path: &str, shows: bool) -> Result<Content, ApiError> {
        let parts = match value {
            None => return Ok(nothing()),
            Some(Value::String(text)) => return Ok(Content::Text(text)),
            Some(Value::Array(parts)) => parts,
            Some(other) => return Err(wrong(path, "a string or an array of parts", &other)),
        };
        let mut read = Vec::with_capacity(parts.len());
        for (i, part) in parts.into_iter().enumerate() {
            read.extend(self.part(part, &format!("{path}[{i}]"), shows)?);
        }
        Ok(Content::of(read))
    }

    fn part(&mut self, value: Value, path: &str, shows: bool) -> Result<Option<Part>, ApiError> {
        let mut fields = Fields::of(value, path)?;
        let kind = text(fields.require("type")?, &fields.path("type"))?;
        let is_image = kind == "input_image";
        if UNBUILT_PARTS.contains(&kind.as_str()) || (is_image && !shows) {
            let message = format!("{path} is of type {kind}: this server takes text there");
            return Err(ApiError::unsupported(path, message));
        }
        if is_image {
            let image = image(&mut fields, path)?;
            PART_SILENT.iter().for_each(|name| drop(fields.take(name)));
            fields.finish(&[], self.notes)?;
            return Ok(Some(Part::Image(image)));
        }
        let Some((_, member)) = TEXTS.iter().find(|(name, _)| *name == kind) else {
            let kind = shown(&kind);
            self.notes.add(format!("{path} was ignored: parts of type {kind} are not read"));
            return Ok(None);
        };
        let text = text(fields.require(member)?, &fields.path(member))?;
        PART_SILENT.iter().for_each(|name| drop(fields.take(name)));
        fields.finish(&[], self.notes)?;
        Ok(Some(Part::Text(text)))
    }
}

/// An image by its address; those that are uploads are not built.
fn image(fields: &mut Fields, path: &str) -> Result<Image, ApiError> {
    if let Some(id) = fields.take("file_id") {
        let path = fields.path("file_id");
        let message = format!("{path} is {id}: images are sent as data URLs");
        return Err(ApiError::unsupported(path, message));
    }
    let url = text(fields.require("image_url")?, &fields.path("image_url"))?;
    images::of_url(path.to_owned(), &url, &fields.path("image_url"))
}

fn nothing() -> Content {
    Content::Text(String::new())
}

/// Two contents, one after the other.
fn joined(one: Content, other: Content) -> Content {
    let parts = |content: Content| match content {
        Content::Text(text) if text.is_empty() => Vec::new(),
        content => content.into_parts(),
    };
    Content::of([parts(one), parts(other)].concat())
}

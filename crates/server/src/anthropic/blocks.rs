//! What is said: the system's text, and messages made of blocks.

use std::time::Duration;

use serde_json::{Value, json};

use crate::config::Limits;
use crate::conversation::{Call, Content, Message, Part, Role};
use crate::error::ApiError;
use crate::fields::{Fields, Ignored, Notes, list, shown, text, wrong};
use crate::images;
use crate::openai::leases;

/// Roles, and what they are here.
const ROLES: &[(&str, Role)] =
    &[("user", Role::User), ("assistant", Role::Assistant), ("system", Role::System)];

/// Blocks that are known and not built yet.
const UNBUILT: &[&str] = &["document", "search_result", "container_upload", "browser_state"];

/// Blocks that only who wrote them can use, and why they are left out.
const LEFT_OUT: &[Ignored] = &[
    Ignored { name: "redacted_thinking", because: "what was thought is not in it" },
    Ignored { name: "fallback", because: "the model named answers" },
    Ignored { name: "tool_addition", because: "all tools of the request are on offer" },
    Ignored { name: "tool_removal", because: "all tools of the request are on offer" },
    Ignored { name: "server_tool_use", because: FOREIGN },
    Ignored { name: "mcp_tool_use", because: FOREIGN },
    Ignored { name: "mcp_tool_listing", because: FOREIGN },
];
const FOREIGN: &str = "another server runs that tool";

/// How the text begins in which some clients tell who they are, anew in every request.
const ATTRIBUTION: &str = "x-anthropic-billing-header:";

/// Members of blocks that change no answer here.
const IGNORED: &[Ignored] = &[
    Ignored { name: "caller", because: "templates have no place for it" },
    Ignored { name: "toolset_name", because: "templates have no place for it" },
];

/// Members of messages that change no answer here.
const IGNORED_OF_MESSAGES: &[Ignored] = &[
    Ignored { name: "clear_at", because: "this server edits no conversation" },
    Ignored { name: "output_config", because: "that of the request holds" },
];

/// Why a block of that type is left out, if it is.
fn left_out(kind: &str) -> Option<&'static str> {
    let row = LEFT_OUT.iter().find(|row| row.name == kind).map(|row| row.because);
    let result = kind != "tool_result" && kind.ends_with("_tool_result");
    row.or(result.then_some(FOREIGN))
}

/// Reads what is said, and what it says beside its texts.
pub struct Reader<'a> {
    /// Of the server.
    pub limits: &'a Limits,
    /// What had no effect.
    pub notes: &'a mut Notes,
    /// How long a mark asks that the prompt stays in the cache.
    pub kept: Option<Duration>,
}

/// What the blocks of a message say.
#[derive(Default)]
struct Turn {
    parts: Vec<Part>,
    reasoning: String,
    calls: Vec<Call>,
    /// Of calls in the message before.
    results: Vec<Message>,
}

impl Reader<'_> {
    /// `cache_control`: the prompt stays for the longest time marked.
    ///
    /// # Errors
    /// 400 for a mark that is none.
    pub fn mark(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        self.kept = self.kept.max(leases::marked(fields, self.notes)?);
        Ok(())
    }

    /// The instructions that a conversation begins with.
    ///
    /// # Errors
    /// 400 naming the block at fault.
    pub fn system(&mut self, fields: &mut Fields) -> Result<Option<Message>, ApiError> {
        let Some(value) = fields.take("system") else { return Ok(None) };
        let in_blocks = value.is_array();
        let mut texts = self.texts(value, "system")?;
        if in_blocks {
            texts.retain(|part| !part.text().is_some_and(|text| text.starts_with(ATTRIBUTION)));
        }
        Ok((!texts.is_empty()).then(|| said(Role::System, texts)))
    }

    /// The messages, each role's in a row as one.
    ///
    /// # Errors
    /// 400 naming the first that is wrong.
    pub fn messages(&mut self, value: Value) -> Result<Vec<Message>, ApiError> {
        let items = list(value, self.limits.messages, "messages")?;
        if items.is_empty() {
            return Err(ApiError::bad("messages", "messages is empty"));
        }
        let mut turns = Turns { messages: Vec::with_capacity(items.len()), joined: false };
        for (i, item) in items.into_iter().enumerate() {
            for message in self.message(item, &format!("messages[{i}]"))? {
                turns.add(message);
            }
        }
        Ok(turns.messages)
    }

    /// A message; the results of tools in it are messages of their own, before its text.
    fn message(&mut self, value: Value, path: &str) -> Result<Vec<Message>, ApiError> {
        let mut fields = Fields::of(value, path)?;
        let role = text(fields.require("role")?, &fields.path("role"))?;
        let Some(&(_, role)) = ROLES.iter().find(|(name, _)| *name == role) else {
            let known: Vec<&str> = ROLES.iter().map(|(name, _)| *name).collect();
            let message = format!("{path}.role must be one of {}", known.join(", "));
            return Err(ApiError::bad(fields.path("role"), message));
        };
        let (value, path) = (fields.require("content")?, fields.path("content"));
        fields.finish(IGNORED_OF_MESSAGES, self.notes)?;
        if role == Role::System {
            return Ok(vec![said(role, self.texts(value, &path)?)]);
        }
        let turn = self.turn(value, &path, role)?;
        let Turn { parts, reasoning, calls, results: mut found } = turn;
        if role == Role::Assistant || !parts.is_empty() || found.is_empty() {
            let reasoning = Some(reasoning).filter(|text| !text.is_empty());
            found.push(Message { reasoning, calls, ..said(role, parts) });
        }
        Ok(found)
    }

    /// A text, or blocks that are texts.
    fn texts(&mut self, value: Value, path: &str) -> Result<Vec<Part>, ApiError> {
        self.each(value, path, |reader, kind, fields| match kind {
            "text" => reader.text(fields).map(Some),
            other => Err(misplaced(other, fields, "a text")),
        })
    }

    /// A text, or what is made of each block, which is told its type.
    fn each(
        &mut self,
        value: Value,
        path: &str,
        mut read: impl FnMut(&mut Self, &str, &mut Fields) -> Result<Option<Part>, ApiError>,
    ) -> Result<Vec<Part>, ApiError> {
        let blocks = match value {
            Value::String(text) => return Ok(vec![Part::Text(text)]),
            Value::Array(blocks) => blocks,
            other => return Err(wrong(path, "a string or an array of blocks", &other)),
        };
        let mut parts = Vec::with_capacity(blocks.len());
        for (i, block) in blocks.into_iter().enumerate() {
            let mut fields = Fields::of(block, &format!("{path}[{i}]"))?;
            let kind = text(fields.require("type")?, &fields.path("type"))?;
            self.mark(&mut fields)?;
            if let Some(because) = left_out(&kind) {
                self.notes.add(format!("{} was ignored: {because}", place(&fields)));
                continue;
            }
            parts.extend(read(self, &kind, &mut fields)?);
            fields.finish(IGNORED, self.notes)?;
        }
        Ok(parts)
    }

    fn text(&mut self, fields: &mut Fields) -> Result<Part, ApiError> {
        let cites = fields.take("citations").is_some_and(|cited| cited != json!([]));
        if cites {
            let path = fields.path("citations");
            self.notes.add(format!("{path} was ignored: templates have no place for it"));
        }
        text(fields.require("text")?, &fields.path("text")).map(Part::Text)
    }

    /// All that the user or the assistant says in a message.
    fn turn(&mut self, value: Value, path: &str, role: Role) -> Result<Turn, ApiError> {
        let mut turn = Turn::default();
        turn.parts = self.each(value, path, |reader, kind, fields| {
            match (kind, role) {
                ("text", _) => return reader.text(fields).map(Some),
                ("image", Role::User) => return image(fields).map(Some),
                ("thinking", Role::Assistant) => {
                    turn.reasoning += &text(fields.require("thinking")?, &fields.path("thinking"))?;
                    // What other servers seal is no part of a prompt.
                    fields.text("signature")?;
                }
                ("tool_use", Role::Assistant) => turn.calls.push(call(fields)?),
                ("tool_result", Role::User) => turn.results.push(reader.result(fields)?),
                // What stands for all that was said before it.
                ("compaction", _) => return Ok(fields.text("content")?.map(Part::Text)),
                (other, _) => {
                    return Err(misplaced(
                        other,
                        fields,
                        &format!("a message of the {}", role.name()),
                    ));
                }
            }
            Ok(None)
        })?;
        Ok(turn)
    }

    /// What a tool found.
    fn result(&mut self, fields: &mut Fields) -> Result<Message, ApiError> {
        let id = text(fields.require("tool_use_id")?, &fields.path("tool_use_id"))?;
        let failed = fields.flag("is_error")? == Some(true);
        let path = fields.path("content");
        let mut parts = match fields.take("content") {
            None => Vec::new(),
            Some(value) => self.each(value, &path, |reader, kind, fields| match kind {
                "text" => reader.text(fields).map(Some),
                "image" => image(fields).map(Some),
                // A search for tools: all are on offer from the start.
                "tool_reference" => {
                    let name = text(fields.require("tool_name")?, &fields.path("tool_name"))?;
                    Ok(Some(Part::Text(name)))
                }
                other => Err(misplaced(other, fields, "a tool_result")),
            })?,
        };
        if failed {
            match parts.first_mut() {
                Some(Part::Text(text)) => text.insert_str(0, "Error: "),
                Some(Part::Image(_)) => parts.insert(0, Part::Text("Error: ".to_owned())),
                None => parts.push(Part::Text("Error".to_owned())),
            }
        }
        Ok(Message { call_id: Some(id), ..said(Role::Tool, parts) })
    }
}

/// Where an object is.
fn place(fields: &Fields) -> String {
    fields.path("").trim_end_matches('.').to_owned()
}

/// An image: its bytes in base64, or where it is.
fn image(fields: &mut Fields) -> Result<Part, ApiError> {
    let (path, source) = (place(fields), fields.path("source"));
    let mut source = Fields::of(fields.require("source")?, &source)?;
    let kind = text(source.require("type")?, &source.path("type"))?;
    let found = match kind.as_str() {
        "base64" => {
            let media = text(source.require("media_type")?, &source.path("media_type"))?;
            let data = text(source.require("data")?, &source.path("data"))?;
            images::of_base64(path, &data, (Some(&media), &source.path("data")))?
        }
        "url" => {
            let url = text(source.require("url")?, &source.path("url"))?;
            images::of_url(path, &url, &source.path("url"))?
        }
        other => {
            let path = source.path("type");
            let message = format!("{path} is {:?}; base64 and url are known", shown(other));
            return Err(ApiError::unsupported(path, message));
        }
    };
    Ok(Part::Image(found))
}

/// A call that an earlier answer made.
fn call(fields: &mut Fields) -> Result<Call, ApiError> {
    let id = text(fields.require("id")?, &fields.path("id"))?;
    let name = text(fields.require("name")?, &fields.path("name"))?;
    let arguments = match fields.take("input") {
        None => json!({}),
        Some(input @ Value::Object(_)) => input,
        Some(other) => return Err(wrong(&fields.path("input"), "an object", &other)),
    };
    Ok(Call { id, name, arguments })
}

/// 400: a block of a type that is not built, or has no place there.
fn misplaced(kind: &str, fields: &Fields, whose: &str) -> ApiError {
    let path = place(fields);
    let kind = shown(kind);
    match UNBUILT.contains(&kind.as_str()) {
        true => {
            let message = format!("{path} is of type {kind:?}; this model takes text");
            ApiError::unsupported(path, message)
        }
        false => {
            let message = format!("{path} is of type {kind:?}, which has no place in {whose}");
            ApiError::bad(path, message)
        }
    }
}

/// A message that says so.
fn said(role: Role, parts: Vec<Part>) -> Message {
    Message { content: Content::of(parts), ..Message::text(role, "") }
}

/// Messages; what one speaks in a row is one message, as roles take turns.
struct Turns {
    messages: Vec<Message>,
    /// The last one consists of several: no text of it is empty.
    joined: bool,
}

impl Turns {
    /// Adds a message. What was said before is moved, not copied: a row may be long.
    fn add(&mut self, next: Message) {
        let turns = matches!(next.role, Role::User | Role::Assistant);
        let last = self.messages.last_mut().filter(|last| turns && last.role == next.role);
        let Some(last) = last else {
            self.messages.push(next);
            self.joined = false;
            return;
        };
        let own = std::mem::replace(&mut last.content, Content::Parts(Vec::new()));
        let mut parts = own.into_parts();
        if !std::mem::replace(&mut self.joined, true) {
            parts.retain(|part| !part.is_empty());
        }
        parts.extend(next.content.into_parts().into_iter().filter(|part| !part.is_empty()));
        last.content = Content::of(parts);
        last.calls.extend(next.calls);
        if let Some(more) = next.reasoning {
            last.reasoning.get_or_insert_default().push_str(&more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_says_in_a_row_is_one_message_without_a_copy() {
        let mut turns = Turns { messages: Vec::new(), joined: false };
        let long = "x".repeat(100);
        let place = long.as_ptr();
        let parts = [long, String::new()].map(Part::Text);
        turns.add(Message { content: Content::Parts(parts.into()), ..user("") });
        for text in ["a", "", "b"] {
            turns.add(user(text));
        }
        turns.add(Message::text(Role::Assistant, ""));
        turns.add(Message::text(Role::Assistant, "c"));
        let [asked, told] = &turns.messages[..] else { panic!("two messages") };
        let texts: Vec<&str> = asked.content.texts().collect();
        assert_eq!((texts.len(), &texts[1..]), (3, &["a", "b"][..]));
        assert_eq!(texts[0].as_ptr(), place, "it was moved");
        assert_eq!(told.content, Content::Text("c".into()));
    }

    fn user(text: &str) -> Message {
        Message::text(Role::User, text)
    }
}

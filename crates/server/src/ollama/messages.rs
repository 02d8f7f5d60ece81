//! Messages of a chat. Calls need no ids here: a result answers the first call of its tool that has
//! none yet.

use serde_json::Value;

use crate::config::Limits;
use crate::conversation::{Content, Message, Part, Role};
use crate::error::ApiError;
use crate::fields::{Fields, Notes, list, text};
use crate::images::{self, Image};
use crate::openai::tools;

/// Roles, and what they are here.
const ROLES: &[(&str, Role)] = &[
    ("system", Role::System),
    ("developer", Role::System),
    ("user", Role::User),
    ("assistant", Role::Assistant),
    ("tool", Role::Tool),
];

/// Reads them; there may be none.
///
/// # Errors
/// 400 naming the first that is wrong.
pub fn read(value: Value, limits: &Limits, notes: &mut Notes) -> Result<Vec<Message>, ApiError> {
    let items = list(value, limits.messages, "messages")?;
    let mut open = Open::default();
    let mut messages = Vec::with_capacity(items.len());
    for (i, item) in items.into_iter().enumerate() {
        messages.push(message(item, &format!("messages[{i}]"), &mut open, (limits, notes))?);
    }
    Ok(messages)
}

/// Images, files in base64.
///
/// # Errors
/// 400 naming the first that is none.
pub fn images(fields: &mut Fields, limits: &Limits) -> Result<Vec<Image>, ApiError> {
    let path = fields.path("images");
    let Some(value) = fields.take("images") else { return Ok(Vec::new()) };
    let image = |(i, item): (usize, Value)| {
        let path = format!("{path}[{i}]");
        let data = text(item, &path)?;
        images::of_base64(path.clone(), &data, (None, &path))
    };
    list(value, limits.images, &path)?.into_iter().enumerate().map(image).collect()
}

/// What is said of images: they come first.
pub fn shown(images: Vec<Image>, said: String) -> Content {
    let text = Some(said).filter(|said| images.is_empty() || !said.is_empty());
    Content::of(images.into_iter().map(Part::Image).chain(text.map(Part::Text)).collect())
}

/// Calls that no result has answered yet: id and tool.
#[derive(Default)]
struct Open {
    calls: Vec<(String, String)>,
    /// Calls without an id so far.
    unnamed: usize,
}

impl Open {
    /// The id of the call that a result answers: by its own, by its tool, or the first.
    fn answered(&mut self, id: Option<String>, tool: Option<&str>) -> Option<String> {
        let same = |(call, _): &(String, String)| Some(call) == id.as_ref();
        let of_tool = |(_, name): &(String, String)| tool.is_none_or(|tool| tool == name);
        let at = match &id {
            Some(_) => self.calls.iter().position(same),
            None => self.calls.iter().position(of_tool),
        };
        match at {
            Some(at) => Some(self.calls.remove(at).0),
            None => id,
        }
    }
}

fn message(
    value: Value,
    path: &str,
    open: &mut Open,
    (limits, notes): (&Limits, &mut Notes),
) -> Result<Message, ApiError> {
    let mut fields = Fields::of(value, path)?;
    let role = text(fields.require("role")?, &fields.path("role"))?.to_ascii_lowercase();
    let Some(&(_, role)) = ROLES.iter().find(|(name, _)| *name == role) else {
        let known: Vec<&str> = ROLES.iter().map(|(name, _)| *name).collect();
        let message = format!("{path}.role must be one of {}", known.join(", "));
        return Err(ApiError::bad(fields.path("role"), message));
    };
    let images = images(&mut fields, limits)?;
    if let (Some(image), Role::System | Role::Assistant) = (images.first(), role) {
        let message = format!("{} is an image; only the user and tools show any", image.path);
        return Err(ApiError::unsupported(&image.path, message));
    }
    let content = shown(images, fields.text("content")?.unwrap_or_default());
    let mut message = Message { content, ..Message::text(role, "") };
    match role {
        Role::Assistant => {
            message.reasoning = fields.text("thinking")?.filter(|text| !text.is_empty());
            message.calls = tools::calls(&mut fields, limits, notes)?;
            for call in message.calls.iter_mut() {
                if call.id.is_empty() {
                    call.id = format!("unnamed {}", open.unnamed);
                    open.unnamed += 1;
                }
                open.calls.push((call.id.clone(), call.name.clone()));
            }
        }
        Role::Tool => {
            let own = fields.text("name")?;
            message.name = fields.text("tool_name")?.or(own).filter(|name| !name.is_empty());
            let id = fields.text("tool_call_id")?.filter(|id| !id.is_empty());
            message.call_id = open.answered(id, message.name.as_deref());
        }
        Role::System | Role::User => {}
    }
    fields.finish(&[], notes)?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Conversation;
    use serde_json::json;

    fn values(value: Value) -> Result<Vec<Value>, ApiError> {
        let messages = read(value, &Limits::default(), &mut Notes::new(true))?;
        Ok(Conversation { messages, ..Conversation::default() }.values(false))
    }

    #[test]
    fn results_find_their_calls_without_ids() {
        let call = |name: &str| json!({ "function": { "name": name, "arguments": { "a": 1 } } });
        let found = values(json!([
            { "role": "User", "content": "q", "images": [] },
            { "role": "assistant", "tool_calls": [call("f"), call("g")], "thinking": "t" },
            { "role": "tool", "tool_name": "g", "content": "2" },
            { "role": "tool", "content": "1" },
        ]))
        .expect("read");
        let told = |at: usize, member: &str| found[at][member].clone();
        assert_eq!(told(1, "reasoning_content"), "t");
        let ids = [&found[1]["tool_calls"][0]["id"], &found[1]["tool_calls"][1]["id"]];
        assert_eq!((&told(2, "tool_call_id"), &told(3, "tool_call_id")), (ids[1], ids[0]));
        assert_eq!((told(2, "name"), told(3, "name")), (json!("g"), json!("f")));
        assert_eq!(found[1]["tool_calls"][0]["function"]["arguments"], json!({ "a": 1 }));
    }

    #[test]
    fn images_stand_before_what_is_said_of_them() {
        let said =
            |content: &str| json!([{ "role": "user", "images": ["aGVsbG8="], "content": content }]);
        let (image, text) = (json!({ "type": "image" }), json!({ "type": "text", "text": "q" }));
        assert_eq!(values(said("q")).expect("read")[0]["content"], json!([image, text]));
        assert_eq!(values(said("")).expect("read")[0]["content"], json!([image]));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (given, param) in [
            (json!([{ "content": "a" }]), "messages[0].role"),
            (json!([{ "role": "bot", "content": "a" }]), "messages[0].role"),
            (json!([{ "role": "user", "content": ["a"] }]), "messages[0].content"),
            (json!([{ "role": "user", "images": ["x"] }]), "messages[0].images[0]"),
            (json!([{ "role": "user", "images": "x" }]), "messages[0].images"),
            (json!([{ "role": "user", "images": [""] }]), "messages[0].images[0]"),
            (json!([{ "role": "system", "images": ["aGVsbG8="] }]), "messages[0].images[0]"),
            (json!([{ "role": "user", "content": "a", "thinking": "t" }]), "messages[0].thinking"),
            (json!([7]), "messages[0]"),
            (json!({}), "messages"),
        ] {
            let error = values(given.clone()).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some(param), "{given}");
        }
        assert_eq!(values(json!([])), Ok(vec![]));
    }
}

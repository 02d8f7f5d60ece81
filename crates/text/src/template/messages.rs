//! Messages as templates want them: members without a value gone, reasoning under its newer and
//! older names, content in a form that the template reads, the place where a last one goes on.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::{Map, Value as Json, json};

use super::value::ALLOWANCE;
use super::{ChatTemplate, RenderOptions, TemplateError};

/// A message as the hubs' library hands it to a template: members that are null are left out (but
/// not a content that the template wants to see as null), and reasoning has its newer and older
/// names, for templates read either.
pub(super) fn normalised(message: &Json, keeps_null: bool) -> Cow<'_, Json> {
    const NAMES: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
    let Some(object) = message.as_object() else { return Cow::Borrowed(message) };
    let reasoning = NAMES.iter().filter_map(|name| object.get(*name)).find(|v| !v.is_null());
    if reasoning.is_none() && object.values().all(|value| !value.is_null()) {
        return Cow::Borrowed(message);
    }
    let stays = |name: &str, value: &Json| !value.is_null() || keeps_null && name == "content";
    let members = object.iter().filter(|(name, value)| stays(name, value));
    let mut members: Map<String, Json> = members.map(|(k, v)| (k.clone(), v.clone())).collect();
    if let Some(reasoning) = reasoning {
        members.entry("thinking").or_insert_with(|| reasoning.clone());
        members.insert("reasoning_content".to_owned(), reasoning.clone());
    }
    Cow::Owned(Json::Object(members))
}

/// Roles of messages whose content a template may read in its own way.
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

/// What a trial may spend: a conversation of three words takes some thousands.
const TRIAL: u64 = ALLOWANCE / 16;

/// Texts that no template writes of itself.
const FIRST: &str = "Zq7first";
const SECOND: &str = "Zq7second";

/// The forms in which a template reads the content of a role's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Form {
    string: bool,
    parts: bool,
}

/// The forms for all roles, found by trying.
#[derive(Debug, Clone)]
pub(super) struct Forms {
    of_roles: [Form; 4],
    /// A content that is null stays null: without it the template fails.
    pub(super) keeps_null: bool,
}

impl Forms {
    /// What templates for text alone read.
    pub(super) const STRINGS: Forms =
        Forms { of_roles: [Form { string: true, parts: false }; 4], keeps_null: false };

    /// Tries a template: content is read in a form if its texts come out as they are.
    pub(super) fn of(template: &ChatTemplate) -> Forms {
        let user = form(template, "user", true);
        // The other messages of a trial have the form that the user's have.
        let plain = user.string || !user.parts;
        let of_roles = ROLES.map(|role| match role {
            "user" => user,
            role => form(template, role, plain),
        });
        let fails = |keeps_null: bool, arguments: Json| {
            let mut messages = trial("tool", json!("a"), plain, Json::Null);
            messages[1]["tool_calls"][0]["function"]["arguments"] = arguments;
            let options = RenderOptions::default();
            template.render_within(TRIAL, keeps_null, &messages, &options).is_err()
        };
        // Templates want the arguments of a call as an object or as text.
        let wanted =
            |arguments: &Json| fails(false, arguments.clone()) && !fails(true, arguments.clone());
        let keeps_null = [json!({ "x": 1 }), json!("{}")].iter().any(wanted);
        Forms { of_roles, keeps_null }
    }

    /// The messages with every content in a form that is read: as it was sent where that is one.
    pub(super) fn applied<'m>(&self, messages: &'m [Json]) -> Cow<'m, [Json]> {
        let changes: Vec<Option<Json>> = messages.iter().map(|m| self.changed(m)).collect();
        if changes.iter().all(Option::is_none) {
            return Cow::Borrowed(messages);
        }
        let pairs = messages.iter().zip(changes);
        Cow::Owned(
            pairs.map(|(message, change)| change.unwrap_or_else(|| message.clone())).collect(),
        )
    }

    fn changed(&self, message: &Json) -> Option<Json> {
        let role = message.get("role")?.as_str()?;
        let role = if role == "developer" { "system" } else { role };
        let at = ROLES.iter().position(|name| *name == role)?;
        let form = self.of_roles.get(at)?;
        let content = match message.get("content")? {
            Json::String(text) if !form.string && form.parts => json!([part(text)]),
            Json::Array(parts) if !form.parts => {
                let texts = parts.iter().map(|part| part.get("text")?.as_str());
                Json::String(texts.collect::<Option<Vec<&str>>>()?.join("\n"))
            }
            _ => return None,
        };
        let mut changed = message.clone();
        *changed.get_mut("content")? = content;
        Some(changed)
    }
}

fn part(text: &str) -> Json {
    json!({ "type": "text", "text": text })
}

fn form(template: &ChatTemplate, role: &str, plain: bool) -> Form {
    let written = |content: Json| {
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        let said = if plain { json!("") } else { json!([part("")]) };
        let messages = trial(role, content, plain, said);
        let prompt = template.render_within(TRIAL, false, &messages, &options);
        prompt.map(|prompt| prompt.text().into_owned()).unwrap_or_default()
    };
    let string = written(json!(FIRST));
    let parts = written(json!([part(FIRST), part(SECOND)]));
    Form {
        string: string.contains(FIRST),
        parts: parts.contains(SECOND) && is_read(&parts, &string),
    }
}

/// Whether a list's first text came out as it does alone, and not as data behind its key.
fn is_read(written: &str, alone: &str) -> bool {
    let keyed = |text: &str| {
        let (before, _) = text.split_once(FIRST)?;
        Some(before.trim_end_matches(['\'', '"', ' ', ':']).ends_with("text"))
    };
    keyed(written).is_some_and(|is_keyed| !is_keyed || keyed(alone) == Some(true))
}

/// A conversation with a content under trial; `before` is said beside a tool call.
fn trial(role: &str, content: Json, plain: bool, before: Json) -> Vec<Json> {
    let said = |text: &str| if plain { json!(text) } else { json!([part(text)]) };
    let message = |role: &str, content: Json| json!({ "role": role, "content": content });
    let tried = message(role, content.clone());
    match role {
        "user" => vec![tried],
        "system" => vec![tried, message("user", said("a"))],
        "assistant" => vec![message("user", said("a")), tried, message("user", said("b"))],
        _ => {
            let function = json!({ "name": "f", "arguments": { "x": 1 } });
            let call = json!({ "id": "abcdefghi", "type": "function", "function": function });
            vec![
                message("user", said("a")),
                json!({ "role": "assistant", "content": before, "tool_calls": [call] }),
                json!({
                    "role": role, "content": content, "tool_call_id": "abcdefghi", "name": "f",
                }),
            ]
        }
    }
}

/// Characters Unicode keeps out of text for good ("noncharacters").
const MARKS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// The messages with a mark behind the text of the last one, as the hubs' library continues it.
pub(super) fn with_mark(messages: &[Json]) -> Result<(Vec<Json>, char), TemplateError> {
    let mut messages = messages.to_vec();
    let content = messages.last_mut().and_then(|message| message.get_mut("content"));
    let text = match content {
        Some(Json::Array(parts)) => parts.iter_mut().rev().find_map(|part| part.get_mut("text")),
        content => content,
    };
    let Some(Json::String(text)) = text else { return Err(TemplateError::NothingToContinue) };
    let mark = MARKS.into_iter().find(|mark| !text.contains(*mark));
    let mark = mark.ok_or(TemplateError::NoMarkLeft)?;
    text.push(mark);
    // Where the template trims, the blank is gone afterwards.
    text.push(' ');
    Ok((messages, mark))
}

/// Ends the text, and the ranges in it, where the mark is.
pub(super) fn cut_at_mark(
    text: &mut String,
    ranges: &mut Vec<Range<usize>>,
    mark: char,
) -> Result<(), TemplateError> {
    let at = text.rfind(mark).ok_or(TemplateError::NothingToContinue)?;
    let trimmed = !text.get(at..).unwrap_or_default().trim_start_matches(mark).starts_with(' ');
    text.truncate(at);
    if trimmed {
        text.truncate(text.trim_end().len());
    }
    ranges.retain_mut(|range| {
        range.end = range.end.min(text.len());
        range.start < range.end
    });
    Ok(())
}

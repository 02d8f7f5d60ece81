//! Messages as templates want them: members without a value gone, reasoning under its newer and
//! older names, the place where a last one goes on.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::{Map, Value as Json};

use super::TemplateError;

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

/// Characters Unicode keeps out of text for good ("noncharacters").
pub(super) const MARKS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

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

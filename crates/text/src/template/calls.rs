//! The form in which a template reads the arguments of earlier calls, found by trying: an object, or
//! a text of JSON. And messages with their calls in it.

use std::borrow::Cow;

use serde_json::{Value as Json, json};

use super::call::Given;
use super::json::tojson;
use super::value::{ALLOWANCE, Meter, Value};
use super::{ChatTemplate, RenderOptions, weight};

/// What one trial may spend.
const TRIAL: u64 = ALLOWANCE / 64;
/// A key and a value that no template has of its own.
const KEY: &str = "zq7zebra";
const VALUE: &str = "wj4yak";
/// What the tool on offer is for.
const USE: &str = "vm5ochre";

/// What a template does with tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tools {
    /// It offers them.
    pub(super) offered: bool,
    /// The form that it writes arguments from; `None` where it has no place for calls.
    pub(super) arguments: Option<Arguments>,
}

/// How a template reads arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arguments {
    /// As an object.
    Object,
    /// As a text of JSON.
    Text,
}

/// Tries a template.
pub(super) fn tried(template: &ChatTemplate) -> Tools {
    let mut found = Tools::default();
    let object = json!({ KEY: VALUE });
    let text = json!(format!("{{\"{KEY}\": \"{VALUE}\"}}"));
    // As data of the template's language it would show these marks.
    let python = format!("'{KEY}'");
    let is_written = |prompt: &str| prompt.contains(KEY) && prompt.contains(VALUE);
    for (null, tools) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut written = |arguments: &Json| {
            let prompt = written(template, arguments, null, tools)?;
            found.offered |= prompt.contains(USE);
            is_written(&prompt).then_some(prompt)
        };
        let (objects, texts) = (written(&object), written(&text));
        let form = match (objects, texts) {
            (Some(prompt), _) if !prompt.contains(&python) => Some(Arguments::Object),
            (_, Some(_)) => Some(Arguments::Text),
            _ => None,
        };
        found.arguments = found.arguments.or(form);
    }
    found
}

fn written(template: &ChatTemplate, arguments: &Json, null: bool, tools: bool) -> Option<String> {
    let function = json!({ "name": "f", "arguments": arguments });
    let id = "abcdefghi";
    let content = if null { Json::Null } else { json!("") };
    let call = json!({ "id": id, "type": "function", "function": function });
    let messages = [
        json!({ "role": "user", "content": "a" }),
        json!({ "role": "assistant", "content": content, "tool_calls": [call] }),
        json!({ "role": "tool", "content": "b", "name": "f", "tool_call_id": id }),
    ];
    let parameters = json!({ "type": "object", "properties": {} });
    let offered = json!([{ "type": "function", "function": {
        "name": "f", "description": USE, "parameters": parameters,
    } }]);
    let options = RenderOptions {
        add_generation_prompt: true,
        tools: tools.then_some(&offered),
        ..RenderOptions::default()
    };
    let messages = template.readable_contents(&messages);
    let prompt = template.render_within(TRIAL, template.forms.keeps_null, &messages, &options);
    prompt.ok().map(|prompt| prompt.text)
}

/// The messages with arguments as texts, where they are objects.
pub(super) fn as_texts(messages: Cow<'_, [Json]>) -> Cow<'_, [Json]> {
    let has_calls = |message: &Json| message.get("tool_calls").is_some_and(Json::is_array);
    if !messages.iter().any(has_calls) {
        return messages;
    }
    let mut messages = messages.into_owned();
    let calls = messages.iter_mut().filter_map(|m| m.get_mut("tool_calls")?.as_array_mut());
    for call in calls.flatten() {
        let arguments = call.get_mut("function").and_then(|f| f.get_mut("arguments"));
        if let Some(arguments) = arguments.filter(|arguments| !arguments.is_string()) {
            *arguments = Json::String(spelled(arguments));
        }
    }
    Cow::Owned(messages)
}

/// A value as templates' own `tojson` writes it.
pub fn spelled(value: &Json) -> String {
    let meter = Meter::new(ALLOWANCE, weight(value));
    let read = Value::from_json(value);
    match read.and_then(|value| tojson(&value, Given::default(), &meter)) {
        Ok(Value::Str(text)) => text.as_str().to_owned(),
        _ => value.to_string(),
    }
}

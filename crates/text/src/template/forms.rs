//! The forms in which a template reads the contents of messages, found by trying: a string, or a
//! list of parts.
//!
//! A content is read if the prompt changes with it, whatever the template does with its letters.
//! As templates refuse some conversations, and treat first and last messages in their own ways,
//! each role is tried in several.

use std::borrow::Cow;

use serde_json::{Value as Json, json};

use super::value::ALLOWANCE;
use super::{ChatTemplate, RenderOptions, TemplateError};

/// Roles of messages whose content a template may read in its own way.
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

/// What one trial may spend: a conversation of a few words takes some thousands.
const TRIAL: u64 = ALLOWANCE / 64;

/// Parts of a trial. A template that reads so many reads more.
const MANY: usize = 3;

/// Two texts that differ in every character, so also in any piece a template cuts out.
const TEXTS: [&str; 2] = ["Zq7zebrawithspots", "Wj4yakswimupriver"];

/// How a template reads the content of a role's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Form {
    string: bool,
    /// So many parts from the first on.
    parts: usize,
}

impl Form {
    /// What templates for text alone read.
    const STRING: Form = Form { string: true, parts: 0 };
}

/// The forms for all roles.
#[derive(Debug, Clone)]
pub(super) struct Forms {
    /// Of messages that others follow.
    inner: [Form; 4],
    /// Of a last message.
    last: [Form; 4],
    /// A content that is null stays null: without it the template fails.
    pub(super) keeps_null: bool,
    /// The template is given images as they are, for it writes where one comes.
    pub(super) images: bool,
}

impl Forms {
    /// What templates for text alone read.
    pub(super) const STRINGS: Forms = Forms {
        inner: [Form::STRING; 4],
        last: [Form::STRING; 4],
        keeps_null: false,
        images: true,
    };

    /// Tries a template. One that takes too long for it counts as one for text alone.
    pub(super) fn of(template: &ChatTemplate) -> Forms {
        Forms::tried(template).unwrap_or(Forms::STRINGS)
    }

    fn tried(template: &ChatTemplate) -> Result<Forms, TemplateError> {
        let mut forms = Forms::STRINGS;
        for ((inner, last), role) in forms.inner.iter_mut().zip(&mut forms.last).zip(ROLES) {
            let found = [form_of(template, role, false)?, form_of(template, role, true)?];
            *inner = found[0].or(found[1]).unwrap_or(Form::STRING);
            *last = found[1].unwrap_or(*inner);
        }
        let [_, user, ..] = forms.inner;
        forms.images = user.parts > 0 && writes_images(template)?;
        for mut place in places(template, "tool", user.string) {
            place.null = true;
            let said = json!(TEXTS[0]);
            if place.written(template, false, &said)?.is_none() {
                forms.keeps_null |= place.written(template, true, &said)?.is_some();
            }
        }
        Ok(forms)
    }

    /// The messages with every content in a form that is read: as it was sent where that is one.
    pub(super) fn applied<'m>(&self, messages: &'m [Json]) -> Cow<'m, [Json]> {
        let last = messages.len().saturating_sub(1);
        let changed = |(at, message)| {
            self.changed(message, if at == last { &self.last } else { &self.inner })
        };
        let changes: Vec<Option<Json>> = messages.iter().enumerate().map(changed).collect();
        if changes.iter().all(Option::is_none) {
            return Cow::Borrowed(messages);
        }
        let pairs = messages.iter().zip(changes);
        Cow::Owned(
            pairs.map(|(message, change)| change.unwrap_or_else(|| message.clone())).collect(),
        )
    }

    fn changed(&self, message: &Json, forms: &[Form; 4]) -> Option<Json> {
        let role = message.get("role")?.as_str()?;
        let role = if role == "developer" { "system" } else { role };
        let at = ROLES.iter().position(|name| *name == role)?;
        let form = forms.get(at)?;
        let content = match message.get("content")? {
            Json::String(text) if !form.string => json!([part(text)]),
            Json::Array(parts) if form.parts == 0 || parts.len() > form.parts => {
                let texts = parts.iter().map(|part| part.get("text")?.as_str());
                let texts = texts.collect::<Option<Vec<&str>>>()?;
                // The last part that is read gets the rest.
                let kept = if form.string { 0 } else { form.parts.saturating_sub(1) };
                let rest = texts.get(kept..)?.join("\n");
                match form.string {
                    true => Json::String(rest),
                    false => {
                        let kept = parts.iter().take(kept).cloned();
                        kept.chain([part(&rest)]).collect()
                    }
                }
            }
            _ => return None,
        };
        let mut changed = message.clone();
        *changed.get_mut("content")? = content;
        Some(changed)
    }
}

/// A text as a part of a message.
pub(super) fn part(text: &str) -> Json {
    json!({ "type": "text", "text": text })
}

/// Whether a template writes something for an image among the parts of what a user says that it does not
/// write for an empty text.
fn writes_images(template: &ChatTemplate) -> Result<bool, TemplateError> {
    let text = part(TEXTS[0]);
    let image = json!([{ "type": "image" }, text]);
    let others = [json!([text]), json!([part(""), text])];
    for place in [true, false].into_iter().flat_map(|plain| places(template, "user", plain)) {
        let written = |content: &Json| place.written(template, false, content);
        let seen = written(&image)?;
        if differ(&seen, &written(&others[0])?) && differ(&seen, &written(&others[1])?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// How a role's content is read in all conversations in which it is; none if it is in none.
fn form_of(
    template: &ChatTemplate,
    role: &'static str,
    is_last: bool,
) -> Result<Option<Form>, TemplateError> {
    for plain in [true, false] {
        let mut common: Option<Form> = None;
        for place in places(template, role, plain).filter(|place| place.is_last() == is_last) {
            let found = place.form(template)?;
            if found.string || found.parts > 0 {
                let known = common.unwrap_or(found);
                let parts = known.parts.min(found.parts);
                common = Some(Form { string: known.string && found.string, parts });
            }
        }
        // Read in one way here and in another there: strings are what most templates mean.
        if let Some(form) = common {
            return Ok(Some(if form.parts == 0 { Form::STRING } else { form }));
        }
    }
    Ok(None)
}

/// Where a content is tried.
#[derive(Debug, Clone, Copy)]
struct Place {
    role: &'static str,
    /// The other messages have strings.
    plain: bool,
    with_system: bool,
    turns: Turns,
    /// The arguments of a call are text, not an object.
    text_arguments: bool,
    /// The message with a call has a content that is null, not empty.
    null: bool,
    with_tools: bool,
}

/// Further turns of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turns {
    None,
    Before,
    Behind,
}

/// All conversations for a role. `plain`: the other messages have strings.
fn places(
    template: &ChatTemplate,
    role: &'static str,
    plain: bool,
) -> impl Iterator<Item = Place> + use<> {
    let has_two = template.with_tools.is_some();
    let all = (0..2 * 2 * 2 * 3).map(move |number: usize| Place {
        role,
        plain,
        null: false,
        with_tools: number & 1 != 0,
        text_arguments: number & 2 != 0,
        with_system: number & 4 != 0,
        turns: [Turns::None, Turns::Before, Turns::Behind][number / 8],
    });
    all.filter(move |place| {
        let starts = !place.with_system && place.turns != Turns::Before;
        (role != "system" || starts)
            && (role == "tool" || !place.text_arguments)
            && (has_two || !place.with_tools)
    })
}

impl Place {
    /// Whether the content is that of the last message.
    fn is_last(&self) -> bool {
        self.turns != Turns::Behind && matches!(self.role, "user" | "tool")
    }

    /// In which forms a content is read here.
    fn form(&self, template: &ChatTemplate) -> Result<Form, TemplateError> {
        let written = |content: &Json| self.written(template, false, content);
        let strings = [written(&json!(TEXTS[0]))?, written(&json!(TEXTS[1]))?];
        let mut form = Form { string: differ(&strings[0], &strings[1]), parts: 0 };
        for count in (1..=MANY).rev() {
            let whole = written(&parts(count, None))?;
            let is_read = |at: usize| Ok(differ(&whole, &written(&parts(count, Some(at)))?));
            // With the member that no template knows, a list was written as data.
            if is_read(count)? {
                break;
            }
            while form.parts < count && is_read(form.parts)? {
                form.parts += 1;
            }
            if form.parts == MANY {
                form.parts = usize::MAX;
            }
            if form.parts > 0 {
                break;
            }
        }
        Ok(form)
    }

    /// The prompt, unless the template fails. An error is one that ends the trials.
    fn written(
        &self,
        template: &ChatTemplate,
        keeps_null: bool,
        content: &Json,
    ) -> Result<Option<String>, TemplateError> {
        let tools = json!([]);
        let options = RenderOptions {
            add_generation_prompt: true,
            tools: self.with_tools.then_some(&tools),
            ..RenderOptions::default()
        };
        match template.render_within(TRIAL, keeps_null, &self.messages(content), &options) {
            Ok(prompt) => Ok(Some(prompt.text)),
            Err(error @ (TemplateError::OutOfFuel | TemplateError::OutputTooLong)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    fn messages(&self, content: &Json) -> Vec<Json> {
        let said = |role: &str, text: &str| {
            let content = if self.plain { json!(text) } else { json!([part(text)]) };
            json!({ "role": role, "content": content })
        };
        let mut list = Vec::new();
        if self.with_system {
            list.push(said("system", "a"));
        }
        if self.turns == Turns::Before {
            list.extend([said("user", "b"), said("assistant", "c")]);
        }
        let mut tried = json!({ "role": self.role, "content": content });
        match self.role {
            "user" => list.push(tried),
            "system" => list.extend([tried, said("user", "d")]),
            "assistant" => list.extend([said("user", "d"), tried, said("user", "e")]),
            _ => {
                let arguments = if self.text_arguments { json!("{}") } else { json!({ "x": 1 }) };
                let function = json!({ "name": "f", "arguments": arguments });
                let mut call = said("assistant", "");
                if self.null {
                    call["content"] = Json::Null;
                }
                let id = "abcdefghi";
                call["tool_calls"] =
                    json!([{ "id": id, "type": "function", "function": function }]);
                (tried["tool_call_id"], tried["name"]) = (json!(id), json!("f"));
                list.extend([said("user", "d"), call, tried]);
            }
        }
        if self.turns == Turns::Behind {
            list.extend([said("assistant", "g"), said("user", "h")]);
        }
        list
    }
}

/// A list in which one text is another, or, behind the last, the member that no template knows.
fn parts(count: usize, other: Option<usize>) -> Json {
    let text = |at: usize| TEXTS[usize::from(other == Some(at))];
    let part = |at| json!({ "type": "text", "text": text(at), "zq7": text(count) });
    Json::Array((0..count).map(part).collect())
}

fn differ(one: &Option<String>, other: &Option<String>) -> bool {
    one.is_some() && other.is_some() && one != other
}

//! POST /api/generate

use serde_json::Value;

use super::answer::{Kind, answered, loaded};
use super::manner::{Common, IGNORED, UNBUILT, common};
use super::messages::{images, shown};
use crate::ask::{Ask, Generate, Input, Prompt};
use crate::config::Limits;
use crate::conversation::{Conversation, Message, Role, Tools};
use crate::error::ApiError;
use crate::fields::{Fields, Notes, Unsupported};

/// Members that ask for what is not built, unless they ask for nothing.
const UNSUPPORTED: &[Unsupported] = &[
    // (What an earlier answer was: chat has the messages themselves.)
    Unsupported { name: "context", neutral: |v| v.as_array().is_some_and(Vec::is_empty) },
    Unsupported { name: "height", neutral: |v| *v == 0 },
    Unsupported { name: "steps", neutral: |v| *v == 0 },
    Unsupported { name: "width", neutral: |v| *v == 0 },
];

/// Reads a request for text; one without a prompt has its model loaded.
///
/// # Errors
/// 400 of the request.
pub fn read(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let model = fields.text("model")?;
    let prompt = fields.text("prompt")?.unwrap_or_default();
    let suffix = fields.text("suffix")?.filter(|suffix| !suffix.is_empty());
    let system = fields.text("system")?.filter(|system| !system.is_empty());
    let raw = fields.flag("raw")?.unwrap_or(false);
    let images = images(&mut fields, limits)?;
    template(&mut fields)?;
    let is_broken = fields.has("repetition_detection");
    let Common { mut manner, variables, stream } = common(&mut fields, limits, notes)?;
    fields.refuse(UNSUPPORTED)?;
    fields.refuse(UNBUILT)?;
    fields.finish(IGNORED, notes)?;
    if let (Some(image), true) = (images.first(), raw || suffix.is_some()) {
        let message = format!("{} is an image; raw prompts and infill have none", image.path);
        return Err(ApiError::unsupported(&image.path, message));
    }
    if prompt.is_empty() && suffix.is_none() && images.is_empty() {
        return Ok(loaded(Kind::Generate, model, notes.lets_go()));
    }
    let input = match raw || suffix.is_some() {
        true => {
            if system.is_some() {
                notes.add("system was ignored: the prompt is given as it is".to_owned());
            }
            // Texts are gone on with as the model would: who wants an end for repeats says so.
            manner.repeats = manner.repeats.filter(|_| is_broken);
            Input::Prompts { prompts: vec![Prompt::Text(prompt)], echo: false, suffix }
        }
        false => {
            let system = system.map(|text| Message::text(Role::System, text));
            let content = shown(images, prompt);
            let asked = Message { content, ..Message::text(Role::User, "") };
            let messages = system.into_iter().chain([asked]).collect();
            let (tools, continues) = (Tools::default(), false);
            Input::Conversation(Conversation { messages, tools, variables, continues })
        }
    };
    Ok(answered(Kind::Generate, Generate { model, input, manner }, stream))
}

/// Refuses a template: it belongs to a model.
fn template(fields: &mut Fields) -> Result<(), ApiError> {
    match fields.take("template") {
        None => Ok(()),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(()),
        Some(_) => {
            let message = "template: a template belongs to a model; create one with it (/api/create), or \
                           send the whole prompt with \"raw\": true";
            Err(ApiError::unsupported("template", message))
        }
    }
}

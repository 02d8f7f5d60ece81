//! A conversation as its model's template writes it, and how the answer to it is read.

use tokenmill_engine::Reading;
use tokenmill_output::{Format, Tool};
use tokenmill_text::{ChatTemplate, DateTime, RenderOptions, RenderedPrompt};

use crate::ask::{Ask, Input, Read};
use crate::config::Limits;
use crate::conversation::{Conversation, Offered};
use crate::error::ApiError;
use crate::fields::{Fields, Notes};
use crate::shared::unix_seconds;
use crate::strict_json::{self, JsonLimits};
use crate::{anthropic, generic_tools, ollama, openai};

/// See the module.
pub struct Rendered {
    /// The conversation as it was rendered.
    pub talk: Conversation,
    /// The prompt.
    pub prompt: RenderedPrompt,
    /// How the answer marks reasoning and calls.
    pub format: &'static Format,
    /// The model may reason before it answers.
    pub reasons: bool,
}

impl Rendered {
    /// Renders it; tools that the template has no place for are written as text.
    ///
    /// # Errors
    /// 400 where the template refuses it.
    pub fn new(
        template: &ChatTemplate,
        format: &'static Format,
        talk: Conversation,
    ) -> Result<Self, ApiError> {
        if template.has_tools() {
            return Self::written(template, format, talk);
        }
        if talk.tools.shown().is_none() {
            return Self::written(template, format, generic_tools::written(talk, true));
        }
        let format = Format::named(generic_tools::FORMAT).unwrap_or(format);
        let first = Self::written(template, format, generic_tools::written(talk.clone(), true));
        first.or_else(|error| {
            let other = generic_tools::written(talk, false);
            Self::written(template, format, other).map_err(|_| error)
        })
    }

    fn written(
        template: &ChatTemplate,
        format: &'static Format,
        talk: Conversation,
    ) -> Result<Self, ApiError> {
        let tools = talk.tools.shown().filter(|_| template.has_tools());
        let options = RenderOptions {
            add_generation_prompt: !talk.continues,
            continue_final: talk.continues,
            tools: tools.as_ref(),
            now: DateTime::from_unix_seconds(unix_seconds()),
            kwargs: talk.variables.as_ref(),
            ..RenderOptions::default()
        };
        let written = |talk: &Conversation| {
            let messages = talk.values(format.numbers_calls());
            template.render_readable(&messages, &options)
        };
        let mut prompt = written(&talk);
        if let Err(error) = prompt {
            // Agents put instructions anywhere, and several messages of a role in a row.
            let in_turns = talk.in_turns().ok_or(error.clone());
            prompt = in_turns.and_then(|other| written(&other)).map_err(|_| error);
        }
        let prompt = prompt.map_err(|e| ApiError::bad("messages", e.to_string()))?;
        let reasons = format.may_reason(template.source(), &prompt.text());
        Ok(Self { talk, prompt, format, reasons })
    }

    /// Whether the answer goes on with a message that has begun the reasoning.
    fn goes_on(&self) -> bool {
        let last = self.talk.messages.last().filter(|_| self.talk.continues);
        let begun = last.map(|message| message.content.texts().collect::<String>());
        begun.is_some_and(|begun| self.format.reasons_after(&begun))
    }

    /// How the answer is read; `None`: all of it is text.
    pub fn reading(&self) -> Option<Reading> {
        let callable = self.talk.tools.callable();
        let tool = |t: &Offered| Tool {
            name: t.name.clone(),
            parameters: t.parameters.clone(),
            input: t.input.clone(),
        };
        let reasoning_begun = self.format.reasoning_begun(&self.prompt.text()) || self.goes_on();
        let tools = callable.map(tool).collect();
        let keeps_reasoning = self.talk.tools.must_hold() || self.talk.tools.single;
        let (format, calls_first) = (self.format, false);
        let reading = Reading { format, tools, reasoning_begun, keeps_reasoning, calls_first };
        Some(reading).filter(|reading| reading.format != Format::PLAIN)
    }
}

/// Whose words a request is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Words {
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Messages,
    /// Ollama's chat.
    Ollama,
}

impl Words {
    /// The conversation of a request, whatever else it asks.
    fn conversation(self, fields: Fields, notes: &mut Notes) -> Result<Conversation, ApiError> {
        let read: Read = match self {
            Self::Chat => openai::chat::read,
            Self::Responses => openai::responses::count,
            Self::Messages => anthropic::messages::count,
            Self::Ollama => ollama::chat::read,
        };
        match read(fields, &Limits::default(), notes)? {
            Ask::Generate { ask, .. } | Ask::Count { ask, .. } => match ask.input {
                Input::Conversation(talk) => Ok(talk),
                _ => Err(ApiError::internal()),
            },
            Ask::Numbers { .. } | Ask::Look { .. } => Err(ApiError::internal()),
        }
    }
}

/// The prompt of a request, and what of the request has no effect; `system` are the packager's
/// instructions.
///
/// # Errors
/// What is wrong with the request, or what the template refuses.
pub fn prompt_of(
    template: &ChatTemplate,
    system: Option<&str>,
    words: Words,
    request: &[u8],
) -> Result<(RenderedPrompt, Vec<String>), String> {
    let (limits, mut notes) = (Limits::default(), Notes::new(false));
    let within = JsonLimits { depth: limits.json_depth, values: limits.json_values };
    let body = strict_json::parse(request, within)?;
    let rendered = Fields::of(body, "").and_then(|fields| {
        let talk = words.conversation(fields, &mut notes)?.instructed(system);
        Rendered::new(template, Format::of_template(template.source()), talk)
    });
    let rendered = rendered.map_err(|error| error.message)?;
    Ok((rendered.prompt, notes.into_list()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tokenmill_text::TemplateTokens;

    #[test]
    fn a_question_is_the_same_prompt_in_every_dialect() {
        let source = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}";
        let template = ChatTemplate::new(source, TemplateTokens::default()).unwrap();
        let asked = json!([{ "role": "user", "content": "q" }]);
        for (words, request) in [
            (Words::Chat, json!({ "messages": asked })),
            (Words::Responses, json!({ "input": "q" })),
            (Words::Messages, json!({ "messages": asked })),
            (Words::Ollama, json!({ "messages": asked })),
        ] {
            let request = request.to_string();
            let (prompt, warnings) =
                prompt_of(&template, Some("s"), words, request.as_bytes()).unwrap();
            let text = prompt.text().into_owned();
            assert_eq!((text.as_str(), warnings.len()), ("[system] s\n[user] q\n", 0), "{words:?}");
        }
        let wrong = prompt_of(&template, None, Words::Responses, b"{\"messages\":[{}]}");
        assert!(wrong.is_err_and(|message| message.contains("messages")));
    }
}

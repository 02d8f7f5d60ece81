//! The prompt of a request of any dialect.

use tokenmill_chat::Rendered;
use tokenmill_output::Format;
use tokenmill_text::{ChatTemplate, RenderedPrompt};

use crate::ask::{Ask, Input, Read};
use crate::config::Limits;
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::fields::{Fields, Notes};
use crate::shared::now;
use crate::strict_json::{self, JsonLimits};
use crate::{anthropic, ollama, openai};

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
        let format = Format::of_template(template.source());
        let rendered = Rendered::new(template, format, talk, now());
        rendered.map_err(|e| ApiError::bad("messages", e.to_string()))
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

//! POST /api/chat

use super::answer::{Kind, answered, loaded};
use super::manner::{Common, IGNORED, UNBUILT, common};
use super::messages;
use crate::ask::{Ask, Generate, Input};
use crate::config::Limits;
use crate::conversation::{Conversation, Message, Role};
use crate::error::ApiError;
use crate::fields::{Fields, Notes};
use crate::openai::tools;

/// Reads a chat request; one without messages has its model loaded.
///
/// # Errors
/// 400 of the request.
pub fn read(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let model = fields.text("model")?;
    let messages = fields.take("messages");
    let messages = messages.map(|value| messages::read(value, limits, notes)).transpose()?;
    let tools = tools::read(&mut fields, limits, notes)?;
    let Common { manner, variables, stream } = common(&mut fields, limits, notes)?;
    fields.refuse(UNBUILT)?;
    fields.finish(IGNORED, notes)?;
    let messages = messages.unwrap_or_default();
    if messages.is_empty() {
        return Ok(loaded(Kind::Chat, model, notes.lets_go()));
    }
    let continues = messages.last().is_some_and(is_begun);
    let input = Input::Conversation(Conversation { messages, tools, variables, continues });
    Ok(answered(Kind::Chat, Generate { model, input, manner }, stream))
}

/// Whether the answer goes on with a message: the model's own, that says something and calls nothing.
fn is_begun(last: &Message) -> bool {
    let says = last.content.texts().any(|text| !text.is_empty());
    last.role == Role::Assistant && says && last.calls.is_empty()
}

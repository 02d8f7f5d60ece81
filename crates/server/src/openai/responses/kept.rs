//! What of a Responses request is about what this server keeps: where its answer goes, and what was
//! said before. Where nothing is kept, these members are left to be refused.

use serde_json::{Map, Value, json};

use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Notes, text, wrong};
use crate::state::{Keep, with_ids};

/// What was said before, as items, and how the answer is kept.
///
/// # Errors
/// 400 for what is not there, or is asked together and cannot be; 404 for a conversation.
pub fn read(
    fields: &mut Fields,
    limits: &Limits,
    notes: &Notes,
) -> Result<(Vec<Value>, Option<Keep>), ApiError> {
    let Some(stored) = notes.stored().cloned() else { return Ok((Vec::new(), None)) };
    let previous = fields.text("previous_response_id")?;
    let conversation = conversation(fields)?;
    let background = fields.flag("background")?.unwrap_or(false);
    let store = fields.flag("store")?.unwrap_or(true);
    let streams = fields.get("stream").is_some_and(|value| *value == true);
    if background && !store {
        let message = "background: an answer that is not stored cannot be asked for later";
        return Err(ApiError::bad("background", message));
    }
    if background && streams {
        let message = "background with stream is not supported by this server: ask without stream";
        return Err(ApiError::unsupported("background", message));
    }
    let (state, owner, most) = (&stored.state, stored.owner, limits.body_bytes);
    let before = match (&previous, &conversation) {
        (Some(_), Some(_)) => {
            let message = "previous_response_id and conversation: one of them at most";
            return Err(ApiError::bad("previous_response_id", message));
        }
        (Some(id), None) => state.said_before(owner, id, most)?,
        (None, Some(id)) => state.said_in(owner, id, most)?,
        (None, None) => Vec::new(),
    };
    if !store && conversation.is_none() {
        return Ok((before, None));
    }
    let input = with_ids(fields.get("input").cloned().unwrap_or_default(), state);
    let keep = Keep { stored, input, previous, conversation, background, store };
    Ok((before, Some(keep)))
}

/// The id of a conversation: as it is, or in an object.
fn conversation(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let path = "conversation";
    match fields.take(path) {
        None => Ok(None),
        Some(Value::String(id)) => Ok(Some(id)),
        Some(mut object @ Value::Object(_)) => {
            text(object["id"].take(), "conversation.id").map(Some)
        }
        Some(other) => Err(wrong(path, "an id, or an object with one", &other)),
    }
}

/// What the answer repeats of it.
pub fn echo(echo: &mut Map<String, Value>, keep: Option<&Keep>) {
    let Some(keep) = keep else { return };
    echo.insert("previous_response_id".into(), json!(keep.previous));
    echo.insert("store".into(), keep.store.into());
    if let Some(id) = &keep.conversation {
        echo.insert("conversation".into(), json!({ "id": id }));
    }
}

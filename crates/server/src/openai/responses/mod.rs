//! OpenAI's Responses. Without state what a request says is all that an answer comes from.

mod catalogue;
mod input;
mod items;
mod kept;
mod members;
mod request;
mod stored;
mod writer;

use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::ask::{Ask, Dialect, MakeWriter, WriteCount};
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Notes};
use catalogue::Catalogue;
pub use request::metadata;
pub use stored::{cancel, input_items, one, remove};
use writer::Answer;

/// OpenAI's, with this API's name for what is said.
pub const DIALECT: Dialect = Dialect { error: error_body };

fn error_body(error: &ApiError) -> Value {
    let mut body = super::error_body(error);
    // (A member `messages` is refused as unsupported: it is named as it was sent.)
    if error.param.as_deref() == Some("messages") && error.code != Some("unsupported") {
        body["error"]["param"] = "input".into();
    }
    body
}

/// Reads a request for a response.
///
/// # Errors
/// 400 naming the member at fault.
pub fn read(fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    Ok(asked(request::read(fields, limits, notes)?))
}

/// Reads a request for the summary of a conversation, as one item to go on from.
///
/// # Errors
/// 400 naming the member at fault.
pub fn compact(fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let read = request::read(fields, limits, notes)?;
    if read.style.keep.as_ref().is_some_and(|keep| keep.background) {
        let message = "background: a summary is made while its client waits";
        return Err(ApiError::unsupported("background", message));
    }
    Ok(asked(read.compacted()))
}

fn asked(asked: request::Asked) -> Ask {
    let style = asked.style;
    let writer: MakeWriter = Box::new(move |head| Box::new(Answer::new(head, style)));
    Ask::Generate { ask: Box::new(asked.ask), stream: asked.delivery.stream, writer }
}

/// Reads a request for the number of tokens that a response would come from.
///
/// # Errors
/// 400 naming the member at fault.
pub fn count(fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let asked = request::read(fields, limits, notes)?;
    let write: WriteCount = Box::new(|tokens, warnings| {
        let mut told = json!({ "object": "response.input_tokens", "input_tokens": tokens });
        if !warnings.is_empty() {
            told["warnings"] = json!(warnings);
        }
        told
    });
    Ok(Ask::Count { ask: Box::new(asked.ask), write })
}

/// Whether items are such as a request could have.
///
/// # Errors
/// 400 naming the first that is wrong.
pub fn check_items(items: Value, limits: &Limits, notes: &mut Notes) -> Result<(), ApiError> {
    items::read((Vec::new(), items), &mut Catalogue::default(), limits, notes).map(drop)
}

/// GET of all, which only clients ask for that would talk over a WebSocket: they go on with POST when
/// they hear so at once.
pub async fn socket(headers: HeaderMap) -> Response {
    let wanted = headers.get(UPGRADE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !wanted.to_ascii_lowercase().contains("websocket") {
        let message = "this path does not take GET";
        return ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).into_response();
    }
    let message = "this server speaks no WebSocket here: POST the request";
    let error = ApiError {
        code: Some("upgrade_required"),
        ..ApiError::new(StatusCode::UPGRADE_REQUIRED, message)
    };
    let mut response = error.into_response();
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static("HTTP/1.1"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response
}

#[cfg(test)]
mod tests;

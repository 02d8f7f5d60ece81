//! Anthropic's dialect: messages, whole or as events, the tokens of their prompts, and the list of
//! models. docs/anthropic.md says of every member what becomes of it.

mod answer;
pub mod batches;
mod blocks;
pub mod messages;
pub mod models;
#[cfg(test)]
mod tests;
mod tools;

use axum::http::HeaderMap;
use serde_json::{Value, json};

use crate::ask::Dialect;
use crate::error::ApiError;

/// What its clients look for in errors.
pub const DIALECT: Dialect = Dialect { error: error_body };

/// Whether a client speaks it, where several dialects share a path.
pub fn speaks(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

/// The object that tells an error, as a body and as an event.
fn error_body(error: &ApiError) -> Value {
    let kind = match error.status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    };
    let message = match error.overflow {
        // The words and numbers that agents look for before they summarise.
        Some((tokens, most)) => {
            let most = most.min(tokens.saturating_sub(1)); // (one is left for the answer)
            format!("prompt is too long: {tokens} tokens > {most} maximum: {}", error.told())
        }
        None => error.told(),
    };
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}

//! The OpenAI dialect: chat and text completion, whole or streamed, embeddings, and the list of
//! models; beside it the rerank calls of Cohere and Jina.

pub(crate) mod answer;
pub mod batches;
pub mod chat;
pub mod completion;
pub(crate) mod constraint;
pub mod conversations;
pub mod embedding;
pub mod files;
pub mod leases;
pub mod models;
#[cfg(test)]
pub(crate) mod page;
pub(crate) mod parameters;
pub mod rerank;
pub mod responses;
pub(crate) mod samplers;
pub(crate) mod thinking;
pub(crate) mod tools;

use serde_json::{Value, json};

use crate::ask::Dialect;
use crate::error::ApiError;

/// What its clients look for in errors.
pub const DIALECT: Dialect = Dialect { error: error_body };

/// The `error` object.
fn error_body(error: &ApiError) -> Value {
    let kind = match error.status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "server_error",
    };
    let (message, param) = (error.told(), error.told_param());
    json!({ "error": { "message": message, "type": kind, "param": param, "code": error.code } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    #[test]
    fn every_status_has_its_type() {
        for (status, kind) in [
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (403, "permission_error"),
            (404, "not_found_error"),
            (408, "invalid_request_error"),
            (429, "rate_limit_error"),
            (500, "server_error"),
            (503, "overloaded_error"),
            (504, "server_error"),
        ] {
            let error = ApiError::new(StatusCode::from_u16(status).unwrap(), "m");
            let body = error_body(&ApiError { param: Some("p".into()), code: Some("c"), ..error });
            let told = json!({ "message": "m", "type": kind, "param": "p", "code": "c" });
            assert_eq!(body, json!({ "error": told }), "{status}");
        }
    }
}

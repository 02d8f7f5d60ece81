//! llama.cpp's dialect: the routes of its own server that are no other API's. docs/llamacpp.md says of every
//! member what becomes of it.
//!
//! * **Asking.** `completion` and `infill` read into an `Ask::Generate`, `embedding` and `rerank` into numbers,
//!   `tokenize`, `detokenize` and `apply-template` into an `Ask::Look`, which needs a model's vocabulary or
//!   template and no step of it.
//! * **Answers.** One object, several prompts or choices a list of them; a stream is server-sent events whose
//!   last one of each choice has `stop` true and all that is told of it ([`answer`]).
//! * **Errors** have llama.cpp's types and its number as `code`, and `param` as elsewhere here.
//! * **State.** `props` and `slots` tell what `Residents` and the engines' counters know. There are no slots
//!   here: any sequence has any place, and what one has computed others read.

mod answer;
pub mod completion;
mod content;
pub mod infill;
pub mod numbers;
mod options;
#[cfg(test)]
mod page;
mod settings;
pub mod state;
pub mod tokens;

pub use content::MARK;

use serde_json::{Value, json};

use crate::ask::Dialect;
use crate::error::ApiError;

/// What its clients look for in errors.
pub const DIALECT: Dialect = Dialect { error: error_body };

/// The `error` object.
fn error_body(error: &ApiError) -> Value {
    let kind = match (error.status.as_u16(), error.code) {
        (401, _) => "authentication_error",
        (403, _) => "permission_error",
        (404, _) => "not_found_error",
        (429, _) => "rate_limit_error",
        (501, _) | (_, Some("unsupported")) => "not_supported_error",
        (503, _) => "unavailable_error",
        (_, Some("context_length_exceeded")) => "exceed_context_size_error",
        (400..=499, _) => "invalid_request_error",
        _ => "server_error",
    };
    let (message, param) = (error.told(), error.told_param());
    let code = error.status.as_u16();
    let mut body = json!({ "code": code, "message": message, "type": kind, "param": param });
    if let Some((tokens, context)) = error.overflow {
        (body["n_prompt_tokens"], body["n_ctx"]) = (tokens.into(), context.into());
    }
    json!({ "error": body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_their_types_and_numbers() {
        let long = ApiError::context_length(9, 8, "prompt");
        let body = error_body(&long);
        assert_eq!(body["error"]["type"], "exceed_context_size_error");
        assert_eq!(body["error"]["code"], 400);
        assert_eq!(
            (&body["error"]["n_prompt_tokens"], &body["error"]["n_ctx"]),
            (&json!(9), &json!(8))
        );
        let body = error_body(&ApiError::unsupported("lora", "no adapters"));
        assert_eq!(
            (&body["error"]["type"], &body["error"]["param"]),
            (&json!("not_supported_error"), &json!("lora"))
        );
        assert_eq!(error_body(&ApiError::shutting_down())["error"]["type"], "unavailable_error");
    }
}

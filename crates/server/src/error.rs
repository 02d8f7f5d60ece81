//! What a client is told when a request is not answered. Each dialect writes it in its own form.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::{CONNECTION, HeaderValue, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use tokenmill_chat::{Unheld, Why};
use tokenmill_engine::{Refusal, RequestError};

use crate::ask::Dialect;

/// Characters of a message and of a field's name that a client is told: no error may give back what
/// a long request says, wherever it is quoted.
const MOST_MESSAGE: usize = 600;
const MOST_PARAM: usize = 120;

/// The beginning of a text, without characters that could not be shown.
fn cut(text: &str, most: usize) -> String {
    let shown = |c: &char| !c.is_control() || *c == '\n';
    let mut cut: String = text.chars().filter(shown).take(most).collect();
    if text.chars().filter(shown).nth(most).is_some() {
        cut.push('…');
    }
    cut
}

/// A refusal or a failure as HTTP tells it. Bodies never hold paths, addresses or panic texts:
/// details that might go to the log.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// What failed and the numbers, for a person.
    pub message: String,
    /// The field at fault, such as `messages[2].content`.
    pub param: Option<String>,
    /// Stable word for programs.
    pub code: Option<&'static str>,
    /// Seconds after which another try makes sense.
    pub retry_after_s: Option<u32>,
    /// Tokens of a prompt that does not fit (at least), and of the context.
    pub overflow: Option<(usize, usize)>,
}

impl ApiError {
    /// An error of that status with nothing but a message.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let (param, code, retry_after_s, overflow) = (None, None, None, None);
        Self { status, message: message.into(), param, code, retry_after_s, overflow }
    }

    /// 400: the value of a field is wrong.
    pub fn bad(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = Some(param.into());
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// 400: the field is known, what it asks for is not built.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Some("unsupported"), ..Self::bad(param, message) }
    }

    /// 500 without a word on the cause, which belongs in the log.
    pub fn internal() -> Self {
        let message = "the server failed on this request; its log has the details";
        Self {
            code: Some("internal_error"),
            ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
        }
    }

    /// 503: the server is draining.
    pub fn shutting_down() -> Self {
        let message = "the server is shutting down";
        Self {
            code: Some("shutting_down"),
            retry_after_s: Some(5),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }

    /// 429: more work than the server takes at once.
    pub fn overloaded(message: impl Into<String>) -> Self {
        Self {
            code: Some("queue_full"),
            retry_after_s: Some(1),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, message)
        }
    }

    /// Prompt longer than the context.
    pub fn context_length(prompt_tokens: usize, limit: u32, param: &str) -> Self {
        let message = format!(
            "this model's maximum context length is {limit} tokens, of which at least one must be \
             left for the answer; the prompt has {prompt_tokens} tokens"
        );
        Self { overflow: Some((prompt_tokens, limit as usize)), ..Self::too_long(param, message) }
    }

    /// 400: a prompt that is longer than the context, in words.
    pub fn too_long(param: &str, message: String) -> Self {
        Self { code: Some("context_length_exceeded"), ..Self::bad(param, message) }
    }

    /// The message as a client is told it.
    pub fn told(&self) -> String {
        cut(&self.message, MOST_MESSAGE)
    }

    /// The field at fault as a client is told it.
    pub fn told_param(&self) -> Option<String> {
        self.param.as_deref().map(|param| cut(param, MOST_PARAM))
    }
}

/// A response whose body is still to be written, in the dialect of its route: the error goes with
/// it.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// Writes the body of an error's response; any other stays as it is.
pub fn write_body(response: Response, dialect: &Dialect) -> Response {
    let (mut parts, body) = response.into_parts();
    let Some(error) = parts.extensions.remove::<ApiError>() else {
        return Response::from_parts(parts, body);
    };
    let written = Json((dialect.error)(&error)).into_response();
    parts.headers.extend(written.headers().clone());
    Response::from_parts(parts, written.into_body())
}

impl From<Unheld> for ApiError {
    fn from(Unheld { why, param, message }: Unheld) -> Self {
        let code = match why {
            Why::Bad => None,
            Why::Unsupported => Some("unsupported"),
            Why::Constraint => Some("invalid_constraint"),
        };
        Self { code, ..Self::bad(param, message) }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::QueueFull { .. } => Self::overloaded(message),
            Refusal::LongWait { wait, limit } => {
                let after = wait.saturating_sub(limit).as_secs().saturating_add(1);
                let retry_after_s = Some(u32::try_from(after).unwrap_or(u32::MAX));
                Self { retry_after_s, ..Self::overloaded(message) }
            }
            Refusal::ShuttingDown => Self::shutting_down(),
            Refusal::Stuck { .. } => Self {
                code: Some("device_stuck"),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
            },
            Refusal::ContextLength { prompt_tokens, limit, .. } => {
                let overflow = Some((prompt_tokens as usize, limit as usize));
                Self { overflow, ..Self::too_long("prompt", message) }
            }
            Refusal::BadParameter { name, .. } => Self::bad(name, message),
            Refusal::EmptyPrompt | Refusal::BadToken { .. } => Self::bad("prompt", message),
            _ => Self::new(StatusCode::BAD_REQUEST, message),
        }
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::NotANumber { index } => Self {
                code: Some("not_a_number"),
                message: format!("the model's output was not a number at token {index}"),
                ..Self::internal()
            },
            RequestError::Constraint { .. } => Self {
                code: Some("constraint_unsatisfied"),
                ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
            },
            RequestError::ShutDown => Self {
                message: "the server shut down before the answer was complete".into(),
                ..Self::shutting_down()
            },
            RequestError::TimedOut { .. } => Self {
                code: Some("timeout"),
                param: Some("timeout".into()),
                ..Self::new(StatusCode::GATEWAY_TIMEOUT, error.to_string())
            },
            RequestError::Unread { .. } => Self {
                code: Some("slow_reader"),
                ..Self::new(StatusCode::REQUEST_TIMEOUT, error.to_string())
            },
            RequestError::Device(reason) => {
                tracing::error!(%reason, "the device failed on a request");
                Self {
                    code: Some("device_error"),
                    message: "the device failed".into(),
                    ..Self::internal()
                }
            }
            other => {
                tracing::error!(error = %other, "a request failed");
                Self::internal()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_kind_has_its_status_and_code() {
        let cases: &[(ApiError, u16, Option<&str>)] = &[
            (Refusal::EmptyPrompt.into(), 400, None),
            (Refusal::BadToken { token: 9, vocab: 4 }.into(), 400, None),
            (Refusal::Stuck { seconds: 61 }.into(), 503, Some("device_stuck")),
            (RequestError::TimedOut { limit_s: 0.5 }.into(), 504, Some("timeout")),
            (RequestError::Unread { limit_bytes: 9 }.into(), 408, Some("slow_reader")),
            (
                Refusal::ContextLength { prompt_tokens: 9, max_tokens: 1, limit: 8 }.into(),
                400,
                Some("context_length_exceeded"),
            ),
            (Refusal::QueueFull { waiting: 3, limit: 3 }.into(), 429, Some("queue_full")),
            (
                Refusal::LongWait { wait: Duration::from_secs(9), limit: Duration::from_secs(2) }
                    .into(),
                429,
                Some("queue_full"),
            ),
            (Refusal::ShuttingDown.into(), 503, Some("shutting_down")),
            (RequestError::NotANumber { index: 2 }.into(), 500, Some("not_a_number")),
            (RequestError::ShutDown.into(), 503, Some("shutting_down")),
        ];
        for (error, status, code) in cases {
            assert_eq!((error.status.as_u16(), error.code), (*status, *code), "{error:?}");
        }
    }

    #[test]
    fn what_only_the_log_may_know_stays_out_of_the_body() {
        let secret = "panicked at /root/x.rs:7: 0xdeadbeef";
        for error in [RequestError::Internal(secret.into()), RequestError::Device(secret.into())] {
            let told = ApiError::from(error).told();
            assert!(!told.contains("panicked") && !told.contains("0x"), "{told}");
        }
    }
    #[test]
    fn nothing_long_is_given_back() {
        let long = "\u{200b}\u{0}\\é".repeat(1 << 20);
        let error = ApiError::bad(&*long, &*long);
        let told = error.told().len() + error.told_param().map_or(0, |p| p.len());
        assert!(told < 4096, "{told}");
        assert_eq!(ApiError::bad("a\u{1b}", "b\nc").told(), "b\nc");
    }
}

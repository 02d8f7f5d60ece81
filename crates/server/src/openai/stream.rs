//! Answers as server-sent events. A stream that was answered in full ends with `[DONE]`; one that
//! failed ends with an error event and without it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::Value;
use tokenmill_engine::Event;
use tokio::time::sleep;

use super::answer::Answer;
use crate::error::ApiError;
use crate::generation::Generation;
use crate::guests::Guest;

struct Stream {
    generation: Generation,
    answer: Answer,
    ping: Duration,
    guest: Option<Arc<Guest>>,
    opened: bool,
}

/// The response; dropping its body cancels the generation.
pub fn response(
    generation: Generation,
    answer: Answer,
    ping: Duration,
    guest: Option<Arc<Guest>>,
) -> Response {
    let stream = Stream { generation, answer, ping, guest, opened: false };
    let chunks = unfold(Some(stream), |stream| async move {
        let (text, stream) = stream?.next().await;
        Some((Ok::<_, Infallible>(Bytes::from(text)), stream))
    });
    let headers = [
        (CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(chunks)).into_response()
}

impl Stream {
    /// The next events, and the stream unless they were the last. With the last ones the generation
    /// is gone: its place is free before the client reads them.
    async fn next(mut self) -> (String, Option<Self>) {
        let mut out = String::new();
        if !self.opened {
            self.opened = true;
            self.answer.opening().iter().for_each(|chunk| push(&mut out, chunk));
        }
        while out.is_empty() {
            let knocked = async {
                match &self.guest {
                    Some(guest) => guest.knocked().await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                biased;
                event = self.generation.next() => event,
                () = sleep(self.ping) => return (": ping\n\n".to_owned(), Some(self)),
                () = knocked => return (": ping\n\n".to_owned(), Some(self)),
            };
            match event {
                Ok(Some((prompt, event))) => self.event(&mut out, prompt, event),
                Ok(None) => {
                    if let Some(chunk) = self.answer.closing(self.generation.usage()) {
                        push(&mut out, &chunk);
                    }
                    out.push_str("data: [DONE]\n\n");
                    return (out, None);
                }
                Err(error) => {
                    push(&mut out, &failure(&error));
                    return (out, None);
                }
            }
        }
        (out, Some(self))
    }

    fn event(&mut self, out: &mut String, prompt: usize, event: Event) {
        match event {
            Event::Text { choice, text, tokens } => {
                let index = self.answer.index(prompt, choice);
                if let Some(chunk) = self.answer.more(index, &text, &tokens) {
                    push(out, &chunk);
                }
            }
            Event::Done { choice, reason } => {
                push(out, &self.answer.done(self.answer.index(prompt, choice), &reason));
            }
            Event::Prefix(found) => {
                self.answer.diagnosed(prompt, found.as_ref());
                push(out, &self.answer.diagnosis());
            }
            Event::Rows(_) | Event::Finished(_) | Event::Failed(_) => {}
        }
    }
}

/// The error as clients of this dialect look for it in a stream.
fn failure(error: &ApiError) -> Value {
    error.body()
}

fn push(out: &mut String, chunk: &Value) {
    // JSON escapes line breaks: an event is one line.
    out.push_str("data: ");
    out.push_str(&chunk.to_string());
    out.push_str("\n\n");
}

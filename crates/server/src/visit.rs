//! The access log: one line a request, when its answer has ended, without a word of what was asked
//! or answered.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::body::Body;
use axum::http::Request;
use tokenmill_engine::Usage;

use crate::audit::{Audit, Line, route_of};
use crate::fields::shown;

/// What programs ask again and again: told with `-v` only, unless it fails.
const POLLED: [&str; 6] = ["/health", "/livez", "/readyz", "/metrics", "/v1/models", "/requests"];

/// A request as the log tells it; written when the last who holds it is gone.
pub struct Visit {
    method: String,
    path: String,
    /// Its route; none where there is none.
    route: Option<String>,
    /// The name of its key.
    key: Option<String>,
    came: SystemTime,
    started: Instant,
    /// It has a line in the access log.
    is_logged: bool,
    audit: Option<Arc<Audit>>,
    told: Mutex<Told>,
}

/// What becomes known on the way.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Told {
    /// Status; none when the client went away before there was one.
    pub status: Option<u16>,
    /// The model's own name.
    pub model: Option<String>,
    /// Which key, or a digest of the client's word for who asks; never either itself.
    pub account: Option<String>,
    /// Tokens of the prompts.
    pub prompt_tokens: Option<u32>,
    /// Tokens of them found in the cache.
    pub cached_tokens: Option<u32>,
    /// Tokens of the answers.
    pub completion_tokens: Option<u32>,
    /// From submission to the first token.
    pub first_token: Option<Duration>,
    /// How it ended, where the status does not tell.
    pub end: Option<&'static str>,
}

impl Visit {
    /// Begins with a request, of which the logs tell: the access log, the audit log.
    pub fn new(
        request: &Request<Body>,
        key: Option<String>,
        (is_logged, audit): (bool, Option<Arc<Audit>>),
    ) -> Arc<Self> {
        let account = key.clone();
        Arc::new(Self {
            method: shown(request.method().as_str()),
            // Without the query, where some put secrets.
            path: shown(request.uri().path()),
            route: route_of(request).map(|path| path.as_str().to_owned()),
            key,
            is_logged,
            audit,
            came: SystemTime::now(),
            started: Instant::now(),
            told: Mutex::new(Told { account, ..Told::default() }),
        })
    }

    /// That of a request, where there is a log.
    pub fn of(request: &Request<Body>) -> Option<Arc<Self>> {
        request.extensions().get::<Arc<Self>>().cloned()
    }

    /// What is known so far.
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tokens counted.
    pub fn used(&self, usage: Usage) {
        let mut told = self.told();
        told.prompt_tokens = Some(usage.prompt_tokens);
        told.cached_tokens = Some(usage.cached_tokens);
        told.completion_tokens = Some(usage.completion_tokens);
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let seconds = millis(self.started.elapsed());
        let told = self.told().clone();
        if let Some(audit) = &self.audit {
            audit.note(&Line {
                came: self.came,
                method: &self.method,
                route: self.route.as_deref(),
                key: self.key.as_deref(),
                end: told.end.unwrap_or_else(|| ending(told.status)),
                told: &told,
                seconds,
            });
        }
        if !self.is_logged {
            return;
        }
        let Told { status, model, account, first_token, end, .. } = told;
        let Told { prompt_tokens, cached_tokens, completion_tokens, .. } = told;
        let (method, path) = (self.method.as_str(), self.path.as_str());
        let (model, account) = (model.as_deref(), account.as_deref());
        let first_token_s = first_token.map(millis);
        let end = end.unwrap_or_else(|| ending(status));
        macro_rules! line {
            ($level:expr) => {
                tracing::event!(
                    $level,
                    method,
                    path,
                    status,
                    model,
                    account,
                    prompt_tokens,
                    cached_tokens,
                    completion_tokens,
                    first_token_s,
                    seconds,
                    end,
                    "request"
                )
            };
        }
        match POLLED.contains(&path) && status == Some(200) {
            true => line!(tracing::Level::DEBUG),
            false => line!(tracing::Level::INFO),
        }
    }
}

/// How a request ended of which nothing but the status is known.
fn ending(status: Option<u16>) -> &'static str {
    match status {
        None => "client gone",
        Some(..400) => "finished",
        Some(400..500) => "refused",
        Some(500..) => "failed",
    }
}

/// Seconds, to the millisecond.
fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_tells_how_it_ended() {
        let cases = [
            (None, "client gone"),
            (Some(200), "finished"),
            (Some(204), "finished"),
            (Some(404), "refused"),
            (Some(429), "refused"),
            (Some(503), "failed"),
        ];
        for (status, expect) in cases {
            assert_eq!(ending(status), expect, "{status:?}");
        }
    }

    #[test]
    fn a_path_is_told_without_its_query() {
        let request = Request::get("/v1/models?key=secret").body(Body::empty()).unwrap();
        let visit = Visit::new(&request, Some("key 2".into()), (true, None));
        assert_eq!((visit.method.as_str(), visit.path.as_str()), ("GET", "/v1/models"));
        assert_eq!(visit.told().account.as_deref(), Some("key 2"));
    }
}

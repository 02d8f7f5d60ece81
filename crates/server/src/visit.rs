//! The access log: one line a request, when its answer has ended, without a word of what was asked
//! or answered.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use axum::body::Body;
use axum::http::Request;
use serde_json::Value;
use tokenmill_engine::{Timekeeper, Usage};

use crate::audit::{Audit, Line, route_of};
use crate::fields::shown;
use crate::requests::{RequestId, Seen};
use crate::shares::Party;
use crate::traces::Traces;

/// What programs ask again and again: told with `-v` only, unless it fails.
const POLLED: [&str; 6] = ["/health", "/livez", "/readyz", "/metrics", "/v1/models", "/requests"];

/// A request as the log tells it; written when the last who holds it is gone.
pub struct Visit {
    /// What is known of it, also when it has ended.
    pub seen: Arc<Seen>,
    /// Its route; none where there is none.
    route: Option<String>,
    /// It has a line in the access log.
    is_logged: bool,
    audit: Option<Arc<Audit>>,
    traces: Option<Traces>,
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
    /// From its coming until its body was there, and until the engine had it.
    pub read: Option<Duration>,
    /// See there.
    pub handed: Option<Duration>,
    /// How long it waited for its model.
    pub load: Duration,
    /// The timelines of its first prompts.
    pub prompts: Vec<Arc<Timekeeper>>,
    /// From its coming to the end of its answer.
    pub took: Option<Duration>,
    /// Its body, where a receipt is to be made of it.
    pub asked: Option<Vec<u8>>,
    /// What its answer's bytes depend on.
    pub receipt: Option<Value>,
}

impl Visit {
    /// Begins with a request, of which the logs tell: the access log, the audit log, traces.
    pub fn new(
        request: &Request<Body>,
        (id, party): (RequestId, Party),
        key: Option<String>,
        (is_logged, audit, traces): (bool, Option<Arc<Audit>>, Option<Traces>),
    ) -> Arc<Self> {
        let account = key.clone();
        let seen = Seen {
            id,
            method: shown(request.method().as_str()),
            // Without the query, where some put secrets.
            path: shown(request.uri().path()),
            key,
            party,
            came: SystemTime::now(),
            started: Instant::now(),
            told: Mutex::new(Told { account, ..Told::default() }),
        };
        let route = route_of(request).map(|path| path.as_str().to_owned());
        Arc::new(Self { seen: Arc::new(seen), route, is_logged, audit, traces })
    }

    /// That of a request.
    pub fn of(request: &Request<Body>) -> Option<Arc<Self>> {
        request.extensions().get::<Arc<Self>>().cloned()
    }

    /// What is known so far.
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.seen.told()
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
        let took = self.seen.started.elapsed();
        let seconds = millis(took);
        let told = {
            let mut told = self.told();
            let end = told.end.unwrap_or_else(|| ending(told.status));
            (told.took, told.end, told.asked) = (Some(took), Some(end), None);
            told.clone()
        };
        let end = told.end.unwrap_or_default();
        if let Some(audit) = &self.audit {
            audit.note(&Line {
                came: self.seen.came,
                ticket: self.seen.id.ticket,
                method: &self.seen.method,
                route: self.route.as_deref(),
                key: self.seen.key.as_deref(),
                end,
                told: &told,
                seconds,
            });
        }
        if let Some(traces) = &self.traces {
            traces.tell(&self.seen, self.route.as_deref(), &told);
        }
        if !self.is_logged {
            return;
        }
        let Told { status, model, account, first_token, .. } = told;
        let Told { prompt_tokens, cached_tokens, completion_tokens, .. } = told;
        let (method, path) = (self.seen.method.as_str(), self.seen.path.as_str());
        let id = &*self.seen.id.name;
        let trace = self.seen.id.trace.as_ref().map(|trace| trace.trace.as_str());
        let (model, account) = (model.as_deref(), account.as_deref());
        let first_token_s = first_token.map(millis);
        macro_rules! line {
            ($level:expr) => {
                tracing::event!(
                    $level,
                    id,
                    trace,
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
        let id = RequestId::of(request.headers(), 1);
        let visit = Visit::new(&request, (id, 0), Some("key 2".into()), (true, None, None));
        let seen = &visit.seen;
        assert_eq!((seen.method.as_str(), seen.path.as_str()), ("GET", "/v1/models"));
        assert_eq!(visit.told().account.as_deref(), Some("key 2"));
    }
}

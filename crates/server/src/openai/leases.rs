//! Prompts that stay in the cache: what requests ask for, and the calls that make, list and end
//! such leases without an answer.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request as HttpRequest, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokenmill_engine::{Lease, Leased, LeasesAsk, Request};
use tokio::sync::oneshot;

use super::{chat, completion};
use crate::answering;
use crate::ask::Ask;
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Notes, text};
use crate::keys::account_of;
use crate::shared::Shared;

/// Longest lease.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// A lease that names no time.
const DEFAULT: Duration = Duration::from_secs(5 * 60);
/// For the engine to tell its leases: it answers between two steps.
const PATIENCE: Duration = Duration::from_secs(10);

/// `prompt_cache_retention`, and `cache_control` as Anthropic has it, say how long a prompt stays;
/// `prompt_cache_key` names the lease, so that a later prompt takes its place.
///
/// # Errors
/// 400 for times that are none.
pub fn read(fields: &mut Fields, notes: &mut Notes) -> Result<Option<Lease>, ApiError> {
    let key = fields.text("prompt_cache_key")?;
    let retention = fields.text("prompt_cache_retention")?;
    let kept = match retention.as_deref() {
        // What every prompt has: it stays until others need the memory.
        None | Some("in-memory" | "in_memory") => None,
        Some(time) => Some(ttl(time, "prompt_cache_retention")?),
    };
    let ttl = kept.max(marked(fields, notes)?).or(key.is_some().then_some(DEFAULT));
    let name = key.map_or(0, |key| account_of(key.as_bytes()));
    Ok(ttl.map(|ttl| Lease { ttl, name }))
}

/// The lease, or one of that time where it is longer.
pub fn longer(lease: Option<Lease>, kept: Option<Duration>) -> Option<Lease> {
    let ttl = lease.map(|lease| lease.ttl).max(kept)?;
    Some(Lease { ttl, name: lease.map_or(0, |lease| lease.name) })
}

/// `cache_control` of the request, a message or a part, as Anthropic has it.
///
/// # Errors
/// 400 for another kind of mark, and for a time that is none.
pub fn marked(fields: &mut Fields, notes: &mut Notes) -> Result<Option<Duration>, ApiError> {
    let Some(value) = fields.take("cache_control") else { return Ok(None) };
    let mut fields = Fields::of(value, &fields.path("cache_control"))?;
    let path = fields.path("type");
    if text(fields.require("type")?, &path)? != "ephemeral" {
        return Err(ApiError::bad(&path, format!("{path} must be \"ephemeral\"")));
    }
    let found = fields.text("ttl")?;
    let path = fields.path("ttl");
    fields.finish(&[], notes)?;
    found.map_or(Ok(DEFAULT), |time| ttl(&time, &path)).map(Some)
}

/// A whole number of seconds, minutes or hours, such as 90s, 5m and 24h.
fn ttl(time: &str, path: &str) -> Result<Duration, ApiError> {
    let units = [('s', 1), ('m', 60), ('h', 3600)];
    let found = units.iter().find_map(|(unit, seconds)| {
        let count: u64 = time.strip_suffix(*unit)?.parse().ok()?;
        count.checked_mul(*seconds).map(Duration::from_secs)
    });
    found.filter(|t| !t.is_zero() && *t <= LONGEST).ok_or_else(|| {
        ApiError::bad(path, format!("{path} must be a time such as 5m or 1h, at most 24h"))
    })
}

/// POST /v1/cache/leases: computes the prompt of a chat or completion request, and keeps it.
pub async fn make(State(shared): State<Arc<Shared>>, request: HttpRequest<Body>) -> Response {
    let keep = |request: &mut Request| {
        (request.max_tokens, request.choices, request.held) = (Some(1), 1, None);
        request.lease.get_or_insert(Lease { ttl: DEFAULT, name: 0 });
    };
    let made = answering::compute(&shared, request, read_either, keep).await;
    let told = made.map(|(usage, warnings)| {
        let mut told = json!({
            "object": "cache.lease",
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "leased_tokens": usage.leased_tokens,
        });
        if !warnings.is_empty() {
            told["warnings"] = json!(warnings);
        }
        Json(told)
    });
    told.into_response()
}

fn read_either(fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    match fields.has("messages") {
        true => chat::read(fields, limits, notes),
        false => completion::read(fields, limits, notes),
    }
}

/// GET /v1/cache/leases: those of the caller's key, or all where keys are not told apart.
pub async fn list(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    told(&shared, &headers, LeasesAsk::List).await.unwrap_or_else(IntoResponse::into_response)
}

/// DELETE /v1/cache/leases: ends them, and tells what they were.
pub async fn give_up(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    told(&shared, &headers, LeasesAsk::GiveUp).await.unwrap_or_else(IntoResponse::into_response)
}

async fn told(shared: &Shared, headers: &HeaderMap, ask: LeasesAsk) -> Result<Response, ApiError> {
    let account = shared.gate().keys.caller(headers).account;
    let mut data = Vec::new();
    for model in shared.residents.there() {
        let (sender, receiver) = oneshot::channel();
        let sink = Box::new(move |leases: Vec<Leased>| {
            let _ = sender.send(leases); // the caller may be gone
        });
        model.served.engine.leases(account, ask, sink);
        let found = tokio::time::timeout(PATIENCE, receiver).await;
        let silent = || ApiError {
            retry_after_s: Some(1),
            ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the engine does not answer")
        };
        let found = found.ok().and_then(Result::ok).ok_or_else(silent)?;
        data.extend(found.iter().map(|lease| {
            json!({
                "object": "cache.lease",
                "model": model.served.name(),
                "leased_tokens": lease.tokens,
                "expires_in_s": lease.left.as_secs(),
            })
        }));
    }
    Ok(Json(json!({ "object": "list", "data": data })).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_names() {
        let seconds = Duration::from_secs;
        let name = account_of(b"k");
        let cases = [
            (json!({}), None),
            (json!({ "prompt_cache_retention": "in-memory" }), None),
            (json!({ "prompt_cache_retention": "24h" }), Some((seconds(86_400), 0))),
            (json!({ "prompt_cache_key": "k" }), Some((seconds(300), name))),
            (
                json!({ "prompt_cache_key": "k", "prompt_cache_retention": "90s" }),
                Some((seconds(90), name)),
            ),
            (json!({ "cache_control": { "type": "ephemeral" } }), Some((seconds(300), 0))),
            (
                json!({ "cache_control": { "type": "ephemeral", "ttl": "1h" } }),
                Some((seconds(3600), 0)),
            ),
        ];
        for (body, expect) in cases {
            let mut fields = Fields::of(body.clone(), "").unwrap();
            let found = read(&mut fields, &mut Notes::new(true)).unwrap();
            assert_eq!(found, expect.map(|(ttl, name)| Lease { ttl, name }), "{body}");
        }
    }

    #[test]
    fn the_longest_time_marked_holds() {
        let lease = |seconds, name| Some(Lease { ttl: Duration::from_secs(seconds), name });
        let kept = |seconds| Some(Duration::from_secs(seconds));
        let cases = [
            (None, None, None),
            (None, kept(300), lease(300, 0)),
            (lease(60, 7), None, lease(60, 7)),
            (lease(60, 7), kept(300), lease(300, 7)),
            (lease(600, 7), kept(300), lease(600, 7)),
        ];
        for (given, marked, expect) in cases {
            assert_eq!(longer(given, marked), expect, "{given:?} {marked:?}");
        }
    }

    #[test]
    fn what_is_no_time_is_named() {
        let marked = |ttl: &str| json!({ "cache_control": { "type": "ephemeral", "ttl": ttl } });
        let cases = [
            (json!({ "prompt_cache_retention": "25h" }), "prompt_cache_retention"),
            (json!({ "prompt_cache_retention": "0s" }), "prompt_cache_retention"),
            (json!({ "prompt_cache_retention": "soon" }), "prompt_cache_retention"),
            (
                json!({ "prompt_cache_retention": "99999999999999999999h" }),
                "prompt_cache_retention",
            ),
            (json!({ "prompt_cache_key": 7 }), "prompt_cache_key"),
            (marked("1d"), "cache_control.ttl"),
            (marked("é"), "cache_control.ttl"),
            (json!({ "cache_control": { "type": "permanent" } }), "cache_control.type"),
            (json!({ "cache_control": {} }), "cache_control.type"),
            (json!({ "cache_control": { "type": "ephemeral", "x": 1 } }), "cache_control.x"),
        ];
        for (body, expect) in cases {
            let mut fields = Fields::of(body.clone(), "").unwrap();
            let error = read(&mut fields, &mut Notes::new(true)).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some(expect), "{body}");
        }
    }
}

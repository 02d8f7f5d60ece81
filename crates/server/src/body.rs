//! Reading a request's body: JSON only, within the limits of size and time.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, Request, StatusCode};
use futures_util::StreamExt;

use tokio::sync::OwnedSemaphorePermit;

use crate::error::ApiError;
use crate::shared::Shared;

/// Bodies up to this length are many; of longer ones few are held at once.
const SMALL_BYTES: usize = 1 << 20;

/// A body, and its place among the long ones while it is in memory.
pub struct Received {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Free again when dropped.
    _place: Option<OwnedSemaphorePermit>,
}

/// The whole body.
///
/// # Errors
/// 415 unless it says it is JSON (a browser's form cannot say that), 413 when too long, 408 when it
/// does not come, 400 when it breaks off.
pub async fn read(request: Request<Body>, shared: &Shared) -> Result<Received, ApiError> {
    let limit = shared.config.limits.body_bytes;
    if !is_json(request.headers()) {
        let message = "the content-type must be application/json";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let length = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok());
    let length: usize = length.and_then(|v| v.parse().ok()).unwrap_or(0);
    if length > limit {
        return Err(too_large(limit));
    }
    let all = collect(request.into_body(), length, shared);
    tokio::time::timeout(shared.config.timeouts.body, all).await.unwrap_or_else(|_| {
        let message = "the body did not arrive in time";
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message))
    })
}

async fn collect(body: Body, length: usize, shared: &Shared) -> Result<Received, ApiError> {
    let limit = shared.config.limits.body_bytes;
    let mut place = None;
    let mut bytes = Vec::with_capacity(length.min(SMALL_BYTES));
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let broken = |_| ApiError::new(StatusCode::BAD_REQUEST, "the body broke off");
        let chunk = chunk.map_err(broken)?;
        let wanted = bytes.len() + chunk.len();
        if wanted > limit {
            return Err(too_large(limit));
        }
        if wanted > SMALL_BYTES && place.is_none() {
            place = Arc::clone(&shared.long_bodies).acquire_owned().await.ok();
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Received { bytes, _place: place })
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("the body is longer than {limit} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = value.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_json_is_json() {
        let cases = [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("text/plain", false),
            ("application/json-patch+json", false),
            ("application/x-www-form-urlencoded", false),
            ("text/plain; application/json", false),
            ("", false),
        ];
        for (value, expect) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, value.parse().unwrap());
            assert_eq!(is_json(&headers), expect, "{value}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }
}

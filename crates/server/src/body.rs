//! Reading a request's body: JSON only, within the limits of size and time.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, Request, StatusCode};
use futures_util::StreamExt;
use tokio::time::timeout;

use crate::coding::{Coding, Decoding};
use crate::error::ApiError;
use crate::guests::Guest;
use crate::shared::Shared;
use crate::shares::{Party, Share};
use crate::workshop::Wanted;

/// So much of every body is held beside the memory that is shared among parties.
const FREE_BYTES: usize = 64 << 10;
/// For those who hold memory to give some back before a slow body is given up for it.
const PATIENCE: Duration = Duration::from_millis(250);

/// A body, and its share of the memory for bodies while it is there.
pub struct Received {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Given back when dropped.
    share: Share,
}

impl Received {
    /// One that this server has kept; waits for its share of the memory.
    pub async fn of(bytes: Vec<u8>, shared: &Shared, party: Party) -> Self {
        let mut share = shared.bodies.share(party);
        share.wait(bytes.len().saturating_sub(FREE_BYTES)).await;
        Self { bytes, share }
    }

    /// Its share of the memory, for what was made of it; the bytes are gone.
    pub fn share(self) -> Share {
        self.share
    }
}

/// The whole body, decompressed.
///
/// # Errors
/// 415 unless it says it is JSON (a browser's form cannot say that) in a coding that is known, 413
/// when too long, 408 when it does not come, 400 when it breaks off, 503 when it comes slowly and
/// others need its place.
pub async fn read(
    request: Request<Body>,
    shared: &Shared,
    party: Party,
) -> Result<Received, ApiError> {
    let limit = shared.config.limits.body_bytes;
    if !is_json(request.headers()) && !needs_no_type(&request) {
        let message = "the content-type must be application/json";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let coding = Coding::of(request.headers())?;
    let length = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok());
    let length: usize = length.and_then(|v| v.parse().ok()).unwrap_or(0);
    if length > limit {
        return Err(too_large(limit));
    }
    // How long a compressed one will be nobody says.
    let length = if coding.is_some() { 0 } else { length };
    let guest = Guest::of(&request);
    let coming = collect(request.into_body(), length, shared, party, guest.as_deref());
    let sent_away = async {
        match &guest {
            Some(guest) => guest.sent_away().await,
            None => std::future::pending().await,
        }
    };
    let read = tokio::select! {
        read = timeout(shared.config.timeouts.body, coming) => read,
        () = sent_away => {
            let message = "the body stopped coming for a while, and others need its place: send it again";
            return Err(ApiError {
                retry_after_s: Some(1),
                ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
            });
        }
    };
    if let Some(guest) = &guest {
        guest.is_whole();
    }
    let received = read.unwrap_or_else(|_| {
        let message = "the body did not arrive in time";
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message))
    })?;
    guest.iter().for_each(|guest| guest.is_read());
    match coding {
        None => Ok(received),
        Some(coding) => decoded(received, coding, shared, party).await,
    }
}

/// A body decompressed, where other work that computes is done. (While that lasts it is in memory
/// twice, and claimed once.)
async fn decoded(
    received: Received,
    coding: Coding,
    shared: &Shared,
    party: Party,
) -> Result<Received, ApiError> {
    let limit = shared.config.limits.body_bytes;
    let Received { bytes, mut share } = received;
    let (length, free) = (bytes.len(), FREE_BYTES.min(limit));
    let begin = move |_: Wanted<'_>| {
        let mut decoding = Decoding::new(coding, bytes, limit)?;
        let ended = decoding.go_on(free)?;
        Ok((decoding, ended))
    };
    let (mut decoding, mut ended) = shared.workshop.run(party, length, begin).await?;
    if !ended && free < limit {
        if length <= FREE_BYTES {
            share.wait(limit - FREE_BYTES).await;
        }
        let rest = move |_: Wanted<'_>| {
            let ended = decoding.go_on(limit)?;
            Ok((decoding, ended))
        };
        (decoding, ended) = shared.workshop.run(party, length, rest).await?;
    }
    match ended {
        true => Ok(Received { bytes: decoding.bytes, share }),
        false => Err(too_large(limit)),
    }
}

/// The body of a request that says everything by its path, if it has one: within the limits, and not
/// looked into.
///
/// # Errors
/// As [`read`], but for what it says it is.
pub async fn unread(request: Request<Body>, shared: &Shared) -> Result<(), ApiError> {
    let party = shared.party(&request);
    let coming = collect(request.into_body(), 0, shared, party, None);
    let read = timeout(shared.config.timeouts.body, coming).await;
    read.unwrap_or_else(|_| {
        let message = "the body did not arrive in time";
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message))
    })?;
    Ok(())
}

async fn collect(
    body: Body,
    length: usize,
    shared: &Shared,
    party: Party,
    guest: Option<&Guest>,
) -> Result<Received, ApiError> {
    let limit = shared.config.limits.body_bytes;
    let mut share = shared.bodies.share(party);
    let mut bytes = Vec::with_capacity(length.min(FREE_BYTES));
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let broken = |_| ApiError::new(StatusCode::BAD_REQUEST, "the body broke off");
        let chunk = chunk.map_err(broken)?;
        let wanted = bytes.len() + chunk.len();
        if wanted > limit {
            return Err(too_large(limit));
        }
        let tell = |blocked| guest.iter().for_each(|guest| guest.sent(wanted, blocked));
        if wanted > FREE_BYTES && bytes.len() <= FREE_BYTES {
            // All of it at once: bodies that come together must not wait for each other's ends.
            let rest = if length > 0 { length } else { limit } - FREE_BYTES;
            tell(true);
            while timeout(PATIENCE, share.wait(rest)).await.is_err() {
                shared.guests.give_up_slow_bodies(guest.map_or(0, Guest::party));
            }
        }
        bytes.extend_from_slice(&chunk);
        tell(false);
    }
    Ok(Received { bytes, share })
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("the body is longer than {limit} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}

/// Whether a body is JSON whatever it says: Ollama's clients say nothing, or what their tools say. Not
/// that of a page in a browser, whose forms can say anything but JSON.
fn needs_no_type(request: &Request<Body>) -> bool {
    let is_page = |headers: &HeaderMap| {
        headers.contains_key("origin") || headers.contains_key("sec-fetch-site")
    };
    request.uri().path().starts_with("/api/") && !is_page(request.headers())
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

//! Who may ask: keys, and the checks that keep web pages from using a server on the same machine.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{HOST, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::shared::Shared;

/// Asks for a key where keys are set.
pub async fn key(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    if shared.keys.admit(request.headers()) {
        return next.run(request).await;
    }
    let message = "an API key is needed, as Authorization: Bearer or x-api-key";
    let error = ApiError {
        code: Some("invalid_api_key"),
        ..ApiError::new(StatusCode::UNAUTHORIZED, message)
    };
    let mut response = error.into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Refuses pages of other sites, and names that only a rebound DNS entry would lead here.
pub async fn site(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let answer = match check_site(&shared.config, request.headers(), request.uri()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    shared.responses.sent(answer.status().as_u16());
    answer
}

fn check_site(config: &ServerConfig, headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next().and_then(|h| h.to_str().ok()).unwrap_or_default();
    if hosts.next().is_some() {
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "two Host headers"));
    }
    if config.bind.ip().is_loopback() {
        let asked = [Some(host), uri.authority().map(|a| a.as_str())];
        if !asked.into_iter().flatten().all(|host| is_local(host, &config.allowed_hosts)) {
            let message = "this server answers to localhost only; allow other host names by name";
            return Err(ApiError::new(StatusCode::FORBIDDEN, message));
        }
    }
    for origin in headers.get_all(ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        let site = origin.split_once("://").map_or("", |(_, site)| site);
        let own = !host.is_empty() && site.eq_ignore_ascii_case(host);
        if !own && !config.allowed_origins.iter().any(|o| o.eq_ignore_ascii_case(origin)) {
            let message = "pages of this origin may not use the server; allow the origin by name";
            return Err(ApiError::new(StatusCode::FORBIDDEN, message));
        }
    }
    Ok(())
}

/// Whether a `Host` (with or without port) can only mean this machine, or is allowed by name.
fn is_local(host: &str, allowed: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        || allowed.iter().any(|a| a.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let allowed = ["box.lan".to_string()];
        let cases = [
            ("localhost", true),
            ("LOCALHOST:8080", true),
            ("127.0.0.1:8080", true),
            ("127.9.9.9", true),
            ("[::1]:8080", true),
            ("box.lan:1", true),
            ("", false),
            ("evil.example", false),
            ("localhost.evil.example:8080", false),
            ("127.0.0.1.evil.example", false),
            ("evil.example#localhost", false),
            ("0.0.0.0:8080", false),
            ("192.168.1.2", false),
            ("[::ffff:127.0.0.1]", false),
            ("[localhost", false),
        ];
        for (host, expect) in cases {
            assert_eq!(is_local(host, &allowed), expect, "{host}");
        }
    }

    #[test]
    fn origins() {
        let mut config = ServerConfig::new("127.0.0.1:0".parse().unwrap());
        config.allowed_origins.push("https://chat.example".into());
        let cases = [
            ("http://localhost:8080", true),
            ("https://chat.example", true),
            ("https://evil.example", false),
            ("null", false),
            ("http://localhost:3000", false),
            ("http://localhost:8080.evil.example", false),
        ];
        for (origin, expect) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("localhost:8080"));
            headers.insert(ORIGIN, origin.parse().unwrap());
            let uri = Uri::from_static("/v1/models");
            assert_eq!(check_site(&config, &headers, &uri).is_ok(), expect, "{origin}");
        }
    }

    #[test]
    fn an_absolute_uri_does_not_get_around_the_host() {
        let config = ServerConfig::new("127.0.0.1:0".parse().unwrap());
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("localhost"));
        let uri = Uri::from_static("http://evil.example/health");
        assert!(check_site(&config, &headers, &uri).is_err());
        headers.append(HOST, HeaderValue::from_static("localhost"));
        assert!(check_site(&config, &headers, &Uri::from_static("/health")).is_err());
    }
}

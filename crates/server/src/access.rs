//! Who may ask: keys, and the checks that keep web pages from using a server on the same machine.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HOST, HeaderName, HeaderValue, ORIGIN, TRANSFER_ENCODING, VARY,
    WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::audit::is_audited;
use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::fields::shown;
use crate::keys::{ApiKeys, Caller, shows_key};
use crate::origin::{allows, name_of};
use crate::requests::RequestId;
use crate::shared::Shared;
use crate::visit::Visit;

/// Headers that a page may send when it does not say which it will.
const USUAL_HEADERS: HeaderValue =
    HeaderValue::from_static("authorization, content-type, x-api-key");
/// How long a browser may take a permission for granted, seconds.
const REMEMBERED_S: HeaderValue = HeaderValue::from_static("600");

/// Who may come in, and how they are told: what may change while a server runs.
#[derive(Debug)]
pub struct Gate {
    /// Keys.
    pub keys: ApiKeys,
    /// Only names of this machine lead here.
    is_local: bool,
    allowed_hosts: Vec<String>,
    allowed_origins: Vec<String>,
    /// Refuses members of requests that nobody knows.
    pub strict: bool,
    access_log: bool,
}

impl Gate {
    /// That of a set-up, which has been checked.
    pub fn new(config: &ServerConfig) -> Self {
        Self {
            keys: ApiKeys::new(config),
            is_local: config.bind.ip().is_loopback(),
            allowed_hosts: config.allowed_hosts.clone(),
            allowed_origins: config.allowed_origins.clone(),
            strict: config.strict,
            access_log: config.access_log,
        }
    }
}

/// Asks for a key where keys are set.
pub async fn key(request: Request, next: Next) -> Response {
    if Caller::of(&request).is_some_and(|caller| caller.is_admitted) {
        return next.run(request).await;
    }
    key_needed(match shows_key(request.headers()) {
        true => "this API key is not known here: it was revoked, or mistyped",
        false => "an API key is needed, as Authorization: Bearer or x-api-key",
    })
}

/// Asks for the key that may see what tells of everybody.
pub async fn operator(request: Request, next: Next) -> Response {
    let caller = Caller::of(&request);
    if caller.as_ref().is_some_and(|caller| caller.reads_metrics) {
        return next.run(request).await;
    }
    if !caller.is_some_and(|caller| caller.is_admitted) {
        return key_needed("the metrics need a key, as Authorization: Bearer or x-api-key");
    }
    let message = "the metrics tell of all keys' requests: they are for the first --api-key, the \
                   --metrics-key where there is one, and keys made with --metrics";
    forbidden("metrics_not_allowed", message.to_owned()).into_response()
}

fn key_needed(message: &str) -> Response {
    let error = ApiError {
        code: Some("invalid_api_key"),
        ..ApiError::new(StatusCode::UNAUTHORIZED, message)
    };
    let mut response = error.into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Refuses pages of other sites, and names that only a rebound DNS entry would lead here; lets the
/// pages of allowed sites read what they get, errors too; writes the request's line in the log.
pub async fn site(State(shared): State<Arc<Shared>>, mut request: Request, next: Next) -> Response {
    let gate = shared.gate();
    let caller = Arc::new(gate.keys.caller(request.headers()));
    let name = caller.key.as_ref().map(|key| shown(&key.name));
    request.extensions_mut().insert(caller);
    let audit = shared.audit.clone().filter(|_| is_audited(&request));
    let id = RequestId::of(request.headers(), shared.ticket());
    let called = id.header();
    let logs = (gate.access_log, audit, shared.config.traces.clone());
    let visit = Visit::new(&request, (id, shared.party(&request)), name, logs);
    request.extensions_mut().insert(Arc::clone(&visit));
    let origin = allowed_origin(&gate, request.headers());
    let mut answer = match check_site(&gate, request.headers(), request.uri()) {
        Err(error) => error.into_response(),
        Ok(()) if origin.is_some() && is_preflight(&request) => permission(request.headers()),
        Ok(()) => next.run(request).await,
    };
    if !gate.allowed_origins.is_empty() {
        answer.headers_mut().append(VARY, HeaderValue::from_static("origin"));
    }
    if let Some(origin) = origin {
        let headers = answer.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        let told = HeaderValue::from_static("retry-after, www-authenticate, x-request-id");
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, told);
    }
    if let Some(called) = called {
        answer.headers_mut().insert(HeaderName::from_static("x-request-id"), called);
    }
    let status = answer.status().as_u16();
    shared.responses.sent(status);
    visit.told().status = Some(status);
    answer
}

/// The origin of a request's page, where it is an allowed one.
fn allowed_origin(gate: &Gate, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(ORIGIN)?;
    let text = origin.to_str().ok()?;
    gate.allowed_origins.iter().any(|allowed| allows(allowed, text)).then(|| origin.clone())
}

/// Whether a browser asks if its page may ask.
fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS
        && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// What the pages of an allowed origin may send: any header, for clients add their own (`x-stainless-*`).
/// Never cookies: keys come in headers.
fn permission(asked: &HeaderMap) -> Response {
    let mut answer = StatusCode::NO_CONTENT.into_response();
    let headers = answer.headers_mut();
    let wanted = asked.get(ACCESS_CONTROL_REQUEST_HEADERS).filter(|list| !list.is_empty());
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.cloned().unwrap_or(USUAL_HEADERS));
    let methods = HeaderValue::from_static("GET, POST, DELETE");
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    headers.insert(ACCESS_CONTROL_MAX_AGE, REMEMBERED_S);
    // Of pages from the net that ask a server on this machine.
    if asked.contains_key("access-control-request-private-network") {
        let name = HeaderName::from_static("access-control-allow-private-network");
        headers.insert(name, HeaderValue::from_static("true"));
    }
    answer
}

/// Of codings of a message one is known; what has others may be read in two ways.
fn check_coding(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let known = codings.next().is_none_or(|one| one.as_bytes().eq_ignore_ascii_case(b"chunked"));
    if known && codings.next().is_none() {
        return Ok(());
    }
    let message = "the only Transfer-Encoding that is known is chunked";
    Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, message))
}

fn check_site(gate: &Gate, headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
    check_coding(headers)?;
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next().and_then(|h| h.to_str().ok()).unwrap_or_default();
    if hosts.next().is_some() {
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "two Host headers"));
    }
    if gate.is_local {
        let asked = [Some(host), uri.authority().map(|a| a.as_str())];
        let other = asked.into_iter().flatten().find(|h| !is_local(h, &gate.allowed_hosts));
        if let Some(other) = other {
            let name = shown(name_of(other));
            if name.is_empty() {
                return Err(forbidden("host_not_allowed", "the request has no Host header".into()));
            }
            let message = format!(
                "this server answers to localhost only, not to {name:?}; a server started with \
                 --allow-host NAME answers to that name too"
            );
            return Err(forbidden("host_not_allowed", message));
        }
    }
    for origin in headers.get_all(ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        let site = ["http://", "https://"].iter().find_map(|scheme| origin.strip_prefix(scheme));
        let own = !host.is_empty() && site.is_some_and(|site| site.eq_ignore_ascii_case(host));
        if !own && !gate.allowed_origins.iter().any(|allowed| allows(allowed, origin)) {
            let origin = shown(origin);
            let message = format!(
                "pages of {origin:?} may not use this server; they may use one started with \
                 --allow-origin {origin}"
            );
            return Err(forbidden("origin_not_allowed", message));
        }
    }
    Ok(())
}

fn forbidden(code: &'static str, message: String) -> ApiError {
    ApiError { code: Some(code), ..ApiError::new(StatusCode::FORBIDDEN, message) }
}

/// Whether a `Host` (with or without port) can only mean this machine, or is allowed by name.
fn is_local(host: &str, allowed: &[String]) -> bool {
    let name = name_of(host);
    if host.contains('@') {
        return false; // a user's name before it
    }
    let same = |a: &String| a == "*" || name_of(a).eq_ignore_ascii_case(name);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        || (!name.is_empty() && allowed.iter().any(same))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let allowed = ["box.lan".to_string(), "[fd00::7]".to_string()];
        let cases = [
            ("localhost", true),
            ("LOCALHOST:8080", true),
            ("127.0.0.1:8080", true),
            ("127.9.9.9", true),
            ("[::1]:8080", true),
            ("box.lan:1", true),
            ("BOX.lan", true),
            ("[fd00::7]:8080", true),
            ("[fd00::8]:8080", false),
            ("not.box.lan", false),
            ("", false),
            ("evil.example", false),
            ("localhost.evil.example:8080", false),
            ("127.0.0.1.evil.example", false),
            ("evil.example#localhost", false),
            ("0.0.0.0:8080", false),
            ("192.168.1.2", false),
            ("[::ffff:127.0.0.1]", false),
            ("[localhost", false),
            ("localhost@evil.example", false),
            ("localhost:80@evil.example", false),
        ];
        for (host, expect) in cases {
            assert_eq!(is_local(host, &allowed), expect, "{host}");
        }
    }

    #[test]
    fn origins() {
        let mut config = ServerConfig::new("127.0.0.1:0".parse().unwrap());
        config.allowed_origins.push("https://chat.example".into());
        config.allowed_origins.push("app://obsidian.md".into());
        let cases = [
            ("app://obsidian.md", true),
            ("app://localhost:8080", false),
            ("chrome-extension://abcdef", false),
            ("", false),
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
            assert_eq!(check_site(&Gate::new(&config), &headers, &uri).is_ok(), expect, "{origin}");
        }
    }

    #[test]
    fn a_refusal_names_the_option_that_allows_it() {
        let config = ServerConfig::new("127.0.0.1:0".parse().unwrap());
        let refusal = |host: &'static str, origin: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static(host));
            headers.insert(ORIGIN, HeaderValue::from_static(origin));
            check_site(&Gate::new(&config), &headers, &Uri::from_static("/"))
                .expect_err("refused")
                .message
        };
        let message = refusal("localhost:8080", "http://localhost:5173");
        assert!(message.contains("--allow-origin http://localhost:5173"), "{message}");
        let message = refusal("host.docker.internal:8080", "http://localhost:5173");
        assert!(message.contains("--allow-host") && message.contains("host.docker.internal"));
    }

    #[test]
    fn an_absolute_uri_does_not_get_around_the_host() {
        let config = ServerConfig::new("127.0.0.1:0".parse().unwrap());
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("localhost"));
        let uri = Uri::from_static("http://evil.example/health");
        assert!(check_site(&Gate::new(&config), &headers, &uri).is_err());
        headers.append(HOST, HeaderValue::from_static("localhost"));
        assert!(check_site(&Gate::new(&config), &headers, &Uri::from_static("/health")).is_err());
    }
}

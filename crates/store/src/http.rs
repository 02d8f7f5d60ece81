//! HTTP: one client, the user's proxy, the system's roots; redirects are followed here, so that
//! the token stays with the hub and the hub's own headers are seen on the way.

use crate::env::{Limits, StoreEnv};
use crate::error::shown;
use crate::patience::told_wait;
use reqwest::blocking::{Client, Response};
use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, IF_RANGE, LOCATION, RANGE,
};
use reqwest::{NoProxy, Proxy, Url, redirect};
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls_platform_verifier::BuilderVerifierExt;
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A failed request: whether another try can help, and what happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NetError {
    /// Resets, time-outs, 5xx.
    Passing(String),
    /// No connection: no network, no such host, nobody listens there.
    Unreachable(String),
    /// Too many requests, or another answer that says when to come back.
    Busy {
        /// HTTP status.
        status: u16,
        /// The wait asked for.
        told: Option<Duration>,
    },
    /// The server answered with this status.
    Status(u16),
    /// An answer that makes no sense, or an address we refuse.
    Bad(String),
}

/// An answer with a body still to read.
pub(crate) struct Answer {
    /// Status, 2xx or 416.
    pub status: u16,
    /// Headers of the last hop.
    pub headers: HeaderMap,
    /// `x-linked-*` and `x-repo-commit` of the first hop that had them.
    pub linked: Linked,
    /// The body.
    pub body: Response,
}

/// What the hub says of a file before it redirects to the bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Linked {
    /// `x-linked-etag`: the SHA-256 of a large file.
    pub etag: Option<String>,
    /// `x-linked-size`.
    pub bytes: Option<u64>,
}

/// What to ask for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ask<'a> {
    /// Bytes of the body, all if not given.
    pub range: Option<Range<u64>>,
    /// Give the range only if the content still has this ETag.
    pub if_range: Option<&'a str>,
    /// The kind of document wanted.
    pub accept: Option<&'a str>,
}

/// The client.
#[derive(Clone)]
pub(crate) struct Http {
    client: Client,
    /// Address and token; the token goes to requests of that scheme, host and port only.
    token: Option<(Url, String)>,
    roots: Option<String>,
}

const HOPS: usize = 8;

impl Http {
    /// A client by the environment; `connect` bounds the time to reach a server.
    pub(crate) fn new(
        env: &StoreEnv,
        limits: &Limits,
        connect: Duration,
        token: Option<String>,
    ) -> Result<Self, NetError> {
        let bad = |e: &dyn Error| NetError::Bad(chain(e));
        let (tls, roots) = tls_config()?;
        let mut builder = Client::builder()
            .user_agent(concat!("tokenmill/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(tls)
            .redirect(redirect::Policy::none())
            .connect_timeout(connect)
            .timeout(limits.stall)
            .no_proxy();
        let except = || env.no_proxy.as_deref().and_then(NoProxy::from_string);
        if let Some(proxy) = &env.http_proxy {
            builder = builder.proxy(Proxy::http(proxy).map_err(|e| bad(&e))?.no_proxy(except()));
        }
        if let Some(proxy) = &env.https_proxy {
            builder = builder.proxy(Proxy::https(proxy).map_err(|e| bad(&e))?.no_proxy(except()));
        }
        if let Some(proxy) = &env.all_proxy {
            builder = builder.proxy(Proxy::all(proxy).map_err(|e| bad(&e))?.no_proxy(except()));
        }
        let client = builder.build().map_err(|e| bad(&e))?;
        let origin = Url::parse(env.endpoint()).map_err(|e| bad(&e))?;
        Ok(Self { client, token: token.map(|t| (origin, t)), roots })
    }

    /// True if there is a log-in to show.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// One GET with its redirects. 2xx and 416 are answers; all else is an error.
    pub(crate) fn get(&self, url: &str, ask: &Ask<'_>) -> Result<Answer, NetError> {
        let mut url = Url::parse(url).map_err(|e| NetError::Bad(e.to_string()))?;
        let mut linked = Linked::default();
        for _ in 0..HOPS {
            let response = self.send(&url, ask)?;
            let headers = response.headers().clone();
            linked.etag = linked.etag.or_else(|| text_of(&headers, "x-linked-etag"));
            linked.bytes = linked
                .bytes
                .or_else(|| text_of(&headers, "x-linked-size").and_then(|t| t.parse().ok()));
            let status = response.status().as_u16();
            match status {
                300..=303 | 307 | 308 => url = next_hop(&url, &headers)?,
                200..=299 | 416 => {
                    check_encoding(&headers)?;
                    return Ok(Answer { status, headers, linked, body: response });
                }
                408 | 429 | 500..=599 => {
                    let told = told_wait(&headers, SystemTime::now());
                    return Err(match (status, told) {
                        (429, _) | (_, Some(_)) => NetError::Busy { status, told },
                        _ => NetError::Passing(format!("the server answered {status}")),
                    });
                }
                _ => return Err(NetError::Status(status)),
            }
        }
        Err(NetError::Bad(format!("more than {HOPS} redirects")))
    }

    fn send(&self, url: &Url, ask: &Ask<'_>) -> Result<Response, NetError> {
        // The bytes themselves, so that lengths and digests mean the file.
        let mut request = self.client.get(url.clone()).header(ACCEPT_ENCODING, "identity");
        if let Some((origin, token)) = &self.token
            && origin.origin() == url.origin()
        {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(range) = &ask.range {
            let last = range.end.saturating_sub(1);
            request = request.header(RANGE, format!("bytes={}-{last}", range.start));
        }
        if let Some(kind) = ask.accept {
            request = request.header(ACCEPT, kind);
        }
        if let Some(etag) = ask.if_range {
            request = request.header(IF_RANGE, etag);
        }
        request.send().map_err(|error| {
            let is_connect = error.is_connect();
            let error = error.without_url();
            let mut why = if is_connect { root_cause(&error) } else { chain(&error) };
            if let Some(roots) = &self.roots {
                why = format!("{why} ({roots})");
            }
            if is_connect { NetError::Unreachable(why) } else { NetError::Passing(why) }
        })
    }
}

/// Refuses packed bodies: none was asked for, and what unpacks can grow without end.
fn check_encoding(headers: &HeaderMap) -> Result<(), NetError> {
    match text_of(headers, "content-encoding").as_deref() {
        None | Some("" | "identity") => Ok(()),
        Some(other) => {
            let other = shown(other);
            Err(NetError::Bad(format!("the answer is packed ({other}), which was not asked for")))
        }
    }
}

fn next_hop(from: &Url, headers: &HeaderMap) -> Result<Url, NetError> {
    let bad = |why: &str| NetError::Bad(format!("redirect {why}"));
    let location = headers.get(LOCATION).and_then(|v| v.to_str().ok());
    let next = from
        .join(location.ok_or_else(|| bad("without an address"))?)
        .map_err(|_| bad("to no address"))?;
    match (from.scheme(), next.scheme()) {
        (_, "https") | ("http", "http") => Ok(next),
        (_, other) => Err(bad(&format!("from {} to {}", from.scheme(), shown(other)))),
    }
}

/// TLS by *ring* and the system's roots; where there are none, why, for the error message.
fn tls_config() -> Result<(ClientConfig, Option<String>), NetError> {
    let builder = || {
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| NetError::Bad(e.to_string()))
    };
    match builder()?.with_platform_verifier() {
        Ok(config) => Ok((config.with_no_client_auth(), None)),
        Err(error) => {
            let none = rustls::RootCertStore::empty();
            let config = builder()?.with_root_certificates(none).with_no_client_auth();
            Ok((config, Some(format!("no certificates on this system: {error}"))))
        }
    }
}

/// A header as text.
pub(crate) fn text_of(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_string)
}

/// An error and its causes in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Some causes are told by what they caused already.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    shown(&text)
}

/// The last cause of an error, which says most: what stands above it names our own layers.
fn root_cause(error: &dyn Error) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    shown(&last.to_string())
}

/// Host and port of an address.
pub(crate) fn host_of(url: &str) -> String {
    let parsed = Url::parse(url).ok();
    let host = parsed.as_ref().and_then(|u| Some((u.host_str()?, u.port())));
    match host {
        Some((host, Some(port))) => shown(&format!("{host}:{port}")),
        Some((host, None)) => shown(host),
        None => plain_url(url),
    }
}

/// An address without user name, password and query, for messages.
pub(crate) fn plain_url(url: &str) -> String {
    let Ok(mut parsed) = Url::parse(url) else { return shown(url) };
    let _ = parsed.set_username("");
    let _ = parsed.set_password(None);
    parsed.set_query(None);
    shown(parsed.as_str())
}

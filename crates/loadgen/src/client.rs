//! Streaming requests to one server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Client, Response, Url};
use rustls_platform_verifier::BuilderVerifierExt;
use serde_json::{Map, Value};

use crate::dialect::{Api, Request};
use crate::stream::{Answer, MOST_LINE_BYTES, Stream};

/// Why a server cannot be loaded, or a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The address is none.
    #[error("{url} is no http or https address: {why}")]
    Address {
        /// As given.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// The system refuses a client.
    #[error("cannot make a client: {0}")]
    Client(String),
    /// No answer, or it broke off.
    #[error("connection: {0}")]
    Connection(String),
    /// The server refused.
    #[error("status {status}: {message}")]
    Status {
        /// HTTP status.
        status: u16,
        /// What the server said, shortened.
        message: String,
    },
    /// The stream carried an error, or was no stream of events.
    #[error("stream: {0}")]
    Stream(String),
    /// The server lists no model.
    #[error("the server lists no model")]
    NoModel,
}

impl LoadError {
    /// What sort of failure it is, without what only this one says.
    pub fn kind(&self) -> String {
        match self {
            LoadError::Address { .. } => "address".to_owned(),
            LoadError::Client(_) => "client".to_owned(),
            LoadError::Connection(_) => "connection".to_owned(),
            LoadError::Status { status, .. } => format!("status {status}"),
            LoadError::Stream(_) => "stream".to_owned(),
            LoadError::NoModel => "no model".to_owned(),
        }
    }
}

/// A server and how it is asked.
#[derive(Debug, Clone)]
pub struct Target {
    /// Such as `http://127.0.0.1:8080`, with or without `/v1`.
    pub url: String,
    /// Which endpoint.
    pub api: Api,
    /// Model; the first that the server lists when absent.
    pub model: Option<String>,
    /// Model that agents ask for titles and summaries; the same when absent.
    pub small_model: Option<String>,
    /// Key that is shown.
    pub api_key: Option<String>,
    /// Members of every request's body, in place of ours where names are equal, objects member by
    /// member; null takes ours out.
    pub extra: Map<String, Value>,
    /// Longest silence of the server.
    pub patience: Duration,
}

/// A server's clients.
#[derive(Debug)]
pub struct Caller {
    client: Client,
    base: String,
    target: Target,
    model: String,
}

impl Caller {
    /// Finds the server and its model.
    ///
    /// # Errors
    /// An address that is none; a server that does not answer or has no model.
    pub async fn connect(target: &Target) -> Result<Caller, LoadError> {
        let base = base_of(&target.url)?;
        let client = client_for(&base, target.patience)?;
        let mut caller = Caller { client, base, target: target.clone(), model: String::new() };
        caller.model = match &target.model {
            Some(model) => model.clone(),
            None => caller.first_model().await?,
        };
        Ok(caller)
    }

    /// The model that is asked for.
    pub fn model(&self) -> &str {
        &self.model
    }

    async fn first_model(&self) -> Result<String, LoadError> {
        let request = self.client.get(format!("{}/v1/models", self.base));
        let mut response = sent(self.with_key(request)).await?;
        let mut body = Vec::new();
        while let Some(more) = response.chunk().await.map_err(broke)? {
            body.extend_from_slice(&more);
            if body.len() > MOST_LINE_BYTES {
                break;
            }
        }
        let listed: Value = serde_json::from_slice(&body).map_err(|_| LoadError::NoModel)?;
        listed["data"][0]["id"].as_str().map(str::to_owned).ok_or(LoadError::NoModel)
    }

    fn with_key(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.target.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Asks, and reads the stream to its end.
    ///
    /// # Errors
    /// [`LoadError`] for anything but a whole stream, and for one without any text where text was
    /// to come whatever the model does.
    pub async fn ask(&self, asked: &Request<'_>) -> Result<Answer, LoadError> {
        let api = self.target.api;
        let model = match &self.target.small_model {
            Some(small) if asked.small => small,
            _ => &self.model,
        };
        let mut body = api.body(model, asked);
        merge(&mut body, &self.target.extra);
        let request = self.client.post(format!("{}{}", self.base, api.path()));
        let mut request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
        if api != Api::Ollama {
            request = request.header(ACCEPT, "text/event-stream");
        }
        if api == Api::Messages {
            request = request.header("anthropic-version", "2023-06-01");
            if let Some(key) = &self.target.api_key {
                request = request.header("x-api-key", key);
            }
        }
        let mut response = sent(self.with_key(request)).await?;
        let mut stream = Stream::new(api);
        while let Some(chunk) = response.chunk().await.map_err(broke)? {
            stream.take(&chunk, Instant::now())?;
        }
        let answer = stream.finish()?;
        let whole = asked.ignore_eos && matches!(api, Api::Completions | Api::Chat);
        if whole && answer.events.is_empty() {
            return Err(LoadError::Stream("it ended without any text".to_owned()));
        }
        Ok(answer)
    }
}

/// Puts members in place of those of the same name, objects member by member; null takes one out.
fn merge(body: &mut Value, extra: &Map<String, Value>) {
    let Some(members) = body.as_object_mut() else { return };
    for (name, value) in extra {
        match (value, members.get_mut(name)) {
            (Value::Null, _) => drop(members.shift_remove(name)),
            (Value::Object(inner), Some(ours @ Value::Object(_))) => merge(ours, inner),
            _ => drop(members.insert(name.clone(), value.clone())),
        }
    }
}

/// The address without a path, or with the one before `/v1`.
fn base_of(url: &str) -> Result<String, LoadError> {
    let bad = |why: &str| LoadError::Address { url: url.to_owned(), why: why.to_owned() };
    let parsed = Url::parse(url).map_err(|e| bad(&e.to_string()))?;
    if !matches!(parsed.scheme(), "http" | "https") {
        return Err(bad("it starts with neither http:// nor https://"));
    }
    let base = url.trim_end_matches('/');
    Ok(base.strip_suffix("/v1").unwrap_or(base).to_owned())
}

fn client_for(base: &str, patience: Duration) -> Result<Client, LoadError> {
    let failed = |e: String| LoadError::Client(e);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| failed(e.to_string()))?;
    let tls = if base.starts_with("https") {
        tls.with_platform_verifier().map_err(|e| failed(e.to_string()))?
    } else {
        tls.with_root_certificates(rustls::RootCertStore::empty())
    };
    Client::builder()
        .tls_backend_preconfigured(tls.with_no_client_auth())
        .read_timeout(patience)
        // A connection a request: some servers close idle ones just when they are used again.
        .pool_max_idle_per_host(0)
        // What lies between would be measured too.
        .no_proxy()
        .build()
        .map_err(|e| failed(e.to_string()))
}

/// Sends; anything but 200 is an error with the server's own words.
async fn sent(request: reqwest::RequestBuilder) -> Result<Response, LoadError> {
    let mut response = request.send().await.map_err(broke)?;
    let status = response.status().as_u16();
    if status == 200 {
        return Ok(response);
    }
    let body = response.chunk().await.ok().flatten().unwrap_or_default();
    let text = String::from_utf8_lossy(&body[..body.len().min(2000)]).into_owned();
    let error = serde_json::from_str::<Value>(&text).unwrap_or_default();
    let said = [&error["error"]["message"], &error["error"]].into_iter().find_map(|e| e.as_str());
    let message = said.unwrap_or(&text);
    let message: String = message.chars().take(200).collect();
    Err(LoadError::Status { status, message })
}

fn broke(error: reqwest::Error) -> LoadError {
    let error = error.without_url();
    let mut text = error.to_string();
    // What stands between names layers of the client; the last cause says why.
    let causes = std::iter::successors(std::error::Error::source(&error), |e| e.source());
    if let Some(cause) = causes.last() {
        text = format!("{text}: {cause}");
    }
    LoadError::Connection(if text.is_empty() { "broken".to_owned() } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses() {
        let cases = [
            ("http://localhost:8080", Some("http://localhost:8080")),
            ("https://a.b/v1/", Some("https://a.b")),
            ("http://a/x/v1", Some("http://a/x")),
            ("localhost:8080", None),
            ("file:///etc", None),
            ("", None),
        ];
        for (url, expect) in cases {
            assert_eq!(base_of(url).ok().as_deref(), expect, "{url}");
        }
    }

    #[test]
    fn extra_members_replace_and_remove() {
        let mut body = json!({"a": 1, "b": {"c": 2, "d": 3}, "e": 4});
        let extra = json!({"a": null, "b": {"c": 5}, "e": {"f": 6}});
        merge(&mut body, extra.as_object().expect("an object"));
        assert_eq!(body, json!({"b": {"c": 5, "d": 3}, "e": {"f": 6}}));
    }
}

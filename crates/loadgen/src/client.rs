//! One streaming request to an OpenAI-style server, and when each part of its answer came.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Client, Response, Url};
use rustls_platform_verifier::BuilderVerifierExt;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// A line of an event stream that is longer than this is no event.
const MOST_LINE_BYTES: usize = 16 << 20;

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

/// Which endpoint is driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `/v1/completions`: the whole conversation as one text.
    Completions,
    /// `/v1/chat/completions`: the conversation as messages.
    Chat,
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
    /// Key that is shown.
    pub api_key: Option<String>,
    /// Members of every request's body, in place of ours where names are equal; null takes ours
    /// out.
    pub extra: Map<String, Value>,
    /// Longest silence of the server.
    pub patience: Duration,
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// When each piece of text came.
    pub events: Vec<Instant>,
    /// All text.
    pub text: String,
    /// The server's figures, if it gave any.
    pub usage: Usage,
}

/// Token counts as the server gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Of the answer.
    pub completion_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

impl Usage {
    /// Prompt tokens that the server did not compute again.
    pub fn cached_tokens(&self) -> Option<u64> {
        self.prompt_tokens_details?.cached_tokens
    }
}

/// A server's clients.
#[derive(Debug)]
pub struct Caller {
    client: Client,
    base: String,
    target: Target,
    model: String,
}

/// One side of a conversation's past.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// What was asked.
    User(String),
    /// What was answered.
    Assistant(String),
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

    /// Asks for `max_tokens` after a conversation, and reads the stream to its end.
    ///
    /// # Errors
    /// [`LoadError`] for anything but a whole stream.
    pub async fn ask(&self, said: &[Said], max_tokens: u32) -> Result<Answer, LoadError> {
        let path = match self.target.api {
            Api::Completions => "completions",
            Api::Chat => "chat/completions",
        };
        let request = self.client.post(format!("{}/v1/{path}", self.base));
        let request = request
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "text/event-stream")
            .body(self.body(said, max_tokens).to_string());
        let mut response = sent(self.with_key(request)).await?;
        let mut stream = EventStream::default();
        while let Some(chunk) = response.chunk().await.map_err(broke)? {
            stream.take(&chunk, Instant::now())?;
        }
        if stream.answer.events.is_empty() {
            return Err(LoadError::Stream("it ended without any text".to_owned()));
        }
        Ok(stream.answer)
    }

    fn body(&self, said: &[Said], max_tokens: u32) -> Value {
        let mut body = json!({
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
            "ignore_eos": true,
        });
        match self.target.api {
            Api::Completions => {
                let all = said.iter().map(|s| match s {
                    Said::User(text) | Said::Assistant(text) => text.as_str(),
                });
                body["prompt"] = json!(all.collect::<String>());
            }
            Api::Chat => {
                let all = said.iter().map(|s| match s {
                    Said::User(text) => json!({"role": "user", "content": text}),
                    Said::Assistant(text) => json!({"role": "assistant", "content": text}),
                });
                body["messages"] = all.collect();
            }
        }
        for (name, value) in &self.target.extra {
            match (value, body.as_object_mut()) {
                (Value::Null, Some(members)) => drop(members.remove(name)),
                _ => body[name.as_str()] = value.clone(),
            }
        }
        body
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
    let message = error["error"]["message"].as_str().unwrap_or(&text);
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

/// Server-sent events as they come in pieces.
#[derive(Default)]
struct EventStream {
    /// An unfinished line.
    partial: Vec<u8>,
    ended: bool,
    answer: Answer,
}

#[derive(Deserialize)]
struct Event {
    choices: Option<Vec<Choice>>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Deserialize, Default)]
struct Delta {
    role: Option<String>,
    content: Option<String>,
    #[serde(alias = "reasoning")]
    reasoning_content: Option<String>,
}

impl EventStream {
    fn take(&mut self, bytes: &[u8], now: Instant) -> Result<(), LoadError> {
        self.partial.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(length) = self.partial[start..].iter().position(|&b| b == b'\n') {
            let line = self.partial[start..start + length].trim_ascii();
            start += length + 1;
            if let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) {
                if data == b"[DONE]" {
                    self.ended = true;
                } else if !self.ended {
                    event(data, now, &mut self.answer)?;
                }
            }
        }
        self.partial.drain(..start);
        if self.partial.len() > MOST_LINE_BYTES {
            return Err(LoadError::Stream("a line without an end".to_owned()));
        }
        Ok(())
    }
}

fn event(data: &[u8], now: Instant, answer: &mut Answer) -> Result<(), LoadError> {
    let event: Event =
        serde_json::from_slice(data).map_err(|e| LoadError::Stream(e.to_string()))?;
    if let Some(error) = event.error {
        let message = error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned);
        return Err(LoadError::Stream(message.chars().take(200).collect()));
    }
    if let Some(usage) = event.usage {
        answer.usage = usage;
    }
    let Some(choice) = event.choices.into_iter().flatten().next() else { return Ok(()) };
    let delta = choice.delta.unwrap_or_default();
    let mut text = choice.text.unwrap_or_default();
    for more in [delta.reasoning_content, delta.content].into_iter().flatten() {
        text += &more;
    }
    // An empty piece in the middle is a token whose text is not whole yet; the one with the role
    // is none.
    let in_the_middle = choice.finish_reason.is_none() && delta.role.is_none();
    if !text.is_empty() || in_the_middle {
        answer.events.push(now);
        answer.text += &text;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Feeds a stream cut at every multiple of `size` bytes.
    fn read(stream: &str, size: usize) -> Result<Answer, LoadError> {
        let now = Instant::now();
        let mut events = EventStream::default();
        for chunk in stream.as_bytes().chunks(size) {
            events.take(chunk, now)?;
        }
        Ok(events.answer)
    }

    #[test]
    fn completions_and_chats_count_the_same() {
        let completion = "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n\
            : ping\n\ndata: {\"choices\":[{\"text\":\"\",\"finish_reason\":null}]}\r\n\r\n\
            data: {\"choices\":[{\"text\":\"é\",\"finish_reason\":\"length\"}]}\n\n\
            data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\
            \"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\nrest";
        let chat = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
            data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"a\"}}],\"usage\":null}\n\n\
            data: {\"choices\":[{\"delta\":{}}]}\n\n\
            data: {\"choices\":[{\"delta\":{\"content\":\"é\"}}]}\n\n\
            data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
            data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\
            \"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";
        for size in [1, 7, 10_000] {
            for stream in [completion, chat] {
                let answer = read(stream, size).expect("a stream");
                assert_eq!((answer.text.as_str(), answer.events.len()), ("aé", 3));
                assert_eq!(answer.usage.completion_tokens, Some(3));
                assert_eq!(answer.usage.cached_tokens(), Some(4));
            }
        }
    }

    #[test]
    fn broken_streams_are_errors() {
        let told = |stream: &str| read(stream, 100).unwrap_err().to_string();
        assert_eq!(told("data: {\"error\":{\"message\":\"no room\"}}\n\n"), "stream: no room");
        assert!(told("data: <html>\n").starts_with("stream: "));
    }
}

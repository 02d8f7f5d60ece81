//! A server that runs, asked over HTTP or HTTPS: by `ps`, `stop`, `top` and `launch`.

use std::error::Error;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use reqwest::blocking::{Client, RequestBuilder};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use rustls_platform_verifier::BuilderVerifierExt;
use serde_json::Value;

use crate::args::Running;
use crate::failure::Failure;

/// For a server to answer; one that loads or unloads a model answers when that is done.
const PATIENCE: Duration = Duration::from_secs(330);
/// For a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Longest answer that is read, bytes.
const MOST_BYTES: u64 = 16 << 20;

/// See the module.
pub struct Remote {
    /// Its root: scheme, host and port, without `/v1`.
    pub url: String,
    /// What it lets in, if it asks for that.
    pub key: Option<String>,
    client: Client,
}

impl Remote {
    /// The server that a command line names.
    ///
    /// # Errors
    /// What is no address; certificates of this machine that cannot be read.
    pub fn of(running: &Running) -> Result<Self, Failure> {
        // The first of several: who set them runs the server.
        let key = running.api_key.as_deref().and_then(|keys| keys.split(',').next());
        Self::at(&running.url, key)
    }

    /// The server at an address, asked with that key.
    ///
    /// # Errors
    /// As of [`Remote::of`].
    pub fn at(url: &str, key: Option<&str>) -> Result<Self, Failure> {
        let url = url.trim_end_matches('/');
        let url = url.strip_suffix("/v1").unwrap_or(url).to_owned();
        let parsed = reqwest::Url::parse(&url).ok();
        let is_root = |u: &reqwest::Url| {
            matches!(u.scheme(), "http" | "https") && u.has_host() && u.path() == "/"
        };
        if !parsed.is_some_and(|u| is_root(&u)) {
            let detail = "such as http://127.0.0.1:8080";
            let failure = Failure::new(format!("{url} is no address"), detail);
            let whole = format!("http://{url}");
            let is_meant = reqwest::Url::parse(&whole).is_ok_and(|u| is_root(&u));
            return Err(if is_meant { failure.fix(format!("--url {whole}")) } else { failure });
        }
        let key = key.filter(|key| !key.is_empty() && !key.contains(char::is_control));
        let client = client(url.starts_with("https"));
        let client = client.map_err(|e| Failure::new("cannot speak HTTPS", e))?;
        Ok(Self { url, key: key.map(str::to_owned), client })
    }

    /// The JSON at a path.
    ///
    /// # Errors
    /// No answer, or what it refuses, in its words.
    pub fn get(&self, path: &str) -> Result<Value, Failure> {
        self.json(self.client.get(format!("{}{path}", self.url)))
    }

    /// The answer to some JSON.
    ///
    /// # Errors
    /// As of [`Remote::get`].
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let request = self.client.post(format!("{}{path}", self.url));
        self.json(request.header(CONTENT_TYPE, "application/json").body(body.to_string()))
    }

    /// The same with more headers.
    ///
    /// # Errors
    /// As of [`Remote::get`].
    pub fn post_with(
        &self,
        path: &str,
        body: &Value,
        headers: &[(String, String)],
    ) -> Result<Value, Failure> {
        let request = self.client.post(format!("{}{path}", self.url));
        let request = headers.iter().fold(request, |r, (name, value)| r.header(name, value));
        self.json(request.header(CONTENT_TYPE, "application/json").body(body.to_string()))
    }

    /// The text at a path.
    ///
    /// # Errors
    /// As of [`Remote::get`].
    pub fn text(&self, path: &str) -> Result<String, Failure> {
        let (status, text) = self.sent(self.client.get(format!("{}{path}", self.url)))?;
        if status == 200 { Ok(text) } else { Err(self.refused(status, &text)) }
    }

    fn json(&self, request: RequestBuilder) -> Result<Value, Failure> {
        let (status, text) = self.sent(request)?;
        match serde_json::from_str(&text) {
            Ok(value) if status == 200 => Ok(value),
            _ => Err(self.refused(status, &text)),
        }
    }

    /// Status and text of an answer.
    fn sent(&self, mut request: RequestBuilder) -> Result<(u16, String), Failure> {
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        let cannot = |e: &dyn Error| {
            // The last cause is the system's word.
            let mut last = e;
            while let Some(cause) = last.source() {
                last = cause;
            }
            let fix = remedy(&self.url, &last.to_string());
            Failure::new(format!("no answer from {}", self.url), last).fix(fix)
        };
        let answer = request.send().map_err(|e| cannot(&e))?;
        let status = answer.status().as_u16();
        let mut text = Vec::new();
        answer.take(MOST_BYTES).read_to_end(&mut text).map_err(|e| cannot(&e))?;
        Ok((status, String::from_utf8_lossy(&text).into_owned()))
    }

    fn refused(&self, status: u16, text: &str) -> Failure {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        let message = value["error"]["message"].as_str();
        let message = message.unwrap_or("that is no answer of tokenmill's");
        let failure = Failure::new(format!("{} answers {status}", self.url), message);
        match status {
            401 if self.key.is_none() => failure.fix("add --api-key KEY"),
            401 => failure.fix("another --api-key; tokenmill key add NAME makes one, there"),
            403 => failure.fix("the --api-key of one that may: tokenmill key add NAME --metrics"),
            _ => failure,
        }
    }
}

/// What to try where no answer came from an address, by the last cause.
fn remedy(url: &str, why: &str) -> String {
    if why.contains("certificate") {
        return "SSL_CERT_FILE=FILE with the server's certificate, if it is its own".to_owned();
    }
    match url.strip_prefix("http://") {
        Some(rest) if why.contains("invalid HTTP version") => format!("--url https://{rest}"),
        _ => "tokenmill serve, or --url URL".to_owned(),
    }
}

/// A client that goes straight to the server; what lies in HTTPS's way is checked by the certificates
/// that this machine trusts.
fn client(is_https: bool) -> Result<Client, Box<dyn Error>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider);
    let tls = tls.with_safe_default_protocol_versions()?;
    let tls = match is_https {
        true => tls.with_platform_verifier()?,
        false => tls.with_root_certificates(rustls::RootCertStore::empty()),
    };
    Ok(Client::builder()
        .tls_backend_preconfigured(tls.with_no_client_auth())
        .connect_timeout(CONNECT)
        .timeout(PATIENCE)
        .no_proxy()
        .build()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_its_scheme_is_told_with_it() {
        let told = |url| Remote::at(url, None).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(told("localhost:8090").ends_with("try: --url http://localhost:8090"));
        assert!(told("127.0.0.1").ends_with("try: --url http://127.0.0.1"));
        assert!(!told("a b").contains("try:") && !told("http://a/b").contains("try:"));
        assert_eq!(told("http://127.0.0.1:9/v1/"), "");
    }

    #[test]
    fn what_is_tried_next_follows_from_the_cause() {
        let https = "https://localhost:8090";
        assert!(remedy(https, "invalid peer certificate: UnknownIssuer").starts_with("SSL_CERT"));
        let http = remedy("http://localhost:8090", "invalid HTTP version parsed");
        assert_eq!(http, "--url https://localhost:8090");
        assert!(remedy("http://localhost:1", "Connection refused").starts_with("tokenmill serve"));
    }
}

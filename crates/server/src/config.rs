//! How a server is set up: where it listens, who may ask, and its limits.

use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;

/// Everything a server has a limit for. A request at the limit is served, one beyond is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Request body, bytes.
    pub body_bytes: usize,
    /// Bodies over 1 MiB in memory at once; more wait.
    pub long_bodies: usize,
    /// Nested arrays and objects in a body.
    pub json_depth: u32,
    /// Values in a body.
    pub json_values: u32,
    /// Headers of a request.
    pub headers: usize,
    /// Request line and headers, bytes.
    pub header_bytes: usize,
    /// Open connections; more wait in the listener's backlog.
    pub connections: usize,
    /// Requests being answered at once, waiting ones included.
    pub requests: usize,
    /// Bodies being parsed and tokenised at once; more wait.
    pub preparing: usize,
    /// Messages of a chat.
    pub messages: usize,
    /// Prompts of one completion request.
    pub prompts: usize,
    /// Texts of one request for embeddings or scores.
    pub inputs: usize,
    /// Parallel answers (`n`).
    pub choices: u32,
    /// Stop texts.
    pub stops: usize,
    /// Length of a stop text, bytes.
    pub stop_bytes: usize,
    /// Tokens with a bias.
    pub logit_bias: usize,
    /// Alternatives at each position.
    pub top_logprobs: u32,
    /// Output not yet taken by a slow reader, bytes; beyond, its request fails.
    pub backlog_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 32 << 20,
            long_bodies: 8,
            json_depth: 64,
            json_values: 1 << 20,
            headers: 100,
            header_bytes: 32 << 10,
            connections: 10_000,
            requests: 1024,
            preparing: 4,
            messages: 4096,
            prompts: 128,
            inputs: 2048,
            choices: 8,
            stops: 16,
            stop_bytes: 256,
            logit_bias: 1024,
            top_logprobs: 20,
            backlog_bytes: 1 << 20,
        }
    }
}

/// How long a server waits for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    /// For the headers of a request; an idle connection is closed after it too.
    pub header: Duration,
    /// For the whole body.
    pub body: Duration,
    /// For a reader to take anything at all; then the connection is cut and its request cancelled.
    pub write_stall: Duration,
    /// Silence in a stream after which a comment is sent.
    pub ping: Duration,
    /// For answers in progress when the server is told to stop.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(30),
            body: Duration::from_secs(60),
            write_stall: Duration::from_secs(30),
            ping: Duration::from_secs(15),
            drain: Duration::from_secs(30),
        }
    }
}

/// The set-up of one server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where to listen; port 0: any free one.
    pub bind: SocketAddr,
    /// Keys that may ask; empty: everybody who reaches the port.
    pub api_keys: Vec<String>,
    /// Allows a bind that others can reach without any key.
    pub insecure_no_auth: bool,
    /// Names besides localhost that a `Host` header may carry on a loopback bind.
    pub allowed_hosts: Vec<String>,
    /// Origins besides its own from which browsers may ask, such as `https://chat.example`.
    pub allowed_origins: Vec<String>,
    /// Limits.
    pub limits: Limits,
    /// Timeouts.
    pub timeouts: Timeouts,
}

impl ServerConfig {
    /// The defaults at that address.
    pub fn new(bind: SocketAddr) -> Self {
        Self {
            bind,
            api_keys: Vec::new(),
            insecure_no_auth: false,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
        }
    }

    /// Checks what can be checked without opening a socket.
    ///
    /// # Errors
    /// [`ServeError::PublicWithoutKey`] and [`ServeError::BadKey`].
    pub fn check(&self) -> Result<(), ServeError> {
        if self.api_keys.iter().any(|key| key.trim().is_empty()) {
            return Err(ServeError::BadKey);
        }
        let open = self.api_keys.is_empty() && !self.insecure_no_auth;
        if open && !self.bind.ip().is_loopback() {
            return Err(ServeError::PublicWithoutKey { bind: self.bind });
        }
        Ok(())
    }
}

/// Why a server does not start, or stopped.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Others could reach the port and nothing would stop them.
    #[error("{bind} can be reached from other machines: set an API key, or bind to 127.0.0.1")]
    PublicWithoutKey {
        /// The address asked for.
        bind: SocketAddr,
    },
    /// An empty key would let everybody in.
    #[error("an API key is empty")]
    BadKey,
    /// Nothing to serve.
    #[error("no model to serve")]
    NoModel,
    /// Two models answer to one name.
    #[error("two models are called {name:?}")]
    SameName {
        /// The name.
        name: String,
    },
    /// The port is taken, or not ours to take.
    #[error("cannot listen on {bind}: {source}")]
    Bind {
        /// The address.
        bind: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// Threads or signals could not be set up.
    #[error("cannot start the server: {0}")]
    Start(std::io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_bind_needs_a_key_or_a_word() {
        let cases = [
            ("127.0.0.1:0", false, false, true),
            ("[::1]:0", false, false, true),
            ("127.8.8.8:0", false, false, true),
            ("0.0.0.0:0", false, false, false),
            ("[::]:0", false, false, false),
            ("192.0.2.1:80", false, false, false),
            ("0.0.0.0:0", true, false, true),
            ("0.0.0.0:0", false, true, true),
        ];
        for (bind, key, insecure, starts) in cases {
            let mut config = ServerConfig::new(bind.parse().unwrap());
            config.insecure_no_auth = insecure;
            if key {
                config.api_keys.push("k".into());
            }
            assert_eq!(config.check().is_ok(), starts, "{bind} {key} {insecure}");
        }
        let mut config = ServerConfig::new("127.0.0.1:0".parse().unwrap());
        config.api_keys.push(" ".into());
        assert!(matches!(config.check(), Err(ServeError::BadKey)));
    }
}

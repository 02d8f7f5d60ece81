//! How a server is set up: where it listens, who may ask, and its limits.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::fetch::ImageHosts;
use crate::keys::Key;
use crate::kv_events::KvEvents;
use crate::origin::{check_host, check_origin, is_wide};
use crate::seal::SealKey;
use crate::state::StateConfig;
use crate::traces::Traces;

/// Everything a server has a limit for. A request at the limit is served, one beyond is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Request body, bytes.
    pub body_bytes: usize,
    /// Bodies in memory, bytes beyond the first 64 KiB of each; more wait.
    pub bodies_bytes: usize,
    /// Nested arrays and objects in a body.
    pub json_depth: u32,
    /// Values in a body.
    pub json_values: u32,
    /// Headers of a request.
    pub headers: usize,
    /// Request line and headers, bytes.
    pub header_bytes: usize,
    /// Open connections. Where one more comes, one goes that keeps the server waiting.
    pub connections: usize,
    /// Requests being answered at once, waiting ones included; one party alone may have half.
    pub requests: usize,
    /// Bodies being parsed and tokenised at once, and half as many long ones; more wait.
    pub preparing: usize,
    /// Messages of a chat.
    pub messages: usize,
    /// Tools that a request offers, and calls in one of its messages.
    pub tools: usize,
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
    /// A file that is uploaded, bytes.
    pub file_bytes: u64,
    /// All files of one owner, bytes.
    pub files_bytes: u64,
    /// Answers, conversations and batches that are kept, bytes of their database.
    pub state_bytes: u64,
    /// Receipts that are stored, bytes; the oldest go.
    pub receipts_bytes: u64,
    /// Images of a request.
    pub images: usize,
    /// The file of an image, bytes.
    pub image_bytes: usize,
    /// Pixels of an image.
    pub image_pixels: u64,
    /// Patches of images that are being seen, bytes of all requests together; more wait.
    pub patches_bytes: u64,
    /// Lines of a batch.
    pub batch_lines: usize,
    /// Lines of batches that are asked at once; one while others ask.
    pub batch_at_once: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 32 << 20,
            bodies_bytes: 256 << 20,
            json_depth: 64,
            json_values: 1 << 20,
            headers: 100,
            header_bytes: 32 << 10,
            connections: 12_000,
            requests: 2048,
            preparing: 4,
            messages: 4096,
            tools: 1024,
            prompts: 128,
            inputs: 2048,
            choices: 8,
            stops: 16,
            stop_bytes: 256,
            logit_bias: 1024,
            top_logprobs: 20,
            backlog_bytes: 1 << 20,
            file_bytes: 200 << 20,
            files_bytes: 4 << 30,
            state_bytes: 64 << 30,
            receipts_bytes: 1 << 30,
            images: 64,
            image_bytes: 20 << 20,
            image_pixels: 40_000_000,
            patches_bytes: 256 << 20,
            batch_lines: 50_000,
            batch_at_once: 16,
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
    /// For a model that is not in memory, until requests for it are told to come back.
    pub load: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(30),
            body: Duration::from_secs(60),
            write_stall: Duration::from_secs(30),
            ping: Duration::from_secs(15),
            drain: Duration::from_secs(30),
            load: Duration::from_secs(300),
        }
    }
}

/// Files in PEM form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and the root.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The set-up of one server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where to listen; port 0: any free one.
    pub bind: SocketAddr,
    /// More ports of that address to listen on.
    pub also: Vec<u16>,
    /// What to speak TLS with; none: plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Keys that may ask; empty: everybody who reaches the port.
    pub api_keys: Vec<String>,
    /// Keys that are stored: with them nobody may ask without one, also when there are none left.
    pub keys: Option<Vec<Key>>,
    /// The key that may read the metrics, and nothing else; none: the first of `api_keys` may.
    pub metrics_key: Option<String>,
    /// By what is sealed what clients keep and send back; none: by a key that is forgotten with
    /// this run.
    pub seal_key: Option<SealKey>,
    /// Allows a bind that others can reach without any key.
    pub insecure_no_auth: bool,
    /// Names besides localhost that a `Host` header may carry on a loopback bind; `*`: any.
    pub allowed_hosts: Vec<String>,
    /// Origins besides its own from which browsers may ask, such as `https://chat.example`,
    /// `app://*` and `*`.
    pub allowed_origins: Vec<String>,
    /// Refuses members of requests that nobody knows, instead of naming them in warnings.
    pub strict: bool,
    /// Writes a line to the log for each request.
    pub access_log: bool,
    /// A file to append who asked what to, one line of JSON a request.
    pub audit: Option<PathBuf>,
    /// Where what clients leave here is kept; none: nothing is.
    pub state: Option<StateConfig>,
    /// A folder to store a receipt of every answer in, with the request itself.
    pub receipts: Option<PathBuf>,
    /// Whence images are fetched that requests name by address; none: from nowhere.
    pub fetch_images: Option<ImageHosts>,
    /// Who takes traces.
    pub traces: Option<Traces>,
    /// Where what is in the prompt cache is told; none: nowhere.
    pub kv_events: Option<KvEvents>,
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
            also: Vec::new(),
            tls: None,
            api_keys: Vec::new(),
            keys: None,
            metrics_key: None,
            seal_key: None,
            insecure_no_auth: false,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            strict: false,
            access_log: true,
            audit: None,
            state: None,
            receipts: None,
            fetch_images: None,
            traces: None,
            kv_events: None,
            limits: Limits::default(),
            timeouts: Timeouts::default(),
        }
    }

    /// Checks what can be checked without opening a socket.
    ///
    /// # Errors
    /// What of the set-up makes no sense, or would let in who should not.
    pub fn check(&self) -> Result<(), ServeError> {
        let keys = self.api_keys.iter().chain(&self.metrics_key);
        if keys.clone().any(|key| key.trim().is_empty()) {
            return Err(ServeError::BadKey);
        }
        let keyless = self.api_keys.is_empty() && self.keys.is_none();
        if keyless && !self.insecure_no_auth && !self.bind.ip().is_loopback() {
            return Err(ServeError::PublicWithoutKey { bind: self.bind });
        }
        for origin in &self.allowed_origins {
            let named = |why| ServeError::BadOrigin { origin: origin.clone(), why };
            check_origin(origin).map_err(named)?;
        }
        for host in &self.allowed_hosts {
            let named = |why| ServeError::BadHost { host: host.clone(), why };
            check_host(host).map_err(named)?;
        }
        let wide = self.allowed_origins.iter().find(|origin| is_wide(origin));
        let wide = wide.or(self.allowed_hosts.iter().find(|host| *host == "*"));
        if let Some(name) = wide.filter(|_| keyless) {
            return Err(ServeError::WideWithoutKey { name: name.clone() });
        }
        self.limits.check().and_then(|()| self.timeouts.check())
    }
}

/// Names a number of the set-up that is out of its range.
fn within(name: &'static str, value: u64, most: u64) -> Result<(), ServeError> {
    match (1..=most).contains(&value) {
        true => Ok(()),
        false => Err(ServeError::BadNumber { name, value, most }),
    }
}

impl Limits {
    /// Every limit lets something through, and is a number that means something.
    fn check(&self) -> Result<(), ServeError> {
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let (million, gigabyte) = (1_000_000, 1 << 30);
        let all = [
            ("body_bytes", count(self.body_bytes), 64 * gigabyte),
            ("bodies_bytes", count(self.bodies_bytes), 1024 * gigabyte),
            // Reading and comparing values recurse.
            ("json_depth", self.json_depth.into(), 512),
            ("json_values", self.json_values.into(), u32::MAX.into()),
            ("headers", count(self.headers), 10_000),
            ("header_bytes", count(self.header_bytes), gigabyte),
            ("connections", count(self.connections), million),
            ("requests", count(self.requests), million),
            ("preparing", count(self.preparing), 4096),
            ("messages", count(self.messages), million),
            ("tools", count(self.tools), million),
            ("prompts", count(self.prompts), million),
            ("inputs", count(self.inputs), million),
            ("choices", self.choices.into(), 1024),
            ("stops", count(self.stops), 1024),
            ("stop_bytes", count(self.stop_bytes), million),
            ("logit_bias", count(self.logit_bias), million),
            ("backlog_bytes", count(self.backlog_bytes), 64 * gigabyte),
            ("file_bytes", self.file_bytes, 1024 * gigabyte),
            ("files_bytes", self.files_bytes, 1024 * gigabyte),
            ("state_bytes", self.state_bytes, 1024 * gigabyte),
            ("receipts_bytes", self.receipts_bytes, 1024 * gigabyte),
            ("batch_lines", count(self.batch_lines), million),
            ("batch_at_once", count(self.batch_at_once), 4096),
        ];
        all.into_iter().try_for_each(|(name, value, most)| within(name, value, most))?;
        // Nobody has more than is left to others, and one body must come in.
        let least = count(self.body_bytes).saturating_mul(2);
        match count(self.bodies_bytes) {
            value if value < least => {
                Err(ServeError::TooFew { name: "bodies_bytes", value, least })
            }
            _ => Ok(()),
        }
    }
}

impl Timeouts {
    /// The longest that any of them means something, seconds: a year.
    const LONGEST_S: u64 = 365 * 24 * 3600;

    fn check(&self) -> Result<(), ServeError> {
        let seconds = |t: Duration| t.as_secs().saturating_add(u64::from(t.subsec_nanos() > 0));
        let all = [
            ("timeout of headers", self.header),
            ("timeout of bodies", self.body),
            ("timeout of writing", self.write_stall),
            ("pause before a ping", self.ping),
            ("time for a model to load", self.load),
        ];
        let mut all = all.into_iter().map(|(name, time)| (name, seconds(time)));
        all.try_for_each(|(name, value)| within(name, value, Self::LONGEST_S))?;
        // Nothing need be waited for.
        let drain = seconds(self.drain).max(1);
        within("time to drain", drain, Self::LONGEST_S)
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
    /// Images cannot be fetched.
    #[error("images cannot be fetched: {reason}")]
    NoFetching {
        /// What the client of HTTP says.
        reason: String,
    },
    /// Any page that a browser shows could use the server.
    #[error(
        "{name:?} lets any page in a browser use this server: set an API key, or name the site"
    )]
    WideWithoutKey {
        /// What was to be allowed.
        name: String,
    },
    /// Not an origin as browsers send it.
    #[error("the origin {origin:?} cannot be allowed: {why}")]
    BadOrigin {
        /// As it was given.
        origin: String,
        /// Why, and what to write.
        why: String,
    },
    /// Not a host name.
    #[error("the host name {host:?} cannot be allowed: {why}")]
    BadHost {
        /// As it was given.
        host: String,
        /// Why, and what to write.
        why: String,
    },
    /// A limit that lets nothing through, or is none.
    #[error("the {name} is {value}: it must be from 1 to {most}")]
    BadNumber {
        /// Which.
        name: &'static str,
        /// As it was given.
        value: u64,
        /// The most that means something.
        most: u64,
    },
    /// A limit that does not let through what another does.
    #[error("the {name} is {value}: it must be at least {least}, twice the longest body")]
    TooFew {
        /// Which.
        name: &'static str,
        /// As it was given.
        value: u64,
        /// The least.
        least: u64,
    },
    /// The file for the audit log.
    #[error("cannot write the audit log {}: {source}", path.display())]
    BadAudit {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The folder where what clients leave is kept.
    #[error("cannot keep anything in {}: {why}", dir.display())]
    BadState {
        /// Which.
        dir: PathBuf,
        /// Why.
        why: String,
    },
    /// The folder of receipts.
    #[error("cannot make the folder of receipts {}: {source}", path.display())]
    BadReceipts {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// An empty key would let everybody in.
    #[error("an API key is empty")]
    BadKey,
    /// A file for TLS that cannot be used.
    #[error("cannot use {} for TLS: {why}", path.display())]
    BadTls {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Nothing to serve.
    #[error("no model to serve")]
    NoModel,
    /// Names of cache blocks are one model's.
    #[error("the prompt cache of one model can be told, and {models} are served")]
    SeveralCaches {
        /// How many.
        models: usize,
    },
    /// Two models answer to one name.
    #[error("two models are called {name:?}")]
    SameName {
        /// The name.
        name: String,
    },
    /// An alias of nothing.
    #[error("the alias {alias:?} is of {model:?}, which is not served")]
    AliasOfNothing {
        /// The alias.
        alias: String,
        /// What it was to be of.
        model: String,
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

    #[test]
    fn sites_are_named_rightly_and_not_all_without_a_key() {
        let check = |origin: &str, host: &str, key: bool| {
            let mut config = ServerConfig::new("127.0.0.1:0".parse().unwrap());
            config.allowed_origins.extend(Some(origin.to_owned()).filter(|o| !o.is_empty()));
            config.allowed_hosts.extend(Some(host.to_owned()).filter(|h| !h.is_empty()));
            config.api_keys.extend(key.then(|| "k".to_owned()));
            config.check().map_err(|error| error.to_string())
        };
        assert_eq!(check("http://localhost:5173", "host.docker.internal", false), Ok(()));
        let cases = [
            ("http://localhost:5173/", "", "write http://localhost:5173"),
            ("", "http://box.lan", "write box.lan"),
        ];
        for (origin, host, word) in cases {
            let why = check(origin, host, true).expect_err("refused");
            assert!(why.contains(word), "{why}");
        }
        for (origin, host) in [("*", ""), ("null", ""), ("", "*")] {
            assert_eq!(check(origin, host, true), Ok(()), "{origin} {host}");
            let why = check(origin, host, false).expect_err("refused");
            assert!(why.contains("set an API key"), "{why}");
        }
    }

    #[test]
    fn limits_mean_something() {
        let refused = |change: fn(&mut ServerConfig)| {
            let mut config = ServerConfig::new("127.0.0.1:0".parse().unwrap());
            change(&mut config);
            config.check().map_err(|error| error.to_string())
        };
        assert_eq!(refused(|c| c.timeouts.drain = Duration::ZERO), Ok(()));
        type Change = fn(&mut ServerConfig);
        let cases: [(Change, &str); 5] = [
            (|c| c.limits.requests = 0, "the requests is 0: it must be from 1 to 1000000"),
            (|c| c.limits.requests = usize::MAX, "the requests is"),
            (|c| c.limits.choices = 0, "the choices is 0"),
            (|c| c.timeouts.body = Duration::ZERO, "the timeout of bodies is 0"),
            (|c| c.timeouts.drain = Duration::MAX, "the time to drain is"),
        ];
        for (change, word) in cases {
            let why = refused(change).expect_err(word);
            assert!(why.contains(word), "{why}");
        }
    }
}

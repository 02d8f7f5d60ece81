//! API keys: kept and compared as SHA-256, in a time that does not depend on where they differ.

use std::sync::Arc;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Request};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};
use sha2::{Digest, Sha256};

use crate::config::ServerConfig;

/// What the holder of a key may have; what is not set is as for anybody.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyLimits {
    /// Requests in any minute.
    pub per_minute: Option<u32>,
    /// Requests at once.
    pub at_once: Option<u32>,
    /// Tokens of a prompt and its answer together.
    pub context: Option<u32>,
    /// Names of models; empty: all.
    pub models: Vec<String>,
    /// Of the cache, what its leases may keep: percent, of which 25 are the most for anybody.
    pub cache: Option<u32>,
    /// May read the metrics, which tell of everybody.
    pub metrics: bool,
}

/// A key as a server keeps it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// Whose it is, for people: it stands in the log.
    pub name: String,
    /// SHA-256 of the key.
    pub digest: [u8; 32],
    /// What its holder may have.
    pub limits: KeyLimits,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({})", self.name)
    }
}

impl Key {
    /// Its holder's account in the engine.
    pub fn account(&self) -> u64 {
        account_of_digest(&self.digest)
    }

    /// Whether its holder may use a model of these names.
    pub fn may_use(&self, names: &[String]) -> bool {
        let models = &self.limits.models;
        models.is_empty() || models.iter().any(|model| names.contains(model))
    }
}

/// The keys that may ask.
#[derive(Debug)]
pub struct ApiKeys {
    all: Vec<Arc<Key>>,
    /// Without any key nobody may ask, instead of everybody.
    required: bool,
    /// May read the metrics, and ask for nothing else.
    metrics: Option<[u8; 32]>,
}

impl ApiKeys {
    /// Those of a set-up; of keys in plain text the digests are kept. The first of these may read the
    /// metrics where no key is set for them.
    pub fn new(config: &ServerConfig) -> Self {
        let metrics = config.metrics_key.as_deref().map(|key| digest(key.as_bytes()));
        let plain = config.api_keys.iter().enumerate().map(|(index, key)| {
            let limits =
                KeyLimits { metrics: index == 0 && metrics.is_none(), ..KeyLimits::default() };
            Key { name: format!("key {}", index + 1), digest: digest(key.as_bytes()), limits }
        });
        let all = plain.chain(config.keys.iter().flatten().cloned()).map(Arc::new).collect();
        Self { all, required: config.keys.is_some(), metrics }
    }

    /// Whether nobody needs a key.
    fn is_open(&self) -> bool {
        self.all.is_empty() && !self.required
    }

    /// Who sends these headers. All keys are compared to the end.
    pub fn caller(&self, headers: &HeaderMap) -> Caller {
        let asked: Vec<[u8; 32]> = shown(headers).map(digest).collect();
        let is_shown =
            |one: &[u8; 32]| asked.iter().fold(false, |known, other| known | same(other, one));
        let key = self.all.iter().fold(None, |found, key| match is_shown(&key.digest) {
            true => found.or(Some(key)),
            false => found,
        });
        self.carrier(key.cloned(), &is_shown)
    }

    /// The holder of a key by his account, as if he asked; that of nobody, where no key is needed.
    pub fn holder(&self, account: u64) -> Option<Caller> {
        let key = self.all.iter().find(|key| key.account() == account).cloned();
        let caller = self.carrier(key, &|_| false);
        caller.is_admitted.then_some(caller)
    }

    /// Who carries a key, or none.
    fn carrier(&self, key: Option<Arc<Key>>, is_shown: &dyn Fn(&[u8; 32]) -> bool) -> Caller {
        let by_key = key.as_ref().is_some_and(|key| key.limits.metrics);
        let is_first = key.as_ref().is_some_and(|key| self.all.first() == Some(key));
        let own = self.metrics.as_ref().is_some_and(is_shown);
        let shares = self.all.len() > 1 || self.required;
        Caller {
            is_admitted: self.is_open() || key.is_some(),
            reads_metrics: own || by_key || (self.is_open() && self.metrics.is_none()),
            may_change: self.is_open() || by_key || is_first,
            account: key.as_ref().filter(|_| shares).map(|key| key.account()),
            key,
        }
    }
}

/// Who sent a request, as far as its headers tell: found once, when it comes.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The key that it carries, as `Authorization: Bearer` or `x-api-key`.
    pub key: Option<Arc<Key>>,
    /// It may ask: it carries a key, or none is set.
    pub is_admitted: bool,
    /// It may read the metrics: it carries the key for them, or one that may.
    pub reads_metrics: bool,
    /// It may change what is there for everybody: it carries the first key, or one that may read the
    /// metrics.
    pub may_change: bool,
    /// Whose share it takes: its key's, where there are several.
    pub account: Option<u64>,
}

impl Caller {
    /// That of a request that came through the gate.
    pub fn of<B>(request: &Request<B>) -> Option<Arc<Self>> {
        request.extensions().get::<Arc<Self>>().cloned()
    }
}

/// The keys a request shows.
fn shown(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
    let plain = headers.get("x-api-key").map(|value| value.as_bytes());
    [bearer, plain].into_iter().flatten()
}

/// Whether a request shows a key, known or not.
pub fn shows_key(headers: &HeaderMap) -> bool {
    shown(headers).next().is_some()
}

/// A name as an account of the engine; never that of nobody.
pub fn account_of(name: &[u8]) -> u64 {
    account_of_digest(&digest(name))
}

fn account_of_digest(digest: &[u8; 32]) -> u64 {
    let head = digest.first_chunk().copied().unwrap_or_default();
    u64::from_le_bytes(head).max(tokenmill_engine::NOBODY + 1)
}

/// Compares without stopping at the first difference.
fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    let difference = a.iter().zip(b).fold(0u8, |d, (x, y)| d | (x ^ y));
    std::hint::black_box(difference) == 0
}

/// A new key: 256 random bits as letters; none where the system gives no random numbers.
pub fn new_secret() -> Option<String> {
    let mut bits = [0; 32];
    SystemRandom::new().fill(&mut bits).ok()?;
    Some(format!("tm-{}", URL_SAFE_NO_PAD.encode(bits)))
}

/// SHA-256.
pub fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// The credential of a `Bearer` header; the scheme's case does not matter.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(key.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(plain: &[&str], stored: Option<Vec<Key>>, metrics: Option<&str>) -> ApiKeys {
        let mut config = ServerConfig::new("127.0.0.1:0".parse().unwrap());
        config.api_keys = plain.iter().map(|key| key.to_string()).collect();
        config.keys = stored;
        config.metrics_key = metrics.map(str::to_owned);
        ApiKeys::new(&config)
    }

    fn show(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())])
    }

    fn stored(name: &str, secret: &str, metrics: bool) -> Key {
        let limits = KeyLimits { metrics, ..KeyLimits::default() };
        Key { name: name.into(), digest: digest(secret.as_bytes()), limits }
    }

    #[test]
    fn accounts_are_told_apart_where_there_are_several_keys() {
        let two = keys(&["alpha", "beta"], None, None);
        let account = |keys: &ApiKeys, shown: &str| keys.caller(&show(shown)).account;
        let (alpha, beta) = (account(&two, "Bearer alpha"), account(&two, "Bearer beta"));
        assert!(alpha.is_some() && beta.is_some() && alpha != beta);
        assert_eq!(account(&two, "Bearer gamma"), None);
        let names = ["alpha", "beta", "gamma"]
            .map(|key| two.caller(&show(&format!("Bearer {key}"))).key.map(|key| key.name.clone()));
        assert_eq!(names, [Some("key 1".to_owned()), Some("key 2".to_owned()), None]);
        assert_eq!(account(&keys(&["alpha"], None, None), "Bearer alpha"), None);
        let ann = vec![stored("ann", "alpha", false)];
        assert!(account(&keys(&[], Some(ann), None), "Bearer alpha").is_some());
    }

    #[test]
    fn stored_keys_are_needed_even_when_all_are_revoked() {
        let none = keys(&[], Some(Vec::new()), None);
        let admits = |keys: &ApiKeys, shown: &str| keys.caller(&show(shown)).is_admitted;
        let nobody = none.caller(&HeaderMap::new());
        assert!(!admits(&none, "Bearer x") && !nobody.is_admitted && !nobody.reads_metrics);
        assert!(!nobody.may_change);
        let two = keys(&["x"], Some(vec![stored("ann", "y", false)]), None);
        assert!(admits(&two, "Bearer x") && admits(&two, "Bearer y"));
        assert!(!admits(&two, "Bearer z"));
        assert!(two.caller(&show("Bearer x")).may_change, "the first");
        assert!(!two.caller(&show("Bearer y")).may_change);
    }

    #[test]
    fn only_the_keys_are_admitted() {
        let two = keys(&["alpha", "beta"], None, None);
        let cases: &[(&str, &str, bool)] = &[
            ("authorization", "Bearer alpha", true),
            ("authorization", "bearer beta", true),
            ("authorization", "BEARER  beta ", true),
            ("x-api-key", "alpha", true),
            ("authorization", "Bearer alph", false),
            ("authorization", "Bearer alphaa", false),
            ("authorization", "Bearer ", false),
            ("authorization", "alpha", false),
            ("authorization", "Basic alpha", false),
            ("x-api-key", "", false),
            ("x-api-key", "Bearer alpha", false),
            ("cookie", "alpha", false),
        ];
        for (name, value, admitted) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(*name, value.parse().unwrap());
            assert_eq!(two.caller(&headers).is_admitted, *admitted, "{name}: {value}");
        }
        assert!(!two.caller(&HeaderMap::new()).is_admitted);
        assert!(keys(&[], None, None).caller(&HeaderMap::new()).is_admitted);
        assert!(!format!("{two:?}").contains("alpha"));
    }

    #[test]
    fn the_metrics_are_for_one_key() {
        let reads = |plain: &[&str], metrics: Option<&str>, shown: &str| {
            keys(plain, None, metrics).caller(&show(shown)).reads_metrics
        };
        let cases: &[(&[&str], Option<&str>, &str, bool)] = &[
            (&[], None, "", true),
            (&[], Some("m"), "", false),
            (&[], Some("m"), "Bearer m", true),
            (&["a", "b"], None, "Bearer a", true),
            (&["a", "b"], None, "Bearer b", false),
            (&["a", "b"], Some("m"), "Bearer a", false),
            (&["a", "b"], Some("m"), "Bearer m", true),
        ];
        for &(plain, metrics, shown, expect) in cases {
            assert_eq!(reads(plain, metrics, shown), expect, "{plain:?} {metrics:?} {shown}");
        }
        let two = vec![stored("ann", "a", true), stored("bob", "b", false)];
        let two = keys(&[], Some(two), None);
        assert!(two.caller(&show("Bearer a")).reads_metrics);
        assert!(!two.caller(&show("Bearer b")).reads_metrics);
    }
}

//! API keys: kept and compared as SHA-256, in a time that does not depend on where they differ.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};

/// The keys that may ask.
pub struct ApiKeys {
    all: Vec<[u8; 32]>,
    /// May read the metrics, and ask for nothing else.
    metrics: Option<[u8; 32]>,
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeys({})", self.all.len())
    }
}

impl ApiKeys {
    /// Takes the keys' digests; the keys themselves are not kept.
    pub fn new(keys: &[String], metrics: Option<&str>) -> Self {
        let all = keys.iter().map(|key| digest(key.as_bytes())).collect();
        Self { all, metrics: metrics.map(|key| digest(key.as_bytes())) }
    }

    /// Whether a request may read the metrics: with the key for them, or where there is none the
    /// first of all keys. They tell of everybody, so other keys may not.
    pub fn admit_to_metrics(&self, headers: &HeaderMap) -> bool {
        let Some(key) = self.metrics.as_ref().or(self.all.first()) else { return true };
        shown(headers).fold(false, |known, one| known | same(key, &digest(one)))
    }

    /// Whether a request carries one of them, as `Authorization: Bearer` or `x-api-key`. Without
    /// any key everybody may ask.
    pub fn admit(&self, headers: &HeaderMap) -> bool {
        self.all.is_empty() || shown(headers).fold(false, |known, key| known | self.knows(key))
    }

    /// Whose share an admitted request takes: its key's, where there are several.
    pub fn account(&self, headers: &HeaderMap) -> Option<u64> {
        let shares = self.all.len() > 1;
        let key = shown(headers).find(|key| shares && self.knows(key))?;
        Some(account_of(key))
    }

    /// Which of the keys a request carries, counted from 1, for the log.
    pub fn number(&self, headers: &HeaderMap) -> Option<usize> {
        let digests: Vec<[u8; 32]> = match self.all.is_empty() {
            true => Vec::new(),
            false => shown(headers).map(digest).collect(),
        };
        let known = |key: &[u8; 32]| digests.iter().any(|one| same(one, key));
        self.all.iter().position(known).map(|at| at + 1)
    }

    /// Every key is compared to the end.
    fn knows(&self, key: &[u8]) -> bool {
        let asked = digest(key);
        self.all.iter().fold(false, |known, one| known | same(one, &asked))
    }
}

/// The keys a request shows.
fn shown(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
    let plain = headers.get("x-api-key").map(|value| value.as_bytes());
    [bearer, plain].into_iter().flatten()
}

/// A name as an account of the engine; never that of nobody.
pub fn account_of(name: &[u8]) -> u64 {
    let head = digest(name).first_chunk().copied().unwrap_or_default();
    u64::from_le_bytes(head).max(tokenmill_engine::NOBODY + 1)
}

/// Compares without stopping at the first difference.
fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    let difference = a.iter().zip(b).fold(0u8, |d, (x, y)| d | (x ^ y));
    std::hint::black_box(difference) == 0
}

fn digest(key: &[u8]) -> [u8; 32] {
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

    #[test]
    fn accounts_are_told_apart_where_there_are_several_keys() {
        let show = |key: &str| HeaderMap::from_iter([(AUTHORIZATION, key.parse().unwrap())]);
        let two = ApiKeys::new(&["alpha".into(), "beta".into()], None);
        let (alpha, beta) = (two.account(&show("Bearer alpha")), two.account(&show("Bearer beta")));
        assert!(alpha.is_some() && beta.is_some() && alpha != beta);
        assert_eq!(two.account(&show("Bearer gamma")), None);
        let numbers = ["alpha", "beta", "gamma"].map(|k| two.number(&show(&format!("Bearer {k}"))));
        assert_eq!(numbers, [Some(1), Some(2), None]);
        assert_eq!(ApiKeys::new(&["alpha".into()], None).account(&show("Bearer alpha")), None);
    }

    #[test]
    fn only_the_keys_are_admitted() {
        let keys = ApiKeys::new(&["alpha".into(), "beta".into()], None);
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
            assert_eq!(keys.admit(&headers), *admitted, "{name}: {value}");
        }
        assert!(!keys.admit(&HeaderMap::new()));
        assert!(ApiKeys::new(&[], None).admit(&HeaderMap::new()));
        assert!(!format!("{keys:?}").contains("alpha"));
    }
    #[test]
    fn the_metrics_are_for_one_key() {
        let reads = |keys: &[&str], metrics: Option<&str>, shown: &str| {
            let keys: Vec<String> = keys.iter().map(|key| key.to_string()).collect();
            let headers = HeaderMap::from_iter([(AUTHORIZATION, shown.parse().unwrap())]);
            ApiKeys::new(&keys, metrics).admit_to_metrics(&headers)
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
        for &(keys, metrics, shown, expect) in cases {
            assert_eq!(reads(keys, metrics, shown), expect, "{keys:?} {metrics:?} {shown}");
        }
    }
}

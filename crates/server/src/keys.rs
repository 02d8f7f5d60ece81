//! API keys: kept and compared as SHA-256, in a time that does not depend on where they differ.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};

/// The keys that may ask.
pub struct ApiKeys(Vec<[u8; 32]>);

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeys({})", self.0.len())
    }
}

impl ApiKeys {
    /// Takes the keys' digests; the keys themselves are not kept.
    pub fn new(keys: &[String]) -> Self {
        Self(keys.iter().map(|key| digest(key.as_bytes())).collect())
    }

    /// Whether a request carries one of them, as `Authorization: Bearer` or `x-api-key`. Without
    /// any key everybody may ask.
    pub fn admit(&self, headers: &HeaderMap) -> bool {
        self.0.is_empty() || shown(headers).fold(false, |known, key| known | self.knows(key))
    }

    /// Whose share an admitted request takes: its key's, where there are several.
    pub fn account(&self, headers: &HeaderMap) -> Option<u64> {
        let shares = self.0.len() > 1;
        let key = shown(headers).find(|key| shares && self.knows(key))?;
        Some(account_of(key))
    }

    /// Which of the keys a request carries, counted from 1, for the log.
    pub fn number(&self, headers: &HeaderMap) -> Option<usize> {
        let digests: Vec<[u8; 32]> = match self.0.is_empty() {
            true => Vec::new(),
            false => shown(headers).map(digest).collect(),
        };
        let known = |key: &[u8; 32]| digests.iter().any(|one| same(one, key));
        self.0.iter().position(known).map(|at| at + 1)
    }

    /// Every key is compared to the end.
    fn knows(&self, key: &[u8]) -> bool {
        let asked = digest(key);
        self.0.iter().fold(false, |known, one| known | same(one, &asked))
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
        let two = ApiKeys::new(&["alpha".into(), "beta".into()]);
        let (alpha, beta) = (two.account(&show("Bearer alpha")), two.account(&show("Bearer beta")));
        assert!(alpha.is_some() && beta.is_some() && alpha != beta);
        assert_eq!(two.account(&show("Bearer gamma")), None);
        let numbers = ["alpha", "beta", "gamma"].map(|k| two.number(&show(&format!("Bearer {k}"))));
        assert_eq!(numbers, [Some(1), Some(2), None]);
        assert_eq!(ApiKeys::new(&["alpha".into()]).account(&show("Bearer alpha")), None);
    }

    #[test]
    fn only_the_keys_are_admitted() {
        let keys = ApiKeys::new(&["alpha".into(), "beta".into()]);
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
        assert!(ApiKeys::new(&[]).admit(&HeaderMap::new()));
        assert!(!format!("{keys:?}").contains("alpha"));
    }
}

//! Text that goes out to a client and comes back with a later request: sealed, so that nobody reads
//! or changes it on the way.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

/// What is sealed: one kind never opens as another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What a model thought.
    Reasoning,
    /// The summary of a conversation.
    Summary,
}

impl Kind {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Reasoning => b"reasoning",
            Self::Summary => b"summary",
        }
    }
}

/// A key of this server, and for whom it is used: what was sealed for one account opens for no
/// other. The default has no key: it seals and opens nothing.
#[derive(Clone, Default)]
pub struct Seal {
    key: Option<Arc<LessSafeKey>>,
    account: Option<u64>,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

impl Seal {
    /// With a key of its own.
    pub fn random() -> Self {
        let mut key = [0; 32];
        match SystemRandom::new().fill(&mut key) {
            Ok(()) => Self::with(&key),
            Err(_) => {
                tracing::warn!("the system gives no random numbers: reasoning is not sealed");
                Self::default()
            }
        }
    }

    fn with(key: &[u8; 32]) -> Self {
        let key = UnboundKey::new(&CHACHA20_POLY1305, key);
        Self { key: key.ok().map(|key| Arc::new(LessSafeKey::new(key))), account: None }
    }

    /// The same key for one account; `None` where there are none.
    pub fn of(&self, account: Option<u64>) -> Self {
        Self { key: self.key.clone(), account }
    }

    /// What is sealed along with a text, and for whom.
    fn bound(&self, kind: Kind) -> Aad<Vec<u8>> {
        let mut all = kind.name().to_vec();
        if let Some(account) = self.account {
            all.push(0);
            all.extend(account.to_be_bytes());
        }
        Aad::from(all)
    }

    /// The text, sealed: item `number` of the answer `ticket`. No two texts of one key share both.
    pub fn seal(&self, kind: Kind, (ticket, number): (u64, u32), text: &str) -> Option<String> {
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&ticket.to_be_bytes());
        nonce[8..].copy_from_slice(&number.to_be_bytes());
        let mut sealed = text.as_bytes().to_vec();
        let aad = self.bound(kind);
        let unique = Nonce::assume_unique_for_key(nonce);
        self.key.as_ref()?.seal_in_place_append_tag(unique, aad, &mut sealed).ok()?;
        let whole: Vec<u8> = nonce.into_iter().chain(sealed).collect();
        Some(STANDARD.encode(whole))
    }

    /// The text, if this key sealed it as that.
    pub fn open(&self, kind: Kind, sealed: &str) -> Option<String> {
        let mut whole = STANDARD.decode(sealed).ok()?;
        let (nonce, text) = whole.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let text = self.key.as_ref()?.open_in_place(nonce, self.bound(kind), text).ok()?;
        String::from_utf8(text.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_opens_what_it_sealed_as_that_and_nothing_else() {
        let (seal, other) = (Seal::random(), Seal::random());
        let sealed = seal.seal(Kind::Reasoning, (7, 1), "grüß").expect("sealed");
        assert_eq!(seal.open(Kind::Reasoning, &sealed).as_deref(), Some("grüß"));
        assert_eq!(seal.open(Kind::Summary, &sealed), None);
        assert_eq!(other.open(Kind::Reasoning, &sealed), None);
        assert_ne!(seal.seal(Kind::Reasoning, (7, 2), "grüß"), Some(sealed.clone()));
        let mut bytes = STANDARD.decode(&sealed).expect("base64");
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert_eq!(seal.open(Kind::Reasoning, &STANDARD.encode(&bytes)), None, "byte {at}");
            bytes[at] ^= 1;
        }
        for text in ["", "QUJD", "no base64!"] {
            assert_eq!(seal.open(Kind::Reasoning, text), None, "{text}");
        }
        let (one, two) = (seal.of(Some(1)), seal.of(Some(2)));
        let sealed = one.seal(Kind::Reasoning, (7, 3), "mine").expect("sealed");
        assert_eq!(one.clone().open(Kind::Reasoning, &sealed).as_deref(), Some("mine"));
        assert_eq!(two.open(Kind::Reasoning, &sealed), None, "another account");
        assert_eq!(seal.open(Kind::Reasoning, &sealed), None, "no account");
        assert_eq!(Seal::default().seal(Kind::Reasoning, (0, 0), "a"), None);
    }
}

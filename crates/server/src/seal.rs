//! Text that goes out to a client and comes back with a later request: sealed, so that nobody reads
//! or changes it on the way.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of a key, of which its text has two digits each.
const KEY_BYTES: usize = 32;
/// Bytes that tell the runs of servers of one key apart.
const SALT_BYTES: usize = 16;
/// What keys are made for.
const PURPOSE: &[u8] = b"tokenmill seal 1";

/// What a server seals by, which it may keep from one run to the next.
#[derive(Clone)]
pub struct SealKey([u8; KEY_BYTES]);

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey")
    }
}

impl SealKey {
    /// A new one; `None` where the system gives no random numbers.
    pub fn random() -> Option<Self> {
        random().map(Self)
    }

    /// Reads the text of one: 64 hexadecimal digits, white space around them.
    ///
    /// # Errors
    /// What of the text is no key.
    pub fn of_text(text: &str) -> Result<Self, String> {
        let digits = text.trim().as_bytes();
        let wanted = 2 * KEY_BYTES;
        if digits.len() != wanted {
            let found = digits.len();
            return Err(format!("a key has {wanted} hexadecimal digits, this has {found} bytes"));
        }
        let mut key = [0; KEY_BYTES];
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).ok().filter(|pair| !pair.starts_with('+'));
            let value = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok());
            *byte = value.ok_or("a key has hexadecimal digits only, this has others")?;
        }
        Ok(Self(key))
    }

    /// Its text.
    pub fn text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// So many random bytes.
fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).ok().map(|()| bytes)
}

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
///
/// Each run has a key of its own, made of the server's and a salt that stands before what it seals:
/// no two runs seal by the same numbers.
#[derive(Clone, Default)]
pub struct Seal {
    own: Option<Arc<Own>>,
    account: Option<u64>,
}

/// The key of this run.
struct Own {
    server: SealKey,
    salt: [u8; SALT_BYTES],
    key: LessSafeKey,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

impl Seal {
    /// With that key; `None`: one that is forgotten with this run.
    pub fn new(key: Option<SealKey>) -> Self {
        let own = key.or_else(SealKey::random).zip(random()).and_then(|(server, salt)| {
            let key = of_run(&server, &salt)?;
            Some(Arc::new(Own { server, salt, key }))
        });
        if own.is_none() {
            tracing::warn!("the system gives no random numbers: reasoning is not sealed");
        }
        Self { own, account: None }
    }

    /// The same key for one account; `None` where there are none.
    pub fn of(&self, account: Option<u64>) -> Self {
        Self { own: self.own.clone(), account }
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

    /// The text, sealed: item `number` of the answer `ticket`. No two texts of one run share both.
    pub fn seal(&self, kind: Kind, (ticket, number): (u64, u32), text: &str) -> Option<String> {
        let own = self.own.as_ref()?;
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&ticket.to_be_bytes());
        nonce[8..].copy_from_slice(&number.to_be_bytes());
        let mut sealed = text.as_bytes().to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        own.key.seal_in_place_append_tag(unique, self.bound(kind), &mut sealed).ok()?;
        let whole: Vec<u8> = own.salt.into_iter().chain(nonce).chain(sealed).collect();
        Some(STANDARD.encode(whole))
    }

    /// The text, if a run with this key sealed it as that.
    pub fn open(&self, kind: Kind, sealed: &str) -> Option<String> {
        let own = self.own.as_ref()?;
        let mut whole = STANDARD.decode(sealed).ok()?;
        let (salt, rest) = whole.split_first_chunk_mut()?;
        let (nonce, text) = rest.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let text = of_run(&own.server, salt)?.open_in_place(nonce, self.bound(kind), text).ok()?;
        String::from_utf8(text.to_vec()).ok()
    }
}

/// The key of a run.
fn of_run(server: &SealKey, salt: &[u8; SALT_BYTES]) -> Option<LessSafeKey> {
    let root = Salt::new(HKDF_SHA256, salt).extract(&server.0);
    let key = root.expand(&[PURPOSE], &CHACHA20_POLY1305).ok()?;
    Some(LessSafeKey::new(UnboundKey::from(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_opens_what_it_sealed_as_that_and_nothing_else() {
        let (seal, other) = (Seal::new(None), Seal::new(None));
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

    #[test]
    fn what_one_run_sealed_opens_in_another_with_its_key() {
        let key = SealKey::random().expect("a key");
        let kept = SealKey::of_text(&format!(" {}\n", key.text())).expect("a key");
        let (one, two) = (Seal::new(Some(key)), Seal::new(Some(kept)));
        let sealed = one.of(Some(1)).seal(Kind::Reasoning, (7, 1), "mine").expect("sealed");
        let again = two.of(Some(1)).seal(Kind::Reasoning, (7, 1), "mine").expect("sealed");
        assert_ne!(sealed, again, "each run has a key of its own");
        assert_eq!(two.of(Some(1)).open(Kind::Reasoning, &sealed).as_deref(), Some("mine"));
        assert_eq!(two.open(Kind::Reasoning, &sealed), None, "no account");
        for (text, word) in [("", "0 bytes"), ("ab", "2 bytes"), (&"+f".repeat(32), "digits only")]
        {
            let why = SealKey::of_text(text).expect_err("refused");
            assert!(why.contains(word), "{text}: {why}");
        }
        assert_eq!(format!("{:?}", SealKey::of_text(&"0f".repeat(32))), "Ok(SealKey)");
    }
}

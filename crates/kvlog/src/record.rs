//! A record: the cache of one run of tokens, and what it must agree with to be used.
//!
//! ```text
//!   0  magic 8 · version u32 · tokens u32 · payload bytes u64 · first u32 · kind u32 · salt u64 · 0 u64
//!  48  id 16 · parent 16 · key 32 · blake3 of the payload 32 · blake3 of [0, 144) and the tokens 32
//! 176  tokens, u32 each · payload                                              all little endian
//! ```

use std::fmt;

/// Starts every record.
const MAGIC: [u8; 8] = *b"tokenkv\n";
/// Version of this layout. 1 had no kinds.
const VERSION: u32 = 2;
/// Bytes before the tokens.
pub(crate) const HEADER_BYTES: usize = 176;
const HASHED_BYTES: usize = 144;
/// Most tokens of a run: bounds what a damaged header can ask for.
const MAX_TOKENS: u32 = 1 << 16;

/// What the numbers of a cache depend on, besides its tokens: weights, numerics, device layout.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key([u8; 32]);

/// Makes a [`Key`] of parts, in order.
#[derive(Default)]
pub struct KeyParts(blake3::Hasher);

impl KeyParts {
    /// One more part.
    pub fn add(&mut self, part: &[u8]) {
        // Lengths keep ("ab", "c") and ("a", "bc") apart.
        self.0.update(&(part.len() as u64).to_le_bytes()).update(part);
    }

    /// The key of all parts.
    pub fn key(&self) -> Key {
        Key(*self.0.finalize().as_bytes())
    }
}

impl Key {
    /// The key of those parts.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut all = KeyParts::default();
        parts.into_iter().for_each(|p| all.add(p));
        all.key()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// Names a text that ends with a run: chained over runs by blake3 from the key and the salt, so
/// equal ids mean equal texts under one key. Frozen: it names records on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RunId([u8; 16]);

impl RunId {
    /// The empty text; `salt` keeps tenants and adapters apart.
    pub fn root(key: &Key, salt: u64) -> Self {
        Self::cut(blake3::Hasher::new().update(&key.0).update(&salt.to_le_bytes()))
    }

    /// The text with one more run.
    #[must_use]
    pub fn then(self, tokens: &[u32]) -> Self {
        let mut hash = blake3::Hasher::new();
        hash.update(&self.0);
        for token in tokens {
            hash.update(&token.to_le_bytes());
        }
        Self::cut(&hash)
    }

    /// The states at the text's end. No text has this id: tokens take four bytes each.
    #[must_use]
    pub fn state(self) -> Self {
        Self::cut(blake3::Hasher::new().update(&self.0).update(b"state"))
    }

    fn cut(hash: &blake3::Hasher) -> Self {
        let mut id = [0; 16];
        hash.finalize_xof().fill(&mut id);
        Self(id)
    }
}

/// A run of tokens within a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run<'a> {
    /// The text before it.
    pub parent: RunId,
    /// As in [`RunId::root`].
    pub salt: u64,
    /// Tokens before it.
    pub first: u32,
    /// Its tokens.
    pub tokens: &'a [u32],
    /// What its record holds.
    pub kind: RunKind,
}

/// What a record holds. Frozen: the numbers stand on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum RunKind {
    /// Blocks of keys and values; longer texts go on from it.
    Blocks = 0,
    /// Those and the recurrent states at its end; no text is chained to it.
    State = 1,
}

impl Run<'_> {
    /// The text up to its end; runs of another kind have another.
    pub fn id(&self) -> RunId {
        let text = self.parent.then(self.tokens);
        match self.kind {
            RunKind::Blocks => text,
            RunKind::State => text.state(),
        }
    }
}

/// What a header says, its own checksum verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub id: RunId,
    pub parent: RunId,
    pub key: Key,
    pub salt: u64,
    pub first: u32,
    pub tokens: u32,
    pub kind: u32,
    pub payload_bytes: u64,
    pub payload_hash: [u8; 32],
}

/// What stands where a record may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// A record of this version, not yet verified, with that many tokens.
    Record { tokens: u32 },
    /// A record of a version this program does not know.
    Foreign,
    /// Nothing that can be used.
    Damaged,
}

/// Looks at the first bytes of a record. [HEADER_BYTES]
pub(crate) fn start_of(bytes: &[u8]) -> Start {
    let mut at = Fields(bytes);
    if at.take::<8>() != MAGIC {
        return Start::Damaged;
    }
    if at.u32() != VERSION {
        return Start::Foreign;
    }
    match at.u32() {
        tokens @ 1..=MAX_TOKENS => Start::Record { tokens },
        _ => Start::Damaged,
    }
}

impl Header {
    /// The header of a run with that payload.
    pub fn new(run: &Run<'_>, key: Key, payload: &[u8]) -> Self {
        Self {
            id: run.id(),
            parent: run.parent,
            key,
            salt: run.salt,
            first: run.first,
            tokens: run.tokens.len() as u32,
            kind: run.kind as u32,
            payload_bytes: payload.len() as u64,
            payload_hash: *blake3::hash(payload).as_bytes(),
        }
    }

    /// Bytes of the whole record.
    pub fn record_bytes(&self) -> u64 {
        (HEADER_BYTES as u64 + u64::from(self.tokens) * 4).saturating_add(self.payload_bytes)
    }

    /// Header and tokens as they stand on disk.
    pub fn encode(&self, tokens: &[u32]) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + tokens.len() * 4);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.tokens.to_le_bytes());
        out.extend_from_slice(&self.payload_bytes.to_le_bytes());
        out.extend_from_slice(&self.first.to_le_bytes());
        out.extend_from_slice(&self.kind.to_le_bytes());
        out.extend_from_slice(&self.salt.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&self.id.0);
        out.extend_from_slice(&self.parent.0);
        out.extend_from_slice(&self.key.0);
        out.extend_from_slice(&self.payload_hash);
        let tokens: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        let hash = header_hash(&out, &tokens);
        out.extend_from_slice(&hash);
        out.extend_from_slice(&tokens);
        out
    }

    /// Reads header and tokens, `bytes` being as long as [`start_of`] said; `None` where the
    /// checksum is wrong.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let Start::Record { tokens } = start_of(bytes) else { return None };
        let all = bytes.get(..HEADER_BYTES + tokens as usize * 4)?;
        let (head, rest) = all.split_at(HASHED_BYTES);
        let (hash, text) = rest.split_at(HEADER_BYTES - HASHED_BYTES);
        if header_hash(head, text) != hash {
            return None;
        }
        let mut at = Fields(head);
        at.take::<16>();
        let payload_bytes = at.u64();
        let first = at.u32();
        let kind = at.u32();
        let salt = at.u64();
        at.take::<8>();
        Some(Self {
            id: RunId(at.take()),
            parent: RunId(at.take()),
            key: Key(at.take()),
            payload_hash: at.take(),
            salt,
            first,
            tokens,
            kind,
            payload_bytes,
        })
    }
}

fn header_hash(head: &[u8], tokens: &[u8]) -> [u8; 32] {
    *blake3::Hasher::new().update(head).update(tokens).finalize().as_bytes()
}

/// Whether a record read back whole is that run under that key; its payload then.
pub(crate) fn verify<'b>(record: &'b [u8], run: &Run<'_>, key: Key) -> Option<&'b [u8]> {
    let header = Header::decode(record)?;
    let at = HEADER_BYTES + header.tokens as usize * 4;
    let (text, payload) = (record.get(HEADER_BYTES..at)?, record.get(at..)?);
    let tokens = text.as_chunks::<4>().0.iter().map(|t| u32::from_le_bytes(*t));
    let same = tokens.eq(run.tokens.iter().copied())
        && (header.parent, header.id, header.key) == (run.parent, run.id(), key)
        && (header.salt, header.first, header.kind) == (run.salt, run.first, run.kind as u32)
        && header.payload_bytes == payload.len() as u64;
    (same && *blake3::hash(payload).as_bytes() == header.payload_hash).then_some(payload)
}

/// Takes fields off the front; zeros past the end.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let (now, rest) = self.0.split_at(N.min(self.0.len()));
        out[..now.len()].copy_from_slice(now);
        self.0 = rest;
        out
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [RunKind; 2] = [RunKind::Blocks, RunKind::State];

    fn run<'t>(key: &Key, tokens: &'t [u32], kind: RunKind) -> Run<'t> {
        Run { parent: RunId::root(key, 7), salt: 7, first: 0, tokens, kind }
    }

    fn record(kind: RunKind) -> (Key, Vec<u32>, Vec<u8>) {
        let key = Key::of([b"weights".as_slice(), b"numerics 1"]);
        let tokens = vec![3, 1, 4, 1];
        let run = run(&key, &tokens, kind);
        let payload = [9u8; 50];
        let mut bytes = Header::new(&run, key, &payload).encode(&tokens);
        bytes.extend_from_slice(&payload);
        (key, tokens, bytes)
    }

    #[test]
    fn a_record_is_used_for_its_run_alone() {
        for (kind, other_kind) in [(KINDS[0], KINDS[1]), (KINDS[1], KINDS[0])] {
            let (key, tokens, bytes) = record(kind);
            let run = run(&key, &tokens, kind);
            assert_eq!(verify(&bytes, &run, key), Some([9u8; 50].as_slice()));
            let other = Key::of([b"weights".as_slice(), b"numerics 2"]);
            assert_eq!(verify(&bytes, &run, other), None, "another key");
            for wrong in [
                Run { parent: RunId::root(&key, 8), ..run },
                Run { salt: 8, ..run },
                Run { first: 4, ..run },
                Run { tokens: &[3, 1, 4, 2], ..run },
                Run { tokens: &[3, 1, 4], ..run },
                Run { kind: other_kind, ..run },
            ] {
                assert_eq!(verify(&bytes, &wrong, key), None, "{wrong:?}");
            }
        }
    }

    #[test]
    fn a_kind_that_is_not_the_ids_is_not_used() {
        // As if a program had written the wrong kind with the right id, checksums and all.
        let (key, tokens, bytes) = record(RunKind::State);
        let run = run(&key, &tokens, RunKind::State);
        let header = Header::decode(&bytes).expect("a whole header");
        for kind in [0, 2, u32::MAX] {
            let mut bytes = Header { kind, ..header }.encode(&tokens);
            bytes.extend_from_slice(&[9; 50]);
            assert!(Header::decode(&bytes).is_some());
            assert_eq!(verify(&bytes, &run, key), None, "kind {kind}");
        }
    }

    #[test]
    fn no_flipped_bit_and_no_cut_is_overlooked() {
        for kind in KINDS {
            let (key, tokens, bytes) = record(kind);
            let run = run(&key, &tokens, kind);
            for bit in 0..bytes.len() * 8 {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(verify(&bytes, &run, key), None, "bit {bit}");
            }
            for len in 0..bytes.len() {
                assert_eq!(verify(&bytes[..len], &run, key), None, "{len} bytes");
            }
        }
    }

    #[test]
    fn ids_are_frozen() {
        // Names of records on disk: they must not change between versions.
        let key = Key::of([b"k".as_slice()]);
        let id = RunId::root(&key, 1).then(&[1, 2, 3]);
        let hex: String = id.0.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "2ca7381f1bde9a6dd5e2466f38e81d6e");
        assert_ne!(id, RunId::root(&key, 1).then(&[1, 3, 2]));
        assert_ne!(RunId::root(&key, 1), RunId::root(&key, 2));
        let hex: String = id.state().0.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "89a1524afcc0350c7fa68fb623318adc");
    }
}

//! The two digests models come with: SHA-256, and git's SHA-1 of small files.

use crate::error::{StoreError, disk_error};
use sha2::Digest as _;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// What a file must hash to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Digest {
    /// SHA-256 of the bytes.
    Sha256([u8; 32]),
    /// Git's object name: SHA-1 of `blob <length>\0` and the bytes. The hub gives no other digest
    /// for files outside large-file storage.
    GitBlob([u8; 20]),
}

impl Digest {
    /// From 64 or 40 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        match text.len() {
            64 => unhex(text).map(Self::Sha256),
            40 => unhex(text).map(Self::GitBlob),
            _ => None,
        }
    }

    /// Lower-case hexadecimal; also the file's name among the blobs of the Hugging Face cache.
    pub fn hex(&self) -> String {
        match self {
            Self::Sha256(bytes) => hex(bytes),
            Self::GitBlob(bytes) => hex(bytes),
        }
    }

    /// The digest of the same kind of the file at `path`; `on_bytes` hears the bytes read so far.
    pub(crate) fn of_file_like(
        &self,
        path: &Path,
        on_bytes: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, StoreError> {
        let fail = |e| disk_error("read", path, 0, e);
        let mut file = File::open(path).map_err(fail)?;
        let total = file.metadata().map_err(fail)?.len();
        match self {
            Self::Sha256(_) => {
                let mut state = sha2::Sha256::new();
                feed(&mut file, total, on_bytes, &mut |b| state.update(b)).map_err(fail)?;
                Ok(Self::Sha256(state.finalize().into()))
            }
            Self::GitBlob(_) => {
                let mut state = sha1::Sha1::new();
                state.update(format!("blob {total}\0").as_bytes());
                feed(&mut file, total, on_bytes, &mut |b| state.update(b)).map_err(fail)?;
                Ok(Self::GitBlob(state.finalize().into()))
            }
        }
    }
}

fn feed(
    file: &mut File,
    total: u64,
    on_bytes: &mut dyn FnMut(u64, u64),
    update: &mut dyn FnMut(&[u8]),
) -> std::io::Result<()> {
    let mut buffer = vec![0u8; 1 << 20];
    let mut done = 0u64;
    loop {
        let n = file.read(&mut buffer)?;
        let Some(part) = buffer.get(..n).filter(|p| !p.is_empty()) else { return Ok(()) };
        update(part);
        done += n as u64;
        on_bytes(done, total);
    }
}

/// Lower-case hexadecimal of bytes.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut out = [0u8; N];
    let digits: Vec<u32> = text.chars().map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        if let [high, low] = pair {
            *byte = u8::try_from(high * 16 + low).ok()?;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_digests() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"hello\n").unwrap();
        // `sha256sum` and `git hash-object` of "hello\n"
        for expect in [
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
            "ce013625030ba8dba906f756967f9e9ca394464a",
        ] {
            let digest = Digest::parse(expect).unwrap();
            let found = digest.of_file_like(&path, &mut |_, _| {}).unwrap();
            assert_eq!(found.hex(), expect);
        }
    }

    #[test]
    fn only_hex_of_the_right_length() {
        for text in ["", "abc", &"g".repeat(64), &"é".repeat(20), &"a".repeat(63), "../../../x"] {
            assert_eq!(Digest::parse(text), None, "{text}");
        }
        assert!(Digest::parse(&"A".repeat(64)).is_some());
    }
}

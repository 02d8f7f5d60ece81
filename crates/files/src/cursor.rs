//! A checked walk over the bytes of a file: every read says what it is for.

use std::path::Path;

use crate::error::{LoadError, shorten};

/// A position in a file's bytes.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    pub(crate) path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

/// Little-endian reads of the primitive types.
macro_rules! reads {
    ($($name:ident: $ty:ty),*) => {
        $(pub(crate) fn $name(&mut self, place: &str) -> Result<$ty, LoadError> {
            Ok(<$ty>::from_le_bytes(self.array(place)?))
        })*
    };
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Cursor { path, bytes, at: 0 }
    }

    /// Bytes from the start of the file.
    pub(crate) fn offset(&self) -> u64 {
        self.at as u64
    }

    /// Bytes not yet read.
    pub(crate) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `len` bytes.
    pub(crate) fn take(&mut self, len: u64, place: &str) -> Result<&'a [u8], LoadError> {
        let found = usize::try_from(len)
            .ok()
            .and_then(|len| self.at.checked_add(len))
            .and_then(|end| self.bytes.get(self.at..end));
        let Some(found) = found else {
            return Err(LoadError::Truncated {
                path: self.path.to_owned(),
                place: shorten(place.to_owned()),
                offset: self.offset(),
                needed: len,
                left: self.left(),
            });
        };
        self.at += found.len();
        Ok(found)
    }

    fn array<const N: usize>(&mut self, place: &str) -> Result<[u8; N], LoadError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N as u64, place)?);
        Ok(bytes)
    }

    reads!(u8: u8, u16: u16, u32: u32, u64: u64, i8: i8, i16: i16, i32: i32, i64: i64, f32: f32,
           f64: f64);
}

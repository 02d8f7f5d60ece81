//! A file mapped read-only: the only unsafe code of this crate.
//!
//! Risk: if another program truncates the file while it is mapped, touching a page beyond the
//! new end kills this process (SIGBUS on Unix). The length is checked when the file is opened;
//! [`MappedFile::read_at`] copies through ordinary reads instead, which return an error.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::bundle::Bundle;
use crate::error::LoadError;

/// A regular file, its length, and its bytes mapped; of a [`Bundle`], the model in it.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    file: File,
    /// What of the file is meant.
    part: Range<usize>,
    map: Option<memmap2::Mmap>, // None: the file is empty
}

impl MappedFile {
    /// Opens and maps the file at `path`.
    ///
    /// # Errors
    /// [`LoadError::Io`]; [`LoadError::NotAModel`] if it is not a regular file or changes its
    /// length while being opened; [`LoadError::Invalid`] for a bundle whose parts do not fit.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let io_error = |e| LoadError::io(path, e);
        let mut file = open_regular(path)?;
        let before = file.metadata().map_err(io_error)?;
        let bundle = Bundle::find(path, &mut file)?;
        let map = if before.len() == 0 {
            None
        } else {
            // SAFETY: the map is read-only and private to this struct, which keeps the file
            // open. Nothing here writes to the file; that others may is the documented risk,
            // and bytes read from the map are never trusted to stay the same between reads.
            Some(unsafe { memmap2::Mmap::map(&file) }.map_err(io_error)?)
        };
        let all = map.as_deref().map_or(0, <[u8]>::len);
        let after = file.metadata().map_err(io_error)?.len();
        // (A bundle's parts were seen to lie in the file.)
        let part = bundle.map_or(0..all, |bundle| {
            bundle.offset as usize..(bundle.offset + bundle.model_bytes) as usize
        });
        if before.len() != after || all as u64 != after || part.end > all {
            return Err(LoadError::not_a_model(path, "the file is being written to"));
        }
        Ok(MappedFile { path: path.to_owned(), file, part, map })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length when it was opened, bytes.
    pub fn len_bytes(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// All of it, mapped.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().and_then(|map| map.get(self.part.clone())).unwrap_or(&[])
    }

    /// Copies `out.len()` bytes from `offset` with ordinary reads, so that a file that has
    /// shrunk is an error.
    ///
    /// # Errors
    /// [`LoadError::Io`], of kind `UnexpectedEof` where the file ends too early.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), LoadError> {
        let offset = self.part.start as u64 + offset;
        read_exact_at(&self.file, offset, out).map_err(|e| LoadError::io(&self.path, e))
    }
}

/// Opens a regular file. Others are refused before, since opening a pipe waits for its writer.
pub(crate) fn open_regular(path: &Path) -> Result<File, LoadError> {
    let io_error = |e| LoadError::io(path, e);
    if !std::fs::metadata(path).map_err(io_error)?.is_file() {
        return Err(LoadError::not_a_model(path, "not a regular file"));
    }
    File::open(path).map_err(io_error)
}

#[cfg(unix)]
fn read_exact_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !out.is_empty() {
        match file.seek_read(out, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                out = &mut out[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// No such system has files.
#[cfg(not(any(unix, windows)))]
fn read_exact_at(_: &File, _: u64, _: &mut [u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_and_read_agree_and_a_shrunk_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let content: Vec<u8> = (0..=255).cycle().take(20_000).collect();
        std::fs::write(&path, &content).unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        assert_eq!(mapped.bytes(), content);
        let mut out = [0; 300];
        mapped.read_at(9_000, &mut out).unwrap();
        assert_eq!(out, content[9_000..9_300]);
        std::fs::File::options().write(true).open(&path).unwrap().set_len(9_100).unwrap();
        let error = mapped.read_at(9_000, &mut out).unwrap_err();
        assert!(
            matches!(&error, LoadError::Io { source, .. }
                if source.kind() == io::ErrorKind::UnexpectedEof),
            "{error}"
        );
    }

    #[test]
    fn empty_files_map_and_folders_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        std::fs::write(&path, b"").unwrap();
        assert_eq!(MappedFile::open(&path).unwrap().bytes(), b"");
        assert!(MappedFile::open(dir.path()).is_err());
        assert!(matches!(MappedFile::open(&dir.path().join("absent")), Err(LoadError::Io { .. })));
    }
}

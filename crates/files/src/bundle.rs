//! A model inside a program: `program | zeros | model | name | trailer`.
//!
//! The model begins at a multiple of [`ALIGNMENT`], so that it is mapped where it lies and its tensors
//! are aligned as in a file of their own. The trailer, at the very end, is little-endian: four
//! numbers of 64 bits (bytes of the program, where the model begins, bytes of the model, bytes of the
//! name) and [`MAGIC`].

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::error::LoadError;
use crate::mmap::{MappedFile, open_regular};

/// Where models begin, bytes: the largest page of a system in use.
pub const ALIGNMENT: u64 = 64 << 10;
/// The last bytes of a bundle.
const MAGIC: [u8; 16] = *b"\0model within\0\r\n";
const TRAILER_BYTES: u64 = 4 * 8 + MAGIC.len() as u64;
/// Longest name, bytes.
const MAX_NAME_BYTES: u64 = 512;
/// Copied at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Where the parts of a bundle are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    /// Bytes of the program, which begins the file.
    pub program_bytes: u64,
    /// Where the model begins, bytes.
    pub offset: u64,
    /// Bytes of the model.
    pub model_bytes: u64,
    /// What the model is called.
    pub name: String,
}

impl Bundle {
    /// Of a program and a model of that name.
    ///
    /// # Errors
    /// [`LoadError::Unsupported`] for names and sizes beyond what a bundle has.
    pub fn of(program_bytes: u64, model: &MappedFile, name: &str) -> Result<Self, LoadError> {
        let offset = program_bytes.checked_next_multiple_of(ALIGNMENT);
        let Some(offset) = offset.filter(|_| name.len() as u64 <= MAX_NAME_BYTES) else {
            return Err(LoadError::unsupported(model.path(), "a bundle of this name and size"));
        };
        let (model_bytes, name) = (model.len_bytes(), name.to_owned());
        Ok(Self { program_bytes, offset, model_bytes, name })
    }

    /// The bundle at a path; `None` for any other file.
    ///
    /// # Errors
    /// [`LoadError::Io`]; [`LoadError::Invalid`] for a trailer that does not fit its file.
    pub fn at(path: &Path) -> Result<Option<Self>, LoadError> {
        Self::find(path, &mut open_regular(path)?)
    }

    pub(crate) fn find(path: &Path, file: &mut File) -> Result<Option<Self>, LoadError> {
        let io_error = |e| LoadError::io(path, e);
        let end = file.seek(SeekFrom::End(0)).map_err(io_error)?;
        let Some(at) = end.checked_sub(TRAILER_BYTES) else { return Ok(None) };
        let mut trailer = [0; TRAILER_BYTES as usize];
        file.seek(SeekFrom::Start(at)).map_err(io_error)?;
        file.read_exact(&mut trailer).map_err(io_error)?;
        let (numbers, magic) = trailer.split_at(32);
        if magic != MAGIC {
            return Ok(None);
        }
        let (numbers, _) = numbers.as_chunks::<8>();
        let [program_bytes, offset, model_bytes, name_bytes] =
            [0, 1, 2, 3].map(|i| numbers.get(i).map_or(0, |n| u64::from_le_bytes(*n)));
        let ends = offset.checked_add(model_bytes).and_then(|sum| sum.checked_add(name_bytes));
        let begins = program_bytes.checked_next_multiple_of(ALIGNMENT);
        if ends != Some(at) || begins != Some(offset) || name_bytes > MAX_NAME_BYTES {
            let found = format!("{program_bytes}, {offset}, {model_bytes}, {name_bytes} of {end}");
            let expected = "lengths of a program, a model and a name that are the file's";
            return Err(LoadError::invalid(path, "bundle", expected, found));
        }
        let mut name = vec![0; name_bytes as usize];
        file.seek(SeekFrom::Start(at - name_bytes)).map_err(io_error)?;
        file.read_exact(&mut name).map_err(io_error)?;
        let name = String::from_utf8_lossy(&name).into_owned();
        Ok(Some(Self { program_bytes, offset, model_bytes, name }))
    }

    /// Bytes of the whole file.
    pub fn len_bytes(&self) -> u64 {
        self.offset + self.model_bytes + self.name.len() as u64 + TRAILER_BYTES
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// Of reading the model or writing.
    pub fn write(&self, program: &[u8], model: &MappedFile, out: &mut File) -> io::Result<()> {
        out.write_all(program)?;
        let gap = self.offset - self.program_bytes;
        out.write_all(&vec![0; usize::try_from(gap).unwrap_or_default()])?;
        let mut piece = vec![0; PIECE_BYTES];
        for at in (0..self.model_bytes).step_by(PIECE_BYTES) {
            let rest = self.model_bytes - at;
            let piece = &mut piece[..rest.min(PIECE_BYTES as u64) as usize];
            model.read_at(at, piece).map_err(io::Error::other)?;
            out.write_all(piece)?;
        }
        out.write_all(self.name.as_bytes())?;
        let name_bytes = self.name.len() as u64;
        for number in [self.program_bytes, self.offset, self.model_bytes, name_bytes] {
            out.write_all(&number.to_le_bytes())?;
        }
        out.write_all(&MAGIC)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_within_is_read_as_the_file_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let (plain, within) = (folder.path().join("plain"), folder.path().join("within"));
        let content: Vec<u8> = (0..=250).cycle().take(3 * PIECE_BYTES / 2).collect();
        std::fs::write(&plain, &content).unwrap();
        let model = MappedFile::open(&plain).unwrap();
        let program = b"\x7fELF and so on";
        let bundle = Bundle::of(program.len() as u64, &model, "näme").unwrap();
        bundle.write(program, &model, &mut File::create(&within).unwrap()).unwrap();
        assert_eq!(Bundle::at(&within).unwrap(), Some(bundle.clone()));
        assert_eq!(Bundle::at(&plain).unwrap(), None);
        let mapped = MappedFile::open(&within).unwrap();
        assert_eq!(mapped.bytes(), content);
        assert_eq!(mapped.len_bytes(), content.len() as u64);
        assert_eq!(mapped.bytes().as_ptr() as usize % 4096, 0);
        let mut out = [0; 300];
        mapped.read_at(9_000, &mut out).unwrap();
        assert_eq!(out, content[9_000..9_300]);
        assert_eq!(std::fs::metadata(&within).unwrap().len(), bundle.len_bytes());
        // One inside a bundle is taken out of it.
        let again = Bundle::of(1, &mapped, "b").unwrap();
        again.write(b"p", &mapped, &mut File::create(&plain).unwrap()).unwrap();
        assert_eq!(MappedFile::open(&plain).unwrap().bytes(), content);
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bundle");
        let at = ALIGNMENT;
        for (numbers, fits) in [
            ([1, at, 8, 2], true),
            ([1, at, 9, 1], true),
            ([1, at, 9, 2], false),
            ([1, 0, at + 8, 2], false),
            ([at + 1, at, 8, 2], false),
            ([1, at, u64::MAX, 11], false),
            ([u64::MAX, at, 8, 2], false),
            ([1, at, 0, 10], true),
        ] {
            let mut bytes = vec![b'x'; at as usize + 10];
            numbers.iter().for_each(|n: &u64| bytes.extend(n.to_le_bytes()));
            bytes.extend(MAGIC);
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(Bundle::at(&path).is_ok(), fits, "{numbers:?}");
            assert_eq!(MappedFile::open(&path).is_ok(), fits, "{numbers:?}");
        }
    }
}

//! The seam to the disk: numbered segment files, and the real ones in a folder.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::KvError;

/// A segment that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its number.
    pub number: u64,
    /// Its length.
    pub bytes: u64,
    /// When it was last used: larger is later.
    pub used: u64,
}

/// Everything the log asks of a disk, a system call each. Nothing is durable before `sync`.
pub trait SegmentFiles: Send {
    /// All segments, in any order.
    fn list(&mut self) -> io::Result<Vec<SegmentInfo>>;
    /// A new, empty segment.
    fn create(&mut self, number: u64) -> io::Result<()>;
    /// Writes at the end. After an error any part may have been written.
    fn append(&mut self, number: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes the segment and its name durable.
    fn sync(&mut self, number: u64) -> io::Result<()>;
    /// Fills `out` from that offset on; an error at the end of the file.
    fn read(&mut self, number: u64, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// Cuts a segment.
    fn truncate(&mut self, number: u64, bytes: u64) -> io::Result<()>;
    /// Deletes a segment.
    fn remove(&mut self, number: u64) -> io::Result<()>;
    /// Notes that the segment was used.
    fn touch(&mut self, number: u64) -> io::Result<()>;
    /// Bytes that can still be written.
    fn free_bytes(&mut self) -> io::Result<u64>;
}

/// Segments in a folder, which this process has to itself.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    open: HashMap<u64, File>,
    /// Released when the process ends, however it ends.
    _lock: File,
}

impl Folder {
    /// Takes a folder, making it if need be; readable by its owner alone, for it holds prompts.
    ///
    /// # Errors
    /// [`KvError::InUse`], [`KvError::Disk`].
    pub fn open(path: &Path) -> Result<Self, KvError> {
        let fail = |what| move |source| KvError::Disk { what, path: path.to_owned(), source };
        make_private_folder(path).map_err(fail("make the folder"))?;
        let mut options = private();
        let lock = options.create(true).append(true).open(path.join("lock"));
        let lock = lock.map_err(fail("open the lock in"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(KvError::InUse { folder: path.to_owned() });
            }
            Err(TryLockError::Error(e)) => return Err(fail("lock")(e)),
        }
        Ok(Self { path: path.to_owned(), open: HashMap::new(), _lock: lock })
    }

    fn segment(&self, number: u64) -> PathBuf {
        self.path.join(format!("{number:016x}.kv"))
    }

    fn file(&mut self, number: u64) -> io::Result<&mut File> {
        let path = self.segment(number);
        match self.open.entry(number) {
            std::collections::hash_map::Entry::Occupied(e) => Ok(e.into_mut()),
            std::collections::hash_map::Entry::Vacant(e) => {
                Ok(e.insert(OpenOptions::new().read(true).append(true).open(path)?))
            }
        }
    }
}

impl SegmentFiles for Folder {
    fn list(&mut self) -> io::Result<Vec<SegmentInfo>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|n| n.strip_suffix(".kv"));
            let Some(number) = number.and_then(|n| u64::from_str_radix(n, 16).ok()) else {
                continue;
            };
            let Ok(meta) = entry.metadata() else { continue };
            let since =
                meta.modified().ok().and_then(|t| t.duration_since(SystemTime::UNIX_EPOCH).ok());
            let used = since.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
            found.push(SegmentInfo { number, bytes: meta.len(), used });
        }
        Ok(found)
    }

    fn create(&mut self, number: u64) -> io::Result<()> {
        let mut options = private();
        let file = options.read(true).append(true).create_new(true).open(self.segment(number))?;
        self.open.insert(number, file);
        Ok(())
    }

    fn append(&mut self, number: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(number)?.write_all(bytes)
    }

    fn sync(&mut self, number: u64) -> io::Result<()> {
        self.file(number)?.sync_data()?;
        // Windows has no such call for folders.
        if cfg!(unix) { File::open(&self.path)?.sync_all() } else { Ok(()) }
    }

    fn read(&mut self, number: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let file = self.file(number)?;
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(out)
    }

    fn truncate(&mut self, number: u64, bytes: u64) -> io::Result<()> {
        self.file(number)?.set_len(bytes)
    }

    fn remove(&mut self, number: u64) -> io::Result<()> {
        self.open.remove(&number);
        fs::remove_file(self.segment(number))
    }

    fn touch(&mut self, number: u64) -> io::Result<()> {
        self.file(number)?.set_modified(SystemTime::now())
    }

    fn free_bytes(&mut self) -> io::Result<u64> {
        fs4::available_space(&self.path)
    }
}

fn private() -> OpenOptions {
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn make_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_does_what_the_seam_says() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Folder::open(&dir.path().join("a/b")).unwrap();
        files.create(7).unwrap();
        assert!(files.create(7).is_err(), "a second segment of a number");
        files.append(7, b"hello ").unwrap();
        files.append(7, b"world").unwrap();
        files.sync(7).unwrap();
        let mut five = [0; 5];
        files.read(7, 6, &mut five).unwrap();
        assert_eq!(&five, b"world");
        assert!(files.read(7, 7, &mut five).is_err(), "past the end");
        files.truncate(7, 6).unwrap();
        files.append(7, b"you").unwrap();
        files.touch(7).unwrap();
        files.create(1).unwrap();
        let mut found = files.list().unwrap();
        found.sort_by_key(|s| s.number);
        assert_eq!(found.iter().map(|s| (s.number, s.bytes)).collect::<Vec<_>>(), [(1, 0), (7, 9)]);
        files.remove(7).unwrap();
        assert_eq!(files.list().unwrap().len(), 1);
        assert!(files.free_bytes().unwrap() > 0);
    }

    #[test]
    fn a_folder_has_one_user() {
        let dir = tempfile::tempdir().unwrap();
        let first = Folder::open(dir.path()).unwrap();
        assert!(matches!(Folder::open(dir.path()), Err(KvError::InUse { .. })));
        drop(first);
        assert!(Folder::open(dir.path()).is_ok());
        let file = dir.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(matches!(Folder::open(&file), Err(KvError::Disk { .. })));
    }
}

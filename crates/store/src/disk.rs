//! Durable file steps: write, fsync, rename, fsync the folder; locks between processes.

use crate::error::{StoreError, disk_error};
use crate::progress::{OnProgress, Progress};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How soon one who waits for a lock looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Called before every step that changes the disk; an error stands for a crash there (tests).
pub(crate) type StepHook = Arc<dyn Fn(&'static str) -> io::Result<()> + Send + Sync>;

/// The one door to the steps that change the disk.
#[derive(Clone, Default)]
pub(crate) struct Disk {
    hook: Option<StepHook>,
}

impl Disk {
    #[cfg(test)]
    pub(crate) fn with_hook(hook: StepHook) -> Self {
        Self { hook: Some(hook) }
    }

    /// Announces a step to the hook.
    pub(crate) fn step(&self, name: &'static str) -> io::Result<()> {
        self.hook.as_ref().map_or(Ok(()), |hook| hook(name))
    }

    /// Makes a folder and its parents.
    pub(crate) fn make_dir(&self, path: &Path) -> Result<(), StoreError> {
        self.step("make folder")
            .and_then(|()| fs::create_dir_all(path))
            .map_err(|e| disk_error("make the folder", path, 0, e))
    }

    /// Writes a small file so that a crash leaves the old content or the new, never a mix.
    pub(crate) fn write_whole(&self, path: &Path, content: &[u8]) -> Result<(), StoreError> {
        if let Some(folder) = path.parent() {
            self.make_dir(folder)?;
        }
        let fresh = with_suffix(path, ".new");
        let write = || -> io::Result<()> {
            self.step("write record")?;
            let mut file = File::create(&fresh)?;
            file.write_all(content)?;
            file.sync_all()
        };
        write().map_err(|e| disk_error("write", &fresh, content.len() as u64, e))?;
        self.rename(&fresh, path)
    }

    /// Moves a finished, synced file to its name and makes the name durable.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.step("rename")
            .and_then(|()| fs::rename(from, to))
            .map_err(|e| disk_error("rename to", to, 0, e))?;
        self.step("sync folder").map_err(|e| disk_error("sync", to, 0, e))?;
        sync_dir(to.parent().unwrap_or(to)).map_err(|e| disk_error("sync the folder of", to, 0, e))
    }

    /// Deletes a file that may be absent.
    pub(crate) fn remove_file(&self, path: &Path) -> Result<(), StoreError> {
        match self.step("remove").and_then(|()| fs::remove_file(path)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(disk_error("remove", path, 0, e)),
            _ => Ok(()),
        }
    }

    /// Deletes a folder that may be absent, with all in it; links are removed, not followed.
    pub(crate) fn remove_dir(&self, path: &Path) -> Result<(), StoreError> {
        match self.step("remove folder").and_then(|()| fs::remove_dir_all(path)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(disk_error("remove", path, 0, e)),
            _ => Ok(()),
        }
    }

    /// A relative symbolic link, or a copy where the file system has no links.
    pub(crate) fn link(&self, target: &Path, link: &Path) -> Result<(), StoreError> {
        let folder = link.parent().unwrap_or(link);
        self.make_dir(folder)?;
        self.remove_file(link)?;
        self.step("link").map_err(|e| disk_error("link", link, 0, e))?;
        if symlink(target, link).is_ok() {
            return Ok(());
        }
        let fresh = with_suffix(link, ".new");
        let source = folder.join(target);
        fs::copy(&source, &fresh).map_err(|e| disk_error("copy to", &fresh, 0, e))?;
        self.rename(&fresh, link)
    }
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

/// Makes renames and new names in a folder durable; Windows has no such call.
fn sync_dir(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// `path` with text added to its last part.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    PathBuf::from(name)
}

/// Bytes that a file takes on its disk: fewer than its length where parts of it were never written.
pub(crate) fn taken_bytes(path: &Path) -> u64 {
    let Ok(about) = fs::metadata(path) else { return 0 };
    #[cfg(unix)]
    let taken = std::os::unix::fs::MetadataExt::blocks(&about).saturating_mul(512);
    #[cfg(not(unix))]
    let taken = about.len();
    taken.min(about.len())
}

/// Bytes free for this user on the file system of `path`.
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    fs4::available_space(path).ok()
}

/// An exclusive lock between processes; released on drop or when the process ends.
///
/// The lock file stays: removing it would let two processes hold two locks of one name.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock at `path`, telling the caller if it has to wait, and again and again how far
    /// whoever has it is; `how_far` may end the wait.
    pub(crate) fn take(
        disk: &Disk,
        path: &Path,
        on: &mut OnProgress<'_>,
        how_far: &dyn Fn(&mut OnProgress<'_>) -> Result<(), StoreError>,
    ) -> Result<Self, StoreError> {
        if let Some(folder) = path.parent() {
            disk.make_dir(folder)?;
        }
        let fail = |e| disk_error("lock", path, 0, e);
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(fail)?;
        let mut is_told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: file }),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(fail(e)),
            }
            if !std::mem::replace(&mut is_told, true) {
                on(Progress::Waiting(path));
            }
            how_far(on)?;
            thread::sleep(LOOK_AGAIN);
        }
    }
}

//! A settings file that is ours for a while: the original is kept beside it, byte for byte, until
//! it is put back. What happened in between, a crash too, is seen from three files:
//!
//! * `FILE.tokenmill-original`: a copy of the file as it was; none, if there was no file
//! * `FILE.tokenmill-written`: what was written in its place
//! * `FILE` itself
//!
//! They are made in this order and go in the other, so that every moment is one of [`State`].

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Where a file is between being ours and the user's.
#[derive(Debug, PartialEq, Eq)]
pub enum State {
    /// It is the user's, with this content.
    Own(Option<Vec<u8>>),
    /// It is as it was written, and the original is kept.
    Written,
    /// Somebody has changed it since; what it holds now.
    Changed(Option<Vec<u8>>),
}

/// See the module.
pub struct Kept {
    file: PathBuf,
    original: PathBuf,
    written: PathBuf,
    new: PathBuf,
}

impl Kept {
    /// The settings at a path; where that is a link, what it leads to.
    pub fn at(path: &Path) -> Self {
        let file = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let beside = |ending: &str| {
            let mut name = file.file_name().unwrap_or_default().to_owned();
            name.push(ending);
            file.with_file_name(name)
        };
        let [original, written, new] =
            [".tokenmill-original", ".tokenmill-written", ".tokenmill-new"].map(beside);
        Self { file, original, written, new }
    }

    /// Where it is; traces of a crash in which nothing was lost are removed.
    ///
    /// # Errors
    /// What cannot be read; a copy of which nobody knows whether it still is the original.
    pub fn state(&self) -> Result<State, Failure> {
        let (now, original) = (self.read(&self.file)?, self.read(&self.original)?);
        let written = self.read(&self.written)?;
        match (written, original) {
            (None, None) => Ok(State::Own(now)),
            // Writing or putting back was broken off: the file is as it was.
            (Some(_), original) if now == original => {
                self.forget()?;
                Ok(State::Own(now))
            }
            (None, original) if now == original => {
                self.forget()?;
                Ok(State::Own(now))
            }
            (Some(written), _) if now.as_ref() == Some(&written) => Ok(State::Written),
            (Some(_), _) => Ok(State::Changed(now)),
            (None, Some(_)) => {
                let (file, original) = (self.file.display(), self.original.display());
                let what = format!("{original} is older than {file}");
                Err(Failure::new(what, "it was left behind, and is no copy of it")
                    .fix(format!("rm {original}, or mv {original} {file}")))
            }
        }
    }

    /// Writes in the place of a file that is the user's, with this content; `is_secret`: for no
    /// other user's eyes.
    ///
    /// # Errors
    /// What cannot be written; then the file is as it was.
    pub fn write(&self, own: Option<&[u8]>, new: &[u8], is_secret: bool) -> Result<(), Failure> {
        let work = || {
            if self.written.exists() {
                return Err(ErrorKind::AlreadyExists.into());
            }
            let folder = self.file.parent().unwrap_or(Path::new("."));
            fs::create_dir_all(folder)?;
            let mode = fs::metadata(&self.file).map(|about| about.permissions()).ok();
            if let Some(own) = own {
                self.put(&self.original, own, mode.clone())?;
            }
            // Fails if there is one by now: of two that launch the same, one does.
            let mut written = private().create_new(true).open(&self.written)?;
            written.write_all(new)?;
            written.sync_all()?;
            self.put(&self.file, new, mode.filter(|_| !is_secret))
        };
        work().map_err(|e| self.failed("write", e))
    }

    /// Writes a file of our own, which nobody else reads.
    ///
    /// # Errors
    /// What cannot be written.
    pub fn replace(&self, new: &[u8]) -> Result<(), Failure> {
        let folder = self.file.parent().unwrap_or(Path::new("."));
        let work = fs::create_dir_all(folder).and_then(|()| self.put(&self.file, new, None));
        work.map_err(|e| self.failed("write", e))
    }

    /// Removes a file of our own.
    ///
    /// # Errors
    /// What cannot be removed.
    pub fn remove(&self) -> Result<(), Failure> {
        match fs::remove_file(&self.file) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(self.failed("remove", e)),
            _ => Ok(()),
        }
    }

    /// Puts the original back.
    ///
    /// # Errors
    /// That it was changed meanwhile: then it stays.
    pub fn restore(&self) -> Result<(), Failure> {
        match self.state()? {
            State::Own(_) => Ok(()),
            State::Changed(_) => Err(self.changed()),
            State::Written => {
                let original = self.read(&self.original)?;
                let work = || {
                    match &original {
                        Some(bytes) => {
                            let mode = fs::metadata(&self.original)?.permissions();
                            self.put(&self.file, bytes, Some(mode))?;
                        }
                        None => fs::remove_file(&self.file)?,
                    }
                    Ok(())
                };
                work().map_err(|e| self.failed("restore", e))?;
                self.forget()
            }
        }
    }

    /// The file as it was, if there was one, and what was written in its place.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn both(&self) -> Result<(Option<Vec<u8>>, Vec<u8>), Failure> {
        Ok((self.read(&self.original)?, self.read(&self.written)?.unwrap_or_default()))
    }

    /// Writes what the file is from now on; it is the user's again.
    ///
    /// # Errors
    /// What cannot be written; then all is as it was.
    pub fn settle(&self, new: &[u8]) -> Result<(), Failure> {
        let mode = fs::metadata(&self.original).or_else(|_| fs::metadata(&self.file));
        let put = mode.and_then(|about| self.put(&self.file, new, Some(about.permissions())));
        put.map_err(|e| self.failed("restore", e))?;
        self.forget()
    }

    /// That somebody has changed the file.
    pub fn changed(&self) -> Failure {
        let (file, written) = (self.file.display(), self.written.display());
        let original = self.original.display();
        let (kept, back) = match self.original.exists() {
            true => (format!("as it was before: {original}"), format!("mv {original} {file}")),
            false => ("there was none before".to_owned(), format!("rm {file}")),
        };
        let what = format!("{file} was changed since it was written, and stays so");
        Failure::new(what, kept).fix(format!("{back} && rm {written}; to keep it: rm {written}*"))
    }

    fn forget(&self) -> Result<(), Failure> {
        for path in [&self.written, &self.original, &self.new] {
            match fs::remove_file(path) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(self.failed("restore", e)),
                _ => {}
            }
        }
        Ok(())
    }

    fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, Failure> {
        match fs::read(path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.failed("read", e)),
        }
    }

    /// A whole file in one step; without permissions nobody else reads it.
    fn put(&self, path: &Path, bytes: &[u8], mode: Option<Permissions>) -> std::io::Result<()> {
        let _ = fs::remove_file(&self.new); // (of a step that was broken off)
        let mut file = private().create_new(true).open(&self.new)?;
        file.write_all(bytes)?;
        if let Some(mode) = mode {
            file.set_permissions(mode)?;
        }
        file.sync_all()?;
        fs::rename(&self.new, path)
    }

    fn failed(&self, verb: &str, error: std::io::Error) -> Failure {
        let what = format!("cannot {verb} {}", self.file.display());
        match error.kind() {
            ErrorKind::AlreadyExists => Failure::new(what, "another launch is writing it"),
            _ => Failure::new(what, error),
        }
    }
}

/// For files that only their owner reads.
fn private() -> fs::OpenOptions {
    let mut options = File::options();
    options.write(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &[u8] = b"old \xff\r\n";

    /// A folder with a file, or none.
    fn folder(old: Option<&[u8]>) -> (tempfile::TempDir, Kept) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("settings.json");
        old.iter().for_each(|bytes| fs::write(&path, bytes).expect("written"));
        (folder, Kept::at(&path))
    }

    fn names(folder: &Path) -> Vec<String> {
        let list =
            fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").file_name());
        let mut names: Vec<String> = list.map(|n| n.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_comes_back_byte_for_byte() {
        for old in [Some(OLD), Some(b"".as_slice()), None] {
            let (folder, kept) = folder(old);
            let before = names(folder.path());
            assert_eq!(kept.state().expect("read"), State::Own(old.map(<[u8]>::to_vec)));
            kept.write(old, b"new", false).expect("written");
            assert_eq!(fs::read(&kept.file).expect("read"), b"new");
            assert_eq!(kept.state().expect("read"), State::Written);
            kept.write(Some(b"new"), b"newer", false).expect_err("it is in use");
            kept.restore().expect("restored");
            kept.restore().expect("nothing to do");
            assert_eq!(fs::read(&kept.file).ok().as_deref(), old);
            assert_eq!(names(folder.path()), before);
        }
    }

    #[test]
    fn a_changed_file_stays() {
        let (_folder, kept) = folder(Some(OLD));
        kept.write(Some(OLD), b"new", false).expect("written");
        fs::write(&kept.file, b"newer").expect("written");
        let told = kept.restore().expect_err("changed").to_string();
        assert!(told.contains("mv") && told.contains("tokenmill-original"), "{told}");
        assert_eq!(fs::read(&kept.file).expect("read"), b"newer");
        assert_eq!(fs::read(&kept.original).expect("read"), OLD);
        // Put back by hand: the rest is tidied up.
        fs::copy(&kept.original, &kept.file).expect("copied");
        assert_eq!(kept.state().expect("read"), State::Own(Some(OLD.to_vec())));
        assert!(!kept.original.exists() && !kept.written.exists());
    }

    /// A crash between two steps is one of: the original is there, both are, the file is written,
    /// it is put back, the first of both is gone.
    #[test]
    fn no_crash_loses_the_original() {
        for old in [Some(OLD), None] {
            for (file, has_original, written, expect_own) in [
                (old, true, None, true),
                (old, true, Some(b"ne".as_slice()), true),
                (old, true, Some(b"new"), true),
                (Some(b"new"), true, Some(b"new"), false),
            ] {
                let (_folder, kept) = folder(file);
                if let Some(old) = old.filter(|_| has_original) {
                    fs::write(&kept.original, old).expect("written");
                }
                written.iter().for_each(|w| fs::write(&kept.written, w).expect("written"));
                let is_own = matches!(kept.state().expect("read"), State::Own(_));
                assert_eq!(is_own, expect_own, "{file:?} {written:?}");
                kept.restore().expect("restored");
                assert_eq!(fs::read(&kept.file).ok().as_deref(), old, "{file:?} {written:?}");
                assert_eq!(kept.state().expect("read"), State::Own(old.map(<[u8]>::to_vec)));
            }
        }
        let (_folder, kept) = folder(Some(b"newer"));
        fs::write(&kept.original, OLD).expect("written");
        kept.state().expect_err("nobody knows");
        assert_eq!(fs::read(&kept.original).expect("read"), OLD);
    }

    #[cfg(unix)]
    #[test]
    fn links_and_permissions_stay() {
        use std::os::unix::fs::PermissionsExt;
        let (folder, kept) = folder(Some(OLD));
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        fs::set_permissions(&kept.file, Permissions::from_mode(0o640)).expect("set");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&kept.file, &link).expect("a link");
        let linked = Kept::at(&link);
        linked.write(Some(OLD), b"new", true).expect("written");
        assert_eq!(mode(&kept.file), 0o600, "a key is nobody else's");
        linked.restore().expect("restored");
        assert_eq!((mode(&kept.file), fs::read(&link).expect("read")), (0o640, OLD.to_vec()));
        assert!(link.is_symlink());
    }
}

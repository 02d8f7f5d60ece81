//! The file with the key by which a server seals what clients keep for it: made at the first start,
//! read at every later one, so that conversations go on over a restart.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use tokenmill_server::SealKey;

use crate::failure::{Failure, tell};

/// Most bytes read of a file that ought to hold a key.
const MOST: u64 = 4096;

/// The key: of that file, else of the one in the own data folder, where there is one or one can be
/// made; `None` where it is forgotten with the run.
///
/// # Errors
/// A named file that cannot be read or made, and any that holds no key.
pub fn key(named: Option<&Path>, forget: bool) -> Result<Option<SealKey>, Failure> {
    if forget {
        return Ok(None);
    }
    if let Some(file) = named {
        let what = || format!("cannot use the seal key {}", file.display());
        return match kept(file) {
            Ok(Some(key)) => of_text(file, &key).map(Some),
            Ok(None) => made(file).map(Some).map_err(|e| Failure::new(what(), e)),
            Err(error) => Err(Failure::new(what(), error)),
        };
    }
    let why = match crate::store::own_folder().map(|folder| folder.join("seal.key")) {
        None => "there is no folder of one's own".to_owned(),
        Some(file) => match kept(&file) {
            Ok(Some(text)) => return of_text(&file, &text).map(Some),
            Ok(None) => match made(&file) {
                Ok(key) => return Ok(Some(key)),
                Err(error) => format!("{}: {error}", file.display()),
            },
            Err(error) => {
                let what = format!("cannot read the seal key {}", file.display());
                return Err(Failure::new(what, error).fix("name another with --seal-key FILE"));
            }
        },
    };
    tell!("what is sealed for clients opens until this run ends alone: no seal key is kept: {why}");
    Ok(None)
}

fn of_text(file: &Path, text: &str) -> Result<SealKey, Failure> {
    SealKey::of_text(text).map_err(|why| {
        Failure::new(format!("{} holds no seal key", file.display()), why)
            .fix("remove it, and another is made: what was sealed before opens no more")
    })
}

/// The text of a file; `None` where there is none.
fn kept(file: &Path) -> io::Result<Option<String>> {
    let opened = match fs::File::open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !opened.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no file"));
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = opened.metadata()?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let file = file.display();
            tell!(
                "others may read or change the seal key {file} (mode {mode:o}): chmod 600 {file}"
            );
        }
    }
    let mut bytes = Vec::new();
    opened.take(MOST).read_to_end(&mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// A new key in a new file, which nobody else may read; that of another server, where it was first.
fn made(file: &Path) -> io::Result<SealKey> {
    let key = SealKey::random().ok_or_else(|| io::Error::other("no random numbers"))?;
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    // Whole before it has its name: nobody reads half of it.
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let draft = file.with_file_name(name);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options
        .open(&draft)
        .and_then(|mut to| writeln!(to, "{}", key.text()).and_then(|()| to.sync_all()))
        .and_then(|()| fs::hard_link(&draft, file));
    let _ = fs::remove_file(&draft);
    match written {
        Ok(()) => Ok(key),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let text = kept(file)?.unwrap_or_default();
            SealKey::of_text(&text).map_err(|why| io::Error::new(ErrorKind::InvalidData, why))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a/b/seal.key");
        let one = key(Some(&file), false).expect("made").expect("a key");
        let two = key(Some(&file), false).expect("read").expect("a key");
        assert_eq!(one.text(), two.text());
        let files = fs::read_dir(file.parent().expect("a folder")).expect("a folder").count();
        assert_eq!(files, 1, "the draft is gone");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(&file).expect("a file").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        // Whoever comes second takes the first one's.
        assert_eq!(made(&file).expect("read").text(), one.text());
        assert!(key(Some(&file), true).expect("none").is_none());
        fs::write(&file, "0123").expect("written");
        let error = key(Some(&file), false).expect_err("refused").to_string();
        assert!(error.contains("64 hexadecimal digits, this has 4 bytes"), "{error}");
        let error = key(Some(folder.path()), false).expect_err("refused").to_string();
        assert!(error.contains("it is no file"), "{error}");
    }
}

//! A model that was read, without its files: opened again it need not be read again, as long as its
//! files are the same.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokenmill_ir::{Checkpoint, Meta, MetaValue};

use crate::data::ModelData;
use crate::error::LoadError;
use crate::mmap::MappedFile;
use crate::open::{OpenModel, Sidecars};
use crate::quantized::Assembled;
use crate::shards;

/// Longer lists of metadata are left out: those of the vocabulary.
const LIST_VALUES: usize = 4096;

/// Folders of a model's folder whose files are read too.
const FOLDERS: [&str; 2] = ["1_Pooling", "additional_chat_templates"];

/// What tells a file from another one of its name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileState {
    path: PathBuf,
    bytes: u64,
    modified: Option<SystemTime>,
    /// Number of the file, and when it last changed in any way (seconds, nanoseconds).
    #[cfg(unix)]
    inode: (u64, i64, i64),
}

impl FileState {
    fn of(path: PathBuf, about: &Metadata) -> Self {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt;
        Self {
            path,
            bytes: about.len(),
            modified: about.modified().ok(),
            #[cfg(unix)]
            inode: (about.ino(), about.ctime(), about.ctime_nsec()),
        }
    }
}

/// The files that [`open`](crate::open) reads at a path, as they are now: two that are equal hold the
/// same bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesState(Vec<FileState>);

impl FilesState {
    /// Looks at the files of the model at `path`, and reads none.
    ///
    /// # Errors
    /// [`LoadError::Io`].
    pub fn of(path: &Path) -> Result<Self, LoadError> {
        let about = fs::metadata(path).map_err(|e| LoadError::io(path, e))?;
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_alone = name.ends_with(".gguf") && shards::part(name, ".gguf").is_none();
        let mut states = Vec::new();
        match about.is_dir() {
            true => list(path, true, &mut states)?,
            false if is_alone => states.push(FileState::of(path.to_owned(), &about)),
            // Parts of one model, or weights with the files beside them.
            false => {
                states.push(FileState::of(path.to_owned(), &about));
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                list(folder.unwrap_or(Path::new(".")), true, &mut states)?;
            }
        }
        Ok(Self(states))
    }
}

fn list(folder: &Path, is_first: bool, states: &mut Vec<FileState>) -> Result<(), LoadError> {
    let failed = |e| LoadError::io(folder, e);
    let entries = fs::read_dir(folder).map_err(failed)?.collect::<Result<Vec<_>, _>>();
    let mut paths: Vec<PathBuf> = entries.map_err(failed)?.iter().map(|e| e.path()).collect();
    paths.sort_unstable();
    for path in paths {
        // (A link that leads nowhere is no file of the model.)
        let Ok(about) = fs::metadata(&path) else { continue };
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match about.is_dir() {
            true if is_first && FOLDERS.contains(&name) => list(&path, false, states)?,
            true => {}
            false => states.push(FileState::of(path, &about)),
        }
    }
    Ok(())
}

/// See the module.
#[derive(Debug)]
pub struct ClosedModel {
    checkpoint: Checkpoint,
    files: Vec<PathBuf>,
    assembled: Arc<Vec<Assembled>>,
    sidecars: Sidecars,
}

impl OpenModel {
    /// The model without its files. Of its metadata the long lists of its vocabulary are left out.
    pub fn closed(&self) -> ClosedModel {
        let Checkpoint { container, meta, tensors, .. } = &self.checkpoint;
        // (No name is there twice: it has been indexed before.)
        let checkpoint = Checkpoint::new(*container, without_long_lists(meta), tensors.clone());
        ClosedModel {
            checkpoint: checkpoint.unwrap_or_else(|_| self.checkpoint.clone()),
            files: self.data.files().iter().map(|file| file.path().to_owned()).collect(),
            assembled: self.data.assembled(),
            sidecars: self.sidecars.clone(),
        }
    }
}

impl ClosedModel {
    /// The model with its files, which must be in the [state](FilesState) that they were read in
    /// before this and after it.
    ///
    /// # Errors
    /// As [`open`](crate::open).
    pub fn open(&self) -> Result<OpenModel, LoadError> {
        let files = self.files.iter().map(|path| MappedFile::open(path));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        Ok(OpenModel {
            checkpoint: self.checkpoint.clone(),
            data: ModelData::new(files, Arc::clone(&self.assembled)),
            sidecars: self.sidecars.clone(),
        })
    }
}

fn without_long_lists(meta: &Meta) -> Meta {
    let mut kept = Meta::new();
    for (key, value) in meta.iter() {
        if !matches!(value, MetaValue::List(list) if list.len() > LIST_VALUES) {
            kept.insert(key.to_owned(), value.clone());
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_tells_files_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str, text: &str| fs::write(path(name), text).unwrap();
        write("a.gguf", "one");
        write("b-00001-of-00002.gguf", "one");
        write("b-00002-of-00002.gguf", "two");
        fs::create_dir(path("1_Pooling")).unwrap();
        let state = |name: &str| FilesState::of(&path(name)).unwrap();
        let before = ["a.gguf", "b-00001-of-00002.gguf", ""].map(state);
        assert_eq!(["a.gguf", "b-00001-of-00002.gguf", ""].map(state), before);
        // Another file of that name, as long as the one before.
        write("c", "two");
        fs::rename(path("c"), path("b-00002-of-00002.gguf")).unwrap();
        assert_eq!(state("a.gguf"), before[0], "it lies alone");
        assert_ne!(state("b-00001-of-00002.gguf"), before[1]);
        let whole = state("");
        assert_ne!(whole, before[2]);
        write("1_Pooling/config.json", "{}");
        assert_ne!(state(""), whole);
        fs::remove_file(path("a.gguf")).unwrap();
        assert!(FilesState::of(&path("a.gguf")).is_err());
    }
}

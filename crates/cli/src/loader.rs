//! Where `serve` has its models from: those named, or all that `list` shows, loaded when they are
//! asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tokenmill_backend::DeviceError;
use tokenmill_engine::library::Book;
use tokenmill_engine::load::{LoadFailure, Share, read, vocabulary_of};
use tokenmill_engine::packaged::packaged;
use tokenmill_engine::plan::Fit;
use tokenmill_engine::{Defaults, Eyes, Host, Sight};
use tokenmill_ir::{Container, KvFormat};
use tokenmill_output::Format;
use tokenmill_server::{
    Abilities, Card, Fetching, IsWanted, Listed, Loader, Needs, NotLoaded, Recipe, ServedModel,
    Trouble,
};

use crate::args::{Machine, Serve};
use crate::bundle;
use crate::failure::{Failure, size};
use crate::model::{self, Bar, Limits, NotStarted};
use crate::plan::args::Plan;
use crate::plan::{Asked, beforehand};
use crate::{recipes, store};

/// A model as it is named on the command line or by `list`, and what clients call it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// For the store, or a path.
    pub name: String,
    /// Its names in the API.
    pub listed: Listed,
}

/// A model's files.
struct Located {
    named: Named,
    path: PathBuf,
    /// How its packager wants it to be run.
    defaults: Defaults,
}

/// See the module.
pub struct ModelLoader {
    pub host: Host,
    /// Models of the command line; empty: all that are here.
    named: Vec<Named>,
    /// All that were here when somebody looked last.
    listed: Mutex<Vec<Named>>,
    machine: Machine,
    slots: u32,
    queue: u32,
    max_wait: Option<Duration>,
    /// Where prompts are kept, and the part of that each model has.
    disk: Option<(PathBuf, u64)>,
    /// The memory that models of the command line are loaded within, where they do not take turns.
    parts: BTreeMap<String, u64>,
    /// The same of each other that was looked at.
    memory: Mutex<BTreeMap<String, u64>>,
    /// Whose oddities were told.
    told: Mutex<BTreeSet<String>>,
    /// What those can do that were asked.
    abilities: Mutex<BTreeMap<String, Abilities>>,
    /// What stands in the files of those that were looked at, of that age.
    cards: Mutex<BTreeMap<String, (u64, Option<Card>)>>,
}

impl ModelLoader {
    /// Loads these, or all that are here.
    pub fn new(args: &Serve, host: Host, named: Vec<Named>) -> Self {
        // Several models have a part and a folder each.
        let count = if named.is_empty() { store::entries().len() } else { named.len() };
        let cap_bytes = (args.kv_disk_gb * (1u64 << 30) as f64) as u64 / count.max(1) as u64;
        let (machine, slots, queue) = (args.machine.clone(), args.slots, args.queue);
        let disk = args.kv_dir.clone().map(|folder| (folder, cap_bytes));
        let (listed, parts, memory, told, abilities, cards) = Default::default();
        let max_wait = args.max_wait;
        Self {
            host,
            named,
            listed,
            machine,
            slots,
            queue,
            max_wait,
            disk,
            parts,
            memory,
            told,
            abilities,
            cards,
        }
    }

    /// Those of the command line, or all that are here.
    pub fn known(&self) -> Vec<Named> {
        if !self.named.is_empty() {
            return self.named.clone();
        }
        let all = named_alike(store::entries());
        self.listed.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&all);
        all
    }

    /// A model, its path, and how its packager wants it to be run. Those of the command line are
    /// fetched if need be.
    fn located(&self, id: &str) -> Result<Located, Failure> {
        let named = self.named(id)?;
        if !self.named.is_empty() {
            let (path, defaults) = model::find(&named.name)?;
            return Ok(Located { named, path, defaults });
        }
        let model = store::here(&named.name)?.ok_or_else(|| gone(id))?;
        // What a short name recommends holds by its model's own name too.
        let alias = named.listed.aliases.iter().find_map(|name| store::alias_of(name));
        let short = alias.map(store::here).transpose()?.flatten();
        let defaults = match short.filter(|short| short.path == model.path) {
            Some(short) => short.defaults,
            None => model.defaults,
        };
        Ok(Located { named, path: model.path, defaults })
    }

    fn named(&self, id: &str) -> Result<Named, Failure> {
        let is_asked = |named: &Named| named.listed.id == id;
        let listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = listed.iter().find(|named| is_asked(named)).cloned();
        drop(listed);
        seen.or_else(|| self.known().into_iter().find(is_asked)).ok_or_else(|| gone(id))
    }

    /// From now on loads that model within so much.
    pub fn within(&mut self, id: &str, memory_bytes: u64) {
        self.parts.insert(id.to_owned(), memory_bytes);
    }

    fn memory_of(&self, id: &str) -> Option<u64> {
        let measured =
            || self.memory.lock().unwrap_or_else(PoisonError::into_inner).get(id).copied();
        self.parts.get(id).copied().or_else(measured)
    }

    /// What the command line and the model's packager say of how it runs.
    fn machine(&self, defaults: &Defaults) -> Machine {
        let mut machine = self.machine.clone();
        machine.ctx = machine.ctx.or(defaults.context);
        machine
    }

    /// What a model takes, and what goes wrong as a user is told it.
    pub fn measured(&self, id: &str) -> Result<Needs, NotStarted> {
        Ok(self.share(id)?.1.needs)
    }

    fn share(&self, id: &str) -> Result<(Arc<Book>, Share), NotStarted> {
        let Located { path, defaults, .. } = self.located(id)?;
        let machine = self.machine(&defaults);
        let device = self.host.device();
        let mut options = model::options(&machine, device.as_ref(), self.slots);
        let given = self.parts.get(id).copied();
        options.memory_bytes = self.host.ledger().all_bytes();
        let found = self.host.share(&path, &options, given).map_err(NotStarted::Load)?;
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.insert(id.to_owned(), found.1.memory_bytes);
        Ok(found)
    }

    /// Loads a model as long as it is wanted, and what is said of it.
    pub fn start(
        &self,
        id: &str,
        wanted: &dyn Fn() -> bool,
    ) -> Result<(ServedModel, Vec<String>), NotStarted> {
        let Located { named: Named { name, listed }, path, defaults } = self.located(id)?;
        let machine = self.machine(&defaults);
        let memory_bytes = self.memory_of(id).unwrap_or(self.host.ledger().all_bytes());
        let limits = Limits { sequences: self.slots, queue: self.queue, memory_bytes };
        let disk = self.disk.as_ref().map(|(folder, cap_bytes)| match self.named.len() {
            1 => (folder.clone(), *cap_bytes),
            _ => (folder.join(id.replace(['/', ':'], "_")), *cap_bytes),
        });
        let of = disk.as_ref().map(|(folder, cap_bytes)| (folder.as_path(), *cap_bytes));
        let bar = Bar::new();
        let mut shown = bar.watch();
        let watch = &mut |at, of| match wanted() {
            true => shown(at, of),
            false => ControlFlow::Break(()),
        };
        let mut served =
            model::start_in(&self.host, (&name, id, &path), &machine, limits, of, watch)?;
        model::settle(defaults, &mut served);
        if self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned()) {
            model::warn(&served, served.template.as_deref());
            model::tell_unused(&name, &served);
        }
        let Some(tokenizer) = served.tokenizer.clone() else {
            self.host.unload(id, Duration::ZERO);
            let detail = "its files have no tokenizer";
            return Err(Failure::new(format!("cannot serve {name}"), detail).into());
        };
        if let Some(longest) = self.max_wait {
            served.engine.limit_wait(longest);
        }
        let context = served.engine.longest();
        let (eyes, blind) = eyes(served.sight);
        let mut lines = vec![format!(
            "{id} on {} · context {context} · weights {}, cache {} ({} a token)",
            served.caps.name,
            weights(&served.fit),
            size(served.fit.cache_bytes),
            size(served.fit.token_bytes),
        )];
        let kept = disk.map(|(folder, cap_bytes)| match &served.disk {
            Ok(()) => {
                let log = served.engine.stats().disk.unwrap_or_default().log;
                let (folder, used, cap) = (folder.display(), size(log.bytes), size(cap_bytes));
                let runs = log.records;
                format!("prompt cache in {folder}: {used} of {cap}, {runs} runs of this model")
            }
            Err(error) => format!("without a prompt cache on disk: {error}"),
        });
        let model = ServedModel {
            names: [listed.id].into_iter().chain(listed.aliases).collect(),
            engine: served.engine,
            tokenizer,
            template: served.template,
            context,
            eyes,
            defaults: served.defaults,
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        };
        if model.engine.vocab() > 0 {
            let line = model.default_sampling().line(Some(context));
            lines.push(format!("requests that say nothing: {line}"));
        }
        lines.extend(kept.into_iter().chain(blind));
        Ok((model, lines))
    }
}

/// What weights take, and whether that is more than they need.
fn weights(fit: &Fit) -> String {
    let wide = if fit.wide_weights { " (code books written out)" } else { "" };
    size(fit.weight_bytes) + wide
}

/// How a model sees, where it does, or why not.
fn eyes(sight: Option<Sight>) -> (Option<Arc<Eyes>>, Option<String>) {
    match sight.map(Eyes::new) {
        None => (None, None),
        Some(Ok(eyes)) => (Some(Arc::new(eyes)), None),
        Some(Err(error)) => (None, Some(format!("images are not seen: {error}"))),
    }
}

impl Loader for ModelLoader {
    fn list(&self) -> Vec<Listed> {
        self.known().into_iter().map(as_it_lies).collect()
    }

    fn measure(&self, id: &str) -> Result<Needs, Trouble> {
        self.measured(id).map_err(|e| trouble(id, e))
    }

    fn abilities(&self, id: &str) -> Option<Abilities> {
        let abilities = || self.abilities.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = abilities().get(id) {
            return Some(*found);
        }
        let (book, share) = self.share(id).ok()?;
        // (Without a tokenizer it is not served.)
        let vocabulary = book.vocabulary.as_ref()?;
        let (gives_text, width) = (book.program.vocab > 0, book.program.hidden);
        let template = vocabulary.template.as_ref().ok().filter(|_| gives_text);
        let found = Abilities {
            chat: template.is_some(),
            tools: template.is_some_and(|t| t.has_tools()),
            embeddings: !gives_text && width > 1,
            rerank: !gives_text,
            thinking: template
                .is_some_and(|t| Format::of_template(t.source()).may_reason(t.source(), "")),
            infill: gives_text && vocabulary.tokenizer.infill_ends().is_some(),
            sees: template.is_some() && share.sees,
            context: share.context,
            bytes: share.weight_bytes,
        };
        abilities().insert(id.to_owned(), found);
        Some(found)
    }

    fn load(&self, id: &str, wanted: &dyn Fn() -> bool) -> Result<ServedModel, NotLoaded> {
        match self.start(id, wanted) {
            Ok((model, _)) => Ok(model),
            Err(NotStarted::Load(LoadFailure::Device(DeviceError::Cancelled))) => {
                Err(NotLoaded::BrokenOff)
            }
            Err(error) => Err(NotLoaded::Failed(trouble(id, error))),
        }
    }

    fn free(&self, id: &str, model: ServedModel) {
        self.host.unload(id, Duration::ZERO);
        model.engine.shut_down(); // (one that the host does not know any more)
    }

    fn card(&self, id: &str) -> Option<Card> {
        let named = self.named(id).ok()?;
        let cards = || self.cards.lock().unwrap_or_else(PoisonError::into_inner);
        let age = named.listed.created;
        if let Some((_, card)) = cards().get(id).filter(|(of, _)| *of == age) {
            return card.clone();
        }
        let card = self.located(id).ok().and_then(card_of);
        cards().insert(id.to_owned(), (age, card.clone()));
        card
    }

    /// Not those of the command line.
    fn changes(&self) -> Result<(), Trouble> {
        let reason = "this server serves the models that it was started with";
        match self.named.is_empty() {
            true => Ok(()),
            false => Err(Trouble { reason: reason.to_owned(), of_files: true }),
        }
    }

    fn pull(
        &self,
        name: &str,
        on: &mut dyn FnMut(Fetching),
        wanted: IsWanted,
    ) -> Result<(), Trouble> {
        let known = self.known();
        let is_meant =
            |n: &&Named| n.listed.id == name || n.listed.aliases.iter().any(|a| a == name);
        // (An alias is pulled as itself: its model's own name may be a package's, which is none for clients.)
        let name = store::alias_of(name)
            .or_else(|| known.iter().find(is_meant).map(|named| named.name.as_str()))
            .unwrap_or(name);
        store::fetch(name, on, wanted).map_err(|failure| refused(failure, true))
    }

    fn plan(&self, name: Option<&str>) -> Result<Vec<Value>, Trouble> {
        self.changes()?;
        let known = self.known();
        let here = |name: &str| known.iter().find(|named| named.listed.id == name);
        // (No other name is looked for among files: a client could name any.)
        let asked = match name.map(|name| (name, here(name))) {
            None => Asked::All,
            Some((_, Some(named))) => Asked::Here(&named.name),
            Some((name, None)) => Asked::Pulled(name),
        };
        // (What each of several models would have at once is told when it is loaded: here, one stream.)
        let args = Plan::of_server(&self.machine, 1);
        let (device, room_bytes) = (self.host.device(), self.host.ledger().models_bytes());
        beforehand(&args, device.as_ref(), room_bytes, asked)
            .map_err(|failure| refused(failure, true))
    }

    fn remove(&self, id: &str) -> Result<(), Trouble> {
        self.changes()?;
        let removed = self.named(id).and_then(|named| store::remove(&named.name));
        removed.map_err(|failure| refused(failure, true))
    }

    fn recipes(&self) -> Vec<Recipe> {
        recipes::read().unwrap_or_else(|failure| {
            tracing::warn!("{failure}");
            Vec::new()
        })
    }

    fn keep(&self, recipes: &[Recipe]) -> Result<(), Trouble> {
        recipes::write(recipes).map_err(|failure| refused(failure, false))
    }
}

fn gone(id: &str) -> Failure {
    Failure::new(format!("{id} is not here"), "its files are gone")
}

/// What stands in the files of a model; none where they cannot be read.
fn card_of(Located { path, defaults, .. }: Located) -> Option<Card> {
    let lowered = read(&path, KvFormat::Int16).ok()?;
    let checkpoint = &lowered.files.checkpoint;
    let mut formats: BTreeMap<&str, u64> = BTreeMap::new();
    for tensor in &checkpoint.tensors {
        *formats.entry(tensor.format.name()).or_default() += tensor.shape.iter().product::<u64>();
    }
    let most = formats.iter().max_by_key(|(_, count)| **count).map(|(name, _)| *name);
    let vocabulary = vocabulary_of(&path, &lowered.files).ok().flatten();
    let template = vocabulary.and_then(|vocabulary| vocabulary.template.ok());
    Some(Card {
        format: match checkpoint.container {
            Container::Gguf => "gguf".to_owned(),
            Container::Hf => "safetensors".to_owned(),
        },
        family: lowered.spec.arch.to_string(),
        parameters: formats.values().sum(),
        quantization: most.unwrap_or_default().to_owned(),
        width: lowered.program.hidden,
        template: template.map(|template| template.source().to_owned()),
        defaults: defaults.or(packaged(checkpoint)),
    })
}

/// The same of what is no load.
fn refused(failure: Failure, of_files: bool) -> Trouble {
    tracing::warn!("{failure}");
    let reason = match failure {
        Failure::Told { what, detail, .. } => format!("{what}: {detail}"),
        Failure::Lines(text) => text.lines().next().unwrap_or_default().to_owned(),
        _ => "the server's log has the details".to_owned(),
    };
    Trouble { reason: without_paths(&reason), of_files }
}

/// What goes wrong in words for a client, who need not know where files lie.
fn trouble(id: &str, error: NotStarted) -> Trouble {
    let of_files = matches!(
        error,
        NotStarted::Load(
            LoadFailure::File(_)
                | LoadFailure::Model(_)
                | LoadFailure::Vocabulary(_)
                | LoadFailure::Bug(_)
        )
    );
    let told = error.told(id);
    tracing::warn!("{told}");
    let detail = match told {
        Failure::Told { detail, .. } => detail,
        _ => "the server's log has the details".to_owned(),
    };
    Trouble { reason: without_paths(&detail), of_files }
}

/// A text whose words that are paths have but their last part.
fn without_paths(text: &str) -> String {
    let last = |word: &str| match word.find(['/', '\\']) {
        Some(0) => word.rsplit(['/', '\\']).next().unwrap_or_default().to_owned(),
        _ => word.to_owned(),
    };
    let words: Vec<String> = text.split_whitespace().map(last).collect();
    words.join(" ")
}

/// A model of the command line as clients call it: the last part of a path without its ending, what it
/// is called in a bundle, or the name as it is.
pub fn named(name: &str, called: Option<&str>) -> Named {
    let path = Path::new(name);
    let short = match path.file_stem() {
        Some(stem) if path.exists() => {
            bundle::name_inside(path).unwrap_or_else(|| stem.to_string_lossy().into_owned())
        }
        _ => name.to_owned(),
    };
    let id = called.map_or(short, str::to_owned);
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let bytes = std::fs::metadata(name).map_or(0, |m| if m.is_file() { m.len() } else { 0 });
    let (aliases, digest) = (Vec::new(), String::new());
    Named { name: name.to_owned(), listed: Listed { id, aliases, created, bytes, digest } }
}

/// A model with its files' bytes and digest, where they are here: one of the command line may have been
/// named before it was fetched.
fn as_it_lies(named: Named) -> Listed {
    match store::here(&named.name) {
        Ok(Some(model)) if named.listed.digest.is_empty() => {
            Listed { bytes: model.bytes(), digest: store::digest(&model), ..named.listed }
        }
        _ => named.listed,
    }
}

/// What is here: each model by the name that `list` shows, its alias, and the last part of its name
/// where no other has it.
fn named_alike(entries: Vec<tokenmill_store::Entry>) -> Vec<Named> {
    let last = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
    let mut all: Vec<Named> = Vec::new();
    for entry in entries {
        let id = entry.model.name.clone();
        if all.iter().any(|named| named.listed.id == id) {
            continue;
        }
        let made = std::fs::metadata(&entry.model.path).and_then(|m| m.modified()).ok();
        let made = made.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let aliases = entry.alias.map(str::to_owned).into_iter().chain([last(&id)]).collect();
        let (bytes, digest) = (entry.model.bytes(), store::digest(&entry.model));
        let created = made.map_or(0, |d| d.as_secs());
        let listed = Listed { id: id.clone(), aliases, created, bytes, digest };
        all.push(Named { name: id, listed });
    }
    let names = |named: &Named| {
        let Listed { id, aliases, .. } = &named.listed;
        [id].into_iter().chain(aliases).cloned().collect::<BTreeSet<String>>()
    };
    let every: Vec<String> = all.iter().flat_map(names).collect();
    let once = |alias: &String| every.iter().filter(|name| *name == alias).count() == 1;
    for Named { listed, .. } in &mut all {
        let id = listed.id.clone();
        let mut seen = BTreeSet::new();
        listed.aliases.retain(|alias| *alias != id && once(alias) && seen.insert(alias.clone()));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenmill_store::{Entry, LocalModel, Owner};

    #[test]
    fn models_are_called_by_what_tells_them_apart() {
        let entry = |name: &str, alias| Entry {
            model: LocalModel {
                name: name.to_owned(),
                path: PathBuf::from("/nowhere"),
                files: Vec::new(),
                defaults: Default::default(),
            },
            owner: Owner::Own,
            alias,
        };
        let all = named_alike(vec![
            entry("a/one:q8", None),
            entry("b/one:q8", None),
            entry("a/two", Some("two")),
            entry("three", Some("drei")),
            entry("three", None),
        ]);
        let names = |n: &Named| (n.listed.id.clone(), n.listed.aliases.join(" "));
        let found: Vec<(String, String)> = all.iter().map(names).collect();
        let expect = [("a/one:q8", ""), ("b/one:q8", ""), ("a/two", "two"), ("three", "drei")];
        assert_eq!(found, expect.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }

    #[test]
    fn clients_hear_of_no_folders() {
        for (text, expect) in [
            ("/home/a/m.gguf: cut off at 12", "m.gguf: cut off at 12"),
            ("12 of 10 MiB/s are free", "12 of 10 MiB/s are free"),
        ] {
            assert_eq!(without_paths(text), expect);
        }
    }
}

//! The models of a server as they come and go: drives [`Residency`], which decides, and does what
//! it says on threads of its own.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokenmill_engine::residency::{
    Action, Counts, Known, Refused, Residency, Stage, Status, Trouble, Waiter,
};
use tokenmill_engine::{CacheFeed, KeepAlive};
use tokenmill_ir::MAX_GROUPS;
use tokenmill_output::Format;
use tokio::sync::{oneshot, watch};

use crate::ability::Wish;
use crate::alias::Alias;
use crate::config::ServeError;
use crate::holding::Holds;
use crate::made::{Made, made};
use crate::metrics::ModelMetrics;
use crate::model::ServedModel;
use crate::shared::Model;
use crate::stock::{
    Abilities, Card, Fetching, IsWanted, Listed, Loader, NotLoaded, Present, Recipe, Stock,
    spellings,
};

mod tickets;

pub use tickets::{InUse, Pending};

/// The list of models is read no more often.
const FRESH: Duration = Duration::from_secs(1);

/// See the module.
pub struct Residents {
    inner: Mutex<Inner>,
    loader: Option<Arc<dyn Loader>>,
    started: Instant,
    /// Changes whenever a model's state may have.
    changes: watch::Sender<u64>,
    /// Recipes are changed by one at a time.
    making: Mutex<()>,
    /// Where the model, if it is one, tells what is in its prompt cache.
    feed: OnceLock<Arc<CacheFeed>>,
}

struct Inner {
    all: Residency,
    /// In the order of their numbers.
    models: Vec<Entry>,
    waiting: HashMap<Waiter, oneshot::Sender<Result<Model, Refused>>>,
    threads: Vec<JoinHandle<()>>,
    /// When the list of models was read.
    read: Instant,
    /// Aliases, and models made of these.
    made: Vec<Arc<Made>>,
    /// How many of them are aliases: they stay, and come before models of their names.
    aliases: usize,
}

struct Entry {
    listed: Listed,
    /// It is listed no more.
    missing: bool,
    there: Option<There>,
    /// Its load is to be broken off.
    cancelled: Arc<AtomicBool>,
    metrics: Arc<ModelMetrics>,
}

/// A model that is in memory.
#[derive(Clone)]
pub struct There {
    /// The model.
    pub served: ServedModel,
    /// How it marks reasoning and calls of tools.
    pub format: &'static Format,
    /// What answers hold that may call tools.
    pub holds: Arc<Holds>,
    /// Its counters, which stay when it goes.
    pub metrics: Arc<ModelMetrics>,
}

impl There {
    fn new(served: ServedModel, metrics: Arc<ModelMetrics>) -> Self {
        let template = served.template.as_ref().ok();
        let format = template.map_or(Format::PLAIN, |t| Format::of_template(t.source()));
        Self { served, format, holds: Arc::default(), metrics }
    }
}

/// A model as it is told of.
pub struct Told {
    /// Its names.
    pub listed: Listed,
    /// Where it is in its life.
    pub status: Status,
    /// When it goes if nobody asks for it.
    pub expires_in_s: Option<f64>,
    /// When its last load failed, seconds ago.
    pub failed_ago_s: Option<f64>,
    /// The model, where it is in memory.
    pub there: Option<There>,
    /// The model that it is made of.
    pub root: Option<Listed>,
    /// What makes it of that.
    pub made: Option<Arc<Made>>,
}

impl Told {
    /// Its names and those of the model that it is made of.
    pub fn names(&self) -> Vec<String> {
        self.listed.names().into_iter().chain(self.root.iter().flat_map(Listed::names)).collect()
    }
}

impl Residents {
    /// Takes what there is.
    ///
    /// # Errors
    /// [`ServeError`] where there is nothing, or two have one name.
    pub fn new(stock: Stock) -> Result<Arc<Self>, ServeError> {
        let Stock { present, pinned, aliases, loader, cap_bytes, keep } = stock;
        let nameless = present.iter().any(|one| one.model.names.is_empty());
        if nameless || (present.is_empty() && loader.is_none()) {
            return Err(ServeError::NoModel);
        }
        let started = Instant::now();
        let mut inner = Inner {
            all: Residency::new(cap_bytes, keep),
            models: Vec::new(),
            waiting: HashMap::new(),
            threads: Vec::new(),
            read: started,
            made: Vec::new(),
            aliases: 0,
        };
        for Present { model, needs } in present {
            inner.all.present(needs, 0.0);
            let (id, others) = model.names.split_first().map_or(("", &[][..]), |(id, o)| (id, o));
            let (id, aliases) = (id.to_owned(), others.to_vec());
            let (bytes, digest) = (model.engine.stats().memory.weight_bytes, String::new());
            let listed = Listed { id, aliases, created: model.created, bytes, digest };
            inner.models.push(Entry::new(listed, Some(model)));
        }
        inner.check_names()?;
        inner.relist(loader.as_ref().map(|loader| loader.list()).unwrap_or_default());
        inner.check_aliases(&aliases)?;
        inner.aliases = aliases.len();
        inner.made = aliases.into_iter().map(|alias| Arc::new(Made::alias(alias))).collect();
        inner.remake(made(loader.as_ref()));
        for (at, entry) in inner.models.iter().enumerate() {
            if pinned.contains(&entry.listed.id) {
                inner.all.pin(Known(at), true, 0.0); // (nobody waits yet)
            }
        }
        let changes = watch::Sender::new(0);
        let (inner, making) = (Mutex::new(inner), Mutex::default());
        let feed = OnceLock::new();
        Ok(Arc::new(Self { inner, loader, started, changes, making, feed }))
    }

    /// From now on the model tells that feed what is in its prompt cache, whenever it is in memory.
    ///
    /// # Errors
    /// [`ServeError::SeveralCaches`]: names of blocks are one model's.
    pub fn tell_to(&self, feed: Arc<CacheFeed>) -> Result<(), ServeError> {
        let models = self.lock().models.len();
        if models != 1 {
            return Err(ServeError::SeveralCaches { models });
        }
        let _ = self.feed.set(feed); // the first of this server
        self.tell_caches();
        Ok(())
    }

    /// Tells again what is in the prompt cache.
    pub fn tell_caches(&self) {
        let Some(feed) = self.feed.get() else { return };
        self.there().iter().for_each(|there| there.served.engine.tell_cache(Arc::clone(feed)));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Asks for a model by any of its names, the only one where none is named; `None` where there
    /// is none of that name that he may have.
    pub fn want(
        self: &Arc<Self>,
        name: Option<&str>,
        keep: Option<KeepAlive>,
        within: Duration,
        may: &dyn Fn(&Listed) -> bool,
    ) -> Option<Pending> {
        let (known, made) = self.find(name)?;
        // (Who may use a model may use what is made of it.)
        let listed = |made| self.lock().listed(known, made);
        if !may(&listed(made.as_deref())) && !may(&listed(None)) {
            return None;
        }
        let (sender, answer) = oneshot::channel();
        let mut asked = None;
        self.act(|inner, now_s| {
            let (waiter, actions) = inner.all.want(known, keep, within.as_secs_f64(), now_s);
            inner.waiting.insert(waiter, sender);
            asked = Some((waiter, inner.models[known.0].listed.id.clone()));
            actions
        });
        let (waiter, id) = asked?;
        Some(Pending { residents: Arc::clone(self), waiter, id, why: None, made, answer })
    }

    /// The model of that name. Where nobody knows it, the list is read again: it may have come.
    fn find(&self, name: Option<&str>) -> Option<(Known, Option<Arc<Made>>)> {
        let found = self.lock().find(name);
        if found.is_some() || name.is_none() {
            return found;
        }
        self.refresh();
        self.lock().find(name)
    }

    /// The best model that can do what is wished, and why it is that one: of those in memory, else
    /// of all, the one with the largest weights.
    pub fn pick(&self, wish: &Wish, may: &dyn Fn(&Listed) -> bool) -> Option<(String, String)> {
        self.refresh();
        let mut all = self.told(None);
        all.retain(|told| told.made.is_none() && may(&told.listed));
        let met = all.iter().filter_map(|told| Some((told, self.abilities(told)?)));
        let met = met.filter(|(_, can)| wish.is_met_by(can));
        let rank = |(told, can): &(&Told, Abilities)| (told.there.is_some(), can.bytes);
        // (Of equals the first of the list.)
        let (told, can) = met.reduce(|a, b| if rank(&b) > rank(&a) { b } else { a })?;
        let place = if told.there.is_some() { "in memory" } else { "not in memory yet" };
        let (id, context) = (told.listed.id.clone(), can.context);
        let why =
            format!("{id} answers: the largest that can, {place}, {context} tokens of context");
        Some((id, why))
    }

    /// Reads the list of models, unless that was done just now.
    pub fn refresh(&self) {
        let Some(loader) = &self.loader else { return };
        {
            let mut inner = self.lock();
            if inner.read.elapsed() < FRESH {
                return;
            }
            inner.read = Instant::now();
        }
        self.read_again(loader);
    }

    fn read_again(&self, loader: &Arc<dyn Loader>) {
        let (listed, made) = (loader.list(), made(Some(loader)));
        let mut inner = self.lock();
        inner.relist(listed);
        inner.remake(made);
    }

    /// Fetches a model as long as it is wanted; the list has it then.
    ///
    /// # Errors
    /// Why it is not here.
    pub fn pull(
        &self,
        name: &str,
        on: &mut dyn FnMut(Fetching),
        wanted: IsWanted,
    ) -> Result<(), Trouble> {
        let loader = self.loader()?;
        loader.changes()?;
        loader.pull(name, on, wanted)?;
        self.read_again(loader);
        Ok(())
    }

    /// Deletes the files of a model that is not in memory, or the words that make one of another.
    ///
    /// # Errors
    /// Why it is still there.
    pub fn remove(&self, id: &str) -> Result<(), Trouble> {
        let loader = self.loader()?;
        let _alone = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let mut recipes = loader.recipes();
        let before = recipes.len();
        recipes.retain(|recipe| recipe.name != id);
        match recipes.len() == before {
            true => loader.remove(id)?,
            false => loader.keep(&recipes)?,
        }
        self.read_again(loader);
        Ok(())
    }

    /// Makes a model of another, in the place of one of that name.
    ///
    /// # Errors
    /// Why it is not kept.
    pub fn make(&self, recipe: Recipe) -> Result<(), Trouble> {
        let loader = self.loader()?;
        let _alone = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let mut recipes = loader.recipes();
        recipes.retain(|other| other.name != recipe.name);
        recipes.push(recipe);
        loader.keep(&recipes)?;
        self.read_again(loader);
        Ok(())
    }

    /// Whether models can be pulled and deleted.
    ///
    /// # Errors
    /// Why not.
    pub fn changes(&self) -> Result<(), Trouble> {
        self.loader()?.changes()
    }

    fn loader(&self) -> Result<&Arc<dyn Loader>, Trouble> {
        let reason = "this server serves the models that it was started with";
        self.loader.as_ref().ok_or(Trouble { reason: reason.into(), of_files: true })
    }

    /// What is told of a model's files; where nobody can read them, what is known of it in memory.
    pub fn card(&self, told: &Told) -> Card {
        let id = told.made.as_ref().map_or(&told.listed.id, |made| &made.recipe.from);
        let read = self.loader.as_ref().and_then(|loader| loader.card(id));
        let mut card = read.unwrap_or_else(|| match &told.there {
            Some(there) => Card {
                template: there.served.template.as_ref().ok().map(|t| t.source().to_owned()),
                defaults: there.served.defaults.clone(),
                width: there.served.engine.width(),
                ..Card::default()
            },
            None => Card::default(),
        });
        if let Some(made) = &told.made {
            card.defaults = made.defaults.clone().or(card.defaults);
            card.template = made.recipe.template.clone().or(card.template);
        }
        card
    }

    /// What a model can do, in memory or not.
    pub fn abilities(&self, told: &Told) -> Option<Abilities> {
        let id = told.made.as_ref().map_or(&told.listed.id, |made| &made.recipe.from);
        match (&told.there, &self.loader) {
            (Some(there), _) => Some(Abilities::of(&there.served)),
            (None, loader) => loader.as_ref()?.abilities(id),
        }
    }

    /// What is told of the model of that name, the only one where none is named.
    pub fn found(&self, name: Option<&str>) -> Option<Told> {
        let (known, made) = self.find(name)?;
        Some(self.lock().told(known, made, self.now_s()))
    }

    /// Whether models come and go.
    pub fn is_fixed(&self) -> bool {
        self.loader.is_none()
    }

    /// Lets a model go once its answers have ended, and breaks its load off; waits until it is
    /// gone, at most so long. `None` where there is none of that name.
    pub async fn unload(self: &Arc<Self>, name: &str, within: Duration) -> Option<Status> {
        let (known, _) = self.find(Some(name))?;
        let mut changes = self.changes.subscribe();
        self.act(|inner, now_s| inner.all.unload(known, now_s));
        let gone = async {
            // (One that somebody else has loaded again meanwhile has gone.)
            let is_going = |stage| !matches!(stage, Stage::Absent | Stage::Ready | Stage::Loading);
            while is_going(self.lock().all.status(known).stage) {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(within, gone).await; // it goes on draining
        Some(self.lock().all.status(known))
    }

    /// From now on a model stays, whoever else is asked for, or goes as others do. Whether there is one of
    /// that name.
    pub fn pin(self: &Arc<Self>, name: &str, pinned: bool) -> bool {
        let Some((known, _)) = self.find(Some(name)) else { return false };
        self.act(|inner, now_s| inner.all.pin(known, pinned, now_s));
        true
    }

    /// What is planned for models that can be pulled, or for the one of that name.
    ///
    /// # Errors
    /// Why nothing can be planned.
    pub fn plan(&self, name: Option<&str>) -> Result<Vec<Value>, Trouble> {
        self.loader()?.plan(name)
    }

    /// What is told of every model, or of the one of that name.
    pub fn told(&self, name: Option<&str>) -> Vec<Told> {
        let (inner, now_s) = (self.lock(), self.now_s());
        if name.is_some() {
            let found = inner.find(name);
            return found.map(|(known, made)| inner.told(known, made, now_s)).into_iter().collect();
        }
        // (A model that came later and is called as an alias is cannot be asked for.)
        let listed = |at: &usize| {
            let entry = &inner.models[*at];
            let is_here = !entry.missing || entry.there.is_some();
            is_here && inner.alias(&entry.listed.id).is_none()
        };
        let own = (0..inner.models.len()).filter(listed).map(|at| (Known(at), None));
        let made = inner.made.iter().filter_map(|made| {
            let known = inner.own(Some(&made.recipe.from))?;
            Some((known, Some(Arc::clone(made))))
        });
        own.chain(made).map(|(known, made)| inner.told(known, made, now_s)).collect()
    }

    /// Models that are in memory.
    pub fn there(&self) -> Vec<There> {
        self.lock().models.iter().filter_map(|entry| entry.there.clone()).collect()
    }

    /// Memory that models hold or are promised, what they may hold, and what has happened.
    pub fn counts(&self) -> (u64, u64, Counts) {
        let inner = self.lock();
        (inner.all.held_bytes(), inner.all.cap_bytes(), inner.all.counts())
    }

    /// Does what is due as time goes by; never ends.
    pub async fn keep_time(self: &Arc<Self>) {
        let mut changes = self.changes.subscribe();
        loop {
            let now_s = self.now_s();
            let next_s = self.lock().all.next_s(now_s);
            let due = async {
                match next_s {
                    Some(s) => {
                        let wait = Duration::try_from_secs_f64(s - now_s).unwrap_or_default();
                        tokio::time::sleep(wait).await;
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = changes.changed() => {} // (the sender is there as long as this is)
                () = due => self.act(|inner, now_s| inner.all.tick(now_s)),
            }
        }
    }

    /// Breaks loads off and gives all memory of models back that were loaded here.
    pub fn close(self: &Arc<Self>) {
        let Some(loader) = &self.loader else { return };
        self.act(|inner, now_s| {
            let all = (0..inner.models.len()).map(Known);
            all.flat_map(|known| inner.all.unload(known, now_s)).collect()
        });
        loop {
            let threads = std::mem::take(&mut self.lock().threads);
            if threads.is_empty() {
                break;
            }
            for thread in threads {
                let _ = thread.join(); // (it catches panics itself)
            }
        }
        // Answers of these were cut.
        let left: Vec<(String, There)> =
            self.lock().models.iter_mut().filter_map(Entry::taken).collect();
        for (id, there) in left {
            loader.free(&id, there.served);
        }
    }

    /// Tells the residency what has happened, and does what it answers.
    fn act(self: &Arc<Self>, event: impl FnOnce(&mut Inner, f64) -> Vec<Action>) {
        let mut inner = self.lock();
        let mut actions = VecDeque::from(event(&mut inner, self.now_s()));
        let mut unsent = Vec::new();
        while let Some(action) = actions.pop_front() {
            let (model, more) = self.perform(&mut inner, action);
            unsent.extend(model);
            actions.extend(more);
        }
        drop(inner);
        self.changes.send_modify(|n| *n = n.wrapping_add(1));
        // Whoever waited for these has just gone: their use ends, which is an event of its own.
        drop(unsent);
    }

    /// Does one thing; a model that nobody took, and what follows at once.
    fn perform(
        self: &Arc<Self>,
        inner: &mut Inner,
        action: Action,
    ) -> (Option<Model>, Vec<Action>) {
        match action {
            Action::Measure(known) => return (None, self.begin(inner, known, Self::measure)),
            Action::Load(known) => {
                inner.models[known.0].cancelled = Arc::default();
                return (None, self.begin(inner, known, Self::load));
            }
            Action::Cancel(known) => {
                inner.models[known.0].cancelled.store(true, Ordering::Relaxed);
            }
            Action::Free(known) => return (None, self.begin(inner, known, Self::free)),
            Action::Shrink(known) => return (None, self.begin(inner, known, Self::shrink)),
            Action::Grow(known) => {
                if let Some(there) = &inner.models[known.0].there {
                    there.served.engine.resize(vec![u32::MAX; MAX_GROUPS], Box::new(()));
                }
            }
            Action::Grant(known, waiter) => {
                let Some(there) = inner.models[known.0].there.clone() else {
                    return (None, inner.all.ended(known, self.now_s())); // (it was closed)
                };
                let in_use = Arc::new(InUse { residents: Arc::clone(self), known });
                let model = Model::new(there, in_use);
                let unsent = match inner.waiting.remove(&waiter) {
                    Some(sender) => sender.send(Ok(model)).err().and_then(Result::ok),
                    None => Some(model),
                };
                return (unsent, Vec::new());
            }
            Action::Refuse(waiter, refused) => {
                if let Some(sender) = inner.waiting.remove(&waiter) {
                    let _ = sender.send(Err(refused)); // who waited may have gone
                }
            }
        }
        (None, Vec::new())
    }

    /// Begins work on a thread; what follows where there is none to be had.
    fn begin(
        self: &Arc<Self>,
        inner: &mut Inner,
        known: Known,
        work: fn(&Arc<Self>, &Arc<dyn Loader>, Known),
    ) -> Vec<Action> {
        inner.threads.retain(|thread| !thread.is_finished());
        let reason = match &self.loader {
            None => "nothing is loaded here".to_owned(),
            Some(loader) => {
                let (residents, loader) = (Arc::clone(self), Arc::clone(loader));
                let body = move || work(&residents, &loader, known);
                match std::thread::Builder::new().name("models".into()).spawn(body) {
                    Ok(thread) => {
                        inner.threads.push(thread);
                        return Vec::new();
                    }
                    Err(error) => format!("no thread is to be had: {error}"),
                }
            }
        };
        let now_s = self.now_s();
        match inner.all.status(known).stage {
            Stage::Freeing => {
                // (Its engine ends with the thread of its device.)
                inner.models[known.0].there = None;
                inner.all.gone(known, now_s)
            }
            // (Its caches stay as they are.)
            Stage::Ready => inner.all.shrunk(known, inner.all.status(known).bytes, now_s),
            _ => inner.all.failed(known, Trouble { reason, of_files: false }, now_s),
        }
    }

    fn measure(self: &Arc<Self>, loader: &Arc<dyn Loader>, known: Known) {
        let id = self.id(known);
        let measured = guarded(|| loader.measure(&id), Err);
        self.act(|inner, now_s| match measured {
            Ok(needs) => inner.all.measured(known, needs, now_s),
            Err(trouble) => {
                tracing::warn!(model = id, reason = trouble.reason, "a model cannot be read");
                inner.all.failed(known, trouble, now_s)
            }
        });
    }

    fn load(self: &Arc<Self>, loader: &Arc<dyn Loader>, known: Known) {
        let (id, cancelled) = (self.id(known), Arc::clone(&self.lock().models[known.0].cancelled));
        let wanted = || !cancelled.load(Ordering::Relaxed);
        let failed = |trouble| Err(NotLoaded::Failed(trouble));
        let loaded = guarded(|| loader.load(&id, &wanted), failed);
        self.act(|inner, now_s| match loaded {
            Ok(served) => {
                tracing::info!(model = id, "loaded");
                self.feed.get().iter().for_each(|f| served.engine.tell_cache(Arc::clone(f)));
                let entry = &mut inner.models[known.0];
                entry.there = Some(There::new(served, Arc::clone(&entry.metrics)));
                inner.all.loaded(known, now_s)
            }
            Err(NotLoaded::BrokenOff) => inner.all.gone(known, now_s),
            Err(NotLoaded::Failed(trouble)) => {
                tracing::warn!(model = id, reason = trouble.reason, "a model cannot be loaded");
                inner.all.failed(known, trouble, now_s)
            }
        });
    }

    fn free(self: &Arc<Self>, loader: &Arc<dyn Loader>, known: Known) {
        let taken = self.lock().models[known.0].taken();
        if let Some((id, there)) = taken {
            let freed = catch_unwind(AssertUnwindSafe(|| loader.free(&id, there.served)));
            match freed {
                Ok(()) => tracing::info!(model = id, "unloaded"),
                Err(_) => tracing::error!(model = id, "a bug while a model was unloaded"),
            }
        }
        self.act(|inner, now_s| inner.all.gone(known, now_s));
    }

    fn shrink(self: &Arc<Self>, loader: &Arc<dyn Loader>, known: Known) {
        let (id, there) = (self.id(known), self.lock().models[known.0].there.clone());
        let Some(There { served, .. }) = there else { return };
        let engine = served.engine.clone();
        let (residents, loader) = (Arc::clone(self), Arc::clone(loader));
        let shrunk = tickets::Shrunk { residents, loader, known, id, served };
        engine.resize(vec![0; MAX_GROUPS], Box::new(shrunk));
    }

    fn id(&self, known: Known) -> String {
        self.lock().models[known.0].listed.id.clone()
    }
}

/// What work gives, or a trouble where it panics.
fn guarded<T, E>(
    work: impl FnOnce() -> Result<T, E>,
    failed: impl FnOnce(Trouble) -> Result<T, E>,
) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        failed(Trouble {
            reason: "a bug; the server's log has the details".into(),
            of_files: false,
        })
    })
}

impl Entry {
    fn new(listed: Listed, served: Option<ServedModel>) -> Self {
        let metrics = Arc::<ModelMetrics>::default();
        let there = served.map(|served| There::new(served, Arc::clone(&metrics)));
        Self { listed, missing: false, there, cancelled: Arc::default(), metrics }
    }

    /// Takes the model out of its place.
    fn taken(&mut self) -> Option<(String, There)> {
        let there = self.there.take()?;
        Some((self.listed.id.clone(), there))
    }
}

impl Inner {
    /// By any spelling of a name: a model, or one that is made of another.
    fn find(&self, name: Option<&str>) -> Option<(Known, Option<Arc<Made>>)> {
        let Some(asked) = name else { return self.own(None).map(|known| (known, None)) };
        if let Some(alias) = self.alias(asked) {
            return Some((self.own(Some(&alias.recipe.from))?, Some(Arc::clone(alias))));
        }
        spellings(asked).iter().find_map(|name| {
            if let Some(known) = self.own(Some(name)) {
                return Some((known, None));
            }
            let made = self.made.iter().find(|made| made.recipe.name == *name)?;
            Some((self.own(Some(&made.recipe.from))?, Some(Arc::clone(made))))
        })
    }

    fn alias(&self, name: &str) -> Option<&Arc<Made>> {
        self.made[..self.aliases].iter().find(|alias| alias.recipe.name == name)
    }

    /// Takes a new list of models that are made of others.
    fn remake(&mut self, made: Vec<Arc<Made>>) {
        self.made.truncate(self.aliases);
        self.made.extend(made);
    }

    fn check_aliases(&self, aliases: &[Alias]) -> Result<(), ServeError> {
        for (at, Alias { name, model, .. }) in aliases.iter().enumerate() {
            let twice = aliases.iter().take(at).any(|other| other.name == *name);
            if twice || self.own(Some(name)).is_some() {
                return Err(ServeError::SameName { name: name.clone() });
            }
            if self.own(Some(model)).is_none() {
                let (alias, model) = (name.clone(), model.clone());
                return Err(ServeError::AliasOfNothing { alias, model });
            }
        }
        Ok(())
    }

    /// The names of a model, or of one that is made of it.
    fn listed(&self, known: Known, made: Option<&Made>) -> Listed {
        let listed = self.models[known.0].listed.clone();
        match made {
            None => listed,
            Some(Made { recipe, .. }) => {
                let id = recipe.name.clone();
                let aliases = id.strip_suffix(":latest").map(str::to_owned).into_iter().collect();
                let created = if recipe.created > 0 { recipe.created } else { listed.created };
                Listed { id, aliases, created, ..listed }
            }
        }
    }

    fn told(&self, known: Known, made: Option<Arc<Made>>, now_s: f64) -> Told {
        let (entry, status) = (&self.models[known.0], self.all.status(known));
        let mut there = entry.there.clone();
        if let (Some(there), Some(made)) = (&mut there, &made) {
            made.put_over(&mut there.served);
        }
        Told {
            listed: self.listed(known, made.as_deref()),
            root: made.is_some().then(|| entry.listed.clone()),
            expires_in_s: status.expires_s.map(|s| (s - now_s).max(0.0)),
            failed_ago_s: status.failed.as_ref().map(|(_, at_s)| (now_s - at_s).max(0.0)),
            status,
            there,
            made,
        }
    }

    /// By its own name, else by another; the only one where none is named.
    fn own(&self, name: Option<&str>) -> Option<Known> {
        let known = self.models.iter().enumerate();
        let mut known = known.filter(|(_, e)| !e.missing || e.there.is_some());
        let Some(name) = name else {
            let first = known.next();
            return first.filter(|_| known.next().is_none()).map(|(at, _)| Known(at));
        };
        let own = known.clone().find(|(_, e)| e.listed.id == name);
        let found = own.or_else(|| known.find(|(_, e)| e.listed.aliases.iter().any(|a| a == name)));
        found.map(|(at, _)| Known(at))
    }

    /// Takes a new list; models that are there stay though they are listed no more.
    fn relist(&mut self, listed: Vec<Listed>) {
        if listed.is_empty() && self.models.iter().all(|entry| entry.there.is_some()) {
            return;
        }
        self.models.iter_mut().for_each(|entry| entry.missing = true);
        for one in listed {
            match self.models.iter_mut().find(|entry| entry.listed.id == one.id) {
                Some(entry) => (entry.listed, entry.missing) = (one, false),
                None => {
                    self.all.know();
                    self.models.push(Entry::new(one, None));
                }
            }
        }
    }

    fn check_names(&self) -> Result<(), ServeError> {
        let mut names: Vec<String> = self.models.iter().flat_map(|e| e.listed.names()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(twice) => Err(ServeError::SameName { name: twice[0].clone() }),
            None => Ok(()),
        }
    }
}

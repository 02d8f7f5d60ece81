//! What all requests share: the models, the limits, and how far the server is on its way down.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, Request, StatusCode};
use tokenmill_chat::Grammars;
use tokenmill_engine::KeepAlive;
use tokenmill_engine::residency::{Refused, Trouble};
use tokenmill_ir::sampling::splitmix;
use tokenmill_output::Format;
use tokenmill_text::DateTime;
use tokio::sync::watch;

use crate::ability::Wish;
use crate::access::Gate;
use crate::audit::Audit;
use crate::config::{ServeError, ServerConfig};
use crate::conversation::Message;
use crate::error::ApiError;
use crate::fetch::Fetcher;
use crate::fields::{Notes, shown};
use crate::guests::{self, Guests};
use crate::holding::Holds;
use crate::keys::{Caller, Key};
use crate::kv_events::Source;
use crate::made::Made;
use crate::metrics::{ModelMetrics, Responses};
use crate::model::ServedModel;
use crate::receipts::Store;
use crate::requests::Requests;
use crate::residents::{InUse, Pending, Residents, There, Told};
use crate::seal::Seal;
use crate::seeing::Room;
use crate::shares::{Party, Share, Shares};
use crate::state::State;
use crate::stock::{Listed, Stock};
use crate::uses::Uses;
use crate::workshop::Workshop;

/// How far the server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Takes requests.
    Serving,
    /// Takes none; those in progress go on.
    Draining,
    /// Those in progress are cut.
    Stopping,
}

/// A model that answers, and stays as long as this is held.
#[derive(Clone)]
pub struct Model {
    /// The model.
    pub served: ServedModel,
    /// How it marks reasoning and calls of tools.
    pub format: &'static Format,
    /// What answers hold that may call tools.
    pub holds: Arc<Holds>,
    /// Its counters.
    pub metrics: Arc<ModelMetrics>,
    /// What conversations begin with.
    pub begins: Vec<Message>,
    _in_use: Arc<InUse>,
}

impl Model {
    /// One that is there.
    pub fn new(there: There, in_use: Arc<InUse>) -> Self {
        let There { served, format, holds, metrics } = there;
        Self { served, format, holds, metrics, begins: Vec::new(), _in_use: in_use }
    }

    /// The same by other words, if there are any: it answers by their name.
    pub fn made(mut self, made: Option<&Made>) -> Self {
        let Some(made) = made else { return self };
        made.put_over(&mut self.served);
        if let Some(other) = made.other(&self.served.tokenizer) {
            (self.format, self.holds) = (other.format, other.holds);
        }
        self.begins.clone_from(&made.begins);
        self
    }

    /// What makes the grammars of its answers.
    pub fn grammars(&self) -> Grammars<'_> {
        let (engine, tokenizer) = (&self.served.engine, &*self.served.tokenizer);
        Grammars { engine, tokenizer, holds: &self.holds }
    }

    /// Whether it sees images.
    pub fn sees(&self) -> bool {
        self.served.eyes.is_some()
    }

    /// Most tokens of prompt and answer together.
    pub fn context(&self) -> u32 {
        self.served.context.min(self.served.engine.longest())
    }

    /// The same, to count with.
    pub fn most_tokens(&self) -> usize {
        self.context() as usize
    }
}

/// One server.
pub struct Shared {
    /// How it was set up; its keys are not kept here, and the gate may have changed since.
    pub config: ServerConfig,
    /// Who may come in.
    gate: RwLock<Arc<Gate>>,
    /// What holders of keys have in use.
    pub uses: Arc<Uses>,
    /// What is served.
    pub residents: Arc<Residents>,
    /// Responses by status.
    pub responses: Responses,
    /// Members of requests that nobody knew.
    pub unknown_members: AtomicU64,
    /// When it started.
    pub started: Instant,
    /// Connections.
    pub guests: Arc<Guests>,
    /// Requests that are answered at once.
    pub admission: Arc<Shares>,
    /// Bytes of bodies in memory.
    pub bodies: Arc<Shares>,
    /// Where bodies are parsed and tokenised.
    pub workshop: Workshop,
    /// Memory for the patches of images.
    pub patches: Room,
    /// Seals what clients keep for it.
    pub seal: Seal,
    /// Those that run and ran lately.
    pub requests: Requests,
    /// Fetches images that requests name by address, where that is on.
    pub fetcher: Option<Fetcher>,
    /// Who asked what.
    pub audit: Option<Arc<Audit>>,
    /// What is kept for clients.
    pub state: Option<Arc<State>>,
    /// Where receipts are stored.
    pub receipts: Option<Arc<Store>>,
    /// What is in the prompt cache, where that is told.
    pub cache: Option<Source>,
    phase: watch::Sender<Phase>,
    salt: u64,
    issued: AtomicU64,
}

impl Shared {
    /// Checks the set-up.
    ///
    /// # Errors
    /// [`ServeError`] of the configuration, or of the models' names.
    pub fn new(mut config: ServerConfig, stock: Stock) -> Result<Self, ServeError> {
        config.check()?;
        let residents = Residents::new(stock)?;
        let cache = config.kv_events.as_ref().map(|_| Source::new());
        cache.iter().try_for_each(|source| residents.tell_to(Arc::clone(&source.feed)))?;
        let audit = config.audit.as_deref().map(Audit::open).transpose()?;
        let state =
            config.state.as_ref().map(|kept| State::open(kept, &config.limits)).transpose()?;
        let most = config.limits.receipts_bytes;
        let receipts = config.receipts.as_ref().map(|dir| Store::open(dir, most)).transpose()?;
        let fetcher = config.fetch_images.as_ref().map(Fetcher::new).transpose();
        let fetcher = fetcher.map_err(|reason| ServeError::NoFetching { reason })?;
        let gate = RwLock::new(Arc::new(Gate::new(&config)));
        (config.metrics_key, config.keys) = (None, None);
        config.api_keys.clear();
        Ok(Self {
            guests: Guests::new(config.limits.connections),
            admission: Shares::new(config.limits.requests),
            bodies: Shares::new(config.limits.bodies_bytes),
            workshop: Workshop::new(config.limits.preparing),
            patches: Room::new(config.limits.patches_bytes),
            seal: Seal::new(config.seal_key.take()),
            phase: watch::Sender::new(Phase::Serving),
            salt: splitmix(unix_nanos() ^ u64::from(std::process::id()) << 40),
            issued: AtomicU64::new(0),
            residents,
            responses: Responses::default(),
            unknown_members: AtomicU64::new(0),
            started: Instant::now(),
            uses: Arc::default(),
            requests: Requests::default(),
            fetcher,
            audit,
            state,
            receipts: receipts.map(Arc::new),
            cache,
            gate,
            config,
        })
    }

    /// Who may come in now.
    pub fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Who may come in from now on, by another set-up; requests that are in go on.
    ///
    /// # Errors
    /// What of the set-up makes no sense; then all stays as it is.
    pub fn change_gate(&self, config: &ServerConfig) -> Result<(), ServeError> {
        config.check()?;
        *self.gate.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Gate::new(config));
        Ok(())
    }

    /// How far the server is.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Goes on towards the end; never back.
    pub fn advance(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let later = to > *phase;
            *phase = to.max(*phase);
            later
        });
    }

    /// Hears of every advance.
    pub fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// 503 when the server is on its way down: asked before a body is read.
    ///
    /// # Errors
    /// That one.
    pub fn open(&self) -> Result<(), ApiError> {
        match self.phase() {
            Phase::Serving => Ok(()),
            Phase::Draining | Phase::Stopping => Err(ApiError::shutting_down()),
        }
    }

    /// Who shares with whom in what the server has: holders of the request's key, where several are
    /// set, else everybody at its address.
    pub fn party<B>(&self, request: &Request<B>) -> Party {
        let account = Caller::of(request).and_then(|caller| caller.account);
        account.unwrap_or_else(|| guests::party(request))
    }

    /// A place among the requests being answered, for one that is whole.
    ///
    /// # Errors
    /// 503 when the server is on its way down, 429 when all places are taken, or its party's.
    pub fn admit(&self, party: Party) -> Result<Share, ApiError> {
        self.open()?;
        self.admission.take(party, 1).ok_or_else(|| {
            let (taken, limit) = (self.in_flight(), self.config.limits.requests);
            ApiError::overloaded(format!(
                "{taken} requests are being answered: of the {limit} at once, nobody may have more \
                 than are left to others"
            ))
        })
    }

    /// Requests being answered.
    pub fn in_flight(&self) -> usize {
        self.admission.taken()
    }

    /// Asks for the model of that name, the best that can do what stands there, or the only one
    /// when none is named; it stays so long after the answer. A key's holder gets his models only.
    ///
    /// # Errors
    /// 404 with the names there are.
    pub fn want(
        &self,
        name: Option<&str>,
        keep: Option<KeepAlive>,
        key: Option<&Key>,
    ) -> Result<Pending, ApiError> {
        let within = self.config.timeouts.load;
        let may = |listed: &Listed| key.is_none_or(|key| key.may_use(&listed.names()));
        let (name, why) = match name.map(Wish::parse).transpose()?.flatten() {
            Some(wish) => match self.residents.pick(&wish, &may) {
                Some((id, why)) => (Some(id), Some(why)),
                None => return Err(self.unknown(name, key)),
            },
            None => (name.map(str::to_owned).or_else(|| self.only_one_of(key?)), None),
        };
        let pending = self.residents.want(name.as_deref(), keep, within, &may);
        let mut pending = pending.ok_or_else(|| self.unknown(name.as_deref(), key))?;
        pending.why = why;
        Ok(pending)
    }

    /// The model of a key for whose holder there is one.
    fn only_one_of(&self, key: &Key) -> Option<String> {
        let all = self.residents.told(None).into_iter();
        let mut his = all.filter(|told| key.may_use(&told.names())).map(|told| told.listed.id);
        his.next().filter(|_| his.next().is_none())
    }

    /// 404 with the names there are, for the holder of a key; 400 where none is named and there are
    /// several.
    pub fn unknown(&self, name: Option<&str>, key: Option<&Key>) -> ApiError {
        let Some(asked) = name.map(shown) else {
            return ApiError::bad("model", "model is missing; several are served");
        };
        let all = self.residents.told(None).into_iter();
        let his = all.filter(|told| key.is_none_or(|key| key.may_use(&told.names())));
        let names: Vec<String> = his.map(|told| told.listed.id).collect();
        let message = format!("the model {asked:?} is not served; served: {}", names.join(", "));
        ApiError {
            param: Some("model".into()),
            code: Some("model_not_found"),
            ..ApiError::new(StatusCode::NOT_FOUND, message)
        }
    }

    /// The same for who sends these headers.
    pub fn unknown_to(&self, headers: &HeaderMap, name: &str) -> ApiError {
        self.unknown(Some(name), self.gate().keys.caller(headers).key.as_deref())
    }

    /// What is told of every model that a request's key may use, or of the one of that name.
    pub async fn listed(&self, headers: &HeaderMap, name: Option<&str>) -> Vec<Told> {
        let (residents, key) = (Arc::clone(&self.residents), self.gate().keys.caller(headers).key);
        // (A list that cannot be read again is as it was.)
        let _ = tokio::task::spawn_blocking(move || residents.refresh()).await;
        let mut told = self.residents.told(name);
        told.retain(|told| key.as_ref().is_none_or(|key| key.may_use(&told.names())));
        told
    }

    /// The model when it is there.
    ///
    /// # Errors
    /// Why it cannot be loaded, 503 with when to come back where that takes too long.
    pub async fn awaited(&self, mut pending: Pending) -> Result<Model, ApiError> {
        let mut phases = self.phases();
        let model = tokio::select! {
            model = pending.wait() => model,
            () = reached(&mut phases, Phase::Stopping) => return Err(ApiError::shutting_down()),
        };
        model.map_err(|refused| self.refused(&pending.id, refused))
    }

    /// Why there is no model, as it is told.
    pub fn refused(&self, id: &str, refused: Refused) -> ApiError {
        let within = self.config.timeouts.load.as_secs();
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let (code, retry_after_s, message) = match &refused {
            Refused::Failed(Trouble { reason, of_files }) => {
                let message = format!("the model {id:?} cannot be loaded: {reason}");
                let status = match of_files {
                    true => StatusCode::BAD_REQUEST,
                    false => StatusCode::SERVICE_UNAVAILABLE,
                };
                let (code, param) = (Some("model_not_loaded"), Some("model".into()));
                return ApiError { code, param, ..ApiError::new(status, message) };
            }
            Refused::TooLarge { bytes, cap_bytes, pinned_bytes } => {
                let (bytes, cap, pinned) = (mib(*bytes), mib(*cap_bytes), mib(*pinned_bytes));
                let message = format!(
                    "the model {id:?} takes {bytes} MiB; of {cap} MiB pinned models hold {pinned}"
                );
                ("model_too_large", None, message)
            }
            Refused::Unloaded => {
                ("model_unloaded", Some(1), format!("the model {id:?} was unloaded meanwhile"))
            }
            Refused::Late { loading, retry_after_s } => {
                let why = match loading {
                    true => "it is still loading",
                    false => "others answer in the memory that it needs",
                };
                let message = format!("the model {id:?} was not ready within {within} s: {why}");
                ("model_not_ready", Some(*retry_after_s), message)
            }
        };
        let (code, param) = (Some(code), Some("model".into()));
        ApiError {
            code,
            param,
            retry_after_s,
            ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }

    /// The warnings to tell with an answer; members that nobody knew are counted.
    pub fn told(&self, notes: Notes) -> Vec<String> {
        self.unknown_members.fetch_add(notes.unknown(), Ordering::Relaxed);
        notes.into_list()
    }

    /// A number no other request of this server has: names answers, and seeds those without seed.
    pub fn ticket(&self) -> u64 {
        splitmix(self.salt ^ self.issued.fetch_add(1, Ordering::Relaxed))
    }
}

/// Waits until the server is that far.
pub async fn reached(phases: &mut watch::Receiver<Phase>, least: Phase) {
    // The sender goes with the server itself: then it is as far as it gets.
    let _ = phases.wait_for(|phase| *phase >= least).await;
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// The time for templates that print a date.
pub fn now() -> DateTime {
    DateTime::from_unix_seconds(unix_seconds())
}

/// Nanoseconds since 1970.
pub fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

//! What all requests share: the models, the limits, and how far the server is on its way down.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, Request, StatusCode};
use tokenmill_ir::sampling::splitmix;
use tokenmill_output::Format;
use tokio::sync::watch;

use crate::access::Gate;
use crate::config::{ServeError, ServerConfig};
use crate::error::ApiError;
use crate::fields::{Notes, shown};
use crate::guests::{self, Guests};
use crate::holding::Holds;
use crate::keys::Key;
use crate::metrics::{ModelMetrics, Responses};
use crate::model::ServedModel;
use crate::seal::Seal;
use crate::shares::{Party, Share, Shares};
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

/// A model and what is counted of it.
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
}

impl Model {
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
    /// What is served; not empty.
    pub models: Vec<Model>,
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
    /// Seals what clients keep for it.
    pub seal: Seal,
    phase: watch::Sender<Phase>,
    salt: u64,
    issued: AtomicU64,
}

impl Shared {
    /// Checks the set-up.
    ///
    /// # Errors
    /// [`ServeError`] of the configuration, or of the models' names.
    pub fn new(mut config: ServerConfig, models: Vec<ServedModel>) -> Result<Self, ServeError> {
        config.check()?;
        let mut names: Vec<&String> = models.iter().flat_map(|m| &m.names).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ServeError::SameName { name: twice[0].clone() });
        }
        if models.is_empty() || models.iter().any(|m| m.names.is_empty()) {
            return Err(ServeError::NoModel);
        }
        let gate = RwLock::new(Arc::new(Gate::new(&config)));
        (config.metrics_key, config.keys) = (None, None);
        config.api_keys.clear();
        let model = |served: ServedModel| {
            let template = served.template.as_ref().ok();
            let format = template.map_or(Format::PLAIN, |t| Format::of_template(t.source()));
            Model { served, format, holds: Arc::default(), metrics: Arc::default() }
        };
        Ok(Self {
            guests: Guests::new(config.limits.connections),
            admission: Shares::new(config.limits.requests),
            bodies: Shares::new(config.limits.bodies_bytes),
            workshop: Workshop::new(config.limits.preparing),
            seal: Seal::new(config.seal_key.take()),
            phase: watch::Sender::new(Phase::Serving),
            salt: splitmix(unix_nanos() ^ u64::from(std::process::id()) << 40),
            issued: AtomicU64::new(0),
            models: models.into_iter().map(model).collect(),
            responses: Responses::default(),
            unknown_members: AtomicU64::new(0),
            started: Instant::now(),
            uses: Arc::default(),
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
        self.gate().keys.account(request.headers()).unwrap_or_else(|| guests::party(request))
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

    /// The model of that name; the only one when none is named.
    ///
    /// # Errors
    /// 404 with the names there are.
    pub fn model(&self, name: Option<&str>) -> Result<&Model, ApiError> {
        let Some(name) = name else {
            let missing = || ApiError::bad("model", "model is missing; several are served");
            return self.models.first().filter(|_| self.models.len() == 1).ok_or_else(missing);
        };
        let found = self.models.iter().find(|m| m.served.names.iter().any(|n| n == name));
        found.ok_or_else(|| self.unknown_model(name, None))
    }

    /// The models that a request's key may use.
    pub fn models_for(&self, headers: &HeaderMap) -> Vec<&Model> {
        let key = self.gate().keys.holder(headers);
        let may = |model: &&Model| key.as_ref().is_none_or(|key| key.may_use(&model.served.names));
        self.models.iter().filter(may).collect()
    }

    /// One of them.
    ///
    /// # Errors
    /// 404 with the names there are for the key.
    pub fn model_for(&self, headers: &HeaderMap, name: &str) -> Result<&Model, ApiError> {
        let of_name = |model: &&Model| model.served.names.iter().any(|n| n == name);
        let found = self.models_for(headers).into_iter().find(of_name);
        found.ok_or_else(|| self.unknown_model(name, self.gate().keys.holder(headers).as_deref()))
    }

    /// 404 with the names there are, for the holder of a key.
    pub fn unknown_model(&self, name: &str, key: Option<&Key>) -> ApiError {
        let all = self.models.iter().map(|model| &model.served);
        let his = all.filter(|model| key.is_none_or(|key| key.may_use(&model.names)));
        let names: Vec<&str> = his.map(|model| model.name()).collect();
        let asked = shown(name);
        let message = format!("the model {asked:?} is not served; served: {}", names.join(", "));
        ApiError {
            param: Some("model".into()),
            code: Some("model_not_found"),
            ..ApiError::new(StatusCode::NOT_FOUND, message)
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

fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

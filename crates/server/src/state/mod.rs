//! What a server keeps for its clients where it is told to (`serve --state DIR`): answers of
//! Responses, conversations, files, batches. Without that it keeps nothing.
//!
//! DIR/state.db is SQLite, which holds everything but the contents of files; these lie in DIR/files,
//! each under its id. What changes together changes in one transaction, and a file has its name only
//! when all of it is written: a process that is killed leaves what was there before or after.

mod batches;
mod conversations;
mod db;
mod files;
mod lines;
mod objects;
mod responses;
mod worker;

use std::collections::HashMap;
use std::fmt;
use std::panic::RefUnwindSafe;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use rusqlite::Connection;
use serde_json::Value;
use tokenmill_ir::sampling::splitmix;
use tokio::sync::Notify;

use crate::error::ApiError;
use crate::keys::Caller;
use crate::shared::{Shared, unix_seconds};

pub use batches::{Batch, Dialect, NewBatch};
pub use conversations::with_ids;
pub use files::{NewFile, Upload};
pub use lines::custom_id;
pub use objects::{Page, Paged, query};
pub use responses::Keep;
pub use worker::work;

/// How long something is kept that says nothing else: thirty days.
const TTL: Duration = Duration::from_secs(30 * 24 * 3600);

/// Seconds since 1970, by a clock that tests can set.
#[derive(Clone)]
pub struct UnixClock(Arc<dyn Fn() -> u64 + Send + Sync + RefUnwindSafe>);

impl UnixClock {
    /// One that tells what the function does.
    pub fn new(now: impl Fn() -> u64 + Send + Sync + RefUnwindSafe + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Seconds since 1970.
    pub fn now(&self) -> u64 {
        (self.0)()
    }
}

impl Default for UnixClock {
    /// The system's.
    fn default() -> Self {
        Self::new(unix_seconds)
    }
}

impl fmt::Debug for UnixClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnixClock")
    }
}

/// Where a server keeps what, and for how long.
#[derive(Debug, Clone)]
pub struct StateConfig {
    /// The folder; made where it is missing, readable by its owner alone.
    pub dir: PathBuf,
    /// How long something stays that nobody uses.
    pub ttl: Duration,
    /// By which clock.
    pub clock: UnixClock,
}

impl StateConfig {
    /// That folder, for thirty days by the system's clock.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), ttl: TTL, clock: UnixClock::default() }
    }
}

/// Whose something is: the account of a key, 0 of everybody where no key is shown.
pub type Owner = u64;

/// See the module.
pub struct State {
    db: Mutex<Connection>,
    /// Where the contents of files lie.
    folder: PathBuf,
    ttl_s: u64,
    clock: UnixClock,
    /// Most bytes of one file, and of all of one owner.
    most_bytes: (u64, u64),
    salt: u64,
    issued: AtomicU64,
    /// Answers that are made behind their clients' backs: told where they are to end.
    behind: Mutex<HashMap<String, Arc<Notify>>>,
    /// Told where there is something new for the batches' worker.
    wake: Notify,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State({})", self.folder.display())
    }
}

impl State {
    /// Seconds since 1970.
    pub fn now(&self) -> u64 {
        self.clock.now()
    }

    /// When something ends that is used now.
    fn end_of_life(&self) -> u64 {
        self.now().saturating_add(self.ttl_s)
    }

    /// An id that nothing else has.
    pub fn new_id(&self, prefix: &str) -> String {
        let number = splitmix(self.salt ^ self.issued.fetch_add(1, Ordering::Relaxed));
        format!("{prefix}{number:016x}")
    }

    /// Does something that waits for the disk, away from the connections.
    ///
    /// # Errors
    /// The job's own.
    pub async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        job: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let state = Arc::clone(self);
        tokio::task::spawn_blocking(move || job(&state)).await.unwrap_or_else(|panic| {
            tracing::error!(%panic, "a bug while the state was read or written");
            Err(ApiError::internal())
        })
    }
}

/// The state, for one who asks.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The state.
    pub state: Arc<State>,
    /// Who asks: sees his own alone.
    pub owner: Owner,
}

impl Stored {
    /// As [`State::run`], for the one who asks.
    ///
    /// # Errors
    /// The job's own.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&State, Owner) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let owner = self.owner;
        self.state.run(move |state| job(state, owner)).await
    }
}

/// That of a request; 404 where this server keeps nothing.
impl FromRequestParts<Arc<Shared>> for Stored {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, ApiError> {
        let state = shared.state.clone().ok_or_else(|| keeps_nothing(parts.uri.path()))?;
        let caller = parts.extensions.get::<Arc<Caller>>();
        Ok(Self { state, owner: owner_of(caller.map(|caller| &**caller)) })
    }
}

/// What is kept, and the paths where it is asked for.
const KEPT: [(&str, &str); 4] = [
    ("/v1/conversations", "conversations"),
    ("/v1/files", "files"),
    ("/v1/batches", "batches"),
    ("/v1/messages/batches", "batches"),
];

fn keeps_nothing(path: &str) -> ApiError {
    let kept = KEPT.iter().find(|(of, _)| path.starts_with(of));
    let (code, message) = match kept {
        Some((_, what)) => {
            let message =
                format!("this server keeps no {what}: one that is started with --state DIR does");
            ("no_state", message)
        }
        None => {
            let message = "this server stores no responses: send what was said as input, or start \
                           it with --state DIR";
            ("response_not_found", message.to_owned())
        }
    };
    ApiError { code: Some(code), ..ApiError::new(StatusCode::NOT_FOUND, message) }
}

/// What is told of something kept.
pub type Shown = Result<Json<Value>, ApiError>;

/// Whose is what a caller makes.
pub fn owner_of(caller: Option<&Caller>) -> Owner {
    let key = caller.and_then(|caller| caller.key.as_ref());
    key.map_or(tokenmill_engine::NOBODY, |key| key.account())
}

/// 404 for something that is not there, or another's: nobody learns which.
pub fn none_such(what: &str, id: &str) -> ApiError {
    let message = format!("there is no {what} {:?}", crate::fields::shown(id));
    ApiError {
        code: Some("not_found"),
        param: Some("id".into()),
        ..ApiError::new(StatusCode::NOT_FOUND, message)
    }
}

//! The database: opened and made, read and written, and what is told where that fails.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};
use tokenmill_ir::sampling::splitmix;
use tokio::sync::Notify;

use super::{State, StateConfig};
use crate::config::{Limits, ServeError};
use crate::error::ApiError;

/// The form of the database; a later one is not read.
const VERSION: i64 = 1;

/// For another process to let the database go.
const PATIENCE: Duration = Duration::from_secs(2);

/// Everything has a row in `objects`; other tables hold what only some have, and go with it.
const SCHEMA: &str = "
CREATE TABLE objects (
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, owner INTEGER NOT NULL, expires INTEGER NOT NULL,
  status TEXT NOT NULL, body TEXT NOT NULL
) STRICT;
CREATE INDEX objects_by_owner ON objects (owner, kind);
CREATE INDEX objects_by_end ON objects (expires);
CREATE TABLE turns (
  id TEXT PRIMARY KEY REFERENCES objects ON DELETE CASCADE,
  previous TEXT, conversation TEXT, input TEXT NOT NULL
) STRICT;
CREATE TABLE items (
  conversation TEXT NOT NULL REFERENCES objects ON DELETE CASCADE,
  number INTEGER NOT NULL, id TEXT NOT NULL, body TEXT NOT NULL,
  PRIMARY KEY (conversation, number), UNIQUE (conversation, id)
) STRICT;
CREATE TABLE files (
  id TEXT PRIMARY KEY REFERENCES objects ON DELETE CASCADE, bytes INTEGER NOT NULL
) STRICT;
CREATE TABLE batches (
  id TEXT PRIMARY KEY REFERENCES objects ON DELETE CASCADE,
  endpoint TEXT NOT NULL, input TEXT NOT NULL, until INTEGER NOT NULL,
  total INTEGER NOT NULL, completed INTEGER NOT NULL, failed INTEGER NOT NULL
) STRICT;
CREATE TABLE lines (
  batch TEXT NOT NULL REFERENCES batches ON DELETE CASCADE,
  number INTEGER NOT NULL, custom_id TEXT NOT NULL, at INTEGER NOT NULL, bytes INTEGER NOT NULL,
  status INTEGER, answer TEXT,
  PRIMARY KEY (batch, number)
) STRICT;
";

/// What of answers was being made when the process before this one ended.
const BROKEN_OFF: &str = "UPDATE objects SET status = 'failed', body = json_set(body,
  '$.status', 'failed', '$.error', json('{\"code\":\"server_error\",\"message\":\"the server ended \
  before the answer was made\"}')) WHERE kind = 'response' AND status = 'in_progress'";

impl State {
    /// Opens what is kept in a folder, or begins there.
    ///
    /// # Errors
    /// [`ServeError::BadState`]: the folder cannot be written, another server has it, what lies there
    /// is none of this program's.
    pub fn open(config: &StateConfig, limits: &Limits) -> Result<Arc<Self>, ServeError> {
        let bad = |why: String| ServeError::BadState { dir: config.dir.clone(), why };
        let folder = config.dir.join("files");
        folders(&config.dir, &folder).map_err(|error| bad(error.to_string()))?;
        let place = config.dir.join("state.db");
        let db = database(&place, limits.state_bytes).map_err(|error| {
            bad(match error.sqlite_error_code() {
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                    "another server has it: stop that one, or name another folder".to_owned()
                }
                Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                    format!("state.db is no database of this program ({error})")
                }
                _ => error.to_string(),
            })
        })?;
        let version: i64 = db
            .query_row("PRAGMA user_version", [], |row| row.get(0))
            .map_err(|error| bad(error.to_string()))?;
        if version != VERSION {
            let why = format!("its form is {version}, this program reads {VERSION}");
            return Err(bad(why));
        }
        let state = Self {
            db: Mutex::new(db),
            folder,
            ttl_s: config.ttl.as_secs(),
            clock: config.clock.clone(),
            most_bytes: (limits.file_bytes, limits.files_bytes),
            salt: splitmix(crate::shared::unix_nanos() ^ u64::from(std::process::id()) << 40),
            issued: 0.into(),
            behind: Mutex::default(),
            wake: Notify::new(),
        };
        state.sweep().map_err(|error| bad(error.message))?;
        Ok(Arc::new(state))
    }

    pub(super) fn db(&self) -> MutexGuard<'_, Connection> {
        self.db.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something: all of it or nothing.
    pub(super) fn write<T>(
        &self,
        job: impl FnOnce(&Transaction<'_>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let mut db = self.db();
        let change = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = job(&change)?;
        change.commit()?;
        Ok(done)
    }
}

/// The folder and the one of files in it, for their owner alone where they are made here.
fn folders(dir: &Path, files: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(files)?;
    // (Whether it can be written is known before anything is asked of it.)
    let probe = dir.join("state.probe");
    create(&probe)?;
    fs::remove_file(probe)
}

/// A file that nobody else may read.
pub fn create(path: &Path) -> io::Result<fs::File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// The database of this process alone. What is committed survives the end of the process; of the
/// machine, all but the last moments, and never a part of a transaction.
fn database(place: &Path, bytes: u64) -> rusqlite::Result<Connection> {
    // (Its log gets the mode that it has.)
    let cannot = |error: io::Error| {
        rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN),
            Some(format!("{}: {error}", place.display())),
        )
    };
    create(place).map_err(cannot)?;
    let mut db = Connection::open(place)?;
    db.busy_timeout(PATIENCE)?;
    db.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    db.pragma_update(None, "synchronous", "NORMAL")?;
    db.pragma_update(None, "foreign_keys", true)?;
    let page: u64 = db.query_row("PRAGMA page_size", [], |row| row.get::<_, i64>(0))? as u64;
    let pages = i64::try_from(bytes / page.max(1)).unwrap_or(i64::MAX).clamp(1, 4_294_967_294);
    db.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
    let change = db.transaction_with_behavior(TransactionBehavior::Exclusive)?;
    let tables: i64 =
        change.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
    if tables == 0 {
        change.execute_batch(SCHEMA)?;
        change.pragma_update(None, "user_version", VERSION)?;
    }
    let is_known = change.prepare(BROKEN_OFF).is_ok();
    if is_known {
        change.execute(BROKEN_OFF, [])?;
    }
    change.commit()?;
    Ok(db)
}

impl From<rusqlite::Error> for ApiError {
    fn from(error: rusqlite::Error) -> Self {
        tracing::error!(%error, "the server's state could not be read or written");
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => full(),
            _ => failed(),
        }
    }
}

/// The same of a file.
pub fn disk(error: io::Error) -> ApiError {
    tracing::error!(%error, "a file of the server's state could not be read or written");
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => full(),
        _ => failed(),
    }
}

fn full() -> ApiError {
    let message = "the server keeps nothing more: its disk, or what it may take of it, is full";
    ApiError {
        code: Some("state_full"),
        ..ApiError::new(StatusCode::INSUFFICIENT_STORAGE, message)
    }
}

fn failed() -> ApiError {
    let message = "what the server keeps could not be read or written; its log has the details";
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    ApiError { code: Some("state_failed"), ..ApiError::new(status, message) }
}

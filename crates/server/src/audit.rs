//! The audit log: who asked which route and model when, and what it took, one line of JSON a request.
//! Never a prompt, an answer, a key, a header's value or a path that is no route.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::MatchedPath;
use axum::http::Request;
use serde_json::json;
use tokenmill_text::DateTime;

use crate::config::ServeError;
use crate::routes::{Access, ROUTES};
use crate::visit::Told;

/// For the last lines to be written when a server ends.
const LAST_LINES: Duration = Duration::from_secs(2);

/// What its thread does.
enum Order {
    Line(String),
    Reopen(Sender<std::io::Result<()>>),
    /// Says when all lines before it are written.
    Flush(Sender<()>),
}

/// See the module. Lines are written by a thread of its own, in the order that answers end.
pub struct Audit {
    orders: Mutex<Sender<Order>>,
    path: PathBuf,
}

/// One request.
pub struct Line<'a> {
    /// When it came.
    pub came: SystemTime,
    /// What its answer is named by.
    pub ticket: u64,
    /// Its method.
    pub method: &'a str,
    /// Its route, in the router's notation; none where there is no such route.
    pub route: Option<&'a str>,
    /// The name of its key.
    pub key: Option<&'a str>,
    /// What became of it.
    pub told: &'a Told,
    /// How it ended.
    pub end: &'a str,
    /// From its coming to the end of its answer, seconds.
    pub seconds: f64,
}

/// Whether a request is told of: all but those that anybody may send.
pub fn is_audited<B>(request: &Request<B>) -> bool {
    let path = route_of(request);
    let open = ROUTES.iter().filter(|route| route.access == Access::Open);
    !path.is_some_and(|path| open.map(|route| route.path).any(|open| open == path.as_str()))
}

/// The route of a request.
pub fn route_of<B>(request: &Request<B>) -> Option<&MatchedPath> {
    request.extensions().get::<MatchedPath>()
}

impl Audit {
    /// Appends to that file, which is made where there is none, for its owner only.
    ///
    /// # Errors
    /// [`ServeError::BadAudit`].
    pub fn open(path: &Path) -> Result<Arc<Self>, ServeError> {
        let bad = |source| ServeError::BadAudit { path: path.to_owned(), source };
        let file = appended(path).map_err(bad)?;
        let (orders, inbox) = channel();
        let place = path.to_owned();
        let body = move || write(&inbox, file, &place);
        std::thread::Builder::new().name("audit".into()).spawn(body).map_err(bad)?;
        Ok(Arc::new(Self { orders: Mutex::new(orders), path: path.to_owned() }))
    }

    fn order(&self, order: Order) {
        // (The thread is there as long as this is.)
        let _ = self.orders.lock().unwrap_or_else(PoisonError::into_inner).send(order);
    }

    /// One more line.
    pub fn note(&self, line: &Line<'_>) {
        let Line { came, ticket, method, route, key, told, end, seconds } = line;
        let since = came.duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = DateTime::from_unix_seconds(since.as_secs()).strftime("%Y-%m-%dT%H:%M:%S");
        let line = json!({
            "time": format!("{time}.{:03}Z", since.subsec_millis()),
            "id": format!("req-{ticket:016x}"),
            "key": key,
            "method": method,
            "route": route,
            "model": told.model,
            "status": told.status,
            "end": end,
            "prompt_tokens": told.prompt_tokens,
            "cached_tokens": told.cached_tokens,
            "completion_tokens": told.completion_tokens,
            "seconds": seconds,
        });
        self.order(Order::Line(format!("{line}\n")));
    }

    /// Opens the file again: the one of that name now, where the one before was moved away.
    ///
    /// # Errors
    /// Why it cannot be; then the one before goes on.
    pub fn reopen(&self) -> Result<(), ServeError> {
        let (sender, done) = channel();
        self.order(Order::Reopen(sender));
        let lost = |_| std::io::Error::other("its thread does not answer");
        let opened = done.recv_timeout(LAST_LINES).map_err(lost).and_then(|opened| opened);
        opened.map_err(|source| ServeError::BadAudit { path: self.path.clone(), source })
    }

    /// Waits until all lines are written, or a while.
    pub fn flush(&self) {
        let (sender, done) = channel();
        self.order(Order::Flush(sender));
        let _ = done.recv_timeout(LAST_LINES); // a disk that hangs holds nobody up
    }
}

fn appended(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Appends a line; what was written of one that found no room is taken back, so that the next stands
/// alone.
fn append(file: &mut File, line: &str) -> std::io::Result<()> {
    let before = file.metadata().map(|file| file.len());
    file.write_all(line.as_bytes()).inspect_err(|_| {
        let _ = before.and_then(|bytes| file.set_len(bytes)); // (a pipe has no length)
    })
}

fn write(orders: &Receiver<Order>, mut file: File, path: &Path) {
    let mut lost = 0u64;
    for order in orders {
        match order {
            Order::Line(line) => match append(&mut file, &line) {
                Ok(()) if lost > 0 => {
                    tracing::error!(path = %path.display(), lost, "the audit log goes on");
                    lost = 0;
                }
                Ok(()) => {}
                Err(error) => {
                    if lost == 0 {
                        tracing::error!(path = %path.display(), %error, "the audit log loses lines");
                    }
                    lost += 1;
                }
            },
            Order::Reopen(done) => {
                let opened = appended(path).map(|opened| file = opened);
                let _ = done.send(opened); // who asked may have gone
            }
            Order::Flush(done) => {
                let _ = done.send(()); // who asked may have gone
            }
        }
    }
}

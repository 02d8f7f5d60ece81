//! What changes while `serve` runs: keys, as soon as their file does; settings, on SIGHUP.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use tokenmill_server::{Control, ServerConfig};

use crate::args::{Args, Command, Serve};
use crate::config::{self, Unread};
use crate::failure::Failure;
use crate::serve::gate_of;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);

/// What tells that a file is another one than before.
type Stamp = Option<(SystemTime, u64)>;

/// Looks after a server's settings, on a thread of its own, until the program ends.
pub fn watch(args: Serve, keys: PathBuf, control: Control) {
    let asked = asked();
    let mut watch = Watch { args, seen: stamp(&keys), keys, control };
    let body = move || {
        loop {
            thread::sleep(LOOK);
            let all = asked.swap(false, Ordering::Relaxed);
            watch.look(all);
        }
    };
    if let Err(error) = thread::Builder::new().name("settings".into()).spawn(body) {
        tracing::warn!(target: "tokenmill_server", %error, "keys are not read again");
    }
}

/// Set by SIGHUP.
fn asked() -> Arc<AtomicBool> {
    let asked = Arc::new(AtomicBool::new(false));
    #[cfg(unix)]
    {
        let flag = Arc::clone(&asked);
        if let Err(error) = signal_hook::flag::register(signal_hook::consts::SIGHUP, flag) {
            tracing::warn!(target: "tokenmill_server", %error, "SIGHUP is not heard");
        }
    }
    asked
}

fn stamp(path: &PathBuf) -> Stamp {
    let about = fs::metadata(path).ok()?;
    Some((about.modified().ok()?, about.len()))
}

struct Watch {
    args: Serve,
    keys: PathBuf,
    seen: Stamp,
    control: Control,
}

impl Watch {
    /// Reads the keys again where their file changed, and the settings where that was asked. What
    /// cannot be used leaves all as it was.
    fn look(&mut self, all: bool) {
        let now = stamp(&self.keys);
        if now == self.seen && !all {
            return;
        }
        self.seen = now;
        let fresh = if all { fresh().map(Some) } else { Ok(None) };
        let changed = fresh.and_then(|fresh| {
            let config = gate_of(fresh.as_ref().unwrap_or(&self.args), &self.keys)?;
            self.control.change_gate(&config).map_err(|e| Failure::new("cannot serve so", e))?;
            Ok((fresh, config))
        });
        match changed {
            Ok((Some(fresh), config)) => {
                self.args = fresh;
                self.files(&config);
                tracing::info!(
                    target: "tokenmill_server",
                    "settings read again: keys, hosts, origins, strict, quiet and the certificate \
                     hold from now on, others from the next start"
                );
            }
            Ok((None, _)) => tracing::info!(target: "tokenmill_server", "keys read again"),
            Err(failure) => {
                let told = failure.to_string().replace('\n', " ");
                tracing::error!(target: "tokenmill_server", "all stays as it was: {told}");
                // (Who moved the audit log away waits for another.)
                if all {
                    self.reopen_audit();
                }
            }
        }
    }

    /// Reads files again that are not settings.
    fn files(&self, config: &ServerConfig) {
        if let Err(error) = self.control.read_tls_again(config) {
            tracing::error!(target: "tokenmill_server", "the certificate stays as it was: {error}");
        }
        self.reopen_audit();
    }

    fn reopen_audit(&self) {
        if let Err(error) = self.control.reopen_audit() {
            tracing::error!(target: "tokenmill_server", "the audit log stays where it was: {error}");
        }
    }
}

/// The command line, with what the environment and the files say now.
fn fresh() -> Result<Serve, Failure> {
    match config::parse() {
        Ok(Args { command: Command::Serve(serve), .. }) => Ok(*serve),
        Ok(_) => Err(Failure::new("the command is another one", "")),
        Err(Unread::Setting(failure)) => Err(failure),
        Err(Unread::Line(error)) => Err(Failure::new("the settings cannot be used", error)),
    }
}

//! Ctrl-C: the first one asks for an end, a second one before that is heard ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Failure, INTERRUPTED};

/// Watches for Ctrl-C; it is asked for an end while the result is true.
pub fn watch() -> Result<Arc<AtomicBool>, Failure> {
    let asked = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&asked);
    let handler = move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED.into());
        }
    };
    ctrlc::set_handler(handler).map_err(|e| Failure::new("cannot watch for Ctrl-C", e))?;
    Ok(asked)
}

//! What the store tells its caller while it works; the caller draws it.

use std::path::Path;

/// One report of progress. Counts are bytes of the file named beside them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress<'a> {
    /// A source is asked: a hub repository, or the command that fetches a wheel.
    Trying(&'a str),
    /// A source did not work and the next one follows.
    Failed {
        /// The source as it was named by [`Progress::Trying`].
        source: &'a str,
        /// Why, in one or more lines.
        why: &'a str,
    },
    /// Another process is fetching the same file; we wait for it.
    Waiting(&'a Path),
    /// Bytes on this disk so far, resumed ones included.
    Bytes {
        /// File name.
        file: &'a str,
        /// Bytes there.
        done: u64,
        /// Bytes of the whole file.
        total: u64,
    },
    /// A request failed and is repeated after a pause.
    Retry {
        /// What went wrong.
        why: &'a str,
        /// Pause before the next try, in milliseconds.
        pause_ms: u64,
    },
    /// The digest is being recomputed.
    Verify {
        /// File name.
        file: &'a str,
        /// Bytes read.
        done: u64,
        /// Bytes of the whole file.
        total: u64,
    },
    /// The file is complete, checked and in place.
    Done {
        /// File name.
        file: &'a str,
        /// Its size.
        bytes: u64,
    },
}

/// The caller's ear.
pub type OnProgress<'a> = dyn FnMut(Progress<'_>) + 'a;

//! The SSD tier of the KV cache: a log of records, each the cache of one run of tokens, with the
//! recurrent states at its end or without.
//!
//! Segments are only appended to, and deleted whole, least recently used first. The index is
//! rebuilt from the records' headers on start. A crash at any moment, a power cut, a damaged, cut
//! or full disk may lose records; a record is given out only after its tokens were compared and its
//! checksums verified.

mod files;
mod log;
mod record;

pub use files::{Folder, SegmentFiles, SegmentInfo};
pub use log::{Index, Log, LogOptions, LogStats, PutError, StoredRun};
pub use record::{Key, KeyParts, Run, RunId, RunKind};

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why there is no tier.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KvError {
    /// Another process has the folder.
    #[error("{} is used by another process", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder cannot be used.
    #[error("cannot {what} {}: {source}", path.display())]
    Disk {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The segments cannot be listed.
    #[error("cannot list the segments: {0}")]
    List(#[source] io::Error),
}

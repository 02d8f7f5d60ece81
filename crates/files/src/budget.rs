//! A bound on the memory that reading a header may take, charged before each allocation.

use std::cell::Cell;
use std::path::Path;

use crate::error::{LoadError, shorten};

/// Memory for one file's header: a fixed part and a multiple of the bytes the file really has.
///
/// Every item read from a file is charged its cost in memory, so that a small file whose bytes
/// unfold into large structures is refused instead of served.
#[derive(Debug)]
pub(crate) struct Budget {
    limit_bytes: u64,
    left_bytes: Cell<u64>,
}

/// What one map entry or tensor costs beside its text: table slots with room to grow.
pub(crate) const ENTRY_BYTES: u64 = 512;

impl Budget {
    /// `base_bytes` plus one and a half times the file; the rest up to twice the file is left
    /// to growth that is not charged.
    pub(crate) fn new(base_bytes: u64, file_bytes: u64) -> Self {
        let limit_bytes = base_bytes.saturating_add(file_bytes / 2 * 3);
        Budget { limit_bytes, left_bytes: Cell::new(limit_bytes) }
    }

    /// Takes `bytes` from what is left; `false` once it is used up.
    #[must_use]
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let left = self.left_bytes.get().checked_sub(bytes);
        self.left_bytes.set(left.unwrap_or(0));
        left.is_some()
    }

    /// The error for a charge that was refused.
    pub(crate) fn exceeded(&self, path: &Path, place: impl Into<String>) -> LoadError {
        LoadError::TooLarge {
            path: path.to_owned(),
            place: shorten(place.into()),
            limit_bytes: self.limit_bytes,
        }
    }
}

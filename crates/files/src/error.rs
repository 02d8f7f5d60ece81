//! Why a model could not be opened or read.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tokenmill_ir::visible;
use tokenmill_quant::UnknownFormat;

/// A model file that cannot be used, with the place and the numbers.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The system refused to open or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The path is not a model file of any kind that is read here.
    #[error("{}: not a model: {found}", path.display())]
    NotAModel {
        /// The file or folder.
        path: PathBuf,
        /// What was found instead.
        found: String,
    },
    /// Files of the model are not there.
    #[error("{}: {found}", path.display())]
    Incomplete {
        /// The file or folder.
        path: PathBuf,
        /// Which, and what to do.
        found: String,
    },
    /// The file ends before something it declares.
    #[error(
        "{}: cut short: the file has {} bytes, and {place} ends at byte {}; download it again",
        path.display(), offset.saturating_add(*left), offset.saturating_add(*needed)
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Tensor, key or part of the header.
        place: String,
        /// Where it starts, bytes from the start of the file.
        offset: u64,
        /// How many bytes it needs.
        needed: u64,
        /// How many there are.
        left: u64,
    },
    /// A value that breaks the rules of the file format.
    #[error("{}: {place}: expected {expected}, found {found}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Tensor, key or part of the header.
        place: String,
        /// What the rules ask for.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// A tensor is stored in a way that cannot be read.
    #[error("{}: tensor '{tensor}': {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Which format.
        source: UnknownFormat,
    },
    /// A well-formed file that asks for something not offered.
    #[error("{}: {what} is not supported", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The version, feature or data type.
        what: String,
    },
    /// Reading the header would take far more memory than the file is large.
    #[error("{}: {place}: reading it would take more than {limit_bytes} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Tensor, key or part of the header.
        place: String,
        /// The memory allowed for this file's header.
        limit_bytes: u64,
    },
    /// A tensor or a range of its rows that is not there.
    #[error("tensor '{tensor}': {reason}")]
    Rows {
        /// The tensor.
        tensor: String,
        /// What was asked and what there is.
        reason: String,
    },
}

impl LoadError {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        LoadError::Io { path: path.to_owned(), source }
    }

    pub(crate) fn invalid(
        path: &Path,
        place: impl Into<String>,
        expected: impl Into<String>,
        found: impl ToString,
    ) -> Self {
        LoadError::Invalid {
            path: path.to_owned(),
            place: place.into(),
            expected: expected.into(),
            found: visible(shorten(found.to_string())),
        }
    }

    pub(crate) fn unsupported(path: &Path, what: impl Into<String>) -> Self {
        LoadError::Unsupported { path: path.to_owned(), what: shorten(what.into()) }
    }

    pub(crate) fn incomplete(path: &Path, found: impl Into<String>) -> Self {
        LoadError::Incomplete { path: path.to_owned(), found: found.into() }
    }

    pub(crate) fn not_a_model(path: &Path, found: impl Into<String>) -> Self {
        LoadError::NotAModel { path: path.to_owned(), found: found.into() }
    }
}

/// Names and values come from the file and may be megabytes long.
pub(crate) fn shorten(mut text: String) -> String {
    if let Some((at, _)) = text.char_indices().nth(200) {
        text.truncate(at);
        text.push('…');
    }
    text
}

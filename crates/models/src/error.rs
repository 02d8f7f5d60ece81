//! What can be wrong between a model file and its program.

use thiserror::Error;
use tokenmill_ir::{MetaError, ProgramError, visible};

/// Why a checkpoint cannot become a program.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// No row of [`ARCHS`](crate::ARCHS) has that name.
    #[error("unknown architecture '{found}'; docs/models.md lists those that are known{near}")]
    UnknownArch {
        /// As the file spells it.
        found: String,
        /// In parentheses, those that begin like it, if there are any.
        near: String,
    },
    /// A hyper-parameter is absent or of the wrong type.
    #[error("hyper-parameters: {0}")]
    Meta(#[from] MetaError),
    /// A hyper-parameter has a value that is not implemented.
    #[error("{key} = {value} is not supported")]
    Unsupported {
        /// Key.
        key: String,
        /// Value.
        value: String,
    },
    /// A tensor is absent under every name it may have.
    #[error("missing tensor '{name}'{others}")]
    MissingTensor {
        /// Usual name.
        name: String,
        /// In parentheses, the first of the other spellings tried, if there are any.
        others: String,
    },
    /// A tensor has another shape than the hyper-parameters say.
    #[error("tensor '{tensor}': expected shape {expected}, found {found}")]
    Shape {
        /// Tensor.
        tensor: String,
        /// From the hyper-parameters.
        expected: String,
        /// In the file.
        found: String,
    },
    /// The file has tensors the architecture does not use: something would be lost in silence.
    #[error("{count} tensors are not used by this architecture, first '{first}'")]
    UnusedTensors {
        /// How many.
        count: usize,
        /// One of them.
        first: String,
    },
    /// The program contradicts itself.
    #[error("program: {0}")]
    Program(#[from] ProgramError),
}

impl ModelError {
    /// An unsupported value of a hyper-parameter.
    pub fn unsupported(key: &str, value: impl std::fmt::Display) -> Self {
        let value = visible(shortened(value.to_string()));
        ModelError::Unsupported { key: shortened(key.to_owned()), value }
    }
}

/// Names and values come from the file and may be megabytes long.
pub(crate) fn shortened(mut text: String) -> String {
    if let Some((at, _)) = text.char_indices().nth(200) {
        text.truncate(at);
        text.push('…');
    }
    text
}

//! Chat templates in Go's language, as Ollama's models and Modelfiles have them, written in Jinja: the
//! part of the language that chat templates use. Anything else is refused by name.
//!
//! Go's templates see a conversation in one of two ways. Newer ones walk over `.Messages`; older ones
//! are rendered once for each turn, with `.System`, `.Prompt` and `.Response`, the last time as far as
//! `.Response`. Text of the template becomes literals, for Jinja's tags take line breaks with them.

mod parse;
mod write;

use thiserror::Error;

/// Why a template is not translated.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the template in Go's language has {what}, which is not translated")]
pub struct GoError {
    /// What of it.
    pub what: String,
}

impl GoError {
    fn new(what: impl Into<String>) -> Self {
        Self { what: what.into() }
    }
}

/// Longest template, bytes.
const MOST_BYTES: usize = 1 << 18;

/// The same template in Jinja.
///
/// # Errors
/// [`GoError`] naming what is not translated.
pub fn from_go(source: &str) -> Result<String, GoError> {
    if source.len() > MOST_BYTES {
        return Err(GoError::new(format!("{} bytes (at most {MOST_BYTES})", source.len())));
    }
    let nodes = parse::parse(source)?;
    write::jinja(&nodes)
}

#[cfg(test)]
mod tests;

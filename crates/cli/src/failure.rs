//! What a user is told when something fails: what failed, the numbers, the command that fixes it.

use std::fmt;

use tokenmill_engine::load::LoadFailure;
use tokenmill_engine::{Refusal, RequestError};

/// Why a command ends early.
#[derive(Debug)]
pub enum Failure {
    /// Up to three lines.
    Told {
        /// What failed.
        what: String,
        /// The numbers, or the reason.
        detail: String,
        /// A command to try; empty if there is none.
        fix: String,
    },
    /// Text that already has its lines.
    Lines(String),
    /// The reader of our output went away.
    Closed,
}

impl Failure {
    /// A failure without a remedy.
    pub fn new(what: impl Into<String>, detail: impl fmt::Display) -> Self {
        Failure::Told { what: what.into(), detail: detail.to_string(), fix: String::new() }
    }

    /// Adds a command to try.
    pub fn fix(self, command: impl Into<String>) -> Self {
        match self {
            Failure::Told { what, detail, .. } => {
                Failure::Told { what, detail, fix: command.into() }
            }
            other => other,
        }
    }

    /// A model that cannot be loaded.
    pub fn load(name: &str, failure: LoadFailure) -> Self {
        let what = format!("cannot load {name}");
        let LoadFailure::DoesNotFit {
            needed_bytes,
            weight_bytes,
            cache_bytes,
            scratch_bytes,
            available_bytes,
            context,
            fitting_context,
        } = failure
        else {
            return Failure::new(what, failure);
        };
        let detail = format!(
            "needs {} ({} weights, {} cache for {context} tokens, {} buffers), {} available",
            size(needed_bytes),
            size(weight_bytes),
            size(cache_bytes),
            size(scratch_bytes),
            size(available_bytes),
        );
        let fix = match fitting_context {
            0 => "free memory, or choose a smaller quantisation of this model".to_owned(),
            n => format!("add --ctx {n}"),
        };
        Failure::new(what, detail).fix(fix)
    }

    /// A failed write to the standard output.
    pub fn output(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::new("cannot write the answer", error),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Told { what, detail, fix } => {
                write!(f, "error: {what}\n  {detail}")?;
                if !fix.is_empty() {
                    write!(f, "\n  try: {fix}")?;
                }
                Ok(())
            }
            Failure::Lines(text) => write!(f, "error: {text}"),
            Failure::Closed => Ok(()),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let fix = match refusal {
            Refusal::ContextLength { prompt_tokens, max_tokens, .. } => {
                format!("shorten the prompt, or add --ctx {}", prompt_tokens + max_tokens)
            }
            _ => String::new(),
        };
        Failure::new("the request was refused", refusal).fix(fix)
    }
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        Failure::new("the answer failed", error)
    }
}

/// Bytes for people.
pub fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_lines() {
        let told = Failure::new("cannot load x", "12 of 10").fix("tokenmill pull x").to_string();
        assert_eq!(told, "error: cannot load x\n  12 of 10\n  try: tokenmill pull x");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(12), "12 B");
    }
}

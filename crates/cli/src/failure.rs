//! What a user is told when something fails: what failed, the numbers, the command that fixes it.

use std::fmt;
use std::path::Path;

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
    /// Ctrl-C; what was said before is shown.
    Interrupted,
    /// A program that was started here ended with this status, and has said why.
    Ended(u8),
}

/// Exit status of a program that Ctrl-C ends.
pub const INTERRUPTED: u8 = 130;

/// A line on the standard error, which nobody need read.
macro_rules! tell {
    ($($line:tt)*) => {{
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("{}\n", $crate::failure::printable(&format!($($line)*))),
        );
    }};
}
pub(crate) use tell;

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

    /// Another command in the place of one that begins so.
    pub fn instead(self, beginning: &str, command: &str) -> Self {
        let is_meant = matches!(&self, Failure::Told { fix, .. } if fix.starts_with(beginning));
        if is_meant { self.fix(command) } else { self }
    }

    /// A model that cannot be loaded.
    pub fn load(name: &str, failure: LoadFailure) -> Self {
        let what = format!("cannot load {name}");
        let LoadFailure::DoesNotFit {
            needed_bytes,
            weight_bytes,
            cache_bytes,
            scratch_bytes,
            encoder_bytes,
            available_bytes,
            context,
            fitting_context,
        } = failure
        else {
            // The name stands above already.
            let told = failure.to_string();
            let rest = told.strip_prefix(name).and_then(|rest| rest.strip_prefix(": "));
            let told = Failure::new(what, rest.unwrap_or(&told).replace('\n', "\n  "));
            // A stored model was whole once.
            let is_stored = matches!(failure, LoadFailure::File(_)) && !Path::new(name).exists();
            return match is_stored {
                true => {
                    told.fix(format!("tokenmill verify {name}; tokenmill pull {name} mends it"))
                }
                false => told,
            };
        };
        let encoder = match encoder_bytes {
            0 => String::new(),
            bytes => format!(", {} encoder of images", size(bytes)),
        };
        let detail = format!(
            "needs {} ({} weights, {} cache for {context} tokens, {} buffers{encoder}), {} available",
            size(needed_bytes),
            size(weight_bytes),
            size(cache_bytes),
            size(scratch_bytes),
            size(available_bytes),
        );
        let fix = match (fitting_context, encoder_bytes) {
            (0, 0) => {
                "raise --mem, add a smaller --ctx, or choose a smaller quantisation".to_owned()
            }
            (0, _) => {
                "raise --mem, add a smaller --ctx, or choose a smaller quantisation; a GGUF model \
                       reads text alone without the mmproj file beside it"
                    .to_owned()
            }
            (n, _) => format!("add --ctx {n}"),
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

/// A text that may hold what files say, without what would steer a terminal.
pub fn printable(text: &str) -> String {
    let odd = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    text.chars().map(|c| if odd(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Told { what, detail, fix } => {
                write!(f, "error: {}\n  {}", printable(what), printable(detail))?;
                if !fix.is_empty() {
                    write!(f, "\n  try: {}", printable(fix))?;
                }
                Ok(())
            }
            Failure::Lines(text) => write!(f, "error: {}", printable(text)),
            Failure::Closed | Failure::Interrupted | Failure::Ended(_) => Ok(()),
        }
    }
}

/// A refused request; `most_context` is the longest context that could be asked for.
pub fn refused(refusal: Refusal, most_context: u32) -> Failure {
    let fix = match refusal {
        Refusal::ContextLength { prompt_tokens, max_tokens, limit } => {
            let wanted = prompt_tokens.saturating_add(max_tokens);
            let shorter = if max_tokens > 1 { "shorten the prompt, or -n" } else { "shorten it" };
            longer(shorter, wanted, limit, most_context)
        }
        _ => String::new(),
    };
    Failure::new("the request was refused", refusal).fix(fix)
}

/// Advice for a text of `wanted` tokens where `limit` are allowed: a longer context, where there
/// can be one.
pub fn longer(shorter: &str, wanted: u32, limit: u32, most_context: u32) -> String {
    match most_context {
        most if wanted <= most => format!("{shorter}, or add --ctx {wanted}"),
        most if most > limit => format!("{shorter}; with --ctx {most} at most {most} tokens fit"),
        _ => format!("{shorter}: no more tokens fit this model and memory"),
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

    #[test]
    fn no_advice_is_in_vain() {
        let refusal = Refusal::ContextLength { prompt_tokens: 90, max_tokens: 20, limit: 100 };
        for (most, expect) in [
            (110, "shorten the prompt, or -n, or add --ctx 110"),
            (105, "shorten the prompt, or -n; with --ctx 105 at most 105 tokens fit"),
            (100, "shorten the prompt, or -n: no more tokens fit this model and memory"),
        ] {
            let told = refused(refusal.clone(), most).to_string();
            assert!(told.ends_with(&format!("try: {expect}")), "{told}");
        }
    }
}

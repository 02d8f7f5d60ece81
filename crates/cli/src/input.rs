//! Texts that commands are given: files and what is piped in, whole or refused.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::failure::{Failure, size, tell};

/// Longest text taken, bytes: more tokens than any context here.
const MOST_BYTES: u64 = 256 << 20;
/// How long an open pipe may be silent before the user is told what is waited for.
const SILENCE: Duration = Duration::from_secs(3);

/// A text file.
pub fn file(path: &Path) -> Result<String, Failure> {
    let cannot = |e| Failure::new(format!("cannot read {}", path.display()), e);
    let file = File::open(path).map_err(cannot)?;
    text(file, &path.display().to_string())
}

/// What is piped in; `None` on a terminal.
pub fn piped() -> Result<Option<String>, Failure> {
    if std::io::stdin().is_terminal() {
        return Ok(None);
    }
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let _ = sender.send(text(std::io::stdin(), "the standard input")); // who asked may have ended
    });
    let read = match receiver.recv_timeout(SILENCE) {
        Err(RecvTimeoutError::Timeout) => {
            tell!("reading the standard input to its end; without one: < /dev/null");
            receiver.recv().map_err(|_| RecvTimeoutError::Disconnected)
        }
        read => read,
    };
    read.map_err(|e| Failure::new("cannot read the standard input", e))?.map(Some)
}

fn text(from: impl Read, name: &str) -> Result<String, Failure> {
    let cannot = |e: &dyn std::fmt::Display| Failure::new(format!("cannot read {name}"), e);
    let mut bytes = Vec::new();
    from.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|e| cannot(&e))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(cannot(&format!("it is longer than {}", size(MOST_BYTES))));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        cannot(&format!("it is no text in UTF-8: byte {at} fits no character"))
    })
}

/// A prompt and the text that was piped in after it, with an empty line between.
pub fn joined(prompt: Option<&str>, piped: Option<&str>) -> Option<String> {
    let given = |text: &&str| !text.trim().is_empty();
    match (prompt.filter(given), piped.filter(given)) {
        (Some(prompt), Some(piped)) => Some(format!("{prompt}\n\n{piped}")),
        (one, other) => one.or(other).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_piped_follows_the_prompt() {
        for (prompt, piped, expect) in [
            (Some("Sum up"), Some("text\n"), Some("Sum up\n\ntext\n")),
            (Some("Sum up"), Some(" \n"), Some("Sum up")),
            (Some("Sum up"), None, Some("Sum up")),
            (Some(""), Some("text"), Some("text")),
            (None, Some("text"), Some("text")),
            (None, Some(""), None),
            (None, None, None),
        ] {
            assert_eq!(joined(prompt, piped).as_deref(), expect, "{prompt:?} {piped:?}");
        }
    }

    #[test]
    fn texts_are_whole_or_refused() {
        assert_eq!(text(&b"a\xc3\xa9"[..], "x").unwrap(), "aé");
        let error = text(&b"a\xff"[..], "x").unwrap_err().to_string();
        assert!(error.contains("cannot read x") && error.contains("byte 1"), "{error}");
        let endless = text(std::io::repeat(b'a'), "x").unwrap_err().to_string();
        assert!(endless.contains("longer than 256.0 MiB"), "{endless}");
    }
}

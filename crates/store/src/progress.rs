//! What the store tells its caller while it works; the caller draws it.

use std::path::Path;
use std::time::Duration;

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

/// A length of time for people: `0.3 s`, `20 s`, `4 min 3 s`, `2 h 5 min`.
pub fn in_words(time: Duration) -> String {
    let parts = |n: u64, unit: &str, rest: u64, smaller: &str| match rest {
        0 => format!("{n} {unit}"),
        _ => format!("{n} {unit} {rest} {smaller}"),
    };
    match time.as_secs() {
        0..10 if time.subsec_millis() > 0 => format!("{:.1} s", time.as_secs_f64()),
        s @ 0..60 => format!("{s} s"),
        s @ 60..3600 => parts(s / 60, "min", s % 60, "s"),
        s => parts(s / 3600, "h", s % 3600 / 60, "min"),
    }
}

/// The caller's ear.
pub type OnProgress<'a> = dyn FnMut(Progress<'_>) + 'a;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_words() {
        for (ms, words) in [
            (300, "0.3 s"),
            (4800, "4.8 s"),
            (20_000, "20 s"),
            (60_000, "1 min"),
            (243_000, "4 min 3 s"),
            (7_500_000, "2 h 5 min"),
        ] {
            assert_eq!(in_words(Duration::from_millis(ms)), words);
        }
    }
}

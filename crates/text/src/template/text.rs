//! Text that knows who wrote it: the template (its own), or whoever sent the messages.
//!
//! Only what the template wrote itself can be a control token. Comparing, searching and measuring
//! look at the characters alone; cutting and joining carry the origin along.

use std::ops::Range;
use std::sync::Arc;

/// An immutable string with the origin of each byte.
#[derive(Clone, Debug)]
pub(super) struct Text {
    text: Arc<str>,
    origin: Origin,
}

#[derive(Clone, Debug)]
enum Origin {
    Own,
    Foreign,
    Mixed(Arc<[Run]>),
}

/// Bytes of one origin, up to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    end: usize,
    own: bool,
}

impl Text {
    /// Written by the template.
    pub(super) fn own(text: impl Into<Arc<str>>) -> Text {
        Text { text: text.into(), origin: Origin::Own }
    }

    /// Written by somebody else.
    pub(super) fn foreign(text: impl Into<Arc<str>>) -> Text {
        Text { text: text.into(), origin: Origin::Foreign }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Price of a copy: its bytes, and what tells their origins.
    pub(super) fn cost(&self) -> usize {
        match &self.origin {
            Origin::Mixed(runs) => self.text.len() + size_of::<Run>() * runs.len(),
            _ => self.text.len(),
        }
    }

    /// Price of another case beyond a copy: two bytes can become six.
    pub(super) fn growth(&self) -> usize {
        8 * self.text.bytes().filter(|byte| !byte.is_ascii()).count()
    }

    /// The parts of one origin, in order, each with whether it is the template's own.
    pub(super) fn runs(&self) -> Vec<(&str, bool)> {
        match &self.origin {
            Origin::Own => vec![(&self.text, true)],
            Origin::Foreign => vec![(&self.text, false)],
            Origin::Mixed(runs) => {
                let mut done = 0;
                let part = |run: &Run| {
                    let text = self.text.get(done..run.end).unwrap_or_default();
                    done = run.end;
                    (text, run.own)
                };
                runs.iter().map(part).collect()
            }
        }
    }

    /// A part, by byte offsets on character boundaries; empty if they are not.
    pub(super) fn slice(&self, range: Range<usize>) -> Text {
        let mut out = Writer::default();
        out.push_part(self, range);
        out.finish()
    }

    /// A part that was found in this text's own characters.
    pub(super) fn part(&self, part: &str) -> Text {
        // Both lie in one allocation, so the difference of their addresses is the offset.
        let start = (part.as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize);
        self.slice(start..start.saturating_add(part.len()))
    }

    /// Every run mapped by itself.
    pub(super) fn map_runs(&self, map: impl Fn(&str) -> String) -> Text {
        let mut out = Writer::default();
        self.runs().into_iter().for_each(|(text, own)| out.push(&map(text), own));
        out.finish()
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        self.text == other.text
    }
}

/// Puts a text together.
#[derive(Debug, Default)]
pub(super) struct Writer {
    text: String,
    runs: Vec<Run>,
}

impl Writer {
    pub(super) fn push(&mut self, text: &str, own: bool) {
        if text.is_empty() {
            return;
        }
        self.text.push_str(text);
        let end = self.text.len();
        match self.runs.last_mut() {
            Some(run) if run.own == own => run.end = end,
            _ => self.runs.push(Run { end, own }),
        }
    }

    pub(super) fn push_text(&mut self, text: &Text) {
        self.push_part(text, 0..text.len());
    }

    pub(super) fn push_part(&mut self, text: &Text, range: Range<usize>) {
        let Some(part) = text.text.get(range.clone()) else { return };
        match &text.origin {
            Origin::Own => self.push(part, true),
            Origin::Foreign => self.push(part, false),
            Origin::Mixed(runs) => {
                let first = runs.partition_point(|run| run.end <= range.start);
                let mut start = range.start;
                for run in runs.iter().skip(first) {
                    if start >= range.end {
                        break;
                    }
                    let (from, to) = (range.start.max(start), range.end.min(run.end));
                    if from < to {
                        self.push(text.text.get(from..to).unwrap_or_default(), run.own);
                    }
                    start = run.end;
                }
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn finish(self) -> Text {
        let origin = match self.runs.as_slice() {
            [] | [Run { own: false, .. }] => Origin::Foreign,
            [Run { own: true, .. }] => Origin::Own,
            _ => Origin::Mixed(self.runs.into()),
        };
        Text { text: self.text.into(), origin }
    }

    /// The text, and the ranges of it that the template wrote.
    pub(super) fn into_parts(self) -> (String, Vec<Range<usize>>) {
        let mut start = 0;
        let mut own = Vec::new();
        for run in &self.runs {
            if run.own {
                own.push(start..run.end);
            }
            start = run.end;
        }
        (self.text, own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_their_origin() {
        let mut out = Writer::default();
        out.push("ab", true);
        out.push("cd", false);
        out.push_text(&Text::own("ef"));
        let text = out.finish();
        assert_eq!(text.runs(), [("ab", true), ("cd", false), ("ef", true)]);
        assert_eq!(text.slice(1..5).runs(), [("b", true), ("cd", false), ("e", true)]);
        assert_eq!(text.part(&text.as_str()[2..4]).runs(), [("cd", false)]);
        assert_eq!(text.map_runs(str::to_uppercase).runs()[1], ("CD", false));
        assert_eq!(text, Text::foreign("abcdef"));
        let mut out = Writer::default();
        out.push_text(&text);
        assert_eq!(out.into_parts(), ("abcdef".to_owned(), vec![0..2, 4..6]));
    }
}

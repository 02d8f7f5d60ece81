//! A token stream as text: whole characters only, ended by stop strings.

use crate::tokenizer::Tokenizer;

/// What happens to one space at the very start of decoded text, in vocabularies that put a space
/// in front of every text. The others keep it always.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lead {
    /// Drop it: the tokens are a text of their own, such as an answer in a chat.
    Strip,
    /// Keep it: the tokens continue a text.
    Keep,
}

/// What a step of the stream gives.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamPiece {
    /// Text that is certain by now; may be empty.
    pub text: String,
    /// The stop string that ended the stream, as an index into the list given. Its text, and what
    /// comes after it, is no part of the output.
    pub stop: Option<usize>,
}

/// Looks for stop strings in a text as it comes. Text is held back while it may be part of one.
#[derive(Debug, Clone, Default)]
pub struct StopSearch {
    stops: Vec<String>,
    /// Text that may be the start of a stop string.
    held: String,
    stopped: Option<usize>,
}

impl StopSearch {
    /// A text that ends at the first of `stops` to be complete; of those that end at the same
    /// character, the longest, then the first in the list. Empty strings never match.
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.to_vec(), ..Self::default() }
    }

    /// Takes more text. After a stop nothing more comes out.
    pub fn push(&mut self, text: &str) -> StreamPiece {
        if self.stopped.is_some() {
            return StreamPiece { text: String::new(), stop: self.stopped };
        }
        self.held.push_str(text);
        if let Some((at, stop)) = self.first_stop() {
            self.held.truncate(at);
            self.stopped = Some(stop);
            return StreamPiece { text: std::mem::take(&mut self.held), stop: self.stopped };
        }
        let keep = self.held.split_off(self.first_partial_stop());
        StreamPiece { text: std::mem::replace(&mut self.held, keep), stop: None }
    }

    /// What was held back; it begins no stop string any more.
    pub fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Start and index of the stop string that is complete first: the choice must not depend on
    /// where the tokens end.
    fn first_stop(&self) -> Option<(usize, usize)> {
        let stops = self.stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
        let found = stops.filter_map(|(index, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, index))
        });
        found.min().map(|(_, start, index)| (start, index))
    }

    /// Where the held text may begin a stop string.
    fn first_partial_stop(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        let starts = self.held.char_indices().map(|(at, _)| at).filter(|&at| at >= from);
        let may_stop = |at: &usize| {
            let tail = self.held.get(*at..).unwrap_or_default();
            self.stops.iter().any(|stop| stop.starts_with(tail))
        };
        { starts }.find(may_stop).unwrap_or(self.held.len())
    }
}

/// Turns tokens into text as they come.
///
/// The pieces put together are exactly [`Tokenizer::decode`] of the tokens, cut where the first
/// stop string begins. Text is held back while it may be part of a character or of a stop string.
#[derive(Debug, Clone)]
pub struct TextStream {
    lead: Lead,
    /// Bytes that are not a whole character yet: at most 3.
    bytes: Vec<u8>,
    stops: StopSearch,
}

impl TextStream {
    /// A stream that ends at the first of `stops`, as [`StopSearch`] finds it.
    pub fn new(tokenizer: &Tokenizer, stops: &[String], lead: Lead) -> TextStream {
        let lead = if tokenizer.strips_lead() { lead } else { Lead::Keep };
        TextStream { lead, bytes: Vec::new(), stops: StopSearch::new(stops) }
    }

    /// Takes the next token. After a stop nothing more comes out.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> StreamPiece {
        let token = tokenizer.token_bytes(id).filter(|_| !tokenizer.is_special(id));
        let whole = token.map(|bytes| self.take_bytes(bytes)).unwrap_or_default();
        self.stops.push(&whole)
    }

    /// Whether all bytes so far are whole characters, or part of none.
    pub fn is_between(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Ends the stream: gives what was held back.
    pub fn finish(&mut self) -> StreamPiece {
        let rest = std::mem::take(&mut self.bytes);
        let mut piece = self.stops.push(&String::from_utf8_lossy(&rest));
        piece.text.push_str(&self.stops.rest());
        piece
    }

    /// Whole characters, and bytes that can become none.
    fn take_bytes(&mut self, bytes: &[u8]) -> String {
        let mut bytes = bytes;
        if self.lead == Lead::Strip && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.lead = Lead::Keep;
        }
        self.bytes.extend_from_slice(bytes);
        let whole = self.bytes.len() - unfinished_len(&self.bytes);
        let rest = self.bytes.split_off(whole);
        let whole = std::mem::replace(&mut self.bytes, rest);
        String::from_utf8_lossy(&whole).into_owned()
    }
}

/// Bytes at the end that may still become a character.
fn unfinished_len(bytes: &[u8]) -> usize {
    match bytes.utf8_chunks().last() {
        // `utf8_chunks` ends a chunk where the bytes cannot go on: an invalid part that ends the
        // input may be a beginning.
        Some(last) if may_go_on(last.invalid()) => last.invalid().len(),
        _ => 0,
    }
}

/// Whether an invalid sequence is the beginning of a valid character.
fn may_go_on(bytes: &[u8]) -> bool {
    let Err(error) = std::str::from_utf8(bytes) else { return false };
    error.error_len().is_none()
}

/// Decodes a whole text at once; the stream gives the same in pieces.
pub(crate) fn bytes_to_text(bytes: &[u8], lead: Lead) -> String {
    let bytes = match lead {
        Lead::Strip => bytes.strip_prefix(b" ").unwrap_or(bytes),
        Lead::Keep => bytes,
    };
    String::from_utf8_lossy(bytes).into_owned()
}

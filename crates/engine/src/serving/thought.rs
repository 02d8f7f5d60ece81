//! A limit on what a model thinks before it answers: when it is used up, the end of the reasoning is
//! all that may come, as under a grammar.

use std::sync::Arc;

use tokenmill_ir::TokenId;
use tokenmill_output::{Parser, Piece};
use tokenmill_text::{Lead, Special, TextStream, Tokenizer};

use super::request::Reading;

/// The tokens that end the reasoning of an answer which is read so.
pub(crate) fn ending(reading: &Reading, tokenizer: &Tokenizer) -> Option<Vec<TokenId>> {
    let text = reading.format.end_of_reasoning()?;
    tokenizer.encode(text, Special::Parse).ok().filter(|tokens| !tokens.is_empty())
}

/// Which special tokens are seen in an answer's text.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// All of them.
    pub all: bool,
    /// Otherwise these.
    pub markers: Arc<[TokenId]>,
}

impl Seen {
    /// Whether a token, if it is special, is.
    pub fn shows(&self, token: TokenId) -> bool {
        self.all || self.markers.contains(&token)
    }
}

/// What one answer thinks. A clone goes its own way, to look ahead behind drafts.
#[derive(Clone)]
pub(crate) struct Thought {
    tokenizer: Arc<Tokenizer>,
    seen: Seen,
    /// What ends the reasoning.
    ending: Arc<[TokenId]>,
    stream: TextStream,
    parser: Parser,
    limit: u32,
    spent: u32,
    /// The part of the ending that is still to come.
    forced: std::ops::Range<usize>,
    /// What the parser gives out, which others read for themselves.
    pieces: Vec<Piece>,
}

impl Thought {
    /// An answer that may think for `limit` tokens.
    pub fn new(
        reading: &Reading,
        limit: u32,
        tokenizer: &Arc<Tokenizer>,
        seen: &Seen,
    ) -> Option<Self> {
        Some(Self {
            ending: ending(reading, tokenizer)?.into(),
            tokenizer: Arc::clone(tokenizer),
            seen: seen.clone(),
            stream: TextStream::new(tokenizer, &[], Lead::Keep),
            parser: reading.parser(),
            limit,
            spent: 0,
            forced: 0..0,
            pieces: Vec::new(),
        })
    }

    /// A token that was chosen.
    pub fn take(&mut self, token: TokenId) {
        self.forced.next();
        let thought = self.parser.reasons();
        let text = match self.tokenizer.is_special(token) && self.seen.shows(token) {
            true => {
                let name = self.tokenizer.token_bytes(token).unwrap_or_default();
                self.stream.finish().text + &String::from_utf8_lossy(name)
            }
            false => self.stream.push(&self.tokenizer, token).text,
        };
        self.parser.push(&text, &mut self.pieces);
        self.pieces.clear();
        self.spent += u32::from(thought && self.parser.reasons());
    }

    /// The ending that is to begin now, between two characters.
    pub fn to_end(&self) -> Option<&[TokenId]> {
        let over = self.forced.is_empty() && self.spent >= self.limit;
        let over = over && self.parser.reasons() && self.stream.is_between();
        over.then_some(&self.ending[..])
    }

    /// So many tokens of the ending come next.
    pub fn end_by(&mut self, tokens: usize) {
        self.forced = 0..tokens.min(self.ending.len());
    }

    /// What comes next, whatever the model would say.
    pub fn forced(&self) -> &[TokenId] {
        self.ending.get(self.forced.clone()).unwrap_or_default()
    }

    /// Whether something may be forced behind so many drafts.
    pub fn may_force(&self, drafts: usize) -> bool {
        let ahead = self.spent.saturating_add(drafts as u32) >= self.limit;
        !self.forced.is_empty() || drafts > 0 && ahead
    }
}

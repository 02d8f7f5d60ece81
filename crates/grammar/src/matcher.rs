//! One answer under a grammar: what may come next, and what came.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::panic_utils::catch_unwind;

use crate::refused::first_words;
use crate::vocabulary::Vocabulary;

/// Why an answer cannot go on under its grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Dead {
    /// No token of the vocabulary continues the answer, and it may not end here.
    #[error("no token of the vocabulary fits the constraint here, and the answer may not end")]
    NothingFits,
    /// A token outside the mask came. The matcher stays as it was before.
    #[error("token {0} is not allowed here by the constraint")]
    NotAllowed(u32),
    /// A mask passed a limit of fuel, states or items. The matcher stays dead.
    #[error("the constraint passes a limit while the answer is written: {0}")]
    Limit(String),
    /// The matcher itself failed. It stays dead.
    #[error("the matcher of the constraint failed: {0}")]
    Broken(String),
}

/// One answer under a grammar. A clone goes its own way from here, at little cost: it shares the
/// states found so far, and the limit on them, so that two clones wait for each other's masks.
#[derive(Clone)]
pub struct Matcher {
    parser: TokenParser,
    vocabulary: Arc<Vocabulary>,
    is_done: bool,
    dead: Option<Dead>,
}

impl Matcher {
    pub(crate) fn new(parser: TokenParser, vocabulary: Arc<Vocabulary>) -> Self {
        Matcher { parser, vocabulary, is_done: false, dead: None }
    }

    /// A matcher that shares nothing with this one: its states do not count against this one's
    /// limits, nor the other way.
    pub fn apart(&self) -> Self {
        let (parser, dead) = (self.parser.deep_clone(), self.dead.clone());
        Matcher { parser, vocabulary: self.vocabulary.clone(), is_done: self.is_done, dead }
    }

    /// Sets the bits of the tokens that may come next, bit `i % 32` of word `i / 32` for token
    /// `i`, and clears all others. End tokens are among them where the answer may end.
    ///
    /// `bits` has [`Vocabulary::words`] words or more.
    pub fn mask(&mut self, bits: &mut [u32]) -> Result<(), Dead> {
        bits.fill(0);
        self.alive()?;
        if self.is_done || self.parser.stopped() {
            for &id in self.vocabulary.ends() {
                if let Some(word) = bits.get_mut(id as usize / 32) {
                    *word |= 1 << (id % 32);
                }
            }
            return Ok(());
        }
        let mask = self.guarded(TokenParser::compute_mask)?;
        let words = mask.as_slice().iter().take(self.vocabulary.words());
        bits.iter_mut().zip(words).for_each(|(to, from)| *to = *from);
        Ok(())
    }

    /// Takes the next token. One that the mask does not have is refused and changes nothing.
    pub fn accept(&mut self, token: u32) -> Result<(), Dead> {
        self.alive()?;
        let is_end = self.vocabulary.ends().contains(&token);
        if is_end {
            self.is_done |= self.may_end();
            return if self.is_done { Ok(()) } else { Err(Dead::NotAllowed(token)) };
        }
        if self.is_done || self.parser.stopped() || token as usize >= self.vocabulary.len() {
            return Err(Dead::NotAllowed(token));
        }
        if self.guarded(|parser| parser.validate_tokens_raw(&[token]))? == 0 {
            return Err(Dead::NotAllowed(token));
        }
        self.guarded(|parser| {
            parser.consume_token(token)?;
            parser.check_stop()
        })?;
        Ok(())
    }

    /// Tokens that must come next, in the model tokenizer's cut: none where the vocabulary has no
    /// tokenizer, or where what follows could be cut otherwise.
    pub fn forced(&mut self) -> Vec<u32> {
        if self.is_done || self.dead.is_some() || self.parser.stopped() {
            return Vec::new();
        }
        self.guarded(|parser| Ok(parser.compute_ff_tokens())).unwrap_or_default()
    }

    /// Bytes that must come next, however they are cut.
    pub fn forced_bytes(&mut self) -> Vec<u8> {
        if self.is_done || self.dead.is_some() || self.parser.stopped() {
            return Vec::new();
        }
        // Asking moves the parser ahead of the tokens, so a copy is asked.
        let mut ahead = self.clone();
        ahead.guarded(|parser| Ok(parser.force_bytes())).unwrap_or_default()
    }

    /// Whether the answer may end here.
    pub fn may_end(&mut self) -> bool {
        if self.dead.is_some() {
            return false;
        }
        self.is_done
            || self.parser.stopped()
            || self.guarded(|parser| Ok(parser.is_accepting())).unwrap_or(false)
    }

    /// Whether nothing but an end token may come, or one came.
    pub fn is_done(&self) -> bool {
        self.is_done || (self.dead.is_none() && self.parser.stopped())
    }

    fn alive(&self) -> Result<(), Dead> {
        self.dead.clone().map_or(Ok(()), Err)
    }

    fn guarded<R>(
        &mut self,
        f: impl FnOnce(&mut TokenParser) -> anyhow::Result<R>,
    ) -> Result<R, Dead> {
        let parser = &mut self.parser;
        let result = catch_unwind(AssertUnwindSafe(|| f(parser)));
        result.map_err(|error| {
            let dead = match self.parser.stop_reason() {
                StopReason::NoExtensionBias => Dead::NothingFits,
                StopReason::LexerTooComplex | StopReason::ParserTooComplex => {
                    Dead::Limit(first_words(&error.to_string()))
                }
                _ => Dead::Broken(first_words(&error.to_string())),
            };
            self.dead = Some(dead.clone());
            dead
        })
    }
}

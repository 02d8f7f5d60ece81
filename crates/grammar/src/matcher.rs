//! One answer under a grammar: what may come next, and what came.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::TokTrie;

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

/// Most bytes of a known text that are cut at once.
const CUT_BYTES: usize = 1024;
/// What is left of a known text is cut again from so many bytes on: fewer are its last token, which
/// may be joined with what comes behind.
const CUT_REST: usize = 32;
/// Where a lexer has more states than these, a copy costs more than known text saves.
const COPIED_STATES: usize = 8192;
/// Work of one parser item, in units of the lexer's fuel (about 100 ns).
const ITEM_WORK: u64 = 28;
/// Work of copying a state of the lexer.
const COPY_WORK: u64 = 2;
/// Nodes of the tokens' tree that are walked for a unit of work.
const NODES_PER_WORK: u64 = 8;

/// One answer under a grammar. A clone goes its own way from here, at little cost: it shares the
/// states found so far, and the limit on them, so that two clones wait for each other's masks.
#[derive(Clone)]
pub struct Matcher {
    parser: TokenParser,
    vocabulary: Arc<Vocabulary>,
    is_done: bool,
    dead: Option<Dead>,
    /// The last token taken.
    last: Option<u32>,
    /// What must come, as the tokenizer cuts it, the next token last.
    certain: Vec<u32>,
    /// Bytes behind those that must come too, however they are cut.
    uncut: usize,
    /// Work on copies that found it out.
    work_ahead: u64,
}

impl Matcher {
    pub(crate) fn new(parser: TokenParser, vocabulary: Arc<Vocabulary>) -> Self {
        let (last, certain, uncut, work_ahead) = (None, Vec::new(), 0, 0);
        Matcher { parser, vocabulary, is_done: false, dead: None, last, certain, uncut, work_ahead }
    }

    /// A matcher that shares nothing with this one: its states do not count against this one's
    /// limits, nor the other way.
    pub fn apart(&self) -> Self {
        Matcher {
            parser: self.parser.deep_clone(),
            vocabulary: self.vocabulary.clone(),
            is_done: self.is_done,
            dead: self.dead.clone(),
            last: self.last,
            certain: self.certain.clone(),
            uncut: self.uncut,
            work_ahead: self.work_ahead,
        }
    }

    /// What masks have cost so far, in units of about 100 ns: the lexer's fuel, parser items, and
    /// nodes of the tokens' tree. The same for the same answer, everywhere.
    pub fn work(&self) -> u64 {
        let (stats, lexer) = (self.parser.parser_stats(), self.parser.parser.lexer_stats());
        let nodes = stats.trie_nodes_walked as u64 / NODES_PER_WORK;
        let own = lexer.total_fuel_spent as u64 + ITEM_WORK * stats.all_items as u64 + nodes;
        own + self.work_ahead
    }

    /// What [`apart`](Self::apart) costs, in the same units; `None` where it is more than it saves.
    pub fn copy_work(&self) -> Option<u64> {
        let states = self.parser.parser.lexer_stats().num_states;
        (states <= COPIED_STATES).then_some(COPY_WORK * states as u64)
    }

    /// Sets the bits of the tokens that may come next, bit `i % 32` of word `i / 32` for token
    /// `i`, and clears all others. End tokens are among them where the answer may end. Where a text
    /// must come and the vocabulary knows its cut, only the next token of that.
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
        if self.certain.is_empty() {
            let mask = self.guarded(TokenParser::compute_mask)?;
            let words = mask.as_slice().iter().take(self.vocabulary.words());
            bits.iter_mut().zip(words).for_each(|(to, from)| *to = *from);
            if self.uncut == 0 && self.vocabulary.is_one_text(bits) {
                self.foresee();
            }
        }
        if let Some(&token) = self.certain.last() {
            bits.fill(0);
            if let Some(word) = bits.get_mut(token as usize / 32) {
                *word |= 1 << (token % 32);
            }
        }
        Ok(())
    }

    /// Finds out which text must come, and cuts it. A copy is asked, for what is found out must
    /// count for no limit of the answer: it would meet it earlier than its text does.
    fn foresee(&mut self) {
        let Some(copy_work) = self.copy_work() else { return };
        let mut ahead = self.apart();
        // Asking moves the parser ahead of the tokens.
        let bytes = ahead.guarded(|parser| Ok(parser.force_bytes())).unwrap_or_default();
        self.work_ahead += copy_work + ahead.work() - self.work();
        let known = bytes.split(|b| *b == TokTrie::SPECIAL_TOKEN_MARKER).next().unwrap_or_default();
        let first = &known[..known.len().min(CUT_BYTES)];
        let valid = std::str::from_utf8(first).map_or_else(|e| e.valid_up_to(), str::len);
        self.certain = self.vocabulary.cut(self.last, &first[..valid]);
        // With what comes behind it the last token may be another, unless that is a special one.
        if valid == bytes.len() || valid < known.len() {
            self.certain.pop();
        }
        let texts = self.certain.iter().filter_map(|id| self.vocabulary.text_of(*id));
        let rest = known.len() - texts.map(<[u8]>::len).sum::<usize>();
        // The rest is cut when its turn comes, unless it is what no cut is certain of.
        let is_last = self.certain.is_empty() || rest < CUT_REST;
        self.uncut = if is_last { rest } else { 0 };
        self.certain.reverse();
    }

    /// Takes the next token. One that the mask does not have is refused and changes nothing.
    pub fn accept(&mut self, token: u32) -> Result<(), Dead> {
        self.alive()?;
        let is_end = self.vocabulary.ends().contains(&token);
        if is_end {
            self.is_done |= self.may_end();
            return if self.is_done { Ok(()) } else { Err(Dead::NotAllowed(token)) };
        }
        let is_other = self.certain.last().is_some_and(|next| *next != token);
        let ended = self.is_done || self.parser.stopped();
        if ended || is_other || token as usize >= self.vocabulary.len() {
            return Err(Dead::NotAllowed(token));
        }
        if self.guarded(|parser| parser.validate_tokens_raw(&[token]))? == 0 {
            return Err(Dead::NotAllowed(token));
        }
        self.guarded(|parser| {
            parser.consume_token(token)?;
            parser.check_stop()
        })?;
        self.last = Some(token);
        if self.certain.pop().is_none() {
            self.uncut =
                self.uncut.saturating_sub(self.vocabulary.text_of(token).map_or(0, <[u8]>::len));
        }
        Ok(())
    }

    /// Tokens that must come next, in the model tokenizer's cut, as far as the last mask has found
    /// them: none where the vocabulary has no tokenizer, or where what follows could be cut
    /// otherwise.
    pub fn forced(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.certain.iter().rev().copied()
    }

    /// Bytes that must come next, however they are cut.
    pub fn forced_bytes(&self) -> Vec<u8> {
        if self.is_done || self.dead.is_some() || self.parser.stopped() {
            return Vec::new();
        }
        let mut ahead = self.apart();
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

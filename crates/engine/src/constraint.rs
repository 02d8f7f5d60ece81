//! Answers that are held to a grammar. Grammars are made on the caller's thread, once for a model and
//! a content; before each step the matcher of every constrained answer says which tokens may come.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use thiserror::Error;
pub use tokenmill_grammar::{Constraint, Matcher, Refused, Settings, Tag, Vocabulary, Whitespace};
use tokenmill_grammar::{Dead, Grammar, compile};
use tokenmill_ir::TokenId;
use tokenmill_text::{Special, Tokenizer};

/// Grammars kept for requests to come.
const KEPT: usize = 32;

/// A grammar made for a model.
#[derive(Clone)]
pub struct Held {
    grammar: Grammar,
    /// Tells two grammars apart.
    made: Arc<()>,
}

impl Held {
    /// Makes the grammar of a constraint for a model with those tokens.
    ///
    /// # Errors
    /// What is wrong with the constraint.
    pub fn new(
        constraint: &Constraint,
        vocabulary: &Arc<Vocabulary>,
        settings: &Settings,
    ) -> Result<Self, Refused> {
        Ok(Self { grammar: compile(constraint, vocabulary, settings)?, made: Arc::default() })
    }

    /// What may come in an answer that begins.
    pub fn start(&self) -> Matcher {
        self.grammar.start()
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}

/// Those that were made once are the same.
impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.made, &other.made)
    }
}

/// Why an answer cannot be held to something.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// It is wrong, or more than is enforced.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The model's tokens are not known as text.
    #[error("answers of this model cannot be held to a grammar: {0}")]
    Model(String),
}

/// A grammar in either notation: with `::=` it is llama.cpp's GBNF, else Lark's.
pub fn grammar(text: String) -> Constraint {
    match text.contains("::=") {
        true => Constraint::Gbnf(text),
        false => Constraint::Lark(text),
    }
}

/// A grammar with what it was made of.
type Made = (Constraint, Settings, Held);

/// The grammars of a model.
#[derive(Default)]
pub(crate) struct Grammars {
    vocabulary: OnceLock<Result<Arc<Vocabulary>, String>>,
    /// The latest last.
    made: Mutex<Vec<Made>>,
}

impl Grammars {
    /// The grammar of a constraint for a model of `vocab` logits.
    pub fn get(
        &self,
        constraint: &Constraint,
        settings: &Settings,
        tokenizer: &Tokenizer,
        vocab: u32,
    ) -> Result<Held, ConstraintError> {
        if let Some(held) = self.kept(constraint, settings) {
            return Ok(held);
        }
        let vocabulary = self.vocabulary.get_or_init(|| vocabulary(tokenizer, vocab));
        let vocabulary = vocabulary.as_ref().map_err(|e| ConstraintError::Model(e.clone()))?;
        let held = Held::new(constraint, vocabulary, settings)?;
        let mut made = self.made();
        if made.len() == KEPT {
            made.remove(0);
        }
        made.push((constraint.clone(), settings.clone(), held.clone()));
        Ok(held)
    }

    /// One that was made before, which is the latest now.
    fn kept(&self, constraint: &Constraint, settings: &Settings) -> Option<Held> {
        let mut made = self.made();
        let at = made.iter().position(|one| one.0 == *constraint && one.1 == *settings)?;
        made[at..].rotate_left(1);
        made.last().map(|one| one.2.clone())
    }

    fn made(&self) -> MutexGuard<'_, Vec<Made>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The model's tokens; ids behind the tokenizer's are of no text, and never come.
fn vocabulary(tokenizer: &Tokenizer, vocab: u32) -> Result<Arc<Vocabulary>, String> {
    let bytes = |id| tokenizer.token_bytes(id).unwrap_or_default();
    let known = |id: &u32| *id < vocab;
    let special: Vec<u32> = (0..vocab).filter(|id| tokenizer.is_special(*id)).collect();
    let ends: Vec<u32> = tokenizer.eos_ids().iter().copied().filter(known).collect();
    let vocabulary = Vocabulary::new((0..vocab).map(bytes), &special, &ends);
    vocabulary.map(Arc::new).map_err(|e| e.to_string())
}

/// One answer under a grammar.
pub(crate) struct Hold {
    matcher: Matcher,
    words: usize,
    /// Tokens taken, and of these told.
    taken: u32,
    told: u32,
    /// After how many tokens nothing may follow.
    done: Option<u32>,
    failed: Option<Dead>,
}

impl Hold {
    /// An answer that begins; its masks have a bit for each of `vocab` tokens.
    pub fn new(held: &Held, vocab: u32) -> Self {
        let (matcher, words) = (held.start(), vocab.div_ceil(32) as usize);
        Self { matcher, words, taken: 0, told: 0, done: None, failed: None }
    }

    /// Appends what may come next, and after each of the drafts. Where nothing may, the mask is
    /// empty: the answer fails with that row, for the reason noted.
    pub fn masks(&mut self, drafts: &[TokenId], out: &mut Vec<u32>) {
        let start = out.len();
        out.resize(start + (drafts.len() + 1) * self.words, 0);
        let (first, rest) = out[start..].split_at_mut(self.words);
        if self.failed.is_none() {
            self.failed = self.matcher.mask(first).err();
        }
        if drafts.is_empty() || self.failed.is_some() {
            return;
        }
        // What comes behind a draft that may not come is never looked at.
        let mut ahead = self.matcher.clone();
        for (draft, mask) in drafts.iter().zip(rest.chunks_exact_mut(self.words)) {
            if ahead.accept(*draft).is_err() || ahead.mask(mask).is_err() {
                return;
            }
        }
    }

    /// A token that was chosen.
    pub fn take(&mut self, token: TokenId) {
        self.taken += 1;
        if self.failed.is_none() && self.done.is_none() {
            self.failed = self.matcher.accept(token).err();
            self.done = self.matcher.is_done().then_some(self.taken);
        }
    }

    /// One more of the tokens taken is told; whether nothing may follow it.
    pub fn tell(&mut self) -> bool {
        self.told += 1;
        self.done == Some(self.told)
    }

    /// Why it cannot go on.
    pub fn failed(&self) -> Option<&Dead> {
        self.failed.as_ref()
    }

    /// Tokens that come next almost surely, as the tokenizer cuts the text that must come.
    pub fn foreseen(&mut self, tokenizer: &Tokenizer) -> Vec<TokenId> {
        if self.failed.is_some() || self.done.is_some() {
            return Vec::new();
        }
        let bytes = self.matcher.forced_bytes();
        let Ok(text) = std::str::from_utf8(&bytes) else { return Vec::new() };
        let mut tokens = tokenizer.encode(text, Special::Plain).unwrap_or_default();
        // The last may be joined with what comes behind it.
        tokens.pop();
        tokens
    }

    /// How many of the tokens may come, one after another.
    pub fn allowed(&self, tokens: &[TokenId]) -> usize {
        if tokens.is_empty() {
            return 0;
        }
        let mut ahead = self.matcher.clone();
        tokens.iter().take_while(|token| ahead.accept(**token).is_ok()).count()
    }
}

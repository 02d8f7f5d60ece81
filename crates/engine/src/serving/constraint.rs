//! Answers that are held to a grammar. Grammars are made on the caller's thread, once for a model and
//! a content; before each step the matcher of every constrained answer says which tokens may come.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use thiserror::Error;
pub(crate) use tokenmill_grammar::Dead;
pub use tokenmill_grammar::{Constraint, Matcher, Refused, Settings, Tag, Vocabulary, Whitespace};
use tokenmill_grammar::{Grammar, compile};
use tokenmill_ir::TokenId;
use tokenmill_text::{Special, Tokenizer};

/// Grammars kept for requests to come, and bytes of what they were made of.
const KEPT: usize = 32;
const KEPT_BYTES: usize = 4 << 20;
/// Where more tokens than these may come, no text is certain: cuts of one text begin with each other.
const FEW: u32 = 64;

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

/// A grammar with the text of what it was made of: the order of members counts in it.
type Made = (String, Held);

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
        let key = format!("{constraint:?} {settings:?}");
        if let Some(held) = self.kept(&key) {
            return Ok(held);
        }
        let held = Held::new(constraint, self.vocabulary(tokenizer, vocab)?, settings)?;
        // (Another may have made it meanwhile.)
        Ok(self.kept(&key).unwrap_or_else(|| self.keep(key, held)))
    }

    /// The model's tokens, as grammars know them.
    pub fn vocabulary(
        &self,
        tokenizer: &Tokenizer,
        vocab: u32,
    ) -> Result<&Arc<Vocabulary>, ConstraintError> {
        let vocabulary = self.vocabulary.get_or_init(|| vocabulary(tokenizer, vocab));
        vocabulary.as_ref().map_err(|e| ConstraintError::Model(e.clone()))
    }

    /// One that was made before, which is the latest now.
    fn kept(&self, key: &str) -> Option<Held> {
        let mut made = self.made();
        let at = made.iter().position(|one| one.0 == key)?;
        made[at..].rotate_left(1);
        made.last().map(|one| one.1.clone())
    }

    /// Keeps one in the place of the oldest.
    fn keep(&self, key: String, held: Held) -> Held {
        let mut made = self.made();
        made.push((key, held.clone()));
        let bytes = |made: &[Made]| made.iter().map(|one| one.0.len()).sum::<usize>();
        let mut gone = 0;
        while made.len() - gone > KEPT || bytes(&made[gone..]) > KEPT_BYTES {
            gone += 1;
        }
        let gone: Vec<Made> = made.drain(..gone).collect();
        drop(made); // what is given up is freed while nobody waits
        drop(gone);
        held
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
    held: Held,
    /// From its first mask on: those that wait take no memory.
    matcher: Option<Matcher>,
    /// What may come next, where that is known.
    mask: Vec<u32>,
    is_fresh: bool,
    /// Tokens that come next almost surely.
    foreseen: Vec<TokenId>,
    /// Nothing may follow.
    done: bool,
    failed: Option<Dead>,
}

impl Hold {
    /// An answer that begins; its masks have a bit for each of `vocab` tokens.
    pub fn new(held: &Held, vocab: u32) -> Self {
        Self {
            held: held.clone(),
            matcher: None,
            mask: vec![0; vocab.div_ceil(32) as usize],
            is_fresh: false,
            foreseen: Vec::new(),
            done: false,
            failed: None,
        }
    }

    fn matcher(&mut self) -> &mut Matcher {
        self.matcher.get_or_insert_with(|| self.held.start())
    }

    /// Finds out what may come next; nothing, where the answer cannot go on.
    fn refresh(&mut self) {
        if std::mem::replace(&mut self.is_fresh, true) {
            return;
        }
        let mut mask = std::mem::take(&mut self.mask);
        mask.fill(0);
        if self.failed.is_none() {
            self.failed = self.matcher().mask(&mut mask).err();
        }
        self.mask = mask;
    }

    /// Appends what may come next, and after each of the drafts. Where nothing may, the mask is
    /// empty: the answer fails with that row, for the reason noted.
    pub fn masks(&mut self, drafts: &[TokenId], out: &mut Vec<u32>) {
        self.refresh();
        out.extend_from_slice(&self.mask);
        let (start, words) = (out.len(), self.mask.len());
        out.resize(start + drafts.len() * words, 0);
        if drafts.is_empty() || self.failed.is_some() {
            return;
        }
        // What comes behind a draft that may not come is never looked at. What is found out there
        // counts for no limit of the answer, which is the same without drafts.
        let mut ahead = self.matcher().apart();
        for (draft, mask) in drafts.iter().zip(out[start..].chunks_exact_mut(words)) {
            if ahead.accept(*draft).is_err() || ahead.mask(mask).is_err() {
                return;
            }
        }
    }

    /// A token that was chosen.
    pub fn take(&mut self, token: TokenId) {
        self.is_fresh = false;
        match self.foreseen.first() {
            Some(first) if *first == token => drop(self.foreseen.remove(0)),
            _ => self.foreseen.clear(),
        }
        if self.failed.is_none() && !self.done {
            self.failed = self.matcher().accept(token).err();
            self.done = self.matcher().is_done();
        }
    }

    /// Whether nothing may follow.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Whether the answer may end here.
    pub fn may_end(&mut self) -> bool {
        self.done || self.failed.is_none() && self.matcher().may_end()
    }

    /// Why no token may come, where that is so.
    pub fn failed(&mut self) -> Option<&Dead> {
        self.refresh();
        self.failed.as_ref()
    }

    /// Tokens that come next almost surely, as the tokenizer cuts the text that must come.
    pub fn foreseen(&mut self, tokenizer: &Tokenizer) -> &[TokenId] {
        self.refresh();
        let some = self.mask.iter().map(|word| word.count_ones()).sum::<u32>() <= FEW;
        let open = self.failed.is_none() && !self.done;
        if self.foreseen.is_empty() && open && some {
            let bytes = self.matcher().apart().forced_bytes();
            let text = std::str::from_utf8(&bytes).unwrap_or_default();
            let mut tokens = tokenizer.encode(text, Special::Plain).unwrap_or_default();
            // The last may be joined with what comes behind it; where the tokenizer puts a blank
            // before a text, the cut is another.
            tokens.pop();
            let first = tokens.first().and_then(|id| tokenizer.token_bytes(*id));
            if first.is_some_and(|first| bytes.starts_with(first)) {
                self.foreseen = tokens;
            }
        }
        &self.foreseen
    }

    /// How many of the tokens may come, one after another, behind the first.
    pub fn allowed_behind(&mut self, first: &[TokenId], tokens: &[TokenId]) -> usize {
        if tokens.is_empty() || self.failed.is_some() {
            return 0;
        }
        let mut ahead = self.matcher().apart();
        if first.iter().any(|token| ahead.accept(*token).is_err()) {
            return 0;
        }
        tokens.iter().take_while(|token| ahead.accept(**token).is_ok()).count()
    }
}

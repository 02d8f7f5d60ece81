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
        tokenizer: &Arc<Tokenizer>,
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
        tokenizer: &Arc<Tokenizer>,
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
fn vocabulary(tokenizer: &Arc<Tokenizer>, vocab: u32) -> Result<Arc<Vocabulary>, String> {
    let bytes = |id| tokenizer.token_bytes(id).unwrap_or_default();
    let known = |id: &u32| *id < vocab;
    let special: Vec<u32> = (0..vocab).filter(|id| tokenizer.is_special(*id)).collect();
    let ends: Vec<u32> = tokenizer.eos_ids().iter().copied().filter(known).collect();
    let vocabulary = Vocabulary::new((0..vocab).map(bytes), &special, &ends);
    let cuts = Arc::clone(tokenizer);
    let cut = move |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        cuts.encode(text, Special::Plain).unwrap_or_default()
    };
    Ok(Arc::new(vocabulary.map_err(|e| e.to_string())?.tokenized_by(Arc::new(cut))))
}

/// Sets a token's bit.
fn allow(mask: &mut [u32], token: TokenId) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word |= 1 << (token % 32);
    }
}

/// One answer under a grammar.
pub(crate) struct Hold {
    held: Held,
    /// From its first token on: those that wait take no memory.
    matcher: Option<Matcher>,
    /// What may come next, where that is known.
    mask: Vec<u32>,
    is_fresh: bool,
    /// Tokens that may follow, and what may come after each, where that was found out.
    ahead: Vec<TokenId>,
    ahead_masks: Vec<u32>,
    /// What the last mask took.
    weight: u64,
    /// Certain tokens that are computed already, and are to be taken yet.
    appended: usize,
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
            ahead: Vec::new(),
            ahead_masks: Vec::new(),
            weight: 0,
            appended: 0,
            done: false,
            failed: None,
        }
    }

    fn matcher(&mut self) -> &mut Matcher {
        self.matcher.get_or_insert_with(|| self.held.start())
    }

    /// Whether what may come next takes work to find out.
    pub fn is_open(&self) -> bool {
        !self.is_fresh && self.matcher.is_some() && self.failed.is_none() && !self.done
    }

    /// What the last mask took; the next is about the same.
    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// Finds out what may come next; nothing, where the answer cannot go on. Returns the work it
    /// took.
    pub fn refresh(&mut self) -> u64 {
        if std::mem::replace(&mut self.is_fresh, true) {
            return 0;
        }
        self.mask.fill(0);
        let Some(matcher) = &mut self.matcher else {
            let first = self.held.grammar.first_mask();
            self.mask.iter_mut().zip(first).for_each(|(to, from)| *to = *from);
            return 0;
        };
        let before = matcher.work();
        if self.failed.is_none() {
            self.failed = matcher.mask(&mut self.mask).err();
        }
        self.weight = matcher.work() - before;
        self.weight
    }

    /// Appends what may come next, and after each of the drafts. Where nothing may, the mask is
    /// empty: the answer fails with that row, for the reason noted.
    pub fn masks(&mut self, drafts: &[TokenId], out: &mut Vec<u32>) {
        self.refresh();
        if self.appended > 0 {
            let (start, appended) = (out.len(), self.appended);
            out.resize(start + self.mask.len(), 0);
            let next = self.matcher().forced().nth(appended);
            next.into_iter().for_each(|token| allow(&mut out[start..], token));
            return;
        }
        out.extend_from_slice(&self.mask);
        if drafts.is_empty() {
            return;
        }
        let (start, words) = (out.len(), self.mask.len());
        out.resize(start + drafts.len() * words, 0);
        let out = &mut out[start..];
        if self.is_certain(drafts) {
            let next = self.matcher().forced().skip(1);
            for (token, mask) in next.zip(out.chunks_exact_mut(words)) {
                allow(mask, token);
            }
            return;
        }
        if !self.ahead.starts_with(drafts) {
            let mut any_work = u64::MAX;
            self.look_ahead(drafts, &mut any_work);
        }
        // What comes behind a draft that may not come is never looked at.
        let found = drafts.iter().zip(&self.ahead).take_while(|(a, b)| a == b).count();
        out[..found * words].copy_from_slice(&self.ahead_masks[..found * words]);
    }

    /// Whether these tokens must come, and a certain one after them.
    fn is_certain(&mut self, tokens: &[TokenId]) -> bool {
        let forced = self.matcher().forced();
        tokens.len() < forced.len() && forced.zip(tokens).all(|(a, b)| a == *b)
    }

    /// A token that was chosen. Returns the work it took.
    pub fn take(&mut self, token: TokenId) -> u64 {
        // Of drafts that were right too: what an answer may take must not depend on drafts.
        let masked = self.refresh();
        let before = self.matcher().work();
        self.is_fresh = false;
        self.appended = self.appended.saturating_sub(1);
        self.ahead.clear();
        if self.failed.is_none() && !self.done {
            self.failed = self.matcher().accept(token).err();
            self.done = self.matcher().is_done();
        }
        masked + self.matcher().work() - before
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

    /// Tokens that come next for certain, where their masks need no more work: all but the last.
    pub fn foreseen(&mut self, out: &mut Vec<TokenId>) {
        self.refresh();
        if self.failed.is_none() && !self.done {
            out.extend(self.matcher().forced());
            out.pop();
        }
    }

    /// So many of these are computed now, without rows.
    pub fn append(&mut self, tokens: u32) {
        self.appended = tokens as usize;
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

    /// How many of the tokens may come, one after another, with the masks behind them found out for
    /// less than `work`, from which that is taken.
    pub fn look_ahead(&mut self, tokens: &[TokenId], work: &mut u64) -> usize {
        self.refresh();
        self.ahead.clear();
        self.ahead_masks.clear();
        if tokens.is_empty() || self.failed.is_some() || self.done || *work == 0 {
            return 0;
        }
        if self.is_certain(tokens) {
            return tokens.len();
        }
        // What is found out ahead counts for no limit of the answer, which is the same without.
        let Some(copy_work) = self.matcher().copy_work() else { return 0 };
        let mut ahead = self.matcher().apart();
        let before = ahead.work() - copy_work.min(ahead.work());
        let mut mask = vec![0; self.mask.len()];
        for &token in tokens {
            if ahead.work() - before >= *work
                || ahead.accept(token).is_err()
                || ahead.mask(&mut mask).is_err()
            {
                break;
            }
            self.ahead.push(token);
            self.ahead_masks.extend_from_slice(&mask);
        }
        *work = work.saturating_sub(ahead.work() - before);
        self.ahead.len()
    }
}

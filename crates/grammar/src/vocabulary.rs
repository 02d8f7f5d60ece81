//! A model's tokens, as the matcher sees them: bytes, special ones, ends.

use std::fmt;
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{
    InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv,
};

/// Longest token a constraint may use, bytes.
const LONGEST: usize = 1000;
/// Most tokens that are cut from a known text at once.
const CUT_TOKENS: usize = 64;
/// Where more tokens than these may come, no text is certain: they would all begin with each other.
const FEW: u32 = 64;
/// Most tokens of a vocabulary.
const MOST: usize = 2_000_000;

/// Why a vocabulary is of no use here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadVocabulary {
    /// Nothing could end an answer.
    #[error("no end token is given: an answer could not end")]
    NoEnd,
    /// An id without a token.
    #[error("token {id} is named as special or end, of {tokens} tokens")]
    Id {
        /// The id.
        id: u32,
        /// How many tokens there are.
        tokens: usize,
    },
    /// Too many.
    #[error("{tokens} tokens, at most {MOST}")]
    Many {
        /// How many there are.
        tokens: usize,
    },
    /// The matcher does not take it.
    #[error("the matcher does not take the vocabulary: {0}")]
    Matcher(String),
}

/// Writes bytes as the model's tokenizer would, special tokens not looked for.
pub type Tokenize = Arc<dyn Fn(&[u8]) -> Vec<u32> + Send + Sync>;

/// A model's tokens: built once per model, shared.
///
/// By itself it says nothing of how the model's tokenizer cuts a text. All ways to cut an allowed
/// text are then allowed, and [`Matcher::forced`](crate::Matcher::forced) has nothing to say,
/// though [`forced_bytes`](crate::Matcher::forced_bytes) has. With
/// [`tokenized_by`](Self::tokenized_by) text that must come comes as the tokenizer cuts it, and in
/// no other way: the model reads what it was trained on, and nothing is left to choose.
pub struct Vocabulary {
    pub(crate) factory: ParserFactory,
    trie: Arc<TokTrie>,
    size: usize,
    specials: Vec<(Vec<u8>, u32)>,
    tokenize: Option<Tokenize>,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vocabulary({} tokens)", self.size)
    }
}

struct Cutter(Arc<TokTrie>);

impl TokenizerEnv for Cutter {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    // The matcher's own way would have masks fail where much text is known (its limit of items is
    // that of one mask), and cuts all of it again for each token.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

impl Vocabulary {
    /// `tokens`: the bytes each id stands for, in order of the ids; `special`: ids that stand for
    /// no text; `end`: ids that end an answer, special or not.
    ///
    /// Tokens of no bytes, of more than 1000, and ordinary ones that begin with the byte 255
    /// (which no UTF-8 has) are never allowed.
    pub fn new<T: AsRef<[u8]>>(
        tokens: impl IntoIterator<Item = T>,
        special: &[u32],
        end: &[u32],
    ) -> Result<Self, BadVocabulary> {
        let mut words: Vec<Vec<u8>> = tokens.into_iter().map(|t| t.as_ref().to_vec()).collect();
        if words.len() > MOST {
            return Err(BadVocabulary::Many { tokens: words.len() });
        }
        let (&first_end, size) = (end.first().ok_or(BadVocabulary::NoEnd)?, words.len());
        let mut specials = Vec::new();
        let marker = TokTrie::SPECIAL_TOKEN_MARKER;
        for word in &mut words {
            if word.len() > LONGEST || word.first() == Some(&marker) {
                word.clear();
            }
        }
        for &id in special.iter().chain(end) {
            let word = words.get_mut(id as usize);
            let word = word.ok_or(BadVocabulary::Id { id, tokens: size })?;
            if word.first() == Some(&marker) {
                continue; // named twice
            }
            if !word.is_empty() {
                specials.push((word.clone(), id));
            }
            word.insert(0, marker);
        }
        // A longer name wins over its own beginning.
        specials.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        let trie = TokTrie::from(&TokRxInfo::new(size as u32, first_end), &words);
        let trie = Arc::new(trie.with_eos_tokens(end));
        let factory = factory(&trie)?;
        Ok(Vocabulary { factory, trie, size, specials, tokenize: None })
    }

    /// Lets known text come as `tokenize` cuts it.
    #[must_use]
    pub fn tokenized_by(self, tokenize: Tokenize) -> Self {
        Vocabulary { tokenize: Some(tokenize), ..self }
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.size
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// Words of 32 bits in a mask.
    pub fn words(&self) -> usize {
        self.size.div_ceil(32)
    }

    /// Ids that end an answer.
    pub fn ends(&self) -> &[u32] {
        self.trie.eos_tokens()
    }

    /// What a token writes; none for special ones and ends.
    pub(crate) fn text_of(&self, id: u32) -> Option<&[u8]> {
        let bytes = if (id as usize) < self.size { self.trie.token(id) } else { &[] };
        Some(bytes).filter(|b| b.first().is_some_and(|b| *b != TokTrie::SPECIAL_TOKEN_MARKER))
    }

    /// Whether how known text is cut is known, and the tokens of a mask are one text's beginnings:
    /// it may be known on.
    pub(crate) fn is_one_text(&self, bits: &[u32]) -> bool {
        let some = bits.iter().map(|word| word.count_ones()).sum::<u32>();
        if self.tokenize.is_none() || some == 0 || some > FEW {
            return false;
        }
        let ids = bits.iter().zip(0..).filter(|(word, _)| **word != 0).flat_map(|(word, at)| {
            (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 32 * at + bit)
        });
        let mut longest: &[u8] = &[];
        for id in ids {
            let Some(text) = self.text_of(id) else { return false };
            let (short, long) =
                if text.len() < longest.len() { (text, longest) } else { (longest, text) };
            if !long.starts_with(short) {
                return false;
            }
            longest = long;
        }
        true
    }

    /// The first tokens of a text behind a token, as the tokenizer cuts it: none where it writes
    /// something else for the text, such as a blank before it.
    pub(crate) fn cut(&self, last: Option<u32>, text: &[u8]) -> Vec<u32> {
        let Some(tokenize) = &self.tokenize else { return Vec::new() };
        let mut tokens = Vec::new();
        if let Some((last, before)) = last.and_then(|last| Some((last, self.text_of(last)?))) {
            tokens = tokenize(&[before, text].concat());
            match tokens.first() == Some(&last) {
                true => drop(tokens.remove(0)),
                false => tokens.clear(),
            }
        }
        if tokens.is_empty() {
            tokens = tokenize(text);
        }
        let mut rest = text;
        let is_next = |id: &&u32| {
            let after = self.text_of(**id).and_then(|token| rest.strip_prefix(token));
            after.map(|after| rest = after).is_some()
        };
        let right = tokens.iter().take(CUT_TOKENS).take_while(is_next).count();
        tokens.truncate(right);
        tokens
    }

    /// The special token that `text` begins with, and its length in bytes.
    pub(crate) fn special_at(&self, text: &str) -> Option<(u32, usize)> {
        let found = self.specials.iter().find(|(name, _)| text.as_bytes().starts_with(name))?;
        Some((found.1, found.0.len()))
    }
}

fn factory(trie: &Arc<TokTrie>) -> Result<ParserFactory, BadVocabulary> {
    let env: TokEnv = Arc::new(Cutter(trie.clone()));
    let slices = SlicedBiasComputer::json_slices();
    let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
    let mut factory = factory.map_err(|e| BadVocabulary::Matcher(e.to_string()))?;
    factory.quiet();
    Ok(factory)
}

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
/// [`tokenized_by`](Self::tokenized_by) known text comes as the tokenizer would cut it.
pub struct Vocabulary {
    pub(crate) factory: ParserFactory,
    trie: Arc<TokTrie>,
    size: usize,
    specials: Vec<(Vec<u8>, u32)>,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vocabulary({} tokens)", self.size)
    }
}

struct Cutter {
    trie: Arc<TokTrie>,
    tokenize: Option<Tokenize>,
}

impl TokenizerEnv for Cutter {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        match &self.tokenize {
            Some(tokenize) => tokenize(bytes),
            None => self.trie.greedy_tokenize(bytes),
        }
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.tokenize.is_some()
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
        let factory = factory(&trie, None)?;
        Ok(Vocabulary { factory, trie, size, specials })
    }

    /// Lets known text come as `tokenize` cuts it.
    pub fn tokenized_by(self, tokenize: Tokenize) -> Result<Self, BadVocabulary> {
        let factory = factory(&self.trie, Some(tokenize))?;
        Ok(Vocabulary { factory, ..self })
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

    /// The special token that `text` begins with, and its length in bytes.
    pub(crate) fn special_at(&self, text: &str) -> Option<(u32, usize)> {
        let found = self.specials.iter().find(|(name, _)| text.as_bytes().starts_with(name))?;
        Some((found.1, found.0.len()))
    }
}

fn factory(
    trie: &Arc<TokTrie>,
    tokenize: Option<Tokenize>,
) -> Result<ParserFactory, BadVocabulary> {
    let env: TokEnv = Arc::new(Cutter { trie: trie.clone(), tokenize });
    let slices = SlicedBiasComputer::json_slices();
    let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
    let mut factory = factory.map_err(|e| BadVocabulary::Matcher(e.to_string()))?;
    factory.quiet();
    Ok(factory)
}

//! The tokenizer: text to token ids and back, whatever file the vocabulary came from.

use crate::bpe::{ByteBpe, CharBpe};
use crate::encoder::Reach;
use crate::hf_json::Library;
use crate::infill::{Infill, Named};
use crate::lint::Finding;
use crate::shown::{line, quoted};
use crate::specials::{Part, SpecialSet};
use crate::stream::{Lead, bytes_to_text};
use crate::template::{RenderedPrompt, TemplateTokens};

/// Longest text one call encodes, in bytes.
pub const MAX_TEXT_BYTES: usize = 256 << 20;

/// Why a tokenizer could not be built, or a text not be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// `tokenizer.ggml.model` names a kind this crate does not have.
    #[error(
        "tokenizer model {} is not supported (supported: gpt2, llama, gemma4, bert, t5)",
        quoted(model)
    )]
    UnknownModel {
        /// The value found.
        model: String,
    },
    /// `tokenizer.ggml.pre` names a kind this crate does not have.
    #[error(
        "pre-tokenizer {} is not supported (supported: {} others, such as {})",
        quoted(kind), known.len(), known.iter().take(12).copied().collect::<Vec<_>>().join(", ")
    )]
    UnknownPreTokenizer {
        /// The value found.
        kind: String,
        /// The values this crate knows.
        known: Vec<&'static str>,
    },
    /// No tokens, or more than ids can count.
    #[error("a vocabulary of {tokens} tokens")]
    VocabularySize {
        /// Number of tokens found.
        tokens: usize,
    },
    /// A list that must have one element per token has another length.
    #[error("{what} has {found} elements, the vocabulary {expected} tokens")]
    LengthMismatch {
        /// Key of the list.
        what: &'static str,
        /// Number of tokens.
        expected: usize,
        /// Number of elements.
        found: usize,
    },
    /// An id beyond the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size} tokens")]
    IdOutOfRange {
        /// The id.
        id: u32,
        /// Number of tokens.
        vocab_size: usize,
    },
    /// A model that merges has no merges.
    #[error("the vocabulary has no merges")]
    NoMerges,
    /// A merge whose sides or result are not tokens.
    #[error("merge {index} ({}) does not join two tokens into a third", quoted(text))]
    BadMerge {
        /// Position in the list.
        index: u32,
        /// The merge as written.
        text: String,
    },
    /// A token of the byte kind that is not spelled `<0xNN>`.
    #[error("byte token {} is not spelled <0xNN>", quoted(text))]
    BadByteToken {
        /// Its text.
        text: String,
    },
    /// The control tokens are too many or too long to search for.
    #[error("the special tokens are too many or too long")]
    TooManySpecials,
    /// `tokenizer.json` could not be used.
    #[error("tokenizer.json: {}", line(reason))]
    Json {
        /// What is wrong with it.
        reason: String,
    },
    /// Another tokenizer file could not be used.
    #[error("{file}: {}", line(reason))]
    File {
        /// Its name.
        file: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The text is longer than [`MAX_TEXT_BYTES`].
    #[error("a text of {bytes} bytes is longer than {MAX_TEXT_BYTES}")]
    TextTooLong {
        /// Length of the text.
        bytes: usize,
    },
    /// The text has more tokens than are of use.
    #[error("the text has at least {at_least} tokens, {most} are of use")]
    TooManyTokens {
        /// Tokens it has at least.
        at_least: usize,
        /// Tokens that are of use.
        most: usize,
    },
    /// Nobody waits for the tokens any more.
    #[error("nobody waits for the tokens")]
    Unwanted,
    /// The tokenizer gave up on this text.
    #[error("the text could not be encoded: {}", line(reason))]
    Encode {
        /// What went wrong.
        reason: String,
    },
}

/// What control tokens spelled out in a text become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// Plain text, like any other: for text that users wrote.
    Plain,
    /// The tokens themselves: for text the program or the model's author wrote.
    Parse,
}

/// How plain text becomes tokens.
pub(crate) enum Core {
    Bytes(Box<ByteBpe>),
    Chars(Box<CharBpe>),
    Library(Box<Library>),
}

/// Raw bytes and kind of every token.
#[derive(Default)]
pub(crate) struct TokenTable {
    bytes: Vec<u8>,
    /// End of each token in `bytes`, and whether it is special.
    ends: Vec<(usize, bool)>,
}

impl TokenTable {
    /// Appends the next id.
    pub(crate) fn push(&mut self, bytes: &[u8], special: bool) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push((self.bytes.len(), special));
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of the longest.
    pub(crate) fn longest(&self) -> usize {
        let mut start = 0;
        let lengths = self.ends.iter().map(|&(end, _)| end - std::mem::replace(&mut start, end));
        lengths.max().unwrap_or(0)
    }

    /// A table with some of its tokens unknown: their bytes are empty.
    pub(crate) fn from_slots(slots: &[Option<(Vec<u8>, bool)>]) -> TokenTable {
        let mut table = TokenTable::default();
        for slot in slots {
            let (bytes, special) = slot.as_ref().map_or((&[][..], false), |(b, s)| (b, *s));
            table.push(bytes, special);
        }
        table
    }

    pub(crate) fn get(&self, id: u32) -> Option<(&[u8], bool)> {
        let index = id as usize;
        let &(end, special) = self.ends.get(index)?;
        let start = match index.checked_sub(1) {
            Some(before) => self.ends.get(before)?.0,
            None => 0,
        };
        Some((self.bytes.get(start..end)?, special))
    }
}

/// What the loaders hand over.
pub(crate) struct Parts {
    pub(crate) core: Core,
    pub(crate) control: SpecialSet,
    pub(crate) user_defined: SpecialSet,
    pub(crate) table: TokenTable,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) prefix: Vec<u32>,
    pub(crate) suffix: Vec<u32>,
    /// Between the two texts of a pair, after the suffix of the first.
    pub(crate) between: Vec<u32>,
    /// Whether the tokens of the second are of a type of their own.
    pub(crate) typed: bool,
    pub(crate) eos_ids: Vec<u32>,
    pub(crate) strips_lead: bool,
    /// Chats get the prefix too.
    pub(crate) completes_chats: bool,
    /// Further tokens that templates know by name.
    pub(crate) named: Vec<(String, String)>,
    /// Marks for filling in the middle; found when all else is there.
    pub(crate) infill: Option<Infill>,
    pub(crate) findings: Vec<Finding>,
}

/// A vocabulary with the rules to encode into it and decode from it. Immutable, `Send + Sync`.
pub struct Tokenizer {
    pub(crate) parts: Parts,
    /// Most bytes of text that one token can stand for.
    pub(crate) most_bytes: usize,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("eos_ids", &self.parts.eos_ids)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    pub(crate) fn from_parts(mut parts: Parts) -> Tokenizer {
        parts.eos_ids.sort_unstable();
        parts.eos_ids.dedup();
        let most_bytes = parts.bytes_of_a_token();
        if parts.infill.is_none() {
            parts.infill = Infill::of(&parts.table, Named::default());
        }
        Tokenizer { parts, most_bytes }
    }

    /// Tokens that end what was filled in between two texts, beside those that end every answer;
    /// `None` where the vocabulary has no marks for that.
    pub fn infill_ends(&self) -> Option<&[u32]> {
        self.parts.infill.as_ref().map(Infill::ends)
    }

    /// Number of ids, special ones included. A model's output may be wider (padded).
    pub fn vocab_size(&self) -> usize {
        self.parts.table.len()
    }

    /// The token that starts a text, if the vocabulary names one.
    pub fn bos_id(&self) -> Option<u32> {
        self.parts.bos
    }

    /// The tokens that end an answer, in ascending order.
    pub fn eos_ids(&self) -> &[u32] {
        &self.parts.eos_ids
    }

    /// Adds ending tokens from elsewhere, such as `generation_config.json`. Ids outside the
    /// vocabulary are ignored.
    pub fn extend_eos_ids(&mut self, ids: &[u32]) {
        let size = self.vocab_size();
        let eos_ids = &mut self.parts.eos_ids;
        eos_ids.extend(ids.iter().filter(|&&id| (id as usize) < size));
        eos_ids.sort_unstable();
        eos_ids.dedup();
    }

    /// The raw bytes a token stands for (a special token: its name); `None` outside the
    /// vocabulary. Bytes of one token need not be whole characters.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.parts.table.get(id).map(|(bytes, _)| bytes)
    }

    /// Whether a token marks structure and is no part of the text. False outside the vocabulary.
    pub fn is_special(&self, id: u32) -> bool {
        self.parts.table.get(id).is_some_and(|(_, special)| special)
    }

    /// The id of a token by its text, special tokens first.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        let whole = |set: &SpecialSet| match set.split_all(text).as_slice() {
            [Part::Token(id)] => Some(*id),
            _ => None,
        };
        whole(&self.parts.control).or_else(|| whole(&self.parts.user_defined)).or_else(|| {
            let ids = 0..self.vocab_size() as u32;
            ids.into_iter().find(|&id| self.token_bytes(id) == Some(text.as_bytes()))
        })
    }

    /// Whether decoding drops one leading space, which encoding put there.
    pub(crate) fn strips_lead(&self) -> bool {
        self.parts.strips_lead
    }

    /// Encodes a text; adds neither BOS nor EOS.
    ///
    /// # Errors
    /// [`TokenizerError::TextTooLong`], or [`TokenizerError::Encode`] from a `tokenizer.json`.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, TokenizerError> {
        self.within(Reach::ALL).encode(text, special)
    }

    /// Encodes a prompt: BOS in front and EOS behind where the model wants them, neither twice.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_prompt(&self, text: &str, special: Special) -> Result<Vec<u32>, TokenizerError> {
        self.within(Reach::ALL).prompt(text, special)
    }

    /// Encodes two texts for a model that compares them, framed as its files say; and where the
    /// second begins, if its tokens are of another type.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
    ) -> Result<(Vec<u32>, Option<u32>), TokenizerError> {
        self.within(Reach::ALL).pair(first, second)
    }

    /// Encodes what a chat template rendered: the template's control tokens are tokens, those in
    /// the users' text are text. Where the vocabulary's format puts BOS in front of what a template
    /// writes (see [`Tokenizer::completes_chats`]), and where the template is a guess, BOS is put
    /// there if it is missing. No EOS.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_rendered(&self, prompt: &RenderedPrompt) -> Result<Vec<u32>, TokenizerError> {
        self.within(Reach::ALL).rendered(prompt)
    }

    /// Whether a chat gets BOS where its template wrote none. A GGUF file says so
    /// (`add_bos_token`); the files of a folder say it of plain texts only.
    pub fn completes_chats(&self) -> bool {
        self.parts.completes_chats
    }

    /// What starts plain texts.
    pub fn prefix(&self) -> &[u32] {
        &self.parts.prefix
    }

    /// What was guessed or left aside when the vocabulary was read.
    pub fn findings(&self) -> &[Finding] {
        &self.parts.findings
    }

    /// The text of `ids`, special tokens skipped, bytes that are no UTF-8 replaced by U+FFFD. Ids
    /// outside the vocabulary are skipped too.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for (token, special) in ids.iter().filter_map(|&id| self.parts.table.get(id)) {
            if !special {
                bytes.extend_from_slice(token);
            }
        }
        bytes_to_text(&bytes, if self.parts.strips_lead { Lead::Strip } else { Lead::Keep })
    }

    /// What chat templates need to know of the vocabulary.
    pub fn template_tokens(&self) -> TemplateTokens {
        let name = |id: Option<u32>| {
            let bytes = id.and_then(|id| self.token_bytes(id)).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        TemplateTokens {
            bos: name(self.parts.bos),
            eos: name(self.parts.eos),
            control: self.parts.control.texts().map(str::to_owned).collect(),
            named: self.parts.named.clone(),
        }
    }
}

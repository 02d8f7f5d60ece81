//! A sequence: its tokens, how many of them are computed, and where its cache lies.

use std::borrow::Cow;
use std::sync::Arc;

use tokenmill_ir::sampling::{Mirostat, Rules};
use tokenmill_ir::{BlockId, FIRST_MEDIA, MAX_GROUPS, SamplingParams, TokenId};

use crate::media::Inputs;
use crate::miss::Miss;

/// Names a sequence for as long as it lives; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SeqId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Numbers that are wanted of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// The log-probability of every token but the first.
    Scores {
        /// Alternatives at each position.
        top: u32,
    },
    /// All logits of the rows from that position on.
    Logits {
        /// First position.
        from: u32,
    },
    /// The hidden (or pooled) row of the last token.
    Hidden,
    /// The final rows that [`Inputs::outputs`] names, of a program that takes whole sequences.
    Listed,
    /// The same of two texts, the second of which begins at `second`.
    Pair {
        /// Index of its first token.
        second: u32,
    },
}

/// What a sequence is computed for.
#[derive(Debug, Clone, PartialEq)]
pub enum Want {
    /// Sampled tokens until `max_len`; `index` is set for each token.
    Tokens {
        /// How to sample.
        sampling: SamplingParams,
        /// Added to logits.
        bias: Vec<(TokenId, f32)>,
        /// What the text before forbids and makes unlikely.
        rules: Box<Rules>,
    },
    /// Numbers.
    Numbers(Numbers),
}

impl Want {
    /// Tokens sampled so, with nothing added.
    pub fn tokens(sampling: SamplingParams) -> Self {
        Want::Tokens { sampling, bias: Vec::new(), rules: Box::default() }
    }
}

/// A sequence to compute.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSequence {
    /// The caller's name for it, given back in each `Progress`.
    pub key: u64,
    /// Known tokens. Not empty.
    pub tokens: Vec<TokenId>,
    /// What there is beside them; none in a plain text.
    pub inputs: Option<Arc<Inputs>>,
    /// Tokens it may reach, known ones included.
    pub max_len: u32,
    /// What for.
    pub want: Want,
    /// Sequences share cached prefixes only with those of the same salt.
    pub salt: u64,
    /// Who it is for: those who were served least come first.
    pub account: u64,
    /// Among sequences of one account: smaller comes first.
    pub priority: i32,
}

impl NewSequence {
    /// A plain text, for nobody in particular.
    pub fn new(tokens: Vec<TokenId>, max_len: u32, want: Want) -> Self {
        let (key, inputs, salt, account, priority) = (0, None, 0, 0, 0);
        Self { key, tokens, inputs, max_len, want, salt, account, priority }
    }

    /// Tokens of its longest block.
    pub(crate) fn longest_block(&self) -> u32 {
        self.inputs.as_ref().map_or(0, |inputs| inputs.longest_block())
    }
}

/// Where the scheduler keeps a sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub slot: u32,
    /// Order of submission.
    pub arrival: u64,
    /// Index of its account.
    pub account: u32,
}

/// A sequence the scheduler knows.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    pub key: u64,
    pub slot: u32,
    /// Order of submission.
    pub arrival: u64,
    /// Index of its account.
    pub account: u32,
    pub priority: i32,
    pub salt: u64,
    pub want: Want,
    /// Known tokens, then drafts.
    pub tokens: Vec<TokenId>,
    pub inputs: Option<Arc<Inputs>>,
    /// How many of the prompt's tokens are none, but rows.
    pub rows: u32,
    /// Tokens of the longest block.
    pub longest_block: u32,
    /// How many of `tokens` were given at submission.
    pub prompt: u32,
    /// How many of `tokens` are no drafts.
    pub known: u32,
    /// How many of those, the last ones, had to come, and are not reported yet.
    pub foretold: u32,
    /// How many of `tokens` are in the cache.
    pub computed: u32,
    pub max_len: u32,
    /// Steps pass it by.
    pub held_back: bool,
    /// Rows before this position were handed out (scores and logits).
    pub delivered: u32,
    /// Set once `Outcome::Started` was reported.
    pub started: bool,
    /// Per group: its blocks by index; `[read, write]` for a state group.
    pub tables: [Vec<BlockId>; MAX_GROUPS],
    /// Per window group: entries before this one were given back.
    pub behind: [u32; MAX_GROUPS],
    /// Leased nodes of the prefix tree, one a full block from the start.
    pub path: Vec<u32>,
    /// How many of those it found computed when it was last let in.
    pub attached: u32,
    /// Prompt tokens found in the prefix cache at the first admission.
    pub cached: u32,
    /// Why the rest of it was not found there.
    pub miss: Miss,
    /// Blocks of its text that were noted as worth keeping.
    pub noted_blocks: u32,
}

impl Sequence {
    pub fn new(new: NewSequence, place: Place, block_tokens: u32, groups: usize) -> Self {
        let prompt = new.tokens.len() as u32;
        let rows = new.inputs.as_ref().map_or(0, |inputs| inputs.rows());
        let longest_block = new.longest_block();
        let mut tokens = new.tokens;
        tokens.reserve_exact((new.max_len as usize + 1).saturating_sub(tokens.len()));
        let blocks = (new.max_len / block_tokens) as usize + 2;
        let table = |g: usize| Vec::with_capacity(if g < groups { blocks } else { 0 });
        let delivered =
            if let Want::Numbers(Numbers::Logits { from }) = new.want { from } else { 0 };
        Self {
            key: new.key,
            slot: place.slot,
            arrival: place.arrival,
            account: place.account,
            priority: new.priority,
            salt: new.salt,
            want: new.want,
            tokens,
            longest_block,
            rows,
            inputs: new.inputs,
            prompt,
            known: prompt,
            foretold: 0,
            computed: 0,
            max_len: new.max_len,
            held_back: false,
            delivered,
            started: false,
            tables: std::array::from_fn(table),
            behind: [0; MAX_GROUPS],
            path: Vec::with_capacity(blocks),
            attached: 0,
            cached: 0,
            miss: Miss::default(),
            noted_blocks: 0,
        }
    }

    pub fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Whether drafts may follow: it generates, and only its last token is not yet computed. Where
    /// each token changes what the next is drawn from, none may.
    pub fn takes_drafts(&self) -> bool {
        let Want::Tokens { sampling, .. } = &self.want else { return false };
        let is_plain = self.len() == self.known && self.foretold == 0;
        let mirostat = sampling.chain.is_some_and(|chain| chain.mirostat.is_some());
        self.computed > 0 && is_plain && self.computed + 1 == self.known && !mirostat
    }

    /// Its own state of sampling, where it has one.
    pub fn mirostat(&mut self) -> Option<&mut Mirostat> {
        let Want::Tokens { sampling, .. } = &mut self.want else { return None };
        sampling.chain.as_mut()?.mirostat.as_mut()
    }

    /// Tokens to compute: all of them, but nobody asks what follows the last scored one.
    pub fn goal(&self) -> u32 {
        self.len() - u32::from(matches!(self.want, Want::Numbers(Numbers::Scores { .. })))
    }

    /// Whether somebody waits for its next token: it has generated some, and what it lacks to go on,
    /// such as after giving way to another, is no more than a block.
    pub fn is_stream(&self, block_tokens: u32) -> bool {
        self.known > self.prompt && self.lacks() <= block_tokens
    }

    /// Tokens it gets in every step, whatever the time: those that a stream's next one waits for.
    pub fn due(&self) -> u32 {
        let generated = self.known > self.prompt;
        if generated {
            (self.known - self.computed).saturating_sub(self.foretold).max(1)
        } else {
            1
        }
    }

    /// Tokens to compute before its next one can come, drafts aside.
    pub fn lacks(&self) -> u32 {
        self.goal().min(self.known).saturating_sub(self.computed)
    }

    /// The first `n` tokens of the text without what is no token; the prompt's come first.
    pub fn text(&self, n: u32) -> Cow<'_, [TokenId]> {
        let tokens = &self.tokens[..n as usize];
        match self.rows {
            0 => Cow::Borrowed(tokens),
            _ => tokens.iter().copied().filter(|&t| t < FIRST_MEDIA).collect(),
        }
    }

    /// Of the listed rows, those of tokens `from..to`.
    pub fn listed(&self, from: u32, to: u32) -> &[u32] {
        let all = self.inputs.as_ref().map_or(&[][..], |inputs| &inputs.outputs);
        let at = |token: u32| all.partition_point(|&row| row < token);
        &all[at(from)..at(to)]
    }

    /// The block of tokens that see each other which a grant up to there would end inside of.
    pub fn block_around(&self, end: u32) -> Option<[u32; 2]> {
        self.inputs.as_ref()?.block_around(end)
    }

    /// Tokens of the block that the next grant begins with.
    pub fn block_due(&self) -> u32 {
        self.inputs.as_ref().map_or(0, |inputs| inputs.block_from(self.computed))
    }

    /// Most of the next `n` tokens that end inside no block.
    pub fn before_block(&self, n: u32) -> u32 {
        let block = self.block_around(self.computed + n);
        block.map_or(n, |[begin, _]| begin.saturating_sub(self.computed))
    }

    /// Position of the first output row.
    pub fn first_output(&self) -> u32 {
        match self.want {
            Want::Tokens { .. } => self.known - 1,
            Want::Numbers(Numbers::Scores { .. } | Numbers::Logits { .. } | Numbers::Listed) => {
                self.delivered
            }
            Want::Numbers(Numbers::Hidden) | Want::Numbers(Numbers::Pair { .. }) => self.known - 1,
        }
    }

    /// Output rows among the next `n` tokens.
    pub fn outputs_in(&self, n: u32) -> u32 {
        if self.want == Want::Numbers(Numbers::Listed) {
            return self.listed(self.computed, self.computed + n).len() as u32;
        }
        (self.computed + n).saturating_sub(self.first_output().max(self.computed))
    }

    /// Most of the next tokens that have at most `rows` output rows.
    pub fn tokens_for_outputs(&self, rows: u32) -> u32 {
        if self.want == Want::Numbers(Numbers::Listed) {
            let first_left = self.listed(self.computed, u32::MAX).get(rows as usize);
            return first_left.map_or(u32::MAX, |row| row - self.computed);
        }
        self.first_output().saturating_sub(self.computed) + rows
    }
}

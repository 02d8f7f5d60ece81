//! One step for a device ([`Batch`]) and what comes back ([`StepOutput`]): flat arrays, allocated
//! once. T tokens, S sequences (spans), R output rows, G cache groups.

use crate::sampling::{SampleRow, Sampled, SamplingParams};
use crate::{Limits, TokenId};

/// Cache groups a program may have.
pub const MAX_GROUPS: usize = 4;

/// A cache block (or a state slot) of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

impl BlockId {
    /// Stands where a sequence has no block: behind a window, or a state that starts at zero.
    pub const NONE: BlockId = BlockId(u32::MAX);
}

/// Where an input token comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenSource {
    /// A known id.
    Id(TokenId),
    /// The token sampled for that output row of the previous step, not yet known to the host.
    Sampled(u32),
    /// No token: that row of [`Batch::embeddings`] stands in its place.
    Embedding(u32),
}

/// Consecutive tokens of one sequence in this step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Index of its first token in [`Batch::tokens`].
    pub first: u32,
    /// Number of tokens.
    pub len: u32,
    /// Tokens of the sequence already in the cache: the cache index of the first token.
    pub context: u32,
    /// Per group: start of the sequence's block table in [`Batch::tables`]. Entry `i` of a table
    /// holds cache indices `i * block_tokens ..`; entries behind a window may be `NONE`. For a
    /// state group the table has two entries: the slot to read (`NONE`: zeros) and the slot to
    /// write (they may be the same).
    pub tables: [u32; MAX_GROUPS],
}

/// What is wanted of one token row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OutputKind {
    /// Sample the next token.
    Sample {
        /// How.
        params: SamplingParams,
        /// Slice of [`Batch::history`]: the tokens penalties look at, prompt first.
        history: (u32, u32),
        /// How many of those are the prompt.
        prompt: u32,
        /// Slice of [`Batch::bias`].
        bias: (u32, u32),
        /// Slice of [`Batch::bias`] too: added after the penalties.
        rules: (u32, u32),
        /// Index of the allowed-token mask in [`Batch::masks`], `u32::MAX` for none.
        mask: u32,
    },
    /// Log-probability of `target` and the `top` best, with no sampling.
    Score {
        /// The token whose log-probability is wanted.
        target: TokenId,
        /// Number of alternatives.
        top: u32,
    },
    /// All logits of the row (`vocab` numbers in [`StepOutput::rows`]).
    Logits,
    /// The final hidden row (`hidden` numbers in [`StepOutput::rows`]); pooled models give the
    /// pooled vector at the last token of the span. Where rows are taken in runs, this is the first of
    /// its run.
    Hidden,
}

impl OutputKind {
    /// Samples without a history, biases or a mask.
    pub fn sample(params: SamplingParams) -> Self {
        let (none, prompt, mask) = ((0, 0), 0, u32::MAX);
        OutputKind::Sample { params, history: none, prompt, bias: none, rules: none, mask }
    }
}

/// One output row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OutputRow {
    /// Token row in [`Batch::tokens`].
    pub row: u32,
    /// What is wanted.
    pub kind: OutputKind,
}

/// An output row as [`Batch::output`] gives it; see [`OutputKind`].
#[derive(Debug, Clone, Copy)]
pub enum Output<'a> {
    /// Sample the next token so.
    Sample(SampleRow<'a>),
    /// A token's log-probability and the `top` best.
    Score {
        /// The token.
        target: TokenId,
        /// Number of alternatives.
        top: u32,
    },
    /// All logits.
    Logits,
    /// The final hidden row.
    Hidden,
}

/// A block (or state slot) copied before the step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// Cache group.
    pub group: u32,
    /// From.
    pub src: BlockId,
    /// To.
    pub dst: BlockId,
}

/// One step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Input tokens. [T]
    pub tokens: Vec<TokenSource>,
    /// Rotary (or learned) position of each token, on the first axis. [T]
    pub positions: Vec<u32>,
    /// Its positions on the second and third axis. Empty: those of the first. [T]
    pub grid: Vec<[u32; 2]>,
    /// The block of tokens that each token belongs to, which may see all of it: indices among the
    /// keys of its sequence, begin and end; 0 and 0 for none. A block lies within a step. Empty: no
    /// blocks. [T]
    pub blocks: Vec<[u32; 2]>,
    /// Rows of [`Program::input_cols`](crate::Program::input_cols) numbers that stand in the place of
    /// tokens, concatenated.
    pub embeddings: Vec<f32>,
    /// Type of each token, 1 in the second of two texts that are compared. Empty: 0 everywhere. [T]
    pub types: Vec<u32>,
    /// Sequences; spans lie one after another in `tokens`. [S]
    pub spans: Vec<Span>,
    /// Block tables, concatenated.
    pub tables: Vec<BlockId>,
    /// Output rows, in ascending order of `row`. [R]
    pub outputs: Vec<OutputRow>,
    /// Tokens seen by penalties, concatenated.
    pub history: Vec<TokenId>,
    /// What is added to logits, concatenated: (token, added).
    pub bias: Vec<(TokenId, f32)>,
    /// Allowed-token bit masks, `ceil(vocab / 32)` words each, concatenated.
    pub masks: Vec<u32>,
    /// Copies that run first, in order.
    pub copies: Vec<BlockCopy>,
}

/// Tokens of history for which there is room from the start: a context may be far longer than any
/// text that comes.
const MOST_HISTORY: usize = 1 << 20;

impl Batch {
    /// Room for a step at its limits.
    pub fn with_limits(limits: &Limits, block_tokens: u32) -> Self {
        let table = (limits.context as usize).div_ceil(block_tokens as usize) + 2;
        let groups = limits.group_blocks.len().max(1);
        let total: usize = limits.group_blocks.iter().map(|&b| b as usize).sum();
        let tables = (limits.sequences as usize * groups * table).min(total * 4 + 64 * groups);
        Self {
            tokens: Vec::with_capacity(limits.step_tokens as usize),
            positions: Vec::with_capacity(limits.step_tokens as usize),
            grid: Vec::new(),
            blocks: Vec::new(),
            embeddings: Vec::new(),
            types: Vec::with_capacity(limits.step_tokens as usize),
            spans: Vec::with_capacity(limits.sequences as usize),
            tables: Vec::with_capacity(tables),
            outputs: Vec::with_capacity(limits.outputs as usize),
            history: Vec::with_capacity((limits.context as usize * 2).min(MOST_HISTORY)),
            bias: Vec::new(),
            masks: Vec::new(),
            copies: Vec::with_capacity(limits.sequences as usize),
        }
    }

    /// An output row with its history, biases and mask.
    pub fn output(&self, index: usize, vocab: usize) -> Output<'_> {
        match &self.outputs[index].kind {
            OutputKind::Sample { params, history, prompt, bias, rules, mask } => {
                let words = vocab.div_ceil(32);
                Output::Sample(SampleRow {
                    params,
                    history: slice(&self.history, *history),
                    prompt: *prompt as usize,
                    bias: slice(&self.bias, *bias),
                    rules: slice(&self.bias, *rules),
                    mask: match *mask {
                        u32::MAX => &[],
                        mask => &self.masks[mask as usize * words..][..words],
                    },
                })
            }
            OutputKind::Score { target, top } => Output::Score { target: *target, top: *top },
            OutputKind::Logits => Output::Logits,
            OutputKind::Hidden => Output::Hidden,
        }
    }

    /// The positions of the token in a row on all three axes.
    pub fn axes(&self, row: usize) -> [u32; 3] {
        let first = self.positions[row];
        let [second, third] = self.grid.get(row).copied().unwrap_or([first; 2]);
        [first, second, third]
    }

    /// The block of the token in a row; 0 and 0 for none.
    pub fn block(&self, row: usize) -> [u32; 2] {
        self.blocks.get(row).copied().unwrap_or([0; 2])
    }

    /// The type of the token in a row.
    pub fn token_type(&self, row: usize) -> u32 {
        self.types.get(row).copied().unwrap_or(0)
    }

    /// Empties every array and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.grid.clear();
        self.blocks.clear();
        self.embeddings.clear();
        self.types.clear();
        self.spans.clear();
        self.tables.clear();
        self.outputs.clear();
        self.history.clear();
        self.bias.clear();
        self.masks.clear();
        self.copies.clear();
    }
}

/// A slice of a list; an empty one may begin anywhere.
fn slice<T>(list: &[T], (start, len): (u32, u32)) -> &[T] {
    if len == 0 { &[] } else { &list[start as usize..][..len as usize] }
}

/// Results of one step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepOutput {
    /// One entry an output row, in the batch's order. Rows of kind `Logits` and `Hidden` have a
    /// default entry here and their numbers in `rows`. [R]
    pub sampled: Vec<Sampled>,
    /// Alternatives with log-probabilities, best first, concatenated; `Sampled::top` slices it.
    pub top: Vec<(TokenId, f32)>,
    /// Numbers of `Logits` and `Hidden` rows, concatenated in row order.
    pub rows: Vec<f32>,
    /// Experts whose weights were read, those of all layers; 0 where the device does not count.
    pub expert_reads: u64,
    /// Their stored bytes.
    pub expert_bytes: u64,
}

impl StepOutput {
    /// Empties every array and keeps its memory.
    pub fn clear(&mut self) {
        self.sampled.clear();
        self.top.clear();
        self.rows.clear();
        (self.expert_reads, self.expert_bytes) = (0, 0);
    }
}

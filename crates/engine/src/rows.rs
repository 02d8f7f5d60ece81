//! Numbers instead of text: log-probabilities of given tokens, logits, embeddings.

use std::time::Duration;

use tokenmill_ir::{StepOutput, TokenId};
use tokenmill_sched::{Outcome, SeqId, Want};

use crate::queue::NOBODY;
use crate::request::RequestError;

/// What is wanted of given tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsWant {
    /// The log-probability of each token but the first, with the `top` best at its position.
    Scores {
        /// Alternatives.
        top: u32,
    },
    /// Logits after each token from position `from` on.
    Logits {
        /// First position.
        from: u32,
    },
    /// The embedding of the tokens.
    Embedding,
    /// The same of two texts, whose tokens are of different types.
    Pair {
        /// Where the second begins.
        second: u32,
    },
}

/// A request for numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowsRequest {
    /// Tokens. Not empty.
    pub tokens: Vec<TokenId>,
    /// What is wanted of them.
    pub want: RowsWant,
    /// Who asks, as in [`Request::account`](crate::Request); cached prefixes are shared within it.
    pub account: u64,
    /// How long it may take, waiting included; then it fails.
    pub timeout: Option<Duration>,
}

/// One scored token.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// The token.
    pub id: TokenId,
    /// ln p(token | tokens before it).
    pub logprob: f32,
    /// The best at that position with their ln p.
    pub top: Vec<(TokenId, f32)>,
}

/// The answer to a [`RowsRequest`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RowsAnswer {
    /// For `Scores`: of positions 1.. in order.
    pub scores: Vec<Scored>,
    /// For `Logits` and `Embedding`: rows one after another.
    pub numbers: Vec<f32>,
    /// Numbers in one row.
    pub width: usize,
    /// Tokens given.
    pub prompt_tokens: u32,
}

/// Takes the answer, once.
pub type RowsSink = Box<dyn FnOnce(Result<RowsAnswer, RequestError>) + Send>;

impl RowsRequest {
    /// One that nobody in particular asks, and that may take its time.
    pub fn new(tokens: Vec<TokenId>, want: RowsWant) -> Self {
        Self { tokens, want, account: NOBODY, timeout: None }
    }
}

impl From<RowsWant> for Want {
    fn from(want: RowsWant) -> Self {
        match want {
            RowsWant::Scores { top } => Want::Scores { top },
            RowsWant::Logits { from } => Want::Logits { from },
            RowsWant::Embedding => Want::Hidden,
            RowsWant::Pair { second } => Want::Pair { second },
        }
    }
}

/// A request for numbers while it runs.
pub(crate) struct Rows {
    pub seq: SeqId,
    sink: Option<RowsSink>,
    answer: RowsAnswer,
}

impl Rows {
    pub fn new(seq: SeqId, prompt_tokens: u32, sink: RowsSink) -> Self {
        let answer = RowsAnswer { prompt_tokens, ..RowsAnswer::default() };
        Self { seq, sink: Some(sink), answer }
    }

    /// Tokens given.
    pub fn prompt(&self) -> usize {
        self.answer.prompt_tokens as usize
    }

    pub fn take(&mut self, outcome: Outcome, out: &StepOutput) {
        match outcome {
            Outcome::Scored { output, .. } => {
                let Some(s) = out.sampled.get(output as usize) else { return };
                let slice = s.top.0 as usize..(s.top.0 + s.top.1) as usize;
                let top = out.top.get(slice).unwrap_or_default().to_vec();
                self.answer.scores.push(Scored { id: s.token, logprob: s.logprob, top });
            }
            Outcome::Row { start, len, .. } => {
                self.answer.width = len;
                let row = out.rows.get(start..start + len).unwrap_or_default();
                self.answer.numbers.extend_from_slice(row);
            }
            _ => {}
        }
    }

    pub fn finish(&mut self) {
        let answer = std::mem::take(&mut self.answer);
        if let Some(sink) = self.sink.take() {
            sink(Ok(answer));
        }
    }

    pub fn fail(&mut self, error: RequestError) {
        if let Some(sink) = self.sink.take() {
            sink(Err(error));
        }
    }
}

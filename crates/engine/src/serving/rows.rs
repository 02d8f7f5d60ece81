//! Numbers instead of text: log-probabilities of given tokens, logits, embeddings.

use tokenmill_ir::{StepOutput, TokenId};
use tokenmill_sched::{Outcome, SeqId};

use crate::answer::Sink;
use crate::request::{Event, RequestError, Usage};

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

/// Numbers for a prompt.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rows {
    /// For scores: of positions 1.. in order.
    pub scores: Vec<Scored>,
    /// For logits and embeddings: rows one after another.
    pub numbers: Vec<f32>,
    /// Numbers in one row.
    pub width: usize,
    /// Tokens given.
    pub prompt_tokens: u32,
}

/// How much a document has to do with a question, 0 to 1, by the score of a reranker; none is the least.
pub fn relevance(score: Option<f32>) -> f32 {
    1.0 / (1.0 + (-score.unwrap_or(f32::NEG_INFINITY)).exp())
}

/// The cosine of the angle between two embeddings; 0 where one has no length.
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |x: &[f32], y: &[f32]| -> f64 {
        x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    };
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { (dot(a, b) / lengths) as f32 } else { 0.0 }
}

/// A request for numbers while it runs.
pub(crate) struct Counting {
    pub seq: SeqId,
    sink: Sink,
    rows: Rows,
    cached_tokens: u32,
}

impl Counting {
    pub fn new(seq: SeqId, prompt_tokens: u32, sink: Sink) -> Self {
        let rows = Rows { prompt_tokens, ..Rows::default() };
        Self { seq, sink, rows, cached_tokens: 0 }
    }

    /// Tokens given.
    pub fn prompt(&self) -> usize {
        self.rows.prompt_tokens as usize
    }

    pub fn take(&mut self, outcome: Outcome, out: &StepOutput) {
        match outcome {
            Outcome::Started { cached, .. } => self.cached_tokens = cached,
            Outcome::Scored { output, .. } => {
                let Some(s) = out.sampled.get(output as usize) else { return };
                let slice = s.top.0 as usize..(s.top.0 + s.top.1) as usize;
                let top = out.top.get(slice).unwrap_or_default().to_vec();
                self.rows.scores.push(Scored { id: s.token, logprob: s.logprob, top });
            }
            Outcome::Row { start, len, .. } => {
                self.rows.width = len;
                let row = out.rows.get(start..start + len).unwrap_or_default();
                self.rows.numbers.extend_from_slice(row);
            }
            _ => {}
        }
    }

    pub fn finish(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        let (prompt_tokens, cached_tokens) = (rows.prompt_tokens, self.cached_tokens);
        // Whoever left hears nothing.
        if (self.sink)(Event::Rows(rows)) {
            let usage = Usage { prompt_tokens, cached_tokens, ..Usage::default() };
            (self.sink)(Event::Finished(usage));
        }
    }

    pub fn fail(&mut self, error: RequestError) {
        (self.sink)(Event::Failed(error));
    }
}

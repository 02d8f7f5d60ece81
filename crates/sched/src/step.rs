//! One step: who computes how many tokens, how long that should take, and what came of it.

use tokenmill_ir::{TokenId, key_reads};

use crate::miss::Miss;
use crate::sequence::SeqId;

/// Tokens granted to one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Sequence.
    pub seq: SeqId,
    /// Its tokens already in the cache.
    pub context: u32,
    /// Tokens granted.
    pub tokens: u32,
    /// Output rows among them; they are the last ones, or those that are listed.
    pub outputs: u32,
}

impl Grant {
    /// Σ over its tokens of the keys each attends to.
    pub(crate) fn key_reads(&self) -> u64 {
        key_reads(self.context.into(), self.tokens.into())
    }
}

/// What the next step computes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Step {
    /// In the order of the batch's spans.
    pub grants: Vec<Grant>,
    /// Sum of granted tokens.
    pub tokens: u32,
    /// Sum of output rows.
    pub outputs: u32,
    /// Σ over tokens of the keys each attends to.
    pub key_reads: u64,
    /// Whether streams go on in it: somebody waits for a next token.
    pub decoding: bool,
    /// Predicted duration, seconds.
    pub predicted_s: f64,
    /// What it may take at most while streams go on, seconds.
    pub bound_s: f64,
    /// Measured duration, seconds; the loop sets it before `commit` so that predictions improve.
    pub observed_s: Option<f64>,
}

impl Step {
    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.grants.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.grants.clear();
        (self.tokens, self.outputs, self.key_reads) = (0, 0, 0);
        self.decoding = false;
        (self.predicted_s, self.bound_s) = (0.0, 0.0);
        self.observed_s = None;
    }
}

/// A linear model of step time: `base + tokens·token + outputs·output + key_reads·key`. Observed
/// steps correct the coefficients, each in proportion to its part of the time: those without
/// prompts the base and what an output costs, those with prompts what a token costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepCost {
    /// Seconds of any step: the weights are read once.
    pub base_s: f64,
    /// Seconds more for a token.
    pub token_s: f64,
    /// Seconds more for an output row.
    pub output_s: f64,
    /// Seconds more for a key read by a token.
    pub key_s: f64,
}

impl StepCost {
    /// Coefficients known beforehand, such as from a program's cost and a device's rates.
    pub fn new(base_s: f64, token_s: f64, key_s: f64) -> Self {
        Self { base_s, token_s, output_s: 0.0, key_s }
    }

    /// Seconds of a step.
    pub fn predict(&self, tokens: u64, outputs: u64, key_reads: u64) -> f64 {
        self.base_s + self.beyond_base(tokens, outputs, key_reads)
    }

    /// Seconds of a step beyond its base.
    pub(crate) fn beyond_base(&self, tokens: u64, outputs: u64, key_reads: u64) -> f64 {
        let rows = self.token_s * tokens as f64 + self.output_s * outputs as f64;
        rows + self.key_s * key_reads as f64
    }

    /// Most tokens after `context` cached ones that take at most `seconds` beside the base, all of
    /// them with output rows or none.
    pub fn tokens_within(&self, seconds: f64, context: u32, rows: bool, most: u32) -> u32 {
        if seconds <= 0.0 {
            return 0;
        }
        // n·a + n²·b ≤ seconds, for the n tokens read context·n + n·(n + 1)/2 keys.
        let b = self.key_s * 0.5;
        let row_s = self.token_s + if rows { self.output_s } else { 0.0 };
        let a = row_s + self.key_s * f64::from(context) + b;
        let n = if b * seconds > 1e-12 * a * a {
            ((a * a + 4.0 * b * seconds).sqrt() - a) / (2.0 * b)
        } else if a > 0.0 {
            seconds / a
        } else {
            f64::from(most)
        };
        if n >= f64::from(most) { most } else { n as u32 }
    }

    /// Learns from an observed step.
    pub fn observe(&mut self, step: &Step) {
        let Some(seconds) = step.observed_s.filter(|s| s.is_finite() && *s > 0.0) else { return };
        let (tokens, outputs) = (f64::from(step.tokens), f64::from(step.outputs));
        let keys = step.key_reads as f64;
        let predicted = self.predict(step.tokens.into(), step.outputs.into(), step.key_reads);
        // A step with prompts teaches what their tokens cost, one without what streams alone do:
        // were both to move all terms, a long prompt would pass for slower streams.
        let (only_streams, prompts) = match step.tokens <= step.outputs {
            true => (1.0, 0.0),
            false => (0.0, 1.0),
        };
        let mut terms = [
            (&mut self.base_s, only_streams),
            (&mut self.token_s, tokens * prompts),
            (&mut self.output_s, outputs * only_streams),
            (&mut self.key_s, keys),
        ];
        let squares: f64 = terms.iter().map(|(c, n)| (**c * n).powi(2)).sum();
        if squares <= 0.0 {
            return;
        }
        for (coefficient, n) in &mut terms {
            // The step along the gradient that would remove a fifth of the error.
            let part = 0.2 * (seconds - predicted) * (**coefficient * *n) / squares;
            let new = **coefficient * (1.0 + part.clamp(-0.2, 0.25));
            **coefficient = new.clamp(1e-13, 1e3);
        }
    }
}

/// How often guesses are expected to be right.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Odds {
    /// The next one.
    pub first: f64,
    /// One after a right one.
    pub later: f64,
    /// Seconds to make one; 0 where they are free.
    pub guess_s: f64,
}

/// What happened to a sequence in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Sequence; already gone after `Finished` and `NotANumber`.
    pub seq: SeqId,
    /// The caller's key of the sequence.
    pub key: u64,
    /// What happened.
    pub outcome: Outcome,
}

/// See [`Progress`]. `output` indexes [`StepOutput::sampled`](tokenmill_ir::StepOutput).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome {
    /// Its first tokens were computed.
    Started {
        /// Prompt tokens found in the prefix cache.
        cached: u32,
        /// Why the rest was not found there.
        miss: Miss,
    },
    /// A token was generated (drafts that were right come out here too).
    Token {
        /// Index within the answer, from 0.
        index: u32,
        /// The token.
        token: TokenId,
        /// Its row; none (`u32::MAX`) where it had to come.
        output: u32,
    },
    /// The log-probability of the token at `position` given those before it.
    Scored {
        /// Position of the scored token, from 1.
        position: u32,
        /// Its row.
        output: u32,
    },
    /// Draft tokens were verified.
    Drafted {
        /// How many.
        tokens: u32,
        /// How many were right; they come out as `Token`.
        right: u32,
    },
    /// Logits or a hidden row.
    Row {
        /// Position of the token the row belongs to.
        position: u32,
        /// Where its numbers start in [`StepOutput::rows`](tokenmill_ir::StepOutput).
        start: usize,
        /// How many.
        len: usize,
    },
    /// Everything wanted is there; the sequence is gone.
    Finished,
    /// An output row was not a number; the sequence is gone.
    NotANumber {
        /// Index of the token within the answer, or its position where nothing is generated.
        index: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_within_is_the_inverse_of_predict() {
        for (token_s, key_s) in [(1e-4, 0.0), (1e-4, 1e-7), (0.0, 1e-6), (0.0, 0.0)] {
            let cost = StepCost { output_s: 5e-5, ..StepCost::new(1e-3, token_s, key_s) };
            for (context, rows) in [(0u32, false), (10, true), (5000, false), (5000, true)] {
                for budget in [1e-4, 3e-3, 0.5] {
                    let n = u64::from(cost.tokens_within(budget, context, rows, 100_000));
                    let seconds = |n: u64| {
                        let keys = n * u64::from(context) + n * (n + 1) / 2;
                        cost.predict(n, if rows { n } else { 0 }, keys)
                    };
                    assert!(seconds(n) <= 1e-3 + budget * (1.0 + 1e-9));
                    let more = seconds(n + 2) > 1e-3 + budget;
                    assert!(n == 100_000 || more, "{token_s} {key_s} {n}");
                }
            }
        }
    }

    #[test]
    fn coefficients_follow_observed_steps() {
        let truth = StepCost { output_s: 2e-4, ..StepCost::new(1.6e-3, 6e-4, 1e-7) };
        let mut cost = StepCost { output_s: 1e-4, ..StepCost::new(8e-3, 1e-4, 1e-8) };
        let steps = [(1, 1, 300), (512, 0, 131_000), (16, 16, 5000), (4, 4, 1200), (64, 1, 9000)];
        for i in 0..400 {
            let (tokens, outputs, key_reads) = steps[i % steps.len()];
            let observed = truth.predict(tokens.into(), outputs.into(), key_reads);
            let observed_s = Some(observed);
            cost.observe(&Step { tokens, outputs, key_reads, observed_s, ..Step::default() });
        }
        for (tokens, outputs, keys) in steps {
            let (tokens, outputs) = (u64::from(tokens), u64::from(outputs));
            let (a, b) =
                (cost.predict(tokens, outputs, keys), truth.predict(tokens, outputs, keys));
            assert!((a / b - 1.0).abs() < 0.1, "{tokens} tokens: {a} for {b}");
        }
    }

    #[test]
    fn nonsense_from_the_clock_is_survived() {
        let mut cost = StepCost::new(1e-3, 1e-4, 1e-7);
        for s in [f64::NAN, -1.0, 0.0, f64::INFINITY, 1e300, 1e-300] {
            for _ in 0..1000 {
                let step = Step { tokens: 9, outputs: 3, key_reads: 99, ..Step::default() };
                cost.observe(&Step { observed_s: Some(s), ..step });
            }
            let seconds = cost.predict(100, 1, 1000);
            assert!(seconds.is_finite() && seconds >= 0.0, "{s}: {cost:?}");
        }
    }
}

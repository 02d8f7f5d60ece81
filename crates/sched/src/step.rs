//! One step: who computes how many tokens, how long that should take, and what came of it.

use tokenmill_ir::TokenId;

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
    /// Output rows among them; they are the last ones.
    pub outputs: u32,
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
    /// Predicted duration, seconds.
    pub predicted_s: f64,
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
        self.predicted_s = 0.0;
        self.observed_s = None;
    }
}

/// A linear model of step time: `base + tokens·token + key_reads·key`, times a factor learned from
/// observed steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepCost {
    /// Seconds of any step: the weights are read once.
    pub base_s: f64,
    /// Seconds more for a token.
    pub token_s: f64,
    /// Seconds more for a key read by a token.
    pub key_s: f64,
    /// Observed over predicted, smoothed; 1 to begin with.
    pub factor: f64,
}

impl StepCost {
    /// Coefficients known beforehand, such as from a program's cost and a device's rates.
    pub fn new(base_s: f64, token_s: f64, key_s: f64) -> Self {
        Self { base_s, token_s, key_s, factor: 1.0 }
    }

    /// Seconds of a step.
    pub fn predict(&self, tokens: u64, key_reads: u64) -> f64 {
        let t = self.token_s * tokens as f64 + self.key_s * key_reads as f64;
        self.factor * (self.base_s + t)
    }

    /// Most tokens after `context` cached ones that take at most `seconds` beside the base.
    pub(crate) fn tokens_within(&self, seconds: f64, context: u32, most: u32) -> u32 {
        let seconds = seconds / self.factor;
        if seconds <= 0.0 {
            return 0;
        }
        // n·a + n²·b ≤ seconds, for the n tokens read context·n + n²/2 keys.
        let a = self.token_s + self.key_s * f64::from(context);
        let b = self.key_s * 0.5;
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
    pub(crate) fn observe(&mut self, step: &Step) {
        let Some(seconds) = step.observed_s.filter(|s| s.is_finite() && *s > 0.0) else { return };
        let plain = step.predicted_s / self.factor;
        if plain > 0.0 {
            let factor = 0.9 * self.factor + 0.1 * (seconds / plain);
            self.factor = factor.clamp(0.01, 1000.0);
        }
    }
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
    },
    /// A token was generated (drafts that were right come out here too).
    Token {
        /// Index within the answer, from 0.
        index: u32,
        /// The token.
        token: TokenId,
        /// Its row.
        output: u32,
    },
    /// The log-probability of the token at `position` given those before it.
    Scored {
        /// Position of the scored token, from 1.
        position: u32,
        /// Its row.
        output: u32,
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
            let cost = StepCost::new(1e-3, token_s, key_s);
            for context in [0u32, 10, 5000] {
                for budget in [1e-4, 3e-3, 0.5] {
                    let n = u64::from(cost.tokens_within(budget, context, 100_000));
                    let keys = |n: u64| n * u64::from(context) + n * n / 2;
                    assert!(cost.predict(n, keys(n)) <= 1e-3 + budget * (1.0 + 1e-9));
                    let more = cost.predict(n + 2, keys(n + 2));
                    assert!(n == 100_000 || more > 1e-3 + budget, "{token_s} {key_s} {n}");
                }
            }
        }
    }

    #[test]
    fn the_factor_follows_observed_steps() {
        let mut cost = StepCost::new(0.0, 1.0, 0.0);
        for _ in 0..100 {
            let step = Step {
                predicted_s: cost.predict(10, 0),
                observed_s: Some(30.0),
                ..Step::default()
            };
            cost.observe(&step);
        }
        assert!((cost.predict(10, 0) - 30.0).abs() < 0.01);
    }
}

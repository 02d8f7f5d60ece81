//! Drafts: tokens that may come next, guessed from the text so far and from what the client
//! predicted. A wrong guess costs time and never changes an answer: the scheduler keeps a drafted
//! token only where the model chose the same one.
//!
//! A guess is the continuation of an earlier place where the text ended as it ends now. Guesses are
//! compared with what came also when they were not computed, so that how often they are right is
//! known before any time is spent on them; see [`Scheduler::draft_that_pays`].
//!
//! [`Scheduler::draft_that_pays`]: tokenmill_sched::Scheduler::draft_that_pays

use std::collections::HashMap;

use tokenmill_ir::{SamplingParams, TokenId};
use tokenmill_sched::Odds;

/// Tokens that must repeat before their continuation is a guess.
const GRAM: usize = 3;
/// Longest repetition that is told apart from a longer one.
const LONGEST: usize = 64;
/// What a guess counts for after each later one.
const MEMORY: f64 = 0.95;

/// Where guesses come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DraftMode {
    /// No guesses.
    None,
    /// The latest place where the last three tokens stood before.
    Ngram,
    /// The place with the longest text in common before it, among the latest sixteen.
    #[default]
    Suffix,
    /// A small model; see [`draft_model`](crate::draft_model).
    Model,
}

impl DraftMode {
    /// Its name in options and requests.
    pub const NAMES: [(&'static str, DraftMode); 4] = [
        ("none", Self::None),
        ("ngram", Self::Ngram),
        ("suffix", Self::Suffix),
        ("model", Self::Model),
    ];

    fn places(self) -> usize {
        match self {
            Self::None | Self::Model => 0,
            Self::Ngram => 1,
            Self::Suffix => 16,
        }
    }
}

/// How often something was right, recent times counting more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    right: f64,
    all: f64,
}

impl Rate {
    pub fn new(expected: f64) -> Self {
        Self { right: expected, all: 1.0 }
    }

    fn saw(&mut self, right: bool) {
        self.right = MEMORY * self.right + f64::from(u8::from(right));
        self.all = MEMORY * self.all + 1.0;
    }

    /// Of so many guesses in a row that many were right, then one was wrong or there were no more.
    pub fn saw_run(&mut self, guesses: u32, right: u32) {
        (0..right).for_each(|_| self.saw(true));
        if right < guesses {
            self.saw(false);
        }
    }

    pub fn value(&self) -> f64 {
        self.right / self.all
    }

    /// The same for every guess, and what one takes.
    pub fn odds(&self, guess_s: f64) -> Odds {
        Odds { first: self.value(), later: self.value(), guess_s }
    }
}

/// A sequence whose next tokens a draft model may guess.
#[derive(Debug)]
pub(crate) struct ByModel {
    /// How the sequence samples: guesses drawn with the same random numbers agree more often.
    pub sampling: SamplingParams,
    /// How often guesses were right; none before the first could be made.
    pub rate: Option<Rate>,
}

impl ByModel {
    /// None but for [`DraftMode::Model`].
    pub fn new(mode: DraftMode, choice: u32, sampling: &SamplingParams) -> Option<Self> {
        // What the choice of a token remembers is not shown to the draft model.
        let plain = SamplingParams::default();
        let sampling = SamplingParams {
            choice,
            repetition_penalty: plain.repetition_penalty,
            presence_penalty: plain.presence_penalty,
            frequency_penalty: plain.frequency_penalty,
            logprobs: None,
            ..*sampling
        };
        (mode == DraftMode::Model).then_some(Self { sampling, rate: None })
    }
}

/// Guesses for one sequence.
#[derive(Debug)]
pub(crate) struct Drafter {
    mode: DraftMode,
    /// What the client predicted, then the sequence's tokens.
    text: Vec<TokenId>,
    /// How many of `text` are the prediction.
    predicted: usize,
    /// Place after the latest occurrence of each run of `GRAM` tokens.
    latest: HashMap<[TokenId; GRAM], u32>,
    /// For each place, the one before it with the same run; 0 for none.
    earlier: Vec<u32>,
    /// Place in `text` whose token is the guess for the next one.
    at: Option<usize>,
    /// Whether the guess before was right.
    going: bool,
    /// How often a guess is right at a new place.
    first: Rate,
    /// How often it is right after one that was.
    later: Rate,
}

impl Drafter {
    /// None where the text is not what guesses come from.
    pub fn new(mode: DraftMode, prediction: &[TokenId]) -> Option<Self> {
        if matches!(mode, DraftMode::None | DraftMode::Model) {
            return None;
        }
        let mut drafter = Self {
            mode,
            text: Vec::new(),
            predicted: prediction.len(),
            latest: HashMap::new(),
            earlier: Vec::new(),
            at: (!prediction.is_empty()).then_some(0),
            going: false,
            first: Rate::new(if prediction.is_empty() { 0.0 } else { 0.8 }),
            later: Rate::new(if prediction.is_empty() { 0.3 } else { 0.8 }),
        };
        prediction.iter().for_each(|&t| drafter.append(t));
        Some(drafter)
    }

    /// Reads on: `tokens` are the sequence's from the start, the first `prompt` of them given.
    pub fn follow(&mut self, tokens: &[TokenId], prompt: usize) {
        let known = self.text.len() - self.predicted;
        for (i, &token) in tokens.iter().enumerate().skip(known) {
            if i >= prompt {
                self.compare(token);
            }
            self.append(token);
            if i + 1 >= prompt && self.at.is_none() {
                self.at = self.find();
            }
        }
    }

    /// How often the next guess, and those after it, may be right; `None` without a guess.
    pub fn odds(&self) -> Option<Odds> {
        let later = self.later.value();
        let first = if self.going { later } else { self.first.value() };
        self.at.map(|_| Odds { first, later, guess_s: 0.0 })
    }

    /// The next `n` guesses.
    pub fn guess(&self, n: u32, out: &mut Vec<TokenId>) {
        out.clear();
        let Some(at) = self.at else { return };
        for place in at..at + n as usize {
            // Beyond the end of the text the guesses themselves repeat.
            let token = self.text.get(place).or_else(|| out.get(place - self.text.len()));
            match token.copied() {
                Some(token) if place != self.predicted || at >= self.predicted => out.push(token),
                _ => return,
            }
        }
    }

    /// What came, beside what was guessed.
    fn compare(&mut self, token: TokenId) {
        let Some(at) = self.at.take() else { return };
        let right = self.text.get(at) == Some(&token);
        let rate = if self.going { &mut self.later } else { &mut self.first };
        rate.saw(right);
        self.going = right;
        let ends = at + 1 == self.predicted;
        self.at = (right && !ends).then_some(at + 1);
    }

    fn append(&mut self, token: TokenId) {
        self.text.push(token);
        let place = self.text.len();
        let gram = self.text[place.saturating_sub(GRAM)..].try_into();
        let before = gram.ok().and_then(|gram| self.latest.insert(gram, place as u32));
        self.earlier.push(before.unwrap_or(0));
    }

    /// The best earlier place where the text ended as it ends now.
    fn find(&self) -> Option<usize> {
        let end = self.text.len();
        let mut best = None;
        let mut place = *self.earlier.last()? as usize;
        for _ in 0..self.mode.places() {
            if place == 0 {
                break;
            }
            let pairs = self.text[..place].iter().rev().zip(self.text[..end].iter().rev());
            let common = pairs.take(LONGEST).take_while(|(a, b)| a == b).count();
            if best.is_none_or(|(most, _)| common > most) {
                best = Some((common, place));
            }
            place = self.earlier[place - 1] as usize;
        }
        best.map(|(_, place)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(mode: DraftMode, prediction: &[TokenId], tokens: &[TokenId]) -> Vec<TokenId> {
        let mut drafter = Drafter::new(mode, prediction).unwrap();
        drafter.follow(tokens, tokens.len());
        let mut out = Vec::new();
        drafter.guess(4, &mut out);
        out
    }

    #[test]
    fn guesses_continue_an_earlier_place() {
        use DraftMode::{Ngram, Suffix};
        type Case<'a> = (DraftMode, &'a [u32], &'a [u32], &'a [u32]);
        let cases: [Case<'_>; 8] = [
            (Ngram, &[], &[1, 2, 3, 4, 5, 6, 7, 1, 2, 3], &[4, 5, 6, 7]),
            (Ngram, &[], &[1, 2, 9, 4, 1, 2, 3], &[]),
            // The latest place, or the one with more in common.
            (Ngram, &[], &[8, 1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2, 3], &[5, 8, 1, 2]),
            (Suffix, &[], &[8, 1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2, 3], &[4, 9, 1, 2]),
            // A loop goes on.
            (Suffix, &[], &[1, 2, 1, 2, 1, 2], &[1, 2, 1, 2]),
            // A prediction is expected from its start, and ends where it ends.
            (Suffix, &[5, 6], &[1, 2, 3], &[5, 6]),
            (Suffix, &[5, 6, 7, 8, 9], &[1, 2, 3], &[5, 6, 7, 8]),
            (Suffix, &[], &[7], &[]),
        ];
        for (mode, prediction, tokens, expect) in cases {
            assert_eq!(
                after(mode, prediction, tokens),
                expect,
                "{mode:?} {prediction:?} {tokens:?}"
            );
        }
        assert!(Drafter::new(DraftMode::None, &[1]).is_none());
    }

    #[test]
    fn a_prediction_is_found_again_after_a_difference() {
        let mut drafter = Drafter::new(DraftMode::Suffix, &[1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
        let mut out = Vec::new();
        drafter.follow(&[50, 1, 2], 1);
        drafter.guess(2, &mut out);
        assert_eq!(out, [3, 4]);
        drafter.follow(&[50, 1, 2, 99], 1);
        assert!(drafter.odds().is_none(), "lost");
        drafter.follow(&[50, 1, 2, 99, 4, 5, 6], 1);
        drafter.guess(9, &mut out);
        assert_eq!(out, [7, 8, 9]);
    }

    #[test]
    fn odds_follow_what_came_without_any_draft() {
        let period: Vec<TokenId> = (0..40).collect();
        let looping: Vec<TokenId> = period.iter().cycle().take(200).copied().collect();
        let mut drafter = Drafter::new(DraftMode::Suffix, &[]).unwrap();
        drafter.follow(&looping, 40);
        assert!(drafter.odds().unwrap().first > 0.9, "{:?}", drafter.odds());
        // Three tokens repeat, and never what follows.
        let mut drafter = Drafter::new(DraftMode::Suffix, &[]).unwrap();
        let never: Vec<TokenId> = (0..100).flat_map(|i| [1, 2, 3, 100 + i]).collect();
        drafter.follow(&never[..399], 4);
        assert!(drafter.odds().unwrap().first < 0.1, "{:?}", drafter.odds());
    }
}

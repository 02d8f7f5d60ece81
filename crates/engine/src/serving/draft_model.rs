//! A draft model: a small model on the same device guesses the next tokens of a large one, which
//! verifies them in one step. A guess is a guess: what it costs is time, never another answer.
//!
//! Its cache is a fixed part of memory for each of a few sequences. What a sequence's text has in
//! common with what its part holds is kept, the rest is computed again; there is nothing to roll
//! back, so a guess that was wrong needs no word about it.

use std::ops::ControlFlow;
use std::path::Path;

use thiserror::Error;
use tokenmill_backend::{DeviceError, Executable};
use tokenmill_ir::{GroupKind, Limits, OutputKind, Program, SamplingParams, TokenId, key_reads};
use tokenmill_sched::{SeqId, Step, StepCost};
use tokenmill_text::Tokenizer;

use crate::direct::{Direct, Feed};
use crate::door::{self, Bug};
use crate::draft::Rate;
use crate::ledger::Memory;
use crate::load::{LoadFailure, LoadOptions, LoadedModel, Lowered, WeightBits, read};
use crate::plan::fit;
use crate::start::step_cost;
use crate::vocabulary::{VocabularyError, vocabulary};

/// Sequences it guesses for at once: where more run, a step has better uses for its time.
const SEQUENCES: u32 = 4;
/// Tokens of a step: a prompt is read in parts, between the steps of the large model.
const STEP_TOKENS: u32 = 256;
/// How often guesses are expected to be right before any was.
const EXPECTED: f64 = 0.8;
/// One sequence in so many is guessed for although the last ones' guesses did not pay.
const AGAIN: u32 = 16;

/// Why a model cannot guess for another.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DraftError {
    /// It cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadFailure),
    /// Its cache cannot forget single tokens, or it generates nothing.
    #[error("a draft model needs a cache of keys and values alone; this one has {what}")]
    Kind {
        /// What it has.
        what: &'static str,
    },
    /// Its tokens mean something else.
    #[error(
        "its vocabulary is another one: {differing} of {tokens} tokens differ, the first is {first}"
    )]
    Vocabulary {
        /// Tokens of the larger of both.
        tokens: usize,
        /// Tokens that are not the same bytes in both.
        differing: usize,
        /// The first of those.
        first: TokenId,
    },
}

impl From<DeviceError> for DraftError {
    fn from(error: DeviceError) -> Self {
        Self::Load(error.into())
    }
}

impl From<Bug> for DraftError {
    fn from(bug: Bug) -> Self {
        Self::Load(bug.into())
    }
}

impl From<VocabularyError> for DraftError {
    fn from(error: VocabularyError) -> Self {
        Self::Load(error.into())
    }
}

/// A sequence's part of the cache.
#[derive(Debug, Clone, Default)]
struct Part {
    owner: Option<SeqId>,
    /// The text whose keys and values it holds.
    tokens: Vec<TokenId>,
    /// When it was used last, in rounds of guessing.
    used: u64,
}

/// A sequence whose next tokens are wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish<'a> {
    pub seq: SeqId,
    /// Its text.
    pub tokens: &'a [TokenId],
    /// How it samples, with the index of its next token.
    pub sampling: SamplingParams,
    /// Guesses wanted.
    pub count: u32,
}

/// What is guessed for a sequence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Guesses {
    pub seq: SeqId,
    pub tokens: Vec<TokenId>,
}

/// See the module.
pub struct DraftModel {
    direct: Direct,
    parts: Vec<Part>,
    block_tokens: u32,
    context: u32,
    cost: StepCost,
    /// Whether its time counts where it is decided if guesses pay.
    priced: bool,
    rounds: u64,
    /// How often guesses were right, all sequences together.
    rate: Rate,
    /// Sequences that were not guessed for since the last that was.
    passed: u32,
}

impl DraftModel {
    /// A compiled model, its cache split among `sequences`; `context`: tokens each part holds.
    ///
    /// # Errors
    /// [`DraftError::Kind`].
    pub fn new(
        executable: Box<dyn Executable>,
        program: &Program,
        limits: &Limits,
        (block_tokens, sequences): (u32, u32),
        cost: StepCost,
    ) -> Result<Self, DraftError> {
        check_kind(program)?;
        let context = limits.context;
        Ok(Self {
            direct: Direct::new(executable, program, limits, block_tokens, sequences),
            parts: vec![Part::default(); sequences.max(1) as usize],
            block_tokens,
            context,
            cost,
            priced: true,
            rounds: 0,
            rate: Rate::new(EXPECTED),
            passed: 0,
        })
    }

    /// Takes its guesses as free: they are made wherever verifying them pays. For tests.
    #[must_use]
    pub fn unpriced(mut self) -> Self {
        self.priced = false;
        self
    }

    /// Sequences it can guess for in one turn.
    pub(crate) fn sequences(&self) -> usize {
        self.parts.len()
    }

    /// What one more guess for a text of that length costs, seconds.
    pub(crate) fn price_s(&self, len: usize) -> f64 {
        if self.priced { self.guess_s(len) } else { 0.0 }
    }

    fn guess_s(&self, len: usize) -> f64 {
        self.cost.predict(1, 1, len as u64)
    }

    /// What [`guess`](Self::guess) may take at most when told to take `seconds`, by prediction.
    pub(crate) fn bound_s(&self, seconds: f64) -> f64 {
        let (n, block) = (self.parts.len() as u64, u64::from(self.block_tokens));
        seconds + self.cost.predict(n * block, n, n * block * u64::from(self.context))
    }

    /// How often guesses for a new sequence may be right.
    pub(crate) fn expected(&mut self) -> Rate {
        let again = self.passed >= AGAIN;
        Rate::new(if again { EXPECTED } else { self.rate.value() })
    }

    /// A new sequence was guessed for, or not.
    pub(crate) fn began(&mut self, guessed: bool) {
        self.passed = if guessed { 0 } else { self.passed.saturating_add(1) };
    }

    /// Guesses were verified.
    pub(crate) fn verified(&mut self, tokens: u32, right: u32) {
        self.rate.saw_run(tokens, right);
    }

    /// Guesses for some sequences, within about `seconds` by `now`: fewer, or none yet, where its
    /// own cache lacks more of a text than can be computed in that time.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn guess(
        &mut self,
        wishes: &[Wish<'_>],
        seconds: f64,
        now: &dyn Fn() -> f64,
    ) -> Result<Vec<Guesses>, DeviceError> {
        self.rounds += 1;
        let start = now();
        let fits = |w: &&Wish<'_>| w.count > 0 && w.tokens.len() as u32 + w.count <= self.context;
        let wishes: Vec<&Wish<'_>> = wishes.iter().filter(fits).take(self.parts.len()).collect();
        let places: Vec<usize> = wishes.iter().map(|w| self.place(w)).collect();
        let mut guesses: Vec<Guesses> =
            wishes.iter().map(|w| Guesses { seq: w.seq, tokens: Vec::new() }).collect();
        let mut tokens: Vec<Vec<TokenId>> = vec![Vec::new(); wishes.len()];
        let most = wishes.iter().map(|w| w.count).max().unwrap_or(0);
        for round in 0..most {
            let left = seconds - (now() - start);
            let next_s = wishes.iter().map(|w| self.guess_s(w.tokens.len())).sum::<f64>();
            if round > 0 && next_s > left {
                break;
            }
            for (i, wish) in wishes.iter().enumerate() {
                tokens[i] = match round {
                    0 => self.lacking(wish, places[i], left / wishes.len() as f64),
                    _ if guesses[i].tokens.len() as u32 == round && round < wish.count => {
                        guesses[i].tokens[round as usize - 1..].to_vec()
                    }
                    _ => Vec::new(),
                };
            }
            if tokens.iter().all(Vec::is_empty) {
                break;
            }
            self.round(&wishes, &places, &tokens, &mut guesses, now)?;
        }
        Ok(guesses)
    }

    /// The part of a sequence: its own, or the one that was not used for longest.
    fn place(&mut self, wish: &Wish<'_>) -> usize {
        let own = self.parts.iter().position(|p| p.owner == Some(wish.seq));
        let oldest = || (0..self.parts.len()).min_by_key(|&i| self.parts[i].used);
        let at = own.or_else(oldest).unwrap_or(0);
        let part = &mut self.parts[at];
        (part.owner, part.used) = (Some(wish.seq), self.rounds);
        let same = part.tokens.iter().zip(wish.tokens).take_while(|(a, b)| a == b).count();
        // The last token is computed in any case: its row is what is wanted.
        let kept = self.direct.rewind(at, same.min(wish.tokens.len() - 1) as u32);
        part.tokens.truncate(kept as usize);
        at
    }

    /// What a sequence's part lacks of its text, as far as there is time: a block at least.
    fn lacking(&self, wish: &Wish<'_>, at: usize, seconds: f64) -> Vec<TokenId> {
        let known = self.parts[at].tokens.len();
        let most = (STEP_TOKENS / self.parts.len() as u32).max(self.block_tokens);
        let timed = self.cost.tokens_within(seconds, known as u32, false, most);
        let rest = &wish.tokens[known..];
        rest[..rest.len().min(timed.max(self.block_tokens) as usize)].to_vec()
    }

    /// One step of the model: the next tokens of each sequence, and a guess for each whose text is
    /// complete with them.
    fn round(
        &mut self,
        wishes: &[&Wish<'_>],
        places: &[usize],
        tokens: &[Vec<TokenId>],
        guesses: &mut [Guesses],
        now: &dyn Fn() -> f64,
    ) -> Result<(), DeviceError> {
        let mut step = Step::default();
        let mut outputs: Vec<Vec<(u32, OutputKind)>> = Vec::with_capacity(wishes.len());
        for (i, wish) in wishes.iter().enumerate() {
            let (known, n) = (self.parts[places[i]].tokens.len(), tokens[i].len());
            let complete = n > 0 && known + n == wish.tokens.len() + guesses[i].tokens.len();
            let index = wish.sampling.index + guesses[i].tokens.len() as u32;
            let kind = OutputKind::sample(SamplingParams { index, ..wish.sampling });
            outputs.push(if complete { vec![(n as u32 - 1, kind)] } else { Vec::new() });
            step.tokens += n as u32;
            step.outputs += u32::from(complete);
            step.key_reads += key_reads(known as u64, n as u64);
        }
        let fed: Vec<usize> = (0..wishes.len()).filter(|&i| !tokens[i].is_empty()).collect();
        let feed =
            |&i: &usize| Feed { sequence: places[i], tokens: &tokens[i], outputs: &outputs[i] };
        let feeds: Vec<Feed<'_>> = fed.iter().map(feed).collect();
        let start = now();
        let out = self.direct.step(&feeds)?;
        let mut sampled = out.sampled.iter();
        for &i in fed.iter().filter(|&&i| !outputs[i].is_empty()) {
            guesses[i].tokens.extend(sampled.next().filter(|s| s.valid).map(|s| s.token));
        }
        step.observed_s = Some(now() - start);
        self.cost.observe(&step);
        for &i in &fed {
            self.parts[places[i]].tokens.extend(&tokens[i]);
        }
        Ok(())
    }
}

fn check_kind(program: &Program) -> Result<(), DraftError> {
    let what = match &program.groups()[..] {
        _ if program.vocab == 0 => "no logits",
        [] => "no cache",
        groups if groups.contains(&GroupKind::State) => "recurrent states",
        _ => return Ok(()),
    };
    Err(DraftError::Kind { what })
}

/// Checks that two models mean the same by a token.
fn check_vocabulary(
    (large, columns): (Option<&Tokenizer>, u32),
    (small, small_columns): (Option<&Tokenizer>, u32),
) -> Result<(), DraftError> {
    let tokens =
        |t: Option<&Tokenizer>, columns: u32| t.map_or(columns as usize, Tokenizer::vocab_size);
    let (a, b) = (tokens(large, columns), tokens(small, small_columns));
    let bytes =
        |t: Option<&Tokenizer>, id: u32| t.and_then(|t| t.token_bytes(id)).map(<[u8]>::to_vec);
    let both = a.min(b) as u32;
    let differs = |&id: &u32| bytes(large, id) != bytes(small, id);
    let differing = (0..both).filter(differs).count() + a.abs_diff(b);
    let first = (0..both).find(differs).unwrap_or(both);
    match differing {
        0 => Ok(()),
        _ => Err(DraftError::Vocabulary { tokens: a.max(b), differing, first }),
    }
}

impl LoadedModel {
    /// Loads a model beside this one, on the same device and in the memory that is left, to guess
    /// for it.
    ///
    /// # Errors
    /// [`DraftError`].
    pub fn load_draft(&mut self, path: &Path, options: &LoadOptions) -> Result<(), DraftError> {
        door::through(path, || self.load_draft_inside(path, options))
    }

    fn load_draft_inside(&mut self, path: &Path, options: &LoadOptions) -> Result<(), DraftError> {
        let Lowered { files, spec, program, .. } = read(path, options.kv)?;
        check_kind(&program)?;
        let small = vocabulary(&files)?;
        let tokenizer = self.vocabulary.as_ref().map(|v| &*v.tokenizer);
        let other = small.as_ref().map(|v| &*v.tokenizer);
        check_vocabulary((tokenizer, self.program.vocab), (other, program.vocab))?;
        let context = self.limits.context.min(spec.context);
        let sequences = SEQUENCES.min(self.limits.sequences);
        let mut options = LoadOptions {
            context: Some(context),
            sequences,
            step_tokens: STEP_TOKENS,
            memory_bytes: options.memory_bytes.saturating_sub(self.fit.needed_bytes()),
            weights: WeightBits::Own,
            ..options.clone()
        };
        let mut choose = |free_bytes: u64| {
            options.memory_bytes = options.memory_bytes.min(free_bytes);
            let (limits, fit) = fit(&spec, &program, self.device.as_ref(), &options)?;
            // (It reads with the tokenizer of the other.)
            let memory = Memory { vocabulary_bytes: 0, ..fit.memory() };
            Ok::<_, LoadFailure>((memory, limits))
        };
        let limits = match &self.claim {
            Some(claim) => claim.take(choose)?,
            None => choose(u64::MAX)?.1,
        };
        let watch = &mut |_| ControlFlow::Continue(());
        let weights = self.device.upload(&program, &files, options.mode, watch)?;
        let executable = self.device.compile(&program, &weights, &limits)?;
        let caps = self.device.caps();
        let cost = step_cost(&program, caps);
        // Memory may hold fewer sequences than were asked for.
        let full = program.groups().iter().position(|g| *g == GroupKind::Full);
        let one = context.div_ceil(caps.block_tokens) + 1;
        let fits = full.map_or(sequences, |g| limits.group_blocks[g] / one);
        let shape = (caps.block_tokens, fits.clamp(1, sequences));
        self.draft = Some(DraftModel::new(executable, &program, &limits, shape, cost)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenmill_device_tests::sim::{SimControl, SimDevice, SimText, program};
    use tokenmill_sched::{Config, NewSequence, Numbers, Scheduler, Want};
    use tokenmill_text::GgufVocab;

    const GROUPS: [GroupKind; 2] = [GroupKind::Window { tokens: 9 }, GroupKind::Full];
    const VOCAB: u32 = 30;

    fn model(sequences: u32) -> DraftModel {
        let limits = Limits {
            step_tokens: STEP_TOKENS,
            sequences,
            outputs: sequences,
            context: 512,
            // What a window and a step need; whole texts.
            group_blocks: vec![69 * sequences, 129 * sequences],
            top_logprobs: 0,
        };
        let program = program(&GROUPS, VOCAB, 1);
        let device = SimDevice::new(4, SimControl::default());
        let device = device.executable(&program, &limits).unwrap();
        let cost = StepCost::new(1e-3, 1e-4, 0.0);
        DraftModel::new(device, &program, &limits, (4, sequences), cost).unwrap()
    }

    fn greedy(text: &[TokenId], count: usize) -> Vec<TokenId> {
        SimText::greedy(&GROUPS, text, count, VOCAB)
    }

    /// Names of sequences.
    fn ids(count: u32) -> Vec<SeqId> {
        let limits = Limits {
            step_tokens: 8,
            sequences: 8,
            outputs: 8,
            context: 8,
            group_blocks: Vec::new(),
            top_logprobs: 0,
        };
        let mut sched = Scheduler::new(Config {
            groups: Vec::new(),
            block_tokens: 4,
            limits,
            whole_sequences: false,
            vocab: VOCAB,
            hidden: 1,
            cost: StepCost::new(1.0, 0.0, 0.0),
            step_s: 1.0,
            checkpoint_slots: 0,
            longest_block: 0,
        });
        let new = NewSequence::new(vec![1], 1, Want::Numbers(Numbers::Hidden));
        (0..count).map(|_| sched.submit(new.clone()).unwrap()).collect()
    }

    fn guess(model: &mut DraftModel, wishes: &[(SeqId, &[TokenId])], s: f64) -> Vec<Vec<TokenId>> {
        let sampling = SamplingParams::default();
        let wish = |&(seq, tokens): &(SeqId, _)| Wish { seq, tokens, sampling, count: 5 };
        let wishes: Vec<Wish<'_>> = wishes.iter().map(wish).collect();
        let guesses = model.guess(&wishes, s, &|| 0.0).unwrap();
        guesses.into_iter().map(|g| g.tokens).collect()
    }

    #[test]
    fn guesses_are_what_the_model_would_say() {
        let (mut model, ids) = (model(2), ids(3));
        let texts: Vec<Vec<TokenId>> =
            (0..3).map(|s| (0..20).map(|i| (i * 7 + s * 11) % VOCAB).collect()).collect();
        let right = |texts: &[Vec<TokenId>], which: &[usize]| -> Vec<Vec<TokenId>> {
            which.iter().map(|&i| greedy(&texts[i], 5)).collect()
        };
        let wish = |texts: &[Vec<TokenId>], which: &[usize]| -> Vec<(SeqId, Vec<TokenId>)> {
            which.iter().map(|&i| (ids[i], texts[i].clone())).collect()
        };
        let mut texts = texts;
        for (which, came) in [(&[0, 1][..], 2), (&[1, 0], 5), (&[2], 0), (&[0, 2], 1), (&[1], 3)] {
            let wishes = wish(&texts, which);
            let wishes: Vec<_> = wishes.iter().map(|(id, t)| (*id, &t[..])).collect();
            assert_eq!(guess(&mut model, &wishes, 1e9), right(&texts, which), "{which:?}");
            // Some guesses were right, then came another token.
            for &i in which {
                let more = greedy(&texts[i], came);
                texts[i].extend(more);
                texts[i].push(3);
            }
        }
    }

    #[test]
    fn a_long_text_is_read_in_parts() {
        let (mut model, ids) = (model(1), ids(1));
        let text: Vec<TokenId> = (0..100).map(|i| i * 7 % VOCAB).collect();
        let mut turns = 0;
        while guess(&mut model, &[(ids[0], &text)], 1e-3)[0].is_empty() {
            turns += 1;
        }
        assert_eq!(turns, 9, "ten tokens of a tenth of the time each");
        assert_eq!(guess(&mut model, &[(ids[0], &text)], 1e9), [greedy(&text, 5)]);
        let long = vec![1; 508];
        assert!(guess(&mut model, &[(ids[0], &long)], 1e9).is_empty(), "beyond its context");
    }

    #[test]
    fn what_a_window_has_forgotten_is_computed_again() {
        let (mut model, ids) = (model(1), ids(2));
        let text: Vec<TokenId> = (0..490).map(|i| i * i % VOCAB).collect();
        while guess(&mut model, &[(ids[0], &text)], 1e9)[0].is_empty() {}
        assert_eq!(model.parts[0].tokens.len(), 494);
        for keeps in [485, 300, 30] {
            let mut other = text[..keeps].to_vec();
            other.push(9);
            while guess(&mut model, &[(ids[1], &other)], 1e9)[0].is_empty() {}
            assert_eq!(guess(&mut model, &[(ids[1], &other)], 1e9), [greedy(&other, 5)], "{keeps}");
        }
    }

    #[test]
    fn states_and_other_vocabularies_are_refused() {
        let kinds = [
            (program(&[GroupKind::Full, GroupKind::State], 5, 1), Some("recurrent states")),
            (program(&[], 5, 1), Some("no cache")),
            (program(&[GroupKind::Full], 0, 1), Some("no logits")),
            (program(&GROUPS, 5, 1), None),
        ];
        for (program, expect) in kinds {
            let found = check_kind(&program).err().map(|e| match e {
                DraftError::Kind { what } => what,
                other => panic!("{other}"),
            });
            assert_eq!(found, expect);
        }
        let letters = |letters: &str| {
            let mut tokens: Vec<String> = letters.chars().map(String::from).collect();
            tokens.push("ab".to_string());
            let vocab = GgufVocab {
                model: "gpt2".to_string(),
                pre: Some("gpt-2".to_string()),
                tokens,
                merges: vec!["a b".to_string()],
                ..GgufVocab::default()
            };
            Tokenizer::from_gguf(vocab).unwrap()
        };
        let (a, b, c) = (letters("abcd"), letters("abdc"), letters("abcde"));
        let cases = [
            ((Some(&a), 5), (Some(&a), 8), None),
            ((None, 5), (None, 5), None),
            ((None, 5), (None, 6), Some((6, 1, 5))),
            ((Some(&a), 5), (Some(&b), 5), Some((5, 2, 2))),
            ((Some(&a), 5), (Some(&c), 6), Some((6, 2, 4))),
            ((Some(&a), 5), (None, 5), Some((5, 5, 0))),
        ];
        for (large, small, expect) in cases {
            let found = check_vocabulary(large, small).err().map(|e| match e {
                DraftError::Vocabulary { tokens, differing, first } => (tokens, differing, first),
                other => panic!("{other}"),
            });
            assert_eq!(found, expect);
        }
    }
}

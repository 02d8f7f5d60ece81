//! Drafts by a model: whom it guesses for, and what becomes of that.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenmill_ir::{SamplingParams, TokenId};
use tokenmill_sched::SeqId;

use super::masks::AHEAD_WORK;
use super::{Core, MAX_DRAFT, Open, Work, panic_text};
use crate::draft_model::{DraftModel, Guesses, Wish};

/// A sequence that is worth guesses.
struct Worth {
    id: u64,
    choice: u32,
    seq: SeqId,
    prompt: usize,
    sampling: SamplingParams,
    count: u32,
}

impl Core {
    /// The engine with a draft model.
    #[must_use]
    pub fn with_draft_model(mut self, model: DraftModel) -> Self {
        self.draft_model = Some(model);
        self
    }

    /// Offers the scheduler what the draft model guesses, as far as it pays. Its time is added to
    /// what the next step may take.
    pub(super) fn draft_by_model(&mut self) {
        let worth = self.worth_guesses();
        let Some(model) = self.draft_model.as_mut().filter(|_| !worth.is_empty()) else { return };
        let sched = &self.sched;
        let wish = |w: &Worth| {
            let tokens = sched.tokens(w.seq)?;
            let index = tokens.len().saturating_sub(w.prompt) as u32;
            let sampling = SamplingParams { index, ..w.sampling };
            Some(Wish { seq: w.seq, tokens, sampling, count: w.count })
        };
        let wishes: Vec<Wish<'_>> = worth.iter().filter_map(wish).collect();
        let seconds = self.part_s * 0.5;
        self.guessing_bound_s = model.bound_s(seconds);
        let guess = || model.guess(&wishes, seconds, &*self.clock).map_err(|e| e.to_string());
        let guessed = catch_unwind(AssertUnwindSafe(guess));
        match guessed.unwrap_or_else(|panic| Err(panic_text(&*panic))) {
            Ok(guesses) => {
                let choices: Vec<_> = worth.iter().map(|w| (w.seq, w.id, w.choice)).collect();
                self.offer_guesses(&guesses, &choices);
            }
            Err(error) => {
                tracing::error!(error, "the draft model failed; from now on there is none");
                self.draft_model = None;
            }
        }
    }

    /// Offers what was guessed, as far as it may come.
    fn offer_guesses(&mut self, guesses: &[Guesses], choices: &[(SeqId, u64, u32)]) {
        let mut work = AHEAD_WORK;
        for Guesses { seq, tokens } in guesses {
            let mut may = tokens.len();
            let choice = choices.iter().find(|c| c.0 == *seq).map(|c| (c.1, c.2));
            if let Some((id, choice)) = choice
                && let Some(Open { work: Work::Answer(answer), .. }) = self.requests.get_mut(&id)
                && let Some(guide) = answer.guide(choice)
            {
                may = guide.allowed(tokens, &mut work);
                if may < tokens.len() && work > 0 {
                    answer.guessed_in_vain(choice);
                }
            }
            self.sched.offer_draft(*seq, &tokens[..may]);
        }
        self.mask_turns.count(AHEAD_WORK - work);
    }

    /// Sequences for which guesses pay, those asked first before others.
    fn worth_guesses(&mut self) -> Vec<Worth> {
        let Some(model) = &mut self.draft_model else { return Vec::new() };
        let mut ids: Vec<u64> = self.requests.keys().copied().collect();
        ids.sort_unstable();
        let mut worth = Vec::new();
        for id in ids {
            let Some(open) = self.requests.get_mut(&id).filter(|open| open.started) else {
                continue;
            };
            let Work::Answer(answer) = &mut open.work else { continue };
            let prompt = answer.prompt();
            for (choice, seq, by_model) in answer.guessed_by_model() {
                // Before its first own token nothing can be said, and it reads text only.
                let reads = |t: &&[TokenId]| t.len() > prompt && self.sched.is_text(seq);
                let Some(tokens) = self.sched.tokens(seq).filter(reads) else {
                    continue;
                };
                let known = by_model.rate.is_some();
                let rate = *by_model.rate.get_or_insert_with(|| model.expected());
                let odds = rate.odds(model.price_s(tokens.len()));
                let count = self.sched.draft_that_pays(seq, odds, MAX_DRAFT);
                if !known {
                    model.began(count > 0);
                }
                if count > 0 {
                    let sampling = by_model.sampling;
                    worth.push(Worth { id, choice, seq, prompt, sampling, count });
                }
            }
        }
        worth.truncate(model.sequences());
        worth
    }
}

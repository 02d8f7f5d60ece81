//! The results of a step: sequences move on by what it computed.

use tokenmill_ir::{GroupKind, Sampled, StepOutput, TokenId};

use crate::scheduler::{Scheduler, seq_mut};
use crate::sequence::{Numbers, Sequence, Want};
use crate::step::{Grant, Outcome, Progress, Step};

impl Scheduler {
    /// Takes the results of a step and reports what came of it, in the order of the grants.
    pub fn commit(&mut self, step: &Step, out: &StepOutput, progress: &mut Vec<Progress>) {
        progress.clear();
        self.config.cost.observe(step);
        let mut at = Taken { output: 0, number: 0 };
        for grant in &step.grants {
            let Some(seq) = self.get(grant.seq) else {
                debug_assert!(false, "a granted sequence was cancelled before commit");
                at.output += grant.outputs;
                continue;
            };
            assert_eq!(seq.computed, grant.context, "the step does not belong to this state");
            let key = seq.key;
            let mut report = |outcome| progress.push(Progress { seq: grant.seq, key, outcome });
            if !seq.started {
                report(Outcome::Started { cached: seq.cached, miss: seq.miss });
            }
            let before = at.output;
            let end = self.advance(grant, out, &mut at, &mut report);
            at.output = before + grant.outputs;
            match end {
                End::Open => {}
                End::Complete => {
                    report(Outcome::Finished);
                    self.cache.release(seq_mut(&mut self.slots, grant.seq.slot));
                    self.remove(grant.seq.slot);
                }
                End::Invalid(index) => {
                    report(Outcome::NotANumber { index });
                    self.cache.discard(seq_mut(&mut self.slots, grant.seq.slot));
                    self.remove(grant.seq.slot);
                }
            }
        }
    }

    /// Moves one sequence on by what its grant computed.
    fn advance(
        &mut self,
        grant: &Grant,
        out: &StepOutput,
        at: &mut Taken,
        report: &mut impl FnMut(Outcome),
    ) -> End {
        let widths = (self.config.vocab as usize, self.config.hidden as usize);
        let seq = seq_mut(&mut self.slots, grant.seq.slot);
        seq.started = true;
        self.accounts.charge(seq.account, grant.tokens + grant.outputs);
        let end = seq.computed + grant.tokens;
        let taken = match seq.want {
            Want::Tokens { .. } => accept(seq, grant, out, at.output, report),
            Want::Numbers(Numbers::Scores { .. }) => scored(seq, grant, out, at.output, report),
            Want::Numbers(Numbers::Logits { .. }) => rows(seq, grant, out, widths.0, at, report),
            Want::Numbers(Numbers::Hidden | Numbers::Pair { .. } | Numbers::Listed) => {
                rows(seq, grant, out, widths.1, at, report)
            }
        };
        if let Some(index) = taken.invalid {
            return End::Invalid(index);
        }
        self.counts.drafted += u64::from(taken.drafted);
        self.counts.accepted += u64::from(taken.accepted);
        let kept = taken.accepted == taken.drafted;
        if kept || !self.config.groups.contains(&GroupKind::State) {
            seq.computed = end - (taken.drafted - taken.accepted);
        }
        self.cache.settle_states(seq, kept);
        let finished = match seq.want {
            Want::Tokens { .. } => seq.known == seq.max_len,
            _ => seq.computed == seq.goal(),
        };
        self.cache.share(seq);
        if grant.outputs > 0 && matches!(seq.want, Want::Tokens { .. }) {
            self.noted.note(&self.cache, seq);
        }
        self.cache.give_back(seq);
        if finished { End::Complete } else { End::Open }
    }
}

/// What a commit has used up of the step's output.
#[derive(Debug, Clone, Copy)]
struct Taken {
    output: u32,
    number: usize,
}

enum End {
    Open,
    Complete,
    Invalid(u32),
}

/// What a sequence's output rows came to.
#[derive(Debug, Clone, Copy, Default)]
struct Rows {
    invalid: Option<u32>,
    drafted: u32,
    accepted: u32,
}

/// Appends sampled tokens for as long as each draft token before them was the one sampled.
fn accept(
    seq: &mut Sequence,
    grant: &Grant,
    out: &StepOutput,
    first: u32,
    report: &mut impl FnMut(Outcome),
) -> Rows {
    if grant.outputs == 0 {
        return Rows::default();
    }
    for at in seq.known - std::mem::take(&mut seq.foretold)..seq.known {
        let token = seq.tokens.get(at as usize).copied().unwrap_or_default();
        report(Outcome::Token { index: at - seq.prompt, token, output: u32::MAX });
    }
    let sampled = |i: u32| out.sampled.get((first + i) as usize).copied().unwrap_or_default();
    let drafted = grant.outputs - 1;
    let drafts = seq.tokens.get(seq.known as usize..).unwrap_or_default();
    // Where a right draft is followed by no token, it is taken for chosen, not for verified, and the
    // row behind it is computed again: what fails there fails by itself.
    let is_right = |&(i, draft): &(u32, &TokenId)| {
        sampled(i).valid && sampled(i).token == *draft && sampled(i + 1).valid
    };
    let accepted = (0..drafted).zip(drafts).take_while(is_right).count() as u32;
    if drafted > 0 {
        report(Outcome::Drafted { tokens: drafted, right: accepted });
    }
    let mut rows = Rows { drafted, accepted, invalid: None };
    seq.tokens.truncate((seq.known + accepted) as usize);
    for i in 0..=accepted {
        let index = seq.known - seq.prompt;
        let Sampled { token, surprise, valid: true, .. } = sampled(i) else {
            rows.invalid = Some(index);
            break;
        };
        if let Some(state) = seq.mirostat() {
            *state = state.told(surprise);
        }
        report(Outcome::Token { index, token, output: first + i });
        if i == accepted {
            seq.tokens.push(token);
        }
        seq.known += 1;
    }
    rows
}

fn scored(
    seq: &mut Sequence,
    grant: &Grant,
    out: &StepOutput,
    first: u32,
    report: &mut impl FnMut(Outcome),
) -> Rows {
    for output in first..first + grant.outputs {
        let position = seq.delivered + 1;
        if !out.sampled.get(output as usize).is_some_and(|s| s.valid) {
            return Rows { invalid: Some(position), ..Rows::default() };
        }
        report(Outcome::Scored { position, output });
        seq.delivered = position;
    }
    Rows::default()
}

fn rows(
    seq: &mut Sequence,
    grant: &Grant,
    out: &StepOutput,
    width: usize,
    at: &mut Taken,
    report: &mut impl FnMut(Outcome),
) -> Rows {
    let end = grant.context + grant.tokens;
    for row in 0..grant.outputs {
        let position = match seq.want {
            Want::Numbers(Numbers::Listed) => seq.listed(grant.context, end)[row as usize],
            _ => end - grant.outputs + row,
        };
        let numbers = out.rows.get(at.number..at.number + width);
        if !numbers.is_some_and(|n| n.iter().all(|x| x.is_finite())) {
            at.number += width * (grant.outputs - row) as usize;
            return Rows { invalid: Some(position), ..Rows::default() };
        }
        report(Outcome::Row { position, start: at.number, len: width });
        at.number += width;
        seq.delivered = position + 1;
    }
    Rows::default()
}

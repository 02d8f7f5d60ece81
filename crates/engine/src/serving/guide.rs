//! What stands above the model in one answer: the grammar it is held to, the limit on its thinking, and
//! the end of what only repeats itself. Tokens are taken at commit, before the next step is planned, and
//! told later.

use tokenmill_ir::TokenId;

use super::constraint::{Dead, Hold};
use super::repeats::{Repeated, Repeats};
use super::thought::Thought;

/// Why nothing more is wanted of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its grammar has come to its end.
    Whole,
    /// It repeats itself.
    Repeats(Repeated),
}

/// See the module.
#[derive(Default)]
pub(crate) struct Guide {
    pub hold: Option<Hold>,
    pub thought: Option<Thought>,
    pub repeats: Option<Repeats>,
    /// Tokens taken, and of these told.
    taken: u32,
    told: u32,
    /// After how many tokens, and why, nothing may follow.
    ended: Option<(u32, Ended)>,
}

impl Guide {
    /// What holds an answer, all of it optional.
    pub fn new(hold: Option<Hold>, thought: Option<Thought>, repeats: Option<Repeats>) -> Self {
        Self { hold, thought, repeats, ..Self::default() }
    }

    /// Appends what may come next, and after each of the drafts, in masks with a bit for each of
    /// `vocab` tokens; false, and nothing, where any token may.
    pub fn masks(&mut self, drafts: &[TokenId], vocab: u32, out: &mut Vec<u32>) -> bool {
        self.settle();
        let forces = self.thought.as_ref().is_some_and(|thought| thought.may_force(drafts.len()));
        let (start, words) = (out.len(), vocab.div_ceil(32) as usize);
        match &mut self.hold {
            Some(hold) => hold.masks(drafts, out),
            None if forces => out.resize(start + words * (drafts.len() + 1), u32::MAX),
            None => return false,
        }
        if forces && self.failed().is_none() {
            self.force(drafts, out[start..].chunks_exact_mut(words));
        }
        true
    }

    /// Where a token is forced, here or behind some of the drafts, it alone may come.
    fn force<'m>(&mut self, drafts: &[TokenId], masks: impl Iterator<Item = &'m mut [u32]>) {
        let Some(thought) = &self.thought else { return };
        let mut ahead = thought.clone();
        for (at, mask) in masks.enumerate() {
            if let Some(draft) = at.checked_sub(1).and_then(|before| drafts.get(before)) {
                ahead.take(*draft);
                let fits = ahead.to_end().map(|ending| match &mut self.hold {
                    Some(hold) => hold.allowed_behind(&drafts[..at], ending),
                    None => ending.len(),
                });
                fits.into_iter().for_each(|fits| ahead.end_by(fits));
            }
            if let Some(token) = ahead.forced().first() {
                mask.fill(0);
                let word = mask.get_mut(*token as usize / 32);
                word.into_iter().for_each(|word| *word = 1 << (token % 32));
            }
        }
    }

    /// Begins to end the reasoning where it is time, as far as the grammar has a place for that.
    fn settle(&mut self) {
        let Some(thought) = &mut self.thought else { return };
        let fits = thought.to_end().map(|ending| match &mut self.hold {
            Some(hold) => hold.allowed_behind(&[], ending),
            None => ending.len(),
        });
        fits.into_iter().for_each(|fits| thought.end_by(fits));
    }

    /// A token that was chosen. Returns the work its grammar took.
    pub fn take(&mut self, token: TokenId) -> u64 {
        self.taken += 1;
        let work = self.hold.as_mut().map_or(0, |hold| hold.take(token));
        if let Some(thought) = &mut self.thought {
            thought.take(token);
            self.settle();
        }
        let repeats = self.repeats.as_mut().and_then(|repeats| repeats.push(token));
        if self.ended.is_some() {
            return work;
        }
        let whole = self.hold.as_ref().is_some_and(Hold::is_done).then_some(Ended::Whole);
        let ended = whole.or_else(|| {
            let (period, tokens) = repeats?;
            let cut = self.hold.as_mut().is_some_and(|hold| !hold.may_end());
            Some(Ended::Repeats(Repeated { period, tokens, cut }))
        });
        self.ended = ended.map(|ended| (self.taken, ended));
        work
    }

    /// One more of the tokens taken is told; why nothing may follow it.
    pub fn tell(&mut self) -> Option<Ended> {
        self.told += 1;
        self.ended.filter(|(at, _)| *at == self.told).map(|(_, ended)| ended)
    }

    /// Why no token may come, where that is so.
    pub fn failed(&mut self) -> Option<&Dead> {
        self.hold.as_mut()?.failed()
    }

    /// Whether what comes next is known, and not by what texts before suggest.
    pub fn forces(&self) -> bool {
        self.thought.as_ref().is_some_and(|thought| !thought.forced().is_empty())
    }

    /// Whether what may come next is not known yet.
    pub fn waits(&self) -> bool {
        self.hold.as_ref().is_some_and(Hold::is_open)
    }

    /// Appends tokens that come next for certain.
    pub fn foreseen(&mut self, out: &mut Vec<TokenId>) {
        self.settle();
        match (&self.thought, &mut self.hold) {
            (Some(thought), _) if !thought.forced().is_empty() => {
                out.extend_from_slice(thought.forced());
            }
            (_, Some(hold)) => hold.foreseen(out),
            (_, None) => {}
        }
    }

    /// The grammar, where nothing else has a say in what tokens that must come lead to.
    pub fn appends(&mut self) -> Option<&mut Hold> {
        self.hold.as_mut().filter(|_| self.thought.is_none())
    }

    /// How many of the tokens may come, one after another, with the masks behind them found out for
    /// less than `work`, from which that is taken.
    pub fn allowed(&mut self, tokens: &[TokenId], work: &mut u64) -> usize {
        self.hold.as_mut().map_or(tokens.len(), |hold| hold.look_ahead(tokens, work))
    }
}

//! Masks before a step: made before it is planned, for as much work as a step may take. Who has none
//! yet waits for a later step, so that no grammar holds up who stands beside it.

use super::{Core, Work, key};

/// Work on masks before a step, beyond which answers wait; units of `Matcher::work`, about 100 ns.
/// The one that passes it ends within its own limits (`Bounds::mask_items`, `mask_fuel`).
pub const MASKS_WORK: u64 = 100_000;
/// Work on masks behind guesses, before a step.
pub(super) const AHEAD_WORK: u64 = 50_000;
/// What a mask takes that is not put off for others.
const LIGHT: u64 = 10_000;
/// Seconds of a unit, about.
const WORK_S: f64 = 1e-7;
/// So many times what grammars took beyond a step's share, others have steps before there is a heavy
/// mask again.
const SHARE_OF_OTHERS: f64 = 3.0;

/// Whose turn it is to have a mask, and what masks took.
#[derive(Debug, Default)]
pub(super) struct MaskTurns {
    /// Keys of those served last, of light masks and of heavy ones.
    last: [u64; 2],
    /// Work since the last step.
    since_step: u64,
    /// Work in all.
    all: u64,
    /// Seconds of steps that come before the next heavy mask, while there are any.
    owed_s: f64,
}

impl MaskTurns {
    pub fn count(&mut self, work: u64) {
        self.since_step += work;
        self.all += work;
    }

    /// Grammars took so long between two steps.
    pub fn took(&mut self, seconds: f64) {
        if seconds > MASKS_WORK as f64 * WORK_S {
            self.owed_s += seconds * SHARE_OF_OTHERS;
        }
    }

    /// Whether heavy masks wait for steps of others.
    fn owes(&self) -> bool {
        self.owed_s > 0.0
    }

    /// A step took so long; `None`: there is nothing to compute for anybody.
    pub fn step(&mut self, seconds: Option<f64>) {
        self.owed_s = seconds.map_or(0.0, |seconds| (self.owed_s - seconds).max(0.0));
    }

    /// What masks since the last step may have taken, seconds.
    pub fn taken_s(&mut self) -> f64 {
        std::mem::take(&mut self.since_step) as f64 * WORK_S
    }
}

impl Core {
    /// Work on masks so far; see `Matcher::work`.
    pub fn mask_work(&self) -> u64 {
        self.mask_turns.all
    }

    /// Finds out what may come next in held answers, those first whose masks are light, in turn; says
    /// whether some wait.
    pub(super) fn make_masks(&mut self) -> bool {
        let mut open = Vec::new();
        for (&id, request) in &mut self.requests {
            let Work::Answer(answer) = &mut request.work else { continue };
            for (choice, seq, hold) in answer.held() {
                self.sched.hold_back(seq, false);
                if hold.is_open() {
                    let (key, class) = (key(id, choice), usize::from(hold.weight() > LIGHT));
                    open.push((class, key <= self.mask_turns.last[class], key, seq));
                }
            }
        }
        open.sort_unstable_by_key(|&(class, passed, key, _)| (class, passed, key));
        let (mut used, mut heavy, mut some_wait) = (0, 0, false);
        let (begin_s, owes) = ((self.clock)(), self.mask_turns.owes());
        for (class, _, key, seq) in open {
            // Of the heavy ones one goes on in any case, where nothing is owed to others.
            let is_late = used >= MASKS_WORK && !(class == 1 && heavy == 0);
            if is_late || class == 1 && owes {
                self.sched.hold_back(seq, true);
                some_wait = true;
                continue;
            }
            heavy += class;
            self.mask_turns.last[class] = key;
            let guide = super::steps::guide(&mut self.requests, key);
            let Some(hold) = guide.and_then(|guide| guide.hold.as_mut()) else { continue };
            let work = hold.refresh();
            used += work;
            self.mask_turns.count(work);
        }
        self.mask_turns.took((self.clock)() - begin_s);
        some_wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_others_up_gives_them_time() {
        let mut turns = MaskTurns::default();
        turns.took(0.009);
        assert!(!turns.owes(), "a step's share");
        turns.took(0.2);
        turns.step(Some(0.35));
        assert!(turns.owes());
        turns.step(Some(0.35));
        assert!(!turns.owes());
        turns.took(0.2);
        turns.step(None);
        assert!(!turns.owes(), "nobody is there");
    }
}

//! Who is loaded next, and who makes room.

use super::{Action, Known, Model, Refused, Residency, Stage};

/// A busy model makes room for others no sooner than so many times its load's time after that, and
/// no later than so many seconds: each change of models serves more than it costs.
const HOLD_LOADS: f64 = 2.0;
const HOLD_S: f64 = 10.0;

/// Least time a model counts as idle, seconds: the divisor of what it costs to send it away.
const LEAST_IDLE_S: f64 = 1e-3;

/// Until then a model is not drained for others.
pub(super) fn held_until_s(model: &Model) -> f64 {
    model.ready_s + (HOLD_LOADS * model.load_s()).min(HOLD_S)
}

/// Memory as it is promised to one after another of those who wait.
struct Room {
    free: u64,
    coming: u64,
}

impl Room {
    /// Promises so much of what is coming and, beyond that, of what is there.
    fn promise(&mut self, bytes: u64) {
        let of_coming = self.coming.min(bytes);
        self.coming -= of_coming;
        self.free = self.free.saturating_sub(bytes - of_coming);
    }
}

/// What becomes of a model in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Nothing is said of it.
    Open,
    /// Somebody needs its memory.
    Goes,
    /// Who waits for it came before those who need its memory.
    Stays,
}

impl Residency {
    /// Loads those who are waited for, in the order of who waits longest, and sends others away for
    /// them. Draining models that nobody needs the memory of any more are ready again.
    pub(super) fn make_room(&mut self, now_s: f64, out: &mut Vec<Action>) {
        let mut fates = vec![Fate::Open; self.models.len()];
        let is_going = |m: &&Model| match m.stage {
            Stage::Freeing | Stage::Breaking => true,
            Stage::Draining => m.leaving,
            _ => false,
        };
        let going = self.models.iter().filter(is_going).map(Model::holds_bytes);
        let coming = going.fold(0, u64::saturating_add);
        let free = self.cap_bytes.saturating_sub(self.held_bytes());
        let mut room = Room { free, coming };
        let mut stuck = false;
        for at in self.queue() {
            if stuck {
                break;
            }
            stuck = !self.place(at, &mut room, &mut fates, now_s, out);
        }
        self.part(&fates, stuck, out);
    }

    /// Models that are waited for and not ready, the one first whose first waiter came first.
    fn queue(&self) -> Vec<usize> {
        let waited = |m: &Model| match m.stage {
            Stage::Ready | Stage::Loading => None,
            _ => m.waiters.front().map(|w| w.waiter),
        };
        let mut queue: Vec<_> =
            self.models.iter().enumerate().filter_map(|(at, m)| Some((waited(m)?, at))).collect();
        queue.sort_unstable();
        queue.into_iter().map(|(_, at)| at).collect()
    }

    /// Finds room for one of the queue; false where none can be made now, so that nobody behind it
    /// gets any.
    fn place(
        &mut self,
        at: usize,
        room: &mut Room,
        fates: &mut [Fate],
        now_s: f64,
        out: &mut Vec<Action>,
    ) -> bool {
        let model = &mut self.models[at];
        if model.stage == Stage::Draining && !model.leaving && fates[at] == Fate::Open {
            fates[at] = Fate::Stays;
            return true;
        }
        let Some(needs) = model.needs else {
            // It holds up nobody: what it needs is not known.
            if model.stage == Stage::Absent && !model.measuring {
                (model.measuring, model.failed) = (true, None);
                out.push(Action::Measure(Known(at)));
            }
            return true;
        };
        let pinned_bytes = self.pinned_beside(at);
        if needs.bytes > self.cap_bytes.saturating_sub(pinned_bytes) {
            let (bytes, cap_bytes) = (needs.bytes, self.cap_bytes);
            let refused = Refused::TooLarge { bytes, cap_bytes, pinned_bytes };
            let waiters = self.models[at].waiters.drain(..);
            out.extend(waiters.map(|w| Action::Refuse(w.waiter, refused.clone())));
            return true;
        }
        let model = &mut self.models[at];
        if model.stage != Stage::Absent {
            room.promise(needs.bytes); // it comes again when it has gone
            return true;
        }
        if needs.bytes <= room.free {
            room.free -= needs.bytes;
            (model.stage, model.began_s, model.failed) = (Stage::Loading, now_s, None);
            self.loads += 1;
            out.push(Action::Load(Known(at)));
            return true;
        }
        let lacking = needs.bytes.saturating_sub(room.free.saturating_add(room.coming));
        let Some(found) = self.found(lacking, fates, now_s) else { return false };
        for at in found {
            fates[at] = Fate::Goes;
            room.coming = room.coming.saturating_add(self.models[at].holds_bytes());
        }
        room.promise(needs.bytes);
        true
    }

    fn pinned_beside(&self, at: usize) -> u64 {
        let others = self.models.iter().enumerate().filter(|(i, m)| *i != at && m.pinned);
        others.fold(0, |sum, (_, m)| sum.saturating_add(m.holds_bytes()))
    }

    /// Models that give that much: idle ones first, those that are cheap to have back and long idle
    /// before others. `None` where all of them together are not enough.
    fn found(&self, lacking: u64, fates: &[Fate], now_s: f64) -> Option<Vec<usize>> {
        let class = |m: &Model| match m.stage {
            Stage::Ready if m.in_use == 0 => Some(0),
            Stage::Draining if !m.leaving => Some(1),
            Stage::Ready if held_until_s(m) <= now_s => Some(2),
            _ => None,
        };
        let cost = |m: &Model| {
            let idle_s = (now_s - m.used_s).max(LEAST_IDLE_S);
            m.holds_bytes() as f64 * m.load_s() / idle_s
        };
        let open = self.models.iter().enumerate();
        let open = open.filter(|(at, m)| fates[*at] == Fate::Open && !m.pinned);
        let mut open: Vec<(u8, f64, usize)> =
            open.filter_map(|(at, m)| Some((class(m)?, cost(m), at))).collect();
        open.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        let bytes = |at: usize| self.models[at].holds_bytes();
        let (mut found, mut sum) = (Vec::new(), 0u64);
        for (_, _, at) in open {
            if sum >= lacking {
                break;
            }
            sum = sum.saturating_add(bytes(at));
            found.push(at);
        }
        if sum < lacking {
            return None;
        }
        // Those that the later, larger ones made needless stay.
        for i in (0..found.len()).rev() {
            let without = sum - bytes(found[i]);
            if without >= lacking {
                sum = without;
                found.remove(i);
            }
        }
        Some(found)
    }

    /// Does what was found: who goes drains, or is freed where nothing of it is open.
    fn part(&mut self, fates: &[Fate], stuck: bool, out: &mut Vec<Action>) {
        for (at, (model, fate)) in self.models.iter_mut().zip(fates).enumerate() {
            match (model.stage, fate) {
                (Stage::Ready, Fate::Goes) => model.stage = Stage::Draining,
                // (Where somebody waits in vain, who made room for him goes on to.)
                (Stage::Draining, Fate::Open) if !model.leaving && !stuck => {
                    model.stage = Stage::Ready;
                }
                (Stage::Draining, Fate::Stays) => model.stage = Stage::Ready,
                _ => {}
            }
            if model.stage == Stage::Draining && model.in_use == 0 {
                model.stage = Stage::Freeing;
                self.evictions += u64::from(!model.leaving);
                out.push(Action::Free(Known(at)));
            }
        }
    }
}

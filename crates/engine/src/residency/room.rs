//! Who is loaded next, and who makes room.

use std::cmp::Ordering;

use super::{Action, Caches, Known, Model, Refused, Residency, Stage};

/// A busy model makes room for others no sooner than so many times its load's time after that, and
/// no later than so many seconds: each change of models serves more than it costs. Caches shrink for the
/// caches of another after so many seconds without an answer.
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

/// A model that can give memory.
struct Giver {
    at: usize,
    fate: Fate,
    /// What its caches can give, bytes, and all of it.
    caches: u64,
    all: u64,
}

impl Giver {
    fn bytes(&self) -> u64 {
        match self.fate {
            Fate::Shrinks => self.caches,
            Fate::Goes => self.all,
            Fate::Open | Fate::Stays => 0,
        }
    }
}

/// What becomes of a model in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Nothing is said of it.
    Open,
    /// Somebody needs what its caches can give.
    Shrinks,
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
        let (mut room, mut stuck) = (self.room(), false);
        for at in self.queue() {
            if stuck {
                break;
            }
            stuck = !self.place(at, &mut room, &mut fates, now_s, out);
        }
        self.part(&fates, stuck, out);
    }

    /// What is free, and what is on its way back.
    fn room(&self) -> Room {
        let coming = |m: &Model| match m.stage {
            Stage::Freeing | Stage::Breaking => m.holds_bytes(),
            Stage::Draining if m.leaving => m.holds_bytes(),
            _ if m.caches == Caches::Shrinking => m.surplus_bytes(),
            _ => 0,
        };
        let coming = self.models.iter().map(coming).fold(0, u64::saturating_add);
        Room { free: self.cap_bytes.saturating_sub(self.held_bytes()), coming }
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
        for giver in found {
            fates[giver.at] = giver.fate;
            room.coming = room.coming.saturating_add(giver.bytes());
        }
        room.promise(needs.bytes);
        true
    }

    fn pinned_beside(&self, at: usize) -> u64 {
        let others = self.models.iter().enumerate().filter(|(i, m)| *i != at && m.pinned);
        others.fold(0, |sum, (_, m)| sum.saturating_add(m.holds_bytes()))
    }

    /// Who gives that much: caches of idle models, and where these are not enough models, idle ones
    /// first; those that are cheap to have back and long idle before others. `None` where all of them
    /// together are not enough.
    fn found(&self, lacking: u64, fates: &[Fate], now_s: f64) -> Option<Vec<Giver>> {
        let mut givers: Vec<Giver> =
            self.open(fates, now_s).into_iter().map(|at| self.giver(at)).collect();
        let sum = |givers: &[Giver]| givers.iter().map(Giver::bytes).fold(0, u64::saturating_add);
        for fate in [Fate::Shrinks, Fate::Goes] {
            for i in 0..givers.len() {
                if sum(&givers) < lacking && (fate == Fate::Goes || givers[i].caches > 0) {
                    givers[i].fate = fate;
                }
            }
        }
        // Those that the later, larger ones made needless stay, then caches do.
        for (fate, instead) in [(Fate::Goes, Fate::Shrinks), (Fate::Shrinks, Fate::Open)] {
            for i in (0..givers.len()).rev() {
                if givers[i].fate == fate {
                    givers[i].fate = instead;
                    let enough = sum(&givers) >= lacking;
                    givers[i].fate = if enough { instead } else { fate };
                }
            }
        }
        let enough = sum(&givers) >= lacking;
        givers.retain(|giver| giver.bytes() > 0);
        enough.then_some(givers)
    }

    /// What a model can give.
    fn giver(&self, at: usize) -> Giver {
        let model = &self.models[at];
        let (is_idle, surplus) = (model.is_idle(), model.surplus_bytes());
        // (What caches give already is on its way.)
        let (caches, all) = match model.caches {
            Caches::Shrinking => (0, model.holds_bytes().saturating_sub(surplus)),
            _ => (if is_idle { surplus } else { 0 }, model.holds_bytes()),
        };
        Giver { at, fate: Fate::Open, caches, all }
    }

    /// Models that may go for others, in the order in which they do.
    fn open(&self, fates: &[Fate], now_s: f64) -> Vec<usize> {
        let class = |m: &Model| match m.stage {
            _ if m.is_idle() => Some(0),
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
        open.into_iter().map(|(_, _, at)| at).collect()
    }

    /// Makes caches large again that shrank, as far as memory is free and nobody waits for it: first
    /// those of models that answer, then those used last. For one that answers, caches shrink of those
    /// that have been idle for long.
    pub(super) fn grow_back(&mut self, now_s: f64, out: &mut Vec<Action>) {
        if !self.queue().is_empty() {
            return;
        }
        let is_small = |m: &Model| m.stage == Stage::Ready && matches!(m.caches, Caches::Small(_));
        let mut small: Vec<usize> =
            (0..self.models.len()).filter(|at| is_small(&self.models[*at])).collect();
        let rank = |at: &usize| (self.models[*at].in_use > 0, self.models[*at].used_s);
        small.sort_by(|a, b| rank(b).partial_cmp(&rank(a)).unwrap_or(Ordering::Equal));
        for at in small {
            let (model, room) = (&self.models[at], self.room());
            let bytes = model.needs.map_or(0, |needs| needs.bytes);
            let more = bytes.saturating_sub(model.holds_bytes());
            if more <= room.free {
                self.models[at].caches = Caches::Full;
                out.push(Action::Grow(Known(at)));
            } else if model.in_use > 0 {
                let lacking = more.saturating_sub(room.free.saturating_add(room.coming));
                self.shrink_idle(lacking, now_s, out);
            }
        }
    }

    /// Has caches of models shrink that have been idle for long, if these are enough.
    fn shrink_idle(&mut self, lacking: u64, now_s: f64, out: &mut Vec<Action>) {
        let mut fates = vec![Fate::Open; self.models.len()];
        let Some(found) = self.found(lacking, &fates, now_s) else { return };
        let is_long = |giver: &Giver| now_s - self.models[giver.at].used_s >= HOLD_S;
        if found.iter().all(|giver| giver.fate == Fate::Shrinks && is_long(giver)) {
            found.iter().for_each(|giver| fates[giver.at] = giver.fate);
            self.shrink(&fates, out);
        }
    }

    fn shrink(&mut self, fates: &[Fate], out: &mut Vec<Action>) {
        for (at, (model, fate)) in self.models.iter_mut().zip(fates).enumerate() {
            if *fate == Fate::Shrinks {
                model.caches = Caches::Shrinking;
                out.push(Action::Shrink(Known(at)));
            }
        }
    }

    /// Does what was found: caches shrink; who goes drains, or is freed where nothing of it is open.
    fn part(&mut self, fates: &[Fate], stuck: bool, out: &mut Vec<Action>) {
        self.shrink(fates, out);
        for (at, (model, fate)) in self.models.iter_mut().zip(fates).enumerate() {
            match (model.stage, fate) {
                (Stage::Ready, Fate::Goes) => model.stage = Stage::Draining,
                // (Where somebody waits in vain, who made room for him goes on to.)
                (Stage::Draining, Fate::Open) if !model.leaving && !stuck => {
                    model.stage = Stage::Ready;
                }
                (Stage::Draining, Fate::Stays | Fate::Shrinks) => model.stage = Stage::Ready,
                _ => {}
            }
            let still = model.caches != Caches::Shrinking;
            if model.stage == Stage::Draining && model.in_use == 0 && still {
                model.stage = Stage::Freeing;
                self.evictions += u64::from(!model.leaving);
                out.push(Action::Free(Known(at)));
            }
        }
    }
}

//! Which models are in memory: one owner of every change of a model's state. It knows no thread,
//! clock or file: whoever drives it tells what has happened and when, and does what it answers.
//!
//! A model is absent → loading → ready → draining → absent. Memory for those that are waited for
//! comes from what is free, then from the caches of idle models, then from idle models, then from busy
//! ones, whose answers end first. Who has waited longest comes first, and what is coming free for him is
//! promised to nobody else. Caches that shrank are large again where nobody waits and memory is free.

mod keep;
mod room;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

pub use keep::KeepAlive;

/// A model that can be asked for: its place among all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Known(pub usize);

/// Who waits for a model; a later one has a higher number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Waiter(pub u64);

/// What a model takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Needs {
    /// Memory of it, all caches in use.
    pub bytes: u64,
    /// The same with caches for one longest sequence: it still answers anybody, one after another.
    pub floor_bytes: u64,
    /// How long it loads, about.
    pub load_s: f64,
}

/// How large a model's caches are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caches {
    Full,
    /// What they give is on its way back.
    Shrinking,
    /// The model holds so much with them, bytes.
    Small(u64),
}

/// Where a model is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Not in memory.
    Absent,
    /// On its way.
    Loading,
    /// It was on its way, and is broken off.
    Breaking,
    /// It answers.
    Ready,
    /// It ends what it answers, and takes nothing new.
    Draining,
    /// Nothing of it is open; its memory is on its way back.
    Freeing,
}

/// Why a model could not be loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct Trouble {
    /// In words for a client: no paths.
    pub reason: String,
    /// Its files are at fault, not the machine.
    pub of_files: bool,
}

/// Why who waited gets no model.
#[derive(Debug, Clone, PartialEq)]
pub enum Refused {
    /// It cannot be loaded.
    Failed(Trouble),
    /// It does not fit beside what must stay.
    TooLarge {
        /// What it takes.
        bytes: u64,
        /// What there is.
        cap_bytes: u64,
        /// What of that pinned models hold.
        pinned_bytes: u64,
    },
    /// Somebody unloaded it meanwhile.
    Unloaded,
    /// It took longer than he would wait.
    Late {
        /// It is on its way; else it waits for memory.
        loading: bool,
        /// When another try makes sense.
        retry_after_s: u32,
    },
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Find out what it takes: [`Residency::measured`] or [`Residency::failed`] follows.
    Measure(Known),
    /// Load it: [`Residency::loaded`], [`Residency::failed`] or [`Residency::gone`] follows.
    Load(Known),
    /// Break its load off, and say [`Residency::gone`] when its memory is back.
    Cancel(Known),
    /// Make its caches as small as they may be, and say [`Residency::shrunk`].
    Shrink(Known),
    /// Make its caches as large as they were at first: the memory for it is set aside.
    Grow(Known),
    /// Nothing of it is open: give its memory back, and say [`Residency::gone`].
    Free(Known),
    /// He has it until [`Residency::ended`].
    Grant(Known, Waiter),
    /// He does not get it.
    Refuse(Waiter, Refused),
}

/// Who waits, and until when.
#[derive(Debug)]
struct Waiting {
    waiter: Waiter,
    until_s: f64,
}

#[derive(Debug)]
struct Model {
    stage: Stage,
    /// `None`: nobody has looked yet, or it failed.
    needs: Option<Needs>,
    measuring: bool,
    caches: Caches,
    waiters: VecDeque<Waiting>,
    in_use: u32,
    keep: KeepAlive,
    /// When it goes if nobody asks for it; infinite while it is asked or for ever.
    expires_s: f64,
    used_s: f64,
    /// When its load began.
    began_s: f64,
    ready_s: f64,
    pinned: bool,
    /// It was told to go, whoever else needs its memory.
    leaving: bool,
    /// Somebody was told to come back for it: its load goes on without waiters.
    promised: bool,
    failed: Option<(Trouble, f64)>,
}

impl Model {
    fn holds_bytes(&self) -> u64 {
        match (self.stage, self.caches) {
            (Stage::Absent, _) => 0,
            (_, Caches::Small(bytes)) => bytes,
            _ => self.needs.map_or(0, |needs| needs.bytes),
        }
    }

    /// It is there, and nothing of it is open.
    fn is_idle(&self) -> bool {
        let is_there = match self.stage {
            Stage::Ready => true,
            Stage::Draining => !self.leaving,
            _ => false,
        };
        is_there && self.in_use == 0
    }

    /// What its caches give when they shrink, or are giving.
    fn surplus_bytes(&self) -> u64 {
        match (self.stage, self.caches) {
            (Stage::Absent, _) | (_, Caches::Small(_)) => 0,
            _ => self.needs.map_or(0, |needs| needs.bytes.saturating_sub(needs.floor_bytes)),
        }
    }

    fn load_s(&self) -> f64 {
        self.needs.map_or(0.0, |needs| needs.load_s)
    }
}

/// What is told of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// Where it is in its life.
    pub stage: Stage,
    /// Memory that it holds or is promised.
    pub bytes: u64,
    /// Answers in progress.
    pub in_use: u32,
    /// Who waits for it.
    pub waiting: usize,
    /// When it goes if nobody asks for it; `None`: it stays, is busy or is not there.
    pub expires_s: Option<f64>,
    /// It is not sent away for others.
    pub pinned: bool,
    /// Why it could not be loaded, and when, if that was the last try.
    pub failed: Option<(Trouble, f64)>,
}

/// All models that can be asked for. Times are seconds of any clock that does not go back.
#[derive(Debug)]
pub struct Residency {
    cap_bytes: u64,
    keep: KeepAlive,
    models: Vec<Model>,
    next: u64,
    loads: u64,
    failures: u64,
    evictions: u64,
}

/// What has happened so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Loads that were begun.
    pub loads: u64,
    /// Models that could not be read or loaded.
    pub failures: u64,
    /// Models that went to make room for another.
    pub evictions: u64,
}

impl Residency {
    /// No models, which may take so much memory together and stay so long unless a request says
    /// otherwise.
    pub fn new(cap_bytes: u64, keep: KeepAlive) -> Self {
        let models = Vec::new();
        Self { cap_bytes, keep, models, next: 0, loads: 0, failures: 0, evictions: 0 }
    }

    /// One more that can be asked for.
    pub fn know(&mut self) -> Known {
        self.models.push(Model {
            stage: Stage::Absent,
            needs: None,
            measuring: false,
            caches: Caches::Full,
            waiters: VecDeque::new(),
            in_use: 0,
            keep: self.keep,
            expires_s: f64::INFINITY,
            used_s: 0.0,
            began_s: 0.0,
            ready_s: 0.0,
            pinned: false,
            leaving: false,
            promised: false,
            failed: None,
        });
        Known(self.models.len() - 1)
    }

    /// One more that is there already.
    pub fn present(&mut self, needs: Needs, now_s: f64) -> Known {
        let known = self.know();
        let keep = self.keep;
        let model = &mut self.models[known.0];
        (model.stage, model.needs) = (Stage::Ready, Some(needs));
        (model.ready_s, model.used_s, model.expires_s) = (now_s, now_s, keep.from(now_s));
        known
    }

    /// From now on it is sent away for no other, and not for being idle; or it is.
    pub fn pin(&mut self, known: Known, pinned: bool, now_s: f64) -> Vec<Action> {
        self.models[known.0].pinned = pinned;
        self.settle(now_s)
    }

    /// Somebody wants it within so long, and wants it to stay so long after his answer.
    pub fn want(
        &mut self,
        known: Known,
        keep: Option<KeepAlive>,
        within_s: f64,
        now_s: f64,
    ) -> (Waiter, Vec<Action>) {
        self.next += 1;
        let (waiter, keep) = (Waiter(self.next), keep.unwrap_or(self.keep));
        let model = &mut self.models[known.0];
        model.keep = keep;
        model.waiters.push_back(Waiting { waiter, until_s: now_s + within_s });
        (waiter, self.settle(now_s))
    }

    /// Somebody waits no more. Of one who got it or was refused this is heard and ignored.
    pub fn left(&mut self, waiter: Waiter, now_s: f64) -> Vec<Action> {
        let of = |m: &Model| m.waiters.iter().any(|w| w.waiter == waiter);
        let Some(at) = self.models.iter().position(of) else { return Vec::new() };
        let model = &mut self.models[at];
        model.waiters.retain(|w| w.waiter != waiter);
        let mut out = Vec::new();
        if model.stage == Stage::Loading && model.waiters.is_empty() && !model.promised {
            model.stage = Stage::Breaking;
            out.push(Action::Cancel(Known(at)));
        }
        out.extend(self.settle(now_s));
        out
    }

    /// What it takes is known.
    pub fn measured(&mut self, known: Known, needs: Needs, now_s: f64) -> Vec<Action> {
        let model = &mut self.models[known.0];
        (model.measuring, model.needs) = (false, Some(needs));
        self.settle(now_s)
    }

    /// It could not be measured or loaded; a load holds nothing any more.
    pub fn failed(&mut self, known: Known, trouble: Trouble, now_s: f64) -> Vec<Action> {
        let model = &mut self.models[known.0];
        debug_assert!(model.measuring || matches!(model.stage, Stage::Loading | Stage::Breaking));
        let broken_off = model.stage == Stage::Breaking;
        // The files may be others when it is asked for again.
        (model.stage, model.measuring, model.needs) = (Stage::Absent, false, None);
        (model.caches, model.promised) = (Caches::Full, false);
        let mut out = Vec::new();
        if !broken_off {
            let refused = Refused::Failed(trouble.clone());
            let waiters = model.waiters.drain(..);
            out.extend(waiters.map(|w| Action::Refuse(w.waiter, refused.clone())));
            model.failed = Some((trouble, now_s));
            self.failures += 1;
        }
        out.extend(self.settle(now_s));
        out
    }

    /// It is there.
    pub fn loaded(&mut self, known: Known, now_s: f64) -> Vec<Action> {
        let model = &mut self.models[known.0];
        debug_assert!(matches!(model.stage, Stage::Loading | Stage::Breaking));
        // Broken off too late, and perhaps wanted again.
        let unwanted = model.stage == Stage::Breaking && model.waiters.is_empty();
        if let Some(needs) = &mut model.needs {
            needs.load_s = now_s - model.began_s;
        }
        (model.stage, model.leaving, model.promised) = (Stage::Ready, unwanted, false);
        (model.ready_s, model.used_s, model.expires_s) = (now_s, now_s, model.keep.from(now_s));
        if unwanted {
            model.stage = Stage::Draining;
        }
        self.settle(now_s)
    }

    /// Its memory is free, after [`Action::Free`] or [`Action::Cancel`].
    pub fn gone(&mut self, known: Known, now_s: f64) -> Vec<Action> {
        let model = &mut self.models[known.0];
        debug_assert!(matches!(model.stage, Stage::Freeing | Stage::Breaking));
        (model.stage, model.leaving, model.promised) = (Stage::Absent, false, false);
        model.caches = Caches::Full;
        self.settle(now_s)
    }

    /// Its caches are as small as they may be, after [`Action::Shrink`]: it holds so many bytes now.
    pub fn shrunk(&mut self, known: Known, bytes: u64, now_s: f64) -> Vec<Action> {
        let model = &mut self.models[known.0];
        debug_assert!(model.caches == Caches::Shrinking);
        model.caches = Caches::Small(bytes);
        self.settle(now_s)
    }

    /// An answer of it has ended.
    pub fn ended(&mut self, known: Known, now_s: f64) -> Vec<Action> {
        let model = &mut self.models[known.0];
        debug_assert!(model.in_use > 0);
        model.in_use = model.in_use.saturating_sub(1);
        (model.used_s, model.expires_s) = (now_s, model.keep.from(now_s));
        self.settle(now_s)
    }

    /// It is to go once what it answers has ended; a load is broken off. Who waits for it then is
    /// refused; who asks later has it loaded again.
    pub fn unload(&mut self, known: Known, now_s: f64) -> Vec<Action> {
        let model = &mut self.models[known.0];
        model.failed = None;
        let mut out = Vec::new();
        match model.stage {
            Stage::Ready | Stage::Draining => {
                (model.stage, model.leaving) = (Stage::Draining, true);
            }
            Stage::Absent | Stage::Loading | Stage::Breaking => {
                let waiters = model.waiters.drain(..);
                out.extend(waiters.map(|w| Action::Refuse(w.waiter, Refused::Unloaded)));
                if model.stage == Stage::Loading {
                    model.stage = Stage::Breaking;
                    out.push(Action::Cancel(known));
                }
            }
            Stage::Freeing => {}
        }
        out.extend(self.settle(now_s));
        out
    }

    /// Time has gone by.
    pub fn tick(&mut self, now_s: f64) -> Vec<Action> {
        self.settle(now_s)
    }

    /// When [`tick`](Self::tick) has something to do, if nothing else happens until then.
    pub fn next_s(&self, now_s: f64) -> Option<f64> {
        let waits = self.models.iter().flat_map(|m| m.waiters.iter().map(|w| w.until_s));
        let idle = |m: &&Model| m.stage == Stage::Ready && m.in_use == 0 && !m.pinned;
        let expiries = self.models.iter().filter(idle).map(|m| m.expires_s);
        let queue = self.models.iter().any(|m| m.stage == Stage::Absent && !m.waiters.is_empty());
        let busy = |m: &&Model| queue && m.stage == Stage::Ready && m.in_use > 0 && !m.pinned;
        let holds = self.models.iter().filter(busy).map(room::held_until_s);
        let holds = holds.filter(|s| *s > now_s);
        let next = waits.chain(expiries).chain(holds).fold(f64::INFINITY, f64::min);
        next.is_finite().then_some(next)
    }

    /// What is told of a model.
    pub fn status(&self, known: Known) -> Status {
        let model = &self.models[known.0];
        let expires_s = match model.stage {
            Stage::Ready if model.in_use == 0 && !model.pinned => Some(model.expires_s),
            _ => None,
        };
        Status {
            stage: model.stage,
            bytes: model.holds_bytes(),
            in_use: model.in_use,
            waiting: model.waiters.len(),
            expires_s: expires_s.filter(|s| s.is_finite()),
            pinned: model.pinned,
            failed: model.failed.clone(),
        }
    }

    /// What all models hold or are promised.
    pub fn held_bytes(&self) -> u64 {
        self.models.iter().fold(0, |sum, m| sum.saturating_add(m.holds_bytes()))
    }

    /// What they may hold together.
    pub fn cap_bytes(&self) -> u64 {
        self.cap_bytes
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        Counts { loads: self.loads, failures: self.failures, evictions: self.evictions }
    }

    /// Everything that follows from how things stand.
    fn settle(&mut self, now_s: f64) -> Vec<Action> {
        let mut out = Vec::new();
        self.send_off_the_late(now_s, &mut out);
        self.grant(&mut out);
        self.let_go(now_s);
        self.make_room(now_s, &mut out);
        self.grant(&mut out);
        self.grow_back(now_s, &mut out);
        out
    }

    fn send_off_the_late(&mut self, now_s: f64, out: &mut Vec<Action>) {
        for model in &mut self.models {
            let loading = model.stage == Stage::Loading;
            let left_s =
                if loading { model.began_s + model.load_s() - now_s } else { model.load_s() };
            let retry_after_s = left_s.ceil().clamp(1.0, 60.0) as u32;
            let late = |w: &Waiting| w.until_s <= now_s;
            for w in model.waiters.iter().filter(|w| late(w)) {
                let late = Refused::Late { loading: loading || model.measuring, retry_after_s };
                out.push(Action::Refuse(w.waiter, late));
                model.promised |= loading;
            }
            model.waiters.retain(|w| !late(w));
        }
    }

    fn grant(&mut self, out: &mut Vec<Action>) {
        let ready = self.models.iter_mut().enumerate().filter(|(_, m)| m.stage == Stage::Ready);
        for (at, model) in ready {
            for w in model.waiters.drain(..) {
                model.in_use += 1;
                out.push(Action::Grant(Known(at), w.waiter));
            }
        }
    }

    /// Who has been idle for as long as he was to stay goes.
    fn let_go(&mut self, now_s: f64) {
        for model in &mut self.models {
            let idle = model.stage == Stage::Ready && model.in_use == 0 && !model.pinned;
            if idle && model.expires_s <= now_s {
                (model.stage, model.leaving) = (Stage::Draining, true);
            }
        }
    }
}

//! What the loop notes of each request: where its time goes, step by step. Nothing is allocated for it.

use std::sync::Arc;

use tokenmill_sched::{Grant, Miss, Scheduler, Wait};

use super::{Core, Flight, Open, Work, request_of};
use crate::request::Request;
use crate::serving::timeline::{Ending, Had, Part, StepTimes, Timekeeper};

/// A request's timeline while it runs.
pub(super) struct Times {
    keeper: Arc<Timekeeper>,
    /// What it has of the step that ends now.
    had: Option<Had>,
    /// What it had of the last one; before its first one, what it waits for.
    part: Part,
    /// It had a part in a step.
    started: bool,
}

impl Times {
    pub fn of(request: &Request) -> Option<Self> {
        let keeper = request.timeline.clone()?;
        Some(Self { keeper, had: None, part: Part::Queue, started: false })
    }

    /// It has that part of the step, of a prompt of so many tokens.
    fn grant(&mut self, grant: &Grant, prompt: u32) {
        let tokens = (grant.context + grant.tokens).min(prompt).saturating_sub(grant.context);
        let before = self.had.map_or(0, |had| had.tokens);
        let of_prompt = tokens > 0 || before > 0;
        let part = if of_prompt { Part::Prompt } else { Part::Answer };
        self.had = Some(Had { part, tokens: before + tokens });
    }

    pub fn keeper(&self) -> &Timekeeper {
        &self.keeper
    }

    pub fn started(&self, cached: u32, disk: u32, miss: Miss) {
        self.keeper.started(cached, disk, miss);
    }

    pub fn token(&self) {
        self.keeper.token();
    }

    pub fn drafted(&self, tokens: u32, right: u32) {
        self.keeper.drafted(tokens, right);
    }
}

/// Nanoseconds of the engine's clock.
fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

/// Why a request has no part of the step.
fn waits(open: &Open, sched: &Scheduler) -> Part {
    let wait = match &open.work {
        Work::Answer(answer) => answer.sequences().find_map(|seq| sched.wait(seq)),
        Work::Rows(rows) => sched.wait(rows.seq),
    };
    match wait {
        Some(Wait::HeldBack) => Part::Mask,
        Some(Wait::Memory) => Part::Memory,
        Some(Wait::Place) => Part::Queue,
        Some(Wait::Blocks) => Part::Blocks,
        Some(Wait::Room) | None => Part::Room,
    }
}

impl Core {
    fn is_timed(&self) -> bool {
        self.requests.values().any(|open| open.times.is_some())
    }

    /// A request is taken.
    pub(super) fn note_taken(&self, request: &Request) {
        if let Some(keeper) = &request.timeline {
            let prompt = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
            keeper.taken(nanos((self.clock)()), prompt);
        }
    }

    /// A request waited for the disk until now.
    pub(super) fn note_restored(&self, request: &Request) {
        if let Some(keeper) = &request.timeline {
            keeper.charge(Part::Disk, nanos((self.clock)()));
        }
    }

    /// A request ends before it was a sequence.
    pub(super) fn note_never_started(&self, request: &Request, part: Part, ending: Ending) {
        if let Some(keeper) = &request.timeline {
            keeper.ended(part, nanos((self.clock)()), ending);
        }
    }

    /// A request ends, by what the last step brought or in the middle of one.
    pub(super) fn note_ended(&self, open: &Open, ending: Ending) {
        let Some(times) = &open.times else { return };
        let is_cut = matches!(ending, Ending::Cancelled | Ending::TimedOut | Ending::Failed);
        let part = match times.started {
            false => times.part,
            true if is_cut && self.in_flight() => times.part,
            true => Part::Host,
        };
        times.keeper.ended(part, nanos((self.clock)()), ending);
    }

    /// Other models have had their turn since this one left off.
    pub(super) fn note_others(&mut self) {
        if let Some(left_s) = self.left_s.take() {
            self.away_s += ((self.clock)() - left_s).max(0.0);
        }
    }

    /// It is the turn of other models.
    pub(super) fn note_left(&mut self) {
        self.left_s = (self.in_turns() && self.is_timed()).then(|| (self.clock)());
    }

    /// Whether others on the device have something to do.
    fn in_turns(&self) -> bool {
        self.part_s < self.config.step_s
    }

    /// A step ends, before its results are taken.
    pub(super) fn note_step(&mut self, flight: Flight, (end_s, taken_s): (f64, f64)) {
        let away_s = std::mem::take(&mut self.away_s);
        if !self.is_timed() {
            return;
        }
        let times = StepTimes {
            number: self.stats.steps(),
            begin: nanos(flight.begin_s),
            end: nanos(end_s),
            taken: nanos(taken_s),
            away: nanos(away_s),
            in_turns: self.in_turns(),
        };
        for grant in &self.step.grants {
            let known = self.sched.key(grant.seq).zip(self.sched.prompt(grant.seq));
            let Some((key, prompt)) = known else { continue };
            let open = self.requests.get_mut(&request_of(key).0);
            if let Some(times) = open.and_then(|open| open.times.as_mut()) {
                times.grant(grant, prompt);
            }
        }
        for open in self.requests.values_mut() {
            let waits = waits(open, &self.sched);
            let Some(own) = &mut open.times else { continue };
            let had = own.had.take();
            if !own.started && had.is_none() {
                // (Who has no mask yet waits for one in the queue.)
                let waits = if waits == Part::Blocks { waits } else { Part::Queue };
                let before = std::mem::replace(&mut own.part, waits);
                if before != waits {
                    own.keeper.charge(before, times.begin);
                }
                continue;
            }
            let waited = (!std::mem::replace(&mut own.started, true)).then_some(own.part);
            let had = had.unwrap_or(Had { part: waits, tokens: 0 });
            own.part = had.part;
            own.keeper.step(&times, had, waited);
        }
    }

    /// Nothing was to be computed, for all that are open wait.
    pub(super) fn note_pause(&mut self) {
        if !self.is_timed() {
            return;
        }
        let now = nanos((self.clock)());
        for open in self.requests.values() {
            let part = waits(open, &self.sched);
            let started = open.times.as_ref().filter(|times| times.started);
            started.into_iter().for_each(|times| times.keeper.charge(part, now));
        }
    }
}

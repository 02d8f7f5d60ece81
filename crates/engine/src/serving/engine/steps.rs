//! Steps: planned, handed to the device, advanced, committed, told; and the caches' size between them.

use std::collections::HashMap;
use std::time::Duration;

use tokenmill_sched::{Outcome, SeqId};

use super::{Core, Flight, Open, Ticket, Turn, Work, guarded, request_of};
use crate::request::RequestError;
use crate::serving::guide::Guide;

/// What stands above the model in the answer of that key.
pub(super) fn guide(requests: &mut HashMap<u64, Open>, key: u64) -> Option<&mut Guide> {
    let (id, choice) = request_of(key);
    match &mut requests.get_mut(&id)?.work {
        Work::Answer(answer) => answer.guide(choice),
        Work::Rows(_) => None,
    }
}

impl Core {
    /// One step, from its plan to its commit.
    pub fn turn(&mut self) -> Turn {
        let turn = self.begin();
        while self.in_flight() {
            self.advance(Duration::MAX);
        }
        turn
    }

    /// Ends every open request; what is left of the step in flight is computed by nobody, or not
    /// waited for by anybody.
    pub fn stop(&mut self) {
        let alone = self.device.as_ref().is_some_and(|device| device.runs_alone());
        while alone && self.in_flight() {
            self.advance(Duration::MAX);
        }
        self.flight = None;
        self.fail_all(&RequestError::ShutDown);
        self.tell_cache_gone();
    }

    /// How long a step may take beyond its base where no other model runs on the device, seconds.
    pub fn step_s(&self) -> f64 {
        self.config.step_s
    }

    /// As [`begin`](Self::begin), where other models have a part of the time: the step takes at
    /// most `part_s` beyond its base, and others may have taken `others_s` since the last one.
    pub fn begin_beside(&mut self, part_s: f64, others_s: f64) -> Turn {
        self.part_s = part_s;
        self.note_others();
        self.sched.set_step_s(part_s);
        self.others_s = others_s;
        self.begin()
    }

    /// Whether streams go on in the step in flight.
    pub fn is_decoding(&self) -> bool {
        self.in_flight() && self.step.decoding
    }

    /// What the step in flight, if streams go on in it, or else a part of it of `part_s`, takes at
    /// most by prediction, seconds: it ends where workers meet.
    pub fn promised_s(&self, part_s: f64) -> f64 {
        if self.step.decoding {
            return self.step.bound_s - self.others_s;
        }
        let device = self.device.as_ref();
        let meetings = device.and_then(|d| d.barriers(self.step.tokens, self.step.outputs));
        let between_s = self.step.predicted_s / f64::from(meetings.unwrap_or(1).max(1));
        (part_s + 2.0 * between_s).min(self.step.bound_s.max(self.step.predicted_s))
    }

    /// Whether a step is in flight.
    pub fn in_flight(&self) -> bool {
        self.flight.is_some()
    }

    /// Plans the next step and hands it to the device; then tells requests of the one before, where
    /// the device goes on by itself meanwhile.
    pub fn begin(&mut self) -> Turn {
        assert!(!self.in_flight(), "one step at a time");
        self.take_restored();
        self.expire();
        self.end_leases();
        let some_wait = self.make_masks();
        self.draft();
        self.draft_by_model();
        self.sched.plan(&mut self.step);
        self.step.bound_s += std::mem::take(&mut self.guessing_bound_s) + self.others_s;
        self.step.bound_s += self.mask_turns.taken_s();
        if self.step.is_empty() {
            self.last_step_s = None;
            self.mask_turns.step(None);
            self.note_pause();
            let told = self.tell();
            let waiting = self.keep_a_part() || !self.restores.is_empty();
            self.settle_size();
            self.update_sizes();
            self.tell_cache_changes();
            return match () {
                () if told || some_wait => Turn::Worked,
                () if waiting => Turn::Waiting,
                () => Turn::Idle,
            };
        }
        let (requests, vocab) = (&mut self.requests, self.config.vocab);
        self.sched.fill(&self.step, &mut self.batch, &mut |key, drafts, masks| {
            guide(requests, key).is_some_and(|guide| guide.masks(drafts, vocab, masks))
        });
        self.stats.begins(&self.step);
        let begin_s = (self.clock)();
        let batch = &mut self.batch;
        match guarded(self.device.as_mut(), |device| device.submit(batch)) {
            Ok(()) => {
                let computed_s = (self.clock)() - begin_s;
                self.flight = Some(Flight { begin_s, computed_s });
                self.tell();
            }
            Err(error) => self.recover(&error),
        }
        Turn::Worked
    }

    /// Lets the step in flight go on for about that long; what it gave is committed and told when
    /// it has ended.
    pub fn advance(&mut self, at_most: Duration) {
        let Some(mut flight) = self.flight else { return };
        let now = (self.clock)();
        match guarded(self.device.as_mut(), |device| device.advance(at_most)) {
            Ok(true) => self.end(flight, now),
            Ok(false) => {
                flight.computed_s += (self.clock)() - now;
                self.flight = Some(flight);
            }
            Err(error) => self.recover(&error),
        }
    }

    /// The step in flight has ended; the device worked on it since `since_s`, and before.
    fn end(&mut self, flight: Flight, since_s: f64) {
        let (out, mut alone) = (&mut self.out, false);
        let waited = guarded(self.device.as_mut(), |device| {
            alone = device.runs_alone();
            device.wait(out)
        });
        if let Err(error) = waited {
            return self.recover(&error);
        }
        self.flight = None;
        let end = (self.clock)();
        let taken_s = if alone { end - flight.begin_s } else { flight.computed_s + end - since_s };
        self.step.observed_s = Some(taken_s);
        self.mask_turns.step(Some(taken_s));
        self.note_step(flight, (end, taken_s));
        let gap_s = end - self.last_step_s.replace(end).unwrap_or(flight.begin_s);
        self.stats.step(&self.step, &self.out, gap_s);
        self.sched.commit(&self.step, &self.out, &mut self.progress);
        // What was computed in vain for those that had ended is nobody's.
        self.progress.retain(|p| !self.leaving.contains(&p.seq));
        let begin_s = (self.clock)();
        for p in &self.progress {
            if let Outcome::Token { token, .. } = p.outcome
                && let Some(guide) = guide(&mut self.requests, p.key)
            {
                self.mask_turns.count(guide.take(token));
            }
        }
        self.mask_turns.took((self.clock)() - begin_s);
        for seq in self.leaving.drain(..) {
            self.sched.cancel(seq);
        }
        self.untold = true;
        if !alone {
            self.tell();
        }
        self.keep_a_part();
        self.settle_size();
        self.update_sizes();
        self.tell_cache_changes();
        self.note_left();
    }

    /// Tells requests what the last step brought them, if that was not done.
    pub(super) fn tell(&mut self) -> bool {
        if !std::mem::take(&mut self.untold) {
            return false;
        }
        let progress = std::mem::take(&mut self.progress);
        for p in &progress {
            self.deliver(p);
        }
        self.progress = progress;
        true
    }

    /// Forgets a sequence; while a step is in flight, after it.
    pub(super) fn leave(&mut self, seq: SeqId) {
        match self.in_flight() {
            true => self.leaving.push(seq),
            false => self.sched.cancel(seq),
        }
    }

    // ---- memory ----------------------------------------------------------------------------

    /// From now on gives out only the first so many cache blocks of each group, at least what a
    /// longest sequence needs; the memory of others is given back as they fall free, and taken
    /// when there may be more.
    pub fn resize(&mut self, blocks: &[u32]) {
        self.wanted_blocks = Some(blocks.to_vec());
        if !self.in_flight() {
            self.settle_size();
        }
    }

    /// The same, with a ticket that is dropped when no memory of others is held any more, or another
    /// size is asked for.
    pub(crate) fn resize_with(&mut self, blocks: &[u32], ticket: Ticket) {
        self.size_ticket = Some(ticket);
        self.resize(blocks);
    }

    /// Cache blocks of each group that take memory now.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// Makes caches as large as was asked for, as far as that is possible by now.
    fn settle_size(&mut self) {
        let Some(wanted) = self.wanted_blocks.take() else { return };
        self.sched.resize(&wanted);
        let reach = self.sched.reach();
        if reach != self.blocks {
            match guarded(self.device.as_mut(), |device| device.resize(&reach)) {
                Ok(()) => {
                    self.claim.iter().for_each(|claim| claim.resized(&self.blocks, &reach));
                    self.blocks = reach;
                }
                Err(error) => {
                    tracing::error!(%error, "the caches keep their size");
                    self.size_ticket = None;
                    return self.sched.resize(&self.blocks);
                }
            }
        }
        let most = wanted.iter().zip(self.sched.floor()).map(|(&w, floor)| w.max(floor));
        let is_above = self.blocks.iter().zip(most).any(|(&has, most)| has > most);
        self.update_sizes();
        match is_above {
            true => self.wanted_blocks = Some(wanted),
            false => self.size_ticket = None,
        }
    }
}

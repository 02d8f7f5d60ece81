//! The engine's use of the cache on disk: a prompt whose beginning is there waits for it, while
//! others compute; what was computed soundly is kept.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenmill_ir::TokenId;
use tokenmill_sched::Adoption;

use super::Core;
use crate::answer::Sink;
use crate::request::{Event, Request, RequestError};
use crate::serving::timeline::{Ending, Part};
use crate::tier::{Job, Offer, ReadPart, Tier};

/// Parts taken over in one turn: each costs a copy, and somebody may wait for the turn's step.
const PARTS_A_TURN: usize = 2;

struct Waiting {
    id: u64,
    request: Request,
    sink: Sink,
}

/// A prompt's beginning on its way from disk.
pub(super) struct Restore {
    job: Job,
    salt: u64,
    /// The text that is there when the job has ended.
    tokens: Vec<TokenId>,
    /// Tokens of it in memory when the job began, and now.
    began: u32,
    now: u32,
    /// Who waits; the first one asked for the job.
    waiting: Vec<Waiting>,
}

impl Core {
    /// The engine with a cache on disk.
    #[must_use]
    pub fn with_tier(mut self, tier: Tier) -> Self {
        // Set once: a core is given at most one tier.
        let _ = self.stats.disk.set(tier.shared());
        self.tier = Some(tier);
        self.note_runs();
        self
    }

    /// Tells a new scheduler what to note.
    pub(super) fn note_runs(&mut self) {
        if self.tier.is_some() {
            self.sched.note_runs(crate::tier::RUN_BLOCKS);
        }
    }

    // ---- from disk -------------------------------------------------------------------------

    /// Puts a request off until its prompt's beginning was read, or gives it back where the disk
    /// has nothing that memory lacks.
    pub(super) fn restore_first(
        &mut self,
        id: u64,
        request: Request,
        sink: Sink,
    ) -> Option<(Request, Sink)> {
        let Some(tier) = self.tier.as_mut().filter(|_| request.numbers.is_none()) else {
            return Some((request, sink));
        };
        let (salt, prompt) = (request.salt, &request.prompt);
        let covers = |r: &&mut Restore| r.salt == salt && prompt.starts_with(&r.tokens);
        if let Some(restore) = self.restores.iter_mut().find(covers) {
            restore.waiting.push(Waiting { id, request, sink });
            return None;
        }
        let cached = self.sched.cached_tokens(salt, prompt);
        let Some(job) = tier.begin(salt, prompt, cached) else { return Some((request, sink)) };
        let tokens = prompt[..job.tokens as usize].to_vec();
        let waiting = vec![Waiting { id, request, sink }];
        self.restores.push(Restore { job, salt, tokens, began: cached, now: cached, waiting });
        None
    }

    /// Takes over what was read since the last turn.
    pub(super) fn take_restored(&mut self) {
        if self.tier.as_ref().is_some_and(Tier::has_died) {
            tracing::error!("the cache on disk is off: its thread ended by a panic");
            self.tier = None;
            self.tell_cache_anew();
            self.sched.note_runs(0);
            for restore in std::mem::take(&mut self.restores) {
                self.end_restore(restore);
            }
        }
        for _ in 0..PARTS_A_TURN {
            let Some(done) = self.tier.as_ref().and_then(Tier::take_done) else { return };
            let Some(at) = self.restores.iter().position(|r| r.job.number == done.job) else {
                continue;
            };
            if self.take_part(at, done) {
                let restore = self.restores.swap_remove(at);
                self.tier.iter().for_each(|t| t.forget(restore.job.number));
                self.end_restore(restore);
            }
        }
    }

    /// Puts a part into the prefix tree; whether the restore has ended.
    fn take_part(&mut self, at: usize, done: ReadPart) -> bool {
        let restore = &mut self.restores[at];
        let (Some(payload), Some(tier), Some(device)) =
            (done.payload, &self.tier, &mut self.device)
        else {
            return true;
        };
        let end = done.first + done.tokens;
        let new = Adoption {
            salt: restore.salt,
            tokens: &restore.tokens[..end as usize],
            first: done.first / self.config.block_tokens,
            present: tier.wanted(&payload, done.first, restore.job.tokens),
            state: done.state,
        };
        let reached = self.sched.adopt(&new, &mut |group, i, block| {
            let bytes = tier.block(&payload, group, i);
            bytes.is_some_and(|b| device.write_block(group, block, b).is_ok())
        });
        tier.give_back(payload);
        if done.state || !tier.has_states() {
            restore.now = restore.now.max(reached);
        }
        reached < end || end == restore.job.tokens
    }

    /// Lets those in who waited. Who joined another's restore may look for more of its own.
    fn end_restore(&mut self, restore: Restore) {
        let from_disk = restore.began..restore.now;
        for (i, w) in restore.waiting.into_iter().enumerate() {
            let alone = i == 0 || restore.now <= restore.began;
            let back = match alone {
                true => Some((w.request, w.sink)),
                false => self.restore_first(w.id, w.request, w.sink),
            };
            if let Some((request, sink)) = back {
                self.note_restored(&request);
                self.admit(w.id, request, sink, from_disk.clone());
            }
        }
    }

    /// Takes a request out of its restore: its account, and who was to hear of it.
    pub(super) fn stop_restoring(&mut self, id: u64, ending: Ending) -> Option<(u64, Sink)> {
        let place = |r: &Restore| r.waiting.iter().position(|w| w.id == id);
        let at = self.restores.iter().position(|r| place(r).is_some())?;
        let restore = &mut self.restores[at];
        let waiting = restore.waiting.remove(place(restore)?);
        if restore.waiting.is_empty() {
            let restore = self.restores.swap_remove(at);
            self.tier.iter().for_each(|t| t.forget(restore.job.number));
        }
        self.note_never_started(&waiting.request, Part::Disk, ending);
        Some((waiting.request.account, waiting.sink))
    }

    /// Ends whatever waits for the disk with that error.
    pub(super) fn fail_restores(&mut self, error: &RequestError) {
        while let Some(id) = self.restores.first().and_then(|r| r.waiting.first()).map(|w| w.id) {
            let ending = Ending::of_error(error);
            let Some((account, mut sink)) = self.stop_restoring(id, ending) else { return };
            let tell = || sink(Event::Failed(error.clone()));
            if catch_unwind(AssertUnwindSafe(tell)).is_err() {
                tracing::warn!(request = id, "the receiver of a failed request panicked");
            }
            self.stats.queue.leave(account);
            self.closed(&self.stats.failed);
        }
    }

    // ---- to disk ---------------------------------------------------------------------------

    /// Copies one part that is not yet on disk for the tier to write: at most one a turn, so that no
    /// step waits for more. Whether there is more to do.
    pub(crate) fn keep_a_part(&mut self) -> bool {
        let (Some(tier), Some(device)) = (&self.tier, &mut self.device) else { return false };
        let Some(text) = self.sched.noted_text() else { return false };
        let parts = (text.blocks.len() as u32).div_ceil(crate::tier::RUN_BLOCKS);
        let offer = tier.offer(&text, device.as_mut());
        self.kept_parts += u32::from(offer == Offer::Queued);
        // Where the disk has no room for all of a text, writing it would never end.
        if offer == Offer::Settled || self.kept_parts >= parts {
            self.sched.forget_noted();
            self.kept_parts = 0;
        }
        true
    }
}

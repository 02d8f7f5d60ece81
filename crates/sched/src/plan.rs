//! What the next step computes: who is served in which order, and at whose expense.

use crate::scheduler::{Scheduler, seq_mut, seq_ref};
use crate::sequence::{Sequence, Want};
use crate::step::{Grant, Step};

/// What is left of a step's budget.
#[derive(Debug, Clone, Copy)]
struct Budget {
    tokens: u32,
    outputs: u32,
    /// Beside what the streams are due.
    seconds: f64,
    /// Of those, what prompts of many steps may have.
    slow_s: f64,
    /// Tokens that prompts get whatever the time, the first by rank first: none starves.
    floor: u32,
}

/// Prompts that would hold streams up for more full steps than this take no longer in a step than
/// the streams themselves: their gaps double, instead of growing to a full step for as long as the
/// prompt lasts. Shorter ones are not slowed: the sooner they are through, the more streams share a step.
const PATIENT_STEPS: f64 = 10.0;

/// A step of prompts alone takes as many times its base, where that is more than `step_s`: who comes
/// waits for no more than that, and weights are read for enough tokens to be worth it.
const LONE_BASES: f64 = 16.0;

/// Urgent sequences of an account that are let in before an older one of its own, which then is as
/// urgent as any.
const MOST_PASSINGS: u32 = 8;

/// What a waiting sequence would get.
enum Entry {
    Tokens(u32),
    NoBudget,
    NoRoom,
}

impl Scheduler {
    /// Decides the next step. Follow it by `commit` with that step, or by `device_lost`.
    pub fn plan(&mut self, step: &mut Step) {
        step.clear();
        self.lacks_blocks = false;
        let streams = self.order_running();
        step.decoding = streams > 0;
        let before = self.rows_and_block_s();
        let mut budget = self.budget(streams);
        let order = std::mem::take(&mut self.order);
        let (streams, prompts) = order.split_at(streams);
        // Guesses leave a row for who waits, where there are more than those that run must have:
        // without one he could not come in, however few places his account has.
        let limits = &self.config.limits;
        let spare = self.running.len() < limits.step_tokens.min(limits.outputs) as usize;
        let later = prompts.len() + usize::from(spare && !self.waiting.is_empty());
        let due = self.due_at_once(prompts);
        budget.tokens -= due;
        let mut roomy = self.grant_all(streams, later, &mut budget, step);
        if roomy && let Some(most) = self.most_places(prompts) {
            self.admit(|s, seq| s.accounts.places(seq.account) + 2 <= most, &mut budget, step);
        }
        if roomy && let Some(least) = self.fill_steps(prompts) {
            self.admit_to_half(least, &mut budget, step);
        }
        budget.tokens += due;
        roomy &= self.grant_all(prompts, 0, &mut budget, step);
        match roomy {
            true => self.admit(|_, _| true, &mut budget, step),
            false => self.lacks_blocks = true,
        }
        self.order = order;
        step.tokens = step.grants.iter().map(|g| g.tokens).sum();
        step.outputs = step.grants.iter().map(|g| g.outputs).sum();
        step.key_reads = step.grants.iter().map(Grant::key_reads).sum();
        let (tokens, outputs) = (u64::from(step.tokens), u64::from(step.outputs));
        step.predicted_s = self.config.cost.predict(tokens, outputs, step.key_reads);
        // Who gives way in this step had a part in its budget.
        let after = self.rows_and_block_s();
        let (rows_s, block_s) = (before.0.max(after.0), before.1.max(after.1));
        let config = &self.config;
        step.bound_s = config.cost.base_s + config.step_s.max(rows_s) + rows_s + block_s;
    }

    /// What a step may have, whose first in order are `streams`.
    fn budget(&self, streams: usize) -> Budget {
        let (step_s, base_s) = (self.config.step_s, self.config.cost.base_s);
        // Without streams nobody waits for a next token, but somebody may come.
        let (mut seconds, mut slow_s) = (step_s.max(LONE_BASES * base_s), f64::INFINITY);
        if streams > 0 {
            slow_s = self.streams_s(streams);
            // However many streams there are, half of the time is left for prompts.
            seconds = step_s.max(slow_s - base_s);
        }
        let limits = &self.config.limits;
        let floor = self.config.block_tokens;
        Budget { tokens: limits.step_tokens, outputs: limits.outputs, seconds, slow_s, floor }
    }

    /// Grants those of `slots` that still run what they get; `after` more come later. False when
    /// one of them took blocks from another.
    fn grant_all(
        &mut self,
        slots: &[u32],
        after: usize,
        budget: &mut Budget,
        step: &mut Step,
    ) -> bool {
        let preempted = self.counts.preemptions;
        for (&slot, later) in slots.iter().zip((after..after + slots.len()).rev()) {
            if self.place_in_running(slot).is_ok() && !self.came_back(slot, step) {
                self.grant(slot, later as u32, budget, step);
            }
        }
        preempted == self.counts.preemptions
    }

    /// Tokens kept from guesses and from who is let in: those that see each other, where the first
    /// prompt goes on with such, and one for each other prompt.
    fn due_at_once(&self, prompts: &[u32]) -> u32 {
        let first = prompts.first().and_then(|&slot| seq_ref(&self.slots, slot));
        match first.map_or(0, Sequence::block_due) {
            0 => 0,
            due => due + prompts.len() as u32,
        }
    }

    /// Whether a prompt gave way to one that waited, and was then let in again, all in this step.
    fn came_back(&self, slot: u32, step: &Step) -> bool {
        let is_prompt = |s: &Sequence| !s.is_stream(self.config.block_tokens);
        let id = self.id(slot);
        seq_ref(&self.slots, slot).is_some_and(is_prompt) && step.grants.iter().any(|g| g.seq == id)
    }

    /// The places of the account that has most, of those that `slots` are for.
    fn most_places(&self, slots: &[u32]) -> Option<u32> {
        let sequences = slots.iter().filter_map(|&slot| seq_ref(&self.slots, slot));
        sequences.map(|s| self.accounts.places(s.account)).max()
    }

    /// What the least served account of those prompts was served, if they take more than a step.
    fn fill_steps(&self, slots: &[u32]) -> Option<u64> {
        let prompts = || slots.iter().filter_map(|&slot| seq_ref(&self.slots, slot));
        let lacks: u64 = prompts().map(|s| u64::from(s.lacks())).sum();
        let least = prompts().map(|s| self.accounts.served(s.account)).min();
        least.filter(|_| lacks > u64::from(self.config.limits.step_tokens))
    }

    /// Lets those in whom prompts of many steps would keep waiting: who needs no more than half of
    /// a step, and who is of an account that was served less than `least`. They share half of what
    /// the step has for prompts; the other half goes on with what has begun.
    fn admit_to_half(&mut self, least: u64, budget: &mut Budget, step: &mut Step) {
        let half = budget.tokens / 2;
        let seconds = if budget.seconds.is_finite() { budget.seconds.max(0.0) / 2.0 } else { 0.0 };
        let floor = std::mem::take(&mut budget.floor);
        (budget.tokens, budget.seconds) = (budget.tokens - half, budget.seconds - seconds);
        let short = |s: &Self, seq: &Sequence| {
            seq.lacks() <= half || s.accounts.served(seq.account) < least
        };
        self.admit(short, budget, step);
        (budget.tokens, budget.seconds) = (budget.tokens + half, budget.seconds + seconds);
        budget.floor = floor;
    }

    /// Streams by arrival, then prompts by rank; how many streams.
    fn order_running(&mut self) -> usize {
        let mut order = std::mem::take(&mut self.order);
        let is_stream = |&&slot: &&u32| {
            seq_ref(&self.slots, slot).is_some_and(|s| s.is_stream(self.config.block_tokens))
        };
        order.clear();
        let goes_on = |&&slot: &&u32| seq_ref(&self.slots, slot).is_some_and(|s| !s.held_back);
        let going = || self.running.iter().filter(goes_on);
        order.extend(going().filter(is_stream));
        let streams = order.len();
        order.extend(going().filter(|slot| !is_stream(slot)));
        order[streams..].sort_unstable_by_key(|&slot| self.rank(slot));
        self.order = order;
        streams
    }

    /// What a step of the first `streams` of the order takes, seconds.
    fn streams_s(&self, streams: usize) -> f64 {
        let due = self.order[..streams].iter().filter_map(|&slot| seq_ref(&self.slots, slot));
        self.config.cost.base_s + due.map(|s| self.due_s(s)).sum::<f64>()
    }

    /// Seconds of the tokens that a running sequence gets in every step.
    fn due_s(&self, seq: &Sequence) -> f64 {
        let (due, len) = (u64::from(seq.due()), u64::from(seq.len()));
        self.config.cost.beyond_base(due, due, due * len)
    }

    /// Seconds that a sequence has beside the budget: those of what a stream is due.
    fn reserved_s(&self, seq: &Sequence) -> f64 {
        if seq.is_stream(self.config.block_tokens) { self.due_s(seq) } else { 0.0 }
    }

    /// Whether what a sequence lacks would take more than `PATIENT_STEPS` full steps.
    fn is_patient(&self, seq: &Sequence) -> bool {
        let (lacks, computed) = (u64::from(seq.lacks()), u64::from(seq.computed));
        let reads = lacks * computed + lacks * lacks / 2;
        let seconds = self.config.cost.beyond_base(lacks, 0, reads);
        seconds > PATIENT_STEPS * self.config.step_s
    }

    /// Smaller comes first: the account that was served least, and its own priorities.
    fn rank(&self, slot: u32) -> (u64, i32, u64) {
        let rank = |s: &Sequence| (self.accounts.served(s.account), s.priority, s.arrival);
        seq_ref(&self.slots, slot).map_or((0, 0, 0), rank)
    }

    /// The running sequence that gives way first: the last, by its own priorities, of the account
    /// with most places, and of such accounts the one whose last sequence came last. Who is first
    /// in his account, or came first of all where each has one place, never gives way unless he
    /// runs alone: something always goes on.
    fn victim(&self) -> Option<&Sequence> {
        let running = || self.running.iter().filter_map(|&slot| seq_ref(&self.slots, slot));
        let last = running().max_by_key(|s| (self.accounts.places(s.account), s.arrival))?;
        let own = running().filter(|s| s.account == last.account);
        own.max_by_key(|s| (s.priority, s.arrival))
    }

    /// A sequence is let in. Where it passes an older and less urgent one of its account that does
    /// not generate yet, that is counted; the oldest is not passed for ever.
    fn note_passed(&mut self, slot: u32) {
        let Some(seq) = seq_ref(&self.slots, slot) else { return };
        let (account, priority, arrival) = (seq.account, seq.priority, seq.arrival);
        let block_tokens = self.config.block_tokens;
        let passed = |s: &&Sequence| {
            let older = s.account == account && s.arrival < arrival;
            older && s.priority > priority && !s.is_stream(block_tokens)
        };
        let all = self.waiting.iter().chain(&self.running);
        let passed = all.filter_map(|&slot| seq_ref(&self.slots, slot)).filter(passed);
        let Some(oldest) = passed.min_by_key(|s| s.arrival).map(|s| s.slot) else { return };
        if self.accounts.count_passing(account) >= MOST_PASSINGS {
            self.accounts.forget_passings(account);
            seq_mut(&mut self.slots, oldest).priority = i32::MIN;
        }
    }

    /// Seconds of what every running sequence is due, and of the longest block of a prompt.
    fn rows_and_block_s(&self) -> (f64, f64) {
        let (cost, block) = (&self.config.cost, u64::from(self.config.block_tokens));
        let (mut rows_s, mut block_s) = (0.0, 0.0f64);
        for seq in self.running.iter().filter_map(|&slot| seq_ref(&self.slots, slot)) {
            rows_s += self.due_s(seq);
            let len = u64::from(seq.len());
            let rows = if matches!(seq.want, Want::Tokens { .. }) { 0 } else { block };
            let block = block.max(seq.longest_block.into());
            block_s = block_s.max(cost.beyond_base(block, rows, block * len));
        }
        (rows_s, block_s)
    }

    /// Most tokens the budget has for a sequence, keeping one for each of `later` ones.
    fn affordable(&self, seq: &Sequence, later: u32, budget: &Budget) -> u32 {
        let wanted = seq.goal() - seq.computed;
        let tokens = budget.tokens.saturating_sub(later);
        let outputs = seq.tokens_for_outputs(budget.outputs.saturating_sub(later));
        let most = wanted.min(tokens).min(outputs);
        let all_rows = seq.outputs_in(most) > 1;
        let within = |s| self.config.cost.tokens_within(s, seq.computed, all_rows, most);
        let stream = seq.is_stream(self.config.block_tokens);
        // Guesses at the end of a prompt are rows that no floor is for.
        let floor = if stream { seq.due() } else { budget.floor.min(seq.lacks()) };
        let n = within(budget.seconds + self.reserved_s(seq)).max(floor.min(most));
        if self.is_patient(seq) { n.min(within(budget.slow_s).max(1)) } else { n }
    }

    /// Cuts a grant where the state is worth a checkpoint, and before tokens that see each other and
    /// are not all in it; where it begins with those it has them all, whatever the time, or nothing.
    fn cut(&self, seq: &Sequence, n: u32, later: u32, budget: &Budget) -> u32 {
        let n = match self.cache.border(seq) {
            Some(border) if border > seq.computed => n.min(border - seq.computed),
            _ => n,
        };
        match seq.block_around(seq.computed + n) {
            Some([begin, end]) if begin == seq.computed => {
                let (whole, outputs) = (end - begin, budget.outputs.saturating_sub(later));
                let fits = whole <= budget.tokens.saturating_sub(later);
                if fits && seq.outputs_in(whole) <= outputs { whole } else { 0 }
            }
            _ => seq.before_block(n),
        }
    }

    /// Grants a running sequence what the budget and the blocks allow, taking blocks from others
    /// rather than stopping.
    fn grant(&mut self, slot: u32, later: u32, budget: &mut Budget, step: &mut Step) {
        loop {
            let Some(seq) = seq_ref(&self.slots, slot) else { return };
            let n = self.cut(seq, self.affordable(seq, later, budget), later, budget);
            if n == 0 {
                return;
            }
            let fits = seq.before_block(self.cache.fits(seq, n));
            if fits > 0 {
                self.give(slot, fits, budget, step);
                return;
            }
            match self.victim().map(|v| v.slot).filter(|&v| v != slot) {
                Some(victim) => self.preempt(victim, budget, step),
                // Who has all places to himself has all memory.
                None if self.running.len() == 1 && self.break_lease() => {}
                None => {
                    self.counts.preemptions += 1;
                    return;
                }
            }
        }
    }

    fn give(&mut self, slot: u32, n: u32, budget: &mut Budget, step: &mut Step) {
        let id = self.id(slot);
        let block_tokens = self.config.block_tokens;
        let seq = seq_mut(&mut self.slots, slot);
        if !seq.is_stream(block_tokens) {
            budget.floor = budget.floor.saturating_sub(n);
        }
        self.cache.extend(seq, n);
        let grant = Grant { seq: id, context: seq.computed, tokens: n, outputs: seq.outputs_in(n) };
        budget.tokens -= n;
        budget.outputs -= grant.outputs;
        self.charge(slot, &grant, -1.0, budget);
        step.grants.push(grant);
    }

    /// Takes (-1) a grant's time from the budget, or gives it back (1).
    fn charge(&self, slot: u32, grant: &Grant, sign: f64, budget: &mut Budget) {
        let (tokens, outputs) = (u64::from(grant.tokens), u64::from(grant.outputs));
        let seconds = self.config.cost.beyond_base(tokens, outputs, grant.key_reads());
        let seq = seq_ref(&self.slots, slot);
        budget.seconds += sign * (seconds - seq.map_or(0.0, |s| self.reserved_s(s)));
        if seq.is_some_and(|s| self.is_patient(s)) {
            budget.slow_s += sign * seconds;
        }
    }

    /// A sequence gives its blocks up and waits again; what it computed stays in the tree.
    fn preempt(&mut self, slot: u32, budget: &mut Budget, step: &mut Step) {
        let id = self.id(slot);
        if let Some(at) = step.grants.iter().position(|g| g.seq == id) {
            let grant = step.grants.remove(at);
            budget.tokens += grant.tokens;
            budget.outputs += grant.outputs;
            self.charge(slot, &grant, 1.0, budget);
        }
        let seq = seq_mut(&mut self.slots, slot);
        seq.tokens.truncate(seq.known as usize);
        self.cache.release(seq);
        self.accounts.leave(seq.account);
        let arrival = seq.arrival;
        if let Ok(at) = self.place_in_running(slot) {
            self.running.remove(at);
        }
        let slots = &self.slots;
        let older = |&s: &u32| seq_ref(slots, s).is_some_and(|s| s.arrival < arrival);
        let at = self.waiting.partition_point(older);
        self.waiting.insert(at, slot);
        self.counts.preemptions += 1;
    }

    /// Lets waiting sequences in by rank while they fit, or in place of others: those that may.
    fn admit(
        &mut self,
        may: impl Fn(&Self, &Sequence) -> bool,
        budget: &mut Budget,
        step: &mut Step,
    ) {
        let limits = &self.config.limits;
        let most = limits.sequences.min(limits.step_tokens).min(limits.outputs) as usize;
        let mut order = std::mem::take(&mut self.queue);
        let may = |seq: &Sequence| !seq.held_back && may(self, seq);
        let entitled = |&&slot: &&u32| seq_ref(&self.slots, slot).is_some_and(may);
        order.clear();
        order.extend(self.waiting.iter().filter(entitled));
        order.sort_unstable_by_key(|&slot| self.rank(slot));
        for &slot in &order {
            if self.waits_for_another(slot) {
                continue;
            }
            let n = self.let_in(slot, most, budget, step);
            if n == 0 && self.running.len() < most {
                break; // none passes one that waits for blocks
            }
            if n == 0 {
                continue;
            }
            self.place(slot);
            self.give(slot, n, budget, step);
        }
        self.queue = order;
    }

    /// Tokens with which a waiting sequence enters, 0 to wait on; others give way where they must.
    fn let_in(&mut self, slot: u32, most: usize, budget: &mut Budget, step: &mut Step) -> u32 {
        loop {
            if self.running.len() < most {
                match self.enter(slot, budget, step) {
                    Entry::Tokens(n) => {
                        self.lacks_blocks = false;
                        return n;
                    }
                    Entry::NoBudget => return 0,
                    Entry::NoRoom if self.running.is_empty() && self.break_lease() => continue,
                    Entry::NoRoom => self.lacks_blocks = true,
                }
            } else if seq_ref(&self.slots, slot).is_none_or(|s| self.affordable(s, 0, budget) == 0)
            {
                return 0;
            }
            match self.displaced_by(slot) {
                Some(victim) => self.preempt(victim, budget, step),
                None => return 0,
            }
        }
    }

    /// From the waiting ones to the running ones.
    fn place(&mut self, slot: u32) {
        self.note_passed(slot);
        self.waiting.retain(|&s| s != slot);
        if let Err(at) = self.place_in_running(slot) {
            self.running.insert(at, slot);
        }
        if let Some(seq) = seq_ref(&self.slots, slot) {
            self.accounts.enter(seq.account);
        }
    }

    /// The running sequence whose place a waiting one may have: a less urgent one of its own account,
    /// or the last one of an account with at least two places more.
    fn displaced_by(&self, slot: u32) -> Option<u32> {
        let seq = seq_ref(&self.slots, slot)?;
        let running = self.running.iter().filter_map(|&slot| seq_ref(&self.slots, slot));
        let less = running.filter(|r| r.account == seq.account && r.priority > seq.priority);
        let places = |s: &Sequence| self.accounts.places(s.account);
        let richer = || self.victim().filter(|v| places(v) >= places(seq) + 2);
        less.max_by_key(|r| (r.priority, r.arrival)).or_else(richer).map(|v| v.slot)
    }

    /// Whether a running sequence is about to compute a block that this one can share: parallel
    /// answers to one prompt, or requests that arrive together with the same beginning. It is
    /// cheaper to wait; others may pass meanwhile.
    fn waits_for_another(&self, slot: u32) -> bool {
        let Some(seq) = seq_ref(&self.slots, slot) else { return false };
        let most = seq.first_output().min(seq.goal() - 1);
        let useful = |&r: &u32| {
            let Some(other) = seq_ref(&self.slots, r).filter(|o| o.salt == seq.salt) else {
                return false;
            };
            let end = self.cache.next_shared(other);
            end <= most.min(other.known)
                && seq.tokens[..end as usize] == other.tokens[..end as usize]
        };
        self.cache.is_shared() && self.running.iter().any(useful)
    }

    /// Attaches a waiting sequence to its cached prefix if it can have tokens now; otherwise it
    /// goes on waiting with nothing attached.
    fn enter(&mut self, slot: u32, budget: &Budget, step: &Step) -> Entry {
        let whole = self.config.whole_sequences;
        let seq = seq_mut(&mut self.slots, slot);
        let most = seq.first_output().min(seq.goal() - 1);
        self.cache.attach(seq, most);
        let Some(seq) = seq_ref(&self.slots, slot) else { return Entry::NoBudget };
        let mut n = self.cut(seq, self.affordable(seq, 0, budget), 0, budget);
        if whole {
            let fits = seq.goal() <= budget.tokens && seq.outputs_in(seq.goal()) <= budget.outputs;
            let now = n == seq.goal() || step.is_empty();
            n = if fits && now { seq.goal() } else { 0 };
        }
        let mut entry = Entry::NoBudget;
        if n > 0 {
            n = if self.roomy(seq) { seq.before_block(self.cache.fits(seq, n)) } else { 0 };
            entry = if n > 0 { Entry::Tokens(n) } else { Entry::NoRoom };
        }
        let seq = seq_mut(&mut self.slots, slot);
        if n == 0 {
            self.cache.release(seq);
        } else if !seq.started {
            seq.cached = seq.computed;
            seq.miss = self.cache.miss(seq, most);
        }
        entry
    }

    /// Whether there are blocks for a sequence and for those that run, at the lengths they will
    /// probably reach. One that runs alone always fits.
    fn roomy(&self, seq: &Sequence) -> bool {
        let running = || self.running.iter().filter_map(|&slot| seq_ref(&self.slots, slot));
        let fits = |g| {
            let grows = |s: &Sequence| u64::from(self.cache.growth(s, g, self.likely_len(s)));
            let wanted = grows(seq) + running().map(grows).sum::<u64>();
            wanted <= u64::from(self.cache.obtainable(g))
        };
        self.running.is_empty() || (0..self.config.groups.len()).all(fits)
    }

    /// Tokens a sequence will probably reach: answers are about as long as those before.
    fn likely_len(&self, seq: &Sequence) -> u32 {
        let generates = matches!(seq.want, Want::Tokens { .. });
        let answer = if generates { self.typical_answer.ceil() as u32 } else { 0 };
        seq.prompt.saturating_add(answer).max(seq.len() + 1).min(seq.max_len)
    }
}

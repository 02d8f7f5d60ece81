//! The scheduler. One rule: every step grants each sequence `min(goal − computed, budget left,
//! blocks obtainable)` tokens. Prefill in chunks, decoding, prefix hits, drafts and preemption are
//! that rule.

use std::collections::VecDeque;

use thiserror::Error;
use tokenmill_ir::{BlockId, GroupKind, Limits, StepOutput, TokenId};

use crate::cache::KvCache;
use crate::runs::Noted;
use crate::sequence::{NewSequence, SeqId, Sequence, Want};
use crate::step::{Grant, Outcome, Progress, Step, StepCost};

/// What a scheduler is made for.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Kind of each cache group of the program.
    pub groups: Vec<GroupKind>,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// Bounds of a step and of the cache.
    pub limits: Limits,
    /// The program takes whole sequences only and keeps nothing.
    pub whole_sequences: bool,
    /// Columns of a logits row.
    pub vocab: u32,
    /// Columns of a hidden row.
    pub hidden: u32,
    /// How long steps take.
    pub cost: StepCost,
    /// How long a step may take, seconds, beyond its base, while a sequence is decoding: bounds the
    /// gap between two of its tokens.
    pub step_s: f64,
    /// State slots that may hold checkpoints for prefix hits.
    pub checkpoint_slots: u32,
}

/// Why a sequence can never run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// Nothing to compute.
    #[error("nothing to compute")]
    Empty,
    /// Generation by a program that takes whole sequences and keeps nothing.
    #[error("the model keeps no cache to generate with")]
    KeepsNothing,
    /// Longer than the context or than the whole cache.
    #[error("{len} tokens, the limit is {limit}")]
    TooLong {
        /// Tokens it may reach.
        len: u32,
        /// Limit.
        limit: u32,
    },
}

/// Blocks of one group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// All.
    pub total: u32,
    /// Never used or given back.
    pub free: u32,
    /// Held by the prefix tree alone.
    pub cached: u32,
}

/// What the scheduler has done and holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sequences with blocks.
    pub running: u32,
    /// Sequences without.
    pub waiting: u32,
    /// Times a sequence gave its blocks up for an older one.
    pub preemptions: u64,
    /// Draft tokens computed.
    pub drafted: u64,
    /// Draft tokens that were right.
    pub accepted: u64,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub generation: u32,
    pub seq: Option<Box<Sequence>>,
}

/// Sequences, their order, and the cache they share.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: Config,
    pub(crate) cache: KvCache,
    pub(crate) slots: Vec<Slot>,
    spare: Vec<u32>,
    /// Slots of sequences with blocks, in order of arrival.
    pub(crate) running: Vec<u32>,
    /// Slots of sequences without, in order of arrival.
    pub(crate) waiting: VecDeque<u32>,
    order: Vec<u32>,
    arrivals: u64,
    counts: Counts,
    pub(crate) noted: Noted,
}

/// What is left of a step's budget.
#[derive(Debug, Clone, Copy)]
struct Budget {
    tokens: u32,
    outputs: u32,
    seconds: f64,
    /// Tokens that the next long sequence gets whatever the time: prefill never starves.
    floor: u32,
}

impl Scheduler {
    /// An idle scheduler.
    pub fn new(config: Config) -> Self {
        let sharing = !config.whole_sequences && !config.groups.is_empty();
        let cache = KvCache::new(
            &config.groups,
            config.block_tokens,
            &config.limits,
            config.checkpoint_slots,
            sharing,
        );
        let sequences = config.limits.sequences as usize;
        Self {
            cache,
            slots: Vec::with_capacity(sequences),
            spare: Vec::with_capacity(sequences),
            running: Vec::with_capacity(sequences),
            waiting: VecDeque::with_capacity(sequences),
            order: Vec::with_capacity(sequences),
            arrivals: 0,
            counts: Counts::default(),
            noted: Noted::default(),
            config,
        }
    }

    /// Most tokens any sequence may reach: the context, or what the cache holds for one sequence.
    pub fn longest(&self) -> u32 {
        let c = &self.config;
        let mut longest = c.limits.context;
        if c.whole_sequences {
            longest = longest.min(c.limits.step_tokens);
        }
        for (kind, pool) in c.groups.iter().zip(&self.cache.pools) {
            let blocks = pool.total();
            let tokens = u64::from(blocks) * u64::from(c.block_tokens) + 1;
            let fits = match *kind {
                GroupKind::State => u64::from(blocks.min(1)) * u64::from(u32::MAX),
                GroupKind::Window { tokens: window }
                    if blocks > window.saturating_sub(1).div_ceil(c.block_tokens) =>
                {
                    u64::from(u32::MAX)
                }
                _ => tokens,
            };
            longest = u64::from(longest).min(fits) as u32;
        }
        longest
    }

    /// Takes a sequence, or says why it can never run.
    pub fn submit(&mut self, new: NewSequence) -> Result<SeqId, Refused> {
        let len = new.tokens.len();
        let least = if matches!(new.want, Want::Scores { .. }) { 2 } else { 1 };
        let nothing = match new.want {
            Want::Tokens { .. } => new.max_len as usize <= len,
            Want::Logits { from } => from as usize >= len,
            _ => false,
        };
        if len < least || nothing {
            return Err(Refused::Empty);
        }
        if self.config.whole_sequences && matches!(new.want, Want::Tokens { .. }) {
            return Err(Refused::KeepsNothing);
        }
        let len = u32::try_from(len).unwrap_or(u32::MAX).max(new.max_len);
        let limit = self.longest();
        if len > limit {
            return Err(Refused::TooLong { len, limit });
        }
        let new = NewSequence { max_len: len, ..new };
        let groups = self.config.groups.len();
        self.arrivals += 1;
        let seq = Sequence::new(new, self.arrivals, self.config.block_tokens, groups);
        let slot = self.spare.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, seq: None });
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize].seq = Some(Box::new(seq));
        self.waiting.push_back(slot);
        Ok(self.id(slot))
    }

    /// Forgets a sequence; what it computed stays in the prefix tree. Not between `plan` and
    /// `commit` of a step that grants it tokens.
    pub fn cancel(&mut self, id: SeqId) {
        if self.get(id).is_some() {
            self.cache.release(seq_mut(&mut self.slots, id.slot));
            self.remove(id.slot);
        }
    }

    /// Offers tokens that may follow a generating sequence; they are verified in its next step.
    /// Returns how many were taken: none unless only its last token is not yet computed.
    pub fn offer_draft(&mut self, id: SeqId, draft: &[TokenId]) -> u32 {
        let vocab = self.config.vocab;
        let Some(seq) = self.get_mut(id) else { return 0 };
        let generating = matches!(seq.want, Want::Tokens { .. }) && seq.computed > 0;
        if !generating || seq.computed + 1 != seq.known || seq.len() != seq.known {
            return 0;
        }
        let room = (seq.max_len - seq.known - 1) as usize;
        let valid = draft.iter().take(room).take_while(|&&t| t < vocab);
        seq.tokens.extend(valid);
        seq.len() - seq.known
    }

    /// Known tokens of a sequence (prompt and generated).
    pub fn tokens(&self, id: SeqId) -> Option<&[TokenId]> {
        self.get(id).and_then(|s| s.tokens.get(..s.known as usize))
    }

    /// Sequences that run, oldest first.
    pub fn running(&self) -> impl Iterator<Item = SeqId> + '_ {
        self.running.iter().map(|&slot| self.id(slot))
    }

    /// Whether no sequence is known.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Counters and sizes.
    pub fn counts(&self) -> Counts {
        let (running, waiting) = (self.running.len() as u32, self.waiting.len() as u32);
        Counts { running, waiting, ..self.counts }
    }

    /// Blocks of a group.
    pub fn group_counts(&self, group: usize) -> GroupCounts {
        self.cache.pools.get(group).map_or_else(GroupCounts::default, |p| GroupCounts {
            total: p.total(),
            free: p.free(),
            cached: p.cached(),
        })
    }

    /// Blocks of a group that hold nothing for anybody.
    pub fn free_blocks(&self, group: usize) -> impl Iterator<Item = BlockId> + '_ {
        self.cache.pools.get(group).into_iter().flat_map(|p| p.free_blocks())
    }

    /// The device lost its memory: every block is free, nothing is cached, and all sequences start
    /// over with what they know.
    pub fn device_lost(&mut self) {
        for &slot in &self.running {
            let seq = seq_mut(&mut self.slots, slot);
            seq.tokens.truncate(seq.known as usize);
            self.cache.release(seq);
        }
        for slot in self.running.drain(..).rev() {
            self.waiting.push_front(slot);
        }
        // Sequences preempted earlier may be older than those that ran.
        let slots = &self.slots;
        let arrival = |&slot: &u32| seq_ref(slots, slot).map_or(0, |s| s.arrival);
        self.waiting.make_contiguous().sort_unstable_by_key(arrival);
        let c = &self.config;
        let sharing = !c.whole_sequences && !c.groups.is_empty();
        self.cache =
            KvCache::new(&c.groups, c.block_tokens, &c.limits, c.checkpoint_slots, sharing);
    }

    // ---- plan ------------------------------------------------------------------------------

    /// Decides the next step. Follow it by `commit` with that step, or by `device_lost`.
    pub fn plan(&mut self, step: &mut Step) {
        step.clear();
        // Short ones (decoding) before long ones (prefill), each by arrival.
        self.order.clear();
        let mut decoding = false;
        for short in [true, false] {
            for i in 0..self.running.len() {
                if self.is_short(self.running[i]) == short {
                    self.order.push(self.running[i]);
                    decoding |= short;
                }
            }
        }
        let mut budget = Budget {
            tokens: self.config.limits.step_tokens,
            outputs: self.config.limits.outputs,
            // Nobody waits for a next token: nothing to hurry for.
            seconds: if decoding { self.config.step_s } else { f64::INFINITY },
            floor: self.config.block_tokens,
        };
        let preempted = self.counts.preemptions;
        for i in 0..self.order.len() {
            let later = (self.order.len() - i - 1) as u32;
            let slot = self.order[i];
            if self.place_in_running(slot).is_ok() {
                self.grant(slot, later, &mut budget, step);
            }
        }
        if preempted == self.counts.preemptions {
            self.admit(&mut budget, step);
        }
        let read = |g: &Grant| {
            let (context, n) = (u64::from(g.context), u64::from(g.tokens));
            n * context + n * (n + 1) / 2
        };
        step.tokens = step.grants.iter().map(|g| g.tokens).sum();
        step.outputs = step.grants.iter().map(|g| g.outputs).sum();
        step.key_reads = step.grants.iter().map(read).sum();
        step.predicted_s = self.config.cost.predict(u64::from(step.tokens), step.key_reads);
    }

    fn is_short(&self, slot: u32) -> bool {
        let size = self.config.block_tokens;
        seq_ref(&self.slots, slot).is_some_and(|s| s.goal() - s.computed <= size)
    }

    /// Most tokens the budget has for a sequence, keeping one for each of `later` ones.
    fn affordable(&self, seq: &Sequence, later: u32, budget: &Budget) -> u32 {
        let wanted = seq.goal() - seq.computed;
        let short = wanted <= self.config.block_tokens;
        let tokens = budget.tokens.saturating_sub(later);
        let outputs = seq.tokens_for_outputs(budget.outputs.saturating_sub(later));
        let most = wanted.min(tokens).min(outputs);
        let timed = self.config.cost.tokens_within(budget.seconds, seq.computed, most);
        let floor =
            if short { seq.known.saturating_sub(seq.computed).min(1) } else { budget.floor };
        timed.max(floor.min(most))
    }

    /// Cuts a grant where the state is worth a checkpoint.
    fn cut(&self, seq: &Sequence, n: u32) -> u32 {
        match self.cache.border(seq) {
            Some(border) if border > seq.computed => n.min(border - seq.computed),
            _ => n,
        }
    }

    /// Grants a running sequence what the budget and the blocks allow, taking blocks from younger
    /// sequences rather than stopping.
    fn grant(&mut self, slot: u32, later: u32, budget: &mut Budget, step: &mut Step) {
        loop {
            let Some(seq) = seq_ref(&self.slots, slot) else { return };
            let n = self.cut(seq, self.affordable(seq, later, budget));
            if n == 0 {
                return;
            }
            let fits = self.cache.fits(seq, n);
            if fits > 0 {
                self.give(slot, fits, budget, step);
                return;
            }
            match self.running.last() {
                Some(&youngest) if youngest != slot => self.preempt(youngest, budget, step),
                _ => return,
            }
        }
    }

    fn give(&mut self, slot: u32, n: u32, budget: &mut Budget, step: &mut Step) {
        let id = self.id(slot);
        let block_tokens = self.config.block_tokens;
        let seq = seq_mut(&mut self.slots, slot);
        if seq.goal() - seq.computed > block_tokens {
            budget.floor = 0;
        }
        self.cache.extend(seq, n);
        let grant = Grant { seq: id, context: seq.computed, tokens: n, outputs: seq.outputs_in(n) };
        budget.tokens -= n;
        budget.outputs -= grant.outputs;
        budget.seconds -= self.seconds(&grant);
        step.grants.push(grant);
    }

    fn seconds(&self, grant: &Grant) -> f64 {
        let n = u64::from(grant.tokens);
        let keys = n * u64::from(grant.context) + n * n / 2;
        let cost = &self.config.cost;
        cost.predict(n, keys) - cost.predict(0, 0)
    }

    /// A sequence gives its blocks up and waits again; what it computed stays in the tree.
    fn preempt(&mut self, slot: u32, budget: &mut Budget, step: &mut Step) {
        let id = self.id(slot);
        if let Some(at) = step.grants.iter().position(|g| g.seq == id) {
            let grant = step.grants.remove(at);
            budget.tokens += grant.tokens;
            budget.outputs += grant.outputs;
            budget.seconds += self.seconds(&grant);
        }
        let seq = seq_mut(&mut self.slots, slot);
        seq.tokens.truncate(seq.known as usize);
        self.cache.release(seq);
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

    /// Lets waiting sequences in, oldest first, while they fit.
    fn admit(&mut self, budget: &mut Budget, step: &mut Step) {
        let limits = &self.config.limits;
        let most = limits.sequences.min(limits.step_tokens).min(limits.outputs) as usize;
        let mut at = 0;
        while at < self.waiting.len() && self.running.len() < most {
            let slot = self.waiting[at];
            if self.waits_for_another(slot) {
                at += 1;
                continue;
            }
            let n = self.enter(slot, budget, step);
            if n == 0 {
                return;
            }
            self.waiting.remove(at);
            if let Err(place) = self.place_in_running(slot) {
                self.running.insert(place, slot);
            }
            self.give(slot, n, budget, step);
        }
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

    /// Attaches a waiting sequence to its cached prefix; the tokens it can have now, 0 to go on
    /// waiting with nothing attached.
    fn enter(&mut self, slot: u32, budget: &Budget, step: &Step) -> u32 {
        let whole = self.config.whole_sequences;
        let alone = self.running.is_empty();
        let seq = seq_mut(&mut self.slots, slot);
        let most = seq.first_output().min(seq.goal() - 1);
        self.cache.attach(seq, most);
        let Some(seq) = seq_ref(&self.slots, slot) else { return 0 };
        let mut n = self.cut(seq, self.affordable(seq, 0, budget));
        if whole {
            let fits = seq.goal() <= budget.tokens && seq.outputs_in(seq.goal()) <= budget.outputs;
            let now = n == seq.goal() || step.is_empty();
            n = if fits && now { seq.goal() } else { 0 };
        }
        if n > 0 && (alone || self.cache.roomy(seq)) {
            n = self.cache.fits(seq, n);
        } else {
            n = 0;
        }
        let seq = seq_mut(&mut self.slots, slot);
        if n == 0 {
            self.cache.release(seq);
        } else if !seq.started {
            seq.cached = seq.computed;
        }
        n
    }

    // ---- commit ----------------------------------------------------------------------------

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
                report(Outcome::Started { cached: seq.cached });
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
        let end = seq.computed + grant.tokens;
        let taken = match seq.want {
            Want::Tokens { .. } => accept(seq, grant, out, at.output, report),
            Want::Scores { .. } => scored(seq, grant, out, at.output, report),
            Want::Logits { .. } => rows(seq, grant, out, widths.0, at, report),
            Want::Hidden => rows(seq, grant, out, widths.1, at, report),
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

    // ---- slots -----------------------------------------------------------------------------

    fn id(&self, slot: u32) -> SeqId {
        SeqId { slot, generation: self.slots[slot as usize].generation }
    }

    pub(crate) fn get(&self, id: SeqId) -> Option<&Sequence> {
        let slot = self.slots.get(id.slot as usize)?;
        slot.seq.as_deref().filter(|_| slot.generation == id.generation)
    }

    fn get_mut(&mut self, id: SeqId) -> Option<&mut Sequence> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        slot.seq.as_deref_mut().filter(|_| slot.generation == id.generation)
    }

    /// Where a sequence is in `running`, or where it would be.
    fn place_in_running(&self, slot: u32) -> Result<usize, usize> {
        let arrival = seq_ref(&self.slots, slot).map_or(0, |s| s.arrival);
        let key = |&s: &u32| seq_ref(&self.slots, s).map_or(0, |s| s.arrival);
        self.running.binary_search_by_key(&arrival, key)
    }

    fn remove(&mut self, slot: u32) {
        match self.place_in_running(slot) {
            Ok(at) => {
                self.running.remove(at);
            }
            Err(_) => self.waiting.retain(|&s| s != slot),
        }
        let entry = &mut self.slots[slot as usize];
        entry.seq = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.spare.push(slot);
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

pub(crate) fn seq_ref(slots: &[Slot], slot: u32) -> Option<&Sequence> {
    slots.get(slot as usize).and_then(|s| s.seq.as_deref())
}

/// A listed slot holds a sequence: that is what the lists mean.
pub(crate) fn seq_mut(slots: &mut [Slot], slot: u32) -> &mut Sequence {
    match slots[slot as usize].seq.as_deref_mut() {
        Some(seq) => seq,
        None => unreachable!("slot {slot} is listed but empty"),
    }
}

/// Appends sampled tokens for as long as each draft token before them was the one sampled.
fn accept(
    seq: &mut Sequence,
    grant: &Grant,
    out: &StepOutput,
    first: u32,
    report: &mut impl FnMut(Outcome),
) -> Rows {
    let mut rows = Rows::default();
    if grant.outputs == 0 {
        return rows;
    }
    rows.drafted = grant.outputs - 1;
    for output in first..first + grant.outputs {
        let sampled = out.sampled.get(output as usize).copied().unwrap_or_default();
        let index = seq.known - seq.prompt;
        if !sampled.valid {
            rows.invalid = Some(index);
            break;
        }
        report(Outcome::Token { index, token: sampled.token, output });
        let draft = seq.tokens.get(seq.known as usize).copied();
        let right = output + 1 < first + grant.outputs && draft == Some(sampled.token);
        if !right {
            seq.tokens.truncate(seq.known as usize);
            seq.tokens.push(sampled.token);
        }
        seq.known += 1;
        if !right {
            break;
        }
        rows.accepted += 1;
    }
    seq.tokens.truncate(seq.known as usize);
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
    let first = grant.context + grant.tokens - grant.outputs;
    for position in first..first + grant.outputs {
        let numbers = out.rows.get(at.number..at.number + width);
        if !numbers.is_some_and(|n| n.iter().all(|x| x.is_finite())) {
            at.number += width * (first + grant.outputs - position) as usize;
            return Rows { invalid: Some(position), ..Rows::default() };
        }
        report(Outcome::Row { position, start: at.number, len: width });
        at.number += width;
        seq.delivered = position + 1;
    }
    Rows::default()
}

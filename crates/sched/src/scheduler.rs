//! The scheduler. One rule: every step grants each sequence `min(goal − computed, budget left,
//! blocks obtainable)` tokens. Prefill in chunks, decoding, prefix hits, drafts and preemption are
//! that rule. Here is what it knows; `plan` and `commit` are the two halves of a step.

use std::collections::VecDeque;

use thiserror::Error;
use tokenmill_ir::{BlockId, GroupKind, Limits, TokenId};

use crate::accounts::Accounts;
use crate::cache::KvCache;
use crate::runs::Noted;
use crate::sequence::{NewSequence, Numbers, Place, SeqId, Sequence, Want};
use crate::step::{Odds, StepCost};

const STATE: GroupKind = GroupKind::State;

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
    /// Most tokens that see each other, such as those of an image: a step and a window have room for
    /// them. 0: none do.
    pub longest_block: u32,
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
    /// Rows that are listed, of a program that does not take whole sequences.
    #[error("the model does not take whole sequences")]
    KeepsCache,
    /// More output rows than a step has.
    #[error("{rows} rows are wanted, the limit is {limit}")]
    ManyRows {
        /// Wanted.
        rows: u32,
        /// Limit.
        limit: u32,
    },
    /// Tokens that see each other, more than a step computes beside others.
    #[error("{len} tokens that see each other, the limit is {limit}")]
    LongBlock {
        /// Tokens of the longest block.
        len: u32,
        /// Limit.
        limit: u32,
    },
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
    /// Times a sequence gave its blocks up for another, or waited a step for want of blocks.
    pub preemptions: u64,
    /// Leases that ended early, for a sequence that needed the memory and ran alone.
    pub broken_leases: u64,
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
    /// Who is served in which order; scratch of `plan`.
    pub(crate) order: Vec<u32>,
    /// Who is let in in which order; scratch of `plan`.
    pub(crate) queue: Vec<u32>,
    /// In the step that was planned last somebody could not come in for want of blocks.
    pub(crate) lacks_blocks: bool,
    pub(crate) accounts: Accounts,
    /// Tokens of recent answers, smoothed; none until one has ended.
    pub(crate) typical_answer: f64,
    answers: u64,
    arrivals: u64,
    pub(crate) counts: Counts,
    pub(crate) noted: Noted,
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
            queue: Vec::with_capacity(sequences),
            lacks_blocks: false,
            accounts: Accounts::default(),
            typical_answer: 0.0,
            answers: 0,
            arrivals: 0,
            counts: Counts::default(),
            noted: Noted::default(),
            config,
        }
    }

    /// Takes a sequence, or says why it can never run.
    pub fn submit(&mut self, new: NewSequence) -> Result<SeqId, Refused> {
        let len = new.tokens.len();
        let least = if matches!(new.want, Want::Numbers(Numbers::Scores { .. })) { 2 } else { 1 };
        let nothing = match new.want {
            Want::Tokens { .. } => new.max_len as usize <= len,
            Want::Numbers(Numbers::Logits { from }) => from as usize >= len,
            _ => false,
        };
        if len < least || nothing {
            return Err(Refused::Empty);
        }
        if self.config.whole_sequences && matches!(new.want, Want::Tokens { .. }) {
            return Err(Refused::KeepsNothing);
        }
        self.check_rows(&new)?;
        let len = u32::try_from(len).unwrap_or(u32::MAX).max(new.max_len);
        let limit = self.longest();
        if len > limit {
            return Err(Refused::TooLong { len, limit });
        }
        let new = NewSequence { max_len: len, ..new };
        let groups = self.config.groups.len();
        self.arrivals += 1;
        let slot = self.spare.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, seq: None });
            self.slots.len() as u32 - 1
        });
        let place =
            Place { slot, arrival: self.arrivals, account: self.accounts.open(new.account) };
        let seq = Sequence::new(new, place, self.config.block_tokens, groups);
        self.slots[slot as usize].seq = Some(Box::new(seq));
        self.waiting.push_back(slot);
        Ok(self.id(slot))
    }

    /// Whether its rows and the tokens that see each other fit a step.
    fn check_rows(&self, new: &NewSequence) -> Result<(), Refused> {
        let whole = self.config.whole_sequences;
        if new.want == Want::Numbers(Numbers::Listed) {
            let limit = self.config.limits.outputs;
            let rows = new.inputs.as_ref().map_or(0, |inputs| inputs.outputs.len() as u32);
            return match rows {
                0 => Err(Refused::Empty),
                _ if !whole => Err(Refused::KeepsCache),
                _ if rows > limit => Err(Refused::ManyRows { rows, limit }),
                _ => Ok(()),
            };
        }
        let (len, limit) = (new.longest_block(), self.longest_block());
        if whole || len <= limit { Ok(()) } else { Err(Refused::LongBlock { len, limit }) }
    }

    /// Forgets a sequence; what it computed stays in the prefix tree. Not between `plan` and
    /// `commit` of a step that grants it tokens.
    pub fn cancel(&mut self, id: SeqId) {
        if self.get(id).is_some() {
            self.cache.release(seq_mut(&mut self.slots, id.slot));
            self.remove(id.slot);
        }
    }

    /// How long the steps to come may take beyond their base, seconds.
    pub fn set_step_s(&mut self, step_s: f64) {
        self.config.step_s = step_s;
    }

    /// Whether a sequence waits, for something that is not the scheduler's: steps pass it by.
    pub fn hold_back(&mut self, id: SeqId, waits: bool) {
        if let Some(seq) = self.get_mut(id) {
            seq.held_back = waits;
        }
    }

    /// Offers tokens that may follow a generating sequence; they are verified in its next step.
    /// Returns how many were taken: none unless only its last token is not yet computed.
    pub fn offer_draft(&mut self, id: SeqId, draft: &[TokenId]) -> u32 {
        let vocab = self.config.vocab;
        let Some(seq) = self.get_mut(id).filter(|s| s.takes_drafts()) else { return 0 };
        let room = (seq.max_len - seq.known - 1) as usize;
        let valid = draft.iter().take(room).take_while(|&&t| t < vocab);
        seq.tokens.extend(valid);
        seq.len() - seq.known
    }

    /// Appends tokens that must follow a generating sequence: they are computed like a prompt's,
    /// without rows of their own, and reported with the one after them. Returns how many were taken:
    /// none unless only its last token is not yet computed.
    pub fn append(&mut self, id: SeqId, tokens: &[TokenId]) -> u32 {
        let taken = self.offer_draft(id, tokens);
        if let Some(seq) = self.get_mut(id).filter(|_| taken > 0) {
            (seq.known, seq.foretold) = (seq.len(), taken);
        }
        taken
    }

    /// Tokens of a sequence that are in the cache; 0 while it waits.
    pub fn computed(&self, id: SeqId) -> Option<u32> {
        self.get(id).map(|s| s.computed)
    }

    /// Tokens for which running sequences hold room they do not use yet, and how many tables of
    /// blocks they hold; states have no room.
    pub fn slack(&self) -> (u64, u64) {
        let (mut tokens, mut tables) = (0, 0);
        for seq in self.running.iter().filter_map(|&slot| seq_ref(&self.slots, slot)) {
            for (g, _) in self.config.groups.iter().enumerate().filter(|(_, k)| **k != STATE) {
                let room = seq.tables[g].len() as u64 * u64::from(self.config.block_tokens);
                tokens += room - u64::from(seq.computed);
                tables += 1;
            }
        }
        (tokens, tables)
    }

    /// How many draft tokens, of at most `most`, make the tokens of all sequences come fastest by
    /// predicted time: a draft takes the time to guess it and that of its rows, and saves the steps of what is right.
    /// 0 when none pays, or none would be taken.
    pub fn draft_that_pays(&self, id: SeqId, odds: Odds, most: u32) -> u32 {
        let Some(seq) = self.get(id).filter(|s| s.takes_drafts()) else { return 0 };
        let keys = |&r: &u32| seq_ref(&self.slots, r).map_or(0, |s| u64::from(s.computed) + 1);
        let (all, cost) = (self.running.len() as u64, &self.config.cost);
        let alone_s = cost.predict(all, all, self.running.iter().map(keys).sum());
        let mut row_s = cost.beyond_base(1, 1, u64::from(seq.computed) + 1);
        if self.config.groups.contains(&STATE) {
            row_s *= 2.0; // what was right is computed again when the rest was wrong
        }
        // Short enough for a step that nobody waits for.
        let most = most.min(self.config.block_tokens - 1);
        let (mut best, mut chance, mut gained) = (0, odds.first, 0.0);
        // A gain below a twentieth is not worth the risk of the prediction.
        let mut best_rate = 1.05 * all as f64 / alone_s;
        for n in 1..=most {
            gained += chance;
            chance *= odds.later;
            let rate = (all as f64 + gained) / (alone_s + f64::from(n) * (row_s + odds.guess_s));
            if rate > best_rate {
                (best, best_rate) = (n, rate);
            }
        }
        best
    }

    /// Known tokens of a sequence (prompt and generated).
    pub fn tokens(&self, id: SeqId) -> Option<&[TokenId]> {
        self.get(id).and_then(|s| s.tokens.get(..s.known as usize))
    }

    /// Where a text leaves the nearest one in the prefix cache: tokens they share from the start,
    /// and what the cached one has there, up to the end of its block. `None`: nothing is cached.
    pub fn nearest(&self, salt: u64, text: &[TokenId]) -> Option<(u32, Vec<TokenId>)> {
        let tree = &self.cache.tree;
        let (common, node) = tree.nearest(salt, text);
        let at = common % self.config.block_tokens as usize;
        let rest = node.map_or(Vec::new(), |n| tree.tokens(n)[at..].to_vec());
        (common > 0 || node.is_some()).then_some((common as u32, rest))
    }

    /// Whether a sequence is of tokens only.
    pub fn is_text(&self, id: SeqId) -> bool {
        self.get(id).is_some_and(|seq| seq.rows == 0)
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
            self.accounts.leave(seq.account);
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
        self.cache.tree.note_all_removed();
        let log = self.cache.tree.log.take();
        self.cache =
            KvCache::new(&c.groups, c.block_tokens, &c.limits, c.checkpoint_slots, sharing);
        self.cache.tree.log = log;
    }

    // ---- slots -----------------------------------------------------------------------------

    pub(crate) fn id(&self, slot: u32) -> SeqId {
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
    pub(crate) fn place_in_running(&self, slot: u32) -> Result<usize, usize> {
        let arrival = seq_ref(&self.slots, slot).map_or(0, |s| s.arrival);
        let key = |&s: &u32| seq_ref(&self.slots, s).map_or(0, |s| s.arrival);
        self.running.binary_search_by_key(&arrival, key)
    }

    /// Forgets a sequence whose blocks were released.
    pub(crate) fn remove(&mut self, slot: u32) {
        let Some(seq) = seq_ref(&self.slots, slot) else { return };
        if seq.known > seq.prompt {
            self.answers += 1;
            let weight = (1.0 / self.answers as f64).max(0.1);
            let tokens = f64::from(seq.known - seq.prompt);
            self.typical_answer += weight * (tokens - self.typical_answer);
        }
        let account = seq.account;
        match self.place_in_running(slot) {
            Ok(at) => {
                self.running.remove(at);
                self.accounts.leave(account);
            }
            Err(_) => self.waiting.retain(|&s| s != slot),
        }
        self.accounts.close(account);
        let entry = &mut self.slots[slot as usize];
        entry.seq = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.spare.push(slot);
    }
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

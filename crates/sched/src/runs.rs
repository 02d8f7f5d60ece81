//! Runs of blocks, and states, between the prefix tree and a store outside: named once they are worth
//! keeping, given out with their text, and taken back in.

use std::collections::VecDeque;

use tokenmill_ir::{BlockId, GroupKind, MAX_GROUPS, TokenId};

use crate::block_pool::NONE;
use crate::cache::KvCache;
use crate::prefix::PrefixId;
use crate::scheduler::Scheduler;
use crate::sequence::{NewSequence, Numbers, Place, Sequence, Want};

/// Texts that may wait to be given out; the oldest are forgotten.
const MAX_NOTED: usize = 256;

/// A text in the prefix tree, ending with a run or a state, whose output was a number: its cache is
/// sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotedText {
    node: u32,
    id: PrefixId,
}

/// A text in the prefix tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedText {
    /// As in [`NewSequence::salt`].
    pub salt: u64,
    /// Its tokens, whole blocks.
    pub tokens: Vec<TokenId>,
    /// For each block of tokens, the block of each group; `NONE` where that group has none.
    pub blocks: Vec<[BlockId; MAX_GROUPS]>,
}

/// Where blocks from outside belong.
#[derive(Debug, Clone, Copy)]
pub struct Adoption<'a> {
    /// As in [`NewSequence::salt`].
    pub salt: u64,
    /// The text up to the end of the new blocks.
    pub tokens: &'a [TokenId],
    /// The first new block.
    pub first: u32,
    /// For each group, which of the new blocks there are: bit i for block `first + i`.
    pub present: [u32; MAX_GROUPS],
    /// Whether the states at the text's end come too.
    pub state: bool,
}

/// What is noted, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Noted {
    /// Blocks of a run; 0: nothing is noted.
    run_blocks: u32,
    texts: VecDeque<NotedText>,
}

impl Scheduler {
    /// From now on notes texts of at least a run of that many blocks: whole runs, or, where there
    /// are states, up to the prompt's last checkpoint.
    pub fn note_runs(&mut self, run_blocks: u32) {
        self.noted.run_blocks = run_blocks;
    }

    /// The text that was noted first and is still in the tree.
    pub fn noted_text(&mut self) -> Option<CachedText> {
        while let Some(&text) = self.noted.texts.front() {
            if let Some(found) = self.cache.text_of(text) {
                return Some(found);
            }
            self.noted.texts.pop_front();
        }
        None
    }

    /// Forgets the text that was noted first.
    pub fn forget_noted(&mut self) {
        self.noted.texts.pop_front();
    }

    /// Tokens of a prompt that a sequence would find in the prefix tree.
    pub fn cached_tokens(&self, salt: u64, tokens: &[TokenId]) -> u32 {
        let mut seq = self.passer_by(salt, tokens);
        let most = (tokens.len() as u32).saturating_sub(1) / self.config.block_tokens;
        self.cache.find(&mut seq, most) * self.config.block_tokens
    }

    /// Takes blocks from outside into the prefix tree, where the text before them must be, unless
    /// the model has states alone. `fill` is called with the group, the index within the new ones
    /// and the block for each that there is room for, and for states with the last index; false: it
    /// could not be filled. Returns how many tokens of the text are in the tree now; 0 where states
    /// were to come and did not.
    pub fn adopt(
        &mut self,
        new: &Adoption<'_>,
        fill: &mut dyn FnMut(usize, u32, BlockId) -> bool,
    ) -> u32 {
        let mut seq = self.passer_by(new.salt, new.tokens);
        self.cache.adopt(&mut seq, new, fill) * self.config.block_tokens
    }

    /// A sequence nobody waits for.
    pub(crate) fn passer_by(&self, salt: u64, tokens: &[TokenId]) -> Sequence {
        let (tokens, want) = (tokens.to_vec(), Want::Numbers(Numbers::Hidden));
        let max_len = tokens.len() as u32;
        let new = NewSequence { salt, ..NewSequence::new(tokens, max_len, want) };
        let place = Place { slot: 0, arrival: 0, account: 0 };
        Sequence::new(new, place, self.config.block_tokens, self.config.groups.len())
    }
}

impl Noted {
    /// After a sequence gave a sound output: what is worth keeping of it.
    pub fn note(&mut self, cache: &KvCache, seq: &mut Sequence) {
        if self.run_blocks == 0 {
            return;
        }
        let blocks = cache.worth_keeping(seq, self.run_blocks);
        if blocks <= seq.noted_blocks || blocks > seq.path.len() as u32 {
            return;
        }
        seq.noted_blocks = blocks;
        let node = seq.path[blocks as usize - 1];
        let text = NotedText { node, id: cache.tree.node(node).id };
        if self.texts.back() == Some(&text) {
            return;
        }
        if self.texts.len() == MAX_NOTED {
            self.texts.pop_front();
        }
        self.texts.push_back(text);
    }
}

impl KvCache {
    /// Blocks of a sequence's text to keep: whole runs; where there are states, those up to its
    /// checkpoint, if they fill a run.
    fn worth_keeping(&self, seq: &Sequence, run_blocks: u32) -> u32 {
        if !self.has_state() {
            return seq.path.len() as u32 / run_blocks * run_blocks;
        }
        let blocks = self.border(seq).unwrap_or(0) / self.block_tokens;
        if blocks < run_blocks { 0 } else { blocks }
    }

    fn text_of(&self, text: NotedText) -> Option<CachedText> {
        let mut node = self.tree.live(text.node).filter(|n| n.id == text.id)?;
        let salt = node.salt;
        let mut path = vec![text.node];
        while node.parent != NONE {
            path.push(node.parent);
            node = self.tree.node(node.parent);
        }
        path.reverse();
        let tokens = path.iter().flat_map(|&n| self.tree.tokens(n)).copied().collect();
        let blocks = path.iter().map(|&n| self.tree.node(n).blocks).collect();
        Some(CachedText { salt, tokens, blocks })
    }

    /// Blocks of the sequence's text that are in the tree when it is done; the sequence holds
    /// nothing before and after.
    fn adopt(
        &mut self,
        seq: &mut Sequence,
        new: &Adoption<'_>,
        fill: &mut dyn FnMut(usize, u32, BlockId) -> bool,
    ) -> u32 {
        let blocks = seq.tokens.len() / self.block_tokens as usize;
        for at in 0..blocks as u32 {
            let known = self.follow(seq);
            let more = at.checked_sub(new.first);
            let filled = match more {
                None => known || self.pass(seq),
                Some(i) => self.fill_blocks(seq, new, i, known, fill),
            };
            if !filled {
                break;
            }
        }
        let depth = seq.path.len() as u32;
        let whole = depth == blocks as u32;
        let well = !new.state || (whole && self.adopt_states(seq, new, fill));
        self.release(seq);
        if well { depth } else { 0 }
    }

    /// Makes and leases the next node of a text without blocks, as those of models with states alone
    /// are; false where there must be some.
    fn pass(&mut self, seq: &mut Sequence) -> bool {
        if self.kinds.iter().any(|k| *k != GroupKind::State) {
            return false;
        }
        let node = self.insert_next(seq);
        node.iter().for_each(|&n| self.lease(seq, n));
        node.is_some()
    }

    /// Leaves the states at the end of the sequence's text in the tree, as a checkpoint; false where
    /// that cannot be.
    fn adopt_states(
        &mut self,
        seq: &Sequence,
        new: &Adoption<'_>,
        fill: &mut dyn FnMut(usize, u32, BlockId) -> bool,
    ) -> bool {
        let (Some(&node), depth) = (seq.path.last(), seq.path.len() as u32) else { return false };
        let kinds = self.kinds.clone();
        let states = || (0..kinds.len()).filter(|&g| kinds[g] == GroupKind::State);
        if states().all(|g| self.tree.node(node).blocks[g] != BlockId::NONE) {
            return true;
        }
        if !self.room_for_checkpoint() {
            return false;
        }
        let mut taken = [BlockId::NONE; MAX_GROUPS];
        let mut well = true;
        for g in states() {
            let slot = if self.obtainable(g) > 0 { self.take(g) } else { None };
            taken[g] = slot.unwrap_or(BlockId::NONE);
            well &= slot.is_some_and(|slot| fill(g, depth - 1 - new.first, slot));
        }
        for g in states().filter(|&g| taken[g] != BlockId::NONE) {
            if well {
                self.tree.node_mut(node).blocks[g] = taken[g];
                self.pools[g].keep(taken[g], node);
            }
            self.pools[g].release(taken[g]);
        }
        self.checkpoints += u32::from(well);
        well
    }

    /// Leases the node of the sequence's next block; false where there is none.
    fn follow(&mut self, seq: &mut Sequence) -> bool {
        let size = self.block_tokens as usize;
        let at = seq.path.len();
        let parent = seq.path.last().copied().unwrap_or(NONE);
        let tokens = &seq.tokens[at * size..(at + 1) * size];
        let Some(node) = self.tree.child(parent, seq.salt, tokens) else { return false };
        self.lease(seq, node);
        true
    }

    fn lease(&mut self, seq: &mut Sequence, node: u32) {
        self.tree.node_mut(node).leases += 1;
        seq.path.push(node);
        for g in 0..self.kinds.len() {
            if self.kinds[g] == GroupKind::State {
                continue;
            }
            let block = self.tree.node(node).blocks[g];
            seq.tables[g].push(block);
            if block != BlockId::NONE {
                self.pools[g].share(block);
            }
        }
    }

    /// Gives new block `i`'s node what it lacks, making the node unless it is `known` (and then
    /// leased); false, and nothing changed, where that cannot be.
    fn fill_blocks(
        &mut self,
        seq: &mut Sequence,
        new: &Adoption<'_>,
        i: u32,
        known: bool,
        fill: &mut dyn FnMut(usize, u32, BlockId) -> bool,
    ) -> bool {
        let held = if known { seq.path.last().copied() } else { None };
        let mut taken = [BlockId::NONE; MAX_GROUPS];
        let well = self.take_missing(held, new, i, &mut taken, fill);
        let node = if well { held.or_else(|| self.insert_next(seq)) } else { None };
        let new_blocks = || (0..).zip(taken).filter(|(_, b)| *b != BlockId::NONE);
        if let Some(node) = node {
            for (g, block) in new_blocks() {
                self.tree.node_mut(node).blocks[g] = block;
                self.pools[g].keep(block, node);
            }
            match held {
                None => self.lease(seq, node),
                Some(_) => self.refresh(seq, node),
            }
        }
        for (g, block) in new_blocks() {
            self.pools[g].release(block);
        }
        node.is_some()
    }

    /// Takes and fills new block `i` of each group that `held` has none of; false where a block
    /// that must be there is not.
    fn take_missing(
        &mut self,
        held: Option<u32>,
        new: &Adoption<'_>,
        i: u32,
        taken: &mut [BlockId; MAX_GROUPS],
        fill: &mut dyn FnMut(usize, u32, BlockId) -> bool,
    ) -> bool {
        let groups = self.kinds.len();
        for (g, taken) in taken.iter_mut().enumerate().take(groups) {
            let has = held.is_some_and(|n| self.tree.node(n).blocks[g] != BlockId::NONE);
            if has || self.kinds[g] == GroupKind::State {
                continue;
            }
            let given = i < u32::BITS && new.present[g] >> i & 1 == 1;
            let block = if given && self.obtainable(g) > 0 { self.take(g) } else { None };
            match block {
                Some(block) => {
                    *taken = block;
                    if !fill(g, i, block) {
                        return false;
                    }
                }
                // A node has a block of every full group.
                None if self.kinds[g] == GroupKind::Full => return false,
                None => {}
            }
        }
        true
    }

    fn insert_next(&mut self, seq: &Sequence) -> Option<u32> {
        let size = self.block_tokens as usize;
        let at = seq.path.len();
        let parent = seq.path.last().copied().unwrap_or(NONE);
        self.tree.insert(parent, seq.salt, &seq.tokens[at * size..(at + 1) * size])
    }

    /// Lets the sequence hold blocks that its last node has got since it was leased.
    fn refresh(&mut self, seq: &mut Sequence, node: u32) {
        for g in 0..self.kinds.len() {
            let Some(last) = seq.tables[g].last_mut() else { continue };
            let block = self.tree.node(node).blocks[g];
            if *last == BlockId::NONE && block != BlockId::NONE {
                *last = block;
                self.pools[g].share(block);
            }
        }
    }
}

//! The cache as sequences see it: block pools and the prefix tree moved together.
//!
//! Rules that keep it consistent:
//! * a sequence holds a reference to every block in its tables and a lease on every node of its path;
//! * in a full group, a node's block is what every sequence through that node has in its table, so
//!   a node without leases is held by the tree alone, and a child is always released before its
//!   parent: the first block in a pool's cached list belongs to a leaf;
//! * a block that will be written is in one table and no node.

use tokenmill_ir::{BlockId, GroupKind, Limits};

use crate::block_pool::{BlockPool, NONE};
use crate::leases::Lease;
use crate::prefix::PrefixTree;
use crate::sequence::Sequence;

/// Most nodes of the prefix tree: a bound for memory where groups have few, long-lived slots.
const MAX_NODES: usize = 1 << 18;

#[derive(Debug, Clone)]
pub(crate) struct KvCache {
    pub kinds: Vec<GroupKind>,
    pub pools: Vec<BlockPool>,
    pub tree: PrefixTree,
    pub block_tokens: u32,
    /// What stays in the tree whatever comes; charged by block.
    pub leases: Vec<Lease>,
    /// State slots the tree may hold.
    pub checkpoint_limit: u32,
    /// State slots it holds, per state group the same.
    pub checkpoints: u32,
    /// Whether blocks are shared through the tree at all.
    sharing: bool,
}

impl KvCache {
    pub fn new(
        kinds: &[GroupKind],
        block_tokens: u32,
        limits: &Limits,
        checkpoint_limit: u32,
        sharing: bool,
    ) -> Self {
        let blocks = |g: usize| limits.group_blocks.get(g).copied().unwrap_or(0);
        let pools: Vec<BlockPool> = (0..kinds.len()).map(|g| BlockPool::new(blocks(g))).collect();
        let per_text = limits.context as usize / block_tokens as usize + 1;
        let nodes: usize = kinds
            .iter()
            .zip(&pools)
            .map(|(kind, pool)| match kind {
                GroupKind::State => pool.total() as usize * per_text,
                _ => pool.total() as usize,
            })
            .sum();
        let nodes = if sharing { nodes.min(MAX_NODES) } else { 0 };
        let state_slots = kinds.iter().zip(&pools).filter(|(k, _)| **k == GroupKind::State);
        let spare = state_slots.map(|(_, p)| p.total().saturating_sub(1)).min().unwrap_or(0);
        Self {
            kinds: kinds.to_vec(),
            pools,
            tree: PrefixTree::new(nodes, block_tokens),
            block_tokens,
            leases: Vec::new(),
            checkpoint_limit: checkpoint_limit.min(spare),
            checkpoints: 0,
            sharing,
        }
    }

    /// Blocks of a group that a sequence could get now.
    pub fn obtainable(&self, g: usize) -> u32 {
        self.pools[g].free() + self.pools[g].cached()
    }

    pub fn has_state(&self) -> bool {
        self.kinds.contains(&GroupKind::State)
    }

    /// Where a checkpoint of the state is worth taking: the prompt's end rounded down to a block,
    /// leaving a token to compute.
    pub fn border(&self, seq: &Sequence) -> Option<u32> {
        let border = (seq.prompt - 1) / self.block_tokens * self.block_tokens;
        (self.has_state() && self.checkpoint_limit > 0 && border > 0).then_some(border)
    }

    /// Whether sequences share blocks at all.
    pub fn is_shared(&self) -> bool {
        self.sharing
    }

    /// Tokens after which a running sequence next has something for others: a full block, or,
    /// where states matter, its checkpoint. `u32::MAX`: never.
    pub fn next_shared(&self, seq: &Sequence) -> u32 {
        if self.has_state() {
            return self.border(seq).filter(|&b| b > seq.computed).unwrap_or(u32::MAX);
        }
        (seq.computed / self.block_tokens + 1) * self.block_tokens
    }

    /// First block of a window group that the token at `position` reads.
    pub fn first_in_window(&self, window: u32, position: u32) -> u32 {
        (position + 1).saturating_sub(window) / self.block_tokens
    }

    // ---- taking and giving back ------------------------------------------------------------

    pub fn take(&mut self, g: usize) -> Option<BlockId> {
        if self.pools[g].free() == 0 {
            // Else the first of the cached ones may have left ones below it.
            self.forget_above();
        }
        if self.pools[g].free() == 0 {
            let node = self.pools[g].oldest_cached()?;
            match self.kinds[g] {
                GroupKind::Full => self.remove_node(node),
                _ => self.strip(node, g),
            }
        }
        self.pools[g].take()
    }

    /// Takes a node's block of one group away from the tree; states go together.
    pub fn strip(&mut self, node: u32, g: usize) {
        if self.kinds[g] == GroupKind::State {
            self.strip_states(node);
        } else {
            self.strip_block(node, g);
        }
        self.prune(node);
    }

    fn strip_block(&mut self, node: u32, g: usize) -> bool {
        let block = std::mem::replace(&mut self.tree.node_mut(node).blocks[g], BlockId::NONE);
        if block != BlockId::NONE {
            self.pools[g].forget(block);
        }
        block != BlockId::NONE
    }

    fn strip_states(&mut self, node: u32) {
        let mut any = false;
        for g in 0..self.kinds.len() {
            if self.kinds[g] == GroupKind::State {
                any |= self.strip_block(node, g);
            }
        }
        self.checkpoints -= u32::from(any);
    }

    fn strip_all(&mut self, node: u32) {
        self.strip_states(node);
        for g in 0..self.kinds.len() {
            self.strip_block(node, g);
        }
    }

    pub fn remove_node(&mut self, node: u32) {
        self.strip_all(node);
        let parent = self.tree.node(node).parent;
        self.tree.remove(node);
        self.prune(parent);
    }

    /// Removes leaves that hold nothing for nobody, upwards.
    pub fn prune(&mut self, node: u32) {
        let mut node = node;
        while node != NONE {
            let n = self.tree.node(node);
            let empty = n.blocks.iter().all(|&b| b == BlockId::NONE);
            if n.children > 0 || n.leases > 0 || !empty {
                return;
            }
            let parent = n.parent;
            self.tree.remove(node);
            node = parent;
        }
    }

    /// Releases everything a sequence holds; what it computed stays in the tree.
    pub fn release(&mut self, seq: &mut Sequence) {
        for g in 0..self.kinds.len() {
            if self.kinds[g] == GroupKind::State {
                self.release_state(seq, g);
                continue;
            }
            for i in seq.path.len()..seq.tables[g].len() {
                self.release_entry(seq.tables[g][i], g);
            }
            seq.tables[g].truncate(seq.path.len());
        }
        // Deepest first: the tree's oldest block is then always a leaf's.
        while let Some(node) = seq.path.pop() {
            for g in 0..self.kinds.len() {
                if let Some(block) = seq.tables[g].pop() {
                    self.release_entry(block, g);
                }
            }
            self.tree.node_mut(node).leases -= 1;
            self.prune(node);
        }
        seq.behind.fill(0);
        seq.attached = 0;
        seq.computed = 0;
    }

    fn release_entry(&mut self, block: BlockId, g: usize) {
        if block != BlockId::NONE {
            self.pools[g].release(block);
        }
    }

    fn release_state(&mut self, seq: &mut Sequence, g: usize) {
        if let [read, write] = seq.tables[g][..] {
            self.release_entry(write, g);
            if read != write {
                self.release_entry(read, g);
            }
        }
        seq.tables[g].clear();
    }

    /// As [`release`](Self::release), but what only this sequence computed leaves the tree.
    pub fn discard(&mut self, seq: &mut Sequence) {
        let mut below = 0;
        for i in (seq.attached as usize..seq.path.len()).rev() {
            let node = self.tree.node(seq.path[i]);
            if node.leases > 1 || node.children > below {
                break;
            }
            self.strip_all(seq.path[i]);
            below = 1;
        }
        self.release(seq);
    }

    // ---- prefix hits -----------------------------------------------------------------------

    /// Gives a sequence that holds nothing the longest cached prefix on which all groups agree, of
    /// at most `most` tokens.
    pub fn attach(&mut self, seq: &mut Sequence, most: u32) {
        assert!(seq.computed == 0 && seq.path.is_empty(), "attached twice");
        if !self.sharing {
            return;
        }
        let depth = self.find(seq, most / self.block_tokens);
        seq.path.truncate(depth as usize);
        seq.attached = depth;
        seq.computed = depth * self.block_tokens;
        for i in 0..seq.path.len() {
            self.tree.node_mut(seq.path[i]).leases += 1;
        }
        for g in 0..self.kinds.len() {
            let first = match self.kinds[g] {
                GroupKind::Full => 0,
                GroupKind::Window { tokens } => {
                    self.first_in_window(tokens, seq.computed).min(depth)
                }
                GroupKind::State => {
                    let last = seq.path.last().map(|&n| self.tree.node(n).blocks[g]);
                    if let Some(slot) = last {
                        self.pools[g].share(slot);
                        seq.tables[g].extend([slot, slot]);
                    }
                    continue;
                }
            };
            seq.behind[g] = first;
            for (i, &node) in (0..).zip(&seq.path) {
                let block = if i < first { BlockId::NONE } else { self.tree.node(node).blocks[g] };
                seq.tables[g].push(block);
                if block != BlockId::NONE {
                    self.pools[g].share(block);
                }
            }
        }
    }

    /// Walks down the tree, pushing nodes on the sequence's path; the depth that can be used.
    pub fn find(&self, seq: &mut Sequence, most: u32) -> u32 {
        let size = self.block_tokens as usize;
        let mut runs = [0u32; tokenmill_ir::MAX_GROUPS];
        let (mut best, mut parent) = (0, NONE);
        for depth in 1..=most {
            let end = depth as usize * size;
            let tokens = &seq.tokens[end - size..end];
            let Some(node) = self.tree.child(parent, seq.salt, tokens) else { break };
            seq.path.push(node);
            parent = node;
            let blocks = &self.tree.node(node).blocks;
            // A block of tokens that see each other is computed whole.
            let mut usable = seq.block_around(end as u32).is_none();
            for (g, kind) in self.kinds.iter().enumerate() {
                let has = blocks[g] != BlockId::NONE;
                runs[g] = if has { runs[g] + 1 } else { 0 };
                usable &= match kind {
                    GroupKind::Full => runs[g] == depth,
                    GroupKind::Window { tokens } => {
                        let first = self.first_in_window(*tokens, depth * self.block_tokens);
                        runs[g] >= depth - first.min(depth)
                    }
                    GroupKind::State => has,
                };
            }
            if usable {
                best = depth;
            }
        }
        best
    }

    // ---- growing ---------------------------------------------------------------------------

    /// Whether the next `n` tokens need another slot of state group `g` to write to.
    fn needs_slot(&self, seq: &Sequence, g: usize, n: u32) -> bool {
        let drafts = n > seq.known - seq.computed;
        match seq.tables[g].first() {
            None | Some(&BlockId::NONE) => true,
            Some(&slot) => drafts || self.pools[g].refs(slot) > 1,
        }
    }

    /// How many of the next `n` tokens there are blocks for.
    pub fn fits(&self, seq: &Sequence, n: u32) -> u32 {
        let mut n = n;
        for (g, kind) in self.kinds.iter().enumerate() {
            let obtainable = self.obtainable(g);
            if *kind == GroupKind::State {
                if obtainable == 0 && self.needs_slot(seq, g, n) {
                    n = n.min(seq.known - seq.computed);
                    n = if self.needs_slot(seq, g, n) { 0 } else { n };
                }
            } else {
                let blocks = u64::from(seq.tables[g].len() as u32 + obtainable);
                let room = blocks * u64::from(self.block_tokens) - u64::from(seq.computed);
                n = u64::from(n).min(room) as u32;
            }
        }
        n
    }

    /// Blocks of group `g` that a sequence takes until it has `len` tokens.
    pub fn growth(&self, seq: &Sequence, g: usize, len: u32) -> u32 {
        let have = seq.tables[g].len() as u32;
        let more = len.div_ceil(self.block_tokens).saturating_sub(have);
        match self.kinds[g] {
            GroupKind::Full => more,
            GroupKind::Window { tokens } => {
                let held = have - seq.behind[g];
                more.min((tokens.div_ceil(self.block_tokens) + 2).saturating_sub(held))
            }
            GroupKind::State => u32::from(self.needs_slot(seq, g, 1)),
        }
    }

    /// Takes the blocks for the next `n` tokens, which fit.
    pub fn extend(&mut self, seq: &mut Sequence, n: u32) {
        let blocks = (seq.computed + n).div_ceil(self.block_tokens) as usize;
        for g in 0..self.kinds.len() {
            if self.kinds[g] == GroupKind::State {
                if self.needs_slot(seq, g, n) {
                    let read = seq.tables[g].first().copied().unwrap_or(BlockId::NONE);
                    let write = self.take(g).expect("a slot that fits");
                    seq.tables[g].clear();
                    seq.tables[g].extend([read, write]);
                }
                continue;
            }
            while seq.tables[g].len() < blocks {
                let block = self.take(g).expect("a block that fits");
                seq.tables[g].push(block);
            }
        }
    }

    // ---- after a step ----------------------------------------------------------------------

    /// After a step: states move to the written slot, or back to the one read if `kept` is false.
    pub fn settle_states(&mut self, seq: &mut Sequence, kept: bool) {
        for g in 0..self.kinds.len() {
            let (GroupKind::State, &[read, write]) = (self.kinds[g], &seq.tables[g][..]) else {
                continue;
            };
            let (now, old) = if kept { (write, read) } else { (read, write) };
            if old != now && old != BlockId::NONE {
                self.pools[g].release(old);
            }
            seq.tables[g].clear();
            seq.tables[g].extend([now, now]);
        }
    }

    /// Puts newly full blocks, and the state at a border, into the tree.
    pub fn share(&mut self, seq: &mut Sequence) {
        if !self.sharing {
            return;
        }
        let size = self.block_tokens as usize;
        while seq.path.len() < seq.computed as usize / size {
            let at = seq.path.len();
            let parent = seq.path.last().copied().unwrap_or(NONE);
            let tokens = &seq.tokens[at * size..(at + 1) * size];
            let Some(node) = self.tree.insert(parent, seq.salt, tokens) else { break };
            self.tree.node_mut(node).leases += 1;
            seq.path.push(node);
            for g in 0..self.kinds.len() {
                if self.kinds[g] != GroupKind::State {
                    self.share_block(seq, g, at, node);
                }
            }
        }
        if self.border(seq) == Some(seq.computed) && seq.path.len() == seq.computed as usize / size
        {
            self.checkpoint(seq);
        }
    }

    /// The node takes the sequence's block, or the sequence takes the node's: they hold the same.
    fn share_block(&mut self, seq: &mut Sequence, g: usize, at: usize, node: u32) {
        let own = seq.tables[g][at];
        let kept = self.tree.node(node).blocks[g];
        if own == BlockId::NONE {
            return;
        }
        if kept == BlockId::NONE {
            self.tree.node_mut(node).blocks[g] = own;
            self.pools[g].keep(own, node);
        } else {
            self.pools[g].share(kept);
            self.pools[g].release(own);
            seq.tables[g][at] = kept;
        }
    }

    /// Leaves the current state in the tree; the sequence writes the next one elsewhere.
    fn checkpoint(&mut self, seq: &Sequence) {
        let Some(&node) = seq.path.last() else { return };
        for g in 0..self.kinds.len() {
            let state = self.kinds[g] == GroupKind::State;
            if state && (self.tree.node(node).blocks[g] != BlockId::NONE || self.obtainable(g) == 0)
            {
                return;
            }
        }
        if !self.room_for_checkpoint() {
            return;
        }
        self.checkpoints += 1;
        for g in 0..self.kinds.len() {
            if self.kinds[g] == GroupKind::State {
                let slot = seq.tables[g][0];
                self.tree.node_mut(node).blocks[g] = slot;
                self.pools[g].keep(slot, node);
            }
        }
    }

    /// Whether the tree may hold one more checkpoint; the oldest gives way.
    pub fn room_for_checkpoint(&mut self) -> bool {
        self.checkpoints < self.checkpoint_limit || self.drop_oldest_checkpoint()
    }

    fn drop_oldest_checkpoint(&mut self) -> bool {
        let Some(first) = self.kinds.iter().position(|k| *k == GroupKind::State) else {
            return false;
        };
        let Some(node) = self.pools[first].oldest_cached() else { return false };
        self.strip(node, first);
        true
    }

    /// Gives back the blocks wholly behind a window.
    pub fn give_back(&mut self, seq: &mut Sequence) {
        for g in 0..self.kinds.len() {
            let GroupKind::Window { tokens } = self.kinds[g] else { continue };
            let first = self.first_in_window(tokens, seq.computed) as usize;
            let last = first.min(seq.tables[g].len());
            for i in seq.behind[g] as usize..last {
                let block = std::mem::replace(&mut seq.tables[g][i], BlockId::NONE);
                if block != BlockId::NONE {
                    self.pools[g].release(block);
                }
            }
            seq.behind[g] = seq.behind[g].max(last as u32);
        }
    }
}

//! Caches that shrink and grow while sequences run: blocks are given out below a border only, cached
//! ones above it leave the prefix tree, and held ones are waited for.

use std::collections::HashMap;

use tokenmill_ir::GroupKind;

use crate::block_pool::{BlockPool, NONE};
use crate::cache::KvCache;
use crate::scheduler::{Config, Scheduler};

/// Tokens of one sequence that so many blocks of a group hold.
fn fits(config: &Config, kind: GroupKind, blocks: u32) -> u64 {
    match kind {
        GroupKind::State => u64::from(blocks.min(1)) * u64::from(u32::MAX),
        // It needs no more than the window and the token that comes.
        GroupKind::Window { tokens }
            if blocks > tokens.saturating_sub(1).div_ceil(config.block_tokens) =>
        {
            u64::from(u32::MAX)
        }
        _ => u64::from(blocks) * u64::from(config.block_tokens),
    }
}

impl Scheduler {
    /// Most tokens any sequence may reach: the context, or what the cache holds for one sequence
    /// when it is largest.
    pub fn longest(&self) -> u32 {
        let c = &self.config;
        let most = if c.whole_sequences { c.limits.step_tokens } else { u32::MAX };
        let groups = c.groups.iter().zip(&self.cache.pools);
        // The last token sampled needs no place.
        let longest = groups.map(|(kind, pool)| fits(c, *kind, pool.capacity()) + 1);
        longest.min().unwrap_or(u64::MAX).min(c.limits.context.min(most).into()) as u32
    }

    /// Most tokens of a sequence that see each other: a step has room for them, whatever streams go on,
    /// and so has every window.
    pub fn longest_block(&self) -> u32 {
        let (c, limits) = (&self.config, &self.config.limits);
        let groups = c.groups.iter().zip(&self.cache.pools);
        let room = groups.filter_map(|(kind, pool)| match kind {
            GroupKind::Window { tokens } => {
                let all = pool.capacity().saturating_sub(1).saturating_mul(c.block_tokens);
                Some(all.saturating_add(1).saturating_sub(*tokens))
            }
            _ => None,
        });
        let step = limits.step_tokens.saturating_sub(limits.sequences);
        room.chain([step, c.longest_block]).min().unwrap_or(0)
    }

    /// Blocks of each group that one longest sequence needs: with fewer, an accepted one might
    /// never run.
    pub fn floor(&self) -> Vec<u32> {
        let (longest, block) = (u64::from(self.longest()), self.longest_block());
        let groups = self.config.groups.iter().zip(&self.cache.pools);
        let least = |(kind, pool): (&GroupKind, &BlockPool)| {
            if *kind == GroupKind::State {
                // One that the tree shares, and one to write.
                return pool.capacity().min(2);
            }
            let (mut least, mut enough) = (0, pool.capacity());
            while least < enough {
                let blocks = least + (enough - least) / 2;
                match fits(&self.config, *kind, blocks) >= longest {
                    true => enough = blocks,
                    false => least = blocks + 1,
                }
            }
            match *kind {
                GroupKind::Window { tokens } if block > 0 => {
                    let tokens = tokens.saturating_add(block).saturating_sub(1);
                    enough.max(tokens.div_ceil(self.config.block_tokens) + 1).min(pool.capacity())
                }
                _ => enough,
            }
        };
        groups.map(least).collect()
    }

    /// From now on gives out only the first so many blocks of each group, at least the
    /// [`floor`](Self::floor), at most as many as there were at first. Leases on others end, and
    /// what is cached in them is forgotten; sequences keep theirs until they end or give way.
    pub fn resize(&mut self, blocks: &[u32]) {
        let floor = self.floor();
        // First what is above now: on growing it would come among the others in no order.
        self.cache.forget_above();
        for (pool, (&n, least)) in self.cache.pools.iter_mut().zip(blocks.iter().zip(floor)) {
            pool.resize(n.max(least));
        }
        self.counts.broken_leases += self.cache.end_leases_above();
        self.cache.forget_above();
    }

    /// Blocks of each group that memory must back now.
    pub fn reach(&self) -> Vec<u32> {
        self.cache.pools.iter().map(BlockPool::reach).collect()
    }
}

impl KvCache {
    /// Takes what only the tree holds above the border out of it.
    pub fn forget_above(&mut self) {
        for g in 0..self.kinds.len() {
            if self.pools[g].left() == 0 {
                continue;
            }
            let pool = &self.pools[g];
            let left = self.tree.iter().filter(|(_, n)| pool.is_left(n.blocks[g]));
            let above: Vec<u32> = left.map(|(n, _)| n).collect();
            match self.kinds[g] {
                GroupKind::Full => {
                    for node in self.with_all_below(&above) {
                        self.remove_node(node);
                    }
                }
                _ => above.into_iter().for_each(|node| self.strip(node, g)),
            }
        }
    }

    /// Those nodes and all that come after them in any text, last ones first.
    fn with_all_below(&self, nodes: &[u32]) -> Vec<u32> {
        // Depth of each node, and whether it goes.
        let mut known: HashMap<u32, (u32, bool)> = HashMap::from([(NONE, (0, false))]);
        for (node, _) in self.tree.iter() {
            let mut path = Vec::new();
            let mut at = node;
            while !known.contains_key(&at) {
                path.push(at);
                at = self.tree.node(at).parent;
            }
            let (mut depth, mut goes) = known[&at];
            for at in path.into_iter().rev() {
                (depth, goes) = (depth + 1, goes || nodes.binary_search(&at).is_ok());
                known.insert(at, (depth, goes));
            }
        }
        let mut below: Vec<(u32, u32)> =
            known.into_iter().filter(|(_, (_, goes))| *goes).map(|(n, (d, _))| (d, n)).collect();
        below.sort_unstable_by(|a, b| b.cmp(a));
        below.into_iter().map(|(_, node)| node).collect()
    }
}

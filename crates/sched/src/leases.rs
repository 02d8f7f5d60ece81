//! Leases: the beginning of a text stays in the cache for a time, whatever else comes. What an
//! account may keep so, and all together, are parts of every group, so that sequences always have
//! the rest; and one that runs alone and needs more takes it.

use tokenmill_ir::{BlockId, GroupKind, MAX_GROUPS, TokenId};

use crate::block_pool::NONE;
use crate::cache::KvCache;
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;

/// An account may keep one part in so many of a group, all accounts together one in so many.
const OWN_PART: u32 = 4;
const ALL_PARTS: u32 = 2;

/// What is to stay.
#[derive(Debug, Clone, Copy)]
pub struct LeaseWish<'a> {
    /// Whose quota it counts against.
    pub account: u64,
    /// As in [`NewSequence::salt`](crate::NewSequence::salt).
    pub salt: u64,
    /// A new lease takes the place of the account's lease of that name; 0: it has none.
    pub name: u64,
    /// The text; whole blocks of it that are in the cache are kept.
    pub tokens: &'a [TokenId],
    /// When it ends, seconds of the caller's clock.
    pub until_s: f64,
    /// Most that the account may keep so, percent of every group; never more than a quarter.
    pub percent: u32,
}

/// What stays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LeaseInfo {
    /// Whose quota it counts against.
    pub account: u64,
    /// Its name; 0: none.
    pub name: u64,
    /// Tokens from the start of the text.
    pub tokens: u32,
    /// When it ends, seconds of the caller's clock.
    pub until_s: f64,
}

#[derive(Debug, Clone)]
pub(crate) struct Lease {
    account: u64,
    name: u64,
    until_s: f64,
    /// Nodes from the root on.
    pub path: Vec<u32>,
    /// For each node, what is held of each group; `NONE` where nothing is needed.
    pub blocks: Vec<[BlockId; MAX_GROUPS]>,
}

impl Lease {
    /// Blocks held of each group.
    fn held(&self) -> [u32; MAX_GROUPS] {
        let mut held = [0; MAX_GROUPS];
        for blocks in &self.blocks {
            for (held, block) in held.iter_mut().zip(blocks) {
                *held += u32::from(*block != BlockId::NONE);
            }
        }
        held
    }

    /// Whether the account keeps all of this by `other`, and as long.
    fn is_within(&self, other: &Lease) -> bool {
        let same = self.account == other.account && self.name == other.name;
        same && other.path.starts_with(&self.path) && self.until_s <= other.until_s
    }
}

impl Scheduler {
    /// Keeps what is in the cache of a text's beginning; how many tokens that are. Where the
    /// account's quota is used up, its leases that end first give way.
    pub fn lease(&mut self, wish: &LeaseWish<'_>) -> u32 {
        let most = wish.tokens.len() as u32 / self.config.block_tokens;
        let mut seq = self.passer_by(wish.salt, wish.tokens);
        self.cache.pin(&mut seq, wish, most) * self.config.block_tokens
    }

    /// Ends the leases whose time is over.
    pub fn end_leases(&mut self, now_s: f64) {
        self.cache.end_leases(|lease| lease.until_s <= now_s);
    }

    /// Ends the leases of an account, or all; how many.
    pub fn give_up_leases(&mut self, account: Option<u64>) -> usize {
        self.cache.end_leases(|lease| account.is_none_or(|a| lease.account == a))
    }

    /// What is leased.
    pub fn leases(&self) -> impl Iterator<Item = LeaseInfo> + '_ {
        let size = self.config.block_tokens;
        self.cache.leases.iter().map(move |l| LeaseInfo {
            account: l.account,
            name: l.name,
            tokens: l.path.len() as u32 * size,
            until_s: l.until_s,
        })
    }

    /// Ends the lease that would end first, for a sequence that has the device for itself.
    pub(crate) fn break_lease(&mut self) -> bool {
        let broken = self.cache.end_first(|_| true);
        self.counts.broken_leases += u64::from(broken);
        broken
    }
}

impl KvCache {
    /// Blocks of a group that one account, and all together, may keep.
    fn quota(&self, g: usize) -> (u32, u32) {
        let all = self.kept(g);
        (all / OWN_PART, all / ALL_PARTS)
    }

    /// The same for one account that may keep so many percent.
    fn own_quota(&self, g: usize, percent: u32) -> u32 {
        let part = u64::from(self.kept(g)) * u64::from(percent) / 100;
        self.quota(g).0.min(u32::try_from(part).unwrap_or(u32::MAX))
    }

    /// Blocks of a group that may be kept at all.
    fn kept(&self, g: usize) -> u32 {
        match self.kinds[g] {
            GroupKind::State => self.checkpoint_limit.min(self.pools[g].backed().saturating_sub(1)),
            _ => self.pools[g].backed(),
        }
    }

    /// Blocks of each group that leases hold, those of one account or of all.
    fn leased(&self, account: Option<u64>) -> [u32; MAX_GROUPS] {
        let mut sum = [0; MAX_GROUPS];
        for lease in self.leases.iter().filter(|l| account.is_none_or(|a| l.account == a)) {
            for (sum, n) in sum.iter_mut().zip(lease.held()) {
                *sum += n;
            }
        }
        sum
    }

    /// See [`Scheduler::lease`]; blocks of tokens.
    fn pin(&mut self, seq: &mut Sequence, wish: &LeaseWish<'_>, most: u32) -> u32 {
        let full = (0..self.kinds.len()).filter(|&g| self.kinds[g] == GroupKind::Full);
        let most = full.map(|g| self.own_quota(g, wish.percent)).fold(most, u32::min);
        let depth = if self.is_shared() { self.find(seq, most) } else { 0 };
        let LeaseWish { account, name, until_s, .. } = *wish;
        let path = seq.path[..depth as usize].to_vec();
        let blocks = path.iter().zip(0..).map(|(&n, i)| self.needed(n, i, depth)).collect();
        let new = Lease { account, name, until_s, path, blocks };
        if depth == 0 {
            return 0;
        }
        if name == 0 && self.leases.iter().any(|l| new.is_within(l)) {
            return depth;
        }
        // Held first, so that nothing of it goes with the leases it replaces.
        self.hold(&new);
        self.end_leases(|l| {
            (name != 0 && l.account == account && l.name == name) || l.is_within(&new)
        });
        while !self.has_quota(&new, wish.percent) {
            if !self.end_first(|l| l.account == account) {
                self.let_go(&new);
                return 0;
            }
        }
        self.leases.push(new);
        depth
    }

    /// What a text of `depth` nodes needs of its node `i` to be found.
    fn needed(&self, node: u32, i: u32, depth: u32) -> [BlockId; MAX_GROUPS] {
        let mut blocks = self.tree.node(node).blocks;
        for (g, kind) in self.kinds.iter().enumerate() {
            let first = match *kind {
                GroupKind::Full => 0,
                GroupKind::Window { tokens } => {
                    self.first_in_window(tokens, depth * self.block_tokens)
                }
                GroupKind::State => depth - 1,
            };
            if i < first {
                blocks[g] = BlockId::NONE;
            }
        }
        blocks
    }

    fn has_quota(&self, new: &Lease, percent: u32) -> bool {
        let (own, all, held) = (self.leased(Some(new.account)), self.leased(None), new.held());
        (0..self.kinds.len()).all(|g| {
            let (own_most, all_most) = (self.own_quota(g, percent), self.quota(g).1);
            own[g] + held[g] <= own_most && all[g] + held[g] <= all_most
        })
    }

    /// Ends leases, those that end first before others, until none holds a block that is no longer
    /// given out and all keep to their quota; how many.
    pub fn end_leases_above(&mut self) -> u64 {
        let above = |cache: &Self, lease: &Lease| {
            let own = lease.blocks.iter().flat_map(|all| all.iter().zip(&cache.pools));
            own.into_iter().any(|(&block, pool)| pool.is_above(block))
        };
        let mut count = 0;
        while let Some(at) = self.leases.iter().position(|l| above(self, l)) {
            let lease = self.leases.swap_remove(at);
            self.let_go(&lease);
            count += 1;
        }
        let within = |cache: &Self| {
            let kept = |(account, g): (Option<u64>, usize)| {
                let (own, all) = cache.quota(g);
                cache.leased(account)[g] <= if account.is_some() { own } else { all }
            };
            let accounts = cache.leases.iter().map(|l| Some(l.account)).chain([None]);
            accounts.flat_map(|a| (0..cache.kinds.len()).map(move |g| (a, g))).all(kept)
        };
        while !within(self) && self.end_first(|_| true) {
            count += 1;
        }
        count
    }

    fn hold(&mut self, lease: &Lease) {
        for (&node, blocks) in lease.path.iter().zip(&lease.blocks) {
            self.tree.node_mut(node).leases += 1;
            for (pool, &block) in self.pools.iter_mut().zip(blocks) {
                if block != BlockId::NONE {
                    pool.share(block);
                }
            }
        }
    }

    /// Deepest first: the tree's oldest block is then always a leaf's.
    fn let_go(&mut self, lease: &Lease) {
        for (&node, blocks) in lease.path.iter().zip(&lease.blocks).rev() {
            for (pool, &block) in self.pools.iter_mut().zip(blocks) {
                if block != BlockId::NONE {
                    pool.release(block);
                }
            }
            self.tree.node_mut(node).leases -= 1;
            self.prune(node);
        }
    }

    fn end_leases(&mut self, ends: impl Fn(&Lease) -> bool) -> usize {
        let mut count = 0;
        while let Some(at) = self.leases.iter().position(&ends) {
            let lease = self.leases.swap_remove(at);
            self.let_go(&lease);
            count += 1;
        }
        count
    }

    /// Ends that of some leases which would end first.
    fn end_first(&mut self, of: impl Fn(&Lease) -> bool) -> bool {
        let some = self.leases.iter().enumerate().filter(|(_, l)| of(l));
        let first = some.min_by(|a, b| a.1.until_s.total_cmp(&b.1.until_s)).map(|(at, _)| at);
        let lease = first.map(|at| self.leases.swap_remove(at));
        lease.iter().for_each(|l| self.let_go(l));
        lease.is_some()
    }

    /// Asserts what holds of leases and counts their references to blocks; how many nodes they
    /// lease.
    pub fn check_leases(&self, refs: &mut [Vec<u32>]) -> u32 {
        let mut nodes = 0;
        for lease in &self.leases {
            let mut parent = NONE;
            for (&n, blocks) in lease.path.iter().zip(&lease.blocks) {
                let node = self.tree.node(n);
                assert_eq!(node.parent, parent, "a lease hangs together");
                parent = n;
                nodes += 1;
                for (g, &block) in blocks.iter().enumerate().filter(|(_, b)| **b != BlockId::NONE) {
                    assert_eq!(node.blocks[g], block, "a leased block stays where it is");
                    refs[g][block.0 as usize] += 1;
                }
            }
            let (own, all) = (self.leased(Some(lease.account)), self.leased(None));
            for g in 0..self.kinds.len() {
                let (own_most, all_most) = self.quota(g);
                assert!(own[g] <= own_most && all[g] <= all_most, "leases keep to their quota");
            }
        }
        nodes
    }
}

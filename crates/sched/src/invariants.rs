//! Everything that must hold between steps, asserted.

use tokenmill_ir::{BlockId, GroupKind};

use crate::scheduler::{Scheduler, seq_ref};
use crate::sequence::Sequence;

impl Scheduler {
    /// Asserts every invariant; for simulated steps, and when idle. Cost: linear in blocks, nodes
    /// and table entries.
    pub fn check(&self) {
        let live = self.slots.iter().filter(|s| s.seq.is_some()).count();
        assert_eq!(live, self.running.len() + self.waiting.len(), "every sequence is listed once");
        self.check_order();
        let size = self.config.block_tokens;
        for &slot in &self.waiting {
            let seq = seq_ref(&self.slots, slot).expect("a listed sequence");
            assert_eq!(seq.computed, 0, "a waiting sequence has nothing computed");
            assert!(seq.path.is_empty(), "a waiting sequence leases nothing");
            assert!(seq.tables.iter().all(Vec::is_empty), "a waiting sequence holds no block");
            assert_eq!(seq.len(), seq.known, "a waiting sequence has no drafts");
        }
        let pools = &self.cache.pools;
        let mut refs: Vec<Vec<u32>> =
            pools.iter().map(|p| vec![0; p.capacity() as usize]).collect();
        let mut leases = 0;
        for &slot in &self.running {
            let seq = seq_ref(&self.slots, slot).expect("a listed sequence");
            assert!(seq.computed < seq.known, "the last token is still to compute");
            assert!(seq.known <= seq.len() && seq.len() <= seq.max_len, "lengths");
            assert!(seq.path.len() as u32 <= seq.computed / size, "only full blocks are shared");
            leases += seq.path.len() as u32;
            self.check_path(seq);
            for (g, refs) in refs.iter_mut().enumerate() {
                self.check_table(seq, g, refs);
            }
        }
        leases += self.cache.check_leases(&mut refs);
        for (pool, refs) in pools.iter().zip(&refs) {
            pool.check(refs);
        }
        self.check_tree(leases);
        let account = |slot: &u32| seq_ref(&self.slots, *slot).expect("a listed sequence").account;
        let running = self.running.iter().map(|slot| (account(slot), true));
        let waiting = self.waiting.iter().map(|slot| (account(slot), false));
        self.accounts.check(running.chain(waiting));
    }

    fn check_order(&self) {
        let arrival = |slot: &u32| seq_ref(&self.slots, *slot).expect("a listed sequence").arrival;
        assert!(self.running.is_sorted_by_key(arrival), "running in order of arrival");
        assert!(self.waiting.iter().map(arrival).is_sorted(), "waiting in order of arrival");
        assert!(self.running.len() <= self.config.limits.sequences as usize);
    }

    fn check_path(&self, seq: &Sequence) {
        let size = self.config.block_tokens as usize;
        let mut parent = crate::block_pool::NONE;
        for (i, &n) in seq.path.iter().enumerate() {
            let node = self.cache.tree.node(n);
            assert_eq!((node.parent, node.salt), (parent, seq.salt), "the path hangs together");
            let tokens = &seq.tokens[i * size..(i + 1) * size];
            assert_eq!(self.cache.tree.tokens(n), tokens, "a leased node has the sequence's text");
            for (g, kind) in self.config.groups.iter().enumerate() {
                if *kind == GroupKind::Full {
                    assert_eq!(node.blocks[g], seq.tables[g][i], "full blocks are the node's");
                }
            }
            parent = n;
        }
    }

    fn check_table(&self, seq: &Sequence, g: usize, refs: &mut [u32]) {
        let table = &seq.tables[g];
        let pool = &self.cache.pools[g];
        if self.config.groups[g] == GroupKind::State {
            let &[read, write] = &table[..] else { panic!("a running sequence has a state") };
            assert_eq!(read, write, "states are settled between steps");
            assert_ne!(read, BlockId::NONE, "a running sequence has a state");
            refs[read.0 as usize] += 1;
            return;
        }
        let size = self.config.block_tokens;
        assert!(table.len() as u32 * size >= seq.computed, "blocks for what is computed");
        for (i, &block) in (0u32..).zip(table) {
            if block == BlockId::NONE {
                assert!(i < seq.behind[g], "block {i} is missing");
                continue;
            }
            refs[block.0 as usize] += 1;
            if (i + 1) * size > seq.computed {
                assert_eq!(pool.refs(block), 1, "a block to write is in one place");
                assert_eq!(pool.node(block), crate::block_pool::NONE, "and in no node");
            }
        }
        if let GroupKind::Window { tokens } = self.config.groups[g] {
            let first = (seq.computed + 1).saturating_sub(tokens) / size;
            assert!(seq.behind[g] <= first, "a block inside the window was given back");
        }
    }

    fn check_tree(&self, leases: u32) {
        let tree = &self.cache.tree;
        tree.check();
        let (mut found, mut checkpoints) = (0, 0);
        for (n, node) in tree.iter() {
            found += node.leases;
            let mut holds = node.leases > 0 || node.children > 0;
            for (g, kind) in self.config.groups.iter().enumerate() {
                let block = node.blocks[g];
                if block == BlockId::NONE {
                    assert!(*kind != GroupKind::Full, "node {n} lacks a full block");
                    continue;
                }
                holds = true;
                assert_eq!(self.cache.pools[g].node(block), n, "a block knows its node");
            }
            let state = |(g, kind): (usize, &GroupKind)| {
                *kind == GroupKind::State && node.blocks[g] != BlockId::NONE
            };
            checkpoints += u32::from(self.config.groups.iter().enumerate().any(state));
            assert!(holds, "node {n} is of no use");
        }
        assert_eq!(found, leases, "leases");
        assert_eq!(checkpoints, self.cache.checkpoints, "checkpoints");
        for (g, pool) in self.cache.pools.iter().enumerate() {
            for b in (0..pool.capacity()).map(BlockId).filter(|&b| pool.node(b) != u32::MAX) {
                assert_eq!(tree.node(pool.node(b)).blocks[g], b, "a node knows its block");
            }
        }
    }
}

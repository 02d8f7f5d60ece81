//! The prefix tree: one node per full block of tokens, with a cache block per group where that
//! group has one. Nodes are found by a 128-bit id chained over the tokens, and compared token by
//! token.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use tokenmill_ir::sampling::splitmix;
use tokenmill_ir::{BlockId, MAX_GROUPS, TokenId};

use crate::block_pool::NONE;
use crate::changes::Changes;

/// Identity of a run of tokens from the start of a text: chained over blocks, salted at the root,
/// the same in every process, so that it can name a block on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PrefixId(pub u128);

impl PrefixId {
    /// The empty text under that salt.
    pub fn root(salt: u64) -> Self {
        let high = splitmix(salt ^ 0x746f_6b65_6e6d_696c);
        Self(u128::from(high) << 64 | u128::from(splitmix(high ^ salt)))
    }

    /// The text with one more block: two 64-bit lanes of the splitmix64 finaliser.
    pub fn then(self, tokens: &[TokenId]) -> Self {
        let (mut high, mut low) = ((self.0 >> 64) as u64, self.0 as u64);
        for &t in tokens {
            high = splitmix(high ^ u64::from(t));
            low = splitmix(low.rotate_left(23) ^ high.wrapping_mul(0x9e6c_63d0_876a_46d5));
        }
        Self(u128::from(high) << 64 | u128::from(low))
    }
}

/// Most blocks of texts that are remembered to have been in the tree: a MiB.
const MOST_GONE: usize = 1 << 16;

/// Ids are already mixed: their low half is the hash.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LowHalf(u64);

impl Hasher for LowHalf {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.0 = splitmix(self.0 ^ u64::from(b));
        }
    }

    fn write_u128(&mut self, id: u128) {
        self.0 = id as u64;
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub id: PrefixId,
    pub salt: u64,
    /// [`NONE`] at the root.
    pub parent: u32,
    pub children: u32,
    /// Sequences whose text runs through this node.
    pub leases: u32,
    /// A block per group; `BlockId::NONE` where that group has none.
    pub blocks: [BlockId; MAX_GROUPS],
    live: bool,
}

/// Nodes in a slab; tokens beside them.
#[derive(Debug, Clone)]
pub(crate) struct PrefixTree {
    nodes: Vec<Node>,
    tokens: Vec<TokenId>,
    spare: Vec<u32>,
    by_id: HashMap<PrefixId, u32, BuildHasherDefault<LowHalf>>,
    block_tokens: usize,
    /// Ids of nodes that left, each in its place until another takes it.
    gone: Vec<PrefixId>,
    /// What changed, where that is noted.
    pub log: Option<Box<Changes>>,
}

impl PrefixTree {
    /// Room for `capacity` nodes of `block_tokens` tokens.
    pub fn new(capacity: usize, block_tokens: u32) -> Self {
        let mut by_id = HashMap::default();
        by_id.reserve(capacity);
        let empty = Node {
            id: PrefixId(0),
            salt: 0,
            parent: NONE,
            children: 0,
            leases: 0,
            blocks: [BlockId::NONE; MAX_GROUPS],
            live: false,
        };
        Self {
            nodes: vec![empty; capacity],
            tokens: vec![0; capacity * block_tokens as usize],
            spare: (0..capacity as u32).rev().collect(),
            by_id,
            block_tokens: block_tokens as usize,
            gone: vec![PrefixId(0); (4 * capacity).clamp(1, MOST_GONE)],
            log: None,
        }
    }

    pub fn node(&self, n: u32) -> &Node {
        &self.nodes[n as usize]
    }

    /// The node, if there is one of that number.
    pub fn live(&self, n: u32) -> Option<&Node> {
        self.nodes.get(n as usize).filter(|n| n.live)
    }

    pub fn node_mut(&mut self, n: u32) -> &mut Node {
        &mut self.nodes[n as usize]
    }

    pub fn len(&self) -> usize {
        self.nodes.len() - self.spare.len()
    }

    /// Most nodes.
    pub fn capacity(&self) -> usize {
        self.nodes.len()
    }

    /// Live nodes.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Node)> {
        (0u32..).zip(&self.nodes).filter(|(_, n)| n.live)
    }

    pub fn tokens(&self, n: u32) -> &[TokenId] {
        let at = n as usize * self.block_tokens;
        &self.tokens[at..at + self.block_tokens]
    }

    fn id_below(&self, parent: u32, salt: u64, tokens: &[TokenId]) -> PrefixId {
        let above =
            if parent == NONE { PrefixId::root(salt) } else { self.nodes[parent as usize].id };
        above.then(tokens)
    }

    fn is(&self, n: u32, parent: u32, salt: u64, tokens: &[TokenId]) -> bool {
        let node = &self.nodes[n as usize];
        node.parent == parent && node.salt == salt && self.tokens(n) == tokens
    }

    /// The node of that block below `parent`.
    pub fn child(&self, parent: u32, salt: u64, tokens: &[TokenId]) -> Option<u32> {
        let n = *self.by_id.get(&self.id_below(parent, salt, tokens))?;
        self.is(n, parent, salt, tokens).then_some(n)
    }

    fn place_among_gone(&self, id: PrefixId) -> usize {
        (id.0 as u64 % self.gone.len() as u64) as usize
    }

    /// Whether that block below `parent` was here and left, as far as that is remembered.
    pub fn was_child(&self, parent: u32, salt: u64, tokens: &[TokenId]) -> bool {
        let id = self.id_below(parent, salt, tokens);
        self.gone[self.place_among_gone(id)] == id
    }

    /// How much of a text, in tokens, the nearest text in the tree has too, and the node where they
    /// part. Cost: linear in nodes.
    pub fn nearest(&self, salt: u64, text: &[TokenId]) -> (usize, Option<u32>) {
        let (mut parent, mut common) = (NONE, 0);
        for block in text.chunks_exact(self.block_tokens) {
            let Some(node) = self.child(parent, salt, block) else { break };
            parent = node;
            common += self.block_tokens;
        }
        let shared = |n: u32| {
            let pairs = self.tokens(n).iter().zip(&text[common..]);
            pairs.take_while(|(a, b)| a == b).count()
        };
        let below = self.iter().filter(|(_, n)| n.parent == parent && n.salt == salt);
        let best = below.map(|(n, _)| (shared(n), n)).max();
        (common + best.map_or(0, |(more, _)| more), best.map(|(_, n)| n))
    }

    /// The node of that block below `parent`, made if absent; `None` when there is no room, or when
    /// another text has the same id.
    pub fn insert(&mut self, parent: u32, salt: u64, tokens: &[TokenId]) -> Option<u32> {
        let id = self.id_below(parent, salt, tokens);
        if let Some(&n) = self.by_id.get(&id) {
            return self.is(n, parent, salt, tokens).then_some(n);
        }
        let n = self.spare.pop()?;
        self.nodes[n as usize] = Node {
            id,
            salt,
            parent,
            children: 0,
            leases: 0,
            blocks: [BlockId::NONE; MAX_GROUPS],
            live: true,
        };
        let at = n as usize * self.block_tokens;
        self.tokens[at..at + self.block_tokens].copy_from_slice(tokens);
        self.by_id.insert(id, n);
        if parent != NONE {
            self.nodes[parent as usize].children += 1;
        }
        self.note_stored(n);
        Some(n)
    }

    /// Takes a node out; its blocks are given back before.
    pub fn remove(&mut self, n: u32) {
        self.note_removed(n);
        let node = &mut self.nodes[n as usize];
        assert!(node.live && node.children == 0 && node.leases == 0, "node {n} is still in use");
        assert!(node.blocks.iter().all(|&b| b == BlockId::NONE), "node {n} still has blocks");
        node.live = false;
        let (id, parent) = (node.id, node.parent);
        self.by_id.remove(&id);
        let place = self.place_among_gone(id);
        self.gone[place] = id;
        if parent != NONE {
            self.nodes[parent as usize].children -= 1;
        }
        self.spare.push(n);
    }

    /// Asserts what holds inside the tree alone.
    pub fn check(&self) {
        assert_eq!(self.by_id.len(), self.len(), "every node has one id");
        let mut children = vec![0; self.nodes.len()];
        for (n, node) in self.iter() {
            assert_eq!(self.by_id.get(&node.id), Some(&n), "node {n} is found by its id");
            let id = self.id_below(node.parent, node.salt, self.tokens(n));
            assert_eq!(node.id, id, "id of node {n}");
            if node.parent != NONE {
                let above = self.node(node.parent);
                assert!(above.live && above.leases >= node.leases, "leases above node {n}");
                assert_eq!(above.salt, node.salt, "salt of node {n}");
                children[node.parent as usize] += 1;
            }
        }
        for (n, node) in self.iter() {
            assert_eq!(node.children, children[n as usize], "children of node {n}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_apart_by_tokens_place_and_salt() {
        let mut tree = PrefixTree::new(4, 2);
        let a = tree.insert(NONE, 0, &[1, 2]).unwrap();
        let ab = tree.insert(a, 0, &[3, 4]).unwrap();
        assert_eq!(tree.insert(a, 0, &[3, 4]), Some(ab), "the same text is the same node");
        assert_eq!(tree.child(a, 0, &[3, 4]), Some(ab));
        assert_eq!(tree.child(NONE, 0, &[3, 4]), None);
        assert_eq!(tree.child(NONE, 9, &[1, 2]), None, "another salt");
        let salted = tree.insert(NONE, 9, &[1, 2]).unwrap();
        assert_ne!(salted, a);
        tree.check();
        tree.insert(NONE, 0, &[5, 6]).unwrap();
        assert_eq!(tree.insert(NONE, 0, &[7, 8]), None, "no room");
        tree.remove(ab);
        assert_eq!(tree.child(a, 0, &[3, 4]), None);
        tree.check();
    }

    #[test]
    fn the_nearest_text_is_found() {
        let mut tree = PrefixTree::new(8, 3);
        let a = tree.insert(NONE, 0, &[1, 2, 3]).unwrap();
        let b = tree.insert(a, 0, &[4, 5, 6]).unwrap();
        tree.insert(a, 0, &[4, 9, 9]).unwrap();
        let cases: [(&[TokenId], usize, Option<u32>); 6] = [
            (&[1, 2, 3, 4, 5, 7], 5, Some(b)),
            (&[1, 2, 3, 4, 5], 5, Some(b)),
            (&[1, 2, 3, 4, 5, 6, 8], 6, None),
            (&[1, 2, 9], 2, Some(a)),
            (&[7], 0, Some(a)),
            (&[], 0, Some(a)),
        ];
        for (text, common, node) in cases {
            assert_eq!(tree.nearest(0, text), (common, node), "{text:?}");
        }
        assert_eq!(tree.nearest(5, &[1, 2, 3]), (0, None), "another salt");
    }

    #[test]
    fn a_text_with_the_id_of_another_is_not_taken_for_it() {
        // As if two texts had one id: the node keeps the id of the tokens that it had before.
        let mut tree = PrefixTree::new(4, 2);
        let a = tree.insert(NONE, 0, &[1, 2]).unwrap();
        let b = tree.insert(a, 0, &[3, 4]).unwrap();
        let at = b as usize * 2;
        tree.tokens[at..at + 2].copy_from_slice(&[3, 5]);
        assert_eq!(tree.child(a, 0, &[3, 4]), None);
        assert_eq!(tree.insert(a, 0, &[3, 4]), None, "nor is it overwritten");
        assert_eq!(tree.nearest(0, &[1, 2, 3, 4]), (3, Some(b)));
        assert_eq!(tree.tokens(b), [3, 5]);
    }

    #[test]
    fn ids_are_frozen() {
        // Names of blocks on disk: they must not change between versions.
        let id = |salt, tokens: &[TokenId]| PrefixId::root(salt).then(tokens).0;
        assert_eq!(id(0, &[]), 0x4081_54ab_36df_6a1a_75a3_42b8_40b0_4c19);
        assert_eq!(id(7, &[1, 2, 3]), 0x760a_268c_9a5c_f384_f724_18f6_b2cb_34f8);
        assert_ne!(id(7, &[1, 3, 2]), id(7, &[1, 2, 3]));
        assert_ne!(id(8, &[1, 2, 3]), id(7, &[1, 2, 3]));
    }
}

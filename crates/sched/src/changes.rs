//! What changes in the prefix tree, noted in order for who keeps a copy of it elsewhere: which
//! blocks of which texts are cached here.

use tokenmill_ir::TokenId;

use crate::block_pool::NONE;
use crate::prefix::{Node, PrefixId, PrefixTree};
use crate::scheduler::Scheduler;

/// The salt of texts that everybody may share; those of others are nobody's business.
const PUBLIC: u64 = 0;

/// A change of what is cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A block of tokens is there: the next ones of [`Changes::tokens`].
    Stored {
        /// Names the text up to the block's end, in every process the same.
        id: u64,
        /// That of the block before it; `None`: it begins the text.
        parent: Option<u64>,
    },
    /// It is there no more.
    Removed {
        /// Its name.
        id: u64,
    },
}

/// Changes in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// What happened.
    pub list: Vec<Change>,
    /// Tokens of the blocks that were stored, one block after another.
    pub tokens: Vec<TokenId>,
}

impl Changes {
    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Forgets all, and keeps the room.
    pub fn clear(&mut self) {
        self.list.clear();
        self.tokens.clear();
    }

    /// Takes over what happened after these.
    pub fn append(&mut self, mut later: Changes) {
        self.list.append(&mut later.list);
        self.tokens.append(&mut later.tokens);
    }

    /// Notes a block that is there; `parent`: the text before it, where there is any.
    fn stored(&mut self, id: PrefixId, parent: Option<PrefixId>, tokens: &[TokenId]) {
        self.list.push(Change::Stored { id: name(id), parent: parent.map(name) });
        self.tokens.extend_from_slice(tokens);
    }
}

/// 64 of an id's 128 bits, which are mixed.
fn name(id: PrefixId) -> u64 {
    id.0 as u64
}

/// A place in a text that everybody may share: what the blocks from there on are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextPlace {
    id: PrefixId,
    is_begin: bool,
}

impl TextPlace {
    /// Where texts begin; `None` under a salt, which makes a text somebody's own.
    pub fn begin(salt: u64) -> Option<Self> {
        (salt == PUBLIC).then(|| Self { id: PrefixId::root(salt), is_begin: true })
    }

    /// The place behind one more block.
    #[must_use]
    pub fn then(self, tokens: &[TokenId]) -> Self {
        Self { id: self.id.then(tokens), is_begin: false }
    }

    /// Notes one more block as stored; the place behind it.
    #[must_use]
    pub fn store(self, tokens: &[TokenId], out: &mut Changes) -> Self {
        let next = self.then(tokens);
        out.stored(next.id, (!self.is_begin).then_some(self.id), tokens);
        next
    }
}

impl Scheduler {
    /// From now on notes what changes in the prefix tree, or no more.
    pub fn note_changes(&mut self, noted: bool) {
        self.cache.tree.log = noted.then(Box::default);
    }

    /// What changed since it was last emptied; `None`: it is not noted.
    pub fn changes(&mut self) -> Option<&mut Changes> {
        self.cache.tree.log.as_deref_mut()
    }

    /// All blocks that everybody may share, each after the one before it. Cost: linear in nodes.
    pub fn cached_blocks(&self) -> Changes {
        self.cache.tree.blocks()
    }
}

impl PrefixTree {
    /// Notes a node that has come.
    pub(crate) fn note_stored(&mut self, n: u32) {
        let Some(mut log) = self.log.take() else { return };
        self.tell_stored(n, &mut log);
        self.log = Some(log);
    }

    /// Notes a node that goes.
    pub(crate) fn note_removed(&mut self, n: u32) {
        let Node { id, salt, .. } = *self.node(n);
        if let Some(log) = self.log.as_mut().filter(|_| salt == PUBLIC) {
            log.list.push(Change::Removed { id: name(id) });
        }
    }

    fn tell_stored(&self, n: u32, out: &mut Changes) {
        let node = self.node(n);
        if node.salt == PUBLIC {
            let parent = (node.parent != NONE).then(|| self.node(node.parent).id);
            out.stored(node.id, parent, self.tokens(n));
        }
    }

    /// Notes that all blocks are gone, each before the one that it goes on from.
    pub(crate) fn note_all_removed(&mut self) {
        if self.log.is_none() {
            return;
        }
        let all = self.blocks().list;
        let gone = all.iter().rev().map(|change| match *change {
            Change::Stored { id, .. } | Change::Removed { id } => Change::Removed { id },
        });
        self.log.iter_mut().for_each(|log| log.list.extend(gone.clone()));
    }

    fn blocks(&self) -> Changes {
        let (mut all, mut path) = (Changes::default(), Vec::new());
        let mut is_told = vec![false; self.capacity()];
        for (n, _) in self.iter() {
            let mut at = n;
            while at != NONE && !std::mem::replace(&mut is_told[at as usize], true) {
                path.push(at);
                at = self.node(at).parent;
            }
            path.drain(..).rev().for_each(|n| self.tell_stored(n, &mut all));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_and_goes_is_noted_in_order_and_salted_texts_are_not() {
        let mut tree = PrefixTree::new(8, 2);
        let before = tree.insert(NONE, 0, &[9, 9]).unwrap();
        tree.log = Some(Box::default());
        let a = tree.insert(NONE, 0, &[1, 2]).unwrap();
        let ab = tree.insert(a, 0, &[3, 4]).unwrap();
        tree.insert(a, 0, &[3, 4]).unwrap();
        let salted = tree.insert(NONE, 7, &[1, 2]).unwrap();
        tree.remove(salted);
        tree.remove(ab);
        tree.remove(before);
        tree.note_all_removed();
        let first = PrefixId::root(0).then(&[1, 2]);
        let ids = [first.then(&[3, 4]), PrefixId::root(0).then(&[9, 9]), first].map(name);
        let mut list = vec![
            Change::Stored { id: ids[2], parent: None },
            Change::Stored { id: ids[0], parent: Some(ids[2]) },
        ];
        list.extend(ids.map(|id| Change::Removed { id }));
        assert_eq!(tree.log.as_deref(), Some(&Changes { list, tokens: vec![1, 2, 3, 4] }));
    }

    #[test]
    fn a_tree_is_told_from_its_roots_on() {
        let mut tree = PrefixTree::new(8, 1);
        let old = tree.insert(NONE, 0, &[1]).unwrap();
        let a = tree.insert(NONE, 0, &[2]).unwrap();
        tree.insert(NONE, 3, &[2]).unwrap();
        tree.remove(old);
        // (Its number is smaller than its parent's.)
        let b = tree.insert(a, 0, &[3]).unwrap();
        assert!(b < a);
        let above = PrefixId::root(0).then(&[2]);
        let list = vec![
            Change::Stored { id: name(above), parent: None },
            Change::Stored { id: name(above.then(&[3])), parent: Some(name(above)) },
        ];
        assert_eq!(tree.blocks(), Changes { list, tokens: vec![2, 3] });
    }
}

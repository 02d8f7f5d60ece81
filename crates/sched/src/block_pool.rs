//! Blocks of one cache group: reference counts, the free list, and the blocks that only the prefix
//! tree holds, least recently released first.

use tokenmill_ir::BlockId;

/// Stands where there is no node or no list neighbour.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Block {
    /// Table entries that name it, plus one for the tree.
    refs: u32,
    /// Node of the prefix tree that holds it.
    node: u32,
    prev: u32,
    next: u32,
}

/// Ends of a doubly linked list through [`Block::prev`] and [`Block::next`].
#[derive(Debug, Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    const EMPTY: List = List { head: NONE, tail: NONE, len: 0 };
}

/// Where a block stands; decided by its count and its node alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Free,
    Cached,
    Held,
    /// Above what is given out: only the tree holds it, or nobody.
    Left,
    Withheld,
}

/// The blocks of one group.
#[derive(Debug, Clone)]
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    /// Blocks below this are given out.
    backed: u32,
    withheld: u32,
    left: u32,
    free: List,
    cached: List,
}

impl BlockPool {
    /// `count` free blocks.
    pub fn new(count: u32) -> Self {
        let block = Block { refs: 0, node: NONE, prev: NONE, next: NONE };
        let blocks = vec![block; count as usize];
        let (free, cached) = (List::EMPTY, List::EMPTY);
        let mut pool = Self { blocks, backed: count, withheld: 0, left: 0, free, cached };
        for b in 0..count {
            pool.push(Place::Free, b);
        }
        pool
    }

    /// Blocks there are: backed ones, and those above that somebody still holds.
    pub fn total(&self) -> u32 {
        self.capacity() - self.withheld
    }

    /// Blocks below this are given out.
    pub fn backed(&self) -> u32 {
        self.backed
    }

    /// Blocks there can be at most.
    pub fn capacity(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// From now on only blocks below `backed` are given out.
    pub fn resize(&mut self, backed: u32) {
        let (old, new) = (self.backed, backed.min(self.capacity()));
        for b in old.min(new)..old.max(new) {
            self.backed = old;
            let before = self.place(b);
            self.backed = new;
            let after = self.place(b);
            if before != after {
                self.unlink(before, b);
                self.push(after, b);
            }
        }
        self.backed = new;
    }

    /// Memory must back the blocks below this: those given out, and those somebody holds.
    pub fn reach(&self) -> u32 {
        let held = (self.backed..self.capacity()).rev().find(|&b| self.blocks[b as usize].refs > 0);
        held.map_or(self.backed, |b| b + 1)
    }

    /// Whether a block is above those that are given out.
    pub fn is_above(&self, b: BlockId) -> bool {
        b != BlockId::NONE && b.0 >= self.backed
    }

    /// Blocks above those that are given out which only the tree holds.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Whether only the tree holds a block, which is above those that are given out.
    pub fn is_left(&self, b: BlockId) -> bool {
        b != BlockId::NONE && self.place(b.0) == Place::Left
    }

    pub fn free(&self) -> u32 {
        self.free.len
    }

    /// Blocks only the tree holds.
    pub fn cached(&self) -> u32 {
        self.cached.len
    }

    pub fn refs(&self, b: BlockId) -> u32 {
        self.blocks[b.0 as usize].refs
    }

    /// The node that holds the block, or [`NONE`].
    pub fn node(&self, b: BlockId) -> u32 {
        self.blocks[b.0 as usize].node
    }

    /// A free block with one reference.
    pub fn take(&mut self) -> Option<BlockId> {
        let b = self.free.head;
        if b == NONE {
            return None;
        }
        self.change(b, |block| block.refs = 1);
        Some(BlockId(b))
    }

    /// One more reference to a block in use.
    pub fn share(&mut self, b: BlockId) {
        assert!(self.refs(b) > 0, "block {} shared while free", b.0);
        self.change(b.0, |block| block.refs += 1);
    }

    /// Gives one reference back.
    pub fn release(&mut self, b: BlockId) {
        let block = self.blocks[b.0 as usize];
        assert!(block.refs > u32::from(block.node != NONE), "block {} released twice", b.0);
        self.change(b.0, |block| block.refs -= 1);
    }

    /// The tree takes a reference for that node.
    pub fn keep(&mut self, b: BlockId, node: u32) {
        assert!(self.refs(b) > 0 && self.node(b) == NONE, "block {} kept twice", b.0);
        self.change(b.0, |block| {
            block.refs += 1;
            block.node = node;
        });
    }

    /// The tree gives its reference back.
    pub fn forget(&mut self, b: BlockId) {
        assert!(self.node(b) != NONE, "block {} is in no node", b.0);
        self.change(b.0, |block| {
            block.refs -= 1;
            block.node = NONE;
        });
    }

    /// Node of the block only the tree holds that was released first.
    pub fn oldest_cached(&self) -> Option<u32> {
        self.blocks.get(self.cached.head as usize).map(|b| b.node)
    }

    fn place(&self, b: u32) -> Place {
        let block = &self.blocks[b as usize];
        match (block.refs, block.node) {
            (0, _) if b >= self.backed => Place::Withheld,
            (0, _) => Place::Free,
            (1, node) if node != NONE && b >= self.backed => Place::Left,
            (1, node) if node != NONE => Place::Cached,
            _ => Place::Held,
        }
    }

    fn change(&mut self, b: u32, edit: impl FnOnce(&mut Block)) {
        let before = self.place(b);
        edit(&mut self.blocks[b as usize]);
        let after = self.place(b);
        if before != after {
            self.unlink(before, b);
            self.push(after, b);
        }
    }

    fn list(&mut self, place: Place) -> Option<&mut List> {
        match place {
            Place::Free => Some(&mut self.free),
            Place::Cached => Some(&mut self.cached),
            Place::Held | Place::Left | Place::Withheld => None,
        }
    }

    fn push(&mut self, place: Place, b: u32) {
        self.withheld += u32::from(place == Place::Withheld);
        self.left += u32::from(place == Place::Left);
        let Some(list) = self.list(place) else { return };
        let tail = list.tail;
        list.tail = b;
        list.len += 1;
        if tail == NONE {
            list.head = b;
        } else {
            self.blocks[tail as usize].next = b;
        }
        self.blocks[b as usize].prev = tail;
        self.blocks[b as usize].next = NONE;
    }

    fn unlink(&mut self, place: Place, b: u32) {
        self.withheld -= u32::from(place == Place::Withheld);
        self.left -= u32::from(place == Place::Left);
        let Block { prev, next, .. } = self.blocks[b as usize];
        let Some(list) = self.list(place) else { return };
        list.len -= 1;
        if prev == NONE {
            list.head = next;
        }
        if next == NONE {
            list.tail = prev;
        }
        if prev != NONE {
            self.blocks[prev as usize].next = next;
        }
        if next != NONE {
            self.blocks[next as usize].prev = prev;
        }
    }

    /// Free blocks, next to be taken first.
    pub fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.walk(self.free.head)
    }

    fn walk(&self, head: u32) -> impl Iterator<Item = BlockId> + '_ {
        let next = |b: &u32| Some(self.blocks[*b as usize].next).filter(|&n| n != NONE);
        std::iter::successors(Some(head).filter(|&b| b != NONE), next).map(BlockId)
    }

    /// Asserts that lists and counts agree, given how often tables name each block.
    pub fn check(&self, table_refs: &[u32]) {
        let (mut free, mut cached, mut withheld, mut left) = (0, 0, 0, 0);
        for (b, block) in self.blocks.iter().enumerate() {
            let tree = u32::from(block.node != NONE);
            assert_eq!(block.refs, table_refs[b] + tree, "references of block {b}");
            match self.place(b as u32) {
                Place::Free => free += 1,
                Place::Cached => cached += 1,
                Place::Held => {}
                Place::Left => left += 1,
                Place::Withheld => withheld += 1,
            }
        }
        assert_eq!((self.withheld, self.left), (withheld, left), "withheld and left blocks");
        assert_eq!(self.free.len, free, "free blocks");
        assert_eq!(self.cached.len, cached, "cached blocks");
        assert_eq!(self.walk(self.free.head).count() as u32, free, "free list");
        assert_eq!(self.walk(self.cached.head).count() as u32, cached, "cached list");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_move_between_free_held_and_cached() {
        let mut pool = BlockPool::new(3);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        pool.keep(a, 7);
        pool.keep(b, 8);
        assert_eq!((pool.free(), pool.cached(), pool.oldest_cached()), (1, 0, None));
        pool.release(b);
        pool.release(a);
        assert_eq!((pool.cached(), pool.oldest_cached()), (2, Some(8)), "first released is first");
        pool.share(b);
        assert_eq!(pool.oldest_cached(), Some(7));
        pool.check(&[0, 1, 0]);
        pool.forget(b);
        pool.release(b);
        pool.forget(a);
        assert_eq!((pool.free(), pool.cached()), (3, 0));
        pool.check(&[0, 0, 0]);
        assert!((0..3).all(|_| pool.take().is_some()) && pool.take().is_none());
    }

    #[test]
    fn blocks_above_what_is_backed_are_not_given_out() {
        let mut pool = BlockPool::new(4);
        let all: Vec<BlockId> = (0..4).filter_map(|_| pool.take()).collect();
        pool.release(all[1]);
        pool.resize(2);
        assert_eq!((pool.total(), pool.free(), pool.reach()), (4, 1, 4), "held ones stay");
        pool.release(all[3]);
        assert_eq!((pool.total(), pool.free(), pool.reach()), (3, 1, 3));
        pool.release(all[2]);
        pool.check(&[1, 0, 0, 0]);
        assert_eq!((pool.total(), pool.reach(), pool.take()), (2, 2, Some(all[1])));
        assert_eq!(pool.take(), None);
        pool.resize(3);
        assert_eq!((pool.total(), pool.take()), (3, Some(all[2])));
        pool.check(&[1, 1, 1, 0]);
    }

    #[test]
    #[should_panic(expected = "released twice")]
    fn a_second_release_is_a_bug() {
        let mut pool = BlockPool::new(1);
        let a = pool.take().unwrap();
        pool.release(a);
        pool.release(a);
    }
}

//! A copy of what is cached, made of what an engine tells alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokenmill_engine::{CacheFeed, CacheNews, Change, Changes, Core, Medium};
use tokenmill_ir::TokenId;

/// A block: the one before it, and its tokens.
type Block = (Option<u64>, Vec<TokenId>);

/// See the module.
pub struct Mirror {
    feed: Arc<CacheFeed>,
    memory: BTreeMap<u64, Block>,
    disk: BTreeMap<u64, Block>,
    /// How often all was told anew.
    pub anew: u64,
    /// Changes that were told.
    pub changes: u64,
}

impl Mirror {
    /// One of an engine that from now on tells what it has; so many changes may wait.
    pub fn of(core: &mut Core, most: usize) -> Self {
        let feed = Arc::new(CacheFeed::bounded(Box::new(|| ()), most));
        core.tell_cache(Arc::clone(&feed));
        Self { feed, memory: BTreeMap::new(), disk: BTreeMap::new(), anew: 0, changes: 0 }
    }

    /// Takes over what was told.
    pub fn follow(&mut self) {
        for news in self.feed.take() {
            match news {
                CacheNews::Anew => {
                    self.anew += 1;
                    self.memory.clear();
                    self.disk.clear();
                }
                CacheNews::Changed(medium, changes) => {
                    self.changes += changes.list.len() as u64;
                    match medium {
                        Medium::Memory => change(&mut self.memory, &changes, "memory"),
                        Medium::Disk => change(&mut self.disk, &changes, "disk"),
                    }
                }
            }
        }
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.disk.is_empty()
    }

    /// Asserts that it is what the engine's prefix tree has.
    pub fn check(&self, core: &Core) {
        let mut own = BTreeMap::new();
        change(&mut own, &core.scheduler().cached_blocks(), "memory");
        assert_eq!(self.memory, own, "what is told, and what there is");
    }

    /// The texts on disk, each up to the end of one of its blocks.
    pub fn texts_on_disk(&self) -> BTreeSet<Vec<TokenId>> {
        self.disk.values().map(|block| self.text_on_disk(block)).collect()
    }

    fn text_on_disk(&self, block: &Block) -> Vec<TokenId> {
        let before = |block: &&Block| block.0.map(|parent| &self.disk[&parent]);
        let blocks: Vec<&Block> = std::iter::successors(Some(block), before).collect();
        blocks.iter().rev().flat_map(|block| &block.1).copied().collect()
    }
}

fn change(blocks: &mut BTreeMap<u64, Block>, changes: &Changes, medium: &str) {
    let is_stored = |change: &&Change| matches!(change, Change::Stored { .. });
    let stored = changes.list.iter().filter(is_stored).count();
    let mut tokens = changes.tokens.chunks((changes.tokens.len() / stored.max(1)).max(1));
    for change in &changes.list {
        match *change {
            Change::Stored { id, parent } => {
                let is_known = |parent: u64| blocks.contains_key(&parent);
                assert!(
                    parent.is_none_or(is_known),
                    "{id} in {medium} goes on from what is not there"
                );
                let block = (parent, tokens.next().expect("its tokens").to_vec());
                let before = blocks.insert(id, block);
                assert!(before.is_none(), "{id} in {medium} is stored twice");
            }
            Change::Removed { id } => {
                let gone = blocks.remove(&id);
                assert!(gone.is_some(), "{id} is removed from {medium} and was not there");
            }
        }
    }
    assert!(tokens.next().is_none(), "tokens of no block");
}

//! A copy of what is cached, made of what an engine tells alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokenmill_engine::{CacheFeed, CacheNews, Change, Changes, Core};
use tokenmill_ir::TokenId;

/// A block: the one before it, and its tokens.
type Block = (Option<u64>, Vec<TokenId>);

/// See the module.
pub struct Mirror {
    feed: Arc<CacheFeed>,
    blocks: BTreeMap<u64, Block>,
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
        Self { feed, blocks: BTreeMap::new(), anew: 0, changes: 0 }
    }

    /// Takes over what was told.
    pub fn follow(&mut self) {
        for news in self.feed.take() {
            match news {
                CacheNews::Anew => {
                    self.anew += 1;
                    self.blocks.clear();
                }
                CacheNews::Changed(changes) => self.change(&changes),
            }
        }
    }

    fn change(&mut self, changes: &Changes) {
        let is_stored = |change: &&Change| matches!(change, Change::Stored { .. });
        let stored = changes.list.iter().filter(is_stored).count();
        let mut tokens = changes.tokens.chunks((changes.tokens.len() / stored.max(1)).max(1));
        self.changes += changes.list.len() as u64;
        for change in &changes.list {
            match *change {
                Change::Stored { id, parent } => {
                    let is_known = |parent: u64| self.blocks.contains_key(&parent);
                    assert!(parent.is_none_or(is_known), "{id} goes on from what is not there");
                    let block = (parent, tokens.next().expect("its tokens").to_vec());
                    let before = self.blocks.insert(id, block);
                    assert!(before.is_none(), "{id} is stored twice");
                }
                Change::Removed { id } => {
                    let gone = self.blocks.remove(&id);
                    assert!(gone.is_some(), "{id} is removed and was not there");
                }
            }
        }
        assert!(tokens.next().is_none(), "tokens of no block");
    }

    /// Blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Asserts that it is what the engine's prefix tree has.
    pub fn check(&self, core: &Core) {
        let mut own = Self { feed: Arc::clone(&self.feed), blocks: BTreeMap::new(), ..*self };
        own.change(&core.scheduler().cached_blocks());
        assert_eq!(self.blocks, own.blocks, "what is told, and what there is");
    }
}

//! What is on disk, told to who keeps a copy of that elsewhere. Where a model has recurrent states a
//! text on disk is of use at few of its ends only, which nobody could be told: of those nothing is.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokenmill_ir::TokenId;
use tokenmill_kvlog::RunId;
use tokenmill_sched::{CachedText, Change, Changes, TextPlace};

use super::{Part, Tier, TierWorker};
use crate::feed::{CacheFeed, Medium};

/// How long a full feed is waited for before it is looked at again.
const PAUSE: Duration = Duration::from_millis(1);
/// Changes told at once.
const PIECE: usize = 4096;

/// Runs that were told.
#[derive(Default)]
pub(super) struct ToldRuns(HashMap<RunId, ToldRun>);

struct ToldRun {
    /// Where texts go on behind it.
    end: TextPlace,
    /// What its blocks are called.
    blocks: Vec<u64>,
}

impl Tier {
    /// From now on tells that feed what the disk has, and first all of it; or nobody.
    pub(crate) fn tell(&self, feed: Option<Arc<CacheFeed>>) {
        let feed = feed.filter(|_| !self.has_states());
        let queue = &mut *self.shared.lock();
        (queue.feed, queue.tells_anew) = (feed, true);
        self.shared.wake.notify_one();
    }

    /// Where a part of a text begins, if somebody is told.
    pub(super) fn place(&self, text: &CachedText, part: &Part) -> Option<TextPlace> {
        self.shared.lock().feed.as_ref()?;
        let before = text.tokens.get(..part.first as usize)?;
        let blocks = before.chunks_exact(self.block_tokens as usize);
        Some(blocks.fold(TextPlace::begin(text.salt)?, TextPlace::then))
    }
}

impl TierWorker {
    /// Tells all that the disk has, if that was asked for; whether it was.
    pub(super) fn tell_anew(&mut self) -> bool {
        {
            let queue = &mut *self.shared.lock();
            if !std::mem::take(&mut queue.tells_anew) {
                return false;
            }
            if queue.feed.is_none() {
                self.told.0.clear();
                return true;
            }
        }
        self.told.0.clear();
        let mut changes = Changes::default();
        for run in self.log.runs() {
            let before = match run.first {
                0 => TextPlace::begin(run.salt),
                _ => self.told.0.get(&run.parent).map(|parent| parent.end),
            };
            if let Some(before) = before {
                self.told.add(run.id, before, (&run.tokens, self.block_tokens), &mut changes);
            }
            if changes.list.len() >= PIECE {
                self.put(&mut changes);
            }
        }
        self.put(&mut changes);
        true
    }

    /// Tells that a part was written.
    pub(super) fn tell_written(&mut self, part: &Part) {
        let Some(before) = part.before else { return };
        let mut changes = Changes::default();
        self.told.add(part.id, before, (&part.tokens, self.block_tokens), &mut changes);
        self.put(&mut changes);
    }

    /// Tells what is gone.
    pub(super) fn tell_gone(&mut self) {
        let gone = self.log.take_gone();
        let mut changes = Changes::default();
        for run in gone.iter().rev().filter_map(|id| self.told.0.remove(id)) {
            changes.list.extend(run.blocks.iter().rev().map(|&id| Change::Removed { id }));
        }
        self.put(&mut changes);
    }

    /// Waits for room: nobody waits for this thread.
    fn put(&self, changes: &mut Changes) {
        while !changes.is_empty() {
            {
                // (Who is told no more is told nothing after that.)
                let queue = self.shared.lock();
                let Some(feed) = queue.feed.as_ref().filter(|_| !queue.tells_anew) else {
                    return changes.clear();
                };
                if feed.put(Medium::Disk, changes) {
                    return;
                }
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl ToldRuns {
    fn add(
        &mut self,
        id: RunId,
        before: TextPlace,
        (tokens, block_tokens): (&[TokenId], u32),
        changes: &mut Changes,
    ) {
        if self.0.contains_key(&id) {
            return;
        }
        let (mut end, mut blocks) = (before, Vec::new());
        for block in tokens.chunks_exact(block_tokens as usize) {
            end = end.store(block, changes);
            blocks.extend(end.name());
        }
        self.0.insert(id, ToldRun { end, blocks });
    }
}

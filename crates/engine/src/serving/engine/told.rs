//! What is in the prompt cache, told to who keeps a copy of that elsewhere.

use std::sync::Arc;

use super::Core;
use crate::feed::CacheFeed;

impl Core {
    /// From now on tells what changes in the prompt cache, and first what is in it.
    pub fn tell_cache(&mut self, feed: Arc<CacheFeed>) {
        self.sched.note_changes(true);
        self.feed = Some(feed);
        self.tell_cache_anew();
    }

    /// Tells all that is in the cache, in the place of what was told.
    pub(super) fn tell_cache_anew(&mut self) {
        let Some(feed) = &self.feed else { return };
        self.sched.note_changes(true); // (what was noted so far is in what is there)
        let tier = self.tier.as_ref().filter(|tier| tier.is_told());
        feed.begin_anew(self.sched.cached_blocks(), tier.is_some());
        tier.iter().for_each(|tier| tier.tell(Some(Arc::clone(feed))));
    }

    /// Tells what changed since it was last told.
    pub(super) fn tell_cache_changes(&mut self) {
        let Some(feed) = &self.feed else { return };
        let Some(changes) = self.sched.changes().filter(|changes| !changes.is_empty()) else {
            return;
        };
        if !feed.put(changes) {
            self.tell_cache_anew();
        }
    }

    /// The model goes, and its cache with it.
    pub(super) fn tell_cache_gone(&mut self) {
        let Some(feed) = self.feed.take() else { return };
        self.sched.note_changes(false);
        feed.begin_anew(Default::default(), false);
        self.tier.iter().for_each(|tier| tier.tell(None));
    }
}

//! What is on disk, told to who keeps a copy of what is cached: runs of blocks whose text lies there
//! from its begin on. Those of models with recurrent states are not told: such a text is of use only
//! where its states were kept.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokenmill_ir::TokenId;
use tokenmill_kvlog::{Log, Run, RunId, RunKind};
use tokenmill_sched::{Change, Changes, TextPlace};

use super::{Tier, TierWorker};
use crate::feed::CacheFeed;

impl Tier {
    /// Whether what it has can be told.
    pub(crate) fn is_told(&self) -> bool {
        !self.has_states()
    }

    /// From now on tells what is on disk, all of it where the feed began anew; or no more.
    pub(crate) fn tell(&self, feed: Option<Arc<CacheFeed>>) {
        let queue = &mut *self.shared.lock();
        (queue.feed, queue.is_feed_new) = (feed, true);
        self.shared.wake.notify_all();
    }
}

impl TierWorker {
    /// Tells what changed since it was last told.
    pub(super) fn tell(&mut self) {
        let feed = {
            let queue = &mut *self.shared.lock();
            queue.is_feed_new = false;
            queue.feed.clone()
        };
        match (&feed, &self.told.texts) {
            (Some(_), None) => self.told.begin(&mut self.log),
            (None, Some(_)) => self.told.texts = None,
            _ => {}
        }
        if let (Some(feed), Some(texts)) = (feed, &mut self.told.texts) {
            let changes = std::mem::take(&mut texts.changes);
            feed.put_disk(changes, || texts.all());
        }
    }
}

/// What a worker tells, while somebody hears it.
pub(super) struct Told {
    root: RunId,
    block_tokens: u32,
    texts: Option<Texts>,
}

impl Told {
    /// Nothing yet; `root`: the empty text that everybody may share.
    pub fn new(root: RunId, block_tokens: u32) -> Self {
        Self { root, block_tokens, texts: None }
    }

    fn begin(&mut self, log: &mut Log) {
        log.take_gone();
        let mut texts = Texts::new(self.root, self.block_tokens);
        for run in log.runs() {
            if let Some(kind) = run.kind {
                texts.add(run.id, run.parent, run.salt, &run.tokens, kind);
            }
        }
        texts.changes.clear(); // (all of it is told first)
        self.texts = Some(texts);
    }

    /// A run was written.
    pub fn add(&mut self, id: RunId, run: &Run<'_>) {
        if let Some(texts) = &mut self.texts {
            texts.add(id, run.parent, run.salt, run.tokens, run.kind);
        }
    }

    /// Runs that the log has no more are told to be gone.
    pub fn forget(&mut self, log: &mut Log) {
        let gone = log.take_gone();
        if let Some(texts) = &mut self.texts {
            gone.into_iter().for_each(|id| texts.remove(id));
        }
    }
}

/// Runs on disk, by the texts that they go on from.
struct Texts {
    root: RunId,
    block_tokens: usize,
    runs: HashMap<RunId, OneRun>,
    /// Runs by the text before them.
    after: HashMap<RunId, Vec<RunId>>,
    /// In how many runs that are told a block is: texts part within a run.
    blocks: HashMap<u64, u32>,
    /// What happened and was not yet told.
    changes: Changes,
}

struct OneRun {
    parent: RunId,
    tokens: Vec<TokenId>,
    /// Where it begins, if all before it is on disk: then it is told.
    begin: Option<TextPlace>,
}

impl Texts {
    fn new(root: RunId, block_tokens: u32) -> Self {
        Self {
            root,
            block_tokens: block_tokens as usize,
            runs: HashMap::new(),
            after: HashMap::new(),
            blocks: HashMap::new(),
            changes: Changes::default(),
        }
    }

    fn add(&mut self, id: RunId, parent: RunId, salt: u64, tokens: &[TokenId], kind: RunKind) {
        let public = TextPlace::begin(salt).filter(|_| kind == RunKind::Blocks);
        let Some(text_begin) = public.filter(|_| !self.runs.contains_key(&id)) else { return };
        let begin = match self.runs.get(&parent) {
            _ if parent == self.root => Some(text_begin),
            Some(before) => before.begin.map(|at| self.behind(at, &before.tokens)),
            None => None,
        };
        self.runs.insert(id, OneRun { parent, tokens: tokens.to_vec(), begin: None });
        self.after.entry(parent).or_default().push(id);
        let Some(begin) = begin else { return };
        let mut new = Changes::default();
        for (id, begin) in self.texts_from(vec![(id, begin)], &mut new) {
            self.runs.entry(id).and_modify(|run| run.begin = Some(begin));
        }
        let mut is_new = |id: u64| {
            let runs = self.blocks.entry(id).or_default();
            *runs += 1;
            *runs == 1
        };
        keep(&new, self.block_tokens, &mut is_new, &mut self.changes);
    }

    fn remove(&mut self, id: RunId) {
        let Some(run) = self.runs.get(&id) else { return };
        let (parent, begin) = (run.parent, run.begin);
        if let Some(begin) = begin {
            let mut gone = Changes::default();
            for (id, _) in self.texts_from(vec![(id, begin)], &mut gone) {
                self.runs.entry(id).and_modify(|run| run.begin = None);
            }
            // (Each before the one that it goes on from.)
            for change in gone.list.iter().rev() {
                let (Change::Stored { id, .. } | Change::Removed { id }) = *change;
                let Some(runs) = self.blocks.get_mut(&id) else { continue };
                *runs -= 1;
                if *runs == 0 {
                    self.blocks.remove(&id);
                    self.changes.list.push(Change::Removed { id });
                }
            }
        }
        self.runs.remove(&id);
        if let Some(beside) = self.after.get_mut(&parent) {
            beside.retain(|&other| other != id);
            if beside.is_empty() {
                self.after.remove(&parent);
            }
        }
    }

    /// All blocks that are told, each behind the one that it goes on from.
    fn all(&self) -> Changes {
        let (mut all, mut once) = (Changes::default(), Changes::default());
        let first = self.after.get(&self.root).into_iter().flatten();
        let first = first.filter_map(|&id| Some((id, self.runs.get(&id)?.begin?)));
        self.texts_from(first.collect(), &mut all);
        let mut seen = HashSet::new();
        keep(&all, self.block_tokens, &mut |id| seen.insert(id), &mut once);
        once
    }

    /// Those runs and all that go on from them, with where they begin; their blocks are noted as
    /// stored.
    fn texts_from(
        &self,
        mut open: Vec<(RunId, TextPlace)>,
        out: &mut Changes,
    ) -> Vec<(RunId, TextPlace)> {
        let mut found = Vec::new();
        while let Some((id, begin)) = open.pop() {
            let Some(run) = self.runs.get(&id) else { continue };
            found.push((id, begin));
            let blocks = run.tokens.chunks(self.block_tokens);
            let end = blocks.fold(begin, |at, block| at.store(block, out));
            open.extend(self.after.get(&id).into_iter().flatten().map(|&next| (next, end)));
        }
        found
    }

    fn behind(&self, begin: TextPlace, tokens: &[TokenId]) -> TextPlace {
        tokens.chunks(self.block_tokens).fold(begin, |at, block| at.then(block))
    }
}

/// Of blocks that are stored, those that `is_kept` says.
fn keep(
    blocks: &Changes,
    block_tokens: usize,
    is_kept: &mut dyn FnMut(u64) -> bool,
    out: &mut Changes,
) {
    for (change, tokens) in blocks.list.iter().zip(blocks.tokens.chunks(block_tokens)) {
        let (Change::Stored { id, .. } | Change::Removed { id }) = *change;
        if is_kept(id) {
            out.list.push(*change);
            out.tokens.extend_from_slice(tokens);
        }
    }
}

//! What changes in a model's prompt cache, on its way to who tells others of it. The device's thread
//! never waits for who takes it: where too much waits, all is told anew.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokenmill_sched::Changes;

/// Changes that may wait, unless they are all that there is.
const MOST_WAITING: usize = 1 << 16;

/// Where blocks lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// In the device's memory: the prefix tree.
    Memory,
    /// On disk.
    Disk,
}

/// What is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheNews {
    /// Nothing is there; what is comes next.
    Anew,
    /// These changes.
    Changed(Medium, Changes),
}

/// See the module.
pub struct CacheFeed {
    waiting: Mutex<Waiting>,
    wake: Box<dyn Fn() + Send + Sync>,
    most: usize,
    closed: AtomicBool,
}

impl fmt::Debug for CacheFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CacheFeed")
    }
}

#[derive(Default)]
struct Waiting {
    news: Vec<CacheNews>,
    /// Changes among them since all was told anew.
    changes: usize,
    disk: OnDisk,
}

/// Whether what is on disk is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum OnDisk {
    /// No: there is no such tier, or its model goes.
    #[default]
    Never,
    /// All of it, next.
    Due,
    /// What changes there.
    Told,
}

impl Waiting {
    fn push(&mut self, medium: Medium, changes: Changes) {
        match self.news.last_mut() {
            Some(CacheNews::Changed(last, before)) if *last == medium => {
                before.append(changes);
            }
            _ => self.news.push(CacheNews::Changed(medium, changes)),
        }
    }
}

impl CacheFeed {
    /// An empty one; `wake` is called, on the device's thread, when there is something to take.
    pub fn new(wake: Box<dyn Fn() + Send + Sync>) -> Self {
        Self::bounded(wake, MOST_WAITING)
    }

    /// The same where so many changes may wait.
    pub fn bounded(wake: Box<dyn Fn() + Send + Sync>, most: usize) -> Self {
        Self { waiting: Mutex::default(), wake, most, closed: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What waits, in order.
    pub fn take(&self) -> Vec<CacheNews> {
        let mut waiting = self.lock();
        waiting.changes = 0;
        std::mem::take(&mut waiting.news)
    }

    /// Nobody takes anything any more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.lock().news.clear();
    }

    /// Whether nobody does.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Empties `changes` into what waits; false, and nothing happened, where too much does.
    pub(crate) fn put(&self, changes: &mut Changes) -> bool {
        if self.is_closed() {
            changes.clear();
            return true;
        }
        {
            let mut waiting = self.lock();
            if waiting.changes > 0 && waiting.changes + changes.list.len() > self.most {
                return false;
            }
            waiting.changes += changes.list.len();
            waiting.push(Medium::Memory, std::mem::take(changes));
        }
        (self.wake)();
        true
    }

    /// Puts what changed on disk, or, where nothing of it was told yet, what `all` gives.
    pub(crate) fn put_disk(&self, changes: Changes, all: impl FnOnce() -> Changes) {
        if self.is_closed() {
            return;
        }
        let is_due = {
            let mut waiting = self.lock();
            match waiting.disk {
                OnDisk::Told if !changes.is_empty() => {
                    waiting.changes += changes.list.len();
                    waiting.push(Medium::Disk, changes);
                }
                OnDisk::Never | OnDisk::Told => return,
                OnDisk::Due => {}
            }
            waiting.disk == OnDisk::Due
        };
        if is_due {
            let all = all(); // (nobody waits for the lock meanwhile)
            let mut waiting = self.lock();
            if waiting.disk != OnDisk::Due {
                return;
            }
            waiting.disk = OnDisk::Told;
            if !all.is_empty() {
                waiting.push(Medium::Disk, all);
            }
        }
        (self.wake)();
    }

    /// Forgets what waits: this is all that there is in memory; `disk`: what is there is told next.
    pub(crate) fn begin_anew(&self, cached: Changes, disk: bool) {
        if self.is_closed() {
            return;
        }
        {
            let mut waiting = self.lock();
            waiting.changes = 0;
            waiting.disk = if disk { OnDisk::Due } else { OnDisk::Never };
            waiting.news.clear();
            waiting.news.push(CacheNews::Anew);
            if !cached.is_empty() {
                waiting.push(Medium::Memory, cached);
            }
        }
        (self.wake)();
    }
}

//! Whose the memory of a device is: models claim theirs before they take it, so that two that load
//! at once do not count on the same, and give it back when they are gone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::planner::memory::PROCESS_BYTES;

/// Where a model is in its life; an absent one is not listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its weights are on their way.
    Loading,
    /// It answers.
    Ready,
    /// It ends what is open and takes nothing new.
    Draining,
}

/// What a model takes, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Weights in the device's layout.
    pub weight_bytes: u64,
    /// Keys, values and states, when every block is in use.
    pub cache_bytes: u64,
    /// Buffers of the largest step, and scratch memory.
    pub buffer_bytes: u64,
    /// The tokenizer.
    pub vocabulary_bytes: u64,
}

impl Memory {
    /// All of it.
    pub fn sum(&self) -> u64 {
        let parts = [self.weight_bytes, self.cache_bytes, self.buffer_bytes, self.vocabulary_bytes];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// That and more.
    pub(crate) fn and(mut self, more: Memory) -> Memory {
        self.add(more);
        self
    }

    fn add(&mut self, more: Memory) {
        self.weight_bytes += more.weight_bytes;
        self.cache_bytes += more.cache_bytes;
        self.buffer_bytes += more.buffer_bytes;
        self.vocabulary_bytes += more.vocabulary_bytes;
    }
}

/// A model in the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is asked for by.
    pub name: String,
    /// Where it is in its life.
    pub state: State,
    /// What it holds.
    pub memory: Memory,
}

/// The memory of a device and who holds it.
#[derive(Debug)]
pub struct Ledger {
    all_bytes: u64,
    entries: Mutex<Vec<(u64, Entry)>>,
    /// Never used again: handles of models that are gone find nobody.
    next: AtomicU64,
}

impl Ledger {
    /// Nobody holds any of so many bytes.
    pub fn new(all_bytes: u64) -> Arc<Self> {
        Arc::new(Self { all_bytes, entries: Mutex::default(), next: AtomicU64::new(0) })
    }

    fn entries(&self) -> MutexGuard<'_, Vec<(u64, Entry)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of it, bytes.
    pub fn all_bytes(&self) -> u64 {
        self.all_bytes
    }

    /// What models may hold of it together, the process's own part aside.
    pub fn models_bytes(&self) -> u64 {
        self.all_bytes.saturating_sub(PROCESS_BYTES)
    }

    /// What one more model may count on, its part of the process among it: that is there once.
    pub fn free_bytes(&self) -> u64 {
        self.free_of(&self.entries())
    }

    fn free_of(&self, entries: &[(u64, Entry)]) -> u64 {
        let held = entries.iter().fold(0u64, |sum, (_, e)| sum.saturating_add(e.memory.sum()));
        self.all_bytes.saturating_sub(held)
    }

    /// What is held in all, the process itself included.
    pub fn held_bytes(&self) -> u64 {
        self.all_bytes - self.free_bytes() + PROCESS_BYTES
    }

    /// Who is there, in the order they came.
    pub fn list(&self) -> Vec<Entry> {
        self.entries().iter().map(|(_, entry)| entry.clone()).collect()
    }

    /// Enters a model that loads; `None` where one of that name is there.
    pub fn enter(self: &Arc<Self>, name: &str) -> Option<Claim> {
        let mut entries = self.entries();
        if entries.iter().any(|(_, e)| e.name == name) {
            return None;
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let memory = Memory::default();
        entries.push((id, Entry { name: name.to_owned(), state: State::Loading, memory }));
        Some(Claim { ledger: Arc::clone(self), id, block_bytes: Vec::new() })
    }
}

/// A model's place in the ledger, which it leaves when this is dropped.
#[derive(Debug)]
pub struct Claim {
    ledger: Arc<Ledger>,
    id: u64,
    /// A cache block of each group.
    block_bytes: Vec<u64>,
}

impl Claim {
    /// Takes what `choose` makes of the bytes that are free, on top of what it holds; nobody else
    /// takes any meanwhile.
    ///
    /// # Errors
    /// Those of `choose`: nothing is taken.
    pub fn take<T, E>(&self, choose: impl FnOnce(u64) -> Result<(Memory, T), E>) -> Result<T, E> {
        let mut entries = self.ledger.entries();
        let (memory, chosen) = choose(self.ledger.free_of(&entries))?;
        entries.iter_mut().filter(|(id, _)| *id == self.id).for_each(|(_, e)| e.memory.add(memory));
        Ok(chosen)
    }

    /// Notes what a block of each group takes, for changes of size.
    pub(crate) fn note_blocks(&mut self, block_bytes: Vec<u64>) {
        self.block_bytes = block_bytes;
    }

    /// Its caches have so many blocks of each group instead of that many now.
    pub(crate) fn resized(&self, from: &[u32], to: &[u32]) {
        let bytes = |blocks: &[u32]| {
            let each = blocks.iter().zip(&self.block_bytes);
            each.fold(0u64, |sum, (&n, b)| sum.saturating_add(u64::from(n).saturating_mul(*b)))
        };
        self.change(|e| {
            let cache = e.memory.cache_bytes.saturating_sub(bytes(from));
            e.memory.cache_bytes = cache.saturating_add(bytes(to));
        });
    }

    /// What the model is called.
    pub(crate) fn name(&self) -> Option<String> {
        self.reader().entry().map(|e| e.name)
    }

    fn change(&self, change: impl FnOnce(&mut Entry)) {
        let mut entries = self.ledger.entries();
        if let Some((_, entry)) = entries.iter_mut().find(|(id, _)| *id == self.id) {
            change(entry);
        }
    }

    /// For who wants to know, and holds nothing.
    pub(crate) fn reader(&self) -> Reader {
        Reader { ledger: Arc::clone(&self.ledger), id: self.id }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.ledger.entries().retain(|(id, _)| *id != self.id);
    }
}

/// Reads one model's entry.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    ledger: Arc<Ledger>,
    id: u64,
}

impl Reader {
    /// The entry, until its model is gone.
    pub fn entry(&self) -> Option<Entry> {
        let entries = self.ledger.entries();
        entries.iter().find(|(id, _)| *id == self.id).map(|(_, e)| e.clone())
    }

    /// Notes where the model is in its life now.
    pub fn set_state(&self, state: State) {
        let mut entries = self.ledger.entries();
        let own = entries.iter_mut().filter(|(id, _)| *id == self.id);
        own.for_each(|(_, e)| e.state = state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(weight_bytes: u64) -> Memory {
        Memory { weight_bytes, ..Memory::default() }
    }

    #[test]
    fn what_is_claimed_is_not_free_until_its_model_is_gone() {
        let ledger = Ledger::new(1000);
        let take = |claim: &Claim, bytes: u64| {
            claim.take(|free| match bytes <= free {
                true => Ok((weights(bytes), free)),
                false => Err(free),
            })
        };
        let a = ledger.enter("a").expect("the first");
        assert_eq!(take(&a, 600), Ok(1000));
        assert!(ledger.enter("a").is_none(), "names are there once");
        let b = ledger.enter("b").expect("another");
        assert_eq!(take(&b, 500), Err(400), "and nothing is taken");
        assert_eq!(ledger.free_bytes(), 400);
        assert_eq!(take(&b, 300), Ok(400));
        drop(a);
        assert_eq!(ledger.free_bytes(), 700);
        let list = ledger.list();
        assert_eq!(list.len(), 1);
        assert_eq!((list[0].name.as_str(), list[0].memory.sum()), ("b", 300));
        assert_eq!(ledger.held_bytes(), 300 + PROCESS_BYTES);
        let reader = b.reader();
        drop(b);
        let _c = ledger.enter("c").expect("one more");
        assert_eq!(reader.entry(), None, "who is gone is not found under another's name");
    }

    #[test]
    fn caches_that_change_their_size_are_told() {
        let ledger = Ledger::new(1000);
        let mut claim = ledger.enter("a").expect("the first");
        let caches = Memory { cache_bytes: 10 * 30 + 4 * 5 + 7, ..Memory::default() };
        claim.take(|_| Ok::<_, ()>((caches, ()))).expect("room");
        claim.note_blocks(vec![10, 4]);
        claim.resized(&[30, 5], &[10, 5]);
        assert_eq!(ledger.free_bytes(), 1000 - (10 * 10 + 4 * 5 + 7));
        claim.resized(&[10, 5], &[30, 5]);
        assert_eq!(ledger.free_bytes(), 1000 - caches.sum());
        let reader = claim.reader();
        reader.set_state(State::Draining);
        assert_eq!(reader.entry().map(|e| e.state), Some(State::Draining));
        drop(claim);
        assert_eq!(reader.entry(), None);
    }
}

//! The tier of the cache on disk: runs of blocks are written behind the loop's back, and read ahead
//! of a request that they save computing.
//!
//! A text is cut into parts: whole runs and, where the model has recurrent states, an end of a run or
//! less with the states there. Such a text is of use only with its end, so that is written first; a
//! text of states alone has no other part.
//!
//! The engine's thread only copies blocks and asks the index; a [`TierWorker`] does the reading,
//! hashing and writing, on a thread of its own or, in a simulation, when it is told to.

use std::collections::{HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use thiserror::Error;
use tokenmill_backend::{BlockBytes, DeviceError, Executable};
use tokenmill_ir::{BlockId, GroupKind, MAX_GROUPS, TokenId};
use tokenmill_kvlog::{
    Index, Key, KeyParts, KvError, Log, LogOptions, LogStats, Run, RunId, RunKind,
};
use tokenmill_sched::CachedText;

use crate::feed::CacheFeed;
use crate::load::{self, LoadFailure};

/// Blocks of a record.
pub(crate) const RUN_BLOCKS: u32 = 8;
/// Bytes that may wait to be written; a larger record waits alone.
const QUEUE_BYTES: usize = 64 << 20;
/// A larger buffer is not kept to be used again.
const SPARE_BYTES: usize = 16 << 20;
/// Runs read and not yet taken: bounds the memory of a long restore.
const READ_AHEAD: usize = 4;
/// Bytes of a file hashed at a time.
const PART_BYTES: usize = 1 << 20;
/// Runs not offered after a failed write: a full disk is not asked at every step.
const PAUSE_RUNS: u32 = 64;

/// Why there is no tier; the engine goes on without.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TierError {
    /// Nobody asked for it.
    #[error("the cache is not kept on disk")]
    Off,
    /// The folder.
    #[error(transparent)]
    Disk(#[from] KvError),
    /// The device cannot give its blocks out.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The model.
    #[error("{0}: its cache cannot be kept on disk")]
    Model(&'static str),
    /// The weights could not be read again.
    #[error("cannot identify the weights: {0}")]
    Weights(#[from] LoadFailure),
    /// The system refuses a thread.
    #[error("cannot start the tier's thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// What the tier holds and has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Of the log.
    pub log: LogStats,
    /// Records that could not be written.
    pub unwritten: u64,
}

/// The engine's side.
pub struct Tier {
    index: Index,
    key: Key,
    blocks: BlockBytes,
    kinds: Vec<GroupKind>,
    block_tokens: u32,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    jobs: u64,
}

/// The side that waits for the disk.
pub struct TierWorker {
    log: Log,
    shared: Arc<Shared>,
    told: told::Told,
}

#[derive(Debug, Default)]
pub(crate) struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    writes: VecDeque<Write>,
    /// Records in `writes` or being written.
    writing: HashSet<RunId>,
    write_bytes: usize,
    pause: u32,
    reads: VecDeque<Read>,
    /// The job of the part being read, while somebody waits for it.
    reading: Option<u64>,
    done: VecDeque<ReadPart>,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
    stats: TierStats,
    closed: bool,
    /// Where what is on disk is told, and whether that is to begin.
    feed: Option<Arc<CacheFeed>>,
    is_feed_new: bool,
}

/// A part of a text, and the text before it.
#[derive(Debug)]
struct Part {
    id: RunId,
    parent: RunId,
    salt: u64,
    first: u32,
    tokens: Vec<TokenId>,
    kind: RunKind,
}

#[derive(Debug)]
struct Write {
    part: Part,
    payload: Vec<u8>,
}

#[derive(Debug)]
struct Read {
    job: u64,
    /// What is still to be read, in order.
    parts: VecDeque<Part>,
}

/// A part of a text that was wanted.
#[derive(Debug)]
pub(crate) struct ReadPart {
    pub job: u64,
    /// Tokens before it.
    pub first: u32,
    /// Its tokens.
    pub tokens: u32,
    /// Whether the states at its end are in it.
    pub state: bool,
    /// Its bytes; `None`: it could not be read, and the job has ended.
    pub payload: Option<Payload>,
}

/// The blocks of a part: a mask of blocks for each group, then the blocks, group by group within
/// block by block. A slot of states stands with the last block.
#[derive(Debug)]
pub(crate) struct Payload {
    record: Vec<u8>,
    start: usize,
}

/// What came of offering a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    /// All of it is on disk, on its way, or not to be had.
    Settled,
    /// A run was queued; there may be more.
    Queued,
    /// The queue is full.
    Full,
}

/// A restore under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Job {
    pub number: u64,
    /// Tokens of the prompt that will be there in the end.
    pub tokens: u32,
}

impl Part {
    fn run(&self) -> Run<'_> {
        let &Part { parent, salt, first, ref tokens, kind, .. } = self;
        Run { parent, salt, first, tokens, kind }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn stats(&self) -> TierStats {
        self.lock().stats
    }
}

/// What a model's cache depends on: its program, its weights and the device.
///
/// # Errors
/// [`TierError::Weights`].
pub fn identify(
    path: &Path,
    kv: tokenmill_ir::KvFormat,
    blocks: &BlockBytes,
) -> Result<Key, TierError> {
    let lowered = load::read(path, kv)?;
    let mut parts = KeyParts::default();
    parts.add(blocks.layout.as_bytes());
    parts.add(format!("{:?}", lowered.program).as_bytes());
    let mut buffer = vec![0; PART_BYTES];
    for file in lowered.files.data.files() {
        let bytes = file.len_bytes();
        for at in (0..bytes).step_by(PART_BYTES) {
            let part = &mut buffer[..(bytes - at).min(PART_BYTES as u64) as usize];
            file.read_at(at, part).map_err(LoadFailure::from)?;
            parts.add(part);
        }
    }
    Ok(parts.key())
}

impl Tier {
    /// Both sides of a tier over an open log. `kinds`: the groups of the program.
    ///
    /// # Errors
    /// [`TierError::Model`]: it has no cache.
    pub fn new(
        log: Log,
        key: Key,
        blocks: BlockBytes,
        kinds: &[GroupKind],
        block_tokens: u32,
    ) -> Result<(Tier, TierWorker), TierError> {
        if kinds.is_empty() {
            return Err(TierError::Model("a model without a cache"));
        }
        let shared = Arc::<Shared>::default();
        let (index, kinds) = (log.index(), kinds.to_vec());
        let told = told::Told::new(RunId::root(&key, 0), block_tokens);
        let worker = TierWorker { log, shared: Arc::clone(&shared), told };
        worker.publish();
        let (thread, jobs) = (None, 0);
        Ok((Tier { index, key, blocks, kinds, block_tokens, shared, thread, jobs }, worker))
    }

    /// A tier in a folder with a thread of its own.
    ///
    /// # Errors
    /// [`TierError`].
    pub fn start(
        folder: &Path,
        options: LogOptions,
        key: Key,
        blocks: BlockBytes,
        kinds: &[GroupKind],
        block_tokens: u32,
    ) -> Result<Tier, TierError> {
        let files = tokenmill_kvlog::Folder::open(folder)?;
        let log = Log::open(Box::new(files), key, options)?;
        let (mut tier, worker) = Tier::new(log, key, blocks, kinds, block_tokens)?;
        let body = move || worker.run();
        tier.thread = Some(std::thread::Builder::new().name("kv-disk".into()).spawn(body)?);
        Ok(tier)
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Whether its thread has ended, which it does by a bug only.
    pub(crate) fn has_died(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }

    fn run_tokens(&self) -> u32 {
        RUN_BLOCKS * self.block_tokens
    }

    /// Whether a text is of use only with the states at its end.
    pub(crate) fn has_states(&self) -> bool {
        self.kinds.contains(&GroupKind::State)
    }

    /// Whether there is anything but states.
    fn has_blocks(&self) -> bool {
        self.kinds.iter().any(|k| *k != GroupKind::State)
    }

    /// Ids of the empty text and of each whole run's end.
    fn ids(&self, salt: u64, tokens: &[TokenId]) -> Vec<RunId> {
        let mut ids = vec![RunId::root(&self.key, salt)];
        for run in tokens.chunks_exact(self.run_tokens() as usize) {
            ids.push(ids[ids.len() - 1].then(run));
        }
        ids
    }

    /// The parts of a text from its run `from` on, in order; `ids` of at least its runs.
    fn parts(&self, salt: u64, text: &[TokenId], ids: &[RunId], from: usize) -> VecDeque<Part> {
        let size = self.run_tokens() as usize;
        let last = text.len().div_ceil(size).saturating_sub(1);
        let part = |(i, tokens): (usize, &[TokenId])| {
            let (kind, id) = match self.has_states() && i == last {
                true => (RunKind::State, ids[i].then(tokens).state()),
                false => (RunKind::Blocks, *ids.get(i + 1)?),
            };
            let wanted = i >= from && (kind == RunKind::State || self.has_blocks());
            let (first, tokens) = ((i * size) as u32, tokens.to_vec());
            wanted.then(|| Part { id, parent: ids[i], salt, first, tokens, kind })
        };
        text.chunks(size).enumerate().filter_map(part).collect()
    }

    // ---- writing ---------------------------------------------------------------------------

    /// Queues a part of the text that is not on disk; costs a copy of its blocks.
    pub(crate) fn offer(&self, text: &CachedText, device: &mut dyn Executable) -> Offer {
        if self.shared.lock().write_bytes >= QUEUE_BYTES {
            return Offer::Full;
        }
        let ids = self.ids(text.salt, &text.tokens);
        let mut parts = self.parts(text.salt, &text.tokens, &ids, 0);
        if self.has_states() {
            // States are the first to leave memory.
            parts.pop_back().into_iter().for_each(|end| parts.push_front(end));
        }
        let mut payload = {
            let queue = &mut *self.shared.lock();
            let known = |id: RunId| self.index.contains(id) || queue.writing.contains(&id);
            parts.retain(|p| !known(p.id));
            if parts.is_empty() {
                return Offer::Settled;
            }
            if queue.pause > 0 {
                queue.pause -= 1;
                return Offer::Settled;
            }
            queue.spare.pop().unwrap_or_default()
        };
        let Some(part) = parts.pop_front() else { return Offer::Settled };
        let size = self.block_tokens as usize;
        let blocks = part.first as usize / size..(part.first as usize + part.tokens.len()) / size;
        let blocks = &text.blocks[blocks];
        let masks = self.masks(blocks, part.kind);
        if part.kind == RunKind::State && !self.has_all_states(&masks) {
            self.shared.lock().keep(payload);
            return Offer::Settled; // too late; without them the rest is of no use
        }
        let waiting = self.shared.lock().write_bytes;
        if waiting > 0 && waiting + self.payload_bytes(&masks) > QUEUE_BYTES {
            self.shared.lock().keep(payload);
            return Offer::Full;
        }
        if let Err(error) = self.pack(blocks, &masks, device, &mut payload) {
            tracing::warn!(%error, "cache blocks cannot be read");
            return Offer::Settled;
        }
        let queue = &mut *self.shared.lock();
        queue.write_bytes += payload.len();
        queue.writing.insert(part.id);
        queue.writes.push_back(Write { part, payload });
        self.shared.wake.notify_one();
        Offer::Queued
    }

    /// Which of a part's blocks there are, for each group; of states those at its end alone, and
    /// only where its record holds them.
    fn masks(&self, blocks: &[[BlockId; MAX_GROUPS]], kind: RunKind) -> [u32; MAX_GROUPS] {
        let mut masks = [0; MAX_GROUPS];
        for (g, group) in self.kinds.iter().enumerate() {
            let first = match (*group, kind) {
                (GroupKind::State, RunKind::Blocks) => blocks.len(),
                (GroupKind::State, RunKind::State) => blocks.len().saturating_sub(1),
                _ => 0,
            };
            let has =
                |(i, b): (usize, &[BlockId; MAX_GROUPS])| u32::from(b[g] != BlockId::NONE) << i;
            masks[g] = blocks.iter().enumerate().skip(first).map(has).sum();
        }
        masks
    }

    fn has_all_states(&self, masks: &[u32; MAX_GROUPS]) -> bool {
        self.kinds.iter().zip(masks).all(|(kind, &mask)| *kind != GroupKind::State || mask != 0)
    }

    fn payload_bytes(&self, masks: &[u32; MAX_GROUPS]) -> usize {
        let bytes = |(&mask, &bytes): (&u32, &usize)| mask.count_ones() as usize * bytes;
        4 * self.kinds.len() + masks.iter().zip(&self.blocks.groups).map(bytes).sum::<usize>()
    }

    /// Copies the blocks of a part out of the device.
    fn pack(
        &self,
        blocks: &[[BlockId; MAX_GROUPS]],
        masks: &[u32; MAX_GROUPS],
        device: &mut dyn Executable,
        out: &mut Vec<u8>,
    ) -> Result<(), DeviceError> {
        out.clear();
        for mask in &masks[..self.kinds.len()] {
            out.extend_from_slice(&mask.to_le_bytes());
        }
        for (i, block) in blocks.iter().enumerate() {
            for (g, &bytes) in self.blocks.groups.iter().enumerate() {
                if masks[g] >> i & 1 == 1 {
                    let start = out.len();
                    out.resize(start + bytes, 0);
                    device.read_block(g, block[g], &mut out[start..])?;
                }
            }
        }
        Ok(())
    }

    // ---- reading ---------------------------------------------------------------------------

    /// Starts reading what the disk has of a prompt beyond its first `cached` tokens; `None` where
    /// it has nothing. The last token of a prompt is always computed.
    pub(crate) fn begin(&mut self, salt: u64, prompt: &[TokenId], cached: u32) -> Option<Job> {
        let usable = &prompt[..prompt.len() - 1];
        let ids = self.ids(salt, usable);
        let next = (cached / self.run_tokens()) as usize;
        let on_disk = |i: &usize| !self.has_blocks() || self.index.contains(ids[i + 1]);
        let runs = next + (next..ids.len() - 1).take_while(on_disk).count();
        let tokens = match self.has_states() {
            true => self.last_state(usable, &ids, next..=runs, cached)?,
            false => Some(runs).filter(|&runs| runs > next)? as u32 * self.run_tokens(),
        };
        self.jobs += 1;
        let job = Job { number: self.jobs, tokens };
        let parts = self.parts(salt, &usable[..tokens as usize], &ids, next);
        self.shared.lock().reads.push_back(Read { job: job.number, parts });
        self.shared.wake.notify_one();
        Some(job)
    }

    /// The longest beginning of a text beyond `cached` tokens that ends with states on disk, after
    /// one of those counts of whole runs.
    fn last_state(
        &self,
        text: &[TokenId],
        ids: &[RunId],
        runs: RangeInclusive<usize>,
        cached: u32,
    ) -> Option<u32> {
        let (size, run) = (self.block_tokens as usize, self.run_tokens() as usize);
        for whole in runs.rev() {
            let most = (text.len() - whole * run).min(run) / size;
            for end in (1..=most).rev().map(|blocks| whole * run + blocks * size) {
                let id = ids[whole].then(&text[whole * run..end]).state();
                if end > cached as usize && self.index.contains(id) {
                    return Some(end as u32);
                }
            }
        }
        None
    }

    /// Nobody waits for a job any more.
    pub(crate) fn forget(&self, job: u64) {
        let queue = &mut *self.shared.lock();
        queue.reads.retain(|r| r.job != job);
        queue.reading = queue.reading.filter(|&r| r != job);
    }

    /// The next part that was read.
    pub(crate) fn take_done(&self) -> Option<ReadPart> {
        let done = self.shared.lock().done.pop_front();
        self.shared.wake.notify_one();
        done
    }

    /// Gives a payload's memory back.
    pub(crate) fn give_back(&self, payload: Payload) {
        self.shared.lock().keep(payload.record);
    }

    /// Which blocks of a part a text of `end` tokens still reads.
    pub(crate) fn wanted(&self, payload: &Payload, first: u32, end: u32) -> [u32; MAX_GROUPS] {
        let mut masks = [0; MAX_GROUPS];
        for (g, kind) in self.kinds.iter().enumerate() {
            masks[g] = payload.mask(g);
            if let GroupKind::Window { tokens } = kind {
                let first_read = (end + 1).saturating_sub(*tokens) / self.block_tokens;
                let behind = first_read.saturating_sub(first / self.block_tokens).min(RUN_BLOCKS);
                masks[g] &= u32::MAX << behind;
            }
        }
        masks
    }

    /// The bytes of a block of a part.
    pub(crate) fn block<'p>(&self, payload: &'p Payload, group: usize, i: u32) -> Option<&'p [u8]> {
        let bytes = payload.record.get(payload.start..)?;
        let mut at = 4 * self.kinds.len();
        for block in 0..RUN_BLOCKS {
            for (g, &len) in self.blocks.groups.iter().enumerate() {
                if payload.mask(g) >> block & 1 == 0 {
                    continue;
                }
                if (g, block) == (group, i) {
                    return bytes.get(at..at + len);
                }
                at += len;
            }
        }
        None
    }
}

impl Drop for Tier {
    /// What waits to be written is written first.
    fn drop(&mut self) {
        {
            let queue = &mut *self.shared.lock();
            queue.closed = true;
            queue.reads.clear();
        }
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the cache on disk ended by a panic");
        }
    }
}

impl Payload {
    fn mask(&self, group: usize) -> u32 {
        let at = self.start + 4 * group;
        let bytes = self.record.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |b| u32::from_le_bytes(*b))
    }
}

impl Queue {
    fn keep(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < READ_AHEAD && buffer.capacity() <= SPARE_BYTES {
            self.spare.push(buffer);
        }
    }
}

enum Task {
    Read(Read),
    Write(Write),
}

impl TierWorker {
    /// Works until the tier is dropped and everything is written.
    pub fn run(mut self) {
        loop {
            while self.step() {}
            let queue = self.shared.lock();
            if queue.closed && queue.writes.is_empty() {
                return;
            }
            if queue.next_task().is_none() && !queue.is_feed_new {
                // Woken or not, it looks again.
                drop(self.shared.wake.wait(queue).unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    /// Reads or writes one record; false when there is nothing to do. Reading comes first: somebody
    /// waits for it.
    pub fn step(&mut self) -> bool {
        self.tell();
        let (task, buffer) = {
            let queue = &mut *self.shared.lock();
            let Some(task) = queue.take_task() else { return false };
            (task, queue.spare.pop().unwrap_or_default())
        };
        match task {
            Task::Read(read) => self.read(read, buffer),
            Task::Write(write) => self.write(write),
        }
        self.publish();
        self.tell();
        true
    }

    fn read(&mut self, mut read: Read, mut record: Vec<u8>) {
        let Some(part) = read.parts.pop_front() else { return };
        let found = self.log.get(&part.run(), &mut record).map(<[u8]>::len);
        self.told.forget(&mut self.log);
        let payload = found.map(|len| Payload { start: record.len() - len, record });
        let whole = payload.is_some();
        let Part { first, tokens, kind, .. } = part;
        let (tokens, state) = (tokens.len() as u32, kind == RunKind::State);
        let queue = &mut *self.shared.lock();
        queue.done.push_back(ReadPart { job: read.job, first, tokens, state, payload });
        let wanted = queue.reading.take() == Some(read.job) && !queue.closed;
        if whole && !read.parts.is_empty() && wanted {
            queue.reads.push_front(read);
        }
    }

    fn write(&mut self, write: Write) {
        let Write { part, payload } = write;
        let written = self.log.put(&part.run(), &payload);
        self.told.forget(&mut self.log);
        if written.is_ok() {
            self.told.add(part.id, &part.run());
        }
        let queue = &mut *self.shared.lock();
        queue.writing.remove(&part.id);
        queue.write_bytes -= payload.len();
        if let Err(error) = written {
            tracing::warn!(%error, "a part of the cache was not written to disk");
            queue.stats.unwritten += 1;
            queue.pause = PAUSE_RUNS;
        }
        queue.keep(payload);
    }

    fn publish(&self) {
        let stats = self.log.stats();
        self.shared.lock().stats.log = stats;
    }
}

impl Queue {
    fn next_task(&self) -> Option<bool> {
        let read = !self.reads.is_empty() && self.done.len() < READ_AHEAD;
        (read || !self.writes.is_empty()).then_some(read)
    }

    fn take_task(&mut self) -> Option<Task> {
        if self.next_task()? {
            let read = self.reads.pop_front()?;
            self.reading = Some(read.job);
            Some(Task::Read(read))
        } else {
            self.writes.pop_front().map(Task::Write)
        }
    }
}

mod told;

#[cfg(test)]
mod tests;

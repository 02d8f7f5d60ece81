//! The tier of the cache on disk: runs of blocks are written behind the loop's back, and read ahead
//! of a request that they save computing.
//!
//! The engine's thread only copies blocks and asks the index; a [`TierWorker`] does the reading,
//! hashing and writing, on a thread of its own or, in a simulation, when it is told to.

use std::collections::{HashSet, VecDeque};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use thiserror::Error;
use tokenmill_backend::{BlockBytes, DeviceError, Executable};
use tokenmill_ir::{BlockId, GroupKind, MAX_GROUPS, TokenId};
use tokenmill_sched::CachedText;
use tokenmill_store::kv::{Index, Key, KeyParts, KvError, Log, LogOptions, LogStats, Run, RunId};

use crate::load::{self, LoadFailure};

/// Blocks of a record.
pub(crate) const RUN_BLOCKS: u32 = 8;
/// Bytes that may wait to be written.
const QUEUE_BYTES: usize = 64 << 20;
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
    /// Runs that could not be written.
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
}

#[derive(Debug, Default)]
pub(crate) struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    writes: VecDeque<Write>,
    /// Runs in `writes` or being written.
    writing: HashSet<RunId>,
    write_bytes: usize,
    pause: u32,
    reads: VecDeque<Read>,
    /// The job of the run being read, while somebody waits for it.
    reading: Option<u64>,
    done: VecDeque<ReadRun>,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
    stats: TierStats,
    closed: bool,
}

#[derive(Debug)]
struct Write {
    parent: RunId,
    salt: u64,
    first: u32,
    tokens: Vec<TokenId>,
    payload: Vec<u8>,
}

#[derive(Debug)]
struct Read {
    job: u64,
    salt: u64,
    parent: RunId,
    next: u32,
    end: u32,
    tokens: Vec<TokenId>,
}

/// A run that was wanted.
#[derive(Debug)]
pub(crate) struct ReadRun {
    pub job: u64,
    /// Its index from the start of the text.
    pub run: u32,
    /// Its bytes; `None`: it could not be read, and the job has ended.
    pub payload: Option<Payload>,
}

/// The blocks of a run: a mask of blocks for each group, then the blocks, group by group within
/// block by block.
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
    /// Runs to come, as indices from the start of the text.
    pub next: u32,
    pub end: u32,
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
    /// [`TierError::Model`]: states are not kept on disk.
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
        if kinds.contains(&GroupKind::State) {
            return Err(TierError::Model("a model with recurrent states"));
        }
        let shared = Arc::<Shared>::default();
        let (index, kinds) = (log.index(), kinds.to_vec());
        let worker = TierWorker { log, shared: Arc::clone(&shared) };
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
        let files = tokenmill_store::kv::Folder::open(folder)?;
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

    /// Ids of the empty text and of each whole run's end.
    fn ids(&self, salt: u64, tokens: &[TokenId]) -> Vec<RunId> {
        let mut ids = vec![RunId::root(&self.key, salt)];
        for run in tokens.chunks_exact(self.run_tokens() as usize) {
            ids.push(ids[ids.len() - 1].then(run));
        }
        ids
    }

    // ---- writing ---------------------------------------------------------------------------

    /// Queues the first run of the text that is not on disk; costs a copy of its blocks.
    pub(crate) fn offer(&self, text: &CachedText, device: &mut dyn Executable) -> Offer {
        if self.shared.lock().write_bytes >= QUEUE_BYTES {
            return Offer::Full;
        }
        let ids = self.ids(text.salt, &text.tokens);
        let mut payload = {
            let queue = &mut *self.shared.lock();
            let known = |id: &RunId| self.index.contains(*id) || queue.writing.contains(id);
            if ids[1..].iter().all(known) {
                return Offer::Settled;
            }
            if queue.pause > 0 {
                queue.pause -= 1;
                return Offer::Settled;
            }
            queue.spare.pop().unwrap_or_default()
        };
        let known =
            |id: &RunId| self.index.contains(*id) || self.shared.lock().writing.contains(id);
        let Some(run) = (1..ids.len()).find(|&i| !known(&ids[i])) else { return Offer::Settled };
        let blocks = (run - 1) * RUN_BLOCKS as usize..run * RUN_BLOCKS as usize;
        if let Err(error) = self.pack(&text.blocks[blocks], device, &mut payload) {
            tracing::warn!(%error, "cache blocks cannot be read");
            return Offer::Settled;
        }
        let first = (run as u32 - 1) * self.run_tokens();
        let tokens = text.tokens[first as usize..][..self.run_tokens() as usize].to_vec();
        let queue = &mut *self.shared.lock();
        queue.write_bytes += payload.len();
        queue.writing.insert(ids[run]);
        let parent = ids[run - 1];
        queue.writes.push_back(Write { parent, salt: text.salt, first, tokens, payload });
        self.shared.wake.notify_one();
        Offer::Queued
    }

    /// Copies the blocks of a run out of the device.
    fn pack(
        &self,
        blocks: &[[BlockId; MAX_GROUPS]],
        device: &mut dyn Executable,
        out: &mut Vec<u8>,
    ) -> Result<(), DeviceError> {
        out.clear();
        for g in 0..self.kinds.len() {
            let has =
                |(i, b): (usize, &[BlockId; MAX_GROUPS])| u32::from(b[g] != BlockId::NONE) << i;
            let mask: u32 = blocks.iter().enumerate().map(has).sum();
            out.extend_from_slice(&mask.to_le_bytes());
        }
        for block in blocks {
            for (g, &bytes) in self.blocks.groups.iter().enumerate() {
                if block[g] != BlockId::NONE {
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
        let ids = self.ids(salt, &prompt[..prompt.len() - 1]);
        let next = cached / self.run_tokens();
        let on_disk = |&i: &usize| self.index.contains(ids[i + 1]);
        let end = (next as usize..ids.len() - 1).take_while(on_disk).last()? as u32 + 1;
        self.jobs += 1;
        let job = Job { number: self.jobs, next, end };
        let tokens = prompt[..(end * self.run_tokens()) as usize].to_vec();
        let parent = ids[next as usize];
        let read = Read { job: job.number, salt, parent, next, end, tokens };
        self.shared.lock().reads.push_back(read);
        self.shared.wake.notify_one();
        Some(job)
    }

    /// Nobody waits for a job any more.
    pub(crate) fn forget(&self, job: u64) {
        let queue = &mut *self.shared.lock();
        queue.reads.retain(|r| r.job != job);
        queue.reading = queue.reading.filter(|&r| r != job);
    }

    /// The next run that was read.
    pub(crate) fn take_done(&self) -> Option<ReadRun> {
        let done = self.shared.lock().done.pop_front();
        self.shared.wake.notify_one();
        done
    }

    /// Gives a payload's memory back.
    pub(crate) fn give_back(&self, payload: Payload) {
        self.shared.lock().keep(payload.record);
    }

    /// Tokens up to the end of that many runs.
    pub(crate) fn tokens_of(&self, runs: u32) -> u32 {
        runs * self.run_tokens()
    }

    /// Which blocks of a run a text that ends after `end` runs still reads.
    pub(crate) fn wanted(&self, payload: &Payload, run: u32, end: u32) -> [u32; MAX_GROUPS] {
        let mut masks = [0; MAX_GROUPS];
        for (g, kind) in self.kinds.iter().enumerate() {
            masks[g] = payload.mask(g);
            if let GroupKind::Window { tokens } = kind {
                let first = (self.tokens_of(end) + 1).saturating_sub(*tokens) / self.block_tokens;
                let behind = first.saturating_sub(run * RUN_BLOCKS).min(RUN_BLOCKS);
                masks[g] &= u32::MAX << behind;
            }
        }
        masks
    }

    /// The bytes of a block of a run.
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
        if self.spare.len() < READ_AHEAD {
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
            if queue.next_task().is_none() {
                // Woken or not, it looks again.
                drop(self.shared.wake.wait(queue).unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    /// Reads or writes one run; false when there is nothing to do. Reading comes first: somebody
    /// waits for it.
    pub fn step(&mut self) -> bool {
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
        true
    }

    fn read(&mut self, mut read: Read, mut record: Vec<u8>) {
        let size = read.tokens.len() / read.end as usize;
        let first = read.next as usize * size;
        let tokens = &read.tokens[first..first + size];
        let run = Run { parent: read.parent, salt: read.salt, first: first as u32, tokens };
        let id = run.id();
        let found = self.log.get(&run, &mut record).map(<[u8]>::len);
        let payload = found.map(|len| Payload { start: record.len() - len, record });
        let whole = payload.is_some();
        let queue = &mut *self.shared.lock();
        queue.done.push_back(ReadRun { job: read.job, run: read.next, payload });
        read.next += 1;
        read.parent = id;
        let wanted = queue.reading.take() == Some(read.job) && !queue.closed;
        if whole && read.next < read.end && wanted {
            queue.reads.push_front(read);
        }
    }

    fn write(&mut self, write: Write) {
        let Write { parent, salt, first, ref tokens, ref payload } = write;
        let run = Run { parent, salt, first, tokens };
        let written = self.log.put(&run, payload);
        let queue = &mut *self.shared.lock();
        queue.writing.remove(&run.id());
        queue.write_bytes -= payload.len();
        if let Err(error) = written {
            tracing::warn!(%error, "a run of the cache was not written to disk");
            queue.stats.unwritten += 1;
            queue.pause = PAUSE_RUNS;
        }
        queue.keep(write.payload);
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

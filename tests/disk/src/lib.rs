//! A simulated disk: crashes at a chosen system call, power cuts that tear and reorder what was
//! not synced, failing calls, damage and a bound on space. The same seed does the same.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokenmill_kvlog::{SegmentFiles, SegmentInfo};

/// What a disk writes at once.
const SECTOR: usize = 64;

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// It is killed: what was written stays.
    Kill,
    /// The power goes: what was not synced may be there, or not, sector by sector.
    PowerCut,
}

#[derive(Debug, Clone, Default)]
struct SimFile {
    data: Vec<u8>,
    /// As of the last sync; the length too.
    durable: Vec<u8>,
    /// Whether the name is durable.
    named: bool,
    used: u64,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<u64, SimFile>,
    /// Deleted, but that is not yet durable.
    removed: BTreeMap<u64, SimFile>,
    calls: u64,
    crash_at: Option<u64>,
    crashed: bool,
    fail_at: BTreeSet<u64>,
    capacity_bytes: Option<u64>,
    random: u64,
    clock: u64,
}

/// The disk; clones are the same disk.
#[derive(Debug, Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

/// The segments on a [`SimDisk`], as one process sees them.
#[derive(Debug)]
pub struct SimFiles(SimDisk);

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State { random: seed, ..State::default() })))
    }

    /// What a process uses.
    pub fn files(&self) -> SimFiles {
        SimFiles(self.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// System calls so far.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// The process dies within call number `call`; calls after it fail.
    pub fn crash_at(&self, call: u64) {
        self.state().crash_at = Some(call);
    }

    /// Call number `call` fails; part of a write may have happened.
    pub fn fail_at(&self, call: u64) {
        self.state().fail_at.insert(call);
    }

    /// The disk is full at that many bytes.
    pub fn capacity(&self, bytes: Option<u64>) {
        self.state().capacity_bytes = bytes;
    }

    /// Whether the process has died.
    pub fn has_crashed(&self) -> bool {
        self.state().crashed
    }

    /// The machine starts again after such an end.
    pub fn restart(&self, crash: Crash) {
        let state = &mut *self.state();
        (state.crashed, state.crash_at) = (false, None);
        let removed = std::mem::take(&mut state.removed);
        if crash == Crash::Kill {
            return;
        }
        for (number, file) in removed {
            if state.coin() {
                state.files.entry(number).or_insert(file);
            }
        }
        for (number, mut file) in std::mem::take(&mut state.files) {
            if !file.named && state.coin() {
                continue;
            }
            file.data = state.survivors(&file);
            file.durable = file.data.clone();
            file.named = true;
            state.files.insert(number, file);
        }
    }

    /// Flips one bit somewhere; false where there are no bytes.
    pub fn flip_a_bit(&self) -> bool {
        let state = &mut *self.state();
        let Some(number) = state.any_file() else { return false };
        let random = state.draw();
        let Some(file) = state.files.get_mut(&number) else { return false };
        let bit = random % (file.data.len() as u64 * 8);
        file.data[(bit / 8) as usize] ^= 1 << (bit % 8);
        file.durable.clone_from(&file.data);
        true
    }

    /// Cuts some file anywhere; false where there are no bytes.
    pub fn shorten(&self) -> bool {
        let state = &mut *self.state();
        let Some(number) = state.any_file() else { return false };
        let random = state.draw();
        let Some(file) = state.files.get_mut(&number) else { return false };
        let len = random % file.data.len() as u64;
        file.data.truncate(len as usize);
        file.durable.clone_from(&file.data);
        true
    }

    /// Changes the bytes of every segment.
    pub fn edit(&self, mut change: impl FnMut(&mut Vec<u8>)) {
        self.state().files.values_mut().for_each(|f| change(&mut f.data));
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.state().bytes()
    }
}

impl State {
    fn bytes(&self) -> u64 {
        self.files.values().map(|f| f.data.len() as u64).sum()
    }

    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn coin(&mut self) -> bool {
        self.draw().is_multiple_of(2)
    }

    fn any_file(&mut self) -> Option<u64> {
        let full: Vec<u64> =
            self.files.iter().filter(|(_, f)| !f.data.is_empty()).map(|(n, _)| *n).collect();
        let pick = self.draw() as usize;
        full.get(pick.checked_rem(full.len())?).copied()
    }

    /// What a power cut leaves of a file: each sector is the new one, the old one or zeros, and the
    /// length is that before, that after or between.
    fn survivors(&mut self, file: &SimFile) -> Vec<u8> {
        let (old, new) = (file.durable.len(), file.data.len());
        let len = match self.draw() % 3 {
            0 => old,
            1 => new,
            _ => old.min(new) + (self.draw() % (old.abs_diff(new) as u64 + 1)) as usize,
        };
        let mut out = vec![0; len];
        for start in (0..len).step_by(SECTOR) {
            let sector = start..(start + SECTOR).min(len);
            let from = match self.draw() % 3 {
                0 => &file.durable,
                1 => &file.data,
                // Never written, or written and synced: only the first can read as zeros.
                _ if sector.end <= old => &file.durable,
                _ => continue,
            };
            for at in sector {
                out[at] = from.get(at).copied().unwrap_or(0);
            }
        }
        out
    }
}

impl SimFiles {
    /// Counts a call, and says whether it may happen wholly; `partly` is told when only a part does.
    fn call(&self, partly: impl FnOnce(&mut State)) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.0.state();
        if state.crashed {
            return Err(io::Error::other("the process has died"));
        }
        let call = state.calls;
        state.calls += 1;
        if state.crash_at == Some(call) {
            state.crashed = true;
            partly(&mut state);
            return Err(io::Error::other("the process dies"));
        }
        if state.fail_at.contains(&call) {
            partly(&mut state);
            return Err(io::Error::other("told to fail"));
        }
        Ok(state)
    }
}

fn absent() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl SegmentFiles for SimFiles {
    fn list(&mut self) -> io::Result<Vec<SegmentInfo>> {
        let state = self.call(|_| {})?;
        let info = |(&number, f): (&u64, &SimFile)| SegmentInfo {
            number,
            bytes: f.data.len() as u64,
            used: f.used,
        };
        Ok(state.files.iter().map(info).collect())
    }

    fn create(&mut self, number: u64) -> io::Result<()> {
        let make = |state: &mut State| {
            state.clock += 1;
            let used = state.clock;
            state.files.entry(number).or_insert(SimFile { used, ..SimFile::default() });
        };
        let mut state = self.call(|state| {
            if state.coin() {
                make(state);
            }
        })?;
        if state.files.contains_key(&number) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        make(&mut state);
        Ok(())
    }

    fn append(&mut self, number: u64, bytes: &[u8]) -> io::Result<()> {
        let write = |state: &mut State, len: usize| {
            state.clock += 1;
            let used = state.clock;
            if let Some(file) = state.files.get_mut(&number) {
                file.data.extend_from_slice(&bytes[..len]);
                file.used = used;
            }
        };
        let mut state = self.call(|state| {
            let len = state.draw() as usize % (bytes.len() + 1);
            write(state, len);
        })?;
        if !state.files.contains_key(&number) {
            return Err(absent());
        }
        let room = state.capacity_bytes.map_or(u64::MAX, |c| c.saturating_sub(state.bytes()));
        let len = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
        write(&mut state, len);
        if len < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync(&mut self, number: u64) -> io::Result<()> {
        let mut state = self.call(|_| {})?;
        let file = state.files.get_mut(&number).ok_or_else(absent)?;
        file.durable.clone_from(&file.data);
        file.named = true;
        // The folder is synced with it.
        state.removed.clear();
        Ok(())
    }

    fn read(&mut self, number: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.call(|_| {})?;
        let file = state.files.get(&number).ok_or_else(absent)?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = start.checked_add(out.len()).and_then(|end| file.data.get(start..end));
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn truncate(&mut self, number: u64, bytes: u64) -> io::Result<()> {
        let cut = |state: &mut State| {
            if let Some(file) = state.files.get_mut(&number) {
                file.data.truncate(bytes as usize);
            }
        };
        let mut state = self.call(|state| {
            if state.coin() {
                cut(state);
            }
        })?;
        cut(&mut state);
        Ok(())
    }

    fn remove(&mut self, number: u64) -> io::Result<()> {
        let take = |state: &mut State| {
            let file = state.files.remove(&number)?;
            state.removed.insert(number, file);
            Some(())
        };
        let mut state = self.call(|state| {
            if state.coin() {
                take(state);
            }
        })?;
        take(&mut state).ok_or_else(absent)
    }

    fn touch(&mut self, number: u64) -> io::Result<()> {
        let mut state = self.call(|_| {})?;
        state.clock += 1;
        let used = state.clock;
        state.files.get_mut(&number).ok_or_else(absent)?.used = used;
        Ok(())
    }

    fn free_bytes(&mut self) -> io::Result<u64> {
        let state = self.call(|_| {})?;
        Ok(state.capacity_bytes.map_or(u64::MAX, |c| c.saturating_sub(state.bytes())))
    }
}

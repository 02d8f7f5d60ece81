//! The log: which record lies where, room for new ones, and reading them back checked.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use crate::KvError;
use crate::files::{SegmentFiles, SegmentInfo};
use crate::record::{HEADER_BYTES, Header, Key, Run, RunId, RunKind, Start, start_of, verify};

/// Bounds of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogOptions {
    /// Most bytes of all segments together.
    pub cap_bytes: u64,
    /// Bytes of the disk that stay free.
    pub floor_bytes: u64,
    /// A segment of this length is not appended to any more.
    pub segment_bytes: u64,
}

impl LogOptions {
    /// A log of at most `cap_bytes`: segments of an eighth of it, 256 MiB at most.
    pub fn with_cap(cap_bytes: u64) -> Self {
        let segment_bytes = (cap_bytes / 8).clamp(1, 256 << 20);
        Self { cap_bytes, floor_bytes: 1 << 30, segment_bytes }
    }
}

/// What a log holds and has done since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Bytes of all segments.
    pub bytes: u64,
    /// Records that can be found.
    pub records: u64,
    /// Segments, other versions' and keys' included.
    pub segments: u64,
    /// Records written.
    pub written: u64,
    /// Records read back.
    pub read: u64,
    /// Records that were damaged when they were wanted.
    pub damaged: u64,
    /// Segments deleted to make room.
    pub deleted: u64,
    /// Bytes cut off or skipped as damaged on opening.
    pub cut_bytes: u64,
}

/// Why a record was not written; the log goes on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PutError {
    /// No room within the cap and above the floor of free disk space.
    #[error("no room for {bytes} bytes")]
    NoRoom {
        /// Of the record.
        bytes: u64,
    },
    /// The disk.
    #[error("cannot write: {0}")]
    Disk(#[from] io::Error),
}

#[derive(Debug, Clone, Copy)]
struct Place {
    segment: u64,
    offset: u64,
    bytes: u64,
}

/// Which runs the log has; to be asked from any thread. A run may be gone by the time it is read.
#[derive(Debug, Clone, Default)]
pub struct Index(Arc<Mutex<HashMap<RunId, Place>>>);

impl Index {
    /// Whether there is a record of that run.
    pub fn contains(&self, id: RunId) -> bool {
        self.lock().contains_key(&id)
    }

    fn find(&self, id: RunId) -> Option<Place> {
        self.lock().get(&id).copied()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Segment {
    bytes: u64,
    /// Order of use.
    used: u64,
    ids: Vec<RunId>,
    /// It could not be deleted; not tried again.
    stuck: bool,
}

/// An open log. One thread uses it; [`Index`] is for the others.
pub struct Log {
    files: Box<dyn SegmentFiles>,
    key: Key,
    options: LogOptions,
    index: Index,
    segments: BTreeMap<u64, Segment>,
    /// Appended to; always one that this log made.
    active: Option<u64>,
    /// Number of the next new segment; none is used twice.
    next: u64,
    uses: u64,
    stats: LogStats,
    /// Runs that can be found no more, since they were last taken.
    gone: Vec<RunId>,
}

/// A run that the log has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRun {
    /// The text up to its end.
    pub id: RunId,
    /// The text before it.
    pub parent: RunId,
    /// As in [`RunId::root`].
    pub salt: u64,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// What its record holds; `None`: what this program does not know.
    pub kind: Option<RunKind>,
}

impl Log {
    /// Finds what earlier logs left there. Segments are never appended to by another log than the
    /// one that made them, so nothing follows a torn record.
    ///
    /// # Errors
    /// [`KvError::List`]; damage is no error.
    pub fn open(
        files: Box<dyn SegmentFiles>,
        key: Key,
        options: LogOptions,
    ) -> Result<Self, KvError> {
        let mut log = Self {
            files,
            key,
            options,
            index: Index::default(),
            segments: BTreeMap::new(),
            active: None,
            next: 0,
            uses: 0,
            stats: LogStats::default(),
            gone: Vec::new(),
        };
        let mut found = log.files.list().map_err(KvError::List)?;
        found.sort_by_key(|s| (s.used, s.number));
        for info in found {
            log.adopt(info);
        }
        Ok(log)
    }

    /// Which runs there are.
    pub fn index(&self) -> Index {
        self.index.clone()
    }

    /// What it holds and has done.
    pub fn stats(&self) -> LogStats {
        LogStats {
            bytes: self.bytes(),
            records: self.index.lock().len() as u64,
            segments: self.segments.len() as u64,
            ..self.stats
        }
    }

    /// All runs, in the order of the disk; those whose headers cannot be read now are left out.
    pub fn runs(&mut self) -> Vec<StoredRun> {
        let places: Vec<Place> = self.index.lock().values().copied().collect();
        let mut places: Vec<_> = places.into_iter().map(|p| (p.segment, p.offset)).collect();
        places.sort_unstable();
        places.into_iter().filter_map(|(segment, offset)| self.stored(segment, offset)).collect()
    }

    fn stored(&mut self, segment: u64, offset: u64) -> Option<StoredRun> {
        let mut head = vec![0; HEADER_BYTES];
        self.files.read(segment, offset, &mut head).ok()?;
        let Start::Record { tokens } = start_of(&head) else { return None };
        head.resize(HEADER_BYTES + tokens as usize * 4, 0);
        let text = &mut head[HEADER_BYTES..];
        self.files.read(segment, offset + HEADER_BYTES as u64, text).ok()?;
        let Header { id, parent, salt, kind, .. } = Header::decode(&head)?;
        let kind = [RunKind::Blocks, RunKind::State].into_iter().find(|&k| k as u32 == kind);
        let tokens = head[HEADER_BYTES..].as_chunks().0.iter().map(|t| u32::from_le_bytes(*t));
        Some(StoredRun { id, parent, salt, tokens: tokens.collect(), kind })
    }

    /// Runs that can be found no more, since this was last asked.
    pub fn take_gone(&mut self) -> Vec<RunId> {
        std::mem::take(&mut self.gone)
    }

    fn bytes(&self) -> u64 {
        self.segments.values().map(|s| s.bytes).sum()
    }

    // ---- opening ---------------------------------------------------------------------------

    /// Takes an earlier log's segment in, without what follows its last whole record.
    fn adopt(&mut self, info: SegmentInfo) {
        self.next = self.next.max(info.number.saturating_add(1));
        let mut ids = Vec::new();
        let (end, ended) = self.scan(info, &mut ids);
        let mut bytes = info.bytes;
        if ended == Start::Damaged && end < bytes {
            self.stats.cut_bytes += bytes - end;
            let cut = match end {
                0 => self.files.remove(info.number),
                _ => self.files.truncate(info.number, end),
            };
            match cut {
                Ok(()) if end == 0 => return,
                Ok(()) => bytes = end,
                Err(_) => {} // it stays as it is, and counts
            }
        } else if bytes == 0 && self.files.remove(info.number).is_ok() {
            return;
        }
        self.uses += 1;
        let segment = Segment { bytes, used: self.uses, ids, stuck: false };
        self.segments.insert(info.number, segment);
    }

    /// Walks from header to header; where the records end, and what stands there.
    fn scan(&mut self, info: SegmentInfo, ids: &mut Vec<RunId>) -> (u64, Start) {
        let mut head = vec![0; HEADER_BYTES];
        let mut offset = 0;
        while offset < info.bytes {
            head.resize(HEADER_BYTES, 0);
            if info.bytes - offset < HEADER_BYTES as u64 {
                return (offset, Start::Damaged);
            }
            if self.files.read(info.number, offset, &mut head).is_err() {
                // Perhaps it can be read another time.
                return (offset, Start::Foreign);
            }
            let tokens = match start_of(&head) {
                Start::Record { tokens } => tokens as usize * 4,
                other => return (offset, other),
            };
            if info.bytes - offset < (HEADER_BYTES + tokens) as u64 {
                return (offset, Start::Damaged);
            }
            head.resize(HEADER_BYTES + tokens, 0);
            let at = offset + HEADER_BYTES as u64;
            if self.files.read(info.number, at, &mut head[HEADER_BYTES..]).is_err() {
                return (offset, Start::Foreign);
            }
            let Some(header) = Header::decode(&head) else { return (offset, Start::Damaged) };
            let bytes = header.record_bytes();
            if bytes > info.bytes - offset {
                return (offset, Start::Damaged);
            }
            if header.key == self.key {
                let place = Place { segment: info.number, offset, bytes };
                self.index.lock().insert(header.id, place);
                ids.push(header.id);
            }
            offset += bytes;
        }
        (offset, Start::Damaged)
    }

    // ---- writing ---------------------------------------------------------------------------

    /// Appends a record, unless there is one of that run.
    ///
    /// # Errors
    /// [`PutError`]; other records are as before.
    pub fn put(&mut self, run: &Run<'_>, payload: &[u8]) -> Result<(), PutError> {
        let header = Header::new(run, self.key, payload);
        if self.index.contains(header.id) {
            return Ok(());
        }
        let bytes = header.record_bytes();
        // A run is of no use without those before it.
        if let Some(parent) = self.index.find(run.parent) {
            self.note_use(parent.segment);
        }
        self.make_room(bytes)?;
        let number = self.segment_for(bytes)?;
        let offset = self.segments.get(&number).map_or(0, |s| s.bytes);
        let head = header.encode(run.tokens);
        let written =
            self.files.append(number, &head).and_then(|()| self.files.append(number, payload));
        if let Err(error) = written {
            self.abandon(number, offset, bytes);
            return Err(error.into());
        }
        if let Some(segment) = self.segments.get_mut(&number) {
            segment.bytes = offset + bytes;
            segment.ids.push(header.id);
        }
        self.index.lock().insert(header.id, Place { segment: number, offset, bytes });
        self.note_use(number);
        self.stats.written += 1;
        Ok(())
    }

    /// The segment to append to.
    fn segment_for(&mut self, bytes: u64) -> io::Result<u64> {
        if let Some(number) = self.active {
            let used = self.segments.get(&number).map_or(0, |s| s.bytes);
            if used == 0 || used.saturating_add(bytes) <= self.options.segment_bytes {
                return Ok(number);
            }
            self.seal();
        }
        let number = self.next;
        self.next = number.saturating_add(1);
        self.files.create(number)?;
        self.uses += 1;
        self.segments.insert(number, Segment { used: self.uses, ..Segment::default() });
        self.active = Some(number);
        Ok(number)
    }

    /// Makes what was written durable, as far as the disk does it, and starts a new segment with
    /// the next record.
    pub fn seal(&mut self) {
        if let Some(number) = self.active.take() {
            // Without it a power cut loses these records; checksums tell.
            let _ = self.files.sync(number);
        }
    }

    /// After a failed write: the torn record is cut off if that can be done, and nothing is ever
    /// written after it.
    fn abandon(&mut self, number: u64, offset: u64, record: u64) {
        self.active = None;
        let cut = self.files.truncate(number, offset);
        if let Some(segment) = self.segments.get_mut(&number) {
            segment.bytes = if cut.is_ok() { offset } else { offset.saturating_add(record) };
        }
        if offset == 0 {
            self.delete(number);
        }
    }

    /// Deletes least recently used segments until the record fits.
    fn make_room(&mut self, bytes: u64) -> Result<(), PutError> {
        loop {
            let fits = self.bytes().saturating_add(bytes) <= self.options.cap_bytes;
            // A disk that does not say how full it is says so when written to.
            let free = self.files.free_bytes().unwrap_or(u64::MAX);
            if fits && free >= self.options.floor_bytes.saturating_add(bytes) {
                return Ok(());
            }
            if bytes > self.options.cap_bytes {
                return Err(PutError::NoRoom { bytes });
            }
            let candidates = self.segments.iter().filter(|(_, s)| !s.stuck);
            let Some((&oldest, _)) = candidates.min_by_key(|(_, s)| s.used) else {
                return Err(PutError::NoRoom { bytes });
            };
            self.delete(oldest);
            self.stats.deleted += 1;
        }
    }

    fn delete(&mut self, number: u64) {
        if self.active == Some(number) {
            self.active = None;
        }
        let Some(mut segment) = self.segments.remove(&number) else { return };
        {
            let mut index = self.index.lock();
            for id in segment.ids.drain(..) {
                if index.get(&id).is_some_and(|p| p.segment == number) {
                    index.remove(&id);
                    self.gone.push(id);
                }
            }
        }
        if self.files.remove(number).is_err() {
            segment.stuck = true;
            self.segments.insert(number, segment);
        }
    }

    // ---- reading ---------------------------------------------------------------------------

    /// Reads a run back into `buffer` and returns its payload, or `None` where there is none that
    /// is whole: tokens compared, checksums verified. A damaged record is forgotten.
    pub fn get<'b>(&mut self, run: &Run<'_>, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        let id = run.id();
        let place = self.index.find(id)?;
        buffer.resize(usize::try_from(place.bytes).ok()?, 0);
        let read = self.files.read(place.segment, place.offset, buffer);
        let payload = read.ok().and_then(|()| verify(buffer, run, self.key));
        if payload.is_none() {
            self.stats.damaged += 1;
            self.index.lock().remove(&id);
            self.gone.push(id);
            return None;
        }
        self.stats.read += 1;
        self.note_use(place.segment);
        payload
    }

    fn note_use(&mut self, number: u64) {
        if let Some(segment) = self.segments.get_mut(&number)
            && segment.used != self.uses
        {
            self.uses += 1;
            segment.used = self.uses;
            if self.active == Some(number) {
                return; // written to, it is the last one used anyway
            }
            // The order of use is only a preference.
            let _ = self.files.touch(number);
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.seal();
    }
}

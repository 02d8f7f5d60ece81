//! The downloader: parallel ranges into a `.partial` file with a journal, so that a process killed
//! at any point resumes; checked length and digest, then fsync, rename, fsync of the folder.

use crate::digest::Digest;
use crate::disk::{Disk, Lock, free_bytes, taken_bytes, with_suffix};
use crate::env::Limits;
use crate::error::{StoreError, disk_error};
use crate::http::{Answer, Ask, Http, NetError, host_of, plain_url, text_of};
use crate::journal::{Content, Journal, missing};
use crate::patience::{Again, Patience, come_back};
use crate::progress::{OnProgress, Progress, in_words};
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// A remote file and what is known of it.
#[derive(Debug, Clone)]
pub(crate) struct Remote<'a> {
    /// Address.
    pub url: &'a str,
    /// Name for people.
    pub name: &'a str,
    /// Size, where known.
    pub bytes: Option<u64>,
    /// Digest, where known.
    pub digest: Option<Digest>,
}

/// What a first small request tells of a file.
#[derive(Debug, Clone)]
pub(crate) struct Probe {
    /// Its size, where the server says it.
    pub bytes: Option<u64>,
    /// The digest the hub states in its headers.
    pub digest: Option<Digest>,
    /// What names this content: the hub's own tag, or the server's ETag.
    etag: Option<String>,
    /// True where that name is a strong ETag of the last server, fit for `If-Range`.
    is_server_tag: bool,
    /// The server gives ranges.
    has_ranges: bool,
}

/// Why a file did not come.
enum Trouble {
    /// The content is another one than at the start.
    Changed,
    /// Another worker failed first.
    Stopped,
    /// The network, retries used up.
    Net(NetError),
    /// All else.
    Store(StoreError),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<NetError> for Trouble {
    fn from(error: NetError) -> Self {
        Self::Net(error)
    }
}

/// What workers tell the caller's thread.
enum Event {
    Bytes(u64),
    Retry(String, Duration),
}

/// One file on its way.
struct Job<'a> {
    url: &'a str,
    name: &'a str,
    total: u64,
    partial: PathBuf,
    journal: PathBuf,
    content: Content,
    probe: Probe,
}

/// What the workers of one file share.
struct Shared {
    todo: Mutex<VecDeque<Range<u64>>>,
    journal: Mutex<Journal>,
    stop: AtomicBool,
    retries: AtomicU32,
    pause: SharedPause,
}

/// Until when a server wants no requests from anybody here.
#[derive(Default)]
struct SharedPause(Mutex<Option<Instant>>);

impl SharedPause {
    fn until(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes it that long from now; true if nobody else waits already.
    fn extend(&self, pause: Duration) -> bool {
        let (now, mut until) = (Instant::now(), self.until());
        let is_first = until.is_none_or(|until| until <= now);
        *until = (*until).max(now.checked_add(pause));
        is_first
    }

    /// Waits for its end, or for `stop`.
    fn sleep(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let until = *self.until();
            let left =
                until.map_or(Duration::ZERO, |u| u.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(LOOK_AGAIN));
        }
    }
}

/// Files below this size come in one request, without a probe.
const SMALL_BYTES: u64 = 1 << 20;
const BUFFER_BYTES: usize = 256 << 10;
/// How soon a waiting worker hears that another one failed.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Starts from zero allowed for one file: changed content, or a damaged resume.
const ROUNDS: usize = 3;

/// The downloader's surroundings.
pub(crate) struct Downloader<'a> {
    pub http: &'a Http,
    pub disk: &'a Disk,
    pub limits: &'a Limits,
}

impl Downloader<'_> {
    /// Brings `remote` to `path`; returns its size. A file that is there with the right size is
    /// taken as it is, because only checked files get their name.
    pub(crate) fn fetch(
        &self,
        remote: &Remote<'_>,
        path: &Path,
        lock: &Path,
        on: &mut OnProgress<'_>,
    ) -> Result<u64, StoreError> {
        self.limits.wanted.check()?;
        let partial = with_suffix(path, ".partial");
        let journal = with_suffix(&partial, ".journal");
        let how_far = |on: &mut OnProgress<'_>| {
            // (Without a journal it comes in one piece.)
            let piece = || Some((fs::metadata(&partial).ok()?.len(), remote.bytes?));
            if let Some((done, total)) = Journal::look(&journal).or_else(piece) {
                on(Progress::Bytes { file: remote.name, done, total });
            }
            self.limits.wanted.check()
        };
        let _lock = Lock::take(self.disk, lock, on, &how_far)?;
        if let Ok(meta) = fs::metadata(path)
            && remote.bytes.is_none_or(|b| b == meta.len())
        {
            return Ok(meta.len());
        }
        if let Some(folder) = path.parent() {
            self.disk.make_dir(folder)?;
        }
        for _ in 0..ROUNDS {
            let job = self.job(remote, path, on)?;
            let outcome = if job.probe.has_ranges {
                self.fetch_ranges(&job, on)
            } else {
                self.fetch_stream(&job, on).map(|()| false)
            };
            let resumed = match outcome {
                Ok(resumed) => resumed,
                Err(Trouble::Changed | Trouble::Stopped) => continue,
                Err(Trouble::Net(error)) => {
                    return Err(net_error(remote.url, error, self.limits));
                }
                Err(Trouble::Store(error)) => return Err(error),
            };
            match self.finish(&job, path, on) {
                Err(StoreError::WrongDigest { .. }) if resumed => continue,
                Err(error) => return Err(error),
                Ok(()) => return Ok(job.total),
            }
        }
        let why = format!("the content changed or was damaged {ROUNDS} times in a row");
        Err(StoreError::BadAnswer { url: plain_url(remote.url), why })
    }

    /// Asks for the first byte to learn size, tags and whether ranges work.
    pub(crate) fn probe(&self, url: &str, on: &mut OnProgress<'_>) -> Result<Probe, StoreError> {
        let ask = Ask { range: Some(0..1), ..Ask::default() };
        let mut patience = Patience::new(self.limits);
        let answer = patiently(&mut patience, on, || self.http.get(url, &ask));
        let answer = answer.map_err(|error| net_error(url, error, self.limits))?;
        Ok(read_probe(&answer))
    }

    /// Settles size and digest before the first byte is written.
    fn job<'b>(
        &self,
        remote: &Remote<'b>,
        path: &Path,
        on: &mut OnProgress<'_>,
    ) -> Result<Job<'b>, StoreError> {
        let is_small = remote.bytes.is_some_and(|b| b < SMALL_BYTES) && remote.digest.is_some();
        let probe = if is_small {
            let bytes = remote.bytes;
            Probe { bytes, digest: None, etag: None, is_server_tag: false, has_ranges: false }
        } else {
            self.probe(remote.url, on)?
        };
        let name = remote.name;
        let total = match (remote.bytes, probe.bytes) {
            (Some(expected), Some(found)) if expected != found => {
                let found = found.to_string();
                return Err(StoreError::WrongSize { file: name.into(), expected, found });
            }
            (Some(bytes), _) | (None, Some(bytes)) => bytes,
            (None, None) => {
                let why = "the server does not say how long the file is".to_string();
                return Err(StoreError::BadAnswer { url: plain_url(remote.url), why });
            }
        };
        if total > self.limits.file_bytes {
            let why = format!("{total} bytes, the limit is {}", self.limits.file_bytes);
            return Err(StoreError::BadAnswer { url: plain_url(remote.url), why });
        }
        let partial = with_suffix(path, ".partial");
        has_room(&partial, total.saturating_sub(taken_bytes(&partial)))?;
        let digest = remote.digest.or(probe.digest);
        let hex = digest.map(|d| d.hex());
        let content = Content { total, etag: probe.etag.clone(), digest: hex };
        let journal = with_suffix(&partial, ".journal");
        Ok(Job { url: remote.url, name, total, partial, journal, content, probe })
    }

    /// Checks the whole file and gives it its name.
    fn finish(
        &self,
        job: &Job<'_>,
        path: &Path,
        on: &mut OnProgress<'_>,
    ) -> Result<(), StoreError> {
        let fail = |e| disk_error("sync", &job.partial, 0, e);
        let file = OpenOptions::new().write(true).open(&job.partial).map_err(fail)?;
        file.set_len(job.total).map_err(fail)?;
        self.disk.step("sync partial").and_then(|()| file.sync_all()).map_err(fail)?;
        if let Some(expected) = job.content.digest.as_deref().and_then(Digest::parse) {
            let found = expected.of_file_like(&job.partial, &mut |done, total| {
                on(Progress::Verify { file: job.name, done, total });
            })?;
            if found != expected {
                self.disk.remove_file(&job.journal)?;
                self.disk.remove_file(&job.partial)?;
                let (expected, found) = (expected.hex(), found.hex());
                return Err(StoreError::WrongDigest { file: job.name.into(), expected, found });
            }
        }
        self.disk.rename(&job.partial, path)?;
        self.disk.remove_file(&job.journal)?;
        on(Progress::Done { file: job.name, bytes: job.total });
        Ok(())
    }

    /// All missing ranges, in parallel; true if part of the file was there from an earlier run.
    fn fetch_ranges(&self, job: &Job<'_>, on: &mut OnProgress<'_>) -> Result<bool, Trouble> {
        let (journal, done) = self.open_partial(job)?;
        let mut done_bytes: u64 = done.iter().map(|r| r.end - r.start).sum();
        let resumed = done_bytes > 0;
        let todo = missing(&done, job.total, self.limits.segment_bytes);
        let workers = self.limits.ranges.max(1).min(todo.len());
        let shared = Shared {
            todo: Mutex::new(todo.into()),
            journal: Mutex::new(journal),
            stop: AtomicBool::new(false),
            retries: AtomicU32::new(0),
            pause: SharedPause::default(),
        };
        let (sender, events) = mpsc::channel();
        let troubles: Vec<Trouble> = thread::scope(|scope| {
            let handles: Vec<_> = (0..workers)
                .map(|_| {
                    let (sender, shared) = (sender.clone(), &shared);
                    scope.spawn(move || self.work(job, shared, &sender))
                })
                .collect();
            drop(sender);
            on(Progress::Bytes { file: job.name, done: done_bytes, total: job.total });
            loop {
                match events.recv_timeout(LOOK_AGAIN) {
                    Ok(Event::Bytes(n)) => {
                        done_bytes += n;
                        on(Progress::Bytes { file: job.name, done: done_bytes, total: job.total });
                    }
                    Ok(Event::Retry(why, pause)) => {
                        on(Progress::Retry { why: &why, pause_ms: pause.as_millis() as u64 });
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                if self.limits.wanted.check().is_err() {
                    shared.stop.store(true, Ordering::Relaxed);
                }
            }
            handles.into_iter().filter_map(|h| h.join().ok()?.err()).collect()
        });
        let is_whole = done_bytes == job.total;
        match troubles.into_iter().find(|t| !matches!(t, Trouble::Stopped)) {
            Some(trouble) => Err(trouble),
            None if !is_whole && self.limits.wanted.check().is_err() => {
                Err(StoreError::Unwanted.into())
            }
            // A worker that died took its range with it.
            None if !is_whole => Err(NetError::Bad("not every range came".to_string()).into()),
            None => Ok(resumed),
        }
    }

    /// Opens the partial file and its journal, or starts both.
    fn open_partial(&self, job: &Job<'_>) -> Result<(Journal, Vec<Range<u64>>), StoreError> {
        let fail = |path: &Path| {
            let path = path.to_path_buf();
            move |e| disk_error("write", &path, job.total, e)
        };
        let have_bytes = fs::metadata(&job.partial).map_or(0, |m| m.len());
        let known = Journal::open(self.disk, &job.journal, &job.content, have_bytes)
            .map_err(fail(&job.journal))?;
        if let Some(known) = known.filter(|_| have_bytes > 0) {
            return Ok(known);
        }
        let journal =
            Journal::create(self.disk, &job.journal, &job.content).map_err(fail(&job.journal))?;
        self.disk
            .step("create partial")
            .and_then(|()| File::create(&job.partial))
            .map_err(fail(&job.partial))?;
        Ok((journal, Vec::new()))
    }

    fn work(&self, job: &Job<'_>, shared: &Shared, events: &Sender<Event>) -> Result<(), Trouble> {
        loop {
            let next = shared.todo.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(range) = next else { return Ok(()) };
            if shared.stop.load(Ordering::Relaxed) {
                return Err(Trouble::Stopped);
            }
            if let Err(trouble) = self.fetch_segment(job, shared, range, events) {
                shared.stop.store(true, Ordering::Relaxed);
                return Err(trouble);
            }
        }
    }

    /// One range with its retries; each goes on where the last one broke.
    fn fetch_segment(
        &self,
        job: &Job<'_>,
        shared: &Shared,
        range: Range<u64>,
        events: &Sender<Event>,
    ) -> Result<(), Trouble> {
        let mut at = range.start;
        let mut patience = Patience::of_known_server(self.limits);
        while at < range.end {
            shared.pause.sleep(&shared.stop);
            let from = at;
            let error = match self.fetch_range(job, shared, &mut at, range.end, events) {
                Ok(()) => continue,
                Err(Trouble::Net(error)) => error,
                Err(trouble) => return Err(trouble),
            };
            if at > from {
                patience.renew();
            }
            let retries = shared.retries.fetch_add(1, Ordering::Relaxed) + 1;
            if retries >= self.limits.retries_per_file {
                return Err(error.into());
            }
            let again = patience.after(error)?;
            if !again.is_told {
                let _ = events.send(Event::Retry(again.why, again.pause));
                thread::sleep(again.pause);
            } else if shared.pause.extend(again.pause) {
                let _ = events.send(Event::Retry(again.why, again.pause));
            }
        }
        Ok(())
    }

    /// One request for `at..end`; `at` moves with what is written, synced and in the journal.
    fn fetch_range(
        &self,
        job: &Job<'_>,
        shared: &Shared,
        at: &mut u64,
        end: u64,
        events: &Sender<Event>,
    ) -> Result<(), Trouble> {
        let tag = job.content.etag.as_deref().filter(|_| job.probe.is_server_tag);
        let ask = Ask { range: Some(*at..end), if_range: tag, ..Ask::default() };
        let answer = self.http.get(job.url, &ask)?;
        check_range(&answer, job, *at..end)?;
        let fail = |left: u64| move |e| disk_error("write", &job.partial, left, e);
        let mut file =
            OpenOptions::new().write(true).open(&job.partial).map_err(fail(end - *at))?;
        file.seek(SeekFrom::Start(*at)).map_err(fail(end - *at))?;
        let mut body = answer.body;
        let mut buffer = vec![0u8; BUFFER_BYTES];
        let mut mark = *at;
        let outcome = loop {
            if *at == end {
                break Ok(());
            }
            if shared.stop.load(Ordering::Relaxed) || self.limits.wanted.check().is_err() {
                break Err(Trouble::Stopped);
            }
            let want = usize::try_from(end - *at).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES);
            let read = body.read(buffer.get_mut(..want).unwrap_or_default());
            let part = match read {
                Ok(n) => buffer.get(..n).filter(|p| !p.is_empty()),
                Err(e) => break Err(NetError::Passing(format!("the body broke off: {e}")).into()),
            };
            let Some(part) = part else {
                break Err(NetError::Passing("the body ended early".into()).into());
            };
            let written = self.disk.step("write partial").and_then(|()| file.write_all(part));
            if let Err(e) = written {
                break Err(disk_error("write", &job.partial, end - *at, e).into());
            }
            *at += part.len() as u64;
            let _ = events.send(Event::Bytes(part.len() as u64));
            if *at - mark >= self.limits.checkpoint_bytes {
                self.checkpoint(job, shared, &file, &mut mark, *at)?;
            }
        };
        self.checkpoint(job, shared, &file, &mut mark, *at)?;
        outcome
    }

    /// Syncs the bytes `mark..at`, then says so in the journal: never the other way round.
    fn checkpoint(
        &self,
        job: &Job<'_>,
        shared: &Shared,
        file: &File,
        mark: &mut u64,
        at: u64,
    ) -> Result<(), StoreError> {
        if *mark == at {
            return Ok(());
        }
        let fail = |e| disk_error("sync", &job.partial, 0, e);
        self.disk.step("sync data").and_then(|()| file.sync_data()).map_err(fail)?;
        let mut journal = shared.journal.lock().unwrap_or_else(PoisonError::into_inner);
        journal.record(&(*mark..at)).map_err(|e| disk_error("write", &job.journal, 0, e))?;
        *mark = at;
        Ok(())
    }

    /// The whole file in one request, for small files and servers without ranges.
    fn fetch_stream(&self, job: &Job<'_>, on: &mut OnProgress<'_>) -> Result<(), Trouble> {
        let mut patience = Patience::of_known_server(self.limits);
        loop {
            match self.fetch_whole(job, on) {
                Err(Trouble::Net(error)) => {
                    pause(patience.after(error)?, on);
                    self.limits.wanted.check()?;
                }
                outcome => return outcome,
            }
        }
    }

    fn fetch_whole(&self, job: &Job<'_>, on: &mut OnProgress<'_>) -> Result<(), Trouble> {
        let answer = self.http.get(job.url, &Ask::default())?;
        let wrong = |found: String| StoreError::WrongSize {
            file: job.name.into(),
            expected: job.total,
            found,
        };
        if let Some(found) = answer.body.content_length().filter(|n| *n != job.total) {
            return Err(wrong(found.to_string()).into());
        }
        let fail = |left: u64| move |e| disk_error("write", &job.partial, left, e);
        self.disk.remove_file(&job.journal)?;
        self.disk.step("create partial").map_err(fail(job.total))?;
        let mut file = File::create(&job.partial).map_err(fail(job.total))?;
        let mut body = answer.body;
        let mut buffer = vec![0u8; BUFFER_BYTES];
        let mut done = 0u64;
        loop {
            let n = body
                .read(&mut buffer)
                .map_err(|e| NetError::Passing(format!("the body broke off: {e}")))?;
            let Some(part) = buffer.get(..n).filter(|p| !p.is_empty()) else { break };
            if done + n as u64 > job.total {
                self.disk.remove_file(&job.partial)?;
                return Err(wrong(format!("more than {}", job.total)).into());
            }
            let written = self.disk.step("write partial").and_then(|()| file.write_all(part));
            written.map_err(fail(job.total - done))?;
            done += n as u64;
            on(Progress::Bytes { file: job.name, done, total: job.total });
            self.limits.wanted.check()?;
        }
        if done < job.total {
            let why = format!("the body ended early, {done} of {} bytes", job.total);
            return Err(NetError::Passing(why).into());
        }
        Ok(())
    }
}

/// Whether so many bytes more fit beside a file.
///
/// # Errors
/// [`StoreError::DiskFull`] with the numbers.
pub(crate) fn has_room(path: &Path, need_bytes: u64) -> Result<(), StoreError> {
    // (Its folder may still have to be made.)
    let place = path.ancestors().skip(1).find(|folder| folder.is_dir()).unwrap_or(path);
    match free_bytes(place).filter(|free| *free < need_bytes) {
        Some(free_bytes) => {
            Err(StoreError::DiskFull { path: path.to_owned(), need_bytes, free_bytes })
        }
        None => Ok(()),
    }
}

/// A small answer as a whole, with retries; one of more than `most` bytes is refused.
pub(crate) fn get_small(
    http: &Http,
    limits: &Limits,
    url: &str,
    ask: &Ask<'_>,
    most: u64,
    on: &mut OnProgress<'_>,
) -> Result<Vec<u8>, StoreError> {
    let get_once = || -> Result<Vec<u8>, NetError> {
        let mut body = Vec::new();
        let broke = |e| NetError::Passing(format!("the body broke off: {e}"));
        http.get(url, ask)?.body.take(most + 1).read_to_end(&mut body).map_err(broke)?;
        match body.len() as u64 > most {
            true => Err(NetError::Bad(format!("an answer of more than {most} bytes"))),
            false => Ok(body),
        }
    };
    let body = patiently(&mut Patience::new(limits), on, get_once);
    body.map_err(|error| net_error(url, error, limits))
}

/// Tries until it works or patience ends.
fn patiently<T>(
    patience: &mut Patience<'_>,
    on: &mut OnProgress<'_>,
    mut get: impl FnMut() -> Result<T, NetError>,
) -> Result<T, NetError> {
    loop {
        match get() {
            Ok(answer) => return Ok(answer),
            Err(error) => pause(patience.after(error)?, on),
        }
    }
}

/// Tells of another try and waits for its time.
fn pause(again: Again, on: &mut OnProgress<'_>) {
    on(Progress::Retry { why: &again.why, pause_ms: again.pause.as_millis() as u64 });
    thread::sleep(again.pause);
}

/// Size, tags and abilities out of the answer to a request for the first byte.
fn read_probe(answer: &Answer) -> Probe {
    let headers = &answer.headers;
    let server_tag = text_of(headers, "etag");
    let stated = text_of(headers, "content-range").and_then(|t| t.rsplit('/').next()?.parse().ok());
    let bytes = match answer.status {
        206 | 416 => stated,
        _ => answer.body.content_length(),
    };
    let linked = answer.linked.etag.clone();
    let digest = linked.as_ref().or(server_tag.as_ref()).and_then(|t| Digest::parse(unquoted(t)));
    // The ETag of some other server is no digest, whatever it looks like.
    let digest = digest.filter(|_| linked.is_some() || headers.contains_key("x-repo-commit"));
    let is_strong = server_tag.as_ref().is_some_and(|t| !t.starts_with("W/"));
    Probe {
        bytes: answer.linked.bytes.or(bytes),
        digest,
        is_server_tag: linked.is_none() && is_strong,
        etag: linked.or(server_tag),
        has_ranges: answer.status == 206 && bytes.is_some(),
    }
}

fn unquoted(tag: &str) -> &str {
    tag.trim_start_matches("W/").trim_matches('"')
}

/// The answer is exactly the range asked for, of the content the job began with.
fn check_range(answer: &Answer, job: &Job<'_>, range: Range<u64>) -> Result<(), Trouble> {
    if answer.status != 206 {
        return Err(Trouble::Changed);
    }
    let tag = answer.linked.etag.clone().or_else(|| text_of(&answer.headers, "etag"));
    if job.content.etag.is_some() && tag.is_some() && tag != job.content.etag {
        return Err(Trouble::Changed);
    }
    let expect = format!("bytes {}-{}/{}", range.start, range.end - 1, job.total);
    match text_of(&answer.headers, "content-range") {
        Some(found) if found == expect => Ok(()),
        found => {
            let found = crate::error::shown(&found.unwrap_or_default());
            let why = format!("asked for \"{expect}\", it gave \"{found}\"");
            Err(NetError::Bad(why).into())
        }
    }
}

/// A network failure in the store's words.
pub(crate) fn net_error(url: &str, error: NetError, limits: &Limits) -> StoreError {
    let host = host_of(url);
    let url = plain_url(url);
    match error {
        NetError::Passing(why) => StoreError::Network { url, why },
        NetError::Unreachable(why) => StoreError::Unreachable { host, why },
        NetError::Busy { status, told: Some(wait) } => {
            let when = come_back(wait, SystemTime::now());
            StoreError::Busy { url, status, when, limit: in_words(limits.wait) }
        }
        NetError::Busy { status, told: None } => {
            let why = format!("the server answered {status}, and not for how long");
            StoreError::Network { url, why }
        }
        NetError::Bad(why) => StoreError::BadAnswer { url, why },
        NetError::Status(status) => {
            let hint = match status {
                401 | 403 => {
                    "the model is private or gated, or does not exist: accept its terms on the \
                     hub, then set HF_TOKEN"
                }
                404 | 410 => "no such repository, revision or file: check the spelling",
                _ => "try again later",
            };
            StoreError::Refused { url, status, hint: hint.to_string() }
        }
    }
}

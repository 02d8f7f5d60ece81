//! The journal of a partial file: which byte ranges are on disk, so that a download resumes.
//!
//! Text, only appended to: a header that binds it to one remote content, then `d START END` lines.
//! A torn last line is dropped; a header that does not fit drops the journal.

use crate::disk::Disk;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;

/// How a journal begins: what it is, and its version.
const NAME: &str = "tokenmill-partial 1";

/// What a partial file is a part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    /// Bytes of the whole.
    pub total: u64,
    /// The server's ETag.
    pub etag: Option<String>,
    /// The digest in hexadecimal.
    pub digest: Option<String>,
}

impl Content {
    fn header(&self) -> String {
        let word = |w: &Option<String>| w.clone().unwrap_or_else(|| "-".into()).replace(' ', "_");
        format!("{NAME} {} {} {}\n", self.total, word(&self.digest), word(&self.etag))
    }

    /// Without an ETag or a digest nothing says that two answers are one content.
    pub(crate) fn is_resumable(&self) -> bool {
        self.etag.is_some() || self.digest.is_some()
    }
}

/// An open journal.
pub(crate) struct Journal {
    file: File,
    disk: Disk,
}

const JOURNAL_BYTES: u64 = 16 << 20;

impl Journal {
    /// Starts an empty journal for `content`.
    pub(crate) fn create(disk: &Disk, path: &Path, content: &Content) -> io::Result<Self> {
        disk.step("create journal")?;
        let mut file = File::create(path)?;
        file.write_all(content.header().as_bytes())?;
        Ok(Self { file, disk: disk.clone() })
    }

    /// Opens the journal of an earlier run and returns the ranges that are on disk, merged; `None`
    /// if it belongs to other content. `have_bytes` is the length of the partial file.
    pub(crate) fn open(
        disk: &Disk,
        path: &Path,
        content: &Content,
        have_bytes: u64,
    ) -> io::Result<Option<(Self, Vec<Range<u64>>)>> {
        let mut text = String::new();
        match File::open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
            Ok(file) => {
                let mut bytes = Vec::new();
                file.take(JOURNAL_BYTES).read_to_end(&mut bytes)?;
                text.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
        let Some(lines) = text.strip_prefix(&content.header()).filter(|_| content.is_resumable())
        else {
            return Ok(None);
        };
        let ranges = lines
            .split_inclusive('\n')
            .filter_map(parse_line)
            .filter(|r| r.end <= content.total && r.end <= have_bytes)
            .collect();
        let ranges = merge(ranges);
        // Written anew, without the torn line and the small pieces.
        disk.step("create journal")?;
        let fresh = crate::disk::with_suffix(path, ".new");
        let mut file = File::create(&fresh)?;
        file.write_all(content.header().as_bytes())?;
        for range in &ranges {
            writeln!(file, "d {} {}", range.start, range.end)?;
        }
        drop(file);
        fs::rename(&fresh, path)?;
        let file = OpenOptions::new().append(true).open(path)?;
        Ok(Some((Self { file, disk: disk.clone() }, ranges)))
    }

    /// How many bytes of how many another one has fetched by now, whose journal this is.
    pub(crate) fn look(path: &Path) -> Option<(u64, u64)> {
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(JOURNAL_BYTES).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let (head, lines) = text.split_once('\n')?;
        let total = head.strip_prefix(NAME)?.trim_start().split(' ').next()?.parse().ok()?;
        let ranges = merge(lines.split_inclusive('\n').filter_map(parse_line).collect());
        let done = ranges.iter().map(|range| range.end - range.start).sum();
        (done <= total).then_some((done, total))
    }

    /// Records a range whose bytes have been synced.
    pub(crate) fn record(&mut self, range: &Range<u64>) -> io::Result<()> {
        self.disk.step("write journal")?;
        self.file.write_all(format!("d {} {}\n", range.start, range.end).as_bytes())
    }
}

fn parse_line(line: &str) -> Option<Range<u64>> {
    let mut words = line.strip_suffix('\n')?.strip_prefix("d ")?.split(' ');
    let start = words.next()?.parse().ok()?;
    let end = words.next()?.parse().ok()?;
    (words.next().is_none() && start < end).then_some(start..end)
}

fn merge(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|r| (r.start, r.end));
    let mut out: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match out.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => out.push(range),
        }
    }
    out
}

/// The pieces of `0..total` outside `done` (merged), none longer than `piece_bytes`.
pub(crate) fn missing(done: &[Range<u64>], total: u64, piece_bytes: u64) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    let mut at = 0;
    for range in done.iter().cloned().chain(std::iter::once(total..total)) {
        while at < range.start {
            let end = range.start.min(at + piece_bytes.max(1));
            gaps.push(at..end);
            at = end;
        }
        at = at.max(range.end);
    }
    gaps
}

#[cfg(test)]
mod tests {
    // Lists of one range are meant here.
    #![allow(clippy::single_range_in_vec_init)]
    use super::*;

    type Ranges = &'static [Range<u64>];

    fn content() -> Content {
        Content { total: 100, etag: Some("\"e tag\"".into()), digest: None }
    }

    #[test]
    fn gaps_are_cut_in_pieces() {
        let table: &[(Ranges, Ranges)] = &[
            (&[], &[0..4, 4..8, 8..10]),
            (&[0..10], &[]),
            (&[0..3, 5..9], &[3..5, 9..10]),
            (&[2..3], &[0..2, 3..7, 7..10]),
        ];
        for (done, expect) in table {
            assert_eq!(missing(done, 10, 4), *expect, "{done:?}");
        }
    }

    #[test]
    fn what_is_recorded_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let disk = Disk::default();
        let mut journal = Journal::create(&disk, &path, &content()).unwrap();
        for range in [0..10, 40..50, 10..20, 90..100] {
            journal.record(&range).unwrap();
        }
        drop(journal);
        let open = |c: &Content, have| {
            Journal::open(&disk, &path, c, have).unwrap().map(|(_, ranges)| ranges)
        };
        assert_eq!(open(&content(), 100), Some(vec![0..20, 40..50, 90..100]));
        assert_eq!(open(&content(), 60), Some(vec![0..20, 40..50]), "the file is shorter");
        let other = Content { etag: Some("other".into()), ..content() };
        assert_eq!(open(&other, 100), None);
    }

    #[test]
    fn damaged_lines_are_dropped() {
        let table: [(&str, Ranges); 4] = [
            ("d 0 10\nd 20 3", &[0..10]),
            ("d 0 10\nd 5 5\nd 9 3\nx\nd 1\nd 1 2 3\nd -1 4\n", &[0..10]),
            ("d 0 101\n", &[]),
            ("\u{fffd}\n", &[]),
        ];
        for (lines, expect) in table {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("j");
            std::fs::write(&path, content().header() + lines).unwrap();
            let found = Journal::open(&Disk::default(), &path, &content(), 1000).unwrap().unwrap();
            assert_eq!(found.1, expect, "{lines:?}");
        }
    }
}

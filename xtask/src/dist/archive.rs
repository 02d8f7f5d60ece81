//! Archives whose bytes depend on their files alone: tar (POSIX ustar), ar, gzip; every file is root's and of one time.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

/// A file of an archive. Folders are made of the paths; one with permissions of its own is an entry itself.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Where it lies, without a leading slash; at most 99 bytes. A folder ends with one.
    pub path: String,
    /// Permissions.
    pub mode: u32,
    /// What is in it.
    pub bytes: Vec<u8>,
}

impl Entry {
    /// A file that everybody reads.
    pub fn new(path: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), mode: 0o644, bytes: bytes.into() }
    }

    /// The same as a program.
    #[must_use]
    pub fn program(self) -> Self {
        Self { mode: 0o755, ..self }
    }
}

/// A tar file, folders first, names behind `prefix`.
pub fn tar(prefix: &str, entries: &[Entry], time: u64) -> Vec<u8> {
    let mut sorted: Vec<&Entry> = entries.iter().collect();
    sorted.sort_by(|one, other| one.path.cmp(&other.path));
    let mut out = Vec::new();
    let mut made: Vec<String> = Vec::new();
    for entry in sorted {
        for (at, _) in entry.path.match_indices('/') {
            let folder = entry.path[..=at].to_owned();
            if !made.contains(&folder) {
                let mode = if folder == entry.path { entry.mode } else { 0o755 };
                header(&mut out, &format!("{prefix}{folder}"), (b'5', mode), 0, time);
                made.push(folder);
            }
        }
        if entry.path.ends_with('/') {
            continue;
        }
        let name = format!("{prefix}{}", entry.path);
        header(&mut out, &name, (b'0', entry.mode), entry.bytes.len(), time);
        out.extend(&entry.bytes);
        out.resize(out.len().next_multiple_of(512), 0);
    }
    out.resize(out.len() + 1024, 0);
    out
}

fn header(out: &mut Vec<u8>, name: &str, (kind, mode): (u8, u32), size: usize, time: u64) {
    assert!(name.len() < 100, "{name}: longer than a name in a tar file");
    let mut block = [0_u8; 512];
    let mut put =
        |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, &format!("{mode:07o}"));
    put(108, &format!("{:07o}", 0));
    put(116, &format!("{:07o}", 0));
    put(124, &format!("{size:011o}"));
    put(136, &format!("{time:011o}"));
    put(148, "        ");
    put(156, &char::from(kind).to_string());
    put(257, "ustar\x0000");
    put(265, "root");
    put(297, "root");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.extend(block);
}

/// An ar file, as Debian's packages are.
pub fn ar(entries: &[Entry], time: u64) -> Vec<u8> {
    let mut out = b"!<arch>\n".to_vec();
    for Entry { path, bytes, .. } in entries {
        let size = bytes.len();
        out.extend(
            format!("{path:<16}{time:<12}{:<6}{:<6}{:<8}{size:<10}`\n", 0, 0, 100644).as_bytes(),
        );
        out.extend(bytes);
        out.resize(out.len().next_multiple_of(2), b'\n');
    }
    out
}

/// Compressed, without a name or a time.
pub fn gz(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = GzEncoder::new(Vec::new(), Compression::best());
    out.write_all(bytes).and_then(|()| out.finish()).map_err(|e| format!("gzip: {e}"))
}

/// SHA-256, hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn files() -> [Entry; 4] {
        [
            Entry { path: "v/".to_owned(), mode: 0o777, bytes: Vec::new() },
            Entry::new("usr/share/b", "text\n"),
            Entry::new("usr/bin/a", vec![7; 700]).program(),
            Entry::new("c", ""),
        ]
    }

    #[test]
    fn the_same_files_are_the_same_bytes() {
        let mut turned = files();
        turned.reverse();
        assert_eq!(tar("./", &files(), 9), tar("./", &turned, 9));
        assert_ne!(tar("./", &files(), 9), tar("./", &files(), 10));
        assert_eq!(gz(b"abc"), gz(b"abc"));
        assert_eq!(ar(&files()[1..2], 9).len() % 2, 0);
        assert!(sha256(b"abc").starts_with("ba7816bf"));
    }

    #[test]
    fn tar_reads_them() {
        let mut child = match Command::new("tar")
            .args(["-tvf", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
        {
            Ok(child) => child,
            Err(_) => return, // (a system without tar)
        };
        child.stdin.take().unwrap().write_all(&tar("", &files(), 0)).unwrap();
        let output = child.wait_with_output().unwrap();
        let list = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{list}");
        let names: Vec<&str> =
            list.lines().filter_map(|line| line.split(' ').next_back()).collect();
        assert_eq!(
            names,
            ["c", "usr/", "usr/bin/", "usr/bin/a", "usr/share/", "usr/share/b", "v/"]
        );
        for line in ["-rwxr-xr-x root/root", "drwxr-xr-x root/root", "drwxrwxrwx root/root"] {
            assert!(list.contains(line), "{list}");
        }
    }
}

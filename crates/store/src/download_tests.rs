//! The downloader against a misbehaving server, a full disk and a crash at every step.

use crate::digest::Digest;
use crate::disk::{Disk, with_suffix};
use crate::download::{Downloader, Remote};
use crate::env::{Limits, StoreEnv, Wanted};
use crate::error::StoreError;
use crate::fixture::{Reply, Seen, Server, content};
use crate::http::Http;
use crate::progress::{OnProgress, Progress};
use sha2::Digest as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const TOTAL: usize = 300_000;

/// One place to download to, and how.
struct Bench {
    dir: tempfile::TempDir,
    disk: Disk,
    limits: Limits,
    token: Option<String>,
    /// Retries heard in the last fetch.
    retries: AtomicUsize,
}

impl Bench {
    fn new() -> Self {
        let limits = Limits {
            attempts: 4,
            pause: Duration::from_millis(1),
            segment_bytes: 40_000,
            checkpoint_bytes: 10_000,
            stall: Duration::from_secs(5),
            ..Limits::default()
        };
        let dir = tempfile::tempdir().unwrap();
        Self { dir, disk: Disk::default(), limits, token: None, retries: AtomicUsize::new(0) }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("file")
    }

    fn bytes(&self) -> Option<Vec<u8>> {
        std::fs::read(self.path()).ok()
    }

    /// Everything in the folder but the lock.
    fn leftovers(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .filter(|n| n != "lock")
            .collect();
        names.sort();
        names
    }

    fn fetch(
        &self,
        server: &Server,
        bytes: Option<u64>,
        digest: Option<Digest>,
    ) -> Result<u64, StoreError> {
        self.retries.store(0, Ordering::Relaxed);
        self.fetch_into(self.dir.path(), server, (bytes, digest), &mut |p| {
            if matches!(p, Progress::Retry { .. }) {
                self.retries.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    fn fetch_into(
        &self,
        folder: &Path,
        server: &Server,
        (bytes, digest): (Option<u64>, Option<Digest>),
        on: &mut OnProgress<'_>,
    ) -> Result<u64, StoreError> {
        let env = StoreEnv { hf_endpoint: Some(server.url.clone()), ..StoreEnv::default() };
        let http = Http::new(&env, &self.limits, self.limits.connect, self.token.clone()).unwrap();
        let url = format!("{}/file", server.url);
        let remote = Remote { url: &url, name: "file", bytes, digest };
        Downloader { http: &http, disk: &self.disk, limits: &self.limits }.fetch(
            &remote,
            &folder.join("file"),
            &folder.join("lock"),
            on,
        )
    }
}

fn sha256(bytes: &[u8]) -> Option<Digest> {
    Some(Digest::Sha256(sha2::Sha256::digest(bytes).into()))
}

fn asked_bytes(server: &Server) -> u64 {
    server.seen().iter().filter_map(|s| s.range.clone()).map(|r| r.end - r.start).sum()
}

#[test]
fn ranges_make_the_whole() {
    let data = content(TOTAL, 1);
    let (serve, bench) = (data.clone(), Bench::new());
    let server = Server::start(move |seen, _| Reply::file(seen, &serve, "\"a\""));
    assert_eq!(bench.fetch(&server, None, sha256(&data)).unwrap(), TOTAL as u64);
    assert_eq!(bench.bytes().unwrap(), data);
    assert_eq!(bench.leftovers(), ["file"]);
    // the probe, and 300 000 / 40 000 ranges, each byte once
    assert_eq!(server.seen().len(), 1 + 8);
    assert_eq!(asked_bytes(&server), TOTAL as u64 + 1);
    // there already: nothing is asked
    server.forget();
    bench.fetch(&server, Some(TOTAL as u64), sha256(&data)).unwrap();
    assert!(server.seen().is_empty());
}

#[test]
fn broken_connections_go_on_where_they_broke() {
    let data = content(TOTAL, 2);
    let (serve, bench) = (data.clone(), Bench::new());
    let server = Server::start(move |seen, _| Reply {
        cut: Some(15_000),
        ..Reply::file(seen, &serve, "\"a\"")
    });
    bench.fetch(&server, None, sha256(&data)).unwrap();
    assert_eq!(bench.bytes().unwrap(), data);
    assert!(bench.retries.load(Ordering::Relaxed) >= 14);
    // 40 000 + 25 000 + 10 000 for each full range of 40 000, and 20 000 + 5 000 for the last
    assert_eq!(asked_bytes(&server), 1 + 7 * 75_000 + 25_000);
}

#[test]
fn a_dead_run_is_resumed() {
    let data = content(TOTAL, 3);
    let (serve, mut bench) = (data.clone(), Bench::new());
    bench.limits.ranges = 1;
    let server = Server::start(move |seen, n| match n {
        0..4 => Reply::file(seen, &serve, "\"a\""),
        4..40 => Reply::new(503, "later"),
        _ => Reply::file(seen, &serve, "\"a\""),
    });
    let error = bench.fetch(&server, None, sha256(&data)).unwrap_err();
    assert!(matches!(error, StoreError::Network { .. }), "{error}");
    assert_eq!(bench.bytes(), None);
    assert_eq!(bench.leftovers(), ["file.partial", "file.partial.journal"]);
    while let Err(error) = bench.fetch(&server, None, sha256(&data)) {
        assert!(matches!(error, StoreError::Network { .. }), "{error}");
        assert!(server.seen().len() < 60, "it never recovers");
        server_is_past(&server, 40);
    }
    assert_eq!(bench.bytes().unwrap(), data);
    let late: u64 =
        server.seen()[40..].iter().filter_map(|s| s.range.clone()).map(|r| r.end - r.start).sum();
    assert!(late < TOTAL as u64, "the first 3 ranges were fetched again: {late}");
}

/// Uses up the failing answers of a script that counts requests.
fn server_is_past(server: &Server, count: usize) {
    while server.seen().len() < count {
        server.poke();
    }
}

#[test]
fn changed_content_starts_anew() {
    // changed between two runs (the first is cut off), or within one
    for change_at in [4, 6] {
        let (old, new) = (content(TOTAL, 4), content(TOTAL, 5));
        let (first, second, bench) = (old.clone(), new.clone(), Bench::new());
        let server = Server::start(move |seen, n| {
            if n < change_at {
                Reply::file(seen, &first, "\"old\"")
            } else if n < 12 && change_at == 4 {
                Reply::new(500, "")
            } else {
                Reply::file(seen, &second, "\"new\"")
            }
        });
        // no digest known beforehand: the ETag alone tells
        let mut outcome = bench.fetch(&server, None, None);
        for _ in 0..4 {
            if outcome.is_err() {
                outcome = bench.fetch(&server, None, None);
            }
        }
        outcome.unwrap();
        assert!(bench.bytes().unwrap() == new, "changed at request {change_at}");
    }
}

#[test]
fn a_damaged_partial_is_found_out() {
    let data = content(TOTAL, 6);
    let (serve, mut bench) = (data.clone(), Bench::new());
    bench.limits.ranges = 1;
    let server = Server::start(move |seen, n| match n {
        4..8 => Reply::new(400, ""),
        _ => Reply::file(seen, &serve, "\"a\""),
    });
    bench.fetch(&server, None, sha256(&data)).unwrap_err();
    let partial = with_suffix(&bench.path(), ".partial");
    let mut bytes = std::fs::read(&partial).unwrap();
    assert!(bytes.len() >= 40_000);
    for byte in bytes.iter_mut() {
        *byte ^= 1;
    }
    std::fs::write(&partial, bytes).unwrap();
    server_is_past(&server, 8);
    bench.fetch(&server, None, sha256(&data)).unwrap();
    assert_eq!(bench.bytes().unwrap(), data);
}

type Script = Box<dyn Fn(&Seen, &[u8]) -> Reply + Send + Sync>;

/// A case, the pinned size, the server, and a part of the message.
type Evil = (&'static str, Option<u64>, Script, &'static str);

fn evil_servers() -> Vec<Evil> {
    vec![
        (
            "wrong digest",
            None,
            Box::new(|s, _| Reply::file(s, &content(TOTAL, 8), "\"a\"")),
            "wrong digest",
        ),
        (
            "pinned size",
            Some(TOTAL as u64 + 1),
            Box::new(|s, d| Reply::file(s, d, "\"a\"")),
            "wrong length",
        ),
        (
            "short",
            Some(TOTAL as u64),
            Box::new(|s, d| Reply::file(s, &d[1..], "\"a\"")),
            "wrong length",
        ),
        (
            "endless",
            Some(TOTAL as u64),
            Box::new(|_, d| Reply { endless: true, ..Reply::new(200, d) }),
            "wrong length",
        ),
        (
            "endless, no size",
            None,
            Box::new(|_, d| Reply { endless: true, ..Reply::new(200, d) }),
            "how long",
        ),
        (
            "other range",
            None,
            Box::new(|s, d| {
                let mut reply = Reply::file(s, d, "\"a\"");
                if s.range != Some(0..1) {
                    reply.headers[0].1 = "bytes 7-9/300000".into();
                }
                reply
            }),
            "asked for",
        ),
        ("no file", None, Box::new(|_, _| Reply::new(404, "")), "check the spelling"),
        ("gated", None, Box::new(|_, _| Reply::new(401, "")), "HF_TOKEN"),
        ("5xx for ever", None, Box::new(|_, _| Reply::new(502, "")), "answered 502"),
        (
            "redirect loop",
            None,
            Box::new(|_, _| Reply::new(302, "").with("Location", "/file")),
            "redirects",
        ),
        (
            "redirect to a file",
            None,
            Box::new(|_, _| Reply::new(302, "").with("Location", "file:///etc/passwd")),
            "redirect from http to file",
        ),
        ("redirect nowhere", None, Box::new(|_, _| Reply::new(302, "")), "without an address"),
        (
            "huge",
            None,
            Box::new(|_, _| {
                Reply::new(206, "x").with("Content-Range", format!("bytes 0-0/{}", u64::MAX))
            }),
            "limit",
        ),
    ]
}

#[test]
fn answers_that_must_not_be_kept() {
    let data = content(TOTAL, 7);
    for (case, bytes, script, expect) in evil_servers() {
        let (serve, bench) = (data.clone(), Bench::new());
        let server = Server::start(move |seen, _| script(seen, &serve));
        let error = bench.fetch(&server, bytes, sha256(&data)).unwrap_err().to_string();
        assert!(error.contains(expect), "{case}: {error}");
        assert!(error.lines().count() <= 3, "{case}: {error}");
        assert_eq!(bench.bytes(), None, "{case}");
        if case != "other range" {
            assert!(bench.leftovers().iter().all(|n| n != "file.partial"), "{case}");
        }
    }
}

#[test]
fn servers_without_ranges_and_with_hiccups() {
    let data = content(TOTAL, 9);
    let (serve, bench) = (data.clone(), Bench::new());
    let server = Server::start(move |_, n| match n {
        0 | 2 => Reply::new(503, ""),
        3 => Reply { cut: Some(1000), ..Reply::new(200, serve.clone()) },
        _ => Reply::new(200, serve.clone()),
    });
    bench.fetch(&server, None, sha256(&data)).unwrap();
    assert_eq!(bench.bytes().unwrap(), data);
    assert_eq!(bench.retries.load(Ordering::Relaxed), 3);
    assert_eq!(bench.leftovers(), ["file"]);
}

#[test]
fn the_token_stays_at_home() {
    let data = content(TOTAL, 10);
    let serve = data.clone();
    let elsewhere = Server::start(move |seen, _| Reply::file(seen, &serve, "\"a\""));
    let to = format!("{}/bytes?signed=1", elsewhere.url);
    let mut bench = Bench::new();
    bench.token = Some("hf_secret".into());
    let hub = Server::start(move |_, _| {
        Reply::new(302, "").with("Location", to.clone()).with("X-Linked-Size", TOTAL.to_string())
    });
    bench.fetch(&hub, None, sha256(&data)).unwrap();
    assert_eq!(bench.bytes().unwrap(), data);
    assert!(hub.seen().iter().all(|s| s.token.as_deref() == Some("Bearer hf_secret")));
    assert!(elsewhere.seen().len() > 8);
    assert!(elsewhere.seen().iter().all(|s| s.token.is_none()));
}

#[test]
fn two_at_once_fetch_once() {
    let data = content(TOTAL, 11);
    let (serve, bench) = (data.clone(), Bench::new());
    let server = Server::start(move |seen, _| Reply {
        pause: Duration::from_millis(5),
        ..Reply::file(seen, &serve, "\"a\"")
    });
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| bench.fetch(&server, None, sha256(&data)).unwrap());
        }
    });
    assert_eq!(bench.bytes().unwrap(), data);
    assert_eq!(asked_bytes(&server), TOTAL as u64 + 1);
}

#[test]
fn who_waits_hears_how_far_the_other_is_and_goes_on_where_it_broke_off() {
    let data = content(TOTAL, 14);
    let (serve, mut bench) = (data.clone(), Bench::new());
    bench.limits.ranges = 1;
    bench.limits.checkpoint_bytes = 20_000;
    let server = Server::start(move |seen, _| Reply {
        pause: Duration::from_millis(40),
        ..Reply::file(seen, &serve, "\"a\"")
    });
    // The first has an error of its own when half is there; the second waits meanwhile.
    let second = Bench::new();
    let writes = AtomicUsize::new(0);
    bench.disk = Disk::with_hook(Arc::new(move |step| {
        let breaks = step == "write partial" && writes.fetch_add(1, Ordering::Relaxed) >= 12;
        if breaks { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
    }));
    let digest = sha256(&data);
    let mut heard = Vec::new();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| bench.fetch(&server, None, digest));
        let has_begun = || bench.dir.path().join("file.partial.journal").exists();
        let begun = (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(2));
            has_begun()
        });
        assert!(begun, "the first fetches");
        second
            .fetch_into(bench.dir.path(), &server, (None, digest), &mut |p| match p {
                Progress::Waiting(_) => heard.push(0),
                Progress::Bytes { done, .. } => heard.push(done),
                _ => {}
            })
            .unwrap();
        assert!(first.join().unwrap().is_err());
    });
    assert_eq!(heard.first(), Some(&0), "it waits");
    assert!(heard.iter().any(|n| *n > 0 && *n < 200_000), "it hears of the other: {heard:?}");
    assert_eq!(bench.bytes().unwrap(), data);
    assert!(asked_bytes(&server) < TOTAL as u64 + 100_000, "what was there stayed");
}

#[test]
fn nobody_waits_and_the_next_one_goes_on() {
    let data = content(TOTAL, 15);
    for ranges in [true, false] {
        let (serve, mut bench) = (data.clone(), Bench::new());
        bench.limits.ranges = 1;
        let server = Server::start(move |seen, _| match ranges {
            true => Reply::file(seen, &serve, "\"a\""),
            false => Reply::new(200, serve.clone()),
        });
        // Wanted until a piece is written.
        let writes = Arc::new(AtomicUsize::new(0));
        let (seen, asked) = (Arc::clone(&writes), Arc::clone(&writes));
        bench.disk = Disk::with_hook(Arc::new(move |step| {
            seen.fetch_add(usize::from(step == "write partial"), Ordering::Relaxed);
            Ok(())
        }));
        bench.limits.wanted =
            Wanted::while_true(Arc::new(move || asked.load(Ordering::Relaxed) < 1));
        let error = bench.fetch(&server, None, sha256(&data)).unwrap_err();
        assert!(matches!(error, StoreError::Unwanted), "{error}");
        assert!(error.to_string().contains("kept") && bench.bytes().is_none());
        server.forget();
        bench.limits.wanted = Wanted::default();
        bench.fetch(&server, None, sha256(&data)).unwrap();
        assert_eq!(bench.bytes().unwrap(), data);
        let anew = asked_bytes(&server);
        assert!(!ranges || anew < TOTAL as u64, "what came was kept: {anew} of {TOTAL}");
    }
}

#[test]
fn a_full_disk_keeps_what_came() {
    let data = content(TOTAL, 12);
    let (serve, mut bench) = (data.clone(), Bench::new());
    bench.limits.ranges = 1;
    let server = Server::start(move |seen, _| Reply::file(seen, &serve, "\"a\""));
    let writes = AtomicUsize::new(0);
    bench.disk = Disk::with_hook(Arc::new(move |step| {
        let is_full = step == "write partial" && writes.fetch_add(1, Ordering::Relaxed) >= 3;
        if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }));
    let error = bench.fetch(&server, None, sha256(&data)).unwrap_err();
    assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
    assert!(error.to_string().contains("kept"));
    assert_eq!(bench.leftovers(), ["file.partial", "file.partial.journal"]);
    bench.disk = Disk::default();
    server.forget();
    bench.fetch(&server, None, sha256(&data)).unwrap();
    assert_eq!(bench.bytes().unwrap(), data);
    assert!(asked_bytes(&server) < TOTAL as u64, "resumed");
}

#[test]
fn a_crash_at_every_step_leaves_all_or_nothing() {
    let data = content(100_000, 13);
    let serve = data.clone();
    let server = Server::start(move |seen, _| Reply::file(seen, &serve, "\"a\""));
    for crash_at in 0.. {
        let mut bench = Bench::new();
        let steps = Arc::new(AtomicUsize::new(0));
        let count = steps.clone();
        // from that step on nothing reaches the disk, as after a kill
        bench.disk = Disk::with_hook(Arc::new(move |_| {
            if count.fetch_add(1, Ordering::Relaxed) >= crash_at {
                return Err(io::Error::other("crash"));
            }
            Ok(())
        }));
        let outcome = bench.fetch(&server, None, sha256(&data));
        let is_last = steps.load(Ordering::Relaxed) <= crash_at;
        assert_eq!(outcome.is_ok(), is_last, "step {crash_at}");
        assert!(bench.bytes().is_none_or(|b| b == data), "step {crash_at}");
        bench.disk = Disk::default();
        bench.fetch(&server, Some(100_000), sha256(&data)).unwrap();
        assert_eq!(bench.bytes().unwrap(), data, "step {crash_at}");
        if is_last {
            assert!(crash_at > 10, "the loop ran");
            return;
        }
    }
}

#[test]
fn a_busy_server_is_left_alone_as_long_as_it_says() {
    let data = content(TOTAL, 14);
    let (serve, bench) = (data.clone(), Bench::new());
    // the probe, then all four workers are told to wait
    let server = Server::start(move |seen, n| match n {
        1..=4 => Reply::new(429, "").with("Retry-After", "1"),
        _ => Reply::file(seen, &serve, "\"a\""),
    });
    bench.fetch(&server, None, sha256(&data)).unwrap();
    assert_eq!(bench.bytes().unwrap(), data);
    assert_eq!(server.seen().len(), 1 + 4 + 8, "each was told once");
    assert!((1..=4).contains(&bench.retries.load(Ordering::Relaxed)));
}

#[test]
fn waits_beyond_the_limit_are_not_waited() {
    for (status, after) in [(429, "7200"), (503, "7200"), (429, "Fri, 31 Dec 9999 23:59:59 GMT")] {
        let bench = Bench::new();
        let server = Server::start(move |_, _| Reply::new(status, "").with("Retry-After", after));
        let error = bench.fetch(&server, None, None).unwrap_err().to_string();
        let expect = if after == "7200" { "come back in 2 h, at " } else { "more than a year" };
        assert!(error.contains(expect) && error.contains("than the 10 min"), "{error}");
        assert_eq!(server.seen().len(), 1);
    }
}

#[test]
fn a_network_that_is_not_there_is_said_at_once() {
    let bench = Bench::new();
    let mut gone = Server::start(|_, _| Reply::new(500, ""));
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let there = std::mem::replace(&mut gone.url, format!("http://127.0.0.1:{port}"));
    let error = bench.fetch(&gone, None, None).unwrap_err();
    gone.url = there;
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    let (text, expect) = (error.to_string(), format!("cannot reach 127.0.0.1:{port}: "));
    assert!(text.starts_with(&expect) && text.contains("refused"), "{text}");
    assert_eq!(bench.retries.load(Ordering::Relaxed), 0);
}

//! A registry for tests on 127.0.0.1 that can misbehave in every way a script tells it to.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// One request as it came in.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub path: String,
    pub range: Option<Range<u64>>,
    pub if_range: Option<String>,
    pub token: Option<String>,
}

/// What goes back.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Close the connection after so many bytes of the body.
    pub cut: Option<usize>,
    /// No length, and zeros without end after the body.
    pub endless: bool,
    /// Pause between pieces of 16 KiB.
    pub pause: Duration,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, body: body.into(), ..Self::default() }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_string(), value.into()));
        self
    }

    /// The file as a good server gives it: ranges, `If-Range`, ETag.
    pub(crate) fn file(seen: &Seen, bytes: &[u8], etag: &str) -> Self {
        let same = seen.if_range.as_deref().is_none_or(|t| t == etag);
        match seen.range.clone().filter(|_| same) {
            Some(range) if range.start < bytes.len() as u64 => {
                let end = range.end.min(bytes.len() as u64);
                let part = &bytes[range.start as usize..end as usize];
                let content = format!("bytes {}-{}/{}", range.start, end - 1, bytes.len());
                Self::new(206, part).with("Content-Range", content).with("ETag", etag)
            }
            _ => Self::new(200, bytes).with("ETag", etag),
        }
    }
}

/// A running server; the script hears each request and how many came before it.
pub(crate) struct Server {
    pub url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    stop: Arc<AtomicBool>,
}

impl Server {
    pub(crate) fn start(script: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let script = Arc::new(script);
        let (log, end) = (seen.clone(), stop.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                let (script, log) = (script.clone(), log.clone());
                thread::spawn(move || {
                    let Some(request) = read_request(&stream) else { return };
                    let before = {
                        let mut log = log.lock().unwrap();
                        log.push(request.clone());
                        log.len() - 1
                    };
                    let _ = write_reply(&stream, &script(&request, before));
                    let _ = stream.shutdown(Shutdown::Both);
                });
            }
        });
        Self { url, seen, stop }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// One request whose answer nobody wants.
    pub(crate) fn poke(&self) {
        let mut stream = TcpStream::connect(self.url.trim_start_matches("http://")).unwrap();
        stream.write_all(b"GET /poke HTTP/1.1\r\n\r\n").unwrap();
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    }

    pub(crate) fn forget(&self) {
        self.seen.lock().unwrap().clear();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.url.trim_start_matches("http://"));
    }
}

fn read_request(stream: &TcpStream) -> Option<Seen> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut seen = Seen { path: first.split(' ').nth(1)?.to_string(), ..Seen::default() };
    for line in lines {
        let line = line.ok()?;
        if line.is_empty() {
            return Some(seen);
        }
        let (name, value) = line.split_once(": ")?;
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let (start, last) = value.strip_prefix("bytes=")?.split_once('-')?;
                seen.range = Some(start.parse().ok()?..last.parse::<u64>().ok()? + 1);
            }
            "if-range" => seen.if_range = Some(value.to_string()),
            "authorization" => seen.token = Some(value.to_string()),
            _ => {}
        }
    }
    None
}

fn write_reply(mut stream: &TcpStream, reply: &Reply) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let has_length = reply.headers.iter().any(|(n, _)| n == "Content-Length");
    if !reply.endless && !has_length {
        head.push_str(&format!("Content-Length: {}\r\n", reply.body.len()));
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    let end = reply.cut.unwrap_or(usize::MAX).min(reply.body.len());
    for piece in reply.body[..end].chunks(16 << 10) {
        stream.write_all(piece)?;
        if !reply.pause.is_zero() {
            thread::sleep(reply.pause);
        }
    }
    // Until the client has had enough; bounded in case it never has.
    for _ in 0..if reply.endless { 100_000 } else { 0 } {
        stream.write_all(&[0u8; 16 << 10])?;
    }
    Ok(())
}

/// Bytes that repeat nowhere: each place can be told from every other.
pub(crate) fn content(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

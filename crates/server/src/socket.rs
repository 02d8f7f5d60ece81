//! A socket that gives up on a peer that stopped reading, and not on one that only stopped sending.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use crate::guests::Guest;

/// Between two looks at whether a peer that sends no more is still there.
const LOOK: Duration = Duration::from_millis(50);
/// An interim response (RFC 9110, 15.2.1), which every client skips: a peer that waits reads on, one
/// that is gone resets.
const KNOCK: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A stream that may know of more than it was asked.
pub trait Peer: AsyncRead + AsyncWrite + Unpin {
    /// What has gone wrong since this was asked last: a peer that reset is not told by reading where
    /// it closed its side before.
    fn broken(&self) -> Option<Error>;
}

impl Peer for TcpStream {
    fn broken(&self) -> Option<Error> {
        self.take_error().unwrap_or_else(Some)
    }
}

/// The head of a request as it comes: every line of it must end with CR and LF. What takes a lone LF for
/// an end of line, as parsers may (RFC 9112, 2.2), sees other headers than a proxy that does not.
#[derive(Debug, Default)]
struct Head {
    /// Requests that had come before it.
    after: u64,
    /// The last bytes of it, its blank line among them.
    last: [u8; 4],
    /// Something else than empty lines has come.
    begun: bool,
    whole: bool,
}

impl Head {
    /// Takes what comes next; false where a line ends with a lone LF.
    fn takes(&mut self, bytes: &[u8]) -> bool {
        for &byte in bytes {
            if self.whole {
                break; // the body, or a request that was sent before this one is answered
            }
            let [_, b, c, d] = self.last;
            if byte == b'\n' && d != b'\r' {
                return false;
            }
            self.last = [b, c, d, byte];
            self.whole = self.begun && self.last == *b"\r\n\r\n";
            self.begun |= !matches!(byte, b'\r' | b'\n');
        }
        true
    }
}

/// Fails a write that makes no progress for a while. Whoever closes his side before he is answered has
/// either gone or waits for the answer: something is sent to him to find out.
pub struct StallGuard<S> {
    stream: S,
    limit: Duration,
    /// Set while a write is waiting.
    stalled: Option<Pin<Box<Sleep>>>,
    guest: Arc<Guest>,
    /// The request for which something was written last.
    written: u64,
    /// Set while a peer that sends no more is answered: when it is looked for again.
    silent: Option<Pin<Box<Sleep>>>,
    head: Head,
}

impl<S> StallGuard<S> {
    /// Guards the stream of a guest.
    pub fn new(stream: S, limit: Duration, guest: Arc<Guest>) -> Self {
        let head = Head::default();
        Self { stream, limit, stalled: None, guest, written: 0, silent: None, head }
    }

    /// Looks at what was read; whether it may be the head of a request, where it is one.
    fn is_good(&mut self, bytes: &[u8]) -> bool {
        if self.head.after != self.guest.requests() {
            // The body of a request that is answered, or what nobody read of one that was.
            if self.guest.may_wait() || !self.guest.was_read() {
                self.head.last[3] = bytes.last().copied().unwrap_or_default();
                return true;
            }
            let last = self.head.last;
            self.head = Head { after: self.guest.requests(), last, ..Head::default() };
        }
        self.head.takes(bytes)
    }

    /// Passes on what a write gave; waits no longer than the limit.
    fn watch<T>(&mut self, cx: &mut Context<'_>, written: Poll<Result<T>>) -> Poll<Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.limit;
        let timer = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(timer.as_mut().poll(cx));
        timer.as_mut().reset(Instant::now() + limit);
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the reader stopped reading")))
    }
}

impl<S: Peer> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        loop {
            ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
            if buffer.filled().len() > before || !this.guest.may_wait() {
                this.silent = None;
                if !this.is_good(buffer.filled().get(before..).unwrap_or_default()) {
                    let why = "a line of a request's head ends without CR";
                    return Poll::Ready(Err(Error::new(ErrorKind::InvalidData, why)));
                }
                return Poll::Ready(Ok(()));
            }
            if this.silent.is_none() {
                if this.written == this.guest.requests() {
                    this.guest.knock();
                } else if this.guest.knows_interim() {
                    // What cannot be written now is written later, by the answer itself.
                    let _ = Pin::new(&mut this.stream).poll_write(cx, KNOCK)?;
                }
            }
            let look = this.silent.get_or_insert_with(|| Box::pin(sleep(LOOK)));
            ready!(look.as_mut().poll(cx));
            look.as_mut().reset(Instant::now() + LOOK);
            if let Some(error) = this.stream.broken() {
                return Poll::Ready(Err(error));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        self.written = self.guest.requests();
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        self.written = self.guest.requests();
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.watch(cx, closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guests::Guests;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[test]
    fn lines_of_a_head_end_with_both() {
        let cases: [(&[&[u8]], bool); 8] = [
            (&[b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"], true),
            (&[b"GET / HTTP/1.1\r", b"\nhost: a\r\n\r", b"\nbody\n\n"], true),
            (&[b"\r\n\r\n\r\nGET / HTTP/1.1\r\n\r\n\n"], true),
            (&[b"\r\n\r\nGET / HTTP/1.1\n\r\n"], false),
            (&[b"GET / HTTP/1.1\nhost: a\n\n"], false),
            (&[b"GET / HTTP/1.1\r\nx: a", b"\n", b"content-length: 5\r\n\r\n"], false),
            (&[b"GET / HTTP/1.1\r\n\n"], false),
            (&[b"\nGET"], false),
        ];
        for (parts, good) in cases {
            let mut head = Head::default();
            assert_eq!(parts.iter().all(|part| head.takes(part)), good, "{parts:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopped_reader_is_given_up_and_a_slow_one_is_not() {
        let (near, mut far) = duplex(8);
        let guest = Guests::new(1).enter([127, 0, 0, 1].into());
        let mut guarded = StallGuard::new(near, Duration::from_millis(200), guest);
        let slow = tokio::spawn(async move {
            let mut byte = [0];
            for _ in 0..16 {
                tokio::time::sleep(Duration::from_millis(25)).await;
                far.read_exact(&mut byte).await.unwrap();
            }
            far // alive, and reading no more
        });
        guarded.write_all(&[7; 24]).await.expect("slow, but never stopped for long");
        let _far = slow.await.unwrap();
        let error = guarded.write_all(&[7; 24]).await.expect_err("stopped");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}

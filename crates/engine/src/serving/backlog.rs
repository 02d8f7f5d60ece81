//! Events on their way from the engine's thread to who asked: never blocking the engine, and bounded
//! however slow the reader is.
//!
//! At the bound the request ends: what waits is still read, then comes
//! [`RequestError::Unread`]. Waiting instead would hold up every other stream, and dropping events
//! would make the answer another one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::request::{Event, RequestError, TokenInfo};

/// An event and the prompt of the request it belongs to, where one reader asked several.
pub type Tagged = (usize, Event);

/// Tells the reader that there is something to take.
pub type Wake = Box<dyn Fn() + Send + Sync>;

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Tagged>,
    bytes: usize,
    /// Takes no more events.
    closed: bool,
}

/// What the reader has not taken yet.
pub struct Backlog {
    waiting: Mutex<Waiting>,
    wake: Wake,
    limit_bytes: usize,
}

impl Backlog {
    /// An empty one that holds that many bytes of text and tokens.
    pub fn new(limit_bytes: usize, wake: Wake) -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::default(), wake, limit_bytes })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event from the engine; false when nobody wants it or it does not fit. Text of the
    /// choice that spoke last joins what is still waiting.
    pub fn put(&self, prompt: usize, event: Event) -> bool {
        let mut waiting = self.waiting();
        if waiting.closed {
            return false;
        }
        let bytes = waiting.bytes + bytes_of(&event);
        if bytes > self.limit_bytes {
            waiting.closed = true;
            let error = RequestError::Unread { limit_bytes: self.limit_bytes };
            waiting.events.push_back((prompt, Event::Failed(error)));
        } else {
            waiting.bytes = bytes;
            join(&mut waiting.events, prompt, event);
        }
        let taken = !waiting.closed;
        drop(waiting);
        (self.wake)();
        taken
    }

    /// The next event; `None`: nothing yet, or nothing any more.
    pub fn take(&self) -> Option<Tagged> {
        let mut waiting = self.waiting();
        let next = waiting.events.pop_front()?;
        waiting.bytes = waiting.bytes.saturating_sub(bytes_of(&next.1));
        Some(next)
    }

    /// Bytes of text and tokens that wait.
    pub fn bytes(&self) -> usize {
        self.waiting().bytes
    }

    /// Forgets a prompt that was refused: its inlet, which is gone, took that for a failure.
    pub fn withdraw(&self, prompt: usize) {
        self.waiting().events.retain(|(p, _)| *p != prompt);
    }

    /// Nobody takes events any more.
    pub fn close(&self) {
        let mut waiting = self.waiting();
        waiting.closed = true;
        waiting.bytes = 0;
        waiting.events.clear();
    }
}

fn join(events: &mut VecDeque<Tagged>, prompt: usize, event: Event) {
    let Event::Piece { choice, piece, tokens } = event else {
        return events.push_back((prompt, event));
    };
    let piece = match events.back_mut() {
        Some((p, Event::Piece { choice: c, piece: before, tokens: earlier }))
            if *p == prompt && *c == choice =>
        {
            match before.join(piece) {
                None => return earlier.extend(tokens),
                Some(piece) => piece,
            }
        }
        _ => piece,
    };
    events.push_back((prompt, Event::Piece { choice, piece, tokens }));
}

/// Memory an event holds, about.
fn bytes_of(event: &Event) -> usize {
    let token = |t: &TokenInfo| {
        let top: usize = t.top.iter().map(|t| t.bytes.len() + 40).sum();
        t.bytes.len() + 64 + top
    };
    match event {
        Event::Piece { piece, tokens, .. } => {
            piece.text().len() + tokens.iter().map(token).sum::<usize>()
        }
        _ => 0,
    }
}

/// The engine's end of a backlog. If it goes before the last event, the request failed.
pub struct Inlet {
    backlog: Arc<Backlog>,
    prompt: usize,
    ended: bool,
}

impl Inlet {
    /// Where the events of that prompt go.
    pub fn new(backlog: Arc<Backlog>, prompt: usize) -> Self {
        Self { backlog, prompt, ended: false }
    }

    /// As [`Backlog::put`].
    pub fn put(&mut self, event: Event) -> bool {
        self.ended |= matches!(event, Event::Finished(_) | Event::Failed(_));
        self.backlog.put(self.prompt, event)
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        if !self.ended {
            // Heard only if somebody still listens: a cancelled request drops its inlet too.
            self.backlog.put(self.prompt, Event::Failed(RequestError::ShutDown));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_output::Piece;

    use super::*;
    use crate::request::StopReason;

    fn text(choice: u32, text: &str) -> Event {
        Event::Piece { choice, piece: Piece::Text(text.into()), tokens: Vec::new() }
    }

    fn backlog(limit_bytes: usize) -> Arc<Backlog> {
        Backlog::new(limit_bytes, Box::new(|| ()))
    }

    #[test]
    fn text_of_one_choice_joins_and_order_stays() {
        let backlog = backlog(100);
        assert!(backlog.put(0, text(0, "a")));
        assert!(backlog.put(0, text(0, "b")));
        assert!(backlog.put(0, text(1, "c")));
        assert!(backlog.put(1, text(1, "d")));
        assert!(backlog.put(1, Event::Done { choice: 1, reason: StopReason::Length }));
        assert!(backlog.put(1, text(1, "e")));
        assert_eq!(backlog.bytes(), 5);
        let taken: Vec<_> = std::iter::from_fn(|| backlog.take()).collect();
        let expect = [
            (0, text(0, "ab")),
            (0, text(1, "c")),
            (1, text(1, "d")),
            (1, Event::Done { choice: 1, reason: StopReason::Length }),
            (1, text(1, "e")),
        ];
        assert_eq!(taken, expect);
        assert_eq!(backlog.bytes(), 0);
    }

    #[test]
    fn what_does_not_fit_ends_the_request() {
        let backlog = backlog(4);
        assert!(backlog.put(0, text(0, "1234")), "at the limit");
        assert!(backlog.take().is_some());
        assert!(backlog.put(0, text(0, "123")));
        assert!(!backlog.put(0, text(0, "45")), "one beyond");
        assert!(!backlog.put(0, text(0, "")), "and nothing after");
        assert_eq!(backlog.take(), Some((0, text(0, "123"))));
        let unread = Event::Failed(RequestError::Unread { limit_bytes: 4 });
        assert_eq!(backlog.take(), Some((0, unread)));
        assert_eq!(backlog.take(), None);
    }

    #[test]
    fn an_inlet_that_goes_early_is_a_failure() {
        let backlog = backlog(100);
        drop(Inlet::new(Arc::clone(&backlog), 3));
        assert_eq!(backlog.take(), Some((3, Event::Failed(RequestError::ShutDown))));
        let mut inlet = Inlet::new(Arc::clone(&backlog), 0);
        assert!(inlet.put(Event::Finished(Default::default())));
        drop(inlet);
        assert_eq!(backlog.take(), Some((0, Event::Finished(Default::default()))));
        assert_eq!(backlog.take(), None);
        backlog.close();
        assert!(!backlog.put(0, text(0, "x")));
    }

    #[test]
    fn the_reader_is_woken() {
        let (wake, woken) = std::sync::mpsc::channel();
        let backlog = Backlog::new(9, Box::new(move || wake.send(()).expect("a reader")));
        backlog.put(0, text(0, "a"));
        assert!(woken.try_recv().is_ok() && woken.try_recv().is_err());
    }
}

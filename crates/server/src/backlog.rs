//! Events on their way from the engine's thread to one connection: never blocking the engine, and
//! bounded however slow the reader is.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokenmill_engine::{Event, RequestError, TokenInfo};
use tokio::sync::Notify;

/// An event and the prompt of the request it belongs to.
pub type Tagged = (usize, Event);

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Tagged>,
    bytes: usize,
    /// Nobody takes events any more.
    closed: bool,
    /// More waits than may.
    overflowed: bool,
}

/// What the reader has not taken yet.
#[derive(Debug)]
pub struct Backlog {
    waiting: Mutex<Waiting>,
    filled: Notify,
    limit_bytes: usize,
}

/// Why there is nothing to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Empty {
    /// Nothing yet.
    Yet,
    /// The reader was too slow; the request is being cancelled.
    Overflowed,
}

impl Backlog {
    /// An empty one that holds that many bytes of text and tokens.
    pub fn new(limit_bytes: usize) -> Arc<Self> {
        let waiting = Mutex::default();
        Arc::new(Self { waiting, filled: Notify::new(), limit_bytes })
    }

    /// Takes an event from the engine; false when nobody wants it or it does not fit. Text of the
    /// choice that spoke last joins what is still waiting.
    pub fn put(&self, prompt: usize, event: Event) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.closed || waiting.overflowed {
            return false;
        }
        waiting.bytes += bytes_of(&event);
        if waiting.bytes > self.limit_bytes {
            waiting.overflowed = true;
        } else {
            join(&mut waiting.events, prompt, event);
        }
        let taken = !waiting.overflowed;
        drop(waiting);
        self.filled.notify_one();
        taken
    }

    /// The next event.
    ///
    /// # Errors
    /// [`Empty`].
    pub fn take(&self) -> Result<Tagged, Empty> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(next) = waiting.events.pop_front() else {
            return Err(if waiting.overflowed { Empty::Overflowed } else { Empty::Yet });
        };
        waiting.bytes = waiting.bytes.saturating_sub(bytes_of(&next.1));
        Ok(next)
    }

    /// Waits until something was put since the last take.
    pub async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Nobody takes events any more.
    pub fn close(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.closed = true;
        waiting.events.clear();
    }
}

fn join(events: &mut VecDeque<Tagged>, prompt: usize, event: Event) {
    let (choice, text, tokens) = match event {
        Event::Text { choice, text, tokens } => (choice, text, tokens),
        other => return events.push_back((prompt, other)),
    };
    match events.back_mut() {
        Some((p, Event::Text { choice: c, text: before, tokens: earlier }))
            if *p == prompt && *c == choice =>
        {
            before.push_str(&text);
            earlier.extend(tokens);
        }
        _ => events.push_back((prompt, Event::Text { choice, text, tokens })),
    }
}

/// Memory an event holds, about.
fn bytes_of(event: &Event) -> usize {
    let token = |t: &TokenInfo| {
        let top: usize = t.top.iter().map(|t| t.bytes.len() + 40).sum();
        t.bytes.len() + 64 + top
    };
    match event {
        Event::Text { text, tokens, .. } => text.len() + tokens.iter().map(token).sum::<usize>(),
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
    use super::*;
    use tokenmill_engine::StopReason;

    fn text(choice: u32, text: &str) -> Event {
        Event::Text { choice, text: text.into(), tokens: Vec::new() }
    }

    #[test]
    fn text_of_one_choice_joins_and_order_stays() {
        let backlog = Backlog::new(100);
        assert!(backlog.put(0, text(0, "a")));
        assert!(backlog.put(0, text(0, "b")));
        assert!(backlog.put(0, text(1, "c")));
        assert!(backlog.put(1, text(1, "d")));
        assert!(backlog.put(1, Event::Done { choice: 1, reason: StopReason::Length }));
        assert!(backlog.put(1, text(1, "e")));
        let taken: Vec<_> = std::iter::from_fn(|| backlog.take().ok()).collect();
        let expect = [
            (0, text(0, "ab")),
            (0, text(1, "c")),
            (1, text(1, "d")),
            (1, Event::Done { choice: 1, reason: StopReason::Length }),
            (1, text(1, "e")),
        ];
        assert_eq!(taken, expect);
        assert_eq!(backlog.take(), Err(Empty::Yet));
    }

    #[test]
    fn what_does_not_fit_ends_the_request() {
        let backlog = Backlog::new(4);
        assert!(backlog.put(0, text(0, "1234")), "at the limit");
        assert!(backlog.take().is_ok());
        assert!(backlog.put(0, text(0, "123")));
        assert!(!backlog.put(0, text(0, "45")), "one beyond");
        assert!(!backlog.put(0, text(0, "")), "and nothing after");
        assert_eq!(backlog.take(), Ok((0, text(0, "123"))));
        assert_eq!(backlog.take(), Err(Empty::Overflowed));
    }

    #[test]
    fn an_inlet_that_goes_early_is_a_failure() {
        let backlog = Backlog::new(100);
        drop(Inlet::new(Arc::clone(&backlog), 3));
        assert_eq!(backlog.take(), Ok((3, Event::Failed(RequestError::ShutDown))));
        let mut inlet = Inlet::new(Arc::clone(&backlog), 0);
        assert!(inlet.put(Event::Finished(Default::default())));
        drop(inlet);
        assert_eq!(backlog.take(), Ok((0, Event::Finished(Default::default()))));
        assert_eq!(backlog.take(), Err(Empty::Yet));
        backlog.close();
        assert!(!backlog.put(0, text(0, "x")));
    }
}

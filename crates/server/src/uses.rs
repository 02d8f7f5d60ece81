//! What holders of keys have in use: requests at once, and those of the last minute.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;

use crate::error::ApiError;
use crate::keys::Key;
use crate::shares::Share;

const MINUTE: Duration = Duration::from_secs(60);

/// One holder's.
#[derive(Debug, Default)]
struct Use {
    at_once: u32,
    /// When the requests of the last minute came; kept only where they are limited.
    came: VecDeque<Instant>,
}

/// Everybody's, by account. What was in use stays so when keys are read again.
#[derive(Debug, Default)]
pub struct Uses(Mutex<HashMap<u64, Use>>);

/// A request of a key's holder, until it is dropped.
#[derive(Debug)]
pub struct Pass {
    uses: Arc<Uses>,
    account: u64,
}

/// A request's place among those being answered, and its holder's.
#[derive(Debug)]
pub struct Place {
    _share: Share,
    _pass: Option<Pass>,
}

impl Place {
    /// One of all, and its holder's where it came with a key.
    pub fn new(share: Share, pass: Option<Pass>) -> Self {
        Self { _share: share, _pass: pass }
    }
}

impl Uses {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Use>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more request of a key's holder.
    ///
    /// # Errors
    /// 429 that names the limit, and says when another may come.
    pub fn enter(self: &Arc<Self>, key: &Key, now: Instant) -> Result<Pass, ApiError> {
        let account = key.account();
        let mut all = self.all();
        let held = all.entry(account).or_default();
        if let Some(most) = key.limits.at_once.filter(|most| held.at_once >= *most) {
            let message = format!("this key may have {most} requests at once, and has them");
            return Err(refused(message, 1));
        }
        if let Some(most) = key.limits.per_minute {
            while held.came.front().is_some_and(|came| now.duration_since(*came) >= MINUTE) {
                held.came.pop_front();
            }
            let over = held.came.len() >= most as usize;
            if let Some(first) = held.came.front().filter(|_| over) {
                let rest = MINUTE.saturating_sub(now.duration_since(*first));
                let seconds = rest.as_secs() as u32 + u32::from(rest.subsec_nanos() > 0);
                let message = format!("this key may send {most} requests a minute, and has");
                return Err(refused(message, seconds.max(1)));
            }
            held.came.push_back(now);
        }
        held.at_once += 1;
        drop(all);
        Ok(Pass { uses: Arc::clone(self), account })
    }
}

fn refused(message: String, retry_after_s: u32) -> ApiError {
    ApiError {
        code: Some("rate_limit_exceeded"),
        retry_after_s: Some(retry_after_s),
        ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut all = self.uses.all();
        if let Some(held) = all.get_mut(&self.account) {
            held.at_once = held.at_once.saturating_sub(1);
            if held.at_once == 0 && held.came.is_empty() {
                all.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{KeyLimits, digest};

    fn key(per_minute: Option<u32>, at_once: Option<u32>) -> Key {
        let limits = KeyLimits { per_minute, at_once, ..KeyLimits::default() };
        Key { name: "ann".into(), digest: digest(b"k"), limits }
    }

    #[test]
    fn at_most_so_many_at_once() {
        let (uses, two, now) = (Arc::new(Uses::default()), key(None, Some(2)), Instant::now());
        let first = uses.enter(&two, now).expect("one");
        let second = uses.enter(&two, now).expect("two");
        let error = uses.enter(&two, now).expect_err("three");
        assert_eq!((error.status.as_u16(), error.retry_after_s), (429, Some(1)));
        assert!(error.message.contains("2 requests at once"), "{}", error.message);
        drop(first);
        let third = uses.enter(&two, now).expect("a place is free");
        drop((second, third));
        assert!(uses.all().is_empty());
    }

    #[test]
    fn at_most_so_many_in_any_minute() {
        let (uses, three, start) = (Arc::new(Uses::default()), key(Some(3), None), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut let_in = Vec::new();
        for second in 0..200 {
            match uses.enter(&three, at(second)) {
                Ok(_) => let_in.push(second),
                Err(error) => {
                    let again = second + u64::from(error.retry_after_s.expect("said"));
                    assert_eq!(again % 60, (let_in.len() as u64) % 3, "{second}");
                }
            }
        }
        assert_eq!(let_in, [0, 1, 2, 60, 61, 62, 120, 121, 122, 180, 181, 182]);
    }
}

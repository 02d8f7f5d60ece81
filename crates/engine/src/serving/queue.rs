//! Requests that have not started, counted by account: all together up to a limit, and none may
//! take the places that others could need.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::request::Refusal;

/// The account of requests that name none.
pub const NOBODY: u64 = 0;

#[derive(Debug, Default)]
struct Waiting {
    all: u32,
    by_account: HashMap<u64, u32>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Queue(Mutex<Waiting>);

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests that wait.
    pub fn len(&self) -> u32 {
        self.waiting().all
    }

    /// Requests that would start before one more of that account. Its own do; of another account
    /// not more than it then has itself, for among accounts the one served least comes first.
    pub fn before(&self, account: u64) -> u32 {
        let waiting = self.waiting();
        let own = waiting.by_account.get(&account).copied().unwrap_or(0);
        let others = waiting.by_account.iter().filter(|(other, _)| **other != account);
        own + others.map(|(_, &theirs)| theirs.min(own + 1)).sum::<u32>()
    }

    /// One more. As many as can `start` at once wait for nobody; of the others there are at most
    /// `limit`, and an account may hold as many places as are left free: alone, half of all.
    ///
    /// # Errors
    /// [`Refusal::QueueFull`].
    pub fn enter(&self, account: u64, limit: u32, start: u32) -> Result<(), Refusal> {
        let mut waiting = self.waiting();
        let own = waiting.by_account.get(&account).copied().unwrap_or(0);
        if waiting.all >= start {
            let all = waiting.all - start;
            let (free, held) = (limit.saturating_sub(all), own.saturating_sub(start));
            if free == 0 {
                return Err(Refusal::QueueFull { waiting: all, limit });
            }
            if account != NOBODY && held >= free {
                return Err(Refusal::QueueFull { waiting: held, limit: free });
            }
        }
        waiting.all += 1;
        waiting.by_account.insert(account, own + 1);
        Ok(())
    }

    /// One has started or ended.
    pub fn leave(&self, account: u64) {
        let mut waiting = self.waiting();
        waiting.all = waiting.all.saturating_sub(1);
        match waiting.by_account.get_mut(&account) {
            Some(own) if *own > 1 => *own -= 1,
            _ => {
                waiting.by_account.remove(&account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_waits_for_its_own_and_as_many_of_each_other() {
        const GREEDY: u64 = 99;
        /// Requests that wait by account, who asks, and how many start before it.
        type Case<'a> = (&'a [(u64, u32)], u64, u32);
        let crowd = |each: u32| (1..=60).map(|account| (account, each)).collect::<Vec<_>>();
        let cases: [Case<'_>; 10] = [
            (&[], 1, 0),
            (&[(1, 5)], 1, 5),
            (&[(GREEDY, 224)], 1, 1),
            (&[(GREEDY, 224)], GREEDY, 224),
            (&[(GREEDY, 224), (1, 3)], 1, 3 + 4),
            (&[(GREEDY, 224), (1, 3)], GREEDY, 224 + 3),
            (&[(NOBODY, 50)], 1, 1),
            (&[(1, 50)], NOBODY, 1),
            (&crowd(3), GREEDY, 60),
            (&crowd(3), 1, 3 + 59 * 3),
        ];
        for (waiting, account, before) in cases {
            let queue = Queue::default();
            for &(account, n) in waiting {
                (0..n).for_each(|_| queue.enter(account, u32::MAX, 0).unwrap());
            }
            assert_eq!(queue.before(account), before, "{account} among {waiting:?}");
        }
    }

    #[test]
    fn an_account_leaves_places_to_others() {
        let queue = Queue::default();
        let fill = |account| (0..).take_while(|_| queue.enter(account, 16, 0).is_ok()).count();
        assert_eq!(fill(1), 8, "half");
        assert_eq!(fill(2), 4, "half of the rest");
        assert_eq!(queue.enter(1, 16, 0), Err(Refusal::QueueFull { waiting: 8, limit: 4 }));
        assert_eq!(fill(NOBODY), 4, "all that is left");
        assert_eq!(queue.enter(3, 16, 0), Err(Refusal::QueueFull { waiting: 16, limit: 16 }));
        for (account, n) in [(1, 8), (2, 4), (NOBODY, 4)] {
            (0..n).for_each(|_| queue.leave(account));
        }
        assert_eq!(queue.len(), 0);
        assert!(queue.waiting().by_account.is_empty());
    }
    #[test]
    fn who_can_start_waits_for_nobody() {
        let queue = Queue::default();
        let fill = |account| (0..).take_while(|_| queue.enter(account, 1, 8).is_ok()).count();
        assert_eq!(fill(NOBODY), 9, "eight that start, and one that waits");
        assert_eq!(queue.enter(1, 1, 8), Err(Refusal::QueueFull { waiting: 1, limit: 1 }));
        (0..9).for_each(|_| queue.leave(NOBODY));
        assert_eq!(fill(1), 9);
    }
}

//! What is limited for all and shared among parties: none may hold more of it than is left free, so
//! that one alone has half of it, two a third each, and something is always left for another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Who shares: the holder of a key where several are set, else everybody at an address.
pub type Party = u64;

#[derive(Debug, Default)]
struct Held {
    all: usize,
    by_party: HashMap<Party, usize>,
}

/// See the module.
#[derive(Debug)]
pub struct Shares {
    limit: usize,
    held: Mutex<Held>,
    /// Told whenever some is given back.
    freed: Notify,
}

/// What a party holds; given back when dropped.
#[derive(Debug)]
pub struct Share {
    of: Arc<Shares>,
    party: Party,
    held: usize,
}

impl Shares {
    /// That much for all.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, held: Mutex::default(), freed: Notify::new() })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much all hold.
    pub fn taken(&self) -> usize {
        self.held().all
    }

    /// Nothing yet, for that party.
    pub fn share(self: &Arc<Self>, party: Party) -> Share {
        Share { of: Arc::clone(self), party, held: 0 }
    }

    /// Some for a party, if there is so much for it.
    pub fn take(self: &Arc<Self>, party: Party, some: usize) -> Option<Share> {
        let mut share = self.share(party);
        share.grow(some).then_some(share)
    }

    /// Waits until nobody holds any.
    pub async fn empty(&self) {
        loop {
            let freed = self.freed.notified();
            if self.taken() == 0 {
                return;
            }
            freed.await;
        }
    }
}

impl Share {
    /// Some more, if there is so much for its party.
    pub fn grow(&mut self, some: usize) -> bool {
        let mut held = self.of.held();
        let free = self.of.limit.saturating_sub(held.all);
        let own = held.by_party.get(&self.party).copied().unwrap_or(0);
        if own.saturating_add(some) > free {
            return false;
        }
        held.all += some;
        held.by_party.insert(self.party, own + some);
        self.held += some;
        true
    }

    /// As [`grow`](Self::grow), waiting for what others give back.
    pub async fn wait(&mut self, some: usize) {
        let of = Arc::clone(&self.of);
        loop {
            let freed = of.freed.notified();
            if self.grow(some) {
                return;
            }
            freed.await;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.of.held();
        held.all -= self.held;
        let left = held.by_party.get(&self.party).map_or(0, |own| own - self.held);
        match left {
            0 => held.by_party.remove(&self.party),
            left => held.by_party.insert(self.party, left),
        };
        drop(held);
        self.of.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_party_holds_no_more_than_is_left() {
        let shares = Shares::new(16);
        let fill = |party| std::iter::from_fn(|| shares.take(party, 1)).collect::<Vec<_>>();
        let (one, two, three) = (fill(1), fill(2), fill(3));
        assert_eq!([one.len(), two.len(), three.len()], [8, 4, 2], "and two are left");
        drop(one);
        assert_eq!(shares.taken(), 6);
        assert_eq!(fill(2).len(), 3, "seven of its own, seven free");
        drop((two, three));
        assert_eq!(shares.taken(), 0);
        assert!(shares.held().by_party.is_empty());
        assert!(shares.take(1, 17).is_none() && shares.take(1, 9).is_some());
    }

    #[tokio::test]
    async fn what_is_given_back_is_heard_of() {
        let shares = Shares::new(4);
        let first = shares.take(1, 2).expect("half");
        let mut second = shares.share(1);
        assert!(!second.grow(2));
        let wait = async {
            second.wait(2).await;
            second
        };
        let give = async move { drop(first) };
        let (second, ()) = tokio::join!(wait, give);
        assert_eq!(shares.taken(), 2);
        let end = async move { drop(second) };
        tokio::join!(shares.empty(), end);
    }
}

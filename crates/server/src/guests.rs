//! The connections there are. Where there is room for no more, one goes that keeps the server
//! waiting for its request: the longest of the address with most of them. Nobody goes whose
//! request is there.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::Request;
use tokio::sync::Notify;

use crate::shares::Party;

/// A body of which nothing has come for so long, or that came slower than [`LEAST_SPEED`] for so long,
/// may be given up.
const SLOW_AFTER: Duration = Duration::from_secs(4);
/// Bytes a second.
const LEAST_SPEED: f64 = 65536.0;
/// Connections sent away together, and no more than half of an address's: one comes after the other
/// where many do.
const AT_ONCE: usize = 32;
/// For one that is sent away to hear why.
const LAST_WORD: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Entry {
    party: Party,
    /// Since when its request is waited for; `None` while it is answered.
    waiting: Option<Instant>,
    /// A body that is not whole.
    body: Option<Coming>,
    /// Told to go.
    going: bool,
    go: Arc<Notify>,
}

#[derive(Debug, Clone, Copy)]
struct Coming {
    bytes: usize,
    last: Instant,
    /// Waits for memory: that nothing comes is not its fault.
    blocked: bool,
    /// When its speed began to count, and the bytes that were there: when it last waited for memory,
    /// or at its beginning.
    since: (Instant, usize),
}

impl Entry {
    /// Whether its body keeps others waiting.
    fn is_slow(&self) -> bool {
        let (Some(_), Some(body)) = (self.idle(), self.body) else { return false };
        let (age, pause) = (body.since.0.elapsed(), body.last.elapsed());
        let speed = (body.bytes - body.since.1) as f64 / age.as_secs_f64();
        !body.blocked && (pause > SLOW_AFTER || age > SLOW_AFTER && speed < LEAST_SPEED)
    }

    /// So much of a body has come by now.
    fn sent(&mut self, bytes: usize, blocked: bool) {
        let last = Instant::now();
        let since = match self.body {
            Some(before) if before.blocked => (last, bytes),
            Some(before) => before.since,
            None => (self.waiting.unwrap_or(last), 0),
        };
        self.body = Some(Coming { bytes, last, blocked, since });
    }

    /// Since when it keeps the server waiting, if it may be sent away for that.
    fn idle(&self) -> Option<Instant> {
        self.waiting.filter(|_| !self.going)
    }

    fn go(&mut self) {
        self.going = true;
        self.go.notify_one();
    }
}

#[derive(Debug, Default)]
struct List {
    last: u64,
    all: HashMap<u64, Entry>,
}

/// See the module.
#[derive(Debug)]
pub struct Guests {
    limit: usize,
    list: Mutex<List>,
    /// Told whenever one has left, or has been answered.
    moved: Notify,
}

/// One connection; gone when dropped.
#[derive(Debug)]
pub struct Guest {
    guests: Arc<Guests>,
    id: u64,
    party: Party,
    go: Arc<Notify>,
    /// Requests so far.
    requests: AtomicU64,
    /// Whether one is being read or answered.
    asking: AtomicBool,
    /// Whether some of the latest one's body may not have been read.
    unread: AtomicBool,
    /// Whether the latest one's protocol has interim responses (HTTP/1.1).
    interim: AtomicBool,
    /// It has said that it sends no more: whoever streams to it may try whether it still reads.
    silent: Notify,
}

impl Guests {
    /// At most so many.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, list: Mutex::default(), moved: Notify::new() })
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Open connections.
    pub fn count(&self) -> usize {
        self.list().all.len()
    }

    /// Waits until there is room for one more, and sends some away where there is none.
    pub async fn room(&self) {
        loop {
            let moved = self.moved.notified();
            if self.list().all.len() < self.limit {
                return;
            }
            self.send_some_away();
            moved.await;
        }
    }

    /// Sends away who have kept the server waiting longest, of the party with most who do, unless
    /// some are on their way already.
    pub fn send_some_away(&self) {
        let mut list = self.list();
        if list.all.values().any(|entry| entry.going) {
            return;
        }
        let mut idle: HashMap<Party, Vec<(Instant, u64)>> = HashMap::new();
        for (id, entry) in &list.all {
            if let Some(since) = entry.idle() {
                idle.entry(entry.party).or_default().push((since, *id));
            }
        }
        let Some(mut most) = idle.into_values().max_by_key(Vec::len) else { return };
        most.sort_unstable();
        let leave = most.len().div_ceil(2).min(AT_ONCE);
        for (_, id) in most.into_iter().take(leave) {
            if let Some(entry) = list.all.get_mut(&id) {
                entry.go();
            }
        }
    }

    /// Gives up the bodies of a party that come too slowly.
    pub fn give_up_slow_bodies(&self, party: Party) {
        let mut list = self.list();
        let slow = list.all.values_mut().filter(|entry| entry.party == party && entry.is_slow());
        slow.for_each(Entry::go);
    }

    /// One more, from that address.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Arc<Guest> {
        let (go, party) = (Arc::<Notify>::default(), party_of(address));
        let mut list = self.list();
        list.last += 1;
        let id = list.last;
        let waiting = Some(Instant::now());
        let entry = Entry { party, waiting, body: None, going: false, go: Arc::clone(&go) };
        list.all.insert(id, entry);
        let (requests, asking, unread, interim, silent) = Default::default();
        let guests = Arc::clone(self);
        Arc::new(Guest { guests, id, party, go, requests, asking, unread, interim, silent })
    }
}

impl Guest {
    /// Who sent a request, where it came over a connection.
    pub fn of<B>(request: &Request<B>) -> Option<Arc<Self>> {
        request.extensions().get::<Arc<Self>>().cloned()
    }

    /// A request begins, of a protocol with or without interim responses.
    pub fn asks(&self, interim: bool) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.interim.store(interim, Ordering::Relaxed);
        self.asking.store(true, Ordering::Relaxed);
        self.unread.store(true, Ordering::Relaxed);
    }

    /// All of its latest request has been read.
    pub fn is_read(&self) {
        self.unread.store(false, Ordering::Relaxed);
    }

    /// Whether what comes next is no rest of its latest request.
    pub fn was_read(&self) -> bool {
        !self.unread.load(Ordering::Relaxed)
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether it has asked and not been answered.
    pub fn may_wait(&self) -> bool {
        self.asking.load(Ordering::Relaxed)
    }

    /// Whether it may be sent an interim response.
    pub fn knows_interim(&self) -> bool {
        self.interim.load(Ordering::Relaxed)
    }

    /// Has whoever streams to it send something.
    pub fn knock(&self) {
        self.silent.notify_one();
    }

    /// Ends when something should be sent to it.
    pub async fn knocked(&self) {
        self.silent.notified().await;
    }

    /// Everybody at its address.
    pub fn party(&self) -> Party {
        self.party
    }

    /// Ends when it must go.
    pub async fn sent_away(&self) {
        self.go.notified().await;
        self.go.notify_one(); // whoever asks again hears it too
    }

    /// How long one that was sent away may stay: to its answer's end if its request came all the same,
    /// and if a part of a body has come, to hear what became of it.
    pub fn parting(&self) -> Duration {
        let list = self.guests.list();
        let Some(entry) = list.all.get(&self.id) else { return Duration::ZERO };
        match (entry.waiting, entry.body) {
            (None, _) => Duration::MAX,
            (Some(_), Some(_)) => LAST_WORD,
            (Some(_), None) => Duration::ZERO,
        }
    }

    fn change(&self, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.guests.list().all.get_mut(&self.id) {
            change(entry);
        }
    }

    /// So much of a body has come; more is read when there is memory for it, if it is `blocked`.
    pub fn sent(&self, bytes: usize, blocked: bool) {
        self.change(|entry| entry.sent(bytes, blocked));
    }

    /// Its request is there: nobody waits for it any more, and it need not go if it was to.
    pub fn is_whole(&self) {
        self.change(|entry| (entry.waiting, entry.body, entry.going) = (None, None, false));
    }

    /// It has been answered; the next request is waited for.
    pub fn is_answered(&self) {
        self.asking.store(false, Ordering::Relaxed);
        self.change(|entry| entry.waiting = Some(Instant::now()));
        self.guests.moved.notify_waiters();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.guests.list().all.remove(&self.id);
        self.guests.moved.notify_waiters();
    }
}

/// An address; of the long ones all that one subscriber has.
fn party_of(address: IpAddr) -> Party {
    let mut hasher = DefaultHasher::new();
    match address.to_canonical() {
        IpAddr::V4(address) => address.octets().hash(&mut hasher),
        IpAddr::V6(address) => address.segments()[..4].hash(&mut hasher),
    }
    hasher.finish().max(tokenmill_engine::NOBODY + 1)
}

/// The party of a request that shows no key of its own.
pub fn party<B>(request: &Request<B>) -> Party {
    request.extensions().get::<Arc<Guest>>().map_or(0, |guest| guest.party)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn goes(guests: &Guests, guest: &Guest) -> bool {
        guests.list().all[&guest.id].going
    }

    #[test]
    fn who_waits_longest_goes_of_the_address_with_most() {
        let guests = Guests::new(4);
        let lone = guests.enter(address(1));
        let many: Vec<_> = (0..3).map(|_| guests.enter(address(2))).collect();
        many[0].is_whole();
        guests.send_some_away();
        let going = |guests: &Guests| many.iter().map(|g| goes(guests, g)).collect::<Vec<_>>();
        assert_eq!(going(&guests), [false, true, false], "the first is being answered");
        guests.send_some_away();
        assert_eq!(going(&guests), [false, true, false], "one is on his way");
        assert!(!goes(&guests, &lone));
        many[1].sent(9, false);
        assert_eq!(many[1].parting(), LAST_WORD);
        many[1].is_whole();
        assert!(!goes(&guests, &many[1]), "its request came after all");
        assert_eq!((many[1].parting(), lone.parting()), (Duration::MAX, Duration::ZERO));
    }

    #[tokio::test]
    async fn there_is_room_when_one_has_gone() {
        let guests = Guests::new(1);
        let first = guests.enter(address(1));
        let stays = async {
            first.sent_away().await;
            first.sent_away().await;
            drop(first);
        };
        tokio::join!(guests.room(), stays);
    }

    #[test]
    fn waiting_for_memory_makes_no_body_slow() {
        let guests = Guests::new(4);
        let guest = guests.enter(address(1));
        let before =
            Instant::now().checked_sub(SLOW_AFTER * 3).expect("a machine that runs so long");
        guest.change(|entry| entry.waiting = Some(before));
        let slow = || guests.list().all[&guest.id].is_slow();
        guest.sent(9, false);
        assert!(slow(), "nine bytes in so long");
        guest.sent(LEAST_SPEED as usize, true);
        assert!(!slow(), "it cannot come now");
        guest.sent(LEAST_SPEED as usize + 9, false);
        assert!(!slow(), "it has only begun to come again");
    }

    #[test]
    fn addresses_are_parties() {
        let party = |text: &str| party_of(text.parse().unwrap());
        assert_ne!(party("10.0.0.1"), party("10.0.0.2"));
        assert_eq!(party("10.0.0.1"), party("::ffff:10.0.0.1"));
        assert_eq!(party("fd00:1:2:3::1"), party("fd00:1:2:3:4:5:6:7"));
        assert_ne!(party("fd00:1:2:3::1"), party("fd00:1:2:4::1"));
    }
}

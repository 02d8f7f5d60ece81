//! What is in a model's prompt cache, told to routers: vLLM's events in MessagePack over ZeroMQ. A
//! publisher sends each batch once, `[topic, number, batch]`; who missed some asks the replay socket for
//! all from a number on.
//!
//! Form: `vllm/distributed/kv_events.py`, as arrays that begin with the event's name, which is what
//! Dynamo's and llm-d's listeners read.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use futures_util::StreamExt;
use serde::Serialize;
use tokenmill_engine::{CacheFeed, CacheNews, Change, Changes, Medium};
use tokenmill_ir::TokenId;
use tokio::sync::Notify;
use zeromq::{
    PubSocket, RouterSocket, Socket, SocketEvent, SocketRecv, SocketSend, ZmqError, ZmqMessage,
};

use crate::config::ServeError;
use crate::residents::Residents;

/// Changes in one batch.
const BATCH: usize = 1024;
/// Batches that can be asked for again, and their bytes.
const KEPT: usize = 10_000;
const KEPT_BYTES: usize = 64 << 20;
/// How long after the last one connected all is told anew: time for its subscription to arrive.
const SETTLING: Duration = Duration::from_millis(500);
/// How long one who asked for batches may take to read them.
const PATIENCE: Duration = Duration::from_secs(5);
/// Ends what was asked for again: -1 as vLLM writes it.
const END: [u8; 8] = [0xff; 8];

/// Where the contents of the prompt cache are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEvents {
    /// The publisher's address; port 0: any free one.
    pub bind: SocketAddr,
    /// That of who sends missed batches again.
    pub replay: Option<SocketAddr>,
    /// The first part of every message.
    pub topic: String,
}

/// The sockets of a set-up, bound.
pub struct Sockets {
    events: TcpListener,
    replay: Option<TcpListener>,
    topic: String,
}

impl Sockets {
    /// Binds them.
    ///
    /// # Errors
    /// [`ServeError::Bind`].
    pub fn bind(asked: &KvEvents) -> Result<Self, ServeError> {
        let listen = |bind: SocketAddr| {
            TcpListener::bind(bind).map_err(|source| ServeError::Bind { bind, source })
        };
        if let Some(bind) = [Some(asked.bind), asked.replay]
            .into_iter()
            .flatten()
            .find(|bind| !bind.ip().is_loopback())
        {
            tracing::warn!("{bind} tells whoever reaches it the tokens of cached prompts");
        }
        let events = listen(asked.bind)?;
        let replay = asked.replay.map(listen).transpose()?;
        Ok(Self { events, replay, topic: asked.topic.clone() })
    }
}

/// Where a server's models tell their cache, and what wakes who takes it.
pub struct Source {
    /// What is to be told.
    pub feed: Arc<CacheFeed>,
    woken: Arc<Notify>,
}

impl Source {
    /// An empty one.
    pub fn new() -> Self {
        let woken = Arc::<Notify>::default();
        let wake = Arc::clone(&woken);
        Self { feed: Arc::new(CacheFeed::new(Box::new(move || wake.notify_one()))), woken }
    }
}

/// Tells what comes from a source, until it is dropped.
///
/// # Errors
/// What the sockets say.
pub async fn publish(
    sockets: Sockets,
    source: &Source,
    residents: Arc<Residents>,
) -> Result<(), ZmqError> {
    let _closed = Closed(&source.feed);
    let (mut socket, topic) = (PubSocket::new(), Bytes::from(sockets.topic));
    let mut peers = socket.monitor();
    let greeting = async {
        // (What is on disk was told when the server started; who comes later would never hear of it.)
        while let Some(event) = peers.next().await {
            let mut has_come = matches!(event, SocketEvent::Accepted(..));
            while let Ok(Some(event)) = tokio::time::timeout(SETTLING, peers.next()).await {
                has_come |= matches!(event, SocketEvent::Accepted(..));
            }
            if has_come {
                residents.tell_caches();
            }
        }
        std::future::pending().await
    };
    socket.bind_listener(sockets.events).await?;
    let past = Arc::<Past>::default();
    let answering = async {
        match sockets.replay {
            Some(listener) => answer(listener, Arc::clone(&past), &residents).await,
            None => std::future::pending().await,
        }
    };
    let telling = async {
        loop {
            source.woken.notified().await;
            for payload in source.feed.take().iter().flat_map(batches) {
                let number = past.keep(payload.clone());
                let message =
                    [topic.clone(), Bytes::copy_from_slice(&number.to_be_bytes()), payload];
                // (Who reads too slowly misses some, and no step waits for anybody.)
                if let Ok(message) = ZmqMessage::try_from(Vec::from(message)) {
                    socket.send(message).await?;
                }
            }
        }
    };
    tokio::select! {
        ended = telling => ended,
        ended = answering => ended,
        ended = greeting => ended,
    }
}

/// Nobody takes what is put into a feed any more.
struct Closed<'a>(&'a CacheFeed);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Batches that were sent.
#[derive(Default)]
struct Past(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// Number of the next one.
    next: u64,
    last: VecDeque<Bytes>,
    bytes: usize,
}

impl Past {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a batch; its number.
    fn keep(&self, batch: Bytes) -> u64 {
        let mut kept = self.lock();
        kept.bytes += batch.len();
        kept.last.push_back(batch);
        while kept.last.len() > KEPT || (kept.bytes > KEPT_BYTES && kept.last.len() > 1) {
            let gone = kept.last.pop_front().map_or(0, |batch| batch.len());
            kept.bytes -= gone;
        }
        kept.next += 1;
        kept.next - 1
    }

    /// Those from a number on; false: some of them are not kept any more.
    fn from(&self, number: u64) -> (Vec<(u64, Bytes)>, bool) {
        let kept = self.lock();
        let first = kept.next - kept.last.len() as u64;
        let all = (first..).zip(kept.last.iter().cloned());
        (all.filter(|(n, _)| *n >= number).collect(), number >= first)
    }
}

/// Sends batches again to who asks: `[who, "", number]` is answered by `[who, "", number, batch]` for each,
/// and an end. Where some of them are forgotten, all that is cached is published anew.
async fn answer(
    listener: TcpListener,
    past: Arc<Past>,
    residents: &Residents,
) -> Result<(), ZmqError> {
    let mut socket = RouterSocket::new();
    socket.bind_listener(listener).await?;
    loop {
        let asked = socket.recv().await?.into_vec();
        let (Some(who), Some(number)) = (asked.first(), asked.last()) else { continue };
        let Ok(number) = <[u8; 8]>::try_from(&number[..]) else { continue };
        let (batches, is_whole) = past.from(u64::from_be_bytes(number));
        if !is_whole {
            residents.tell_caches();
        }
        let ends = std::iter::once((END, Bytes::new()));
        let all = batches.into_iter().map(|(n, batch)| (n.to_be_bytes(), batch)).chain(ends);
        let send = async {
            for (number, batch) in all {
                let parts = [who.clone(), Bytes::new(), Bytes::copy_from_slice(&number), batch];
                let Ok(message) = ZmqMessage::try_from(Vec::from(parts)) else { return };
                if socket.send(message).await.is_err() {
                    return; // he is gone
                }
            }
        };
        let _ = tokio::time::timeout(PATIENCE, send).await; // he asks again
    }
}

// ---- the form ------------------------------------------------------------------------------

/// An event, as vLLM has it.
#[derive(Serialize)]
#[serde(untagged)]
enum Event<'a> {
    /// Name, blocks, the block before them, their tokens, tokens of one, adapter, medium.
    Stored(&'static str, Vec<u64>, Option<u64>, &'a [TokenId], usize, Option<u64>, &'static str),
    /// Name, blocks, medium.
    Removed(&'static str, Vec<u64>, &'static str),
    /// Name.
    Cleared([&'static str; 1]),
}

/// What vLLM and Dynamo call it.
fn name_of(medium: Medium) -> &'static str {
    match medium {
        Medium::Memory => "GPU",
        Medium::Disk => "DISK",
    }
}

/// News as batches.
fn batches(news: &CacheNews) -> Vec<Bytes> {
    match news {
        CacheNews::Anew => vec![batch(&[Event::Cleared(["AllBlocksCleared"])])],
        CacheNews::Changed(medium, changes) => {
            let Changes { list, tokens } = changes;
            let stored = |list: &[Change]| {
                list.iter().filter(|change| matches!(change, Change::Stored { .. })).count()
            };
            let block_tokens = tokens.len() / stored(list).max(1);
            let mut rest = &tokens[..];
            let mut one = |list: &[Change]| {
                let (own, later) = rest.split_at(stored(list) * block_tokens);
                rest = later;
                batch(&events(list, own, block_tokens, name_of(*medium)))
            };
            list.chunks(BATCH).map(&mut one).collect()
        }
    }
}

/// Changes as events: blocks that follow each other are one.
fn events<'a>(
    list: &[Change],
    tokens: &'a [TokenId],
    block_tokens: usize,
    medium: &'static str,
) -> Vec<Event<'a>> {
    let (mut all, mut rest): (Vec<Event<'a>>, _) = (Vec::new(), tokens);
    for change in list {
        match (*change, all.last_mut()) {
            (Change::Stored { id, parent }, last) => {
                let (own, later) = rest.split_at(block_tokens);
                let begin = tokens.len() - rest.len();
                rest = later;
                match last {
                    Some(Event::Stored(_, ids, _, text, ..)) if ids.last().copied() == parent => {
                        let first = begin - text.len();
                        (*text) = &tokens[first..begin + block_tokens];
                        ids.push(id);
                    }
                    _ => all.push(Event::Stored(
                        "BlockStored",
                        vec![id],
                        parent,
                        own,
                        block_tokens,
                        None,
                        medium,
                    )),
                }
            }
            (Change::Removed { id }, Some(Event::Removed(_, ids, _))) => ids.push(id),
            (Change::Removed { id }, _) => {
                all.push(Event::Removed("BlockRemoved", vec![id], medium));
            }
        }
    }
    all
}

fn batch(events: &[Event<'_>]) -> Bytes {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64());
    // (Numbers, names and lists are always written.)
    Bytes::from(rmp_serde::to_vec(&(now_s, events, 0)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch as its reader has it.
    fn read(bytes: &[u8]) -> serde_json::Value {
        let whole: serde_json::Value = rmp_serde::from_slice(bytes).expect("MessagePack");
        whole[1].clone()
    }

    #[test]
    fn blocks_that_follow_each_other_are_one_event() {
        let stored = |id, parent| Change::Stored { id, parent };
        let list = vec![
            stored(u64::MAX, None),
            stored(2, Some(u64::MAX)),
            stored(3, Some(u64::MAX)),
            Change::Removed { id: 3 },
            Change::Removed { id: 2 },
            stored(4, Some(u64::MAX)),
        ];
        let changes = Changes { list, tokens: (0..8).collect() };
        let told = batches(&CacheNews::Changed(Medium::Memory, changes));
        let [told] = &told[..] else { panic!("{} batches", told.len()) };
        let expect = serde_json::json!([
            ["BlockStored", [u64::MAX, 2], null, [0, 1, 2, 3], 2, null, "GPU"],
            ["BlockStored", [3], u64::MAX, [4, 5], 2, null, "GPU"],
            ["BlockRemoved", [3, 2], "GPU"],
            ["BlockStored", [4], u64::MAX, [6, 7], 2, null, "GPU"],
        ]);
        assert_eq!(read(told), expect);
        let anew = batches(&CacheNews::Anew);
        assert_eq!(read(&anew[0]), serde_json::json!([["AllBlocksCleared"]]));
    }

    #[test]
    fn many_changes_are_several_batches() {
        let many = BATCH as u64 + 3;
        let change = |id: u64| match id % 2 {
            0 => Change::Stored { id, parent: None },
            _ => Change::Removed { id },
        };
        let list: Vec<Change> = (0..many).map(change).collect();
        let tokens: Vec<TokenId> =
            (0..many as u32).step_by(2).flat_map(|id| [id, id, id]).collect();
        let told = batches(&CacheNews::Changed(Medium::Disk, Changes { list, tokens }));
        assert_eq!(told.len(), 2);
        let events = told.iter().flat_map(|batch| read(batch).as_array().cloned().expect("a list"));
        for (id, event) in events.enumerate() {
            assert_eq!(event[1], serde_json::json!([id]));
            assert_eq!(event.as_array().and_then(|all| all.last()), Some(&"DISK".into()));
            if id % 2 == 0 {
                assert_eq!(event[3], serde_json::json!([id, id, id]));
            }
        }
    }

    #[test]
    fn what_is_not_kept_any_more_is_said() {
        let past = Past::default();
        assert_eq!(past.from(0), (Vec::new(), true));
        for n in 0..KEPT as u64 + 2 {
            assert_eq!(past.keep(Bytes::copy_from_slice(&n.to_be_bytes())), n);
        }
        assert_eq!((past.from(2).0.len(), past.from(2).1, past.from(1).1), (KEPT, true, false));
        let (last, is_whole) = past.from(KEPT as u64 + 1);
        assert_eq!((last.len(), last[0].0, is_whole), (1, KEPT as u64 + 1, true));
        let big = Bytes::from(vec![0; KEPT_BYTES]);
        past.keep(big);
        assert_eq!(past.from(0).0.len(), 1, "its bytes are bounded too");
    }
}

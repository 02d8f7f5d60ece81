//! Where work that computes for long is done, away from the connections: few jobs at once, and of
//! those that wait the one first whose party had least done. Long jobs leave places to short ones.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::error::ApiError;
use crate::shares::Party;

/// Jobs over bodies up to this length are short, bytes.
const SHORT_BYTES: usize = 64 << 10;

/// A bounded number of places for short jobs, and half as many for long ones.
#[derive(Debug)]
pub struct Workshop {
    short: Arc<Turns>,
    long: Arc<Turns>,
}

/// Whether a client still waits for what a job does.
pub type Wanted<'a> = &'a dyn Fn() -> bool;

impl Workshop {
    /// One with that many places, at least one of each kind.
    pub fn new(places: usize) -> Self {
        Self { short: Turns::new(places.max(1)), long: Turns::new((places / 2).max(1)) }
    }

    /// Does a job for a party over so many bytes when a place is free. A client that goes away while
    /// it waits takes no place; one that goes away later is told of by [`Wanted`].
    ///
    /// # Errors
    /// The job's own, or 500 when it panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        party: Party,
        bytes: usize,
        job: impl FnOnce(Wanted<'_>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turns = if bytes > SHORT_BYTES { &self.long } else { &self.short };
        let turn = turns.wait(party, bytes as u64).await;
        let waits = Waits::default();
        let gone = Arc::clone(&waits.gone);
        let work = move || {
            let _turn = turn;
            job(&|| !gone.load(Ordering::Relaxed))
        };
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| {
            tracing::error!(%panic, "a bug while a request was prepared");
            Err(ApiError::internal())
        })
    }
}

/// Held by who waits for a job.
#[derive(Default)]
struct Waits {
    gone: Arc<AtomicBool>,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}

/// Places taken in turns.
#[derive(Debug)]
struct Turns(Mutex<Queue>);

#[derive(Debug)]
struct Queue {
    free: usize,
    waiting: Vec<Waiting>,
    arrivals: u64,
    /// Work done for each party since the queue was empty last.
    done: HashMap<Party, u64>,
}

#[derive(Debug)]
struct Waiting {
    party: Party,
    work: u64,
    arrival: u64,
    go: oneshot::Sender<Turn>,
}

/// A place; free again when dropped.
#[derive(Debug)]
struct Turn(Option<Arc<Turns>>);

impl Turns {
    fn new(free: usize) -> Arc<Self> {
        let (waiting, done) = (Vec::new(), HashMap::new());
        Arc::new(Self(Mutex::new(Queue { free, waiting, arrivals: 0, done })))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn wait(self: &Arc<Self>, party: Party, work: u64) -> Turn {
        let (go, turn) = oneshot::channel();
        {
            let mut queue = self.queue();
            queue.arrivals += 1;
            let arrival = queue.arrivals;
            queue.waiting.push(Waiting { party, work, arrival, go });
        }
        self.next();
        // The sender waits in the queue until it is used.
        turn.await.unwrap_or(Turn(None))
    }

    /// Gives free places to who waits.
    fn next(self: &Arc<Self>) {
        let mut queue = self.queue();
        while queue.free > 0 {
            queue.waiting.retain(|waiting| !waiting.go.is_closed());
            let done = |party| queue.done.get(party).copied().unwrap_or(0);
            let first = queue.waiting.iter().enumerate();
            let first = first.min_by_key(|(_, w)| (done(&w.party), w.arrival)).map(|(at, _)| at);
            let Some(at) = first else {
                queue.done.clear();
                return;
            };
            let Waiting { party, work, go, .. } = queue.waiting.swap_remove(at);
            *queue.done.entry(party).or_default() += work.max(1);
            queue.free -= 1;
            if let Err(mut turn) = go.send(Turn(Some(Arc::clone(self)))) {
                turn.0 = None; // who waited has just gone
                queue.free += 1;
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = self.0.take() {
            turns.queue().free += 1;
            turns.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_that_panics_costs_its_request_only() {
        let workshop = Workshop::new(1);
        let broken: Result<(), ApiError> = workshop.run(1, 0, |_| panic!("secret")).await;
        let error = broken.expect_err("failed");
        assert_eq!(error, ApiError::internal());
        assert_eq!(workshop.run(1, 0, |_| Ok(7)).await, Ok(7), "its place is free again");
    }

    #[tokio::test]
    async fn the_party_with_least_done_comes_first() {
        let turns = Turns::new(1);
        let first = turns.wait(1, 10).await;
        let order = Arc::<Mutex<Vec<Party>>>::default();
        let waits = |party, work| {
            let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
            tokio::spawn(async move {
                let turn = turns.wait(party, work).await;
                order.lock().unwrap().push(party);
                drop(turn);
            })
        };
        let mut jobs = Vec::new();
        for (party, work) in [(1, 10), (1, 10), (2, 15), (2, 5), (3, 1)] {
            jobs.push(waits(party, work));
            tokio::task::yield_now().await;
        }
        let gone = waits(9, 1);
        tokio::task::yield_now().await;
        gone.abort();
        tokio::task::yield_now().await;
        drop(first);
        for job in jobs {
            job.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [2, 3, 1, 2, 1]);
    }

    #[tokio::test]
    async fn a_job_learns_that_its_client_has_gone() {
        let workshop = Workshop::new(1);
        let (began, begun) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let job = workshop.run(1, 0, move |wanted| {
            assert!(wanted());
            began.send(()).unwrap();
            while wanted() {
                std::thread::yield_now();
            }
            end.send(()).unwrap();
            Ok(())
        });
        tokio::select! {
            _ = job => panic!("nobody has gone yet"),
            started = begun => started.unwrap(),
        }
        ended.await.expect("it heard");
    }
}

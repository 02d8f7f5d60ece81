//! The two loops: closed (so many clients, each waits for its answer) and open (sessions arrive
//! whatever the server does).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::LocalSet;

use crate::client::{Answer, Caller, LoadError, Said, Target};
use crate::workload::{Lengths, Session, Turn, Workload};

/// When sessions begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrival {
    /// So many at any time: one ends, the next begins.
    Closed {
        /// Clients.
        clients: usize,
    },
    /// So many a second, independent of each other (a Poisson process).
    Open {
        /// Sessions a second.
        rate: f64,
    },
}

/// How one request went. Times are seconds since the run began.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Which session, in the workload's order.
    pub session: usize,
    /// Which of its turns.
    pub turn: usize,
    /// When it was sent.
    pub start_s: f64,
    /// When its answer ended.
    pub end_s: f64,
    /// Tokens asked for.
    pub max_tokens: u32,
    /// What came of it.
    pub outcome: Result<Outcome, LoadError>,
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// When each piece of text came.
    pub events_s: Vec<f64>,
    /// By the server's figures.
    pub prompt_tokens: Option<u64>,
    /// By the server's figures.
    pub cached_tokens: Option<u64>,
    /// By the server's figures, else one a piece of text.
    pub completion_tokens: u64,
}

/// Everything the clients saw.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The model that was asked for.
    pub model: String,
    /// From the first request to the end of the last answer.
    pub wall_s: f64,
    /// By the time of their start.
    pub records: Vec<Record>,
}

/// Sends `warmups` short requests that do not count, then the workload.
///
/// # Errors
/// A server that cannot be reached or fails a warm-up. Later failures are records.
pub fn run(
    target: &Target,
    workload: &Workload,
    arrival: Arrival,
    warmups: u32,
) -> Result<Run, LoadError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| LoadError::Client(e.to_string()))?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let caller = Caller::connect(target).await?;
        warm_up(&caller, workload, warmups).await?;
        let state = Rc::new(State {
            caller,
            sessions: workload.sessions(),
            next: Cell::new(0),
            records: RefCell::default(),
            began: Instant::now(),
        });
        let mut tasks = Vec::new();
        match arrival {
            Arrival::Closed { clients } => {
                for _ in 0..clients.max(1) {
                    tasks.push(tokio::task::spawn_local(client(Rc::clone(&state))));
                }
            }
            Arrival::Open { rate } => {
                for (session, at) in workload.arrivals(rate).into_iter().enumerate() {
                    tokio::time::sleep_until((state.began + Duration::from_secs_f64(at)).into())
                        .await;
                    let state = Rc::clone(&state);
                    tasks.push(tokio::task::spawn_local(async move { state.talk(session).await }));
                }
            }
        }
        for task in tasks {
            task.await.map_err(|e| LoadError::Client(e.to_string()))?;
        }
        let wall_s = state.began.elapsed().as_secs_f64();
        let mut records = state.records.take();
        records.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
        Ok(Run { model: state.caller.model().to_owned(), wall_s, records })
    })
}

async fn warm_up(caller: &Caller, workload: &Workload, times: u32) -> Result<(), LoadError> {
    // Other words than the run's, or its prefixes would be warm.
    let seed = !workload.seed;
    let short = Workload { seed, sessions: 1, prefix_words: 0, ..workload.clone() };
    for session in (Workload { prompt: Lengths::Fixed(16), turns: times, ..short }).sessions() {
        for Turn { message, .. } in session.turns.into_iter().take(times as usize) {
            caller.ask(&[Said::User(message)], 16).await?;
        }
    }
    Ok(())
}

struct State {
    caller: Caller,
    sessions: Vec<Session>,
    /// The first session that nobody has taken.
    next: Cell<usize>,
    records: RefCell<Vec<Record>>,
    began: Instant,
}

/// A client of the closed loop.
async fn client(state: Rc<State>) {
    loop {
        let session = state.next.get();
        if session >= state.sessions.len() {
            return;
        }
        state.next.set(session + 1);
        state.talk(session).await;
    }
}

impl State {
    /// One session from its first request to its last; an error ends it.
    async fn talk(&self, session: usize) {
        let Session { prefix, turns } = &self.sessions[session];
        let mut said = Vec::new();
        for (at, turn) in turns.iter().enumerate() {
            let prefix = if at == 0 { prefix.as_str() } else { "" };
            said.push(Said::User(format!("{prefix}{}", turn.message)));
            let start = Instant::now();
            let answer = self.caller.ask(&said, turn.max_tokens).await;
            let record = |outcome| Record {
                session,
                turn: at,
                start_s: self.since(start),
                end_s: self.since(Instant::now()),
                max_tokens: turn.max_tokens,
                outcome,
            };
            match answer {
                Ok(answer) => {
                    self.records.borrow_mut().push(record(Ok(self.outcome(&answer))));
                    said.push(Said::Assistant(answer.text));
                }
                Err(error) => return self.records.borrow_mut().push(record(Err(error))),
            }
        }
    }

    fn since(&self, at: Instant) -> f64 {
        at.duration_since(self.began).as_secs_f64()
    }

    fn outcome(&self, answer: &Answer) -> Outcome {
        Outcome {
            events_s: answer.events.iter().map(|at| self.since(*at)).collect(),
            prompt_tokens: answer.usage.prompt_tokens,
            cached_tokens: answer.usage.cached_tokens(),
            completion_tokens: answer.usage.completion_tokens.unwrap_or(answer.events.len() as u64),
        }
    }
}

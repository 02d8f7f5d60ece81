//! The two loops: closed (so many clients, each waits for its answer) and open (sessions arrive
//! whatever the server does).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::LocalSet;

use crate::client::{Caller, LoadError, Target};
use crate::dialect::{Request, Said};
use crate::stream::Answer;
use crate::workload::{Lengths, Session, Turn, Workload, arrivals};

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

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A turn of the session.
    Main,
    /// The title of an agent's session.
    Title,
    /// The summary of a history.
    Compaction,
    /// A turn of an agent that another one started.
    SubAgent,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Main, Kind::Title, Kind::Compaction, Kind::SubAgent];

    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Main => "main",
            Kind::Title => "title",
            Kind::Compaction => "compaction",
            Kind::SubAgent => "sub-agent",
        }
    }
}

/// How one request went. Times are seconds since the run began.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Which session, in the workload's order.
    pub session: usize,
    /// Which of its turns; of a sub-agent: which of its own.
    pub turn: usize,
    /// What for.
    pub kind: Kind,
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
    /// Sessions that began.
    pub sessions: usize,
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
    drive(target, Talks(workload.sessions()), workload.seed, arrival, warmups)
}

/// Sessions that can be gone through.
pub(crate) trait Talk {
    /// How many there are.
    fn sessions(&self) -> usize;
    /// One of them, from its first request to its last; an error ends it.
    async fn talk(&self, books: &Books, session: usize);
}

/// [`run`] of any sessions.
pub(crate) fn drive<T: Talk + 'static>(
    target: &Target,
    talk: T,
    seed: u64,
    arrival: Arrival,
    warmups: u32,
) -> Result<Run, LoadError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| LoadError::Client(e.to_string()))?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let caller = Caller::connect(target).await?;
        warm_up(&caller, seed, warmups).await?;
        let sessions = talk.sessions();
        let books = Books { caller, records: RefCell::default(), began: Instant::now() };
        let state = Rc::new(State { talk, next: Cell::new(0), books });
        let mut tasks = Vec::new();
        match arrival {
            Arrival::Closed { clients } => {
                for _ in 0..clients.max(1) {
                    tasks.push(tokio::task::spawn_local(client(Rc::clone(&state))));
                }
            }
            Arrival::Open { rate } => {
                for (session, at) in arrivals(seed, sessions, rate).into_iter().enumerate() {
                    let at = state.books.began + Duration::from_secs_f64(at);
                    tokio::time::sleep_until(at.into()).await;
                    let state = Rc::clone(&state);
                    tasks.push(tokio::task::spawn_local(async move {
                        state.talk.talk(&state.books, session).await;
                    }));
                }
            }
        }
        for task in tasks {
            task.await.map_err(|e| LoadError::Client(e.to_string()))?;
        }
        let books = &state.books;
        let wall_s = books.began.elapsed().as_secs_f64();
        let mut records = books.records.take();
        records.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
        Ok(Run { model: books.caller.model().to_owned(), wall_s, sessions, records })
    })
}

async fn warm_up(caller: &Caller, seed: u64, times: u32) -> Result<(), LoadError> {
    // Other words than the run's, or its prefixes would be warm.
    let short = Workload {
        seed: !seed,
        sessions: 1,
        turns: times,
        prompt: Lengths::Fixed(16),
        output: Lengths::Fixed(16),
        prefix_words: 0,
        prefix_groups: 1,
    };
    for session in short.sessions() {
        for Turn { message, max_tokens } in session.turns.into_iter().take(times as usize) {
            let said = [Said::User(message)];
            let asked = Request { said: &said, max_tokens, ..Request::default() };
            caller.ask(&asked).await?;
        }
    }
    Ok(())
}

struct State<T> {
    talk: T,
    /// The first session that nobody has taken.
    next: Cell<usize>,
    books: Books,
}

/// A client of the closed loop.
async fn client<T: Talk>(state: Rc<State<T>>) {
    loop {
        let session = state.next.get();
        if session >= state.talk.sessions() {
            return;
        }
        state.next.set(session + 1);
        state.talk.talk(&state.books, session).await;
    }
}

/// The server, and how every request went.
pub(crate) struct Books {
    caller: Caller,
    records: RefCell<Vec<Record>>,
    began: Instant,
}

/// Of which turn a request is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) session: usize,
    pub(crate) turn: usize,
    pub(crate) kind: Kind,
}

impl Books {
    /// Asks, and writes down how it went; nothing where it failed.
    pub(crate) async fn ask(&self, place: Place, asked: &Request<'_>) -> Option<Answer> {
        let start = Instant::now();
        let answer = self.caller.ask(asked).await;
        let Place { session, turn, kind } = place;
        let (outcome, answer) = match answer {
            Ok(answer) => (Ok(self.outcome(&answer)), Some(answer)),
            Err(error) => (Err(error), None),
        };
        self.records.borrow_mut().push(Record {
            session,
            turn,
            kind,
            start_s: self.since(start),
            end_s: self.since(Instant::now()),
            max_tokens: asked.max_tokens,
            outcome,
        });
        answer
    }

    fn since(&self, at: Instant) -> f64 {
        at.duration_since(self.began).as_secs_f64()
    }

    fn outcome(&self, answer: &Answer) -> Outcome {
        Outcome {
            events_s: answer.events.iter().map(|at| self.since(*at)).collect(),
            prompt_tokens: answer.usage.prompt_tokens,
            cached_tokens: answer.usage.cached_tokens,
            completion_tokens: answer.usage.completion_tokens.unwrap_or(answer.events.len() as u64),
        }
    }
}

/// Conversations of words.
struct Talks(Vec<Session>);

impl Talk for Talks {
    fn sessions(&self) -> usize {
        self.0.len()
    }

    async fn talk(&self, books: &Books, session: usize) {
        let Session { prefix, turns } = &self.0[session];
        let mut said = Vec::new();
        for (turn, Turn { message, max_tokens }) in turns.iter().enumerate() {
            let prefix = if turn == 0 { prefix.as_str() } else { "" };
            said.push(Said::User(format!("{prefix}{message}")));
            let asked = Request {
                said: &said,
                max_tokens: *max_tokens,
                ignore_eos: true,
                ..Request::default()
            };
            let place = Place { session, turn, kind: Kind::Main };
            let Some(answer) = books.ask(place, &asked).await else { return };
            said.push(Said::answer(answer.reasoning + &answer.text));
        }
    }
}

//! Works at the batches: checks their lines, asks them through the same door as requests from
//! outside, and ends them. While others ask, one line at a time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::sleep;

use super::batches::{Open, Pending};
use super::lines::End;
use super::{Owner, State};
use crate::answering::{self, Line};
use crate::error::ApiError;
use crate::keys::account_of;
use crate::routes::lines_of;
use crate::shared::{Phase, Shared, reached};

/// How often it looks whether a batch's time has ended.
const TICK: Duration = Duration::from_secs(1);
/// How often it takes away what has ended.
const EXPIRE: Duration = Duration::from_secs(60);
/// Pause after a failure of the database or the disk.
const PAUSE: Duration = Duration::from_secs(5);
/// Longest pause of a line that is told to come back.
const LONGEST_PAUSE_S: u32 = 60;
/// Lines looked up at once.
const AHEAD: usize = 64;

/// A batch whose lines are asked.
#[derive(Default)]
struct Going {
    /// The last line that was looked up.
    behind: u64,
    ahead: VecDeque<Pending>,
    asked: usize,
}

struct Worker {
    shared: Arc<Shared>,
    state: Arc<State>,
    going: HashMap<String, Going>,
    lines: JoinSet<()>,
    tasks: HashMap<Id, Task>,
    expired: Instant,
}

/// A line that is being asked.
struct Task {
    owner: Owner,
    batch: String,
    number: u64,
    handle: AbortHandle,
}

/// Works until the server is on its way down: lines that are not answered then are asked again by
/// the next process.
pub async fn work(shared: Arc<Shared>) {
    let Some(state) = shared.state.clone() else { return };
    let mut phases = shared.phases();
    let mut worker = Worker {
        shared,
        state: Arc::clone(&state),
        going: HashMap::new(),
        lines: JoinSet::new(),
        tasks: HashMap::new(),
        expired: Instant::now(),
    };
    loop {
        let turn = async {
            match worker.turn().await {
                Ok(()) => None,
                Err(_) => Some(PAUSE), // (the log has why)
            }
        };
        let pause = tokio::select! {
            pause = turn => pause,
            () = reached(&mut phases, Phase::Draining) => return,
        };
        tokio::select! {
            () = reached(&mut phases, Phase::Draining) => return,
            Some(done) = worker.lines.join_next_with_id(), if pause.is_none() => {
                worker.ended(done).await;
            }
            () = state.wake.notified(), if pause.is_none() => {}
            () = sleep(pause.unwrap_or(TICK)) => {}
        }
    }
}

impl Worker {
    /// Sees to every batch once.
    async fn turn(&mut self) -> Result<(), ApiError> {
        if self.expired.elapsed() >= EXPIRE {
            self.expired = Instant::now();
            self.state.run(State::expire).await?;
        }
        let open = self.state.run(State::open_batches).await?;
        self.going.retain(|id, _| open.iter().any(|open| open.id == *id));
        // (One that fails holds no other up.)
        let mut failed = Ok(());
        for open in &open {
            failed = failed.and(self.one(open).await);
        }
        self.ask(open).await.and(failed)
    }

    /// Checks a batch that is new, ends one that is done.
    async fn one(&mut self, open: &Open) -> Result<(), ApiError> {
        let end = match open.status.as_str() {
            "cancelling" => End::Cancelled,
            "in_progress" if open.answered >= open.total => End::Completed,
            _ if self.state.now() >= open.until => End::Expired,
            "validating" => {
                let (one, limits) = (open.clone(), self.shared.config.limits.clone());
                self.state.run(move |state| state.validate(&one, &limits)).await?;
                self.state.wake.notify_one();
                return Ok(());
            }
            _ => return Ok(()),
        };
        // (What they might still say finds no line to say it of.)
        let own = self.tasks.values().filter(|task| task.batch == open.id);
        own.for_each(|task| task.handle.abort());
        let one = open.clone();
        self.state.run(move |state| state.finish(&one, end)).await?;
        self.state.wake.notify_one();
        Ok(())
    }

    /// Asks lines, of the batch of which fewest are being asked first.
    async fn ask(&mut self, open: Vec<Open>) -> Result<(), ApiError> {
        let others = self.shared.in_flight().saturating_sub(self.lines.len());
        let most = if others > 0 { 1 } else { self.shared.config.limits.batch_at_once };
        let going = open.into_iter().filter(|open| open.status == "in_progress");
        let mut open: Vec<Arc<Open>> = going.map(Arc::new).collect();
        while self.lines.len() < most && !open.is_empty() {
            let asked = |open: &Arc<Open>| self.going.get(&open.id).map_or(0, |one| one.asked);
            let Some(at) = (0..open.len()).min_by_key(|at| asked(&open[*at])) else { break };
            let one = Arc::clone(&open[at]);
            if !self.has_room(one.owner) {
                open.swap_remove(at);
                continue;
            }
            let Some(line) = self.next(&one).await? else {
                open.swap_remove(at);
                continue;
            };
            self.going.entry(one.id.clone()).or_default().asked += 1;
            let (owner, batch, number) = (one.owner, one.id.clone(), line.number);
            let line = asked_for(Arc::clone(&self.shared), Arc::clone(&self.state), one, line);
            let handle = self.lines.spawn(line);
            self.tasks.insert(handle.id(), Task { owner, batch, number, handle });
        }
        Ok(())
    }

    /// Whether one more line may be asked for a key's holder: of the requests that he may have at once
    /// one is left to himself, if there are several.
    fn has_room(&self, owner: Owner) -> bool {
        let holder = self.shared.gate().keys.holder(owner);
        let key = holder.and_then(|caller| caller.key);
        let Some(most) = key.and_then(|key| key.limits.at_once) else { return true };
        let own = self.tasks.values().filter(|task| task.owner == owner).count();
        own < (most.saturating_sub(1).max(1) as usize)
    }

    /// The next line of a batch; none where all that are left are being asked.
    async fn next(&mut self, open: &Open) -> Result<Option<Pending>, ApiError> {
        let going = self.going.entry(open.id.clone()).or_default();
        if going.ahead.is_empty() {
            let (id, behind) = (open.id.clone(), going.behind);
            let more = self.state.run(move |state| state.pending(&id, behind, AHEAD)).await?;
            going.behind = more.last().map_or(going.behind, |line| line.number);
            going.ahead.extend(more);
        }
        Ok(going.ahead.pop_front())
    }

    /// A line's task has ended.
    async fn ended(&mut self, done: Result<(Id, ()), JoinError>) {
        let (id, is_broken) = match done {
            Ok((id, ())) => (id, false),
            Err(error) => (error.id(), error.is_panic()),
        };
        let Some(Task { batch, number, .. }) = self.tasks.remove(&id) else { return };
        if let Some(going) = self.going.get_mut(&batch) {
            going.asked = going.asked.saturating_sub(1);
        }
        if is_broken {
            let told = told(ApiError::internal(), "");
            put(&self.state, batch, number, told).await;
        }
    }
}

/// Asks a line until there is an answer, and keeps that.
async fn asked_for(shared: Arc<Shared>, state: Arc<State>, open: Arc<Open>, line: Pending) {
    let number = line.number;
    let answer = answer(&shared, &state, &open, line).await;
    put(&state, open.id.clone(), number, answer).await;
}

/// Keeps an answer, however long the disk is full.
async fn put(state: &Arc<State>, batch: String, number: u64, (status, answer): (u16, String)) {
    let answer: Arc<str> = answer.into();
    loop {
        let (batch, answer) = (batch.clone(), Arc::clone(&answer));
        let kept = state.run(move |state| state.answered(&batch, number, (status, &answer))).await;
        match kept {
            Ok(()) => return,
            Err(_) => sleep(PAUSE).await, // (the log has why)
        }
    }
}

async fn answer(
    shared: &Arc<Shared>,
    state: &Arc<State>,
    open: &Arc<Open>,
    line: Pending,
) -> (u16, String) {
    let endpoint = open.endpoint.as_str();
    let one = Arc::clone(open);
    let body = match state.run(move |state| state.request(&one, &line)).await {
        Ok(body) => body,
        Err(error) => return told(error, endpoint),
    };
    loop {
        let answer = match (shared.gate().keys.holder(open.owner), lines_of(endpoint)) {
            (Some(caller), Some((read, _))) => {
                let (body, party) = (body.clone(), account_of(b"batches"));
                answering::answer_line(shared, Line { body, caller, party, read }).await
            }
            (None, _) => Err(ApiError {
                code: Some("invalid_api_key"),
                ..ApiError::new(
                    StatusCode::UNAUTHORIZED,
                    "the key that made the batch may ask no more",
                )
            }),
            (_, None) => Err(ApiError::unsupported("endpoint", "no batch is for this path")),
        };
        match answer {
            Ok(text) => return (StatusCode::OK.as_u16(), text),
            Err(ApiError { retry_after_s: Some(seconds), .. }) => {
                let seconds = seconds.clamp(1, LONGEST_PAUSE_S);
                sleep(Duration::from_secs(seconds.into())).await;
            }
            Err(error) => return told(error, endpoint),
        }
    }
}

/// An error as the line's own path tells it.
fn told(error: ApiError, endpoint: &str) -> (u16, String) {
    let dialect = lines_of(endpoint).map_or(&crate::openai::DIALECT, |(_, dialect)| dialect);
    (error.status.as_u16(), (dialect.error)(&error).to_string())
}

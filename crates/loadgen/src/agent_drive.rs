//! Goes through agents' sessions: what is answered goes into the history as the dialect demands,
//! and the seeded results behind it, so that sessions go on whatever the model says.

use std::time::Duration;

use futures_util::future::{LocalBoxFuture, join, join_all};

use crate::agents::{AgentSession, Agents, Compaction, History, Sequence, Step};
use crate::client::{LoadError, Target};
use crate::dialect::{Call, Request, Said, ToolResult};
use crate::drive::{Arrival, Books, Kind, Place, Run, Talk, drive};
use crate::stream::Answer;

/// Sends `warmups` short requests that do not count, then the sessions.
///
/// # Errors
/// A server that cannot be reached or fails a warm-up. Later failures are records.
pub fn run_agents(
    target: &Target,
    agents: &Agents,
    arrival: Arrival,
    warmups: u32,
) -> Result<Run, LoadError> {
    let work = Work { sessions: agents.sessions(), seed: agents.seed, history: agents.history };
    drive(target, work, agents.seed, arrival, warmups)
}

struct Work {
    sessions: Vec<AgentSession>,
    seed: u64,
    history: History,
}

impl Talk for Work {
    fn sessions(&self) -> usize {
        self.sessions.len()
    }

    async fn talk(&self, books: &Books, session: usize) {
        let AgentSession { main, title, .. } = &self.sessions[session];
        let way = |kind, name: &str| {
            let cache_key = format!("{}-{session}-{name}", self.seed);
            Way { books, history: self.history, session, kind, cache_key }
        };
        let title = async {
            if let Some(title) = title {
                way(Kind::Title, "title").go(title).await;
            }
        };
        // The title is asked for first, and the main request while it runs.
        join(title, async { way(Kind::Main, "main").go(main).await }).await;
    }
}

/// How one sequence is gone through.
struct Way<'a> {
    books: &'a Books,
    history: History,
    session: usize,
    kind: Kind,
    cache_key: String,
}

impl Way<'_> {
    /// What was said at its end; nothing where a request failed.
    fn go<'a>(&'a self, sequence: &'a Sequence) -> LocalBoxFuture<'a, Option<String>> {
        Box::pin(async move {
            let front: Vec<Said> = sequence.front.iter().cloned().map(Said::User).collect();
            let mut said = front.clone();
            let mut last = String::new();
            for (turn, step) in sequence.steps.iter().enumerate() {
                if let Some(compaction) = &step.compaction {
                    let summary = self.compact(sequence, compaction, said, turn).await?;
                    said = front.clone();
                    said.push(Said::User(summary));
                }
                let asked = Request {
                    system: &sequence.system,
                    tools: &sequence.tools,
                    said: &said,
                    max_tokens: step.max_tokens,
                    ignore_eos: self.history == History::Seeded,
                    small: self.kind == Kind::Title,
                    cache_key: &self.cache_key,
                };
                let place = Place { session: self.session, turn, kind: self.kind };
                let answer = self.books.ask(place, &asked).await?;
                let (text, calls) = self.taken(step, answer, turn);
                let reports = self.subagents(step, turn).await?;
                if !step.calls.is_empty() {
                    tokio::time::sleep(Duration::from_secs_f64(step.pause_s)).await;
                    let results = results(step, &calls, &reports);
                    said.push(Said::Assistant { text: text.clone(), calls });
                    said.push(Said::Results(results));
                }
                last = text;
            }
            Some(last)
        })
    }

    /// The text and the calls of an answer as the history has them.
    fn taken(&self, step: &Step, answer: Answer, turn: usize) -> (String, Vec<Call>) {
        if self.history == History::Seeded {
            return (step.text.clone(), step.calls.clone());
        }
        let whole = |call: &Call| !call.name.is_empty() && call.object().is_some();
        let mut calls: Vec<Call> = answer.calls.into_iter().filter(whole).collect();
        // A model that called nothing is lent the seeded call; agents that run now are in it.
        if calls.is_empty() || !step.subagents.is_empty() {
            calls = step.calls.clone();
        }
        for (i, call) in calls.iter_mut().enumerate().filter(|(_, call)| call.id.is_empty()) {
            call.id = format!("call_{turn}_{i}");
        }
        (answer.text, calls)
    }

    /// Runs the agents that a step starts, all at once; what they say at their ends.
    async fn subagents(&self, step: &Step, turn: usize) -> Option<Vec<String>> {
        let ways: Vec<Way<'_>> = (0..step.subagents.len())
            .map(|i| Way {
                books: self.books,
                history: self.history,
                session: self.session,
                kind: Kind::SubAgent,
                cache_key: format!("{}-{turn}-{i}", self.cache_key),
            })
            .collect();
        let running = ways.iter().zip(&step.subagents).map(|(way, sequence)| way.go(sequence));
        join_all(running).await.into_iter().collect()
    }

    /// Asks for a summary of the history, without tools.
    async fn compact(
        &self,
        sequence: &Sequence,
        compaction: &Compaction,
        mut said: Vec<Said>,
        turn: usize,
    ) -> Option<String> {
        said.push(Said::User(compaction.ask.clone()));
        let asked = Request {
            system: &sequence.system,
            said: &said,
            max_tokens: compaction.max_tokens,
            ignore_eos: self.history == History::Seeded,
            small: true,
            ..Request::default()
        };
        let place = Place { session: self.session, turn, kind: Kind::Compaction };
        let answer = self.books.ask(place, &asked).await?;
        match self.history {
            History::Model if !answer.text.trim().is_empty() => Some(answer.text),
            _ => Some(compaction.summary.clone()),
        }
    }
}

/// A result for each call, in order: what agents said, else the step's.
fn results(step: &Step, calls: &[Call], reports: &[String]) -> Vec<ToolResult> {
    let content = |i: usize| reports.get(i).unwrap_or(&step.result).clone();
    let result = |(i, call): (usize, &Call)| ToolResult {
        id: call.id.clone(),
        name: call.name.clone(),
        content: content(i),
    };
    calls.iter().enumerate().map(result).collect()
}

//! Texts answered by numbers instead of text: handed to the engine a few at a time, in order.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokenmill_engine::{Cancel, Event, Numbers, Refusal, Request, RequestError, Rows};
use tokenmill_ir::TokenId;
use tokio::sync::{oneshot, watch};

use crate::error::ApiError;
use crate::shared::{Model, Phase, Shared, reached};

/// Texts of one request at the engine at once: enough to fill its steps, few enough to leave its
/// queue to others.
const AT_ONCE: usize = 16;

/// What a request asks of a model.
pub struct Asked<A> {
    /// The model.
    pub model: Model,
    /// Tokens of each text.
    pub inputs: Vec<Vec<TokenId>>,
    /// Where the second text of each begins, if its tokens are of another type; empty: of none.
    pub seconds: Vec<Option<u32>>,
    /// The client's name for who asks.
    pub user: Option<String>,
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// What the answer needs.
    pub rest: A,
}

/// For whom rows are computed.
#[derive(Debug, Clone, Copy)]
pub struct Who {
    /// Whose share of the engine they take.
    pub account: u64,
    /// How long it may take, all texts together.
    pub timeout: Option<Duration>,
}

/// A text at the engine.
struct Open {
    answer: oneshot::Receiver<Result<Rows, RequestError>>,
    /// Dropping it cancels.
    _cancel: Cancel,
}

/// 400 unless every text fits the model; `name` is the member that held them.
pub fn check(model: &Model, inputs: &[Vec<TokenId>], name: &str) -> Result<(), ApiError> {
    let limit = model.most_tokens();
    for (i, tokens) in inputs.iter().enumerate() {
        let path = if inputs.len() == 1 { name.to_owned() } else { format!("{name}[{i}]") };
        if tokens.is_empty() {
            return Err(ApiError::bad(&path, format!("{path} is empty")));
        }
        if tokens.len() > limit {
            let message = format!("{path} has {} tokens; the model takes {limit}", tokens.len());
            return Err(ApiError {
                code: Some("context_length_exceeded"),
                ..ApiError::bad(path, message)
            });
        }
    }
    Ok(())
}

/// The rows of all texts, in order.
///
/// # Errors
/// What the engine refuses or fails on; then the others are cancelled.
pub async fn compute(
    shared: &Shared,
    model: &Model,
    inputs: Vec<Vec<TokenId>>,
    seconds: &[Option<u32>],
    who: Who,
) -> Result<Vec<Rows>, ApiError> {
    let begun = Instant::now();
    let mut phase = shared.phases();
    let mut open: VecDeque<Open> = VecDeque::new();
    let mut answers = Vec::with_capacity(inputs.len());
    for (i, tokens) in inputs.into_iter().enumerate() {
        let second = seconds.get(i).copied().flatten();
        loop {
            let full = match open.len() < AT_ONCE {
                true => match submit(model, tokens.clone(), second, left(who, begun)) {
                    Ok(one) => {
                        open.push_back(one);
                        break;
                    }
                    Err(refusal) => Some(refusal),
                },
                false => None,
            };
            match (full, open.pop_front()) {
                // A full queue is waited for as long as some of it is ours.
                (None | Some(Refusal::QueueFull { .. }), Some(first)) => {
                    answers.push(wait(first, &mut phase).await?);
                }
                (Some(refusal), _) => return Err(refusal.into()),
                (None, None) => {}
            }
        }
    }
    while let Some(first) = open.pop_front() {
        answers.push(wait(first, &mut phase).await?);
    }
    Ok(answers)
}

/// What is left of the time of who asks.
fn left(who: Who, begun: Instant) -> Who {
    Who { timeout: who.timeout.map(|all| all.saturating_sub(begun.elapsed())), ..who }
}

fn submit(
    model: &Model,
    tokens: Vec<TokenId>,
    second: Option<u32>,
    who: Who,
) -> Result<Open, Refusal> {
    let (sender, answer) = oneshot::channel();
    let mut sender = Some(sender);
    let sink = Box::new(move |event| {
        let rows = match event {
            Event::Rows(rows) => Ok(rows),
            Event::Failed(error) => Err(error),
            _ => return true,
        };
        // Nobody waits for a cancelled one.
        sender.take().is_some_and(|sender| sender.send(rows).is_ok())
    });
    let numbers = Some(second.map_or(Numbers::Hidden, |second| Numbers::Pair { second }));
    let Who { account, timeout } = who;
    let request = Request { numbers, account, salt: account, timeout, ..Request::new(tokens) };
    let _cancel = model.served.engine.submit_to(request, sink)?;
    Ok(Open { answer, _cancel })
}

async fn wait(one: Open, phase: &mut watch::Receiver<Phase>) -> Result<Rows, ApiError> {
    tokio::select! {
        answer = one.answer => Ok(answer.unwrap_or(Err(RequestError::ShutDown))?),
        () = reached(phase, Phase::Stopping) => Err(RequestError::ShutDown.into()),
    }
}

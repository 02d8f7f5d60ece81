//! The OpenAI dialect: chat and text completion, whole or streamed, embeddings, and the list of
//! models; beside it the rerank call of Cohere and Jina.

mod answer;
mod chat;
mod completion;
mod embedding;
pub mod leases;
pub mod models;
mod parameters;
mod rerank;
mod rows;
mod stream;

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request as HttpRequest, State};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokenmill_engine::{Event, NOBODY, Request, RowsAnswer, StopReason, TokenInfo};

use crate::body::{self, Received};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::Generation;
use crate::keys::account_of;
use crate::shared::{Model, Shared, unix_seconds};
use crate::strict_json::{self, JsonLimits};
use crate::visit::Visit;
use answer::{Answer, Kind, Part};

/// A request read, checked and tokenised.
struct Prepared {
    model: Model,
    /// One for each prompt.
    requests: Vec<Request>,
    answer: Answer,
    stream: bool,
}

type Prepare = fn(&Shared, Fields) -> Result<Prepared, ApiError>;

/// POST /v1/chat/completions
pub async fn chat(state: State<Arc<Shared>>, request: HttpRequest<Body>) -> Response {
    respond(state, request, chat::prepare).await
}

/// POST /v1/completions
pub async fn completions(state: State<Arc<Shared>>, request: HttpRequest<Body>) -> Response {
    respond(state, request, completion::prepare).await
}

/// POST /v1/embeddings
pub async fn embeddings(state: State<Arc<Shared>>, request: HttpRequest<Body>) -> Response {
    numbers(state, request, embedding::prepare, embedding::answer).await
}

/// POST /v1/rerank
pub async fn rerank(state: State<Arc<Shared>>, request: HttpRequest<Body>) -> Response {
    numbers(state, request, rerank::prepare, rerank::answer).await
}

/// A request answered by rows of numbers: reads it, has the rows computed, writes the answer.
async fn numbers<A: Send + 'static>(
    State(shared): State<Arc<Shared>>,
    request: HttpRequest<Body>,
    prepare: fn(&Shared, Fields) -> Result<rows::Asked<A>, ApiError>,
    write: fn(&Shared, A, Vec<RowsAnswer>) -> Response,
) -> Response {
    let job = async {
        let place = shared.admit()?;
        let visit = Visit::of(&request);
        let body = body::read(request, &shared).await?;
        let state = Arc::clone(&shared);
        let job = move || prepare(&state, parse(&state, body)?);
        let rows::Asked { model, inputs, seconds, rest } = shared.workshop.run(job).await?;
        if let Some(visit) = &visit {
            let tokens = inputs.iter().map(Vec::len).sum::<usize>();
            let mut told = visit.told();
            told.model = Some(model.served.name().to_owned());
            told.prompt_tokens = Some(u32::try_from(tokens).unwrap_or(u32::MAX));
        }
        let found = rows::compute(&shared, &model, inputs, &seconds).await?;
        drop(place);
        Ok::<_, ApiError>(write(&shared, rest, found))
    };
    job.await.unwrap_or_else(IntoResponse::into_response)
}

async fn respond(
    State(shared): State<Arc<Shared>>,
    request: HttpRequest<Body>,
    prepare: Prepare,
) -> Response {
    answer(shared, request, prepare).await.unwrap_or_else(IntoResponse::into_response)
}

async fn answer(
    shared: Arc<Shared>,
    request: HttpRequest<Body>,
    prepare: Prepare,
) -> Result<Response, ApiError> {
    let (generation, (answer, stream)) = generation_of(&shared, request, prepare).await?;
    if stream {
        return Ok(stream::response(generation, answer, shared.config.timeouts.ping));
    }
    whole(generation, answer).await.map(|body| Json(body).into_response())
}

/// Reads a request and hands it to the engine; how it is to be answered, and whether as it comes.
async fn generation_of(
    shared: &Arc<Shared>,
    request: HttpRequest<Body>,
    prepare: Prepare,
) -> Result<(Generation, (Answer, bool)), ApiError> {
    let place = shared.admit()?;
    let account = shared.keys.account(request.headers());
    let visit = Visit::of(&request);
    let body = body::read(request, shared).await?;
    let state = Arc::clone(shared);
    let job = move || prepare(&state, parse(&state, body)?);
    let Prepared { model, mut requests, answer, stream } = shared.workshop.run(job).await?;
    if let Some(account) = account {
        // Holders of different keys share neither time nor cached prompts.
        requests.iter_mut().for_each(|r| (r.account, r.salt) = (account, account));
    }
    Ok((Generation::start(shared, &model, requests, place, visit)?, (answer, stream)))
}

fn parse(shared: &Shared, body: Received) -> Result<Fields, ApiError> {
    let limits = &shared.config.limits;
    let limits = JsonLimits { depth: limits.json_depth, values: limits.json_values };
    let value = strict_json::parse(&body.bytes, limits).map_err(|reason| ApiError {
        code: Some("invalid_json"),
        ..ApiError::bad("body", format!("the body is not valid JSON: {reason}"))
    })?;
    Fields::of(value, "")
}

/// A choice as far as it has come.
#[derive(Debug, Default)]
struct Whole {
    text: String,
    tokens: Vec<TokenInfo>,
    reason: Option<StopReason>,
}

/// The answer in one piece.
async fn whole(mut generation: Generation, mut answer: Answer) -> Result<Value, ApiError> {
    let mut choices: Vec<Whole> = Vec::new();
    choices.resize_with(answer.choices(), Whole::default);
    while let Some((prompt, event)) = generation.next().await? {
        match event {
            Event::Text { choice, text, tokens } => {
                let Some(whole) = choices.get_mut(answer.index(prompt, choice)) else { continue };
                whole.text.push_str(&text);
                if answer.logprobs {
                    whole.tokens.extend(tokens);
                }
            }
            Event::Done { choice, reason } => {
                let Some(whole) = choices.get_mut(answer.index(prompt, choice)) else { continue };
                whole.reason = Some(reason);
            }
            Event::Prefix(found) => answer.diagnosed(prompt, found.as_ref()),
            Event::Finished(_) | Event::Failed(_) => {}
        }
    }
    let list: Vec<Value> = choices
        .into_iter()
        .enumerate()
        .map(|(index, c)| answer.whole_choice(index, &c.text, &c.tokens, c.reason.as_ref()))
        .collect();
    Ok(answer.whole(list, generation.usage()))
}

/// What is the same in every request: names the answer and cuts `max_tokens` to the context.
struct Draft<'a> {
    shared: &'a Shared,
    kind: Kind,
    model: Model,
    parameters: parameters::Parameters,
    warnings: Vec<String>,
    /// Tokens of each prompt, and what it is called in errors.
    prompts: Vec<Vec<u32>>,
    param: &'static str,
    /// Texts the answers begin with, when prompts are echoed.
    echo: Vec<String>,
    /// Tokens the answers may repeat.
    prediction: Vec<u32>,
    /// Of what parts the prompt is, if that was asked for.
    parts: Vec<Part>,
}

impl Draft<'_> {
    fn finish(mut self) -> Result<Prepared, ApiError> {
        let served = &self.model.served;
        let context = served.context.min(served.engine.longest());
        let p = &self.parameters;
        let mut requests = Vec::with_capacity(self.prompts.len());
        let mut cut = None;
        for prompt in std::mem::take(&mut self.prompts) {
            let used = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
            let Some(left) = context.checked_sub(used).filter(|left| *left > 0) else {
                return Err(ApiError::context_length(prompt.len(), context, self.param));
            };
            let wanted = p.sampling.tokens(left);
            if wanted > left {
                cut = Some(cut.map_or(left, |c: u32| c.min(left)));
            }
            requests.push(Request {
                sampling: p.sampling.params,
                choices: p.choices,
                max_tokens: Some(wanted.min(left)),
                stop: p.sampling.stop.clone(),
                ignore_eos: p.ignore_eos,
                logit_bias: p.logit_bias.clone(),
                prediction: self.prediction.clone(),
                draft: p.draft,
                // An API key, where several are set, stands above this.
                account: p.user.as_ref().map_or(NOBODY, |user| account_of(user.as_bytes())),
                priority: p.priority,
                timeout: p.timeout,
                diagnose: p.diagnose,
                lease: p.lease,
                ..Request::new(prompt)
            });
        }
        if let Some(left) = cut {
            let warning = format!("the context of {context} tokens leaves {left} for the answer");
            self.warnings.push(warning);
        }
        let answer = Answer::new(answer::Head {
            kind: self.kind,
            ticket: self.shared.ticket(),
            created: unix_seconds(),
            model: served.name().to_owned(),
            prompts: requests.len(),
            choices: p.choices,
            logprobs: p.sampling.params.logprobs.is_some(),
            include_usage: p.include_usage,
            warnings: self.warnings,
            echo: self.echo,
            parts: self.parts,
        });
        Ok(Prepared { model: self.model, requests, answer, stream: p.stream })
    }
}

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
use tokenmill_engine::{Event, NOBODY, Request, Rows, StopReason, TokenInfo};

use tokenmill_text::{Reach, TokenizerError};

use crate::body::{self, Received};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::Generation;
use crate::guests::Guest;
use crate::keys::account_of;
use crate::shared::{Model, Shared, unix_seconds};
use crate::shares::{Party, Share};
use crate::strict_json::{self, JsonLimits};
use crate::visit::Visit;
use crate::workshop::Wanted;
use answer::{Answer, Kind, Part};

/// A request read, checked and tokenised.
struct Prepared {
    model: Model,
    /// One for each prompt.
    requests: Vec<Request>,
    answer: Answer,
    stream: bool,
}

type Prepare = fn(&Shared, Fields, Wanted<'_>) -> Result<Prepared, ApiError>;

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
    prepare: fn(&Shared, Fields, Wanted<'_>) -> Result<rows::Asked<A>, ApiError>,
    write: fn(&Shared, A, Vec<Rows>) -> Response,
) -> Response {
    let job = async {
        let came = Came::read(&shared, request).await?;
        let (account, party, visit) = (came.account, came.party, came.visit.clone());
        let (asked, place) = came.prepared(&shared, prepare).await?;
        let rows::Asked { model, inputs, seconds, user, timeout, rest } = asked;
        let account = account.or(account_of_user(user.as_deref())).unwrap_or(party);
        if let Some(visit) = &visit {
            let tokens = inputs.iter().map(Vec::len).sum::<usize>();
            let mut told = visit.told();
            told.model = Some(model.served.name().to_owned());
            told.prompt_tokens = Some(u32::try_from(tokens).unwrap_or(u32::MAX));
        }
        let who = rows::Who { account, timeout };
        let found = rows::compute(&shared, &model, inputs, &seconds, who).await?;
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
    let guest = Guest::of(&request);
    let (generation, (answer, stream)) = generation_of(&shared, request, prepare).await?;
    if stream {
        return Ok(stream::response(generation, answer, shared.config.timeouts.ping, guest));
    }
    whole(generation, answer).await.map(|body| Json(body).into_response())
}

/// Reads a request and hands it to the engine; how it is to be answered, and whether as it comes.
async fn generation_of(
    shared: &Arc<Shared>,
    request: HttpRequest<Body>,
    prepare: Prepare,
) -> Result<(Generation, (Answer, bool)), ApiError> {
    let came = Came::read(shared, request).await?;
    let (account, party, visit) = (came.account, came.party, came.visit.clone());
    let (prepared, place) = came.prepared(shared, prepare).await?;
    let Prepared { model, mut requests, answer, stream } = prepared;
    let named = requests.first().map(|r| r.account).filter(|a| account.is_none() && *a != NOBODY);
    if let (Some(visit), Some(user)) = (&visit, named) {
        visit.told().account.get_or_insert_with(|| format!("user {:08x}", user >> 32));
    }
    for request in &mut requests {
        match account {
            // Holders of different keys share neither time nor cached prompts.
            Some(account) => (request.account, request.salt) = (account, account),
            None if request.account == NOBODY => request.account = party,
            None => {}
        }
    }
    Ok((Generation::start(shared, &model, requests, place, visit)?, (answer, stream)))
}

/// A request that is there as a whole.
struct Came {
    body: Received,
    party: Party,
    /// Of its key, where several are set.
    account: Option<u64>,
    visit: Option<Arc<Visit>>,
}

impl Came {
    async fn read(shared: &Shared, request: HttpRequest<Body>) -> Result<Self, ApiError> {
        shared.open()?;
        let (party, account) = (shared.party(&request), shared.keys.account(request.headers()));
        let visit = Visit::of(&request);
        Ok(Self { body: body::read(request, shared, party).await?, party, account, visit })
    }

    /// What becomes of it, and its place among the requests being answered.
    async fn prepared<T: Send + 'static>(
        self,
        shared: &Arc<Shared>,
        prepare: fn(&Shared, Fields, Wanted<'_>) -> Result<T, ApiError>,
    ) -> Result<(T, Share), ApiError> {
        let place = shared.admit(self.party)?;
        let (state, bytes, body) = (Arc::clone(shared), self.body.bytes.len(), self.body);
        let job = move |wanted: Wanted<'_>| prepare(&state, parse(&state, body)?, wanted);
        Ok((shared.workshop.run(self.party, bytes, job).await?, place))
    }
}

/// The account of a client's own word for who asks; an API key, where several are set, stands above.
fn account_of_user(user: Option<&str>) -> Option<u64> {
    user.map(|user| account_of(user.as_bytes()))
}

/// How far a prompt is tokenised: twice what fits, so that one which is a little too long is told its
/// length, and only for a client that waits.
fn reach<'a>(model: &Model, wanted: Wanted<'a>) -> Reach<'a> {
    Reach { tokens: model.most_tokens().saturating_mul(2), wanted }
}

/// What is wrong with a text that could not be tokenised.
fn not_encoded(error: TokenizerError, model: &Model, param: &str) -> ApiError {
    match error {
        TokenizerError::TooManyTokens { at_least, .. } => {
            let most = model.most_tokens();
            let message =
                format!("{param} has at least {at_least} tokens; the context holds {most}");
            ApiError { code: Some("context_length_exceeded"), ..ApiError::bad(param, message) }
        }
        other => ApiError::bad(param, other.to_string()),
    }
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
            Event::Rows(_) | Event::Finished(_) | Event::Failed(_) => {}
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
        let context = self.model.context();
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
                account: account_of_user(p.user.as_deref()).unwrap_or(NOBODY),
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

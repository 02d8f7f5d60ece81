//! How a request is answered, whatever its dialect: read, prepared, handed to the engine, and
//! written whole or as it comes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::Request as HttpRequest;
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::Value;
use tokenmill_engine::{Event, NOBODY, Repeated, Request, Scored, TokenInfo, TopToken, Usage};
use tokenmill_ir::TokenId;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::ask::{
    Ask, Choice, Generate, Input, Left, MakeWriter, Read, WriteCount, WriteNumbers, Writer,
};
use crate::body::{self, Received};
use crate::error::ApiError;
use crate::fields::{Fields, Notes};
use crate::generation::Generation;
use crate::guests::Guest;
use crate::images;
use crate::keys::{Caller, Key};
use crate::models;
use crate::prepare::{self, Echoed, Prepared};
use crate::receipts::{self, Receipt, Wish};
use crate::requests::Seen;
use crate::residents::Pending;
use crate::rows::{self, Measured, Who};
use crate::seeing;
use crate::shared::{Model, Shared};
use crate::shares::{Party, Share};
use crate::state::Stored;
use crate::strict_json::{self, JsonLimits};
use crate::uses::{Pass, Place};
use crate::visit::Visit;
use crate::workshop::Wanted;

/// A request on its way to the engine.
enum Ready {
    Text { prepared: Box<Prepared>, stream: bool, writer: MakeWriter },
    Told(Value),
    Numbers { measured: Box<Measured>, write: WriteNumbers },
}

impl Ready {
    /// Images of it are files in memory, as its body was, until they are seen.
    fn holding(mut self, share: Share) -> Self {
        if let Self::Text { prepared, .. } = &mut self
            && let Some(pictures) = &mut prepared.pictures
        {
            pictures.hold(share);
        }
        self
    }
}

/// Answers a request whose body is read so.
pub async fn respond(shared: Arc<Shared>, request: HttpRequest<Body>, read: Read) -> Response {
    answer(shared, request, read).await.unwrap_or_else(IntoResponse::into_response)
}

async fn answer(
    shared: Arc<Shared>,
    request: HttpRequest<Body>,
    read: Read,
) -> Result<Response, ApiError> {
    let guest = Guest::of(&request);
    let wish = Wish::of(request.headers());
    let priority = priority(request.headers())?;
    let came = Came::read(&shared, request, wish.is_told).await?;
    let begun = Instant::now();
    let (who, visit) = ((came.account, came.party), came.visit.clone());
    let (ready, place) = came.prepared(&shared, read).await?;
    match ready {
        Ready::Text { mut prepared, stream, writer } => {
            if let Some(priority) = priority {
                prepared.requests.iter_mut().for_each(|request| request.priority = priority);
            }
            let held = (place, visit);
            let (mut generation, mut writer, receipt) =
                begin(&shared, *prepared, (writer, &wish), who, held).await?;
            generation.has_waited(begun.elapsed());
            if let Some(Left { told, end }) = writer.leave()? {
                tokio::spawn(behind(generation, writer, receipt, end));
                return Ok(Json(told).into_response());
            }
            if stream {
                let ping = shared.config.timeouts.ping;
                let opened = false;
                return Ok(events(Stream { generation, writer, receipt, ping, guest, opened }));
            }
            whole(generation, &mut *writer, receipt).await.map(|body| Json(body).into_response())
        }
        Ready::Told(body) => Ok(Json(body).into_response()),
        Ready::Numbers { measured, write } => {
            if let Some(visit) = &visit {
                let tokens = measured.tokens();
                let mut told = visit.told();
                told.model = Some(measured.model.served.name().to_owned());
                told.prompt_tokens = Some(u32::try_from(tokens).unwrap_or(u32::MAX));
                told.handed = Some(visit.seen.started.elapsed());
            }
            let seen = visit.as_ref().map(|visit| Arc::clone(&visit.seen));
            let told = numbers(&shared, *measured, write, who, seen).await?;
            drop(place);
            Ok(([(CONTENT_TYPE, "application/json")], told).into_response())
        }
    }
}

/// What a router says of a request among those of its account: smaller comes first. It stands above what
/// the body says.
///
/// # Errors
/// 400 for what is no such number.
fn priority(headers: &HeaderMap) -> Result<Option<i32>, ApiError> {
    let Some(value) = headers.get("x-request-priority") else { return Ok(None) };
    let found = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    found.map(Some).ok_or_else(|| {
        let message = "the header x-request-priority must be a whole number of 32 bits";
        ApiError::bad("x-request-priority", message)
    })
}

/// Hands a request for text to the engine, with who writes its answer.
async fn begin(
    shared: &Arc<Shared>,
    mut prepared: Prepared,
    (writer, wish): (MakeWriter, &Wish),
    who: (Option<u64>, Party),
    held: (Place, Option<Arc<Visit>>),
) -> Result<(Generation, Box<dyn Writer>, Option<Owed>), ApiError> {
    let model = prepared.model.clone();
    charge(&mut prepared.requests, who);
    seeing::see(shared, &mut prepared, who.1).await?;
    if let Some(seed) = wish.seed {
        prepared.requests.iter_mut().for_each(|request| request.sampling.seed = seed);
    }
    let is_computed = tell_prompts(shared, &mut prepared).await?;
    let receipt = receipt(shared, (&model, &mut prepared), wish, held.1.as_ref()).await;
    let writer = writer(std::mem::take(&mut prepared.head));
    let mut generation = start(shared, &model, prepared, who, held)?;
    if is_computed {
        generation.computed_here();
    }
    Ok((generation, writer, receipt))
}

/// Makes an answer whose client does other things: it is kept, or ends before it is whole.
async fn behind(
    generation: Generation,
    mut writer: Box<dyn Writer>,
    receipt: Option<Owed>,
    end: Arc<Notify>,
) {
    tokio::select! {
        biased;
        () = end.notified() => {} // (who ended it has said so)
        made = whole(generation, &mut *writer, receipt) => {
            if let Err(error) = made {
                writer.fail(&error, &mut String::new());
            }
        }
    }
}

/// The body of an answer of numbers.
async fn numbers(
    shared: &Shared,
    measured: Measured,
    write: WriteNumbers,
    (account, party): (Option<u64>, Party),
    seen: Option<Arc<Seen>>,
) -> Result<String, ApiError> {
    let user = prepare::account_of_user(measured.user.as_deref());
    let account = account.or(user).unwrap_or(party);
    let ticket = seen.as_ref().map(|seen| seen.id.ticket);
    let who = Who { account, salt: account, timeout: measured.timeout, seen };
    let (mut head, found) = rows::compute(shared, measured, (who, party)).await?;
    head.ticket = ticket.unwrap_or(head.ticket);
    Ok(write(&head, found))
}

/// A request that stands in a batch.
pub struct Line {
    /// Its body.
    pub body: Vec<u8>,
    /// Who made the batch.
    pub caller: Caller,
    /// Whose share it takes, where keys say none.
    pub party: Party,
    /// What reads it.
    pub read: Read,
}

/// Answers a request of a batch, behind all others of its account: the body.
///
/// # Errors
/// What a client that asked the same would be told.
pub async fn answer_line(shared: &Arc<Shared>, line: Line) -> Result<String, ApiError> {
    shared.open()?;
    let read = line.read;
    let came = Came::of_line(shared, line).await?;
    let who = (came.account, came.party);
    let (ready, place) = came.prepared(shared, read).await?;
    match ready {
        Ready::Text { stream: true, .. } => {
            Err(ApiError::unsupported("stream", "stream: a line of a batch is answered whole"))
        }
        Ready::Text { mut prepared, writer, .. } => {
            prepared.requests.iter_mut().for_each(|request| request.priority = i32::MAX);
            let wish = Wish::default();
            let (generation, mut writer, _) =
                begin(shared, *prepared, (writer, &wish), who, (place, None)).await?;
            whole(generation, &mut *writer, None).await.map(|body| body.to_string())
        }
        Ready::Told(body) => Ok(body.to_string()),
        Ready::Numbers { measured, write } => numbers(shared, *measured, write, who, None).await,
    }
}

/// The receipt of a request, where one is wanted or stored; its answer is named as the request is.
async fn receipt(
    shared: &Arc<Shared>,
    (model, prepared): (&Model, &mut Prepared),
    wish: &Wish,
    visit: Option<&Arc<Visit>>,
) -> Option<Owed> {
    let visit = visit?;
    prepared.head.ticket = visit.seen.id.ticket;
    let asked = visit.told().asked.take()?;
    let receipt = receipts::begin(shared, (model, prepared), (wish, asked), visit).await;
    let choices = vec![Choice::default(); prepared.head.all_choices()];
    Some(Owed { shared: Arc::clone(shared), visit: Arc::clone(visit), receipt, choices })
}

/// A receipt that is given with the end of an answer.
struct Owed {
    shared: Arc<Shared>,
    visit: Arc<Visit>,
    receipt: Receipt,
    /// What came of a stream so far.
    choices: Vec<Choice>,
}

impl Owed {
    fn end(self, choices: Option<&[Choice]>, usage: Usage) -> Value {
        let (told, stored) = self.receipt.end(choices.unwrap_or(&self.choices), usage);
        receipts::keep(&self.shared, &self.visit, &told, stored);
        told
    }
}

/// Computes the prompt of a request for text, and one token after it: how that ended, and what of
/// the request had no effect. `change` has the last word on what the engine is asked.
///
/// # Errors
/// 400 for what is no such request, and what the engine says.
pub async fn compute(
    shared: &Arc<Shared>,
    request: HttpRequest<Body>,
    read: Read,
    change: fn(&mut tokenmill_engine::Request),
) -> Result<(tokenmill_engine::Usage, Vec<String>), ApiError> {
    let came = Came::read(shared, request, false).await?;
    let (who, visit) = ((came.account, came.party), came.visit.clone());
    let (ready, place) = came.prepared(shared, read).await?;
    let Ready::Text { mut prepared, .. } = ready else {
        return Err(ApiError::bad("body", "the request asks for no text"));
    };
    prepared.requests.iter_mut().for_each(change);
    charge(&mut prepared.requests, who);
    seeing::see(shared, &mut prepared, who.1).await?;
    let (model, warnings) = (prepared.model.clone(), std::mem::take(&mut prepared.head.warnings));
    let mut generation = start(shared, &model, *prepared, who, (place, visit))?;
    while generation.next().await?.is_some() {}
    Ok((generation.usage(), warnings))
}

/// Puts requests on the account of their key, their client's word, or their party.
fn charge(requests: &mut [Request], (account, party): (Option<u64>, Party)) {
    for request in requests {
        match account {
            // Holders of different keys share neither time nor cached prompts.
            Some(account) => (request.account, request.salt) = (account, account),
            None if request.account == NOBODY => request.account = party,
            None => {}
        }
    }
}

/// Finds out the log-probabilities of prompts that are told with them; whether there are any.
async fn tell_prompts(shared: &Shared, prepared: &mut Prepared) -> Result<bool, ApiError> {
    let Some(Echoed { top, unlisted }) = prepared.echoed.take() else { return Ok(false) };
    let Some(first) = prepared.requests.first() else { return Ok(false) };
    let (account, salt, timeout) = (first.account, first.salt, first.timeout);
    let who = Who { account, salt, timeout, seen: None };
    let begun = Instant::now();
    let prompts: Vec<_> = prepared.requests.iter().map(|request| request.prompt.clone()).collect();
    let scores = rows::scores(shared, &prepared.model, prompts, top, who).await?;
    let tokenizer = &prepared.model.served.tokenizer;
    let bytes = |id| tokenizer.token_bytes(id).unwrap_or_default().to_vec();
    let alternative = |&(id, logprob): &(TokenId, f32)| TopToken { id, bytes: bytes(id), logprob };
    let found = |scored: Scored| {
        let Scored { id, logprob, top } = scored;
        let top = top.iter().map(alternative).collect();
        TokenInfo { id, bytes: bytes(id), logprob: Some(logprob), top }
    };
    let prompts = prepared.requests.iter().zip(scores).zip(unlisted);
    let told = prompts.map(|((request, scores), unlisted)| {
        let rest = scores.into_iter().map(found).skip(unlisted);
        let first = request.prompt.get(unlisted).copied();
        let first =
            first.map(|id| TokenInfo { id, bytes: bytes(id), logprob: None, top: Vec::new() });
        first.into_iter().chain(rest).collect()
    });
    prepared.head.echoed = told.collect();
    for limit in prepared.requests.iter_mut().filter_map(|request| request.timeout.as_mut()) {
        *limit = limit.saturating_sub(begun.elapsed());
    }
    Ok(true)
}

/// Hands what is prepared to the engine.
fn start(
    shared: &Arc<Shared>,
    model: &Model,
    prepared: Prepared,
    (account, party): (Option<u64>, Party),
    (place, visit): (Place, Option<Arc<Visit>>),
) -> Result<Generation, ApiError> {
    let requests = prepared.requests;
    let named = requests.first().map(|r| r.account).filter(|a| account.is_none() && *a != party);
    if let (Some(visit), Some(user)) = (&visit, named) {
        visit.told().account.get_or_insert_with(|| format!("user {:08x}", user >> 32));
    }
    Generation::start(shared, model, requests, place, visit)
}

/// A request that is there as a whole.
struct Came {
    body: Received,
    party: Party,
    /// Of its key, where several are set.
    account: Option<u64>,
    key: Option<Arc<Key>>,
    /// It may change what is there for everybody.
    may_change: bool,
    pass: Option<Pass>,
    visit: Option<Arc<Visit>>,
    /// Its answer is to come with a receipt.
    wants_receipt: bool,
}

impl Came {
    async fn read(
        shared: &Shared,
        request: HttpRequest<Body>,
        wants_receipt: bool,
    ) -> Result<Self, ApiError> {
        shared.open()?;
        let caller = Caller::of(&request);
        let account = caller.as_ref().and_then(|caller| caller.account);
        let may_change = caller.as_ref().is_some_and(|caller| caller.may_change);
        let key = caller.and_then(|caller| caller.key.clone());
        let pass = key.as_ref().map(|key| shared.uses.enter(key, Instant::now())).transpose()?;
        let party = shared.party(&request);
        let visit = Visit::of(&request);
        if let Some(visit) = &visit {
            shared.requests.keep(Arc::clone(&visit.seen));
        }
        let body = body::read(request, shared, party).await?;
        if let Some(visit) = &visit {
            visit.told().read = Some(visit.seen.started.elapsed());
        }
        Ok(Self { body, party, account, key, may_change, pass, visit, wants_receipt })
    }

    /// A line of a batch, as if its maker sent it.
    async fn of_line(shared: &Shared, line: Line) -> Result<Self, ApiError> {
        let Line { body, caller: Caller { account, key, .. }, party, .. } = line;
        let pass = key.as_ref().map(|key| shared.uses.enter(key, Instant::now())).transpose()?;
        let party = account.unwrap_or(party);
        let body = Received::of(body, shared, party).await;
        let (visit, wants_receipt) = (None, false);
        Ok(Self { body, party, account, key, may_change: false, pass, visit, wants_receipt })
    }

    /// What becomes of it when its model is there, and its place among the requests being answered.
    async fn prepared(self, shared: &Arc<Shared>, read: Read) -> Result<(Ready, Place), ApiError> {
        let place = Place::new(shared.admit(self.party)?, self.pass);
        let key = self.key;
        let job_key = key.clone();
        let (state, bytes, body) = (Arc::clone(shared), self.body.bytes.len(), self.body);
        let seal = shared.seal.of(self.account);
        let owner = key.as_ref().map_or(NOBODY, |key| key.account());
        let stored = shared.state.clone().map(|state| Stored { state, owner });
        let (visit, wants_receipt) = (self.visit.clone(), self.wants_receipt);
        let stores = shared.config.receipts.is_some();
        let job = move |wanted: Wanted<'_>| {
            let shared = &*state;
            let mut fields = parse(shared, &body)?;
            let keep = models::keep_alive(&mut fields)?;
            let wanted_too = fields.flag("tokenmill_receipt")?.unwrap_or(false);
            if let Some(visit) = visit.filter(|_| wants_receipt || wanted_too || stores) {
                visit.told().asked = Some(body.bytes.clone());
            }
            let notes = Notes::new(shared.gate().strict).sealed_by(seal);
            let mut notes = notes.keeping(keep).stored_in(stored);
            let lets_go = notes.lets_go();
            let ask = read(fields, &shared.config.limits, &mut notes)?;
            let mut warnings = shared.told(notes);
            let mut ask = match ask {
                Ask::Count { ask, write } if lets_go && is_nothing(&ask) => {
                    return Ok(Step::LetGo { name: ask.model, write, warnings });
                }
                ask => ask,
            };
            if let Ask::Numbers { ask, .. } = &ask {
                rows::check_ability(shared, ask, job_key.as_deref())?;
            }
            let mut pending = shared.want(ask.model(), keep, job_key.as_deref())?;
            warnings.extend(pending.why.take());
            let waits = images::are_elsewhere(shared, &mut ask);
            match if waits { None } else { pending.now() } {
                Some(model) => {
                    let share = body.share();
                    let model = model.map_err(|refused| shared.refused(&pending.id, refused))?;
                    let ready = ready(shared, model, ask, warnings, (job_key.as_deref(), wanted))?;
                    Ok(Step::Ready(Box::new(ready.holding(share))))
                }
                None => Ok(Step::Waits(Box::new(Waits { ask, warnings, pending, body }))),
            }
        };
        let waits = match shared.workshop.run(self.party, bytes, job).await? {
            Step::Ready(ready) => return Ok((*ready, place)),
            Step::Waits(waits) => *waits,
            Step::LetGo { name, write, warnings } => {
                let who = (key.as_deref(), self.may_change);
                models::let_go(shared, name.as_deref(), who).await?;
                return Ok((Ready::Told(write(0, &warnings)), place));
            }
        };
        let Waits { ask, warnings, pending, body } = waits;
        let since = Instant::now();
        let model = shared.awaited(pending).await?;
        if let Some(visit) = &self.visit {
            visit.told().load = since.elapsed();
        }
        let ask = images::fetched(shared, &model, ask).await?;
        let state = Arc::clone(shared);
        let job = move |wanted: Wanted<'_>| {
            let share = body.share(); // it was in memory, read, until now
            let ready = ready(&state, model, ask, warnings, (key.as_deref(), wanted))?;
            Ok(ready.holding(share))
        };
        Ok((shared.workshop.run(self.party, bytes, job).await?, place))
    }
}

/// How far a request is that was read.
enum Step {
    Ready(Box<Ready>),
    /// Its model is not there yet.
    Waits(Box<Waits>),
    /// It asks for nothing, and its model is to go.
    LetGo {
        name: Option<String>,
        write: WriteCount,
        warnings: Vec<String>,
    },
}

/// Whether a request counts the tokens of nothing: it wants its model there, and no more.
fn is_nothing(ask: &Generate) -> bool {
    matches!(&ask.input, Input::Prompts { prompts, .. } if prompts.is_empty())
}

/// A request that was read and waits for its model.
struct Waits {
    ask: Ask,
    warnings: Vec<String>,
    pending: Pending,
    body: Received,
}

/// Prepares what a model is asked.
fn ready(
    shared: &Shared,
    model: Model,
    ask: Ask,
    warnings: Vec<String>,
    (key, wanted): (Option<&Key>, Wanted<'_>),
) -> Result<Ready, ApiError> {
    Ok(match ask {
        Ask::Generate { ask, stream, writer } => {
            let tells_ids = ask.manner.tells_ids;
            let mut prepared = prepare::generate(shared, model, *ask, warnings, wanted)?;
            if tells_ids {
                let prompts = prepared.requests.iter().map(|request| request.prompt.clone());
                prepared.head.told_ids = prompts.collect();
            }
            if let Some(key) = key {
                within_key(key, &mut prepared)?;
            }
            Ready::Text { prepared: Box::new(prepared), stream, writer }
        }
        Ask::Count { ask, write } => Ready::Told(write(
            prepare::count(&model, *ask, &shared.config.limits, wanted)?,
            &warnings,
        )),
        Ask::Look { look, .. } => Ready::Told(look(&model, &warnings, wanted)?),
        Ask::Numbers { ask, write } => {
            let measured = rows::prepare(shared, model, ask, warnings, wanted)?;
            if let Some(key) = key {
                measured_within_key(key, &measured)?;
            }
            Ready::Numbers { measured: Box::new(measured), write }
        }
    })
}

/// Cuts the answers, and what they keep in the cache, to what a key's holder may have.
///
/// # Errors
/// 400 for a prompt that is longer than his longest.
fn within_key(key: &Key, prepared: &mut Prepared) -> Result<(), ApiError> {
    if let Some(percent) = key.limits.cache {
        prepared.requests.iter_mut().for_each(|request| request.lease_percent = percent);
    }
    let Some(most) = key.limits.context else { return Ok(()) };
    for request in &mut prepared.requests {
        let tokens = request.prompt.len();
        let left = (most as usize).checked_sub(tokens).filter(|left| *left > 0);
        let left = left.ok_or_else(|| longer_than_key(tokens, most))?;
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        request.max_tokens = Some(request.max_tokens.map_or(left, |asked| asked.min(left)));
    }
    Ok(())
}

/// As [`within_key`], for texts that are measured.
fn measured_within_key(key: &Key, asked: &Measured) -> Result<(), ApiError> {
    let longest = asked.inputs.iter().map(Vec::len).max().unwrap_or(0);
    match key.limits.context.filter(|most| longest > *most as usize) {
        Some(most) => Err(longer_than_key(longest, most)),
        None => Ok(()),
    }
}

fn longer_than_key(tokens: usize, most: u32) -> ApiError {
    let message = format!(
        "the prompt has {tokens} tokens; the maximum context length of this key is {most} tokens"
    );
    let overflow = Some((tokens, most as usize));
    ApiError { overflow, ..ApiError::too_long("messages", message) }
}

/// The members of a body.
///
/// # Errors
/// 400 where it is no object.
pub fn parse(shared: &Shared, body: &Received) -> Result<Fields, ApiError> {
    let limits = &shared.config.limits;
    let limits = JsonLimits { depth: limits.json_depth, values: limits.json_values };
    let value = strict_json::parse(&body.bytes, limits).map_err(|reason| ApiError {
        code: Some("invalid_json"),
        ..ApiError::bad("body", format!("the body is not valid JSON: {reason}"))
    })?;
    Fields::of(value, "")
}

/// The answer in one piece.
async fn whole(
    mut generation: Generation,
    writer: &mut dyn Writer,
    receipt: Option<Owed>,
) -> Result<Value, ApiError> {
    let (count, with_tokens) = (writer.head().all_choices(), writer.wants_tokens());
    let mut choices = vec![Choice::default(); count];
    while let Some((prompt, event)) = generation.next().await? {
        match event {
            Event::Piece { choice, piece, tokens } => {
                let index = writer.head().index(prompt, choice);
                let Some(choice) = choices.get_mut(index) else { continue };
                choice.add(piece);
                if with_tokens {
                    choice.tell(tokens);
                }
            }
            Event::Done { choice, reason } => {
                let index = writer.head().index(prompt, choice);
                let Some(choice) = choices.get_mut(index) else { continue };
                choice.finish = Some(reason);
            }
            Event::Repeats { choice, repeated } => {
                let index = writer.head().index(prompt, choice);
                writer.warn(index, repeats(repeated));
            }
            // (What a stream would be told of it is told by the whole.)
            Event::Prefix(found) => writer.prefix(prompt, found.as_ref(), &mut String::new()),
            Event::Finished(usage) => writer.counted(prompt, usage, &mut String::new()),
            Event::Rows(_) | Event::Failed(_) => {}
        }
    }
    writer.took(generation.took());
    let mut body = writer.whole(&choices, generation.usage());
    if let Some(receipt) = receipt {
        let receipt = receipt.end(Some(&choices), generation.usage());
        // Where an answer is a list, its first part has the receipt of them all.
        let place = match &mut body {
            Value::Array(parts) => parts.first_mut(),
            whole => Some(whole),
        };
        if let Some(place) = place {
            place["tokenmill_receipt"] = receipt;
        }
    }
    Ok(body)
}

/// What is told of an answer that was ended because it repeats itself.
fn repeats(repeated: Repeated) -> String {
    let Repeated { period, tokens, cut } = repeated;
    let how = if cut { "cut" } else { "ended" };
    format!(
        "the answer was {how}: its last {tokens} tokens are copies of {period} \
         (\"repetition_detection\": false lets it go on)"
    )
}

/// An answer as it comes.
struct Stream {
    generation: Generation,
    writer: Box<dyn Writer>,
    receipt: Option<Owed>,
    ping: Duration,
    guest: Option<Arc<Guest>>,
    opened: bool,
}

/// The response; dropping its body cancels the generation.
fn events(stream: Stream) -> Response {
    let media = stream.writer.media();
    let chunks = unfold(Some(stream), |stream| async move {
        let (text, stream) = stream?.next().await;
        Some((Ok::<_, Infallible>(Bytes::from(text)), stream))
    });
    let headers = [
        (CONTENT_TYPE, media),
        (CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(chunks)).into_response()
}

impl Stream {
    /// The next events, and the stream unless they were the last. With the last ones the generation
    /// is gone: its place is free before the client reads them.
    async fn next(mut self) -> (String, Option<Self>) {
        let mut out = String::new();
        if !self.opened {
            self.opened = true;
            self.writer.open(&mut out);
        }
        while out.is_empty() {
            let knocked = async {
                match &self.guest {
                    Some(guest) => guest.knocked().await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                biased;
                event = self.generation.next() => event,
                () = sleep(self.ping) => return (self.writer.ping().to_owned(), Some(self)),
                () = knocked => return (self.writer.ping().to_owned(), Some(self)),
            };
            match event {
                Ok(Some((prompt, event))) => self.event(&mut out, prompt, event),
                Ok(None) => {
                    self.writer.took(self.generation.took());
                    self.writer.close(self.generation.usage(), &mut out);
                    if let Some(receipt) = self.receipt.take() {
                        receipt.end(None, self.generation.usage());
                    }
                    return (out, None);
                }
                Err(error) => {
                    self.writer.fail(&error, &mut out);
                    return (out, None);
                }
            }
        }
        (out, Some(self))
    }

    /// What came of a choice, where that is kept for a receipt.
    fn owed(&mut self, index: usize) -> Option<&mut Choice> {
        self.receipt.as_mut()?.choices.get_mut(index)
    }

    fn event(&mut self, out: &mut String, prompt: usize, event: Event) {
        match event {
            Event::Piece { choice, piece, tokens } => {
                let index = self.writer.head().index(prompt, choice);
                self.writer.piece(index, &piece, &tokens, out);
                if let Some(choice) = self.owed(index) {
                    choice.add(piece);
                }
            }
            Event::Done { choice, reason } => {
                let index = self.writer.head().index(prompt, choice);
                self.writer.done(index, &reason, out);
                if let Some(choice) = self.owed(index) {
                    choice.finish = Some(reason);
                }
            }
            Event::Repeats { choice, repeated } => {
                let index = self.writer.head().index(prompt, choice);
                self.writer.warn(index, repeats(repeated));
            }
            Event::Prefix(found) => self.writer.prefix(prompt, found.as_ref(), out),
            Event::Finished(usage) => {
                self.writer.took(self.generation.took());
                self.writer.counted(prompt, usage, out);
            }
            Event::Rows(_) | Event::Failed(_) => {}
        }
    }
}

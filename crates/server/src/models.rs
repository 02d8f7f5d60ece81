//! Models as they come and go, over HTTP: loading and unloading by name, what is told of each, and
//! how long requests want theirs to stay.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use prometheus::proto::MetricType;
use serde::Deserialize;
use serde_json::{Value, json};
use tokenmill_engine::KeepAlive;
use tokenmill_engine::residency::{Stage, Status};

use crate::answering::parse;
use crate::body;
use crate::error::ApiError;
use crate::fields::{Fields, Notes, text, wrong};
use crate::keys::{Caller, Key};
use crate::metrics::{Page, sample};
use crate::ollama::models::{fields_of, finish};
use crate::residents::{Residents, Told};
use crate::shared::{Shared, unix_seconds};
use crate::stock::Listed;
use crate::workshop::Wanted;

/// For an unloaded model to go while its client waits; it goes on draining.
const PATIENCE: Duration = Duration::from_secs(30);

/// `keep_alive` as Ollama's clients send it, `ttl` as LM Studio's: how long the model stays after
/// the answer.
///
/// # Errors
/// 400 for what is no duration.
pub fn keep_alive(fields: &mut Fields) -> Result<Option<KeepAlive>, ApiError> {
    let mut keep = None;
    for name in ["ttl", "keep_alive"] {
        let Some(value) = fields.take(name) else { continue };
        let found = match &value {
            Value::Number(number) => number.as_f64().and_then(KeepAlive::seconds),
            Value::String(text) => KeepAlive::parse(text),
            other => return Err(wrong(name, "a duration or a number of seconds", other)),
        };
        let message = || {
            let forms = "a duration such as \"5m\" or \"300s\", or seconds; negative: for ever";
            ApiError::bad(name, format!("{name} must be {forms}"))
        };
        keep = Some(found.ok_or_else(message)?);
    }
    Ok(keep)
}

/// POST /models/load: answers when the model is there.
pub async fn load(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    loaded(&shared, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn loaded(shared: &Arc<Shared>, request: Request<Body>) -> Result<Response, ApiError> {
    shared.open()?;
    let key = Caller::of(&request).and_then(|caller| caller.key.clone());
    let pass = key.as_ref().map(|key| shared.uses.enter(key, Instant::now())).transpose()?;
    let (party, place) = (shared.party(&request), shared.admit(shared.party(&request))?);
    let (name, keep) = named(shared, request).await?;
    let state = Arc::clone(shared);
    let ask = move |_: Wanted<'_>| state.want(Some(&name), keep, key.as_deref());
    let pending = shared.workshop.run(party, 0, ask).await?;
    let id = pending.id.clone();
    drop(shared.awaited(pending).await?);
    drop((place, pass));
    Ok(done(shared, &id))
}

/// POST /models/unload: answers when the model is gone, or while its answers end.
pub async fn unload(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    unloaded(&shared, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn unloaded(shared: &Arc<Shared>, request: Request<Body>) -> Result<Response, ApiError> {
    shared.open()?;
    let headers = request.headers().clone();
    // Others' answers would wait for it to load again.
    may_change(&request, "models are unloaded for everybody")?;
    let (name, _) = named(shared, request).await?;
    let Some(told) = shared.listed(&headers, Some(&name)).await.pop() else {
        return Err(shared.unknown_to(&headers, &name));
    };
    if shared.residents.is_fixed() {
        let message = "this server serves what it was started with";
        return Err(ApiError::unsupported("model", message));
    }
    shared.residents.unload(&told.listed.id, PATIENCE).await;
    Ok(done(shared, &told.listed.id))
}

/// POST /models/pin: a model stays, whoever else is asked for, until it is said otherwise.
pub async fn pin(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    pinned(&shared, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn pinned(shared: &Arc<Shared>, request: Request<Body>) -> Result<Response, ApiError> {
    shared.open()?;
    let headers = request.headers().clone();
    may_change(&request, "models are pinned for everybody")?;
    let mut fields = fields_of(shared, request).await?;
    let name = text(fields.require("model")?, "model")?;
    let pinned = fields.flag("pinned")?.unwrap_or(true);
    finish(shared, fields, &[])?;
    let Some(told) = shared.listed(&headers, Some(&name)).await.pop() else {
        return Err(shared.unknown_to(&headers, &name));
    };
    if shared.residents.is_fixed() {
        let message = "this server serves what it was started with";
        return Err(ApiError::unsupported("model", message));
    }
    shared.residents.pin(&told.listed.id, pinned);
    Ok(done(shared, &told.listed.id))
}

/// What `GET /models/plan` may be asked.
#[derive(Deserialize)]
pub struct Planned {
    model: Option<String>,
}

/// GET /models/plan: which models can be pulled, and what is planned for each; or for that of `?model=`.
pub async fn plan(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Query(Planned { model }): Query<Planned>,
) -> Response {
    let found = model.as_deref().and_then(|name| shared.residents.found(Some(name)));
    let id = found.map(|told| told.listed.id);
    if let Some(id) = &id
        && shared.listed(&headers, Some(id)).await.is_empty()
    {
        return shared.unknown_to(&headers, id).into_response();
    }
    // (Files may be read for it.)
    let plan = move || shared.residents.plan(id.or(model).as_deref());
    match tokio::task::spawn_blocking(plan).await {
        Ok(Ok(models)) => Json(json!({ "object": "list", "data": models })).into_response(),
        Ok(Err(trouble)) => ApiError::bad("model", trouble.reason).into_response(),
        Err(_) => ApiError::internal().into_response(),
    }
}

/// The model that a request names, and how long it is to stay.
async fn named(
    shared: &Arc<Shared>,
    request: Request<Body>,
) -> Result<(String, Option<KeepAlive>), ApiError> {
    let party = shared.party(&request);
    let received = body::read(request, shared, party).await?;
    let mut fields = parse(shared, &received)?;
    let name = text(fields.require("model")?, "model")?;
    let keep = keep_alive(&mut fields)?;
    let mut notes = Notes::new(shared.gate().strict);
    fields.finish(&[], &mut notes)?;
    shared.told(notes);
    Ok((name, keep))
}

/// Refuses who may not change what is there for everybody; `what` says so.
///
/// # Errors
/// 403 that names whom it is for.
pub fn may_change(request: &Request<Body>, what: &str) -> Result<(), ApiError> {
    if Caller::of(request).is_some_and(|caller| caller.may_change) {
        return Ok(());
    }
    let message = format!("{what}: it is for the first key, and those that may read the metrics");
    let code = Some("unload_not_allowed");
    Err(ApiError { code, ..ApiError::new(StatusCode::FORBIDDEN, message) })
}

/// Lets a model go that somebody needs no more: at once where he may unload it, else as soon as nobody
/// is answered. One that is not in memory is not loaded for it.
///
/// # Errors
/// 404 for a name that is none of his, 400 where models stay.
pub async fn let_go(
    shared: &Arc<Shared>,
    name: Option<&str>,
    (key, may_change): (Option<&Key>, bool),
) -> Result<(), ApiError> {
    let found = shared.residents.found(name);
    let his = |listed: &Listed| key.is_none_or(|key| key.may_use(&listed.names()));
    let told = found.filter(|told| his(&told.listed)).ok_or_else(|| shared.unknown(name, key))?;
    if told.status.stage == Stage::Absent && told.status.waiting == 0 {
        return Ok(());
    }
    if shared.residents.is_fixed() {
        let message = "this server serves what it was started with";
        return Err(ApiError::unsupported("model", message));
    }
    let id = told.listed.id;
    if may_change {
        shared.residents.unload(&id, PATIENCE).await;
        return Ok(());
    }
    let pending = shared.want(Some(&id), Some(KeepAlive::Seconds(0.0)), key)?;
    drop(shared.awaited(pending).await?);
    Ok(())
}

fn done(shared: &Shared, id: &str) -> Response {
    let status = shared.residents.told(Some(id)).first().map(status);
    Json(json!({ "success": true, "model": id, "status": status })).into_response()
}

/// The word for where a model is, as llama.cpp's router has it.
fn word(status: &Status) -> &'static str {
    match status.stage {
        Stage::Absent if status.waiting > 0 => "loading",
        Stage::Absent => "unloaded",
        Stage::Loading => "loading",
        Stage::Ready => "loaded",
        Stage::Breaking | Stage::Draining | Stage::Freeing => "unloading",
    }
}

/// Every word.
const WORDS: [&str; 4] = ["unloaded", "loading", "loaded", "unloading"];

/// What is told of a model's state.
pub fn status(told: &Told) -> Value {
    let Told { status, .. } = told;
    let mut value = json!({ "value": word(status) });
    if status.bytes > 0 {
        value["bytes"] = status.bytes.into();
    }
    if status.pinned {
        value["pinned"] = true.into();
    }
    if let Some(seconds) = told.expires_in_s {
        value["expires_at"] = (unix_seconds() + seconds.round() as u64).into();
    }
    if let Some((trouble, _)) = &status.failed {
        let ago_s = told.failed_ago_s.unwrap_or(0.0);
        value["failed"] = true.into();
        value["reason"] = trouble.reason.as_str().into();
        value["failed_at"] = unix_seconds().saturating_sub(ago_s as u64).into();
    }
    value
}

/// What is told of the models in memory, in the Prometheus text format.
pub fn count(residents: &Residents, out: &mut Page) {
    use MetricType::{COUNTER, GAUGE};
    let (held, cap, counts) = residents.counts();
    let mut told = residents.told(None);
    told.retain(|told| told.made.is_none()); // (they take nothing of their own)
    let in_state = |state: &&str| {
        let count = told.iter().filter(|told| word(&told.status) == *state).count();
        sample(&[("state", *state)], count as f64)
    };
    out.add("tokenmill_models", GAUGE, "Models by state.", WORDS.iter().map(in_state).collect());
    let loaded = |one: &Told| {
        let loaded = u8::from(one.status.stage == Stage::Ready);
        sample(&[("model_name", one.listed.id.as_str())], loaded.into())
    };
    let (name, help) = ("tokenmill_model_loaded", "1 for models that answer, 0 for others.");
    out.add(name, GAUGE, help, told.iter().map(loaded).collect());
    if residents.is_fixed() {
        return;
    }
    for (name, kind, help, value) in [
        ("tokenmill_models_bytes", GAUGE, "What models hold or are promised.", held),
        ("tokenmill_models_cap_bytes", GAUGE, "What they may hold together.", cap),
        ("tokenmill_model_loads_total", COUNTER, "Loads that were begun.", counts.loads),
        (
            "tokenmill_model_failures_total",
            COUNTER,
            "Models that could not be read or loaded.",
            counts.failures,
        ),
        (
            "tokenmill_model_evictions_total",
            COUNTER,
            "Models that went to make room for another.",
            counts.evictions,
        ),
    ] {
        out.add(name, kind, help, vec![sample(&[], value as f64)]);
    }
}

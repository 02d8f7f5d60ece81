//! What a router of many machines asks a worker, in the words of vLLM and SGLang: how much it does, what
//! it serves, and that it take leave.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::metrics::used_ratio;
use crate::models::may_change;
use crate::ollama::models::{fields_of, finish};
use crate::residents::Told;
use crate::shared::{Phase, Shared};

/// Which model is meant; the first that is told of, where none is named.
#[derive(Deserialize)]
pub struct Meant {
    model: Option<String>,
}

/// GET /load: answers in progress, and what each model does.
pub async fn load(State(shared): State<Arc<Shared>>) -> Response {
    let one = |model: &crate::residents::There| {
        let stats = model.served.engine.stats();
        let told = json!({
            "running": stats.running,
            "waiting": stats.waiting.max(stats.queued_requests),
            "kv_cache_usage": used_ratio(&stats),
            "predicted_wait_s": stats.wait_s,
        });
        (model.served.name().to_owned(), told)
    };
    let models: Map<String, Value> = shared.residents.there().iter().map(one).collect();
    Json(json!({ "server_load": shared.in_flight(), "models": models })).into_response()
}

/// GET /server_info: how a model is served.
pub async fn server_info(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Query(meant): Query<Meant>,
) -> Result<Json<Value>, ApiError> {
    let told = told(&shared, &headers, meant).await?;
    let served = told.there.as_ref().map(|there| &there.served);
    let status = if shared.phase() == Phase::Serving { "ready" } else { "draining" };
    Ok(Json(json!({
        "engine": "tokenmill",
        "version": env!("CARGO_PKG_VERSION"),
        "status": status,
        "served_model_name": told.listed.id,
        "model_path": told.listed.id,
        "max_model_len": served.map(|served| served.context.min(served.engine.longest())),
        "max_running_requests": served.map(|served| served.engine.stats().places),
        "block_size": served.map(|served| served.engine.block_tokens()),
        "num_blocks": served.map(|served| served.engine.stats().groups[0].total),
        "dp_size": 1,
        "tp_size": 1,
        "kv_events": shared.config.kv_events.as_ref().map(|events| json!({
            "endpoint": format!("tcp://{}", events.bind),
            "replay_endpoint": events.replay.map(|bind| format!("tcp://{bind}")),
            "topic": events.topic,
        })),
    })))
}

/// GET /model_info: what a model is.
pub async fn model_info(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Query(meant): Query<Meant>,
) -> Result<Json<Value>, ApiError> {
    let told = told(&shared, &headers, meant).await?;
    let can = shared.residents.abilities(&told);
    let served = told.there.as_ref().map(|there| &there.served);
    Ok(Json(json!({
        "model_path": told.listed.id,
        "served_model_name": told.listed.id,
        "is_generation": can.as_ref().map(|can| !can.embeddings && !can.rerank),
        "max_context_length": can.as_ref().map(|can| can.context),
        "vocab_size": served.map(|served| served.tokenizer.vocab_size()),
        "eos_token_ids": served.map(|served| served.tokenizer.eos_ids().to_vec()),
        "has_image_understanding": served.map(|served| served.eyes.is_some()),
        "weight_version": told.listed.digest,
    })))
}

async fn told(shared: &Arc<Shared>, headers: &HeaderMap, meant: Meant) -> Result<Told, ApiError> {
    let name = meant.model.as_deref();
    let mut all = shared.listed(headers, name).await;
    match all.is_empty() {
        true => Err(shared.unknown_to(headers, name.unwrap_or_default())),
        false => Ok(all.swap_remove(0)),
    }
}

/// POST /drain: nothing new is taken, what is open ends, then the server does.
pub async fn drain(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    drained(&shared, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn drained(shared: &Arc<Shared>, request: Request<Body>) -> Result<Response, ApiError> {
    may_change(&request, "a server is drained for everybody")?;
    let mut fields = fields_of(shared, request).await?;
    let is_meant = fields.flag("drain")?.unwrap_or(false);
    finish(shared, fields, &[])?;
    if !is_meant {
        let message = "{\"drain\": true} ends this server once what is open has ended";
        return Err(ApiError::bad("drain", message));
    }
    let told = json!({ "status": "draining", "open": shared.in_flight() });
    shared.advance(Phase::Draining);
    Ok((StatusCode::ACCEPTED, Json(told)).into_response())
}

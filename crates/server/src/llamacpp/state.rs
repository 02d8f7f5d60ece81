//! What a server tells of itself in llama.cpp's words: what it serves and how (`props`), and how many of its
//! places are taken (`slots`); and what is asked of slots and adapters that there are none of.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::settings::settings;
use crate::body;
use crate::error::ApiError;
use crate::residents::Told;
use crate::shared::Shared;
use crate::stock::{Abilities, Card};

/// What a request's path says behind its question mark.
type Asked = Query<HashMap<String, String>>;

/// What is told as the build.
const BUILD: &str = concat!("tokenmill-", env!("CARGO_PKG_VERSION"));

/// GET /props: of the model that `model` names, of the only one, or where there are several, of none.
pub async fn props(
    State(shared): State<Arc<Shared>>,
    Query(asked): Asked,
    headers: HeaderMap,
) -> Response {
    let name = asked.get("model").map(String::as_str);
    let mut all = shared.listed(&headers, name).await;
    match (all.pop(), all.is_empty(), name) {
        (Some(told), true, _) => of_model(&shared, told).await,
        (None, _, Some(name)) => shared.unknown_to(&headers, name).into_response(),
        _ => Json(json!({
            "role": "router",
            "default_generation_settings": { "params": null, "n_ctx": 0 },
            "model_path": "none",
            "build_info": BUILD,
        }))
        .into_response(),
    }
}

async fn of_model(shared: &Arc<Shared>, told: Told) -> Response {
    let state = Arc::clone(shared);
    // (What stands in a model's files is read elsewhere.)
    let read = move || {
        let (card, can) = (state.residents.card(&told), state.residents.abilities(&told));
        page(&told, &card, can.unwrap_or_default())
    };
    match tokio::task::spawn_blocking(read).await {
        Ok(page) => Json(page).into_response(),
        Err(_) => ApiError::internal().into_response(),
    }
}

fn page(told: &Told, card: &Card, can: Abilities) -> Value {
    let tokens = told.there.as_ref().map(|there| there.served.tokenizer.template_tokens());
    let (bos, eos) = tokens.map(|tokens| (tokens.bos, tokens.eos)).unzip();
    json!({
        "default_generation_settings": {
            "params": settings(&card.defaults.sampling),
            "n_ctx": can.context,
        },
        "total_slots": told.there.as_ref().map(|there| there.served.engine.stats().places),
        "model_alias": told.listed.id,
        // (Where files lie is nobody's business but the machine's.)
        "model_path": told.listed.id,
        "modalities": { "vision": can.sees, "audio": false, "video": false },
        "chat_template": card.template.as_deref().unwrap_or_default(),
        "chat_template_caps": { "supports_tools": can.tools },
        "bos_token": bos.unwrap_or_default(),
        "eos_token": eos.unwrap_or_default(),
        "build_info": BUILD,
        "is_sleeping": told.there.is_none(),
    })
}

/// GET /slots: a place for each sequence that may run at once, of every model in memory, as many of them
/// taken as run; 503 where `fail_on_no_slot` is asked and none is free.
pub async fn slots(
    State(shared): State<Arc<Shared>>,
    Query(asked): Asked,
    headers: HeaderMap,
) -> Response {
    let name = asked.get("model").map(String::as_str);
    let all = shared.listed(&headers, name).await;
    if let (true, Some(name)) = (all.is_empty(), name) {
        return shared.unknown_to(&headers, name).into_response();
    }
    let there =
        all.iter().filter(|told| told.made.is_none()).filter_map(|told| told.there.as_ref());
    let mut slots: Vec<Value> = Vec::new();
    let mut free = 0;
    for there in there {
        let (stats, context) = (there.served.engine.stats(), Abilities::of(&there.served).context);
        for place in 0..stats.places {
            let is_taken = place < stats.running;
            free += u32::from(!is_taken);
            slots.push(json!({
                "id": slots.len(),
                "model": there.served.name(),
                "n_ctx": context,
                "is_processing": is_taken,
            }));
        }
    }
    match free == 0 && asked.contains_key("fail_on_no_slot") {
        true => {
            let message = "no slot is free";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).into_response()
        }
        false => Json(slots).into_response(),
    }
}

/// GET /lora-adapters: none.
pub async fn adapters() -> Response {
    Json(json!([])).into_response()
}

/// POST /lora-adapters
pub async fn set_adapters(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    let message = "lora: adapters are not supported";
    refused(&shared, request, "lora", message).await
}

/// POST /props
pub async fn set_props(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    let message =
        "props are not changed while the server runs; tokenmill serve --help lists its flags";
    refused(&shared, request, "props", message).await
}

/// POST /slots/{id}
pub async fn act_on_slot(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    let message = "slots are not saved, restored or erased: all requests share one cache of prompts, which \
                   tokenmill serve --kv-dir DIR keeps on disk";
    refused(&shared, request, "action", message).await
}

/// 501, once the request was read as any other.
async fn refused(
    shared: &Arc<Shared>,
    request: Request<Body>,
    param: &str,
    message: &str,
) -> Response {
    let party = shared.party(&request);
    if let Err(error) = body::read(request, shared, party).await {
        return error.into_response();
    }
    let status = StatusCode::NOT_IMPLEMENTED;
    ApiError { status, ..ApiError::unsupported(param, message) }.into_response()
}

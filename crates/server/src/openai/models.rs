//! The list of models.

use std::sync::Arc;

use axum::Json;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::model::ServedModel;
use crate::models::status;
use crate::residents::Told;
use crate::shared::Shared;
use crate::stock::{Abilities, Listed};

/// GET /v1/models: every model once, in memory or not.
pub async fn list(shared: &Arc<Shared>, headers: &HeaderMap) -> Response {
    let data: Vec<Value> = shared.listed(headers, None).await.iter().map(entry).collect();
    Json(json!({ "object": "list", "data": data })).into_response()
}

/// GET /v1/models/{id}: one of them, by any of its names; they may hold slashes.
pub async fn one(shared: &Arc<Shared>, headers: &HeaderMap, id: &str) -> Response {
    match shared.listed(headers, Some(id)).await.first() {
        Some(told) => Json(entry(told)).into_response(),
        None => shared.unknown_to(headers, id).into_response(),
    }
}

fn entry(told: &Told) -> Value {
    let Listed { id, aliases, created, .. } = &told.listed;
    let mut entry = json!({
        "id": id,
        "object": "model",
        "created": created,
        "owned_by": "tokenmill",
        "root": told.root.as_ref().map_or(id, |root| &root.id),
        "aliases": aliases,
        "status": status(told),
    });
    // The rest is in its files, which are read when it is asked for.
    if let Some(there) = &told.there {
        let model = &there.served;
        entry["max_model_len"] = model.context.min(model.engine.longest()).into();
        // A model that answers with numbers samples nothing.
        if model.engine.vocab() > 0 {
            entry["defaults"] = defaults(model);
            let seen: &[&str] = if Abilities::of(model).sees { &["image"] } else { &[] };
            entry["input_modalities"] = [&["text"], seen].concat().into();
        } else if model.eyes.is_some() {
            entry["input_modalities"] = json!(["text", "image"]);
        }
    }
    entry
}

/// What a request gets that says nothing.
fn defaults(model: &ServedModel) -> Value {
    let sampling = model.default_sampling();
    let p = &sampling.params;
    json!({
        "temperature": told(p.temperature),
        "top_k": p.top_k,
        "top_p": told(p.top_p),
        "min_p": told(p.min_p),
        "repetition_penalty": told(p.repetition_penalty),
        "presence_penalty": told(p.presence_penalty),
        "frequency_penalty": told(p.frequency_penalty),
        "seed": model.defaults.sampling.seed,
        "stop": sampling.stop,
        "max_completion_tokens": sampling.default_tokens.min(model.context),
        "system": model.defaults.system,
    })
}

/// The number as it was written: 0.8, not the 0.800000011920929 that 32 bits make of it.
pub(crate) fn told(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

//! The list of models.

use axum::Json;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::model::ServedModel;
use crate::shared::Shared;

/// GET /v1/models: every name of every model.
pub fn list(shared: &Shared, headers: &HeaderMap) -> Response {
    let entries = |model: &ServedModel| {
        let list: Vec<Value> = model.names.iter().map(|name| entry(model, name)).collect();
        list
    };
    let data: Vec<Value> =
        shared.models_for(headers).iter().flat_map(|m| entries(&m.served)).collect();
    Json(json!({ "object": "list", "data": data })).into_response()
}

/// GET /v1/models/{id}: one of them; names may hold slashes.
pub fn one(shared: &Shared, headers: &HeaderMap, id: &str) -> Response {
    match shared.model_for(headers, id) {
        Ok(model) => Json(entry(&model.served, id)).into_response(),
        Err(error) => error.into_response(),
    }
}

fn entry(model: &ServedModel, name: &str) -> Value {
    let mut entry = json!({
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "tokenmill",
        "root": model.name(),
        "max_model_len": model.context.min(model.engine.longest()),
    });
    // A model that answers with numbers samples nothing.
    if model.engine.vocab() > 0 {
        entry["defaults"] = defaults(model);
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
fn told(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

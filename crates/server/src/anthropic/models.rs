//! The list of models, for clients of either dialect.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokenmill_text::DateTime;

use super::speaks;
use crate::model::ServedModel;
use crate::openai;
use crate::shared::Shared;

/// GET /v1/models: every name of every model, as the dialect of who asks has it.
pub async fn list(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    if !speaks(&headers) {
        return openai::models::list(&shared, &headers);
    }
    let names = |model: &ServedModel| {
        let list: Vec<Value> = model.names.iter().map(|name| entry(model, name)).collect();
        list
    };
    let data: Vec<Value> =
        shared.models_for(&headers).iter().flat_map(|m| names(&m.served)).collect();
    let id = |entry: Option<&Value>| entry.map_or(Value::Null, |entry| entry["id"].clone());
    let (first, last) = (id(data.first()), id(data.last()));
    let list = json!({ "data": data, "has_more": false, "first_id": first, "last_id": last });
    Json(list).into_response()
}

/// GET /v1/models/{id}: one of them.
pub async fn one(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Response {
    if !speaks(&headers) {
        return openai::models::one(&shared, &headers, &id);
    }
    match shared.model_for(&headers, &id) {
        Ok(model) => Json(entry(&model.served, &id)).into_response(),
        Err(error) => error.into_response(),
    }
}

fn entry(model: &ServedModel, name: &str) -> Value {
    let context = model.context.min(model.engine.longest());
    json!({
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": DateTime::from_unix_seconds(model.created).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": context,
        "max_tokens": context,
    })
}

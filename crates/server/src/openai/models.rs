//! The list of models.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::model::ServedModel;
use crate::shared::Shared;

/// GET /v1/models: every name of every model.
pub async fn list(State(shared): State<Arc<Shared>>) -> Response {
    let entries = |model: &ServedModel| {
        let list: Vec<Value> = model.names.iter().map(|name| entry(model, name)).collect();
        list
    };
    let data: Vec<Value> = shared.models.iter().flat_map(|m| entries(&m.served)).collect();
    Json(json!({ "object": "list", "data": data })).into_response()
}

/// GET /v1/models/{id}: one of them; names may hold slashes.
pub async fn one(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Response {
    match shared.model(Some(&id)) {
        Ok(model) => Json(entry(&model.served, &id)).into_response(),
        Err(error) => error.into_response(),
    }
}

fn entry(model: &ServedModel, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "tokenmill",
        "root": model.name(),
        "max_model_len": model.context.min(model.engine.longest()),
    })
}

//! The list of models, for clients of either dialect.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokenmill_text::DateTime;

use super::speaks;
use crate::openai;
use crate::residents::Told;
use crate::shared::Shared;
use crate::stock::Listed;

/// GET /v1/models: every model, as the dialect of who asks has it.
pub async fn list(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    if !speaks(&headers) {
        return openai::models::list(&shared, &headers).await;
    }
    let data: Vec<Value> = shared.listed(&headers, None).await.iter().map(entry).collect();
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
        return openai::models::one(&shared, &headers, &id).await;
    }
    match shared.listed(&headers, Some(&id)).await.first() {
        Some(told) => Json(entry(told)).into_response(),
        None => shared.unknown_to(&headers, &id).into_response(),
    }
}

fn entry(told: &Told) -> Value {
    let Listed { id, created, .. } = &told.listed;
    let mut entry = json!({
        "type": "model",
        "id": id,
        "display_name": id,
        "created_at": DateTime::from_unix_seconds(*created).strftime("%Y-%m-%dT%H:%M:%SZ"),
    });
    // (Nobody has read how long the context is of a model that is not in memory.)
    if let Some(there) = &told.there {
        let context = there.served.context.min(there.served.engine.longest());
        (entry["max_input_tokens"], entry["max_tokens"]) = (context.into(), context.into());
    }
    entry
}

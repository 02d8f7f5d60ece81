//! Anthropic's message batches: requests that come together, answered one by one.

use std::collections::HashSet;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::HOST;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use serde_json::{Value, json};
use tokenmill_text::DateTime;

use crate::body;
use crate::error::ApiError;
use crate::fields::{Fields, list as items};
use crate::ollama::models::{fields_of, finish};
use crate::openai::files::sent;
use crate::shared::Shared;
use crate::state::{Batch, Dialect, NewBatch, Page, Shown, Stored, custom_id};

/// Seconds that a batch may take.
const WINDOW_S: u64 = 24 * 3600;
/// Most characters of a request's name.
const NAME_CHARS: usize = 64;
/// Where a request of a batch would have been sent.
const ENDPOINT: &str = "/v1/messages";

/// A time in RFC 3339; null where there is none.
fn time(seconds: &Value) -> Value {
    let text = |at| DateTime::from_unix_seconds(at).strftime("%Y-%m-%dT%H:%M:%SZ");
    seconds.as_u64().map(text).into()
}

/// A batch as Anthropic tells it; `site`: by what scheme and name this server was asked.
fn told(batch: Batch, site: &str) -> Value {
    let has_ended = batch.has_ended();
    let Batch { id, status, body, total, completed, failed } = batch;
    let rest = total.saturating_sub(completed).saturating_sub(failed);
    let when = |is_so: bool| if is_so { rest } else { 0 };
    let processing = match status.as_str() {
        "cancelling" => "canceling",
        _ if has_ended => "ended",
        _ => "in_progress",
    };
    let ended = ["completed_at", "cancelled_at", "expired_at"].map(|name| &body[name]);
    let ended = ended.into_iter().find(|at| at.is_u64()).unwrap_or(&Value::Null);
    let results = format!("{site}/v1/messages/batches/{id}/results");
    json!({
        "id": id, "type": "message_batch", "processing_status": processing,
        "request_counts": {
            "processing": when(!has_ended), "succeeded": completed, "errored": failed,
            "canceled": when(status == "cancelled"), "expired": when(status == "expired"),
        },
        "created_at": time(&body["created_at"]), "expires_at": time(&body["expires_at"]),
        "ended_at": time(ended), "archived_at": null,
        "cancel_initiated_at": time(&body["cancelling_at"]),
        "results_url": has_ended.then_some(results),
    })
}

fn site_of(shared: &Shared, headers: &HeaderMap) -> String {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let scheme = if shared.config.tls.is_some() { "https" } else { "http" };
    format!("{scheme}://{host}")
}

/// The requests, each with a name of its own.
fn requests(value: Value, most: usize) -> Result<Vec<(String, Value)>, ApiError> {
    let list = items(value, most, "requests")?;
    if list.is_empty() {
        return Err(ApiError::bad("requests", "requests is empty"));
    }
    let mut names = HashSet::new();
    let mut read = Vec::with_capacity(list.len());
    for (i, request) in list.into_iter().enumerate() {
        let path = format!("requests[{i}]");
        let mut fields = Fields::of(request, &path)?;
        let name = custom_id(&fields.require("custom_id")?, NAME_CHARS);
        let path = fields.path("custom_id");
        let name = name.map_err(|why| ApiError::bad(&path, format!("{path}: {why}")))?;
        if !names.insert(name.clone()) {
            let message = format!("{path}: the custom_id {name:?} is another request's too");
            return Err(ApiError::bad(path, message));
        }
        let params = fields.require("params")?;
        if !params.is_object() {
            let path = fields.path("params");
            return Err(ApiError::bad(&path, format!("{path} must be an object")));
        }
        read.push((name, params));
    }
    Ok(read)
}

/// POST /v1/messages/batches
pub async fn create(
    State(shared): State<Arc<Shared>>,
    stored: Result<Stored, ApiError>,
    request: Request<Body>,
) -> Shown {
    shared.open()?;
    let site = site_of(&shared, request.headers());
    let mut fields = fields_of(&shared, request).await?;
    let stored = stored?;
    let requests = requests(fields.require("requests")?, shared.config.limits.batch_lines)?;
    finish(&shared, fields, &[])?;
    let new = NewBatch { body: json!({}), endpoint: ENDPOINT.to_owned(), within_s: WINDOW_S };
    let owner = stored.owner;
    let state = Arc::clone(&stored.state);
    let made = stored.run(move |_, _| state.new_message_batch(owner, &requests, new)).await?;
    Ok(Json(told(made, &site)))
}

/// GET /v1/messages/batches
pub async fn list(
    State(shared): State<Arc<Shared>>,
    stored: Stored,
    uri: Uri,
    headers: HeaderMap,
) -> Shown {
    let site = site_of(&shared, &headers);
    let page = Page::of(&uri, (1, 20, 1000), ("after_id", "before_id"))?;
    let found = stored.run(move |state, owner| state.batches(owner, Dialect::Anthropic, &page));
    let (batches, has_more) = found.await?;
    let id = |batch: Option<&Batch>| batch.map(|batch| batch.id.clone());
    let (first, last) = (id(batches.first()), id(batches.last()));
    let data: Vec<Value> = batches.into_iter().map(|batch| told(batch, &site)).collect();
    Ok(Json(json!({ "data": data, "has_more": has_more, "first_id": first, "last_id": last })))
}

/// GET /v1/messages/batches/{id}
pub async fn one(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    stored: Stored,
    headers: HeaderMap,
) -> Shown {
    let site = site_of(&shared, &headers);
    let found = stored.run(move |state, owner| state.batch(owner, Dialect::Anthropic, &id));
    Ok(Json(told(found.await?, &site)))
}

/// POST /v1/messages/batches/{id}/cancel
pub async fn cancel(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    stored: Result<Stored, ApiError>,
    request: Request<Body>,
) -> Shown {
    let site = site_of(&shared, request.headers());
    body::unread(request, &shared).await?;
    let stored = stored?;
    let cancelled =
        stored.run(move |state, owner| state.cancel_batch(owner, Dialect::Anthropic, &id));
    Ok(Json(told(cancelled.await?, &site)))
}

/// DELETE /v1/messages/batches/{id}
pub async fn remove(Path(id): Path<String>, stored: Stored) -> Shown {
    let told = json!({ "id": id, "type": "message_batch_deleted" });
    stored.run(move |state, owner| state.delete_message_batch(owner, &id)).await?;
    Ok(Json(told))
}

/// GET /v1/messages/batches/{id}/results
pub async fn results(Path(id): Path<String>, stored: Stored) -> Result<Response, ApiError> {
    let file = stored.run(move |state, owner| state.batch_results(owner, &id)).await?;
    Ok(sent(file, "application/x-jsonl"))
}

//! OpenAI's batches: the requests of a file, answered into another one.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::Uri;
use serde_json::{Value, json};

use super::responses::metadata;
use crate::body;
use crate::error::ApiError;
use crate::fields::{Ignored, shown, text};
use crate::ollama::models::{fields_of, finish};
use crate::routes::{LINES, lines_of};
use crate::shared::Shared;
use crate::state::{Batch, Dialect, NewBatch, Page, Paged, Shown, Stored};

/// Seconds of `24h`, the only window there is.
const WINDOW_S: u64 = 24 * 3600;

/// Members that change nothing here.
const IGNORED: &[Ignored] = &[Ignored {
    name: "output_expires_after",
    because: "files stay as long as this server keeps things",
}];

/// A batch as OpenAI tells it.
fn told(batch: Batch) -> Value {
    let Batch { status, mut body, total, completed, failed, .. } = batch;
    body["status"] = status.into();
    body["request_counts"] = json!({ "total": total, "completed": completed, "failed": failed });
    body
}

/// POST /v1/batches
pub async fn create(
    State(shared): State<Arc<Shared>>,
    stored: Result<Stored, ApiError>,
    request: Request<Body>,
) -> Shown {
    shared.open()?;
    let mut fields = fields_of(&shared, request).await?;
    let stored = stored?;
    let input = text(fields.require("input_file_id")?, "input_file_id")?;
    let endpoint = text(fields.require("endpoint")?, "endpoint")?;
    let is_openai = lines_of(&endpoint).is_some() && !endpoint.starts_with("/v1/messages");
    if !is_openai {
        let known = LINES.iter().map(|(path, ..)| *path).filter(|path| *path != "/v1/messages");
        let known = known.collect::<Vec<_>>().join(", ");
        let message = format!("endpoint is {:?}: batches are for {known}", shown(&endpoint));
        return Err(ApiError::unsupported("endpoint", message));
    }
    let window = text(fields.require("completion_window")?, "completion_window")?;
    if window != "24h" {
        let message = "completion_window must be \"24h\"";
        return Err(ApiError::unsupported("completion_window", message));
    }
    let metadata = metadata(&fields)?;
    fields.take("metadata");
    let warnings = finish(&shared, fields, IGNORED)?;
    let mut body = json!({
        "id": null, "object": "batch", "endpoint": endpoint, "errors": null,
        "input_file_id": input, "completion_window": window, "status": null,
        "output_file_id": null, "error_file_id": null, "created_at": null,
        "in_progress_at": null, "expires_at": null, "finalizing_at": null, "completed_at": null,
        "failed_at": null, "expired_at": null, "cancelling_at": null, "cancelled_at": null,
        "request_counts": null, "metadata": metadata,
    });
    if !warnings.is_empty() {
        body["warnings"] = json!(warnings);
    }
    let new = NewBatch { body, endpoint, within_s: WINDOW_S };
    stored.run(move |state, owner| state.new_batch(owner, &input, new)).await.map(told).map(Json)
}

/// GET /v1/batches
pub async fn list(stored: Stored, uri: Uri) -> Shown {
    let page = Page::of(&uri, (1, 20, 100), ("after", "before"))?;
    let found = stored.run(move |state, owner| state.batches(owner, Dialect::OpenAi, &page));
    let (batches, has_more) = found.await?;
    let rows = batches.into_iter().map(|batch| (batch.id.clone(), told(batch))).collect();
    Ok(Json(Paged { rows, has_more }.told()))
}

/// GET /v1/batches/{id}
pub async fn one(Path(id): Path<String>, stored: Stored) -> Shown {
    let found = stored.run(move |state, owner| state.batch(owner, Dialect::OpenAi, &id)).await;
    found.map(told).map(Json)
}

/// POST /v1/batches/{id}/cancel
pub async fn cancel(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    stored: Result<Stored, ApiError>,
    request: Request<Body>,
) -> Shown {
    body::unread(request, &shared).await?;
    let cancelled =
        stored?.run(move |state, owner| state.cancel_batch(owner, Dialect::OpenAi, &id)).await;
    cancelled.map(told).map(Json)
}

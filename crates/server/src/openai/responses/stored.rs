//! Answers that are kept: asked for again, cancelled, deleted.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::Uri;
use serde_json::json;

use crate::body;
use crate::error::ApiError;
use crate::shared::Shared;
use crate::state::{Page, Shown, Stored, query};

/// GET /v1/responses/{id}
pub async fn one(Path(id): Path<String>, stored: Stored, uri: Uri) -> Shown {
    if query(&uri)?.get("stream").is_some_and(|stream| stream == "true") {
        let message = "stream: an answer that is kept is told as a whole: ask without stream";
        return Err(ApiError::unsupported("stream", message));
    }
    stored.run(move |state, owner| state.get_response(owner, &id)).await.map(Json)
}

/// DELETE /v1/responses/{id}
pub async fn remove(Path(id): Path<String>, stored: Stored) -> Shown {
    let told = json!({ "id": id, "object": "response.deleted", "deleted": true });
    stored.run(move |state, owner| state.delete_response(owner, &id)).await?;
    Ok(Json(told))
}

/// POST /v1/responses/{id}/cancel
pub async fn cancel(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    stored: Result<Stored, ApiError>,
    request: Request<Body>,
) -> Shown {
    body::unread(request, &shared).await?;
    stored?.run(move |state, owner| state.cancel_response(owner, &id)).await.map(Json)
}

/// GET /v1/responses/{id}/input_items
pub async fn input_items(Path(id): Path<String>, stored: Stored, uri: Uri) -> Shown {
    let page = Page::of(&uri, (1, 20, 100), ("after", "before"))?;
    let found = stored.run(move |state, owner| state.input_items(owner, &id, &page)).await?;
    Ok(Json(found.told()))
}

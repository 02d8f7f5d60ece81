//! Answers that are kept: asked for again, cancelled, deleted.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::body;
use crate::error::ApiError;
use crate::shared::Shared;
use crate::state::{Page, Stored, query};

type Shown = Result<Json<Value>, ApiError>;

fn stored(shared: &Shared, request: &Request<Body>) -> Result<Stored, ApiError> {
    Stored::of(shared, request, "responses").map_err(|_| {
        let message = "this server stores no responses: send what was said as input, or start it with \
                       --state DIR";
        ApiError { code: Some("response_not_found"), ..ApiError::new(StatusCode::NOT_FOUND, message) }
    })
}

/// GET /v1/responses/{id}
pub async fn one(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    request: Request<Body>,
) -> Shown {
    let stored = stored(&shared, &request)?;
    if query(request.uri())?.get("stream").is_some_and(|stream| stream == "true") {
        let message = "stream: an answer that is kept is told as a whole: ask without stream";
        return Err(ApiError::unsupported("stream", message));
    }
    stored.run(move |state, owner| state.get_response(owner, &id)).await.map(Json)
}

/// DELETE /v1/responses/{id}
pub async fn remove(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    request: Request<Body>,
) -> Shown {
    let stored = stored(&shared, &request)?;
    let told = json!({ "id": id, "object": "response.deleted", "deleted": true });
    stored.run(move |state, owner| state.delete_response(owner, &id)).await?;
    Ok(Json(told))
}

/// POST /v1/responses/{id}/cancel
pub async fn cancel(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    request: Request<Body>,
) -> Shown {
    let stored = stored(&shared, &request);
    body::unread(request, &shared).await?;
    stored?.run(move |state, owner| state.cancel_response(owner, &id)).await.map(Json)
}

/// GET /v1/responses/{id}/input_items
pub async fn input_items(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    request: Request<Body>,
) -> Shown {
    let stored = stored(&shared, &request)?;
    let page = Page::of(request.uri(), (1, 20, 100), ("after", "before"))?;
    let found = stored.run(move |state, owner| state.input_items(owner, &id, &page)).await?;
    Ok(Json(found.told()))
}

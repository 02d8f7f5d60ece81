//! OpenAI's conversations: items that answers are added to, where this server keeps them.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::Uri;
use serde_json::{Value, json};

use super::responses::{check_items, metadata};
use crate::error::ApiError;
use crate::fields::{Fields, Notes, list};
use crate::ollama::models::{fields_of, finish};
use crate::shared::Shared;
use crate::state::{Page, Paged, Shown, Stored, with_ids};

/// Most items that come in one request.
const MOST_ITEMS: usize = 20;

/// The items of a request, checked, as they are kept.
fn items(
    shared: &Shared,
    fields: &mut Fields,
    stored: &Stored,
) -> Result<(Vec<Value>, Vec<String>), ApiError> {
    let Some(items) = fields.take("items") else { return Ok((Vec::new(), Vec::new())) };
    let items = Value::from(list(items, MOST_ITEMS, "items")?);
    let mut notes = Notes::new(shared.gate().strict);
    check_items(items.clone(), &shared.config.limits, &mut notes).map_err(|error| {
        let param = error.param.map(|param| param.replacen("input", "items", 1));
        ApiError { param, message: error.message.replacen("input[", "items[", 1), ..error }
    })?;
    Ok((with_ids(items, &stored.state), shared.told(notes)))
}

/// An object, with what of its request had no effect.
fn told(mut object: Value, warnings: Vec<String>) -> Json<Value> {
    if !warnings.is_empty() {
        object["warnings"] = json!(warnings);
    }
    Json(object)
}

/// POST /v1/conversations
pub async fn create(
    State(shared): State<Arc<Shared>>,
    stored: Result<Stored, ApiError>,
    request: Request<Body>,
) -> Shown {
    let mut fields = fields_of(&shared, request).await?;
    let stored = stored?;
    let (items, mut warnings) = items(&shared, &mut fields, &stored)?;
    let metadata = metadata(&fields)?;
    fields.take("metadata");
    warnings.extend(finish(&shared, fields, &[])?);
    let made =
        stored.run(move |state, owner| state.new_conversation(owner, &metadata, &items)).await?;
    Ok(told(made, warnings))
}

/// GET /v1/conversations/{id}
pub async fn one(Path(id): Path<String>, stored: Stored) -> Shown {
    stored.run(move |state, owner| state.conversation(owner, &id)).await.map(Json)
}

/// POST /v1/conversations/{id}: other metadata.
pub async fn update(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    stored: Result<Stored, ApiError>,
    request: Request<Body>,
) -> Shown {
    let mut fields = fields_of(&shared, request).await?;
    let stored = stored?;
    let metadata = metadata(&fields)?;
    fields.take("metadata");
    let warnings = finish(&shared, fields, &[])?;
    let made =
        stored.run(move |state, owner| state.update_conversation(owner, &id, &metadata)).await?;
    Ok(told(made, warnings))
}

/// DELETE /v1/conversations/{id}
pub async fn remove(Path(id): Path<String>, stored: Stored) -> Shown {
    let told = json!({ "id": id, "object": "conversation.deleted", "deleted": true });
    stored.run(move |state, owner| state.delete_conversation(owner, &id)).await?;
    Ok(Json(told))
}

/// GET /v1/conversations/{id}/items
pub async fn list_items(Path(id): Path<String>, stored: Stored, uri: Uri) -> Shown {
    let page = Page::of(&uri, (1, 20, 100), ("after", "before"))?;
    let found = stored.run(move |state, owner| state.list_items(owner, &id, &page)).await?;
    Ok(Json(found.told()))
}

/// POST /v1/conversations/{id}/items
pub async fn add_items(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    stored: Result<Stored, ApiError>,
    request: Request<Body>,
) -> Shown {
    let mut fields = fields_of(&shared, request).await?;
    let stored = stored?;
    let (items, mut warnings) = items(&shared, &mut fields, &stored)?;
    warnings.extend(finish(&shared, fields, &[])?);
    if items.is_empty() {
        return Err(ApiError::bad("items", "items is missing or empty"));
    }
    let kept = stored.run(move |state, owner| state.add_items(owner, &id, &items)).await?;
    let id = |item: &Value| item["id"].as_str().unwrap_or_default().to_owned();
    let rows = kept.into_iter().map(|item| (id(&item), item)).collect();
    Ok(told(Paged { rows, has_more: false }.told(), warnings))
}

/// GET /v1/conversations/{id}/items/{item}
pub async fn item(Path((id, item)): Path<(String, String)>, stored: Stored) -> Shown {
    stored.run(move |state, owner| state.item(owner, &id, &item)).await.map(Json)
}

/// DELETE /v1/conversations/{id}/items/{item}
pub async fn remove_item(Path((id, item)): Path<(String, String)>, stored: Stored) -> Shown {
    stored.run(move |state, owner| state.delete_item(owner, &id, &item)).await.map(Json)
}

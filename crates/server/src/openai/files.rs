//! OpenAI's files: what batches read and write, where this server keeps them.

use std::convert::Infallible;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HeaderName};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use multer::{Constraints, Field, Multipart, SizeLimit};
use serde_json::json;
use tokio::task::block_in_place;
use tokio::time::timeout;

use crate::error::ApiError;
use crate::fields::shown;
use crate::shared::Shared;
use crate::state::{NewFile, Page, Shown, Stored, Upload, query};

/// What a file may be uploaded for: the lines of a batch, or anything the client asks back.
const PURPOSES: &[&str] = &["batch", "user_data"];
/// Seconds that a file may say it stays: an hour to thirty days.
const TTL_S: std::ops::RangeInclusive<u64> = 3600..=30 * 24 * 3600;
/// Bytes of the parts of a form that are no file.
const WORD_BYTES: u64 = 4096;
/// Most characters of a file's name.
const NAME_CHARS: usize = 255;
/// Bytes of a file that are sent at once.
const CHUNK: usize = 64 << 10;

/// What of a form has come.
#[derive(Default)]
struct Form {
    purpose: Option<String>,
    seconds: Option<u64>,
    file: Option<(Upload, String)>,
}

/// POST /v1/files: a form with the file and its purpose.
pub async fn upload(
    State(shared): State<Arc<Shared>>,
    stored: Stored,
    request: Request<Body>,
) -> Shown {
    shared.open()?;
    let form = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let boundary = multer::parse_boundary(form.unwrap_or_default()).map_err(|_| {
        let message = "the content-type must be multipart/form-data with a boundary";
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    })?;
    let most = shared.config.limits.file_bytes.saturating_add(16 * WORD_BYTES);
    let limits = SizeLimit::new().whole_stream(most);
    let chunks = request.into_body().into_data_stream();
    let mut parts =
        Multipart::with_constraints(chunks, boundary, Constraints::new().size_limit(limits));
    let patience = shared.config.timeouts.header;
    let mut form = Form::default();
    let late = || ApiError::new(StatusCode::REQUEST_TIMEOUT, "the file stopped coming");
    while let Some(part) =
        timeout(patience, parts.next_field()).await.map_err(|_| late())?.map_err(broken)?
    {
        let taken = form.take(part, &stored, patience);
        taken.await?;
    }
    let purpose = form.purpose.ok_or_else(|| ApiError::bad("purpose", "purpose is missing"))?;
    let (file, name) = form.file.ok_or_else(|| ApiError::bad("file", "file is missing"))?;
    let new = NewFile { name, purpose, ttl_s: form.seconds, is_listed: true };
    stored.run(move |_, _| file.end(&new)).await.map(Json)
}

impl Form {
    async fn take(
        &mut self,
        mut part: Field<'_>,
        stored: &Stored,
        patience: std::time::Duration,
    ) -> Result<(), ApiError> {
        let name = part.name().unwrap_or_default().to_owned();
        let mut upload = None;
        if name == "file" {
            if self.file.is_some() {
                return Err(ApiError::bad("file", "file: there are two of them"));
            }
            let called = part.file_name().unwrap_or("file").chars().filter(|c| !c.is_control());
            let called: String = called.take(NAME_CHARS).collect();
            upload = Some((block_in_place(|| stored.state.upload(stored.owner))?, called));
        }
        let mut word = Vec::new();
        let late = |_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the file stopped coming");
        while let Some(some) =
            timeout(patience, part.chunk()).await.map_err(late)?.map_err(broken)?
        {
            match &mut upload {
                Some((upload, _)) => block_in_place(|| upload.push(&some))?,
                None if (word.len() + some.len()) as u64 > WORD_BYTES => {
                    let name = shown(&name);
                    let message = format!("{name} has more than {WORD_BYTES} bytes");
                    return Err(ApiError::bad(name, message));
                }
                None => word.extend_from_slice(&some),
            }
        }
        if upload.is_some() {
            self.file = upload;
            return Ok(());
        }
        self.word(&name, &String::from_utf8_lossy(&word))
    }

    /// A part that is a word.
    fn word(&mut self, name: &str, word: &str) -> Result<(), ApiError> {
        match name {
            "purpose" if PURPOSES.contains(&word) => self.purpose = Some(word.to_owned()),
            "purpose" => {
                let (word, known) = (shown(word), PURPOSES.join(", "));
                let message = format!("purpose is {word:?}: this server takes files for {known}");
                return Err(ApiError::unsupported("purpose", message));
            }
            "expires_after[anchor]" if word == "created_at" => {}
            "expires_after[seconds]" => {
                let found = word.parse().ok().filter(|seconds| TTL_S.contains(seconds));
                let (least, most) = (TTL_S.start(), TTL_S.end());
                self.seconds = Some(found.ok_or_else(|| {
                    let message = format!("{name} must be a number from {least} to {most}");
                    ApiError::bad(name, message)
                })?);
            }
            _ => {
                let name = shown(name);
                let message = format!("{name} with this value is no part of this form");
                return Err(ApiError::bad(name, message));
            }
        }
        Ok(())
    }
}

fn broken(error: multer::Error) -> ApiError {
    match error {
        multer::Error::StreamSizeExceeded { limit } => {
            let message = format!("the form has more than {limit} bytes");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        }
        error => ApiError::bad("body", format!("the body is no whole form: {error}")),
    }
}

/// GET /v1/files
pub async fn list(stored: Stored, uri: Uri) -> Shown {
    let page = Page::of(&uri, (1, 10_000, 10_000), ("after", "before"))?;
    let purpose = query(&uri)?.remove("purpose");
    let found =
        stored.run(move |state, owner| state.files(owner, purpose.as_deref(), &page)).await?;
    Ok(Json(found.told()))
}

/// GET /v1/files/{id}
pub async fn one(Path(id): Path<String>, stored: Stored) -> Shown {
    stored.run(move |state, owner| state.file_object(owner, &id)).await.map(Json)
}

/// DELETE /v1/files/{id}
pub async fn remove(Path(id): Path<String>, stored: Stored) -> Shown {
    let told = json!({ "id": id, "object": "file", "deleted": true });
    stored.run(move |state, owner| state.delete_file(owner, &id)).await?;
    Ok(Json(told))
}

/// GET /v1/files/{id}/content
pub async fn content(Path(id): Path<String>, stored: Stored) -> Result<Response, ApiError> {
    let (file, _) = stored.run(move |state, owner| state.file_content(owner, &id)).await?;
    Ok(sent(file, "application/octet-stream"))
}

/// A file as a body, a piece at a time. No browser takes it for a page.
pub(crate) fn sent(file: File, media: &'static str) -> Response {
    let chunks = unfold(Some(file), |file| async move {
        let mut file = file?;
        let mut chunk = vec![0; CHUNK];
        match block_in_place(|| file.read(&mut chunk)) {
            Ok(0) => None,
            Ok(some) => {
                chunk.truncate(some);
                Some((Ok::<_, Infallible>(Bytes::from(chunk)), Some(file)))
            }
            Err(error) => {
                tracing::error!(%error, "a file broke off");
                None
            }
        }
    });
    let headers = [
        (CONTENT_TYPE, media),
        (CONTENT_DISPOSITION, "attachment"),
        (HeaderName::from_static("x-content-type-options"), "nosniff"),
    ];
    (headers, Body::from_stream(chunks)).into_response()
}

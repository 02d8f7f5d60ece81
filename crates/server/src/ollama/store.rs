//! Models that come and go for everybody: pulled, created of others, copied and deleted.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::{Map, Value, json};
use tokenmill_engine::residency::Trouble;
use tokio::sync::mpsc;

use super::models::{fields_of, finish, name_of};
use super::{error_body, messages, options};
use crate::conversation::Message;
use crate::error::ApiError;
use crate::fields::{Fields, Ignored, Notes, Unsupported, list, shown, text, wrong};
use crate::made::Made;
use crate::models::{let_go, may_change};
use crate::openai::parameters::is_empty_list;
use crate::shared::{Shared, unix_seconds};
use crate::stock::{Fetching, Recipe};

/// Lines that a slow reader may leave unread; more are left out.
const LINES: usize = 256;
/// Longest name of a model that is made, bytes.
const NAME_BYTES: usize = 256;

/// Members of requests for models that change no answer here.
const IGNORED: &[Ignored] = &[
    Ignored { name: "insecure", because: "registries are asked over TLS" },
    Ignored { name: "password", because: "registries are asked without a name" },
    Ignored { name: "username", because: "registries are asked without a name" },
];

/// What is not made of models here, unless nothing is asked for.
const UNBUILT: &[Unsupported] = &[
    Unsupported { name: "adapters", neutral: is_empty },
    Unsupported { name: "draft_files", neutral: is_empty },
    Unsupported { name: "draft_quantize", neutral: is_empty },
    Unsupported { name: "files", neutral: is_empty },
    Unsupported { name: "info", neutral: is_empty },
    Unsupported { name: "parser", neutral: is_empty },
    Unsupported { name: "quantization", neutral: is_empty },
    Unsupported { name: "quantize", neutral: is_empty },
    Unsupported { name: "remote_host", neutral: is_empty },
    Unsupported { name: "renderer", neutral: is_empty },
    Unsupported { name: "requires", neutral: is_empty },
];

fn is_empty(value: &Value) -> bool {
    value.as_str().is_some_and(str::is_empty)
        || value.as_object().is_some_and(Map::is_empty)
        || is_empty_list(value)
}

/// A model that could not be fetched, made or deleted.
fn failed(trouble: Trouble) -> ApiError {
    let status = match trouble.of_files {
        true => StatusCode::BAD_REQUEST,
        false => StatusCode::INTERNAL_SERVER_ERROR,
    };
    ApiError::new(status, trouble.reason)
}

/// POST /api/pull: the model is here when it ends; how far it is meanwhile.
pub async fn pull(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    pulled(&shared, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn pulled(shared: &Arc<Shared>, request: Request<Body>) -> Result<Response, ApiError> {
    shared.open()?;
    may_change(&request, "models are fetched for everybody")?;
    let mut fields = fields_of(shared, request).await?;
    let name = name_of(&mut fields)?;
    let stream = fields.flag("stream")?.unwrap_or(true);
    let warnings = finish(shared, fields, IGNORED)?;
    let (sender, lines) = mpsc::channel(LINES);
    let state = Arc::clone(shared);
    let asking = sender.clone();
    // Who pulls the same meanwhile does so in its own name, and goes on with what came.
    let wanted = Arc::new(move || !asking.is_closed());
    let fetch = move || {
        let mut on = |how_far| {
            let _ = sender.try_send(Ok(status(&how_far))); // who reads slowly hears less
        };
        on(Fetching::Words("pulling manifest".to_owned()));
        let pull =
            AssertUnwindSafe(|| state.residents.pull(&name, &mut on, wanted).map_err(failed));
        let done = catch_unwind(pull).unwrap_or_else(|_| Err(ApiError::internal()));
        let last = done.map(|()| success(&warnings));
        let _ = sender.blocking_send(last); // who asked may have gone
    };
    let started = std::thread::Builder::new().name("pull".into()).spawn(fetch);
    started.map_err(|_| ApiError::internal())?;
    match stream {
        true => Ok(as_lines(lines)),
        false => last_of(lines).await.map(|line| Json(line).into_response()),
    }
}

type Line = Result<Value, ApiError>;

fn status(how_far: &Fetching) -> Value {
    match how_far {
        Fetching::Words(words) => json!({ "status": words }),
        Fetching::Bytes { file, done, total } => json!({
            "status": format!("pulling {file}"), "digest": file, "total": total, "completed": done,
        }),
    }
}

fn as_lines(lines: mpsc::Receiver<Line>) -> Response {
    let chunks = unfold(lines, |mut lines| async {
        let line = lines.recv().await?.unwrap_or_else(|error| error_body(&error));
        Some((Ok::<_, Infallible>(Bytes::from(format!("{line}\n"))), lines))
    });
    ([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(chunks)).into_response()
}

async fn last_of(mut lines: mpsc::Receiver<Line>) -> Line {
    let mut last = Err(ApiError::internal());
    while let Some(line) = lines.recv().await {
        last = line;
    }
    last
}

/// POST /api/push
pub async fn push(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    let refused = async {
        let mut fields = fields_of(&shared, request).await?;
        name_of(&mut fields)?;
        let message = "models are not pushed from here: a registry wants an account of its own";
        Err::<Response, _>(ApiError::unsupported("model", message))
    };
    refused.await.unwrap_or_else(IntoResponse::into_response)
}

/// POST /api/blobs/{digest}: files for a model that is created, which is made of another here.
pub async fn blob() -> Response {
    let message = "no files are taken: a model is created \"from\" one that is here (tokenmill serve FILE \
                   serves a file)";
    ApiError::unsupported("files", message).into_response()
}

/// DELETE /api/delete
pub async fn delete(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    deleted(&shared, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn deleted(shared: &Arc<Shared>, request: Request<Body>) -> Result<Response, ApiError> {
    shared.open()?;
    may_change(&request, "models are deleted for everybody")?;
    let headers = request.headers().clone();
    let mut fields = fields_of(shared, request).await?;
    let name = name_of(&mut fields)?;
    finish(shared, fields, IGNORED)?;
    let told = shared.listed(&headers, Some(&name)).await.pop();
    let told = told.ok_or_else(|| shared.unknown_to(&headers, &name))?;
    if told.made.is_none() && told.there.is_some() {
        shared.residents.changes().map_err(failed)?;
        let key = shared.gate().keys.caller(&headers).key;
        let_go(shared, Some(&told.listed.id), (key.as_deref(), true)).await?;
    }
    changed(shared, move |shared| shared.residents.remove(&told.listed.id)).await?;
    Ok(StatusCode::OK.into_response())
}

/// Does something to the models on a thread that may wait for a disk.
async fn changed(
    shared: &Arc<Shared>,
    change: impl FnOnce(&Shared) -> Result<(), Trouble> + Send + 'static,
) -> Result<(), ApiError> {
    let state = Arc::clone(shared);
    let done = tokio::task::spawn_blocking(move || change(&state)).await;
    done.unwrap_or_else(|_| {
        Err(Trouble { reason: "a bug; the server's log has the details".into(), of_files: false })
    })
    .map_err(failed)
}

/// POST /api/copy
pub async fn copy(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    copied(&shared, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn copied(shared: &Arc<Shared>, request: Request<Body>) -> Result<Response, ApiError> {
    shared.open()?;
    may_change(&request, "models are made for everybody")?;
    let headers = request.headers().clone();
    let mut fields = fields_of(shared, request).await?;
    let source = text(fields.require("source")?, "source")?;
    let name = text(fields.require("destination")?, "destination")?;
    finish(shared, fields, IGNORED)?;
    let recipe = Recipe { name, ..base(shared, &headers, &source).await? };
    made(shared, &headers, recipe, "destination").await?;
    Ok(StatusCode::OK.into_response())
}

/// What a model is made of that is made of this one.
async fn base(shared: &Arc<Shared>, headers: &HeaderMap, from: &str) -> Result<Recipe, ApiError> {
    let told = shared.listed(headers, Some(from)).await.pop();
    let told = told.ok_or_else(|| shared.unknown_to(headers, from))?;
    Ok(match &told.made {
        Some(made) => made.recipe.clone(),
        None => Recipe { from: told.listed.id, ..Recipe::default() },
    })
}

/// Keeps a recipe under its name with a tag.
async fn made(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    recipe: Recipe,
    param: &'static str,
) -> Result<(), ApiError> {
    let name = checked(&recipe.name, param)?;
    let told = shared.listed(headers, Some(&name)).await.pop();
    if let Some(other) = told.filter(|told| told.made.is_none()) {
        let message = format!(
            "{param}: there is a model {:?} with files of its own, in whose place none is made",
            shown(&other.listed.id)
        );
        return Err(ApiError::bad(param, message));
    }
    let recipe = Recipe { name, created: unix_seconds(), ..recipe };
    Made::read(recipe.clone())?;
    changed(shared, move |shared| shared.residents.make(recipe)).await
}

/// A name with its tag: parts as Ollama has them.
fn checked(name: &str, param: &'static str) -> Result<String, ApiError> {
    let (path, tag) = match name.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, tag),
        _ => (name, "latest"),
    };
    let is_part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    match name.len() <= NAME_BYTES && path.split('/').all(is_part) && is_part(tag) {
        true => Ok(format!("{path}:{tag}")),
        false => {
            let message =
                format!("{param} is {:?}: [namespace/]model[:tag] is the form", shown(name));
            Err(ApiError::bad(param, message))
        }
    }
}

/// POST /api/create: a model of another one by other words.
pub async fn create(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    created(&shared, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn created(shared: &Arc<Shared>, request: Request<Body>) -> Result<Response, ApiError> {
    shared.open()?;
    may_change(&request, "models are made for everybody")?;
    let headers = request.headers().clone();
    let mut fields = fields_of(shared, request).await?;
    let name = name_of(&mut fields)?;
    let stream = fields.flag("stream")?.unwrap_or(true);
    let from = fields.text("from")?.filter(|from| !from.is_empty());
    fields.refuse(UNBUILT)?;
    let from = from.ok_or_else(|| {
        ApiError::bad("from", "from is missing: a model is created of one that is here")
    })?;
    let words = words(&mut fields, &shared.config.limits)?;
    let mut warnings = finish(shared, fields, IGNORED)?;
    let mut notes = Notes::new(shared.gate().strict);
    let parameters = Fields::of(words.parameters.clone().into(), "parameters")?;
    options::read(parameters, &shared.config.limits, &mut notes)?;
    warnings.extend(shared.told(notes));
    let recipe = Recipe { name, ..words.over(base(shared, &headers, &from).await?) };
    made(shared, &headers, recipe, "model").await?;
    let last = success(&warnings);
    if !stream {
        return Ok(Json(last).into_response());
    }
    let before =
        ["using existing layers", "writing manifest"].map(|status| json!({ "status": status }));
    let text: String = before.iter().chain([&last]).map(|line| format!("{line}\n")).collect();
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], text).into_response())
}

/// The last word of what went well.
fn success(warnings: &[String]) -> Value {
    match warnings {
        [] => json!({ "status": "success" }),
        told => json!({ "status": "success", "warnings": told }),
    }
}

/// What a model is created with.
#[derive(Debug, Default)]
struct Words {
    parameters: Map<String, Value>,
    template: Option<String>,
    system: Option<String>,
    messages: Option<Vec<(String, String)>>,
    license: Vec<String>,
}

impl Words {
    /// These, and where they are silent those of the model that it is created from.
    fn over(self, base: Recipe) -> Recipe {
        let mut parameters = base.parameters;
        parameters.extend(self.parameters);
        Recipe {
            parameters,
            template: self.template.or(base.template),
            system: self.system.or(base.system),
            messages: self.messages.unwrap_or(base.messages),
            license: if self.license.is_empty() { base.license } else { self.license },
            ..base
        }
    }
}

fn words(fields: &mut Fields, limits: &crate::config::Limits) -> Result<Words, ApiError> {
    let template = fields.text("template")?.filter(|text| !text.trim().is_empty());
    let parameters = match fields.take("parameters") {
        None => Map::new(),
        Some(Value::Object(parameters)) => parameters,
        Some(other) => return Err(wrong("parameters", "an object", &other)),
    };
    let license = match fields.take("license") {
        None => Vec::new(),
        Some(Value::String(one)) => vec![one],
        Some(several) => {
            let items = list(several, limits.inputs, "license")?;
            items.into_iter().map(|item| text(item, "license")).collect::<Result<_, _>>()?
        }
    };
    let mut notes = Notes::new(true);
    let read = |value| messages::read(value, limits, &mut notes);
    let messages = fields.take("messages").map(read).transpose()?;
    let shown = |all: &Vec<Message>| all.iter().find_map(|m| m.content.images().next().cloned());
    if let Some(image) = messages.as_ref().and_then(shown) {
        let message = format!("{} is an image; models begin with texts alone", image.path);
        return Err(ApiError::unsupported(&image.path, message));
    }
    let said = |message: &Message| {
        let text: String = message.content.texts().collect();
        (message.role.name().to_owned(), text)
    };
    let messages = messages.map(|all| all.iter().map(said).collect());
    Ok(Words { parameters, template, system: fields.text("system")?, messages, license })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_tag_and_are_no_paths() {
        for (name, expect) in [
            ("mario", Some("mario:latest")),
            ("me/mario:v1.2", Some("me/mario:v1.2")),
            ("../mario", None),
            ("/etc/passwd", None),
            ("", None),
            ("a b", None),
            ("a:b:c", None),
            ("a:", None),
        ] {
            assert_eq!(checked(name, "model").ok().as_deref(), expect, "{name}");
        }
    }
}

//! What is told of models: all of them, those in memory, one in full; and the version.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokenmill_engine::Defaults;
use tokenmill_engine::residency::Stage;

use super::answer::time;
use super::{VERSION, told_name};
use crate::answering::parse;
use crate::body;
use crate::error::ApiError;
use crate::fields::{Fields, Ignored, Notes};
use crate::residents::Told;
use crate::shared::{Shared, unix_seconds};
use crate::stock::{Abilities, Card, Listed};

/// When a model goes that stays: clients want a time. A hundred years.
const FOR_EVER_S: u64 = 100 * 365 * 24 * 3600;

/// GET /api/version
pub async fn version() -> Response {
    Json(json!({ "version": VERSION })).into_response()
}

/// GET /api/tags: every model once, in memory or not.
pub async fn tags(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let all = shared.listed(&headers, None).await;
    let models = with_cards(&shared, all).await;
    let models: Vec<Value> = models.iter().map(|(told, card)| entry(told, card)).collect();
    Json(json!({ "models": models })).into_response()
}

/// GET /api/ps: those in memory.
pub async fn ps(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let mut all = shared.listed(&headers, None).await;
    let is_there = |stage| matches!(stage, Stage::Ready);
    // (What is made of one has nothing of its own in memory.)
    all.retain(|told| told.made.is_none() && is_there(told.status.stage) && told.there.is_some());
    let models = with_cards(&shared, all).await;
    let models: Vec<Value> = models.iter().map(|(told, card)| running(told, card)).collect();
    Json(json!({ "models": models })).into_response()
}

/// What stands in the models' files, which are read elsewhere.
async fn with_cards(shared: &Arc<Shared>, all: Vec<Told>) -> Vec<(Told, Card)> {
    let state = Arc::clone(shared);
    let read = move || {
        let card = |told: Told| {
            let card = state.residents.card(&told);
            (told, card)
        };
        all.into_iter().map(card).collect()
    };
    tokio::task::spawn_blocking(read).await.unwrap_or_default()
}

fn entry(told: &Told, card: &Card) -> Value {
    let Listed { id, created, bytes, .. } = &told.listed;
    let name = told_name(id);
    json!({
        "name": name,
        "model": name,
        "modified_at": time(*created),
        "size": bytes,
        "digest": digest(told),
        "details": details(told, card),
    })
}

fn running(told: &Told, card: &Card) -> Value {
    let mut entry = entry(told, card);
    let stays = |s: f64| unix_seconds().saturating_add(s.round() as u64);
    let expires = told.expires_in_s.map_or(unix_seconds() + FOR_EVER_S, stays);
    let context = told.there.as_ref().map(|there| Abilities::of(&there.served).context);
    entry["size"] = told.status.bytes.into();
    entry["expires_at"] = time(expires).into();
    // (Memory of a GPU's own is not told of here.)
    entry["size_vram"] = 0.into();
    entry["context_length"] = context.unwrap_or(0).into();
    entry
}

/// What tells a model from others: that of its files, else of its name.
fn digest(told: &Told) -> String {
    let Listed { id, digest, .. } = &told.listed;
    let mut text = digest.clone();
    if let Some(made) = &told.made {
        text = format!("{text} {}", json!(made.recipe));
    } else if digest.is_empty() {
        text.clone_from(id);
    } else {
        return text;
    }
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn details(told: &Told, card: &Card) -> Value {
    let families: Vec<&str> =
        Some(card.family.as_str()).filter(|f| !f.is_empty()).into_iter().collect();
    json!({
        "parent_model": told.made.as_ref().map_or("", |made| told_name(&made.recipe.from)),
        "format": card.format,
        "family": card.family,
        "families": families,
        "parameter_size": size(card.parameters),
        "quantization_level": card.quantization,
    })
}

/// A number of parameters as Ollama writes it.
fn size(parameters: u64) -> String {
    match parameters {
        0 => String::new(),
        n if n >= 1_000_000_000 => format!("{:.1}B", n as f64 / 1e9),
        n if n >= 1_000_000 => format!("{:.2}M", n as f64 / 1e6),
        n => format!("{:.2}K", n as f64 / 1e3),
    }
}

/// POST /api/show
pub async fn show(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    shown(&shared, request).await.unwrap_or_else(IntoResponse::into_response)
}

/// Members of a request for one model that change no answer here.
const IGNORED: &[Ignored] = &[
    Ignored { name: "options", because: "nothing is answered" },
    Ignored { name: "system", because: "nothing is answered" },
    Ignored { name: "template", because: "nothing is answered" },
];

async fn shown(shared: &Arc<Shared>, request: Request<Body>) -> Result<Response, ApiError> {
    let headers = request.headers().clone();
    let mut fields = fields_of(shared, request).await?;
    let name = name_of(&mut fields)?;
    // (The lists of a vocabulary are not told of.)
    let _ = fields.flag("verbose")?;
    let warnings = finish(shared, fields, IGNORED)?;
    let told = shared.listed(&headers, Some(&name)).await.pop();
    let told = told.ok_or_else(|| shared.unknown_to(&headers, &name))?;
    let state = Arc::clone(shared);
    let read = move || {
        let (card, abilities) = (state.residents.card(&told), state.residents.abilities(&told));
        page(&told, &card, abilities.unwrap_or_default())
    };
    let mut page = tokio::task::spawn_blocking(read).await.map_err(|_| ApiError::internal())?;
    if !warnings.is_empty() {
        page["warnings"] = json!(warnings);
    }
    Ok(Json(page).into_response())
}

/// The members of a body.
///
/// # Errors
/// 400 where it is no object.
pub async fn fields_of(shared: &Arc<Shared>, request: Request<Body>) -> Result<Fields, ApiError> {
    let party = shared.party(&request);
    let received = body::read(request, shared, party).await?;
    parse(shared, &received)
}

/// The name of a model, by its old member too.
///
/// # Errors
/// 400 where there is none.
pub fn name_of(fields: &mut Fields) -> Result<String, ApiError> {
    let old = fields.text("name")?;
    match fields.text("model")?.or(old) {
        Some(name) if !name.is_empty() => Ok(name),
        _ => Err(ApiError::bad("model", "model is missing")),
    }
}

/// Ends the reading; what of the request had no effect.
///
/// # Errors
/// Where the server is strict: 400 naming the first unknown member.
pub fn finish(
    shared: &Shared,
    fields: Fields,
    ignored: &[Ignored],
) -> Result<Vec<String>, ApiError> {
    let mut notes = Notes::new(shared.gate().strict);
    fields.finish(ignored, &mut notes)?;
    Ok(shared.told(notes))
}

/// All that is told of a model.
fn page(told: &Told, card: &Card, can: Abilities) -> Value {
    let parameters = parameters(&card.defaults);
    let mut info = Map::new();
    let family = if card.family.is_empty() { "model" } else { &card.family };
    info.insert("general.architecture".into(), family.into());
    if card.parameters > 0 {
        info.insert("general.parameter_count".into(), card.parameters.into());
    }
    info.insert(format!("{family}.context_length"), can.context.into());
    if card.width > 0 {
        info.insert(format!("{family}.embedding_length"), card.width.into());
    }
    let license = told.made.as_ref().map(|made| made.recipe.license.join("\n"));
    let messages = told.made.iter().flat_map(|made| &made.recipe.messages);
    let messages: Vec<Value> =
        messages.map(|(role, text)| json!({ "role": role, "content": text })).collect();
    let mut page = json!({
        "modelfile": modelfile(told, &card.defaults, &parameters),
        "parameters": listing(&parameters),
        "template": template(card, can),
        "details": details(told, card),
        "model_info": info,
        "capabilities": capabilities(can),
        "modified_at": time(told.listed.created),
    });
    if let Some(system) = &card.defaults.system {
        page["system"] = system.as_str().into();
    }
    if let Some(license) = license.filter(|text| !text.is_empty()) {
        page["license"] = license.into();
    }
    if !messages.is_empty() {
        page["messages"] = messages.into();
    }
    page
}

/// The template, which names `.Suffix` where text can be put in between: clients (Continue) look for this
/// word to know whether they may ask so.
fn template(card: &Card, can: Abilities) -> String {
    let text = card.template.as_deref().unwrap_or_default();
    let suffix = if can.infill { "{#- .Suffix: /api/generate takes a suffix -#}" } else { "" };
    format!("{suffix}{text}")
}

/// What a model can do, in Ollama's words and one of our own.
fn capabilities(can: Abilities) -> Vec<&'static str> {
    let pairs = [
        ("completion", !can.embeddings && !can.rerank && can.context > 0),
        // Where its template has no place for tools, they stand in its instructions.
        ("tools", can.chat),
        ("thinking", can.chat && can.thinking),
        ("insert", can.infill),
        ("vision", can.sees),
        ("embedding", can.embeddings),
        ("rerank", can.rerank),
    ];
    pairs.into_iter().filter(|(_, can)| *can).map(|(name, _)| name).collect()
}

/// The parameters that a model comes with, in Ollama's names and as a Modelfile writes them.
fn parameters(defaults: &Defaults) -> Vec<(&'static str, String)> {
    let said = &defaults.sampling;
    let number = |n: Option<f32>| n.map(|n| n.to_string());
    let count = |n: Option<u32>| n.map(|n| n.to_string());
    // (A count of all is -1 there.)
    let last_n = said.repeat_last_n.map(|n| i32::try_from(n).unwrap_or(-1).to_string());
    let all = [
        ("temperature", number(said.temperature)),
        ("top_k", count(said.top_k)),
        ("top_p", number(said.top_p)),
        ("min_p", number(said.min_p)),
        ("typical_p", number(said.typical_p)),
        ("mirostat", count(said.mirostat)),
        ("mirostat_tau", number(said.mirostat_tau)),
        ("mirostat_eta", number(said.mirostat_eta)),
        ("repeat_last_n", last_n),
        ("repeat_penalty", number(said.repeat_penalty)),
        ("presence_penalty", number(said.presence_penalty)),
        ("frequency_penalty", number(said.frequency_penalty)),
        ("seed", said.seed.map(|n| n.to_string())),
        ("num_predict", count(said.max_tokens)),
        ("num_ctx", count(defaults.context)),
    ];
    let lines = all.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let stops = said.stop.iter().flatten().map(|text| ("stop", json!(text).to_string()));
    lines.chain(stops).collect()
}

fn listing(parameters: &[(&str, String)]) -> String {
    let lines = parameters.iter().map(|(name, value)| format!("{name:<30} {value}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn modelfile(told: &Told, defaults: &Defaults, parameters: &[(&str, String)]) -> String {
    let from = told.made.as_ref().map_or(&told.listed.id, |made| &made.recipe.from);
    let mut text = format!("FROM {}\n", told_name(from));
    for (name, value) in parameters {
        text.push_str(&format!("PARAMETER {name} {value}\n"));
    }
    if let Some(system) = &defaults.system {
        text.push_str(&format!("SYSTEM \"\"\"{system}\"\"\"\n"));
    }
    if let Some(template) = told.made.as_ref().and_then(|made| made.recipe.template.as_ref()) {
        text.push_str(&format!("TEMPLATE \"\"\"{template}\"\"\"\n"));
    }
    for (role, said) in told.made.iter().flat_map(|made| &made.recipe.messages) {
        text.push_str(&format!("MESSAGE {role} \"\"\"{said}\"\"\"\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenmill_engine::SamplingValues;

    #[test]
    fn capabilities_are_words_that_clients_know() {
        let writes = Abilities { context: 512, ..Abilities::default() };
        for (can, words) in [
            (writes, vec!["completion"]),
            (
                Abilities { chat: true, thinking: true, ..writes },
                vec!["completion", "tools", "thinking"],
            ),
            (Abilities { chat: true, sees: true, ..writes }, vec!["completion", "tools", "vision"]),
            (Abilities { infill: true, ..writes }, vec!["completion", "insert"]),
            (Abilities { embeddings: true, rerank: true, ..writes }, vec!["embedding", "rerank"]),
        ] {
            assert_eq!(capabilities(can), words, "{can:?}");
        }
    }

    #[test]
    fn parameters_are_written_as_a_modelfile_has_them() {
        let sampling = SamplingValues {
            temperature: Some(0.2),
            max_tokens: Some(9),
            stop: Some(vec!["a\"\n".into()]),
            ..SamplingValues::default()
        };
        let defaults = Defaults { sampling, context: Some(4096), ..Defaults::default() };
        let text = listing(&parameters(&defaults));
        let words: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        let expect = [
            ["temperature", "0.2"],
            ["num_predict", "9"],
            ["num_ctx", "4096"],
            ["stop", "\"a\\\"\\n\""],
        ];
        assert_eq!(words, expect);
        let sizes = [0, 134_515_008, 7_615_616_512].map(size);
        assert_eq!(sizes, ["", "134.52M", "7.6B"]);
    }
}

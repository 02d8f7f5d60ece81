//! Rerank requests, as Cohere and Jina have them: documents in the order of their relevance to a
//! query. A reranker reads query and document together; of an embedding model the cosine is taken.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokenmill_engine::Rows;
use tokenmill_text::{Special, TokenizerError};

use super::embedding::Usage;
use super::parameters::{IGNORED, timeout};
use super::rows::{Asked, check};
use super::{not_encoded, reach};
use crate::error::ApiError;
use crate::fields::{Fields, Notes, list, text, wrong};
use crate::shared::Shared;
use crate::workshop::Wanted;

/// What the answer needs beside the rows.
pub struct Form {
    model: String,
    /// Whether a row is a score, not a vector.
    scores: bool,
    documents: Vec<String>,
    top: usize,
    with_documents: bool,
    warnings: Vec<String>,
}

/// Reads a rerank request and tokenises it.
///
/// # Errors
/// 400 and 404 of the request.
pub fn prepare(
    shared: &Shared,
    mut fields: Fields,
    wanted: Wanted<'_>,
) -> Result<Asked<Form>, ApiError> {
    let name = fields.text("model")?;
    let query = text(fields.require("query")?, "query")?;
    if query.is_empty() {
        return Err(ApiError::bad("query", "query is empty"));
    }
    let mut notes = Notes::new(shared.config.strict);
    let most = shared.config.limits.inputs;
    let documents = documents_of(fields.require("documents")?, most, &mut notes)?;
    let most = u32::try_from(documents.len()).unwrap_or(u32::MAX);
    let top = fields.integer("top_n", 1..=i64::from(u32::MAX))?;
    let top = top.and_then(|n| usize::try_from(n).ok()).unwrap_or(most as usize);
    let with_documents = fields.flag("return_documents")?.unwrap_or(false);
    let (user, timeout) = (fields.text("user")?, timeout(&mut fields)?);
    fields.finish(IGNORED, &mut notes)?;
    let warnings = shared.told(notes);
    let model = shared.model(name.as_deref())?.clone();
    let served = &model.served;
    if served.engine.vocab() > 0 {
        let message = format!("the model {:?} ranks no documents", served.name());
        return Err(ApiError::unsupported("model", message));
    }
    let scores = served.engine.width() == 1;
    let encoder = served.tokenizer.within(reach(&model, wanted));
    let plain = |text: &String| Ok((encoder.prompt(text, Special::Plain)?, None));
    let encoded: Result<Vec<_>, TokenizerError> = match scores {
        true => documents.iter().map(|d| encoder.pair(&query, d)).collect(),
        false => std::iter::once(&query).chain(&documents).map(plain).collect(),
    };
    let encoded = encoded.map_err(|e| not_encoded(e, &model, "documents"))?;
    let (inputs, seconds): (Vec<_>, Vec<_>) = encoded.into_iter().unzip();
    let of_documents = if scores { &inputs[..] } else { &inputs[1..] };
    check(&model, of_documents, "documents")?;
    check(&model, &inputs[..1], "query")?;
    let model_name = served.name().to_owned();
    let form = Form { model: model_name, scores, documents, top, with_documents, warnings };
    Ok(Asked { model, inputs, seconds, user, timeout, rest: form })
}

/// Strings, or objects with a `text`.
fn documents_of(value: Value, most: usize, notes: &mut Notes) -> Result<Vec<String>, ApiError> {
    let items = list(value, most, "documents")?;
    if items.is_empty() {
        return Err(ApiError::bad("documents", "documents is empty"));
    }
    let one = |(i, item): (usize, Value)| match item {
        Value::String(text) => Ok(text),
        Value::Object(_) => {
            let mut fields = Fields::of(item, &format!("documents[{i}]"))?;
            let found = text(fields.require("text")?, &fields.path("text"))?;
            fields.finish(&[], notes)?;
            Ok(found)
        }
        other => Err(wrong(&format!("documents[{i}]"), "a string or an object", &other)),
    };
    items.into_iter().enumerate().map(one).collect()
}

/// The answer: best first, ties in the order given.
pub fn answer(shared: &Shared, form: Form, rows: Vec<Rows>) -> Response {
    let usage = Usage::of(&rows);
    let relevance: Vec<f32> = match (form.scores, rows.split_first()) {
        (true, _) => rows.iter().map(|r| sigmoid(r.numbers.first().copied())).collect(),
        (false, Some((query, documents))) => {
            documents.iter().map(|d| cosine(&query.numbers, &d.numbers)).collect()
        }
        (false, None) => Vec::new(),
    };
    let mut order: Vec<usize> = (0..relevance.len()).collect();
    order.sort_by(|a, b| relevance[*b].total_cmp(&relevance[*a]).then(a.cmp(b)));
    order.truncate(form.top);
    let result = |index: usize| {
        let mut result = json!({ "index": index, "relevance_score": relevance[index] });
        if form.with_documents {
            result["document"] = json!({ "text": form.documents[index] });
        }
        result
    };
    let results: Vec<Value> = order.into_iter().map(result).collect();
    let mut body = json!({
        "id": format!("rerank-{:016x}", shared.ticket()), "object": "list",
        "model": form.model, "results": results, "usage": usage,
    });
    if !form.warnings.is_empty() {
        body["warnings"] = json!(form.warnings);
    }
    Json(body).into_response()
}

fn sigmoid(score: Option<f32>) -> f32 {
    1.0 / (1.0 + (-score.unwrap_or(f32::NEG_INFINITY)).exp())
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |x: &[f32], y: &[f32]| -> f64 {
        x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    };
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { (dot(a, b) / lengths) as f32 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_texts_or_objects() {
        let given = json!(["a", { "text": "b", "title": "t", "id": null }]);
        let mut notes = Notes::new(false);
        assert_eq!(documents_of(given, 2, &mut notes).unwrap(), ["a", "b"]);
        let told = ["documents[1].title was ignored: it is not a field of this request"];
        assert_eq!(notes.into_list(), told);
        for (given, param) in [
            (json!([]), "documents"),
            (json!(["a", "b", "c"]), "documents"),
            (json!([7]), "documents[0]"),
            (json!(["a", { "title": "t" }]), "documents[1].text"),
        ] {
            let mut notes = Notes::new(false);
            let error = documents_of(given.clone(), 2, &mut notes).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some(param), "{given}");
        }
    }

    #[test]
    fn cosines_and_sigmoids() {
        assert_eq!(cosine(&[3.0, 0.0], &[5.0, 0.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 2.0]), 0.0);
        assert_eq!(cosine(&[0.0], &[1.0]), 0.0);
        assert_eq!(sigmoid(Some(0.0)), 0.5);
        assert_eq!(sigmoid(None), 0.0);
    }
}

//! Rerank requests, as Cohere and Jina have them: documents in the order of their relevance to a
//! query. A reranker reads query and document together; of an embedding model the cosine is taken.
//! `/v1/rerank` answers in a form that clients of both read; `/v2/rerank` is Cohere's alone.

use serde_json::{Value, json};

use super::embedding::Usage;
use super::parameters::{IGNORED, timeout};
use crate::ask::{Ask, Found, Measure, Numbers, NumbersHead};
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Notes, Unsupported, list, text, wrong};

/// Members that cut documents, or put them together of others: not built, unless they ask for what is done.
const UNBUILT: &[Unsupported] = &[
    Unsupported { name: "max_chunks_per_doc", neutral: |_| false },
    Unsupported { name: "max_tokens_per_doc", neutral: |_| false },
    Unsupported { name: "rank_fields", neutral: |v| *v == json!(["text"]) },
    Unsupported { name: "truncation", neutral: |v| *v == false },
];

/// Reads a rerank request of Cohere's second API.
///
/// # Errors
/// 400 of the request.
pub fn read_cohere(
    mut fields: Fields,
    limits: &Limits,
    notes: &mut Notes,
) -> Result<Ask, ApiError> {
    let Ranked { model, query, documents, top } = ranked(&mut fields, limits, notes)?;
    fields.take("priority"); // (of a request among others, which changes no answer)
    let timeout = timeout(&mut fields)?;
    fields.refuse(UNBUILT)?;
    fields.finish(IGNORED, notes)?;
    let write = Box::new(move |head: &NumbersHead, found: Found| {
        let result = |(index, score)| json!({ "index": index, "relevance_score": score });
        let results: Vec<Value> = best(&found, top).into_iter().map(result).collect();
        let (id, meta) = (format!("rerank-{:016x}", head.ticket), meta("2", &found));
        let mut body = json!({ "id": id, "results": results, "meta": meta });
        if !head.warnings.is_empty() {
            body["meta"]["warnings"] = json!(head.warnings);
        }
        body.to_string()
    });
    let measure = Measure::Rank { query, documents };
    Ok(Ask::Numbers { ask: Numbers { model, measure, user: None, timeout }, write })
}

/// What Cohere's clients are told of a request.
fn meta(version: &str, found: &Found) -> Value {
    json!({
        "api_version": { "version": version },
        "billed_units": { "search_units": 1 },
        "tokens": { "input_tokens": found.prompt_tokens },
    })
}

/// Documents by their relevance, at most so many: best first, ties in the order given.
pub(crate) fn best(found: &Found, most: usize) -> Vec<(usize, f32)> {
    let relevance = found.rows.iter().filter_map(|row| row.first().copied());
    let mut all: Vec<(usize, f32)> = relevance.enumerate().collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.truncate(most);
    all
}

/// Reads a rerank request.
///
/// # Errors
/// 400 of the request.
pub fn read(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let Ranked { model, query, documents, top } = ranked(&mut fields, limits, notes)?;
    let with_documents = fields.flag("return_documents")?.unwrap_or(false);
    let (user, timeout) = (fields.text("user")?, timeout(&mut fields)?);
    fields.refuse(UNBUILT)?;
    fields.finish(IGNORED, notes)?;
    let told = if with_documents { documents.clone() } else { Vec::new() };
    let write = Box::new(move |head: &NumbersHead, found: Found| body(head, &found, top, &told));
    let measure = Measure::Rank { query, documents };
    Ok(Ask::Numbers { ask: Numbers { model, measure, user, timeout }, write })
}

/// What is ranked, as every dialect has it.
pub(crate) struct Ranked {
    pub model: Option<String>,
    pub query: String,
    /// Not empty.
    pub documents: Vec<String>,
    /// How many are told, the best ones.
    pub top: usize,
}

/// Reads that.
///
/// # Errors
/// 400 naming the first member that is wrong.
pub(crate) fn ranked(
    fields: &mut Fields,
    limits: &Limits,
    notes: &mut Notes,
) -> Result<Ranked, ApiError> {
    let model = fields.text("model")?;
    let query = text(fields.require("query")?, "query")?;
    if query.is_empty() {
        return Err(ApiError::bad("query", "query is empty"));
    }
    let documents = documents_of(fields.require("documents")?, limits.inputs, notes)?;
    let top = fields.integer("top_n", 1..=i64::from(u32::MAX))?;
    let top = top.and_then(|n| usize::try_from(n).ok()).unwrap_or(documents.len());
    Ok(Ranked { model, query, documents, top })
}

/// Strings, or objects with a `text`.
///
/// # Errors
/// 400 for none, and naming the first that is neither.
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
fn body(head: &NumbersHead, found: &Found, top: usize, documents: &[String]) -> String {
    let result = |(index, score): (usize, f32)| {
        let mut result = json!({ "index": index, "relevance_score": score });
        if let Some(text) = documents.get(index) {
            result["document"] = json!({ "text": text });
        }
        result
    };
    let results: Vec<Value> = best(found, top).into_iter().map(result).collect();
    let mut body = json!({
        "id": format!("rerank-{:016x}", head.ticket), "object": "list",
        "model": head.model, "results": results, "usage": Usage::of(found), "meta": meta("1", found),
    });
    if !head.warnings.is_empty() {
        body["warnings"] = json!(head.warnings);
    }
    body.to_string()
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
}

//! POST /embedding and /embeddings in llama.cpp's own form, and /rerank in that of Jina or of TEI.

use serde::Serialize;
use serde_json::{Value, json};

use super::content::{no_media, prompts_of};
use crate::ask::{Ask, Found, Item as Asked, Measure, Numbers, NumbersHead};
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Ignored, Notes, Unsupported};
use crate::openai::parameters::timeout;
use crate::openai::rerank::{self, Ranked};

/// Members that change no answer here.
const IGNORED: &[Ignored] =
    &[Ignored { name: "encoding_format", because: "vectors are lists of numbers in this form" }];

/// Vectors have one length: what they had before is not known.
const UNBUILT: &[Unsupported] =
    &[Unsupported { name: "embd_normalize", neutral: |v| v.as_i64().is_some_and(|n| n >= 0) }];

/// By what a vector is divided, so that its length is 1.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Norm {
    /// Its greatest number, which becomes 32760.
    Greatest,
    /// The sum of the p-th powers of its numbers, to the power of 1/p.
    Power(i32),
}

impl Norm {
    /// Vectors come with Euclid's, which is not done again.
    fn apply(self, vector: Vec<f32>) -> Vec<f32> {
        let sizes = || vector.iter().map(|x| f64::from(*x).abs());
        let length = match self {
            Self::Power(2) => return vector,
            Self::Power(p) => sizes().map(|x| x.powi(p)).sum::<f64>().powf(1.0 / f64::from(p)),
            Self::Greatest => sizes().fold(0.0, f64::max) / 32760.0,
        };
        let factor = if length > 0.0 { 1.0 / length } else { 0.0 };
        vector.iter().map(|x| (f64::from(*x) * factor) as f32).collect()
    }
}

/// A text's vector, in a list of one: here one is told of all its tokens.
#[derive(Serialize)]
struct Item {
    index: usize,
    embedding: [Vec<f32>; 1],
}

/// Reads a request for a vector of each text.
///
/// # Errors
/// 400 of the request.
pub fn embed(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let model = fields.text("model")?;
    let name = if fields.has("input") { "input" } else { "content" };
    let inputs = prompts_of(fields.require(name)?, limits.inputs, name, notes)?;
    no_media(&mut fields, "image_data")?;
    let norm = match fields.get("embd_normalize").and_then(Value::as_i64) {
        Some(0) => Norm::Greatest,
        Some(p) => Norm::Power(i32::try_from(p).unwrap_or(i32::MAX)),
        None => Norm::Power(2),
    };
    let timeout = timeout(&mut fields)?;
    fields.refuse(UNBUILT)?;
    if fields.get("encoding_format").is_some_and(|format| format == "float") {
        fields.take("encoding_format");
    }
    fields.finish(IGNORED, notes)?;
    let write = move |_: &NumbersHead, found: Found| {
        let rows = found.rows.into_iter().enumerate();
        let one = |(index, row)| Item { index, embedding: [norm.apply(row)] };
        let items: Vec<Item> = rows.map(one).collect();
        serde_json::to_string(&items).unwrap_or_default() // (numbers always are JSON)
    };
    let inputs = inputs.into_iter().map(Asked::Text).collect();
    let measure = Measure::Embed { inputs, dimensions: None };
    let ask = Numbers { model, measure, user: None, timeout };
    Ok(Ask::Numbers { ask, write: Box::new(write) })
}

/// Members of TEI's that are not built, unless they ask for what is done.
const TEI_UNBUILT: &[Unsupported] = &[
    Unsupported { name: "raw_scores", neutral: |v| *v == false },
    Unsupported { name: "truncate", neutral: |v| *v == false },
    Unsupported { name: "truncation_direction", neutral: |v| *v == "right" || *v == "Right" },
];

/// Reads a rerank request: Jina's, or TEI's where it has `texts`.
///
/// # Errors
/// 400 of the request.
pub fn rank(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Ask, ApiError> {
    let Some(texts) = fields.take("texts") else { return rerank::read(fields, limits, notes) };
    if fields.has("documents") {
        return Err(ApiError::bad("texts", "texts and documents: one of them at most"));
    }
    fields.put("documents", texts);
    let Ranked { model, query, documents, top } = rerank::ranked(&mut fields, limits, notes)?;
    let with_text = fields.flag("return_text")?.unwrap_or(false);
    let timeout = timeout(&mut fields)?;
    fields.refuse(TEI_UNBUILT)?;
    fields.finish(&[], notes)?;
    let told: Vec<String> = documents.clone();
    let write = move |_: &NumbersHead, found: Found| {
        let result = |(index, score): (usize, f32)| {
            let mut result = json!({ "index": index, "score": score });
            if let Some(text) = told.get(index).filter(|_| with_text) {
                result["text"] = text.as_str().into();
            }
            result
        };
        rerank::best(&found, top).into_iter().map(result).collect::<Value>().to_string()
    };
    let measure = Measure::Rank { query, documents };
    let ask = Numbers { model, measure, user: None, timeout };
    Ok(Ask::Numbers { ask, write: Box::new(write) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_divided_by_what_is_asked() {
        let given = vec![0.6, -0.8];
        assert_eq!(Norm::Power(2).apply(given.clone()), given);
        assert_eq!(Norm::Greatest.apply(given.clone()), [24570.0, -32760.0]);
        let taxi = Norm::Power(1).apply(given.clone());
        assert!(
            (taxi[0] - 0.6 / 1.4).abs() < 1e-6 && (taxi[1] + 0.8 / 1.4).abs() < 1e-6,
            "{taxi:?}"
        );
        assert_eq!(Norm::Power(3).apply(vec![0.0, 0.0]), [0.0, 0.0]);
    }
}

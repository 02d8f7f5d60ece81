//! What answers are held to, by the names that OpenAI, llama.cpp and vLLM have for it.

use serde_json::Value;
use tokenmill_engine::constraint::{Constraint, Tag, grammar};

use crate::ask::Constrained;
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Notes, list, text, wrong};
use crate::strict_json::{self, JsonLimits};

/// Most texts of a choice, and tags.
const MOST: usize = 10_000;

/// Reads them all: an answer is held to one thing at most.
///
/// # Errors
/// 400 naming the member at fault, or two that contradict each other.
pub fn read(
    fields: &mut Fields,
    limits: &Limits,
    notes: &mut Notes,
) -> Result<Option<Constrained>, ApiError> {
    let mut found: Vec<Constrained> = Vec::new();
    let mut add = |param: &'static str, what: Option<Constraint>| {
        found.extend(what.map(|what| Constrained { what, param }));
    };
    if let Some(value) = fields.take("response_format") {
        add("response_format", response_format(value, notes)?);
    }
    if let Some(value) = fields.take("structured_outputs") {
        add("structured_outputs", structured_outputs(value, limits, notes)?);
    }
    if let Some(schema) = fields.take("json_schema") {
        add("json_schema", Some(Constraint::JsonSchema(schema)));
    }
    if let Some(schema) = fields.take("guided_json") {
        add("guided_json", Some(Constraint::JsonSchema(parsed(schema, "guided_json", limits)?)));
    }
    if let Some(values) = fields.take("guided_choice") {
        add("guided_choice", Some(choice(values, "guided_choice")?));
    }
    add("guided_regex", fields.text("guided_regex")?.map(Constraint::Regex));
    add("guided_grammar", fields.text("guided_grammar")?.map(grammar));
    let own = fields.text("grammar")?.filter(|text| !text.is_empty());
    add("grammar", own.map(Constraint::Gbnf));
    if let [one, other, ..] = &found[..] {
        let (one, other) = (one.param, other.param);
        let message = format!("{one} and {other}: an answer is held to one of them at most");
        return Err(ApiError::bad(other, message));
    }
    Ok(found.pop())
}

/// OpenAI's, with llama.cpp's `schema` beside `json_object`.
fn response_format(value: Value, notes: &mut Notes) -> Result<Option<Constraint>, ApiError> {
    let mut fields = Fields::of(value, "response_format")?;
    let path = fields.path("type");
    let kind = text(fields.require("type")?, &path)?;
    let found = match kind.as_str() {
        "text" => None,
        "json_object" => Some(match fields.take("schema") {
            Some(schema) => Constraint::JsonSchema(schema),
            None => Constraint::JsonObject,
        }),
        "json_schema" => {
            // llama.cpp takes the schema itself beside the type.
            let inner = fields.take("json_schema");
            let schema = match inner {
                Some(inner) => {
                    let mut inner = Fields::of(inner, "response_format.json_schema")?;
                    for described in ["name", "description"] {
                        inner.text(described)?;
                    }
                    // What is not enforced is refused, whether it is asked or not.
                    inner.flag("strict")?;
                    let schema = inner.require("schema")?;
                    inner.finish(&[], notes)?;
                    schema
                }
                None => fields.require("schema")?,
            };
            Some(Constraint::JsonSchema(schema))
        }
        "structural_tag" => Some(structural(&mut fields, notes)?),
        "grammar" => Some(grammar(text(fields.require("grammar")?, &fields.path("grammar"))?)),
        other => {
            let other = crate::fields::shown(other);
            let message = format!(
                "{path} is {other:?}; it must be one of text, json_object, json_schema, \
                 structural_tag, grammar"
            );
            return Err(ApiError::bad(path, message));
        }
    };
    fields.finish(&[], notes)?;
    Ok(found)
}

/// vLLM's: one of its members.
fn structured_outputs(
    value: Value,
    limits: &Limits,
    notes: &mut Notes,
) -> Result<Option<Constraint>, ApiError> {
    let mut fields = Fields::of(value, "structured_outputs")?;
    let mut found: Vec<(&str, Constraint)> = Vec::new();
    if let Some(schema) = fields.take("json") {
        let schema = parsed(schema, &fields.path("json"), limits)?;
        found.push(("json", Constraint::JsonSchema(schema)));
    }
    if fields.flag("json_object")? == Some(true) {
        found.push(("json_object", Constraint::JsonObject));
    }
    found.extend(fields.text("regex")?.map(|text| ("regex", Constraint::Regex(text))));
    if let Some(values) = fields.take("choice") {
        found.push(("choice", choice(values, &fields.path("choice"))?));
    }
    found.extend(fields.text("grammar")?.map(|text| ("grammar", grammar(text))));
    if let Some(tags) = fields.take("structural_tag") {
        let tags = parsed(tags, &fields.path("structural_tag"), limits)?;
        let mut tags = Fields::of(tags, "structured_outputs.structural_tag")?;
        tags.take("type");
        found.push(("structural_tag", structural(&mut tags, notes)?));
        tags.finish(&[], notes)?;
    }
    fields.finish(&[], notes)?;
    if let [(one, _), (other, _), ..] = found[..] {
        let message = format!("structured_outputs: {one} and {other}: one of them at most");
        return Err(ApiError::bad("structured_outputs", message));
    }
    Ok(found.pop().map(|(_, what)| what))
}

/// A value, or the same as a text of JSON, within the limits of bodies.
fn parsed(value: Value, path: &str, limits: &Limits) -> Result<Value, ApiError> {
    let Value::String(text) = value else { return Ok(value) };
    let limits = JsonLimits { depth: limits.json_depth, values: limits.json_values };
    let parsed = strict_json::parse(text.as_bytes(), limits);
    parsed.map_err(|reason| ApiError::bad(path, format!("{path} is not valid JSON: {reason}")))
}

fn choice(value: Value, path: &str) -> Result<Constraint, ApiError> {
    let items = list(value, MOST, path)?;
    if items.is_empty() {
        return Err(ApiError::bad(path, format!("{path} is empty")));
    }
    let read = |(i, item)| text(item, &format!("{path}[{i}]"));
    items.into_iter().enumerate().map(read).collect::<Result<_, _>>().map(Constraint::Choice)
}

/// `structures` (each `begin`, `schema`, `end`) and `triggers`.
fn structural(fields: &mut Fields, notes: &mut Notes) -> Result<Constraint, ApiError> {
    let path = fields.path("triggers");
    let triggers = list(fields.require("triggers")?, MOST, &path)?;
    let read = |(i, item)| text(item, &format!("{path}[{i}]"));
    let triggers = triggers.into_iter().enumerate().map(read).collect::<Result<_, _>>()?;
    let path = fields.path("structures");
    let tags = list(fields.require("structures")?, MOST, &path)?;
    let read = |(i, item): (usize, Value)| {
        let path = format!("{path}[{i}]");
        let mut tag = Fields::of(item, &path)?;
        let mut marker = |name: &str| text(tag.require(name)?, &format!("{path}.{name}"));
        let (begin, end) = (marker("begin")?, marker("end")?);
        let schema = tag.require("schema")?;
        tag.finish(&[], notes)?;
        match schema.is_object() || schema.is_boolean() {
            true => Ok(Tag { begin, schema, end }),
            false => Err(wrong(&format!("{path}.schema"), "a schema", &schema)),
        }
    };
    let tags = tags.into_iter().enumerate().map(read).collect::<Result<_, _>>()?;
    Ok(Constraint::Structural { triggers, tags })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(body: Value) -> Result<Option<Constrained>, ApiError> {
        let (mut fields, mut notes) = (Fields::of(body, "")?, Notes::new(true));
        let found = read(&mut fields, &Limits::default(), &mut notes)?;
        fields.finish(&[], &mut notes)?;
        Ok(found)
    }

    #[test]
    fn every_name_means_what_its_server_means() {
        let schema = json!({ "type": "object" });
        let of = |schema: &Value| Constraint::JsonSchema(schema.clone());
        let tag = json!({ "begin": "<a>", "schema": schema, "end": "</a>" });
        let tags = json!({
            "type": "structural_tag", "structures": [tag], "triggers": ["<a"],
        });
        let structural = Constraint::Structural {
            triggers: vec!["<a".into()],
            tags: vec![Tag { begin: "<a>".into(), schema: schema.clone(), end: "</a>".into() }],
        };
        let choice = Constraint::Choice(vec!["a".into(), "b".into()]);
        let cases = [
            (json!({ "response_format": { "type": "text" } }), None),
            (json!({ "response_format": null, "grammar": "", "json_schema": null }), None),
            (json!({ "response_format": { "type": "json_object" } }), Some(Constraint::JsonObject)),
            (
                json!({ "response_format": { "type": "json_object", "schema": schema } }),
                Some(of(&schema)),
            ),
            (
                json!({ "response_format": { "type": "json_schema", "json_schema": {
                    "name": "n", "strict": true, "description": null, "schema": schema,
                } } }),
                Some(of(&schema)),
            ),
            (json!({ "response_format": tags }), Some(structural.clone())),
            (json!({ "json_schema": schema }), Some(of(&schema))),
            (json!({ "guided_json": "{\"type\":\"object\"}" }), Some(of(&schema))),
            (json!({ "guided_choice": ["a", "b"] }), Some(choice.clone())),
            (json!({ "guided_regex": "a+" }), Some(Constraint::Regex("a+".into()))),
            (
                json!({ "guided_grammar": "root ::= \"a\"" }),
                Some(Constraint::Gbnf("root ::= \"a\"".into())),
            ),
            (
                json!({ "structured_outputs": { "grammar": "start: \"a\"" } }),
                Some(Constraint::Lark("start: \"a\"".into())),
            ),
            (json!({ "structured_outputs": { "json": schema } }), Some(of(&schema))),
            (
                json!({ "structured_outputs": { "json_object": true } }),
                Some(Constraint::JsonObject),
            ),
            (json!({ "structured_outputs": { "choice": ["a", "b"] } }), Some(choice)),
            (json!({ "structured_outputs": { "structural_tag": tags } }), Some(structural)),
            (
                json!({ "grammar": "root ::= \"a\"" }),
                Some(Constraint::Gbnf("root ::= \"a\"".into())),
            ),
        ];
        for (body, expect) in cases {
            let what = found(body.clone()).map(|found| found.map(|found| found.what));
            assert_eq!(what, Ok(expect), "{body}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            (json!({ "response_format": "json" }), "response_format"),
            (json!({ "response_format": { "type": "xml" } }), "response_format.type"),
            (
                json!({ "response_format": { "type": "json_schema", "json_schema": {} } }),
                "response_format.json_schema.schema",
            ),
            (json!({ "guided_json": "{" }), "guided_json"),
            (json!({ "guided_choice": [] }), "guided_choice"),
            (json!({ "guided_choice": ["a", 1] }), "guided_choice[1]"),
            (json!({ "guided_regex": 1 }), "guided_regex"),
            (json!({ "grammar": "root ::= \"a\"", "json_schema": {} }), "grammar"),
            (
                json!({ "structured_outputs": { "regex": "a", "choice": ["b"] } }),
                "structured_outputs",
            ),
            (json!({ "structured_outputs": { "xml": 1 } }), "structured_outputs.xml"),
            (
                json!({ "response_format": {
                    "type": "structural_tag", "triggers": ["<"],
                    "structures": [{ "begin": "<a>", "end": "</a>", "shema": {} }],
                } }),
                "response_format.structures[0].schema",
            ),
        ];
        for (body, expect) in cases {
            let error = found(body.clone()).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some(expect), "{body}");
        }
    }
}

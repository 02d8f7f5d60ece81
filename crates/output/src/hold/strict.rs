//! What of a tool's schema a row's calls do not hold: where values are written as bare text, no
//! grammar holds more of them than that they are text or one of a list.

use std::collections::HashSet;

use serde_json::Value;

use super::parts::NOTES;
use crate::body::{Body, Types};
use crate::format::Form;
use crate::{Format, Tool};

/// How far references and alternatives are followed, and how many schemas.
const DEEPEST: usize = 16;
const MOST: usize = 256;

/// Keywords that ask for nothing.
const IDLE: &[&str] = &["$schema", "$comment", "$defs", "definitions", "deprecated"];

/// What is not held.
type Held = Result<(), String>;

impl Format {
    /// Whether a call that [`Format::hold`] lets through is valid under the tool's schema, as far
    /// as the grammar compiles.
    ///
    /// # Errors
    /// What of the schema is not held in this row.
    pub fn enforces(&self, tool: &Tool) -> Result<(), String> {
        let (name, row) = (&tool.name, self.name);
        if !self.can_call(tool) {
            return Err(format!(
                "{name}: a name, a key or a value of it cannot be written in calls of the row {row}"
            ));
        }
        let sections = match &self.form {
            Form::Harmony => &[],
            Form::Marked(marked) => marked.sections,
        };
        let bodies = sections.iter().filter_map(|section| section.bodies.first());
        for body in bodies.filter(|body| body.has_keys()) {
            let held = Schema { body, root: &tool.parameters, nodes: MOST }.arguments();
            held.map_err(|what| format!("{name}: {what} is not held in calls of the row {row}"))?;
        }
        Ok(())
    }
}

struct Schema<'a> {
    body: &'a Body,
    root: &'a Value,
    /// What is left to look at.
    nodes: usize,
}

impl<'a> Schema<'a> {
    fn arguments(mut self) -> Held {
        let mut all = self.root;
        for _ in 0..DEEPEST {
            let Some(target) = self.target(all).filter(|_| all.get("properties").is_none()) else {
                break;
            };
            only(all, &["$ref", "type"])?;
            all = target;
        }
        only(all, &["type", "properties", "required", "additionalProperties"])?;
        let is_object = match all.get("type") {
            None => true,
            Some(Value::String(name)) => name == "object",
            Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
            Some(_) => false,
        };
        if !is_object {
            return Err("`type` of the arguments".to_owned());
        }
        references(self.root)?;
        for (key, own) in all.get("properties").and_then(Value::as_object).into_iter().flatten() {
            self.nodes = MOST;
            self.parameter(own).map_err(|what| format!("{what} of the parameter `{key}`"))?;
        }
        Ok(())
    }

    fn parameter(&mut self, own: &'a Value) -> Held {
        let types = Types::of_schema(own, self.root);
        let body = self.body;
        match body {
            Body::Gemma { .. } if !types.is_text() => Ok(()),
            Body::Gemma { .. } | Body::Tagged(_) if types.is_listed() => {
                self.list(own, &mut Vec::new(), 0)
            }
            Body::Gemma { .. } => self.text(own, 0),
            Body::Tagged(_) if types.takes_text() => self.text(own, 0),
            Body::Tagged(_) if !self.is_typed(own, 0) => Err("a value without `type`".to_owned()),
            _ => Ok(()),
        }
    }

    fn target(&self, schema: &Value) -> Option<&'a Value> {
        let pointer = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
        self.root.pointer(pointer)
    }

    /// What a schema only leads to: by a reference, or as all of a list of one.
    fn only_one(&self, schema: &'a Value) -> Option<(&'static str, &'a Value)> {
        let all = schema.get("allOf").and_then(Value::as_array);
        match (self.target(schema), all.map(Vec::as_slice)) {
            (Some(target), _) => Some(("$ref", target)),
            (None, Some([one])) => Some(("allOf", one)),
            _ => None,
        }
    }

    fn step(&mut self, depth: usize) -> Held {
        if depth > DEEPEST || self.nodes == 0 {
            return Err("a schema of so many parts".to_owned());
        }
        self.nodes -= 1;
        Ok(())
    }

    /// A value that is any text: one of the types, and no more is asked of it.
    fn text(&mut self, schema: &'a Value, depth: usize) -> Held {
        self.step(depth)?;
        if *schema == Value::Bool(false) {
            return Err("`false`".to_owned());
        }
        if let Some((name, target)) = self.only_one(schema) {
            only(schema, &[name])?;
            return self.text(target, depth + 1);
        }
        if let Some(ways) = schema.get("anyOf").and_then(Value::as_array) {
            only(schema, &["anyOf"])?;
            return ways.iter().try_for_each(|way| self.text(way, depth + 1));
        }
        if let Some(ways) = schema.get("oneOf").and_then(Value::as_array) {
            only(schema, &["oneOf"])?;
            let mut types = HashSet::new();
            for way in ways {
                only(way, &["type"])?;
                let name = way.get("type").and_then(Value::as_str).map(|name| match name {
                    "integer" => "number",
                    name => name,
                });
                if !name.is_some_and(|name| types.insert(name)) {
                    return Err("`oneOf`".to_owned());
                }
            }
            return Ok(());
        }
        only(schema, &["type"])
    }

    /// A value of a list that the row writes: whether all of the list is valid.
    fn list(&mut self, schema: &'a Value, seen: &mut Vec<&'a Value>, depth: usize) -> Held {
        self.step(depth)?;
        if let Some((name, target)) = self.only_one(schema) {
            only(schema, &[name])?;
            return self.list(target, seen, depth + 1);
        }
        for name in ["anyOf", "oneOf"] {
            let Some(ways) = schema.get(name).and_then(Value::as_array) else {
                continue;
            };
            only(schema, &[name])?;
            for way in ways {
                let is_list = Types::of_schema(way, self.root).is_listed();
                if name == "oneOf" && !is_list {
                    return Err("`oneOf`".to_owned());
                }
                if is_list {
                    self.list(way, seen, depth + 1)?;
                }
            }
            let has_two = |(at, one): (usize, &&Value)| seen.iter().skip(at + 1).any(|x| x == one);
            if name == "oneOf" && (seen.len() > MOST || seen.iter().enumerate().any(has_two)) {
                return Err("`oneOf`".to_owned());
            }
            return Ok(());
        }
        let name = if schema.get("const").is_some() { "const" } else { "enum" };
        only(schema, &[name, "type"])?;
        let values = match schema.get(name) {
            Some(Value::Array(values)) if name == "enum" => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
            None => &[],
        };
        if !values.iter().all(|value| has_type(schema, value)) {
            return Err(format!("`{name}` with values of another `type`"));
        }
        seen.extend(values);
        Ok(())
    }

    /// Whether a schema says of which types its values are.
    fn is_typed(&mut self, schema: &'a Value, depth: usize) -> bool {
        if self.step(depth).is_err() {
            return false;
        }
        if schema.get("type").is_some() {
            return true;
        }
        if let Some(target) = self.target(schema) {
            return self.is_typed(target, depth + 1);
        }
        let ways = |name: &str| schema.get(name).and_then(Value::as_array);
        if let Some(ways) = ways("anyOf").or_else(|| ways("oneOf")) {
            return !ways.is_empty() && ways.iter().all(|way| self.is_typed(way, depth + 1));
        }
        ways("allOf").is_some_and(|ways| ways.iter().any(|way| self.is_typed(way, depth + 1)))
    }
}

/// That a schema has no keywords but these, and idle ones.
fn only(schema: &Value, names: &[&str]) -> Held {
    let is_known = |name: &str| [names, NOTES, IDLE].iter().any(|list| list.contains(&name));
    let other = schema.as_object().and_then(|map| map.keys().find(|name| !is_known(name)));
    other.map_or(Ok(()), |name| Err(format!("`{name}`")))
}

/// That references lead to definitions, which stand with each parameter's schema.
fn references(schema: &Value) -> Held {
    match schema {
        Value::Object(map) => {
            if let Some(Value::String(to)) = map.get("$ref")
                && !to.starts_with("#/$defs/")
                && !to.starts_with("#/definitions/")
            {
                return Err(format!("`$ref` to `{to}`"));
            }
            map.values().try_for_each(references)
        }
        Value::Array(list) => list.iter().try_for_each(references),
        _ => Ok(()),
    }
}

fn has_type(schema: &Value, value: &Value) -> bool {
    let is = |name: &Value| match name.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        _ => false,
    };
    match schema.get("type") {
        None => true,
        Some(Value::Array(names)) => names.iter().any(is),
        Some(name) => is(name),
    }
}

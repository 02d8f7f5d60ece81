//! The walk over a schema: each keyword enforced, left away as an annotation, or refused by name.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::keywords::{Treatment, keyword};
use super::references::{Draft, Names, draft, escaped};
use super::{Strictness, values};
use crate::bounds::Bounds;
use crate::formats::{self, Format};
use crate::pattern;
use crate::refused::{Refused, within};

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
/// Most schemas of a `oneOf`: each is told apart from each.
const MOST_OF_ONE: usize = 128;

/// The walk so far.
pub(super) struct Walk<'a> {
    root: &'a Value,
    pub bounds: &'a Bounds,
    strictness: Strictness<'a>,
    names: Names,
    /// Names by the pointer referred to.
    defs: BTreeMap<String, String>,
    /// Pointers referred to, not yet walked.
    open: Vec<String>,
    /// Keywords left out.
    pub left_out: Vec<String>,
    schemas: usize,
    values: usize,
    patterns: usize,
}

/// One schema being written.
pub(super) struct Part<'a> {
    /// As the client wrote it.
    pub map: &'a Map<String, Value>,
    /// Where.
    pub at: &'a str,
    depth: usize,
    /// Keywords about one type each.
    pub plain: Map<String, Value>,
    /// Patterns a string must match beside the first.
    patterns: Vec<String>,
    /// Keywords that combine schemas.
    applied: Vec<(&'static str, Value)>,
    /// How many of them come before the properties.
    before: Option<usize>,
}

impl Part<'_> {
    /// A keyword's value.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key)
    }

    /// A keyword's value as a count.
    pub fn count(&self, key: &str) -> Option<usize> {
        self.get(key).and_then(values::count)
    }

    /// The refusal of one of its keywords.
    pub fn refuse<T>(&self, key: &str, why: impl Into<String>) -> Result<T, Refused> {
        Err(Refused::keyword(key, self.at, self.get(key).unwrap_or(&Value::Null), why))
    }

    /// Whether keywords stand here that apply schemas to the same value.
    pub fn has_applicators(&self) -> bool {
        let keys = ["$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas"];
        let more = ["$dynamicRef", "$recursiveRef", "dependencies"];
        keys.iter().chain(&more).any(|key| self.map.contains_key(*key))
    }

    /// A schema no value satisfies.
    pub fn nothing<T>(&self, keywords: &str, why: impl Into<String>) -> Result<T, Refused> {
        let (pointer, keywords) = (self.at.to_owned(), keywords.to_owned());
        Err(Refused::Unsatisfiable { pointer, keywords, why: why.into() })
    }

    fn written(mut self) -> Value {
        if let Some(first) = self.patterns.pop() {
            self.plain.insert("pattern".to_owned(), Value::from(first));
        }
        let only_strings = self.get("type") == Some(&json!("string"));
        let more = |p: String| {
            if only_strings {
                json!({"type": "string", "pattern": p})
            } else {
                json!({"pattern": p})
            }
        };
        let more: Vec<Value> = self.patterns.drain(..).map(more).collect();
        if !more.is_empty() {
            self.apply("allOf", Value::from(more));
        }
        let mut all_of: Vec<Value> = Vec::new();
        let mut map = Map::new();
        let before = self.before.unwrap_or(0);
        for (i, (key, value)) in self.applied.into_iter().enumerate() {
            if i == before {
                map.append(&mut self.plain);
            }
            match map.contains_key(key) {
                false => drop(map.insert(key.to_owned(), value)),
                true => all_of.push(json!({key: value})),
            }
        }
        map.append(&mut self.plain);
        if !all_of.is_empty() {
            let one = std::mem::take(&mut map);
            all_of.insert(0, Value::Object(one));
            map.insert("allOf".to_owned(), Value::from(all_of));
        }
        Value::Object(map)
    }

    pub fn apply(&mut self, key: &'static str, value: Value) {
        self.applied.push((key, value));
    }
}

impl<'a> Walk<'a> {
    pub fn new(
        root: &'a Value,
        bounds: &'a Bounds,
        strictness: Strictness<'a>,
    ) -> Result<Self, Refused> {
        let draft = match draft(root) {
            Err(_) if matches!(strictness, Strictness::Lenient(_)) => Draft::Later,
            draft => draft?,
        };
        let names = Names::new(root, draft);
        let (defs, open, left_out) = Default::default();
        let (schemas, values, patterns) = (0, 0, 0);
        Ok(Walk {
            root,
            bounds,
            strictness,
            names,
            defs,
            open,
            left_out,
            schemas,
            values,
            patterns,
        })
    }

    /// The root and what it refers to, each by its new name.
    pub fn document(&mut self) -> Result<(Value, Map<String, Value>), Refused> {
        let root = self.schema(self.root, "", 0)?;
        let mut defs = Map::new();
        while let Some(pointer) = self.open.pop() {
            let name = self.defs.get(&pointer).cloned().unwrap_or_default();
            let target = self.root.pointer(&pointer).unwrap_or(&Value::Null);
            let schema = self.schema(target, &pointer, 0)?;
            defs.insert(name, schema);
        }
        let chains = super::chains::check(&root, &defs, self.bounds.chain);
        chains.map_err(|broken| self.broken(broken))?;
        Ok((root, defs))
    }

    fn broken(&self, broken: super::chains::Broken) -> Refused {
        match broken {
            super::chains::Broken::Deep { found, limit } => {
                Refused::Bound { what: "levels along a chain of references", found, limit }
            }
            super::chains::Broken::Cycle(name) => {
                let pointer = self.defs.iter().find(|d| *d.1 == name).map(|d| d.0.clone());
                let pointer = pointer.unwrap_or_default();
                let value = self.root.pointer(&pointer).unwrap_or(&Value::Null);
                let why = "references that lead back to themselves and say nothing in between";
                Refused::keyword("$ref", &pointer, value, why)
            }
        }
    }

    /// One schema, written anew.
    pub fn schema(&mut self, schema: &Value, at: &str, depth: usize) -> Result<Value, Refused> {
        self.schemas += 1;
        within("schemas in the schema", self.schemas, self.bounds.schemas)?;
        within("schemas within schemas", depth, self.bounds.depth)?;
        let map = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(map) => map,
            other => {
                let name = at.rsplit('/').next().unwrap_or_default();
                let why = "a schema is an object or a boolean";
                self.left(Refused::keyword(name, at, other, why))?;
                return Ok(Value::Bool(true));
            }
        };
        let (plain, patterns, applied) = Default::default();
        let mut part = Part { map, at, depth, plain, patterns, applied, before: None };
        for (key, value) in map {
            if let Err(refused) = self.keyword(key, value, &mut part) {
                self.left(refused)?;
            }
        }
        if let Err(refused) = self.together(&part) {
            self.left(refused)?;
        }
        Ok(part.written())
    }

    /// Refuses, or notes what is left out.
    fn left(&mut self, refused: Refused) -> Result<(), Refused> {
        match (&refused, self.strictness) {
            (Refused::Keyword { keyword, pointer, .. }, Strictness::Lenient(_)) => {
                let place = if pointer.is_empty() { "the root" } else { pointer };
                self.left_out.push(format!("`{keyword}` at {place}"));
                Ok(())
            }
            _ => Err(refused),
        }
    }

    fn keyword(&mut self, key: &str, value: &Value, part: &mut Part<'_>) -> Result<(), Refused> {
        let Some(row) = keyword(key) else { return Ok(()) };
        if row.treatment == Treatment::Annotation {
            return Ok(());
        }
        if let Strictness::Lenient(dropped) = self.strictness
            && dropped.contains(key)
        {
            if key == "oneOf" {
                let list = self.list(key, part)?;
                part.apply("anyOf", Value::from(list));
            }
            return part.refuse(key, "left out");
        }
        if matches!(key, "properties" | "additionalProperties" | "required") {
            part.before.get_or_insert(part.applied.len());
        }
        match key {
            "$ref" => self.reference(value, part),
            "$recursiveRef" | "$dynamicRef" => part.refuse(key, "it is not enforced"),
            "$id" | "id" => self.identifier(key, part),
            "type" => self.types(value, part),
            "enum" | "const" => self.literals(key, value, part),
            "allOf" | "anyOf" | "oneOf" => self.combined(row.name, part),
            "not" => match value {
                Value::Bool(false) => Ok(()),
                value if *value == json!(true) || *value == json!({}) => {
                    if part.at.is_empty() {
                        return part.nothing("not", "it excludes every value");
                    }
                    part.apply("allOf", json!([false]));
                    Ok(())
                }
                _ => part.refuse(key, "it is not enforced"),
            },
            "if" if part.get("then").is_none() && part.get("else").is_none() => Ok(()),
            "then" | "else" if part.get("if").is_none() => Ok(()),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                self.bound(row.name, value, part)
            }
            "multipleOf" => self.multiple(value, part),
            "minLength" | "maxLength" | "minItems" | "maxItems" => self.count(row.name, part),
            "pattern" | "format" => self.string(key, value, part),
            "items" | "prefixItems" | "additionalItems" | "uniqueItems" | "minContains"
            | "maxContains" | "unevaluatedItems" => self.array_keyword(key, value, part),
            "properties"
            | "patternProperties"
            | "additionalProperties"
            | "required"
            | "minProperties"
            | "maxProperties"
            | "propertyNames"
            | "unevaluatedProperties" => self.object_keyword(row.name, value, part),
            "dependencies" | "dependentRequired" | "dependentSchemas"
                if value.as_object().is_some_and(Map::is_empty) =>
            {
                Ok(())
            }
            "$schema" => draft(&json!({"$schema": value})).map(drop),
            "$anchor" | "$defs" | "definitions" => Ok(()),
            _ => part.refuse(key, "it is not enforced"),
        }
    }

    /// What keywords say together.
    fn together(&mut self, part: &Part<'_>) -> Result<(), Refused> {
        for (least, most) in [
            ("minLength", "maxLength"),
            ("minItems", "maxItems"),
            ("minProperties", "maxProperties"),
        ] {
            if let (Some(a), Some(b)) = (part.count(least), part.count(most))
                && a > b
                && part.get("type").is_some_and(Value::is_string)
            {
                return part.nothing(&format!("{least}, {most}"), format!("{a} is more than {b}"));
            }
        }
        let number = |key: &str| part.get(key).and_then(Value::as_f64);
        for (least, most, may_meet) in [
            ("minimum", "maximum", true),
            ("minimum", "exclusiveMaximum", false),
            ("exclusiveMinimum", "maximum", false),
            ("exclusiveMinimum", "exclusiveMaximum", false),
        ] {
            if let (Some(a), Some(b)) = (number(least), number(most))
                && (a > b || (a == b && !may_meet))
                && part.get("type").is_some_and(Value::is_string)
            {
                let why = format!("no number is between {a} and {b}");
                return part.nothing(&format!("{least}, {most}"), why);
            }
        }
        Ok(())
    }

    fn reference(&mut self, value: &Value, part: &mut Part<'_>) -> Result<(), Refused> {
        let Some(text) = value.as_str() else { return part.refuse("$ref", "it is no string") };
        if let Some((key, id, at)) = &self.names.nested {
            let why = "with a `$ref` in the schema, only the root may have an identifier";
            return Err(Refused::keyword(key, at, id, why));
        }
        let pointer = match self.names.pointer(text) {
            Ok(pointer) => pointer,
            Err(why) => return part.refuse("$ref", why),
        };
        if self.root.pointer(&pointer).is_none() {
            return part.refuse("$ref", "there is nothing at this pointer");
        }
        let count = self.defs.len();
        let name = self.defs.entry(pointer.clone()).or_insert_with(|| {
            self.open.push(pointer);
            format!("r{count}")
        });
        part.apply("$ref", Value::from(format!("#/$defs/{name}")));
        Ok(())
    }

    fn identifier(&mut self, key: &str, part: &Part<'_>) -> Result<(), Refused> {
        match part.get(key) {
            Some(Value::String(_)) => Ok(()),
            _ if key == "id" => Ok(()),
            _ => part.refuse(key, "it is no string"),
        }
    }

    fn types(&mut self, value: &Value, part: &mut Part<'_>) -> Result<(), Refused> {
        let list = match value {
            Value::String(_) => std::slice::from_ref(value),
            Value::Array(list) => list,
            _ => return part.refuse("type", "it is no type and no list of types"),
        };
        if list.is_empty() {
            return part.nothing("type", "an empty list of types");
        }
        let mut known: Vec<&str> = Vec::new();
        for item in list {
            match item.as_str().filter(|t| TYPES.contains(t)) {
                Some("integer") if list.contains(&json!("number")) => {}
                Some(name) if known.contains(&name) => {}
                Some(name) => known.push(name),
                None => {
                    let why = format!("types are {}", TYPES.join(", "));
                    return Err(Refused::keyword("type", part.at, item, why));
                }
            }
        }
        let value = if let [one] = known.as_slice() { json!(one) } else { json!(known) };
        part.plain.insert("type".to_owned(), value);
        Ok(())
    }

    fn literals(&mut self, key: &str, value: &Value, part: &mut Part<'_>) -> Result<(), Refused> {
        let list = match value {
            value if key == "const" => std::slice::from_ref(value),
            Value::Array(list) => list,
            _ => return part.refuse(key, "it is no list"),
        };
        if list.is_empty() {
            return part.nothing("enum", "an empty list of values");
        }
        self.values += list.len();
        within("values of `enum`", self.values, self.bounds.values)?;
        let mut taken: Vec<Value> = Vec::new();
        for item in list {
            match values::literal(item) {
                Ok(value) => taken.push(value),
                Err(why) => return Err(Refused::keyword(key, part.at, item, why)),
            }
        }
        match taken.pop() {
            Some(one) if taken.is_empty() => part.apply("const", one),
            Some(last) => {
                taken.push(last);
                part.apply("enum", Value::from(taken));
            }
            None => {}
        }
        Ok(())
    }

    fn combined(&mut self, key: &'static str, part: &mut Part<'_>) -> Result<(), Refused> {
        let list = self.list(key, part)?;
        if list.is_empty() {
            return part.refuse(key, "an empty list");
        }
        if key == "oneOf" {
            within("schemas of a `oneOf`", list.len(), MOST_OF_ONE)?;
        }
        part.apply(key, Value::from(list));
        Ok(())
    }

    /// The schemas of a keyword that is a list of them.
    pub fn list(&mut self, key: &str, part: &Part<'_>) -> Result<Vec<Value>, Refused> {
        let Some(Value::Array(list)) = part.get(key) else {
            return part.refuse(key, "it is no list of schemas");
        };
        let each = |(i, item)| self.below(item, &format!("{key}/{i}"), part);
        list.iter().enumerate().map(each).collect()
    }

    /// A schema inside another; `path` is escaped.
    pub fn below(&mut self, schema: &Value, path: &str, part: &Part<'_>) -> Result<Value, Refused> {
        self.schema(schema, &format!("{}/{path}", part.at), part.depth + 1)
    }

    /// The schemas of a keyword that has them by name.
    pub fn by_name(&mut self, key: &str, part: &Part<'_>) -> Result<Map<String, Value>, Refused> {
        let Some(Value::Object(map)) = part.get(key) else {
            return part.refuse(key, "it is no object of schemas");
        };
        let each = |(name, item): (&String, &Value)| {
            Ok((name.clone(), self.below(item, &format!("{key}/{}", escaped(name)), part)?))
        };
        map.iter().map(each).collect()
    }

    fn bound(
        &mut self,
        key: &'static str,
        value: &Value,
        part: &mut Part<'_>,
    ) -> Result<(), Refused> {
        let (open, closed) = match key {
            "exclusiveMinimum" => (true, "minimum"),
            "exclusiveMaximum" => (true, "maximum"),
            _ => (false, key),
        };
        match value {
            // Draft 4: it says of the other one that it is excluded.
            Value::Bool(false) if open => Ok(()),
            Value::Bool(true) if open => match part.get(closed) {
                Some(Value::Number(n)) => match values::number(n) {
                    Ok(n) => {
                        part.plain.insert(key.to_owned(), Value::Number(n));
                        Ok(())
                    }
                    Err(why) => part.refuse(closed, why),
                },
                _ => part.refuse(key, format!("`true` without `{closed}`")),
            },
            Value::Number(n) => match values::number(n) {
                Ok(n) => {
                    part.plain.insert(key.to_owned(), Value::Number(n));
                    Ok(())
                }
                Err(why) => part.refuse(key, why),
            },
            _ => part.refuse(key, "it is no number"),
        }
    }

    fn multiple(&mut self, value: &Value, part: &mut Part<'_>) -> Result<(), Refused> {
        if !value.as_f64().is_some_and(|v| v > 0.0) {
            return part.refuse("multipleOf", "it is no number over 0");
        }
        if values::decimal(value).is_none() {
            return part
                .refuse("multipleOf", "its digits are over 1000, or it has over 6 decimals");
        }
        part.plain.insert("multipleOf".to_owned(), value.clone());
        // Further multiples are none once they are read as doubles.
        for (key, open, exact) in [
            ("minimum", "exclusiveMinimum", -values::EXACT),
            ("maximum", "exclusiveMaximum", values::EXACT),
        ] {
            if part.get(key).is_none() && part.get(open).is_none() {
                part.plain.insert(key.to_owned(), Value::from(exact as i64));
            }
        }
        Ok(())
    }

    /// A count of characters or items.
    pub fn count(&mut self, key: &'static str, part: &mut Part<'_>) -> Result<(), Refused> {
        let Some(count) = part.count(key) else {
            return part.refuse(key, "it is no count");
        };
        let count = match key.starts_with("min") {
            true => {
                within(key, count, self.bounds.repeat)?;
                count
            }
            false => count.min(self.bounds.repeat),
        };
        part.plain.insert(key.to_owned(), Value::from(count));
        Ok(())
    }

    fn string(&mut self, key: &str, value: &Value, part: &mut Part<'_>) -> Result<(), Refused> {
        let Some(text) = value.as_str() else { return part.refuse(key, "it is no string") };
        let text = if key == "format" {
            match formats::format(text) {
                Some(Format::Pattern(pattern)) => pattern,
                Some(Format::Silent) => return Ok(()),
                None => {
                    let why = format!("not a format that is enforced: {}", formats::names());
                    return part.refuse(key, why);
                }
            }
        } else {
            text
        };
        match self.pattern(text)? {
            Ok(pattern) => part.patterns.push(pattern),
            Err(why) => return part.refuse(key, why),
        }
        Ok(())
    }

    /// A regular expression, translated; the inner error is the expression's.
    pub fn pattern(&mut self, text: &str) -> Result<Result<String, String>, Refused> {
        self.patterns += 1;
        within("patterns of the schema", self.patterns, self.bounds.patterns)?;
        within("bytes of a pattern", text.len(), self.bounds.pattern_bytes)?;
        Ok(pattern::translate(text, self.bounds.repeat, true))
    }
}

//! `oneOf` whose schemas no value satisfies two of: it is `anyOf` then. The compiler finds some of
//! these itself, but looks through no reference and tells no numbers apart.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Deepest look into properties.
const DEPTH: usize = 4;

/// A plain schema with `anyOf` in place of every `oneOf` that allows it.
pub(super) fn rewritten(schema: &Value, defs: &Map<String, Value>) -> Value {
    match schema {
        Value::Array(list) => list.iter().map(|s| rewritten(s, defs)).collect(),
        Value::Object(map) => {
            let is_free = !map.contains_key("anyOf");
            let each = |(key, value): (&String, &Value)| match (key.as_str(), value) {
                ("enum" | "const", value) => (key.clone(), value.clone()),
                ("oneOf", Value::Array(list)) if is_free && all_disjoint(list, defs) => {
                    ("anyOf".to_owned(), rewritten(value, defs))
                }
                _ => (key.clone(), rewritten(value, defs)),
            };
            Value::Object(map.iter().map(each).collect())
        }
        other => other.clone(),
    }
}

fn all_disjoint(list: &[Value], defs: &Map<String, Value>) -> bool {
    let said: Vec<Said<'_>> = list.iter().map(|s| Said::new(s, defs)).collect();
    let pairs = said.iter().enumerate().flat_map(|(i, a)| said.iter().take(i).map(move |b| (a, b)));
    pairs.into_iter().all(|(a, b)| a.is_disjoint(b, defs, DEPTH))
}

/// What holds for every value of a schema.
#[derive(Default)]
struct Said<'a> {
    /// Its types, `integer` as `number`; `None`: any.
    types: Option<BTreeSet<&'a str>>,
    /// Its values, where they are listed.
    values: Option<Vec<&'a Value>>,
    required: BTreeSet<&'a str>,
    properties: Vec<(&'a str, &'a Value)>,
}

impl<'a> Said<'a> {
    fn new(schema: &'a Value, defs: &'a Map<String, Value>) -> Self {
        let mut said = Said::default();
        said.gather(schema, defs, 0);
        said
    }

    fn gather(&mut self, schema: &'a Value, defs: &'a Map<String, Value>, depth: usize) {
        let Value::Object(map) = schema else { return };
        if depth > 16 {
            return;
        }
        let named = map.get("$ref").and_then(Value::as_str);
        let target = named.and_then(|n| n.strip_prefix("#/$defs/")).and_then(|n| defs.get(n));
        let all = map.get("allOf").and_then(Value::as_array).into_iter().flatten();
        all.chain(target).for_each(|s| self.gather(s, defs, depth + 1));
        if let Some(types) = map.get("type") {
            let types: BTreeSet<&str> = match types {
                Value::Array(list) => list.iter().filter_map(Value::as_str).map(wide).collect(),
                one => one.as_str().map(wide).into_iter().collect(),
            };
            self.types = Some(match self.types.take() {
                Some(known) => known.intersection(&types).copied().collect(),
                None => types,
            });
        }
        let listed = map.get("enum").and_then(Value::as_array).map(|l| l.iter().collect());
        if let Some(values) = map.get("const").map(|c| vec![c]).or(listed) {
            self.values.get_or_insert(values);
        }
        self.required.extend(
            map.get("required")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(Value::as_str),
        );
        let properties = map.get("properties").and_then(Value::as_object).into_iter().flatten();
        self.properties.extend(properties.map(|(name, schema)| (name.as_str(), schema)));
    }

    fn types(&self) -> Option<BTreeSet<&'a str>> {
        let of_values = |values: &Vec<&'a Value>| values.iter().map(|v| type_of(v)).collect();
        self.values.as_ref().map(of_values).or_else(|| self.types.clone())
    }

    fn is_disjoint(&self, other: &Said<'a>, defs: &'a Map<String, Value>, depth: usize) -> bool {
        let (own, theirs) = (self.types(), other.types());
        if let (Some(a), Some(b)) = (&own, &theirs)
            && a.is_disjoint(b)
        {
            return true;
        }
        if let (Some(a), Some(b)) = (&self.values, &other.values) {
            return a.iter().all(|x| b.iter().all(|y| x != y));
        }
        let is_object =
            |t: &Option<BTreeSet<&str>>| t.as_ref().is_some_and(|t| t.iter().eq(&["object"]));
        if depth == 0 || !(is_object(&own) || is_object(&theirs)) {
            return false;
        }
        self.properties.iter().any(|(name, schema)| {
            let is_there = self.required.contains(name) || other.required.contains(name);
            let same = other.properties.iter().filter(|(n, _)| n == name);
            is_there
                && same.into_iter().any(|(_, theirs)| {
                    Said::new(schema, defs).is_disjoint(&Said::new(theirs, defs), defs, depth - 1)
                })
        })
    }
}

fn wide(name: &str) -> &str {
    if name == "integer" { "number" } else { name }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

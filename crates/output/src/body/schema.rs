//! What the schema of a tool's parameters says of a value that is written as text.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::json;

/// How far references and alternatives are followed.
const DEEPEST: usize = 16;
/// Most schemas that are looked at for one parameter.
const MOST: usize = 256;

/// What is left to look at, and what was seen.
struct Walk<'a> {
    root: &'a Value,
    nodes: usize,
    pointers: BTreeSet<&'a str>,
}

/// The schema of all parameters, where the root is only a reference to it.
pub(crate) fn resolved(root: &Value) -> &Value {
    let mut schema = root;
    for _ in 0..DEEPEST {
        let pointer = schema.get("$ref").and_then(Value::as_str);
        let target = pointer.and_then(|p| p.strip_prefix('#')).and_then(|p| root.pointer(p));
        match target {
            Some(target) if schema.get("properties").is_none() => schema = target,
            _ => break,
        }
    }
    schema
}

/// The types of JSON Schema that a value may have.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Types {
    null: bool,
    boolean: bool,
    integer: bool,
    number: bool,
    string: bool,
    object: bool,
    array: bool,
    /// The values, where they are listed.
    listed: Vec<Value>,
}

impl Types {
    /// Of a parameter, by the schema of all.
    pub fn of(parameters: Option<&Value>, key: &str) -> Self {
        let Some(root) = parameters else {
            return Self::default();
        };
        let all = resolved(root);
        let named = all.get("properties").and_then(|all| all.get(key));
        let schema = named.or_else(|| all.get("additionalProperties"));
        schema.map(|schema| Self::of_schema(schema, root)).unwrap_or_default()
    }

    /// Of a schema, with the one that its references are in.
    pub fn of_schema(schema: &Value, root: &Value) -> Self {
        let mut types = Self::default();
        types.add(schema, &mut Walk { root, nodes: MOST, pointers: BTreeSet::new() }, 0);
        types
    }

    fn add<'a>(&mut self, schema: &'a Value, walk: &mut Walk<'a>, depth: usize) {
        if depth > DEEPEST || walk.nodes == 0 {
            return;
        }
        walk.nodes -= 1;
        if let Some(Value::String(pointer)) = schema.get("$ref")
            && let Some(target) = pointer.strip_prefix('#').and_then(|p| walk.root.pointer(p))
            && walk.pointers.insert(pointer)
        {
            self.add(target, walk, depth + 1);
        }
        match schema.get("type") {
            Some(Value::String(name)) => self.name(name),
            Some(Value::Array(names)) => {
                names.iter().filter_map(Value::as_str).for_each(|name| self.name(name));
            }
            _ => {
                self.object |= schema.get("properties").is_some();
                self.array |= schema.get("items").is_some();
            }
        }
        for alternatives in ["anyOf", "oneOf"] {
            for schema in schema.get(alternatives).and_then(Value::as_array).into_iter().flatten() {
                self.add(schema, walk, depth + 1);
            }
        }
        self.listed
            .extend(schema.get("enum").and_then(Value::as_array).into_iter().flatten().cloned());
        self.listed.extend(schema.get("const").cloned());
        for schema in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            let listed = std::mem::take(&mut self.listed);
            self.add(schema, walk, depth + 1);
            if self.listed.is_empty() {
                self.listed = listed;
            } else if !listed.is_empty() {
                // Both lists hold: what is in one alone is not allowed.
                self.listed.retain(|value| listed.contains(value));
            }
        }
    }

    fn name(&mut self, name: &str) {
        match name {
            "null" => self.null = true,
            "boolean" => self.boolean = true,
            "integer" => self.integer = true,
            "number" => self.number = true,
            "string" => self.string = true,
            "object" => self.object = true,
            "array" => self.array = true,
            _ => {}
        }
    }

    /// Only strings: the text is the value, whatever it looks like.
    pub fn is_text(&self) -> bool {
        let others = [self.null, self.boolean, self.integer, self.number, self.object, self.array];
        let is_string = self.string || !self.listed.is_empty();
        is_string && !others.contains(&true) && self.listed.iter().all(Value::is_string)
    }

    /// A text may be the value as it is.
    pub fn takes_text(&self) -> bool {
        self.string || self.is_unknown()
    }

    /// The texts that spell the listed values.
    pub fn listed_texts(&self) -> Vec<String> {
        let spelled = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
        self.listed.iter().map(spelled).collect()
    }

    /// The values are listed.
    pub fn is_listed(&self) -> bool {
        !self.listed.is_empty()
    }

    fn is_unknown(&self) -> bool {
        *self == Self::default()
    }

    /// The value that the text spells, as JSON; a string where none of another type fits.
    pub fn value(&self, text: &str) -> String {
        if self.is_text() {
            return json::quoted(text);
        }
        let found = self.listed(text).or_else(|| self.typed(text.trim()));
        found.unwrap_or_else(|| json::quoted(text))
    }

    fn listed(&self, text: &str) -> Option<String> {
        let strings = self.listed.iter().filter_map(Value::as_str);
        if strings.into_iter().any(|one| one == text) {
            return Some(json::quoted(text));
        }
        let text = python_word(text.trim());
        let value: Value = serde_json::from_str(text).ok()?;
        let is_listed = self.listed.iter().any(|one| *one == value || equal_numbers(one, &value));
        if is_listed { json::value(text) } else { None }
    }

    fn typed(&self, text: &str) -> Option<String> {
        let word = if self.string && text == "None" { text } else { python_word(text) };
        match word {
            "null" => return self.null.then(|| word.to_owned()),
            "true" | "false" => return self.boolean.then(|| word.to_owned()),
            _ => {}
        }
        let value = json::value(text)?;
        let fits = match value.as_bytes().first()? {
            b'{' => self.object || self.is_unknown(),
            b'[' => self.array || self.is_unknown(),
            b'"' => false,
            _ if self.number => true,
            _ => return self.integer.then(|| integer(&value)).flatten(),
        };
        fits.then_some(value)
    }
}

/// A word of Python as JSON has it.
fn python_word(text: &str) -> &str {
    match text {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        text => text,
    }
}

/// A number that is whole, without the zeros behind its point.
fn integer(number: &str) -> Option<String> {
    let (whole, rest) = number.split_once('.').unwrap_or((number, "0"));
    if rest.bytes().all(|b| b == b'0') && !whole.contains(['e', 'E']) {
        return Some(whole.to_owned());
    }
    let value: f64 = number.parse().ok()?;
    (value.fract() == 0.0).then(|| number.to_owned())
}

fn equal_numbers(one: &Value, other: &Value) -> bool {
    matches!((one.as_f64(), other.as_f64()), (Some(a), Some(b)) if a == b)
}

//! What a reader must have and which kinds of values it takes, found by asking it: what is told of a
//! request is what is read of it.

use serde_json::{Map, Value, json};

use crate::ask::Read;
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Notes, kind_of};

/// A value for each member that some reader must have.
fn needed(name: &str) -> Option<Value> {
    Some(match name {
        "messages" => json!([{ "role": "user", "content": "a" }]),
        "documents" => json!(["a"]),
        "tokens" => json!([1]),
        "max_tokens" => json!(5),
        "content" | "input" | "model" | "prompt" | "query" => json!("a"),
        _ => return None,
    })
}

/// A value of each kind, by JSON Schema's word for it.
fn samples() -> [(&'static str, Value); 6] {
    [
        ("string", json!("a")),
        ("integer", json!(1)),
        ("number", json!(0.5)),
        ("boolean", json!(true)),
        ("array", json!([])),
        ("object", json!({})),
    ]
}

/// A reader, and a request that it takes.
pub struct Asked {
    read: Read,
    request: Map<String, Value>,
}

impl Asked {
    /// Finds out what a reader must have.
    pub fn of(read: Read) -> Self {
        let mut asked = Self { read, request: Map::new() };
        while let Some((name, value)) = asked.missing() {
            asked.request.insert(name, value);
        }
        asked
    }

    /// Members that must be there.
    pub fn required(&self) -> impl Iterator<Item = &String> {
        self.request.keys()
    }

    fn missing(&self) -> Option<(String, Value)> {
        let error = self.error(self.request.clone())?;
        let name = error.param.filter(|name| error.message == format!("{name} is missing"))?;
        let value = needed(&name).filter(|_| !self.request.contains_key(&name))?;
        Some((name, value))
    }

    fn error(&self, request: Map<String, Value>) -> Option<ApiError> {
        let fields = Fields::of(Value::Object(request), "").ok()?;
        (self.read)(fields, &Limits::default(), &mut Notes::new(false)).err()
    }

    /// Kinds of values that a member may have; `None`: any. A value of such a kind may still be
    /// refused, for what it says.
    pub fn kinds(&self, name: &str) -> Option<Vec<&'static str>> {
        let is_taken = |(_, value): &(&str, Value)| {
            let mut request = self.request.clone();
            request.insert(name.to_owned(), value.clone());
            let wrong = format!(", not {}", kind_of(value));
            !self.error(request).is_some_and(|error| {
                error.param.as_deref() == Some(name) && error.message.ends_with(&wrong)
            })
        };
        let taken = samples().into_iter().filter(is_taken).map(|(kind, _)| kind);
        let mut kinds: Vec<&str> = taken.collect();
        if kinds.len() == samples().len() {
            return None;
        }
        // (Whole numbers are numbers.)
        let has_fractions = kinds.contains(&"number");
        kinds.retain(|kind| !has_fractions || *kind != "integer");
        if !self.request.contains_key(name) {
            kinds.push("null"); // it asks for nothing
        }
        Some(kinds)
    }
}

//! Schemas of tools that are not strict: what cannot be enforced is left out.

use std::sync::Arc;

use serde_json::{Value, json};
use tokenmill_grammar::{Constraint, Refused, Settings, Vocabulary, compile};

/// Most keywords left out of a schema, before it is given up.
const MOST: usize = 64;

/// What of a schema can be enforced, and what was left out. Where it is little, any object will do.
pub fn enforceable(
    schema: &Value,
    vocabulary: &Arc<Vocabulary>,
    settings: &Settings,
) -> (Value, Vec<String>) {
    let (mut rest, mut left_out) = (super::parts::object(schema.clone()), Vec::new());
    while left_out.len() < MOST {
        let refused = match compile(&Constraint::JsonSchema(rest.clone()), vocabulary, settings) {
            Ok(_) => return (rest, left_out),
            Err(refused) => refused,
        };
        let Refused::Keyword { keyword, pointer, .. } = &refused else {
            left_out.push(format!("the schema as a whole: {refused}"));
            break;
        };
        let place = rest.pointer_mut(pointer).and_then(Value::as_object_mut);
        if place.and_then(|place| place.shift_remove(keyword)).is_none() {
            left_out.push(format!("the schema as a whole: {refused}"));
            break;
        }
        left_out.push(format!("{keyword} at {}", if pointer.is_empty() { "/" } else { pointer }));
    }
    (json!({ "type": "object" }), left_out)
}

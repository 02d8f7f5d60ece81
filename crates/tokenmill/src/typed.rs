//! Answers that are values of a type: its JSON Schema holds the answer, token by token.

use std::marker::PhantomData;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokenmill_engine::StopReason;

use crate::answer::Piece;
use crate::chat::Chat;
use crate::error::Error;
use crate::partial::begun;
use crate::stream::Stream;

/// The schema of a type, as answers are held to it and no looser: members that the type does not name do
/// not come, integers are within its width, all numbers within ±2⁵³.
pub fn schema_of<T: JsonSchema>() -> Value {
    settled(plain_schema_of::<T>())
}

/// The same of a schema that another program made of a type.
pub fn settled(mut schema: Value) -> Value {
    settle(&mut schema, true);
    schema
}

/// The schema as schemars has it, for people and models to read.
pub(crate) fn plain_schema_of<T: JsonSchema>() -> Value {
    let mut schema = schemars::schema_for!(T).to_value();
    if let Some(schema) = schema.as_object_mut() {
        schema.shift_remove("$schema");
    }
    schema
}

/// Integers that every reader of JSON has exactly.
const EXACT: i64 = 1 << 53;

/// Makes a schema say what a type takes. `closes`: an object has no other members than those of its
/// `properties`, for no other schema tells of it.
fn settle(schema: &mut Value, closes: bool) {
    let Some(schema) = schema.as_object_mut() else { return };
    numbers(schema);
    // (A set takes the same item twice.)
    schema.shift_remove("uniqueItems");
    if let (Some(one), false) = (schema.shift_remove("oneOf"), schema.contains_key("anyOf")) {
        // (What fits any of them is a value of the type: it tells them apart by itself.)
        schema.insert("anyOf".to_owned(), one);
    }
    let beside = ["allOf", "anyOf", "$ref", "patternProperties", "unevaluatedProperties"];
    let is_alone = !beside.iter().any(|key| schema.contains_key(*key));
    let open = schema.contains_key("properties") && !schema.contains_key("additionalProperties");
    if closes && is_alone && open {
        schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    let inner = closes && !schema.contains_key("properties");
    for (key, value) in schema.iter_mut() {
        match (key.as_str(), value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(all)) => {
                all.values_mut().for_each(|one| settle(one, true));
            }
            ("anyOf" | "oneOf", Value::Array(all)) => {
                all.iter_mut().for_each(|one| settle(one, inner));
            }
            ("allOf", Value::Array(all)) => all.iter_mut().for_each(|one| settle(one, false)),
            ("prefixItems", Value::Array(all)) => all.iter_mut().for_each(|one| settle(one, true)),
            ("items" | "additionalProperties" | "additionalItems", one) => settle(one, true),
            _ => {}
        }
    }
}

/// Bounds of numbers, in the place of a format that names a width.
fn numbers(schema: &mut Map<String, Value>) {
    let is_number = |kind: &Value| kind == "integer" || kind == "number";
    let has_numbers = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(is_number),
        Some(kind) => is_number(kind),
        None => false,
    };
    if !has_numbers {
        return;
    }
    let format = schema.shift_remove("format");
    let (least, most) = match format.as_ref().and_then(Value::as_str) {
        Some("int8") => (i8::MIN.into(), i8::MAX.into()),
        Some("int16") => (i16::MIN.into(), i16::MAX.into()),
        Some("int32") => (i32::MIN.into(), i32::MAX.into()),
        Some("uint8") => (0, u8::MAX.into()),
        Some("uint16") => (0, u16::MAX.into()),
        Some("uint32") => (0, u32::MAX.into()),
        Some("uint" | "uint64" | "uint128") => (0, EXACT),
        _ => (-EXACT, EXACT),
    };
    let mut bound = |name: &str, exclusive: &str, limit: i64, is_within: &dyn Fn(f64) -> bool| {
        let said = schema.get(name).and_then(Value::as_f64);
        let exclusive = schema.get(exclusive).is_some_and(Value::is_number);
        if !said.map_or(exclusive, is_within) {
            schema.insert(name.to_owned(), limit.into());
        }
    };
    bound("minimum", "exclusiveMinimum", least, &|said| said >= least as f64);
    bound("maximum", "exclusiveMaximum", most, &|said| said <= most as f64);
}

/// A value of a type from JSON in which an integer may be `-0`, as schemas have it; serde reads that as no
/// integer.
///
/// # Errors
/// What the type says.
pub(crate) fn value_of<T: DeserializeOwned>(mut value: Value) -> Result<T, serde_json::Error> {
    fn settle_zeros(value: &mut Value) {
        match value {
            Value::Number(number) if number.as_f64() == Some(0.0) => *value = 0.into(),
            Value::Array(items) => items.iter_mut().for_each(settle_zeros),
            Value::Object(members) => members.values_mut().for_each(settle_zeros),
            _ => {}
        }
    }
    settle_zeros(&mut value);
    serde_json::from_value(value)
}

/// A part of an answer that is a value.
#[derive(Debug, Clone, PartialEq)]
pub enum Part<T> {
    /// What is known of it so far: strings as far as they go, members that have come.
    Partial(Value),
    /// All of it, at last.
    Whole(T),
}

/// A value as it is made. Dropped, nothing more of it is computed.
#[derive(Debug)]
pub struct TypedStream<'c, T> {
    stream: Stream<&'c mut Chat>,
    last: Option<Value>,
    is_told: bool,
    of: PhantomData<fn() -> T>,
}

impl<'c, T: DeserializeOwned> TypedStream<'c, T> {
    pub(crate) fn new(stream: Stream<&'c mut Chat>) -> Self {
        Self { stream, last: None, is_told: false, of: PhantomData }
    }

    /// The whole value.
    ///
    /// # Errors
    /// [`Error::Cut`], [`Error::Type`], or what the answer fails of.
    pub fn finish(mut self) -> Result<T, Error> {
        for piece in &mut self.stream {
            piece?;
        }
        self.whole()
    }

    fn whole(&self) -> Result<T, Error> {
        let (reason, usage) = self.stream.ending();
        let is_cut = reason == Some(&StopReason::Length);
        let text = self.stream.text();
        match serde_json::from_str(text).and_then(value_of) {
            // (A number that was cut is one all the same.)
            Ok(value) if !is_cut || !text.ends_with(|sign: char| sign.is_ascii_digit()) => {
                Ok(value)
            }
            Err(error) if !is_cut => Err(Error::Type { text: text.to_owned(), error }),
            Ok(_) | Err(_) => Err(Error::Cut { tokens: usage.completion_tokens }),
        }
    }
}

impl<T: DeserializeOwned> Iterator for TypedStream<'_, T> {
    type Item = Result<Part<T>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.stream.next() {
                Some(Ok(Piece::Text(_))) => {
                    let known = begun(self.stream.text());
                    if known.is_some() && known != self.last {
                        self.last.clone_from(&known);
                        return known.map(|known| Ok(Part::Partial(known)));
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    self.is_told = true;
                    return Some(Err(error));
                }
                None if self.is_told => return None,
                None => {
                    self.is_told = true;
                    return Some(self.whole().map(Part::Whole));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_negative_zero_is_an_integer() {
        let value: (i8, Vec<u16>, f64) = value_of(json!([-0.0, [3, -0.0], 1.5])).unwrap();
        assert_eq!(value, (0, vec![3, 0], 1.5));
        assert!(value_of::<i8>(json!(1.5)).is_err());
    }

    #[test]
    fn schemas_say_what_types_take() {
        for (schema, expect) in [
            (
                json!({"type": "integer", "format": "uint8", "minimum": 0, "maximum": 255}),
                json!({"type": "integer", "minimum": 0, "maximum": 255}),
            ),
            (
                json!({"type": ["integer", "null"], "format": "int32"}),
                json!({"type": ["integer", "null"], "minimum": i32::MIN, "maximum": i32::MAX}),
            ),
            (
                json!({"type": "integer", "format": "int64", "exclusiveMinimum": 3}),
                json!({"type": "integer", "exclusiveMinimum": 3, "maximum": EXACT}),
            ),
            (
                json!({"type": "number", "format": "double", "maximum": 1e300}),
                json!({"type": "number", "maximum": EXACT, "minimum": -EXACT}),
            ),
            (
                json!({"type": "object", "properties": {"format": {"type": "string", "format": "date"}}}),
                json!({"type": "object", "properties": {"format": {"type": "string", "format": "date"}},
                    "additionalProperties": false}),
            ),
            (
                json!({"oneOf": [{"type": "object", "properties": {}}, {"const": 1}]}),
                json!({"anyOf": [{"type": "object", "properties": {}, "additionalProperties": false}, {"const": 1}]}),
            ),
            // Several schemas tell of one object: none of them closes it.
            (
                json!({"properties": {}, "anyOf": [{"properties": {}}], "allOf": [{"properties": {}}]}),
                json!({"properties": {}, "anyOf": [{"properties": {}}], "allOf": [{"properties": {}}]}),
            ),
            (
                json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}}),
                json!({"type": "array", "items": {"type": "string"}}),
            ),
        ] {
            let mut settled = schema.clone();
            settle(&mut settled, true);
            assert_eq!(settled, expect, "{schema}");
        }
    }
}

//! JSON that cannot cost more than it says: limited depth and number of values, no key twice.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A client's own word, fit for a message: short, without control characters.
pub fn shown(word: &str) -> String {
    let mut clean: String = word.chars().filter(|c| !c.is_control()).take(64).collect();
    if clean.len() < word.len() {
        clean.push('…');
    }
    clean
}

/// Bounds of one document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonLimits {
    /// Nested arrays and objects.
    pub depth: u32,
    /// Values in all; each costs some tens of bytes of memory, whatever it costs on the wire.
    pub values: u32,
}

/// Parses one document.
///
/// # Errors
/// What is wrong and where, for the client.
pub fn parse(bytes: &[u8], limits: JsonLimits) -> Result<Value, String> {
    let left = Cell::new(limits.values);
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = Node { depth: limits.depth, limits, left: &left }
        .deserialize(&mut reader)
        .map_err(|e| e.to_string())?;
    reader.end().map_err(|e| e.to_string())?;
    Ok(value)
}

/// One value, with what depth and count remain.
#[derive(Clone, Copy)]
struct Node<'a> {
    depth: u32,
    limits: JsonLimits,
    left: &'a Cell<u32>,
}

impl<'a> Node<'a> {
    fn inside<E: Error>(self) -> Result<Node<'a>, E> {
        let Some(depth) = self.depth.checked_sub(1) else {
            return Err(E::custom(format!("nested deeper than {} levels", self.limits.depth)));
        };
        Ok(Node { depth, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        let Some(left) = self.left.get().checked_sub(1) else {
            return Err(D::Error::custom(format!("more than {} values", self.limits.values)));
        };
        self.left.set(left);
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let node = self.inside()?;
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(node)? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let node = self.inside()?;
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(node)?;
            if object.contains_key(&key) {
                let key = shown(&key);
                return Err(A::Error::custom(format!("the key {key:?} is there twice")));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: JsonLimits = JsonLimits { depth: 4, values: 20 };

    #[test]
    fn accepts_what_is_within_the_limits() {
        for text in [
            "null",
            "[[[[]]]]",
            r#"{"a":{"b":[1,-2,3.5e3,"x\u00e9",true,null]}}"#,
            "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19]",
        ] {
            let expect: Value = serde_json::from_str(text).unwrap();
            assert_eq!(parse(text.as_bytes(), LIMITS), Ok(expect), "{text}");
        }
    }

    #[test]
    fn refuses_by_name() {
        let deep = "[".repeat(1_000_000);
        let cases: &[(&str, &str)] = &[
            ("", "EOF"),
            ("[[[[[]]]]]", "deeper than 4"),
            (&deep, "deeper than 4"),
            ("[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]", "more than 20 values"),
            (r#"{"a":1,"a":1}"#, "\"a\" is there twice"),
            (r#"{"a":1} x"#, "trailing"),
            ("1e999", "out of range"),
            ("NaN", "expected"),
            ("-Infinity", "invalid number"),
            ("\"\\ud800\"", "hex escape"),
            ("\"a\nb\"", "control character"),
            ("'a'", "expected value"),
            ("[1,]", "trailing comma"),
        ];
        for (text, expect) in cases {
            let shown = &text[..text.len().min(40)];
            let error = parse(text.as_bytes(), LIMITS).expect_err(shown);
            assert!(error.contains(expect), "{shown}: {error}");
        }
        assert!(parse(b"\"\xff\"", LIMITS).is_err(), "not UTF-8");
    }
}

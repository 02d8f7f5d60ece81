//! The members of a JSON object, taken one by one. What nobody takes is named in a warning, or
//! refused by name where the server is strict.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};
pub use tokenmill_chat::shown;
use tokenmill_engine::KeepAlive;

use crate::error::ApiError;
use crate::seal::Seal;
use crate::state::Stored;

/// A member that may be there and is not read.
#[derive(Debug, Clone, Copy)]
pub struct Ignored {
    /// Its name.
    pub name: &'static str,
    /// Why leaving it out changes no answer.
    pub because: &'static str,
}

/// A member that is known and not built yet.
#[derive(Debug, Clone, Copy)]
pub struct Unsupported {
    /// Its name.
    pub name: &'static str,
    /// Values that ask for nothing and are fine.
    pub neutral: fn(&Value) -> bool,
}

/// Most warnings told of one request; more are counted.
const MAX_NOTES: usize = 16;

/// What of a request had no effect, to be told with its answer; and by what its reader opens what this
/// server sealed.
#[derive(Debug, Default)]
pub struct Notes {
    strict: bool,
    seal: Seal,
    /// What this server keeps, for the one who asks.
    stored: Option<Stored>,
    /// How long the model was asked to stay.
    keep: Option<KeepAlive>,
    list: Vec<String>,
    /// Warnings beyond the most that are told.
    more: usize,
    /// Members nobody knows.
    unknown: u64,
}

impl Notes {
    /// None yet; `strict` refuses members that nobody knows.
    pub fn new(strict: bool) -> Self {
        Self { strict, ..Self::default() }
    }

    /// For requests that may hold what was sealed so.
    pub fn sealed_by(self, seal: Seal) -> Self {
        Self { seal, ..self }
    }

    /// For a request whose model is to stay so long after the answer.
    pub fn keeping(self, keep: Option<KeepAlive>) -> Self {
        Self { keep, ..self }
    }

    /// For requests that may name what is kept there; `None`: this server keeps nothing.
    pub fn stored_in(self, stored: Option<Stored>) -> Self {
        Self { stored, ..self }
    }

    /// What this server keeps for the one who asks.
    pub fn stored(&self) -> Option<&Stored> {
        self.stored.as_ref()
    }

    /// Whether the model is to go at once.
    pub fn lets_go(&self) -> bool {
        self.keep == Some(KeepAlive::Seconds(0.0))
    }

    /// What seals and opens.
    pub fn seal(&self) -> &Seal {
        &self.seal
    }

    /// One more warning.
    pub fn add(&mut self, note: String) {
        match self.list.len() < MAX_NOTES {
            true => self.list.push(note),
            false => self.more += 1,
        }
    }

    /// Members nobody knew.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// The warnings, in order.
    pub fn into_list(mut self) -> Vec<String> {
        if self.more > 0 {
            self.list.push(format!("and {} more warnings", self.more));
        }
        self.list
    }
}

/// An object being read. `null` is as good as absent.
#[derive(Debug)]
pub struct Fields {
    members: Map<String, Value>,
    /// Where the object is, as a prefix of names: empty, or `messages[2].`.
    prefix: String,
}

impl Fields {
    /// The members of `value`, found at `path` (empty for the body itself).
    ///
    /// # Errors
    /// 400 when it is no object.
    pub fn of(value: Value, path: &str) -> Result<Self, ApiError> {
        match value {
            Value::Object(members) => {
                let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
                Ok(Self { members, prefix })
            }
            other if path.is_empty() => {
                let found = kind_of(&other);
                Err(ApiError::bad("body", format!("the body must be a JSON object, not {found}")))
            }
            other => Err(wrong(path, "an object", &other)),
        }
    }

    /// The full name of a member.
    pub fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Whether a member is there and not yet taken.
    pub fn has(&self, name: &str) -> bool {
        self.members.get(name).is_some_and(|value| !value.is_null())
    }

    /// A member as it is, left where it is.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.members.get(name).filter(|value| !value.is_null())
    }

    /// Takes a member as it is.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.members.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Puts a member back, or in the place of what was said another way.
    pub fn put(&mut self, name: &str, value: Value) {
        self.members.insert(name.to_owned(), value);
    }

    /// Takes a member that must be there.
    ///
    /// # Errors
    /// 400 when it is not, or is null.
    pub fn require(&mut self, name: &str) -> Result<Value, ApiError> {
        let path = self.path(name);
        match self.members.shift_remove(name) {
            None => Err(ApiError::bad(&path, format!("{path} is missing"))),
            Some(Value::Null) => Err(ApiError::bad(&path, format!("{path} must not be null"))),
            Some(value) => Ok(value),
        }
    }

    /// A finite number in a range.
    ///
    /// # Errors
    /// 400 for anything else.
    pub fn number(
        &mut self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let path = self.path(name);
        number(&value, range, &path).map(Some)
    }

    /// A whole number in a range.
    ///
    /// # Errors
    /// 400 for anything else.
    pub fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let path = self.path(name);
        // Some languages have one kind of number: 3.0 is whole.
        let whole = value.as_f64().filter(|n| n.fract() == 0.0);
        let small = whole.filter(|n| n.abs() < 9e15).map(|n| n as i64);
        let found = value.as_i64().or(small).ok_or_else(|| match whole {
            Some(_) => out_of_range(&path, &value, &range),
            None => wrong(&path, "a whole number", &value),
        })?;
        if !range.contains(&found) {
            return Err(out_of_range(&path, &value, &range));
        }
        Ok(Some(found))
    }

    /// A whole number from 0 to `most`.
    ///
    /// # Errors
    /// 400 for anything else.
    pub fn count(
        &mut self,
        name: &str,
        range: RangeInclusive<u32>,
    ) -> Result<Option<u32>, ApiError> {
        let wide = i64::from(*range.start())..=i64::from(*range.end());
        let found = self.integer(name, wide)?;
        Ok(found.and_then(|n| u32::try_from(n).ok()))
    }

    /// True or false.
    ///
    /// # Errors
    /// 400 for anything else.
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        let path = self.path(name);
        let read = |v: Value| v.as_bool().ok_or_else(|| wrong(&path, "true or false", &v));
        self.take(name).map(read).transpose()
    }

    /// A string.
    ///
    /// # Errors
    /// 400 for anything else.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        let path = self.path(name);
        self.take(name).map(|value| text(value, &path)).transpose()
    }

    /// Refuses members that ask for what is not built.
    ///
    /// # Errors
    /// 400 with code `unsupported`, naming the first.
    pub fn refuse(&mut self, table: &[Unsupported]) -> Result<(), ApiError> {
        for row in table {
            let Some(value) = self.take(row.name) else { continue };
            if !(row.neutral)(&without_nulls(value)) {
                let path = self.path(row.name);
                let message = format!("{path} is not supported by this server with this value");
                return Err(ApiError::unsupported(path, message));
            }
        }
        Ok(())
    }

    /// Ends the reading. A member of the table is named in a warning with the table's reason, one
    /// that nobody knows too; null asks for nothing, whatever its name.
    ///
    /// # Errors
    /// Where the server is strict: 400 naming the first unknown member.
    pub fn finish(self, ignored: &[Ignored], notes: &mut Notes) -> Result<(), ApiError> {
        for (name, _) in self.members.iter().filter(|(_, value)| !value.is_null()) {
            let path = self.path(&shown(name));
            match ignored.iter().find(|row| row.name == name) {
                Some(row) => notes.add(format!("{path} was ignored: {}", row.because)),
                None if notes.strict => {
                    let message = format!("{path} is not a field of this request");
                    return Err(ApiError {
                        code: Some("unknown_field"),
                        ..ApiError::bad(path, message)
                    });
                }
                None => {
                    notes.unknown += 1;
                    notes.add(format!("{path} was ignored: it is not a field of this request"));
                }
            }
        }
        Ok(())
    }
}

/// The value without members that are null, at any depth.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(members.map(|(name, value)| (name, without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

/// A finite number in a range.
///
/// # Errors
/// 400 for anything else.
pub fn number(value: &Value, range: RangeInclusive<f64>, path: &str) -> Result<f32, ApiError> {
    let found = value.as_f64().filter(|_| value.is_number());
    let found = found.ok_or_else(|| wrong(path, "a number", value))?;
    if !range.contains(&found) {
        return Err(out_of_range(path, value, &range));
    }
    Ok(found as f32)
}

/// A string.
///
/// # Errors
/// 400 for anything else.
pub fn text(value: Value, path: &str) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(wrong(path, "a string", &other)),
    }
}

/// An array.
///
/// # Errors
/// 400 for anything else, and for more than `most` items.
pub fn list(value: Value, most: usize, path: &str) -> Result<Vec<Value>, ApiError> {
    match value {
        Value::Array(items) if items.len() <= most => Ok(items),
        Value::Array(items) => {
            let found = items.len();
            Err(ApiError::bad(path, format!("{path} has {found} items, the limit is {most}")))
        }
        other => Err(wrong(path, "an array", &other)),
    }
}

/// 400: a value of another type than expected.
pub fn wrong(path: &str, expected: &str, found: &Value) -> ApiError {
    ApiError::bad(path, format!("{path} must be {expected}, not {}", kind_of(found)))
}

fn out_of_range<T: std::fmt::Display>(
    path: &str,
    found: &Value,
    range: &RangeInclusive<T>,
) -> ApiError {
    let (from, to) = (range.start(), range.end());
    ApiError::bad(path, format!("{path} must be from {from} to {to}, not {found}"))
}

/// A value's kind in words, as errors tell it.
pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        // (Whole numbers beyond 64 bits are read as these.)
        Value::Number(n) if n.is_f64() => {
            match n.as_f64().is_some_and(|n| n.abs() >= i64::MAX as f64) {
                true => "one that large",
                false => "a fraction",
            }
        }
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value) -> Fields {
        Fields::of(value, "").unwrap()
    }

    #[test]
    fn numbers_are_finite_and_in_range() {
        let read = |v: Value| fields(json!({ "x": v })).number("x", 0.0..=2.0);
        for (value, expect) in
            [(json!(0), 0.0), (json!(2), 2.0), (json!(0.5), 0.5), (json!(-0.0), 0.0)]
        {
            assert_eq!(read(value).unwrap(), Some(expect));
        }
        assert_eq!(read(Value::Null).unwrap(), None);
        for value in [json!(2.0001), json!(-1), json!("1"), json!(true), json!([1]), json!(1e300)] {
            let error = read(value.clone()).expect_err("must be refused");
            assert_eq!(error.param.as_deref(), Some("x"), "{value}");
        }
    }

    #[test]
    fn numbers_of_a_wrong_kind_are_called_what_they_are() {
        let kind = |text: &str| kind_of(&serde_json::from_str(text).unwrap());
        for whole in ["5", "-5", "18446744073709551615"] {
            assert_eq!(kind(whole), "a number", "{whole}");
        }
        assert_eq!(["5.0", "0.5"].map(kind), ["a fraction"; 2]);
        for large in ["1e30", "18446744073709551616", "-9223372036854775809"] {
            assert_eq!(kind(large), "one that large", "{large}");
        }
    }

    #[test]
    fn integers_are_whole_and_in_range() {
        let read = |v: Value| fields(json!({ "n": v })).count("n", 1..=8);
        assert_eq!(read(json!(1)).unwrap(), Some(1));
        assert_eq!(read(json!(8)).unwrap(), Some(8));
        for value in [
            json!(0),
            json!(9),
            json!(-1),
            json!(1.5),
            json!(u64::MAX),
            json!(i64::MIN),
            json!("1"),
        ] {
            assert!(read(value.clone()).is_err(), "{value}");
        }
    }

    #[test]
    fn what_is_left_is_named_or_refused() {
        let table = [Ignored { name: "store", because: "nothing is stored" }];
        let finish = |value: Value, strict: bool| {
            let mut notes = Notes::new(strict);
            fields(value).finish(&table, &mut notes).map(|()| (notes.unknown(), notes.into_list()))
        };
        let unknown = "was ignored: it is not a field of this request";
        let cases: &[(Value, u64, &[&str])] = &[
            (json!({}), 0, &[]),
            (json!({ "store": true }), 0, &["store was ignored: nothing is stored"]),
            (json!({ "store": null, "temprature": null, "": null }), 0, &[]),
            (json!({ "temprature": 1 }), 1, &[&format!("temprature {unknown}")]),
            (
                json!({ "a\n": {}, "b": [] }),
                2,
                &[&format!("a… {unknown}"), &format!("b {unknown}")],
            ),
        ];
        for (value, count, told) in cases {
            let told = told.iter().map(|t| t.to_string()).collect();
            assert_eq!(finish(value.clone(), false).unwrap(), (*count, told), "{value}");
            assert_eq!(finish(value.clone(), true).is_ok(), *count == 0, "{value}");
        }
        let error = finish(json!({ "x": null, "temprature": 1 }), true).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("temprature"));
        assert_eq!(error.code, Some("unknown_field"));
        let many: Value = (0..1000).map(|i| (format!("m{i}"), json!(i))).collect();
        let (count, told) = finish(many, false).unwrap();
        assert_eq!((count, told.len()), (1000, MAX_NOTES + 1));
        assert_eq!(told.last().map(String::as_str), Some("and 984 more warnings"));
    }

    #[test]
    fn what_must_be_there_is_missing_or_null() {
        let require = |value: Value| fields(value).require("x").map_err(|e| e.message);
        assert_eq!(require(json!({ "x": 1 })), Ok(json!(1)));
        assert_eq!(require(json!({})), Err("x is missing".into()));
        assert_eq!(require(json!({ "x": null })), Err("x must not be null".into()));
    }

    #[test]
    fn unsupported_members_may_ask_for_nothing() {
        let table =
            [Unsupported { name: "tools", neutral: |v| v.as_array().is_some_and(Vec::is_empty) }];
        assert!(fields(json!({ "tools": [] })).refuse(&table).is_ok());
        assert!(fields(json!({ "tools": null })).refuse(&table).is_ok());
        let table = [Unsupported { name: "format", neutral: |v| *v == json!({ "type": "text" }) }];
        let nulls = json!({ "format": { "type": "text", "schema": null } });
        assert!(fields(nulls).refuse(&table).is_ok());
        let table =
            [Unsupported { name: "tools", neutral: |v| v.as_array().is_some_and(Vec::is_empty) }];
        let error = fields(json!({ "tools": [1] })).refuse(&table).unwrap_err();
        assert_eq!((error.code, error.param.as_deref()), (Some("unsupported"), Some("tools")));
    }

    #[test]
    fn client_words_are_shown_clean() {
        for (word, expect) in [("a\r\nb\u{1b}[1m", "ab[1m…"), ("plain", "plain")] {
            assert_eq!(shown(word), expect);
        }
        assert!(shown(&"x".repeat(1000)).len() < 80);
    }
}

//! What `$ref` names, and how deep a schema is.

use std::collections::BTreeMap;

use serde_json::Value;

use super::keywords::{Holds, keyword};
use crate::refused::{Refused, within};

/// The drafts, by their `$schema`.
const DRAFTS: &[(&str, Draft)] = &[
    ("https://json-schema.org/draft/2020-12/schema", Draft::Later),
    ("https://json-schema.org/draft/2019-09/schema", Draft::Later),
    ("http://json-schema.org/draft-07/schema", Draft::Later),
    ("http://json-schema.org/draft-06/schema", Draft::Later),
    ("http://json-schema.org/draft-04/schema", Draft::Four),
    ("http://json-schema.org/schema", Draft::Later),
];

/// As far as reading differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Draft {
    /// `id` is the identifier.
    Four,
    /// `$id` is.
    Later,
}

/// The draft that a schema names, the newest where it names none.
pub(super) fn draft(root: &Value) -> Result<Draft, Refused> {
    let Some(named) = root.get("$schema") else { return Ok(Draft::Later) };
    let text = named.as_str().unwrap_or_default().trim_end_matches('#');
    let text = text.replacen("https://json-schema.org/draft-", "http://json-schema.org/draft-", 1);
    let found = DRAFTS.iter().find(|row| row.0 == text);
    let why = "not a draft of JSON Schema from 4 to 2020-12";
    found.map(|row| row.1).ok_or_else(|| Refused::keyword("$schema", "", named, why))
}

/// Refuses a document too deep, itself no deeper than the limit.
pub(super) fn within_depth(value: &Value, limit: usize) -> Result<(), Refused> {
    // Twice: a schema in `properties` is two levels down.
    within("levels of the schema's JSON", depth(value, 2 * limit + 1), 2 * limit)
}

fn depth(value: &Value, left: usize) -> usize {
    if left == 0 {
        return 0;
    }
    let of = |items: &mut dyn Iterator<Item = &Value>| {
        1 + items.map(|item| depth(item, left - 1)).max().unwrap_or(0)
    };
    match value {
        Value::Array(items) => of(&mut items.iter()),
        Value::Object(map) => of(&mut map.values()),
        _ => 0,
    }
}

/// Where schemas have names of their own.
#[derive(Default)]
pub(super) struct Names {
    /// Pointers by anchor; `None` where two have one anchor.
    anchors: BTreeMap<String, Option<String>>,
    /// The identifier of the root, without its fragment.
    root: Option<String>,
    /// An identifier below the root: its keyword, value and place.
    pub nested: Option<(&'static str, Value, String)>,
}

impl Names {
    pub fn new(root: &Value, draft: Draft) -> Self {
        let mut names = Names::default();
        names.gather(root, String::new(), draft);
        names
    }

    fn gather(&mut self, schema: &Value, at: String, draft: Draft) {
        let Value::Object(map) = schema else { return };
        for anchor in ["$anchor", "$dynamicAnchor"] {
            if let Some(name) = map.get(anchor).and_then(Value::as_str) {
                self.anchor(name, &at);
            }
        }
        let key = if draft == Draft::Four { "id" } else { "$id" };
        if let Some(id) = map.get(key).and_then(Value::as_str) {
            let (base, fragment) = id.split_once('#').unwrap_or((id, ""));
            if !fragment.is_empty() {
                self.anchor(fragment, &at);
            }
            if at.is_empty() {
                self.root = Some(base.to_owned());
            } else if !base.is_empty() && self.nested.is_none() {
                self.nested = Some((key, Value::from(id), at.clone()));
            }
        }
        for (name, value) in map {
            let Some(row) = keyword(name) else { continue };
            let below = |token: &str| format!("{at}/{}/{}", escaped(name), escaped(token));
            match (row.holds, value) {
                (Holds::One | Holds::Items, Value::Object(_)) => {
                    self.gather(value, format!("{at}/{}", escaped(name)), draft);
                }
                (Holds::List | Holds::Items, Value::Array(items)) => {
                    for (i, item) in items.iter().enumerate() {
                        self.gather(item, below(&i.to_string()), draft);
                    }
                }
                (Holds::Map | Holds::Dependencies, Value::Object(map)) => {
                    for (token, item) in map {
                        self.gather(item, below(token), draft);
                    }
                }
                _ => {}
            }
        }
    }

    fn anchor(&mut self, name: &str, at: &str) {
        let known = self.anchors.entry(name.to_owned()).or_insert_with(|| Some(at.to_owned()));
        if known.as_deref() != Some(at) {
            *known = None;
        }
    }

    /// The pointer that a reference means, in this document; else why there is none.
    pub fn pointer(&self, reference: &str) -> Result<String, &'static str> {
        let (base, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        if !base.is_empty() && self.root.as_deref() != Some(base) {
            return Err("only references within the document are followed");
        }
        let fragment = percent_decoded(fragment).ok_or("its fragment is no UTF-8")?;
        if fragment.is_empty() || fragment.starts_with('/') {
            return Ok(fragment);
        }
        match self.anchors.get(&fragment) {
            Some(Some(pointer)) => Ok(pointer.clone()),
            Some(None) => Err("two schemas have this anchor"),
            None => Err("no schema has this anchor"),
        }
    }
}

/// A name as a token of a JSON pointer.
pub(super) fn escaped(token: &str) -> String {
    token.replace('~', "~0").replace('/', "~1")
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(b) = rest.next() {
        if b != b'%' {
            bytes.push(b);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        let digits = std::str::from_utf8(&digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
    }
    String::from_utf8(bytes).ok()
}

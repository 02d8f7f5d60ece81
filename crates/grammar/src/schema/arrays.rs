//! Keywords of arrays.

use serde_json::Value;

use super::walk::{Part, Walk};
use crate::refused::Refused;

impl Walk<'_> {
    /// `items` and its kin, and what counts items.
    pub(super) fn array_keyword(
        &mut self,
        key: &str,
        value: &Value,
        part: &mut Part<'_>,
    ) -> Result<(), Refused> {
        match (key, value) {
            // A list: the oldest way to write `prefixItems`.
            ("items", Value::Array(_)) => {
                let list = self.list(key, part)?;
                part.plain.insert("prefixItems".to_owned(), Value::from(list));
                if part.get("prefixItems").is_some() {
                    return part.refuse(key, "a list of schemas beside `prefixItems`");
                }
            }
            ("items", schema) => {
                let schema = self.below(schema, key, part)?;
                part.plain.insert(key.to_owned(), schema);
            }
            ("prefixItems", _) => {
                let list = self.list(key, part)?;
                part.plain.insert(key.to_owned(), Value::from(list));
            }
            // Without a list before it, it says nothing; with `prefixItems` it must have been
            // meant for `items`.
            ("additionalItems", schema) => {
                let schema = self.below(schema, key, part)?;
                if says_more(part) {
                    part.plain.insert("items".to_owned(), schema);
                }
            }
            ("uniqueItems", Value::Bool(false)) => {}
            ("uniqueItems", Value::Bool(true)) if part.count("maxItems").is_some_and(|n| n < 2) => {
            }
            ("minContains" | "maxContains", _) if part.get("contains").is_none() => {}
            ("unevaluatedItems", Value::Bool(true)) => {}
            ("unevaluatedItems", schema) => {
                if part.has_applicators() || part.get("contains").is_some() {
                    return part.refuse(key, "not enforced beside schemas that evaluate items");
                }
                let is_said = part.get("items").is_some_and(|v| !v.is_array())
                    || (part.get("additionalItems").is_some() && says_more(part));
                let schema = self.below(schema, key, part)?;
                if !is_said {
                    part.plain.insert("items".to_owned(), schema);
                }
            }
            ("uniqueItems", Value::Object(_) | Value::Array(_) | Value::String(_)) => {
                return part.refuse(key, "it is no boolean");
            }
            _ => return part.refuse(key, "it is not enforced"),
        }
        Ok(())
    }
}

/// Whether `additionalItems` says something here.
fn says_more(part: &Part<'_>) -> bool {
    match part.get("items") {
        Some(items) => items.is_array(),
        None => part.get("prefixItems").is_some(),
    }
}

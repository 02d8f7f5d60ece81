//! A client's JSON Schema, read strictly and written anew in the part that the matcher enforces.
//!
//! The plain schema that comes out has no annotations, one form of each keyword, references to
//! `#/$defs/r0`, `r1`… only, and `false` wherever nothing finite is valid.

mod arrays;
mod chains;
mod disjoint;
mod finite;
pub(crate) mod keywords;
mod meeting;
mod objects;
mod references;
mod values;
mod walk;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::bounds::{Settings, Whitespace};
use crate::pattern;
use crate::refused::{Refused, within};

/// A blank, or a line break and blanks: bounded, or small models write nothing else.
const FLEXIBLE: &str = r"\x20|\n\x20{0,32}";

/// A schema read.
pub(crate) struct Read {
    /// What the matcher enforces.
    pub plain: Value,
    /// Keywords left out, each with its place. Empty unless asked for.
    pub left_out: Vec<String>,
}

/// What to do with what is not enforced.
#[derive(Clone, Copy)]
pub(crate) enum Strictness<'a> {
    /// Refuse it by name.
    Strict,
    /// Leave it out; these keywords too, which the compiler did not take.
    Lenient(&'a BTreeSet<String>),
}

/// Reads a schema.
pub(crate) fn read(
    schema: &Value,
    settings: &Settings,
    strictness: Strictness<'_>,
) -> Result<Read, Refused> {
    let bounds = &settings.bounds;
    references::within_depth(schema, bounds.depth)?;
    within("bytes of the schema", schema.to_string().len(), bounds.source_bytes)?;
    let mut walk = walk::Walk::new(schema, bounds, strictness)?;
    let (root, defs) = walk.document()?;
    let finite = finite::Finite::new(&root, &defs)?;
    let (root, defs) = finite.pruned(&root, &defs);
    meeting::check(&root, &defs)?;
    let root = disjoint::rewritten(&root, &defs);
    let named = defs.iter().map(|(name, s)| (name.clone(), disjoint::rewritten(s, &defs)));
    let defs: Map<String, Value> = named.collect();
    let mut plain = match root {
        Value::Object(map) => map,
        _ => Map::new(), // `true`
    };
    if !defs.is_empty() {
        plain.insert("$defs".to_owned(), Value::Object(defs));
    }
    plain.insert("x-guidance".to_owned(), options(&settings.whitespace)?);
    Ok(Read { plain: Value::Object(plain), left_out: walk.left_out })
}

/// How llguidance writes JSON.
fn options(whitespace: &Whitespace) -> Result<Value, Refused> {
    // No `u`: see the crate's first page.
    let escapes = "nrbtf\\\"";
    Ok(match whitespace {
        Whitespace::Compact => {
            json!({"whitespace_flexible": false, "json_allowed_escapes": escapes})
        }
        Whitespace::Flexible => {
            json!({"whitespace_pattern": FLEXIBLE, "json_allowed_escapes": escapes})
        }
        Whitespace::Separators { item, key } => {
            let is_one =
                |text: &str, sign: &str| text.trim_matches([' ', '\n', '\t', '\r']) == sign;
            if !is_one(item, ",") || !is_one(key, ":") {
                let why = "separators are a comma and a colon, and white space around them";
                return Err(Refused::syntax("white space", why));
            }
            json!({
                "whitespace_flexible": false,
                "json_allowed_escapes": escapes,
                "item_separator": pattern::escaped(item),
                "key_separator": pattern::escaped(key),
            })
        }
    })
}

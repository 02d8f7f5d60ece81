//! Chains of references: not too deep for the compiler's stack, and none that bites its tail.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// What is wrong with the references.
pub(super) enum Broken {
    /// Levels along a chain, summed.
    Deep { found: usize, limit: usize },
    /// A named schema that is defined as itself.
    Cycle(String),
}

/// Checks the references of a plain schema.
pub(super) fn check(root: &Value, defs: &Map<String, Value>, limit: usize) -> Result<(), Broken> {
    // As llguidance goes: into a name at its first use.
    Descent { defs, seen: BTreeSet::new(), limit }.descend(root, 0)?;
    match cycle(defs) {
        Some(name) => Err(Broken::Cycle(name)),
        None => Ok(()),
    }
}

struct Descent<'a> {
    defs: &'a Map<String, Value>,
    seen: BTreeSet<&'a str>,
    limit: usize,
}

impl<'a> Descent<'a> {
    fn descend(&mut self, value: &'a Value, level: usize) -> Result<(), Broken> {
        if level > self.limit {
            return Err(Broken::Deep { found: level, limit: self.limit });
        }
        match value {
            Value::Array(items) => items.iter().try_for_each(|v| self.descend(v, level)),
            Value::Object(map) => map.iter().try_for_each(|(key, value)| match value {
                Value::String(text) if key == "$ref" => {
                    let known =
                        text.strip_prefix("#/$defs/").and_then(|n| self.defs.get_key_value(n));
                    match known {
                        Some((name, schema)) if self.seen.insert(name) => {
                            self.descend(schema, level + 1)
                        }
                        _ => Ok(()),
                    }
                }
                Value::Array(_) | Value::Object(_) if key != "enum" && key != "const" => {
                    self.descend(value, level + 1)
                }
                _ => Ok(()),
            }),
            _ => Ok(()),
        }
    }
}

/// A name whose value needs itself in place. Names are taken away whose references in place are
/// all taken away; what stays goes in a circle.
fn cycle(defs: &Map<String, Value>) -> Option<String> {
    let mut users: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut needs: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, schema) in defs {
        let mut refs = BTreeSet::new();
        in_place(schema, &mut refs);
        needs.insert(name, refs.len());
        for used in refs {
            users.entry(used).or_default().push(name);
        }
    }
    let mut free: Vec<&str> = needs.iter().filter(|n| *n.1 == 0).map(|n| *n.0).collect();
    while let Some(name) = free.pop() {
        needs.remove(name);
        for user in users.remove(name).unwrap_or_default() {
            if let Some(left) = needs.get_mut(user) {
                *left -= 1;
                if *left == 0 {
                    free.push(user);
                }
            }
        }
    }
    needs.keys().next().map(|name| (*name).to_owned())
}

fn in_place<'a>(schema: &'a Value, refs: &mut BTreeSet<&'a str>) {
    let Value::Object(map) = schema else { return };
    if let Some(name) = map.get("$ref").and_then(Value::as_str) {
        refs.insert(name.strip_prefix("#/$defs/").unwrap_or(name));
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        let list = map.get(key).and_then(Value::as_array);
        list.into_iter().flatten().for_each(|schema| in_place(schema, refs));
    }
}

//! Which schemas have a finite value at all: the others would be begun and never ended.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::refused::Refused;

/// What is known of the named schemas.
pub(super) struct Finite {
    /// Those that some finite value satisfies, as far as their form says.
    names: BTreeMap<String, bool>,
}

impl Finite {
    pub fn new(root: &Value, defs: &Map<String, Value>) -> Result<Self, Refused> {
        let mut finite = Finite { names: defs.keys().map(|k| (k.clone(), false)).collect() };
        loop {
            let mut is_changed = false;
            for (name, schema) in defs {
                if finite.names.get(name) == Some(&false) && finite.has_value(schema) {
                    finite.names.insert(name.clone(), true);
                    is_changed = true;
                }
            }
            if !is_changed {
                break;
            }
        }
        if finite.has_value(root) {
            return Ok(finite);
        }
        Err(Refused::Unsatisfiable {
            pointer: String::new(),
            keywords: finite.blamed(root),
            why: "every value would need another one inside it, without end, or is excluded".into(),
        })
    }

    /// Whether the form of a schema leaves room for a finite value. May say yes in error (an
    /// empty intersection), never no.
    fn has_value(&self, schema: &Value) -> bool {
        let Value::Object(map) = schema else { return schema != &Value::Bool(false) };
        let is = |key: &str, check: &dyn Fn(&Value) -> bool| map.get(key).is_none_or(check);
        let all = |v: &Value| v.as_array().is_none_or(|l| l.iter().all(|s| self.has_value(s)));
        let any = |v: &Value| v.as_array().is_none_or(|l| l.iter().any(|s| self.has_value(s)));
        let named = |v: &Value| {
            let name = v.as_str().and_then(|r| r.rsplit('/').next()).unwrap_or_default();
            self.names.get(name).copied().unwrap_or(true)
        };
        is("$ref", &named)
            && is("allOf", &all)
            && is("anyOf", &any)
            && is("oneOf", &any)
            && types(map).any(|t| match t {
                "object" => self.object(map),
                "array" => self.array(map),
                _ => true,
            })
    }

    fn object(&self, map: &Map<String, Value>) -> bool {
        let Some(Value::Array(required)) = map.get("required") else { return true };
        let open = map.get("additionalProperties").is_none_or(|s| self.has_value(s));
        // Which pattern a name matches is the matcher's business: any that can be will do.
        let has_pattern =
            |v: &Value| v.as_object().is_some_and(|m| m.values().any(|s| self.has_value(s)));
        let open = open || map.get("patternProperties").is_some_and(has_pattern);
        required.iter().filter_map(Value::as_str).all(|name| {
            match map.get("properties").and_then(|p| p.get(name)) {
                Some(schema) => self.has_value(schema),
                None => open,
            }
        })
    }

    fn array(&self, map: &Map<String, Value>) -> bool {
        let least = map.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
        let no_items = Vec::new();
        let first = map.get("prefixItems").and_then(Value::as_array).unwrap_or(&no_items);
        first.iter().take(least).all(|s| self.has_value(s))
            && (least <= first.len() || map.get("items").is_none_or(|s| self.has_value(s)))
    }

    /// The keywords of a schema that may be at fault.
    fn blamed(&self, root: &Value) -> String {
        let Value::Object(map) = root else { return "false".to_owned() };
        let keys = map.keys().filter(|k| *k != "type" && *k != "properties");
        let list = keys.map(String::as_str).collect::<Vec<_>>().join(", ");
        if list.is_empty() { "required".to_owned() } else { list }
    }

    /// The schemas with `false` in place of what has no finite value.
    pub fn pruned(&self, root: &Value, defs: &Map<String, Value>) -> (Value, Map<String, Value>) {
        let kept = defs.iter().filter(|(name, _)| self.names.get(*name) == Some(&true));
        let defs = kept.map(|(name, schema)| (name.clone(), self.cut(schema))).collect();
        (self.cut(root), defs)
    }

    fn cut(&self, schema: &Value) -> Value {
        let Value::Object(map) = schema else { return schema.clone() };
        if !self.has_value(schema) {
            return Value::Bool(false);
        }
        let each = |(key, value): (&String, &Value)| {
            let value = match (key.as_str(), value) {
                ("items" | "additionalProperties", schema) => self.cut(schema),
                ("allOf" | "anyOf" | "oneOf" | "prefixItems", Value::Array(list)) => {
                    Value::Array(list.iter().map(|s| self.cut(s)).collect())
                }
                ("properties" | "patternProperties", Value::Object(map)) => {
                    Value::Object(map.iter().map(|(k, s)| (k.clone(), self.cut(s))).collect())
                }
                _ => value.clone(),
            };
            (key.clone(), value)
        };
        Value::Object(map.iter().map(each).collect())
    }
}

const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

fn types(map: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let named = match map.get("type") {
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(one)) => vec![one.as_str()],
        _ => TYPES.to_vec(),
    };
    named.into_iter()
}

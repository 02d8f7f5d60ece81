//! Keywords of objects.

use serde_json::{Map, Value, json};

use super::values;
use super::walk::{Part, Walk};
use crate::pattern;
use crate::refused::{Refused, within};

/// Most patterns of names in one object, each told apart from each.
const NAME_PATTERNS: usize = 32;
/// Longest of them, bytes: two are told apart by their product.
const NAME_PATTERN_BYTES: usize = 1000;
/// Most optional properties of which at least, or at most, one may be asked for.
const CHOSEN: usize = 32;

impl Walk<'_> {
    /// `properties` and its kin.
    pub(super) fn object_keyword(
        &mut self,
        key: &'static str,
        value: &Value,
        part: &mut Part<'_>,
    ) -> Result<(), Refused> {
        match key {
            "properties" => {
                let map = self.by_name(key, part)?;
                within("properties of an object", map.len(), self.bounds.properties)?;
                if let Some(why) = map.keys().find_map(|name| values::text(name).err()) {
                    return part.refuse(key, why);
                }
                part.plain.insert(key.to_owned(), Value::Object(map));
            }
            "patternProperties" => {
                let map = self.by_name(key, part)?;
                self.name_patterns(key, map, part)?;
            }
            "additionalProperties" => {
                let schema = self.below(value, key, part)?;
                part.plain.insert(key.to_owned(), schema);
            }
            "unevaluatedProperties" => self.unevaluated(key, value, part)?,
            "required" => self.required(value, part)?,
            "minProperties" => self.at_least(part)?,
            "maxProperties" => {
                self.count(key, part)?;
                self.few_to_choose(key, part)?;
            }
            _ => self.names(key, value, part)?,
        }
        Ok(())
    }

    fn name_patterns(
        &mut self,
        key: &str,
        map: Map<String, Value>,
        part: &mut Part<'_>,
    ) -> Result<(), Refused> {
        within("patterns of names", map.len(), NAME_PATTERNS)?;
        let mut translated = Map::new();
        for (text, schema) in map {
            match self.pattern(&text)? {
                Ok(pattern) => {
                    within("bytes of a pattern of names", pattern.len(), NAME_PATTERN_BYTES)?;
                    translated.insert(pattern, schema);
                }
                Err(why) => return part.refuse(key, format!("{why}, in a pattern")),
            }
        }
        part.plain.insert("patternProperties".to_owned(), Value::Object(translated));
        Ok(())
    }

    fn required(&mut self, value: &Value, part: &mut Part<'_>) -> Result<(), Refused> {
        let Value::Array(list) = value else {
            return part.refuse("required", "it is no list of names");
        };
        within("names in `required`", list.len(), self.bounds.properties)?;
        for item in list {
            match item.as_str().map(values::text) {
                Some(Ok(())) => {}
                Some(Err(why)) => return part.refuse("required", why),
                None => return part.refuse("required", "it is no list of names"),
            }
        }
        if !list.is_empty() {
            part.plain.insert("required".to_owned(), value.clone());
        }
        Ok(())
    }

    /// The same name may come twice among undeclared properties, and then counts once: no more
    /// than one of them can be asked for.
    fn at_least(&mut self, part: &mut Part<'_>) -> Result<(), Refused> {
        let key = "minProperties";
        let Some(least) = part.count(key) else { return part.refuse(key, "it is no count") };
        let no_names = Vec::new();
        let required = part.get("required").and_then(Value::as_array).unwrap_or(&no_names);
        let mut names: Vec<&str> = required.iter().filter_map(Value::as_str).collect();
        names.sort_unstable();
        names.dedup();
        if least <= names.len() {
            return Ok(());
        }
        if least > names.len() + 1 {
            return part.refuse(key, "not enforced beyond one more than is `required`");
        }
        self.few_to_choose(key, part)?;
        part.plain.insert(key.to_owned(), Value::from(least));
        Ok(())
    }

    fn few_to_choose(&self, key: &str, part: &Part<'_>) -> Result<(), Refused> {
        let declared = part.get("properties").and_then(Value::as_object).map_or(0, Map::len);
        if declared > CHOSEN {
            return part.refuse(key, format!("not enforced with more than {CHOSEN} properties"));
        }
        Ok(())
    }

    fn unevaluated(
        &mut self,
        key: &str,
        value: &Value,
        part: &mut Part<'_>,
    ) -> Result<(), Refused> {
        if value == &Value::Bool(true) {
            return Ok(());
        }
        if part.has_applicators() {
            return part.refuse(key, "not enforced beside schemas that evaluate properties");
        }
        let schema = self.below(value, key, part)?;
        if part.get("additionalProperties").is_none() {
            part.plain.insert("additionalProperties".to_owned(), schema);
        }
        Ok(())
    }

    /// Names from a pattern or a list, where no property is declared beside it.
    fn names(&mut self, key: &str, value: &Value, part: &mut Part<'_>) -> Result<(), Refused> {
        let map = match value {
            Value::Bool(true) => return Ok(()),
            Value::Object(map) => map,
            _ => return part.refuse(key, "it is not enforced"),
        };
        let annotation = |k: &String| {
            let row = super::keywords::keyword(k);
            row.is_none_or(|r| r.treatment == super::keywords::Treatment::Annotation)
        };
        let mut said: Vec<(&str, &Value)> = map.iter().map(|(k, v)| (k.as_str(), v)).collect();
        said.retain(|(k, v)| {
            !annotation(&(*k).to_owned()) && (*k, *v) != ("type", &json!("string"))
        });
        let alone = ["properties", "patternProperties", "required", "unevaluatedProperties"];
        if said.is_empty() {
            return Ok(());
        }
        if alone.iter().any(|k| part.get(k).is_some()) || part.has_applicators() {
            return part.refuse(key, "not enforced beside other keywords about properties");
        }
        let text = match said.as_slice() {
            [("pattern", Value::String(text))] => text.clone(),
            [("enum", Value::Array(list))] if list.iter().all(Value::is_string) => {
                let names = list.iter().filter_map(Value::as_str);
                let names: Vec<String> = names.map(pattern::escaped_for_ecma).collect();
                format!("^(?:{})$", names.join("|"))
            }
            _ => return part.refuse(key, "enforced only as one `pattern` or one `enum` of names"),
        };
        let pattern = match self.pattern(&text)? {
            Ok(pattern) => pattern,
            Err(why) => return part.refuse(key, why),
        };
        part.apply(
            "allOf",
            json!([{
                "patternProperties": {pattern: true},
                "additionalProperties": false,
            }]),
        );
        Ok(())
    }
}

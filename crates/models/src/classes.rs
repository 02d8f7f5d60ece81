//! What transformers' configuration class of a family knows, and what holds where config.json is
//! silent: a recording, read a section at a time.

use tokenmill_ir::{Meta, MetaValue};

/// Written by `tests/golden/classes.py`, which says what its lines mean.
const RECORDED: &str = include_str!("classes.txt");

/// A configuration class.
#[derive(Debug, Clone)]
pub struct Class {
    /// Its `model_type`.
    pub name: &'static str,
    /// Fields and their defaults; null where there is none.
    pub fields: Meta,
    names: Vec<(&'static str, &'static str)>,
    optional: Vec<&'static str>,
    nullable: Vec<&'static str>,
    rotation: Meta,
}

impl Class {
    /// The class of a `model_type`, or of the text part of a model of that type.
    pub fn of(kind: &str) -> Option<Self> {
        let sections = RECORDED.split("\n\n").filter_map(|s| s.strip_prefix('['));
        let mut found = sections.filter_map(|s| s.split_once("]\n"));
        let is = |names: &str| names.split(' ').any(|n| n == kind);
        let (names, lines) = found.find(|(names, _)| is(names))?;
        let name = names.split(' ').next()?;
        let (mut fields, mut rotation) = (Meta::new(), Meta::new());
        let (mut names, mut optional, mut nullable) = (Vec::new(), Vec::new(), Vec::new());
        for line in lines.lines() {
            if let Some((key, value)) = line.split_once(" = ") {
                let may_be_null = value.strip_suffix(" | null");
                let value = literal(may_be_null.unwrap_or(value));
                if may_be_null.is_some() || value == MetaValue::Null {
                    nullable.push(key);
                }
                match key.strip_prefix("rope.") {
                    Some(key) => rotation.insert(key.to_owned(), value),
                    None => fields.insert(key.to_owned(), value),
                };
            } else if let Some(pair) = line.split_once(" -> ") {
                names.push(pair);
            } else if let Some(key) = line.strip_suffix(" ?") {
                optional.push(key);
            }
        }
        Some(Self { name, fields, names, optional, nullable, rotation })
    }

    /// The field a key stands for.
    pub fn field<'k>(&self, key: &'k str) -> &'k str {
        self.names.iter().find(|(name, _)| *name == key).map_or(key, |(_, field)| field)
    }

    /// Whether it reads that key, as a field or where it is present.
    pub fn knows(&self, key: &str) -> bool {
        self.fields.iter().any(|(k, _)| k == key) || self.reads(key)
    }

    /// Whether it reads that key where it is present, without its being a field.
    pub fn reads(&self, key: &str) -> bool {
        self.optional.contains(&key)
    }

    /// Whether that key may be null.
    pub fn allows_null(&self, key: &str) -> bool {
        let number = ["rope_theta", "head_dim", "sliding_window_pattern", "rotary_pct"];
        self.nullable.contains(&key) || (self.reads(key) && !number.contains(&key))
    }

    /// Whether kinds of layers have rotations of their own.
    pub fn rotates_by_kind(&self) -> bool {
        self.rotation.get("theta.full_attention").is_some()
    }

    /// The rotary base of a kind of layer.
    pub fn theta(&self, kind: &str) -> Option<f64> {
        let of_kind = self.rotation.get(&format!("theta.{kind}"));
        of_kind.or(self.rotation.get("theta")).and_then(MetaValue::as_f64)
    }

    /// The rotated part of a head; none where the family rotates all of it.
    pub fn partial(&self) -> Option<f64> {
        self.rotation.get("partial").and_then(MetaValue::as_f64)
    }

    /// How the rotation of a kind of layer is stretched.
    pub fn stretch(&self, kind: &str) -> Meta {
        let at =
            if self.rotates_by_kind() { format!("default.{kind}.") } else { "default.".into() };
        let mut map = Meta::new();
        for (key, value) in self.rotation.iter() {
            if let Some(key) = key.strip_prefix(&at) {
                map.insert(key.to_owned(), value.clone());
            }
        }
        map
    }
}

/// A value as the recording has it; what is none counts as null.
pub(crate) fn literal(text: &str) -> MetaValue {
    if let Some(items) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        let items = items.split(", ").filter(|t| !t.is_empty());
        return MetaValue::List(items.map(literal).collect());
    }
    if let Some(text) = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
        return MetaValue::Str(text.to_owned());
    }
    match (text, text.parse::<i64>(), text.parse::<f64>()) {
        ("true", ..) => MetaValue::Bool(true),
        ("false", ..) => MetaValue::Bool(false),
        (_, Ok(whole), _) => MetaValue::Int(whole),
        (_, _, Ok(number)) => MetaValue::Float(number),
        _ => MetaValue::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ARCHS;

    #[test]
    fn every_line_is_understood() {
        for line in RECORDED.lines().filter(|l| !l.is_empty() && !l.starts_with(['#', '['])) {
            let known = match line.split_once(" = ") {
                Some((_, "null")) => true,
                Some((_, value)) => {
                    let value = value.strip_suffix(" | null").unwrap_or(value);
                    literal(value) != MetaValue::Null
                }
                None => line.contains(" -> ") || line.ends_with(" ?"),
            };
            assert!(known, "{line}");
        }
    }

    #[test]
    fn classes_are_found_by_their_own_and_other_names() {
        for (kind, name, key, value) in [
            ("gemma3_text", "gemma3_text", "query_pre_attn_scalar", MetaValue::Int(256)),
            ("gemma3", "gemma3_text", "rms_norm_eps", MetaValue::Float(1e-6)),
            ("kimi_k2", "deepseek_v3", "first_k_dense_replace", MetaValue::Int(3)),
            ("mixtral", "mixtral", "sliding_window", MetaValue::Null),
            ("qwen2", "qwen2", "hidden_act", MetaValue::Str("silu".into())),
        ] {
            let class = Class::of(kind).expect("recorded");
            assert_eq!(class.name, name);
            let found = class.fields.iter().find(|(k, _)| *k == key).map(|(_, v)| v.clone());
            assert_eq!(found, Some(value), "{kind} {key}");
        }
        let gpt2 = Class::of("gpt2").expect("recorded");
        assert_eq!((gpt2.field("hidden_size"), gpt2.field("n_embd")), ("n_embd", "n_embd"));
        assert_eq!(Class::of("gemma3").and_then(|c| c.theta("full_attention")), Some(1e6));
        assert_eq!(Class::of("glm4").and_then(|c| c.partial()), Some(0.5));
        assert!(Class::of("no such").is_none());
    }

    #[test]
    fn every_family_has_a_recorded_class() {
        for arch in ARCHS {
            let recorded = arch.spellings.iter().any(|s| Class::of(s).is_some());
            assert!(recorded, "{}: add it to tests/golden/classes.py", arch.name);
        }
    }
}

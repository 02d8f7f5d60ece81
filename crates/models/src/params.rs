//! Hyper-parameters as they count: what the file says, the defaults of its configuration class
//! where it is silent, and which keys were read, so that none is passed over.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use tokenmill_ir::{Checkpoint, Container, Meta, MetaError, MetaValue};

use crate::classes::Class;
use crate::error::ModelError;
use crate::hyper::CONTEXT;
use crate::limits::Whole;
use crate::ranges;

/// Keys, values and the keys that were read. Null counts as absent, and hides a default.
#[derive(Debug, Clone)]
pub struct Params {
    values: Meta,
    written: Vec<String>,
    /// How the file spells fields that it calls otherwise.
    spelled: BTreeMap<String, String>,
    foreign: Meta,
    /// What GGUF keys of the architecture begin with; empty for config.json.
    prefix: String,
    read: RefCell<BTreeSet<String>>,
}

impl Params {
    /// All keys of a GGUF file that concern the model; of config.json those of its text part, under
    /// their fields' names.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] where two names of one field have different values.
    pub fn of(checkpoint: &Checkpoint, class: Option<&Class>) -> Result<Self, ModelError> {
        let prefix = match checkpoint.container {
            Container::Gguf => {
                format!("{}.", checkpoint.meta.str("general.architecture").unwrap_or_default())
            }
            Container::Hf => String::new(),
        };
        Self::of_map(source(checkpoint), checkpoint.container, prefix, class)
    }

    /// The keys of one map of a file; those of a GGUF file that begin with `prefix`.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] where two names of one field have different values.
    pub fn of_map(
        map: &Meta,
        container: Container,
        prefix: String,
        class: Option<&Class>,
    ) -> Result<Self, ModelError> {
        let (mut values, mut foreign) = (Meta::new(), Meta::new());
        let (mut written, mut spelled) = (Vec::new(), BTreeMap::new());
        for (key, value) in map.iter() {
            let own = match (container, class) {
                (Container::Gguf, _) => key.starts_with(&prefix) || key.starts_with("general."),
                (Container::Hf, Some(class)) => class.knows(class.field(key)),
                (Container::Hf, None) => true,
            };
            if !own {
                // (What a GGUF file has beside are tokenizers.)
                if container == Container::Hf {
                    foreign.insert(key.to_owned(), value.clone());
                }
                continue;
            }
            if let (Some(class), MetaValue::Null) = (class, value)
                && !class.allows_null(class.field(key))
            {
                return Err(ModelError::unsupported(key, "null"));
            }
            let field = class.map_or(key, |c| c.field(key)).to_owned();
            let old = values.insert(field.clone(), value.clone());
            // (Of two limits the lower one holds.)
            let limits = old.as_ref().and_then(MetaValue::as_u32).zip(value.as_u32());
            if let (true, Some((old, new))) = (CONTEXT.is_in_config(&field), limits) {
                values.insert(field.clone(), MetaValue::Int(i64::from(old.min(new))));
                if old < new {
                    continue;
                }
            } else if old.is_some_and(|old| shown(&old) != shown(value)) {
                let twice = format!("{} (another name of '{field}' says otherwise)", shown(value));
                return Err(ModelError::unsupported(key, twice));
            }
            if field != key {
                spelled.insert(field.clone(), key.to_owned());
            } else {
                spelled.remove(key);
            }
            written.push(field);
        }
        for (field, value) in class.iter().flat_map(|c| c.fields.iter()) {
            if !written.iter().any(|w| w == field) {
                values.insert(field.to_owned(), value.clone());
            }
        }
        Ok(Self { values, written, spelled, foreign, prefix, read: RefCell::default() })
    }

    /// Notes that a key was looked at.
    pub fn note(&self, key: &str) {
        let head = key.split_once('.').map_or(key, |(head, _)| head);
        let mut read = self.read.borrow_mut();
        if !read.contains(key) {
            read.extend([key.to_owned(), head.to_owned()]);
        }
    }

    /// The value at a key.
    pub fn get(&self, key: &str) -> Option<&MetaValue> {
        self.note(key);
        self.values.get(key)
    }

    /// What the file calls a field.
    pub fn spelled<'k>(&'k self, field: &'k str) -> &'k str {
        self.spelled.get(field).map_or(field, String::as_str)
    }

    /// The map at a key, unless it is empty.
    ///
    /// # Errors
    /// [`MetaError::Type`] for what is no map.
    pub fn map(&self, key: &str) -> Result<Option<&Meta>, MetaError> {
        match self.get(key) {
            Some(MetaValue::Map(map)) => Ok(Some(&**map).filter(|m| m.iter().next().is_some())),
            None => Ok(None),
            Some(other) => Err(MetaError::Type {
                key: self.spelled(key).to_owned(),
                expected: "a map",
                found: other.told(),
            }),
        }
    }

    /// Whether there is a value, which counts as no reading.
    pub fn has(&self, key: &str) -> bool {
        self.values.get(key).is_some()
    }

    /// Whether the file itself has the key.
    pub fn is_written(&self, key: &str) -> bool {
        self.written.iter().any(|w| w == key)
    }

    /// Keys of the file that nobody has read, and their values.
    pub fn unread(&self) -> impl Iterator<Item = (&str, &MetaValue)> {
        let read = self.read.borrow().clone();
        let written = self.written.iter().filter(move |key| !read.contains(*key));
        written.filter_map(|key| self.values.get(key).map(|value| (key.as_str(), value)))
    }

    /// Keys of config.json that the configuration class does not know.
    pub fn foreign(&self) -> &Meta {
        &self.foreign
    }

    /// A truth value, if present. A null that the file itself has is false, as in Python.
    ///
    /// # Errors
    /// [`MetaError::Type`] for another value.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, MetaError> {
        self.note(key);
        let found = self.values.opt_bool(key).map_err(|e| e.of_key(self.spelled(key)))?;
        Ok(found.or_else(|| self.is_written(key).then_some(false)))
    }

    /// A whole number within the limits of its name, if present.
    ///
    /// # Errors
    /// [`MetaError::Range`] for another value.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, MetaError> {
        self.get(key).map(|value| self.whole(key, value)).transpose()
    }

    /// The whole number of a key, or one of several that it has, within the limits of its name.
    ///
    /// # Errors
    /// [`MetaError::Range`] for another value.
    pub fn whole(&self, key: &str, value: &MetaValue) -> Result<u32, MetaError> {
        Whole::of(self.spelled(key), self.short(key), value).map(Whole::get)
    }

    /// The number of a key, or one of several that it has, within the bounds of its name.
    ///
    /// # Errors
    /// [`MetaError::Bounds`] for another value.
    pub fn real(&self, key: &str, value: &MetaValue) -> Result<f64, MetaError> {
        ranges::real(self.spelled(key), self.short(key), value)
    }

    /// A number within the bounds of its name, if present.
    ///
    /// # Errors
    /// [`MetaError::Bounds`] for another value.
    pub fn opt_f64(&self, key: &str) -> Result<Option<f64>, MetaError> {
        self.get(key).map(|value| self.real(key, value)).transpose()
    }

    /// The same in single precision.
    ///
    /// # Errors
    /// [`MetaError::Bounds`] for another value.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, MetaError> {
        Ok(self.opt_f64(key)?.map(|x| x as f32))
    }

    /// A string, if present.
    ///
    /// # Errors
    /// [`MetaError::Type`] for another value.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, MetaError> {
        self.note(key);
        self.values.opt_str(key).map_err(|e| e.of_key(self.spelled(key)))
    }

    /// A list, if present.
    ///
    /// # Errors
    /// [`MetaError::Type`] for another value.
    pub fn opt_list(&self, key: &str) -> Result<Option<&[MetaValue]>, MetaError> {
        self.note(key);
        self.values.opt_list(key).map_err(|e| e.of_key(self.spelled(key)))
    }

    /// A required whole number.
    ///
    /// # Errors
    /// [`MetaError`] where it is absent or out of its limits.
    pub fn u32(&self, key: &str) -> Result<u32, MetaError> {
        self.opt_u32(key)?.ok_or_else(|| MetaError::Missing { key: key.to_owned() })
    }

    /// A required number.
    ///
    /// # Errors
    /// [`MetaError`] where it is absent or out of its limits.
    pub fn f32(&self, key: &str) -> Result<f32, MetaError> {
        self.opt_f32(key)?.ok_or_else(|| MetaError::Missing { key: key.to_owned() })
    }

    /// What the list of limits calls a key.
    pub fn short<'k>(&self, key: &'k str) -> &'k str {
        match self.prefix.is_empty() {
            true => key,
            false => key.strip_prefix(&self.prefix).unwrap_or(key),
        }
    }
}

/// Where the config.json of a model of several kinds of input has its text part.
pub const TEXT: &str = "text_config";

/// Whether a value is a map.
pub fn is_map(value: &MetaValue) -> bool {
    matches!(value, MetaValue::Map(_))
}

/// The part of the metadata that describes the language model.
pub fn source(checkpoint: &Checkpoint) -> &Meta {
    match (checkpoint.container, checkpoint.meta.get(TEXT)) {
        (Container::Hf, Some(MetaValue::Map(text))) => text,
        _ => &checkpoint.meta,
    }
}

/// A value as people write it, shortened.
pub fn shown(value: &MetaValue) -> String {
    value.shown()
}

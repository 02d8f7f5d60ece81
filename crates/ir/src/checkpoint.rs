//! A model file's contents as data: hyper-parameters ([`Meta`]) and the index of its tensors.

use std::collections::HashMap;

use thiserror::Error;
use tokenmill_quant::FormatId;

use crate::weight::ColumnOrder;

/// Which family of files the checkpoint came from; names and a few quirks depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// One (possibly split) GGUF file; hyper-parameters are its key-value pairs.
    Gguf,
    /// A Hugging Face folder: `config.json` and safetensors.
    Hf,
}

/// One value of a model file's metadata: JSON's types with integers kept exact.
#[derive(Debug, Clone, PartialEq)]
pub enum MetaValue {
    /// JSON null.
    Null,
    /// A truth value.
    Bool(bool),
    /// Any integer that fits i64.
    Int(i64),
    /// An integer above i64::MAX (GGUF u64).
    Uint(u64),
    /// Any other number.
    Float(f64),
    /// A string.
    Str(String),
    /// A list.
    List(Vec<MetaValue>),
    /// A map in file order (HF nested configs such as `rope_scaling`).
    Map(Box<Meta>),
}

/// What was wrong with a hyper-parameter.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MetaError {
    /// The key is absent.
    #[error("missing key '{key}'")]
    Missing {
        /// Full dotted key.
        key: String,
    },
    /// The key holds another type or a value out of range.
    #[error("key '{key}': expected {expected}, found {found}")]
    Type {
        /// Full dotted key.
        key: String,
        /// What the reader needs.
        expected: &'static str,
        /// What the file has, shortened.
        found: String,
    },
    /// The key holds no number, or one out of its bounds.
    #[error("key '{key}': expected a number from {bounds}, found {found}")]
    Bounds {
        /// Full dotted key.
        key: String,
        /// The least and the most.
        bounds: String,
        /// What the file has, shortened.
        found: String,
    },
    /// The key holds no whole number, or one out of its limits.
    #[error("key '{key}': expected a whole number from {least} to {most}, found {found}")]
    Range {
        /// Full dotted key.
        key: String,
        /// The least it may be.
        least: u32,
        /// The most it may be.
        most: u32,
        /// What the file has, shortened.
        found: String,
    },
}

impl MetaError {
    /// The same of a key that the file spells so.
    #[must_use]
    pub fn of_key(mut self, spelled: &str) -> Self {
        let (Self::Missing { key }
        | Self::Type { key, .. }
        | Self::Bounds { key, .. }
        | Self::Range { key, .. }) = &mut self;
        spelled.clone_into(key);
        self
    }
}

/// Most characters of a value in a message.
const SHOWN: usize = 80;

/// A text of a file in an error: in quotes where it would not be seen, or not as part of a line.
pub fn visible(text: String) -> String {
    let plain = !text.is_empty() && text.trim() == text && !text.contains(char::is_control);
    if plain { text } else { format!("{text:?}") }
}

fn shortened(mut text: String) -> String {
    if let Some((at, _)) = text.char_indices().nth(SHOWN) {
        text.truncate(at);
        text.push('…');
    }
    text
}

/// An ordered key-value map with typed getters. A dot in a key steps into a nested map, unless the
/// dotted key itself is present (GGUF keys contain dots).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Meta {
    entries: Vec<(String, MetaValue)>,
    index: HashMap<String, usize>,
}

impl Meta {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces a key. Returns the value it replaced.
    pub fn insert(&mut self, key: String, value: MetaValue) -> Option<MetaValue> {
        if let Some(&at) = self.index.get(&key) {
            return Some(std::mem::replace(&mut self.entries[at].1, value));
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        None
    }

    /// All pairs in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &MetaValue)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// The value at `key`; JSON null counts as absent.
    pub fn get(&self, key: &str) -> Option<&MetaValue> {
        let found = match self.index.get(key) {
            Some(&at) => &self.entries[at].1,
            None => {
                let (head, tail) = key.split_once('.')?;
                match &self.entries[*self.index.get(head)?].1 {
                    MetaValue::Map(inner) => inner.get(tail)?,
                    _ => return None,
                }
            }
        };
        (*found != MetaValue::Null).then_some(found)
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&MetaValue) -> Option<T>,
    ) -> Result<Option<T>, MetaError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| MetaError::Type {
            key: key.to_owned(),
            expected,
            found: value.told(),
        })
    }

    /// A u32, if present.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, MetaError> {
        self.typed(key, "an integer of 32 bits", MetaValue::as_u32)
    }

    /// A number, if present.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, MetaError> {
        self.typed(key, "a number", |v| v.as_f64().map(|x| x as f32))
    }

    /// A number in double precision, if present.
    pub fn opt_f64(&self, key: &str) -> Result<Option<f64>, MetaError> {
        self.typed(key, "a number", MetaValue::as_f64)
    }

    /// A truth value, if present.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, MetaError> {
        self.typed(key, "true or false", |v| match v {
            MetaValue::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// A string, if present.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, MetaError> {
        match self.get(key) {
            None => Ok(None),
            Some(MetaValue::Str(s)) => Ok(Some(s)),
            Some(_) => self.typed(key, "a string", |_| None),
        }
    }

    /// A list, if present.
    pub fn opt_list(&self, key: &str) -> Result<Option<&[MetaValue]>, MetaError> {
        match self.get(key) {
            None => Ok(None),
            Some(MetaValue::List(l)) => Ok(Some(l)),
            Some(_) => self.typed(key, "a list", |_| None),
        }
    }

    /// A required u32.
    pub fn u32(&self, key: &str) -> Result<u32, MetaError> {
        self.opt_u32(key)?.ok_or_else(|| MetaError::Missing { key: key.to_owned() })
    }

    /// A required number.
    pub fn f32(&self, key: &str) -> Result<f32, MetaError> {
        self.opt_f32(key)?.ok_or_else(|| MetaError::Missing { key: key.to_owned() })
    }

    /// A required string.
    pub fn str(&self, key: &str) -> Result<&str, MetaError> {
        self.opt_str(key)?.ok_or_else(|| MetaError::Missing { key: key.to_owned() })
    }
}

impl MetaValue {
    /// The value as u32 when it is an integer (or an integral float) in range.
    pub fn as_u32(&self) -> Option<u32> {
        match *self {
            MetaValue::Int(i) => u32::try_from(i).ok(),
            MetaValue::Uint(u) => u32::try_from(u).ok(),
            MetaValue::Float(f) if f.fract() == 0.0 && (0.0..4294967296.0).contains(&f) => {
                Some(f as u32)
            }
            _ => None,
        }
    }

    /// The value as a double when it is a number.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            MetaValue::Int(i) => Some(i as f64),
            MetaValue::Uint(u) => Some(u as f64),
            MetaValue::Float(f) => Some(f),
            _ => None,
        }
    }

    /// The value as people write it, shortened.
    pub fn shown(&self) -> String {
        let text = match self {
            MetaValue::Null => "null".to_owned(),
            MetaValue::Bool(b) => b.to_string(),
            MetaValue::Int(i) => i.to_string(),
            MetaValue::Uint(u) => u.to_string(),
            MetaValue::Float(f) => f.to_string(),
            MetaValue::Str(s) => s.chars().take(SHOWN + 1).collect(),
            MetaValue::List(items) => {
                let items: Vec<String> = items.iter().take(20).map(MetaValue::shown).collect();
                format!("[{}]", items.join(", "))
            }
            MetaValue::Map(map) => {
                let pairs = map.iter().take(20).map(|(k, v)| format!("{k}: {}", v.shown()));
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
            }
        };
        shortened(text)
    }

    /// The value in an error about its type.
    pub fn told(&self) -> String {
        match self {
            MetaValue::Str(_) => format!("the text {:?}", self.shown()),
            MetaValue::List(items) => format!("a list of {}", items.len()),
            MetaValue::Map(_) => "a map".to_owned(),
            // (1e-45 has 45 zeros.)
            MetaValue::Float(x) if x.is_finite() => {
                let (plain, short) = (x.to_string(), format!("{x:e}"));
                if plain.len() <= short.len().max(6) { plain } else { short }
            }
            other => other.shown(),
        }
    }

    /// The value as a string slice.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            MetaValue::Str(s) => Some(s),
            _ => None,
        }
    }
}

/// Where a tensor's bytes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Index into the checkpoint's list of files.
    pub file: u32,
    /// Offset from the start of that file, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
}

/// One tensor of a model file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name as the file spells it.
    pub name: String,
    /// How its numbers are stored.
    pub format: FormatId,
    /// Extents, outermost first: a matrix is `[rows, cols]` with `cols` contiguous (GGUF's order
    /// is reversed by the reader).
    pub shape: Vec<u64>,
    /// Its bytes.
    pub extent: Extent,
    /// Where columns lie in another order.
    pub order: Option<ColumnOrder>,
}

impl TensorInfo {
    /// Length of the innermost axis (1 for a scalar).
    pub fn cols(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The kernel of a convolution over space, of four axes or more, as the matrix that a patch is
    /// multiplied by: [outputs, numbers of a patch].
    fn flatten_kernel(&mut self) {
        let plain = matches!(self.format, FormatId::F32 | FormatId::F16 | FormatId::BF16);
        if let (true, [outputs, rest @ ..]) = (plain && self.shape.len() > 3, &self.shape[..]) {
            let cols = rest.iter().try_fold(1u64, |n, axis| n.checked_mul(*axis));
            if let Some(cols) = cols {
                self.shape = vec![*outputs, cols];
            }
        }
    }

    /// Product of all axes but the innermost.
    pub fn rows(&self) -> u64 {
        let outer = self.shape.len().saturating_sub(1);
        self.shape[..outer].iter().product()
    }
}

/// A model file (or folder) read as data: nothing of the weights is in memory yet.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// Where it came from.
    pub container: Container,
    /// Hyper-parameters: GGUF key-value pairs, or config.json.
    pub meta: Meta,
    /// All tensors in file order.
    pub tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl Checkpoint {
    /// Builds the index. Returns the name that occurs twice, if one does.
    pub fn new(
        container: Container,
        meta: Meta,
        mut tensors: Vec<TensorInfo>,
    ) -> Result<Self, String> {
        let mut by_name = HashMap::new();
        for (i, t) in tensors.iter_mut().enumerate() {
            t.flatten_kernel();
            if by_name.insert(t.name.clone(), i).is_some() {
                return Err(t.name.clone());
            }
        }
        Ok(Self { container, meta, tensors, by_name })
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }
}

//! safetensors: a length, a JSON header, the data; and the index of a sharded checkpoint.
//!
//! Rules beyond JSON (safetensors README): the header is at most 100 MB and starts with `{`;
//! data offsets count from the end of the header, cover the data without holes or overlaps,
//! and agree with data type and shape.

use std::fmt;
use std::path::Path;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tokenmill_ir::{Extent, TensorInfo};
use tokenmill_quant::FormatId;

use crate::budget::{Budget, ENTRY_BYTES};
use crate::cursor::Cursor;
use crate::error::{LoadError, shorten};
use crate::shape::stored_bytes;

/// Memory that a header may take beside the multiple of its file, bytes.
const BASE_BYTES: u64 = 768 << 10;
/// Longest header, bytes (the limit of the format).
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Most axes of a tensor.
const MAX_DIMS: usize = 8;

/// Data types by their name in the header. Truth values are bytes.
const DTYPES: &[(&str, FormatId)] = &[
    ("F32", FormatId::F32),
    ("F16", FormatId::F16),
    ("BF16", FormatId::BF16),
    ("F64", FormatId::F64),
    ("I64", FormatId::I64),
    ("I32", FormatId::I32),
    ("U32", FormatId::I32), // packed words, whose sign means nothing
    ("I16", FormatId::I16),
    ("I8", FormatId::I8),
    ("U8", FormatId::U8),
    ("BOOL", FormatId::U8),
    ("F8_E4M3", FormatId::F8_E4M3),
    ("F8_E5M2", FormatId::F8_E5M2),
    ("F8_E8M0", FormatId::U8), // exponents, read as such where they are scales
];

/// The name of a format in a safetensors header, where it has one.
pub(crate) fn dtype_name(format: FormatId) -> Option<&'static str> {
    DTYPES.iter().find(|(_, id)| *id == format).map(|(name, _)| *name)
}

/// Reads the header of the file at `path`, whose whole content is `bytes`; `file` is its index
/// in the checkpoint's list of files. Tensors come in the order of their data.
///
/// # Errors
/// [`LoadError`] for anything that breaks the rules of the format.
pub fn parse(path: &Path, bytes: &[u8], file: u32) -> Result<Vec<TensorInfo>, LoadError> {
    let mut cursor = Cursor::new(path, bytes);
    let header_bytes = cursor.u64("header length")?;
    if header_bytes > MAX_HEADER_BYTES {
        let expected = format!("at most {MAX_HEADER_BYTES} bytes");
        return Err(LoadError::invalid(path, "header length", expected, header_bytes));
    }
    let header = cursor.take(header_bytes, "header")?;
    if header.first() != Some(&b'{') {
        return Err(LoadError::invalid(path, "header", "JSON starting with {", "something else"));
    }
    let budget = Budget::new(BASE_BYTES, bytes.len() as u64);
    let records =
        parse_json(path, "header", header, &budget, |d| d.deserialize_map(Header(&budget)))?;
    let data_start = cursor.offset();
    let needed = records.iter().map(|r| r.offsets[1]).max().unwrap_or(0);
    if needed > cursor.left() {
        cursor.take(needed, "the last tensor")?;
    }
    let mut tensors = Vec::with_capacity(records.len());
    for record in records {
        tensors.push(record.check(path, data_start, cursor.left(), file)?);
    }
    tensors.sort_by_key(|t| (t.extent.offset, t.extent.len));
    check_cover(path, &tensors, data_start, bytes.len() as u64)?;
    Ok(tensors)
}

/// Runs `read` over JSON and says where it failed.
pub(crate) fn parse_json<'a, T>(
    path: &Path,
    place: &str,
    json: &'a [u8],
    budget: &Budget,
    read: impl FnOnce(
        &mut serde_json::Deserializer<serde_json::de::SliceRead<'a>>,
    ) -> serde_json::Result<T>,
) -> Result<T, LoadError> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    read(&mut deserializer).and_then(|value| deserializer.end().map(|()| value)).map_err(
        |e| match e.to_string() {
            text if text.starts_with(OVER_BUDGET) => budget.exceeded(path, place),
            text => LoadError::invalid(path, place, "valid JSON of the right form", text),
        },
    )
}

/// What a visitor reports when the budget is used up.
const OVER_BUDGET: &str = "too large for its file";

/// Charges the budget from inside a visitor.
pub(crate) fn charge<E: serde::de::Error>(budget: &Budget, bytes: u64) -> Result<(), E> {
    if budget.take(bytes) { Ok(()) } else { Err(E::custom(OVER_BUDGET)) }
}

/// One entry of the header, not yet checked.
struct Record {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    offsets: [u64; 2],
}

impl Record {
    fn check(
        self,
        path: &Path,
        data_start: u64,
        data_bytes: u64,
        file: u32,
    ) -> Result<TensorInfo, LoadError> {
        let place = || shorten(format!("tensor '{}'", self.name));
        let Some(&(_, format)) = DTYPES.iter().find(|(name, _)| *name == self.dtype) else {
            let what = format!("{}: data type {}", place(), self.dtype);
            return Err(LoadError::unsupported(path, what));
        };
        let [begin, end] = self.offsets;
        if begin > end || end > data_bytes {
            let found = format!("data_offsets {begin}, {end}");
            let expected = format!("a range within {data_bytes} bytes of data");
            return Err(LoadError::invalid(path, place(), expected, found));
        }
        let len = end - begin;
        if stored_bytes(format, &self.shape) != Some(len) {
            let expected = format!("the bytes of {format} {:?}", self.shape);
            return Err(LoadError::invalid(path, place(), expected, format!("{len} bytes")));
        }
        let extent = Extent { file, offset: data_start + begin, len };
        Ok(TensorInfo { name: self.name, format, shape: self.shape, extent, order: None })
    }
}

/// The tensors, sorted by offset, must follow each other from the first byte of data to the last.
fn check_cover(
    path: &Path,
    tensors: &[TensorInfo],
    data_start: u64,
    file_bytes: u64,
) -> Result<(), LoadError> {
    let mut at = data_start;
    for tensor in tensors {
        if tensor.extent.offset != at {
            let place = shorten(format!("tensor '{}'", tensor.name));
            let expected = format!("data at offset {}", at - data_start);
            return Err(LoadError::invalid(
                path,
                place,
                expected,
                tensor.extent.offset - data_start,
            ));
        }
        at += tensor.extent.len;
    }
    if at != file_bytes {
        let found = format!("{} bytes after it", file_bytes - at);
        return Err(LoadError::invalid(path, "data", "the last tensor to end the file", found));
    }
    Ok(())
}

/// The header's map of name → record, `__metadata__` aside.
struct Header<'b>(&'b Budget);

impl<'de> Visitor<'de> for Header<'_> {
    type Value = Vec<Record>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensor records")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut records = Vec::new();
        while let Some(name) = map.next_key_seed(Text(self.0))? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            charge(self.0, ENTRY_BYTES)?;
            records.push(map.next_value_seed(RecordSeed { name, budget: self.0 })?);
        }
        Ok(records)
    }
}

struct RecordSeed<'b> {
    name: String,
    budget: &'b Budget,
}

impl<'de> DeserializeSeed<'de> for RecordSeed<'_> {
    type Value = Record;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Record, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RecordSeed<'_> {
    type Value = Record;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = shorten(self.name.clone());
        write!(f, "dtype, shape and data_offsets of tensor '{name}'")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Record, A::Error> {
        use serde::de::Error;
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(key) = map.next_key_seed(Text(self.budget))? {
            match key.as_str() {
                "dtype" if dtype.is_none() => dtype = Some(map.next_value_seed(Text(self.budget))?),
                "shape" if shape.is_none() => shape = Some(map.next_value_seed(Axes)?),
                "data_offsets" if offsets.is_none() => {
                    offsets = Some(map.next_value::<[u64; 2]>()?);
                }
                "dtype" | "shape" | "data_offsets" => {
                    return Err(A::Error::custom(format!("'{key}' twice in a record")));
                }
                // (As the format's own package does with members that it does not know.)
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        match (dtype, shape, offsets) {
            (Some(dtype), Some(shape), Some(offsets)) => {
                Ok(Record { name: self.name, dtype, shape, offsets })
            }
            _ => Err(A::Error::custom(format!("missing: {}", Expecting(&self)))),
        }
    }
}

/// Prints what a visitor expects.
struct Expecting<'a, V>(&'a V);

impl<'de, V: Visitor<'de>> fmt::Display for Expecting<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }
}

/// A shape of at most [`MAX_DIMS`] axes.
struct Axes;

impl<'de> DeserializeSeed<'de> for Axes {
    type Value = Vec<u64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<u64>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Axes {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a shape of at most {MAX_DIMS} whole numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u64>, A::Error> {
        let mut axes = Vec::with_capacity(MAX_DIMS);
        while let Some(axis) = seq.next_element::<u64>()? {
            if axes.len() == MAX_DIMS {
                return Err(serde::de::Error::custom(Expecting(&self)));
            }
            axes.push(axis);
        }
        Ok(axes)
    }
}

/// A string, charged to the budget.
pub(crate) struct Text<'b>(pub(crate) &'b Budget);

impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Text<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<String, E> {
        charge(self.0, text.len() as u64)?;
        Ok(text.to_owned())
    }
}

/// `model.safetensors.index.json`: which file holds which tensor.
#[derive(Debug)]
pub struct ShardIndex {
    /// File names, in the order of their first tensor.
    pub files: Vec<String>,
    /// (tensor, index into `files`).
    pub tensors: Vec<(String, usize)>,
}

/// Reads the index at `path`, whose whole content is `json`.
///
/// # Errors
/// [`LoadError`] if it is not JSON of the right form or a file name is more than a name.
pub fn parse_index(path: &Path, json: &[u8]) -> Result<ShardIndex, LoadError> {
    let budget = Budget::new(BASE_BYTES, 8 * json.len() as u64); // its shards are far larger
    let index = parse_json(path, "index", json, &budget, |d| d.deserialize_map(Index(&budget)))?;
    for file in &index.files {
        let mut parts = Path::new(file).components();
        let plain = matches!(parts.next(), Some(std::path::Component::Normal(_)));
        if !plain || parts.next().is_some() {
            return Err(LoadError::invalid(path, "weight_map", "plain file names", file));
        }
    }
    Ok(index)
}

struct Index<'b>(&'b Budget);

impl<'de> Visitor<'de> for Index<'_> {
    type Value = ShardIndex;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map with weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ShardIndex, A::Error> {
        let mut index = None;
        while let Some(key) = map.next_key_seed(Text(self.0))? {
            if key == "weight_map" {
                index = Some(map.next_value_seed(WeightMap(self.0))?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        index.ok_or_else(|| serde::de::Error::missing_field("weight_map"))
    }
}

struct WeightMap<'b>(&'b Budget);

impl<'de> DeserializeSeed<'de> for WeightMap<'_> {
    type Value = ShardIndex;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ShardIndex, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMap<'_> {
    type Value = ShardIndex;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensor name to file name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ShardIndex, A::Error> {
        let mut index = ShardIndex { files: Vec::new(), tensors: Vec::new() };
        let mut seen = std::collections::HashMap::new();
        while let Some(tensor) = map.next_key_seed(Text(self.0))? {
            charge(self.0, ENTRY_BYTES / 4)?;
            let file = map.next_value_seed(Text(self.0))?;
            let file = file.trim_start_matches("./").to_owned();
            let at = *seen.entry(file).or_insert_with_key(|file| {
                index.files.push(file.clone());
                index.files.len() - 1
            });
            index.tensors.push((tensor, at));
        }
        Ok(index)
    }
}

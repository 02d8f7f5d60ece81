//! GGUF versions 2 and 3, little-endian: key-value pairs and the tensor index.
//!
//! Layout: magic, version, tensor count, pair count, pairs, tensor records, padding to
//! `general.alignment`, data (ggml, docs/gguf.md). Version 1 and big-endian files are refused
//! by name. A split model is several such files, each with its own index; see [`Split`].

use std::path::Path;

use tokenmill_ir::{Extent, Meta, MetaValue, TensorInfo};
use tokenmill_quant::FormatId;

use crate::budget::{Budget, ENTRY_BYTES};
use crate::cursor::Cursor;
use crate::error::{LoadError, shorten};
use crate::shape::stored_bytes;

/// Memory that a header may take beside the multiple of its file, bytes.
const BASE_BYTES: u64 = 768 << 10;
/// Alignment of tensor data where `general.alignment` is absent, bytes.
pub(crate) const DEFAULT_ALIGNMENT: u32 = 32;
/// How deep arrays may lie in arrays.
const MAX_ARRAY_DEPTH: u32 = 4;
/// Most axes of a tensor.
const MAX_DIMS: u32 = 4;

/// Value type ids of key-value pairs, in the order of their numbers.
pub(crate) const VALUE_TYPES: [&str; 13] = [
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "array",
    "uint64", "int64", "float64",
];
/// Smallest size in the file of a value of each type, bytes.
const VALUE_MIN_BYTES: [u64; 13] = [1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8];
const TYPE_ARRAY: u32 = 9;

/// One GGUF file, read.
#[derive(Debug)]
pub struct Gguf {
    /// Version in the header, 2 or 3.
    pub version: u32,
    /// All key-value pairs.
    pub meta: Meta,
    /// All tensors of this file, `extent.file` as given to [`parse`].
    pub tensors: Vec<TensorInfo>,
}

/// Which part of a split model a file is (`split.*` keys).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Index of this part, from 0.
    pub index: u32,
    /// Number of parts.
    pub count: u32,
    /// Tensors of all parts together, where the file says so.
    pub tensors: Option<u32>,
}

/// Reads the header of the file at `path`, whose whole content is `bytes`; `file` is its index
/// in the checkpoint's list of files.
///
/// # Errors
/// [`LoadError`] for anything that breaks the rules of the format.
pub fn parse(path: &Path, bytes: &[u8], file: u32) -> Result<Gguf, LoadError> {
    let mut reader = Reader {
        cursor: Cursor::new(path, bytes),
        budget: Budget::new(BASE_BYTES, bytes.len() as u64),
    };
    let version = reader.version()?;
    let tensor_count = reader.cursor.u64("tensor count")?;
    let pair_count = reader.cursor.u64("key-value count")?;
    let meta = reader.pairs(pair_count)?;
    let alignment = alignment(path, &meta)?;
    let mut records = reader.records(tensor_count)?;
    let data_start = align_up(reader.cursor.offset(), alignment).ok_or_else(|| {
        LoadError::invalid(path, "general.alignment", "an offset below 2^64", alignment)
    })?;
    // A file that was cut short is measured by the tensor that ends last.
    if let Some(last) = records.iter().max_by_key(|t| t.extent.offset) {
        place(path, &mut last.clone(), data_start, bytes.len() as u64, alignment)?;
    }
    for tensor in &mut records {
        tensor.extent.file = file;
        place(path, tensor, data_start, bytes.len() as u64, alignment)?;
    }
    check_overlaps(path, &records)?;
    Ok(Gguf { version, meta, tensors: records })
}

impl Gguf {
    /// The `split.*` keys; `None` for a model in one file.
    ///
    /// # Errors
    /// [`LoadError::Invalid`] if they contradict each other.
    pub fn split(&self, path: &Path) -> Result<Option<Split>, LoadError> {
        let key = |key: &str| whole(path, &self.meta, key, "an integer");
        let count = key("split.count")?.unwrap_or(0);
        if count <= 1 {
            return Ok(None);
        }
        let index = key("split.no")?.unwrap_or(0);
        if count > 99_999 || index >= count {
            let found = format!("part {index} of {count}");
            return Err(LoadError::invalid(path, "split.no", "a part below split.count", found));
        }
        Ok(Some(Split { index, count, tensors: key("split.tensors.count")? }))
    }
}

struct Reader<'a> {
    cursor: Cursor<'a>,
    budget: Budget,
}

impl Reader<'_> {
    fn version(&mut self) -> Result<u32, LoadError> {
        let path = self.cursor.path;
        let magic = self.cursor.take(4, "magic")?;
        if magic != b"GGUF" {
            return Err(LoadError::invalid(path, "magic", "GGUF", format!("{magic:02x?}")));
        }
        match self.cursor.u32("version")? {
            version @ (2 | 3) => Ok(version),
            1 => Err(LoadError::unsupported(path, "GGUF version 1 (convert the model again)")),
            v if v & 0xffff == 0 && v != 0 => Err(LoadError::unsupported(
                path,
                format!("big-endian GGUF (version {})", v.swap_bytes()),
            )),
            v => Err(LoadError::unsupported(path, format!("GGUF version {v}"))),
        }
    }

    fn charge(&self, bytes: u64, place: &str) -> Result<(), LoadError> {
        if self.budget.take(bytes) {
            Ok(())
        } else {
            Err(self.budget.exceeded(self.cursor.path, place))
        }
    }

    fn string(&mut self, place: &str) -> Result<String, LoadError> {
        let len = self.cursor.u64(place)?;
        let bytes = self.cursor.take(len, place)?;
        let text = std::str::from_utf8(bytes).map_err(|e| {
            LoadError::invalid(self.cursor.path, shorten(place.to_owned()), "UTF-8 text", e)
        })?;
        self.charge(len, place)?;
        Ok(text.to_owned())
    }

    fn pairs(&mut self, count: u64) -> Result<Meta, LoadError> {
        let mut meta = Meta::new();
        for i in 0..count {
            let key = self.string(&format!("key {i} of {count}"))?;
            self.charge(key.len() as u64 + ENTRY_BYTES, &key)?;
            let value_type = self.cursor.u32(&key)?;
            let value = self.value(value_type, &key, 0)?;
            let place = shorten(key.clone());
            if meta.insert(key, value).is_some() {
                return Err(LoadError::invalid(self.cursor.path, place, "one value", "two"));
            }
        }
        Ok(meta)
    }

    fn value(&mut self, value_type: u32, key: &str, depth: u32) -> Result<MetaValue, LoadError> {
        let cursor = &mut self.cursor;
        Ok(match value_type {
            0 => MetaValue::Int(cursor.u8(key)?.into()),
            1 => MetaValue::Int(cursor.i8(key)?.into()),
            2 => MetaValue::Int(cursor.u16(key)?.into()),
            3 => MetaValue::Int(cursor.i16(key)?.into()),
            4 => MetaValue::Int(cursor.u32(key)?.into()),
            5 => MetaValue::Int(cursor.i32(key)?.into()),
            6 => MetaValue::Float(cursor.f32(key)?.into()),
            7 => match cursor.u8(key)? {
                0 => MetaValue::Bool(false),
                1 => MetaValue::Bool(true),
                other => {
                    let place = shorten(key.to_owned());
                    return Err(LoadError::invalid(cursor.path, place, "0 or 1", other));
                }
            },
            8 => MetaValue::Str(self.string(key)?),
            TYPE_ARRAY => self.array(key, depth)?,
            10 => {
                let value = cursor.u64(key)?;
                i64::try_from(value).map_or(MetaValue::Uint(value), MetaValue::Int)
            }
            11 => MetaValue::Int(cursor.i64(key)?),
            12 => MetaValue::Float(cursor.f64(key)?),
            other => return Err(unknown_value_type(cursor.path, key, other)),
        })
    }

    fn array(&mut self, key: &str, depth: u32) -> Result<MetaValue, LoadError> {
        let element_type = self.cursor.u32(key)?;
        let count = self.cursor.u64(key)?;
        let path = self.cursor.path;
        let Some(&min_bytes) = VALUE_MIN_BYTES.get(element_type as usize) else {
            return Err(unknown_value_type(path, key, element_type));
        };
        if depth >= MAX_ARRAY_DEPTH {
            let expected = format!("arrays at most {MAX_ARRAY_DEPTH} deep");
            return Err(LoadError::invalid(path, shorten(key.to_owned()), expected, "deeper"));
        }
        // The bytes must be there before room is made for the values.
        let needed = count.saturating_mul(min_bytes);
        if needed > self.cursor.left() {
            self.cursor.take(needed, key)?;
        }
        self.charge(count.saturating_mul(size_of::<MetaValue>() as u64), key)?;
        let mut list = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
        for _ in 0..count {
            list.push(self.value(element_type, key, depth + 1)?);
        }
        Ok(MetaValue::List(list))
    }

    /// The tensor records; offsets are still relative to the data.
    fn records(&mut self, count: u64) -> Result<Vec<TensorInfo>, LoadError> {
        let path = self.cursor.path;
        let mut tensors = Vec::new();
        for i in 0..count {
            let name = self.string(&format!("name of tensor {i} of {count}"))?;
            let place = shorten(format!("tensor '{name}'"));
            self.charge(name.len() as u64 + ENTRY_BYTES, &place)?;
            let dims = self.cursor.u32(&place)?;
            if !(1..=MAX_DIMS).contains(&dims) {
                let expected = format!("1 to {MAX_DIMS} dimensions");
                return Err(LoadError::invalid(path, place, expected, dims));
            }
            let mut shape = Vec::with_capacity(dims as usize);
            for _ in 0..dims {
                shape.push(self.cursor.u64(&place)?);
            }
            shape.reverse();
            let type_id = self.cursor.u32(&place)?;
            let format = FormatId::from_ggml(type_id).map_err(|source| LoadError::Format {
                path: path.to_owned(),
                tensor: shorten(name.clone()),
                source,
            })?;
            let offset = self.cursor.u64(&place)?;
            let len = stored_bytes(format, &shape).filter(|&len| len > 0);
            let Some(len) = len else {
                let expected = format!("rows of whole {format} blocks, at most 2^63 bytes");
                return Err(LoadError::invalid(path, place, expected, format!("{shape:?}")));
            };
            let extent = Extent { file: 0, offset, len };
            tensors.push(TensorInfo { name, format, shape, extent, order: None });
        }
        Ok(tensors)
    }
}

fn unknown_value_type(path: &Path, key: &str, found: u32) -> LoadError {
    let expected = format!("a value type of 0 ({}) to 12 ({})", VALUE_TYPES[0], VALUE_TYPES[12]);
    LoadError::invalid(path, shorten(key.to_owned()), expected, found)
}

/// A whole number of 32 bits, if the key is there.
fn whole(path: &Path, meta: &Meta, key: &str, wanted: &str) -> Result<Option<u32>, LoadError> {
    let Some(value) = meta.get(key) else { return Ok(None) };
    let number = value.as_u32().map(Some);
    number.ok_or_else(|| LoadError::invalid(path, key, wanted, value.told()))
}

fn alignment(path: &Path, meta: &Meta) -> Result<u32, LoadError> {
    const KEY: &str = "general.alignment";
    let alignment = whole(path, meta, KEY, "a power of two")?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() {
        return Err(LoadError::invalid(path, KEY, "a power of two", alignment));
    }
    Ok(alignment)
}

pub(crate) fn align_up(offset: u64, alignment: u32) -> Option<u64> {
    let mask = u64::from(alignment) - 1;
    Some(offset.checked_add(mask)? & !mask)
}

/// Turns a record's offset into one from the start of the file, inside the file.
fn place(
    path: &Path,
    tensor: &mut TensorInfo,
    data_start: u64,
    file_bytes: u64,
    alignment: u32,
) -> Result<(), LoadError> {
    let name = || shorten(format!("tensor '{}'", tensor.name));
    let Extent { offset, len, .. } = tensor.extent;
    if offset % u64::from(alignment) != 0 {
        let expected = format!("an offset aligned to {alignment}");
        return Err(LoadError::invalid(path, name(), expected, offset));
    }
    let start = data_start.checked_add(offset);
    let end = start.and_then(|start| start.checked_add(len));
    match (start, end) {
        (Some(start), Some(end)) if end <= file_bytes => tensor.extent.offset = start,
        _ => {
            let offset = start.unwrap_or(u64::MAX).min(file_bytes);
            return Err(LoadError::Truncated {
                path: path.to_owned(),
                place: name(),
                offset,
                needed: end.unwrap_or(u64::MAX) - offset,
                left: file_bytes - offset,
            });
        }
    }
    Ok(())
}

fn check_overlaps(path: &Path, tensors: &[TensorInfo]) -> Result<(), LoadError> {
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| t.extent.offset);
    for pair in order.windows(2) {
        let [a, b] = pair else { continue };
        if a.extent.offset + a.extent.len > b.extent.offset {
            return Err(LoadError::invalid(
                path,
                shorten(format!("tensor '{}'", b.name)),
                "bytes of its own",
                shorten(format!("bytes shared with tensor '{}'", a.name)),
            ));
        }
    }
    Ok(())
}

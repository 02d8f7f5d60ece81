//! Writing GGUF and safetensors: what `quantize` makes and what tests read back.
//!
//! Both writers take the tensor index first and then ask for each tensor's bytes in turn, so a
//! model never has to be in memory.

use std::io::{self, Write};

use tokenmill_ir::{Meta, MetaValue};
use tokenmill_quant::FormatId;

use crate::gguf::{DEFAULT_ALIGNMENT, align_up};
use crate::safetensors::dtype_name;
use crate::shape::stored_bytes;

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorHeader {
    /// Its name.
    pub name: String,
    /// How its numbers are stored.
    pub format: FormatId,
    /// Extents, outermost first.
    pub shape: Vec<u64>,
}

impl TensorHeader {
    /// Bytes of the tensor; `None` if its shape does not fit its format.
    pub fn len_bytes(&self) -> Option<u64> {
        stored_bytes(self.format, &self.shape)
    }

    fn checked_len(&self) -> io::Result<u64> {
        self.len_bytes().ok_or_else(|| {
            let TensorHeader { name, format, shape } = self;
            refused(format!("tensor '{name}': {shape:?} does not fit {format}"))
        })
    }
}

/// Writes a GGUF file, version 3, aligned to 32 bytes. `fill` is called once per tensor, in
/// order, and must write exactly its bytes.
///
/// Integers become u32 where they fit, else i32, i64 or u64; floats f32 where nothing is lost,
/// else f64; in lists all elements share the narrowest type that holds them, i32 before u32,
/// as llama.cpp expects of token types. `general.alignment` must not be among the pairs.
///
/// # Errors
/// What `out` or `fill` return; `InvalidInput` for values or tensors that GGUF cannot hold.
pub fn write_gguf<W: Write>(
    out: &mut W,
    meta: &Meta,
    tensors: &[TensorHeader],
    mut fill: impl FnMut(&TensorHeader, &mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    if meta.get("general.alignment").is_some() {
        return Err(refused("general.alignment is chosen by the writer"));
    }
    let mut head = b"GGUF".to_vec();
    head.extend(3_u32.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((meta.iter().count() as u64).to_le_bytes());
    for (key, value) in meta.iter() {
        put_string(&mut head, key);
        let value_type = scalar_type(value).ok_or_else(|| unwritable(key))?;
        head.extend(value_type.to_le_bytes());
        put_value(&mut head, key, value, value_type)?;
    }
    let mut offset = 0_u64;
    for tensor in tensors {
        let len = tensor.checked_len()?;
        if len == 0 || !(1..=4).contains(&tensor.shape.len()) {
            return Err(refused(format!("tensor '{}': shape {:?}", tensor.name, tensor.shape)));
        }
        let type_id = tensor.format.info().ggml_type.ok_or_else(|| {
            refused(format!("tensor '{}': GGUF has no {}", tensor.name, tensor.format))
        })?;
        put_string(&mut head, &tensor.name);
        head.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|dim| head.extend(dim.to_le_bytes()));
        head.extend(type_id.to_le_bytes());
        head.extend(offset.to_le_bytes());
        offset = aligned(offset + len)?;
    }
    let padded = aligned(head.len() as u64)? as usize;
    head.resize(padded, 0);
    out.write_all(&head)?;
    for tensor in tensors {
        let len = write_tensor(out, tensor, &mut fill)?;
        let padding = aligned(len)? - len;
        out.write_all(&[0; DEFAULT_ALIGNMENT as usize][..padding as usize])?;
    }
    Ok(())
}

/// Writes a safetensors file. `fill` is called once per tensor, in order, and must write
/// exactly its bytes.
///
/// # Errors
/// What `out` or `fill` return; `InvalidInput` for formats that safetensors cannot hold.
pub fn write_safetensors<W: Write>(
    out: &mut W,
    tensors: &[TensorHeader],
    mut fill: impl FnMut(&TensorHeader, &mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut records = serde_json::Map::new();
    records.insert("__metadata__".to_owned(), serde_json::json!({"format": "pt"}));
    let mut offset = 0;
    for tensor in tensors {
        let end = offset + tensor.checked_len()?;
        let dtype = dtype_name(tensor.format).ok_or_else(|| {
            refused(format!("tensor '{}': safetensors has no {}", tensor.name, tensor.format))
        })?;
        let record = serde_json::json!({
            "dtype": dtype, "shape": tensor.shape, "data_offsets": [offset, end],
        });
        if records.insert(tensor.name.clone(), record).is_some() {
            return Err(refused(format!("tensor '{}' twice", tensor.name)));
        }
        offset = end;
    }
    let mut header = serde_json::to_vec(&records)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for tensor in tensors {
        write_tensor(out, tensor, &mut fill)?;
    }
    Ok(())
}

/// Lets `fill` write one tensor and checks the length. Returns it.
fn write_tensor<W: Write>(
    out: &mut W,
    tensor: &TensorHeader,
    fill: &mut impl FnMut(&TensorHeader, &mut dyn Write) -> io::Result<()>,
) -> io::Result<u64> {
    let mut counted = Counted { inner: out, count: 0 };
    fill(tensor, &mut counted)?;
    let (wrote, needed) = (counted.count, tensor.checked_len()?);
    if wrote != needed {
        let name = &tensor.name;
        return Err(refused(format!("tensor '{name}': {wrote} bytes written of {needed}")));
    }
    Ok(needed)
}

/// Counts what passes through.
struct Counted<'a, W> {
    inner: &'a mut W,
    count: u64,
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let wrote = self.inner.write(bytes)?;
        self.count += wrote as u64;
        Ok(wrote)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn refused(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.into())
}

fn unwritable(key: &str) -> io::Error {
    refused(format!("key '{key}': GGUF has no type for this value"))
}

fn aligned(offset: u64) -> io::Result<u64> {
    align_up(offset, DEFAULT_ALIGNMENT).ok_or_else(|| refused("file longer than 2^64 bytes"))
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

// Value type ids, as in `gguf::VALUE_TYPES`.
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const U64: u32 = 10;
const I64: u32 = 11;
const F64: u32 = 12;

/// The value type for one value; `None` for null and maps.
fn scalar_type(value: &MetaValue) -> Option<u32> {
    Some(match value {
        MetaValue::Null | MetaValue::Map(_) => return None,
        MetaValue::Bool(_) => BOOL,
        MetaValue::Int(i) if u32::try_from(*i).is_ok() => U32,
        MetaValue::Int(i) if i32::try_from(*i).is_ok() => I32,
        MetaValue::Int(_) => I64,
        MetaValue::Uint(_) => U64,
        MetaValue::Float(f) if f.is_nan() || f64::from(*f as f32) == *f => F32,
        MetaValue::Float(_) => F64,
        MetaValue::Str(_) => STRING,
        MetaValue::List(_) => ARRAY,
    })
}

/// The one value type that holds every element of a list; `None` if there is none.
fn element_type(list: &[MetaValue]) -> Option<u32> {
    let integers = list.iter().all(|v| matches!(v, MetaValue::Int(_) | MetaValue::Uint(_)));
    if list.is_empty() {
        return Some(U32);
    }
    if integers {
        let within = |low: i64, high: i64| {
            list.iter().all(|v| matches!(v, MetaValue::Int(i) if (low..=high).contains(i)))
        };
        let choices = [
            (I32, i32::MIN.into(), i32::MAX.into()),
            (U32, 0, u32::MAX.into()),
            (I64, i64::MIN, i64::MAX),
        ];
        let narrowest = choices.into_iter().find(|&(_, low, high)| within(low, high));
        let negative = list.iter().any(|v| matches!(v, MetaValue::Int(i) if *i < 0));
        return match narrowest {
            Some((id, ..)) => Some(id),
            None => (!negative).then_some(U64),
        };
    }
    let types: Vec<u32> = list.iter().map(scalar_type).collect::<Option<_>>()?;
    match types.as_slice() {
        [first, rest @ ..] if rest.iter().all(|t| t == first) => Some(*first),
        types if types.iter().all(|t| [F32, F64].contains(t)) => Some(F64),
        _ => None,
    }
}

fn put_value(out: &mut Vec<u8>, key: &str, value: &MetaValue, value_type: u32) -> io::Result<()> {
    match (value, value_type) {
        (MetaValue::Bool(b), BOOL) => out.push(u8::from(*b)),
        (MetaValue::Int(i), U32 | I32) => out.extend((*i as u32).to_le_bytes()), // fits, checked
        (MetaValue::Int(i), I64 | U64) => out.extend(i.to_le_bytes()),
        (MetaValue::Uint(u), U64) => out.extend(u.to_le_bytes()),
        (MetaValue::Float(f), F32) => out.extend((*f as f32).to_le_bytes()),
        (MetaValue::Float(f), F64) => out.extend(f.to_le_bytes()),
        (MetaValue::Str(s), STRING) => put_string(out, s),
        (MetaValue::List(list), ARRAY) => {
            let element_type = element_type(list).ok_or_else(|| unwritable(key))?;
            out.extend(element_type.to_le_bytes());
            out.extend((list.len() as u64).to_le_bytes());
            for value in list {
                put_value(out, key, value, element_type)?;
            }
        }
        _ => return Err(unwritable(key)),
    }
    Ok(())
}

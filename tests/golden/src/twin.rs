//! GGUF twins without their numbers (`twins.py` makes the descriptions): metadata, and for every row
//! where in the hashed tensors its numbers stand, and what they are multiplied by.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use tokenmill_files::write::{TensorHeader, write_gguf};
use tokenmill_ir::{Meta, MetaValue};

use crate::packing::Packing;
use crate::tensors::Tensors;

#[derive(Deserialize)]
struct Twin {
    meta: serde_json::Map<String, Value>,
    tensors: Vec<Tensor>,
}

#[derive(Deserialize)]
struct Tensor {
    name: String,
    shape: Vec<u64>,
    /// Numbers of a row of `runs`, where that is not the last of `shape`.
    width: Option<usize>,
    /// `[source, start, step between rows, rows, stride]`
    #[serde(default)]
    runs: Vec<[usize; 5]>,
    /// Of each run: factors, one after the other. Empty where no run has any.
    #[serde(default)]
    times: Vec<Vec<f32>>,
    /// Numbers that stand nowhere: sums, exponentials.
    #[serde(default)]
    values: Vec<f32>,
}

/// Writes the file into `scratch`, its numbers as f32.
pub fn write(description: &Path, sources: &Tensors, scratch: &Path) -> PathBuf {
    write_packed(description, sources, Packing::PLAIN, &scratch.join("twin.gguf"))
}

/// Writes the file with every matrix that a format fits packed in it.
pub fn write_packed(
    description: &Path,
    sources: &Tensors,
    packing: Packing,
    path: &Path,
) -> PathBuf {
    let text = std::fs::read_to_string(description).expect("twin.json");
    let twin: Twin = serde_json::from_str(&text).expect("twin.json");
    let mut meta = Meta::default();
    for (key, value) in &twin.meta {
        meta.insert(key.clone(), meta_value(value));
    }
    let header = |t: &Tensor| TensorHeader {
        name: t.name.clone(),
        format: packing.stored(&t.shape),
        shape: t.shape.clone(),
    };
    let headers: Vec<TensorHeader> = twin.tensors.iter().map(header).collect();
    let mut known: HashMap<usize, Vec<f32>> = HashMap::new();
    let file = std::fs::File::create(path).expect("created");
    let mut out = std::io::BufWriter::new(file);
    let mut tensors = twin.tensors.iter();
    write_gguf(&mut out, &meta, &headers, |_, out| {
        let tensor = tensors.next().expect("a tensor for every header");
        out.write_all(&packing.bytes(&tensor.shape, &numbers(tensor, sources, &mut known)))
    })
    .expect("written");
    out.flush().expect("flushed");
    path.to_owned()
}

fn numbers(t: &Tensor, sources: &Tensors, known: &mut HashMap<usize, Vec<f32>>) -> Vec<f32> {
    if t.runs.is_empty() {
        return t.values.clone();
    }
    let cols = t.width.unwrap_or(*t.shape.last().expect("a shape") as usize);
    let mut all = Vec::new();
    for (at, &[source, start, step, rows, stride]) in t.runs.iter().enumerate() {
        let values = known.entry(source).or_insert_with(|| sources.values(source));
        let times = t.times.get(at).map_or(&[][..], Vec::as_slice);
        for row in 0..rows {
            let first = start + row * step;
            let number = |i: usize| times.iter().fold(values[first + i * stride], |x, f| x * f);
            all.extend((0..cols).map(number));
        }
    }
    all
}

fn meta_value(value: &Value) -> MetaValue {
    match value {
        Value::Bool(b) => MetaValue::Bool(*b),
        Value::String(s) => MetaValue::Str(s.clone()),
        Value::Array(items) => MetaValue::List(items.iter().map(meta_value).collect()),
        Value::Number(n) => match n.as_i64() {
            Some(i) => MetaValue::Int(i),
            None => MetaValue::Float(n.as_f64().expect("a number")),
        },
        other => panic!("{other} in GGUF metadata"),
    }
}

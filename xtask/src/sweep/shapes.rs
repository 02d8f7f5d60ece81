//! A kind as a folder: its configuration made wide, its tensors in the shapes that lowering asks for, random numbers.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Value, json};
use tokenmill_files::hf_config;
use tokenmill_files::write::{TensorHeader, write_safetensors};
use tokenmill_ir::{Checkpoint, Container, Extent, KvFormat, Program, TensorInfo, WeightUse};
use tokenmill_models::{ModelError, lower, spec_of};
use tokenmill_quant::FormatId;

use super::kinds::Kind;
use super::words;

/// Columns that share a scale in 4 bits.
const SCALED: u64 = 64;

/// A tensor of a kind.
#[derive(Debug, Clone)]
pub struct Wide {
    /// Name.
    pub name: String,
    /// Extents, outermost first.
    pub shape: Vec<u64>,
    /// Its numbers are `offset` ± half of `spread`.
    spread: f64,
    offset: f64,
    /// Whether it is a matrix of a product, which may have 4 bits.
    matrix: bool,
}

/// The tensors of a kind in their wide shapes.
pub fn find(root: &Path, kind: &Kind) -> Result<Vec<Wide>, String> {
    let folder = root.join("tests/golden").join(kind.golden);
    let config = config(root, kind)?;
    let mut wide = recorded(&folder)?;
    // How many columns each had, since sums of more are as much larger.
    let before: Vec<u64> = wide.iter().map(columns).collect();
    let mut settled = BTreeSet::new();
    let program = loop {
        match lowered(&config, &wide)? {
            Ok(program) => break program,
            Err(ModelError::Shape { tensor, expected, .. }) => {
                settle(&mut wide, &tensor, &expected, &mut settled)?;
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    let products = program.weights.iter().filter(|w| w.role == WeightUse::Matmul);
    let products: BTreeSet<&str> =
        products.flat_map(|w| w.parts.iter().map(|part| part.tensor.as_str())).collect();
    for (tensor, before) in wide.iter_mut().zip(before) {
        let square = tensor.shape.len() == 2 && tensor.name.ends_with(".weight");
        tensor.matrix = square
            && columns(tensor).is_multiple_of(SCALED)
            && products.contains(tensor.name.as_str());
        if tensor.shape.len() > 1 {
            tensor.spread *= (before as f64 / columns(tensor) as f64).sqrt();
        }
    }
    Ok(wide)
}

fn columns(tensor: &Wide) -> u64 {
    tensor.shape.last().copied().unwrap_or(1).max(1)
}

fn config(root: &Path, kind: &Kind) -> Result<Value, String> {
    let path = root.join("tests/golden").join(kind.golden).join("config.json");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    // (Python's JSON; an infinite bound is none.)
    let mut config = serde_json::from_str(&text.replace("Infinity", "1e6"))
        .map_err(|e| format!("{}: {e}", path.display()))?;
    kind.widen(&mut config)?;
    Ok(config)
}

/// The tensors as they were recorded.
fn recorded(folder: &Path) -> Result<Vec<Wide>, String> {
    let path = folder.join("tensors.json");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let all: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    let tensors = all["tensors"].as_array().ok_or("tensors.json: no list")?;
    let of = |tensor: &Value| {
        let shape = tensor["shape"].as_array()?.iter().map(Value::as_u64).collect::<Option<_>>()?;
        let name = tensor["name"].as_str()?.to_owned();
        let (spread, offset) = (tensor["scale"].as_f64()?, tensor["offset"].as_f64()?);
        Some(Wide { name, shape, spread, offset, matrix: false })
    };
    tensors.iter().map(of).collect::<Option<_>>().ok_or_else(|| "tensors.json".to_owned())
}

/// The program over tensors of those shapes, or what is wrong with them.
fn lowered(config: &Value, wide: &[Wide]) -> Result<Result<Program, ModelError>, String> {
    let text = config.to_string();
    let meta = hf_config::parse(Path::new("config.json"), text.as_bytes());
    let infos = wide.iter().map(|tensor| TensorInfo {
        name: tensor.name.clone(),
        format: FormatId::BF16,
        shape: tensor.shape.clone(),
        extent: Extent { file: 0, offset: 0, len: 2 * tensor.shape.iter().product::<u64>() },
        order: None,
    });
    let meta = meta.map_err(|e| e.to_string())?;
    let checkpoint = Checkpoint::new(Container::Hf, meta, infos.collect())?;
    let spec = spec_of(&checkpoint).map_err(|e| e.to_string())?;
    Ok(lower(&spec, &checkpoint, KvFormat::Int16).map(|lowered| lowered.program))
}

/// A name without its numbers: tensors that share it mostly share their shape.
fn pattern(name: &str) -> String {
    name.split('.').map(|part| if part.parse::<u32>().is_ok() { "#" } else { part }).collect()
}

/// Gives a tensor the shape that is asked for, and those of its pattern that have none yet.
fn settle(
    wide: &mut [Wide],
    name: &str,
    expected: &str,
    settled: &mut BTreeSet<String>,
) -> Result<(), String> {
    let unknown = || format!("tensor {name}: cannot be made {expected}");
    let at = wide.iter().position(|tensor| tensor.name == name).ok_or_else(unknown)?;
    let shape = shape_of(&wide[at].shape, expected).ok_or_else(unknown)?;
    if shape == wide[at].shape {
        return Err(unknown());
    }
    let pattern_of = pattern(name);
    settled.insert(name.to_owned());
    for tensor in wide.iter_mut() {
        let alike = pattern(&tensor.name) == pattern_of && !settled.contains(&tensor.name);
        if tensor.name == name || alike && tensor.shape.len() == shape.len() {
            tensor.shape.clone_from(&shape);
        }
    }
    Ok(())
}

/// A shape changed as a message of lowering says: extents, `…` for one that stays, `more than` the last of too few.
fn shape_of(shape: &[u64], expected: &str) -> Option<Vec<u64>> {
    let inner = expected.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let Some((inner, _)) = inner else {
        return Some(vec![expected.split_whitespace().next()?.parse().ok()?]);
    };
    let extents: Vec<&str> = inner.split(',').map(str::trim).collect();
    let mut found = shape.to_vec();
    if extents.len() == 1 && shape.len() > 1 {
        // All numbers of a tensor with axes of one: the longest axis has them.
        let count: u64 = extents[0].parse().ok()?;
        let longest = (0..shape.len()).max_by_key(|i| shape[*i])?;
        let others: u64 = shape.iter().product::<u64>() / shape[longest].max(1);
        found[longest] = count / others.max(1);
        return Some(found);
    }
    // A matrix that is asked for of a tensor with an axis of one between.
    let places: Vec<usize> = if extents.len() < shape.len() {
        vec![0, shape.len() - 1]
    } else {
        (0..shape.len()).collect()
    };
    for (place, extent) in places.into_iter().zip(extents) {
        if let Some(last) = extent.strip_prefix("more than ") {
            found[place] = last.parse::<u64>().ok()? + 1;
        } else if extent != "…" {
            found[place] = extent.parse().ok()?;
        }
    }
    Some(found)
}

/// Writes a kind's folder, its matrices in 4 bits if `few_bits`.
pub fn write(root: &Path, kind: &Kind, few_bits: bool, to: &Path) -> Result<(), String> {
    let (wide, mut config) = (find(root, kind)?, config(root, kind)?);
    if few_bits {
        config["quantization"] = json!({"group_size": SCALED, "bits": 4});
    }
    let of = |e: std::io::Error| format!("{}: {e}", to.display());
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).map_err(of)?;
    std::fs::write(to.join("config.json"), config.to_string()).map_err(of)?;
    let (mut headers, mut fills) = (Vec::new(), HashMap::new());
    for tensor in &wide {
        let stem = tensor.name.strip_suffix("weight").filter(|_| few_bits && tensor.matrix);
        let mut add = |name: String, format, shape: Vec<u64>, fill| {
            fills.insert(name.clone(), fill);
            headers.push(TensorHeader { name, format, shape });
        };
        let Some(stem) = stem else {
            let fill = Fill::Numbers { spread: tensor.spread, offset: tensor.offset };
            add(tensor.name.clone(), FormatId::BF16, tensor.shape.clone(), fill);
            continue;
        };
        let (rows, cols) = (tensor.shape[0], tensor.shape[1]);
        let step = tensor.spread / 16.0;
        let groups = vec![rows, cols / SCALED];
        add(tensor.name.clone(), FormatId::I32, vec![rows, cols / 8], Fill::Words);
        let even = |offset| Fill::Numbers { spread: 0.0, offset };
        add(format!("{stem}scales"), FormatId::BF16, groups.clone(), even(step));
        add(format!("{stem}biases"), FormatId::BF16, groups, even(-7.5 * step));
    }
    let file = std::fs::File::create(to.join("model.safetensors")).map_err(of)?;
    let mut out = BufWriter::new(file);
    write_safetensors(&mut out, &headers, |header, out| {
        let len = header.len_bytes().unwrap_or(0) as usize;
        fills[&header.name].write(len, out)
    })
    .map_err(of)?;
    out.flush().map_err(of)
}

/// What a tensor's bytes are.
enum Fill {
    Words,
    Numbers { spread: f64, offset: f64 },
}

/// Bytes that are made, and then repeated: an odd number of rows' worth, so that rows differ.
const PATTERN: usize = (1 << 20) + 14;

impl Fill {
    fn write(&self, len: usize, out: &mut dyn Write) -> std::io::Result<()> {
        let pattern: Vec<u8> = match *self {
            Fill::Words => words(7).flat_map(u64::to_le_bytes).take(PATTERN).collect(),
            Fill::Numbers { spread, offset } => {
                let number = |word: u64| {
                    let x = offset + spread * ((word >> 40) as f64 / f64::from(1 << 24) - 0.5);
                    ((x as f32).to_bits() >> 16) as u16
                };
                words(9).map(number).flat_map(u16::to_le_bytes).take(PATTERN).collect()
            }
        };
        let mut left = len;
        while left > 0 {
            let now = left.min(pattern.len());
            out.write_all(&pattern[..now])?;
            left -= now;
        }
        Ok(())
    }
}

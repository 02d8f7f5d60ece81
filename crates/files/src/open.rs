//! From a path to an open model: what kind of file it is and which others belong to it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokenmill_ir::{Checkpoint, Container, MetaValue, TensorInfo};

use crate::data::ModelData;
use crate::error::LoadError;
use crate::gguf::{self, Gguf, Split};
use crate::hf_config;
use crate::kind::{self, Kind};
use crate::mmap::{MappedFile, open_regular};
use crate::quantized::{self, Quantization};
use crate::safetensors;
use crate::shards::{self, Shards};

/// A model whose headers are read and whose weights are mapped.
#[derive(Debug)]
pub struct OpenModel {
    /// Hyper-parameters and the tensor index. For a Hugging Face folder `meta` is config.json,
    /// with generation_config.json under the key `generation_config` (a text that says what is
    /// wrong with it, where it cannot be read: it only has defaults) and 1_Pooling/config.json
    /// under `pooling`.
    pub checkpoint: Checkpoint,
    /// The tensors' bytes.
    pub data: ModelData,
    /// Files beside the weights.
    pub sidecars: Sidecars,
}

/// Files of a Hugging Face folder that others read; `None` where absent.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Sidecars {
    /// `tokenizer.json`, `tekken.json` or `tiktoken.model`
    pub tokenizer: Option<PathBuf>,
    /// `tokenizer_config.json`
    pub tokenizer_config: Option<PathBuf>,
    /// `special_tokens_map.json`
    pub special_tokens_map: Option<PathBuf>,
    /// `chat_template.jinja`, or `chat_template.json`
    pub chat_template: Option<PathBuf>,
    /// `preprocessor_config.json`
    pub preprocessor_config: Option<PathBuf>,
    /// `processor_config.json`, which newer folders have in its place
    pub processor_config: Option<PathBuf>,
}

/// Opens the model at `path`: a GGUF file (any part of a split one), a safetensors file or its
/// index with config.json beside it, or a folder with one model.
///
/// # Errors
/// [`LoadError`], naming path, place, expectation and finding.
pub fn open(path: &Path) -> Result<OpenModel, LoadError> {
    let metadata = std::fs::metadata(path).map_err(|e| LoadError::io(path, e))?;
    if metadata.is_dir() {
        return open_folder(path);
    }
    let (folder, name) = (folder_of(path), file_name(path));
    if name.ends_with(".safetensors.index.json") {
        return open_hf(folder, Weights::Shards(shards::of_index(path, &names_in(folder)?)?));
    }
    if shards::part(name, ".safetensors").is_some() {
        let shards = shards::of_part(folder, name, &names_in(folder)?)?;
        return open_hf(folder, Weights::Shards(shards));
    }
    let file = MappedFile::open(path)?;
    match kind::kind(&file) {
        Kind::Gguf => open_gguf(file),
        Kind::Safetensors => open_hf(folder, Weights::File(file)),
        Kind::Other(what) => Err(LoadError::not_a_model(path, what)),
    }
}

/// The names of a folder's entries, sorted.
fn names_in(folder: &Path) -> Result<Vec<String>, LoadError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| LoadError::io(folder, e))? {
        let entry = entry.map_err(|e| LoadError::io(folder, e))?;
        names.extend(entry.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

fn open_folder(folder: &Path) -> Result<OpenModel, LoadError> {
    let names = names_in(folder)?;
    let having = |suffix: &str| names.iter().filter(|n| n.ends_with(suffix)).collect::<Vec<_>>();
    let is_there = |name: &str| names.iter().any(|n| n == name);
    let weighs = !having(".safetensors").is_empty() || is_there("model.safetensors.index.json");
    if is_there("config.json") && weighs {
        return open_hf(folder, Weights::Shards(shards::of_folder(folder, &names)?));
    }
    let ggufs = having(".gguf");
    match ggufs.as_slice() {
        [] => Err(LoadError::not_a_model(folder, no_weights(&names))),
        [first, rest @ ..] => {
            // The parts of one split model count as one.
            let whole = |name: &str| shards::part(name, ".gguf").map(|(stem, ..)| stem.to_owned());
            if !rest.is_empty()
                && rest.iter().any(|n| whole(n).is_none() || whole(n) != whole(first))
            {
                return Err(shards::ambiguous(folder, &ggufs));
            }
            open(&folder.join(first))
        }
    }
}

/// What a folder without a model lacks.
fn no_weights(names: &[String]) -> String {
    let is_there = |name: &str| names.iter().any(|n| n == name);
    let some = |ends: &[&str]| names.iter().find(|n| ends.iter().any(|end| n.ends_with(end)));
    let (pickled, onnx) = (some(&[".bin", ".pth", ".pt", ".ckpt"]), some(&[".onnx"]));
    if is_there("adapter_config.json") {
        return "an adapter (LoRA), not a model; merge it into its model first (merge_and_unload \
                of peft)"
            .to_owned();
    }
    match (some(&[".safetensors"]), pickled, onnx) {
        (Some(_), ..) if is_there("params.json") => "no config.json beside the .safetensors: it \
             is in Mistral's own layout; take the files that transformers reads"
            .to_owned(),
        (Some(name), ..) => {
            format!("no config.json beside {}; download it too", shards::listed(&[name]))
        }
        (None, Some(name), _) => format!(
            "no .gguf and no .safetensors but {} (PyTorch .bin files are not read: they can run \
             code when loaded); take the model's safetensors or convert it",
            shards::listed(&[name])
        ),
        (None, None, Some(name)) => {
            format!("no .gguf and no .safetensors but {}, an ONNX model", shards::listed(&[name]))
        }
        (None, None, None) if is_there("config.json") => {
            "config.json without weights; download the .safetensors too".to_owned()
        }
        (None, None, None) => "no .gguf, no config.json with .safetensors".to_owned(),
    }
}

fn open_gguf(file: MappedFile) -> Result<OpenModel, LoadError> {
    let path = file.path().to_owned();
    let gguf = gguf::parse(&path, file.bytes(), 0)?;
    let (files, gguf) = match gguf.split(&path)? {
        None => (vec![file], gguf),
        Some(split) => open_parts(file, split)?,
    };
    let checkpoint = index(&path, Container::Gguf, gguf.meta, gguf.tensors)?;
    let data = ModelData::new(files, Arc::default());
    Ok(OpenModel { checkpoint, data, sidecars: Sidecars::default() })
}

/// All parts of a split model, in order; the pairs are those of the first part.
fn open_parts(any: MappedFile, split: Split) -> Result<(Vec<MappedFile>, Gguf), LoadError> {
    let path = any.path().to_owned();
    let name = file_name(&path);
    let Some((stem, number, count)) = shards::part(name, ".gguf") else {
        let expected = format!("-{:05}-of-{:05}.gguf", split.index + 1, split.count);
        return Err(LoadError::invalid(&path, "file name of a split model", expected, name));
    };
    let folder = folder_of(&path);
    let name_of = |part: u32| format!("{stem}-{:05}-of-{count:05}.gguf", part + 1);
    let is_missing = |name: &String| !folder.join(name).exists();
    let missing: Vec<String> = (0..split.count).map(name_of).filter(is_missing).collect();
    if !missing.is_empty() {
        let (lost, all, list) = (missing.len(), split.count, shards::listed(&missing));
        let found = format!("{lost} of the {all} parts of the model are missing ({list})");
        let found = format!("{found}; download them into the same folder");
        return Err(LoadError::incomplete(&path, found));
    }
    let mut files: Vec<MappedFile> = Vec::new();
    let mut all: Option<Gguf> = None;
    for part in 0..split.count {
        let part_path = folder.join(name_of(part));
        let file = MappedFile::open(&part_path)?;
        if let Kind::Other(what) = kind::kind(&file) {
            return Err(LoadError::not_a_model(&part_path, what));
        }
        let gguf = gguf::parse(&part_path, file.bytes(), part)?;
        let found = gguf.split(&part_path)?;
        if found.map(|s| (s.index, s.count)) != Some((part, split.count)) {
            let expected =
                format!("part {part} of {} (file name: {number} of {count})", split.count);
            let found = format!("{:?}", found.map(|s| (s.index, s.count)));
            return Err(LoadError::invalid(&part_path, "split.no, split.count", expected, found));
        }
        files.push(file);
        match &mut all {
            None => all = Some(gguf),
            Some(all) => all.tensors.extend(gguf.tensors),
        }
    }
    let Some(all) = all else {
        return Err(LoadError::invalid(&path, "split.count", "at least one part", split.count));
    };
    match all.split(&path)?.and_then(|s| s.tensors) {
        Some(expected) if u64::from(expected) != all.tensors.len() as u64 => {
            let found = format!("{} in all parts", all.tensors.len());
            Err(LoadError::invalid(&path, "split.tensors.count", expected.to_string(), found))
        }
        _ => Ok((files, all)),
    }
}

enum Weights {
    File(MappedFile),
    Shards(Shards),
}

fn open_hf(folder: &Path, weights: Weights) -> Result<OpenModel, LoadError> {
    let config_path = folder.join("config.json");
    let json = read_config(&config_path)?;
    let mut meta = hf_config::parse(&config_path, &json)?;
    read_quantization(folder, &mut meta)?;
    let quantization = Quantization::parse(&config_path, &meta)?;
    let generation_path = folder.join("generation_config.json");
    if generation_path.is_file() {
        let json = read_whole(&generation_path, hf_config::MAX_CONFIG_BYTES);
        let generation = match json.and_then(|json| hf_config::parse(&generation_path, &json)) {
            Ok(generation) => MetaValue::Map(Box::new(generation)),
            Err(error) => MetaValue::Str(error.to_string()),
        };
        meta.insert("generation_config".to_owned(), generation);
    }
    // How sentence-transformers pools the rows of a sequence.
    let pooling_path = folder.join("1_Pooling").join("config.json");
    if pooling_path.is_file() {
        let json = read_whole(&pooling_path, hf_config::MAX_CONFIG_BYTES)?;
        let pooling = hf_config::parse(&pooling_path, &json)?;
        meta.insert("pooling".to_owned(), MetaValue::Map(Box::new(pooling)));
    }
    let (path, files, tensors) = match weights {
        Weights::File(file) => {
            let tensors = safetensors::parse(file.path(), file.bytes(), 0)?;
            (file.path().to_owned(), vec![file], tensors)
        }
        Weights::Shards(shards) => {
            let (files, tensors) = open_shards(folder, &shards)?;
            let index = shards.index.map(|index| index.path);
            let only = (files.len() == 1).then(|| files[0].path().to_owned());
            (index.or(only).unwrap_or_else(|| folder.to_owned()), files, tensors)
        }
    };
    let (tensors, assembled) = quantized::assemble(&path, &quantization, &meta, tensors, &files)?;
    let tensors = tensors.into_iter().map(renamed).collect();
    let checkpoint = index(&path, Container::Hf, meta, tensors)?;
    let data = ModelData::new(files, Arc::new(assembled));
    Ok(OpenModel { checkpoint, data, sidecars: sidecars(folder) })
}

/// Names that conversions from TensorFlow gave to norms, as transformers renames them.
fn renamed(mut tensor: TensorInfo) -> TensorInfo {
    for (old, new) in [("gamma", "weight"), ("beta", "bias")] {
        if let Some(stem) = tensor.name.strip_suffix(old).filter(|s| s.ends_with("LayerNorm.")) {
            tensor.name = format!("{stem}{new}");
        }
    }
    tensor
}

fn read_config(path: &Path) -> Result<Vec<u8>, LoadError> {
    let json = read_whole(path, hf_config::MAX_CONFIG_BYTES)?;
    match kind::in_place_of_json(&json) {
        Some(what) => Err(LoadError::invalid(path, "config", "a JSON map", what)),
        None => Ok(json),
    }
}

/// Quantisation described in a file of its own, as older tools did, goes into config.json's place.
fn read_quantization(folder: &Path, meta: &mut tokenmill_ir::Meta) -> Result<(), LoadError> {
    const FILES: [(&str, &str, &str); 3] = [
        ("hf_quant_config.json", "quantization", "modelopt"),
        ("quantize_config.json", "", "gptq"),
        ("quant_config.json", "", "awq"),
    ];
    let known = ["quantization_config", "quantization"];
    for (name, key, method) in FILES {
        let path = folder.join(name);
        if known.iter().any(|key| meta.get(key).is_some()) || !path.is_file() {
            continue;
        }
        let whole = hf_config::parse(&path, &read_whole(&path, hf_config::MAX_CONFIG_BYTES)?)?;
        let mut config = match whole.get(key) {
            Some(MetaValue::Map(inner)) => (**inner).clone(),
            _ => whole,
        };
        config.insert("quant_method".to_owned(), MetaValue::Str(method.to_owned()));
        meta.insert("quantization_config".to_owned(), MetaValue::Map(Box::new(config)));
    }
    Ok(())
}

fn open_shards(
    folder: &Path,
    shards: &Shards,
) -> Result<(Vec<MappedFile>, Vec<TensorInfo>), LoadError> {
    let (mut files, mut tensors) = (Vec::new(), Vec::new());
    for (i, name) in shards.files.iter().enumerate() {
        let file = MappedFile::open(&folder.join(name))?;
        kind::expect_safetensors(&file)?;
        tensors.extend(safetensors::parse(file.path(), file.bytes(), i as u32)?);
        files.push(file);
    }
    let Some(index) = &shards.index else { return Ok((files, tensors)) };
    // In which of the files a tensor is does not matter, but all that are named must be there.
    let mut there: HashMap<&str, Vec<u32>> = HashMap::new();
    for tensor in &tensors {
        there.entry(&tensor.name).or_default().push(tensor.extent.file);
    }
    // Of several of one name the one in the file that the index says counts.
    let mut chosen: HashMap<String, u32> = HashMap::new();
    for (tensor, file) in &index.content.tensors {
        let found = there.get(tensor.as_str()).map_or(&[][..], Vec::as_slice);
        if found.len() > 1 && found.contains(&(*file as u32)) {
            chosen.insert(tensor.clone(), *file as u32);
        }
        if found.is_empty() {
            let expected = format!("the tensor in {}", shards.files[*file]);
            let place = crate::error::shorten(format!("weight_map: '{tensor}'"));
            let found = "no such tensor there: the index does not fit the files; download both \
                         again, or remove the index if the files are right";
            return Err(LoadError::invalid(&index.path, place, expected, found));
        }
    }
    tensors.retain(|t| chosen.get(&t.name).is_none_or(|file| *file == t.extent.file));
    Ok((files, tensors))
}

fn index(
    path: &Path,
    container: Container,
    meta: tokenmill_ir::Meta,
    tensors: Vec<TensorInfo>,
) -> Result<Checkpoint, LoadError> {
    Checkpoint::new(container, meta, tensors).map_err(|name| {
        let place = crate::error::shorten(format!("tensor '{name}'"));
        LoadError::invalid(path, place, "one tensor of this name", "two")
    })
}

fn sidecars(folder: &Path) -> Sidecars {
    let find = |names: &[&str]| names.iter().map(|n| folder.join(n)).find(|p| p.is_file());
    Sidecars {
        tokenizer: find(&["tokenizer.json", "tekken.json", "tiktoken.model"]),
        tokenizer_config: find(&["tokenizer_config.json"]),
        special_tokens_map: find(&["special_tokens_map.json"]),
        chat_template: find(&["chat_template.jinja", "chat_template.json"]),
        preprocessor_config: find(&["preprocessor_config.json"]),
        processor_config: find(&["processor_config.json"]),
    }
}

/// The content of a small file of text, without a byte-order mark.
pub(crate) fn read_whole(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, LoadError> {
    use std::io::Read;
    let file = open_regular(path)?;
    let mut content = Vec::new();
    file.take(limit_bytes + 1).read_to_end(&mut content).map_err(|e| LoadError::io(path, e))?;
    if content.len() as u64 > limit_bytes {
        let place = "length".to_owned();
        return Err(LoadError::TooLarge { path: path.to_owned(), place, limit_bytes });
    }
    if content.starts_with(b"\xef\xbb\xbf") {
        content.drain(..3);
    }
    Ok(content)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|n| n.to_str()).unwrap_or_default()
}

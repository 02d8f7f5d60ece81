//! What the bytes of a model's answers depend on, beside the request: its weights, its program, the
//! device's arithmetic and the form of its cache.

use std::path::PathBuf;
use std::sync::OnceLock;

use tokenmill_backend::Executable;
use tokenmill_files::{FilesState, LoadError, OpenModel};
use tokenmill_ir::KvFormat;
use tokenmill_kvlog::{Key, KeyParts};

use crate::load::LoadedModel;

/// Parts of a file that its digest is of, spread evenly; shorter files are read whole.
const PARTS: u64 = 256;
/// Bytes of each.
const PART_BYTES: u64 = 64 << 10;

/// See the module. Two that are equal give the same bytes for the same request.
#[derive(Debug)]
pub struct Identity {
    /// The class of device, such as `cpu`.
    pub device: String,
    /// Version of its numerics.
    pub numerics: String,
    /// Mode of its arithmetic.
    pub mode: String,
    /// Form of keys and values.
    pub kv: String,
    /// Digest of what is computed, in hexadecimal digits.
    pub program: String,
    /// The model, and its encoder where that has a file of its own; how they were when it was loaded.
    files: Vec<(PathBuf, Option<FilesState>)>,
    weights: OnceLock<Option<String>>,
}

impl Identity {
    /// That of a model as it was compiled.
    pub(crate) fn of(model: &LoadedModel, executable: &dyn Executable) -> Self {
        // ("cpu, numerics 9, Int8, blocks 1": the layout of blocks changes no result.)
        let layout = executable.blocks().map(|blocks| blocks.layout).unwrap_or_default();
        let mut words = layout.split(", ");
        let name = words.next().filter(|word| !word.is_empty());
        let numerics = words.next().unwrap_or_default().trim_start_matches("numerics ");
        let mut formats: Vec<String> = Vec::new();
        for cache in &model.program.caches {
            let format = format!("{:?}", cache.format);
            if !formats.contains(&format) {
                formats.push(format);
            }
        }
        let mut plain = model.program.clone();
        plain.caches.iter_mut().for_each(|cache| cache.format = KvFormat::F32); // told apart
        plain.wide_weights = false; // the same numbers
        let mut program = KeyParts::default();
        program.add(format!("{plain:?}").as_bytes());
        Self {
            device: name.unwrap_or(&model.device.caps().name).to_owned(),
            numerics: numerics.to_owned(),
            mode: format!("{:?}", model.weights.mode()),
            kv: formats.join("+"),
            program: hex(&program.key()),
            files: std::iter::once(&model.path)
                .chain(model.sight.as_ref().and_then(|sight| sight.mmproj.as_ref()))
                .map(|path| (path.clone(), FilesState::of(path).ok()))
                .collect(),
            weights: OnceLock::new(),
        }
    }

    /// Digest of the weights' files: of their lengths and of parts of 64 KiB at up to 256 places, so that
    /// it costs little. None where the files are not those any more that were loaded. Reads them when it
    /// is asked for the first time.
    pub fn weights(&self) -> Option<&str> {
        self.weights.get_or_init(|| self.digest()).as_deref()
    }

    fn digest(&self) -> Option<String> {
        let now = |path: &PathBuf| FilesState::of(path).ok();
        let is_same = || self.files.iter().all(|(path, was)| was.is_some() && now(path) == *was);
        if !is_same() {
            return None;
        }
        let mut parts = KeyParts::default();
        for (path, _) in &self.files {
            add_samples(&mut parts, &tokenmill_files::open(path).ok()?).ok()?;
        }
        is_same().then(|| hex(&parts.key()))
    }
}

/// Adds what tells a model's files from others: their lengths, and parts of 64 KiB at up to 256 places.
pub(super) fn add_samples(parts: &mut KeyParts, model: &OpenModel) -> Result<(), LoadError> {
    let mut buffer = vec![0; PART_BYTES as usize];
    for file in model.data.files() {
        let bytes = file.len_bytes();
        parts.add(&bytes.to_le_bytes());
        let stride = (bytes / PARTS).max(PART_BYTES);
        for at in (0..bytes).step_by(stride as usize) {
            let part = &mut buffer[..(bytes - at).min(PART_BYTES) as usize];
            file.read_at(at, part)?;
            parts.add(part);
        }
    }
    Ok(())
}

fn hex(key: &Key) -> String {
    format!("{key:?}")
}

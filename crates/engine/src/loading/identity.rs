//! What the bytes of a model's answers depend on, beside the request: its weights, its program, the
//! device's arithmetic and the form of its cache.

use std::path::PathBuf;
use std::sync::OnceLock;

use tokenmill_backend::Executable;
use tokenmill_files::FilesState;
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
    path: PathBuf,
    files: Option<FilesState>,
    weights: OnceLock<Option<String>>,
}

impl Identity {
    /// That of a model as it was compiled.
    pub(crate) fn of(model: &LoadedModel, executable: &dyn Executable) -> Self {
        // ("cpu, numerics 7, Int8, blocks 1": the layout of blocks changes no result.)
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
        let mut program = KeyParts::default();
        program.add(format!("{plain:?}").as_bytes());
        Self {
            device: name.unwrap_or(&model.device.caps().name).to_owned(),
            numerics: numerics.to_owned(),
            mode: format!("{:?}", model.weights.mode()),
            kv: formats.join("+"),
            program: hex(&program.key()),
            path: model.path.clone(),
            files: FilesState::of(&model.path).ok(),
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
        let is_same = || FilesState::of(&self.path).is_ok_and(|now| Some(now) == self.files);
        if !is_same() {
            return None;
        }
        let model = tokenmill_files::open(&self.path).ok()?;
        let mut parts = KeyParts::default();
        let mut buffer = vec![0; PART_BYTES as usize];
        for file in model.data.files() {
            let bytes = file.len_bytes();
            parts.add(&bytes.to_le_bytes());
            let stride = (bytes / PARTS).max(PART_BYTES);
            for at in (0..bytes).step_by(stride as usize) {
                let part = buffer.get_mut(..(bytes - at).min(PART_BYTES) as usize)?;
                file.read_at(at, part).ok()?;
                parts.add(part);
            }
        }
        is_same().then(|| hex(&parts.key()))
    }
}

fn hex(key: &Key) -> String {
    format!("{key:?}")
}

//! A recorded model: its files written out with hashed weights, its expected outputs.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tokenmill_files::write::{TensorHeader, write_safetensors};
use tokenmill_files::{OpenModel, open};
use tokenmill_ir::sampling::splitmix;
use tokenmill_quant::FormatId;

use crate::packing::Packing;
use crate::tensors::{Tensors, fill, fnv1a};
use crate::twin;

/// Which files describe the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// `config.json`, as hubs have it.
    Config,
    /// `config.v5.json`, as transformers 5 writes it.
    ConfigV5,
    /// `twin.gguf` by llama.cpp's converter, or `twin.json`, which says where in the hashed tensors
    /// each number of that file stands.
    Gguf,
}

#[derive(Deserialize)]
struct Recorded {
    ids: Vec<u32>,
    greedy: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct Long {
    tokens: u64,
    vocab: u64,
    rows: Vec<usize>,
}

#[derive(Deserialize)]
struct Latents {
    ids: Vec<u32>,
    families: Vec<String>,
}

/// Expected outputs of one architecture.
pub struct Golden {
    /// Folder name.
    pub arch: String,
    /// Prompt.
    pub ids: Vec<u32>,
    /// The next tokens, greedily (none for encoders).
    pub greedy: Vec<u32>,
    folder: PathBuf,
}

/// Where recordings are: elsewhere than when this was built, if $TOKENMILL_GOLDEN says so.
fn recordings() -> PathBuf {
    let named = std::env::var_os("TOKENMILL_GOLDEN").map(PathBuf::from);
    named.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")))
}

impl Golden {
    /// Reads the recording of `arch`.
    pub fn read(arch: &str) -> Self {
        let folder = recordings().join(arch);
        let text = std::fs::read_to_string(folder.join("golden.json")).expect("golden.json");
        let recorded: Recorded = serde_json::from_str(&text).expect("golden.json");
        let Recorded { ids, greedy } = recorded;
        Self { arch: arch.to_owned(), ids, greedy: greedy.unwrap_or_default(), folder }
    }

    /// Reads the recording of a long text, and which of its rows were kept whole.
    pub fn long(name: &str) -> (Self, Vec<usize>) {
        let folder = recordings().join("long").join(name);
        let text = std::fs::read_to_string(folder.join("long.json")).expect("long.json");
        let Long { tokens, vocab, rows } = serde_json::from_str(&text).expect("long.json");
        let seed = fnv1a(b"prompt:long ".iter().copied().chain(name.bytes()));
        let ids = (0..tokens).map(|i| (splitmix(seed.wrapping_add(i)) % vocab) as u32).collect();
        (Self { arch: name.to_owned(), ids, greedy: Vec::new(), folder }, rows)
    }

    /// Reads the recordings of latents whose up-projections are quantised, and the families of their files.
    pub fn latents() -> (Self, Vec<String>) {
        let folder = recordings().join("latents");
        let text = std::fs::read_to_string(folder.join("latents.json")).expect("latents.json");
        let Latents { ids, families } = serde_json::from_str(&text).expect("latents.json");
        (Self { arch: "latents".to_owned(), ids, greedy: Vec::new(), folder }, families)
    }

    /// Folders that hold a recording, in order.
    pub fn all() -> Vec<String> {
        names_with("", "golden.json")
    }

    /// Folders that hold the recording of a long text, in order.
    pub fn all_long() -> Vec<String> {
        names_with("long", "long.json")
    }

    /// Recordings of models that see, in order, as [`Golden::read`] takes their names.
    pub fn all_seeing() -> Vec<String> {
        let names = names_with("vision", "golden.json").into_iter();
        names.map(|name| format!("vision/{name}")).collect()
    }

    /// Whether the variant was recorded.
    pub fn has(&self, variant: Variant) -> bool {
        match variant {
            Variant::Config => true,
            Variant::ConfigV5 => self.folder.join("config.v5.json").exists(),
            Variant::Gguf => {
                ["twin.gguf", "twin.json"].iter().any(|f| self.folder.join(f).exists())
            }
        }
    }

    /// Little-endian floats of a file beside the recording.
    pub fn floats(&self, file: &str) -> Vec<f32> {
        let bytes = std::fs::read(self.folder.join(file)).expect("recorded floats");
        bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
    }

    /// The text of a file beside the recording, if it is there.
    pub fn text(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.folder.join(file)).ok()
    }

    fn tensors(&self) -> Tensors {
        let text = std::fs::read_to_string(self.folder.join("tensors.json")).expect("tensors");
        serde_json::from_str(&text).expect("tensors.json")
    }

    /// Opens the model through the production readers; `scratch` receives its files.
    pub fn open(&self, variant: Variant, scratch: &Path) -> OpenModel {
        open(&self.path(variant, scratch)).expect("the hashed model opens")
    }

    /// Opens the encoder of a model that sees as a GGUF file of its own, if it was written down.
    pub fn open_mmproj(&self, scratch: &Path) -> Option<OpenModel> {
        let twin = self.folder.join("mmproj.json");
        let path = scratch.join("mmproj.gguf");
        let write = || twin::write_packed(&twin, &self.tensors(), Packing::PLAIN, &path);
        twin.exists().then(|| open(&write()).expect("the hashed encoder opens"))
    }

    /// Whether its matrices can be packed in any format of GGUF.
    pub fn is_packable(&self) -> bool {
        self.folder.join("twin.json").exists()
    }

    /// The model with its matrices packed: a GGUF file where there is a twin, else a folder, which
    /// holds f32, f16 and bf16 only.
    pub fn packed(&self, packing: Packing, scratch: &Path) -> PathBuf {
        let twin = self.folder.join("twin.json");
        if twin.exists() {
            return twin::write_packed(&twin, &self.tensors(), packing, &scratch.join("p.gguf"));
        }
        self.folder_of("config.json", packing, scratch)
    }

    /// The model's file or folder; `scratch` receives its files.
    pub fn path(&self, variant: Variant, scratch: &Path) -> PathBuf {
        let config = match variant {
            Variant::Gguf if self.folder.join("twin.json").exists() => {
                return twin::write(&self.folder.join("twin.json"), &self.tensors(), scratch);
            }
            Variant::Gguf => return self.folder.join("twin.gguf"),
            Variant::Config => "config.json",
            Variant::ConfigV5 => "config.v5.json",
        };
        self.folder_of(config, Packing::PLAIN, scratch)
    }

    /// The folder of a family of [`Golden::latents`]: its quantised tensors beside the hashed ones; `scratch` receives them.
    pub fn path_of(&self, family: &str, scratch: &Path) -> PathBuf {
        let folder = self.folder_of("config.json", Packing::PLAIN, scratch);
        let json = |path: &Path| -> serde_json::Map<String, serde_json::Value> {
            let text = std::fs::read_to_string(path).expect("a configuration");
            serde_json::from_str(&text).expect("a configuration")
        };
        let mut config = json(&folder.join("config.json"));
        config.extend(json(&self.folder.join(format!("{family}.json"))));
        let text = serde_json::to_string(&config).expect("a configuration");
        std::fs::write(folder.join("config.json"), text).expect("written");
        let part = |n: u32| folder.join(format!("model-0000{n}-of-00002.safetensors"));
        std::fs::rename(folder.join("model.safetensors"), part(1)).expect("renamed");
        let quantized = self.folder.join(format!("{family}.safetensors"));
        std::fs::copy(quantized, part(2)).expect("copied");
        folder
    }

    fn folder_of(&self, config: &str, packing: Packing, scratch: &Path) -> PathBuf {
        std::fs::copy(self.folder.join(config), scratch.join("config.json")).expect("config");
        let pooling = self.folder.join("1_Pooling.json");
        if pooling.exists() {
            let folder = scratch.join("1_Pooling");
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::copy(pooling, folder.join("config.json")).expect("pooling");
        }
        let list = self.tensors();
        let headers: Vec<TensorHeader> = list
            .tensors
            .iter()
            .map(|t| TensorHeader {
                name: t.name.clone(),
                format: match t.dtype.as_str() {
                    "F32" => packing.stored(&t.shape),
                    "BF16" => FormatId::BF16,
                    "U8" => FormatId::U8,
                    other => panic!("dtype {other}"),
                },
                shape: t.shape.clone(),
            })
            .collect();
        let file = std::fs::File::create(scratch.join("model.safetensors")).expect("create");
        let mut out = std::io::BufWriter::new(file);
        let mut at = 0;
        write_safetensors(&mut out, &headers, |header, out| {
            let tensor = &list.tensors[at];
            assert_eq!(tensor.name, header.name);
            at += 1;
            if tensor.dtype == "F32" {
                let mut bytes = Vec::new();
                fill(tensor, &list.salt, FormatId::F32, &mut bytes)?;
                let number = |c: &[u8]| f32::from_le_bytes([c[0], c[1], c[2], c[3]]);
                let numbers: Vec<f32> = bytes.chunks_exact(4).map(number).collect();
                return out.write_all(&packing.bytes(&tensor.shape, &numbers));
            }
            fill(tensor, &list.salt, header.format, out)
        })
        .expect("written");
        out.flush().expect("flushed");
        drop(out);
        scratch.to_owned()
    }
}

/// Folders of a folder of this crate that hold a file of that name.
fn names_with(within: &str, file: &str) -> Vec<String> {
    let root = recordings().join(within);
    let entries = std::fs::read_dir(root).expect("the folder of this crate");
    let mut names: Vec<String> = entries
        .filter_map(|e| e.ok())
        .filter(|e| e.path().join(file).exists())
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

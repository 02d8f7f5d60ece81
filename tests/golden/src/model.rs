//! A recorded model: its files written out with hashed weights, its expected outputs.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tokenmill_files::write::{TensorHeader, write_safetensors};
use tokenmill_files::{OpenModel, open};
use tokenmill_ir::sampling::splitmix;
use tokenmill_quant::FormatId;

use crate::packing::Packing;
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
pub(crate) struct Tensors {
    salt: String,
    tensors: Vec<Tensor>,
}

#[derive(Deserialize)]
struct Tensor {
    name: String,
    shape: Vec<u64>,
    dtype: String,
    scale: f64,
    offset: f64,
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

    /// Folders that hold a recording, in order.
    pub fn all() -> Vec<String> {
        names_with("", "golden.json")
    }

    /// Folders that hold the recording of a long text, in order.
    pub fn all_long() -> Vec<String> {
        names_with("long", "long.json")
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

impl Tensors {
    /// The numbers of tensor `at`, as stored.
    pub(crate) fn values(&self, at: usize) -> Vec<f32> {
        let tensor = &self.tensors[at];
        let format = match tensor.dtype.as_str() {
            "F32" => FormatId::F32,
            "BF16" => FormatId::BF16,
            other => panic!("dtype {other} in a twin"),
        };
        let mut bytes = Vec::new();
        fill(tensor, &self.salt, format, &mut bytes).expect("filled");
        let mut values = vec![0.0; bytes.len() / format.info().block_bytes];
        format.decode_row(&bytes, &mut values);
        values
    }
}

fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

fn fill(tensor: &Tensor, salt: &str, format: FormatId, out: &mut dyn Write) -> std::io::Result<()> {
    let seed = fnv1a(tensor.name.bytes().chain(salt.bytes()));
    let count: u64 = tensor.shape.iter().product();
    for i in 0..count {
        let x = splitmix(seed.wrapping_add(i));
        if format == FormatId::U8 {
            out.write_all(&[(tensor.offset as u64 + (x >> 56) % tensor.scale as u64) as u8])?;
            continue;
        }
        let v = (x >> 40) as f32 / 16_777_216.0 - 0.5;
        let w = tensor.offset as f32 + tensor.scale as f32 * v;
        match format {
            FormatId::F32 => out.write_all(&w.to_le_bytes())?,
            _ => {
                let mut bytes = [0; 2];
                let encode = FormatId::BF16.info().encode.expect("bf16 has an encoder");
                encode(&[w], &mut bytes);
                out.write_all(&bytes)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_has_the_documented_values() {
        assert_eq!(fnv1a("".bytes()), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("a".bytes()), 0xaf63_dc4c_8601_ec8c);
        let seed = fnv1a("model.embed_tokens.weight".bytes());
        assert_eq!(seed, 0xa88f_d795_d5c6_d156);
        assert_eq!(splitmix(seed), 0x5f0c_e479_8904_7d81);
    }
}

//! A Llama whose matrices are in one stored type: random blocks of sane numbers.

use std::io::{BufWriter, Write};
use std::path::Path;

use tokenmill_files::write::{TensorHeader, write_gguf};
use tokenmill_ir::{Meta, MetaValue};
use tokenmill_quant::{FORMATS, Format, FormatId};

use super::words;

const HIDDEN: u64 = 2048;
const FFN: u64 = 8192;
const KV: u64 = 512;
const LAYERS: u64 = 6;
const VOCAB: u64 = 512;
/// Different blocks of a file.
const BLOCKS: usize = 257;
/// What is tried until a block has numbers of the right size.
const TRIES: usize = 4_000_000;

/// Every type of GGUF that matrices have.
pub fn all() -> impl Iterator<Item = FormatId> {
    let stored = |format: &&Format| {
        let plain = matches!(format.id, FormatId::F16 | FormatId::BF16);
        format.ggml_type.is_some() && (format.block_weights > 1 || plain)
    };
    FORMATS.iter().filter(stored).map(|format| format.id)
}

/// Blocks whose numbers are about 0.02 large.
pub fn blocks(format: FormatId) -> Result<Vec<Vec<u8>>, String> {
    let info = format.info();
    let mut random = words(u64::from(info.ggml_type.unwrap_or(0)) + 1);
    let mut numbers = vec![0.0; info.block_weights];
    let mut found = Vec::new();
    for _ in 0..TRIES {
        let mut block: Vec<u8> =
            random.by_ref().flat_map(u64::to_le_bytes).take(info.block_bytes).collect();
        if info.block_weights == 1 {
            let x = 0.04 * (f32::from(block[0]) / 255.0 - 0.5);
            let encode = info.encode.ok_or("a format without an encoder")?;
            encode(&[x], &mut block);
        }
        format.decode_row(&block, &mut numbers);
        let mean = numbers.iter().map(|x| x.abs()).sum::<f32>() / numbers.len() as f32;
        if (0.004..0.08).contains(&mean) && numbers.iter().all(|x| x.abs() < 1.0) {
            found.push(block);
            if found.len() == BLOCKS {
                return Ok(found);
            }
        }
    }
    Err(format!("{}: {} of {BLOCKS} blocks after {TRIES} tries", format.name(), found.len()))
}

/// Writes the model; how many bytes it has.
pub fn write(format: FormatId, folder: &Path, path: &Path) -> Result<u64, String> {
    let blocks = blocks(format)?;
    let of = |e: std::io::Error| format!("{}: {e}", path.display());
    std::fs::create_dir_all(folder).map_err(of)?;
    let file = std::fs::File::create(path).map_err(of)?;
    let mut out = BufWriter::new(file);
    write_gguf(&mut out, &meta(), &tensors(format), |header, out| {
        if header.format == FormatId::F32 {
            let count: u64 = header.shape.iter().product();
            return (0..count).try_for_each(|_| out.write_all(&1.0_f32.to_le_bytes()));
        }
        let len = header.len_bytes().unwrap_or(0) as usize;
        let count = len / blocks[0].len();
        (0..count).try_for_each(|i| out.write_all(&blocks[i % blocks.len()]))
    })
    .map_err(of)?;
    out.flush().map_err(of)?;
    std::fs::metadata(path).map(|data| data.len()).map_err(of)
}

fn meta() -> Meta {
    let mut meta = Meta::new();
    let mut set = |key: &str, value| meta.insert(key.to_owned(), value);
    set("general.architecture", MetaValue::Str("llama".into()));
    for (key, value) in [
        ("embedding_length", HIDDEN),
        ("block_count", LAYERS),
        ("context_length", 16384),
        ("feed_forward_length", FFN),
        ("attention.head_count", HIDDEN / 64),
        ("attention.head_count_kv", KV / 64),
        ("vocab_size", VOCAB),
    ] {
        set(&format!("llama.{key}"), MetaValue::Int(value as i64));
    }
    set("llama.attention.layer_norm_rms_epsilon", MetaValue::Float(1e-5));
    set("tokenizer.ggml.model", MetaValue::Str("none".into()));
    meta
}

fn tensors(format: FormatId) -> Vec<TensorHeader> {
    let header =
        |name: String, format, shape: &[u64]| TensorHeader { name, format, shape: shape.to_vec() };
    let mut all = vec![
        header("token_embd.weight".into(), format, &[VOCAB, HIDDEN]),
        header("output_norm.weight".into(), FormatId::F32, &[HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let mut add = |name: &str, format, shape: &[u64]| {
            all.push(header(format!("blk.{layer}.{name}.weight"), format, shape));
        };
        add("attn_norm", FormatId::F32, &[HIDDEN]);
        add("ffn_norm", FormatId::F32, &[HIDDEN]);
        add("attn_q", format, &[HIDDEN, HIDDEN]);
        add("attn_k", format, &[KV, HIDDEN]);
        add("attn_v", format, &[KV, HIDDEN]);
        add("attn_output", format, &[HIDDEN, HIDDEN]);
        add("ffn_gate", format, &[FFN, HIDDEN]);
        add("ffn_up", format, &[FFN, HIDDEN]);
        add("ffn_down", format, &[HIDDEN, FFN]);
    }
    all
}

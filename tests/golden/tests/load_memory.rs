//! Loading and answering take little more memory than the file: the peak of resident bytes, mapped
//! file pages among them. A binary of its own, because the peak is one of the whole process.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokenmill_backend::Device;
use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_engine::load::{LoadOptions, LoadedModel, WeightBits, load};
use tokenmill_engine::start::ServeOptions;
use tokenmill_engine::{DraftMode, Event, Host, Request};
use tokenmill_files::write::{TensorHeader, write_gguf};
use tokenmill_ir::{BlockId, KvFormat, Meta, MetaValue, Mode};
use tokenmill_quant::FormatId;

const LAYERS: u64 = 24;
const HIDDEN: u64 = 512;
const FFN: u64 = 1536;
const VOCAB: u64 = 4096;

/// Buffers of a step, the allocator, and the corners of large pages.
const ROOM_BYTES: u64 = 24 << 20;

#[test]
fn a_model_is_loaded_and_run_within_its_memory() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let path = scratch.path().join("model.gguf");
    write_model(&path);
    let file_bytes = std::fs::metadata(&path).expect("written").len();
    let before = resident_bytes("VmRSS:");
    // 5 sets the peak back to what is resident now.
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak can be set back");

    let device = CpuDevice::new(CpuOptions { threads: 2, ..CpuOptions::default() });
    let options = LoadOptions {
        mode: Mode::Int8,
        kv: KvFormat::Int16,
        context: Some(256),
        sequences: 1,
        step_tokens: 64,
        memory_bytes: 1 << 33,
        images: true,
        weights: WeightBits::Auto,
    };
    let device: Arc<dyn Device> = Arc::new(device.expect("a device"));
    let model = load(&path, Arc::clone(&device), &options, |_, _| {}).expect("loaded");
    let cache_bytes = model.fit.cache_bytes;
    let served = model
        .start(ServeOptions { queue: 1, step_s: 10.0, draft: DraftMode::None })
        .expect("started");
    let request = Request { max_tokens: Some(4), ..Request::new((0..48).collect()) };
    for event in served.engine.submit(request).expect("accepted") {
        assert!(!matches!(event, Event::Failed(_)), "{event:?}");
    }

    let used = resident_bytes("VmHWM:") - before;
    let allowed = file_bytes + file_bytes / 25 + cache_bytes + ROOM_BYTES;
    assert!(
        used <= allowed,
        "{used} bytes at the peak, {allowed} allowed for {file_bytes} of file"
    );

    served.engine.shut_down();
    drop(served);
    let left = resident_bytes("VmRSS:").saturating_sub(before);
    assert!(left <= ROOM_BYTES, "{left} bytes of {used} stay when the model is gone");

    let mut model = load(&path, Arc::clone(&device), &options, |_, _| {}).expect("loaded again");
    give_caches_back(&mut model);
    drop(model);
    compare_with_the_ledger(&path, device, &options);
}

/// Two models on a host take what its ledger says, and give it back one by one.
fn compare_with_the_ledger(path: &Path, device: Arc<dyn Device>, options: &LoadOptions) {
    // (Pages of the program that are read meanwhile are none of its memory.)
    let before = resident_bytes("RssAnon:");
    let host = Host::start(device, options.memory_bytes).expect("a thread");
    for name in ["a", "b"] {
        let watch = |_, _| ControlFlow::Continue(());
        let model = host.load(name, path, options, watch).expect("loaded");
        let serve = ServeOptions { queue: 1, step_s: 10.0, draft: DraftMode::None };
        let served = model.start_on(&host, serve, None).expect("started");
        // As many tokens as there is room for: every block is written.
        let request = Request { ignore_eos: true, ..Request::new((0..250).collect()) };
        for event in served.engine.submit(request).expect("accepted") {
            assert!(!matches!(event, Event::Failed(_)), "{event:?}");
        }
    }
    for name in ["a", "b"] {
        let held: u64 = host.ledger().list().iter().map(|e| e.memory.sum()).sum();
        let resident = resident_bytes("RssAnon:").saturating_sub(before);
        println!("{held} bytes by the ledger, {resident} more are resident");
        assert!(resident.abs_diff(held) <= held * 3 / 100 + (1 << 20), "{resident} for {held}");
        assert!(host.unload(name, Duration::from_secs(60)));
    }
}

/// Caches whose every block is written shrink, and the system has their memory again.
fn give_caches_back(model: &mut LoadedModel) {
    const CACHE_BYTES: u64 = 64 << 20;
    model.limits.group_blocks.fill(1);
    let block_bytes = model.compile().expect("compiled").blocks().expect("blocks").groups[0];
    let blocks = CACHE_BYTES as u32 / block_bytes as u32;
    model.limits.group_blocks.fill(blocks);
    let mut caches = model.compile().expect("compiled");
    let bytes = vec![7; block_bytes];
    (0..blocks).for_each(|b| caches.write_block(0, BlockId(b), &bytes).expect("a block"));
    let full = resident_bytes("VmRSS:");
    let few = blocks / 8;
    caches.resize(&[few]).expect("smaller");
    let given = full.saturating_sub(resident_bytes("VmRSS:"));
    let expected = CACHE_BYTES - CACHE_BYTES / 8;
    // A page at either end of each layer's blocks is shared with others.
    assert!(given >= expected - expected / 20, "{given} of {expected} bytes given back");
    caches.resize(&[blocks]).expect("as large as before");
    let mut read = vec![1; block_bytes];
    caches.read_block(0, BlockId(few - 1), &mut read).expect("a block");
    assert!(read == bytes, "what is below stays");
    caches.read_block(0, BlockId(few), &mut read).expect("a block");
    assert!(read.iter().all(|&b| b == 0), "what was above is forgotten");
}

/// A number of /proc/self/status.
fn resident_bytes(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = text.lines().find(|l| l.starts_with(name)).expect("a line of that name");
    let kib: u64 = line.split_whitespace().nth(1).expect("a number").parse().expect("a number");
    kib * 1024
}

/// A Llama of many layers with small caches, 80 MB of zeros.
fn write_model(path: &Path) {
    let mut meta = Meta::new();
    let mut set = |key: &str, value: MetaValue| {
        meta.insert(key.to_owned(), value);
    };
    set("general.architecture", MetaValue::Str("llama".into()));
    for (key, value) in [
        ("embedding_length", HIDDEN),
        ("block_count", LAYERS),
        ("context_length", 256),
        ("feed_forward_length", FFN),
        ("attention.head_count", 8),
        ("attention.head_count_kv", 2),
    ] {
        set(&format!("llama.{key}"), MetaValue::Int(value as i64));
    }
    set("llama.attention.layer_norm_rms_epsilon", MetaValue::Float(1e-5));
    set("tokenizer.ggml.model", MetaValue::Str("none".into()));
    let mut tensors = Vec::new();
    let mut add = |name: String, format, shape: &[u64]| {
        tensors.push(TensorHeader { name, format, shape: shape.to_vec() });
    };
    add("token_embd.weight".into(), FormatId::Q8_0, &[VOCAB, HIDDEN]);
    add("output_norm.weight".into(), FormatId::F32, &[HIDDEN]);
    for l in 0..LAYERS {
        let name = |n: &str| format!("blk.{l}.{n}.weight");
        add(name("attn_norm"), FormatId::F32, &[HIDDEN]);
        add(name("ffn_norm"), FormatId::F32, &[HIDDEN]);
        for (n, rows, cols) in [
            ("attn_q", HIDDEN, HIDDEN),
            ("attn_k", HIDDEN / 4, HIDDEN),
            ("attn_v", HIDDEN / 4, HIDDEN),
            ("attn_output", HIDDEN, HIDDEN),
            ("ffn_gate", FFN, HIDDEN),
            ("ffn_up", FFN, HIDDEN),
            ("ffn_down", HIDDEN, FFN),
        ] {
            add(name(n), FormatId::Q8_0, &[rows, cols]);
        }
    }
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).expect("created"));
    let zeros = vec![0; 1 << 16];
    let fill = |t: &TensorHeader, out: &mut dyn Write| {
        let mut left = t.len_bytes().expect("a shape that fits") as usize;
        while left > 0 {
            let now = left.min(zeros.len());
            out.write_all(&zeros[..now])?;
            left -= now;
        }
        Ok(())
    };
    write_gguf(&mut file, &meta, &tensors, fill).expect("written");
}

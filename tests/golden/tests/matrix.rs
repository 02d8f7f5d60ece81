//! The bitwise matrix of the CPU device, through the engine: the same request gives the same tokens
//! and log-probabilities alone, in a crowd, in chunks of any size, out of the prefix cache, after
//! preemption, on one thread or two, on every instruction set, in every mode and KV format.

use std::path::Path;

use tokenmill_cpu::isa::Isa;
use tokenmill_cpu::{CpuDevice, CpuOptions, Mode};
use tokenmill_engine::load::{LoadOptions, load};
use tokenmill_engine::start::{ServeOptions, Served};
use tokenmill_engine::{Event, Events, Request};
use tokenmill_files::write::{TensorHeader, write_gguf};
use tokenmill_ir::sampling::splitmix;
use tokenmill_ir::{KvFormat, Meta, MetaValue, SamplingParams};
use tokenmill_quant::FormatId;

const VOCAB: u64 = 331;
const HIDDEN: u64 = 256;
const FFN: u64 = 512;

/// How one run differs from another; none of it may show.
#[derive(Debug, Clone, Copy)]
struct Variant {
    isa: Isa,
    threads: usize,
    step_tokens: u32,
    /// Blocks of the cache, when fewer than enough.
    blocks: Option<u32>,
    /// Other requests submitted with it.
    crowd: u64,
}

/// What may not differ: tokens and the bits of their log-probabilities.
type Answer = Vec<(u32, u32, Vec<(u32, u32)>)>;

#[test]
fn the_same_request_gives_the_same_bits() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let path = scratch.path().join("matrix.gguf");
    write_model(&path);
    let best = Isa::detect();
    let plain = Variant { isa: best, threads: 2, step_tokens: 512, blocks: None, crowd: 0 };
    let mut variants = vec![];
    for isa in Isa::ALL.into_iter().filter(|i| i.is_available()) {
        for threads in [1, 2] {
            variants.push(Variant { isa, threads, ..plain });
        }
    }
    for step_tokens in [1, 7, 64] {
        variants.push(Variant { step_tokens, ..plain });
        variants.push(Variant { step_tokens, crowd: 7, ..plain });
    }
    variants.push(Variant { crowd: 7, ..plain });
    variants.push(Variant { crowd: 7, blocks: Some(14), ..plain });
    variants.push(Variant { crowd: 7, blocks: Some(9), step_tokens: 16, ..plain });
    for mode in [Mode::Int8, Mode::Bf16, Mode::F32] {
        for kv in [KvFormat::Bf16, KvFormat::Int8, KvFormat::F32] {
            let expected = run(&path, plain, mode, kv);
            assert!(expected.len() == 24, "{mode:?} {kv:?}: {} tokens", expected.len());
            for &variant in &variants {
                let found = run(&path, variant, mode, kv);
                assert_eq!(found, expected, "{mode:?} {kv:?} {variant:?}");
            }
        }
    }
}

fn run(path: &Path, variant: Variant, mode: Mode, kv: KvFormat) -> Answer {
    let Variant { isa, threads, step_tokens, .. } = variant;
    let options = CpuOptions { threads, isa: Some(isa), mode, ..CpuOptions::default() };
    let device = CpuDevice::new(options).expect("a device");
    let options =
        LoadOptions { kv, context: Some(256), sequences: 8, step_tokens, memory_bytes: 1 << 33 };
    let mut model = load(path, Box::new(device), &options, |_, _| {}).expect("loaded");
    if let Some(blocks) = variant.blocks {
        model.limits.group_blocks.fill(blocks);
    }
    let served = model.start(ServeOptions { queue: 64, step_s: 10.0 }).expect("started");
    let others: Vec<Events> = (1..=variant.crowd).map(|s| submit(&served, s, 40 + 9 * s)).collect();
    let first = answer(submit(&served, 0, 150));
    for events in others {
        answer(events);
    }
    if variant.blocks.is_some() {
        assert!(served.engine.stats().preemptions > 0, "{variant:?}: nothing was preempted");
    }
    // The prompt is in the prefix cache now.
    let again = answer(submit(&served, 0, 150));
    assert_eq!(again, first, "{variant:?}: out of the prefix cache");
    if variant.blocks.is_none() {
        assert!(served.engine.stats().cached_tokens > 0, "{variant:?}: no prefix hit");
    }
    first
}

fn submit(served: &Served, seed: u64, prompt: u64) -> Events {
    let token = |i| (splitmix(seed << 32 | i) % VOCAB) as u32;
    let sampling = SamplingParams {
        temperature: 0.9,
        top_p: 0.95,
        repetition_penalty: 1.1,
        frequency_penalty: 0.2,
        seed,
        logprobs: Some(3),
        ..SamplingParams::default()
    };
    let request = Request {
        sampling,
        max_tokens: Some(24),
        ignore_eos: true,
        ..Request::new((0..prompt).map(token).collect())
    };
    served.engine.submit(request).expect("accepted")
}

fn answer(events: Events) -> Answer {
    let mut tokens = Vec::new();
    for event in events {
        match event {
            Event::Text { tokens: more, .. } => tokens.extend(more),
            Event::Failed(e) => panic!("{e}"),
            _ => {}
        }
    }
    let bits = |x: f32| x.to_bits();
    let top = |t: &tokenmill_engine::TopToken| (t.id, bits(t.logprob));
    tokens
        .iter()
        .map(|t| (t.id, bits(t.logprob.unwrap_or(f32::NAN)), t.top.iter().map(top).collect()))
        .collect()
}

/// A Llama of two layers whose matrices use every block format.
fn write_model(path: &Path) {
    let mut meta = Meta::new();
    let mut set = |key: &str, value: MetaValue| {
        meta.insert(key.to_owned(), value);
    };
    set("general.architecture", MetaValue::Str("llama".into()));
    for (key, value) in [
        ("embedding_length", HIDDEN as i64),
        ("block_count", 2),
        ("context_length", 256),
        ("feed_forward_length", FFN as i64),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ] {
        set(&format!("llama.{key}"), MetaValue::Int(value));
    }
    set("llama.attention.layer_norm_rms_epsilon", MetaValue::Float(1e-5));
    set("tokenizer.ggml.model", MetaValue::Str("none".into()));
    let mut tensors = Vec::new();
    let mut add = |name: String, format, shape: &[u64]| {
        tensors.push(TensorHeader { name, format, shape: shape.to_vec() });
    };
    add("token_embd.weight".into(), FormatId::Q6_K, &[VOCAB, HIDDEN]);
    add("output_norm.weight".into(), FormatId::F32, &[HIDDEN]);
    use FormatId::*;
    let formats =
        [[Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q5_1, Q6_K], [Q4_K, Q5_K, Q6_K, BF16, F16, Q4_1, Q5_0]];
    for (l, f) in formats.iter().enumerate() {
        let name = |n: &str| format!("blk.{l}.{n}.weight");
        add(name("attn_norm"), F32, &[HIDDEN]);
        add(name("ffn_norm"), F32, &[HIDDEN]);
        add(name("attn_q"), f[0], &[HIDDEN, HIDDEN]);
        add(name("attn_k"), f[1], &[HIDDEN / 2, HIDDEN]);
        add(name("attn_v"), f[2], &[HIDDEN / 2, HIDDEN]);
        add(name("attn_output"), f[3], &[HIDDEN, HIDDEN]);
        add(name("ffn_gate"), f[4], &[FFN, HIDDEN]);
        add(name("ffn_up"), f[5], &[FFN, HIDDEN]);
        add(name("ffn_down"), f[6], &[HIDDEN, FFN]);
    }
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).expect("created"));
    write_gguf(&mut file, &meta, &tensors, |t, out| out.write_all(&bytes(t))).expect("written");
}

/// Hashed weights in the tensor's format; formats without an encoder get random blocks.
fn bytes(t: &TensorHeader) -> Vec<u8> {
    let info = t.format.info();
    let seed = t.name.bytes().fold(7u64, |h, b| splitmix(h ^ u64::from(b)));
    let count = t.shape.iter().product::<u64>() as usize;
    let mut out = vec![0u8; count / info.block_weights * info.block_bytes];
    if let Some(encode) = info.encode {
        let norm = t.name.contains("norm");
        let weight = |i: u64| {
            let v = (splitmix(seed + i) >> 40) as f32 / 16_777_216.0 - 0.5;
            if norm { 1.0 + 0.5 * v } else { 0.35 * v }
        };
        let weights: Vec<f32> = (0..count as u64).map(weight).collect();
        encode(&weights, &mut out);
        return out;
    }
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = (splitmix(seed + i as u64) >> 33) as u8;
    }
    let small = 0x0c00u16.to_le_bytes(); // 2⁻¹², as f16
    let scales: &[usize] = if t.format == FormatId::Q6_K { &[208] } else { &[0, 2] };
    for block in out.chunks_exact_mut(info.block_bytes) {
        for &at in scales {
            block[at..at + 2].copy_from_slice(&small);
        }
    }
    out
}

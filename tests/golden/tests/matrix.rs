//! The bitwise matrix of the CPU device, through the engine: the same request gives the same tokens
//! and log-probabilities alone, in a crowd, in chunks of any size, out of the prefix cache, after
//! preemption, with drafts of the text or of a model, on one thread or two, on every instruction set, in every mode and KV
//! format, free or held to a grammar. One in four by default; `TOKENMILL_TESTS=whole` runs all.

use std::path::Path;
use std::sync::Arc;

use tokenmill_cpu::isa::Isa;
use tokenmill_cpu::{CpuDevice, CpuOptions, NUMERICS_VERSION};
use tokenmill_engine::constraint::{Constraint, Held, Settings, Vocabulary};
use tokenmill_engine::draft_model::DraftModel;
use tokenmill_engine::load::{LoadOptions, WeightBits, load, read};
use tokenmill_engine::plan::fit;
use tokenmill_engine::start::{ServeOptions, Served};
use tokenmill_engine::{DraftMode, EngineStats, Event, Events, Request};
use tokenmill_files::write::{TensorHeader, write_gguf};
use tokenmill_golden_tests::{Golden, Sample};
use tokenmill_ir::sampling::{Chain, Dry, Mirostat, Rules, splitmix};
use tokenmill_ir::{KvFormat, Meta, MetaValue, Mode, SamplingParams};
use tokenmill_quant::FormatId;

const VOCAB: u64 = 331;
const HIDDEN: u64 = 256;
const FFN: u64 = 512;

/// Digests of the answers of one numerics version.
const BITS: &str = include_str!("../bits.txt");

/// How one run differs from another; none of it may show.
#[derive(Debug, Clone, Copy)]
struct Variant<'a> {
    isa: Isa,
    threads: usize,
    step_tokens: u32,
    /// Blocks of the cache, when fewer than enough.
    blocks: Option<u32>,
    /// Other requests submitted with it.
    crowd: u64,
    /// A model that guesses.
    draft: Option<&'a Path>,
    /// What answers are held to, in turn.
    held: &'a [Held],
    /// Samplers beyond the usual, and rules.
    chain: Option<Chain>,
}

/// What may not differ: tokens and the bits of their log-probabilities.
type Answer = Vec<(u32, u32, Vec<(u32, u32)>)>;

/// Modes and KV formats: all pairs of the wider ones; narrow ones do not meet the mode.
const EVERY: [(Mode, KvFormat); 13] = {
    use KvFormat as K;
    use Mode::{Bf16, F32, Int8};
    [
        (Int8, K::Int16),
        (Int8, K::Bf16),
        (Int8, K::Int8),
        (Int8, K::F32),
        (Int8, K::Int4),
        (Int8, K::K8V4),
        (Bf16, K::Bf16),
        (Bf16, K::Int8),
        (Bf16, K::F32),
        (F32, K::Int16),
        (F32, K::Bf16),
        (F32, K::Int8),
        (F32, K::F32),
    ]
};

#[test]
fn the_same_request_gives_the_same_bits() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let path = scratch.path().join("matrix.gguf");
    write_model(&path, &Ffn::Dense);
    check("dense", &path, VOCAB, &EVERY);
}

#[test]
fn experts_change_nothing_of_that() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let path = scratch.path().join("matrix.gguf");
    write_model(&path, &Ffn::Experts { count: 12, top: 3, width: 256 });
    let kv = KvFormat::Int16;
    check("experts", &path, VOCAB, &[Mode::Int8, Mode::Bf16, Mode::F32].map(|mode| (mode, kv)));
}

#[test]
fn recurrences_change_nothing_of_that() {
    for arch in ["falcon_h1", "lfm2", "qwen3_next"] {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let golden = Golden::read(arch);
        let path = golden.path(tokenmill_golden_tests::Variant::Config, scratch.path());
        let vocab = 1 + u64::from(golden.ids.iter().copied().max().unwrap_or(0));
        check(arch, &path, vocab, &[(Mode::Int8, KvFormat::Int16)]);
    }
}

#[test]
fn latents_change_nothing_of_that() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let golden = Golden::read("deepseek_v3");
    let path = golden.path(tokenmill_golden_tests::Variant::Config, scratch.path());
    let vocab = 1 + u64::from(golden.ids.iter().copied().max().unwrap_or(0));
    let formats = [KvFormat::Int16, KvFormat::Bf16, KvFormat::Int8, KvFormat::F32];
    check("deepseek_v3", &path, vocab, &formats.map(|kv| (Mode::Int8, kv)));
}

fn plain() -> Variant<'static> {
    let isa = Isa::detect();
    Variant {
        isa,
        threads: 2,
        step_tokens: 512,
        blocks: None,
        crowd: 0,
        draft: None,
        held: &[],
        chain: None,
    }
}

#[test]
fn guesses_of_a_draft_model_change_nothing_of_that() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let [large, small] = ["large.gguf", "small.gguf"].map(|name| scratch.path().join(name));
    write_model(&large, &Ffn::Dense);
    write_model(&small, &Ffn::Small);
    let (mut drafted, mut accepted) = ([0; 2], [0; 2]);
    let sample = Sample::from_env();
    for (row, (mode, kv)) in EVERY.into_iter().enumerate() {
        for (column, crowd) in [0, 7].into_iter().enumerate() {
            // (Neighbours are of one crowd: each part has some of both.)
            if !sample.has((column * EVERY.len() + row) as u64, 4) {
                continue;
            }
            let without = Variant { crowd, ..plain() };
            let (expected, base) = run(&large, VOCAB, without, mode, kv);
            for (i, draft) in [&large, &small].into_iter().enumerate() {
                let variant = Variant { draft: Some(draft), ..without };
                let (found, stats) = run(&large, VOCAB, variant, mode, kv);
                assert_eq!(found, expected, "{mode:?} {kv:?} {variant:?}");
                // Both have the guesses of a prediction.
                drafted[i] += stats.drafted_tokens.saturating_sub(base.drafted_tokens);
                accepted[i] += stats.accepted_tokens.saturating_sub(base.accepted_tokens);
            }
        }
    }
    println!("guesses of the model itself and of its half: {drafted:?}, right: {accepted:?}");
    for (drafted, accepted) in drafted.into_iter().zip(accepted) {
        assert!(accepted > 100 && drafted > accepted + 100, "right ones and wrong ones");
    }
}

/// Bytes, signs of JSON and words, the last an end: tokens of a model of `VOCAB` columns.
fn pieces() -> Vec<Vec<u8>> {
    let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|b| vec![b]).collect();
    let signs = ["{\"", "\":", "\",\"", "\"}", "\": \"", "<tool", "_call", "name", "argu", "ments"];
    tokens.extend(signs.iter().map(|s| s.as_bytes().to_vec()));
    let words = (tokens.len()..VOCAB as usize - 1).map(|i| format!("w{i}").into_bytes());
    tokens.extend(words.collect::<Vec<_>>());
    tokens.push(b"<end>".to_vec());
    tokens
}

/// A schema of free and of known text, and a call of a tool, as the server writes them.
fn grammars() -> Vec<Held> {
    let tokens = pieces();
    let end = VOCAB as u32 - 1;
    let vocabulary = Vocabulary::new(&tokens, &[end], &[end]).expect("a vocabulary");
    let cut = move |mut rest: &[u8]| {
        let mut ids = Vec::new();
        while !rest.is_empty() {
            let fits = tokens.iter().zip(0..).filter(|(token, _)| rest.starts_with(token));
            let (longest, id) = fits.max_by_key(|(token, _)| token.len()).expect("a byte");
            ids.push(id);
            rest = &rest[longest.len()..];
        }
        ids
    };
    let vocabulary = Arc::new(vocabulary.tokenized_by(Arc::new(cut)));
    let text = r#"{"type": "object", "properties": {"argument": {"type": "string", "maxLength": 9},
        "known": {"const": "arguments of a name"}, "more": {"type": "string"}},
        "required": ["argument", "known", "more"], "additionalProperties": false}"#;
    let schema = serde_json::from_str(text).expect("JSON");
    let call = "%llguidance {}\nstart: \"<tool_call>\" call (\"<tool_call>\" call)*\n\
        call: \"{\\\"name\\\": \\\"w270\\\", \\\"arguments\\\": \" %json {\"type\": \"object\", \
        \"properties\": {\"size\": {\"type\": \"integer\", \"maximum\": 99}}, \
        \"required\": [\"size\"]} \"}</tool_call>\"\n";
    [Constraint::JsonSchema(schema), Constraint::Lark(call.to_owned())]
        .map(|what| Held::new(&what, &vocabulary, &Settings::default()).expect("a grammar"))
        .to_vec()
}

#[test]
fn grammars_change_nothing_of_that() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let [path, small] = ["large.gguf", "small.gguf"].map(|name| scratch.path().join(name));
    write_model(&path, &Ffn::Dense);
    write_model(&small, &Ffn::Small);
    let (grammars, mut preempted) = (grammars(), 0);
    for first in 0..grammars.len() {
        // The crowd holds the other too, and some nothing.
        let mut held = grammars.clone();
        held.rotate_left(first);
        let plain = Variant { held: &held, ..plain() };
        let (mode, kv) = (Mode::Int8, KvFormat::Int16);
        let (expected, stats) = run(&path, VOCAB, plain, mode, kv);
        assert!(expected.len() > 8 && stats.accepted_tokens > 16, "{expected:?} {stats:?}");
        for variant in [
            Variant { threads: 1, ..plain },
            Variant { step_tokens: 1, ..plain },
            Variant { step_tokens: 7, crowd: 7, ..plain },
            Variant { crowd: 7, blocks: Some(12), ..plain },
            Variant { crowd: 7, blocks: Some(13), ..plain },
            Variant { crowd: 7, blocks: Some(14), ..plain },
            Variant { crowd: 7, blocks: Some(16), ..plain },
            Variant { crowd: 3, draft: Some(&small), ..plain },
            Variant { draft: Some(&path), ..plain },
        ] {
            let (found, stats) = run(&path, VOCAB, variant, mode, kv);
            assert_eq!(found, expected, "{variant:?}");
            preempted += stats.preemptions;
        }
    }
    assert!(preempted > 0, "nothing was preempted");
}

#[test]
fn samplers_change_nothing_of_that() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let [path, small] = ["large.gguf", "small.gguf"].map(|name| scratch.path().join(name));
    write_model(&path, &Ffn::Dense);
    write_model(&small, &Ffn::Small);
    let off = Chain::default();
    let more = Chain { typical_p: 0.9, xtc_probability: 0.5, xtc_threshold: 0.05, ..off };
    let mirostat = Chain { mirostat: Some(Mirostat::new(4.0, 0.2)), ..off };
    for chain in [more, mirostat] {
        let plain = Variant { chain: Some(chain), ..plain() };
        let (mode, kv) = (Mode::Int8, KvFormat::Int16);
        let (expected, _) = run(&path, VOCAB, plain, mode, kv);
        for variant in [
            Variant { threads: 1, ..plain },
            Variant { step_tokens: 7, crowd: 7, ..plain },
            Variant { crowd: 7, blocks: Some(14), ..plain },
            Variant { crowd: 3, draft: Some(&small), ..plain },
        ] {
            let (found, _) = run(&path, VOCAB, variant, mode, kv);
            assert_eq!(found, expected, "{variant:?}");
        }
    }
}

/// The line of bits.txt for an answer, if it is not there.
fn unpinned(name: &str, answer: &Answer) -> Option<String> {
    let mut hash = 0u64;
    let mut add = |word: u32| hash = splitmix(hash ^ u64::from(word));
    for (token, logprob, top) in answer {
        [*token, *logprob].into_iter().for_each(&mut add);
        top.iter().for_each(|(token, logprob)| [*token, *logprob].into_iter().for_each(&mut add));
    }
    let line = format!("{hash:016x} {name}");
    (!BITS.lines().any(|pinned| pinned == line)).then_some(line)
}

/// One request, run in every way, for each of some modes and KV formats.
fn check(name: &str, path: &Path, vocab: u64, modes: &[(Mode, KvFormat)]) {
    let plain = plain();
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
    let sample = Sample::from_env();
    let mut changed = Vec::new();
    for (row, &(mode, kv)) in modes.iter().enumerate() {
        let expected = run(path, vocab, plain, mode, kv).0;
        assert!(expected.len() == 24, "{mode:?} {kv:?}: {} tokens", expected.len());
        changed.extend(unpinned(&format!("{name} {mode:?} {kv:?}"), &expected));
        for (column, &variant) in variants.iter().enumerate() {
            if !sample.has((row * variants.len() + column) as u64, 4) {
                continue;
            }
            let found = run(path, vocab, variant, mode, kv).0;
            assert_eq!(found, expected, "{} {mode:?} {kv:?} {variant:?}", path.display());
        }
    }
    let told = include_str!("../../../NUMERICS.md");
    assert!(told.starts_with(&format!("# Numerics, version {NUMERICS_VERSION}\n")));
    assert!(
        changed.is_empty() && BITS.starts_with(&format!("numerics {NUMERICS_VERSION}\n")),
        "bits of numerics {NUMERICS_VERSION} changed. That needs a new version in NUMERICS.md and \
         NUMERICS_VERSION, and then these lines in tests/golden/bits.txt:\n{}",
        changed.join("\n")
    );
}

#[test]
fn code_books_are_written_out_while_there_is_room() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let path = scratch.path().join("matrix.gguf");
    write_model(&path, &Ffn::Books);
    let model = read(&path, KvFormat::Int16).expect("a model");
    let options = CpuOptions { threads: 1, isa: Some(Isa::Scalar) };
    let device = CpuDevice::new(options).expect("a device");
    let fit = |weights, memory_bytes| {
        let options = LoadOptions {
            mode: Mode::Int8,
            kv: KvFormat::Int16,
            context: Some(256),
            sequences: 2,
            step_tokens: 64,
            memory_bytes,
            images: true,
            weights,
        };
        fit(&model.spec, &model.program, &device, &options).map(|(_, fit)| fit)
    };
    let own = fit(WeightBits::Own, 1 << 33).expect("it fits");
    let wide = fit(WeightBits::Wide, 1 << 33).expect("it fits");
    assert!(!own.wide_weights && wide.wide_weights && own.weight_bytes < wide.weight_bytes);
    // (With room for one stream more, so that there are as many.)
    for (of, expect) in [(&wide, true), (&own, false)] {
        let memory_bytes = of.needed_bytes() + of.cache_bytes;
        let auto = fit(WeightBits::Auto, memory_bytes).expect("it fits");
        assert_eq!((auto.wide_weights, auto.streams), (expect, own.streams), "{memory_bytes}");
    }
    assert!(fit(WeightBits::Wide, own.needed_bytes()).is_err());
    assert!(fit(WeightBits::Own, own.needed_bytes()).is_ok());
}

fn run(
    path: &Path,
    vocab: u64,
    variant: Variant<'_>,
    mode: Mode,
    kv: KvFormat,
) -> (Answer, EngineStats) {
    let Variant { isa, threads, step_tokens, .. } = variant;
    let options = CpuOptions { threads, isa: Some(isa) };
    let device = CpuDevice::new(options).expect("a device");
    let options = LoadOptions {
        mode,
        kv,
        context: Some(256),
        sequences: 8,
        step_tokens,
        memory_bytes: 1 << 33,
        images: true,
        // Code books as they are, or written out.
        weights: if threads % 2 == 1 { WeightBits::Own } else { WeightBits::Wide },
    };
    let mut model = load(path, Arc::new(device), &options, |_, _| {}).expect("loaded");
    if let Some(blocks) = variant.blocks {
        model.limits.group_blocks.fill(blocks);
    }
    let mut draft = DraftMode::Suffix;
    if let Some(small) = variant.draft {
        model.load_draft(small, &options).expect("a draft model");
        model.draft = model.draft.map(DraftModel::unpriced);
        draft = DraftMode::Model;
    }
    let served = model.start(ServeOptions { queue: 64, step_s: 10.0, draft }).expect("started");
    let submit = |seed, prompt, prediction| {
        let held = variant.held.get(seed as usize % variant.held.len().max(1));
        submit(&served, vocab, (seed, held, variant.chain), prompt, prediction)
    };
    let others: Vec<Events> = (1..=variant.crowd).map(|s| submit(s, 40 + 9 * s, &[])).collect();
    let first = answer(submit(0, 150, &[]));
    for events in others {
        answer(events);
    }
    // With fewer blocks requests wait for each other instead.
    if variant.blocks == Some(14) && variant.held.is_empty() {
        assert!(served.engine.stats().preemptions > 0, "{variant:?}: nothing was preempted");
    }
    // The prompt is in the prefix cache now.
    let again = answer(submit(0, 150, &[]));
    assert_eq!(again, first, "{variant:?}: out of the prefix cache");
    let mut prediction: Vec<u32> = first.iter().map(|t| t.0).collect();
    let middle = 2 * prediction.len() / 3;
    prediction[middle] ^= 1;
    let drafted = answer(submit(0, 150, &prediction));
    assert_eq!(drafted, first, "{variant:?}: with drafts, right and wrong");
    if variant.blocks.is_none() {
        assert!(served.engine.stats().cached_tokens > 0, "{variant:?}: no prefix hit");
    }
    (first, served.engine.stats())
}

fn submit(
    served: &Served,
    vocab: u64,
    (seed, held, chain): (u64, Option<&Held>, Option<Chain>),
    prompt: u64,
    prediction: &[u32],
) -> Events {
    let token = |i| (splitmix(seed << 32 | i) % vocab) as u32;
    let sampling = SamplingParams {
        temperature: 0.9,
        top_p: 0.95,
        repetition_penalty: 1.1,
        frequency_penalty: 0.2,
        seed,
        logprobs: Some(3),
        chain,
        ..SamplingParams::default()
    };
    let dry =
        Dry { multiplier: 1.5, base: 1.5, allowed_length: 1, last_n: 40, breakers: vec![1, 2, 3] };
    let rules = Rules { dry: chain.is_some().then_some(dry), ..Rules::default() };
    let request = Request {
        sampling,
        max_tokens: Some(24),
        ignore_eos: held.is_none(),
        held: held.cloned(),
        rules,
        prediction: prediction.to_vec(),
        ..Request::new((0..prompt).map(token).collect())
    };
    served.engine.submit(request).expect("accepted")
}

fn answer(events: Events) -> Answer {
    let mut tokens = Vec::new();
    for event in events {
        match event {
            Event::Piece { tokens: more, .. } => tokens.extend(more),
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

/// What follows attention in a layer.
enum Ffn {
    Dense,
    /// Two layers of the same.
    Small,
    /// A layer of code books, several large pages of them.
    Books,
    Experts {
        count: u64,
        top: i64,
        width: u64,
    },
}

/// A Llama of four layers whose matrices use every block format, or a Qwen3 with experts of two.
fn write_model(path: &Path, ffn: &Ffn) {
    let mut meta = Meta::new();
    let mut set = |key: &str, value: MetaValue| {
        meta.insert(key.to_owned(), value);
    };
    let (arch, layers) = match ffn {
        Ffn::Dense => ("llama", 4),
        Ffn::Small => ("llama", 2),
        Ffn::Books => ("llama", 1),
        Ffn::Experts { .. } => ("qwen3moe", 2),
    };
    let ffn_width = if matches!(ffn, Ffn::Books) { 16_384 } else { FFN };
    set("general.architecture", MetaValue::Str(arch.into()));
    for (key, value) in [
        ("embedding_length", HIDDEN as i64),
        ("block_count", layers as i64),
        ("context_length", 256),
        ("feed_forward_length", ffn_width as i64),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ] {
        set(&format!("{arch}.{key}"), MetaValue::Int(value));
    }
    if let Ffn::Experts { count, top, width } = *ffn {
        for (key, value) in [
            ("expert_count", count as i64),
            ("expert_used_count", top),
            ("expert_feed_forward_length", width as i64),
        ] {
            set(&format!("{arch}.{key}"), MetaValue::Int(value));
        }
    }
    set(&format!("{arch}.attention.layer_norm_rms_epsilon"), MetaValue::Float(1e-5));
    set("tokenizer.ggml.model", MetaValue::Str("none".into()));
    let mut tensors = Vec::new();
    let mut add = |name: String, format, shape: &[u64]| {
        tensors.push(TensorHeader { name, format, shape: shape.to_vec() });
    };
    add("token_embd.weight".into(), FormatId::Q6_K, &[VOCAB, HIDDEN]);
    add("output_norm.weight".into(), FormatId::F32, &[HIDDEN]);
    use FormatId::*;
    let formats = [
        [Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q5_1, Q6_K],
        [Q4_K, Q5_K, Q6_K, BF16, F16, Q4_1, Q5_0],
        [Q2_K, Q3_K, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S],
        [IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS, NVFP4, TQ1_0, TQ2_0],
    ];
    let first = if matches!(ffn, Ffn::Books) { 2 } else { 0 };
    for (l, f) in formats.iter().skip(first).take(layers).enumerate() {
        let name = |n: &str| format!("blk.{l}.{n}.weight");
        add(name("attn_norm"), F32, &[HIDDEN]);
        add(name("ffn_norm"), F32, &[HIDDEN]);
        add(name("attn_q"), f[0], &[HIDDEN, HIDDEN]);
        add(name("attn_k"), f[1], &[HIDDEN / 2, HIDDEN]);
        add(name("attn_v"), f[2], &[HIDDEN / 2, HIDDEN]);
        add(name("attn_output"), f[3], &[HIDDEN, HIDDEN]);
        if let Ffn::Experts { count, width, .. } = *ffn {
            add(name("attn_q_norm"), F32, &[HIDDEN / 4]);
            add(name("attn_k_norm"), F32, &[HIDDEN / 4]);
            add(name("ffn_gate_inp"), F32, &[count, HIDDEN]);
            add(name("ffn_gate_exps"), f[4], &[count, width, HIDDEN]);
            add(name("ffn_up_exps"), f[5], &[count, width, HIDDEN]);
            add(name("ffn_down_exps"), f[6], &[count, HIDDEN, width]);
            continue;
        }
        add(name("ffn_gate"), f[4], &[ffn_width, HIDDEN]);
        add(name("ffn_up"), f[5], &[ffn_width, HIDDEN]);
        add(name("ffn_down"), f[6], &[HIDDEN, ffn_width]);
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
    let scales: &[usize] = match t.format {
        FormatId::Q6_K => &[208],
        FormatId::Q2_K => &[80, 82],
        FormatId::Q3_K => &[108],
        FormatId::TQ1_0 => &[52],
        FormatId::TQ2_0 => &[64],
        FormatId::IQ1_M | FormatId::NVFP4 => &[],
        FormatId::Q4_K | FormatId::Q5_K => &[0, 2],
        _ => &[0],
    };
    for block in out.chunks_exact_mut(info.block_bytes) {
        for &at in scales {
            block[at..at + 2].copy_from_slice(&small);
        }
        match t.format {
            // The same number in four pieces.
            FormatId::IQ1_M => (0..4).for_each(|i| {
                block[49 + 2 * i] = block[49 + 2 * i] & 15 | if i == 2 { 0xc0 } else { 0 };
            }),
            FormatId::NVFP4 => block[..4].fill(0x08), // 2⁻⁶
            _ => {}
        }
    }
    out
}

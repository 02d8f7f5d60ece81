//! Every recorded architecture through the engine: scheduler, chunked prefill, decode, prefix hits,
//! batches; on the reference device and on the CPU.

use std::path::Path;
use std::sync::Arc;

use tokenmill_backend::Device;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_engine::load::{LoadOptions, WeightBits, load};
use tokenmill_engine::start::{ServeOptions, Served, StartError};
use tokenmill_engine::{DraftMode, Event, Request};
use tokenmill_golden_tests::{Forgetful, Golden, Variant, worst_difference};
use tokenmill_ir::{KvFormat, Mode};

/// Largest |Δlogit| allowed against transformers.
const TOLERANCE: f32 = 1e-4;

fn start(path: &Path, device: Arc<dyn Device>, step_tokens: u32) -> Result<Served, StartError> {
    let options = LoadOptions {
        mode: Mode::F32,
        kv: KvFormat::F32,
        context: Some(128),
        sequences: 4,
        step_tokens,
        memory_bytes: 1 << 32,
        images: true,
        weights: WeightBits::Auto,
    };
    let loaded = load(path, device, &options, |_, _| {});
    let loaded = loaded.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    loaded.start(ServeOptions { queue: 64, step_s: 10.0, draft: DraftMode::Suffix })
}

/// Greedy tokens of several requests submitted together.
fn answers(served: &Served, prompts: &[Vec<u32>], n: usize) -> Vec<(Vec<u32>, u32)> {
    let request = |prompt: &Vec<u32>| Request {
        max_tokens: Some(n as u32),
        ignore_eos: true,
        ..Request::new(prompt.clone())
    };
    let events: Vec<_> =
        prompts.iter().map(|p| served.engine.submit(request(p)).expect("accepted")).collect();
    events
        .into_iter()
        .map(|events| {
            let (mut ids, mut cached) = (Vec::new(), 0);
            for event in events {
                match event {
                    Event::Piece { tokens, .. } => ids.extend(tokens.iter().map(|t| t.id)),
                    Event::Finished(usage) => cached = usage.cached_tokens,
                    Event::Failed(e) => panic!("{e}"),
                    _ => {}
                }
            }
            (ids, cached)
        })
        .collect()
}

fn check(golden: &Golden, served: &Served) {
    let arch = &golden.arch;
    if golden.greedy.is_empty() {
        let found = served.engine.embed(golden.ids.clone()).expect("an embedding");
        let (worst, _) = worst_difference(&found, &golden.floats("embedding.f32"));
        assert!(worst <= TOLERANCE, "{arch}: {worst}");
        return;
    }
    let found = served.engine.logits(golden.ids.clone(), 0).expect("logits").numbers;
    let (worst, at) = worst_difference(&found, &golden.floats("logits.f32"));
    assert!(worst <= TOLERANCE, "{arch}: {worst} at {at}");
    // Alone, again out of the prefix cache, then with others beside it.
    let n = golden.greedy.len();
    let alone = answers(served, std::slice::from_ref(&golden.ids), n);
    assert_eq!(alone[0].0, golden.greedy, "{arch} alone");
    let again = answers(served, std::slice::from_ref(&golden.ids), n);
    assert_eq!(again[0].0, golden.greedy, "{arch} again");
    assert!(again[0].1 > 0, "{arch}: nothing came out of the prefix cache");
    let other = |k: usize| golden.ids.iter().rev().skip(k).copied().collect::<Vec<_>>();
    let crowd = answers(served, &[other(1), golden.ids.clone(), other(9), other(30)], n);
    assert_eq!(crowd[1].0, golden.greedy, "{arch} in a crowd");
}

#[test]
fn every_recording_through_the_engine_on_the_reference_device() {
    for arch in Golden::all() {
        let golden = Golden::read(&arch);
        for step_tokens in [7, 64] {
            let scratch = tempfile::tempdir().expect("a scratch folder");
            let path = golden.path(Variant::Config, scratch.path());
            let device = Arc::new(ReferenceDevice::new(16));
            // Encoders take whole sequences.
            let step_tokens = if golden.greedy.is_empty() { 128 } else { step_tokens };
            let served =
                start(&path, device, step_tokens).unwrap_or_else(|e| panic!("{arch}: {e}"));
            check(&golden, &served);
        }
    }
}

#[test]
fn every_recording_through_the_engine_on_the_cpu() {
    for arch in Golden::all() {
        let golden = Golden::read(&arch);
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let path = golden.path(Variant::Config, scratch.path());
        let options = CpuOptions { threads: 2, ..CpuOptions::default() };
        let device = CpuDevice::new(options).expect("a CPU");
        let step_tokens = if golden.greedy.is_empty() { 128 } else { 33 };
        let served = start(&path, Arc::new(device), step_tokens);
        check(&golden, &served.unwrap_or_else(|e| panic!("{arch}: {e}")));
    }
}

#[test]
fn a_lost_device_gets_its_weights_again_and_the_answer_goes_on() {
    let golden = Golden::read("llama");
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let path = golden.path(Variant::Config, scratch.path());
    let served = start(&path, Forgetful::new(3), 64).unwrap_or_else(|e| panic!("{e}"));
    let n = golden.greedy.len();
    let found = answers(&served, std::slice::from_ref(&golden.ids), n);
    assert_eq!(found[0].0, golden.greedy);
    assert_eq!(served.engine.stats().device_errors, 1);
}

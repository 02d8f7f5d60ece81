//! Models of several kinds behind the engine on kernels of this machine: chunks, prefix hits, requests beside each other.

use std::sync::Arc;

use tokenmill_cuda_tests::device;
use tokenmill_engine::load::{LoadOptions, load};
use tokenmill_engine::start::{ServeOptions, Served};
use tokenmill_engine::{DraftMode, Event, Request};
use tokenmill_golden_tests::{Golden, Variant};
use tokenmill_ir::{KvFormat, Mode};

/// A dense model, windows, latents with experts, recurrences.
const MODELS: [&str; 4] = ["llama", "gemma3", "deepseek_v3", "qwen3_next"];

/// Greedy tokens of requests submitted together, and how many of each prompt's tokens were known.
fn answers(served: &Served, prompts: &[Vec<u32>], n: usize) -> Vec<(Vec<u32>, u32)> {
    let submit = |prompt: &Vec<u32>| {
        let max_tokens = Some(n as u32);
        let request = Request { max_tokens, ignore_eos: true, ..Request::new(prompt.clone()) };
        served.engine.submit(request).expect("accepted")
    };
    let all: Vec<_> = prompts.iter().map(submit).collect();
    let answer = |events| {
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
    };
    all.into_iter().map(answer).collect()
}

#[test]
fn the_engine_answers_as_recorded() {
    for arch in MODELS {
        let Some(device) = device(16) else { return };
        let golden = Golden::read(arch);
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let options = LoadOptions {
            mode: Mode::F32,
            kv: KvFormat::F32,
            context: Some(128),
            sequences: 4,
            step_tokens: 24,
            memory_bytes: 1 << 30,
        };
        let path = golden.path(Variant::Config, scratch.path());
        let loaded = load(&path, Arc::new(device), &options, |_, _| {}).expect("loads");
        let serve = ServeOptions { queue: 64, step_s: 10.0, draft: DraftMode::Suffix };
        let served = loaded.start(serve).expect("starts");
        let n = golden.greedy.len();
        let alone = answers(&served, std::slice::from_ref(&golden.ids), n);
        assert_eq!(alone[0].0, golden.greedy, "{arch} alone");
        let other = |k: usize| golden.ids.iter().rev().skip(k).copied().collect::<Vec<_>>();
        let crowd = answers(&served, &[other(1), golden.ids.clone(), other(9)], n);
        assert_eq!(crowd[1].0, golden.greedy, "{arch} with others");
        assert!(crowd[1].1 > 0, "{arch}: nothing came out of the prefix cache");
    }
}

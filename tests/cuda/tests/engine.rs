//! Models of several kinds behind the engine on kernels of this machine: chunks, prefix hits, requests beside each other.

use std::sync::Arc;

use tokenmill_backend::Device;
use tokenmill_cuda::CudaDevice;
use tokenmill_cuda_tests::{Emulated, Kernels, device};
use tokenmill_engine::host::Host;
use tokenmill_engine::load::{LoadOptions, WeightBits, load};
use tokenmill_engine::start::{ServeOptions, Served};
use tokenmill_engine::{DraftMode, Event, Events, Request};
use tokenmill_golden_tests::{Golden, Variant};
use tokenmill_ir::{KvFormat, Mode};

/// A dense model, windows, latents with experts, recurrences.
const MODELS: [&str; 4] = ["llama", "gemma3", "deepseek_v3", "qwen3_next"];

/// Greedy tokens of requests submitted together, and how many of each prompt's tokens were known.
fn answers(served: &Served, prompts: &[Vec<u32>], n: usize) -> Vec<(Vec<u32>, u32)> {
    let all: Vec<_> = prompts.iter().map(|prompt| submit(served, prompt, n)).collect();
    all.into_iter().map(|events| answer(events).expect("an answer")).collect()
}

/// The same of one request, which may fail.
fn told(served: &Served, prompt: &[u32], n: usize) -> Result<(Vec<u32>, u32), String> {
    answer(submit(served, prompt, n))
}

fn submit(served: &Served, prompt: &[u32], n: usize) -> Events {
    let max_tokens = Some(n as u32);
    let request = Request { max_tokens, ignore_eos: true, ..Request::new(prompt.to_vec()) };
    served.engine.submit(request).expect("accepted")
}

fn answer(events: Events) -> Result<(Vec<u32>, u32), String> {
    let (mut ids, mut cached) = (Vec::new(), 0);
    for event in events {
        match event {
            Event::Piece { tokens, .. } => ids.extend(tokens.iter().map(|t| t.id)),
            Event::Finished(usage) => cached = usage.cached_tokens,
            Event::Failed(e) => return Err(e.to_string()),
            _ => {}
        }
    }
    Ok((ids, cached))
}

const OPTIONS: LoadOptions = LoadOptions {
    mode: Mode::F32,
    kv: KvFormat::F32,
    context: Some(128),
    sequences: 4,
    step_tokens: 24,
    memory_bytes: 1 << 30,
    images: true,
    weights: WeightBits::Auto,
};
const SERVE: ServeOptions = ServeOptions { queue: 64, step_s: 10.0, draft: DraftMode::Suffix };

/// Two models of one GPU, which loses everything in the middle of their answers, more than once.
#[test]
fn answers_go_on_after_everything_was_lost() {
    let Some(kernels) = Kernels::plain() else { return };
    let driver = Arc::new(Emulated::new(kernels));
    let device: Arc<dyn Device> = Arc::new(CudaDevice::new(driver.clone(), 16));
    let host = Host::start(Arc::clone(&device), 1 << 30).expect("starts");
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let goldens = ["llama", "qwen3_next"].map(Golden::read);
    let served = goldens.each_ref().map(|golden| {
        let folder = scratch.path().join(&golden.arch);
        std::fs::create_dir(&folder).expect("a folder");
        let path = golden.path(Variant::Config, &folder);
        let loaded = load(&path, Arc::clone(&device), &OPTIONS, |_, _| {}).expect("loads");
        loaded.start_on(&host, SERVE, None).expect("starts")
    });
    let both = |may_fail: bool| {
        std::thread::scope(|scope| {
            for (golden, served) in goldens.iter().zip(&served) {
                scope.spawn(move || match told(served, &golden.ids, golden.greedy.len()) {
                    Ok((ids, _)) => assert_eq!(ids, golden.greedy, "{}", golden.arch),
                    Err(e) => assert!(may_fail, "{}: {e}", golden.arch),
                });
            }
        });
    };
    for (call, after) in [("launch", 150), ("write", 20), ("passed", 5)] {
        let opened = driver.opened();
        driver.fail(call, after, true);
        both(false);
        assert_eq!((driver.troubles(), driver.opened()), (0, opened + 1), "{call}");
    }
    // Where the GPU cannot be had again the first time, who asked hears it; the next is answered.
    driver.fail("launch", 90, true);
    driver.fail("reopen", 0, true);
    both(true);
    assert_eq!(driver.troubles(), 0);
    both(false);
    let errors = served.each_ref().map(|s| s.engine.stats().device_errors);
    assert!(errors.iter().all(|n| *n > 3), "{errors:?}");
}

#[test]
fn the_engine_answers_as_recorded() {
    for arch in MODELS {
        let Some(device) = device(16) else { return };
        let golden = Golden::read(arch);
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let path = golden.path(Variant::Config, scratch.path());
        let loaded = load(&path, Arc::new(device), &OPTIONS, |_, _| {}).expect("loads");
        let served = loaded.start(SERVE).expect("starts");
        let n = golden.greedy.len();
        let alone = answers(&served, std::slice::from_ref(&golden.ids), n);
        assert_eq!(alone[0].0, golden.greedy, "{arch} alone");
        let other = |k: usize| golden.ids.iter().rev().skip(k).copied().collect::<Vec<_>>();
        let crowd = answers(&served, &[other(1), golden.ids.clone(), other(9)], n);
        assert_eq!(crowd[1].0, golden.greedy, "{arch} with others");
        assert!(crowd[1].1 > 0, "{arch}: nothing came out of the prefix cache");
    }
}

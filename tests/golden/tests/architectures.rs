//! Every recorded architecture on the reference device: logits of the prompt whole and in chunks,
//! greedy tokens, from every kind of file recorded; and the same with each field of its spec
//! perturbed, which must be noticed.

use tokenmill_backend::Device;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_files::OpenModel;
use tokenmill_golden_tests::{Golden, Runner, Variant, worst_difference};
use tokenmill_ir::{KvFormat, Mode};
use tokenmill_models::spec::Output;
use tokenmill_models::{ARCHS, ModelSpec, lower, spec_of};

/// Largest |Δlogit| allowed against transformers. Its own noise is about 1e-5.
const TOLERANCE: f32 = 1e-4;

fn check(arch: &str, device: &dyn Device) {
    let golden = Golden::read(arch);
    let context = (golden.ids.len() + golden.greedy.len()) as u32 + 1;
    for variant in [Variant::Config, Variant::ConfigV5, Variant::Gguf] {
        if !golden.has(variant) {
            continue;
        }
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let model = golden.open(variant, scratch.path());
        let spec =
            spec_of(&model.checkpoint).unwrap_or_else(|e| panic!("{arch} {variant:?}: spec: {e}"));
        let lowered = lower(&spec, &model.checkpoint, KvFormat::F32)
            .unwrap_or_else(|e| panic!("{arch} {variant:?}: lowering: {e}"));
        assert!(lowered.unused.is_empty(), "{arch} {variant:?} unused: {:?}", lowered.unused);
        if golden.greedy.is_empty() {
            check_hidden(&golden, &model, &spec, device);
        }
        let expected = match golden.greedy.is_empty() {
            true => golden.floats("embedding.f32"),
            false => golden.floats("logits.f32"),
        };
        let chunks = if golden.greedy.is_empty() { vec![512] } else { vec![512, 7, 1] };
        for chunk in chunks {
            let mut run = Runner::new(device, Mode::F32, &lowered.program, &model, context)
                .unwrap_or_else(|e| panic!("{arch} {variant:?}: {e}"));
            let rows = match golden.greedy.is_empty() {
                true => run.feed(&golden.ids, 1),
                false => run.prefill(&golden.ids, chunk),
            }
            .unwrap_or_else(|e| panic!("{arch} {variant:?}: {e}"));
            let (worst, at) = worst_difference(&rows, &expected);
            let row = at / (lowered.program.vocab.max(1) as usize);
            println!("{arch} {variant:?} chunk {chunk}: max |Δ| {worst:.2e} at row {row}");
            assert!(worst <= TOLERANCE, "{arch} {variant:?} chunk {chunk}: {worst} at row {row}");
            if !golden.greedy.is_empty() {
                let last = &rows[rows.len() - lowered.program.vocab as usize..];
                let tokens = run.greedy(last, golden.greedy.len()).expect("greedy");
                assert_eq!(tokens, golden.greedy, "{arch} {variant:?} chunk {chunk}");
            }
        }
    }
}

/// The last hidden state of an encoder, every row.
fn check_hidden(golden: &Golden, model: &OpenModel, spec: &ModelSpec, device: &dyn Device) {
    let spec = ModelSpec { output: Output::Hidden, ..spec.clone() };
    let lowered = lower(&spec, &model.checkpoint, KvFormat::F32).expect("lowering");
    let len = golden.ids.len();
    let mut run =
        Runner::new(device, Mode::F32, &lowered.program, model, len as u32).expect("compiled");
    let rows = run.feed(&golden.ids, len).expect("hidden rows");
    let (worst, _) = worst_difference(&rows, &golden.floats("hidden.f32"));
    assert!(worst <= TOLERANCE, "{} hidden rows: {worst}", golden.arch);
}

#[test]
fn every_recording_matches_on_the_reference_device() {
    let only = std::env::var("GOLDEN").ok();
    for arch in Golden::all() {
        if only.as_ref().is_none_or(|o| *o == arch) {
            check(&arch, &ReferenceDevice::new(16));
        }
    }
}

#[test]
fn every_architecture_has_a_recording() {
    let recorded = Golden::all();
    for arch in ARCHS {
        assert!(recorded.iter().any(|r| r == arch.name), "no golden for {}", arch.name);
    }
}

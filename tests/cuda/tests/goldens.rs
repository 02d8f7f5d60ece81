//! Every recorded architecture through the kernels as plain C++: logits of the prompt whole and in chunks, greedy tokens.

use tokenmill_backend::Device;
use tokenmill_cuda_tests::device;
use tokenmill_golden_tests::{Golden, Runner, Variant, worst_difference};
use tokenmill_ir::{KvFormat, Mode};
use tokenmill_models::spec::Output;
use tokenmill_models::{ModelSpec, lower, spec_of};

/// Largest |Δlogit| allowed against transformers, whose own noise is about 1e-5.
const TOLERANCE: f32 = 1e-4;

fn bits(rows: &[f32]) -> Vec<u32> {
    rows.iter().map(|x| x.to_bits()).collect()
}

fn check(arch: &str, device: &dyn Device) {
    let golden = Golden::read(arch);
    let context = (golden.ids.len() + golden.greedy.len()) as u32 + 1;
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let model = golden.open(Variant::Config, scratch.path());
    let spec = spec_of(&model.checkpoint).unwrap_or_else(|e| panic!("{arch}: {e}"));
    let pooled = golden.greedy.is_empty();
    let outputs = if pooled { vec![Some("hidden.f32"), None] } else { vec![None] };
    for hidden in outputs {
        let output = if hidden.is_some() { Output::Hidden } else { spec.output };
        let spec = ModelSpec { output, ..spec.clone() };
        let lowered = lower(&spec, &model.checkpoint, KvFormat::F32).expect("lowers");
        let expected = golden.floats(match (pooled, hidden) {
            (_, Some(file)) => file,
            (true, None) => "embedding.f32",
            _ => "logits.f32",
        });
        let chunks = if pooled { vec![512] } else { vec![512, 7] };
        let mut whole: Option<Vec<f32>> = None;
        for chunk in chunks {
            let mut run = Runner::new(device, Mode::F32, &lowered.program, &model, context)
                .unwrap_or_else(|e| panic!("{arch}: {e}"));
            let rows = match (pooled, hidden) {
                (true, None) => run.feed(&golden.ids, 1),
                _ => run.prefill(&golden.ids, chunk),
            }
            .unwrap_or_else(|e| panic!("{arch}: {e}"));
            let (worst, _) = worst_difference(&rows, &expected);
            assert!(worst <= TOLERANCE, "{arch} in chunks of {chunk}: {worst}");
            // What else is in a step never shows.
            let whole = whole.get_or_insert_with(|| rows.clone());
            assert_eq!(bits(&rows), bits(whole), "{arch} in chunks of {chunk}");
            if !pooled && chunk < 512 {
                let last = &rows[rows.len() - lowered.program.vocab as usize..];
                let tokens = run.greedy(last, golden.greedy.len()).expect("greedy");
                assert_eq!(tokens, golden.greedy, "{arch} in chunks of {chunk}");
            }
        }
    }
}

/// Of all recordings those whose number is `part` of two: tests run side by side.
fn check_part(part: usize) {
    let Some(device) = device(16) else { return };
    let only = std::env::var("GOLDEN").ok();
    for arch in Golden::all().iter().skip(part).step_by(2) {
        if only.as_ref().is_none_or(|o| o == arch) {
            let start = std::time::Instant::now();
            check(arch, &device);
            println!("{arch} {:.2?}", start.elapsed());
        }
    }
}

#[test]
fn recordings_match_even() {
    check_part(0);
}

#[test]
fn recordings_match_odd() {
    check_part(1);
}

//! Architectures with their matrices in every format that has an encoder: what the CPU computes from
//! the packed file is what the reference device computes from the numbers it stands for. A sample
//! of the pairs, the same in every run; `PAIRS=all` takes all.

use std::path::Path;

use tokenmill_backend::Device;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_golden_tests::{Golden, Packing, Runner, worst_difference};
use tokenmill_ir::sampling::splitmix;
use tokenmill_ir::{KvFormat, Mode, Op};
use tokenmill_models::{lower, spec_of};
use tokenmill_quant::{FORMATS, FormatId};

/// Pairs run.
const SAMPLE: usize = 100;
/// Tokens of the prompt that are fed.
const TOKENS: usize = 24;
/// Largest |Δlogit| between the two devices, both in f32.
const TOLERANCE: f32 = 1e-3;
/// Largest error of the int8 arithmetic, as a share of the spread of the outputs. Models that route
/// are left out: another expert chosen on a near tie is no small difference.
const ENCODED: f32 = 0.1;
/// What safetensors can hold.
const PLAIN: [FormatId; 3] = [FormatId::F32, FormatId::F16, FormatId::BF16];

/// The outputs, and whether the model routes to experts.
fn outputs(path: &Path, (device, mode): (&dyn Device, Mode), ids: &[u32]) -> (Vec<f32>, bool) {
    let fail = |e: &dyn std::fmt::Display| -> ! { panic!("{}: {e}", path.display()) };
    let model = tokenmill_files::open(path).unwrap_or_else(|e| fail(&e));
    let spec = spec_of(&model.checkpoint).unwrap_or_else(|e| fail(&e));
    let lowered = lower(&spec, &model.checkpoint, KvFormat::F32).unwrap_or_else(|e| fail(&e));
    let rows = if lowered.program.vocab > 0 { ids.len() } else { 1 };
    let run = Runner::new(device, mode, &lowered.program, &model, ids.len() as u32 + 1);
    let routes = lowered.program.ops.iter().any(|op| matches!(op, Op::Experts(_)));
    (run.and_then(|mut run| run.feed(ids, rows)).unwrap_or_else(|e| fail(&e)), routes)
}

/// Root of the mean square of the differences, as a share of that of the numbers.
fn share(found: &[f32], expected: &[f32]) -> f32 {
    let squares = |all: &mut dyn Iterator<Item = f32>| all.map(|x| x * x).sum::<f32>();
    let off = squares(&mut found.iter().zip(expected).map(|(f, e)| f - e));
    (off / squares(&mut expected.iter().copied())).sqrt()
}

fn pairs() -> Vec<(Golden, FormatId)> {
    let formats = || FORMATS.iter().filter(|f| f.encode.is_some() && f.ggml_type.is_some());
    let mut all = Vec::new();
    for arch in Golden::all() {
        // Its experts are bytes already.
        for format in formats().filter(|_| arch != "gpt_oss") {
            let golden = Golden::read(&arch);
            if golden.is_packable() || PLAIN.contains(&format.id) {
                all.push((golden, format.id));
            }
        }
    }
    let key = |i: u64| splitmix(i ^ 0x7061_6972);
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|i| key(*i as u64));
    if std::env::var("PAIRS").as_deref() != Ok("all") {
        order.truncate(SAMPLE);
    }
    order.sort_unstable();
    let mut slots: Vec<Option<(Golden, FormatId)>> = all.into_iter().map(Some).collect();
    order.into_iter().filter_map(|i| slots[i].take()).collect()
}

#[test]
fn packed_models_compute_what_their_numbers_say() {
    let sample = pairs();
    assert!(sample.len() >= SAMPLE, "{} pairs", sample.len());
    for (golden, format) in sample {
        let scratch = [0, 1].map(|_| tempfile::tempdir().expect("a scratch folder"));
        let ids = &golden.ids[..TOKENS.min(golden.ids.len())];
        let packed = golden.packed(Packing { format, decoded: false }, scratch[0].path());
        let [found, encoded] = [Mode::F32, Mode::Int8].map(|mode| {
            let options = CpuOptions { threads: 1, ..CpuOptions::default() };
            let device = CpuDevice::new(options).expect("a CPU");
            outputs(&packed, (&device, mode), ids).0
        });
        let decoded = golden.packed(Packing { format, decoded: true }, scratch[1].path());
        let (expected, routes) = outputs(&decoded, (&ReferenceDevice::new(16), Mode::F32), ids);
        let (worst, at) = worst_difference(&found, &expected);
        assert!(worst <= TOLERANCE, "{} in {format}: {worst} at {at}", golden.arch);
        let error = share(&encoded, &expected);
        assert!(routes || error <= ENCODED, "{} in {format}, int8: {error}", golden.arch);
    }
}

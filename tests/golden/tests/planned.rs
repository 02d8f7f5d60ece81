//! The planner knows of every architecture what loading takes and what a step costs, from its description alone.

use std::ops::ControlFlow;
use std::sync::Arc;

use tokenmill_backend::Device;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_engine::Host;
use tokenmill_engine::describe::{Described, describe};
use tokenmill_engine::load::{LoadFailure, LoadOptions, Lowered, WeightBits, read};
use tokenmill_engine::plan::{Fit, Scene, active_bytes, fit};
use tokenmill_engine::planner::estimate::work;
use tokenmill_engine::planner::factors::{Arithmetic, Instructions};
use tokenmill_engine::planner::{Machine, Model, Need, Task, plan};
use tokenmill_golden_tests::{Golden, Variant};
use tokenmill_ir::{KvFormat, Mode};
use tokenmill_quant::FormatId;

fn machine(bytes: u64) -> Machine {
    Machine {
        name: "here".to_owned(),
        system: "linux x86_64".to_owned(),
        cores: 2,
        instructions: Instructions::Avx2,
        memory: bytes,
        available: Some(bytes),
        limits: Default::default(),
        disk: None,
        gpus: Vec::new(),
        peers: 0,
    }
}

fn described(model: &Lowered, device: &dyn Device, options: &LoadOptions) -> Model {
    let formats = &[(KvFormat::Bf16, "bf16")];
    let told = Described { name: "m", files: 1, arithmetic: Arithmetic::Int8, formats };
    describe(model, device, options, &told).expect("described")
}

/// What a need of so many users with such a context is planned to take: weights, cache, buffers, process,
/// all; context and streams.
type Taken = ([u64; 5], (u32, u32));

fn planned(model: &Lowered, device: &dyn Device, options: &LoadOptions) -> Option<Taken> {
    let need = Need {
        task: Task::Any,
        users: options.sequences,
        ctx: options.context,
        named: vec!["m".to_owned()],
    };
    let ask = |options: &LoadOptions| {
        let data = described(model, device, options);
        plan(&machine(options.memory_bytes), std::slice::from_ref(&data), &need)
    };
    let context = ask(options).chosen?.context;
    // As `plan` does: buffers of the context that was chosen.
    let chosen = ask(&LoadOptions { context: Some(context), ..options.clone() }).chosen?;
    let m = chosen.memory;
    let taken = [m.weights, m.cache, m.buffers, m.process, m.needed];
    Some((taken, (chosen.context, chosen.full_streams)))
}

/// As the loader says and as the planner says.
fn compare(arch: &str, model: &Lowered, device: &dyn Device, options: &LoadOptions) {
    let loaded = fit(&model.spec, &model.program, device, options);
    let planned = planned(model, device, options);
    let taken = loaded.ok().map(|(limits, fit)| (taken(&fit), (limits.context, fit.streams)));
    assert_eq!(planned, taken, "{arch} {options:?}");
}

fn taken(fit: &Fit) -> [u64; 5] {
    [
        fit.weight_bytes + fit.encoder.weight_bytes,
        fit.cache_bytes,
        fit.scratch_bytes + fit.encoder.buffer_bytes,
        fit.process_bytes,
        fit.needed_bytes(),
    ]
}

#[test]
fn encoders_of_images_are_counted_by_all_who_count() {
    let cpu = || -> Arc<dyn Device> {
        let options = CpuOptions { threads: 2, ..CpuOptions::default() };
        Arc::new(CpuDevice::new(options).expect("a CPU"))
    };
    for name in Golden::all_seeing() {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let path = Golden::read(&name).path(Variant::Config, scratch.path());
        let model = read(&path, KvFormat::Bf16).unwrap_or_else(|e| panic!("{name}: {e}"));
        for memory_bytes in [26 << 20, 32 << 20, 64 << 20, 1 << 30] {
            let (mode, kv) = (Mode::Int8, KvFormat::Bf16);
            let (context, sequences, step_tokens) = (Some(256), 2, 64);
            let options = LoadOptions {
                mode,
                kv,
                context,
                sequences,
                step_tokens,
                memory_bytes,
                images: true,
                weights: WeightBits::Auto,
            };
            let device = cpu();
            let planned = planned(&model, &*device, &options);
            let host = Host::start(Arc::clone(&device), memory_bytes).expect("a host");
            let go_on = |_, _| ControlFlow::Continue(());
            match host.load("m", &path, &options, go_on) {
                Ok(loaded) => {
                    assert!(loaded.encoder.is_some(), "{name} sees");
                    let fit = loaded.fit;
                    let found = (taken(&fit), (loaded.limits.context, fit.streams));
                    assert_eq!(planned, Some(found), "{name} {memory_bytes}");
                    assert!(fit.encoder.sum() > 0 && fit.needed_bytes() <= memory_bytes);
                    let held = host.ledger().list().first().map(|e| e.memory.sum());
                    assert_eq!(held, Some(fit.memory().sum()), "{name}: what it claims");
                    // As it would be measured before it is loaded beside others.
                    drop(loaded);
                    let shared = host.share(&path, &options, Some(memory_bytes));
                    let share = shared.unwrap_or_else(|e| panic!("{name}: {e}")).1;
                    assert_eq!(share.needs.bytes, fit.memory().sum(), "{name} {memory_bytes}");
                }
                Err(error) => {
                    assert_eq!(planned, None, "{name} {memory_bytes}: {error}");
                    let LoadFailure::DoesNotFit {
                        encoder_bytes,
                        available_bytes,
                        needed_bytes,
                        ..
                    } = error
                    else {
                        panic!("{name}: {error}");
                    };
                    assert!(encoder_bytes > 0 && available_bytes == memory_bytes);
                    assert!(
                        needed_bytes > memory_bytes,
                        "{name}: {needed_bytes} of {memory_bytes}"
                    );
                }
            }
        }
    }
}

#[test]
fn memory_is_what_loading_takes() {
    let cpu = CpuDevice::new(CpuOptions { threads: 2, ..CpuOptions::default() }).expect("a CPU");
    let devices: [&dyn Device; 2] = [&ReferenceDevice::new(32), &cpu];
    for arch in Golden::all() {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let path = Golden::read(&arch).path(Variant::Config, scratch.path());
        let model = read(&path, KvFormat::Bf16).unwrap_or_else(|e| panic!("{arch}: {e}"));
        if model.program.whole_sequences {
            continue; // (Steps of encoders are as long as their texts: `describe` and `load` say so.)
        }
        for device in devices {
            for (context, sequences) in [(None, 1), (None, 4), (Some(64), 3), (Some(100), 40)] {
                for memory_bytes in [1 << 20, 25 << 20, 28 << 20, 1 << 32] {
                    let mode = Mode::Int8;
                    let (kv, step_tokens) = (KvFormat::Bf16, 64);
                    let options = LoadOptions {
                        mode,
                        kv,
                        context,
                        sequences,
                        step_tokens,
                        memory_bytes,
                        images: true,
                        weights: WeightBits::Auto,
                    };
                    compare(&arch, &model, device, &options);
                }
            }
        }
    }
}

/// Blocks that are read transposed are f32 from there on, to all who count.
#[test]
fn what_is_read_transposed_is_counted_as_it_lies_in_memory() {
    let cpu = CpuDevice::new(CpuOptions { threads: 2, ..CpuOptions::default() }).expect("a CPU");
    let devices: [&dyn Device; 2] = [&ReferenceDevice::new(32), &cpu];
    let (golden, families) = Golden::latents();
    for family in families {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let model = read(&golden.path_of(&family, scratch.path()), KvFormat::Bf16).expect("read");
        let parts = model.program.weights.iter().flat_map(|w| w.parts.iter().map(move |p| (w, p)));
        let mut keys = 0;
        for (weight, _) in parts.filter(|(_, part)| part.transposed.is_some()) {
            let f32s = u64::from(weight.rows) * u64::from(weight.cols) * 4;
            assert_eq!(weight.stored_bytes(), f32s, "{family}: {}", weight.name);
            keys += f32s;
        }
        // (Two layers of two heads, 128 × 40.)
        assert_eq!(keys, 2 * 2 * 128 * 40 * 4, "{family}");
        // As much as if the file had these numbers in f32.
        let mut plain = model.program.clone();
        let parts = plain.weights.iter_mut().flat_map(|w| &mut w.parts);
        for part in parts.filter(|part| part.transposed.is_some()) {
            (part.format, part.order) = (FormatId::F32, None);
        }
        assert_eq!(active_bytes(&model.program), active_bytes(&plain), "{family}");
        for device in devices {
            let options = LoadOptions {
                mode: Mode::Int8,
                kv: KvFormat::Bf16,
                context: Some(64),
                sequences: 3,
                step_tokens: 64,
                memory_bytes: 1 << 32,
                images: true,
                weights: WeightBits::Auto,
            };
            compare(&family, &model, device, &options);
            let of = |program| fit(&model.spec, program, device, &options).expect("it fits").1;
            assert_eq!(of(&model.program).weight_bytes, of(&plain).weight_bytes, "{family}");
        }
    }
}

#[test]
fn work_is_what_programs_do() {
    let device = ReferenceDevice::new(32);
    for arch in Golden::all() {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let path = Golden::read(&arch).path(Variant::Config, scratch.path());
        let model = read(&path, KvFormat::Bf16).unwrap_or_else(|e| panic!("{arch}: {e}"));
        let options = LoadOptions {
            mode: Mode::Int8,
            kv: KvFormat::Bf16,
            context: Some(64),
            sequences: 4,
            step_tokens: 64,
            memory_bytes: 1 << 32,
            images: true,
            weights: WeightBits::Auto,
        };
        let data = described(&model, &device, &options);
        for (sequences, tokens, context) in [(1, 1, 0), (1, 1, 30), (4, 1, 16), (1, 32, 0)] {
            let scene = Scene { sequences, tokens, context };
            let (found, cost) =
                (work(&data, &data.kv[0], scene), model.program.cost(&scene.load()));
            let same = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.max(b).max(1.0);
            let outputs = if data.vocab == 0 { cost.ops } else { found.ops };
            assert!(same(outputs, cost.ops), "{arch} {scene:?}: {found:?}, not {cost:?}");
            if data.vocab > 0 {
                let (a, b) = (found.weights, cost.weight_bytes);
                assert!(same(a, b), "{arch} {scene:?}: {a}, not {b}");
            }
        }
    }
}

//! The planner knows of every architecture what loading takes and what a step costs, from its description alone.

use tokenmill_backend::Device;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_engine::describe::{Described, describe};
use tokenmill_engine::load::{LoadOptions, Lowered, read};
use tokenmill_engine::plan::{Scene, fit};
use tokenmill_engine::planner::estimate::work;
use tokenmill_engine::planner::factors::{Arithmetic, Instructions};
use tokenmill_engine::planner::{Machine, Model, Need, Task, Verdict, plan};
use tokenmill_golden_tests::{Golden, Variant};
use tokenmill_ir::{KvFormat, Mode};

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

/// As the loader says and as the planner says.
fn compare(arch: &str, model: &Lowered, device: &dyn Device, options: &LoadOptions) {
    let loaded = fit(&model.spec, &model.program, device, options);
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
    let mut planned = ask(options);
    if let Some(context) = planned.chosen.as_ref().map(|c| c.context) {
        // As `plan` does: buffers of the context that was chosen.
        planned = ask(&LoadOptions { context: Some(context), ..options.clone() });
    }
    let Ok((limits, fit)) = loaded else {
        assert_eq!(planned.verdict, Verdict::No, "{arch} {options:?}: {planned:?}");
        return;
    };
    let chosen = planned.chosen.clone();
    let chosen = chosen.unwrap_or_else(|| panic!("{arch} {options:?}: {planned:?}"));
    let m = chosen.memory;
    let found = (m.weights, m.cache, m.buffers, m.process, m.needed);
    let taken = (
        fit.weight_bytes,
        fit.cache_bytes,
        fit.scratch_bytes,
        fit.process_bytes,
        fit.needed_bytes(),
    );
    assert_eq!(found, taken, "{arch} {options:?}");
    let found = (chosen.context, chosen.full_streams);
    assert_eq!(found, (limits.context, fit.streams), "{arch} {options:?}");
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
                    let options =
                        LoadOptions { mode, kv, context, sequences, step_tokens, memory_bytes };
                    compare(&arch, &model, device, &options);
                }
            }
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

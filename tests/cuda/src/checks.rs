//! What a device of these kernels must show, wherever they run: on this machine (the tests) or on a GPU (`device_check`).

use std::ops::ControlFlow;

use tokenmill_backend::{Device, DeviceError, Executable};
use tokenmill_device_tests::conformance::{Case, Outcome, Tolerance, cases, prepared, run};
use tokenmill_engine::load::read;
use tokenmill_golden_tests::{Golden, Runner, Variant, worst_difference};
use tokenmill_ir::{Batch, KvFormat, Mode, Span, StepOutput};
use tokenmill_models::spec::Output;
use tokenmill_models::{ModelSpec, lower, spec_of};

/// What the kernels promise on this machine: arithmetic in f32, and scales of caches that may differ in their last bit.
pub fn promise(case: &Case) -> Tolerance {
    match ["Int16", "Int8", "Int4", "K8V4", "Bf16"].iter().any(|f| case.name.ends_with(f)) {
        true => case.tolerance,
        false => Tolerance { nmse: 1e-11, max: 2e-6 },
    }
}

/// What these kernels do not have: encoders and images run on the CPU.
const LACKS: [&str; 6] = [
    "tokens that see all of their block",
    "attention within blocks",
    "rotations by positions on several axes",
    "rows in the place of tokens",
    "output rows of several tokens",
    "final rows of several parts",
];

/// Every case of the suite, as near as promised: how many.
///
/// # Errors
/// Those that failed, a line each.
pub fn conformance(
    device: &dyn Device,
    mode: Mode,
    promise: &dyn Fn(&Case) -> Tolerance,
) -> Result<usize, String> {
    let only = std::env::var("CASE").ok();
    let (mut count, mut failed) = (0, Vec::new());
    run(device, mode, promise, &mut |report| {
        count += 1;
        if only.as_ref().is_none_or(|o| report.name.contains(o)) {
            println!("{report}");
        }
        let lacking = matches!(&report.outcome, Outcome::Unsupported(what) if LACKS.iter().any(|l| what.ends_with(l)));
        if !lacking && !matches!(report.outcome, Outcome::Passed(_)) {
            failed.push(report.to_string());
        }
    });
    match failed.len() {
        0 => Ok(count),
        n => Err(format!("{n} of {count} cases:\n{}", failed.join("\n"))),
    }
}

/// Cases of many kinds, by parts of their names.
const KINDS: [&str; 16] = [
    "linear q4_k 40x256",
    "linear of reordered columns, 1",
    "transposed u4_32",
    "norm Layer of a sum, 63",
    "9 heads on 3 over F32",
    "window of 20 over Bf16",
    "chunks of 20 over F32",
    "sinks over Int8",
    "narrow values over K8V4",
    "latent attention over F32",
    "conv",
    "delta rule, 6 heads on 2, Tiled",
    "scan, 6 heads in 2",
    "route Sigmoid, normalise true, groups",
    "experts q4_k and q6_k",
    "tied head q8_0",
];

/// Cases of every kind, for cache blocks of so many tokens.
pub fn of_kinds(block: u32) -> Vec<Case> {
    let all = cases(block);
    for kind in KINDS {
        assert!(all.iter().any(|c| c.name.contains(kind)), "no case is called {kind}");
    }
    all.into_iter().filter(|c| KINDS.iter().any(|k| c.name.contains(k))).collect()
}

/// One sequence of a step, and where its results were among those of all.
fn alone(batch: &Batch, span: &Span) -> Batch {
    let tokens = span.first as usize..(span.first + span.len) as usize;
    let inside = |row: u32| tokens.contains(&(row as usize));
    let outputs = batch.outputs.iter().filter(|o| inside(o.row)).map(|o| {
        let mut output = *o;
        output.row -= span.first;
        output
    });
    Batch {
        tokens: batch.tokens[tokens.clone()].to_vec(),
        positions: batch.positions[tokens.clone()].to_vec(),
        types: batch.types.get(tokens.clone()).unwrap_or_default().to_vec(),
        spans: vec![Span { first: 0, ..*span }],
        outputs: outputs.collect(),
        ..batch.clone()
    }
}

fn step(
    device: &dyn Device,
    mode: Mode,
    case: &Case,
    last: &Batch,
) -> Result<StepOutput, DeviceError> {
    let mut executable = prepared(device, mode, case)?;
    let mut out = StepOutput::default();
    let before = &case.steps[..case.steps.len() - 2];
    for batch in before.iter().chain([last]) {
        executable.submit(&mut batch.clone())?;
        executable.wait(&mut out)?;
    }
    Ok(out)
}

/// The bits of numbers.
pub fn bits(rows: &[f32]) -> Vec<u32> {
    rows.iter().map(|x| x.to_bits()).collect()
}

/// What else is in a step never shows, not in one bit, in such cases: how many.
///
/// # Errors
/// The first case in which it shows.
pub fn rows_alone(device: &dyn Device, mode: Mode, all: &[Case]) -> Result<usize, String> {
    for case in all {
        let failed = |e: DeviceError| format!("{}: {e}", case.name);
        let batch = &case.steps[case.steps.len() - 2];
        let together = step(device, mode, case, batch).map_err(failed)?;
        let mut apart = Vec::new();
        for span in &batch.spans {
            apart.extend(step(device, mode, case, &alone(batch, span)).map_err(failed)?.rows);
        }
        if apart.is_empty() || bits(&together.rows) != bits(&apart) {
            return Err(format!("{}: rows alone are not those of a batch", case.name));
        }
    }
    Ok(all.len())
}

/// All steps of a case from the beginning: bits of rows, tokens.
///
/// # Errors
/// What the device says.
pub fn steps_of(
    executable: &mut dyn Executable,
    case: &Case,
) -> Result<Vec<Vec<u32>>, DeviceError> {
    let mut all = Vec::new();
    for step in &case.steps {
        let mut out = StepOutput::default();
        executable.submit(&mut step.clone())?;
        executable.wait(&mut out)?;
        let sampled = out.sampled.iter().map(|s| s.token);
        all.push(bits(&out.rows).into_iter().chain(sampled).collect());
    }
    Ok(all)
}

/// A case's steps again and again, its caches smaller and larger in between: launched one by one,
/// as graphs, and as graphs of before, they give the same bits.
///
/// # Errors
/// What differs.
pub fn again(device: &dyn Device, case: &Case) -> Result<(), String> {
    let failed = |e: DeviceError| format!("{}: {e}", case.name);
    let watch = &mut |_| ControlFlow::Continue(());
    let weights = device.upload(&case.program, &case.material, Mode::F32, watch);
    let weights = weights.map_err(failed)?;
    let mut executable = device.compile(&case.program, &weights, &case.limits).map_err(failed)?;
    let first = steps_of(&mut *executable, case).map_err(failed)?;
    let most = &case.limits.group_blocks;
    let fewer: Vec<u32> = most.iter().map(|n| n / 2).collect();
    for round in 1..4 {
        if steps_of(&mut *executable, case).map_err(failed)? != first {
            return Err(format!("{}: other bits in round {round}", case.name));
        }
        executable.resize(&fewer).and_then(|()| executable.resize(most)).map_err(failed)?;
    }
    Ok(())
}

/// Largest |Δlogit| allowed against transformers, whose own noise is about 1e-5.
const TOLERANCE: f32 = 1e-4;

/// A recorded architecture: outputs of the prompt whole and in chunks, greedy tokens.
///
/// # Errors
/// What differs.
pub fn recording(arch: &str, device: &dyn Device) -> Result<(), String> {
    let golden = Golden::read(arch);
    let context = (golden.ids.len() + golden.greedy.len()) as u32 + 1;
    let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
    let model = golden.open(Variant::Config, scratch.path());
    let spec = spec_of(&model.checkpoint).map_err(|e| format!("{arch}: {e}"))?;
    let pooled = golden.greedy.is_empty();
    let outputs = if pooled { vec![Some("hidden.f32"), None] } else { vec![None] };
    for hidden in outputs {
        let output = if hidden.is_some() { Output::Hidden } else { spec.output };
        let spec = ModelSpec { output, ..spec.clone() };
        let lowered = lower(&spec, &model.checkpoint, KvFormat::F32);
        let lowered = lowered.map_err(|e| format!("{arch}: {e}"))?;
        let expected = golden.floats(match (pooled, hidden) {
            (_, Some(file)) => file,
            (true, None) => "embedding.f32",
            _ => "logits.f32",
        });
        let chunks = if pooled { vec![512] } else { vec![512, 7] };
        let mut whole: Option<Vec<f32>> = None;
        for chunk in chunks {
            let what = format!("{arch} in chunks of {chunk}");
            let failed = |e: DeviceError| format!("{what}: {e}");
            let mut run = Runner::new(device, Mode::F32, &lowered.program, &model, context)
                .map_err(failed)?;
            let rows = match (pooled, hidden) {
                (true, None) => run.feed(&golden.ids, 1),
                _ => run.prefill(&golden.ids, chunk),
            }
            .map_err(failed)?;
            let (worst, _) = worst_difference(&rows, &expected);
            if worst.is_nan() || worst > TOLERANCE {
                return Err(format!("{what}: off by {worst}"));
            }
            // What else is in a step never shows.
            if bits(&rows) != bits(whole.get_or_insert_with(|| rows.clone())) {
                return Err(format!("{what}: not the bits of the whole prompt"));
            }
            if !pooled && chunk < 512 {
                let last = &rows[rows.len() - lowered.program.vocab as usize..];
                let tokens = run.greedy(last, golden.greedy.len()).map_err(failed)?;
                if tokens != golden.greedy {
                    return Err(format!("{what}: {tokens:?}, not {:?}", golden.greedy));
                }
            }
        }
    }
    Ok(())
}

/// Latent attention whose up-projection is quantised, in every family's file: the prompt whole and in chunks.
///
/// # Errors
/// What differs.
pub fn latents(device: &dyn Device) -> Result<(), String> {
    let (golden, families) = Golden::latents();
    for family in families {
        let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
        let model = read(&golden.path_of(&family, scratch.path()), KvFormat::F32);
        let model = model.map_err(|e| format!("{family}: {e}"))?;
        let expected = golden.floats(&format!("{family}.f32"));
        for chunk in [512, 7] {
            let context = golden.ids.len() as u32;
            let run = Runner::new(device, Mode::F32, &model.program, &model.files, context);
            let rows = run.and_then(|mut run| run.prefill(&golden.ids, chunk));
            let rows = rows.map_err(|e| format!("{family}: {e}"))?;
            let (worst, _) = worst_difference(&rows, &expected);
            if worst.is_nan() || worst > TOLERANCE {
                return Err(format!("{family} in chunks of {chunk}: off by {worst}"));
            }
        }
    }
    Ok(())
}

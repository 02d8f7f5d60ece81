//! The conformance suite through the kernels as plain C++: every case, every case whose rows come alone, spoiled batches, and
//! mistakes planted in kernels.

use std::sync::Arc;

use tokenmill_backend::Device;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_cuda::CudaDevice;
use tokenmill_cuda_tests::{Emulated, Fault, Kernels, device};
use tokenmill_device_tests::conformance::{
    Case, Outcome, Tolerance, cases, difference, endure, outputs, prepared, run,
};
use tokenmill_ir::{Batch, Mode, Span, StepOutput};

/// What this device promises: arithmetic in f32, and scales of caches that may differ in their last bit.
fn promise(case: &Case) -> Tolerance {
    match ["Int16", "Int8", "Int4", "K8V4", "Bf16"].iter().any(|f| case.name.ends_with(f)) {
        true => case.tolerance,
        false => Tolerance { nmse: 1e-11, max: 2e-6 },
    }
}

#[test]
fn every_case_passes() {
    let Some(device) = device(32) else { return };
    let only = std::env::var("CASE").ok();
    let (mut count, mut failed) = (0, Vec::new());
    run(&device, Mode::F32, &promise, &mut |report| {
        count += 1;
        if only.as_ref().is_none_or(|o| report.name.contains(o)) {
            println!("{report}");
        }
        if !matches!(report.outcome, Outcome::Passed(_)) {
            failed.push(report.to_string());
        }
    });
    assert!(failed.is_empty(), "{} of {count}:\n{}", failed.len(), failed.join("\n"));
    assert!(count > 300, "{count} cases");
}

/// Cases of many kinds, by parts of their names.
const KINDS: [&str; 15] = [
    "linear q4_k 40x256",
    "linear of reordered columns, 1",
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

fn of_kinds(block: u32) -> Vec<Case> {
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

fn step(device: &dyn Device, case: &Case, last: &Batch) -> StepOutput {
    let mut executable = prepared(device, Mode::F32, case).expect("compiles");
    let mut out = StepOutput::default();
    let before = &case.steps[..case.steps.len() - 2];
    for batch in before.iter().chain([last]) {
        executable.submit(&mut batch.clone()).expect("submits");
        executable.wait(&mut out).expect("computes");
    }
    out
}

/// What else is in a step never shows, not in one bit.
#[test]
fn rows_alone_are_those_of_a_batch() {
    let Some(device) = device(5) else { return };
    for case in of_kinds(5) {
        let batch = &case.steps[case.steps.len() - 2];
        let together = step(&device, &case, batch);
        let mut apart = Vec::new();
        for span in &batch.spans {
            apart.extend(step(&device, &case, &alone(batch, span)).rows);
        }
        let bits = |rows: &[f32]| rows.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(!apart.is_empty(), "{}", case.name);
        assert_eq!(bits(&together.rows), bits(&apart), "{}", case.name);
    }
}

#[test]
fn bad_batches_are_refused_and_hurt_nobody() {
    let Some(device) = device(32) else { return };
    let wanted =
        ["sampling", "window of 20 over F32", "scan, 4", "latent attention over F32", "pool Mean"];
    for case in cases(32).iter().filter(|c| wanted.iter().any(|w| c.name.contains(w))) {
        let refused = endure(&device, Mode::F32, case, 60);
        assert!(refused.as_ref().is_ok_and(|&n| n > 60), "{}: {refused:?}", case.name);
    }
}

/// A mistake, and the cases that must see it.
const FAULTS: [(&str, Fault); 8] = [
    (
        "window of 20 over F32",
        Fault {
            file: "attend.cu",
            from: "place + 1 > n ? place + 1 - n : 0",
            to: "place + 1 > n ? place + 2 - n : 0",
        },
    ),
    (
        "plain over F32",
        Fault { file: "attend.cu", from: "{0, place + 1}", to: "{0, place + (place == 0)}" },
    ),
    (
        "9 heads on 3 over F32",
        Fault { file: "attend.cu", from: "head / (a.n[0] / a.n[1])", to: "head % a.n[1]" },
    ),
    (
        "plain over F32",
        Fault {
            file: "attend.cu",
            from: "from + table[i / block_tokens] * block_bytes",
            to: "from + table[i / block_tokens & 1] * block_bytes",
        },
    ),
    (
        "rotation of queries alone",
        Fault {
            file: "attend.cu",
            from: "mul_rn((float)position, freq)",
            to: "mul_rn((float)(position + 1), freq)",
        },
    ),
    (
        "linear of q4_k, q6_k and f32 parts",
        Fault {
            file: "product.cu",
            from: "(sum[i] + bias) * scale *",
            to: "(sum[i] + bias * scale) *",
        },
    ),
    (
        "experts q4_k and",
        Fault { file: "experts.cu", from: "fmaf(route[top + s],", to: "fmaf(route[top]," },
    ),
    ("conv", Fault { file: "recurrent.cu", from: "(int)kept + i", to: "-1 - i" }),
];

#[test]
fn planted_mistakes_are_seen() {
    let all = cases(7);
    for (name, fault) in FAULTS {
        let Some(kernels) = Kernels::with(fault) else { return };
        let device = CudaDevice::new(Arc::new(Emulated::new(kernels)), 7);
        let mut seen = false;
        for case in all.iter().filter(|c| c.name.contains(name)) {
            let truth = outputs(&ReferenceDevice::new(7), Mode::F32, case).expect("the reference");
            let found = outputs(&device, Mode::F32, case).expect("runs");
            let limit = promise(case);
            seen |= found.iter().zip(&truth).any(|(f, t)| {
                let error = difference(&f.rows, &t.rows);
                error.map_or(true, |e| e.nmse > limit.nmse || e.max > limit.max)
            });
        }
        assert!(seen, "{fault:?} is not seen by {name}");
    }
}

//! The suite every device passes, whole, on each instruction set of this machine in each mode,
//! nearer to the reference than the suite asks.

use tokenmill_cpu::isa::Isa;
use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_device_tests::conformance::{Case, Outcome, Tolerance, run};
use tokenmill_ir::{KvFormat, Mode, WeightUse};
use tokenmill_quant::FormatId;

/// f32 arithmetic in another order.
const EXACT: Tolerance = Tolerance { nmse: 2e-12, max: 5e-6 };

/// How near products with weights of a format are: twice what was measured.
fn of_product(mode: Mode, format: FormatId) -> Tolerance {
    use FormatId as F;
    match (mode, format) {
        (Mode::F32, _) | (_, F::F32 | F::F16 | F::NF4_64 | F::FP4_64) => EXACT,
        (Mode::Int8, F::E4M3_32) => EXACT,
        // One rounding of inputs and weights to bf16.
        (Mode::Bf16, _) | (Mode::Int8, F::BF16) => Tolerance { nmse: 4e-5, max: 2e-2 },
        // Inputs as bytes with a scale for 32 columns.
        (Mode::Int8, _) => Tolerance { nmse: 2e-4, max: 2e-2 },
    }
}

/// How near attention over keys and values of a format is, whatever the mode.
fn of_cache(format: KvFormat) -> Tolerance {
    match format {
        // What is stored is the same to the bit, and what is computed with it is f32.
        KvFormat::F32 | KvFormat::Int4 => EXACT,
        KvFormat::Bf16 => Tolerance { nmse: 2e-5, max: 2e-2 },
        KvFormat::Int16 => Tolerance { nmse: 5e-7, max: 1e-3 },
        // Heads of any width: transformed ones are rounded elsewhere than the reference's.
        KvFormat::Int8 | KvFormat::K8V4 => Tolerance { nmse: 2e-4, max: 4e-2 },
    }
}

/// The farthest of what a case holds.
fn promise(mode: Mode, case: &Case) -> Tolerance {
    let matrix = |role| !matches!(role, WeightUse::Vector | WeightUse::LogVector | WeightUse::Rows);
    let weights = case.program.weights.iter().filter(|w| matrix(w.role));
    let formats = weights.flat_map(|w| w.parts.iter().map(|part| part.format));
    let caches = case.program.caches.iter().map(|cache| of_cache(cache.format));
    formats.map(|format| of_product(mode, format)).chain(caches).fold(EXACT, |most, next| {
        Tolerance { nmse: most.nmse.max(next.nmse), max: most.max.max(next.max) }
    })
}

#[test]
fn every_instruction_set_passes() {
    for isa in Isa::ALL {
        if !isa.is_available() {
            println!("did not run on this machine: {}", isa.name());
            continue;
        }
        for mode in [Mode::Int8, Mode::Bf16, Mode::F32] {
            let options = CpuOptions { threads: 2, isa: Some(isa) };
            let device = CpuDevice::new(options).expect("a device");
            let (mut failed, mut passed) = (Vec::new(), 0);
            run(&device, mode, &|case| promise(mode, case), &mut |report| match report.outcome {
                Outcome::Passed(_) => passed += 1,
                Outcome::Unsupported(_) | Outcome::Failed(_) => failed.push(report.to_string()),
            });
            assert!(failed.is_empty(), "{} {mode:?}:\n{}", isa.name(), failed.join("\n"));
            assert!(passed > 150, "{passed} cases");
        }
    }
}

//! The suite every device passes, whole, on each instruction set of this machine in each mode.

use tokenmill_backend::conformance::{Outcome, run};
use tokenmill_cpu::isa::Isa;
use tokenmill_cpu::{CpuDevice, CpuOptions, Mode};

#[test]
fn every_instruction_set_passes() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for mode in [Mode::Int8, Mode::Bf16, Mode::F32] {
            let options = CpuOptions { threads: 2, isa: Some(isa), mode, ..Default::default() };
            let mut device = CpuDevice::new(options).expect("a device");
            let (mut failed, mut passed) = (Vec::new(), 0);
            run(&mut device, &mut |report| match report.outcome {
                Outcome::Passed(_) => passed += 1,
                Outcome::Unsupported(_) | Outcome::Failed(_) => failed.push(report.to_string()),
            });
            assert!(failed.is_empty(), "{} {mode:?}:\n{}", isa.name(), failed.join("\n"));
            assert!(passed > 150, "{passed} cases");
        }
    }
}

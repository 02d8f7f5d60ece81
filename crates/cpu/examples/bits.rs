//! The bits of every case of the conformance suite on each instruction set that the processor has,
//! against the scalar code: for processors that are not at hand, on one thread, so that an
//! emulator can run it (`.ci/emulate.py`).
//!
//!     bits [EVERY [NAMES] [=PART]]     one case in EVERY, of bf16 and f32 mode a quarter of that; these
//!                                      instruction sets, if the processor has them; cases whose names have PART

use tokenmill_backend::Device;
use tokenmill_cpu::isa::Isa;
use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_device_tests::conformance::{cases, outputs};
use tokenmill_ir::Mode;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let every: usize = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(1);
    let (parts, names): (Vec<String>, Vec<String>) = arguments.partition(|n| n.starts_with('='));
    let wanted = |isa: &Isa| names.is_empty() || names.iter().any(|n| n == isa.name());
    let others = Isa::ALL.into_iter().filter(|isa| *isa != Isa::Scalar && isa.is_available());
    let sets: Vec<Isa> = others.filter(wanted).collect();
    let device = |isa| CpuDevice::new(CpuOptions { threads: 1, isa: Some(isa) }).expect("a device");
    let block_tokens = device(Isa::Scalar).caps().block_tokens;
    let (mut compared, mut differ) = (0, 0);
    let chosen = |name: &str| parts.iter().all(|part| name.contains(&part[1..]));
    let cases = cases(block_tokens);
    for (i, case) in cases.iter().filter(|case| chosen(&case.name)).enumerate() {
        let modes = [(Mode::Int8, every), (Mode::Bf16, every * 4), (Mode::F32, every * 4)];
        for (mode, _) in modes.into_iter().filter(|(_, every)| (i + 3) % every == 0) {
            let expected = outputs(&device(Isa::Scalar), mode, case).expect("the scalar code");
            for &isa in &sets {
                let found = outputs(&device(isa), mode, case).expect("another");
                compared += 1;
                if format!("{found:?}") != format!("{expected:?}") {
                    differ += 1;
                    println!("{} {mode:?}: {} differs", isa.name(), case.name);
                }
            }
        }
    }
    let ran: Vec<&str> = sets.iter().map(|isa| isa.name()).collect();
    println!("ran: {}; {compared} results compared, {differ} differ", ran.join(", "));
    if differ > 0 || (compared == 0 && !names.is_empty()) {
        std::process::exit(1);
    }
}

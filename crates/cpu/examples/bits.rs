//! The bits of every case of the conformance suite on each instruction set that the processor has,
//! against the scalar code: for processors that are not at hand, on one thread, so that an emulator can run
//! it (`.ci/emulate.py`).
//!
//!     bits [EVERY]     one case in EVERY

use tokenmill_backend::Backend;
use tokenmill_backend::conformance::{cases, outputs};
use tokenmill_cpu::isa::Isa;
use tokenmill_cpu::{CpuDevice, CpuOptions, Mode};

fn main() {
    let every: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1);
    let sets: Vec<Isa> = Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect();
    let device = |isa, mode| {
        let options = CpuOptions { threads: 1, isa: Some(isa), mode, ..Default::default() };
        CpuDevice::new(options).expect("a device")
    };
    let block_tokens = device(Isa::Scalar, Mode::F32).caps().block_tokens;
    let (mut compared, mut differ) = (0, 0);
    for (i, case) in cases(block_tokens).iter().enumerate() {
        let modes = [Mode::Int8, Mode::Bf16, Mode::F32].into_iter().enumerate();
        for (_, mode) in modes.filter(|(turn, _)| (i + turn) % every == 0) {
            let expected = outputs(&mut device(Isa::Scalar, mode), case).expect("the scalar code");
            for &isa in sets.iter().filter(|isa| **isa != Isa::Scalar) {
                let found = outputs(&mut device(isa, mode), case).expect("another");
                compared += 1;
                if format!("{found:?}") != format!("{expected:?}") {
                    differ += 1;
                    println!("{} {mode:?}: {} differs", isa.name(), case.name);
                }
            }
        }
    }
    let names: Vec<&str> = sets.iter().map(|isa| isa.name()).collect();
    println!("ran: {}; {compared} results compared, {differ} differ", names.join(", "));
    if differ > 0 || compared == 0 {
        std::process::exit(1);
    }
}

//! Runs steps of a small model for an instruction counter: see `cargo xtask instructions`.
//!
//! Every call of `measured` is one case; their names are printed in the order of the calls.

#[path = "../tests/model/mod.rs"]
mod model;

use model::{LEN, Model, Plan};
use tokenmill_backend::Executable;
use tokenmill_cpu::isa::Isa;
use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_ir::{Batch, KvFormat, Mode, StepOutput};
use tokenmill_quant::FormatId;

/// What a step holds: its name, how sequences are run, the tokens before the measured step.
const STEPS: [(&str, Plan, u32); 3] = [
    ("prefill 300", Plan { sequences: 1, chunk: LEN, shift: 0 }, 0),
    ("decode 1", Plan { sequences: 1, chunk: 1, shift: 0 }, LEN - 1),
    ("decode 8", Plan { sequences: 8, chunk: 1, shift: 0 }, LEN - 1),
];

fn main() {
    let cases = [
        (FormatId::Q4_0, KvFormat::Int16),
        (FormatId::Q5_1, KvFormat::Int8),
        (FormatId::Q8_0, KvFormat::Int16),
        (FormatId::BF16, KvFormat::F32),
    ];
    let of_latents = [(FormatId::Q4_0, KvFormat::Int16), (FormatId::BF16, KvFormat::Int8)];
    let ordinary = cases.map(|(format, kv)| (format, kv, Model::of(kv, [format; 4]), "kv"));
    let latents =
        of_latents.map(|(format, kv)| (format, kv, Model::of_latents(kv, [format; 4]), "latents"));
    for (format, kv, model, of) in ordinary.into_iter().chain(latents) {
        // The widest instruction set that the counter knows; one thread, or waiting would count.
        let options = CpuOptions { threads: 1, isa: Some(Isa::Avx2) };
        let device = CpuDevice::new(options).expect("a machine with AVX2");
        for (name, plan, done) in STEPS {
            let mut executable = model.compile(&device, Mode::Int8);
            let mut out = StepOutput::default();
            let mut batch = model.step(&mut model.pager(), &plan, done);
            measured(&mut *executable, &mut batch, &mut out);
            assert!(out.rows.iter().all(|x| x.is_finite()));
            println!("{}, {of} {kv:?}, {name}", format.name());
        }
    }
}

/// The counter counts in here alone.
#[inline(never)]
fn measured(executable: &mut dyn Executable, batch: &mut Batch, out: &mut StepOutput) {
    executable.submit(batch).expect("a good batch");
    executable.wait(out).expect("a step");
}

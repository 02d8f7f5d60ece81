//! Results of a token are the same bits whatever the batch, the chunks, the threads and the
//! instruction set: random weights, whole small models, compared bit for bit.

mod model;

use model::{Model, Plan};
use tokenmill_cpu::isa::Isa;
use tokenmill_cpu::{CpuDevice, CpuOptions, Mode};
use tokenmill_ir::KvFormat;

/// Logits of every token of sequence 0, as bits, when run as `plan` says.
fn logits(model: &Model, isa: Isa, threads: usize, mode: Mode, plan: &Plan) -> Vec<u32> {
    let options = CpuOptions { threads, isa: Some(isa), mode, ..Default::default() };
    let mut device = CpuDevice::new(options).expect("a device");
    model.run(&mut device, plan)
}

#[test]
fn batch_chunks_threads_and_instruction_set_do_not_show() {
    let isas: Vec<Isa> = Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect();
    let best = Isa::detect();
    for (kv, mode) in [
        (KvFormat::Bf16, Mode::Int8),
        (KvFormat::Int8, Mode::Int8),
        (KvFormat::F32, Mode::F32),
        (KvFormat::Bf16, Mode::Bf16),
    ] {
        let model = Model::new(kv);
        let alone = |chunk| Plan { sequences: 1, chunk, shift: 0 };
        let expected = logits(&model, best, 1, mode, &alone(1));
        assert!(expected.iter().all(|&x| f32::from_bits(x).is_finite()));
        let check = |what: &str, found: Vec<u32>| {
            let differing = expected.iter().zip(&found).position(|(e, f)| e != f);
            assert_eq!(found.len(), expected.len());
            assert_eq!(differing, None, "{kv:?} {mode:?}: {what}");
        };
        for chunk in [7, 64, 512] {
            for threads in [1, 2, 3] {
                let found = logits(&model, best, threads, mode, &alone(chunk));
                check(&format!("chunks of {chunk}, {threads} threads"), found);
            }
        }
        for (threads, chunk) in [(1, 1), (2, 1), (2, 7), (3, 64)] {
            let plan = Plan { sequences: 8, chunk, shift: 3 };
            let found = logits(&model, best, threads, mode, &plan);
            check(&format!("8 sequences, chunks of {chunk}, {threads} threads"), found);
        }
        for &isa in isas.iter().filter(|isa| **isa != best) {
            check(isa.name(), logits(&model, isa, 2, mode, &alone(64)));
        }
    }
}

//! Results of a token are the same bits whatever the batch, the chunks, the threads and the
//! instruction set: random weights, whole small models, compared bit for bit.

mod model;

use model::{Model, Plan};
use tokenmill_cpu::isa::Isa;
use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_device_tests::conformance::{cases, outputs};
use tokenmill_ir::{KvFormat, Mode};
use tokenmill_quant::FormatId;

/// Logits of every token of sequence 0, as bits, when run as `plan` says.
fn logits(model: &Model, isa: Isa, threads: usize, mode: Mode, plan: &Plan) -> Vec<u32> {
    let options = CpuOptions { threads, isa: Some(isa) };
    let device = CpuDevice::new(options).expect("a device");
    model.run(&device, mode, plan)
}

#[test]
fn batch_chunks_threads_and_instruction_set_do_not_show() {
    let isas: Vec<Isa> = Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect();
    let best = Isa::detect();
    let formats = [FormatId::Q4_0, FormatId::Q8_0, FormatId::Q5_1, FormatId::F16];
    for (model, kv, mode) in [
        (Model::new(KvFormat::Int16), KvFormat::Int16, Mode::Int8),
        (Model::new(KvFormat::Bf16), KvFormat::Bf16, Mode::Int8),
        (Model::new(KvFormat::Int8), KvFormat::Int8, Mode::Int8),
        (Model::new(KvFormat::Int4), KvFormat::Int4, Mode::Int8),
        (Model::new(KvFormat::K8V4), KvFormat::K8V4, Mode::Int8),
        (Model::new(KvFormat::F32), KvFormat::F32, Mode::F32),
        (Model::new(KvFormat::Bf16), KvFormat::Bf16, Mode::Bf16),
        (Model::of_latents(KvFormat::Int16, formats), KvFormat::Int16, Mode::Int8),
        (Model::of_latents(KvFormat::Int8, formats), KvFormat::Int8, Mode::Int8),
    ] {
        let alone = |chunk| Plan { sequences: 1, chunk, shift: 0 };
        let expected = logits(&model, best, 1, mode, &alone(1));
        assert!(expected.iter().all(|&x| f32::from_bits(x).is_finite()));
        let check = |what: &str, found: Vec<u32>| {
            let differing = expected.iter().zip(&found).position(|(e, f)| e != f);
            assert_eq!(found.len(), expected.len());
            assert_eq!(
                differing, None,
                "{:?} {kv:?} {mode:?}: {what}",
                model.program.caches[0].kind
            );
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

#[test]
fn every_op_gives_the_same_bits_on_every_instruction_set_and_number_of_threads() {
    let all: Vec<Isa> = Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect();
    let cases = cases(32);
    for mode in [Mode::Int8, Mode::F32] {
        let device = |isa, threads| {
            CpuDevice::new(CpuOptions { threads, isa: Some(isa) }).expect("a device")
        };
        let first = device(Isa::detect(), 1);
        let mut others: Vec<CpuDevice> = all.iter().map(|&isa| device(isa, 2)).collect();
        others.push(device(Isa::detect(), 5));
        for case in &cases {
            let bits = |device: &CpuDevice| -> Vec<(Vec<u32>, Vec<u32>)> {
                let steps = outputs(device, mode, case).expect("runs");
                let rows =
                    |s: &tokenmill_ir::StepOutput| s.rows.iter().map(|x| x.to_bits()).collect();
                let tokens = |s: &tokenmill_ir::StepOutput| {
                    s.sampled.iter().flat_map(|s| [s.token, s.logprob.to_bits()]).collect()
                };
                steps.iter().map(|s| (rows(s), tokens(s))).collect()
            };
            let expected = bits(&first);
            for other in &others {
                assert!(bits(other) == expected, "{} {mode:?}: {:?}", case.name, other.isa());
            }
        }
    }
}

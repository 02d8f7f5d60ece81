//! A steady decode step allocates nothing, on any thread, with penalties and log-probabilities on.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

mod model;

use model::{Model, VOCAB};
use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_ir::{
    Batch, BlockId, KvFormat, MAX_GROUPS, Mode, OutputKind, OutputRow, SamplingParams, Span,
    StepOutput, TokenSource,
};

/// Counts what every thread of the process asks for.
struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Decodes token `index` of `sequences` sequences; all kinds of sampling take turns.
fn fill(batch: &mut Batch, sequences: u32, index: u32) {
    batch.clear();
    batch.history.extend((0..40).map(|i| (i * 17) % VOCAB));
    batch.bias.push((7, 0.5));
    batch.masks.extend((0..VOCAB.div_ceil(32)).map(|_| 0xdb6d_b6db));
    let base = SamplingParams { index, seed: 5, ..SamplingParams::default() };
    let hot = SamplingParams { temperature: 0.9, logprobs: Some(5), ..base };
    let kinds = [
        SamplingParams { repetition_penalty: 1.2, frequency_penalty: 0.1, ..hot },
        SamplingParams { top_p: 0.8, top_k: 20, ..hot },
        SamplingParams { presence_penalty: 0.3, min_p: 0.05, ..hot },
        base,
    ];
    for s in 0..sequences {
        let mut tables = [0; MAX_GROUPS];
        for start in tables.iter_mut().take(2) {
            *start = batch.tables.len() as u32;
            batch.tables.extend((0..8).map(|i| BlockId(s * 8 + i)));
        }
        batch.spans.push(Span { first: s, len: 1, context: index, tables });
        batch.tokens.push(if index == 0 { TokenSource::Id(s) } else { TokenSource::Sampled(s) });
        batch.positions.push(index);
        let params = kinds[s as usize % kinds.len()];
        let (history, bias, mask) = ((0, 40), (0, 1), if s % 2 == 0 { 0 } else { u32::MAX });
        let kind = OutputKind::Sample { params, history, prompt: 20, bias, rules: bias, mask };
        batch.outputs.push(OutputRow { row: s, kind });
    }
}

#[test]
fn a_decode_step_allocates_nothing() {
    let model = Model::new(KvFormat::Int16);
    let options = CpuOptions { threads: 3, ..CpuOptions::default() };
    let device = CpuDevice::new(options).expect("a device");
    let mut executable = model.compile(&device, Mode::Int8);
    for sequences in [1, 8] {
        let (mut batch, mut out) = (Batch::default(), StepOutput::default());
        let mut before = 0;
        for index in 0..100 {
            if index == 6 {
                before = COUNT.load(Ordering::SeqCst);
            }
            fill(&mut batch, sequences, index);
            executable.submit(&mut batch).expect("a good batch");
            executable.wait(&mut out).expect("a step");
            assert!(out.sampled.iter().all(|s| s.valid));
        }
        let count = COUNT.load(Ordering::SeqCst) - before;
        assert_eq!(count, 0, "{sequences} sequences: {count} allocations in 94 steps");
    }
}

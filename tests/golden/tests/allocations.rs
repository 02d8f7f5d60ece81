//! A steady decode step of the whole engine loop (plan, fill, run on the CPU device, commit,
//! deliver) allocates nothing but the events that it gives away.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[path = "../../../crates/cpu/tests/model/mod.rs"]
mod model;

use model::{Model, VOCAB};
use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_engine::{Core, EngineParts, Event, Request, Timekeeper, Turn, system_clock};
use tokenmill_ir::{KvFormat, Limits, Mode, SamplingParams};
use tokenmill_sched::{Config, StepCost};

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

/// Sequences side by side.
const SEQUENCES: u64 = 6;

fn core() -> Core {
    let mut model = Model::new(KvFormat::Int16);
    model.limits = Limits {
        step_tokens: 64,
        sequences: SEQUENCES as u32,
        outputs: 64,
        context: 256,
        group_blocks: vec![8 * SEQUENCES as u32; 2],
        top_logprobs: 4,
    };
    let config = Config {
        groups: model.program.groups(),
        block_tokens: 32,
        limits: model.limits.clone(),
        whole_sequences: false,
        vocab: VOCAB,
        hidden: model.program.hidden,
        cost: StepCost::new(1e-3, 1e-5, 0.0),
        step_s: 1.0,
        checkpoint_slots: 0,
        longest_block: 0,
    };
    let options = CpuOptions { threads: 2, ..CpuOptions::default() };
    let device = CpuDevice::new(options).expect("a device");
    let build = move || Ok(model.compile(&device, Mode::Int8));
    Core::new(EngineParts {
        device: build().expect("compiles"),
        rebuild: Box::new(move |_| build()),
        ids: VOCAB,
        input_cols: 0,
        config,
        tokenizer: None,
        eos: Vec::new(),
        queue: 16,
        draft: tokenmill_engine::DraftMode::None,
        clock: system_clock(),
        claim: None,
    })
}

/// Requests of every kind of sampling; what they deliver is counted.
fn submit(core: &mut Core, delivered: &Arc<AtomicU64>) {
    let hot = SamplingParams { temperature: 0.9, seed: 7, ..SamplingParams::default() };
    let kinds = [
        SamplingParams::default(),
        SamplingParams { repetition_penalty: 1.2, frequency_penalty: 0.1, ..hot },
        SamplingParams { top_p: 0.8, top_k: 20, min_p: 0.01, ..hot },
    ];
    for id in 0..SEQUENCES {
        let prompt = (0..20 + 9 * id as u32).map(|i| (i * 31 + id as u32) % VOCAB).collect();
        let request = Request {
            sampling: kinds[id as usize % kinds.len()],
            max_tokens: Some(150),
            timeline: Some(Arc::new(Timekeeper::named("noted".into()))),
            ..Request::new(prompt)
        };
        let delivered = Arc::clone(delivered);
        let sink = move |event| {
            assert!(!matches!(event, Event::Failed(_)), "{event:?}");
            delivered.fetch_add(1, Ordering::SeqCst);
            true
        };
        core.enqueue(request.account);
        core.take(id + 1, request, Box::new(sink));
    }
}

#[test]
fn a_decode_step_of_the_engine_allocates_only_its_events() {
    let (mut core, delivered) = (core(), Arc::new(AtomicU64::new(0)));
    submit(&mut core, &delivered);
    // Every prompt is computed, and every sequence has decoded for a while.
    while delivered.load(Ordering::SeqCst) < 10 * SEQUENCES {
        assert_eq!(core.turn(), Turn::Worked);
    }
    let count = || (COUNT.load(Ordering::SeqCst), delivered.load(Ordering::SeqCst));
    let before = count();
    // Several blocks fill and go to the prefix tree; no answer ends.
    for step in 0..100 {
        assert_eq!(core.turn(), Turn::Worked);
        let after = count();
        let (allocated, events) = (after.0 - before.0, after.1 - before.1);
        // The list of tokens in an event is the receiver's.
        assert_eq!(allocated, events, "allocations by step {step}");
    }
    assert_eq!(count().1 - before.1, 100 * SEQUENCES);
}

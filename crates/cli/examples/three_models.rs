//! A stream of one model while a second reads a prompt of 8K tokens and a third loads, on this
//! machine: `cargo run --release --example three_models MODEL [MODEL MODEL]`. Prints the stream's gaps
//! beside what the scheduler promised, and memory by the ledger beside what is resident.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_engine::load::{LoadOptions, WeightBits};
use tokenmill_engine::start::{ServeOptions, Served};
use tokenmill_engine::{DraftMode, Event, Events, Host, Request};
use tokenmill_ir::{KvFormat, Mode};

fn load(host: &Host, name: &str, path: &str, context: u32) -> Served {
    let options = LoadOptions {
        mode: Mode::Int8,
        kv: KvFormat::Int16,
        context: Some(context),
        sequences: 2,
        step_tokens: 512,
        memory_bytes: u64::MAX,
        images: true,
        weights: WeightBits::Auto,
    };
    let watch = |_, _| ControlFlow::Continue(());
    let model = host.load(name, Path::new(path), &options, watch).expect("loaded");
    let serve = ServeOptions { queue: 8, step_s: 0.1, draft: DraftMode::None };
    model.start_on(host, serve, None).expect("started")
}

fn request(tokens: u32, most: u32) -> Request {
    let prompt = (0..tokens).map(|i| 100 + i * 7 % 900).collect();
    Request { max_tokens: Some(most), ignore_eos: true, ..Request::new(prompt) }
}

/// The longest gap between tokens until `end` says so.
fn longest_gap(events: &mut Events, mut end: impl FnMut() -> bool) -> Duration {
    let (mut longest, mut last) = (Duration::ZERO, Instant::now());
    for event in events {
        if matches!(event, Event::Piece { .. }) {
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        if end() {
            break;
        }
    }
    longest
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with("VmRSS:"));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

fn main() {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let path = |i: usize| paths.get(i).or(paths.first()).expect("a model").as_str();
    let device = Arc::new(CpuDevice::new(CpuOptions::default()).expect("a CPU"));
    let host = Host::start(device, 8 << 30).expect("a thread");
    let first = load(&host, "first", path(0), 2048);
    let second = load(&host, "second", path(1), 8704);
    let mut stream = first.engine.submit(request(16, 1900)).expect("accepted");
    let mut count = 0;
    let alone = longest_gap(&mut stream, || {
        count += 1;
        count > 60
    });
    println!("alone:                 longest gap {:.0} ms", alone.as_secs_f64() * 1e3);
    let began = Instant::now();
    let prompt = second.engine.submit(request(8000, 4)).expect("accepted");
    let mut read = None;
    let beside = std::thread::scope(|scope| {
        let loading = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            let begin = Instant::now();
            let third = load(&host, "third", path(2), 2048);
            (third, begin.elapsed())
        });
        let gap = longest_gap(&mut stream, || {
            while let Some(event) = prompt.try_recv() {
                if matches!(event, Event::Piece { .. }) {
                    read.get_or_insert(began.elapsed());
                }
            }
            read.is_some() && loading.is_finished()
        });
        let (third, took) = loading.join().expect("loaded");
        println!("the third model:       loaded in {:.2} s beside them", took.as_secs_f64());
        third.engine.shut_down();
        gap
    });
    let read = read.map_or(f64::NAN, |r| r.as_secs_f64());
    println!("a prompt of 8000:      read in {read:.1} s by the second");
    println!("beside both:           longest gap {:.0} ms", beside.as_secs_f64() * 1e3);
    let stats = first.engine.stats();
    println!(
        "by its own count:      longest {:.0} ms, promised {:.0} ms, late steps {} of {}",
        stats.gap_max_s * 1e3,
        stats.gap_bound_s * 1e3,
        stats.late_steps,
        stats.steps
    );
    drop(stream);
    let (held, resident) = (host.ledger().held_bytes(), resident_bytes());
    println!("memory:                {held} by the ledger at most, {resident} resident");
    second.engine.resize(vec![1], Box::new(()));
    first.engine.drain(Duration::from_secs(60));
    std::thread::sleep(Duration::from_millis(200));
    let after = resident_bytes();
    println!(
        "the second's cache as small as may be: {} bytes fewer are resident",
        resident - after
    );
}

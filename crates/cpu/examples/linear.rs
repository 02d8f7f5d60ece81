//! Measures the linear kernels beside the limits of the machine, in the same run.
//!
//! `cargo run --release -p tokenmill-cpu --example linear [-- format … isa … ROWSxCOLS … tokens … hot]`, on one
//! thread. For up to 8 tokens the rate is bytes of weights; for more it is operations (2 per weight and
//! token). `hot` takes one copy of a weight, which a cache may hold, instead of more than caches do.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use tokenmill_cpu::isa::Isa;
use tokenmill_cpu::limits::{self, Arithmetic, Level};
use tokenmill_cpu::linear::{Encoding, Line, LinearJob, Mode, OutView, linear, scratch_lines};
use tokenmill_cpu::memory::Buffer;
use tokenmill_cpu::panel::PanelSpec;
use tokenmill_quant::{FORMATS, FormatId};

/// Shapes measured where none are named: (rows, columns).
const SHAPES: [(usize, usize); 3] = [(1536, 576), (2048, 2048), (2048, 8192)];
/// Tokens measured where no numbers are named.
const TOKENS: [usize; 10] = [1, 2, 3, 4, 6, 8, 16, 32, 128, 512];
/// A weight this large does not stay in a core's own caches; several copies are walked.
const COLD_BYTES: usize = 192 << 20;

fn main() {
    let (mut formats, mut isas) = (Vec::new(), Vec::new());
    let (mut shapes, mut tokens) = (Vec::new(), Vec::new());
    let mut cold_bytes = COLD_BYTES;
    for arg in std::env::args().skip(1) {
        let shape = arg.split_once('x').and_then(|(r, c)| Some((r.parse().ok()?, c.parse().ok()?)));
        match (Isa::from_name(&arg), shape, arg.parse()) {
            (Some(isa), ..) => isas.push(isa),
            (_, Some(shape), _) => shapes.push(shape),
            (_, _, Ok(n)) => tokens.push(n),
            _ if arg == "hot" => cold_bytes = 0,
            _ => formats.push(arg),
        }
    }
    for arithmetic in Arithmetic::ALL {
        let limit = limits::ops(1, arithmetic);
        let (name, rate) = (arithmetic.name(), limit.rate.best / 1e12);
        println!("{name} peak {rate:.2} TOP/s ({})", limit.instruction);
    }
    if let Some(read) = limits::read(1, Level::Dram, usize::MAX) {
        println!("read: {:.1} GB/s", read.rate.best / 1e9);
    }
    let shapes = if shapes.is_empty() { SHAPES.to_vec() } else { shapes };
    let tokens = if tokens.is_empty() { TOKENS.to_vec() } else { tokens };
    let fast = || Isa::ALL.into_iter().skip(1).filter(|isa| isa.is_available());
    let isas: Vec<Isa> = fast().filter(|isa| isas.is_empty() || isas.contains(isa)).collect();
    let named = |name: &str| formats.is_empty() || formats.iter().any(|f| f == name);
    for format in FORMATS.iter().filter(|f| f.id.is_weight() && named(f.name)) {
        for &(rows, cols) in &shapes {
            for &isa in &isas {
                measure(format.id, rows, cols, isa, &tokens, cold_bytes);
            }
        }
    }
}

/// Prints one line for a shape, of which there are copies of at least `cold_bytes` together.
fn measure(
    format: FormatId,
    rows: usize,
    cols: usize,
    isa: Isa,
    tokens: &[usize],
    cold_bytes: usize,
) {
    let Ok(spec) = PanelSpec::new(format, rows, cols) else { return };
    let stored = stored(format, rows * spec.stored_row_bytes());
    let copies = (cold_bytes / spec.bytes()).max(1);
    let mut weights = Buffer::zeroed(copies * spec.bytes()).expect("memory for the weights");
    let bytes = weights.bytes_mut();
    for copy in bytes.chunks_exact_mut(spec.bytes()) {
        spec.repack(0, &stored, copy);
    }
    print!("{:<6} {rows}x{cols} {:<8}", format.name(), isa.name());
    for &tokens in tokens {
        let calls = rate(&spec, bytes, isa, tokens);
        if tokens <= 8 {
            print!("  {tokens} tok {:6.1} GB/s", calls * spec.bytes() as f64 / 1e9);
        } else {
            let ops = 2.0 * (rows * cols * tokens) as f64;
            print!("  {tokens} tok {:5.3} TOP/s", calls * ops / 1e12);
        }
    }
    println!();
}

/// Stored blocks of noise, but for what most formats begin with: tame scales. e4m3 codes are not
/// subnormal, as nearly all of a model's are not.
fn stored(format: FormatId, bytes: usize) -> Vec<u8> {
    let block = format.info().block_bytes;
    let noise = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7];
    let always = if format == FormatId::E4M3_32 { 8 } else { 0 };
    (0..bytes).map(|i| if i % block < 8 { 0x11 } else { noise(i) | always }).collect()
}

/// Calls per second, walking the copies of a weight in `bytes`.
fn rate(spec: &PanelSpec, bytes: &[u8], isa: Isa, tokens: usize) -> f64 {
    let encoding = Encoding::of(spec.layout(), Mode::Int8);
    let lines = encoding.lines(spec.cols());
    let mut input = Buffer::zeroed(tokens * lines * 64).expect("memory for the tokens");
    // SAFETY: a line is 64 bytes, and the buffer is aligned to more.
    let (_, input, _) = unsafe { input.bytes_mut().align_to_mut::<Line>() };
    let x: Vec<f32> = (0..spec.cols()).map(|k| (k as f32 * 0.7).sin()).collect();
    for row in input.chunks_exact_mut(lines) {
        encoding.encode(isa, &x, row);
    }
    // Whole lines from row to row, and an odd number of them, as the engine has them.
    let stride = (spec.rows().div_ceil(16) | 1) * 16;
    let mut out = Buffer::zeroed(tokens * stride * 4).expect("memory for the results");
    // SAFETY: every bit pattern is an f32, and the buffer is aligned to more.
    let (_, out, _) = unsafe { out.bytes_mut().align_to_mut::<f32>() };
    let out = OutView::new(out, stride);
    let mut scratch = vec![Line::ZERO; scratch_lines(spec)];
    let mut copies = bytes.chunks_exact(spec.bytes()).cycle();
    best_rate(|| {
        let weights = copies.next().expect("at least one copy");
        let panels = 0..spec.panels();
        let job = LinearJob {
            spec: *spec,
            weights,
            panels,
            encoding,
            input,
            tokens,
            out,
            prefetch: None,
        };
        // SAFETY: one call at a time.
        unsafe { linear(isa, &job, &mut scratch) };
    })
}

/// Calls per second: the best of many runs of a few milliseconds, so that other work on the
/// machine disturbs little.
fn best_rate(mut f: impl FnMut()) -> f64 {
    f();
    let mut best = 0.0_f64;
    for _ in 0..24 {
        let (start, mut calls) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_millis(2) {
            f();
            calls += 1;
        }
        best = best.max(f64::from(calls) / start.elapsed().as_secs_f64());
    }
    best
}

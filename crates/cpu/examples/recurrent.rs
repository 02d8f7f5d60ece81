//! Measures the recurrent operations: time a token and layer, and the state read and written.
//!
//! `cargo run --release -p tokenmill-cpu --example recurrent`, on all threads. Programs of some
//! layers of one operation each, with states of their own; shapes of Qwen3-Next-80B, Falcon-H1-1.5B
//! and LFM2-1.2B.

use std::ops::Range;
use std::time::Instant;

use tokenmill_backend::{Device, Executable};
use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_ir::sampling::splitmix;
use tokenmill_ir::{
    Act, Batch, BlockId, CacheId, CacheKind, CacheSpec, KeyHead, KvFormat, Limits, MAX_GROUPS,
    Mode, Op, Program, RowPart, RowSlices, Rows, SourceError, Span, StepOutput, TokenSource, View,
    WeightId, WeightSource, WeightSpec, WeightUse, op,
};
use tokenmill_quant::FormatId;

const LAYERS: u32 = 8;
const STEP_TOKENS: u32 = 512;

/// Tensors of small random f32.
struct Random;

impl WeightSource for Random {
    fn read_rows(&self, _: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        for (i, number) in out.chunks_exact_mut(4).enumerate() {
            let bits = splitmix(rows.start * 65_537 + i as u64) >> 40;
            let value = bits as f32 / 16_777_216.0 - 0.5;
            number.copy_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }

    fn rows(&self, _: &str, _: Range<u64>) -> Option<&[u8]> {
        None
    }
}

fn weight(program: &mut Program, role: WeightUse, rows: u32, cols: u32) -> WeightId {
    let name = format!("w{}", program.weights.len());
    let slices = RowSlices::range(0, rows.into());
    let part = RowPart {
        format: FormatId::F32,
        tensor: name.clone(),
        rows: slices,
        transposed: None,
        order: None,
    };
    let (bias, scales) = (Vec::new(), Vec::new());
    program.weight(WeightSpec { name, role, rows, cols, parts: vec![part], bias, scales })
}

fn state(program: &mut Program, len: u32) -> CacheId {
    let kind = CacheKind::State { len };
    program.caches.push(CacheSpec { kind, format: KvFormat::F32, group: 0 });
    CacheId(program.caches.len() as u32 - 1)
}

/// A program of layers of one operation on an embedding's columns; `layer` adds one.
fn program(widths: &[u32], layer: impl Fn(&mut Program, &[View]) -> View) -> Program {
    let mut p = Program::default();
    let all = widths.iter().sum();
    let table = weight(&mut p, WeightUse::Rows, 97, all);
    let x = p.buffer(Rows::Tokens, all);
    let (positions, token_types) = (None, None);
    p.ops.push(Op::Embed { table, scale: 1.0, positions, token_types, out: x.buffer });
    let mut start = 0;
    let views: Vec<View> = widths
        .iter()
        .map(|&cols| {
            start += cols;
            View { start: start - cols, cols, ..x }
        })
        .collect();
    let mut last = x;
    for _ in 0..LAYERS {
        last = layer(&mut p, &views);
    }
    let hidden = p.buffer(Rows::Outputs, last.cols);
    p.ops.push(Op::TakeRows { x: last, run: 1, out: hidden.buffer });
    p.hidden = last.cols;
    p.ops.push(Op::Sample { logits: None, hidden, more: Vec::new() });
    p
}

/// Gated delta rule of Qwen3-Next.
fn delta_rule() -> Program {
    let (k_heads, v_heads, dim) = (16, 32, 128);
    program(&[k_heads * dim, k_heads * dim, v_heads * dim, v_heads, v_heads], |p, views| {
        let &[q, k, v, a, b] = views else { unreachable!("five inputs") };
        let vector = |p: &mut Program| weight(p, WeightUse::Vector, 1, v_heads);
        let (a_log, dt_bias) = (vector(p), vector(p));
        let state = state(p, v_heads * dim * dim);
        let out = p.buffer(Rows::Tokens, v.cols);
        let (id, k_heads, v_heads) = (out.buffer, k_heads, v_heads);
        p.ops.push(Op::DeltaRule(op::DeltaRule {
            q,
            k,
            v,
            a,
            b,
            a_log,
            dt_bias,
            k_heads,
            v_heads,
            key_head: KeyHead::Grouped,
            state,
            out: id,
        }));
        out
    })
}

/// Selective scan of Falcon-H1.
fn scan() -> Program {
    let (heads, dim, state_dim) = (48, 64, 256);
    program(&[heads * dim, state_dim, state_dim, heads], |p, views| {
        let &[x, b, c, dt] = views else { unreachable!("four inputs") };
        let vector = |p: &mut Program| weight(p, WeightUse::Vector, 1, heads);
        let (a_log, skip, dt_bias) = (vector(p), vector(p), vector(p));
        let state = state(p, heads * dim * state_dim);
        let out = p.buffer(Rows::Tokens, x.cols);
        let (id, groups, dt_limit) = (out.buffer, 1, (0.0, f32::INFINITY));
        p.ops.push(Op::Scan(op::Scan {
            x,
            b,
            c,
            dt,
            a_log,
            skip,
            dt_bias,
            heads,
            groups,
            dt_limit,
            state,
            out: id,
        }));
        out
    })
}

/// A convolution over `channels`.
fn conv(channels: u32, kernel: u32, act: Option<Act>) -> Program {
    program(&[channels], |p, views| {
        let taps = weight(p, WeightUse::Rows, channels, kernel);
        let state = state(p, (kernel - 1) * channels);
        let out = p.buffer(Rows::Tokens, channels);
        let x = views[0];
        p.ops.push(Op::Conv(op::Conv {
            x,
            weight: taps,
            kernel,
            bias: None,
            act,
            state,
            out: out.buffer,
        }));
        out
    })
}

/// Seconds of a step of `tokens` tokens of one sequence: the best of many.
fn seconds(executable: &mut dyn Executable, tokens: u32, reps: u32) -> f64 {
    let mut out = StepOutput::default();
    let mut best = f64::INFINITY;
    for rep in 0..reps {
        let read = if rep == 0 { BlockId::NONE } else { BlockId(0) };
        let span = Span { first: 0, len: tokens, context: rep * tokens, tables: [0; MAX_GROUPS] };
        let mut batch = Batch {
            tokens: (0..tokens).map(|t| TokenSource::Id(t % 97)).collect(),
            positions: (rep * tokens..(rep + 1) * tokens).collect(),
            spans: vec![span],
            tables: vec![read, BlockId(0)],
            ..Batch::default()
        };
        let start = Instant::now();
        executable.submit(&mut batch).expect("a step");
        executable.wait(&mut out).expect("its results");
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

fn main() {
    let silu = Some(Act::Silu);
    let cases = [
        ("delta rule 32 × 128 × 128", delta_rule()),
        ("scan 48 × 64 × 256", scan()),
        ("conv 8192, 4 taps, silu", conv(8192, 4, silu)),
        ("conv 2048, 3 taps", conv(2048, 3, None)),
    ];
    for (name, program) in cases {
        let device = CpuDevice::new(CpuOptions::default()).expect("a device");
        let watch = &mut |_| std::ops::ControlFlow::Continue(());
        let weights = device.upload(&program, &Random, Mode::Int8, watch).expect("weights");
        let limits = Limits {
            step_tokens: STEP_TOKENS,
            sequences: 1,
            outputs: 1,
            context: 1 << 20,
            group_blocks: vec![2],
            top_logprobs: 0,
        };
        let mut executable = device.compile(&program, &weights, &limits).expect("compiled");
        let state_bytes = program.caches[0].unit_bytes() as f64;
        print!("{name:<28}");
        for (tokens, reps) in [(1, 500), (STEP_TOKENS, 15)] {
            let s = seconds(&mut *executable, tokens, reps) / f64::from(tokens * LAYERS);
            let gb_s = 2.0 * state_bytes / s / 1e9;
            print!("  {tokens:>3} tok: {:8.2} µs/token·layer ({gb_s:6.1} GB/s of state)", s * 1e6);
        }
        println!();
    }
}

//! Tokens chosen on a device, held bit for bit against `ir::sampling`: logits are rows of an embedding.

use std::ops::ControlFlow;

use tokenmill_backend::{Device, DeviceError, Executable};
use tokenmill_device_tests::conformance::Material;
use tokenmill_ir::sampling::{Chain, SampleRow, SampleScratch, sample, score, splitmix};
use tokenmill_ir::{
    Batch, Limits, MAX_GROUPS, Mode, Op, OutputKind, OutputRow, Program, RowPart, RowSlices, Rows,
    SamplingParams, Span, StepOutput, TokenId, TokenSource, View, WeightSpec, WeightUse,
};
use tokenmill_quant::FormatId;

/// Three runs of sums, the last a short one of no whole number of words and lanes.
const VOCAB: u32 = 9001;
/// Tokens of a history that are the prompt, and the first behind them.
const PROMPT: u32 = 400;
const EDGE: u32 = 6001;
/// Alternatives at most.
const TOP: u32 = 20;

fn uniform(i: u64) -> f32 {
    (splitmix(i) >> 40) as f32 / (1 << 24) as f32
}

/// Logits of many kinds, a row each.
fn logits() -> Vec<Vec<f32>> {
    let bell = |i: u64| (0..4).map(|k| uniform(4 * i + k)).sum::<f32>() * 3.0 - 6.0;
    let row = |f: &dyn Fn(u64) -> f32| (0..u64::from(VOCAB)).map(f).collect::<Vec<f32>>();
    let with = |at: &[usize], x: f32| {
        let mut row = row(&|i| bell(i + 7 * VOCAB as u64));
        at.iter().for_each(|&i| row[i] = x);
        row
    };
    vec![
        row(&bell),
        row(&|i| 2.0 * bell(i + 90_000)),
        // Few tokens have nearly all.
        row(&|i| if i % 1500 == 77 { 9.0 - i as f32 * 1e-3 } else { bell(i) - 9.0 }),
        // Ties, among them those of 0 and -0.
        row(&|i| (bell(i) * 2.0).round() / 2.0),
        row(&|i| if i % 3 == 1 { -0.0 } else { 0.0 }),
        row(&|_| 1.25),
        with(&[4096, 4100, 8999], f32::NEG_INFINITY),
        with(&[5000], f32::NAN),
        with(&[8192], f32::INFINITY),
        row(&|_| f32::NEG_INFINITY),
        row(&|i| bell(i) * 1e-3 + 30.0),
    ]
}

/// Ways to choose, for a row: params, and whether history, bias and a mask come with them.
fn ways(seed: u64) -> Vec<(SamplingParams, bool)> {
    let greedy = SamplingParams { seed, ..SamplingParams::default() };
    let hot = SamplingParams { temperature: 0.9, choice: 2, ..greedy };
    let penalised = |p: SamplingParams| SamplingParams {
        repetition_penalty: 1.3,
        presence_penalty: 0.25,
        frequency_penalty: 0.4,
        ..p
    };
    let ways = [
        greedy,
        SamplingParams { logprobs: Some(0), ..greedy },
        SamplingParams { logprobs: Some(TOP), ..hot },
        SamplingParams { temperature: 4.0, min_p: 0.25, ..hot },
        SamplingParams { top_k: 1, ..hot },
        SamplingParams { top_k: 40, logprobs: Some(3), ..hot },
        SamplingParams { top_k: 2500, top_p: 0.97, temperature: 3.0, ..hot },
        SamplingParams { top_k: u32::MAX, ..hot },
        SamplingParams { top_p: 0.9, ..hot },
        SamplingParams { top_p: 0.999_9, temperature: 5.0, ..hot },
        SamplingParams { top_p: 0.0, ..hot },
        SamplingParams { top_k: 60, top_p: 0.8, min_p: 0.125, ..hot },
        SamplingParams { temperature: 1e-3, ..hot },
        SamplingParams { chain: Some(Chain { typical_p: 0.7, ..Chain::default() }), ..hot },
    ];
    let plain = ways.into_iter().map(|p| (p, false));
    plain.chain(ways.map(|p| (penalised(p), true))).chain([(hot, true)]).collect()
}

/// One span of a token an output, and what is asked of each; some are scored or read whole.
fn batch(rows: usize, round: u64) -> Batch {
    let mut batch = Batch::default();
    let words = VOCAB.div_ceil(32);
    batch.masks = (0..u64::from(2 * words)).map(|w| splitmix(w ^ 5) as u32).collect();
    // (What is biased and seen is often what is best; some of it more than once, or no token.)
    let often = |i: u64| splitmix(i) as u32 % (VOCAB + 3) / (1 + i as u32 % 3) / 32 * 32 + 13;
    batch.history = (0..900).map(often).chain([7, 7, 7, 4173, VOCAB + 9]).collect();
    let add = |i: u64| (often(i / 2 * 5), 2.0 * uniform(i) - 0.3 + (i % 2) as f32 * 1e-7);
    batch.bias = (0..300).map(add).collect();
    // The first generated token: what is between its logit with and without that is the next best.
    batch.history[3 + PROMPT as usize] = EDGE;
    batch.bias[100..102].copy_from_slice(&[(EDGE, 5.0), (EDGE + 1, 3.25)]);
    for token in [EDGE, EDGE + 1] {
        batch.masks[(words + token / 32) as usize] |= 1 << (token % 32);
    }
    for row in 0..rows {
        for (i, (params, with)) in ways(round).into_iter().enumerate() {
            let params = SamplingParams { index: i as u32, ..params };
            let kind = OutputKind::Sample {
                params,
                history: if with { (3, 880) } else { (0, 0) },
                prompt: if with { PROMPT } else { 0 },
                bias: if with { (1, 297) } else { (0, 0) },
                // (Rows that the host chooses, among the others.)
                rules: if with && i % 4 == 1 { (5, 90) } else { (0, 0) },
                mask: if with && i % 3 > 0 { 1 } else { u32::MAX },
            };
            push(&mut batch, row, kind);
        }
        for kind in [
            OutputKind::Score { target: 4200, top: 0 },
            OutputKind::Logits,
            OutputKind::Score { target: VOCAB - 1, top: 7 },
            OutputKind::Hidden,
        ] {
            push(&mut batch, row, kind);
        }
    }
    let len = batch.tokens.len() as u32;
    batch.spans = vec![Span { first: 0, len, context: 0, tables: [0; MAX_GROUPS] }];
    batch
}

fn push(batch: &mut Batch, row: usize, kind: OutputKind) {
    let at = batch.tokens.len() as u32;
    batch.tokens.push(TokenSource::Id(row as TokenId));
    batch.positions.push(at);
    batch.outputs.push(OutputRow { row: at, kind });
}

fn program(rows: &[Vec<f32>]) -> (Program, Material) {
    let (mut program, mut material) = (Program::default(), Material::default());
    let bytes = rows.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
    material.insert("t", VOCAB as usize * 4, bytes);
    let (count, tensor) = (rows.len() as u32, "t".to_owned());
    let slices = RowSlices::range(0, count.into());
    let part =
        RowPart { format: FormatId::F32, tensor, rows: slices, transposed: None, order: None };
    let (name, role, parts) = ("w".to_owned(), WeightUse::Rows, vec![part]);
    let (bias, scales) = (Vec::new(), Vec::new());
    let spec = WeightSpec { name, role, rows: count, cols: VOCAB, parts, bias, scales };
    let table = program.weight(spec);
    let x = program.buffer(Rows::Tokens, VOCAB);
    let (positions, token_types) = (None, None);
    program.ops.push(Op::Embed { table, scale: 1.0, positions, token_types, out: x.buffer });
    let logits = program.buffer(Rows::Outputs, VOCAB);
    program.ops.push(Op::TakeRows { x, run: 1, out: logits.buffer });
    let hidden = View { cols: 5, ..logits };
    (program.vocab, program.hidden) = (VOCAB, 5);
    program.ops.push(Op::Sample { logits: Some(logits), hidden, more: Vec::new() });
    (program, material)
}

/// What `ir::sampling` makes of a batch.
fn defined(rows: &[Vec<f32>], batch: &Batch) -> StepOutput {
    let (mut out, mut scratch) = (StepOutput::default(), SampleScratch::new(VOCAB as usize));
    let slice = |(at, len): (u32, u32)| at as usize..(at + len) as usize;
    for (token, output) in batch.tokens.iter().zip(&batch.outputs) {
        let TokenSource::Id(id) = *token else { continue };
        let mut row = rows[id as usize].clone();
        let sampled = match output.kind {
            OutputKind::Sample { params, history, prompt, bias, rules, mask } => {
                let words = VOCAB.div_ceil(32) as usize;
                let mask = match mask {
                    u32::MAX => &[][..],
                    m => &batch.masks[m as usize * words..][..words],
                };
                let wanted = SampleRow {
                    params: &params,
                    history: &batch.history[slice(history)],
                    prompt: prompt as usize,
                    bias: &batch.bias[slice(bias)],
                    rules: &batch.bias[slice(rules)],
                    mask,
                };
                sample(&mut row, &wanted, &mut scratch, &mut out.top)
            }
            OutputKind::Score { target, top } => {
                score(&row, target, top as usize, &mut scratch, &mut out.top)
            }
            kind => {
                let all = if kind == OutputKind::Logits { row.len() } else { 5 };
                out.rows.extend(&row[..all]);
                Default::default()
            }
        };
        out.sampled.push(sampled);
    }
    out
}

fn run(executable: &mut dyn Executable, batch: &Batch) -> Result<StepOutput, DeviceError> {
    let mut out = StepOutput::default();
    executable.submit(&mut batch.clone())?;
    executable.wait(&mut out)?;
    Ok(out)
}

/// Tokens, log-probabilities and alternatives of every way to choose, in as many rounds with other
/// random numbers: how many rows.
///
/// # Errors
/// The first that differs in a bit.
pub fn check(device: &dyn Device, rounds: u64) -> Result<usize, String> {
    let rows = logits();
    let (program, material) = program(&rows);
    let failed = |e: DeviceError| e.to_string();
    let watch = &mut |_| ControlFlow::Continue(());
    let weights = device.upload(&program, &material, Mode::F32, watch).map_err(failed)?;
    let len = batch(rows.len(), 0).tokens.len() as u32;
    let limits = Limits {
        step_tokens: len,
        sequences: 1,
        outputs: len,
        context: len,
        group_blocks: Vec::new(),
        top_logprobs: TOP,
    };
    let mut executable = device.compile(&program, &weights, &limits).map_err(failed)?;
    let mut count = 0;
    for round in 0..rounds {
        let batch = batch(rows.len(), round);
        let (found, expected) =
            (run(&mut *executable, &batch).map_err(failed)?, defined(&rows, &batch));
        let told = found.sampled.iter().zip(&expected.sampled).zip(&batch.outputs);
        for (i, ((f, e), output)) in told.enumerate() {
            let tops = |out: &StepOutput, (at, n): (u32, u32)| -> Vec<(u32, u32)> {
                let all = &out.top[at as usize..][..n as usize];
                all.iter().map(|(token, x)| (*token, x.to_bits())).collect()
            };
            let same = (f.token, f.valid, f.logprob.to_bits(), tops(&found, f.top))
                == (e.token, e.valid, e.logprob.to_bits(), tops(&expected, e.top));
            if !same {
                return Err(format!("row {i}: {f:?}, not {e:?}: {:?}", output.kind));
            }
        }
        let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        if bits(&found.rows) != bits(&expected.rows) || found.top.len() != expected.top.len() {
            return Err("rows that are read whole, or lists of other lengths".into());
        }
        count += found.sampled.len();
    }
    Ok(count)
}

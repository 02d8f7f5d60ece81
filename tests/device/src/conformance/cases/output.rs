//! Pooling, the head, sampling.

use tokenmill_ir::sampling::{Chain, Mirostat};
use tokenmill_ir::{
    Batch, Limits, Op, OutputKind, OutputRow, PoolKind, Program, Rows, SamplingParams, TokenSource,
    View, WeightUse,
};
use tokenmill_quant::FormatId;

use super::dense::product_tolerance;
use crate::conformance::lab::Lab;
use crate::conformance::pager::IDS;
use crate::conformance::{Case, Tolerance, pager};

pub(super) fn cases(block: u32) -> Vec<Case> {
    let mut all = Vec::new();
    for (kind, normalise) in
        [(PoolKind::Mean, true), (PoolKind::First, false), (PoolKind::Last, true)]
    {
        all.push(pool(kind, normalise, block));
    }
    for format in [FormatId::F32, FormatId::Q8_0, FormatId::Q4_1, FormatId::Q6_K] {
        all.push(head(format, block));
    }
    all.push(sampling(block));
    all
}

fn pool(kind: PoolKind, normalise: bool, block: u32) -> Case {
    let mut lab = Lab::new(60);
    let x = lab.inputs(&[3, 70])[1];
    let hidden = lab.program.buffer(Rows::Outputs, 70);
    lab.push(Op::Pool { x, kind, normalise, out: hidden.buffer });
    lab.program.whole_sequences = true;
    lab.program.hidden = 70;
    lab.push(Op::Sample { logits: None, hidden, more: Vec::new() });
    lab.case(format!("pool {kind:?}"), Tolerance::F32, block, |program, limits, block| {
        let mut steps = pager::whole(program, limits, block);
        for batch in &mut steps {
            let last = |row: u32| batch.spans.iter().any(|s| s.first + s.len - 1 == row);
            batch.outputs.retain(|o| last(o.row));
        }
        steps
    })
}

/// The tied table looked up and multiplied, at some of the rows.
fn head(format: FormatId, block: u32) -> Case {
    let mut lab = Lab::new(61);
    let k = 256;
    let part = lab.part(format, IDS, k);
    let table = lab.of_parts(WeightUse::RowsAndMatmul, k, vec![part]);
    let x = lab.out(k);
    let (positions, token_types) = (None, None);
    lab.push(Op::Embed { table, scale: 9.0, positions, token_types, out: x.buffer });
    let hidden = lab.program.buffer(Rows::Outputs, k);
    lab.push(Op::TakeRows { x, run: 1, out: hidden.buffer });
    let logits = lab.program.buffer(Rows::Outputs, IDS);
    let (scale, softcap) = (0.7, (format == FormatId::Q8_0).then_some(5.0));
    lab.push(Op::Head { x: hidden, weight: table, scale, softcap, out: logits.buffer });
    lab.program.vocab = IDS;
    lab.program.hidden = k;
    lab.push(Op::Sample { logits: Some(logits), hidden, more: Vec::new() });
    let tolerance = product_tolerance(format);
    lab.case(format!("tied head {format}"), tolerance, block, |program, limits, block| {
        let mut steps = pager::steps(program, limits, block);
        for batch in &mut steps {
            batch.outputs.retain(|o| o.row % 3 != 1);
            let kinds = [OutputKind::Logits, OutputKind::Hidden, OutputKind::Logits];
            for (o, kind) in batch.outputs.iter_mut().zip(kinds.iter().cycle()) {
                o.kind = *kind;
            }
        }
        steps
    })
}

/// Logits are rows of the embedding, so that tokens must be equal and not only near.
fn sampling(block: u32) -> Case {
    let mut lab = Lab::new(62);
    let x = lab.inputs(&[IDS, 6])[0];
    let out = lab.program.buffer(Rows::Outputs, IDS + 6);
    let whole = View { start: 0, cols: IDS + 6, ..x };
    lab.push(Op::TakeRows { x: whole, run: 1, out: out.buffer });
    let logits = View { buffer: out.buffer, start: 0, cols: IDS };
    let hidden = View { buffer: out.buffer, start: IDS, cols: 6 };
    lab.program.vocab = IDS;
    lab.program.hidden = 6;
    lab.push(Op::Sample { logits: Some(logits), hidden, more: Vec::new() });
    lab.case("sampling".into(), Tolerance::F32, block, sampling_steps)
}

fn sampling_steps(program: &Program, limits: &Limits, block: u32) -> Vec<Batch> {
    let mut steps = pager::steps(program, limits, block);
    for (s, batch) in steps.iter_mut().enumerate() {
        batch.history = (0..12).map(|i| (i * 7 + s as u32) % 40).collect();
        batch.bias = vec![(3, 1.5), (90, -2.0)];
        let words = IDS.div_ceil(32);
        batch.masks = (0..2 * words).map(|w| 0x5b6d_93a7_u32.rotate_left(w)).collect();
        batch.outputs.retain(|o| o.row % 2 == 0);
        for (i, output) in batch.outputs.iter_mut().enumerate() {
            *output = OutputRow { kind: kind(i as u32), ..*output };
        }
        if s > 0 {
            // The first token was sampled by row 0 of the step before.
            batch.tokens[0] = TokenSource::Sampled(0);
        }
    }
    steps
}

fn kind(i: u32) -> OutputKind {
    let base = SamplingParams { index: i, seed: 11, ..SamplingParams::default() };
    let hot = SamplingParams { temperature: 0.8, ..base };
    let penalised = SamplingParams {
        repetition_penalty: 1.3,
        presence_penalty: 0.5,
        frequency_penalty: 0.2,
        logprobs: Some(4),
        ..hot
    };
    let sample = OutputKind::sample;
    let chain = Chain { typical_p: 0.8, xtc_probability: 0.5, ..Chain::default() };
    match i % 11 {
        0 => sample(base),
        1 => sample(SamplingParams { logprobs: Some(2), ..hot }),
        2 => sample(SamplingParams { top_k: 5, ..hot }),
        3 => sample(SamplingParams { top_p: 0.7, ..hot }),
        4 => sample(SamplingParams { min_p: 0.1, ..hot }),
        5 => OutputKind::Sample {
            params: penalised,
            history: (2, 9),
            prompt: 4,
            bias: (0, 2),
            rules: (1, 1),
            mask: 1,
        },
        6 => OutputKind::Score { target: i % IDS, top: 3 },
        7 => OutputKind::Hidden,
        8 => sample(SamplingParams { chain: Some(chain), top_k: 9, ..hot }),
        9 => {
            let mirostat = Some(Mirostat::new(2.0, 0.1));
            sample(SamplingParams { chain: Some(Chain { mirostat, ..chain }), ..hot })
        }
        _ => OutputKind::Logits,
    }
}

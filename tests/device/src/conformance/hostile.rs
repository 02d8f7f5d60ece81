//! Batches that break the rules: every device refuses them with a typed error, and goes on.

use tokenmill_ir::sampling::splitmix;
use tokenmill_ir::{
    Batch, BlockCopy, BlockId, OutputKind, OutputRow, SamplingParams, Span, TokenSource,
};

/// A batch with one to three of its numbers changed, by `seed`. It may still be a good one.
pub fn spoiled(batch: &Batch, seed: u64) -> Batch {
    let mut spoiled = batch.clone();
    let mut state = splitmix(seed);
    for _ in 0..1 + seed % 3 {
        state = splitmix(state);
        spoil(&mut spoiled, state);
    }
    spoiled
}

/// A number that is wrong in most places.
fn number(bits: u64) -> u32 {
    [0, 1, 2, 31, 33, 80, 81, 97, 1000, 1 << 20, u32::MAX - 1, u32::MAX][(bits % 12) as usize]
}

fn spoil(batch: &mut Batch, bits: u64) {
    let (kind, at, value) = (bits % 20, (bits >> 8) as usize, number(bits >> 40));
    fn pick<T>(list: &mut [T], at: usize) -> Option<&mut T> {
        let len = list.len().max(1);
        list.get_mut(at % len)
    }
    let span = |batch: &mut Batch, f: &dyn Fn(&mut Span)| {
        pick(&mut batch.spans, at).into_iter().for_each(f);
    };
    let sample = |history, prompt, bias, mask, logprobs| {
        let params = SamplingParams { logprobs, ..SamplingParams::default() };
        OutputKind::Sample { params, history, prompt, bias, rules: bias, mask }
    };
    match kind {
        0 => pick(&mut batch.tokens, at).into_iter().for_each(|t| *t = TokenSource::Id(value)),
        1 => {
            let sampled = TokenSource::Sampled(value);
            pick(&mut batch.tokens, at).into_iter().for_each(|t| *t = sampled);
        }
        2 => pick(&mut batch.positions, at).into_iter().for_each(|p| *p = value),
        3 => span(batch, &|s| s.first = value),
        4 => span(batch, &|s| s.len = value),
        5 => span(batch, &|s| s.context = value),
        6 => span(batch, &|s| s.tables[at % 4] = value),
        7 => pick(&mut batch.tables, at).into_iter().for_each(|b| *b = BlockId(value)),
        8 => pick(&mut batch.outputs, at).into_iter().for_each(|o| o.row = value),
        9 => {
            let kinds = [
                OutputKind::Logits,
                OutputKind::Score { target: value, top: 2 },
                OutputKind::Score { target: 0, top: value },
                sample((value, 3), 1, (0, 0), u32::MAX, None),
                sample((0, value), 0, (0, 0), u32::MAX, None),
                sample((0, 0), value, (0, 0), u32::MAX, None),
                sample((0, 0), 0, (1, value), u32::MAX, None),
                sample((0, 0), 0, (0, 0), value, None),
                sample((0, 0), 0, (0, 0), u32::MAX, Some(value)),
            ];
            let kind = kinds[at % kinds.len()];
            pick(&mut batch.outputs, at >> 8).into_iter().for_each(|o| o.kind = kind);
        }
        10 => {
            let copy = BlockCopy { group: value % 3, src: BlockId(value), dst: BlockId(0) };
            batch.copies.push(copy);
        }
        11 => batch.copies.push(BlockCopy { group: value, src: BlockId(0), dst: BlockId(value) }),
        12 if bits >> 63 == 1 => batch.types.resize(at % 200, value),
        12 => batch.tokens.truncate(at % (batch.tokens.len() + 1)),
        13 => batch.spans.truncate(at % (batch.spans.len() + 1)),
        14 => batch.tables.truncate(at % (batch.tables.len() + 1)),
        15 => {
            let row = TokenSource::Embedding(value);
            pick(&mut batch.tokens, at).into_iter().for_each(|t| *t = row);
        }
        16 if batch.blocks.is_empty() => batch.blocks.resize(batch.tokens.len(), [value, 1]),
        16 => pick(&mut batch.blocks, at).into_iter().for_each(|b| b[at >> 8 & 1] = value),
        17 => batch.grid.resize(at % 200, [value; 2]),
        18 => batch.embeddings.resize(at % (batch.embeddings.len() + 2), 0.5),
        _ => {
            let row = OutputRow { row: value, kind: OutputKind::Hidden };
            batch.outputs.insert(at % (batch.outputs.len() + 1), row);
        }
    }
}

//! A step as one array of words, as kernels/args.h has it.

use tokenmill_ir::sampling::uniform;
use tokenmill_ir::{Batch, OutputKind, SamplingParams, TokenId, TokenSource};

/// Words of its head, and where in it the starts of arrays stand.
const HEAD: usize = 20;
/// Tokens of a sequence in a step whose splits of keys are attended to side by side, at most, and
/// keys of a split (kernels/args.h).
pub(crate) const FEW_TOKENS: u32 = 4;
const SPLIT_KEYS: u32 = 512;

/// Copies that may run together: how many from which on, and their group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyRun {
    pub group: usize,
    pub first: u32,
    pub count: u32,
}

/// Splits of so many keys.
pub(crate) fn splits(keys: u32) -> u32 {
    keys.div_ceil(SPLIT_KEYS)
}

/// Writes a step to `words`. `sampled` are the tokens of the step before; `slots`: how many splits
/// of keys have a place for their sums.
pub(crate) fn fill(batch: &Batch, sampled: &[TokenId], slots: u32, words: &mut Vec<u32>) {
    words.clear();
    words.resize(HEAD, 0);
    let counts = [batch.tokens.len(), batch.outputs.len(), batch.spans.len()];
    for (word, count) in words.iter_mut().zip(counts) {
        *word = count as u32;
    }
    let id = |t: &TokenSource| match *t {
        TokenSource::Id(id) => id,
        TokenSource::Sampled(row) => sampled.get(row as usize).copied().unwrap_or(0),
        TokenSource::Embedding(_) => 0, // (refused when it was compiled)
    };
    array(words, 3, batch.tokens.iter().map(id));
    array(words, 4, batch.positions.iter().copied());
    array(words, 5, (0..batch.tokens.len()).map(|row| batch.token_type(row)));
    let spans = (0u32..).zip(&batch.spans);
    array(words, 6, spans.flat_map(|(i, s)| std::iter::repeat_n(i, s.len as usize)));
    array(words, 7, batch.outputs.iter().map(|o| o.row));
    let span = |s: &tokenmill_ir::Span| {
        [s.first, s.len, s.context, s.tables[0], s.tables[1], s.tables[2], s.tables[3]]
    };
    array(words, 8, batch.spans.iter().flat_map(span));
    array(words, 9, batch.tables.iter().map(|b| b.0));
    array(words, 10, batch.copies.iter().flat_map(|c| [c.src.0, c.dst.0]));
    array(words, 11, batch.outputs.iter().flat_map(|o| want(&o.kind)));
    array(words, 12, batch.history.iter().copied());
    array(words, 13, batch.bias.iter().flat_map(|(token, add)| [*token, add.to_bits()]));
    array(words, 14, batch.masks.iter().copied());
    attended(batch, slots, words);
}

/// Sequences with few tokens as items of attention by tensor cores: those whose splits have places
/// split by split, others whole; and where those of each sequence are. Long ones come first.
fn attended(batch: &Batch, slots: u32, words: &mut Vec<u32>) {
    let joins = words.len();
    words[17] = joins as u32;
    words.resize(joins + 2 * batch.spans.len(), 0);
    let mut taken = 0;
    // (By powers of two, which takes no memory.)
    for power in (1..=u32::BITS).rev() {
        for (i, span) in batch.spans.iter().enumerate().filter(|(_, s)| s.len <= FEW_TOKENS) {
            let wanted = splits(span.context + span.len);
            let is_now = wanted > 1 && u32::BITS - wanted.leading_zeros() == power;
            if is_now && taken + wanted <= slots {
                words[joins + 2 * i..][..2].copy_from_slice(&[taken, wanted]);
                taken += wanted;
            }
        }
    }
    words[16] = words.len() as u32;
    for (i, span) in batch.spans.iter().enumerate().filter(|(_, s)| s.len <= FEW_TOKENS) {
        let [slot, apart] = [0, 1].map(|k| words[joins + 2 * i + k]);
        match apart {
            0 => words.extend([i as u32, 0, splits(span.context + span.len), u32::MAX]),
            _ => words.extend((0..apart).flat_map(|n| [i as u32, n, n + 1, slot + n])),
        }
    }
    words[15] = (words.len() as u32 - words[16]) / 4;
}

/// Whether an output's token is chosen by the host, from a row that is brought there: by samplers
/// that no kernel has.
pub(crate) fn on_host(kind: &OutputKind) -> bool {
    let chosen = |params: &SamplingParams, rules: (u32, u32)| params.chain.is_some() || rules.1 > 0;
    matches!(kind, OutputKind::Sample { params, rules, .. } if chosen(params, *rules))
}

/// Words of what is wanted of an output (kernels/args.h, `Want`).
const WANT: usize = 18;

fn want(kind: &OutputKind) -> [u32; WANT] {
    let mut words = [0; WANT];
    match *kind {
        OutputKind::Sample { .. } if on_host(kind) => {}
        OutputKind::Sample { params: p, history, prompt, bias, rules: _, mask } => {
            words[0] = 1;
            words[2] = p.logprobs.map_or(0, |n| n + 1);
            words[3..6].copy_from_slice(&[p.temperature, p.top_p, p.min_p].map(f32::to_bits));
            words[6] = p.top_k;
            let penalties = [p.repetition_penalty, p.presence_penalty, p.frequency_penalty];
            words[7..10].copy_from_slice(&penalties.map(f32::to_bits));
            let number = uniform(p.seed, p.choice, p.index).to_bits();
            words[10..12].copy_from_slice(&[number as u32, (number >> 32) as u32]);
            words[12..15].copy_from_slice(&[history.0, history.1, prompt]);
            words[15..18].copy_from_slice(&[bias.0, bias.1, mask]);
        }
        OutputKind::Score { target, top } => words[..3].copy_from_slice(&[2, target, top + 1]),
        OutputKind::Logits | OutputKind::Hidden => {}
    }
    words
}

fn array(words: &mut Vec<u32>, entry: usize, numbers: impl Iterator<Item = u32>) {
    words[entry] = words.len() as u32;
    words.extend(numbers);
}

/// Words that a step within limits takes: tables and histories as long as they are likely to be,
/// a mask of all tokens for each output.
pub(crate) fn usual_words(batch: &Batch, slots: u32, vocab: u32) -> usize {
    // (Of a sequence: itself, where its splits are, and its item; the latter of each split, too.)
    let spans = batch.spans.capacity() * (7 + 2 + 4) + batch.copies.capacity() * 2;
    let output = 1 + WANT + vocab.div_ceil(32) as usize;
    let rows = batch.tokens.capacity() * 4 + batch.outputs.capacity() * output;
    HEAD + rows + spans + slots as usize * 4 + batch.tables.capacity() + batch.history.capacity()
}

/// A step's copies in runs, in their order: within a run nothing is written that another copy of
/// it reads or writes.
pub(crate) fn copy_runs(batch: &Batch) -> Vec<CopyRun> {
    let mut runs: Vec<CopyRun> = Vec::new();
    for (i, copy) in (0u32..).zip(&batch.copies) {
        let group = copy.group as usize;
        let joins = runs.last().is_some_and(|run| {
            let before = &batch.copies[run.first as usize..i as usize];
            run.group == group
                && before
                    .iter()
                    .all(|b| b.dst != copy.src && b.dst != copy.dst && b.src != copy.dst)
        });
        match runs.last_mut().filter(|_| joins) {
            Some(run) => run.count += 1,
            None => runs.push(CopyRun { group, first: i, count: 1 }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenmill_ir::{BlockCopy, BlockId, OutputKind, OutputRow, Span};

    #[test]
    fn a_step_lies_as_kernels_read_it() {
        let span = |first, len, context, table| Span { first, len, context, tables: [table; 4] };
        let batch = Batch {
            tokens: vec![TokenSource::Id(7), TokenSource::Sampled(1), TokenSource::Id(9)],
            positions: vec![4, 5, 6],
            spans: vec![span(0, 1, 4, 0), span(1, 2, 5, 1)],
            tables: vec![BlockId(3), BlockId::NONE],
            outputs: vec![OutputRow { row: 2, kind: OutputKind::Hidden }],
            ..Batch::default()
        };
        let mut words = vec![1; 99];
        fill(&batch, &[50, 60], 0, &mut words);
        assert_eq!(words[..3], [3, 1, 2]);
        let at = |entry: usize, len: usize| &words[words[entry] as usize..][..len];
        assert_eq!(at(3, 3), [7, 60, 9]);
        assert_eq!(at(4, 3), [4, 5, 6]);
        assert_eq!(at(5, 3), [0, 0, 0]);
        assert_eq!(at(6, 3), [0, 1, 1]);
        assert_eq!(at(7, 1), [2]);
        assert_eq!(at(8, 14), [0, 1, 4, 0, 0, 0, 0, 1, 2, 5, 1, 1, 1, 1]);
        assert_eq!(at(9, 2), [3, u32::MAX]);
        // No copies; nothing is chosen of the output; no history, biases and masks.
        assert_eq!((words[10], at(11, WANT)), (words[11], &[0; WANT][..]));
        let end = words[11] as usize + WANT;
        assert_eq!(words[12..15].iter().map(|w| *w as usize).collect::<Vec<_>>(), [end; 3]);
        // Both sequences are few tokens of one split.
        assert_eq!((words[17], words[16], words[15]), (end as u32, end as u32 + 4, 2));
        assert_eq!(words[end..], [0, 0, 0, 0, 0, 0, 1, u32::MAX, 1, 0, 1, u32::MAX]);
    }

    #[test]
    fn splits_have_places_while_there_are_some() {
        let span = |len, context| Span { first: 0, len, context, tables: [0; 4] };
        let spans = vec![span(4, 510), span(5, 4000), span(1, 2047), span(1, 1024), span(2, 20)];
        let mut words = Vec::new();
        fill(&Batch { spans, ..Batch::default() }, &[], 7, &mut words);
        let joins = &words[words[17] as usize..words[16] as usize];
        // The long one first; one place is left, which is not enough for the last.
        assert_eq!(joins, [4, 2, 0, 0, 0, 4, 0, 0, 0, 0]);
        let items = words[words[16] as usize..].as_chunks::<4>().0;
        let none = u32::MAX;
        assert_eq!(items[..2], [[0, 0, 1, 4], [0, 1, 2, 5]]);
        assert_eq!(items[2..6], [0, 1, 2, 3].map(|n| [2, n, n + 1, n]));
        assert_eq!(items[6..], [[3, 0, 3, none], [4, 0, 1, none]]);
        assert_eq!(words[15], 8);
    }

    #[test]
    fn what_is_wanted_lies_as_kernels_read_it() {
        let params = tokenmill_ir::SamplingParams {
            temperature: 0.5,
            top_k: 7,
            top_p: 0.25,
            min_p: 0.125,
            repetition_penalty: 1.5,
            presence_penalty: -1.0,
            frequency_penalty: 2.0,
            logprobs: Some(4),
            ..Default::default()
        };
        let [history, bias] = [(3, 9), (2, 5)];
        let words =
            want(&OutputKind::Sample { params, history, prompt: 6, bias, rules: (0, 0), mask: 8 });
        let number = uniform(0, 0, 0).to_bits();
        let floats = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        assert_eq!(words[..3], [1, 0, 5]);
        assert_eq!(words[3..6], floats(&[0.5, 0.25, 0.125]));
        assert_eq!(words[6], 7);
        assert_eq!(words[7..10], floats(&[1.5, -1.0, 2.0]));
        assert_eq!(words[10..12], [number as u32, (number >> 32) as u32]);
        assert_eq!(words[12..], [3, 9, 6, 2, 5, 8]);
        assert_eq!(want(&OutputKind::Score { target: 9, top: 0 })[..3], [2, 9, 1]);
    }

    #[test]
    fn copies_run_together_where_none_needs_another() {
        let copy = |group, src, dst| BlockCopy { group, src: BlockId(src), dst: BlockId(dst) };
        let runs = |copies: Vec<BlockCopy>| {
            let runs = copy_runs(&Batch { copies, ..Batch::default() });
            runs.iter().map(|r| (r.group, r.first, r.count)).collect::<Vec<_>>()
        };
        assert_eq!(runs(vec![copy(0, 1, 2), copy(0, 1, 3), copy(1, 1, 2)]), [(0, 0, 2), (1, 2, 1)]);
        assert_eq!(runs(vec![copy(0, 1, 2), copy(0, 2, 3)]), [(0, 0, 1), (0, 1, 1)]);
        assert_eq!(runs(vec![copy(0, 1, 2), copy(0, 3, 2)]), [(0, 0, 1), (0, 1, 1)]);
        assert_eq!(runs(vec![copy(0, 1, 2), copy(0, 3, 1)]), [(0, 0, 1), (0, 1, 1)]);
    }
}

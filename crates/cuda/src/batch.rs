//! A step as one array of words, as kernels/args.h has it.

use tokenmill_ir::{Batch, TokenId, TokenSource};

/// Words of its head, and where in it the starts of arrays stand.
const HEAD: usize = 16;

/// Copies that may run together: how many from which on, and their group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyRun {
    pub group: usize,
    pub first: u32,
    pub count: u32,
}

/// Writes a step to `words`. `sampled` are the tokens of the step before.
pub(crate) fn fill(batch: &Batch, sampled: &[TokenId], words: &mut Vec<u32>) {
    words.clear();
    words.resize(HEAD, 0);
    let counts = [batch.tokens.len(), batch.outputs.len(), batch.spans.len()];
    for (word, count) in words.iter_mut().zip(counts) {
        *word = count as u32;
    }
    let id = |t: &TokenSource| match *t {
        TokenSource::Id(id) => id,
        TokenSource::Sampled(row) => sampled.get(row as usize).copied().unwrap_or(0),
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
}

fn array(words: &mut Vec<u32>, entry: usize, numbers: impl Iterator<Item = u32>) {
    words[entry] = words.len() as u32;
    words.extend(numbers);
}

/// Words that a step within limits takes, its tables as long as they are likely to be.
pub(crate) fn usual_words(batch: &Batch) -> usize {
    let spans = batch.spans.capacity() * 7 + batch.copies.capacity() * 2;
    HEAD + batch.tokens.capacity() * 4 + batch.outputs.capacity() + spans + batch.tables.capacity()
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
        fill(&batch, &[50, 60], &mut words);
        assert_eq!(words[..3], [3, 1, 2]);
        let at = |entry: usize, len: usize| &words[words[entry] as usize..][..len];
        assert_eq!(at(3, 3), [7, 60, 9]);
        assert_eq!(at(4, 3), [4, 5, 6]);
        assert_eq!(at(5, 3), [0, 0, 0]);
        assert_eq!(at(6, 3), [0, 1, 1]);
        assert_eq!(at(7, 1), [2]);
        assert_eq!(at(8, 14), [0, 1, 4, 0, 0, 0, 0, 1, 2, 5, 1, 1, 1, 1]);
        assert_eq!(at(9, 2), [3, u32::MAX]);
        assert_eq!(words[10] as usize, words.len());
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

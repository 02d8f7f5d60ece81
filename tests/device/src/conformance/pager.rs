//! Batches: several ragged sequences over three steps, through block tables in shuffled order.

use tokenmill_ir::sampling::splitmix;
use tokenmill_ir::{
    Batch, BlockCopy, BlockId, GroupKind, Limits, MAX_GROUPS, OutputKind, OutputRow, Program, Span,
    TokenSource,
};

use super::lab::IDS;

/// Tokens of each sequence in each step: chunks, decoding, lengths around block borders.
const LENGTHS: [[u32; 4]; 4] = [[1, 31, 40, 7], [33, 1, 1, 26], [1, 2, 24, 1], [1, 1, 1, 1]];

/// Limits that the steps fit.
pub(super) fn limits(program: &Program, block: u32) -> Limits {
    let blocks = |kind: &GroupKind| match kind {
        GroupKind::State => 9,
        _ => 4 * 80u32.div_ceil(block) + 6,
    };
    Limits {
        step_tokens: 80,
        sequences: 4,
        outputs: 80,
        context: 80,
        group_blocks: program.groups().iter().map(blocks).collect(),
        top_logprobs: 5,
    }
}

/// A permutation of `0..n`.
fn shuffled(n: u32, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n).collect();
    order.sort_by_key(|&i| splitmix(seed ^ u64::from(i)));
    order
}

/// Steps that read back everything as hidden rows.
pub(super) fn steps(program: &Program, limits: &Limits, block: u32) -> Vec<Batch> {
    let groups = program.groups();
    let mut free: Vec<Vec<u32>> =
        (0u64..).zip(&limits.group_blocks).map(|(g, &n)| shuffled(n, 7 + g)).collect();
    // [group][sequence] → blocks so far; for states the slot to read next.
    let mut held = vec![vec![Vec::<BlockId>::new(); LENGTHS[0].len()]; groups.len()];
    let mut context = [0u32; 4];
    let mut steps = Vec::new();
    for (s, lengths) in LENGTHS.iter().enumerate() {
        let mut batch = Batch::default();
        for (sequence, &len) in lengths.iter().enumerate() {
            let mut tables = [0; MAX_GROUPS];
            for (g, kind) in groups.iter().enumerate() {
                tables[g] = batch.tables.len() as u32;
                let held = &mut held[g][sequence];
                if s == 2 && sequence < 2 {
                    copy_last(g, held, &mut free[g], &mut batch.copies);
                }
                let end = context[sequence] + len;
                let oldest = (context[sequence] + 1).saturating_sub(match kind {
                    GroupKind::Window { tokens } => *tokens,
                    _ => u32::MAX,
                });
                extend(*kind, held, &mut free[g], end, oldest, block);
                table_of(*kind, held, &mut free[g], sequence, &mut batch.tables);
            }
            let first = batch.tokens.len() as u32;
            batch.spans.push(Span { first, len, context: context[sequence], tables });
            for i in 0..len {
                let position = context[sequence] + i;
                let id = splitmix(u64::from(position) << 8 | sequence as u64) % u64::from(IDS);
                batch.tokens.push(TokenSource::Id(id as u32));
                batch.positions.push(position);
                if s == 1 {
                    batch.types.push(position % 3); // of which there are two
                }
                let row = first + i;
                batch.outputs.push(OutputRow { row, kind: OutputKind::Hidden });
            }
            context[sequence] += len;
        }
        steps.push(batch);
    }
    steps
}

/// Moves the last block (or slot) of a sequence to a fresh one by a copy.
fn copy_last(g: usize, held: &mut [BlockId], free: &mut Vec<u32>, copies: &mut Vec<BlockCopy>) {
    if let (Some(last), Some(new)) = (held.last_mut(), free.pop()) {
        let dst = BlockId(new);
        copies.push(BlockCopy { group: g as u32, src: *last, dst });
        *last = dst;
    }
}

/// Takes the blocks a sequence needs to reach `end`; gives back those behind a window.
fn extend(
    kind: GroupKind,
    held: &mut Vec<BlockId>,
    free: &mut Vec<u32>,
    end: u32,
    oldest: u32,
    block: u32,
) {
    if kind == GroupKind::State {
        return;
    }
    while held.len() < end.div_ceil(block) as usize {
        held.extend(free.pop().map(BlockId));
    }
    if matches!(kind, GroupKind::Window { .. }) {
        for id in &mut held[..(oldest / block) as usize] {
            if *id != BlockId::NONE {
                free.insert(0, id.0);
                *id = BlockId::NONE;
            }
        }
    }
}

/// Writes a table. A state is read from one slot and, for even sequences, written to another.
fn table_of(
    kind: GroupKind,
    held: &mut Vec<BlockId>,
    free: &mut Vec<u32>,
    sequence: usize,
    tables: &mut Vec<BlockId>,
) {
    if kind != GroupKind::State {
        tables.extend_from_slice(held);
        return;
    }
    let read = held.pop();
    let write = match read {
        Some(slot) if sequence % 2 == 1 => slot,
        _ => free.pop().map_or(BlockId::NONE, BlockId),
    };
    tables.extend([read.unwrap_or(BlockId::NONE), write]);
    held.push(write);
    // The slot left behind may be taken by a later step.
    free.splice(0..0, read.filter(|slot| *slot != write).map(|slot| slot.0));
}

/// The same sequences without any cache: every span is whole.
pub(super) fn whole(program: &Program, limits: &Limits, block: u32) -> Vec<Batch> {
    let mut all = steps(program, limits, block);
    for batch in &mut all {
        let mut next = 0;
        for span in &mut batch.spans {
            span.context = 0;
            for i in 0..span.len {
                batch.positions[(next + i) as usize] = i;
            }
            next += span.len;
        }
    }
    all
}

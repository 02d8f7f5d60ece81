//! Batches: several ragged sequences over three steps, through block tables in shuffled order.

use tokenmill_ir::sampling::splitmix;
use tokenmill_ir::{
    Batch, BlockCopy, BlockId, GroupKind, Limits, MAX_GROUPS, OutputKind, OutputRow, Program, Span,
    TokenId, TokenSource,
};

/// Ids that batches use: rows of the embedding every case begins with.
pub(super) const IDS: u32 = 97;
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

/// Blocks of every cache group for some sequences, which take them in shuffled order and give those behind a window
/// back.
#[derive(Debug, Clone)]
pub struct Pager {
    groups: Vec<GroupKind>,
    block: u32,
    /// [group]
    free: Vec<Vec<u32>>,
    /// [group][sequence] → blocks so far; for states the slot to read next.
    held: Vec<Vec<Vec<BlockId>>>,
}

impl Pager {
    /// For as many sequences as the limits allow, in blocks of that many tokens.
    pub fn new(program: &Program, limits: &Limits, block: u32) -> Self {
        let groups = program.groups();
        Self {
            free: (0u64..).zip(&limits.group_blocks).map(|(g, &n)| shuffled(n, 7 + g)).collect(),
            held: vec![vec![Vec::new(); limits.sequences as usize]; groups.len()],
            groups,
            block,
        }
    }

    /// Adds `len` tokens of a sequence that has `context` in the caches, at the positions that follow: their span and
    /// tables.
    pub fn feed(
        &mut self,
        batch: &mut Batch,
        (sequence, context): (usize, u32),
        ids: impl ExactSizeIterator<Item = TokenId>,
    ) {
        let (first, len) = (batch.tokens.len() as u32, ids.len() as u32);
        let mut tables = [0; MAX_GROUPS];
        for (g, kind) in self.groups.iter().enumerate() {
            tables[g] = batch.tables.len() as u32;
            let (held, free) = (&mut self.held[g][sequence], &mut self.free[g]);
            let oldest = (context + 1).saturating_sub(match kind {
                GroupKind::Window { tokens } => *tokens,
                _ => u32::MAX,
            });
            extend(*kind, held, free, context + len, oldest, self.block);
            table_of(*kind, held, free, sequence, &mut batch.tables);
        }
        batch.spans.push(Span { first, len, context, tables });
        batch.tokens.extend(ids.map(TokenSource::Id));
        batch.positions.extend(context..context + len);
    }

    /// Moves the last block (or slot) of a sequence to a fresh one by a copy.
    fn move_last(&mut self, batch: &mut Batch, sequence: usize) {
        for (g, (held, free)) in (0u32..).zip(self.held.iter_mut().zip(&mut self.free)) {
            if let (Some(last), Some(new)) = (held[sequence].last_mut(), free.pop()) {
                let dst = BlockId(new);
                batch.copies.push(BlockCopy { group: g, src: *last, dst });
                *last = dst;
            }
        }
    }
}

/// Steps that read back everything as hidden rows.
pub(super) fn steps(program: &Program, limits: &Limits, block: u32) -> Vec<Batch> {
    let mut pager = Pager::new(program, limits, block);
    let mut context = [0u32; 4];
    let mut steps = Vec::new();
    for (s, lengths) in LENGTHS.iter().enumerate() {
        let mut batch = Batch::default();
        for (sequence, &len) in lengths.iter().enumerate() {
            if s == 2 && sequence < 2 {
                pager.move_last(&mut batch, sequence);
            }
            let positions = context[sequence]..context[sequence] + len;
            let id = |position: u32| {
                (splitmix(u64::from(position) << 8 | sequence as u64) % u64::from(IDS)) as u32
            };
            if s == 1 {
                batch.types.extend(positions.clone().map(|p| p % 3)); // of which there are two
            }
            let first = batch.tokens.len() as u32;
            pager.feed(&mut batch, (sequence, context[sequence]), positions.map(id));
            let row = |row| OutputRow { row, kind: OutputKind::Hidden };
            batch.outputs.extend((first..first + len).map(row));
            context[sequence] += len;
        }
        steps.push(batch);
    }
    steps
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

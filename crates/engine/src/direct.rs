//! Sequences run straight on an executable, without scheduler or thread: what `score`, `eval` and
//! `bench` use, where every step is known beforehand.

use tokenmill_backend::{DeviceError, Executable};
use tokenmill_ir::{
    Batch, BlockId, GroupKind, Limits, MAX_GROUPS, OutputKind, OutputRow, Program, Span,
    StepOutput, TokenId, TokenSource,
};

/// Equal shares of every cache group for a fixed number of sequences.
pub struct Direct {
    executable: Box<dyn Executable>,
    groups: Vec<GroupKind>,
    /// Blocks of each group that one sequence owns.
    share: Vec<u32>,
    block_tokens: u32,
    /// Longest sequence, and longest step, of the limits.
    context: u32,
    step_tokens: u32,
    computed: Vec<u32>,
    /// Most tokens each sequence has had since it was empty.
    reached: Vec<u32>,
    batch: Batch,
    out: StepOutput,
}

/// Tokens fed to one sequence in a step, and what is wanted of them.
pub struct Feed<'a> {
    /// Which sequence.
    pub sequence: usize,
    /// Its next tokens.
    pub tokens: &'a [TokenId],
    /// Wanted of each token row, by index within `tokens`.
    pub outputs: &'a [(u32, OutputKind)],
}

impl Direct {
    /// Splits the caches of `limits` among `sequences`.
    pub fn new(
        executable: Box<dyn Executable>,
        program: &Program,
        limits: &Limits,
        block_tokens: u32,
        sequences: u32,
    ) -> Self {
        let sequences = sequences.max(1);
        Self {
            executable,
            groups: program.groups(),
            share: limits.group_blocks.iter().map(|b| b / sequences).collect(),
            block_tokens,
            context: limits.context,
            step_tokens: limits.step_tokens,
            computed: vec![0; sequences as usize],
            reached: vec![0; sequences as usize],
            batch: Batch::with_limits(limits, block_tokens),
            out: StepOutput::default(),
        }
    }

    /// How often the device's workers wait for each other in a step.
    pub fn barriers(&self, tokens: u32, outputs: u32) -> Option<u32> {
        self.executable.barriers(tokens, outputs)
    }

    /// Most tokens that a sequence may have: what its share of the caches holds.
    pub fn longest(&self) -> u32 {
        let round = |window: u32| {
            let tokens = window.saturating_add(self.step_tokens);
            tokens.div_ceil(self.block_tokens).saturating_add(2)
        };
        let held = |(kind, &share): (&GroupKind, &u32)| match *kind {
            GroupKind::State if share > 0 => u32::MAX,
            GroupKind::State => 0,
            // It goes round where a whole window and a step find room.
            GroupKind::Window { tokens } if share >= round(tokens) => u32::MAX,
            GroupKind::Full | GroupKind::Window { .. } => share.saturating_mul(self.block_tokens),
        };
        let held = self.groups.iter().zip(&self.share).map(held).min();
        held.unwrap_or(u32::MAX).min(self.context)
    }

    /// Tokens of a sequence in the cache.
    pub fn computed(&self, sequence: usize) -> u32 {
        self.computed[sequence]
    }

    /// Forgets a sequence.
    pub fn restart(&mut self, sequence: usize) {
        self.resume(sequence, 0);
    }

    /// Takes a sequence as having that many tokens in the cache, whatever lies there: for timing.
    pub fn resume(&mut self, sequence: usize, computed: u32) {
        self.computed[sequence] = computed;
        self.reached[sequence] = computed;
    }

    /// Takes a sequence back to its first `computed` tokens, or to none where what they need was
    /// written over; how many it has then.
    pub fn rewind(&mut self, sequence: usize, computed: u32) -> u32 {
        let used = self.reached[sequence].div_ceil(self.block_tokens);
        let is_lost = |(kind, share): (&GroupKind, &u32)| match *kind {
            GroupKind::Full => false,
            GroupKind::Window { tokens } => {
                (computed + 1).saturating_sub(tokens) / self.block_tokens + share < used
            }
            GroupKind::State => computed != self.computed[sequence],
        };
        if self.groups.iter().zip(&self.share).any(is_lost) {
            self.resume(sequence, 0);
            return 0;
        }
        self.computed[sequence] = computed;
        computed
    }

    /// Runs one step.
    ///
    /// # Errors
    /// What the device says.
    pub fn step(&mut self, feeds: &[Feed<'_>]) -> Result<&StepOutput, DeviceError> {
        self.step_as(feeds, |_| {})
    }

    /// Runs one step of a batch that is changed first: where rows stand in the place of tokens, they,
    /// positions and blocks are put in.
    ///
    /// # Errors
    /// What the device says.
    pub fn step_as(
        &mut self,
        feeds: &[Feed<'_>],
        change: impl FnOnce(&mut Batch),
    ) -> Result<&StepOutput, DeviceError> {
        self.batch.clear();
        for feed in feeds {
            let context = self.computed[feed.sequence];
            let (first, len) = (self.batch.tokens.len() as u32, feed.tokens.len() as u32);
            let tables = self.push_tables(feed.sequence as u32, context, len);
            let batch = &mut self.batch;
            batch.tokens.extend(feed.tokens.iter().map(|&t| TokenSource::Id(t)));
            batch.positions.extend(context..context + len);
            batch.spans.push(Span { first, len, context, tables });
            let row = |&(row, kind): &(u32, OutputKind)| OutputRow { row: first + row, kind };
            batch.outputs.extend(feed.outputs.iter().map(row));
            self.computed[feed.sequence] += len;
            let reached = &mut self.reached[feed.sequence];
            *reached = (*reached).max(context + len);
        }
        change(&mut self.batch);
        self.executable.submit(&mut self.batch)?;
        self.executable.wait(&mut self.out)?;
        Ok(&self.out)
    }

    /// Appends the block tables of a sequence. A window's blocks are used round and round.
    fn push_tables(&mut self, sequence: u32, context: u32, len: u32) -> [u32; MAX_GROUPS] {
        let mut starts = [0; MAX_GROUPS];
        for (g, kind) in self.groups.iter().enumerate() {
            let (share, tables) = (self.share[g], &mut self.batch.tables);
            let base = sequence * share;
            starts[g] = tables.len() as u32;
            if *kind == GroupKind::State {
                let read = if context == 0 { BlockId::NONE } else { BlockId(base) };
                tables.extend([read, BlockId(base)]);
                continue;
            }
            let needed = (context + len).div_ceil(self.block_tokens);
            assert!(*kind != GroupKind::Full || needed <= share, "{needed} blocks of {share}");
            tables.extend((0..needed).map(|i| match i + share < needed {
                true => BlockId::NONE,
                false => BlockId(base + i % share),
            }));
        }
        starts
    }
}

//! Is this batch one the program and its limits allow? Every device asks before it computes, so
//! that no kernel meets an index it cannot follow.

use tokenmill_ir::{
    AttendSource, Batch, BlockId, GroupKind, Limits, Op, OutputKind, Program, Span, TokenSource,
};

use crate::DeviceError;

/// What batches are held against.
#[derive(Debug, Clone)]
pub struct BatchRules {
    groups: Vec<GroupKind>,
    limits: Limits,
    /// Blocks of each group that there are now.
    backed: Vec<u32>,
    block_tokens: u32,
    vocab: u32,
    /// Rows of the embedding table.
    ids: u32,
    /// Rows of the table of learned positions.
    positions: u32,
    /// Columns of rows that stand in the place of tokens.
    input_cols: u32,
    /// Rows that an output row takes, at most.
    run: u32,
    /// Whether blocks are looked at where keys are counted from the first token of a span.
    fresh_blocks: bool,
}

fn bad<T>(reason: String) -> Result<T, DeviceError> {
    Err(DeviceError::BadBatch(reason))
}

impl BatchRules {
    /// The rules of a program at its limits on a device with blocks of `block_tokens`.
    pub fn new(program: &Program, limits: &Limits, block_tokens: u32) -> Self {
        let (mut ids, mut positions, mut most, mut fresh_blocks) = (u32::MAX, u32::MAX, 1, false);
        let rows = |w: &tokenmill_ir::WeightId| program.weights[w.0 as usize].rows;
        for op in &program.ops {
            match op {
                Op::Embed { table, positions: learned, .. } => {
                    ids = ids.min(rows(table));
                    positions = learned.as_ref().map_or(positions, |w| positions.min(rows(w)));
                }
                Op::TakeRows { run, .. } => most = most.max(*run),
                Op::Attend(op) if matches!(op.source, AttendSource::Fresh { .. }) => {
                    fresh_blocks |= op.sees_blocks();
                }
                _ => {}
            }
        }
        Self {
            groups: program.groups(),
            limits: limits.clone(),
            backed: limits.group_blocks.clone(),
            block_tokens,
            vocab: program.vocab,
            ids,
            positions,
            input_cols: program.input_cols,
            run: most,
            fresh_blocks,
        }
    }

    /// Verifies every number of a batch that becomes an index. `previous` is the number of output
    /// rows of the step before.
    ///
    /// # Errors
    /// [`DeviceError::BadBatch`] with the numbers.
    pub fn check(&self, batch: &Batch, previous: usize) -> Result<(), DeviceError> {
        let limits = &self.limits;
        for (what, found, limit) in [
            ("tokens", batch.tokens.len(), limits.step_tokens),
            ("sequences", batch.spans.len(), limits.sequences),
            ("outputs", batch.outputs.len(), limits.outputs),
        ] {
            if found > limit as usize {
                return bad(format!("{found} {what}, at most {limit}"));
            }
        }
        let tokens = batch.tokens.len();
        for (what, found, optional) in [
            ("positions", batch.positions.len(), false),
            ("types", batch.types.len(), true),
            ("positions on further axes", batch.grid.len(), true),
            ("blocks", batch.blocks.len(), true),
        ] {
            if found != tokens && !(optional && found == 0) {
                return bad(format!("{found} {what} for {tokens} tokens"));
            }
        }
        self.check_tokens(batch, previous)?;
        self.check_spans(batch)?;
        self.check_outputs(batch)?;
        for c in &batch.copies {
            let blocks = self.blocks(c.group as usize);
            if c.src.0 >= blocks || c.dst.0 >= blocks || c.group as usize >= self.groups.len() {
                return bad(format!("copy {c:?} of {blocks} blocks"));
            }
        }
        Ok(())
    }

    /// Verifies that a block exists, and that its bytes are as many as given.
    ///
    /// # Errors
    /// [`DeviceError::BadBatch`] with the numbers.
    pub fn check_block(
        &self,
        (group, block): (usize, BlockId),
        (found, expected): (usize, usize),
    ) -> Result<(), DeviceError> {
        let blocks = self.blocks(group);
        if group >= self.groups.len() || block.0 >= blocks {
            return bad(format!("block {} of group {group}, which has {blocks}", block.0));
        }
        if found != expected {
            return bad(format!("{found} bytes for a block of {expected}"));
        }
        Ok(())
    }

    /// From now on there are the first so many blocks of each group.
    ///
    /// # Errors
    /// [`DeviceError::BadBatch`] for other groups, or more blocks than there may be at most.
    pub fn resize(&mut self, blocks: &[u32]) -> Result<(), DeviceError> {
        let most = &self.limits.group_blocks;
        if blocks.len() != most.len() || blocks.iter().zip(most).any(|(n, most)| n > most) {
            return bad(format!("{blocks:?} blocks of groups that have at most {most:?}"));
        }
        self.backed.copy_from_slice(blocks);
        Ok(())
    }

    fn blocks(&self, group: usize) -> u32 {
        self.backed.get(group).copied().unwrap_or(0)
    }

    fn check_tokens(&self, batch: &Batch, previous: usize) -> Result<(), DeviceError> {
        let (numbers, cols) = (batch.embeddings.len(), self.input_cols as usize);
        let rows = numbers.checked_div(cols).unwrap_or(0);
        if rows * cols != numbers {
            return bad(format!("{numbers} numbers in rows of {cols}"));
        }
        for (i, (token, &position)) in batch.tokens.iter().zip(&batch.positions).enumerate() {
            let known = match *token {
                TokenSource::Id(id) => id < self.ids,
                TokenSource::Sampled(row) => (row as usize) < previous && self.vocab <= self.ids,
                TokenSource::Embedding(row) => (row as usize) < rows,
            };
            if !known || position >= self.positions {
                return bad(format!("token {i}: {token:?} at position {position}"));
            }
        }
        Ok(())
    }

    fn check_spans(&self, batch: &Batch) -> Result<(), DeviceError> {
        let mut next = 0u64;
        for (i, span) in batch.spans.iter().enumerate() {
            let end = u64::from(span.context) + u64::from(span.len);
            if u64::from(span.first) != next || span.len == 0 {
                return bad(format!("span {i}: {} tokens from {}", span.len, span.first));
            }
            if end > u64::from(self.limits.context) {
                return bad(format!("span {i}: {end} tokens, at most {}", self.limits.context));
            }
            next += u64::from(span.len);
            if !batch.blocks.is_empty() && next <= batch.tokens.len() as u64 {
                self.check_blocks(batch, span)
                    .or_else(|reason| bad(format!("span {i}: {reason}")))?;
            }
            for group in 0..self.groups.len() {
                self.check_table(batch, span, group, end as u32)
                    .or_else(|reason| bad(format!("span {i}, group {group}: {reason}")))?;
            }
        }
        if next != batch.tokens.len() as u64 {
            return bad(format!("spans of {next} tokens, {} tokens", batch.tokens.len()));
        }
        Ok(())
    }

    /// Blocks lie one after another in a span, and each token of one names it.
    fn check_blocks(&self, batch: &Batch, span: &Span) -> Result<(), String> {
        let (mut before, mut any) = ([0, 0], false);
        for (row, index) in (span.first as usize..).zip(span.context..span.context + span.len) {
            let block = batch.blocks[row];
            let goes_on = block == before && index < block[1];
            let begins = before[1] <= index && block[0] == index && index < block[1];
            let none = before[1] <= index && block == [0, 0];
            if !(goes_on || begins || none) {
                return Err(format!("block {block:?} of key {index}, behind {before:?}"));
            }
            (before, any) = (block, any || block != [0, 0]);
        }
        if before[1] > span.context + span.len {
            return Err(format!("block {before:?} ends behind the step"));
        }
        if any && self.fresh_blocks && span.context > 0 {
            return Err(format!("blocks behind {} tokens that are not here", span.context));
        }
        Ok(())
    }

    fn check_table(
        &self,
        batch: &Batch,
        span: &Span,
        group: usize,
        end: u32,
    ) -> Result<(), String> {
        let blocks = self.blocks(group);
        let (len, first) = match self.groups[group] {
            GroupKind::State => (2, 0),
            GroupKind::Full => (end.div_ceil(self.block_tokens), 0),
            GroupKind::Window { tokens } => {
                let oldest = (span.context + 1).saturating_sub(tokens);
                (end.div_ceil(self.block_tokens), oldest / self.block_tokens)
            }
        };
        let start = span.tables[group] as usize;
        let Some(table) = batch.tables.get(start..start + len as usize) else {
            return Err(format!("table {start}+{len} of {}", batch.tables.len()));
        };
        for (i, id) in table.iter().enumerate().skip(first as usize) {
            let zeros = self.groups[group] == GroupKind::State && i == 0 && *id == BlockId::NONE;
            if id.0 >= blocks && !zeros {
                return Err(format!("entry {i} is block {} of {blocks}", id.0));
            }
        }
        Ok(())
    }

    fn check_outputs(&self, batch: &Batch) -> Result<(), DeviceError> {
        let (mut next, mut spans) = (0, batch.spans.iter().map(|s| s.first + s.len).peekable());
        for (i, output) in batch.outputs.iter().enumerate() {
            if output.row < next || output.row as usize >= batch.tokens.len() {
                return bad(format!("output {i} is token row {}", output.row));
            }
            next = output.row + 1;
            while spans.next_if(|end| *end <= output.row).is_some() {}
            if self.run > 1 && spans.peek().is_none_or(|end| end - output.row < self.run) {
                return bad(format!("output {i}: {} rows from row {}", self.run, output.row));
            }
            if !self.kind_is_served(batch, &output.kind) {
                return bad(format!("output {i}: {:?}", output.kind));
            }
        }
        Ok(())
    }

    fn kind_is_served(&self, batch: &Batch, kind: &OutputKind) -> bool {
        let inside = |(at, len): (u32, u32), all: usize| {
            u64::from(at) + u64::from(len) <= all as u64 || len == 0
        };
        let top = self.limits.top_logprobs;
        match *kind {
            OutputKind::Sample { params, history, prompt, bias, rules, mask } => {
                let words = u64::from(self.vocab.div_ceil(32));
                let masked =
                    mask == u32::MAX || (u64::from(mask) + 1) * words <= batch.masks.len() as u64;
                self.vocab > 0
                    && inside(history, batch.history.len())
                    && prompt <= history.1
                    && inside(bias, batch.bias.len())
                    && inside(rules, batch.bias.len())
                    && masked
                    && params.logprobs.is_none_or(|n| n <= top)
            }
            OutputKind::Score { target, top: n } => target < self.vocab && n <= top,
            OutputKind::Logits => self.vocab > 0,
            OutputKind::Hidden => true,
        }
    }
}

//! Runs a program on a device step by step, without an engine.

use std::ops::ControlFlow;

use tokenmill_backend::{Device, DeviceError, Executable};
use tokenmill_ir::{
    Batch, BlockId, GroupKind, Limits, MAX_GROUPS, Mode, OutputKind, OutputRow, Program, Span,
    StepOutput, TokenSource, WeightSource,
};

/// One sequence on one device.
pub struct Runner {
    executable: Box<dyn Executable>,
    tables: Vec<Vec<BlockId>>,
    computed: u32,
    cols: usize,
    kind: OutputKind,
}

impl Runner {
    /// Uploads and compiles; the context holds `tokens` tokens. Block ids are handed out in an
    /// order that is not their numbers'.
    pub fn new(
        device: &dyn Device,
        mode: Mode,
        program: &Program,
        source: &dyn WeightSource,
        tokens: u32,
    ) -> Result<Self, DeviceError> {
        let watch = &mut |_| ControlFlow::Continue(());
        let weights = device.upload(program, source, mode, watch)?;
        let block_tokens = device.caps().block_tokens;
        let groups = program.groups();
        let blocks = tokens.div_ceil(block_tokens);
        let of = |g: &GroupKind| if *g == GroupKind::State { 2 } else { blocks + 3 };
        let limits = Limits {
            step_tokens: tokens,
            sequences: 2,
            outputs: tokens,
            context: tokens,
            group_blocks: groups.iter().map(of).collect(),
            top_logprobs: 4,
        };
        let executable = device.compile(program, &weights, &limits)?;
        let table = |g: &GroupKind| match g {
            GroupKind::State => vec![BlockId::NONE, BlockId(1)],
            _ => (0..blocks).rev().map(|b| BlockId(b + 2)).collect(),
        };
        let tables = groups.iter().map(table).collect();
        let (cols, kind) = match program.vocab {
            0 => (program.hidden as usize, OutputKind::Hidden),
            vocab => (vocab as usize, OutputKind::Logits),
        };
        Ok(Self { executable, tables, computed: 0, cols, kind })
    }

    /// Feeds tokens; returns the rows (logits, or hidden rows of an encoder) of the last `rows`.
    pub fn feed(&mut self, tokens: &[u32], rows: usize) -> Result<Vec<f32>, DeviceError> {
        let mut batch = Batch::default();
        let len = tokens.len() as u32;
        batch.tokens.extend(tokens.iter().map(|&t| TokenSource::Id(t)));
        batch.positions.extend(self.computed..self.computed + len);
        let mut at = [0; MAX_GROUPS];
        for (start, table) in at.iter_mut().zip(&self.tables) {
            *start = batch.tables.len() as u32;
            batch.tables.extend_from_slice(table);
        }
        batch.spans.push(Span { first: 0, len, context: self.computed, tables: at });
        let first = len - rows as u32;
        let kind = self.kind;
        batch.outputs.extend((first..len).map(|row| OutputRow { row, kind }));
        self.executable.submit(&mut batch)?;
        let mut out = StepOutput::default();
        self.executable.wait(&mut out)?;
        assert_eq!(out.rows.len(), rows * self.cols, "numbers in the output rows");
        self.computed += len;
        for table in &mut self.tables {
            // A state is read where the last step wrote it.
            if let [read @ BlockId::NONE, write] = table.as_mut_slice() {
                *read = *write;
            }
        }
        Ok(out.rows)
    }

    /// Feeds the prompt in chunks of `chunk`, giving the rows of all its tokens.
    pub fn prefill(&mut self, tokens: &[u32], chunk: usize) -> Result<Vec<f32>, DeviceError> {
        let mut rows = Vec::new();
        for part in tokens.chunks(chunk) {
            rows.extend(self.feed(part, part.len())?);
        }
        Ok(rows)
    }

    /// `n` greedy tokens after a prompt whose last row of logits is `last`.
    pub fn greedy(&mut self, last: &[f32], n: usize) -> Result<Vec<u32>, DeviceError> {
        let mut tokens = Vec::new();
        let mut logits = last.to_vec();
        for _ in 0..n {
            let best = tokenmill_ir::sampling::argmax(&logits).expect("finite logits");
            tokens.push(best);
            if tokens.len() < n {
                logits = self.feed(&[best], 1)?;
            }
        }
        Ok(tokens)
    }
}

/// Largest absolute difference, and where.
pub fn worst_difference(found: &[f32], expected: &[f32]) -> (f32, usize) {
    assert_eq!(found.len(), expected.len());
    let mut worst = (0.0, 0);
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        let d = (a - b).abs();
        if d > worst.0 || d.is_nan() {
            worst = (if d.is_nan() { f32::INFINITY } else { d }, i);
        }
    }
    worst
}

//! Runs a program on a device step by step, without an engine.

use std::ops::ControlFlow;

use tokenmill_backend::{Device, DeviceError};
use tokenmill_engine::direct::{Direct, Feed};
use tokenmill_ir::{Batch, GroupKind, Limits, Mode, OutputKind, Program, WeightSource};

/// One sequence on one device.
pub struct Runner {
    direct: Direct,
    cols: usize,
    kind: OutputKind,
}

impl Runner {
    /// Uploads and compiles; the context holds `tokens` tokens.
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
        let of = |g: &GroupKind| match g {
            GroupKind::State => 1,
            _ => tokens.div_ceil(block_tokens),
        };
        let limits = Limits {
            step_tokens: tokens,
            sequences: 1,
            outputs: tokens,
            context: tokens,
            group_blocks: program.groups().iter().map(of).collect(),
            top_logprobs: 4,
        };
        let executable = device.compile(program, &weights, &limits)?;
        let (cols, kind) = match program.vocab {
            0 => (program.hidden as usize, OutputKind::Hidden),
            vocab => (vocab as usize, OutputKind::Logits),
        };
        let direct = Direct::new(executable, program, &limits, block_tokens, 1);
        Ok(Self { direct, cols, kind })
    }

    /// Feeds tokens; returns the rows (logits, or hidden rows of an encoder) of the last `rows`.
    pub fn feed(&mut self, tokens: &[u32], rows: usize) -> Result<Vec<f32>, DeviceError> {
        let len = tokens.len() as u32;
        let outputs: Vec<_> = (len - rows as u32..len).map(|row| (row, self.kind)).collect();
        let out = self.direct.step(&[Feed { sequence: 0, tokens, outputs: &outputs }])?;
        assert_eq!(out.rows.len(), rows * self.cols, "numbers in the output rows");
        Ok(out.rows.clone())
    }

    /// The rows that come out at the first tokens `outputs` of a batch that is changed first, the
    /// sequence being a new one.
    pub fn encode(
        &mut self,
        tokens: usize,
        outputs: &[u32],
        change: impl FnOnce(&mut Batch),
    ) -> Result<Vec<f32>, DeviceError> {
        self.direct.restart(0);
        let outputs: Vec<_> = outputs.iter().map(|&row| (row, self.kind)).collect();
        let feed = Feed { sequence: 0, tokens: &vec![0; tokens], outputs: &outputs };
        Ok(self.direct.step_as(&[feed], change)?.rows.clone())
    }

    /// Feeds tokens of a batch that is changed first; returns the rows of all.
    pub fn feed_as(
        &mut self,
        tokens: &[u32],
        change: impl FnOnce(&mut Batch),
    ) -> Result<Vec<f32>, DeviceError> {
        let outputs: Vec<_> = (0..tokens.len() as u32).map(|row| (row, self.kind)).collect();
        let out =
            self.direct.step_as(&[Feed { sequence: 0, tokens, outputs: &outputs }], change)?;
        assert_eq!(out.rows.len(), tokens.len() * self.cols, "numbers in the output rows");
        Ok(out.rows.clone())
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

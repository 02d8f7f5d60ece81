//! From a loaded model to a running engine.

use std::sync::Arc;

use thiserror::Error;
use tokenmill_backend::DeviceError;
use tokenmill_ir::{DeviceCaps, Load, Program};
use tokenmill_sched::{Config, StepCost};
use tokenmill_text::{ChatTemplate, TemplateError, Tokenizer};

use crate::draft::DraftMode;
use crate::engine::EngineParts;
use crate::handle::{Engine, system_clock};
use crate::load::{Fit, LoadedModel};

/// How an engine serves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServeOptions {
    /// Requests that may wait before further ones are refused.
    pub queue: u32,
    /// How long a step may take beyond its base, seconds: bounds the gap between two tokens.
    pub step_s: f64,
    /// Where drafts come from, unless a request says otherwise.
    pub draft: DraftMode,
}

/// A model that answers requests.
pub struct Served {
    /// The engine.
    pub engine: Engine,
    /// Tokenizer, where the files have one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Chat template, or why there is none.
    pub template: Result<ChatTemplate, TemplateError>,
    /// Architecture.
    pub arch: &'static str,
    /// Where the memory goes.
    pub fit: Fit,
    /// What it runs on.
    pub caps: DeviceCaps,
}

/// Why an engine does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The system refuses a thread.
    #[error("cannot start the engine's thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl LoadedModel {
    /// Compiles and starts the engine.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(mut self, options: ServeOptions) -> Result<Served, StartError> {
        let executable = self.compile()?;
        let caps = self.device.caps().clone();
        let config = self.config(&caps, options);
        let (tokenizer, template) = match self.vocabulary.take() {
            Some(v) => (Some(Arc::new(v.tokenizer)), v.template),
            None => (None, Err(TemplateError::Missing)),
        };
        let eos = tokenizer.as_ref().map(|t| t.eos_ids().to_vec()).unwrap_or_default();
        let (arch, fit) = (self.spec.arch, self.fit);
        let parts = EngineParts {
            device: executable,
            config,
            tokenizer: tokenizer.clone(),
            eos,
            draft: options.draft,
            queue: options.queue,
            clock: system_clock(),
            rebuild: Box::new(move || self.compile()),
        };
        let engine = Engine::start(parts)?;
        Ok(Served { engine, tokenizer, template, arch, fit, caps })
    }

    fn config(&self, caps: &DeviceCaps, options: ServeOptions) -> Config {
        Config {
            groups: self.program.groups(),
            block_tokens: caps.block_tokens,
            limits: self.limits.clone(),
            whole_sequences: self.program.whole_sequences,
            vocab: self.program.vocab,
            hidden: self.program.hidden,
            cost: step_cost(&self.program, caps),
            step_s: options.step_s,
            checkpoint_slots: 8,
        }
    }
}

/// Step time from the program's cost and the device's rates: memory for what every step reads,
/// arithmetic for each row.
fn step_cost(program: &Program, caps: &DeviceCaps) -> StepCost {
    let cost = |tokens, outputs, key_reads| program.cost(&Load { tokens, outputs, key_reads });
    let memory_s = |bytes: f64| bytes / caps.read_bytes_per_s.max(1.0);
    let arithmetic_s = |ops: f64| ops / caps.ops_per_s.max(1.0);
    let (row, output, keys) = (cost(1, 0, 0), cost(1, 1, 0), cost(1, 0, 1000));
    StepCost {
        base_s: memory_s(output.weight_bytes),
        token_s: arithmetic_s(row.ops),
        output_s: arithmetic_s(output.ops - row.ops),
        key_s: arithmetic_s(keys.ops - row.ops) / 1000.0,
    }
}

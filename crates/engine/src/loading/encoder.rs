//! The encoder of a model that sees: from its weights on the device to an engine beside the model's.

use std::path::PathBuf;
use std::sync::Arc;

use tokenmill_backend::{Device, DeviceError, Weights};
use tokenmill_ir::{Limits, Program};
use tokenmill_sched::Config;

use super::load::Source;
use super::start::{ServeOptions, step_cost};
use crate::draft::DraftMode;
use crate::engine::EngineParts;
use crate::handle::system_clock;
use crate::host::Host;
use crate::vision::Vision;

/// An encoder of images, its weights on the model's device.
pub struct Encoder {
    /// The file of its weights, or the model's.
    pub path: PathBuf,
    /// What is computed: whole sequences of patches, a final row of each run of them.
    pub program: Program,
    /// Its weights there.
    pub weights: Weights,
    /// Bounds of a step: the patches of a largest image.
    pub limits: Limits,
    /// Rows of an image that see each other in the model, at most; 0: they are read as text is.
    pub longest_block: u32,
    /// What rows depend on beside the patches: its files and how they are computed.
    pub identity: String,
    /// Bytes of rows that are kept.
    pub kept_bytes: u64,
}

impl Encoder {
    /// Compiles it and lets it serve on the host of its model.
    pub(super) fn start_on(
        self,
        host: &Host,
        device: Arc<dyn Device>,
        options: ServeOptions,
    ) -> Result<Vision, DeviceError> {
        let Self { path, program, mut weights, limits, identity, kept_bytes, .. } = self;
        let caps = device.caps().clone();
        let config = Config {
            groups: program.groups(),
            block_tokens: caps.block_tokens,
            limits: limits.clone(),
            whole_sequences: program.whole_sequences,
            vocab: program.vocab,
            hidden: program.hidden,
            cost: step_cost(&program, &caps),
            step_s: options.step_s,
            checkpoint_slots: 0,
            longest_block: 0,
        };
        let (ids, input_cols) = (program.ids(), program.input_cols);
        let source = Source { path: &path, program: &program, device: &*device, limits: &limits };
        let parts = EngineParts {
            device: source.compile(&weights)?,
            rebuild: Box::new(move |error| {
                let (path, program, limits) = (&path, &program, &limits);
                Source { path, program, device: &*device, limits }.rebuild(error, &mut weights)
            }),
            config,
            tokenizer: None,
            ids,
            input_cols,
            eos: Vec::new(),
            draft: DraftMode::None,
            queue: options.queue,
            clock: system_clock(),
            claim: None,
        };
        let engine = host.add(None, parts, (None, None));
        Ok(Vision::new(engine, identity, kept_bytes))
    }
}

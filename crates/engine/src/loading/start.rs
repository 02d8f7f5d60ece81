//! From a loaded model to a running engine.

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;
use tokenmill_backend::{DeviceError, Executable};
use tokenmill_ir::{Defaults, DeviceCaps, KvFormat, Load, Program};
use tokenmill_kvlog::LogOptions;
use tokenmill_models::ModelSpec;
use tokenmill_models::spec::{Frame, Output};
use tokenmill_sched::{Config, StepCost};
use tokenmill_text::{ChatTemplate, TemplateError, Tokenizer};

use crate::draft::DraftMode;
use crate::engine::EngineParts;
use crate::handle::{Engine, system_clock};
use crate::host::Host;
use crate::ledger::Claim;
use crate::load::LoadedModel;
use crate::loading::identity::Identity;
use crate::plan::Fit;
use crate::sight::Sight;
use crate::tier::{Tier, TierError, identify};

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
    pub template: Result<Arc<ChatTemplate>, TemplateError>,
    /// How it sees images, where it does.
    pub sight: Option<Sight>,
    /// How its packager wants it to be run: its files, until who knows more says more.
    pub defaults: Defaults,
    /// Architecture.
    pub arch: &'static str,
    /// Where the memory goes.
    pub fit: Fit,
    /// What it runs on.
    pub caps: DeviceCaps,
    /// Whether the cache is kept on disk, or why not.
    pub disk: Result<(), TierError>,
}

/// Where the cache is kept beyond the life of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOptions {
    /// The folder; one process at a time uses it, for any models.
    pub folder: PathBuf,
    /// Most bytes in it.
    pub cap_bytes: u64,
    /// The model's file or folder, as it was loaded.
    pub model: PathBuf,
    /// Storage format of keys and values it was loaded with.
    pub kv: KvFormat,
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
    pub fn start(self, options: ServeOptions) -> Result<Served, StartError> {
        self.start_with(options, None)
    }

    /// As [`start`](Self::start), with the cache kept on disk; without, where that cannot be.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_with(
        self,
        options: ServeOptions,
        disk: Option<&DiskOptions>,
    ) -> Result<Served, StartError> {
        let host = Host::start(Arc::clone(&self.device), self.fit.available_bytes)?;
        self.start_on(&host, options, disk)
    }

    /// As [`start_with`](Self::start_with), beside others on the host that [loaded](Host::load) it.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_on(
        mut self,
        host: &Host,
        options: ServeOptions,
        disk: Option<&DiskOptions>,
    ) -> Result<Served, StartError> {
        let executable = self.compile()?;
        let identity = Identity::of(&self, &*executable);
        let caps = self.device.caps().clone();
        let config = self.config(&caps, options);
        let tier = disk.ok_or(TierError::Off).and_then(|d| open_tier(d, &*executable, &config));
        let (tier, disk) = match tier {
            Ok(tier) => (Some(tier), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let encoder = self.encoder.take();
        let vision = encoder.map(|e| e.start_on(host, Arc::clone(&self.device), options));
        let vision = vision.transpose()?;
        let (tokenizer, template) = match self.vocabulary.take() {
            Some(v) => (Some(v.tokenizer), v.template),
            None => (None, Err(TemplateError::Missing)),
        };
        let eos = tokenizer.as_ref().map(|t| t.eos_ids().to_vec()).unwrap_or_default();
        let frame = frame(&self.spec, tokenizer.as_deref());
        let (arch, context) = (self.spec.arch, self.spec.context);
        let (fit, draft_model) = (self.fit, self.draft.take());
        let Self { program, limits, weights, .. } = &self;
        let footprint = self.device.footprint(program, limits, weights.mode())?;
        let mut claim = self.claim.take();
        if let Some(claim) = &mut claim {
            claim.note_blocks(footprint.block_bytes);
        }
        let name = claim.as_ref().and_then(Claim::name);
        let (defaults, sight) = (std::mem::take(&mut self.defaults), self.sight.take());
        let parts = EngineParts {
            device: executable,
            config,
            tokenizer: tokenizer.clone(),
            ids: self.program.ids(),
            input_cols: self.program.input_cols,
            eos,
            draft: options.draft,
            queue: options.queue,
            clock: system_clock(),
            claim,
            rebuild: Box::new(move |error| self.rebuild(error)),
        };
        let engine = host.add(name, parts, (tier, draft_model));
        engine.identify(identity);
        frame.into_iter().for_each(|frame| engine.frame(frame, context));
        vision.into_iter().for_each(|vision| engine.give_vision(vision));
        Ok(Served { engine, tokenizer, template, sight, defaults, arch, fit, caps, disk })
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
            longest_block: self.encoder.as_ref().map_or(0, |encoder| encoder.longest_block),
        }
    }
}

/// What becomes of texts before they are computed; padding is the token that the tokenizer names.
fn frame(spec: &ModelSpec, tokenizer: Option<&Tokenizer>) -> Option<Frame> {
    let Output::Projected { frame, .. } = spec.output else { return None };
    let Frame::Filled(usual) = frame else { return Some(frame) };
    let named = tokenizer.map(|t| (t, t.template_tokens().named));
    let padding = named.and_then(|(tokenizer, named)| {
        let (_, text) = named.iter().find(|(name, _)| name == "pad_token")?;
        tokenizer.id_of(text)
    });
    Some(Frame::Filled(padding.unwrap_or(usual)))
}

/// The tier of a compiled program.
fn open_tier(
    disk: &DiskOptions,
    executable: &dyn Executable,
    config: &Config,
) -> Result<Tier, TierError> {
    if config.whole_sequences {
        return Err(TierError::Model("a model that takes whole sequences"));
    }
    let blocks = executable.blocks()?;
    let key = identify(&disk.model, disk.kv, &blocks)?;
    let options = LogOptions::with_cap(disk.cap_bytes);
    Tier::start(&disk.folder, options, key, blocks, &config.groups, config.block_tokens)
}

/// Step time from the program's cost and the device's rates: memory for what every step reads,
/// arithmetic for each row.
pub(crate) fn step_cost(program: &Program, caps: &DeviceCaps) -> StepCost {
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

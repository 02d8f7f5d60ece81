//! From a path to a model on a device: files → spec → program → fit → weights uploaded.

use std::path::Path;

use thiserror::Error;
use tokenmill_backend::{Backend, DeviceError, Executable, WeightHandle};
use tokenmill_files::{LoadError, OpenModel};
use tokenmill_ir::{GroupKind, KvFormat, Limits, Program};
use tokenmill_models::{ModelError, ModelSpec, lower, spec_of};

use crate::vocabulary::{Vocabulary, VocabularyError, vocabulary};

/// Longest text of a model that takes texts whole, unless a longer context is asked for.
const WHOLE_TOKENS: u32 = 8192;

/// What the user wants of a loaded model.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadOptions {
    /// Storage format of keys and values.
    pub kv: KvFormat,
    /// Longest sequence, tokens; `None`: what the model allows and memory holds.
    pub context: Option<u32>,
    /// Sequences that may run at once.
    pub sequences: u32,
    /// Tokens in one step, all sequences together.
    pub step_tokens: u32,
    /// Memory this process may use, bytes.
    pub memory_bytes: u64,
}

/// Where the memory goes, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// Weights.
    pub weight_bytes: u64,
    /// Keys, values and states, when every block is in use.
    pub cache_bytes: u64,
    /// Buffers of one step and the program itself.
    pub scratch_bytes: u64,
    /// What this process may use.
    pub available_bytes: u64,
    /// Cache bytes of one token.
    pub token_bytes: u64,
}

/// Why a model cannot be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadFailure {
    /// The files.
    #[error(transparent)]
    File(#[from] LoadError),
    /// What they describe.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tokenizer.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Memory.
    #[error(
        "needs {needed_bytes} bytes ({weight_bytes} of weights, {cache_bytes} of cache for \
         {context} tokens, {scratch_bytes} of buffers), {available_bytes} are available"
    )]
    DoesNotFit {
        /// In all.
        needed_bytes: u64,
        /// Weights.
        weight_bytes: u64,
        /// Cache.
        cache_bytes: u64,
        /// Buffers.
        scratch_bytes: u64,
        /// Available.
        available_bytes: u64,
        /// Context asked for.
        context: u32,
        /// Context that would fit, 0 when not even the weights do.
        fitting_context: u32,
    },
}

/// A model read and lowered, nothing uploaded yet.
pub struct Lowered {
    /// The files.
    pub files: OpenModel,
    /// What it is.
    pub spec: ModelSpec,
    /// What is computed.
    pub program: Program,
}

/// A model on a device.
pub struct LoadedModel {
    /// What it is.
    pub spec: ModelSpec,
    /// What is computed.
    pub program: Program,
    /// Where.
    pub device: Box<dyn Backend>,
    /// Uploads, in the program's order.
    pub weights: Vec<WeightHandle>,
    /// Bounds of a step.
    pub limits: Limits,
    /// Tokenizer and template; `None` for files without.
    pub vocabulary: Option<Vocabulary>,
    /// Where the memory goes.
    pub fit: Fit,
}

impl LoadedModel {
    /// An executable with empty caches.
    ///
    /// # Errors
    /// What the device says.
    pub fn compile(&mut self) -> Result<Box<dyn Executable>, DeviceError> {
        self.device.compile(&self.program, &self.weights, &self.limits)
    }
}

/// Reads and lowers a model.
///
/// # Errors
/// [`LoadFailure::File`] and [`LoadFailure::Model`]; tensors nobody uses are refused.
pub fn read(path: &Path, kv: KvFormat) -> Result<Lowered, LoadFailure> {
    let files = tokenmill_files::open(path)?;
    let spec = spec_of(&files.checkpoint)?;
    let lowered = lower(&spec, &files.checkpoint, kv)?;
    if let Some(first) = lowered.unused.first() {
        let (count, first) = (lowered.unused.len(), first.clone());
        return Err(ModelError::UnusedTensors { count, first }.into());
    }
    Ok(Lowered { files, spec, program: lowered.program })
}

/// Loads a model onto a device. `progress` hears how many of how many weights are there.
///
/// # Errors
/// [`LoadFailure`].
pub fn load(
    path: &Path,
    mut device: Box<dyn Backend>,
    options: &LoadOptions,
    mut progress: impl FnMut(usize, usize),
) -> Result<LoadedModel, LoadFailure> {
    let Lowered { files, spec, program } = read(path, options.kv)?;
    let mut options = options.clone();
    if program.whole_sequences {
        // A step holds whole texts.
        let longest = options.context.unwrap_or(spec.context.min(WHOLE_TOKENS)).min(spec.context);
        options.step_tokens = options.step_tokens.max(longest);
    }
    let (limits, fit) = fit(&spec, &program, device.caps().block_tokens, &options)?;
    // The vocabulary is built while weights are uploaded.
    let (vocabulary, weights) = std::thread::scope(|scope| {
        let text = scope.spawn(|| vocabulary(&files));
        let mut weights = Vec::with_capacity(program.weights.len());
        for (i, weight) in program.weights.iter().enumerate() {
            progress(i, program.weights.len());
            weights.push(device.upload(weight, &files)?);
        }
        let text = text.join().unwrap_or_else(|_| {
            let (path, reason) = (path.display().to_string(), "the tokenizer panicked".into());
            Err(VocabularyError::File { path, reason })
        });
        Ok::<_, LoadFailure>((text?, weights))
    })?;
    Ok(LoadedModel { spec, program, device, weights, limits, vocabulary, fit })
}

/// Chooses context and cache size within memory.
///
/// # Errors
/// [`LoadFailure::DoesNotFit`] with the numbers.
pub fn fit(
    spec: &ModelSpec,
    program: &Program,
    block_tokens: u32,
    options: &LoadOptions,
) -> Result<(Limits, Fit), LoadFailure> {
    let groups = program.groups();
    let block_bytes: Vec<u64> =
        (0..groups.len()).map(|g| program.block_bytes(g as u32, block_tokens)).collect();
    let weight_bytes = program.weight_bytes();
    let scratch_bytes = scratch_bytes(program, options);
    let fixed = weight_bytes + scratch_bytes;
    let room = options.memory_bytes.saturating_sub(fixed);
    let cost = |context: u32, sequences: u32| -> (Vec<u32>, u64) {
        let blocks: Vec<u32> = groups
            .iter()
            .map(|g| group_blocks(*g, context, sequences, block_tokens, options.step_tokens))
            .collect();
        let bytes = blocks.iter().zip(&block_bytes).map(|(n, b)| u64::from(*n) * b).sum();
        (blocks, bytes)
    };
    // One sequence at full length must fit; more sequences share what is left.
    let wanted = options.context.unwrap_or(spec.context).min(spec.context).max(1);
    let mut context = wanted;
    while cost(context, 1).1 > room && context > block_tokens {
        context = (context / 2).max(block_tokens);
    }
    let fits = cost(context, 1).1 <= room && fixed <= options.memory_bytes;
    if !fits || (options.context.is_some() && context < wanted) {
        let cache_bytes = cost(wanted, 1).1;
        return Err(LoadFailure::DoesNotFit {
            needed_bytes: fixed + cache_bytes,
            weight_bytes,
            cache_bytes,
            scratch_bytes,
            available_bytes: options.memory_bytes,
            context: wanted,
            fitting_context: if fits { context } else { 0 },
        });
    }
    let mut sequences = options.sequences.max(1);
    while sequences > 1 && cost(context, sequences).1 > room / 2 {
        sequences -= sequences.div_ceil(8);
    }
    let (group_blocks, cache_bytes) = cost(context, sequences.max(1));
    let limits = Limits {
        step_tokens: options.step_tokens.max(1),
        sequences: options.sequences.max(1),
        outputs: options.step_tokens.max(options.sequences).max(1),
        context,
        group_blocks,
        top_logprobs: 20,
    };
    let per_token = program.caches.iter().filter(|c| c.group_kind() != GroupKind::State);
    let token_bytes = per_token.map(|c| c.unit_bytes()).sum();
    let available_bytes = options.memory_bytes;
    Ok((limits, Fit { weight_bytes, cache_bytes, scratch_bytes, available_bytes, token_bytes }))
}

/// Blocks of a group for that many sequences of that length.
fn group_blocks(
    kind: GroupKind,
    context: u32,
    sequences: u32,
    block_tokens: u32,
    step_tokens: u32,
) -> u32 {
    let full = context.div_ceil(block_tokens) + 1;
    match kind {
        GroupKind::Full => full.saturating_mul(sequences),
        GroupKind::Window { tokens } => {
            let held = (tokens + step_tokens).div_ceil(block_tokens) + 2;
            held.min(full).saturating_mul(sequences)
        }
        GroupKind::State => 2 * sequences + 8,
    }
}

/// An upper estimate of a step's buffers: the widest few live at once, and logits of all outputs.
fn scratch_bytes(program: &Program, options: &LoadOptions) -> u64 {
    let mut widths: Vec<u64> = program.buffers.iter().map(|b| u64::from(b.cols)).collect();
    widths.sort_unstable_by(|a, b| b.cmp(a));
    let head = u64::from(program.vocab) * u64::from(options.sequences.max(1)) * 4;
    let wide: u64 = widths.iter().filter(|w| **w != u64::from(program.vocab)).take(6).sum();
    wide * 4 * u64::from(options.step_tokens) + head + (48 << 20)
}

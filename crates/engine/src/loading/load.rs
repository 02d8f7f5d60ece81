//! From a path to a model on a device: files → spec → program → fit → weights uploaded.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use tokenmill_backend::{Device, DeviceError, Executable, Weights};
use tokenmill_files::{LoadError, OpenModel};
use tokenmill_ir::{Defaults, KvFormat, Limits, Mode, Program};
use tokenmill_models::{Hyper, ModelError, ModelSpec, lower, spec_of};

use crate::door::{self, Bug};
use crate::draft_model::DraftModel;
use crate::encoder::Encoder;
use crate::eyes::Eyes;
use crate::host::Host;
use crate::ledger::Claim;
use crate::library::{Book, Library, Opened};
use crate::packaged::packaged;
use crate::plan::{self, Fit, fit};
use crate::residency::Needs;
use crate::sight::{Seeing, Sight};
use crate::vocabulary::{Vocabulary, VocabularyError, vocabulary};

/// Longest text of a model that takes texts whole, unless a longer context is asked for.
const WHOLE_TOKENS: u32 = 8192;

/// How long a model loads of which nobody knows better: seconds, and bytes a second.
const LEAST_LOAD_S: f64 = 0.05;
const LOAD_BYTES_PER_S: f64 = 1e9;

/// How many bits weights take in memory, where a wider form is computed faster. The results are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightBits {
    /// As many as in the file.
    Own,
    /// As many as are fastest.
    Wide,
    /// The fastest while that takes nothing from contexts and streams.
    #[default]
    Auto,
}

/// What the user wants of a loaded model.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadOptions {
    /// Arithmetic of products.
    pub mode: Mode,
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
    /// Whether it sees, where it can; else its encoder takes no memory.
    pub images: bool,
    /// How many bits weights take.
    pub weights: WeightBits,
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
    /// The host has one of that name.
    #[error("a model called {name} is there already")]
    Named {
        /// The name.
        name: String,
    },
    /// What reads it panicked.
    #[error(transparent)]
    Bug(#[from] Bug),
    /// Memory.
    #[error(
        "needs {needed_bytes} bytes ({weight_bytes} of weights, {cache_bytes} of cache for \
         {context} tokens, {scratch_bytes} of buffers, {encoder_bytes} of an encoder of images), \
         {available_bytes} are available"
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
        /// Its encoder of images, where it has one.
        encoder_bytes: u64,
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
    /// Where its files are.
    pub path: PathBuf,
    /// The files.
    pub files: OpenModel,
    /// What it is.
    pub spec: ModelSpec,
    /// What is computed.
    pub program: Program,
}

impl Lowered {
    /// Keys of its configuration that nobody knows, which were passed over.
    pub fn passed_over(&self) -> Vec<String> {
        let hyper = Hyper::new(&self.files.checkpoint);
        hyper.map(|h| h.passed_over().into_iter().map(str::to_owned).collect()).unwrap_or_default()
    }
}

/// A model on a device.
pub struct LoadedModel {
    /// Where its files are.
    pub path: PathBuf,
    /// What it is.
    pub spec: ModelSpec,
    /// What is computed.
    pub program: Program,
    /// Where.
    pub device: Arc<dyn Device>,
    /// Its weights there.
    pub weights: Weights,
    /// Bounds of a step.
    pub limits: Limits,
    /// Tokenizer and template; `None` for files without.
    pub vocabulary: Option<Vocabulary>,
    /// How the files want the model to be sampled.
    pub defaults: Defaults,
    /// Where the memory goes.
    pub fit: Fit,
    /// A small model that guesses for this one.
    pub draft: Option<DraftModel>,
    /// What makes rows of images for it, where it sees.
    pub encoder: Option<Encoder>,
    /// How it sees them.
    pub sight: Option<Sight>,
    /// Its place in the ledger of the host that loaded it.
    pub(crate) claim: Option<Claim>,
}

impl LoadedModel {
    /// An executable with empty caches.
    ///
    /// # Errors
    /// What the device says.
    pub fn compile(&self) -> Result<Box<dyn Executable>, DeviceError> {
        self.source().compile(&self.weights)
    }

    fn source(&self) -> Source<'_> {
        let Self { path, program, device, limits, .. } = self;
        Source { path, program, device: device.as_ref(), limits }
    }

    /// An executable after an error; weights that the device has lost are read again.
    pub(super) fn rebuild(
        &mut self,
        error: &DeviceError,
    ) -> Result<Box<dyn Executable>, DeviceError> {
        let Self { path, program, device, limits, weights, .. } = self;
        let source = Source { path, program, device: device.as_ref(), limits };
        source.rebuild(error, weights)
    }
}

/// What a program on a device is made from, again and again.
pub(super) struct Source<'a> {
    /// The files of its weights.
    pub path: &'a Path,
    pub program: &'a Program,
    pub device: &'a dyn Device,
    pub limits: &'a Limits,
}

impl Source<'_> {
    pub fn compile(&self, weights: &Weights) -> Result<Box<dyn Executable>, DeviceError> {
        let Self { path, program, device, limits } = self;
        let compiled = door::through(path, || Ok(device.compile(program, weights, limits)?));
        compiled.map_err(|e| self.device_error(e))
    }

    fn upload(&self, mode: Mode) -> Result<Weights, DeviceError> {
        let Self { path, program, device, .. } = self;
        let uploaded = door::through(path, || {
            let files = tokenmill_files::open(path)?;
            let watch = &mut |_| ControlFlow::Continue(());
            Ok(device.upload(program, &files, mode, watch)?)
        });
        uploaded.map_err(|e| self.device_error(e))
    }

    /// Compiles it anew after an error, and reads its weights again where the device has lost them.
    pub fn rebuild(
        &self,
        error: &DeviceError,
        weights: &mut Weights,
    ) -> Result<Box<dyn Executable>, DeviceError> {
        if !matches!(error, DeviceError::Lost { .. }) {
            match self.compile(weights) {
                // (Lost meanwhile, or when it was rebuilt in vain.)
                Err(DeviceError::Lost { .. }) => {}
                compiled => return compiled,
            }
        }
        *weights = self.upload(weights.mode())?;
        self.compile(weights)
    }

    fn device_error(&self, failure: LoadFailure) -> DeviceError {
        match failure {
            LoadFailure::Device(error) => error,
            other => DeviceError::Failed {
                device: self.device.caps().name.clone(),
                reason: other.to_string(),
            },
        }
    }
}

/// Reads and lowers a model.
///
/// # Errors
/// [`LoadFailure::File`] and [`LoadFailure::Model`]; tensors nobody uses are refused.
pub fn read(path: &Path, kv: KvFormat) -> Result<Lowered, LoadFailure> {
    door::through(path, || read_inside(path, kv))
}

fn read_inside(path: &Path, kv: KvFormat) -> Result<Lowered, LoadFailure> {
    let files = tokenmill_files::open(path)?;
    let spec = spec_of(&files.checkpoint)?;
    let lowered = lower(&spec, &files.checkpoint, kv)?;
    if let Some(first) = lowered.unused.first() {
        let (count, first) = (lowered.unused.len(), first.chars().take(200).collect());
        return Err(ModelError::UnusedTensors { count, first }.into());
    }
    Ok(Lowered { path: path.to_owned(), files, spec, program: lowered.program })
}

/// A step holds whole texts of a model that takes them whole.
pub(crate) fn whole_texts(
    options: &LoadOptions,
    spec: &ModelSpec,
    program: &Program,
) -> LoadOptions {
    let mut options = options.clone();
    if program.whole_sequences {
        let longest = options.context.unwrap_or(spec.context.min(WHOLE_TOKENS)).min(spec.context);
        options.step_tokens = options.step_tokens.max(longest);
    }
    options
}

/// What a model takes of memory that it shares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// What it takes.
    pub needs: Needs,
    /// The memory to load it within.
    pub memory_bytes: u64,
    /// Its longest sequence then.
    pub context: u32,
    /// Its weights.
    pub weight_bytes: u64,
    /// Whether it sees images.
    pub sees: bool,
}

/// As [`fit`], of a model that was read, with its encoder of images where it has one.
///
/// # Errors
/// As [`load`].
pub fn fit_whole(
    model: &Lowered,
    device: &dyn Device,
    options: &LoadOptions,
) -> Result<(Limits, Fit), LoadFailure> {
    let Lowered { path, files, spec, program } = model;
    door::through(path, || {
        let seeing = Seeing::of((path, files, spec), device, options);
        fit_beside(seeing.as_ref(), (spec, program), device, options)
    })
}

/// What a model that was read takes beside its caches, its encoder of images among it.
///
/// # Errors
/// As [`load`].
pub fn fixed_bytes(
    model: &Lowered,
    device: &dyn Device,
    options: &LoadOptions,
) -> Result<u64, LoadFailure> {
    let Lowered { path, files, spec, program } = model;
    door::through(path, || {
        let seeing = Seeing::of((path, files, spec), device, options);
        Ok(fixed(seeing.as_ref(), (spec, program), device, options)?.1)
    })
}

/// Needs of a model, and what it takes beside its caches.
fn fixed(
    seeing: Option<&Seeing>,
    (spec, program): (&ModelSpec, &Program),
    device: &dyn Device,
    options: &LoadOptions,
) -> Result<(plan::Needs, u64), DeviceError> {
    let needs = match seeing {
        Some(s) => plan::Needs::of(&s.spec, &s.program, device, &s.options(options))?,
        None => plan::Needs::of(spec, program, device, options)?,
    };
    let encoder_bytes = seeing.map_or(0, |s| s.memory().sum());
    let fixed_bytes = needs.fixed_bytes().saturating_add(encoder_bytes);
    Ok((needs, fixed_bytes))
}

/// As [`fit`], of a model with its encoder, where it has one.
fn fit_beside(
    seeing: Option<&Seeing>,
    (spec, program): (&ModelSpec, &Program),
    device: &dyn Device,
    options: &LoadOptions,
) -> Result<(Limits, Fit), LoadFailure> {
    let Some(seeing) = seeing else { return fit(spec, program, device, options) };
    let encoder = seeing.memory();
    match fit(&seeing.spec, &seeing.program, device, &seeing.options(options)) {
        Ok((limits, fit)) => {
            Ok((limits, Fit { encoder, available_bytes: options.memory_bytes, ..fit }))
        }
        Err(mut failure) => {
            if let LoadFailure::DoesNotFit {
                needed_bytes, encoder_bytes, available_bytes, ..
            } = &mut failure
            {
                *encoder_bytes = encoder.sum();
                *needed_bytes = needed_bytes.saturating_add(*encoder_bytes);
                *available_bytes = options.memory_bytes;
            }
            Err(failure)
        }
    }
}

/// A model's part of memory that it shares with others which come and go: what it needs beside its
/// caches, and half of the rest for them; all of it where a context that was asked for needs more.
/// Or the part that is given.
fn share(
    (path, files, spec, program): (&Path, &OpenModel, &ModelSpec, &Program),
    device: &dyn Device,
    options: &LoadOptions,
    given: Option<u64>,
) -> Result<Share, LoadFailure> {
    let mut options = whole_texts(options, spec, program);
    let all_bytes = options.memory_bytes;
    let mut seeing = Seeing::of((path, files, spec), device, &options);
    let (parts, fixed_bytes) = fixed(seeing.as_ref(), (spec, program), device, &options)?;
    let half = fixed_bytes.saturating_add(all_bytes.saturating_sub(fixed_bytes) / 2);
    // (An encoder's part depends on all of it, as it does where it is loaded.)
    let mut within = |memory_bytes| {
        options.memory_bytes = memory_bytes;
        seeing.as_mut().map_or(Ok(()), |s| s.within(device, &options))?;
        let found = fit_beside(seeing.as_ref(), (spec, program), device, &options)?;
        Ok::<_, LoadFailure>((memory_bytes, found))
    };
    let found = within(given.unwrap_or(half)).or_else(|_| within(given.unwrap_or(all_bytes)));
    let (memory_bytes, (limits, fit)) = found?;
    let bytes = fit.memory().sum();
    let load_s = LEAST_LOAD_S + bytes as f64 / LOAD_BYTES_PER_S;
    let least = parts.cache(limits.context, 1).1.min(fit.cache_bytes);
    let needs = Needs { bytes, floor_bytes: bytes - fit.cache_bytes + least, load_s };
    let weight_bytes = fit.weight_bytes + fit.encoder.weight_bytes;
    // (Not where its processor is none that is built.)
    let sees = seeing.is_some_and(|seeing| Eyes::new(seeing.sight).is_ok());
    Ok(Share { needs, memory_bytes, context: limits.context, weight_bytes, sees })
}

/// The tokenizer and the template of a model that was read from there.
///
/// # Errors
/// [`LoadFailure::Vocabulary`].
pub fn vocabulary_of(path: &Path, files: &OpenModel) -> Result<Option<Vocabulary>, LoadFailure> {
    door::through(path, || Ok(vocabulary(files)?))
}

/// Loads a model onto a device. `progress` hears how many of how many weights are there.
///
/// # Errors
/// [`LoadFailure`].
pub fn load(
    path: &Path,
    device: Arc<dyn Device>,
    options: &LoadOptions,
    mut progress: impl FnMut(usize, usize),
) -> Result<LoadedModel, LoadFailure> {
    let mut watch = |there, of| {
        progress(there, of);
        ControlFlow::Continue(())
    };
    door::through(path, || {
        let library = Library::new(0);
        let opened = library.open(path, options.kv)?;
        load_inside(opened, &device, options, (&library, None), &mut watch)
    })
}

impl Host {
    /// What was read of a model, and its part of memory that it shares with others which come and go:
    /// what it needs beside its caches, and half of the rest for them; all of it where a context that
    /// was asked for needs more. Or the part that is given.
    ///
    /// # Errors
    /// As [`load`].
    pub fn share(
        &self,
        path: &Path,
        options: &LoadOptions,
        given: Option<u64>,
    ) -> Result<(Arc<Book>, Share), LoadFailure> {
        door::through(path, || {
            let book = self.books().book(path, options.kv)?;
            let of = (path, &book.open()?, &book.spec, &book.program);
            let share = share(of, self.device().as_ref(), options, given)?;
            Ok((book, share))
        })
    }

    /// Loads a model onto the host's device, within what its memory has free. `watch` hears how many
    /// of how many weights are there, and may break off: then nothing is held. Steps of other models
    /// go on meanwhile.
    ///
    /// # Errors
    /// [`LoadFailure`]; `Named` where a model of that name is there, loads or drains.
    pub fn load(
        &self,
        name: &str,
        path: &Path,
        options: &LoadOptions,
        mut watch: impl FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<LoadedModel, LoadFailure> {
        let claim = self.ledger().enter(name);
        let claim = claim.ok_or_else(|| LoadFailure::Named { name: name.to_owned() })?;
        door::through(path, || {
            let opened = self.books().open(path, options.kv)?;
            load_inside(opened, self.device(), options, (self.books(), Some(claim)), &mut watch)
        })
    }
}

/// Weights, and the vocabulary that is built while they are uploaded.
fn with_vocabulary(
    opened: &Opened,
    upload: &mut dyn FnMut() -> Result<Weights, DeviceError>,
) -> Result<(Option<Vocabulary>, Weights), LoadFailure> {
    if let Some(book) = &opened.book {
        return Ok((book.vocabulary.clone(), upload()?));
    }
    let Lowered { path, files, .. } = &opened.lowered;
    std::thread::scope(|scope| {
        let text = scope.spawn(|| vocabulary_of(path, files));
        let weights = upload();
        // (It is behind the door too, so that it cannot panic.)
        let text = text.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((text?, weights?))
    })
}

fn load_inside(
    opened: Opened,
    device: &Arc<dyn Device>,
    options: &LoadOptions,
    (library, claim): (&Library, Option<Claim>),
    watch: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<LoadedModel, LoadFailure> {
    let Lowered { path, files, spec, program } = &opened.lowered;
    let mut options = whole_texts(options, spec, program);
    let seeing = Seeing::of((path, files, spec), device.as_ref(), &options);
    let seen = seeing.as_ref();
    let mut choose = |free_bytes: u64| {
        let fit =
            |options: &LoadOptions| fit_beside(seen, (spec, program), device.as_ref(), options);
        let wanted = fit(&options).ok();
        let (limits, fit) = match wanted.filter(|(_, fit)| fit.needed_bytes() <= free_bytes) {
            // As much as it was measured to take: the same each time it comes.
            Some(wanted) => wanted,
            None => {
                options.memory_bytes = options.memory_bytes.min(free_bytes);
                fit(&options)?
            }
        };
        Ok::<_, LoadFailure>((fit.memory(), (limits, fit)))
    };
    let (limits, fit) = match &claim {
        Some(claim) => claim.take(choose)?,
        None => choose(u64::MAX)?.1,
    };
    let upload = &mut || {
        let program = seeing.as_ref().map_or(program, |s| &s.program);
        let wide = Program { wide_weights: true, ..Program::clone(program) };
        let program = if fit.wide_weights { &wide } else { program };
        let watch = &mut |there| watch(there, program.weights.len());
        device.upload(program, files, options.mode, watch)
    };
    let (vocabulary, weights) = with_vocabulary(&opened, upload)?;
    let defaults = match &opened.book {
        Some(book) => book.defaults.clone(),
        None => packaged(&files.checkpoint),
    };
    let encoder =
        seeing.as_ref().map(|s| s.upload((path, files), device.as_ref(), &options)).transpose()?;
    let Lowered { path, spec, program, .. } = library.note(opened, options.kv, vocabulary.as_ref());
    let (spec, program, sight) = match seeing {
        Some(Seeing { spec, program, sight, .. }) => (spec, program, Some(sight)),
        None => (spec, program, None),
    };
    let program = Program { wide_weights: fit.wide_weights, ..program };
    let (device, draft) = (Arc::clone(device), None);
    Ok(LoadedModel {
        path,
        spec,
        program,
        device,
        weights,
        limits,
        vocabulary,
        defaults,
        fit,
        draft,
        encoder,
        sight,
        claim,
    })
}

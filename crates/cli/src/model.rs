//! From a name on the command line to a loaded model.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use tokenmill_backend::Device;
use tokenmill_engine::kv_divergence::{KL_LIMIT, cache_cost};
use tokenmill_engine::load::{
    LoadFailure, LoadOptions, LoadedModel, WeightBits, fixed_bytes, load, read,
};
use tokenmill_engine::start::{DiskOptions, ServeOptions, Served};
use tokenmill_engine::{DraftMode, Host};
use tokenmill_ir::{Defaults, KvFormat, Mode};
use tokenmill_text::{ChatTemplate, TemplateError};

use crate::args::{Draft, Kv, Machine};
use crate::failure::{Failure, size, tell};
use crate::{args, devices, store};

/// Tokens a step may hold.
const STEP_TOKENS: u32 = 512;

/// The file or folder behind a name, fetched if need be, and how its packager wants it to be run.
pub fn find(name: &str) -> Result<(PathBuf, Defaults), Failure> {
    let path = Path::new(name);
    if path.exists() {
        return Ok((path.to_owned(), Defaults::default()));
    }
    let model = store::resolve(name)?;
    Ok((model.path, model.defaults))
}

/// The file or folder behind a name, fetched if need be.
pub fn locate(name: &str) -> Result<PathBuf, Failure> {
    Ok(find(name)?.0)
}

/// Puts what the packager says above what the model's files say.
pub fn settle(packager: Defaults, served: &mut Served) {
    served.defaults = packager.or(std::mem::take(&mut served.defaults));
}

/// Names what of its packager's wishes is not followed.
pub fn tell_unused(name: &str, served: &Served) {
    if !served.defaults.unused.is_empty() {
        let list = served.defaults.unused.join(", ");
        tell!("note: {name} comes with {list}, which is not followed");
    }
}

/// Storage format of keys and values.
pub fn kv_format(kv: Kv) -> KvFormat {
    match kv {
        Kv::F32 => KvFormat::F32,
        Kv::Bf16 => KvFormat::Bf16,
        Kv::Int16 => KvFormat::Int16,
        Kv::Int8 => KvFormat::Int8,
        Kv::Int4 => KvFormat::Int4,
        Kv::K8v4 => KvFormat::K8V4,
    }
}

fn mode(mode: args::Mode) -> Mode {
    match mode {
        args::Mode::Int8 => Mode::Int8,
        args::Mode::Bf16 => Mode::Bf16,
        args::Mode::F32 => Mode::F32,
    }
}

/// What the command line asks of a load on a device for that many sequences.
pub fn options(machine: &Machine, device: &dyn Device, sequences: u32) -> LoadOptions {
    LoadOptions {
        mode: mode(machine.mode),
        kv: machine.kv.map_or(device.caps().kv, kv_format),
        context: machine.ctx,
        sequences,
        // Each sequence has a token in a step.
        step_tokens: STEP_TOKENS.max(sequences),
        memory_bytes: machine.mem.unwrap_or_else(|| devices::available_bytes(machine, device)),
        images: !machine.no_vision,
        weights: match machine.weights {
            args::Bits::Own => WeightBits::Own,
            args::Bits::Wide => WeightBits::Wide,
            args::Bits::Auto => WeightBits::Auto,
        },
    }
}

/// Refuses guesses where no answer is generated.
pub fn without_drafts(machine: &Machine) -> Result<(), Failure> {
    if machine.draft.is_none() && machine.draft_model.is_none() {
        return Ok(());
    }
    let detail = "this command generates no answer; run and serve do";
    Err(Failure::new("--draft and --draft-model have no use here", detail).fix("leave them out"))
}

/// Rows of logits in a step where every token has one: each is a whole vocabulary.
const SCORED: u32 = 64;

/// Loads a model for one sequence whose every token has logits.
pub fn open_scored(name: &str, machine: &Machine) -> Result<LoadedModel, Failure> {
    without_drafts(machine)?;
    let mut loaded = open(name, machine, 1)?;
    loaded.limits.outputs = SCORED.min(loaded.limits.step_tokens);
    Ok(loaded)
}

/// Loads a model for that many sequences.
pub fn open(name: &str, machine: &Machine, sequences: u32) -> Result<LoadedModel, Failure> {
    let loaded = open_quietly(name, machine, sequences)?;
    if let Some(asked) = machine.ctx {
        tell_of_context(asked, loaded.spec.context);
    }
    Ok(loaded)
}

/// The same without a word on the context.
pub fn open_quietly(name: &str, machine: &Machine, sequences: u32) -> Result<LoadedModel, Failure> {
    let device = devices::open(machine)?;
    let options = options(machine, &*device, sequences);
    load_on(name, device, &options)
}

fn load_on(
    name: &str,
    device: Arc<dyn Device>,
    options: &LoadOptions,
) -> Result<LoadedModel, Failure> {
    let (path, bar) = (locate(name)?, Bar::new());
    let loaded = load(&path, device, options, |at, of| bar.set(at, of));
    loaded.map_err(|e| Failure::load(name, e))
}

/// Shows how far loading is.
pub struct Bar(ProgressBar);

impl Bar {
    /// One that shows nothing yet.
    pub fn new() -> Self {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{spinner} loading {pos}/{len} weights");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Self(bar)
    }

    /// For a load that nobody breaks off.
    pub fn watch(&self) -> impl FnMut(usize, usize) -> ControlFlow<()> {
        |at, of| {
            self.set(at, of);
            ControlFlow::Continue(())
        }
    }

    fn set(&self, at: usize, of: usize) {
        // Small models load before a bar could be read.
        if self.0.elapsed().as_secs() >= 1 {
            self.0.set_length(of as u64);
            self.0.set_position(at as u64);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Says so where a longer context was asked for than the model has.
pub fn tell_of_context(asked: u32, context: u32) {
    if asked > context {
        tell!(
            "note: a context of {asked} tokens was asked for; this model's own, {context}, is used"
        );
    }
}

/// The name of a format on the command line.
pub fn kv_name(format: KvFormat) -> &'static str {
    match format {
        KvFormat::F32 => "f32",
        KvFormat::Bf16 => "bf16",
        KvFormat::Int16 => "int16",
        KvFormat::Int8 => "int8",
        KvFormat::Int4 => "int4",
        KvFormat::K8V4 => "k8v4",
    }
}

/// Refuses 4-bit keys and values that change the model's predictions more than they should, unless
/// they are wanted anyway.
pub fn check_cache(name: &str, machine: &Machine, model: &mut LoadedModel) -> Result<(), Failure> {
    let cost = cache_cost(model).map_err(|e| Failure::new("the device failed", e))?;
    let Some(cost) = cost.filter(|cost| cost.is_too_much()) else { return Ok(()) };
    let asked = machine.kv.map_or("int16", |kv| kv_name(kv_format(kv)));
    let (better, its) = match cost.instead {
        Some((format, kl)) => (kv_name(format), format!(", --kv {} by {kl:.4}", kv_name(format))),
        None => ("int16", String::new()),
    };
    let detail = format!(
        "4-bit keys and values change its predictions by {:.3} nats a token of a short text (at most \
         {KL_LIMIT}{its})",
        cost.kl
    );
    if machine.kv_anyway {
        tell!("warning: {detail}; --kv {better} changes them less");
        return Ok(());
    }
    Err(Failure::new(format!("{name} does not stand --kv {asked}"), detail)
        .fix(format!("--kv {better}, or --kv-anyway to use {asked} all the same")))
}

/// What a user must know before the first answer.
pub fn warn(served: &Served, template: Result<&ChatTemplate, &TemplateError>) {
    for warning in tokenmill_text::warnings(served.tokenizer.as_deref(), template) {
        tell!("warning: {warning}");
    }
}

/// What was read of models that come and go is kept in a part of their memory, within these bytes: of
/// some vocabularies.
const KEPT_PART: u64 = 64;
const KEPT_BYTES: u64 = 16 << 20;
const MOST_KEPT_BYTES: u64 = 64 << 20;

/// A host, and the part of its memory that each model may use.
pub struct House {
    pub host: Host,
    pub memory_bytes: Vec<u64>,
}

impl House {
    /// A host for models that come and go.
    pub fn shared(machine: &Machine, sequences: u32) -> Result<Self, Failure> {
        let device = devices::open(machine)?;
        let all = options(machine, &*device, sequences).memory_bytes;
        let kept = (all / KEPT_PART).clamp(KEPT_BYTES, MOST_KEPT_BYTES);
        let failed = |e| Failure::new("cannot start the device's thread", e);
        let host = Host::start(device, all.saturating_sub(kept)).map_err(failed)?;
        Ok(Self { host: host.keeping(kept), memory_bytes: Vec::new() })
    }

    /// Room for these models, for that many sequences each: what all of them need beside caches, and
    /// of the rest the same for each.
    pub fn of(names: &[String], machine: &Machine, sequences: u32) -> Result<Self, Failure> {
        let device = devices::open(machine)?;
        let options = options(machine, &*device, sequences);
        let failed = |e| Failure::new("cannot start the device's thread", e);
        let host = Host::start(device, options.memory_bytes).map_err(failed)?;
        let all = host.ledger().all_bytes();
        if names.len() == 1 {
            return Ok(Self { host, memory_bytes: vec![all] });
        }
        let fixed = |name: &String| {
            let bytes = read(&locate(name)?, options.kv)
                .and_then(|model| fixed_bytes(&model, host.device().as_ref(), &options));
            bytes.map_err(|e| Failure::load(name, e))
        };
        let fixed: Vec<u64> = names.iter().map(fixed).collect::<Result<_, Failure>>()?;
        let sum = fixed.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
        let Some(rest) = all.checked_sub(sum) else {
            let list: Vec<String> =
                names.iter().zip(&fixed).map(|(n, b)| format!("{n} {}", size(*b))).collect();
            let detail = format!(
                "without any cache they need {} ({}), {} are available",
                size(sum),
                list.join(", "),
                size(all)
            );
            return Err(Failure::new("these models do not fit together", detail)
                .fix("--keep-alive 5m, so that they take turns, or fewer or smaller models"));
        };
        let part = rest / names.len() as u64;
        let memory_bytes = fixed.iter().map(|fixed| fixed + part).collect();
        Ok(Self { host, memory_bytes })
    }
}

/// Loads a model and starts its engine. Of a template that cannot be used is told where it is.
pub fn start(name: &str, machine: &Machine, sequences: u32, queue: u32) -> Result<Served, Failure> {
    let House { host, .. } = House::of(&[name.to_owned()], machine, sequences)?;
    let limits = Limits { sequences, queue, memory_bytes: host.ledger().all_bytes() };
    let bar = Bar::new();
    let path = locate(name)?;
    let served = start_in(&host, (name, name, &path), machine, limits, None, &mut bar.watch());
    drop(bar);
    let served = served.map_err(|e| e.told(name))?;
    warn(&served, served.template.as_deref().map_err(|_| &TemplateError::Missing));
    Ok(served)
}

/// Sequences that run at once, requests that may wait, and the memory of all that.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub sequences: u32,
    pub queue: u32,
    pub memory_bytes: u64,
}

/// Why a model does not answer.
pub enum NotStarted {
    /// It was not loaded.
    Load(LoadFailure),
    /// Anything else.
    Told(Failure),
}

impl From<Failure> for NotStarted {
    fn from(failure: Failure) -> Self {
        Self::Told(failure)
    }
}

impl NotStarted {
    /// As a user is told it.
    pub fn told(self, name: &str) -> Failure {
        match self {
            Self::Load(failure) => Failure::load(name, failure),
            Self::Told(failure) => failure,
        }
    }
}

/// Loads the model of a path on a host under the second of its names, perhaps with the cache kept in
/// a folder of at most that many bytes; `watch` may break it off.
pub fn start_in(
    host: &Host,
    (name, called, path): (&str, &str, &Path),
    machine: &Machine,
    limits: Limits,
    disk: Option<(&Path, u64)>,
    watch: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Served, NotStarted> {
    let draft = match (machine.draft, &machine.draft_model) {
        (None, Some(_)) | (Some(Draft::Model), _) => DraftMode::Model,
        (None | Some(Draft::Ngram), _) => DraftMode::Ngram,
        (Some(Draft::None), _) => DraftMode::None,
        (Some(Draft::Suffix), _) => DraftMode::Suffix,
    };
    if draft == DraftMode::Model && machine.draft_model.is_none() {
        let failure = Failure::new("cannot draft", "no draft model is named");
        return Err(failure.fix("--draft-model MODEL").into());
    }
    let serve = ServeOptions { queue: limits.queue, step_s: 0.1, draft };
    // A draft model shares this memory.
    let both = LoadOptions {
        memory_bytes: limits.memory_bytes,
        ..options(machine, host.device().as_ref(), limits.sequences)
    };
    let mut model = host.load(called, path, &both, watch).map_err(NotStarted::Load)?;
    if let Some(asked) = machine.ctx {
        tell_of_context(asked, model.spec.context);
    }
    check_cache(name, machine, &mut model)?;
    if let Some(small) = &machine.draft_model {
        let loaded = model.load_draft(&locate(small)?, &both);
        loaded.map_err(|e| Failure::new(format!("{small} cannot guess for {name}"), e))?;
    }
    let disk = disk.map(|(folder, cap_bytes)| DiskOptions {
        folder: folder.to_owned(),
        cap_bytes,
        model: path.to_owned(),
        kv: both.kv,
    });
    let started = model.start_on(host, serve, disk.as_ref());
    Ok(started.map_err(|e| Failure::new(format!("cannot start {name}"), e))?)
}

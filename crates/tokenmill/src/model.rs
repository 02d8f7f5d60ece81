//! From a name to a model that answers.

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tokenmill_backend::DeviceError;
use tokenmill_chat::{Grammars, Holds};
use tokenmill_engine::kv_divergence::cache_cost;
use tokenmill_engine::load::{LoadFailure, LoadOptions, WeightBits};
use tokenmill_engine::start::{ServeOptions, Served};
use tokenmill_engine::{
    Defaults, DraftMode, Engine, EngineStats, Events, Eyes, Host, Request, Sampling, SamplingValues,
};
use tokenmill_ir::{KvFormat, Mode, TokenId};
use tokenmill_output::Format;
use tokenmill_store::{Limits, Store, StoreEnv, Wanted};
use tokenmill_text::{ChatTemplate, Encoder, Reach, TemplateError, Tokenizer};

use crate::device::{self, Device};
use crate::error::Error;

/// Tokens a step may hold, as in `tokenmill run`.
const STEP_TOKENS: u32 = 512;
/// How long a step may take beyond its base, seconds.
const STEP_S: f64 = 0.1;

/// How a model is opened. `..Options::default()` is what `tokenmill run` does.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Longest prompt and answer together, tokens; `None`: what its packager says, else what the model
    /// allows and memory holds.
    pub context: Option<u32>,
    /// Threads of the CPU, at most one a core; `None`: all cores.
    pub threads: Option<usize>,
    /// Memory for weights, cache and buffers, bytes; `None`: what is available.
    pub memory_bytes: Option<u64>,
    /// Where it runs.
    pub device: Device,
    /// Answers that are computed at once; more wait for their turn.
    pub parallel: u32,
    /// Answers that may wait before more are refused.
    pub queue: u32,
    /// How keys and values are kept; `None`: in 16 bits as the device likes them.
    pub kv: Option<KvFormat>,
    /// Arithmetic of products.
    pub mode: Mode,
    /// Whether a model that is not here is fetched.
    pub fetch: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            context: None,
            threads: None,
            memory_bytes: None,
            device: Device::Cpu,
            parallel: 1,
            queue: 64,
            kv: None,
            mode: Mode::Int8,
            fetch: true,
        }
    }
}

/// How far opening a model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// A file is fetched.
    Fetching {
        /// Its name.
        file: String,
        /// Bytes there.
        done: u64,
        /// Bytes of all of it.
        total: u64,
    },
    /// Weights are loaded.
    Loading {
        /// There.
        done: usize,
        /// Of so many.
        total: usize,
    },
}

/// A model that answers. Cheap to clone, and used from any thread; it gives its memory back when the last
/// clone, chat and stream of it is dropped.
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    engine: Engine,
    tokenizer: Arc<Tokenizer>,
    template: Result<Arc<ChatTemplate>, TemplateError>,
    format: &'static Format,
    holds: Holds,
    defaults: Defaults,
    eyes: Option<Eyes>,
    /// The process that its threads are in.
    process: u32,
    asked: AtomicU64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // (In a process made by fork there is no thread that could answer.)
        if std::process::id() == self.process {
            self.engine.shut_down();
        }
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("name", &self.inner.name).finish_non_exhaustive()
    }
}

impl Model {
    /// Opens the model of a path or a name, fetched if it is not here.
    ///
    /// # Errors
    /// It cannot be found, fetched, loaded, or held in memory.
    pub fn open(name: &str) -> Result<Self, Error> {
        Self::open_with(name, &Options::default())
    }

    /// The same with options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(name: &str, options: &Options) -> Result<Self, Error> {
        Self::open_watched(name, options, |_| ControlFlow::Continue(()))
    }

    /// The same; `watch` hears how far it is, and may break it off.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`Error::BrokenOff`].
    pub fn open_watched(
        name: &str,
        options: &Options,
        mut watch: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self, Error> {
        let (path, packager) = located(name, options, &mut watch)?;
        let threads = options.threads.unwrap_or(usize::MAX).clamp(1, device::cores());
        let opened = options.device.open(threads)?;
        let available = || options.device.available_bytes(&*opened);
        let load = LoadOptions {
            mode: options.mode,
            kv: options.kv.unwrap_or(opened.caps().kv),
            context: options.context.or(packager.context),
            sequences: options.parallel.max(1),
            step_tokens: STEP_TOKENS.max(options.parallel),
            memory_bytes: options.memory_bytes.unwrap_or_else(available),
            images: true,
            weights: WeightBits::Auto,
        };
        let failed = |failure| match failure {
            LoadFailure::Device(DeviceError::Cancelled) => {
                Error::BrokenOff { name: name.to_owned() }
            }
            failure => Error::Load { name: name.to_owned(), failure },
        };
        let not_started = |error| Error::Start { name: name.to_owned(), error };
        let host = Host::start(opened, load.memory_bytes).map_err(|e| not_started(e.into()))?;
        let loading = |done, total| watch(Progress::Loading { done, total });
        let loaded = host.load(name, &path, &load, loading).map_err(failed)?;
        let cost = cache_cost(&loaded).map_err(|error| failed(error.into()))?;
        if cost.is_some_and(|cost| cost.is_too_much()) {
            let what =
                "does not stand keys and values in so few bits: KvFormat::Int8 changes it less";
            return Err(Error::Ability { name: name.to_owned(), what });
        }
        let serve = ServeOptions { queue: options.queue, step_s: STEP_S, draft: DraftMode::Ngram };
        let served = loaded.start_on(&host, serve, None).map_err(not_started)?;
        Self::of(name, served, packager)
    }

    fn of(name: &str, served: Served, packager: Defaults) -> Result<Self, Error> {
        let Served { engine, tokenizer, template, sight, defaults, .. } = served;
        let Some(tokenizer) = tokenizer else {
            engine.shut_down();
            let what = "has no tokenizer in its files: it reads and writes no text";
            return Err(Error::Ability { name: name.to_owned(), what });
        };
        let format = template.as_deref().map_or(Format::PLAIN, |t| Format::of_template(t.source()));
        let inner = Inner {
            name: name.to_owned(),
            engine,
            tokenizer,
            template,
            format,
            holds: Holds::default(),
            defaults: packager.or(defaults),
            eyes: sight.and_then(|sight| Eyes::new(sight).ok()),
            process: std::process::id(),
            asked: AtomicU64::new(0),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// As it was asked for.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Most tokens of prompt and answer together.
    pub fn context(&self) -> u32 {
        self.inner.engine.longest()
    }

    /// What its engine has done and holds.
    pub fn stats(&self) -> EngineStats {
        self.inner.engine.stats()
    }

    /// The tokens of a text, without any that begin or end a prompt.
    ///
    /// # Errors
    /// Those of the tokenizer.
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>, Error> {
        Ok(self.encoder().encode(text, tokenmill_text::Special::Plain)?)
    }

    pub(crate) fn engine(&self) -> Result<&Engine, Error> {
        let (opened, here) = (self.inner.process, std::process::id());
        match opened == here {
            true => Ok(&self.inner.engine),
            false => Err(Error::Forked { name: self.inner.name.clone(), opened, here }),
        }
    }

    pub(crate) fn cannot(&self, what: &'static str) -> Error {
        Error::Ability { name: self.inner.name.clone(), what }
    }

    /// Its tokenizer, for texts of at most twice the context.
    pub(crate) fn encoder(&self) -> Encoder<'_> {
        let tokens = (self.context() as usize).saturating_mul(2);
        self.inner.tokenizer.within(Reach { tokens, wanted: &|| true })
    }

    pub(crate) fn template(&self) -> Result<&ChatTemplate, Error> {
        self.inner.template.as_deref().map_err(|error| error.clone().into())
    }

    pub(crate) fn format(&self) -> &'static Format {
        self.inner.format
    }

    pub(crate) fn eyes(&self) -> Result<&Eyes, Error> {
        self.inner.eyes.as_ref().ok_or_else(|| self.cannot("sees no images"))
    }

    pub(crate) fn system(&self) -> Option<&str> {
        self.inner.defaults.system.as_deref()
    }

    pub(crate) fn grammars(&self) -> Grammars<'_> {
        let Inner { engine, tokenizer, holds, .. } = &*self.inner;
        Grammars { engine, tokenizer, holds }
    }

    /// A request of a prompt, sampled as said, and where that is silent as the packager says.
    pub(crate) fn request(
        &self,
        prompt: Vec<TokenId>,
        said: &SamplingValues,
    ) -> Result<Request, Error> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        let fresh = since ^ self.inner.asked.fetch_add(1, Ordering::Relaxed).rotate_right(8);
        let chosen = Sampling::new(said.clone(), &self.inner.defaults.sampling, fresh);
        let used = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let left = self.context().saturating_sub(used);
        let rules = chosen.rules(&self.encoder())?;
        Ok(Request {
            sampling: chosen.params,
            rules,
            max_tokens: Some(chosen.tokens(left)),
            stop: chosen.stop,
            ..Request::new(prompt)
        })
    }

    pub(crate) fn submit(&self, request: Request) -> Result<Events, Error> {
        Ok(self.engine()?.submit(request)?)
    }
}

/// The file or folder behind a name, and how its packager wants it to be run.
fn located(
    name: &str,
    options: &Options,
    watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<(PathBuf, Defaults), Error> {
    let path = Path::new(name);
    if path.exists() {
        return Ok((path.to_owned(), Defaults::default()));
    }
    let wanted = Arc::new(AtomicBool::new(true));
    let is_wanted = Arc::clone(&wanted);
    let still = Wanted::while_true(Arc::new(move || is_wanted.load(Ordering::Relaxed)));
    // (Variables that are no text are none of ours.)
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let environment = StoreEnv::from_vars(std::env::vars_os().filter_map(text));
    let store = Store::with_limits(environment, Limits { wanted: still, ..Limits::default() });
    let parsed = store.name(name)?;
    let model = match options.fetch {
        false => store.find(&parsed)?.ok_or_else(|| Error::NotHere { name: name.to_owned() })?,
        true => {
            let fetched = store.resolve(&parsed, &mut |progress| {
                if let tokenmill_store::Progress::Bytes { file, done, total } = progress {
                    let told = Progress::Fetching { file: file.to_owned(), done, total };
                    if watch(told).is_break() {
                        wanted.store(false, Ordering::Relaxed);
                    }
                }
            });
            if !wanted.load(Ordering::Relaxed) && fetched.is_err() {
                return Err(Error::BrokenOff { name: name.to_owned() });
            }
            fetched?
        }
    };
    Ok((model.path, model.defaults))
}

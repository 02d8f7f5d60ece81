//! The handle: requests are checked here, on the caller's thread, and run on the engine's.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use thiserror::Error;
use tokenmill_ir::sampling::Mirostat;
use tokenmill_ir::{FIRST_MEDIA, TokenId};
use tokenmill_models::spec::Frame;
use tokenmill_sched::{Embeddings, Inputs, Numbers, Scheduler};
use tokenmill_text::Tokenizer;

use crate::answer::Sink;
use crate::backlog::{Backlog, Inlet};
use crate::constraint::{Constraint, ConstraintError, Grammars, Held, Settings, Vocabulary};
use crate::draft::DraftMode;
use crate::draft_model::DraftModel;
use crate::engine::{Core, EngineParts, MAX_CHOICES, Ticket};
use crate::feed::CacheFeed;
use crate::host::{Message, ModelId, Order, Pulse, Thread};
use crate::ledger::State;
use crate::loading::identity::Identity;
use crate::request::{Event, Leased, Refusal, Request, RequestError};
use crate::rows::{Rows, Scored};
use crate::stats::{EngineStats, Stats};
use crate::tier::Tier;
use crate::vision::{Glance, Look, Patches, RowsSink, Viewer, Vision};

/// Stop texts of one request, at most.
const MAX_STOPS: usize = 64;

/// What [`Events`] hold for a reader that does not read, bytes of text and tokens.
const UNREAD_BYTES: usize = 1 << 20;

/// A step that lasts longer, and much longer than predicted, will not end.
const STUCK: Duration = Duration::from_secs(60);
/// What to do about leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeasesAsk {
    /// Tell them.
    List,
    /// End them, and tell what they were.
    GiveUp,
}

/// Takes the leases; never called if the engine ends first.
pub type LeasesSink = Box<dyn FnOnce(Vec<Leased>) + Send>;

/// What requests are checked against.
struct Facts {
    vocab: u32,
    hidden: u32,
    /// Token ids are below this.
    ids: u32,
    input_cols: u32,
    longest: u32,
    /// Tokens that see each other, at most.
    block: u32,
    outputs: u32,
    top_logprobs: u32,
    whole_sequences: bool,
    has_text: bool,
    draft_model: bool,
    queue: u32,
    block_tokens: u32,
}

struct Shared {
    facts: Facts,
    tokenizer: Option<Arc<Tokenizer>>,
    grammars: Grammars,
    model: ModelId,
    pulse: Arc<Pulse>,
    stats: Arc<Stats>,
    next: AtomicU64,
    closed: AtomicBool,
    /// Microseconds a request may have to wait to be taken.
    longest_wait: AtomicU64,
    identity: OnceLock<Identity>,
    vision: OnceLock<Vision>,
    /// What becomes of texts, and the model's own context.
    frame: OnceLock<(Frame, u32)>,
}

/// A model that runs on its host's thread. Cheap to clone; it ends by
/// [`shut_down`](Engine::shut_down), or with the thread.
#[derive(Clone)]
pub struct Engine {
    inbox: Sender<Order>,
    shared: Arc<Shared>,
}

/// Cancels its request when dropped.
pub struct Cancel {
    model: ModelId,
    id: u64,
    inbox: Sender<Order>,
}

impl Drop for Cancel {
    fn drop(&mut self) {
        // Of a request that has ended this is heard and ignored.
        let _ = self.inbox.send(Order::Model(self.model, Message::Cancel(self.id)));
    }
}

/// Events of one request, in order; dropping it cancels the request within a step. Text that was
/// not read joins; a megabyte of it ends the request with [`RequestError::Unread`].
pub struct Events {
    backlog: Arc<Backlog>,
    /// Something was put into the backlog since it was last looked at.
    filled: Receiver<()>,
    ended: Cell<bool>,
    _cancel: Cancel,
}

impl Events {
    /// The next event; `None` after the last one.
    pub fn recv(&self) -> Option<Event> {
        while !self.ended.get() {
            if let Some(event) = self.try_recv() {
                return Some(event);
            }
            // The backlog, which lives, holds the sender.
            self.filled.recv().ok()?;
        }
        None
    }

    /// The next event if there is one within that time.
    ///
    /// # Errors
    /// Whether there is none yet, or none any more.
    pub fn recv_timeout(&self, longest: Duration) -> Result<Event, RecvTimeoutError> {
        let begin = Instant::now();
        while !self.ended.get() {
            if let Some(event) = self.try_recv() {
                return Ok(event);
            }
            self.filled.recv_timeout(longest.saturating_sub(begin.elapsed()))?;
        }
        Err(RecvTimeoutError::Disconnected)
    }

    /// The next event, `None` when there is none yet or none any more.
    pub fn try_recv(&self) -> Option<Event> {
        let (_, event) = self.backlog.take()?;
        self.ended.set(matches!(event, Event::Finished(_) | Event::Failed(_)));
        Some(event)
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.recv()
    }
}

/// Why there are no numbers.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum RowsError {
    /// The request was not taken.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It failed.
    #[error(transparent)]
    Failed(#[from] RequestError),
}

impl Engine {
    /// Starts an engine on a thread of its own, which ends with its handles.
    ///
    /// # Errors
    /// What the system says when it refuses a thread.
    pub fn start(parts: EngineParts) -> std::io::Result<Engine> {
        Ok(Thread::start()?.add(parts, None, None))
    }

    /// A handle of the model that its host's thread is told of by the result.
    pub(crate) fn new(
        inbox: Sender<Order>,
        pulse: Arc<Pulse>,
        model: ModelId,
        parts: EngineParts,
        (tier, draft_model): (Option<Tier>, Option<DraftModel>),
    ) -> (Engine, Core) {
        let (c, sched) = (&parts.config, Scheduler::new(parts.config.clone()));
        let facts = Facts {
            vocab: c.vocab,
            hidden: c.hidden,
            ids: parts.ids,
            input_cols: parts.input_cols,
            longest: sched.longest(),
            block: if c.whole_sequences { u32::MAX } else { sched.longest_block() },
            outputs: c.limits.outputs,
            top_logprobs: c.limits.top_logprobs,
            whole_sequences: c.whole_sequences,
            has_text: parts.tokenizer.is_some(),
            draft_model: draft_model.is_some(),
            queue: parts.queue,
            block_tokens: c.block_tokens,
        };
        let (stats, tokenizer) = (Arc::<Stats>::default(), parts.tokenizer.clone());
        if let Some(claim) = &parts.claim {
            let _ = stats.entry.set(claim.reader()); // the first of these stats
        }
        if let Some(tier) = &tier {
            let _ = stats.disk.set(tier.shared()); // the first of these stats
        }
        let mut core = Core::with_stats(parts, Arc::clone(&stats));
        if let Some(tier) = tier {
            core = core.with_tier(tier);
        }
        if let Some(draft) = draft_model {
            core = core.with_draft_model(draft);
        }
        let shared = Shared {
            facts,
            tokenizer,
            grammars: Grammars::default(),
            model,
            pulse,
            stats,
            next: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            longest_wait: AtomicU64::new(u64::MAX),
            identity: OnceLock::new(),
            vision: OnceLock::new(),
            frame: OnceLock::new(),
        };
        (Engine { inbox, shared: Arc::new(shared) }, core)
    }

    /// What its answers' bytes depend on, said once by who loaded it.
    pub(crate) fn identify(&self, identity: Identity) {
        let _ = self.shared.identity.set(identity); // the first of this engine
    }

    /// What its answers' bytes depend on beside the request, where its model came from files.
    pub fn identity(&self) -> Option<&Identity> {
        self.shared.identity.get()
    }

    /// Tells the thread something; whether it still listens.
    fn tell(&self, message: Message) -> bool {
        self.inbox.send(Order::Model(self.shared.model, message)).is_ok()
    }

    /// Takes a request. The iterator gives its events.
    ///
    /// # Errors
    /// [`Refusal`]: nothing was started.
    pub fn submit(&self, request: Request) -> Result<Events, Refusal> {
        let (wake, filled) = sync_channel(1);
        let wake = move || {
            let _ = wake.try_send(()); // woken already is woken enough
        };
        let backlog = Backlog::new(UNREAD_BYTES, Box::new(wake));
        let mut inlet = Inlet::new(Arc::clone(&backlog), 0);
        let sink = Box::new(move |event| inlet.put(event));
        let cancel = self.submit_to(request, sink)?;
        Ok(Events { backlog, filled, ended: Cell::new(false), _cancel: cancel })
    }

    /// Takes a request whose events go to `sink`, on the engine's thread: it must not block.
    /// Dropping the result cancels the request.
    ///
    /// # Errors
    /// [`Refusal`]: nothing was started and `sink` is never called.
    pub fn submit_to(&self, mut request: Request, sink: Sink) -> Result<Cancel, Refusal> {
        request.prompt = self.framed(request.prompt)?;
        self.check(&request)?;
        self.enter(request.account, |id| Message::Ask(id, Box::new(request), sink))
    }

    /// The grammar of a constraint, for [`Request::held`]: made on the caller's thread, and kept
    /// for others of the same content.
    ///
    /// # Errors
    /// What is wrong with the constraint, or why the model's answers cannot be held to any.
    pub fn grammar(
        &self,
        constraint: &Constraint,
        settings: &Settings,
    ) -> Result<Held, ConstraintError> {
        let Shared { facts, grammars, .. } = &*self.shared;
        grammars.get(constraint, settings, self.tokenizer()?, facts.vocab)
    }

    /// The model's tokens, as grammars know them.
    ///
    /// # Errors
    /// [`ConstraintError::Model`] where they are not known as text.
    pub fn vocabulary(&self) -> Result<&Arc<Vocabulary>, ConstraintError> {
        let Shared { facts, grammars, .. } = &*self.shared;
        grammars.vocabulary(self.tokenizer()?, facts.vocab)
    }

    fn tokenizer(&self) -> Result<&Arc<Tokenizer>, ConstraintError> {
        let Shared { facts, tokenizer, .. } = &*self.shared;
        let tokenizer = tokenizer.as_ref().filter(|_| facts.vocab > 0);
        tokenizer.ok_or(ConstraintError::Model("it generates no text".to_owned()))
    }

    /// Log-probabilities of every token but the first, with the `top` best at each position.
    ///
    /// # Errors
    /// [`RowsError`].
    pub fn score(&self, tokens: Vec<TokenId>, top: u32) -> Result<Vec<Scored>, RowsError> {
        if tokens.len() == 1 {
            self.check_tokens(&tokens)?;
            return Ok(Vec::new());
        }
        Ok(self.rows(tokens, Numbers::Scores { top })?.scores)
    }

    /// Logits after each token from position `from` on, one row after another.
    ///
    /// # Errors
    /// [`RowsError`].
    pub fn logits(&self, tokens: Vec<TokenId>, from: u32) -> Result<Rows, RowsError> {
        self.rows(tokens, Numbers::Logits { from })
    }

    /// The embedding of a text: the pooled row, or the last token's hidden row.
    ///
    /// # Errors
    /// [`RowsError`].
    pub fn embed(&self, tokens: Vec<TokenId>) -> Result<Vec<f32>, RowsError> {
        Ok(self.rows(tokens, Numbers::Hidden)?.numbers)
    }

    /// Says what becomes of texts before they are computed, once, of a model of that context.
    pub(crate) fn frame(&self, frame: Frame, context: u32) {
        let _ = self.shared.frame.set((frame, context)); // the first of this engine
    }

    /// A text's tokens as the model is given them: as they are, but for models whose texts end behind a
    /// token, or are filled up to their context.
    ///
    /// # Errors
    /// [`Refusal::BadParameter`] for a text without the token that ends one.
    pub fn framed(&self, mut tokens: Vec<TokenId>) -> Result<Vec<TokenId>, Refusal> {
        let (Some((frame, context)), false) = (self.shared.frame.get(), tokens.is_empty()) else {
            return Ok(tokens);
        };
        let at = |id: TokenId| tokens.iter().position(|token| *token == id);
        match *frame {
            Frame::Filled(padding) => {
                // (A longer one is refused by its length.)
                tokens.resize(tokens.len().max(*context as usize), padding);
            }
            Frame::UntilHighest => {
                let end = tokens.iter().max().copied().and_then(at);
                tokens.truncate(end.map_or(0, |end| end + 1));
            }
            Frame::Until(id) => match at(id) {
                Some(end) => tokens.truncate(end + 1),
                None => {
                    let reason = format!("it has no token {id}, which ends a text of this model");
                    return Err(Refusal::BadParameter { name: "input", reason });
                }
            },
        }
        Ok(tokens)
    }

    /// Gives the model an encoder, once; both end together.
    pub fn give_vision(&self, vision: Vision) {
        let _ = self.shared.vision.set(vision); // the first of this engine
    }

    /// Whether the model has an encoder.
    pub fn sees(&self) -> bool {
        self.shared.vision.get().is_some()
    }

    /// The rows of images, for [`Request::inputs`]: those of images seen lately are kept, others
    /// computed, all of them together. Waits for that on the caller's thread.
    ///
    /// # Errors
    /// [`RowsError`]; [`Refusal::BadParameter`] where the model reads text only.
    pub fn see(
        &self,
        images: Vec<Patches>,
        account: u64,
    ) -> Result<Vec<Arc<Embeddings>>, RowsError> {
        let glances: Result<Vec<_>, _> =
            images.into_iter().map(|image| self.glance(image)).collect();
        self.see_all(&glances?, account)
    }

    /// As [`see`](Self::see).
    ///
    /// # Errors
    /// [`RowsError`].
    pub fn see_all(
        &self,
        images: &[Glance],
        account: u64,
    ) -> Result<Vec<Arc<Embeddings>>, RowsError> {
        self.vision()?.see(images, Viewer { account, ..Viewer::default() })
    }

    /// An image as [`look`](Self::look) takes it. Hashes its patches on the caller's thread.
    ///
    /// # Errors
    /// [`Refusal::BadParameter`] for what the encoder does not take, and where the model reads text only.
    pub fn glance(&self, patches: Patches) -> Result<Glance, Refusal> {
        self.vision()?.glance(patches)
    }

    /// Has the rows of an image made, once for all that ask for them meanwhile, and at once where they
    /// are kept. Does not wait.
    ///
    /// # Errors
    /// [`Refusal`], which `sink` may have heard too.
    pub fn look(&self, glance: &Glance, viewer: Viewer, sink: RowsSink) -> Result<Look, Refusal> {
        self.vision()?.look(glance, viewer, sink)
    }

    fn vision(&self) -> Result<&Vision, Refusal> {
        let (name, reason) = ("image", "the model reads text only".to_owned());
        match self.shared.vision.get() {
            None => Err(Refusal::BadParameter { name, reason }),
            Some(_) if self.is_closed() => Err(Refusal::ShuttingDown),
            Some(vision) => Ok(vision),
        }
    }

    /// Leases of an account, or of all; `sink` is called on the engine's thread.
    pub fn leases(&self, account: Option<u64>, ask: LeasesAsk, sink: LeasesSink) {
        self.tell(Message::Leases(account, ask, sink)); // an ended engine drops it
    }

    /// From now on tells what is in the model's prompt cache, and what changes there.
    pub fn tell_cache(&self, feed: Arc<CacheFeed>) {
        self.tell(Message::Tell(feed)); // an ended engine has no cache
    }

    /// Tokens of a cache block.
    pub fn block_tokens(&self) -> u32 {
        self.shared.facts.block_tokens
    }

    /// What the engine has done and holds.
    pub fn stats(&self) -> EngineStats {
        self.shared.stats.snapshot()
    }

    /// From now on refuses requests that would wait longer, as far as that can be predicted.
    pub fn limit_wait(&self, longest: Duration) {
        let micros = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
        self.shared.longest_wait.store(micros, Ordering::Relaxed);
    }

    /// How long the step in progress has been running, if that is over a minute and twenty times
    /// what was predicted: it is stuck, and only a restart of the process frees it.
    pub fn stuck(&self) -> Option<Duration> {
        let limit = STUCK.max(self.shared.stats.predicted().saturating_mul(20));
        self.shared.pulse.age().filter(|age| *age > limit)
    }

    /// Most tokens a request may reach, prompt included.
    pub fn longest(&self) -> u32 {
        self.shared.facts.longest
    }

    /// Columns of a logits row.
    pub fn vocab(&self) -> u32 {
        self.shared.facts.vocab
    }

    /// Columns of an embedding; 1 where the model scores a text instead.
    pub fn width(&self) -> u32 {
        self.shared.facts.hidden
    }

    /// Refuses new requests and waits until the open ones have ended; false when some were still
    /// open at the deadline. Follow it by [`shut_down`](Engine::shut_down).
    pub fn drain(&self, deadline: Duration) -> bool {
        self.shared.closed.store(true, Ordering::SeqCst);
        let entry = self.shared.stats.entry.get();
        entry.into_iter().for_each(|entry| entry.set_state(State::Draining));
        let (sender, receiver) = channel();
        if !self.tell(Message::Drain(sender)) {
            return true;
        }
        !matches!(receiver.recv_timeout(deadline), Err(RecvTimeoutError::Timeout))
    }

    /// Whether it takes nothing any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::SeqCst)
    }

    /// From now on keeps only the first so many cache blocks of each group, at least what a longest
    /// sequence needs; see [`Core::resize`]. The ticket is dropped when it holds no others any more, when
    /// another size is asked for, or with the engine; maybe on its thread.
    pub fn resize(&self, blocks: Vec<u32>, ticket: Ticket) {
        self.tell(Message::Resize(blocks, ticket)); // an ended engine has no memory
    }

    /// Fails what is still open, and gives back all memory of the model.
    pub fn shut_down(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.shared.vision.get().into_iter().for_each(|vision| vision.encoder().shut_down());
        let (sender, receiver) = channel();
        // An ended one needs no telling.
        if self.tell(Message::Stop(sender)) {
            let _ = receiver.recv();
        }
    }

    fn rows(&self, tokens: Vec<TokenId>, numbers: Numbers) -> Result<Rows, RowsError> {
        for event in self.submit(Request { numbers: Some(numbers), ..Request::new(tokens) })? {
            match event {
                Event::Rows(rows) => return Ok(rows),
                Event::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
        Err(RequestError::ShutDown.into())
    }

    fn enter(&self, account: u64, message: impl FnOnce(u64) -> Message) -> Result<Cancel, Refusal> {
        if self.shared.closed.load(Ordering::SeqCst) {
            return Err(Refusal::ShuttingDown);
        }
        if let Some(age) = self.stuck() {
            return Err(Refusal::Stuck { seconds: age.as_secs() });
        }
        let longest = Duration::from_micros(self.shared.longest_wait.load(Ordering::Relaxed));
        self.shared.stats.enter(account, self.shared.facts.queue, longest)?;
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        if !self.tell(message(id)) {
            self.shared.stats.queue.leave(account);
            return Err(Refusal::ShuttingDown);
        }
        Ok(Cancel { model: self.shared.model, id, inbox: self.inbox.clone() })
    }

    /// How many they are.
    ///
    /// # Errors
    /// [`Refusal`] for none at all, and for one outside the vocabulary.
    fn check_tokens(&self, tokens: &[TokenId]) -> Result<u32, Refusal> {
        let vocab = self.shared.facts.ids;
        if tokens.is_empty() {
            return Err(Refusal::EmptyPrompt);
        }
        if let Some(&token) = tokens.iter().find(|&&t| t >= vocab) {
            return Err(Refusal::BadToken { token, vocab });
        }
        Ok(u32::try_from(tokens.len()).unwrap_or(u32::MAX))
    }

    /// As [`Self::check_tokens`], of a prompt with rows in the place of tokens.
    fn check_inputs(&self, prompt: &[TokenId], inputs: &Inputs) -> Result<u32, Refusal> {
        let facts = &self.shared.facts;
        let bad = |reason| Refusal::BadParameter { name: "prompt", reason };
        inputs.check(prompt, facts.input_cols).map_err(bad)?;
        let (block, most) = (inputs.longest_block(), facts.block);
        if block > most {
            return Err(bad(format!("an image of {block} tokens, a step has room for {most}")));
        }
        let is_token = |&&token: &&TokenId| token < FIRST_MEDIA;
        let tokens: Vec<TokenId> = prompt.iter().filter(is_token).copied().collect();
        if prompt.is_empty() {
            return Err(Refusal::EmptyPrompt);
        }
        if prompt.len() - tokens.len() != inputs.rows() as usize {
            return Err(bad("rows that are not given".to_owned()));
        }
        if !tokens.is_empty() {
            self.check_tokens(&tokens)?;
        }
        Ok(u32::try_from(prompt.len()).unwrap_or(u32::MAX))
    }

    /// How many tokens a request's prompt has, rows of images among them.
    ///
    /// # Errors
    /// [`Refusal`] for none at all, and for what does not belong into a prompt of this model.
    pub fn check_prompt(&self, request: &Request) -> Result<u32, Refusal> {
        match &request.inputs {
            None => self.check_tokens(&request.prompt),
            Some(inputs) => self.check_inputs(&request.prompt, inputs),
        }
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let prompt_tokens = self.check_prompt(request)?;
        match request.numbers {
            Some(Numbers::Scores { .. } | Numbers::Logits { .. }) if request.inputs.is_some() => {
                let (name, reason) = ("prompt", "log-probabilities of a prompt with images".into());
                Err(Refusal::BadParameter { name, reason })
            }
            None => self.check_answer(request, prompt_tokens),
            Some(numbers) => self.check_numbers(numbers, prompt_tokens, request.inputs.as_deref()),
        }
    }

    fn check_numbers(
        &self,
        numbers: Numbers,
        prompt_tokens: u32,
        inputs: Option<&Inputs>,
    ) -> Result<(), Refusal> {
        let facts = &self.shared.facts;
        if prompt_tokens > facts.longest {
            let limit = facts.longest;
            return Err(Refusal::ContextLength { prompt_tokens, max_tokens: 0, limit });
        }
        let bad = |name, reason| Err(Refusal::BadParameter { name, reason });
        match numbers {
            Numbers::Scores { .. } if prompt_tokens < 2 => {
                bad("tokens", "at least 2 are needed for a score".to_string())
            }
            Numbers::Scores { top } if top > facts.top_logprobs => {
                bad("top", format!("{top}, at most {}", facts.top_logprobs))
            }
            Numbers::Logits { from } if from >= prompt_tokens => {
                bad("from", format!("{from} of {prompt_tokens} tokens"))
            }
            Numbers::Listed if !facts.whole_sequences => {
                bad("model", "this model does not take whole sequences".to_string())
            }
            Numbers::Listed => match inputs.map_or(0, |inputs| inputs.outputs.len()) {
                rows if rows > 0 && rows <= facts.outputs as usize => Ok(()),
                rows => bad("rows", format!("{rows}, at least 1 and at most {}", facts.outputs)),
            },
            Numbers::Scores { .. } | Numbers::Logits { .. } if facts.vocab == 0 => {
                bad("model", "this model gives embeddings only".to_string())
            }
            _ => Ok(()),
        }
    }

    fn check_answer(&self, request: &Request, prompt_tokens: u32) -> Result<(), Refusal> {
        let facts = &self.shared.facts;
        let bad = |name, reason| Err(Refusal::BadParameter { name, reason });
        if facts.whole_sequences || facts.vocab == 0 {
            return bad("model", "this model gives embeddings, no text".to_string());
        }
        if !(1..=MAX_CHOICES).contains(&request.choices) {
            return bad("choices", format!("{}, allowed 1 to {MAX_CHOICES}", request.choices));
        }
        if request.max_tokens == Some(0) {
            return bad("max_tokens", "0, at least 1".to_string());
        }
        let max_tokens = request.max_tokens.unwrap_or(1);
        if prompt_tokens.saturating_add(max_tokens) > facts.longest {
            let limit = facts.longest;
            return Err(Refusal::ContextLength { prompt_tokens, max_tokens, limit });
        }
        if !request.stop.is_empty() && !facts.has_text {
            return bad("stop", "this model has no tokenizer".to_string());
        }
        if request.draft == Some(DraftMode::Model) && !facts.draft_model {
            return bad("draft", "this server has no draft model".to_string());
        }
        let marks = request.reading.as_ref().and_then(|r| r.format.end_of_reasoning());
        if request.reasoning_tokens.is_some() && (marks.is_none() || !facts.has_text) {
            let reason = "answers of this model have no marks that end their reasoning".to_string();
            return bad("reasoning_tokens", reason);
        }
        if request.held.is_some() && request.ignore_eos {
            let reason = "an answer that is held to a grammar ends where that does".to_string();
            return bad("ignore_eos", reason);
        }
        if request.stop.len() > MAX_STOPS {
            return bad("stop", format!("{} texts, at most {MAX_STOPS}", request.stop.len()));
        }
        check_sampling(request, facts)
    }
}

/// Ranges of sampling parameters.
fn check_sampling(request: &Request, facts: &Facts) -> Result<(), Refusal> {
    let p = &request.sampling;
    let any = f32::NEG_INFINITY..=f32::MAX;
    let signed = -100.0..=100.0;
    let ranges = [
        ("temperature", p.temperature, 0.0..=100.0),
        ("top_p", p.top_p, f32::MIN_POSITIVE..=1.0),
        ("min_p", p.min_p, 0.0..=1.0),
        ("repetition_penalty", p.repetition_penalty, f32::MIN_POSITIVE..=100.0),
        ("presence_penalty", p.presence_penalty, signed.clone()),
        ("frequency_penalty", p.frequency_penalty, signed),
    ];
    let chain = p.chain.unwrap_or_default();
    let mirostat = chain.mirostat.unwrap_or(Mirostat::new(1.0, 1.0));
    let (dry_multiplier, dry_base) =
        request.rules.dry.as_ref().map_or((0.0, 1.0), |d| (d.multiplier, d.base));
    let more = [
        ("typical_p", chain.typical_p, f32::MIN_POSITIVE..=1.0),
        ("top_n_sigma", chain.top_n_sigma, 0.0..=1000.0),
        ("xtc_probability", chain.xtc_probability, 0.0..=1.0),
        ("xtc_threshold", chain.xtc_threshold, 0.0..=1.0),
        ("dynatemp_range", chain.dynatemp_range, 0.0..=100.0),
        ("dynatemp_exponent", chain.dynatemp_exponent, 0.0..=100.0),
        ("mirostat_tau", mirostat.tau, 0.0..=100.0),
        ("mirostat_eta", mirostat.eta, 0.0..=10.0),
        ("dry_multiplier", dry_multiplier, 0.0..=100.0),
        ("dry_base", dry_base, 1.0..=100.0),
    ];
    let biases = request.logit_bias.iter().map(|&(_, b)| ("logit_bias", b, any.clone()));
    for (name, value, range) in ranges.into_iter().chain(more).chain(biases) {
        if !range.contains(&value) {
            let reason = format!("{value}, allowed {}", in_words(&range));
            return Err(Refusal::BadParameter { name, reason });
        }
    }
    if let Some(&(token, _)) = request.logit_bias.iter().find(|(t, _)| *t >= facts.vocab) {
        return Err(Refusal::BadToken { token, vocab: facts.vocab });
    }
    let limit = facts.top_logprobs;
    if let Some(top) = p.logprobs.filter(|&n| n > limit) {
        let reason = format!("{top}, at most {limit}");
        return Err(Refusal::BadParameter { name: "logprobs", reason });
    }
    Ok(())
}

/// A range for people: the least float above zero says nothing to them.
fn in_words(range: &RangeInclusive<f32>) -> String {
    match (*range.start(), range.end()) {
        (f32::MIN_POSITIVE, most) => format!("more than 0, at most {most}"),
        (f32::NEG_INFINITY, _) => "any number but infinity".to_string(),
        (least, most) => format!("{least} to {most}"),
    }
}

/// A clock for [`EngineParts`].
pub fn system_clock() -> crate::engine::Clock {
    let start = Instant::now();
    Box::new(move || start.elapsed().as_secs_f64())
}

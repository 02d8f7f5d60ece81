//! A request at the engine, as the connection sees it: events to await, cancelled when dropped.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokenmill_engine::backlog::{Backlog, Inlet, Tagged};
use tokenmill_engine::{
    Cancel, Event, Part, Refusal, Request, RequestError, StopReason, Timekeeper, Usage,
};
use tokio::sync::{Notify, watch};

use crate::ask::Took;
use crate::error::ApiError;
use crate::metrics::{ModelMetrics, Outcome};
use crate::requests::{MOST_PROMPTS, keeper};
use crate::shared::{Model, Phase, Shared, reached};
use crate::uses::Place;
use crate::visit::Visit;

/// One or more prompts being answered as one HTTP request.
pub struct Generation {
    backlog: Arc<Backlog>,
    /// Told when something was put into it.
    filled: Arc<Notify>,
    /// Dropping them cancels.
    cancels: Vec<Cancel>,
    /// Prompts at the engine and not yet answered.
    open: usize,
    /// Prompts the engine's queue has no room for yet, with their places in the request.
    later: VecDeque<(usize, Request)>,
    model: Model,
    usage: Usage,
    /// What the cache has of the prompts is this request's own work.
    is_computed: bool,
    outcome: Outcome,
    phase: watch::Receiver<Phase>,
    metrics: Arc<ModelMetrics>,
    started: Instant,
    /// Before it came to the engine.
    waited: Duration,
    seen: Arc<Seen>,
    visit: Option<Arc<Visit>>,
    _place: Place,
}

/// What came out of the engine so far.
#[derive(Debug, Default)]
struct Seen {
    tokens: AtomicU32,
    first_token: OnceLock<Duration>,
}

impl Generation {
    /// Hands the prompts to the engine: as many as its queue has room for, the others as those are
    /// answered.
    ///
    /// # Errors
    /// What the engine refuses; a full queue, if it takes none of them.
    pub fn start(
        shared: &Shared,
        model: &Model,
        mut requests: Vec<Request>,
        place: Place,
        visit: Option<Arc<Visit>>,
    ) -> Result<Self, ApiError> {
        if let Some(visit) = &visit {
            note(visit, model, &mut requests);
        }
        let filled = Arc::<Notify>::default();
        let wake = Arc::clone(&filled);
        let wake = Box::new(move || wake.notify_one());
        let mut generation = Self {
            backlog: Backlog::new(shared.config.limits.backlog_bytes, wake),
            filled,
            cancels: Vec::with_capacity(requests.len()),
            open: 0,
            later: requests.into_iter().enumerate().collect(),
            model: model.clone(),
            usage: Usage::default(),
            is_computed: false,
            outcome: Outcome::Cancelled,
            phase: shared.phases(),
            metrics: Arc::clone(&model.metrics),
            started: Instant::now(),
            waited: Duration::ZERO,
            seen: Arc::default(),
            visit,
            _place: place,
        };
        generation.submit().map_err(|refusal| {
            // Refused: its status says how it ended.
            generation.visit = None;
            ApiError::from(refusal)
        })?;
        Ok(generation)
    }

    /// Hands on what waits here.
    fn submit(&mut self) -> Result<(), Refusal> {
        while let Some((prompt, request)) = self.later.pop_front() {
            if request.max_tokens == Some(0) {
                self.open += 1;
                self.answer_nothing(&request, prompt)?;
                continue;
            }
            let mut inlet = Inlet::new(Arc::clone(&self.backlog), prompt);
            let mut watch = Stopwatch::new(self, &request);
            let sink = Box::new(move |event| {
                watch.see(&event);
                inlet.put(event)
            });
            // Where some of the queue is ours, there is room when that is answered.
            let again = (self.open > 0).then(|| request.clone());
            match (self.model.served.engine.submit_to(request, sink), again) {
                (Ok(cancel), _) => self.cancels.push(cancel),
                (Err(Refusal::QueueFull { .. }), Some(request)) => {
                    self.backlog.withdraw(prompt);
                    self.later.push_front((prompt, request));
                    return Ok(());
                }
                (Err(refusal), _) => return Err(refusal),
            }
            self.open += 1;
        }
        Ok(())
    }

    /// Answers a request that wants no token.
    fn answer_nothing(&self, request: &Request, prompt: usize) -> Result<(), Refusal> {
        let prompt_tokens = self.model.served.engine.check_prompt(request)?;
        for choice in 0..request.choices {
            self.backlog.put(prompt, Event::Done { choice, reason: StopReason::Length });
        }
        self.backlog.put(prompt, Event::Finished(Usage { prompt_tokens, ..Usage::default() }));
        Ok(())
    }

    /// What prompts are found in the cache was computed for this request, and is no hit.
    pub fn computed_here(&mut self) {
        self.is_computed = true;
    }

    /// It was that long on its way here.
    pub fn has_waited(&mut self, waited: Duration) {
        self.waited = waited;
    }

    /// How long it took until now.
    pub fn took(&self) -> Took {
        let all = self.started.elapsed();
        let prompt = self.seen.first_token.get().copied().unwrap_or(all);
        Took { waited: self.waited, prompt, answer: all.saturating_sub(prompt) }
    }

    /// The next text, the end of a choice, or of all of a prompt's; `None` when all prompts are answered.
    ///
    /// # Errors
    /// The request failed; nothing comes after.
    pub async fn next(&mut self) -> Result<Option<Tagged>, ApiError> {
        while self.open > 0 {
            if *self.phase.borrow() == Phase::Stopping {
                return Err(self.fail(RequestError::ShutDown.into()));
            }
            match self.backlog.take() {
                Some((prompt, Event::Finished(usage))) => {
                    self.finished(usage);
                    self.submit().map_err(|refusal| self.fail(refusal.into()))?;
                    self.ended();
                    return Ok(Some((prompt, Event::Finished(usage))));
                }
                Some((_, Event::Failed(error))) => return Err(self.fail(error.into())),
                Some(event) => return Ok(Some(event)),
                None => self.filled_or_stopped().await,
            }
        }
        Ok(None)
    }

    /// Tokens of all prompts answered so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    async fn filled_or_stopped(&mut self) {
        tokio::select! {
            () = self.filled.notified() => {}
            () = reached(&mut self.phase, Phase::Stopping) => {}
        }
    }

    fn finished(&mut self, usage: Usage) {
        self.open -= 1;
        self.usage.prompt_tokens += usage.prompt_tokens;
        self.usage.cached_tokens += if self.is_computed { 0 } else { usage.cached_tokens };
        self.usage.disk_tokens += usage.disk_tokens;
        self.usage.leased_tokens += usage.leased_tokens;
        self.usage.completion_tokens += usage.completion_tokens;
        self.usage.reasoning_tokens += usage.reasoning_tokens;
        self.usage.accepted_drafts += usage.accepted_drafts;
        self.usage.rejected_drafts += usage.rejected_drafts;
    }

    /// Whether that was all.
    fn ended(&mut self) {
        if self.open == 0 {
            self.outcome = Outcome::Finished;
            self.metrics.whole.observe(self.started.elapsed());
        }
    }

    fn fail(&mut self, error: ApiError) -> ApiError {
        self.open = 0;
        self.later.clear();
        self.outcome = Outcome::Failed;
        self.backlog.close();
        self.cancels.clear();
        error
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.backlog.close();
        self.metrics.ended(self.outcome);
        let Some(visit) = &self.visit else { return };
        match self.outcome {
            Outcome::Finished => visit.used(self.usage),
            _ => {
                let tokens = self.seen.tokens.load(Ordering::Relaxed);
                visit.told().completion_tokens = Some(tokens);
            }
        }
        let mut told = visit.told();
        told.first_token = self.seen.first_token.get().copied();
        told.end = Some(match self.outcome {
            Outcome::Finished => "finished",
            Outcome::Cancelled => "client gone",
            Outcome::Failed => "failed",
        });
    }
}

/// What is known of a request before it is answered.
fn note(visit: &Visit, model: &Model, requests: &mut [Request]) {
    for request in requests.iter_mut().take(MOST_PROMPTS) {
        request.timeline = Some(keeper(&visit.seen));
    }
    let mut told = visit.told();
    told.model = Some(model.served.name().to_owned());
    let tokens = requests.iter().map(|r| u32::try_from(r.prompt.len()).unwrap_or(u32::MAX));
    told.prompt_tokens = Some(tokens.fold(0, u32::saturating_add));
    told.handed = Some(visit.seen.started.elapsed());
}

/// Measures tokens where they come out of the engine, however slow the reader is.
struct Stopwatch {
    metrics: Arc<ModelMetrics>,
    started: Instant,
    seen: Arc<Seen>,
    keeper: Option<Arc<Timekeeper>>,
    /// When its first token came.
    first: Option<Instant>,
    /// Last token of each choice.
    last: Vec<Option<Instant>>,
}

impl Stopwatch {
    fn new(generation: &Generation, request: &Request) -> Self {
        Self {
            metrics: Arc::clone(&generation.metrics),
            started: generation.started,
            seen: Arc::clone(&generation.seen),
            keeper: request.timeline.clone(),
            first: None,
            last: vec![None; request.choices as usize],
        }
    }

    /// A token came: what passed until then, if it is the first.
    fn see_first(&mut self, now: Instant) {
        if self.first.is_some() {
            return;
        }
        self.first = Some(now);
        self.metrics.first_token.observe(now - self.started);
        self.seen.first_token.get_or_init(|| now - self.started);
        let parts = self.keeper.as_ref().and_then(|keeper| keeper.read().to_first_token);
        let Some(parts) = parts else { return };
        let before = Part::BEFORE.map(|part| parts[part as usize]);
        let queued = before.iter().sum::<u64>();
        self.metrics.queued.observe(Duration::from_nanos(queued));
        let all = parts.iter().sum::<u64>();
        self.metrics.prefill.observe(Duration::from_nanos(all - queued));
    }

    fn see(&mut self, event: &Event) {
        let (choice, tokens) = match event {
            Event::Piece { choice, tokens, .. } if !tokens.is_empty() => (choice, tokens),
            Event::Done { reason, .. } => {
                // A token that ends an answer is none of its pieces, but may be its first.
                self.see_first(Instant::now());
                return self.metrics.done(reason);
            }
            Event::Finished(_) => {
                let first = self.first.into_iter();
                return first.for_each(|at| self.metrics.decode.observe(at.elapsed()));
            }
            _ => return,
        };
        let now = Instant::now();
        let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        self.seen.tokens.fetch_add(count, Ordering::Relaxed);
        self.see_first(now);
        let Some(last) = self.last.get_mut(*choice as usize) else { return };
        if let Some(before) = last.replace(now) {
            self.metrics.between_tokens.observe(now - before);
        }
    }
}

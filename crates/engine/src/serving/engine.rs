//! The loop body: plan, fill, submit, advance, commit, tell. It knows no thread, so that a simulation drives
//! it exactly as the device's thread does.

use std::collections::HashMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokenmill_backend::{DeviceError, Executable};
use tokenmill_ir::{Batch, SamplingParams, StepOutput, TokenId};
use tokenmill_sched::{
    Config, NewSequence, Numbers, Odds, Outcome, Progress, Refused, Scheduler, SeqId, Step, Want,
};
use tokenmill_text::Tokenizer;

use crate::answer::{After, Answer, Sink};
use crate::draft::DraftMode;
use crate::draft_model::DraftModel;
use crate::feed::CacheFeed;
use crate::ledger::Claim;
use crate::request::{Divergence, Event, Refusal, Request, RequestError, StopReason};
use crate::rows::Counting;
use crate::serving::timeline::{Ending, Part, Timekeeper};
use crate::stats::{EngineStats, Stats, count};
use crate::tier::Tier;
use leases::Wanted;
pub use masks::MASKS_WORK;
use masks::{AHEAD_WORK, MaskTurns};
use restore::Restore;
use timelines::Times;

mod leases;
mod masks;
mod model_drafts;
mod restore;
mod steps;
mod timelines;
mod told;

/// Compiles the program again, with empty caches, after that error of the device.
pub type Rebuild = Box<dyn FnMut(&DeviceError) -> Result<Box<dyn Executable>, DeviceError> + Send>;

/// Seconds since some fixed moment.
pub type Clock = Box<dyn Fn() -> f64 + Send>;

/// Dropped when what it was given for is so, or never will be.
pub type Ticket = Box<dyn Send>;

/// Draft tokens of one sequence in one step.
const MAX_DRAFT: u32 = 31;

/// Tokens shown on either side where a prompt leaves a cached one.
const SHOWN_TOKENS: usize = 16;

/// Parallel answers a request may ask for.
pub const MAX_CHOICES: u32 = 128;

/// What an engine is made of.
pub struct EngineParts {
    /// The compiled program.
    pub device: Box<dyn Executable>,
    /// Compiles it again.
    pub rebuild: Rebuild,
    /// Cache groups, limits, vocabulary and step times.
    pub config: Config,
    /// Turns tokens into text; without one, events carry tokens only.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Token ids are below this.
    pub ids: u32,
    /// Numbers of a row that may stand in the place of a token; 0: none may.
    pub input_cols: u32,
    /// Tokens that end an answer.
    pub eos: Vec<TokenId>,
    /// Where drafts come from, unless a request says otherwise.
    pub draft: DraftMode,
    /// Requests that may wait before further ones are refused.
    pub queue: u32,
    /// Measures steps.
    pub clock: Clock,
    /// Its place in the ledger of its host, left when it ends.
    pub claim: Option<Claim>,
}

/// How often tokens are right that a grammar foresees.
const FORESEEN: Odds = Odds { first: 1.0, later: 1.0, guess_s: 0.0 };

/// What a turn did, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// There is nothing to compute.
    Idle,
    /// There is nothing to compute until the disk has answered; try again soon.
    Waiting,
    /// A step.
    Worked,
}

/// A step the device works on: since when, and for how long on this thread.
#[derive(Debug, Clone, Copy)]
struct Flight {
    begin_s: f64,
    computed_s: f64,
}

enum Work {
    Answer(Answer),
    Rows(Counting),
}

impl Work {
    /// How it ended by itself.
    fn ending(&self) -> Ending {
        match self {
            Self::Answer(answer) => answer.ending().unwrap_or(Ending::Stop),
            Self::Rows(_) => Ending::Numbers,
        }
    }
}

struct Open {
    work: Work,
    account: u64,
    /// When it fails, and its limit: seconds of the engine's clock.
    deadline: Option<(f64, f64)>,
    started: bool,
    /// What is to stay of its prompt, until it does.
    wanted: Option<Wanted>,
    /// Its prompt's tokens that came from disk.
    from_disk: Range<u32>,
    /// Steps of this request that a device error ended.
    failures: u32,
    /// Where its time goes, where that is noted.
    times: Option<Times>,
}

/// Scheduler, device and open requests.
pub struct Core {
    sched: Scheduler,
    config: Config,
    device: Option<Box<dyn Executable>>,
    rebuild: Rebuild,
    tokenizer: Option<Arc<Tokenizer>>,
    eos: Arc<[TokenId]>,
    clock: Clock,
    draft: DraftMode,
    guess: Vec<TokenId>,
    mask_turns: MaskTurns,
    draft_model: Option<DraftModel>,
    /// This model's part of the device's `step_s`, and what others may have taken since the step
    /// before, seconds.
    part_s: f64,
    others_s: f64,
    /// What the draft model may have taken of the time of the step to come, seconds.
    guessing_bound_s: f64,
    requests: HashMap<u64, Open>,
    step: Step,
    /// The step that the device works on.
    flight: Option<Flight>,
    /// What the last step brought was not told yet.
    untold: bool,
    /// Sequences to forget when the step in flight has ended.
    leaving: Vec<SeqId>,
    /// Cache blocks of each group that the device has, and that were asked for, until it has them.
    blocks: Vec<u32>,
    wanted_blocks: Option<Vec<u32>>,
    /// Who waits until the device has them.
    size_ticket: Option<Ticket>,
    /// When the step before ended, unless there was a pause.
    last_step_s: Option<f64>,
    /// When a request started last, if others waited then.
    last_start_s: Option<f64>,
    /// When other models got their turn, and how long they have had it since the last step, seconds.
    left_s: Option<f64>,
    away_s: f64,
    batch: Batch,
    out: StepOutput,
    progress: Vec<Progress>,
    stats: Arc<Stats>,
    tier: Option<Tier>,
    restores: Vec<Restore>,
    /// Parts of the text noted first that were queued for writing.
    kept_parts: u32,
    /// Who is told what is in the prompt cache.
    feed: Option<Arc<CacheFeed>>,
    /// Given up last: by then the memory is free.
    claim: Option<Claim>,
}

/// A request's sequence of that key, which may reach `max_len` tokens.
fn sequence(request: &Request, key: u64, max_len: u32, want: Want) -> NewSequence {
    NewSequence {
        key,
        tokens: request.prompt.clone(),
        inputs: request.inputs.clone(),
        max_len,
        want,
        salt: request.salt,
        account: request.account,
        priority: request.priority,
    }
}

/// A sequence's key: request number and choice.
fn key(request: u64, choice: u32) -> u64 {
    request * u64::from(MAX_CHOICES) + u64::from(choice)
}

fn request_of(key: u64) -> (u64, u32) {
    (key / u64::from(MAX_CHOICES), (key % u64::from(MAX_CHOICES)) as u32)
}

impl Core {
    /// An idle engine.
    pub fn new(parts: EngineParts) -> Self {
        Self::with_stats(parts, Arc::default())
    }

    pub(crate) fn with_stats(parts: EngineParts, stats: Arc<Stats>) -> Self {
        let config = parts.config;
        let core = Self {
            sched: Scheduler::new(config.clone()),
            batch: Batch::with_limits(&config.limits, config.block_tokens),
            device: Some(parts.device),
            rebuild: parts.rebuild,
            tokenizer: parts.tokenizer,
            eos: parts.eos.into(),
            clock: parts.clock,
            draft: parts.draft,
            guess: Vec::new(),
            mask_turns: MaskTurns::default(),
            draft_model: None,
            part_s: config.step_s,
            others_s: 0.0,
            guessing_bound_s: 0.0,
            requests: HashMap::new(),
            step: Step::default(),
            flight: None,
            untold: false,
            leaving: Vec::with_capacity(config.limits.sequences as usize),
            blocks: config.limits.group_blocks.clone(),
            wanted_blocks: None,
            size_ticket: None,
            last_step_s: None,
            last_start_s: None,
            left_s: None,
            away_s: 0.0,
            out: StepOutput::default(),
            progress: Vec::with_capacity(3 * config.limits.sequences as usize),
            stats,
            config,
            tier: None,
            restores: Vec::new(),
            kept_parts: 0,
            feed: None,
            claim: parts.claim,
        };
        core.stats.places.store(core.config.limits.sequences, Ordering::Relaxed);
        core.update_sizes();
        core
    }

    /// Takes a checked request under a number of the caller's choice, never used before.
    pub fn take(&mut self, id: u64, request: Request, sink: Sink) {
        self.opened();
        self.note_taken(&request);
        if let Some((request, sink)) = self.restore_first(id, request, sink) {
            self.admit(id, request, sink, 0..0);
        }
    }

    /// Gives the scheduler a request.
    fn admit(&mut self, id: u64, request: Request, sink: Sink, from_disk: Range<u32>) {
        match request.numbers {
            None => self.admit_answer(id, request, sink, from_disk),
            Some(numbers) => self.admit_numbers(id, request, numbers, sink),
        }
    }

    fn admit_numbers(&mut self, id: u64, request: Request, numbers: Numbers, sink: Sink) {
        let prompt = request.prompt.len() as u32;
        match self.sched.submit(sequence(&request, key(id, 0), prompt, Want::Numbers(numbers))) {
            Ok(seq) => {
                let work = Work::Rows(Counting::new(seq, prompt, sink));
                let open = self.open(id, work, &request);
                open.wanted = Wanted::of(request);
            }
            Err(refused) => {
                self.note_never_started(&request, Part::Queue, Ending::Failed);
                let mut sink = sink;
                sink(Event::Failed(never_fits(&refused)));
                self.stats.queue.leave(request.account);
                self.closed(&self.stats.failed);
            }
        }
    }

    fn admit_answer(&mut self, id: u64, request: Request, sink: Sink, from_disk: Range<u32>) {
        let limit = self.sched.longest();
        let prompt = request.prompt.len() as u32;
        let wanted = request.max_tokens.map_or(limit, |n| prompt.saturating_add(n));
        let mut answer = Answer::new(&request, sink, self.tokenizer.clone(), Arc::clone(&self.eos));
        if request.diagnose {
            answer.found(self.diverges(id, &request));
        }
        let rules = request.rules_with(&self.eos);
        for choice in 0..request.choices {
            let sampling = SamplingParams { choice, index: 0, ..request.sampling };
            let (bias, rules) = (request.logit_bias.clone(), Box::new(rules.clone()));
            let want = Want::Tokens { sampling, bias, rules };
            let new = sequence(&request, key(id, choice), wanted.min(limit), want);
            match self.sched.submit(new) {
                Ok(seq) => answer.add_choice(seq, &request, self.draft, self.config.vocab),
                Err(refused) => {
                    answer.sequences().for_each(|seq| self.sched.cancel(seq));
                    answer.fail(never_fits(&refused));
                    self.note_never_started(&request, Part::Queue, Ending::Failed);
                    self.stats.queue.leave(request.account);
                    self.closed(&self.stats.failed);
                    return;
                }
            }
        }
        let open = self.open(id, Work::Answer(answer), &request);
        (open.wanted, open.from_disk) = (Wanted::of(request), from_disk);
    }

    /// Where a prompt leaves the nearest cached one.
    fn diverges(&self, id: u64, request: &Request) -> Option<Divergence> {
        let (common, cached) = self.sched.nearest(request.salt, &request.prompt)?;
        let rest = request.prompt.get(common as usize..).unwrap_or_default();
        let text = |tokens: &[TokenId]| {
            let few = &tokens[..tokens.len().min(SHOWN_TOKENS)];
            self.tokenizer.as_ref().map_or_else(String::new, |t| t.decode(few))
        };
        let prompt_tokens = request.prompt.len() as u32;
        tracing::info!(
            request = %called(id, request.timeline.as_deref()),
            prompt_tokens,
            common_tokens = common,
            "nearest cached prompt"
        );
        let (cached, prompt) = ((!cached.is_empty()).then(|| text(&cached)), text(rest));
        Some(Divergence { prompt_tokens, common_tokens: common, cached, prompt })
    }

    /// What is known of a request from now on.
    fn open(&mut self, id: u64, work: Work, request: &Request) -> &mut Open {
        let limit = request.timeout.map(|t| t.as_secs_f64());
        let deadline = limit.map(|limit| ((self.clock)() + limit, limit));
        let (account, times) = (request.account, Times::of(request));
        let (started, wanted, from_disk, failures) = (false, None, 0..0, 0);
        let open = Open { work, account, deadline, started, wanted, from_disk, failures, times };
        self.requests.entry(id).insert_entry(open).into_mut()
    }

    /// Forgets a request; its receiver hears nothing more.
    pub fn cancel(&mut self, id: u64) {
        if let Some(open) = self.requests.remove(&id) {
            let stats = Arc::clone(&self.stats);
            self.note_ended(&open, Ending::Cancelled);
            self.ended(&open, &stats.cancelled);
        } else if let Some((account, _)) = self.stop_restoring(id, Ending::Cancelled) {
            self.stats.queue.leave(account);
            self.closed(&self.stats.cancelled);
        }
    }

    /// Ends every open request with that error.
    pub fn fail_all(&mut self, error: &RequestError) {
        let ids: Vec<u64> = self.requests.keys().copied().collect();
        for id in ids {
            self.fail(id, error.clone());
        }
        self.fail_restores(error);
    }

    /// The sequence behind a choice that has not ended.
    pub fn sequence(&self, id: u64, choice: u32) -> Option<SeqId> {
        match &self.requests.get(&id)?.work {
            Work::Answer(answer) => answer.sequence(choice),
            Work::Rows(_) => None,
        }
    }

    /// Offers tokens that may follow; see [`Scheduler::offer_draft`].
    pub fn offer_draft(&mut self, id: u64, choice: u32, draft: &[TokenId]) -> u32 {
        self.sequence(id, choice).map_or(0, |seq| self.sched.offer_draft(seq, draft))
    }

    /// Whether no request is open.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.restores.is_empty()
    }

    /// Asserts every invariant of the scheduler.
    pub fn check(&self) {
        self.sched.check();
        if self.requests.is_empty() {
            assert!(self.sched.is_idle(), "sequences without a request");
        }
    }

    /// Read access to the scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.sched
    }

    /// What the engine has done and holds.
    pub fn stats(&self) -> EngineStats {
        self.stats.snapshot()
    }

    /// Offers the scheduler what the drafters guess, as far as it pays.
    fn draft(&mut self) {
        let mut ahead_work = AHEAD_WORK;
        for open in self.requests.values_mut().filter(|open| open.started) {
            let Work::Answer(answer) = &mut open.work else { continue };
            let (prompt, wants_rows) = (answer.prompt(), answer.wants_rows());
            for (seq, mut drafter, guide) in answer.guessed() {
                let Some(tokens) = self.sched.tokens(seq) else { continue };
                if guide.waits() {
                    continue; // it waits for its mask
                }
                self.guess.clear();
                let odds = drafter.as_mut().and_then(|drafter| {
                    drafter.follow(tokens, prompt);
                    drafter.odds()
                });
                // What a grammar says stands above what texts before suggest.
                if (guide.hold.is_some() || guide.forces())
                    && self.sched.draft_that_pays(seq, FORESEEN, MAX_DRAFT) > 0
                {
                    guide.foreseen(&mut self.guess);
                    let most = MAX_DRAFT.min(self.guess.len() as u32);
                    let n = self.sched.draft_that_pays(seq, FORESEEN, most);
                    self.guess.truncate(n as usize);
                    if let Some(hold) = guide.appends().filter(|_| n > 0 && !wants_rows) {
                        hold.append(self.sched.append(seq, &self.guess));
                        continue;
                    }
                }
                let is_known = !self.guess.is_empty() || guide.forces();
                if let (Some(drafter), Some(odds)) = (drafter, odds.filter(|_| !is_known)) {
                    let n = self.sched.draft_that_pays(seq, odds, MAX_DRAFT);
                    drafter.guess(n, &mut self.guess);
                    let may = self.guess.iter().take_while(|&&t| t < self.config.vocab).count();
                    self.guess.truncate(may); // (rows of the prompt come again as no tokens)
                }
                let may = guide.allowed(&self.guess, &mut ahead_work);
                self.sched.offer_draft(seq, &self.guess[..may]);
            }
        }
        self.mask_turns.count(AHEAD_WORK - ahead_work);
    }

    /// Fails the requests whose time is over.
    fn expire(&mut self) {
        let deadline =
            |(&id, open): (&u64, &Open)| open.deadline.map(|(at, limit)| (id, at, limit));
        let mut deadlines = self.requests.iter().filter_map(deadline).peekable();
        if deadlines.peek().is_none() {
            return;
        }
        let now = (self.clock)();
        let over: Vec<_> = deadlines.filter(|&(_, at, _)| at <= now).collect();
        for (id, _, limit_s) in over {
            self.fail(id, RequestError::TimedOut { limit_s });
        }
    }

    /// After a panic anywhere in a turn: whatever was open failed, and everything starts afresh.
    pub fn restart(&mut self, reason: &str) {
        // First the new scheduler: the old one may be inconsistent, and knows nobody any more.
        self.sched = Scheduler::new(self.config.clone());
        (self.flight, self.untold, self.wanted_blocks) = (None, false, None);
        self.size_ticket = None;
        self.leaving.clear();
        self.note_runs();
        self.tell_cache_anew();
        self.fail_all(&RequestError::Internal(reason.to_string()));
        self.rebuild_device(&lost(reason));
        self.update_sizes();
    }

    /// The device failed: it is rebuilt, and the requests of this step start over, or fail the
    /// second time.
    fn recover(&mut self, error: &DeviceError) {
        tracing::error!(%error, "the device failed; rebuilding it");
        self.flight = None;
        self.last_step_s = None;
        count(&self.stats.device_errors, 1);
        let mut hit: Vec<u64> = Vec::with_capacity(self.step.grants.len());
        let ids = self.requests.iter_mut();
        for (&id, open) in ids {
            let part = |seq: SeqId| self.step.grants.iter().any(|g| g.seq == seq);
            let involved = match &open.work {
                Work::Answer(a) => a.sequences().any(part),
                Work::Rows(r) => part(r.seq),
            };
            open.failures += u32::from(involved);
            if open.failures > 1 {
                hit.push(id);
            }
        }
        // The failed step granted tokens that no commit will take back.
        self.sched.device_lost();
        self.tell();
        for seq in self.leaving.drain(..) {
            self.sched.cancel(seq);
        }
        for id in hit {
            self.fail(id, RequestError::Device(error.to_string()));
        }
        self.rebuild_device(error);
        self.update_sizes();
        self.tell_cache_changes();
    }

    fn rebuild_device(&mut self, error: &DeviceError) {
        self.device = None; // its memory is free before the next one takes some
        match (self.rebuild)(error) {
            Ok(device) => {
                self.device = Some(device);
                // It has caches of their first size: as large as before is asked for again.
                let wanted = self.wanted_blocks.take().unwrap_or_else(|| self.blocks.clone());
                let full = self.config.limits.group_blocks.clone();
                self.claim.iter().for_each(|claim| claim.resized(&self.blocks, &full));
                self.blocks = full;
                self.resize(&wanted);
            }
            Err(error) => {
                tracing::error!(%error, "the device cannot be rebuilt");
                self.fail_all(&RequestError::Device(error.to_string()));
            }
        }
    }

    /// Tells a request what happened to one of its sequences; what goes wrong there is its own.
    fn deliver(&mut self, p: &Progress) {
        let (id, choice) = request_of(p.key);
        self.note_started(id, p);
        let Some(open) = self.requests.get_mut(&id) else { return };
        let out = &self.out;
        let apply = || apply(&mut open.work, choice, p.outcome, out);
        let after = match catch_unwind(AssertUnwindSafe(apply)) {
            Ok(Ok(after)) => after,
            Ok(Err(error)) => return self.fail(id, error),
            Err(panic) => {
                return self.fail(id, RequestError::Internal(panic_text(&*panic)));
            }
        };
        match after {
            After::Open => {}
            After::ChoiceEnded => self.leave(p.seq),
            After::Ended => {
                self.leave(p.seq);
                if let Some(open) = self.requests.remove(&id) {
                    self.note_ended(&open, open.work.ending());
                }
                self.closed(&self.stats.finished);
            }
            After::Abandoned => self.cancel(id),
        }
    }

    fn note_started(&mut self, id: u64, p: &Progress) {
        match p.outcome {
            Outcome::Started { cached, miss } => {
                let Some(open) = self.requests.get_mut(&id) else { return };
                // Other choices read the first one's blocks: their prompt is the same one.
                if p.key == key(id, 0) {
                    // Not the sequence's length, which by now is that of its first token too.
                    let prompt = match &open.work {
                        Work::Answer(answer) => answer.prompt(),
                        Work::Rows(rows) => rows.prompt(),
                    };
                    count(&self.stats.prompt_tokens, prompt as u64);
                    count(&self.stats.cached_tokens, u64::from(cached));
                    let from_disk = std::mem::take(&mut open.from_disk);
                    let disk = cached.min(from_disk.end).saturating_sub(from_disk.start);
                    count(&self.stats.disk_tokens, u64::from(disk));
                    open.times.iter().for_each(|times| times.started(cached, disk, miss));
                    if let Work::Answer(answer) = &mut open.work {
                        answer.add_disk_tokens(disk);
                    }
                }
                if !std::mem::replace(&mut open.started, true) {
                    self.stats.queue.leave(open.account);
                    let now = (self.clock)();
                    if let Some(before) = self.last_start_s {
                        self.stats.started(now - before);
                    }
                    self.last_start_s = (self.stats.queue.len() > 0).then_some(now);
                }
            }
            Outcome::Token { .. } => {
                count(&self.stats.generated_tokens, 1);
                let times = self.requests.get(&id).and_then(|open| open.times.as_ref());
                times.into_iter().for_each(Times::token);
                self.keep_leased(id);
            }
            Outcome::Drafted { tokens, right } => {
                let (_, choice) = request_of(p.key);
                let Some(Open { work: Work::Answer(answer), times, .. }) =
                    self.requests.get_mut(&id)
                else {
                    return;
                };
                times.iter().for_each(|times| times.drafted(tokens, right));
                if answer.drafted(choice, tokens, right)
                    && let Some(model) = &mut self.draft_model
                {
                    model.verified(tokens, right);
                }
            }
            _ => {}
        }
    }

    fn fail(&mut self, id: u64, error: RequestError) {
        let Some(mut open) = self.requests.remove(&id) else { return };
        let name = called(id, open.times.as_ref().map(Times::keeper));
        tracing::warn!(request = %name, %error, "a request failed");
        self.note_ended(&open, Ending::of_error(&error));
        // Its place is free before it is told: who asks again at once finds it so.
        let stats = Arc::clone(&self.stats);
        self.ended(&open, &stats.failed);
        self.update_sizes();
        let told = catch_unwind(AssertUnwindSafe(|| match &mut open.work {
            Work::Answer(answer) => answer.fail(error),
            Work::Rows(rows) => rows.fail(error),
        }));
        if told.is_err() {
            tracing::warn!(request = %name, "the receiver of a failed request panicked");
        }
    }

    /// A request ends before its answer does.
    fn ended(&mut self, open: &Open, how: &AtomicU64) {
        match &open.work {
            Work::Answer(answer) => answer.sequences().for_each(|seq| self.leave(seq)),
            Work::Rows(rows) => self.leave(rows.seq),
        }
        if !open.started {
            self.stats.queue.leave(open.account);
        }
        self.closed(how);
    }

    fn opened(&self) {
        self.stats.open.fetch_add(1, Ordering::Relaxed);
        self.stats.requests.fetch_add(1, Ordering::Relaxed);
    }

    fn closed(&self, how: &AtomicU64) {
        self.stats.open.fetch_sub(1, Ordering::Relaxed);
        count(how, 1);
    }

    fn update_sizes(&self) {
        self.stats.sizes(&self.sched, self.config.groups.len());
    }

    /// A request that comes straight to the core, without a handle that counts the queue.
    pub fn enqueue(&self, account: u64) {
        // Beyond any limit: whoever drives the core directly decides what waits.
        let _ = self.enqueue_within(account, u32::MAX, Duration::MAX);
    }

    /// As [`enqueue`](Self::enqueue), where at most `limit` requests may wait, and none for longer
    /// than `longest`.
    ///
    /// # Errors
    /// [`Refusal`], and nothing was counted.
    pub fn enqueue_within(
        &self,
        account: u64,
        limit: u32,
        longest: Duration,
    ) -> Result<(), Refusal> {
        self.stats.enter(account, limit, longest)
    }
}

fn apply(
    work: &mut Work,
    choice: u32,
    outcome: Outcome,
    out: &StepOutput,
) -> Result<After, RequestError> {
    if let Outcome::NotANumber { index } = outcome {
        let guide = match work {
            Work::Answer(answer) => answer.guide(choice),
            Work::Rows(_) => None,
        };
        // A row of which no token may come.
        if let Some(dead) = guide.and_then(|guide| guide.failed()) {
            return Err(RequestError::Constraint { index, reason: dead.to_string() });
        }
        return Err(RequestError::NotANumber { index });
    }
    match work {
        Work::Answer(answer) => Ok(match outcome {
            Outcome::Started { cached, .. } => answer.started(choice, cached),
            Outcome::Token { token, output, .. } => answer.token(choice, token, output, out),
            Outcome::Finished => answer.end(choice, StopReason::Length),
            _ => After::Open,
        }),
        Work::Rows(rows) => {
            rows.take(outcome, out);
            if outcome != Outcome::Finished {
                return Ok(After::Open);
            }
            rows.finish();
            Ok(After::Ended)
        }
    }
}

/// What a request is called in the log.
fn called(id: u64, keeper: Option<&Timekeeper>) -> String {
    keeper.map_or_else(|| id.to_string(), |keeper| keeper.name().to_owned())
}

fn never_fits(refused: &Refused) -> RequestError {
    RequestError::Internal(format!("the scheduler refused a checked request: {refused}"))
}

/// Asks the device for something; a panic in there is a failure of the device.
fn guarded<T>(
    device: Option<&mut Box<dyn Executable>>,
    ask: impl FnOnce(&mut dyn Executable) -> Result<T, DeviceError>,
) -> Result<T, DeviceError> {
    let Some(device) = device else { return Err(lost("it was not rebuilt")) };
    let asked = catch_unwind(AssertUnwindSafe(|| ask(&mut **device)));
    asked.unwrap_or_else(|panic| Err(lost(&panic_text(&*panic))))
}

/// What is to be rebuilt for that reason.
fn lost(reason: &str) -> DeviceError {
    DeviceError::Failed { device: "device".to_string(), reason: reason.to_string() }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
}

//! Runs a scene turn by turn and asserts everything: invariants after each turn, the oracle's
//! tokens, how each request ends, and that every block comes back.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokenmill_device_tests::sim::{SimControl, SimDevice, program};
use tokenmill_engine::backlog::{Backlog, Inlet};
use tokenmill_engine::draft_model::DraftModel;
use tokenmill_engine::{
    Clock, Core, DraftMode, EngineParts, EngineStats, Event, Media, Miss, Part, Request,
    RequestError, Rows, Sink, Timekeeper, Turn,
};
use tokenmill_ir::{GroupKind, Limits, TokenId};
use tokenmill_sched::StepCost;

use crate::mirror::Mirror;
use crate::oracle::{self, Course};
use crate::scene::{Arrival, Ask, Client, Draw, Pace, Scene};

/// More turns than any scene needs: beyond it, nothing moves any more.
const MANY_TURNS: u32 = 20_000;

/// What a client has seen.
#[derive(Debug, Default)]
struct Seen {
    events: Vec<Event>,
    rows: Option<Result<Rows, RequestError>>,
    gone: bool,
}

type Shared = Arc<Mutex<Seen>>;

fn seen(shared: &Shared) -> std::sync::MutexGuard<'_, Seen> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Pending {
    arrival: Arrival,
    times: Arc<Timekeeper>,
    /// When it arrived, and the first time that it was seen to have ended, nanoseconds.
    came: u64,
    over: Option<u64>,
    courses: Vec<Course>,
    rows: Option<Rows>,
    seen: Shared,
    /// What a slow client has not taken yet.
    backlog: Option<Arc<Backlog>>,
    /// Turn in which it arrived.
    since: Option<u32>,
    cancelled: bool,
}

struct World {
    /// The core's clock where it goes as predicted: reading it changes nothing.
    clock: Option<Clock>,
    scene: Scene,
    core: Core,
    control: SimControl,
    /// The draft model's device.
    guessing: SimControl,
    pending: Vec<Pending>,
    draw: Draw,
    /// A copy of what is cached, in some scenes, and how often it is looked at.
    mirror: Option<(Mirror, u32)>,
}

/// What clients saw.
#[derive(Debug, Clone, Copy, Default)]
pub struct Clients {
    /// Requests that ended because too much was unread.
    pub unread: u64,
    /// Tokens that were leased.
    pub leased: u64,
    /// Answers that were held to a grammar and ended well.
    pub held: u64,
    /// Choices that were ended because they repeat themselves.
    pub repeated: u64,
    /// Answers that found rows of an image in the cache.
    pub recognised: u64,
    /// Guesses of the draft model, and those that were right where nobody else guessed.
    pub guessed: u64,
    /// See there.
    pub guessed_right: u64,
    /// Changes of the cache that were told, and how often all of it was.
    pub told: u64,
    /// See there.
    pub told_anew: u64,
}

/// Runs the scene of a seed; panics where anything is wrong. Returns what was done.
pub fn run(seed: u64) -> (EngineStats, Clients) {
    let scene = Scene::new(seed);
    let mut world = World::new(scene, seed);
    world.mirror = mirror(&mut world.core, seed);
    for turn in 0..MANY_TURNS {
        if world.turn(turn) {
            world.read_the_rest();
            world.at_the_end();
            return (world.core.stats(), world.clients());
        }
    }
    panic!("no end after {MANY_TURNS} turns");
}

impl World {
    fn new(scene: Scene, seed: u64) -> World {
        let (control, guessing) = (SimControl::default(), SimControl::default());
        scene.draft_failing.iter().for_each(|&s| guessing.fail_at(s));
        scene.failing.iter().for_each(|&s| control.fail_at(s));
        scene.panicking.iter().for_each(|&s| control.panic_at(s));
        scene.nan.iter().for_each(|&t| control.nan_on(t));
        let config = scene.config.clone();
        let mut program = program(&config.groups, config.vocab, config.hidden);
        program.whole_sequences = config.whole_sequences;
        let mut backend = SimDevice::new(config.block_tokens, control.clone());
        match scene.pace {
            Pace::AtOnce => {}
            Pace::InParts(parts) => control.parts(parts),
            Pace::Alone => backend = backend.alone(),
        }
        let limits = config.limits.clone();
        let build = move || backend.executable(&program, &limits);
        let device = build().expect("the simulated device compiles");
        let parts = EngineParts {
            device,
            rebuild: Box::new(move |_| build()),
            ids: config.vocab,
            input_cols: 1,
            config,
            tokenizer: None,
            eos: scene.eos.clone(),
            draft: match scene.draft_model {
                Some(_) => DraftMode::Model,
                None => DraftMode::Suffix,
            },
            queue: u32::MAX,
            clock: clock(&scene, &control, &guessing, seed),
            claim: None,
        };
        let mut core = Core::new(parts);
        if let Some(groups) = &scene.draft_model {
            core = core.with_draft_model(draft_model(&scene, groups, &guessing));
        }
        let longest = core.scheduler().longest();
        let expect = |arrival: &Arrival| Pending {
            courses: match &arrival.ask {
                Ask::Answer(r) => {
                    (0..r.choices).map(|c| oracle::course(&scene, r, c, longest)).collect()
                }
                Ask::Rows(_) => Vec::new(),
            },
            rows: match &arrival.ask {
                Ask::Answer(_) => None,
                Ask::Rows(r) => oracle::rows(&scene, r),
            },
            arrival: arrival.clone(),
            times: Arc::new(Timekeeper::named("r".into())),
            came: 0,
            over: None,
            seen: Shared::default(),
            backlog: match arrival.client {
                Client::Slow { limit_bytes, .. } => {
                    Some(Backlog::new(limit_bytes as usize, Box::new(|| ())))
                }
                _ => None,
            },
            since: None,
            cancelled: false,
        };
        let mut draw = Draw::new(seed ^ 0xd1a5);
        let mut pending: Vec<Pending> = scene.arrivals.iter().map(expect).collect();
        pending.iter_mut().for_each(|p| predict(p, &scene, &mut draw));
        let clock = scene.true_time.then(|| clock(&scene, &control, &guessing, seed));
        World { clock, core, control, guessing, pending, draw, mirror: None, scene }
    }

    /// One turn; true when all is done.
    fn turn(&mut self, turn: u32) -> bool {
        let in_parts = matches!(self.scene.pace, Pace::InParts(_));
        if !in_parts {
            self.arrive(turn);
            self.cancel(turn);
        }
        self.offer_drafts();
        self.resize(turn);
        let done = self.core.begin();
        if !self.core.in_flight() {
            self.follow(turn);
        }
        if in_parts {
            self.arrive(turn);
            self.cancel(turn);
        }
        if self.core.in_flight() {
            while self.core.in_flight() {
                self.core.advance(Duration::ZERO);
            }
            self.follow(turn);
        }
        if done == Turn::Idle && !in_parts {
            assert!(self.core.is_idle(), "requests are open, but nothing is computed");
        }
        self.core.check();
        let now = now(&self.clock);
        for p in self.pending.iter_mut().filter(|p| p.times.read().ending.is_some()) {
            p.over.get_or_insert(now);
        }
        self.read_slowly(turn);
        let injected = self.injected();
        let found = self.core.stats().device_errors;
        assert_eq!(found, injected, "the device noticed a fault of the scheduler");
        for g in 0..self.scene.config.groups.len() {
            for block in self.core.scheduler().free_blocks(g) {
                self.control.poison(g, block);
            }
        }
        done == Turn::Idle && self.core.is_idle() && self.pending.iter().all(|p| p.since.is_some())
    }

    /// Whenever it is looked at, the copy is what is cached.
    fn follow(&mut self, turn: u32) {
        if let Some((mirror, every)) = &mut self.mirror
            && turn.is_multiple_of(*every)
        {
            mirror.follow();
            mirror.check(&self.core);
        }
    }

    /// Gives the caches another size; the last one is their first one again.
    fn resize(&mut self, turn: u32) {
        let now = self.scene.resizes.iter().find(|(at, _)| *at == turn);
        if let Some((_, blocks)) = now {
            self.core.resize(blocks);
        }
    }

    /// Faults that have happened by now.
    fn injected(&self) -> u64 {
        let steps = self.control.steps();
        let mut faults: Vec<u64> =
            self.scene.failing.iter().chain(&self.scene.panicking).copied().collect();
        faults.sort_unstable();
        faults.dedup();
        faults.iter().filter(|&&s| s < steps).count() as u64
    }

    fn arrive(&mut self, turn: u32) {
        for (id, p) in (1u64..).zip(&mut self.pending) {
            if p.since.is_some() || p.arrival.turn > turn {
                continue;
            }
            p.since = Some(turn);
            p.came = now(&self.clock);
            let timeline = Some(Arc::clone(&p.times));
            self.core.enqueue(account_of(&p.arrival.ask));
            match p.arrival.ask.clone() {
                Ask::Answer(request) => {
                    let sink = match &p.backlog {
                        Some(backlog) => {
                            let mut inlet = Inlet::new(Arc::clone(backlog), 0);
                            Box::new(move |event| inlet.put(event))
                        }
                        None => sink(p.arrival.client, &p.seen),
                    };
                    self.core.take(id, Request { timeline, ..request }, sink);
                }
                Ask::Rows(request) => {
                    let shared = Arc::clone(&p.seen);
                    let take = move |event| {
                        match event {
                            Event::Rows(rows) => seen(&shared).rows = Some(Ok(rows)),
                            Event::Failed(error) => seen(&shared).rows = Some(Err(error)),
                            _ => {}
                        }
                        true
                    };
                    self.core.take(id, Request { timeline, ..request }, Box::new(take));
                }
            }
        }
    }

    fn cancel(&mut self, turn: u32) {
        for (id, p) in (1u64..).zip(&mut self.pending) {
            let Client::Cancels(after) = p.arrival.client else { continue };
            if p.since.is_some_and(|since| since + after == turn) {
                p.cancelled = true;
                self.core.cancel(id);
            }
        }
    }

    /// Slow clients take an event when it is time; what waits for them is bounded.
    fn read_slowly(&mut self, turn: u32) {
        for p in &self.pending {
            let (Some(backlog), Some(since)) = (&p.backlog, p.since) else { continue };
            let Client::Slow { turns, limit_bytes } = p.arrival.client else { continue };
            assert!(backlog.bytes() <= limit_bytes as usize, "what waits is bounded");
            if (turn - since).is_multiple_of(turns) {
                seen(&p.seen).events.extend(backlog.take().map(|(_, event)| event));
            }
        }
    }

    fn read_the_rest(&mut self) {
        for p in &self.pending {
            let rest = p.backlog.iter().flat_map(|b| std::iter::from_fn(|| b.take()));
            seen(&p.seen).events.extend(rest.map(|(_, event)| event));
        }
    }

    fn clients(&self) -> Clients {
        let mut clients = Clients { guessed: self.guessing.done().outputs, ..Clients::default() };
        if self.scene.draft_model.is_some() && self.scene.drafts == 0 {
            clients.guessed_right = self.core.stats().accepted_tokens;
        }
        if let Some((mirror, _)) = &self.mirror {
            (clients.told, clients.told_anew) = (mirror.changes, mirror.anew);
        }
        for p in &self.pending {
            let is_repeat = |event: &&Event| matches!(event, Event::Repeats { .. });
            clients.repeated += seen(&p.seen).events.iter().filter(is_repeat).count() as u64;
            match seen(&p.seen).events.last() {
                Some(Event::Failed(RequestError::Unread { .. })) => clients.unread += 1,
                Some(Event::Finished(usage)) => {
                    clients.leased += u64::from(usage.leased_tokens);
                    let held = matches!(&p.arrival.ask, Ask::Answer(r) if r.held.is_some());
                    clients.held += u64::from(held);
                    let (Ask::Answer(request) | Ask::Rows(request)) = &p.arrival.ask;
                    let first = request.inputs.as_ref().and_then(|i| i.media.first());
                    let found = |media: &Media| usage.cached_tokens > media.at;
                    clients.recognised += u64::from(first.is_some_and(found));
                }
                _ => {}
            }
        }
        clients
    }

    /// Drafts that are right for a while, then wrong.
    fn offer_drafts(&mut self) {
        for (id, p) in (1u64..).zip(&self.pending) {
            for (choice, course) in (0u32..).zip(&p.courses) {
                if self.draw.range(1, 10) > self.scene.drafts {
                    continue;
                }
                let done = tokens_of(&seen(&p.seen).events, choice).count();
                let (right, wrong) = (self.draw.range(0, 4), self.draw.range(0, 2));
                let rest = course.tokens.iter().skip(done).take(right as usize);
                let mut draft: Vec<u32> = rest.map(|t| t.id).collect();
                draft.extend((0..wrong).map(|_| self.draw.range(0, self.scene.config.vocab - 1)));
                self.core.offer_draft(id, choice, &draft);
            }
        }
    }

    fn at_the_end(&mut self) {
        let stats = self.core.stats();
        self.core.give_up_leases(None);
        self.core.check();
        let floor = self.core.scheduler().floor();
        self.core.resize(&floor);
        assert_eq!(self.core.blocks(), floor, "an idle engine gives its memory back");
        self.core.resize(&self.scene.config.limits.group_blocks);
        self.core.check();
        assert_eq!(self.core.blocks(), self.scene.config.limits.group_blocks);
        if let Some((mirror, _)) = &mut self.mirror {
            self.core.begin(); // (as after every order)
            mirror.follow();
            mirror.check(&self.core);
        }
        for g in 0..self.scene.config.groups.len() {
            let n = self.core.scheduler().group_counts(g);
            assert_eq!(n.free + n.cached, n.total, "blocks of group {g} come back");
        }
        assert_eq!((stats.open_requests, stats.queued_requests), (0, 0), "counters come back");
        if self.scene.true_time {
            assert_eq!(stats.late_steps, 0, "{} over {}", stats.gap_max_s, stats.gap_bound_s);
        }
        let ended = stats.finished + stats.cancelled + stats.failed;
        assert_eq!(ended, self.pending.len() as u64, "every request ended once");
        for p in &self.pending {
            self.check_times(p);
            match &p.arrival.ask {
                Ask::Answer(request) => self.check_answer(p, request),
                Ask::Rows(_) => self.check_rows(p),
            }
        }
        if let Some((mirror, _)) = &mut self.mirror {
            self.core.stop();
            mirror.follow();
            assert!(mirror.is_empty(), "a model that is gone has nothing cached");
        }
    }

    /// The parts of a request's time are all of it, and its prompt's tokens came from somewhere.
    fn check_times(&self, p: &Pending) {
        let line = p.times.read();
        assert!(line.ending.is_some(), "its end is noted: {line:?}");
        assert_eq!(line.nanos(), line.until - line.taken, "the sum of its parts: {line:?}");
        if self.clock.is_some() {
            assert!(line.taken >= p.came && Some(line.until) <= p.over, "{line:?}");
            // (It ends with the step that it ends in, or while the next one is computed.)
            assert!(line.taken == p.came || matches!(self.scene.pace, Pace::InParts(_)));
        }
        let found = line.memory_tokens + line.disk_tokens;
        assert!(found < line.prompt_tokens.max(1), "the last token is computed: {line:?}");
        let computed: u32 = line.chunks.iter().map(|chunk| chunk.tokens).sum();
        let nanos: u64 = line.chunks.iter().map(|chunk| chunk.nanos).sum();
        let prompt = line.parts[Part::Prompt as usize];
        let whole = matches!(seen(&p.seen).events.last(), Some(Event::Finished(_)));
        // (Who ends in the middle of a step had a part of it.)
        assert!(nanos == prompt || (!whole && nanos < prompt), "steps of its prompt: {line:?}");
        let Some(miss) = line.miss else {
            // (Who is cut before its first step was told of may have had one.)
            assert_eq!(line.tokens, 0, "it never started: {line:?}");
            return;
        };
        let seen = seen(&p.seen);
        if let (Some(Event::Finished(usage)), Ask::Answer(request)) =
            (seen.events.last(), &p.arrival.ask)
        {
            assert_eq!(usage.cached_tokens, found);
            // (Of one choice among others, right drafts behind its end are counted too.)
            let (told, counted) = (usage.completion_tokens, line.tokens);
            assert!(told == counted || (request.choices > 1 && told < counted), "{line:?}");
            let first: u64 = line.to_first_token.expect("a first token").iter().sum();
            assert!(first <= line.nanos(), "{line:?}");
            // What gave way is computed again or found again, what states made behind a wrong draft too.
            let faults = self.injected() + self.core.stats().preemptions;
            let again = faults > 0 || request.choices > 1 || line.drafted > line.accepted;
            let all = line.prompt_tokens - found;
            assert!(computed == all || again, "{computed} of {all}: {line:?}");
        }
        let block = self.scene.config.block_tokens;
        match miss {
            Miss::Short => assert!(line.prompt_tokens <= block, "{line:?}"),
            Miss::New => assert_eq!(found, 0, "{line:?}"),
            Miss::Differs => assert!(found > 0, "{line:?}"),
            Miss::Nothing if matches!(p.arrival.ask, Ask::Answer(_)) => {
                assert!(found + block + 1 > line.prompt_tokens, "{line:?}");
            }
            _ => {}
        }
    }

    fn check_rows(&self, p: &Pending) {
        let seen = seen(&p.seen);
        match (&seen.rows, &p.rows) {
            (None, _) => assert!(p.cancelled, "an answer is missing"),
            (Some(Ok(found)), Some(expected)) => assert_eq!(found, expected),
            (Some(Err(RequestError::NotANumber { .. })), None) => {}
            (Some(Err(RequestError::Device(_))), _) => self.check_device_failure(),
            (found, expected) => panic!("found {found:?}, expected {expected:?}"),
        }
    }

    fn check_device_failure(&self) {
        assert!(self.injected() >= 2, "a request fails with the second device error only");
    }

    fn check_answer(&self, p: &Pending, request: &Request) {
        let seen = seen(&p.seen);
        for (choice, course) in (0u32..).zip(&p.courses) {
            let found: Vec<_> = tokens_of(&seen.events, choice).collect();
            assert!(found.len() <= course.tokens.len(), "more tokens than expected");
            for (found, expected) in found.iter().zip(&course.tokens) {
                assert_eq!(found.id, expected.id, "a wrong token");
                assert_eq!(found.logprob, expected.logprob, "a wrong log-probability");
                let top = found.top.iter().map(|t| (t.id, t.logprob));
                assert!(top.eq(expected.top.iter().copied()), "wrong alternatives");
            }
            let is_done = |e: &&Event| matches!(e, Event::Done { choice: c, .. } if *c == choice);
            if let Some(Event::Done { reason, .. }) = seen.events.iter().find(is_done) {
                assert_eq!(Some(reason), course.end.as_ref(), "why choice {choice} ended");
                assert_eq!(found.len(), course.tokens.len(), "choice {choice} is complete");
            }
        }
        let invalid = p.courses.iter().any(|c| c.end.is_none());
        match seen.events.last() {
            Some(Event::Finished(usage)) => {
                let generated = p.courses.iter().map(|c| c.generated).sum::<u32>();
                assert_eq!(usage.completion_tokens, generated);
                assert_eq!(usage.prompt_tokens, request.prompt.len() as u32);
                assert!(usage.cached_tokens < usage.prompt_tokens);
                let leased = usage.leased_tokens;
                assert!(leased <= usage.prompt_tokens && (leased == 0 || request.lease.is_some()));
                assert!(usage.accepted_drafts <= generated);
                let done = seen.events.iter().filter(|e| matches!(e, Event::Done { .. }));
                assert_eq!(done.count(), request.choices as usize, "every choice is done");
            }
            Some(Event::Failed(RequestError::NotANumber { .. })) => assert!(invalid),
            Some(Event::Failed(RequestError::Device(_))) => self.check_device_failure(),
            Some(Event::Failed(RequestError::TimedOut { limit_s })) => {
                assert_eq!(request.timeout.map(|t| t.as_secs_f64()), Some(*limit_s));
            }
            Some(Event::Failed(RequestError::Unread { limit_bytes: found })) => {
                let Client::Slow { limit_bytes, .. } = p.arrival.client else {
                    panic!("a client that reads was too slow");
                };
                assert_eq!(*found, limit_bytes as usize);
            }
            Some(Event::Failed(RequestError::Internal(text))) => {
                assert!(matches!(p.arrival.client, Client::Panics(_)), "{text}");
            }
            last => {
                // A client may even panic at its last event.
                let silent = matches!(p.arrival.client, Client::Panics(_));
                assert!(p.cancelled || seen.gone || silent, "no end after {last:?}");
            }
        }
    }
}

fn now(clock: &Option<Clock>) -> u64 {
    clock.as_ref().map_or(0, |clock| (clock() * 1e9).round() as u64)
}

/// What a client may expect of its answer: right, but for some tokens.
fn predict(p: &mut Pending, scene: &Scene, draw: &mut Draw) {
    let (Ask::Answer(request), Some(course)) = (&mut p.arrival.ask, p.courses.first()) else {
        return;
    };
    if scene.drafts == 0 || draw.once_in(2) {
        return;
    }
    let rarity = draw.range(2, 30);
    let mut token = |t: TokenId| match draw.once_in(rarity) {
        true => draw.range(0, scene.config.vocab + 1),
        false => t,
    };
    request.prediction = course.tokens.iter().map(|t| token(t.id)).collect();
}

/// A tenth of what the large model's steps take.
fn guess_cost(scene: &Scene) -> StepCost {
    let c = scene.config.cost;
    let base_s = 0.1 * c.base_s;
    StepCost { base_s, token_s: 0.1 * c.token_s, output_s: 0.1 * c.output_s, key_s: 0.1 * c.key_s }
}

/// A draft model with those cache groups, for two sequences.
fn draft_model(scene: &Scene, groups: &[GroupKind], control: &SimControl) -> DraftModel {
    let (context, size) = (scene.config.limits.context, scene.config.block_tokens);
    let program = program(groups, scene.config.vocab, scene.config.hidden);
    let limits = Limits {
        step_tokens: 256,
        sequences: 2,
        outputs: 2,
        context,
        group_blocks: vec![2 * (context.div_ceil(size) + 1); groups.len()],
        top_logprobs: 0,
    };
    let device = SimDevice::new(size, control.clone()).executable(&program, &limits);
    let device = device.expect("the simulated device compiles");
    let model = DraftModel::new(device, &program, &limits, (size, 2), guess_cost(scene));
    model.expect("a cache of keys and values")
}

/// A copy of what is cached, in one scene of eight; some are looked at seldom, and little waits for them.
fn mirror(core: &mut Core, seed: u64) -> Option<(Mirror, u32)> {
    let (every, most) = match seed % 32 {
        0 | 8 => (1, usize::MAX),
        16 => (1, 1),
        24 => (7, 5),
        _ => return None,
    };
    Some((Mirror::of(core, most), every))
}

/// Time as predicted for what the device does, or any: sometimes none, even backwards.
fn clock(scene: &Scene, control: &SimControl, guessing: &SimControl, seed: u64) -> Clock {
    let devices = [(control.clone(), scene.config.cost), (guessing.clone(), guess_cost(scene))];
    if scene.true_time {
        let time = |(control, cost): &(SimControl, StepCost)| {
            let done = control.done();
            let beyond = cost.predict(done.tokens, done.outputs, done.key_reads) - cost.base_s;
            control.steps() as f64 * cost.base_s + beyond
        };
        return Box::new(move || devices.iter().map(time).sum());
    }
    let now = Cell::new(Draw::new(seed ^ 0xc10c));
    Box::new(move || {
        let mut draw = now.replace(Draw::new(0));
        let t = f64::from(draw.range(0, 1000)) * 1e-3;
        now.set(draw);
        t
    })
}

fn account_of(ask: &Ask) -> u64 {
    match ask {
        Ask::Answer(request) => request.account,
        Ask::Rows(request) => request.account,
    }
}

fn tokens_of(events: &[Event], choice: u32) -> impl Iterator<Item = &tokenmill_engine::TokenInfo> {
    let of = move |e| match e {
        &Event::Piece { choice: c, ref tokens, .. } if c == choice => tokens.as_slice(),
        _ => &[],
    };
    events.iter().flat_map(of)
}

fn sink(client: Client, shared: &Shared) -> Sink {
    let shared = Arc::clone(shared);
    let mut count = 0;
    Box::new(move |event| {
        let mut seen = seen(&shared);
        match client {
            Client::Leaves(after) if count >= after => {
                seen.gone = true;
                return false;
            }
            Client::Panics(at) if count == at => {
                count += 1;
                panic!("a client was told to panic");
            }
            _ => {}
        }
        count += 1;
        seen.events.push(event);
        true
    })
}

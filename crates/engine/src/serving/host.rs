//! The host: one thread for a device, which turns all models on it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokenmill_backend::Device;

use crate::answer::Sink;
use crate::draft_model::DraftModel;
use crate::engine::{Core, EngineParts, Ticket, Turn, panic_text};
use crate::feed::CacheFeed;
use crate::handle::{Engine, LeasesAsk, LeasesSink};
use crate::ledger::{Claim, Ledger, State};
use crate::library::Library;
use crate::request::Request;
use crate::tier::Tier;

/// How long an idle device waits before it looks again for what the disk has read.
const DISK_POLL: Duration = Duration::from_millis(1);

/// Turns of writing to disk before a model ends, each of [`DISK_POLL`] at least.
const MAX_LAST_RUNS: u32 = 2000;

/// Names a model on its host; never used again.
pub type ModelId = u64;

/// What is told to a model.
pub(crate) enum Message {
    Ask(u64, Box<Request>, Sink),
    Cancel(u64),
    /// List the leases of an account, or of all, and end them where that is asked.
    Leases(Option<u64>, LeasesAsk, LeasesSink),
    /// Tell what is in the prompt cache.
    Tell(Arc<CacheFeed>),
    /// Cache blocks of each group to keep, and who waits for it.
    Resize(Vec<u32>, Ticket),
    /// Answer once nothing is open.
    Drain(Sender<()>),
    /// Answer once the model and its memory are gone.
    Stop(Sender<()>),
}

/// What is told to the thread.
pub(crate) enum Order {
    Add(ModelId, Box<Core>),
    Model(ModelId, Message),
}

/// When the turn in progress began, microseconds after `start`; 0 between turns.
pub(crate) struct Pulse {
    start: Instant,
    since: AtomicU64,
}

impl Pulse {
    fn begin(&self) {
        let now = self.start.elapsed().as_micros() as u64;
        self.since.store(now.max(1), Ordering::Relaxed);
    }

    fn end(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// How long the turn in progress has lasted.
    pub fn age(&self) -> Option<Duration> {
        let since = Duration::from_micros(self.since.load(Ordering::Relaxed));
        (!since.is_zero()).then(|| self.start.elapsed().saturating_sub(since))
    }
}

/// A device, its memory and the models on it, by name.
pub struct Host {
    thread: Thread,
    device: Arc<dyn Device>,
    ledger: Arc<Ledger>,
    books: Library,
    engines: Mutex<BTreeMap<String, Engine>>,
}

impl Host {
    /// Starts the thread of a device of which models may take so much memory.
    ///
    /// # Errors
    /// What the system says when it refuses a thread.
    pub fn start(device: Arc<dyn Device>, memory_bytes: u64) -> std::io::Result<Host> {
        let (thread, ledger) = (Thread::start()?, Ledger::new(memory_bytes));
        let (books, engines) = (Library::new(0), Mutex::default());
        Ok(Host { thread, device, ledger, books, engines })
    }

    /// Keeps what was read of models for who loads them again: at most so many bytes, beside the
    /// memory that models may take.
    #[must_use]
    pub fn keeping(self, bytes: u64) -> Self {
        Self { books: Library::new(bytes), ..self }
    }

    /// What was read of models.
    pub(crate) fn books(&self) -> &Library {
        &self.books
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Which models are there, and what they hold.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// The model of that name, where it is ready.
    pub fn engine(&self, name: &str) -> Option<Engine> {
        self.engines().get(name).filter(|engine| !engine.is_closed()).cloned()
    }

    /// Takes a model, perhaps with a cache on disk and a draft model.
    pub(crate) fn add(
        &self,
        name: Option<String>,
        parts: EngineParts,
        (tier, draft_model): (Option<Tier>, Option<DraftModel>),
    ) -> Engine {
        let reader = parts.claim.as_ref().map(Claim::reader);
        let engine = self.thread.add(parts, tier, draft_model);
        if let (Some(name), Some(reader)) = (name, reader) {
            self.engines().insert(name, engine.clone());
            reader.set_state(State::Ready);
        }
        engine
    }

    /// Ends a model: it takes nothing new, what is open has so long to end, then its memory is
    /// free. False where none of that name is ready.
    pub fn unload(&self, name: &str, within: Duration) -> bool {
        // (Its handles may go on to be held: they refuse.)
        let Some(engine) = self.engines().remove(name) else { return false };
        engine.drain(within);
        engine.shut_down();
        true
    }

    fn engines(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Engine>> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread of a device. It ends when this and the handles of its models are gone.
pub(crate) struct Thread {
    inbox: Sender<Order>,
    pulse: Arc<Pulse>,
    next: AtomicU64,
}

impl Thread {
    pub fn start() -> std::io::Result<Thread> {
        let (inbox, orders) = channel();
        let pulse = Arc::new(Pulse { start: Instant::now(), since: AtomicU64::new(0) });
        let beating = Arc::clone(&pulse);
        let body = move || run(&orders, &beating);
        std::thread::Builder::new().name("device".into()).spawn(body)?;
        Ok(Thread { inbox, pulse, next: AtomicU64::new(1) })
    }

    pub fn add(
        &self,
        parts: EngineParts,
        tier: Option<Tier>,
        draft_model: Option<DraftModel>,
    ) -> Engine {
        let model = self.next.fetch_add(1, Ordering::Relaxed);
        let (inbox, pulse) = (self.inbox.clone(), Arc::clone(&self.pulse));
        let (engine, core) = Engine::new(inbox, pulse, model, parts, (tier, draft_model));
        let _ = self.inbox.send(Order::Add(model, Box::new(core))); // the host holds the thread
        engine
    }
}

/// A model in its turn.
struct Place {
    model: ModelId,
    core: Box<Core>,
    /// What others were promised to take at most since its last step, seconds.
    others_s: f64,
    draining: Vec<Sender<()>>,
}

/// The models of a device, in turns. It knows no thread, so that a simulation drives it exactly as
/// the device's thread does.
///
/// They share one `step_s`: each busy model plans steps of its part of it. A step in which streams
/// go on is computed whole; one of prompts alone for as long as its part, again and again, so that
/// a stream waits between two tokens for one round of parts at most.
#[derive(Default)]
pub struct Rota {
    places: Vec<Place>,
    /// Who begins the next round.
    first: usize,
}

impl Rota {
    /// One more model.
    pub fn add(&mut self, model: ModelId, core: Box<Core>) {
        self.places.push(Place { model, core, others_s: 0.0, draining: Vec::new() });
    }

    /// Takes a model out.
    pub fn remove(&mut self, model: ModelId) -> Option<Box<Core>> {
        let at = self.places.iter().position(|p| p.model == model)?;
        Some(self.places.remove(at).core)
    }

    /// A model.
    pub fn core(&mut self, model: ModelId) -> Option<&mut Core> {
        self.place(model).map(|p| &mut *p.core)
    }

    fn place(&mut self, model: ModelId) -> Option<&mut Place> {
        self.places.iter_mut().find(|p| p.model == model)
    }

    /// A round: every model that has something to do goes on.
    pub fn turn(&mut self) -> Turn {
        let is_busy = |p: &&Place| p.core.in_flight() || !p.core.is_idle();
        let busy = self.places.iter().filter(is_busy).count().max(1);
        let step_s = self.places.iter().map(|p| p.core.step_s()).fold(f64::INFINITY, f64::min);
        let part_s = step_s / busy as f64;
        let mut all = Turn::Idle;
        let count = self.places.len();
        self.first = if count == 0 { 0 } else { (self.first + 1) % count };
        for i in (0..count).map(|i| (i + self.first) % count) {
            let place = &mut self.places[i];
            let alone = count == 1;
            let (turn, promised_s) = go_on(place, part_s, alone);
            all = all.max(turn);
            for (_, other) in self.places.iter_mut().enumerate().filter(|(at, _)| *at != i) {
                other.others_s += promised_s;
            }
        }
        all
    }

    /// Asserts every invariant of every model between its steps.
    pub fn check(&self) {
        self.places.iter().filter(|p| !p.core.in_flight()).for_each(|p| p.core.check());
    }

    /// Answers who waits for a model to have nothing open.
    fn tell_drained(&mut self) {
        for place in self.places.iter_mut().filter(|p| p.core.is_idle()) {
            for waiting in place.draining.drain(..) {
                let _ = waiting.send(()); // who waits may have given up
            }
        }
    }
}

/// A model's part of a round: what it did, and what it was promised to take at most, seconds.
fn go_on(place: &mut Place, part_s: f64, alone: bool) -> (Turn, f64) {
    let Place { core, others_s, .. } = place;
    let mut turn = Turn::Worked;
    if !core.in_flight() {
        turn = guarded(core, |core| core.begin_beside(part_s, std::mem::take(others_s)));
    }
    if !core.in_flight() {
        return (turn, 0.0);
    }
    let promised_s = core.promised_s(part_s);
    let at_most = match alone || core.is_decoding() {
        true => Duration::MAX,
        false => Duration::try_from_secs_f64(part_s).unwrap_or(Duration::MAX),
    };
    guarded(core, |core| {
        core.advance(at_most);
        Turn::Worked
    });
    (turn, promised_s)
}

/// A panic in there is a bug: what is open at that model fails, and it starts afresh.
fn guarded(core: &mut Core, work: impl FnOnce(&mut Core) -> Turn) -> Turn {
    let worked = catch_unwind(AssertUnwindSafe(|| work(core)));
    worked.unwrap_or_else(|panic| {
        let reason = panic_text(&*panic);
        tracing::error!(reason, "a bug in the engine's loop");
        core.restart(&reason);
        Turn::Worked
    })
}

/// The thread: orders, a round, orders, …; parked while there is nothing to do.
fn run(orders: &Receiver<Order>, pulse: &Pulse) {
    let mut rota = Rota::default();
    let mut last = Turn::Idle;
    loop {
        rota.tell_drained();
        let first = match last {
            Turn::Worked => None,
            Turn::Waiting => match orders.recv_timeout(DISK_POLL) {
                Ok(order) => Some(order),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            },
            Turn::Idle => {
                rota.check();
                match orders.recv() {
                    Ok(order) => Some(order),
                    Err(_) => return,
                }
            }
        };
        pulse.begin();
        first.into_iter().chain(orders.try_iter()).for_each(|order| take(&mut rota, order));
        last = rota.turn();
        pulse.end();
    }
}

fn take(rota: &mut Rota, order: Order) {
    match order {
        Order::Add(model, core) => rota.add(model, core),
        Order::Model(model, Message::Stop(done)) => {
            rota.remove(model).into_iter().for_each(stop);
            let _ = done.send(()); // who waits may have given up
        }
        Order::Model(model, message) => {
            if let Some(place) = rota.place(model) {
                tell(place, message);
            }
        }
    }
}

fn tell(place: &mut Place, message: Message) {
    if let Message::Drain(sender) = message {
        return place.draining.push(sender);
    }
    guarded(&mut place.core, |core| {
        match message {
            Message::Ask(id, request, sink) => {
                request.timeline.iter().for_each(|keeper| keeper.arrived());
                core.take(id, *request, sink);
            }
            Message::Cancel(id) => core.cancel(id),
            Message::Leases(account, ask, sink) => {
                core.end_leases();
                let found = core.leases(account);
                if ask == LeasesAsk::GiveUp {
                    core.give_up_leases(account);
                }
                sink(found);
            }
            Message::Tell(feed) => core.tell_cache(feed),
            Message::Resize(blocks, ticket) => core.resize_with(&blocks, ticket),
            Message::Drain(_) | Message::Stop(_) => {}
        }
        Turn::Worked
    });
}

/// A model ends: what is open fails, and what was computed and is not yet on its way to disk is
/// kept, within reason.
fn stop(mut core: Box<Core>) {
    guarded(&mut core, |core| {
        core.stop();
        for _ in 0..MAX_LAST_RUNS {
            if !core.keep_a_part() {
                break;
            }
            std::thread::sleep(DISK_POLL);
        }
        Turn::Idle
    });
}

//! Requests over simulated time: the production engine loop on the simulated device, where every
//! step takes exactly what it is predicted to take.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokenmill_device_tests::sim::{SimControl, SimDevice, program};
use tokenmill_engine::{Core, DraftMode, EngineParts, EngineStats, Event, Refusal, Request, Turn};
use tokenmill_ir::{GroupKind, Limits};
use tokenmill_sched::{Config, Scheduler, StepCost};

use crate::scene::Draw;

/// When a request came, got its first token and ended; seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Times {
    /// Who asked.
    pub account: u64,
    /// Arrival.
    pub came: f64,
    /// First token.
    pub first: Option<f64>,
    /// End.
    pub ended: Option<f64>,
}

/// An engine with about the step times of a 135M model on two cores.
pub struct Service {
    core: Core,
    control: SimControl,
    cost: StepCost,
    /// Time spent idle, nanoseconds.
    idle: Arc<AtomicU64>,
    requests: Vec<Arc<Mutex<Times>>>,
    draw: Draw,
}

const VOCAB: u32 = 50;

impl Service {
    /// An idle one with that many places for sequences and tokens of cache.
    pub fn new(places: u32, cache_tokens: u32) -> Self {
        Self::slowed(places, cache_tokens, 1.0)
    }

    /// As [`new`](Self::new), on a device that takes `times` as long for everything.
    pub fn slowed(places: u32, cache_tokens: u32, times: f64) -> Self {
        let cost = StepCost {
            output_s: times * 0.3e-3,
            ..StepCost::new(times * 1.6e-3, times * 0.55e-3, times * 1e-7)
        };
        let config = Config {
            groups: vec![GroupKind::Full],
            block_tokens: 32,
            limits: Limits {
                step_tokens: 512,
                sequences: places,
                outputs: 512,
                context: 10_240,
                group_blocks: vec![cache_tokens / 32],
                top_logprobs: 0,
            },
            whole_sequences: false,
            vocab: VOCAB,
            hidden: 2,
            cost,
            step_s: 0.1,
            checkpoint_slots: 0,
            longest_block: 0,
        };
        let control = SimControl::default();
        let program = program(&config.groups, config.vocab, config.hidden);
        let backend = SimDevice::new(config.block_tokens, control.clone());
        let limits = config.limits.clone();
        let build = move || backend.executable(&program, &limits);
        let idle = Arc::<AtomicU64>::default();
        let (time, waited) = (control.clone(), Arc::clone(&idle));
        let parts = EngineParts {
            device: build().expect("the simulated device compiles"),
            rebuild: Box::new(move |_| build()),
            ids: config.vocab,
            input_cols: 0,
            config,
            tokenizer: None,
            eos: Vec::new(),
            draft: DraftMode::None,
            queue: u32::MAX,
            clock: Box::new(move || now(&time, &cost, &waited)),
            claim: None,
        };
        let (core, requests, draw) = (Core::new(parts), Vec::new(), Draw::new(1));
        Self { core, control, cost, idle, requests, draw }
    }

    /// Seconds since the start.
    pub fn now(&self) -> f64 {
        now(&self.control, &self.cost, &self.idle)
    }

    /// A request for `answer` tokens after `prompt` random ones; its number.
    pub fn ask(&mut self, account: u64, priority: i32, prompt: u32, answer: u32) -> usize {
        let request = self.request(account, priority, prompt, answer);
        self.submit(request)
    }

    /// As [`ask`](Self::ask), where at most `queue` requests may wait, and none for longer than
    /// `longest`.
    ///
    /// # Errors
    /// [`Refusal`], at once.
    pub fn ask_within(
        &mut self,
        (queue, longest): (u32, Duration),
        account: u64,
        prompt: u32,
        answer: u32,
    ) -> Result<usize, Refusal> {
        let before = self.now();
        let waits = self.core.enqueue_within(account, queue, longest);
        assert_eq!(self.now(), before, "nobody waits for a refusal");
        waits.map(|()| {
            let request = self.request(account, 0, prompt, answer);
            self.begin(request)
        })
    }

    /// Any request; its number.
    pub fn submit(&mut self, request: Request) -> usize {
        self.core.enqueue(request.account);
        self.begin(request)
    }

    fn request(&mut self, account: u64, priority: i32, prompt: u32, answer: u32) -> Request {
        let prompt = (0..prompt).map(|_| self.draw.range(0, VOCAB - 1)).collect();
        Request { account, priority, max_tokens: Some(answer), ..Request::new(prompt) }
    }

    fn begin(&mut self, request: Request) -> usize {
        let came = self.now();
        let times =
            Arc::new(Mutex::new(Times { account: request.account, came, ..Times::default() }));
        self.requests.push(Arc::clone(&times));
        let (control, cost, idle) = (self.control.clone(), self.cost, Arc::clone(&self.idle));
        let sink = Box::new(move |event| {
            let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
            let now = now(&control, &cost, &idle);
            match event {
                Event::Piece { .. } => times.first = times.first.or(Some(now)),
                Event::Finished(_) | Event::Failed(_) => times.ended = Some(now),
                _ => {}
            }
            true
        });
        self.core.take(self.requests.len() as u64, request, sink);
        self.requests.len() - 1
    }

    /// A step, or time passing until `until` when there is nothing to do.
    pub fn turn(&mut self, until: f64) -> Turn {
        let turn = self.core.turn();
        self.core.check();
        if turn == Turn::Idle && until.is_finite() {
            let waited = ((until - self.now()).max(0.0) * 1e9).ceil() as u64;
            self.idle.fetch_add(waited, Ordering::Relaxed);
        }
        turn
    }

    /// Steps until nothing is open.
    pub fn finish(&mut self) {
        while self.turn(f64::INFINITY) == Turn::Worked {}
    }

    /// Forgets a request.
    pub fn cancel(&mut self, request: usize) {
        self.core.cancel(request as u64 + 1);
        self.core.check();
    }

    /// Tokens of a request's first answer that are in the cache; `None` once it has ended.
    pub fn computed(&self, request: usize) -> Option<u32> {
        let seq = self.core.sequence(request as u64 + 1, 0)?;
        self.core.scheduler().computed(seq)
    }

    /// Read access to the scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        self.core.scheduler()
    }

    /// What is known of a request.
    pub fn times(&self, request: usize) -> Times {
        *self.requests[request].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the engine counted.
    pub fn stats(&self) -> EngineStats {
        self.core.stats()
    }
}

fn now(control: &SimControl, cost: &StepCost, idle: &AtomicU64) -> f64 {
    let done = control.done();
    let rows = cost.predict(done.tokens, done.outputs, done.key_reads) - cost.base_s;
    control.steps() as f64 * cost.base_s + rows + idle.load(Ordering::Relaxed) as f64 * 1e-9
}

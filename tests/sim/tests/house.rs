//! Several models on one device, in simulated time: every answer is the oracle's, a stream of one
//! model waits no longer than promised whatever the others do, and models come, go, shrink and
//! lose their device while others serve.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use tokenmill_device_tests::sim::{SimControl, SimDevice, SimText, SimTime, program};
use tokenmill_engine::{
    Core, DraftMode, EngineParts, EngineStats, Event, Part, Request, RequestError, Rota,
    Timekeeper, Timeline, Turn,
};
use tokenmill_ir::{GroupKind, Limits, Load, TokenId};
use tokenmill_sched::{Config, StepCost};
use tokenmill_sim_tests::Draw;

const VOCAB: u32 = 50;
const STEP_S: f64 = 0.05;
/// Places where workers meet in a step.
const MEETINGS: u32 = 40;
const COST: StepCost = StepCost { base_s: 0.01, token_s: 1e-3, output_s: 1e-4, key_s: 1e-9 };

fn seconds(load: &Load) -> f64 {
    COST.predict(load.tokens, load.outputs, load.key_reads)
}

/// What an answer brought.
#[derive(Default)]
struct Seen {
    tokens: Vec<TokenId>,
    end: Option<Result<(), RequestError>>,
}

struct Asked {
    model: u64,
    expected: Vec<TokenId>,
    seen: Arc<Mutex<Seen>>,
    times: Arc<Timekeeper>,
    /// When it was asked, nanoseconds.
    came: u64,
}

struct House {
    rota: Rota,
    time: SimTime,
    groups: Vec<(u64, Vec<GroupKind>, SimControl)>,
    asked: Vec<Asked>,
    models: u64,
}

impl House {
    fn new() -> Self {
        let nanos = Arc::<AtomicU64>::default();
        let time = SimTime { nanos, seconds, meetings: MEETINGS };
        let (rota, groups, asked) = (Rota::default(), Vec::new(), Vec::new());
        Self { rota, time, groups, asked, models: 0 }
    }

    fn add(&mut self, groups: &[GroupKind], context: u32) -> u64 {
        let control = SimControl::default();
        control.time(self.time.clone());
        let limits = Limits {
            step_tokens: 512,
            sequences: 4,
            outputs: 16,
            context,
            group_blocks: vec![context / 16 * 2; groups.len()],
            top_logprobs: 0,
        };
        let config = Config {
            groups: groups.to_vec(),
            block_tokens: 16,
            limits: limits.clone(),
            whole_sequences: false,
            vocab: VOCAB,
            hidden: 2,
            cost: COST,
            step_s: STEP_S,
            checkpoint_slots: 2,
            longest_block: 0,
        };
        let (device, program) = (SimDevice::new(16, control.clone()), program(groups, VOCAB, 2));
        let build = move || device.executable(&program, &limits);
        let time = self.time.clone();
        let parts = EngineParts {
            device: build().expect("it compiles"),
            rebuild: Box::new(move |_| build()),
            ids: VOCAB,
            input_cols: 0,
            config,
            tokenizer: None,
            eos: Vec::new(),
            draft: DraftMode::None,
            queue: u32::MAX,
            clock: Box::new(move || time.now()),
            claim: None,
        };
        self.models += 1;
        self.rota.add(self.models, Box::new(Core::new(parts)));
        self.groups.push((self.models, groups.to_vec(), control));
        self.models
    }

    fn ask(&mut self, model: u64, prompt: Vec<TokenId>, count: u32) {
        let (_, groups, _) = self.groups.iter().find(|g| g.0 == model).expect("a model");
        let expected = SimText::greedy(groups, &prompt, count as usize, VOCAB);
        let seen = Arc::<Mutex<Seen>>::default();
        let into = Arc::clone(&seen);
        let sink = move |event| {
            let mut seen = into.lock().unwrap_or_else(PoisonError::into_inner);
            match event {
                Event::Piece { tokens, .. } => seen.tokens.extend(tokens.iter().map(|t| t.id)),
                Event::Finished(_) => seen.end = Some(Ok(())),
                Event::Failed(error) => seen.end = Some(Err(error)),
                _ => {}
            }
            true
        };
        let times = Arc::new(Timekeeper::named("r".into()));
        let (timeline, max_tokens) = (Some(Arc::clone(&times)), Some(count));
        let request = Request { max_tokens, timeline, ..Request::new(prompt) };
        let came = (self.time.now() * 1e9).round() as u64;
        let id = self.asked.len() as u64 + 1;
        let core = self.rota.core(model).expect("it is there");
        core.enqueue(request.account);
        core.take(id, request, Box::new(sink));
        self.asked.push(Asked { model, expected, seen, times, came });
    }

    fn turn(&mut self) -> Turn {
        let turn = self.rota.turn();
        self.rota.check();
        turn
    }

    fn run(&mut self) {
        for _ in 0..100_000 {
            if self.turn() == Turn::Idle {
                return;
            }
        }
        panic!("no end");
    }

    fn stats(&mut self, model: u64) -> EngineStats {
        self.rota.core(model).expect("it is there").stats()
    }

    /// Every answer but those of models that are gone is the oracle's.
    fn check(&self, gone: &[u64]) {
        for a in &self.asked {
            let line = a.times.read();
            assert_eq!(
                line.nanos(),
                line.until - a.came,
                "its parts are all of its time: {line:?}"
            );
            let seen = a.seen.lock().unwrap_or_else(PoisonError::into_inner);
            match &seen.end {
                Some(Ok(())) => assert_eq!(seen.tokens, a.expected, "model {}", a.model),
                Some(Err(RequestError::ShutDown)) => {
                    assert!(gone.contains(&a.model), "model {} is there", a.model);
                    assert!(a.expected.starts_with(&seen.tokens), "a wrong token");
                }
                end => panic!("model {}: {end:?}", a.model),
            }
        }
    }
}

fn words(d: &mut Draw, count: u32) -> Vec<TokenId> {
    (0..count).map(|_| d.range(0, VOCAB - 1)).collect()
}

#[test]
fn a_stream_keeps_its_gap_while_another_model_reads_a_long_prompt_and_a_third_comes() {
    let mut d = Draw::new(1);
    let mut house = House::new();
    let (a, b) = (house.add(&[GroupKind::Full], 2048), house.add(&[GroupKind::Full], 16_384));
    house.ask(a, words(&mut d, 20), 400);
    for _ in 0..10 {
        house.turn();
    }
    let before = house.stats(a).generated_tokens;
    assert!(before > 0, "it streams");
    house.ask(b, words(&mut d, 8192), 1);
    let mut c = None;
    while house.stats(b).generated_tokens == 0 {
        house.turn();
        if c.is_none() && house.stats(a).generated_tokens > before + 20 {
            c = Some(house.add(&[GroupKind::Window { tokens: 40 }], 1024));
            house.ask(3, words(&mut d, 30), 20);
        }
    }
    assert!(c.is_some(), "the third came while the prompt was read");
    let stats = house.stats(a);
    assert!(stats.generated_tokens > before + 50, "the stream went on");
    // Two bases, one step's time shared by all, and where workers meet in a step of 512 tokens:
    // 0.52 s alone.
    let grain_s = seconds(&Load { tokens: 512, outputs: 1, key_reads: 0 }) / f64::from(MEETINGS);
    let most = 3.0 * COST.base_s + STEP_S + 3.0 * grain_s + 0.01;
    assert!(stats.gap_max_s <= most, "{} of {most}", stats.gap_max_s);
    assert_eq!(stats.late_steps, 0, "{} over {}", stats.gap_max_s, stats.gap_bound_s);
    house.run();
    house.check(&[]);
}

/// One house of a seed: models that come and go, requests, resizes, failing steps.
fn live(seed: u64) -> (u64, u64) {
    let mut d = Draw::new(seed);
    let mut house = House::new();
    let kinds: [&[GroupKind]; 5] = [
        &[GroupKind::Full],
        &[GroupKind::Full, GroupKind::Window { tokens: 20 }],
        &[GroupKind::State],
        &[GroupKind::Full, GroupKind::State],
        &[GroupKind::Window { tokens: 33 }],
    ];
    let mut there: Vec<u64> = Vec::new();
    let (mut gone, mut failed) = (Vec::new(), false);
    for _ in 0..d.range(20, 120) {
        match d.range(0, 11) {
            0 if there.len() < 4 => {
                let groups = kinds[d.range(0, 4) as usize];
                there.push(house.add(groups, 1024));
            }
            1 if there.len() > 1 && d.once_in(3) => {
                let model = there.swap_remove(d.range(0, there.len() as u32 - 1) as usize);
                let mut core = house.rota.remove(model).expect("it is there");
                core.stop();
                core.check();
                gone.push(model);
            }
            2 if !there.is_empty() => {
                let model = there[d.range(0, there.len() as u32 - 1) as usize];
                let core = house.rota.core(model).expect("it is there");
                let most = core.blocks().len();
                core.resize(&vec![d.range(0, 128); most]);
            }
            // A second failure would fail requests.
            3 if !there.is_empty() && !failed && d.once_in(4) => {
                let model = there[d.range(0, there.len() as u32 - 1) as usize];
                let (.., control) = house.groups.iter().find(|g| g.0 == model).expect("a model");
                control.fail_at(control.steps() + u64::from(d.range(0, 3)));
                failed = true;
            }
            4..=6 if !there.is_empty() => {
                let model = there[d.range(0, there.len() as u32 - 1) as usize];
                let len = if d.once_in(4) { d.range(300, 900) } else { d.range(1, 60) };
                let prompt = words(&mut d, len);
                house.ask(model, prompt, 1 + len % 50);
            }
            _ => {
                house.turn();
            }
        }
    }
    house.run();
    house.check(&gone);
    let mut late = 0;
    for &model in &there {
        let stats = house.stats(model);
        late += stats.late_steps;
        assert_eq!((stats.open_requests, stats.queued_requests), (0, 0));
        let core = house.rota.core(model).expect("it is there");
        let floor = core.scheduler().floor();
        core.resize(&floor);
        assert_eq!(core.blocks(), floor, "its memory comes back");
    }
    assert_eq!(late, 0, "steps later than promised");
    (house.asked.len() as u64, gone.len() as u64)
}

#[test]
fn models_come_and_go_and_every_answer_is_the_oracles() {
    let seeds = match std::env::var("TOKENMILL_TESTS").as_deref() {
        Ok("whole") => 3000,
        _ => 400,
    };
    let (mut asked, mut gone) = (0, 0);
    for seed in 0..seeds {
        let one = std::panic::catch_unwind(|| live(seed));
        let (a, g) = one.unwrap_or_else(|_| panic!("seed {seed}"));
        (asked, gone) = (asked + a, gone + g);
    }
    assert!(asked > 2000 && gone > 50, "{asked} requests, {gone} models gone");
}

#[test]
fn a_request_is_told_whether_it_waited_for_a_place_or_for_memory() {
    let mut house = House::new();
    let model = house.add(&[GroupKind::Full], 256);
    // (Each begins like no other: nobody waits for what another computes.)
    let prompt = |first: u32, n: u32| (0..n).map(|i| (first + i * 7) % VOCAB).collect::<Vec<_>>();
    (0..5).for_each(|first| house.ask(model, prompt(first, 5), 20)); // on 4 places
    house.run();
    let of = |line: &Timeline, part: Part| line.parts[part as usize];
    let lines: Vec<Timeline> = house.asked.iter().map(|asked| asked.times.read()).collect();
    assert!(lines.iter().all(|line| of(line, Part::Blocks) == 0), "{lines:?}");
    let waited: Vec<u64> = lines.iter().map(|line| of(line, Part::Queue)).collect();
    let (last, first) = waited.split_last().expect("five");
    assert!(first.iter().all(|nanos| nanos * 4 < *last), "{waited:?}");
    // Of 32 blocks each has 13: the third has a place, and no memory until one of them has ended.
    (10..13).for_each(|first| house.ask(model, prompt(first, 200), 5));
    house.run();
    house.check(&[]);
    let [first, second, third] = [5, 6, 7].map(|at: usize| house.asked[at].times.read());
    assert_eq!(of(&first, Part::Blocks) + of(&second, Part::Blocks), 0, "{first:?}\n{second:?}");
    assert!(of(&third, Part::Blocks) > 0, "{third:?}");
}

#[test]
fn a_request_is_told_how_long_other_models_had_their_turn() {
    let mut house = House::new();
    let [one, two] = [0; 2].map(|_| house.add(&[GroupKind::Full], 1024));
    let prompt = |n: u32| (0..n).map(|i| i * 7 % VOCAB).collect::<Vec<_>>();
    house.ask(one, prompt(20), 20);
    house.run();
    let alone = house.asked[0].times.read();
    assert_eq!(alone.parts[Part::Models as usize], 0, "{alone:?}");
    assert_eq!(alone.chunks[0].tokens, 20, "{alone:?}");
    house.ask(one, prompt(20), 20);
    house.ask(two, prompt(900), 2);
    house.run();
    house.check(&[]);
    let (stream, long) = (house.asked[1].times.read(), house.asked[2].times.read());
    for line in [stream, long] {
        assert!(line.parts[Part::Models as usize] > 0, "{line:?}");
    }
    // What one computes is what the other waits for, but for what is before its first step.
    let of = |part: Part| stream.parts[part as usize];
    let computed = [Part::Prompt, Part::Answer].map(|part| long.parts[part as usize]);
    assert!(of(Part::Models) <= computed.iter().sum(), "{stream:?}\n{long:?}");
    assert_eq!(of(Part::Answer), alone.parts[Part::Answer as usize], "the same steps: {stream:?}");
}

//! The engine with its cache on a simulated disk, over several lives of the process: it is killed,
//! the power goes, calls fail, bits flip, files shrink, the disk fills. Every token is the oracle's.
//! `TOKENMILL_SIM_SEED=n` replays one seed; `TOKENMILL_SIM_COUNT=n` runs that many.

use std::panic::catch_unwind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokenmill_backend::Executable;
use tokenmill_device_tests::sim::{SimControl, SimDevice, SimText, program};
use tokenmill_disk_tests::{Crash, SimDisk};
use tokenmill_engine::tier::{Tier, TierWorker};
use tokenmill_engine::{Core, EngineParts, Event, Lease, Request, Turn, Usage};
use tokenmill_ir::{GroupKind, Limits, TokenId};
use tokenmill_kvlog::{Index, Key, Log, LogOptions, RunId};
use tokenmill_sched::{Config, StepCost};
use tokenmill_sim_tests::{Draw, Mirror};

const VOCAB: u32 = 40;
/// Blocks of a record on disk.
const RUN_BLOCKS: u32 = 8;

/// What all seeds together did.
#[derive(Debug, Default)]
struct Totals {
    lives: u64,
    answers: u64,
    cached: u64,
    from_disk: u64,
    /// Of those, by models with states, and with states alone.
    with_states: u64,
    of_states: u64,
    written: u64,
    damaged: u64,
    deleted: u64,
    without: u64,
    /// Texts on disk that a copy made of what was told alone knew of, and models that told.
    told: u64,
    tellers: u64,
}

#[derive(Default)]
struct Seen {
    tokens: Vec<TokenId>,
    usage: Option<Usage>,
}

struct Asked {
    prompt: Vec<TokenId>,
    expect: Vec<TokenId>,
    seen: Arc<Mutex<Seen>>,
}

struct World {
    draw: Draw,
    disk: SimDisk,
    config: Config,
    options: LogOptions,
    texts: Vec<Vec<TokenId>>,
    /// No call of the disk fails in this life.
    calm: bool,
    may_fail: bool,
}

fn config(d: &mut Draw) -> Config {
    let window = GroupKind::Window { tokens: d.range(1, 30) };
    let state = GroupKind::State;
    let groups = match d.range(0, 9) {
        0..=2 => vec![GroupKind::Full],
        3 => vec![GroupKind::Full, window],
        4 => vec![window, GroupKind::Full],
        5 | 6 => vec![GroupKind::Full, state],
        7 => vec![state, window, GroupKind::Full, state],
        8 => vec![state],
        _ => vec![state, state],
    };
    let block_tokens = 1 << d.range(0, 2);
    let context = d.range(60, 160);
    let plenty = d.range(1, 3);
    let slots = d.range(2, 12);
    let blocks = |kind: &GroupKind| match kind {
        GroupKind::State => slots,
        _ => context.div_ceil(block_tokens) * plenty + 2,
    };
    let limits = Limits {
        step_tokens: d.range(8, 40),
        sequences: 4,
        outputs: 16,
        context,
        group_blocks: groups.iter().map(blocks).collect(),
        top_logprobs: 0,
    };
    Config {
        groups,
        block_tokens,
        limits,
        whole_sequences: false,
        vocab: VOCAB,
        hidden: 4,
        cost: StepCost::new(1e-3, 1e-4, 0.0),
        step_s: 1.0,
        checkpoint_slots: d.range(0, 4),
        longest_block: 0,
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut draw = Draw::new(seed);
        let config = config(&mut draw);
        let mut texts: Vec<Vec<TokenId>> = Vec::new();
        for i in 0..draw.range(2, 5) {
            let most = config.limits.context - 10;
            let len = draw.range(most / 3, most);
            let shared = draw.range(0, len) as usize;
            let mut text: Vec<_> = (0..len).map(|_| draw.range(0, VOCAB - 1)).collect();
            if let Some(other) = texts.first().filter(|_| i > 0) {
                let shared = shared.min(other.len());
                text[..shared].copy_from_slice(&other[..shared]);
            }
            texts.push(text);
        }
        let small = draw.once_in(4);
        let options = LogOptions {
            cap_bytes: u64::from(draw.range(2_000, if small { 6_000 } else { 60_000 })),
            floor_bytes: 0,
            segment_bytes: u64::from(draw.range(500, 8_000)),
        };
        World {
            draw,
            disk: SimDisk::new(seed),
            config,
            options,
            texts,
            calm: true,
            may_fail: false,
        }
    }

    fn key(&self) -> Key {
        // The seam's own names: the device's layout and the program decide the key.
        Key::of([format!("{:?}", self.config.groups).as_bytes()])
    }

    fn tier(&self) -> Option<(Tier, TierWorker, Index)> {
        let key = self.key();
        let log = Log::open(Box::new(self.disk.files()), key, self.options).ok()?;
        let index = log.index();
        let blocks = self.device().blocks().expect("the simulated device gives its blocks out");
        let (kinds, size) = (&self.config.groups, self.config.block_tokens);
        let (tier, worker) =
            Tier::new(log, key, blocks, kinds, size).expect("these models are kept");
        Some((tier, worker, index))
    }

    fn device(&self) -> Box<dyn Executable> {
        let program = program(&self.config.groups, VOCAB, 4);
        let backend = SimDevice::new(self.config.block_tokens, SimControl::default());
        backend.executable(&program, &self.config.limits).expect("it compiles")
    }

    fn core(&self, control: &SimControl) -> Core {
        let program = program(&self.config.groups, VOCAB, 4);
        let backend = SimDevice::new(self.config.block_tokens, control.clone());
        let limits = self.config.limits.clone();
        let build = move || backend.executable(&program, &limits);
        let parts = EngineParts {
            device: build().expect("it compiles"),
            rebuild: Box::new(move |_| build()),
            ids: self.config.vocab,
            input_cols: 0,
            config: self.config.clone(),
            tokenizer: None,
            eos: Vec::new(),
            queue: u32::MAX,
            draft: tokenmill_engine::DraftMode::None,
            clock: Box::new(|| 0.0),
            claim: None,
        };
        Core::new(parts)
    }

    /// One process, from start to its end or its death.
    fn live(&mut self, totals: &mut Totals) {
        let control = SimControl::default();
        let mut core = self.core(&control);
        let (mut worker, mut index) = (None, Index::default());
        match self.tier() {
            Some((tier, w, i)) => (core, worker, index) = (core.with_tier(tier), Some(w), i),
            None => totals.without += 1,
        }
        let most = if self.draw.once_in(4) { 20 } else { usize::MAX };
        let mut mirror = self.draw.once_in(4).then(|| Mirror::of(&mut core, most));
        if self.draw.once_in(12) {
            control.fail_at(u64::from(self.draw.range(0, 20)));
        }
        let mut asked: Vec<Asked> = Vec::new();
        let (mut left, eager) = (self.draw.range(1, 10), self.draw.range(1, 6));
        let death = self.draw.once_in(3).then(|| self.draw.range(1, 60));
        for turn in 0.. {
            assert!(turn < 20_000, "no end");
            if left > 0 && self.draw.once_in(3) {
                left -= 1;
                self.ask(&mut core, &mut asked);
            }
            let done = core.turn();
            core.check();
            for g in 0..self.config.groups.len() {
                core.scheduler().free_blocks(g).for_each(|b| control.poison(g, b));
            }
            for _ in 0..self.draw.range(0, eager) {
                worker.as_mut().map(TierWorker::step);
            }
            if let Some(mirror) = mirror.as_mut().filter(|_| self.draw.once_in(3)) {
                // (The worker hears of a feed that began anew with its next step.)
                worker.as_mut().map(TierWorker::step);
                mirror.follow();
                mirror.check(&core);
                totals.told += self.check_told(mirror, &index);
            }
            if death == Some(turn) {
                self.disk.crash_at(self.disk.calls());
                break;
            }
            if done == Turn::Idle && left == 0 {
                assert!(core.is_idle(), "requests are open, but nothing is computed");
                break;
            }
        }
        self.check(&core, &asked, death.is_none(), totals);
        if death.is_some() {
            return;
        }
        while worker.as_mut().is_some_and(TierWorker::step) {}
        if let Some(mirror) = &mut mirror {
            mirror.follow();
            totals.tellers += u64::from(!mirror.texts_on_disk().is_empty());
            core.stop();
            worker.as_mut().map(TierWorker::step);
            mirror.follow();
            assert!(mirror.is_empty(), "a model that is gone has nothing cached");
        }
    }

    /// What was told to be on disk is there, and in a calm life all of the texts that are asked is
    /// told; how many of those there are.
    fn check_told(&self, mirror: &Mirror, index: &Index) -> u64 {
        if self.config.groups.contains(&GroupKind::State) {
            assert!(mirror.texts_on_disk().is_empty(), "states are not told");
            return 0;
        }
        let told = mirror.texts_on_disk();
        let run = (RUN_BLOCKS * self.config.block_tokens) as usize;
        let begin = RunId::root(&self.key(), 0);
        let on_disk = |text: &[TokenId]| {
            let id = text.chunks(run).fold(begin, |id, run| id.then(run));
            index.contains(id)
        };
        // (In order, so that behind each text stand those that go on from it.)
        let next = told.iter().skip(1).map(Some).chain([None]);
        for (text, next) in told.iter().zip(next) {
            if text.len() % run == 0 {
                assert!(on_disk(text), "what is told to be on disk is not");
            } else {
                assert!(next.is_some_and(|n| n.starts_with(text)), "runs are told as a whole");
            }
        }
        let mut known = 0;
        for text in &self.texts {
            let runs = (1..=text.len() / run).map(|n| &text[..n * run]);
            for text in runs.take_while(|text| on_disk(text)) {
                known += u64::from(told.contains(text));
                assert!(!self.calm || told.contains(text), "what is on disk is not told");
            }
        }
        known
    }

    fn ask(&mut self, core: &mut Core, asked: &mut Vec<Asked>) {
        let text = &self.texts[self.draw.range(0, self.texts.len() as u32 - 1) as usize];
        let least = if self.draw.once_in(3) { 1 } else { text.len() as u32 };
        let prompt = text[..self.draw.range(least, text.len() as u32) as usize].to_vec();
        let count = self.draw.range(1, 9);
        let seen = Arc::<Mutex<Seen>>::default();
        let into = Arc::clone(&seen);
        let sink = Box::new(move |event: Event| {
            let mut seen = into.lock().unwrap();
            match event {
                Event::Piece { tokens, .. } => seen.tokens.extend(tokens.iter().map(|t| t.id)),
                Event::Finished(usage) => seen.usage = Some(usage),
                Event::Failed(error) => panic!("a request failed: {error}"),
                _ => {}
            }
            true
        });
        // The clock stands still: what is leased stays to the end, or until one needs all memory.
        let lease = Lease { ttl: Duration::from_secs(1), name: 0 };
        let lease = self.draw.once_in(4).then_some(lease);
        let max_tokens = Some(count);
        let request = Request { max_tokens, lease, ..Request::new(prompt.clone()) };
        let expect = SimText::greedy(&self.config.groups, &prompt, count as usize, VOCAB);
        core.enqueue(request.account);
        core.take(asked.len() as u64 + 1, request, sink);
        asked.push(Asked { prompt, expect, seen });
    }

    fn check(&self, core: &Core, asked: &[Asked], whole: bool, totals: &mut Totals) {
        let stats = core.stats();
        for a in asked {
            let seen = a.seen.lock().unwrap();
            assert_eq!(seen.tokens, a.expect[..seen.tokens.len()], "a wrong token");
            if let Some(usage) = seen.usage {
                assert_eq!(seen.tokens, a.expect);
                assert!(usage.disk_tokens <= usage.cached_tokens);
                assert!(usage.cached_tokens < a.prompt.len() as u32);
                totals.answers += 1;
                totals.cached += u64::from(usage.cached_tokens);
                let from_disk = u64::from(usage.disk_tokens);
                totals.from_disk += from_disk;
                let is_state = |k: &GroupKind| *k == GroupKind::State;
                let groups = &self.config.groups;
                totals.with_states += if groups.iter().any(is_state) { from_disk } else { 0 };
                totals.of_states += if groups.iter().all(is_state) { from_disk } else { 0 };
            }
            assert!(!whole || seen.usage.is_some(), "an answer is missing");
        }
        let log = stats.disk.unwrap_or_default().log;
        totals.lives += 1;
        totals.written += log.written;
        totals.damaged += log.damaged;
        totals.deleted += log.deleted;
    }

    /// What happens to the disk before the next life.
    fn between(&mut self) {
        let crash = if self.draw.once_in(3) { Crash::PowerCut } else { Crash::Kill };
        self.disk.restart(crash);
        let full = self.draw.once_in(8).then(|| u64::from(self.draw.range(0, 20_000)));
        self.disk.capacity(full);
        if self.draw.once_in(4) {
            self.disk.flip_a_bit();
        }
        if self.draw.once_in(8) {
            self.disk.shorten();
        }
        let soon = |d: &mut Draw, most| self.disk.calls() + u64::from(d.range(0, most));
        let (crashes, fails) = (self.draw.once_in(3), self.draw.once_in(3));
        if crashes {
            self.disk.crash_at(soon(&mut self.draw, 80));
        }
        if fails {
            self.disk.fail_at(soon(&mut self.draw, 40));
        }
        self.may_fail |= fails; // (a call that is to fail may come in a later life)
        self.calm = !crashes && !self.may_fail;
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|v| v.parse().ok())
}

#[test]
fn every_life_gives_the_oracles_tokens() {
    let seeds = match number("TOKENMILL_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TOKENMILL_SIM_COUNT").unwrap_or(3_000),
    };
    let count = seeds.end - seeds.start;
    let all = Mutex::new(Totals::default());
    for seed in seeds {
        let run = || {
            let mut world = World::new(seed);
            for _ in 0..world.draw.range(2, 6) {
                world.live(&mut all.lock().unwrap());
                world.between();
            }
        };
        assert!(catch_unwind(run).is_ok(), "seed {seed}; replay it with TOKENMILL_SIM_SEED={seed}");
    }
    let t = all.into_inner().unwrap();
    println!("{count} seeds: {t:?}");
    if count >= 1000 {
        let common = [t.answers, t.from_disk, t.written, t.lives];
        assert!(common.iter().all(|&n| n > 2 * count), "{t:?}");
        assert!([t.damaged, t.deleted, t.without].iter().all(|&n| n > 30), "{t:?}");
        assert!(t.told > count / 2 && t.tellers > count / 20, "{t:?}");
        assert!(t.of_states > count / 10 && t.with_states > t.of_states + count / 2, "{t:?}");
    }
}

//! The engine's thread on the simulated device: events, refusals, faults, shutting down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokenmill_backend::DeviceError;
use tokenmill_device_tests::sim::{SimControl, SimDevice, SimText, program};
use tokenmill_engine::constraint::{Constraint, Held, Settings, Vocabulary};
use tokenmill_engine::engine::MASKS_WORK;
use tokenmill_engine::{
    Core, DraftMode, Engine, EngineParts, Event, Refusal, Request, RequestError, RowsError,
    StopReason, system_clock,
};
use tokenmill_ir::sampling::argmax;
use tokenmill_ir::{GroupKind, Limits, SamplingParams, TokenId};
use tokenmill_sched::{Config, StepCost};
use tokenmill_text::{GgufVocab, Tokenizer};

const GROUPS: [GroupKind; 2] = [GroupKind::Full, GroupKind::Window { tokens: 6 }];
const VOCAB: u32 = 26;

fn config() -> Config {
    let limits = Limits {
        step_tokens: 32,
        sequences: 8,
        outputs: 32,
        context: 128,
        group_blocks: vec![64, 64],
        top_logprobs: 5,
    };
    Config {
        groups: GROUPS.to_vec(),
        block_tokens: 4,
        limits,
        whole_sequences: false,
        vocab: VOCAB,
        hidden: 3,
        cost: StepCost::new(1e-3, 1e-5, 0.0),
        step_s: 1.0,
        checkpoint_slots: 0,
        longest_block: 0,
    }
}

/// Letters a to z, and one merge because a vocabulary of this kind needs one.
fn tokenizer() -> Tokenizer {
    let mut tokens: Vec<String> = (b'a'..=b'z').map(|c| char::from(c).to_string()).collect();
    tokens.push("ab".to_string());
    let vocab = GgufVocab {
        model: "gpt2".to_string(),
        pre: Some("gpt-2".to_string()),
        tokens,
        merges: vec!["a b".to_string()],
        ..GgufVocab::default()
    };
    Tokenizer::from_gguf(vocab).unwrap()
}

fn parts(control: &SimControl, eos: Vec<TokenId>) -> EngineParts {
    parts_on(SimDevice::new(config().block_tokens, control.clone()), eos)
}

fn parts_on(backend: SimDevice, eos: Vec<TokenId>) -> EngineParts {
    let config = config();
    let program = program(&config.groups, config.vocab, config.hidden);
    let limits = config.limits.clone();
    let build = move || backend.executable(&program, &limits);
    EngineParts {
        device: build().unwrap(),
        rebuild: Box::new(move |_| build()),
        ids: config.vocab,
        input_cols: 0,
        config,
        tokenizer: Some(Arc::new(tokenizer())),
        eos,
        draft: DraftMode::Suffix,
        queue: 4,
        clock: system_clock(),
        claim: None,
    }
}

fn engine(control: &SimControl) -> Engine {
    Engine::start(parts(control, Vec::new())).unwrap()
}

/// Greedy tokens after a prompt, without a cache.
fn oracle(prompt: &[TokenId], count: usize) -> Vec<TokenId> {
    SimText::greedy(&GROUPS, prompt, count, VOCAB)
}

fn letters(tokens: &[TokenId]) -> String {
    tokens.iter().map(|&t| char::from(b'a' + t as u8)).collect()
}

fn request(prompt: &[TokenId], max_tokens: u32) -> Request {
    Request { max_tokens: Some(max_tokens), ..Request::new(prompt.to_vec()) }
}

#[derive(Debug, Default, PartialEq)]
struct Answer {
    text: String,
    tokens: Vec<TokenId>,
    reason: Option<StopReason>,
    last: Option<Event>,
}

fn collect(events: impl Iterator<Item = Event>) -> Answer {
    let mut answer = Answer::default();
    for event in events {
        match &event {
            Event::Piece { piece, tokens, .. } => {
                answer.text.push_str(piece.text());
                answer.tokens.extend(tokens.iter().map(|t| t.id));
            }
            Event::Done { reason, .. } => answer.reason = Some(reason.clone()),
            _ => {}
        }
        answer.last = Some(event);
    }
    answer
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_answer_is_the_oracles_as_tokens_and_as_text() {
    let engine = engine(&SimControl::default());
    let prompt = [3, 1, 4, 1, 5, 9, 2, 6];
    let expected = oracle(&prompt, 20);
    for cached in [false, true] {
        let answer = collect(engine.submit(request(&prompt, 20)).unwrap());
        assert_eq!(answer.tokens, expected);
        assert_eq!(answer.text, letters(&expected));
        assert_eq!(answer.reason, Some(StopReason::Length));
        let Some(Event::Finished(usage)) = answer.last else { panic!("{answer:?}") };
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (8, 20));
        assert_eq!(usage.cached_tokens, if cached { 4 } else { 0 }, "a token is left to compute");
    }
    wait_until("counted, after the last event", || engine.stats().open_requests == 0);
    let stats = engine.stats();
    assert_eq!((stats.finished, stats.generated_tokens), (2, 40));
    assert_eq!(stats.step_histogram.iter().sum::<u64>(), stats.steps);
}

#[test]
fn answers_end_at_stop_texts_and_end_tokens() {
    let control = SimControl::default();
    let prompt = [7, 7, 3];
    let tokens = oracle(&prompt, 12);
    let text = letters(&tokens);
    let stop = text[4..7].to_string();
    let at = text.find(&stop).unwrap();
    let asked = Request { stop: vec!["0".into(), stop.clone()], ..request(&prompt, 12) };
    let answer = collect(engine(&control).submit(asked).unwrap());
    assert_eq!(answer.text, text[..at], "the stop text is no part of the answer");
    assert_eq!(answer.reason, Some(StopReason::StopText(stop)));

    let eos = tokens[5];
    let before = tokens.iter().position(|&t| t == eos).unwrap();
    let ends = Engine::start(parts(&control, vec![eos])).unwrap();
    let answer = collect(ends.submit(request(&prompt, 12)).unwrap());
    assert_eq!(answer.tokens, tokens[..before]);
    assert_eq!(answer.reason, Some(StopReason::EndOfText));
    let on = Request { ignore_eos: true, ..request(&prompt, 12) };
    assert_eq!(collect(ends.submit(on).unwrap()).tokens, tokens);
}

#[test]
fn what_cannot_run_is_refused_with_the_numbers() {
    let engine = engine(&SimControl::default());
    let refused = |r: Request| engine.submit(r).err();
    assert_eq!(refused(Request::new(Vec::new())), Some(Refusal::EmptyPrompt));
    let bad = Refusal::BadToken { token: 26, vocab: 26 };
    assert_eq!(refused(Request::new(vec![1, 26])), Some(bad.clone()));
    let long = Refusal::ContextLength { prompt_tokens: 100, max_tokens: 29, limit: 128 };
    assert_eq!(refused(request(&[0; 100], 29)), Some(long));
    let full = Refusal::ContextLength { prompt_tokens: 128, max_tokens: 1, limit: 128 };
    assert_eq!(refused(Request::new(vec![0; 128])), Some(full));
    let base = SamplingParams::default();
    let sampled = |sampling| Request { sampling, ..request(&[1], 1) };
    let cases = [
        ("temperature", sampled(SamplingParams { temperature: f32::NAN, ..base })),
        ("temperature", sampled(SamplingParams { temperature: -1.0, ..base })),
        ("top_p", sampled(SamplingParams { top_p: 0.0, ..base })),
        ("min_p", sampled(SamplingParams { min_p: 1.5, ..base })),
        ("repetition_penalty", sampled(SamplingParams { repetition_penalty: 0.0, ..base })),
        ("frequency_penalty", sampled(SamplingParams { frequency_penalty: 1e9, ..base })),
        ("logprobs", sampled(SamplingParams { logprobs: Some(6), ..base })),
        ("logit_bias", Request { logit_bias: vec![(1, f32::NAN)], ..request(&[1], 1) }),
        ("choices", Request { choices: 0, ..request(&[1], 1) }),
        ("choices", Request { choices: 1000, ..request(&[1], 1) }),
        ("max_tokens", request(&[1], 0)),
    ];
    for (expected, request) in cases {
        match refused(request) {
            Some(Refusal::BadParameter { name, .. }) => assert_eq!(name, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    let biased = Request { logit_bias: vec![(26, 0.0)], ..request(&[1], 1) };
    assert_eq!(refused(biased), Some(bad));
    assert_eq!(engine.stats().requests, 0);
}

#[test]
fn a_full_queue_refuses_and_dropped_events_make_room() {
    let control = SimControl::default();
    control.delay(Duration::from_millis(5));
    let engine = engine(&control);
    // Eight sequences run, four requests wait.
    let running: Vec<_> = (0..8)
        .map(|i| {
            let events = engine.submit(request(&[i], 100)).unwrap();
            wait_until("started", || engine.stats().queued_requests == 0);
            events
        })
        .collect();
    let waiting: Vec<_> = (0..4).map(|i| engine.submit(request(&[i], 100)).unwrap()).collect();
    let refused = engine.submit(request(&[1], 1)).err();
    assert_eq!(refused, Some(Refusal::QueueFull { waiting: 4, limit: 4 }));
    drop(waiting);
    drop(running);
    let start = control.steps();
    wait_until("cancelled", || engine.stats().open_requests == 0);
    assert!(control.steps() <= start + 2, "within a step");
    assert_eq!(engine.stats().cancelled, 12);
    assert_eq!(collect(engine.submit(request(&[1, 2], 3)).unwrap()).tokens, oracle(&[1, 2], 3));
}

#[test]
fn one_device_error_is_survived_and_the_second_fails_the_request() {
    let control = SimControl::default();
    let engine = engine(&control);
    control.fail_at(3);
    let answer = collect(engine.submit(request(&[1, 2, 3, 4, 5], 10)).unwrap());
    assert_eq!(answer.tokens, oracle(&[1, 2, 3, 4, 5], 10));
    assert_eq!(engine.stats().device_errors, 1);
    let now = control.steps();
    control.fail_at(now + 2);
    control.panic_at(now + 4);
    let answer = collect(engine.submit(request(&[1, 2, 3, 4, 5], 10)).unwrap());
    assert!(matches!(answer.last, Some(Event::Failed(RequestError::Device(_)))), "{answer:?}");
    let answer = collect(engine.submit(request(&[9], 10)).unwrap());
    assert_eq!(answer.tokens, oracle(&[9], 10), "others go on");
}

#[test]
fn a_device_that_cannot_be_rebuilt_fails_requests_and_the_engine_goes_on() {
    let control = SimControl::default();
    control.fail_at(1);
    let mut parts = parts(&control, Vec::new());
    let broken = DeviceError::BadBatch("gone".to_string());
    parts.rebuild = Box::new(move |_| Err(broken.clone()));
    let engine = Engine::start(parts).unwrap();
    for _ in 0..2 {
        let answer = collect(engine.submit(request(&[1], 10)).unwrap());
        assert!(matches!(answer.last, Some(Event::Failed(RequestError::Device(_)))), "{answer:?}");
    }
}

#[test]
fn a_row_that_is_no_number_fails_its_request_only() {
    let control = SimControl::default();
    let prompt = [2, 4, 6];
    let tokens = oracle(&prompt, 30);
    let bad = tokens[10];
    let at = tokens.iter().position(|&t| t == bad).unwrap();
    let other = (0..VOCAB).map(|t| [t]).find(|p| p[0] != bad && !oracle(p, 30).contains(&bad));
    control.nan_on(bad);
    let engine = engine(&control);
    let fails = engine.submit(request(&prompt, 30)).unwrap();
    if let Some(other) = other {
        let answer = collect(engine.submit(request(&other, 30)).unwrap());
        assert_eq!(answer.tokens, oracle(&other, 30));
    }
    let answer = collect(fails);
    assert_eq!(answer.tokens, tokens[..=at]);
    let failed = RequestError::NotANumber { index: at as u32 + 1 };
    assert_eq!(answer.last, Some(Event::Failed(failed)));
}

#[test]
fn an_answer_that_no_token_continues_fails_alike_with_drafts_and_without() {
    let letters = (0..VOCAB).map(|id| vec![b'a' + id as u8]);
    let vocabulary = Arc::new(Vocabulary::new(letters, &[VOCAB - 1], &[VOCAB - 1]).unwrap());
    // Of no token: the last letter.
    let constraint = Constraint::Regex("ab[cd]Z".into());
    let held = Held::new(&constraint, &vocabulary, &Settings::default()).unwrap();
    let engine = engine(&SimControl::default());
    for prediction in [vec![], vec![0, 1, 2], vec![0, 1, 3]] {
        let held = Some(held.clone());
        let asked = Request { held, prediction, ..request(&[2, 4, 6], 30) };
        let answer = collect(engine.submit(asked).unwrap());
        assert!(answer.text == "abc" || answer.text == "abd", "{answer:?}");
        let Some(Event::Failed(RequestError::Constraint { index: 3, .. })) = answer.last else {
            panic!("{answer:?}");
        };
    }
}

/// Seven answers held to a grammar that is ambiguous without end, beside a free one: between two steps
/// masks take a step's share of work and some masks more, whatever they are, and the free one goes on.
#[test]
fn hostile_grammars_hold_nobody_up() {
    let words = (0..VOCAB).map(|id| vec![b'a' + id as u8; 24]);
    let vocabulary = Arc::new(Vocabulary::new(words, &[VOCAB - 1], &[VOCAB - 1]).unwrap());
    let constraint = Constraint::Gbnf("root ::= s\ns ::= s s | s s s | [a-z] | ".into());
    let held = Held::new(&constraint, &vocabulary, &Settings::default()).unwrap();
    let bounds = Settings::default().bounds;
    let one = bounds.mask_fuel + 28 * bounds.mask_items as u64;
    let mut core = Core::new(parts(&SimControl::default(), Vec::new()));
    let counts = [Arc::<AtomicU32>::default(), Arc::<AtomicU32>::default()];
    for id in 0..8 {
        let is_free = id == 7;
        let held = (!is_free).then(|| held.clone());
        let request = Request { ignore_eos: is_free, held, ..request(&[2, 4, id as u32], 24) };
        let count = Arc::clone(&counts[usize::from(is_free)]);
        let sink = move |event| {
            let tokens = if let Event::Piece { tokens, .. } = event { tokens.len() } else { 0 };
            count.fetch_add(tokens as u32, Ordering::Relaxed);
            true
        };
        core.enqueue(0);
        core.take(id, request, Box::new(sink));
    }
    let (mut most, mut before, mut turns) = (0, 0, 0);
    while !core.is_idle() {
        core.turn();
        turns += 1;
        most = most.max(core.mask_work() - before);
        before = core.mask_work();
        let free = counts[1].load(Ordering::Relaxed);
        assert!(free + 1 >= turns.min(24), "{free} tokens in {turns} turns");
        assert!(turns < 10_000, "no end");
    }
    println!("{turns} turns, {before} units in all, {most} at most, {one} of one mask");
    assert!(before > 5 * one && most < 3 * (MASKS_WORK + one), "{most} {before}");
}

#[test]
fn a_bug_in_the_loop_fails_what_is_open_and_nothing_after() {
    let control = SimControl::default();
    let mut parts = parts(&control, Vec::new());
    let calls = AtomicU32::new(0);
    parts.clock = Box::new(move || {
        assert!(calls.fetch_add(1, Ordering::Relaxed) != 5, "a bug");
        0.0
    });
    let engine = Engine::start(parts).unwrap();
    let answer = collect(engine.submit(request(&[1, 2], 10)).unwrap());
    assert_eq!(answer.last, Some(Event::Failed(RequestError::Internal("a bug".into()))));
    let answer = collect(engine.submit(request(&[1, 2], 10)).unwrap());
    assert_eq!(answer.tokens, oracle(&[1, 2], 10));
}

#[test]
fn a_reader_that_does_not_read_fails_alone_and_holds_nobody_up() {
    let engine = engine(&SimControl::default());
    let sampling = SamplingParams { logprobs: Some(5), ..SamplingParams::default() };
    let asked = Request { choices: 128, sampling, ..request(&[5, 6], 100) };
    let unread = engine.submit(asked).unwrap();
    let answer = collect(engine.submit(request(&[1, 2], 10)).unwrap());
    assert_eq!(answer.tokens, oracle(&[1, 2], 10));
    wait_until("cancelled", || engine.stats().cancelled == 1);
    let waiting = collect(unread);
    assert!((1000..12_000).contains(&waiting.tokens.len()), "{} tokens", waiting.tokens.len());
    assert_eq!(waiting.last, Some(Event::Failed(RequestError::Unread { limit_bytes: 1 << 20 })));
}

#[test]
fn a_receiver_that_panics_fails_alone() {
    let engine = engine(&SimControl::default());
    let sink = Box::new(|_| panic!("a receiver's bug"));
    let held = engine.submit_to(request(&[5, 6], 10), sink).unwrap();
    let answer = collect(engine.submit(request(&[1, 2], 10)).unwrap());
    assert_eq!(answer.tokens, oracle(&[1, 2], 10));
    wait_until("failed", || engine.stats().failed == 1);
    drop(held);
}

#[test]
fn numbers_are_the_oracles() {
    let engine = engine(&SimControl::default());
    let tokens: Vec<TokenId> = (0..40).map(|i| i * 7 % VOCAB).collect();
    let mut text = SimText::new(&GROUPS);
    let digests: Vec<u64> = tokens.iter().map(|&t| text.push(t)).collect();
    let row = |digest: u64, width: usize| {
        let mut row = vec![0.0; width];
        SimText::row(digest, &mut row);
        row
    };
    let scores = engine.score(tokens.clone(), 2).unwrap();
    assert_eq!(scores.len(), 39);
    for (i, score) in (1..).zip(&scores) {
        let logits = row(digests[i - 1], VOCAB as usize);
        let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let expected = f64::from(logits[tokens[i] as usize]) - sum.ln();
        assert!((f64::from(score.logprob) - expected).abs() < 1e-5);
        assert_eq!((score.id, score.top[0].0), (tokens[i], argmax(&logits).unwrap()));
    }
    assert!(engine.score(vec![3], 0).unwrap().is_empty());
    let logits = engine.logits(tokens.clone(), 37).unwrap();
    let expected: Vec<f32> = digests[37..].iter().flat_map(|&d| row(d, VOCAB as usize)).collect();
    assert_eq!((logits.numbers, logits.width), (expected, VOCAB as usize));
    assert_eq!(engine.embed(tokens.clone()).unwrap(), row(digests[39], 3));
    let refused = engine.logits(tokens, 40);
    assert!(matches!(refused, Err(RowsError::Refused(Refusal::BadParameter { .. }))));
}

#[test]
fn draining_waits_and_shutting_down_does_not() {
    let control = SimControl::default();
    let engine = engine(&control);
    let events = engine.submit(request(&[1], 50)).unwrap();
    assert!(engine.drain(Duration::from_secs(20)));
    assert_eq!(collect(events).tokens, oracle(&[1], 50), "what was open is complete");
    assert_eq!(engine.submit(request(&[1], 1)).err(), Some(Refusal::ShuttingDown));
    engine.shut_down();
    engine.shut_down();

    let engine = self::engine(&control);
    control.delay(Duration::from_millis(20));
    let events = engine.submit(request(&[1], 100)).unwrap();
    assert!(!engine.drain(Duration::from_millis(50)), "a hundred slow steps are not over");
    engine.shut_down();
    assert_eq!(collect(events).last, Some(Event::Failed(RequestError::ShutDown)));
}

#[test]
fn a_prediction_saves_steps_and_changes_no_token() {
    let control = SimControl::default();
    let prompt = [3, 1, 4];
    for temperature in [0.0, 1.0] {
        let mut steps = Vec::new();
        let mut predicted = Vec::new();
        let mut first = None;
        for (draft, right) in [(None, false), (None, true), (Some(DraftMode::None), true)] {
            // Time stands still: what steps cost is as it was told. Nothing is guessed unasked.
            let (clock, draft_unasked) = (Box::new(|| 0.0), DraftMode::None);
            let parts = parts(&control, Vec::new());
            let parts = EngineParts { clock, draft: draft_unasked, ..parts };
            let engine = Engine::start(parts).unwrap();
            let sampling = SamplingParams { temperature, seed: 5, ..SamplingParams::default() };
            let prediction = if right { predicted.clone() } else { Vec::new() };
            let asked = Request { sampling, prediction, draft, ..request(&prompt, 60) };
            let answer = collect(engine.submit(asked).unwrap());
            assert_eq!(&answer.tokens, first.get_or_insert(answer.tokens.clone()));
            let Some(Event::Finished(usage)) = answer.last else { panic!("{answer:?}") };
            let drafts = u64::from(usage.accepted_drafts + usage.rejected_drafts);
            // Counters follow the last event.
            wait_until("the same drafts counted", || engine.stats().drafted_tokens == drafts);
            let stats = engine.stats();
            assert_eq!(u64::from(usage.accepted_drafts), stats.accepted_tokens);
            steps.push(stats.steps);
            predicted = answer.tokens;
            predicted[30] ^= 1; // lost for a while, then found again
        }
        assert!(steps[0] == 60 && steps[1] < 35 && steps[2] == 60, "{steps:?}");
    }
}

#[test]
fn where_a_prompt_leaves_the_cached_one_is_told() {
    let engine = engine(&SimControl::default());
    let prompt: Vec<TokenId> = (0..20).collect();
    let told = |prompt: &[TokenId]| {
        let asked = Request { diagnose: true, ..request(prompt, 1) };
        match engine.submit(asked).unwrap().next() {
            Some(Event::Prefix(found)) => found,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(told(&prompt), None, "nothing is cached");
    collect(engine.submit(request(&prompt, 1)).unwrap());
    let mut other = prompt.clone();
    other[10] = 25;
    let found = told(&other).unwrap();
    assert_eq!((found.prompt_tokens, found.common_tokens), (20, 10));
    assert_eq!(found.cached.as_deref(), Some("kl"), "to the end of the block");
    assert!(found.prompt.starts_with("zl"), "{found:?}");
    let found = told(&prompt).unwrap();
    assert!(found.common_tokens >= 16 && found.cached.is_none(), "{found:?}");
}

#[test]
fn parallel_answers_share_the_prompt_and_differ() {
    let engine = engine(&SimControl::default());
    let prompt: Vec<TokenId> = (0..30).map(|i| i % VOCAB).collect();
    let sampling = SamplingParams { temperature: 1.0, seed: 3, ..SamplingParams::default() };
    let asked = Request { choices: 3, sampling, ..request(&prompt, 10) };
    let mut choices = vec![Vec::new(); 3];
    for event in engine.submit(asked.clone()).unwrap() {
        if let Event::Piece { choice, tokens, .. } = event {
            choices[choice as usize].extend(tokens.iter().map(|t| t.id));
        }
    }
    assert!(choices.iter().all(|c| c.len() == 10));
    assert!(choices[0] != choices[1] && choices[1] != choices[2]);
    let stats = engine.stats();
    assert!(stats.computed_tokens < 30 + 2 * 4 + 30, "{} computed", stats.computed_tokens);
    let mut again = vec![Vec::new(); 3];
    for event in engine.submit(asked).unwrap() {
        if let Event::Piece { choice, tokens, .. } = event {
            again[choice as usize].extend(tokens.iter().map(|t| t.id));
        }
    }
    assert_eq!(choices, again, "the same seed gives the same answers");
}

/// Tokens of a step are told while the next one runs: a receiver that waits for the next step to
/// begin sees it begin.
#[test]
fn what_a_step_brought_is_told_while_a_device_that_runs_alone_goes_on() {
    const TOKENS: u32 = 8;
    let told = |alone: bool| {
        let control = SimControl::default();
        let device = SimDevice::new(config().block_tokens, control.clone());
        let device = if alone { device.alone() } else { device };
        let engine = Engine::start(parts_on(device, Vec::new())).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let mut seen = 0;
        let sink = move |event: Event| {
            if let Event::Piece { .. } = event {
                seen += 1;
                let longest =
                    Duration::from_millis(if alone && seen < TOKENS.into() { 5000 } else { 20 });
                let start = Instant::now();
                while control.steps() <= seen && start.elapsed() < longest {
                    std::thread::yield_now();
                }
                let _ = sender.send(control.steps() > seen);
            }
            true
        };
        let draft = Some(DraftMode::None);
        let request = Request { draft, max_tokens: Some(TOKENS), ..Request::new(vec![1, 2, 3]) };
        let _cancel = engine.submit_to(request, Box::new(sink)).unwrap();
        receiver.iter().take(TOKENS as usize).collect::<Vec<bool>>()
    };
    let alone = told(true);
    assert!(alone[..alone.len() - 1].iter().all(|&began| began), "{alone:?}");
    let on_this_thread = told(false);
    assert!(on_this_thread.iter().all(|&began| !began), "{on_this_thread:?}");
}

/// A stop text that a token completes is found while the next step runs; its token is nobody's.
#[test]
fn answers_of_a_device_that_runs_alone_are_the_same() {
    let answers = |device: SimDevice| {
        let engine = Engine::start(parts_on(device, vec![4])).unwrap();
        let ask = |first: u32| {
            let sampling = SamplingParams { seed: 5, temperature: 1.0, ..Default::default() };
            let stop = vec!["q".to_string(), "ab".to_string()];
            let request = Request { sampling, stop, choices: 2, ..Request::new(vec![first, 2, 3]) };
            engine.submit(Request { max_tokens: Some(60), ..request }).unwrap()
        };
        let all: Vec<_> = (0..4).map(ask).collect();
        let answer = |events: tokenmill_engine::Events| {
            let mut choices = [(); 2].map(|()| (String::new(), None));
            for event in events {
                match event {
                    Event::Piece { choice, piece, .. } => {
                        choices[choice as usize].0 += piece.text()
                    }
                    Event::Done { choice, reason } => choices[choice as usize].1 = Some(reason),
                    Event::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            }
            choices
        };
        all.into_iter().map(answer).collect::<Vec<_>>()
    };
    let device = || SimDevice::new(config().block_tokens, SimControl::default());
    assert_eq!(answers(device().alone()), answers(device()));
}

//! Who waits how long for whom, in predicted time.

use std::time::Duration;

use tokenmill_engine::Request;
use tokenmill_sim_tests::{Draw, Service};

const PROMPT: u32 = 256;
const ANSWER: u32 = 128;

/// The value that 95 of 100 do not exceed.
fn p95(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() * 95).div_ceil(100) - 1]
}

/// Times to the first token of light accounts, and how many requests of the greedy one ended, for
/// such prompts and answers on a device `slow` times as slow as the usual one. `apart`: light requests
/// come one after the other.
fn light_waits(
    greedy: usize,
    slow: f64,
    (prompt, answer): (u32, u32),
    apart: bool,
) -> (Vec<f64>, usize) {
    let mut service = Service::slowed(32, 32 * 1024, slow);
    let mut draw = Draw::new(7);
    // Seven light accounts offer 1.2 requests a second of the usual size and device: less than 30 %
    // of what is possible.
    let pace = slow * f64::from(prompt) / f64::from(PROMPT);
    let mut arrivals: Vec<(f64, u64)> = (0..72)
        .map(|_| (5.0 + f64::from(draw.range(0, 60_000)) * 1e-3, u64::from(draw.range(2, 8))))
        .map(|(at, account)| (at * pace, account))
        .collect();
    if apart {
        arrivals.iter_mut().zip(0u32..).for_each(|(a, i)| a.0 = f64::from(i) * 10.0);
    }
    arrivals.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut streams: Vec<usize> = (0..greedy).map(|_| service.ask(1, 0, prompt, answer)).collect();
    let (mut light, mut ended) = (Vec::new(), 0);
    while let Some(&(at, account)) = arrivals.last() {
        if service.now() >= at {
            arrivals.pop();
            // However many of the greedy account's requests wait.
            let limits = (u32::MAX, Duration::from_secs_f64(2.0 * pace));
            light.push(service.ask_within(limits, account, prompt, answer).expect("taken"));
        }
        for stream in &mut streams {
            if service.times(*stream).ended.is_some() {
                *stream = service.ask(1, 0, prompt, answer);
                ended += 1;
            }
        }
        service.turn(at);
    }
    service.finish();
    let wait = |&r: &usize| service.times(r).first.expect("answered") - service.times(r).came;
    assert_eq!(service.stats().late_steps, 0);
    (light.iter().map(wait).collect(), ended)
}

#[test]
fn light_accounts_wait_little_longer_beside_a_greedy_one() {
    // Twice as slow, 32 streams take half of the time that a step should; from four times on all.
    let short = (64, 32);
    // The usual requests are held to what one waits that has the device to itself.
    let cases = [
        (1.0, (PROMPT, ANSWER), true, 3.0),
        (2.0, short, false, 3.0),
        (4.0, short, false, 3.5),
        (8.0, short, false, 3.0),
    ];
    for (slow, shape, apart, most) in cases {
        let (alone, _) = light_waits(0, slow, shape, apart);
        let (busy, ended) = light_waits(256, slow, shape, false);
        let (alone, busy) = (p95(alone), p95(busy));
        println!(
            "{slow} times as slow, {shape:?} tokens: first token, p95: {alone:.3} s alone, {busy:.3} s \
             beside 256 greedy streams"
        );
        assert!(busy <= most * alone, "{busy} s, alone {alone} s");
        assert!(ended > 100, "the greedy account gets what is left: {ended} answers");
    }
}

#[test]
fn streams_go_on_within_the_bound_while_a_long_prompt_is_read() {
    let mut service = Service::new(32, 64 * 1024);
    let streams: Vec<usize> = (0..8).map(|_| service.ask(1, 0, 64, 1500)).collect();
    while streams.iter().any(|&s| service.times(s).first.is_none()) {
        service.turn(f64::INFINITY);
    }
    let idle = gap(&mut service);
    let long = service.ask(2, 0, 8192, 8);
    let mut gaps = Vec::new();
    while service.times(long).first.is_none() {
        gaps.push(gap(&mut service));
    }
    service.finish();
    let stats = service.stats();
    // Base, 0.1 s, eight rows and a block of 32 tokens that each read up to 8 K keys.
    let stated = 1.6e-3 + 0.1 + 9.0 * 0.95e-3 + 32.0 * 0.55e-3 + 33.0 * 8200.0 * 1e-7;
    assert_eq!(stats.late_steps, 0);
    assert!(stats.gap_max_s <= stats.gap_bound_s && stats.gap_bound_s <= stated, "{stats:?}");
    assert!(stats.gap_max_s > 0.09, "the end of it takes full steps: {}", stats.gap_max_s);
    let busy = p95(gaps);
    assert!(busy <= 2.2 * idle, "gaps {busy} s, idle {idle} s");
    let read = service.times(long).first.expect("answered") - service.times(long).came;
    let alone = 8192.0 * 0.55e-3 + 8192.0 * 4096.0 * 1e-7;
    assert!(read < 2.1 * alone, "half of the time is the prompt's: {read} s of {alone} s");
}

/// What one step takes, seconds.
fn gap(service: &mut Service) -> f64 {
    let before = service.now();
    service.turn(f64::INFINITY);
    service.now() - before
}

/// Waits for the first token of requests that come in `after..after + 20` seconds, at a third of
/// what is possible; before, from second 20 to 40, `times` of what is possible come, all of them from
/// that many accounts. How many were refused.
fn waits_around_overload(
    (limits, accounts, cache_tokens): ((u32, Duration), u32, u32),
    times: u32,
    after: f64,
) -> (Vec<f64>, usize) {
    // Alone a request takes 0.25 s of the device, and 32 together no less in all.
    const POSSIBLE_A_SECOND: u32 = 4;
    let mut service = Service::new(32, cache_tokens);
    let mut draw = Draw::new(13);
    let mut come = |from: f64, seconds: u32, count: u32| -> Vec<f64> {
        (0..count).map(|_| from + f64::from(draw.range(0, seconds * 1000)) * 1e-3).collect()
    };
    let mut arrivals = come(0.0, 80, 80 * POSSIBLE_A_SECOND / 3);
    arrivals.extend(come(20.0, 20, 20 * POSSIBLE_A_SECOND * times));
    arrivals.sort_by(|a, b| b.total_cmp(a));
    let (mut taken, mut refused) = (Vec::new(), 0);
    while let Some(&at) = arrivals.last() {
        if service.now() >= at {
            arrivals.pop();
            let account = u64::from(draw.range(0, accounts - 1));
            match service.ask_within(limits, account, PROMPT, ANSWER) {
                Ok(request) => taken.push(request),
                Err(_) => refused += 1,
            }
        }
        service.turn(at);
    }
    service.finish();
    let times = taken.iter().map(|&r| service.times(r));
    let of_interest = times.filter(|t| (after..after + 20.0).contains(&t.came));
    (of_interest.map(|t| t.first.expect("answered") - t.came).collect(), refused)
}

#[test]
fn four_times_too_much_is_refused_at_once_and_forgotten_in_five_seconds() {
    let median = |mut waits: Vec<f64>| {
        waits.sort_by(f64::total_cmp);
        waits[waits.len() / 2]
    };
    // By number, and by the time it would take.
    // Memory for all places, or for a quarter of them.
    const ROOMY: u32 = 32 * 1024;
    const TIGHT: u32 = 8 * 384;
    let two_s = (1024, Duration::from_secs(2));
    for limits in
        [((8, Duration::MAX), 1, ROOMY), (two_s, 1, ROOMY), (two_s, 60, ROOMY), (two_s, 1, TIGHT)]
    {
        let (calm, refused) = waits_around_overload(limits, 0, 45.0);
        assert_eq!(refused, 0);
        let (during, refused) = waits_around_overload(limits, 4, 20.0);
        let (after, _) = waits_around_overload(limits, 4, 45.0);
        let longest = during.iter().copied().fold(0.0, f64::max);
        let (calm, during, after) = (median(calm), median(during), median(after));
        println!(
            "first token, p50: {calm:.3} s, {during:.3} s in overload (longest {longest:.3} s), \
             {after:.3} s 5 s later; {refused} refused"
        );
        assert!(refused > 200, "{refused} of 320 are too many");
        // Answers of one length end together: places come in waves, a prediction is a mean.
        // The second request of one of many is passed by the first of all others.
        let most = if limits.1 == 1 { 6.0 } else { 20.0 };
        assert!(during > 3.0 * calm && longest < most, "it is an overload, and bounded");
        assert!(after <= 1.1 * calm, "{after} s, before {calm} s");
    }
}

#[test]
fn urgent_requests_of_an_account_come_first() {
    let mut service = Service::new(4, 8 * 1024);
    let plain: Vec<usize> = (0..12).map(|_| service.ask(1, 0, PROMPT, ANSWER)).collect();
    for _ in 0..20 {
        service.turn(f64::INFINITY);
    }
    let urgent = service.ask(1, -1, PROMPT, ANSWER);
    let later = service.ask(1, 1, PROMPT, ANSWER);
    service.finish();
    let first = |r: usize| service.times(r).first.expect("answered");
    assert!(first(urgent) - service.times(urgent).came < 0.5, "in the place of another");
    assert!(plain.iter().all(|&r| first(r) < first(later)), "the least urgent comes last");
}

#[test]
fn parallel_answers_compute_the_prompt_once() {
    let mut service = Service::new(32, 32 * 1024);
    let prompt: Vec<u32> = (0..1000).map(|i| i * i % 47).collect();
    let request = Request { choices: 8, max_tokens: Some(10), ..Request::new(prompt) };
    service.submit(request);
    service.finish();
    // Each other choice computes what is left after the last full block.
    let most = 1000 + 7 * (1000 % 32) + 8 * 9;
    assert!(service.stats().computed_tokens <= most, "{}", service.stats().computed_tokens);
}

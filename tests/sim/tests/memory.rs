//! What the cache holds: nothing after aborts, little that is not used, nothing computed twice.

use std::collections::BTreeSet;

use tokenmill_engine::{Request, Turn};
use tokenmill_sim_tests::{Draw, Service};

#[test]
fn ten_thousand_aborts_in_every_state_leave_nothing() {
    let mut service = Service::new(8, 2048);
    let mut draw = Draw::new(3);
    let mut open: Vec<(usize, u32)> = Vec::new();
    // Waiting, reading the prompt, generating, preempted.
    let mut aborted = [0; 4];
    let mut done = 0;
    while done < 10_000 {
        while open.len() < 12 {
            let (prompt, answer) = (draw.range(1, 700), draw.range(50, 400));
            let account = u64::from(draw.range(0, 3));
            open.push((service.ask(account, 0, prompt, answer), prompt));
        }
        for _ in 0..draw.range(0, 6) {
            service.turn(f64::INFINITY);
        }
        let (request, prompt) = open.swap_remove(draw.range(0, 11) as usize);
        let Some(computed) = service.computed(request) else { continue };
        let state = match (computed, service.times(request).first) {
            (0, None) => 0,
            (0, Some(_)) => 3,
            (n, _) if n < prompt => 1,
            _ => 2,
        };
        aborted[state] += 1;
        done += 1;
        service.cancel(request);
    }
    open.iter().for_each(|&(request, _)| service.cancel(request));
    assert!(aborted.iter().all(|&n| n > 100), "{aborted:?}");
    assert_eq!(service.turn(f64::INFINITY), Turn::Idle);
    let blocks = service.scheduler().group_counts(0);
    assert_eq!(blocks.free + blocks.cached, blocks.total);
    let stats = service.stats();
    assert_eq!((stats.open_requests, stats.queued_requests), (0, 0));
}

#[test]
fn little_memory_is_held_and_not_used() {
    let mut service = Service::new(32, 32 * 1024);
    let mut draw = Draw::new(9);
    for _ in 0..200 {
        let (prompt, answer) = (draw.range(1, 800), draw.range(1, 300));
        service.ask(0, 0, prompt, answer);
    }
    let (mut tokens, mut tables) = (0, 0);
    while service.turn(f64::INFINITY) == Turn::Worked {
        let slack = service.scheduler().slack();
        tokens += slack.0;
        tables += slack.1;
    }
    let mean = tokens as f64 / tables as f64;
    println!("{mean:.2} tokens of room unused in a table of 32-token blocks");
    assert!(mean <= 16.0, "{mean}");
}

#[test]
fn what_others_computed_is_not_computed_again() {
    let mut service = Service::new(16, 64 * 1024);
    let mut draw = Draw::new(11);
    let mut some = |n: u32| -> Vec<u32> { (0..n).map(|_| draw.range(0, 49)).collect() };
    let systems = [some(700), some(333), some(64)];
    let mut texts: Vec<Vec<u32>> = Vec::new();
    let mut requests = 0;
    for turn in 0..6 {
        // Ten conversations go on; answers are not part of them, so that all is known beforehand.
        for talk in 0..10 {
            if turn == 0 {
                texts.push(systems[talk % 3].clone());
            }
            let more = some(20 + 30 * turn);
            texts[talk].extend(more);
            let max_tokens = Some(1);
            service.submit(Request { max_tokens, ..Request::new(texts[talk].clone()) });
            requests += 1;
        }
        service.finish();
    }
    let unique: BTreeSet<&[u32]> =
        texts.iter().flat_map(|t| (1..=t.len()).map(move |n| &t[..n])).collect();
    let computed = service.stats().computed_tokens;
    let most = unique.len() as u64 + 32 * requests;
    println!("{computed} tokens computed, {} unique, {requests} requests", unique.len());
    assert!(computed <= most, "{computed} computed, {} unique", unique.len());
    assert_eq!(service.stats().preemptions, 0);
}

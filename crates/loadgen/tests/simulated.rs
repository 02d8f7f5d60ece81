//! The load tool against the production server over the simulated device.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokenmill_http_tests::{Setup, Site};
use tokenmill_loadgen::{Api, Arrival, Lengths, LoadError, Summary, Target, Workload, run};

fn target(site: &Site, api: Api) -> Target {
    Target {
        url: format!("http://{}", site.client.address()),
        api,
        model: None,
        small_model: None,
        api_key: None,
        extra: Map::new(),
        patience: Duration::from_secs(20),
    }
}

fn workload() -> Workload {
    Workload {
        seed: 1,
        sessions: 6,
        turns: 1,
        prompt: Lengths::Uniform(2, 9),
        output: Lengths::Uniform(3, 12),
        prefix_words: 0,
        prefix_groups: 1,
    }
}

#[test]
fn both_loops_and_both_endpoints_get_what_they_ask_for() {
    let site = Site::new();
    for api in [Api::Completions, Api::Chat] {
        for arrival in [Arrival::Closed { clients: 3 }, Arrival::Open { rate: 200.0 }] {
            let run = run(&target(&site, api), &workload(), arrival, 1).expect("a run");
            let summary = Summary::of(&run);
            assert_eq!(run.model, "sim");
            assert_eq!((summary.requests, summary.errors.len()), (6, 0), "{summary:?}");
            let asked: u64 = run.records.iter().map(|r| u64::from(r.max_tokens)).sum();
            assert_eq!((summary.short, summary.completion_tokens), (0, asked), "{api:?}");
            assert!(summary.prompt_tokens > 6 * 2 && summary.cached_tokens.is_some());
            for record in &run.records {
                let events = &record.outcome.as_ref().expect("an answer").events_s;
                assert!(events.is_sorted() && events[0] > record.start_s);
                assert!(events[events.len() - 1] <= record.end_s);
            }
            assert!(run.records.iter().all(|r| r.end_s <= run.wall_s));
        }
    }
}

#[test]
fn later_turns_and_shared_prefixes_are_found_in_the_cache() {
    let site = Site::new();
    let talk = Workload { sessions: 2, turns: 3, prefix_words: 20, ..workload() };
    let closed = Arrival::Closed { clients: 1 };
    let run = run(&target(&site, Api::Completions), &talk, closed, 0).expect("a run");
    let of = |session: usize, turn: usize| {
        let found = run.records.iter().find(|r| (r.session, r.turn) == (session, turn));
        found.and_then(|r| r.outcome.clone().ok()).expect("an answer")
    };
    assert_eq!(of(0, 0).cached_tokens, Some(0));
    // Twenty words are at least three blocks of 16 bytes.
    assert!(of(1, 0).cached_tokens >= Some(48), "the prefix: {:?}", of(1, 0).cached_tokens);
    for session in [0, 1] {
        for turn in [1, 2] {
            let before = of(session, turn - 1).prompt_tokens.expect("counted");
            assert!(of(session, turn).prompt_tokens > Some(before), "history is sent again");
            assert!(of(session, turn).cached_tokens >= Some(before - before % 16));
        }
    }
}

#[test]
fn refusals_are_counted_and_end_the_session() {
    let site = Site::with(Setup { context: 128, ..Setup::default() });
    let long = Workload { prompt: Lengths::Fixed(400), turns: 2, ..workload() };
    let refused = run(&target(&site, Api::Completions), &long, Arrival::Closed { clients: 2 }, 0);
    let summary = Summary::of(&refused.expect("the run itself goes on"));
    assert_eq!((summary.requests, summary.completion_tokens), (6, 0));
    assert!(summary.errors.iter().all(|e| e.0.starts_with("status 400:")), "{summary:?}");
    assert_eq!(summary.errors.iter().map(|e| e.1).sum::<usize>(), 6);
}

#[test]
fn extra_members_replace_and_remove() {
    let site = Site::new();
    let mut target = target(&site, Api::Completions);
    let Value::Object(extra) = json!({"max_tokens": 2, "ignore_eos": null}) else { return };
    target.extra = extra;
    let run = run(&target, &workload(), Arrival::Closed { clients: 1 }, 0).expect("a run");
    let most = run.records.iter().map(|r| r.outcome.as_ref().expect("an answer").completion_tokens);
    assert_eq!(most.max(), Some(2));
}

#[test]
fn a_server_that_is_not_there() {
    let site = Site::new();
    let mut nowhere = target(&site, Api::Chat);
    nowhere.url = "http://127.0.0.1:1".into();
    let error = run(&nowhere, &workload(), Arrival::Closed { clients: 1 }, 0).unwrap_err();
    assert!(matches!(error, LoadError::Connection(_)), "{error}");
}

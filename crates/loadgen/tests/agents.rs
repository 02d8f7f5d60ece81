//! Agents' sessions against the production server over the simulated device, in every dialect.

use std::time::Duration;

use serde_json::Map;
use tokenmill_http_tests::{Setup, Site};
use tokenmill_loadgen::{
    Agents, Api, Arrival, History, Kind, Lengths, Profile, Run, Summary, Target, run_agents,
};

/// Small, with everything that an agent does: a token is a byte here.
static SMALL: Profile = Profile {
    name: "small",
    version: "1",
    system: 300,
    front: &[80, 20],
    place_in_front: true,
    tools: 2,
    tools_bytes: 700,
    properties: 3,
    title: Some(100),
    compaction: Some((60, 80)),
    subagents: true,
};

fn site() -> Site {
    Site::with(Setup { context: 8192, blocks: 4000, sequences: 16, ..Setup::default() })
}

fn target(site: &Site, api: Api) -> Target {
    Target {
        url: format!("http://{}", site.client.address()),
        api,
        model: None,
        small_model: Some("user/sim:q8".into()),
        api_key: None,
        extra: Map::new(),
        patience: Duration::from_secs(20),
    }
}

fn agents(history: History) -> Agents {
    Agents {
        seed: 1,
        sessions: 2,
        turns: 4,
        result: Lengths::Uniform(20, 40),
        answer: Lengths::Fixed(12),
        pause_s: 0.0,
        profiles: vec![&SMALL],
        history,
    }
}

fn go(site: &Site, api: Api, history: History) -> Run {
    let closed = Arrival::Closed { clients: 2 };
    run_agents(&target(site, api), &agents(history), closed, 0).expect("a run")
}

#[test]
fn sessions_finish_in_every_dialect_and_find_their_prompts_in_the_cache() {
    for api in [Api::Chat, Api::Responses, Api::Messages, Api::Ollama] {
        let site = site();
        let run = go(&site, api, History::Seeded);
        let summary = Summary::of(&run);
        assert_eq!((summary.finished, summary.errors.len()), (2, 0), "{api:?}: {summary:?}");
        let expect = [
            (Kind::Main, 8),
            (Kind::Title, 2),
            (Kind::Compaction, 2),
            // Two agents of two requests each.
            (Kind::SubAgent, 8),
        ];
        assert_eq!(summary.kinds, expect, "{api:?}");
        assert!(summary.p90_tok_s > 0.0 && summary.prompt_tokens > 0, "{api:?}");
        let cached: Vec<Option<f64>> = summary.turns.iter().map(|t| t.cached).collect();
        if api == Api::Ollama {
            assert_eq!(cached, [None; 4], "its answers do not tell");
            continue;
        }
        // The second session begins where the first one did; before the last turn the history
        // becomes a summary, and only its front stays cached.
        let part = |turn: usize| cached[turn].expect("told");
        assert!(part(1) > part(0) && part(2) > 0.8 && part(2) >= part(1), "{api:?}: {cached:?}");
        assert!(part(3) > 0.3, "{api:?}: {cached:?}");
        site.settle();
    }
}

#[test]
fn what_the_model_says_goes_into_the_history_too() {
    let site = site();
    for api in [Api::Chat, Api::Messages] {
        let summary = Summary::of(&go(&site, api, History::Model));
        assert_eq!((summary.finished, summary.errors.len()), (2, 0), "{api:?}: {summary:?}");
    }
}

#[test]
fn the_same_prompts_whatever_is_answered() {
    // Prompts of a seeded history have the same number of tokens in a run of longer answers: what
    // was answered is not in them.
    let prompts = |api, extra: &str| -> Vec<Option<u64>> {
        let site = site();
        let mut target = target(&site, api);
        target.extra = serde_json::from_str(extra).expect("an object");
        let agents = Agents { sessions: 1, ..agents(History::Seeded) };
        let run = run_agents(&target, &agents, Arrival::Closed { clients: 1 }, 0).expect("a run");
        let main = run.records.iter().filter(|r| r.kind == Kind::Main);
        main.map(|r| r.outcome.as_ref().expect("an answer").prompt_tokens).collect()
    };
    let one = prompts(Api::Chat, "{}");
    assert_eq!(one.len(), 4);
    assert_eq!(one, prompts(Api::Chat, "{\"max_tokens\":30,\"ignore_eos\":null}"));
}

#[test]
fn refusals_leave_sessions_unfinished() {
    let site = Site::with(Setup { context: 256, ..Setup::default() });
    let summary = Summary::of(&go(&site, Api::Messages, History::Seeded));
    assert_eq!((summary.sessions, summary.finished), (2, 0));
    assert_eq!(summary.kinds_of_errors[0].0, "status 400", "{summary:?}");
    assert_eq!(summary.p90_tok_s, 0.0);
}

//! Samplers that OpenAI's API does not have, over HTTP: each has an effect that shows in the text.

use serde_json::{Value, json};
use tokenmill_http_tests::Site;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn merged(mut body: Value, extra: &Value) -> Value {
    for (key, value) in extra.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

/// A text of 200 tokens, each a byte, drawn from all of them.
fn text(site: &Site, extra: &Value) -> String {
    let body = json!({
        "prompt": "a", "max_tokens": 200, "seed": 7, "temperature": 1, "top_p": 1, "min_p": 0,
        "ignore_eos": true,
    });
    let reply = site.client.post(TEXT, &merged(body, extra));
    assert_eq!(reply.status, 200, "{extra}: {reply:?}");
    reply.json()["choices"][0]["text"].as_str().expect("a text").to_owned()
}

#[test]
fn each_changes_what_is_drawn_and_the_same_seed_draws_the_same() {
    let site = Site::new();
    let plain = text(&site, &json!({}));
    for extra in [
        json!({ "typical_p": 0.3 }),
        json!({ "top_n_sigma": 0.5 }),
        json!({ "xtc_probability": 1, "xtc_threshold": 0.01 }),
        json!({ "temperature": 1.0, "dynatemp_range": 0.9 }),
        json!({ "mirostat": 2, "mirostat_tau": 2 }),
        json!({ "samplers": ["top_k", "temperature"], "top_k": 3 }),
        json!({ "dry_multiplier": 5, "dry_allowed_length": 1 }),
    ] {
        let first = text(&site, &extra);
        assert_ne!(first, plain, "{extra}");
        assert_eq!(text(&site, &extra), first, "{extra}");
    }
    // What asks for nothing draws what it would without.
    let nothing = json!({
        "typical_p": 1, "top_n_sigma": -1, "xtc_probability": 0, "dynatemp_range": 0, "mirostat": 0,
        "dry_multiplier": 0, "bad_words": [], "min_tokens": 0, "stop_token_ids": [],
        "repeat_last_n": -1,
    });
    assert_eq!(text(&site, &nothing), plain);
    // Who is not named is off: nothing is truncated, and the temperature is none.
    let off = json!({ "samplers": ["temperature"], "top_k": 1, "top_p": 0.1 });
    assert_ne!(text(&site, &off), text(&site, &json!({ "top_k": 1 })));
    let one = json!({ "samplers": "top_k", "top_k": 1, "temperature": 2 });
    assert_eq!(text(&site, &one), text(&site, &json!({ "temperature": 0 })));
}

#[test]
fn words_and_ends_are_held_back() {
    let site = Site::new();
    let plain = text(&site, &json!({}));
    let letter = plain.chars().find(char::is_ascii_alphanumeric).expect("a letter").to_string();
    let without = text(&site, &json!({ "bad_words": [letter] }));
    assert!(!without.contains(&letter), "{letter}: {without}");
    // Two of one kind never come one after the other.
    let pairs = json!({ "bad_words": [format!("{letter}{letter}")], "top_k": 2 });
    assert!(!text(&site, &pairs).contains(&format!("{letter}{letter}")));
    let ask = |extra: Value| {
        let body = json!({ "prompt": "a", "max_tokens": 300, "seed": 7, "temperature": 1 });
        site.client.post(TEXT, &merged(body, &extra)).json()
    };
    let short = (0..200).map(|seed| ask(json!({ "seed": seed }))).find(|answer| {
        let tokens = answer["usage"]["completion_tokens"].as_u64().expect("a number");
        answer["choices"][0]["finish_reason"] == "stop" && tokens < 100
    });
    let short = short.expect("one of these ends soon");
    let tokens = short["usage"]["completion_tokens"].as_u64().expect("a number");
    for seed in 0..20 {
        let longer = ask(json!({ "seed": seed, "min_tokens": 150 }));
        let found = longer["usage"]["completion_tokens"].as_u64().expect("a number");
        assert!(found >= 150, "{tokens}: {longer}");
    }
}

#[test]
fn tokens_end_answers() {
    let site = Site::new();
    let body = json!({ "prompt": "a", "max_tokens": 50, "temperature": 0 });
    let whole = text(&site, &json!({ "temperature": 0, "max_tokens": 50 }));
    let at = whole.char_indices().nth(20).expect("longer").0;
    let end = whole[at..].chars().next().filter(char::is_ascii).expect("a byte") as u32;
    let first = whole.bytes().position(|b| u32::from(b) == end).expect("there");
    // (A token is a byte here.)
    let id = json!(end);
    let body = merged(body, &json!({ "stop_token_ids": [id] }));
    let answer = site.client.post(TEXT, &body).json();
    assert_eq!(answer["choices"][0]["text"], whole[..first]);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let chat = json!({
        "messages": [{ "role": "user", "content": "q" }], "max_tokens": 5, "mirostat": 1,
    });
    let refused = site.client.post(CHAT, &chat);
    assert_eq!((refused.status, refused.error("code").as_str()), (400, "unsupported"));
}

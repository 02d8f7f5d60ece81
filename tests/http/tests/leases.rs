//! Leases over HTTP: prompts that stay in the cache, by request fields and by calls of their own.

use serde_json::{Value, json};
use tokenmill_http_tests::{Setup, Site};

const TEXT: &str = "/v1/completions";
const LEASES: &str = "/v1/cache/leases";

fn ask(site: &Site, key: &str, method: &str, path: &str, body: &Value) -> Value {
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let reply = site.client.send(method, path, &headers, body.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{method} {path}: {reply:?}");
    reply.json()
}

fn leased(site: &Site, key: &str) -> Vec<u64> {
    let list = ask(site, key, "GET", LEASES, &json!({}));
    let of = |lease: &Value| lease["leased_tokens"].as_u64().expect("a count");
    list["data"].as_array().expect("a list").iter().map(of).collect()
}

#[test]
fn a_leased_prompt_outlasts_the_others() {
    let mut setup = Setup { blocks: 80, ..Setup::default() };
    setup.server.api_keys = vec!["a".into(), "b".into()];
    let site = Site::with(setup);
    let prompt = |i: u32| format!("{i:03} {}", "words ".repeat(50));
    let body = |i: u32, extra: Value| {
        let mut body = json!({ "prompt": prompt(i), "max_tokens": 2 });
        extra.as_object().into_iter().flatten().for_each(|(k, v)| body[k] = v.clone());
        body
    };
    let cached = |i: u32| {
        let answer = ask(&site, "a", "POST", TEXT, &body(i, json!({})));
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count")
    };
    let kept = json!({ "cache_control": { "type": "ephemeral", "ttl": "1h" } });
    let answer = ask(&site, "a", "POST", TEXT, &body(0, kept));
    let details = &answer["usage"]["prompt_tokens_details"];
    assert_eq!(details["leased_tokens"], 304, "whole blocks of 16: {answer}");
    assert_eq!(leased(&site, "a"), [304]);
    assert_eq!(leased(&site, "b"), [0u64; 0], "another key's leases");
    // More than the cache holds.
    for i in 1..8 {
        assert_eq!(cached(i), 0);
    }
    assert_eq!(cached(1), 0, "long forgotten");
    assert_eq!(cached(0), 288, "all but the last block, whose end is computed");

    let made = ask(&site, "b", "POST", LEASES, &body(9, json!({ "prompt_cache_key": "k" })));
    assert_eq!((&made["leased_tokens"], &made["cached_tokens"]), (&json!(304), &json!(0)));
    let chat =
        json!({ "messages": [{ "role": "user", "content": "short" }], "prompt_cache_key": "k" });
    let made = ask(&site, "b", "POST", LEASES, &chat);
    let tokens = made["leased_tokens"].as_u64().expect("a count");
    assert!((16..64).contains(&tokens), "{made}");
    assert_eq!(leased(&site, "b"), [tokens], "in the place of the one of that name");

    let ended = ask(&site, "a", "DELETE", LEASES, &json!({}));
    assert_eq!(ended["data"].as_array().map(Vec::len), Some(1), "{ended}");
    assert_eq!((leased(&site, "a").len(), leased(&site, "b").len()), (0, 1));
}

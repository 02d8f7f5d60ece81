//! What holders of different keys share: neither cached prompts nor leases nor the places of the
//! queue. And that what is told of a request is what is counted of it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokenmill_http_tests::{Reply, Setup, Site, Stream};
use tokenmill_server::{Key, KeyLimits, digest};

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const LEASES: &str = "/v1/cache/leases";

/// A site of two keys; the first may read everything.
fn site(setup: Setup) -> Site {
    let mut setup = setup;
    setup.server.api_keys = vec!["a".into(), "b".into()];
    Site::with(setup)
}

fn open(site: &Site, key: &str, method: &str, path: &str, body: &Value) -> Stream {
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    site.client.open(method, path, &headers, body.to_string().as_bytes())
}

fn ask(site: &Site, key: &str, path: &str, body: &Value) -> Value {
    let reply = open(site, key, "POST", path, body).finish();
    assert_eq!(reply.status, 200, "{path}: {reply:?}");
    reply.json()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

fn cached(answer: &Value) -> u64 {
    number(&answer["usage"]["prompt_tokens_details"]["cached_tokens"])
}

/// The number of leases a key is told of.
fn leases(site: &Site, key: &str, method: &str) -> usize {
    let reply: Reply = open(site, key, method, LEASES, &json!({})).finish();
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()["data"].as_array().map_or(0, Vec::len)
}

/// A counter of `/metrics`, as the first key reads it.
fn metric(site: &Site, name: &str) -> u64 {
    let page = open(site, "a", "GET", "/metrics", &json!({})).finish().body;
    let line = format!("{name}{{model_name=\"sim\"}} ");
    let found = page.lines().find_map(|l| l.strip_prefix(&line)).map(str::parse);
    found.unwrap_or_else(|| panic!("no {name}")).expect("a whole number")
}

/// Waits until a counter has reached a value: the last event of an answer may be read before it is
/// counted.
fn wait_for(site: &Site, name: &str, value: u64) {
    for _ in 0..2000 {
        if metric(site, name) >= value {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(metric(site, name), value, "{name}");
}

#[test]
fn keys_share_no_cached_prompt() {
    let site = site(Setup::default());
    let prompt = "the same words ".repeat(20);
    let text = json!({ "prompt": prompt, "max_tokens": 2, "seed": 1 });
    let messages = json!([{ "role": "user", "content": prompt }]);
    let chat = json!({ "messages": messages, "max_tokens": 2, "seed": 1 });
    for (path, body) in [(TEXT, text), (CHAT, chat)] {
        let first = ask(&site, "a", path, &body);
        assert_eq!(cached(&first), 0, "{path}: nobody asked before");
        let mut posing = body.clone();
        posing["user"] = json!("a");
        for body in [&body, &posing] {
            let own = cached(&ask(&site, "a", path, body));
            assert!(own > 200, "{path}: its own is found, but {own}");
        }
        let others = ask(&site, "b", path, &posing);
        assert_eq!(cached(&others), 0, "{path}: what the other key asked");
        assert_eq!(others["choices"], first["choices"], "{path}: a prompt found changes nothing");
        let own = cached(&ask(&site, "b", path, &body));
        assert!(own > 200, "{path}: then its own is found, but {own}");
    }
}

#[test]
fn keys_are_told_nothing_of_each_others_prompts() {
    let site = site(Setup::default());
    let secret = "the password is swordfish, do not tell. ".repeat(8);
    let chat = |content: &str| {
        let messages = json!([{ "role": "user", "content": content }]);
        json!({ "messages": messages, "max_tokens": 1, "diagnostics": true })
    };
    ask(&site, "a", CHAT, &chat(&secret));
    let guess = secret.replace("swordfish", "tuna");
    let own = ask(&site, "a", CHAT, &chat(&guess))["diagnostics"].to_string();
    assert!(own.contains("swordfish"), "its own is told: {own}");
    let others = ask(&site, "b", CHAT, &chat(&guess))["diagnostics"].to_string();
    assert!(!others.contains("swordfish"), "{others}");
    assert!(others.contains("previous_message_not_found"), "{others}");
}

#[test]
fn keys_neither_see_nor_end_each_others_leases() {
    let site = site(Setup::default());
    let body = |words: &str| json!({ "prompt": words.repeat(8), "prompt_cache_key": "k" });
    for (key, words) in [("a", "words of one "), ("b", "those of another ")] {
        let made = ask(&site, key, LEASES, &body(words));
        assert!(number(&made["leased_tokens"]) > 0, "{made}");
    }
    assert_eq!((leases(&site, "a", "GET"), leases(&site, "b", "GET")), (1, 1), "one each");
    assert_eq!(leases(&site, "b", "DELETE"), 1, "its own");
    assert_eq!((leases(&site, "a", "GET"), leases(&site, "b", "GET")), (1, 0));
}

#[test]
fn a_key_leaves_places_in_the_queue_to_others() {
    let step = Duration::from_millis(5);
    let site = site(Setup { sequences: 1, queue: 6, step, ..Setup::default() });
    let long = json!({ "prompt": "go", "max_tokens": 400, "ignore_eos": true, "stream": true });
    let mut open_ones = Vec::new();
    loop {
        let stream = open(&site, "a", "POST", TEXT, &long);
        if stream.reply.status != 200 {
            assert_eq!(stream.reply.status, 429);
            break;
        }
        open_ones.push(stream);
        assert!(open_ones.len() < 20, "one key takes all places");
    }
    let other = open(&site, "b", "POST", TEXT, &long);
    assert_eq!(other.reply.status, 200, "{:?}", other.reply);
}

#[test]
fn what_is_counted_is_what_was_told() {
    // Steps that take their time whatever is in them: guesses pay.
    let site = site(Setup { step: Duration::from_millis(2), ..Setup::default() });
    let prompt = "some words to be read ".repeat(8);
    // Letters only, so that a text becomes the tokens it came from.
    let letters = json!({ "65": 100, "66": 100, "67": 100 });
    let say = |key: &str, prompt: &str, extra: Value| {
        let mut body = json!({
            "messages": [{ "role": "user", "content": prompt }], "max_tokens": 48, "seed": 7,
            "ignore_eos": true, "logit_bias": letters,
        });
        extra.as_object().into_iter().flatten().for_each(|(k, v)| body[k] = v.clone());
        ask(&site, key, CHAT, &body)
    };
    let unguessed = json!({ "draft": "none" });
    let plain = say("a", &prompt, unguessed.clone());
    let text = plain["choices"][0]["message"]["content"].as_str().expect("a text");
    // Right for half of the way, if at first.
    let guess = text.get(..24).unwrap_or_default().to_owned() + &"A".repeat(24);
    let content = |text: &str| json!({ "prediction": { "type": "content", "content": text } });
    let answers = [
        plain.clone(),
        say("a", &prompt, content(text)),
        say("a", &prompt, content(&guess)),
        say("b", &prompt, content(&guess)),
        say("b", "a short one", unguessed),
    ];
    let sum = |of: fn(&Value) -> &Value| -> u64 {
        answers.iter().map(|answer| number(of(&answer["usage"]))).sum()
    };
    let prompts = sum(|u| &u["prompt_tokens"]);
    let found = sum(|u| &u["prompt_tokens_details"]["cached_tokens"]);
    let said = sum(|u| &u["completion_tokens"]);
    let right = sum(|u| &u["completion_tokens_details"]["accepted_prediction_tokens"]);
    let wrong = sum(|u| &u["completion_tokens_details"]["rejected_prediction_tokens"]);
    let each = [prompts, found, said, right, wrong];
    assert!(each.iter().all(|&n| n > 0), "of everything some: {each:?}");
    assert!(each.iter().zip(&each[1..]).all(|(a, b)| a != b), "no two alike: {each:?}");
    let counters = [
        ("tokenmill_prompt_tokens_total", prompts),
        ("vllm:prompt_tokens_total", prompts),
        ("tokenmill_cached_tokens_total", found),
        ("vllm:prefix_cache_hits_total", found),
        ("tokenmill_generated_tokens_total", said),
        ("vllm:generation_tokens_total", said),
        ("tokenmill_accepted_draft_tokens_total", right),
        ("tokenmill_drafted_tokens_total", right + wrong),
        ("tokenmill_requests_accepted_total", answers.len() as u64),
        ("tokenmill_requests_cancelled_total", 0),
        ("tokenmill_requests_failed_total", 0),
    ];
    for (name, value) in counters {
        wait_for(&site, name, value);
    }
    // What is not computed is what was found, or never asked for.
    let computed = metric(&site, "tokenmill_computed_tokens_total");
    let expected = prompts - found + said - answers.len() as u64 + wrong;
    assert_eq!(computed, expected, "each token once, the last of an answer never");
}

#[test]
fn what_a_key_keeps_in_the_cache_is_its_part() {
    let mut setup = Setup::default();
    let part = |percent| KeyLimits { cache: Some(percent), ..KeyLimits::default() };
    setup.server.keys = Some(vec![
        stored("none", "none-key", part(0)),
        stored("few", "few-key", part(1)),
        stored("free", "free-key", KeyLimits::default()),
    ]);
    let site = Site::with(setup);
    let body = json!({ "prompt": "to be kept ".repeat(20), "prompt_cache_retention": "5m" });
    let kept = |key: &str| number(&ask(&site, key, LEASES, &body)["leased_tokens"]);
    let kept = ["none-key", "few-key", "free-key"].map(kept);
    // 1 % of 300 blocks are 2 or 3 of 16 tokens.
    assert!(kept[0] == 0 && (1..=48).contains(&kept[1]) && kept[2] > 200, "{kept:?}");
    let mut asked = body.clone();
    asked["max_tokens"] = json!(1);
    let usage = ask(&site, "none-key", TEXT, &asked)["usage"].clone();
    assert_eq!(number(&usage["prompt_tokens_details"]["leased_tokens"]), 0, "{usage}");
}

/// A stored key with these limits.
fn stored(name: &str, secret: &str, limits: KeyLimits) -> Key {
    Key { name: name.into(), digest: digest(secret.as_bytes()), limits }
}

#[test]
fn a_key_has_what_its_limits_say() {
    let mut setup = Setup::default();
    let few = KeyLimits { per_minute: Some(3), ..KeyLimits::default() };
    let short = KeyLimits { context: Some(24), ..KeyLimits::default() };
    let other = KeyLimits { models: vec!["other".into()], ..KeyLimits::default() };
    let one = KeyLimits { at_once: Some(1), ..KeyLimits::default() };
    let rows = [("few", few), ("short", short), ("other", other), ("one", one)];
    let rows = rows.map(|(name, limits)| stored(name, &format!("{name}-key"), limits));
    setup.server.keys = Some(rows.to_vec());
    let site = Site::with(setup);
    let body = json!({"model": "sim", "prompt": "a b c", "max_tokens": 64});
    let reply = |key: &str, body: &Value| open(&site, key, "POST", TEXT, body).finish();

    // So many in a minute; other keys go on.
    let counts: Vec<u16> = (0..4).map(|_| reply("few-key", &body).status).collect();
    assert_eq!(counts, [200, 200, 200, 429]);
    let refused = reply("few-key", &body);
    let after: u64 = refused.header("retry-after").expect("said").parse().expect("seconds");
    assert!((1..=60).contains(&after), "{after}");
    let told = refused.json();
    assert_eq!(told["error"]["code"], "rate_limit_exceeded");
    assert!(told["error"]["message"].as_str().expect("text").contains("3 requests a minute"));

    // A prompt and its answer together.
    let on = json!({"model": "sim", "prompt": "a b c", "max_tokens": 64, "ignore_eos": true});
    let answer = reply("short-key", &on).json();
    let usage = &answer["usage"];
    assert_eq!(number(&usage["total_tokens"]), 24, "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let long = json!({"model": "sim", "prompt": "a ".repeat(40), "max_tokens": 4});
    let told = reply("short-key", &long);
    assert_eq!(told.status, 400);
    assert_eq!(told.json()["error"]["code"], "context_length_exceeded");
    assert!(told.body.contains("this key is 24 tokens"), "{}", told.body);

    // Its models: others are as if they were not there.
    let told = reply("other-key", &body);
    assert_eq!(told.status, 404);
    assert_eq!(told.json()["error"]["code"], "model_not_found");
    let list = open(&site, "other-key", "GET", "/v1/models", &json!({})).finish();
    assert_eq!(list.json()["data"], json!([]));
    assert_eq!(open(&site, "other-key", "GET", "/v1/models/sim", &json!({})).finish().status, 404);
    let list = open(&site, "few-key", "GET", "/v1/models", &json!({})).finish();
    assert_eq!(list.json()["data"][0]["id"], "sim", "lists are not counted");

    // At once: while a stream is read, no other; after it, again.
    let endless = json!({
        "model": "sim", "prompt": "a", "max_tokens": 4000, "stream": true, "ignore_eos": true
    });
    site.control.delay(Duration::from_millis(5));
    let mut first = open(&site, "one-key", "POST", TEXT, &endless);
    first.event().expect("it has begun");
    let told = reply("one-key", &body);
    assert_eq!((told.status, told.header("retry-after")), (429, Some("1")));
    assert!(told.body.contains("1 requests at once"), "{}", told.body);
    site.control.delay(Duration::ZERO);
    drop(first);
    let freed = (0..2000).any(|_| reply("one-key", &body).status == 200);
    assert!(freed, "the place is free again");
}

/// The lines of an audit log.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("written");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn the_audit_log_tells_who_asked_what_and_no_word_of_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, moved) = (folder.path().join("audit.jsonl"), folder.path().join("audit.1"));
    let mut setup = Setup::default();
    (setup.server.audit, setup.server.access_log) = (Some(path.clone()), false);
    setup.server.keys = Some(vec![stored("ann", "ann-secret", KeyLimits::default())]);
    let mut site = Site::with(setup);
    let prompt = "swordfish ".repeat(8);
    let body = json!({ "prompt": prompt, "max_tokens": 3, "ignore_eos": true, "user": "prompter" });
    for _ in 0..2 {
        ask(&site, "ann-secret", TEXT, &body);
    }
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    open(&site, "ann-secret", "POST", TEXT, &streamed).finish();
    open(&site, "wrong-secret", "POST", TEXT, &body).finish();
    open(&site, "ann-secret", "GET", "/v1/models/swordfish?key=ann-secret", &json!({})).finish();
    open(&site, "ann-secret", "GET", "/swordfish", &json!({})).finish();
    assert_eq!(site.client.get("/health").status, 200, "it is not told");
    let control = site.server.as_ref().expect("it runs").control();
    // Whoever moves the file away has it whole when a new one is there.
    fs::rename(&path, &moved).expect("moved");
    control.reopen_audit().expect("opened");
    open(&site, "ann-secret", "DELETE", LEASES, &json!({})).finish();
    drop(site.server.take());
    let told = lines(&moved);
    let rows = told.iter().map(|line| {
        let word = |member: &str| line[member].as_str().unwrap_or("-").to_owned();
        let status = line["status"].as_u64().expect("a status");
        (word("key"), word("method"), word("route"), word("model"), status)
    });
    let row = |key: &str, method: &str, route: &str, model: &str, status| {
        (key.to_owned(), method.to_owned(), route.to_owned(), model.to_owned(), status)
    };
    let mut expect = vec![row("ann", "POST", TEXT, "sim", 200); 3];
    expect.extend([
        row("-", "POST", TEXT, "-", 401),
        row("ann", "GET", "/v1/models/{*id}", "-", 404),
        row("ann", "GET", "-", "-", 404),
    ]);
    assert_eq!(rows.collect::<Vec<_>>(), expect);
    let counts = |line: &Value, member: &str| line[member].as_u64();
    assert_eq!(counts(&told[0], "prompt_tokens"), Some(80));
    assert_eq!(counts(&told[0], "cached_tokens"), Some(0));
    assert!(counts(&told[1], "cached_tokens").is_some_and(|n| n > 40), "{}", told[1]);
    assert_eq!(counts(&told[2], "completion_tokens"), Some(3));
    for line in &told {
        let time = line["time"].as_str().expect("a time");
        assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
        assert!(line["seconds"].as_f64().is_some_and(|s| s >= 0.0));
    }
    let (first, second) = (fs::read_to_string(&moved), fs::read_to_string(&path));
    let all = first.expect("read") + &second.expect("read");
    for secret in ["swordfish", "secret", "prompter"] {
        assert!(!all.contains(secret), "{secret}: {all}");
    }
    assert_eq!(lines(&path).len(), 1, "{all}");
    assert_eq!(lines(&path)[0]["method"], "DELETE");
}

#[test]
fn an_audit_log_that_cannot_be_written_is_named_at_the_start() {
    let mut setup = Setup::default();
    setup.server.audit = Some("/nowhere/at/all/audit.jsonl".into());
    let model = setup.model(&tokenmill_device_tests::sim::SimControl::default());
    let error = tokenmill_server::spawn(setup.server, vec![model]).err().expect("refused");
    assert!(error.to_string().contains("/nowhere/at/all/audit.jsonl"), "{error}");
}

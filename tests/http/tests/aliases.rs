//! Models under other names: each with defaults and a template of its own, over one engine.

use serde_json::{Value, json};
use tokenmill_device_tests::sim::SimControl;
use tokenmill_engine::{Defaults, SamplingValues};
use tokenmill_http_tests::{Client, Setup};
use tokenmill_server::{Alias, Key, KeyLimits, Running, ServeError, Stock, digest, spawn};

/// A template that tells nothing of the system message.
const PLAIN: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";

fn alias(name: &str, model: &str) -> Alias {
    Alias { name: name.into(), model: model.into(), ..Alias::default() }
}

fn all() -> Vec<Alias> {
    let sampling =
        SamplingValues { temperature: Some(0.0), max_tokens: Some(3), ..SamplingValues::default() };
    let system = Some("Be brief.".to_owned());
    vec![
        Alias {
            defaults: Defaults { sampling, system, ..Defaults::default() },
            ..alias("brief", "sim")
        },
        Alias { template: Some(PLAIN.into()), ..alias("plain", "user/sim:q8") },
    ]
}

/// A server whose packager has a word on everything too.
fn site(aliases: Vec<Alias>, keys: Option<Vec<Key>>) -> Result<(Running, Client), ServeError> {
    let sampling = SamplingValues {
        temperature: Some(1.5),
        max_tokens: Some(7),
        top_k: Some(11),
        ..SamplingValues::default()
    };
    let system = Some("Be long.".to_owned());
    let defaults = Defaults { sampling, system, ..Defaults::default() };
    let mut setup = Setup { defaults, ..Setup::default() };
    setup.server.keys = keys;
    let model = setup.model(&SimControl::default());
    let stock = Stock { aliases, ..Stock::from(vec![model]) };
    let server = spawn(setup.server, stock)?;
    let client = Client::new(server.address());
    Ok((server, client))
}

fn ids(list: &Value) -> Vec<&str> {
    let data = list["data"].as_array().expect("a list");
    data.iter().filter_map(|one| one["id"].as_str()).collect()
}

#[test]
fn aliases_are_listed_once_with_their_defaults() {
    let (_server, client) = site(all(), None).expect("it starts");
    let list = client.get("/v1/models").json();
    assert_eq!(ids(&list), ["sim", "brief", "plain"]);
    let brief = client.get("/v1/models/brief").json();
    assert_eq!((&brief["id"], &brief["root"]), (&json!("brief"), &json!("sim")));
    let defaults = &brief["defaults"];
    assert_eq!(defaults["temperature"], 0.0);
    assert_eq!(defaults["max_completion_tokens"], 3);
    assert_eq!(defaults["top_k"], 11, "where the alias is silent the packager is heard");
    assert_eq!(defaults["system"], "Be brief.");
    let sim = &list["data"][0];
    assert_eq!((&sim["root"], &sim["defaults"]["temperature"]), (&json!("sim"), &json!(1.5)));
    // A model is counted once.
    let page = client.get("/metrics").body;
    assert!(page.contains("tokenmill_models{state=\"loaded\"} 1"), "{page}");
    assert!(!page.contains("\"brief\""), "{page}");
    let unknown = client.post("/v1/completions", &json!({ "model": "other", "prompt": "a" }));
    assert_eq!(unknown.status, 404);
    assert!(unknown.error("message").contains("served: sim, brief, plain"), "{unknown:?}");
}

#[test]
fn answers_name_the_alias_and_requests_have_the_last_word() {
    let (_server, client) = site(all(), None).expect("it starts");
    let ask = |model: &str, more: Value| {
        let mut body = json!({ "model": model, "messages": [{ "role": "user", "content": "a" }],
            "ignore_eos": true });
        for (name, value) in more.as_object().expect("members") {
            body[name] = value.clone();
        }
        let reply = client.post("/v1/chat/completions", &body);
        assert_eq!(reply.status, 200, "{model}: {reply:?}");
        reply.json()
    };
    let tokens = |answer: &Value, kind: &str| answer["usage"][kind].as_u64().expect("a number");
    let brief = ask("brief", json!({}));
    assert_eq!(brief["model"], "brief");
    assert_eq!(tokens(&brief, "completion_tokens"), 3);
    assert_eq!(tokens(&ask("brief", json!({ "max_tokens": 2 })), "completion_tokens"), 2);
    assert_eq!(tokens(&ask("sim", json!({})), "completion_tokens"), 7);
    // The same as the model, asked for the same: also what the cache has of it is the same.
    let said = json!({ "messages": [{ "role": "system", "content": "Be brief." },
        { "role": "user", "content": "a" }], "temperature": 0, "max_tokens": 3 });
    let same = ask("sim", said);
    assert_eq!(same["choices"], brief["choices"]);
    assert_eq!(tokens(&same, "prompt_tokens"), tokens(&brief, "prompt_tokens"));
    // The template of its own: of user and system message one byte a character.
    let plain = ask("plain", json!({}));
    assert_eq!(tokens(&plain, "prompt_tokens") as usize, "system:Be long.;user:a;".len());
    let stream = client
        .stream("/v1/completions", &json!({ "model": "brief", "prompt": "a", "stream": true }));
    let events = stream.finish().events();
    let first: Value = serde_json::from_str(&events[0]).expect("JSON");
    assert_eq!(first["model"], "brief");
}

#[test]
fn aliases_that_cannot_be_are_refused() {
    for (aliases, expect) in [
        (vec![alias("sim", "sim")], "two models are called \"sim\""),
        (vec![alias("user/sim:q8", "sim")], "two models are called"),
        (vec![alias("a", "sim"), alias("a", "sim")], "two models are called \"a\""),
        (vec![alias("a", "b")], "the alias \"a\" is of \"b\", which is not served"),
        (vec![alias("a", "sim"), alias("b", "a")], "the alias \"b\" is of \"a\""),
    ] {
        let error = site(aliases, None).err().expect("refused").to_string();
        assert!(error.contains(expect), "{error}");
    }
    // A template that cannot be used is told by the request.
    let broken = Alias { template: Some("{% if %}".into()), ..alias("broken", "sim") };
    let (_server, client) = site(vec![broken], None).expect("it starts");
    let body = json!({ "model": "broken", "messages": [{ "role": "user", "content": "a" }] });
    assert_eq!(client.post("/v1/chat/completions", &body).status, 400);
    let body = json!({ "model": "sim", "messages": [{ "role": "user", "content": "a" }] });
    assert_eq!(client.post("/v1/chat/completions", &body).status, 200);
}

#[test]
fn keys_are_for_aliases_too() {
    let key = |name: &str, models: &[&str]| Key {
        name: name.into(),
        digest: digest(name.as_bytes()),
        limits: KeyLimits {
            models: models.iter().map(|model| (*model).to_owned()).collect(),
            ..KeyLimits::default()
        },
    };
    let keys = vec![key("one", &["brief"]), key("whole", &["sim"])];
    let (_server, client) = site(all(), Some(keys)).expect("it starts");
    for (key, expect, may) in [
        ("one", &["brief"][..], &[("brief", 200), ("sim", 404), ("plain", 404)][..]),
        ("whole", &["sim", "brief", "plain"], &[("brief", 200), ("sim", 200), ("plain", 200)]),
    ] {
        let bearer = format!("Bearer {key}");
        let head = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        let list = client.send("GET", "/v1/models", &head, b"").json();
        assert_eq!(ids(&list), expect, "{key}");
        for (model, status) in may {
            let body = json!({ "model": model, "prompt": "a", "max_tokens": 1 }).to_string();
            let reply = client.send("POST", "/v1/completions", &head, body.as_bytes());
            assert_eq!(reply.status, *status, "{key} {model}: {reply:?}");
        }
        // What is the only one for a key's holder need not be named.
        let body = json!({ "prompt": "a", "max_tokens": 1 }).to_string();
        let reply = client.send("POST", "/v1/completions", &head, body.as_bytes());
        assert_eq!(reply.json()["model"], expect[0], "{key}: {reply:?}");
    }
}

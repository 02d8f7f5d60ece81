//! Anthropic's dialect over HTTP: messages whole and as events, errors, tokens counted, keys, what
//! is kept in the cache, and the list of models.

use serde_json::{Value, json};
use tokenmill_http_tests::{Reply, Setup, Site};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");
const JSON: (&str, &str) = ("content-type", "application/json");

/// A short question, with other members beside.
fn body(extra: Value) -> Value {
    let mut body = json!({
        "model": "sim", "max_tokens": 12, "temperature": 0,
        "messages": [{ "role": "user", "content": "What is a river?" }],
    });
    let members = extra.as_object().expect("members").clone();
    body.as_object_mut().expect("members").extend(members);
    body
}

/// What a client puts together from a stream: its text, and the events before and after it.
fn told(reply: &Reply) -> (String, Vec<Value>) {
    assert_eq!(reply.status, 200, "{reply:?}");
    let names = reply.body.lines().filter_map(|line| line.strip_prefix("event: "));
    let events: Vec<Value> =
        reply.events().iter().map(|data| serde_json::from_str(data).expect("JSON")).collect();
    let types: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(names.collect::<Vec<_>>(), types, "every event is named as its data");
    let deltas = events.iter().filter_map(|event| event["delta"]["text"].as_str());
    let text = deltas.collect();
    let frame = ["message_start", "message_delta", "message_stop", "error"];
    let is_frame = |event: &Value| frame.iter().any(|name| event["type"] == *name);
    (text, events.into_iter().filter(is_frame).collect())
}

fn input_tokens(usage: &Value) -> u64 {
    let names = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    names.iter().map(|name| usage[name].as_u64().expect("a count")).sum()
}

#[test]
fn a_stream_says_what_the_whole_says() {
    let site = Site::new();
    for extra in [
        json!({}),
        json!({ "temperature": 1, "seed": 5, "system": "Be terse." }),
        json!({ "stop_sequences": ["e"], "max_tokens": 100 }),
        json!({ "max_tokens": 1_000_000 }),
        json!({ "output_format": { "type": "json_schema", "schema": { "enum": ["yes"] } } }),
        json!({ "thinking": { "type": "adaptive" }, "tools": [
            { "name": "f", "input_schema": { "type": "object" } },
            { "type": "web_search_20250305", "name": "web_search" },
        ] }),
    ] {
        let whole = site.client.post(MESSAGES, &body(extra.clone()));
        assert_eq!(whole.status, 200, "{extra}: {whole:?}");
        let whole = whole.json();
        assert_eq!((&whole["type"], &whole["role"]), (&json!("message"), &json!("assistant")));
        let (text, frame) =
            told(&site.client.stream("/v1/messages?beta=true", &body(extra.clone())).finish());
        assert_eq!(text, whole["content"][0]["text"].as_str().unwrap_or_default(), "{extra}");
        let [start, delta, stop] = &frame[..] else { panic!("{frame:?}") };
        assert_eq!(start["message"]["content"], json!([]));
        assert_eq!(start["message"]["model"], "sim");
        assert_eq!(start["message"]["usage"]["input_tokens"], input_tokens(&whole["usage"]));
        assert_eq!(delta["delta"]["stop_reason"], whole["stop_reason"], "{extra}");
        assert_eq!(delta["delta"]["stop_sequence"], whole["stop_sequence"]);
        assert_eq!(input_tokens(&delta["usage"]), input_tokens(&whole["usage"]));
        assert_eq!(delta["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
        assert_eq!(stop["type"], "message_stop");
        assert_eq!(start["message"]["warnings"], whole["warnings"]);
    }
    site.settle();
}

#[test]
fn a_count_is_what_a_message_then_uses() {
    let site = Site::new();
    let tools = json!([{ "name": "f", "description": "d", "input_schema": { "type": "object" } }]);
    let mut counts = Vec::new();
    for extra in [
        json!({}),
        json!({ "system": "Be terse." }),
        json!({ "system": [{ "type": "text", "text": "Be terse." }] }),
        json!({ "system": [
            { "type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=0a1b2;" },
            { "type": "text", "text": "Be terse." },
        ] }),
        json!({ "tools": tools }),
        json!({ "tools": tools, "tool_choice": { "type": "none" } }),
    ] {
        let mut ask = body(extra.clone());
        let used = site.client.post(MESSAGES, &ask);
        for unneeded in ["max_tokens", "temperature"] {
            ask[unneeded].take();
        }
        let counted = site.client.post(COUNT, &ask).json();
        assert_eq!(
            counted,
            json!({ "input_tokens": input_tokens(&used.json()["usage"]) }),
            "{extra}"
        );
        counts.push(counted["input_tokens"].as_u64().expect("a count"));
    }
    assert!(counts[0] < counts[1] && counts[1] < counts[4], "{counts:?}");
    assert_eq!((counts[1], counts[1], counts[0]), (counts[2], counts[3], counts[5]), "{counts:?}");
    let warned = site.client.post(COUNT, &body(json!({ "container": "c" }))).json();
    assert_eq!(warned["warnings"], json!(["container was ignored: this server runs no code"]));
}

#[test]
fn errors_are_told_in_its_own_form() {
    let site = Site::new();
    let without = |name: &str| {
        let mut body = body(json!({}));
        body[name].take();
        body
    };
    let long = json!([{ "role": "user", "content": "word ".repeat(120) }]);
    let picture = json!({ "type": "image", "source": { "type": "url", "url": "http://[::1]:9/" } });
    let pictured = json!([{ "role": "user", "content": [picture] }]);
    let found = json!({ "type": "tool_result", "tool_use_id": "x", "content": [picture] });
    let called = json!({ "type": "tool_use", "id": "x", "name": "f", "input": {} });
    let called =
        json!([{ "role": "user", "content": "q" }, { "role": "assistant", "content": [called] }]);
    let bad = "invalid_request_error";
    for (path, body, status, kind, words) in [
        (MESSAGES, without("max_tokens"), 400, bad, "max_tokens"),
        (MESSAGES, without("messages"), 400, bad, "messages"),
        (MESSAGES, body(json!({ "messages": [] })), 400, bad, "messages"),
        (
            MESSAGES,
            body(json!({ "messages": [{ "role": "narrator", "content": "" }] })),
            400,
            bad,
            "role",
        ),
        (
            MESSAGES,
            body(json!({ "model": "claude-opus-5-5" })),
            404,
            "not_found_error",
            "served: sim",
        ),
        (MESSAGES, body(json!({ "temperature": 1.5 })), 400, bad, "temperature"),
        (MESSAGES, body(json!({ "messages": long })), 400, bad, "prompt is too long: 6"),
        (MESSAGES, body(json!({ "messages": long })), 400, bad, " tokens > 512 maximum"),
        (MESSAGES, body(json!({ "messages": pictured })), 400, bad, "image"),
        (
            MESSAGES,
            body(json!({ "messages": [{ "role": "user", "content": [found] }] })),
            400,
            bad,
            "image",
        ),
        (MESSAGES, body(json!({ "messages": called })), 400, bad, "results"),
        (
            MESSAGES,
            body(json!({ "thinking": { "type": "enabled", "budget_tokens": 13 } })),
            400,
            bad,
            "budget_tokens",
        ),
        (COUNT, body(json!({ "tool_choice": { "type": "any" } })), 400, bad, "tool_choice"),
    ] {
        for stream in [false, true] {
            let mut body = body.clone();
            body["stream"] = json!(stream);
            let reply = site.client.post(path, &body);
            assert_eq!(
                (reply.status, reply.json()["type"].clone()),
                (status, json!("error")),
                "{body}"
            );
            assert_eq!(reply.error("type"), kind, "{body}: {reply:?}");
            assert!(reply.error("message").contains(words), "{words}: {reply:?}");
        }
    }
    let broken = site.client.post_text(MESSAGES, "{\"model\": ");
    assert_eq!((broken.status, broken.error("type")), (400, bad.to_owned()));
    let wrong = site.client.get(MESSAGES);
    assert_eq!((wrong.status, wrong.json()["type"].clone()), (405, json!("error")));
    let unknown = site.client.send("GET", "/v1/messages/batches", &[VERSION], b"");
    assert_eq!((unknown.status, unknown.error("type")), (404, "not_found_error".to_owned()));
    assert_eq!(unknown.json()["type"], "error");
}

#[test]
fn a_budget_of_a_whole_turn_may_be_more_than_an_answer() {
    let site = Site::new();
    let body = body(json!({ "thinking": { "type": "enabled", "budget_tokens": 32_000 } }));
    let text = body.to_string();
    for (beta, status) in [
        ("interleaved-thinking-2025-05-14", 200),
        ("prompt-caching-2024-07-31, interleaved-thinking-2025-05-14", 200),
        ("prompt-caching-2024-07-31", 400),
    ] {
        let headers = [JSON, VERSION, ("anthropic-beta", beta)];
        let reply = site.client.send("POST", MESSAGES, &headers, text.as_bytes());
        assert_eq!(reply.status, status, "{beta}: {reply:?}");
    }
}

#[test]
fn an_overload_and_a_failure_are_told_too() {
    let mut setup = Setup { queue: 0, sequences: 1, ..Setup::default() };
    setup.step = std::time::Duration::from_millis(20);
    let site = Site::with(setup);
    let mut first = site.client.stream(MESSAGES, &body(json!({ "max_tokens": 200 })));
    while first.event().is_some_and(|event| !event.contains("content_block_delta")) {}
    let refused = site.client.post(MESSAGES, &body(json!({})));
    assert_eq!((refused.status, refused.error("type")), (429, "rate_limit_error".to_owned()));
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    drop(first);
    site.settle();
    let slow = body(json!({ "max_tokens": 400, "timeout": 0.1 }));
    let late = site.client.post(MESSAGES, &slow);
    assert_eq!((late.status, late.error("type")), (504, "timeout_error".to_owned()));
    let (_, frame) = told(&site.client.stream(MESSAGES, &slow).finish());
    let last = frame.last().expect("events");
    assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("timeout_error")));
}

#[test]
fn silence_is_broken_by_pings() {
    let mut setup = Setup { step: std::time::Duration::from_millis(80), ..Setup::default() };
    setup.server.timeouts.ping = std::time::Duration::from_millis(10);
    let site = Site::with(setup);
    let reply = site.client.stream(MESSAGES, &body(json!({ "max_tokens": 3 }))).finish();
    let (_, frame) = told(&reply);
    assert_eq!(frame.len(), 3, "{frame:?}");
    let ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    assert!(reply.body.contains(ping) && !reply.body.starts_with(ping), "{}", reply.body);
}

#[test]
fn either_header_carries_the_key() {
    let mut setup = Setup::default();
    setup.server.api_keys = vec!["alpha".into(), "beta".into()];
    let site = Site::with(setup);
    let text = body(json!({})).to_string();
    for path in [MESSAGES, COUNT] {
        for (header, status) in [
            (("x-api-key", "alpha"), 200),
            (("authorization", "Bearer beta"), 200),
            (("x-api-key", "gamma"), 401),
            (VERSION, 401),
        ] {
            let reply = site.client.send("POST", path, &[JSON, header], text.as_bytes());
            assert_eq!(reply.status, status, "{header:?}: {reply:?}");
            if status == 401 {
                assert_eq!(reply.json()["type"], "error");
                assert_eq!(reply.error("type"), "authentication_error");
            }
        }
    }
    let listed = site.client.send("GET", "/v1/models", &[VERSION], b"");
    assert_eq!((listed.status, &listed.json()["type"]), (401, &json!("error")));
    // Whether something is there, anybody may ask.
    assert_eq!(site.client.get("/").status, 200);
    assert_eq!(site.client.open("HEAD", "/", &[], b"").reply.status, 200);
    let other = site.client.send("GET", "/", &[("host", "evil.example")], b"");
    assert_eq!(other.status, 403);
}

#[test]
fn marks_keep_a_prompt_and_are_no_part_of_it() {
    let site = Site::with(Setup { blocks: 80, ..Setup::default() });
    let mark = json!({ "type": "ephemeral", "ttl": "1h" });
    let said = |text: &str, marked: bool| {
        let mut block = json!({ "type": "text", "text": text });
        if marked {
            block["cache_control"] = mark.clone();
        }
        json!([{ "role": "user", "content": [block] }])
    };
    let usage = |messages: Value| {
        let reply =
            site.client.post(MESSAGES, &body(json!({ "messages": messages, "max_tokens": 2 })));
        assert_eq!(reply.status, 200, "{reply:?}");
        let usage = reply.json()["usage"].clone();
        ["cache_creation_input_tokens", "cache_read_input_tokens"]
            .map(|name| usage[name].as_u64().expect("a count"))
    };
    let words = "words ".repeat(50);
    let [kept, read] = usage(said(&words, true));
    assert!(kept >= 304 && read == 0, "{kept} {read}");
    for i in 1..8 {
        assert_eq!(usage(said(&format!("{i:03} {words}"), false))[0], 0, "nothing is kept");
    }
    let [created, read] = usage(said(&words, false));
    assert!(created == 0 && read >= 288, "still there without its mark: {created} {read}");
    let [created, read] = usage(said(&words, true));
    assert!(created <= 16 && read >= 288, "{created} {read}");
}

#[test]
fn an_answer_goes_on_with_what_the_assistant_began() {
    let site = Site::new();
    let talk = |role: &str| {
        json!({ "messages": [
        { "role": "user", "content": "What is a river?" },
        { "role": role, "content": "A river is" },
    ] })
    };
    let count = |extra: Value| {
        let counted = site.client.post(COUNT, &body(extra)).json();
        counted["input_tokens"].as_u64().expect("a count")
    };
    // A token is a byte here: no turn ends behind what was begun, and none begins.
    let begun = count(talk("assistant"));
    assert_eq!(begun, count(json!({})) + "A river is".len() as u64);
    let reply = site.client.post(MESSAGES, &body(talk("assistant")));
    assert_eq!((reply.status, input_tokens(&reply.json()["usage"])), (200, begun));
}

#[test]
fn unknown_members_are_told_or_refused() {
    let extra = json!({ "new_thing": 1, "service_tier": "auto", "null_thing": null });
    let warnings = |site: &Site| site.client.post(MESSAGES, &body(extra.clone()));
    let told = warnings(&Site::new()).json()["warnings"].clone();
    let unknown = "new_thing was ignored: it is not a field of this request";
    assert_eq!(told, json!([unknown, "service_tier was ignored: there is one tier"]));
    let mut setup = Setup::default();
    setup.server.strict = true;
    let refused = warnings(&Site::with(setup));
    assert_eq!((refused.status, refused.error("type")), (400, "invalid_request_error".to_owned()));
    assert!(refused.error("message").contains("new_thing"), "{refused:?}");
}

#[test]
fn models_are_listed_for_who_asks() {
    let site = Site::new();
    let list = site.client.send("GET", "/v1/models", &[VERSION], b"").json();
    assert_eq!((&list["first_id"], &list["last_id"]), (&json!("sim"), &json!("sim")));
    assert_eq!(list["has_more"], false);
    let one = site.client.send("GET", "/v1/models/user/sim:q8", &[VERSION], b"").json();
    assert_eq!(one, list["data"][0]);
    let told = json!({
        "type": "model", "id": "sim", "display_name": "sim",
        "created_at": "2023-11-14T22:13:20Z", "max_input_tokens": 512, "max_tokens": 512,
    });
    assert_eq!(one, told);
    assert_eq!(site.client.get("/v1/models").json()["object"], "list", "OpenAI's");
    let missing = site.client.send("GET", "/v1/models/gone", &[VERSION], b"");
    assert_eq!((missing.status, missing.error("type")), (404, "not_found_error".to_owned()));
    assert_eq!(missing.json()["type"], "error");
}

#[test]
fn a_miss_says_where_the_prompt_differs() {
    let site = Site::new();
    let asked = |text: &str| {
        let messages = json!([{ "role": "user", "content": text }]);
        let diagnostics = json!({ "previous_message_id": null });
        let extra = json!({ "messages": messages, "diagnostics": diagnostics });
        let reply = site.client.post(MESSAGES, &body(extra)).json();
        reply["diagnostics"]["cache_miss_reason"]["type"].clone()
    };
    assert_eq!(asked(&"first words ".repeat(8)), "previous_message_not_found");
    assert_eq!(asked(&"other words ".repeat(8)), "messages_changed");
}

/// What a model may write, of thought, text and a call.
const WRITTEN: &str = "<think>\nhm, f\n</think>\n\nI call it.\n<tool_call>\n{\"name\": \"f\", \
                       \"arguments\": {\"a\": [1, \"x</tool_call>\"]}}\n</tool_call>";

/// A request with a tool, whose answer is that text.
fn asks(text: &str, max_tokens: usize) -> Value {
    body(json!({
        "max_tokens": max_tokens,
        "tools": [{ "name": "f", "input_schema": { "type": "object" } }],
        "structured_outputs": { "choice": [text] },
    }))
}

#[test]
fn thinking_text_and_calls_are_blocks_of_their_own() {
    let site = Site::with(Setup { context: 2048, ..Setup::default() });
    let whole = site.client.post(MESSAGES, &asks(WRITTEN, 400)).json();
    let kinds: Vec<&Value> =
        whole["content"].as_array().expect("blocks").iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use"], "{whole}");
    assert_eq!(whole["stop_reason"], "tool_use");
    let call = &whole["content"][2];
    assert_eq!(
        (&call["name"], &call["input"]),
        (&json!("f"), &json!({ "a": [1, "x</tool_call>"] }))
    );
    let reply = site.client.stream(MESSAGES, &asks(WRITTEN, 400)).finish();
    let (_, frame) = told(&reply);
    assert_eq!(frame[1]["delta"]["stop_reason"], "tool_use", "{frame:?}");
    let events = reply.events();
    let joined = |member: &str| {
        let deltas = events.iter().filter_map(|data| serde_json::from_str::<Value>(data).ok());
        deltas.filter_map(|e| e["delta"][member].as_str().map(str::to_owned)).collect::<String>()
    };
    assert_eq!(joined("thinking"), whole["content"][0]["thinking"].as_str().expect("a text"));
    assert_eq!(joined("text"), whole["content"][1]["text"].as_str().expect("a text"));
    let input: Value = serde_json::from_str(&joined("partial_json")).expect("JSON");
    assert_eq!(input, call["input"]);
    // A call alone is one block, whatever blanks stand before it.
    let alone = "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let whole = site.client.post(MESSAGES, &asks(alone, 400)).json();
    let content = whole["content"].as_array().expect("blocks");
    assert_eq!((content.len(), &content[0]["input"]), (1, &json!({})), "{whole}");
}

#[test]
fn a_call_that_is_cut_is_left_out() {
    let site = Site::with(Setup { context: 2048, ..Setup::default() });
    let whole = site.client.post(MESSAGES, &asks(WRITTEN, WRITTEN.len() - 20)).json();
    assert_eq!(whole["stop_reason"], "max_tokens");
    let kinds: Vec<&Value> =
        whole["content"].as_array().expect("blocks").iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["thinking", "text"], "{whole}");
}

//! Answers: whole and streamed, for both endpoints, with everything that can be asked of them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokenmill_engine::{Defaults, SamplingValues};
use tokenmill_http_tests::{Client, Setup, Site};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn chat(extra: Value) -> Value {
    let body = json!({
        "model": "sim", "messages": [{ "role": "user", "content": "Grüße, 世界" }],
        "max_tokens": 40, "seed": 5, "ignore_eos": true,
    });
    merged(body, extra)
}

fn text(extra: Value) -> Value {
    let body = json!({ "prompt": "once upon", "max_tokens": 40, "seed": 5, "ignore_eos": true });
    merged(body, extra)
}

fn merged(mut body: Value, extra: Value) -> Value {
    for (key, value) in extra.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

/// What a stream says of one choice, put together.
#[derive(Debug, Default, PartialEq)]
struct Choice {
    text: String,
    finish: String,
    logprobs: Vec<Value>,
}

/// Puts the chunks of a stream together and checks its form.
fn streamed(client: Client, path: &str, body: &Value) -> (BTreeMap<u64, Choice>, Option<Value>) {
    let reply = client.stream(path, body).finish();
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let mut events = reply.events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let mut choices: BTreeMap<u64, Choice> = BTreeMap::new();
    let mut usage = None;
    let mut ids: Vec<String> = Vec::new();
    for event in &events {
        let chunk: Value = serde_json::from_str(event).expect("JSON");
        ids.push(chunk["id"].as_str().expect("an id").to_owned());
        if !chunk["usage"].is_null() {
            assert_eq!(chunk["choices"], json!([]));
            usage = Some(chunk["usage"].clone());
            continue;
        }
        for part in chunk["choices"].as_array().expect("choices") {
            let choice = choices.entry(part["index"].as_u64().expect("an index")).or_default();
            assert_eq!(choice.finish, "", "nothing comes after the end of a choice");
            let content = if path == CHAT { &part["delta"]["content"] } else { &part["text"] };
            choice.text.push_str(content.as_str().unwrap_or_default());
            choice.finish = part["finish_reason"].as_str().unwrap_or_default().to_owned();
            choice.logprobs.extend(logprobs(path, part));
        }
    }
    ids.dedup();
    assert_eq!(ids.len(), 1, "one id for one answer");
    (choices, usage)
}

#[test]
fn requests_get_the_models_defaults_where_they_say_nothing() {
    let sampling = SamplingValues {
        temperature: Some(0.0),
        stop: Some(vec!["\0never".to_owned()]),
        seed: Some(9),
        max_tokens: Some(7),
        ..SamplingValues::default()
    };
    let system = Some("Be brief.".to_owned());
    let defaults = Defaults { sampling, system, ..Defaults::default() };
    let site = Site::with(Setup { defaults, ..Setup::default() });
    let plain = Site::with(Setup::default());
    let ask = |site: &Site, body: Value| {
        let reply = site.client.post(CHAT, &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        let body = reply.json();
        let text = body["choices"][0]["message"]["content"].clone();
        (text, body["usage"]["prompt_tokens"].clone(), body["usage"]["completion_tokens"].clone())
    };
    let user = json!({ "role": "user", "content": "Hi" });
    let system = json!({ "role": "system", "content": "Be brief." });
    let short = json!({ "messages": [user], "ignore_eos": true });
    let full = json!({
        "messages": [system, user], "temperature": 0, "seed": 9, "max_tokens": 7,
        "ignore_eos": true,
    });
    assert_eq!(ask(&site, short), ask(&plain, full));
    // what a request says itself wins
    let own = json!({
        "messages": [{ "role": "system", "content": "x" }, user], "temperature": 1.5, "seed": 3,
        "max_completion_tokens": 5, "ignore_eos": true,
    });
    assert_eq!(ask(&site, own.clone()), ask(&plain, own));
}

#[test]
fn what_is_not_said_is_drawn_as_the_defaults_say() {
    let site = Site::new();
    let body = |extra: Value| {
        let user = json!({ "role": "user", "content": "Hi" });
        merged(
            json!({ "messages": [user], "seed": 5, "max_tokens": 200, "ignore_eos": true }),
            extra,
        )
    };
    let say = |extra: Value| whole(site.client, CHAT, &body(extra)).0[&0].text.clone();
    let unsaid = say(json!({}));
    let said = json!({ "temperature": 0.8, "top_p": 0.95, "min_p": 0.05 });
    assert_eq!(unsaid, say(said.clone()));
    for other in [json!({ "temperature": 1 }), json!({ "top_p": 1 }), json!({ "min_p": 0 })] {
        assert_ne!(unsaid, say(merged(said.clone(), other.clone())), "{other}");
    }
}

/// One value a token.
fn logprobs(path: &str, choice: &Value) -> Vec<Value> {
    let logprobs = &choice["logprobs"];
    if path == CHAT {
        return logprobs["content"].as_array().cloned().unwrap_or_default();
    }
    let count = logprobs["tokens"].as_array().map_or(0, Vec::len);
    let row = |i: usize| {
        json!([
            logprobs["tokens"][i],
            logprobs["token_logprobs"][i],
            logprobs["top_logprobs"][i],
            logprobs["text_offset"][i],
        ])
    };
    (0..count).map(row).collect()
}

fn whole(client: Client, path: &str, body: &Value) -> (BTreeMap<u64, Choice>, Value) {
    let reply = client.post(path, body);
    assert_eq!(reply.status, 200, "{reply:?}");
    let answer = reply.json();
    let one = |choice: &Value| {
        let content = if path == CHAT { &choice["message"]["content"] } else { &choice["text"] };
        Choice {
            text: content.as_str().expect("text").to_owned(),
            finish: choice["finish_reason"].as_str().expect("a reason").to_owned(),
            logprobs: logprobs(path, choice),
        }
    };
    let list = answer["choices"].as_array().expect("choices");
    let choices = list.iter().map(|c| (c["index"].as_u64().expect("an index"), one(c)));
    (choices.collect(), answer["usage"].clone())
}

#[test]
fn a_stream_says_what_the_whole_answer_says() {
    let site = Site::new();
    let usage = json!({ "stream_options": { "include_usage": true } });
    let cases = [
        (CHAT, chat(json!({}))),
        (CHAT, chat(json!({ "temperature": 0 }))),
        (CHAT, chat(json!({ "n": 3, "top_p": 0.9, "top_k": 50, "min_p": 0.01 }))),
        (CHAT, chat(json!({ "logprobs": true, "top_logprobs": 5, "n": 2 }))),
        (CHAT, chat(json!({ "stop": ["e", "a", "\u{fffd}"], "logprobs": true }))),
        (CHAT, chat(json!({ "presence_penalty": 1, "frequency_penalty": 0.5 }))),
        (CHAT, chat(json!({ "ignore_eos": false, "logit_bias": { "258": 4 }, "max_tokens": 200 }))),
        (TEXT, text(json!({}))),
        (TEXT, text(json!({ "logprobs": 3 }))),
        (TEXT, text(json!({ "prompt": ["a", "bc"], "n": 2, "logprobs": 0 }))),
        (TEXT, text(json!({ "prompt": [[97, 98], [99]], "repetition_penalty": 1.2 }))),
        (TEXT, text(json!({ "prompt": [97, 98, 99], "echo": true }))),
    ];
    for (path, body) in cases {
        let (pieces, counted) = streamed(site.client, path, &merged(body.clone(), usage.clone()));
        let (expect, mut usage) = whole(site.client, path, &body);
        assert_eq!(pieces, expect, "{body}");
        let mut counted = counted.expect("usage was asked for");
        // The second of two equal prompts finds the first one's blocks.
        for usage in [&mut counted, &mut usage] {
            usage["prompt_tokens_details"] = Value::Null;
            // Whether drafts pay depends on the time that steps take.
            usage["completion_tokens_details"] = Value::Null;
        }
        assert_eq!(counted, usage, "{body}");
    }
    site.settle();
}

#[test]
fn tokens_are_counted_and_cut_at_the_limit() {
    let site = Site::new();
    let body = text(json!({ "prompt": "abcde", "max_tokens": 7, "n": 2, "logprobs": 0 }));
    let (choices, usage) = whole(site.client, TEXT, &body);
    assert_eq!(usage["prompt_tokens"], 5);
    assert_eq!(usage["completion_tokens"], 14);
    assert_eq!(usage["total_tokens"], 19);
    for choice in choices.values() {
        assert_eq!((choice.finish.as_str(), choice.logprobs.len()), ("length", 7));
    }
    let sixteen = whole(site.client, TEXT, &json!({ "prompt": "a", "ignore_eos": true }));
    assert_eq!(sixteen.1["completion_tokens"], 16, "the dialect's default");
}

#[test]
fn the_same_seed_says_the_same_and_another_does_not() {
    let site = Site::with(Setup { defaults: Defaults::default(), ..Setup::default() });
    let say = |seed: Value| whole(site.client, CHAT, &chat(json!({ "seed": seed }))).0;
    assert_eq!(say(json!(1)), say(json!(1)));
    assert_ne!(say(json!(1)), say(json!(2)));
    assert_ne!(say(json!(-1)), say(json!(1)));
    assert_ne!(say(Value::Null), say(Value::Null), "without a seed, a fresh one each time");
}

#[test]
fn an_answer_ends_before_its_stop_text() {
    let site = Site::new();
    let long = json!({ "max_tokens": 400, "logit_bias": { "65": 3, "66": 3, "67": 3 } });
    let free = whole(site.client, TEXT, &text(long.clone())).0.remove(&0).expect("a choice");
    let at = free.text.find('B').expect("a likely letter");
    for stop in [json!("B"), json!(["nowhere", "B"])] {
        let body = merged(text(long.clone()), json!({ "stop": stop }));
        let stopped = whole(site.client, TEXT, &body).0.remove(&0).expect("a choice");
        assert_eq!(stopped.text, free.text.get(..at).expect("a prefix"));
        assert_eq!(stopped.finish, "stop");
    }
}

#[test]
fn logprobs_add_up_to_a_distribution() {
    let site = Site::new();
    let body = chat(json!({ "logprobs": true, "top_logprobs": 20, "temperature": 0 }));
    let (choices, _) = whole(site.client, CHAT, &body);
    let tokens = &choices[&0].logprobs;
    assert_eq!(tokens.len(), 40);
    for token in tokens {
        let top = token["top_logprobs"].as_array().expect("alternatives");
        assert_eq!(top.len(), 20);
        assert_eq!(top[0]["bytes"], token["bytes"], "greedy takes the best");
        assert_eq!(top[0]["logprob"], token["logprob"]);
        let values: Vec<f64> = top.iter().filter_map(|t| t["logprob"].as_f64()).collect();
        assert!(values.is_sorted_by(|a, b| a >= b), "{values:?}");
        let mass: f64 = values.iter().map(|v| v.exp()).sum();
        assert!(mass > 0.0 && mass <= 1.0 + 1e-5, "{mass}");
    }
    let bytes = tokens.iter().flat_map(|t| t["bytes"].as_array().cloned().unwrap_or_default());
    let bytes: Vec<u8> = bytes.filter_map(|b| b.as_u64()).map(|b| b as u8).collect();
    assert_eq!(String::from_utf8_lossy(&bytes), choices[&0].text, "bytes are the text");
}

#[test]
fn a_bias_forces_and_forbids() {
    let site = Site::new();
    let forced = text(json!({ "logit_bias": { "65": 100 }, "max_tokens": 5, "n": 3 }));
    let choices = whole(site.client, TEXT, &forced).0;
    let texts: Vec<&str> = choices.values().map(|choice| choice.text.as_str()).collect();
    assert_eq!(texts, ["AAAAA"; 3], "every choice");
    let greedy = text(json!({ "temperature": 0, "max_tokens": 1, "logprobs": 1 }));
    let first = whole(site.client, TEXT, &greedy).0.remove(&0).expect("a choice");
    let again = whole(site.client, TEXT, &greedy).0.remove(&0).expect("a choice");
    assert_eq!(first, again);
}

#[test]
fn echo_puts_the_prompt_in_front() {
    let site = Site::new();
    let plain = whole(site.client, TEXT, &text(json!({ "prompt": ["ab", "cd"], "n": 2 }))).0;
    let echoed =
        whole(site.client, TEXT, &text(json!({ "prompt": ["ab", "cd"], "n": 2, "echo": true }))).0;
    for (index, prompt) in [(0, "ab"), (1, "ab"), (2, "cd"), (3, "cd")] {
        assert_eq!(echoed[&index].text, format!("{prompt}{}", plain[&index].text));
    }
}

#[test]
fn what_has_no_effect_is_named() {
    let site = Site::new();
    let body = json!({ "safety_identifier": "u", "store": false, "metadata": {} });
    let body = chat(merged(body, json!({ "max_tokens": 100_000 })));
    let answer = site.client.post(CHAT, &body).json();
    let warnings = answer["warnings"].to_string();
    for word in ["safety_identifier", "store", "metadata", "the context of 512 tokens leaves"] {
        assert!(warnings.contains(word), "{word} in {warnings}");
    }
    let quiet = site.client.post(CHAT, &chat(json!({}))).json();
    assert!(quiet.get("warnings").is_none());
    let body = chat(json!({ "store": false }));
    let first = site.client.stream(CHAT, &body).event().expect("an event");
    assert!(first.contains("store was ignored"), "{first}");
}

#[test]
fn what_changes_the_order_and_the_speed_changes_no_answer() {
    let site = Site::new();
    let plain = whole(site.client, CHAT, &chat(json!({ "max_tokens": 40 })));
    let text = plain.0[&0].text.clone();
    let other = json!([{ "type": "text", "text": "no" }]);
    let cases = [
        json!({ "user": "u" }),
        json!({ "priority": -3, "timeout": 60 }),
        json!({ "draft": "none" }),
        json!({ "prediction": { "type": "content", "content": text } }),
        json!({ "prediction": { "type": "content", "content": other } }),
    ];
    for case in cases {
        let (choices, _) =
            whole(site.client, CHAT, &chat(merged(json!({ "max_tokens": 40 }), case)));
        assert_eq!(choices[&0].text, plain.0[&0].text);
    }
    let late = site.client.post(CHAT, &chat(json!({ "timeout": 0, "max_tokens": 100 })));
    assert_eq!((late.status, late.json()["error"]["code"].as_str()), (504, Some("timeout")));
    for wrong in
        [json!("text"), json!({ "type": "content" }), json!({ "type": "x", "content": "" })]
    {
        let refused = site.client.post(CHAT, &chat(json!({ "prediction": wrong })));
        assert_eq!(refused.status, 400, "{wrong}");
    }
}

#[test]
fn why_a_prompt_was_not_cached_is_told() {
    let site = Site::new();
    let ask = |system: &str, question: &str| {
        let messages = json!([
            { "role": "system", "content": system }, { "role": "user", "content": question },
        ]);
        let extra = json!({ "messages": messages, "diagnostics": true, "max_tokens": 1 });
        site.client.post(CHAT, &chat(extra)).json()["diagnostics"]["cache_miss_reason"].clone()
    };
    let (system, question) = ("You are a helpful assistant.", "What is the capital of Peru?");
    assert_eq!(ask(system, question)["type"], "previous_message_not_found");
    assert_eq!(ask(system, question), Value::Null, "all that can be cached is");
    let found = ask("You are a harsh assistant.", question);
    assert_eq!((&found["type"], &found["message_index"]), (&json!("system_changed"), &json!(0)));
    let found = ask(system, "What is the longest river of Chile?");
    assert_eq!((&found["type"], &found["message_index"]), (&json!("messages_changed"), &json!(1)));
    let starts = |side: &str, c: char| found[side].as_str().is_some_and(|t| t.starts_with(c));
    assert!(starts("cached_text", 'c') && starts("prompt_text", 'l'), "{found}");
    let plain = site.client.post(CHAT, &chat(json!({}))).json();
    assert!(plain.get("diagnostics").is_none());
}

#[test]
fn control_tokens_in_messages_are_text() {
    let site = Site::new();
    let count = |content: &str| {
        let messages = json!([{ "role": "user", "content": content }]);
        whole(site.client, CHAT, &chat(json!({ "messages": messages }))).1["prompt_tokens"].clone()
    };
    let plain = count("x").as_u64().expect("a number");
    let spelled = "<|im_end|>";
    assert_eq!(count(spelled), json!(plain - 1 + spelled.len() as u64), "one token a byte");
}

#[test]
fn models_are_listed_and_found_by_any_name() {
    let site = Site::new();
    let list = site.client.get("/v1/models").json();
    let ids: Vec<&str> =
        list["data"].as_array().expect("data").iter().filter_map(|m| m["id"].as_str()).collect();
    assert_eq!(ids, ["sim"], "each once");
    assert_eq!(list["data"][0]["aliases"], json!(["user/sim:q8"]));
    assert_eq!(list["data"][0]["status"]["value"], "loaded");
    assert_eq!(list["data"][0]["max_model_len"], 512);
    for path in ["/v1/models/sim", "/v1/models/user/sim:q8", "/v1/models/user%2Fsim:q8"] {
        assert_eq!(site.client.get(path).json()["root"], "sim", "{path}");
    }
    let held = &list["data"][0]["defaults"];
    assert_eq!((&held["temperature"], &held["top_p"]), (&json!(0.8), &json!(0.95)));
    assert_eq!((&held["min_p"], &held["max_completion_tokens"]), (&json!(0.05), &json!(512)));
    let missing = site.client.get("/v1/models/gpt-9");
    assert_eq!((missing.status, missing.error("code").as_str()), (404, "model_not_found"));
    assert!(missing.error("message").contains("sim"));
    let body = chat(json!({ "model": "user/sim:q8" }));
    assert_eq!(site.client.post(CHAT, &body).json()["model"], "sim");
}

#[test]
fn an_answer_ends_where_nobody_says_how_long_it_may_be() {
    let setup = Setup { context: 6000, blocks: 1000, ..Setup::default() };
    let site = Site::with(setup);
    let messages = json!([{ "role": "user", "content": "Hello" }]);
    let body = json!({ "messages": messages, "ignore_eos": true });
    let (choices, usage) = whole(site.client, CHAT, &body);
    assert_eq!(usage["completion_tokens"], 4096);
    assert_eq!(choices[&0].finish, "length");
    let sampling = SamplingValues { max_tokens: Some(100), ..SamplingValues::default() };
    let defaults = Defaults { sampling, ..Defaults::default() };
    let site = Site::with(Setup { defaults, ..Setup::default() });
    let (_, usage) = whole(site.client, CHAT, &body);
    assert_eq!(usage["completion_tokens"], 100, "as the packager says");
    assert!(site.client.post(CHAT, &body).json().get("warnings").is_none());
}

#[test]
fn the_token_that_ends_an_answer_may_be_its_first() {
    let site = Site::new();
    let ends = json!({ "ignore_eos": false, "logit_bias": { "258": 100 } });
    let (choices, usage) = whole(site.client, CHAT, &chat(ends));
    assert_eq!((choices[&0].finish.as_str(), &usage["completion_tokens"]), ("stop", &json!(1)));
    site.settle();
    for name in ["time_to_first_token", "request_queue", "request_prefill", "request_decode"] {
        let count = format!("tokenmill_{name}_seconds_count{{model_name=\"sim\"}}");
        assert_eq!(site.metric(&count), 1.0, "{name}");
    }
}

#[test]
fn operators_get_their_pages() {
    let site = Site::new();
    for path in ["/health", "/livez", "/readyz", "/version"] {
        assert_eq!(site.client.get(path).status, 200, "{path}");
    }
    whole(site.client, CHAT, &chat(json!({})));
    site.settle();
    assert_eq!(site.metric("tokenmill_generated_tokens_total{model_name=\"sim\"}"), 40.0);
    assert_eq!(site.metric("vllm:generation_tokens_total{model_name=\"sim\"}"), 40.0);
    assert_eq!(site.metric("vllm:num_requests_running{model_name=\"sim\"}"), 0.0);
    let count = "tokenmill_time_to_first_token_seconds_count{model_name=\"sim\"}";
    assert_eq!(site.metric(count), 1.0);
    assert_eq!(site.metric("tokenmill_inter_token_seconds_count{model_name=\"sim\"}"), 39.0);
    let blocks = |state: &str| {
        let labels = format!("model_name=\"sim\",group=\"0\",state=\"{state}\"");
        site.metric(&format!("tokenmill_kv_blocks{{{labels}}}"))
    };
    assert_eq!(blocks("total"), 300.0);
    assert_eq!(blocks("free") + blocks("cached"), 300.0);
    let done = "tokenmill_requests_total{model_name=\"sim\",outcome=\"finished\"}";
    assert_eq!(site.metric(done), 1.0);
}

//! Tools and reasoning over HTTP: what a model writes is told apart, whole and as it comes. A grammar
//! makes the simulated model write what families of models write.

use serde_json::{Value, json};
use tokenmill_http_tests::{Setup, Site};

const CHAT: &str = "/v1/chat/completions";
const WRITTEN: &str = "<think>\nhm, f\n</think>\n\nI call it.\n<tool_call>\n{\"name\": \"f\", \
                       \"arguments\": {\"a\": [1, \"x</tool_call>\"]}}\n</tool_call>";

/// The template of a model that reasons, unless it is told not to.
const REASONS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
    {% endfor %}<|im_start|>assistant\n<think>\n\
    {% if enable_thinking is defined and not enable_thinking %}\n</think>\n\n{% endif %}";

fn site() -> Site {
    Site::with(Setup { context: 2048, ..Setup::default() })
}

fn tool(name: &str) -> Value {
    let parameters = json!({ "type": "object", "properties": { "a": { "type": "array" } } });
    json!({ "type": "function", "function": {
        "name": name, "description": "d", "parameters": parameters,
    } })
}

/// A request whose answer is that text.
fn asks(text: &str, extra: Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "q" }],
        "tools": [tool("f")],
        "max_tokens": 400,
        "structured_outputs": { "choice": [text] },
    });
    let members = extra.as_object().expect("members").clone();
    body.as_object_mut().expect("members").extend(members);
    body
}

/// A message put together of the chunks of a stream, and how it ended.
fn streamed(site: &Site, body: &Value) -> (Value, String) {
    let mut message = json!({ "reasoning": "", "content": "", "calls": [] });
    let mut finish = String::new();
    let append = |to: &mut Value, more: &Value| {
        let joined = format!("{}{}", to.as_str().unwrap_or(""), more.as_str().unwrap_or(""));
        *to = joined.into();
    };
    for event in site.client.stream(CHAT, body).finish().events() {
        let Ok(chunk) = serde_json::from_str::<Value>(&event) else { continue };
        let choice = &chunk["choices"][0];
        append(&mut message["reasoning"], &choice["delta"]["reasoning_content"]);
        append(&mut message["content"], &choice["delta"]["content"]);
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().expect("an index") as usize;
            let calls = message["calls"].as_array_mut().expect("calls");
            if calls.len() == index {
                assert!(call["id"].is_string() && call["type"] == "function", "{call}");
                calls.push(json!({ "name": call["function"]["name"], "arguments": "" }));
            }
            append(&mut calls[index]["arguments"], &call["function"]["arguments"]);
        }
        finish = choice["finish_reason"].as_str().map_or(finish, str::to_owned);
    }
    (message, finish)
}

#[test]
fn reasoning_text_and_calls_are_told_apart() {
    let site = site();
    let body = asks(WRITTEN, json!({}));
    let choice = site.client.post(CHAT, &body).json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
    let message = &choice["message"];
    let trimmed = |value: &Value| value.as_str().unwrap_or("").trim().to_owned();
    assert_eq!(trimmed(&message["reasoning_content"]), "hm, f");
    assert_eq!(trimmed(&message["content"]), "I call it.");
    let calls = message["tool_calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0]["function"]["name"], "f");
    let arguments = calls[0]["function"]["arguments"].as_str().expect("a text");
    let expect = json!({ "a": [1, "x</tool_call>"] });
    assert_eq!(serde_json::from_str::<Value>(arguments).expect("JSON"), expect);
    let (told, finish) = streamed(&site, &body);
    assert_eq!(finish, "tool_calls");
    assert_eq!(trimmed(&told["reasoning"]), "hm, f");
    assert_eq!(trimmed(&told["content"]), "I call it.");
    assert_eq!(told["calls"], json!([{ "name": "f", "arguments": arguments }]));
    site.settle();
}

#[test]
fn without_tools_markup_is_text() {
    let site = site();
    for extra in [json!({ "tools": null }), json!({ "tool_choice": "none" })] {
        let body = asks(WRITTEN, extra);
        let choice = site.client.post(CHAT, &body).json()["choices"][0].clone();
        assert_eq!(choice["finish_reason"], "stop");
        assert_eq!(choice["message"]["content"], WRITTEN);
        assert!(choice["message"].get("tool_calls").is_none());
        assert_eq!(streamed(&site, &body).0["content"], WRITTEN);
    }
}

#[test]
fn a_cut_call_is_neither_whole_nor_text() {
    let site = site();
    let whole = site.client.post(CHAT, &asks(WRITTEN, json!({}))).json();
    let tokens = whole["usage"]["completion_tokens"].as_u64().expect("a number");
    for max in 1..tokens.saturating_sub(12) {
        let body = asks(WRITTEN, json!({ "max_tokens": max }));
        let choice = site.client.post(CHAT, &body).json()["choices"][0].clone();
        assert_eq!(choice["finish_reason"], "length", "{max}: {choice}");
        let content = choice["message"]["content"].as_str().unwrap_or("");
        let leaks = ["<think>", "</think>", "<tool_call>", "name", "arguments"];
        assert!(!leaks.iter().any(|mark| content.contains(mark)), "{max}: {content}");
        let reasoning = choice["message"]["reasoning_content"].as_str().unwrap_or("");
        assert!("\nhm, f\n</think".contains(reasoning), "{max}: {reasoning}");
    }
}

/// Stop strings are looked for in the text alone.
#[test]
fn stop_strings_do_not_end_reasoning_and_calls() {
    let site = site();
    let told = |stop: &str| {
        let body = asks(WRITTEN, json!({ "stop": stop }));
        let choice = site.client.post(CHAT, &body).json()["choices"][0].clone();
        let content = choice["message"]["content"].as_str().unwrap_or("").trim().to_owned();
        (content, choice["finish_reason"].as_str().expect("a reason").to_owned())
    };
    assert_eq!(told("hm"), ("I call it.".into(), "tool_calls".into()));
    assert_eq!(told("arguments"), ("I call it.".into(), "tool_calls".into()));
    assert_eq!(told("call it"), ("I".into(), "stop".into()));
}

#[test]
fn history_with_calls_and_results_is_a_prompt() {
    let site = site();
    let call = |arguments: Value| {
        json!({ "id": "call_1", "type": "function", "function": {
            "name": "f", "arguments": arguments,
        } })
    };
    let ask = |call: Value| {
        let mut body = asks("ok", json!({}));
        body["messages"] = json!([
            { "role": "user", "content": "q" },
            { "role": "assistant", "content": null, "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "call_1", "content": [{ "type": "text", "text": "4" }] },
        ]);
        body
    };
    let first = site.client.post(CHAT, &ask(call(json!("{\"a\":[1]}")))).json();
    assert_eq!(first["choices"][0]["message"]["content"], "ok", "{first}");
    // Arguments spelled in another way, and another id, are the same prompt.
    let mut other = call(json!("{ \"a\": [ 1 ] }"));
    other["id"] = json!("call_1");
    let second = site.client.post(CHAT, &ask(other)).json();
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!(first["usage"]["prompt_tokens"], second["usage"]["prompt_tokens"]);
    assert!(cached(&second).as_u64() > cached(&first).as_u64(), "{second}");
    site.settle();
}

/// Whatever the model would rather say, a required call comes, of a tool that may be called, with
/// arguments of its schema; whole and as a stream, alone and among others.
#[test]
fn required_calls_come_and_are_valid() {
    let site = site();
    let mut tools = [tool("f"), tool("g"), tool("h")];
    for tool in &mut tools {
        tool["function"]["parameters"] = json!({
            "type": "object",
            "properties": { "kind": { "enum": ["a", "b"] }, "n": { "type": "integer", "maximum": 99, "minimum": 0 } },
            "required": ["kind", "n"],
            "additionalProperties": false,
        });
    }
    let named = json!({ "type": "function", "function": { "name": "g" } });
    let allowed = json!({ "type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{ "type": "function", "function": { "name": "h" } }],
    } });
    let mut whole = 0;
    for (choice, names) in
        [(json!("required"), &["f", "g", "h"][..]), (named, &["g"]), (allowed, &["h"])]
    {
        for seed in 0..4 {
            let body = json!({
                "messages": [{ "role": "user", "content": "q" }], "tools": tools,
                "tool_choice": choice, "parallel_tool_calls": false,
                "max_tokens": 300, "seed": seed, "temperature": 1.0,
            });
            let answer = site.client.post(CHAT, &body).json()["choices"][0].clone();
            let (told, finish) = streamed(&site, &body);
            assert_eq!(answer["finish_reason"], finish.as_str());
            if finish == "length" {
                continue;
            }
            whole += 1;
            assert_eq!(finish, "tool_calls", "{answer}");
            let calls = told["calls"].as_array().expect("calls");
            assert_eq!(calls.len(), 1, "{told}");
            assert_eq!(told["content"].as_str().map(str::trim), Some(""), "{told}");
            let call = &calls[0];
            assert!(names.contains(&call["name"].as_str().expect("a name")), "{call}");
            let arguments = call["arguments"].as_str().expect("a text");
            let value: Value = serde_json::from_str(arguments).expect("JSON");
            assert!(["a", "b"].iter().any(|kind| value["kind"] == *kind), "{value}");
            assert!(value["n"].as_u64().is_some_and(|n| n < 100), "{value}");
            let same = &answer["message"]["tool_calls"][0]["function"];
            assert_eq!((&same["name"], &same["arguments"]), (&call["name"], &call["arguments"]));
        }
    }
    assert!(whole > 3, "{whole} of 12 ended");
    site.settle();
}

#[test]
fn what_cannot_be_held_is_refused() {
    let site = site();
    let mut strict = tool("f");
    strict["function"]["strict"] = json!(true);
    strict["function"]["parameters"] = json!({ "type": "object", "not": { "required": ["a"] } });
    let ask = |extra: Value| site.client.post(CHAT, &asks("x", extra));
    let reply = ask(json!({ "tools": [strict], "structured_outputs": null }));
    assert_eq!((reply.status, reply.error("param").as_str()), (400, "tools"), "{reply:?}");
    let mut loose = tool("f");
    loose["function"]["parameters"] = json!({ "type": "object", "not": { "required": ["a"] } });
    let reply = ask(json!({ "tools": [loose], "structured_outputs": null, "max_tokens": 2 }));
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.json()["warnings"].to_string().contains("schema of f"), "{reply:?}");
    let reply = ask(json!({ "tool_choice": "required" }));
    assert_eq!((reply.status, reply.error("param").as_str()), (400, "tool_choice"), "{reply:?}");
}

/// Reasoning is neither held nor squeezed into what is asked of the answer.
#[test]
fn a_schema_holds_behind_the_reasoning() {
    let site = Site::with(Setup { template: Some(REASONS), ..Setup::default() });
    let schema = json!({ "type": "object", "properties": { "kind": { "enum": ["a", "b"] } },
        "required": ["kind"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema } });
    let body = |thinking: bool, extra: Value| {
        let mut body = json!({
            "messages": [{ "role": "user", "content": "q" }], "max_tokens": 60, "seed": 3,
            "temperature": 1.0, "chat_template_kwargs": { "enable_thinking": thinking },
        });
        let members = extra.as_object().expect("members").clone();
        body.as_object_mut().expect("members").extend(members);
        body
    };
    let ask = |thinking, extra| site.client.post(CHAT, &body(thinking, extra));
    let choice = ask(true, json!({ "response_format": format })).json()["choices"][0].clone();
    assert_eq!(
        (choice["finish_reason"].as_str(), choice["message"]["content"].as_str()),
        (Some("length"), Some(""))
    );
    let thought = choice["message"]["reasoning_content"].as_str().expect("a thought");
    assert!(!thought.starts_with('{'), "{thought}");
    let choice = ask(false, json!({ "response_format": format })).json()["choices"][0].clone();
    assert!(choice["message"].get("reasoning_content").is_none(), "{choice}");
    let content = choice["message"]["content"].as_str().expect("a text");
    let found: Value = serde_json::from_str(content).expect("JSON");
    assert!(found == json!({ "kind": "a" }) || found == json!({ "kind": "b" }), "{found}");
    let regex = json!({ "structured_outputs": { "regex": "a+" } });
    let reply = ask(true, regex.clone());
    assert_eq!(reply.status, 400, "{reply:?}");
    assert!(reply.error("message").contains("enable_thinking"), "{reply:?}");
    assert_eq!(ask(false, regex).status, 200);
    site.settle();
}

/// A template that wants one instruction first and roles in turns takes what agents send all the same.
#[test]
fn templates_that_want_turns_get_them() {
    const TURNS: &str = "{% for m in messages %}{% if m.role == 'system' and loop.index0 > 0 %}\
        {{ raise_exception('system first') }}{% endif %}\
        {% if loop.index0 > 0 and m.role == messages[loop.index0 - 1].role %}\
        {{ raise_exception('roles must alternate') }}{% endif %}\
        <|im_start|>{{ m.role }}\\n{{ m.content }}<|im_end|>\\n{% endfor %}<|im_start|>assistant\\n";
    let site = Site::with(Setup { template: Some(TURNS), ..Setup::default() });
    let says = |role: &str, text: &str| json!({ "role": role, "content": text });
    let tokens = |messages: &[Value]| {
        let body = json!({ "messages": messages, "max_tokens": 1 });
        let reply = site.client.post(CHAT, &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["usage"]["prompt_tokens"].clone()
    };
    let sent = [
        says("system", "a"),
        says("developer", "b"),
        says("user", "c"),
        says("user", "d"),
        says("system", "e"),
        says("assistant", "f"),
        says("user", "g"),
    ];
    let meant = [
        says("system", "a\n\nb"),
        says("user", "c\n\nd\n\ne"),
        says("assistant", "f"),
        says("user", "g"),
    ];
    assert_eq!(tokens(&sent), tokens(&meant));
    let odd = json!({ "messages": [says("user", "a"), says("tool", "b"), says("tool", "c")] });
    let reply = site.client.post(CHAT, &odd);
    assert_eq!(reply.status, 200, "results are joined by the generic form: {reply:?}");
}

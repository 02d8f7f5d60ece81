//! OpenAI's Responses over HTTP: whole and streamed, cut, refused, counted, compressed, and what
//! went wrong with it in other servers.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::{Value, json};
use tokenmill_http_tests::{Setup, Site};
use tokenmill_server::{SealKey, ServerConfig};

const PATH: &str = "/v1/responses";

fn body(extra: Value) -> Value {
    let mut body = json!({
        "model": "sim", "input": "Grüße, 世界", "max_output_tokens": 24, "seed": 5,
        "ignore_eos": true,
    });
    for (key, value) in extra.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

/// The events of a stream, in order, checked for their names and numbers.
fn streamed(site: &Site, body: &Value) -> Vec<Value> {
    let reply = site.client.stream(PATH, body).finish();
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let mut events = Vec::new();
    for (number, text) in reply.body.split_terminator("\n\n").enumerate() {
        let (name, data) = text.split_once('\n').expect("two lines");
        let event: Value = serde_json::from_str(&data["data: ".len()..]).expect("JSON");
        assert_eq!(Some(name), event["type"].as_str().map(|t| format!("event: {t}")).as_deref());
        assert_eq!(event["sequence_number"], number);
        events.push(event);
    }
    events
}

fn names(events: &[Value]) -> Vec<String> {
    let mut names: Vec<String> = events
        .iter()
        .map(|event| event["type"].as_str().expect("a type").trim_start_matches("response.").into())
        .collect();
    names.dedup();
    names
}

#[test]
fn a_stream_has_every_event_and_says_what_the_whole_says() {
    let site = Site::new();
    let ask = body(json!({ "include": ["message.output_text.logprobs"] }));
    let mut whole = site.client.post(PATH, &ask).json();
    let events = streamed(&site, &ask);
    let order = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ];
    assert_eq!(names(&events), order);
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let joined: String = deltas.map(|event| event["delta"].as_str().expect("a text")).collect();
    assert_eq!(whole["output"][0]["content"][0]["text"], joined);
    let told = whole["output"][0]["content"][0]["logprobs"].as_array().map(Vec::len);
    assert_eq!(told, Some(24));
    let mut last = events.last().expect("events")["response"].clone();
    // Names and what was cached are each answer's own.
    for answer in [&mut whole, &mut last] {
        for member in ["id", "created_at", "usage"] {
            answer[member].take();
        }
        answer["output"][0]["id"].take();
    }
    assert_eq!(whole, last);
    site.settle();
}

#[test]
fn an_answer_that_is_cut_says_so() {
    let site = Site::new();
    let whole = site.client.post(PATH, &body(json!({ "max_output_tokens": 16 }))).json();
    assert_eq!((&whole["status"], &whole["error"]), (&json!("incomplete"), &Value::Null));
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(whole["output"][0]["status"], "incomplete");
    assert_eq!(whole["usage"]["output_tokens"], 16);
    let events = streamed(&site, &body(json!({ "max_output_tokens": 16 })));
    let last = events.last().expect("events");
    assert_eq!(
        (&last["type"], &last["response"]["status"]),
        (&json!("response.incomplete"), &json!("incomplete"))
    );
    // A choice of one text ends by itself.
    let held = json!({ "guided_choice": ["yes"], "ignore_eos": false });
    let whole = site.client.post(PATH, &body(held.clone())).json();
    assert_eq!(
        (&whole["status"], &whole["incomplete_details"]),
        (&json!("completed"), &Value::Null)
    );
    assert_eq!(whole["output"][0]["content"][0]["text"], "yes");
    let events = streamed(&site, &body(held));
    assert_eq!(names(&events).last().map(String::as_str), Some("completed"));
}

#[test]
fn a_form_is_held() {
    let site = Site::new();
    let schema = json!({
        "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"],
        "additionalProperties": false,
    });
    let format = json!({ "type": "json_schema", "name": "n", "schema": schema, "strict": true });
    let ask = body(json!({ "text": { "format": format }, "ignore_eos": false }));
    let whole = site.client.post(PATH, &ask).json();
    let text = whole["output"][0]["content"][0]["text"].as_str().expect("a text");
    let found: Value = serde_json::from_str(text).expect("JSON");
    assert!(found["ok"].is_boolean(), "{found}");
    assert_eq!(whole["text"]["format"]["type"], "json_schema");
}

#[test]
fn nothing_is_stored_and_nothing_pretends_to_be() {
    let site = Site::new();
    let whole = site.client.post(PATH, &body(json!({ "store": true }))).json();
    assert_eq!(whole["store"], false);
    assert_eq!(whole["warnings"], json!(["store was ignored: this server stores no answers"]));
    let id = whole["id"].as_str().expect("an id");
    for path in [format!("{PATH}/{id}"), format!("{PATH}/resp_00000000")] {
        let reply = site.client.get(&path);
        assert_eq!((reply.status, reply.error("code").as_str()), (404, "response_not_found"));
        assert!(!reply.error("message").is_empty());
    }
    let reply = site.client.post(PATH, &body(json!({ "previous_response_id": id })));
    assert_eq!((reply.status, reply.error("param").as_str()), (400, "previous_response_id"));
}

#[test]
fn the_tokens_that_are_counted_are_those_that_are_used() {
    let site = Site::with(Setup { context: 2048, blocks: 1000, ..Setup::default() });
    let tools = json!([{ "type": "function", "name": "f", "parameters": { "type": "object" } }]);
    for extra in [
        json!({}),
        json!({ "instructions": "be brief" }),
        json!({ "tools": tools, "input": [
            { "role": "user", "content": "q" },
            { "type": "function_call", "call_id": "a", "name": "f", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "a", "output": "4" },
        ] }),
    ] {
        let ask = body(extra);
        let used = site.client.post(PATH, &ask).json();
        let counted = site.client.post(&format!("{PATH}/input_tokens"), &ask);
        assert_eq!(counted.status, 200, "{counted:?}");
        let counted = counted.json();
        assert_eq!(counted["object"], "response.input_tokens");
        assert_eq!(counted["input_tokens"], used["usage"]["input_tokens"], "{ask}");
        let chat = json!({ "role": "user", "content": "Grüße, 世界" });
        if ask["input"].is_string() && ask["instructions"].is_null() {
            let chat = json!({ "messages": [chat], "max_tokens": 1 });
            let chat = site.client.post("/v1/chat/completions", &chat).json();
            assert_eq!(chat["usage"]["prompt_tokens"], counted["input_tokens"]);
        }
    }
}

#[test]
fn the_second_turn_begins_where_the_first_ended() {
    let site = Site::with(Setup { context: 2048, blocks: 1000, ..Setup::default() });
    let first = site.client.post(PATH, &body(json!({ "input": "q".repeat(64) }))).json();
    let mut answer = first["output"][0].clone();
    answer["id"] = json!("msg_made_up");
    let input = json!([{ "role": "user", "content": "q".repeat(64) }, answer, { "role": "user", "content": "on" }]);
    let second = site.client.post(PATH, &body(json!({ "input": input }))).json();
    let before = first["usage"]["input_tokens"].as_u64().expect("a number");
    let cached = second["usage"]["input_tokens_details"]["cached_tokens"].as_u64();
    assert!(cached >= Some(before / 16 * 16), "{cached:?} of {before}");
}

#[test]
fn a_compaction_is_one_item_that_opens_again() {
    let site = Site::with(Setup { context: 2048, blocks: 1000, ..Setup::default() });
    let question = json!({ "role": "user", "content": "q" });
    let ask = body(json!({ "input": [question, { "type": "compaction_trigger" }] }));
    let whole = site.client.post(PATH, &ask).json();
    let output = whole["output"].as_array().expect("items");
    assert_eq!((output.len(), &output[0]["type"]), (1, &json!("compaction")));
    let events = streamed(&site, &ask);
    let done = events.iter().filter(|event| event["type"] == "response.output_item.done");
    let kinds: Vec<&Value> = done.map(|event| &event["item"]["type"]).collect();
    assert_eq!(kinds, ["compaction"]);
    let count = |input: Value| {
        let reply =
            site.client.post(&format!("{PATH}/input_tokens"), &body(json!({ "input": input })));
        reply.json()
    };
    let opened = count(json!([output[0], question]));
    assert_eq!(opened["warnings"], Value::Null);
    let alone = count(json!([question]));
    assert!(opened["input_tokens"].as_u64() > alone["input_tokens"].as_u64());
    // By its own path it is the same, in that path's form.
    let ask = body(json!({ "input": [question], "stream": true, "tools": [], "model": "sim" }));
    let told = site.client.post(&format!("{PATH}/compact"), &ask).json();
    assert_eq!((&told["object"], &told["status"]), (&json!("response.compaction"), &Value::Null));
    let items = told["output"].as_array().expect("items");
    assert_eq!((items.len(), &items[0]["type"]), (1, &json!("compaction")));
    assert_eq!(told["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
    assert_eq!(told["usage"]["output_tokens"], 24);
    assert_eq!(count(json!([items[0], question]))["warnings"], Value::Null);
    assert_eq!(site.client.post(&format!("{PATH}/compact"), &json!({})).error("param"), "input");
    // Another server cannot open it, and says so.
    let other = Site::new();
    let ask = body(json!({ "input": [output[0], question] }));
    let told = other.client.post(&format!("{PATH}/input_tokens"), &ask).json();
    assert_eq!(told["input_tokens"], alone["input_tokens"]);
    assert!(told["warnings"][0].as_str().is_some_and(|text| text.contains("did not seal it")));
}

#[test]
fn what_one_server_sealed_the_next_one_of_its_key_opens() {
    let key = SealKey::random().expect("a key");
    let next = || {
        let mut server = ServerConfig::new(([127, 0, 0, 1], 0).into());
        server.seal_key = Some(key.clone());
        Site::with(Setup { server, ..Setup::default() })
    };
    let ask = body(json!({ "input": [{ "type": "compaction_trigger" }], "instructions": "i" }));
    let item = next().client.post(PATH, &ask).json()["output"][0].clone();
    let ask = body(json!({ "input": [item, { "role": "user", "content": "q" }] }));
    for (site, opens) in [(next(), true), (Site::new(), false)] {
        let told = site.client.post(&format!("{PATH}/input_tokens"), &ask).json();
        assert_eq!(told["warnings"].is_null(), opens, "{told}");
    }
}

#[test]
fn a_text_that_a_tool_is_called_with_holds_its_grammar() {
    let site = Site::with(Setup { context: 4096, blocks: 1000, ..Setup::default() });
    let custom = |syntax: &str, definition: &str| {
        json!({ "type": "custom", "name": "exec", "format": {
            "type": "grammar", "syntax": syntax, "definition": definition,
        } })
    };
    let ask = |tool: Value| {
        let ask = json!({
            "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false,
            "max_output_tokens": 400, "ignore_eos": false, "logit_bias": { "34": 6 },
        });
        site.client.post(PATH, &body(ask)).json()
    };
    let lark = "start: \"say \\\"\" WORD \"\\\"\" LF\n%import common (WORD, LF)\n";
    for (syntax, definition, pattern) in [
        ("lark", lark, "^say \"[A-Za-z]+\"\n$"),
        ("regex", "^[0-9]{2}(\n|\t)$", "^[0-9]{2}[\n\t]$"),
    ] {
        let told = ask(custom(syntax, definition));
        assert_eq!((&told["status"], &told["warnings"]), (&json!("completed"), &Value::Null));
        let call = &told["output"][0];
        let input = call["input"].as_str().expect("a text");
        assert!(regex::Regex::new(pattern).expect("a pattern").is_match(input), "{input:?}");
    }
    for (syntax, definition, word) in [
        ("lark", "start: %json {}", "exec's input is told and not held: lark: %json"),
        ("ebnf", "a", "a syntax ebnf is not known"),
    ] {
        let told = ask(custom(syntax, definition));
        assert!(told["warnings"][0].as_str().is_some_and(|why| why.contains(word)), "{told}");
        assert_eq!(told["output"][0]["type"], "custom_tool_call");
    }
}

#[test]
fn an_answer_calls_or_holds_its_form() {
    let site = Site::with(Setup { context: 4096, blocks: 1000, ..Setup::default() });
    let schema = json!({ "type": "object", "properties": { "a": { "enum": [1, 2] } },
        "required": ["a"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "name": "n", "schema": schema });
    let tool = json!({ "type": "function", "name": "f", "parameters": {
        "type": "object", "properties": {}, "additionalProperties": false } });
    let ask = |bias: Value| {
        let ask = json!({
            "tools": [tool], "text": { "format": format }, "max_output_tokens": 200,
            "ignore_eos": false, "logit_bias": bias, "parallel_tool_calls": false,
        });
        let told = site.client.post(PATH, &body(ask)).json();
        assert_eq!((&told["status"], &told["warnings"]), (&json!("completed"), &Value::Null));
        told["output"].as_array().expect("items").last().expect("an item").clone()
    };
    // The first sign says which it is, and a bias what that is.
    let call = ask(json!({ "123": -50, "60": 50 }));
    assert_eq!((&call["type"], &call["arguments"]), (&json!("function_call"), &json!("{}")));
    let text = ask(json!({ "60": -50, "123": 50 }))["content"][0]["text"].clone();
    let document: Value = serde_json::from_str(text.as_str().expect("a text")).expect("JSON");
    assert!(jsonschema::is_valid(&schema, &document), "{document}");
}

#[test]
fn what_a_search_finds_leaves_the_prompt_before_it_as_it_was() {
    let site = Site::with(Setup { context: 4096, blocks: 1000, ..Setup::default() });
    let question = json!({ "role": "user", "content": "q ".repeat(100) });
    let ask = |input: Vec<Value>| {
        let search = json!({ "type": "tool_search", "execution": "client" });
        let ask = json!({ "input": input, "tools": [search], "logit_bias": { "60": -50 } });
        site.client.post(PATH, &body(ask)).json()
    };
    let first = ask(vec![question.clone()]);
    let found = json!({ "type": "function", "name": "found", "description": "d" });
    let second = ask(vec![
        question,
        json!({ "type": "tool_search_call", "call_id": "1", "arguments": { "query": "x" } }),
        json!({ "type": "tool_search_output", "call_id": "1", "tools": [found] }),
    ]);
    let before = first["usage"]["input_tokens"].as_u64().expect("a number");
    let cached = second["usage"]["input_tokens_details"]["cached_tokens"].as_u64();
    assert!(cached >= Some((before - 16) / 16 * 16), "{cached:?} of {before}");
}

#[test]
fn refusals_say_what_agents_look_for() {
    let site = Site::new();
    let words = "this model's maximum context length is 512 tokens";
    let long = site.client.post(PATH, &body(json!({ "input": "a".repeat(700) })));
    assert_eq!((long.status, long.error("code").as_str()), (400, "context_length_exceeded"));
    assert!(long.error("message").contains(words), "{long:?}");
    let longer = site.client.post(PATH, &body(json!({ "input": "a".repeat(7000) })));
    assert_eq!((longer.status, longer.error("code").as_str()), (400, "context_length_exceeded"));
    assert!(longer.error("message").contains(words), "{longer:?}");
    let image = json!([{ "role": "user", "content": [
        { "type": "input_image", "image_url": "http://127.0.0.1:1/x.png" },
    ] }]);
    let image = site.client.post(PATH, &body(json!({ "input": image })));
    assert_eq!((image.status, image.error("code").as_str()), (400, "unsupported"));
    assert!(image.error("message").contains("image"), "{image:?}");
    let model = site.client.post(PATH, &body(json!({ "model": "gpt-9" })));
    assert_eq!((model.status, model.error("code").as_str()), (404, "model_not_found"));
    // More than is left is cut to that.
    let much = site.client.post(PATH, &body(json!({ "max_output_tokens": 32_000 })));
    assert_eq!(much.status, 200, "{much:?}");
    assert!(much.json()["warnings"][0].as_str().is_some_and(|text| text.contains("leaves")));
}

#[test]
fn a_websocket_is_sent_away_at_once() {
    let site = Site::new();
    let headers = [
        ("upgrade", "websocket"),
        ("connection", "Upgrade"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let reply = site.client.send("GET", PATH, &headers[..1], b"");
    assert_eq!((reply.status, reply.error("code").as_str()), (426, "upgrade_required"));
    assert_eq!(reply.header("upgrade"), Some("HTTP/1.1"));
    let mut request = format!("GET {PATH} HTTP/1.1\r\nhost: localhost\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    let reply = site.client.raw(format!("{request}\r\n").as_bytes()).finish();
    assert_eq!(reply.status, 426, "{reply:?}");
    assert_eq!(site.client.get(PATH).status, 405);
}

#[test]
fn every_route_asks_for_the_key() {
    let mut server = ServerConfig::new(([127, 0, 0, 1], 0).into());
    server.api_keys = vec!["k".into()];
    let site = Site::with(Setup { server, ..Setup::default() });
    let count = format!("{PATH}/input_tokens");
    for path in [PATH, &count] {
        assert_eq!(site.client.post(path, &body(json!({}))).status, 401, "{path}");
    }
    for path in [PATH, &format!("{PATH}/resp_1")] {
        assert_eq!(site.client.get(path).status, 401, "{path}");
    }
}

fn gzipped(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).and_then(|()| encoder.finish()).expect("packed")
}

#[test]
fn bodies_may_come_compressed_and_their_limits_count_what_they_hold() {
    let mut server = ServerConfig::new(([127, 0, 0, 1], 0).into());
    server.limits.body_bytes = 256 << 10;
    server.limits.bodies_bytes = 512 << 10;
    let site = Site::with(Setup { server, ..Setup::default() });
    let post = |path: &str, coding: &str, body: &[u8]| {
        let headers = [("content-type", "application/json"), ("content-encoding", coding)];
        site.client.send("POST", path, &headers, body)
    };
    let zstd = |text: &[u8]| compress_to_vec(text, CompressionLevel::Fastest);
    let short = body(json!({}));
    let padded = body(json!({ "client_metadata": { "pad": "x".repeat(200 << 10) } }));
    let plain = site.client.post(PATH, &short).json();
    for ask in [&short, &padded] {
        let text = ask.to_string();
        for (coding, bytes) in [("zstd", zstd(text.as_bytes())), ("gzip", gzipped(text.as_bytes()))]
        {
            let reply = post(PATH, coding, &bytes);
            assert_eq!(reply.status, 200, "{coding}: {reply:?}");
            assert_eq!(reply.json()["output"][0]["content"], plain["output"][0]["content"]);
        }
    }
    let chat = json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 1 });
    let chat = post("/v1/chat/completions", "zstd", &zstd(chat.to_string().as_bytes()));
    assert_eq!(chat.status, 200, "{chat:?}");
    // 64 MiB of blanks in some kilobytes.
    let bomb = b" ".repeat(64 << 20);
    for (coding, bytes) in [("zstd", zstd(&bomb)), ("gzip", gzipped(&bomb))] {
        let reply = post(PATH, coding, &bytes);
        assert_eq!(reply.status, 413, "{coding}: {reply:?}");
    }
    let text = short.to_string();
    assert_eq!(post(PATH, "br", text.as_bytes()).status, 415);
    for coding in ["zstd", "gzip"] {
        let reply = post(PATH, coding, text.as_bytes());
        assert_eq!((reply.status, reply.error("param").as_str()), (400, "body"), "{coding}");
    }
    site.settle();
}

#[test]
fn what_a_model_thinks_and_calls_comes_as_items_and_goes_back_into_the_same_prompt() {
    let site = Site::with(Setup { context: 4096, blocks: 1000, ..Setup::default() });
    let written = "<think>\nhm\n</think>\n\nI call it.\n<tool_call>\n{\"name\": \"exec\", \
                   \"arguments\": {\"input\": \"a\\nb\"}}\n</tool_call>";
    let tools = json!([
        { "type": "namespace", "name": "shell", "tools": [{ "type": "custom", "name": "exec" }] },
    ]);
    let question = json!({ "role": "user", "content": "q" });
    let ask = body(json!({
        "input": [question], "tools": tools, "max_output_tokens": 300, "ignore_eos": false,
        "guided_choice": [written], "include": ["reasoning.encrypted_content"],
    }));
    let whole = site.client.post(PATH, &ask).json();
    assert_eq!(whole["status"], "completed", "{whole}");
    let output = whole["output"].as_array().expect("items");
    let kinds: Vec<&Value> = output.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message", "custom_tool_call"], "{whole}");
    assert!(output[0]["content"][0]["text"].as_str().is_some_and(|text| text.trim() == "hm"));
    assert!(output[0]["encrypted_content"].is_string());
    let call = &output[2];
    assert_eq!((&call["name"], &call["namespace"]), (&json!("exec"), &json!("shell")));
    assert_eq!(call["input"], "a\nb");
    let reasoning = whole["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64();
    assert!(reasoning > Some(0) && reasoning < whole["usage"]["output_tokens"].as_u64());
    let last = streamed(&site, &ask).pop().expect("events")["response"].clone();
    for (one, other) in output.iter().zip(last["output"].as_array().expect("items")) {
        for member in ["type", "content", "name", "input", "status"] {
            assert_eq!(one[member], other[member]);
        }
    }
    assert_eq!(last["usage"]["output_tokens_details"], whole["usage"]["output_tokens_details"]);
    // What was sealed opens, and ids change nothing.
    let count = |items: &[Value]| {
        let mut input = vec![question.clone()];
        input.extend_from_slice(items);
        input.push(json!({
            "type": "custom_tool_call_output", "call_id": items[2]["call_id"], "output": "ok",
        }));
        let ask = body(json!({ "input": input, "tools": tools }));
        let told = site.client.post(&format!("{PATH}/input_tokens"), &ask).json();
        assert_eq!(told["warnings"], Value::Null, "{told}");
        told["input_tokens"].as_u64()
    };
    let mut items = output.clone();
    let told = count(&items);
    items[0]["content"].take();
    (items[0]["id"], items[2]["id"]) = (json!("rs_x"), json!("ctc_other"));
    assert_eq!(count(&items), told);
    site.settle();
}

//! What becomes of the members and items of a request.

use serde_json::{Value, json};
use tokenmill_engine::constraint::Constraint;

use super::super::DIALECT;
use super::super::catalogue::{Form, Known};
use super::{asked, talk, user};
use crate::conversation::Calling;
use crate::error::ApiError;
use crate::seal::Seal;

/// The messages of an input as templates get them, and what was told.
fn messages(input: Value) -> (Vec<Value>, Vec<String>) {
    let (asked, notes) = asked(json!({ "input": input }), &Seal::default()).expect("read");
    (talk(&asked).values(false), notes)
}

#[test]
fn items_become_messages() {
    let call = |name: &str, arguments: Value| {
        let function = json!({ "name": name, "arguments": arguments });
        json!([{ "id": "call00000", "type": "function", "function": function }])
    };
    let cases = [
        (json!("a"), vec![json!({"role":"user","content":"a"})]),
        (json!(""), vec![json!({"role":"user","content":""})]),
        (
            json!([
                {"role":"user","content":"a"},
                {"type":"message","id":"msg_1","role":"developer","content":[
                    {"type":"input_text","text":"d"},
                ],"internal_chat_message_metadata_passthrough":{"turn_id":"x"}},
                {"role":"system","content":"s"},
            ]),
            vec![
                json!({"role":"user","content":"a"}),
                json!({"role":"system","content":"d"}),
                json!({"role":"system","content":"s"}),
            ],
        ),
        (
            json!([{"role":"user","content":[
                {"type":"input_text","text":"a"}, {"type":"input_text","text":"b"},
            ]}]),
            vec![json!({"role":"user","content":[
                {"type":"text","text":"a"}, {"type":"text","text":"b"},
            ]})],
        ),
        (
            json!([
                {"role":"user","content":"q"},
                {"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":null,"content":[
                    {"type":"reasoning_text","text":"r"},
                ]},
                {"type":"message","role":"assistant","status":"completed","content":[
                    {"type":"output_text","text":"t","annotations":[],"logprobs":[]},
                ]},
                {"type":"function_call","id":"fc_9","call_id":"x","name":"f","arguments":"{\"a\": 1}"},
                {"type":"function_call_output","id":"fco_9","call_id":"x","output":"4"},
                {"type":"reasoning","summary":[{"type":"summary_text","text":"s"}]},
                {"role":"assistant","content":[{"type":"refusal","refusal":"no"}]},
            ]),
            vec![
                user("q"),
                json!({"role":"assistant","content":"t","reasoning_content":"r",
                    "tool_calls":call("f", json!({"a":1}))}),
                json!({"role":"tool","content":"4","name":"f","tool_call_id":"call00000"}),
                json!({"role":"assistant","content":"no","reasoning_content":"s"}),
            ],
        ),
        (
            json!([
                {"type":"custom_tool_call","call_id":"c","name":"exec","input":"text(\"hello\")"},
                {"type":"custom_tool_call_output","call_id":"c","output":[
                    {"type":"input_text","text":"a"}, {"type":"input_text","text":"b"},
                ]},
            ]),
            vec![
                json!({"role":"assistant","content":null,
                    "tool_calls":call("exec", json!({"input":"text(\"hello\")"}))}),
                json!({"role":"tool","content":[
                    {"type":"text","text":"a"}, {"type":"text","text":"b"},
                ],"name":"exec","tool_call_id":"call00000"}),
            ],
        ),
    ];
    for (input, expect) in cases {
        let (found, notes) = messages(input.clone());
        assert_eq!((found, notes), (expect, Vec::new()), "{input}");
    }
}

#[test]
fn ids_are_no_part_of_a_prompt() {
    let input = |ids: [&str; 3]| {
        let [message, item, call] = ids;
        json!([
            {"type":"message","id":message,"role":"user","content":"q"},
            {"type":"function_call","id":item,"call_id":call,"name":"f","arguments":"{\"a\":1}"},
            {"type":"function_call_output","call_id":call,"output":"4"},
        ])
    };
    assert_eq!(messages(input(["m", "f", "c"])).0, messages(input(["n", "g", "call_other"])).0);
}

#[test]
fn answers_are_put_together_in_their_order() {
    let assistant = |text: &str| json!({"role":"assistant","content":text});
    let call = |id: &str| json!({"type":"function_call","call_id":id,"name":"f","arguments":"{}"});
    // Two texts are one answer, calls end it, and what is thought begins it.
    let (found, _) = messages(json!([assistant("a"), assistant("b"), call("1"), call("2")]));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["tool_calls"].as_array().map(Vec::len), Some(2));
    let (found, _) = messages(json!([call("1"), assistant("a")]));
    assert_eq!(found.len(), 2);
    let thought = json!({"type":"reasoning","summary":[{"type":"summary_text","text":"s"}]});
    let (found, _) = messages(json!([assistant("a"), thought, call("1")]));
    assert_eq!(found.len(), 2);
    assert_eq!(found[1]["reasoning_content"], "s");
}

#[test]
fn what_is_not_read_is_told_and_not_refused() {
    let cases = [
        (
            json!([user("a"), {"type":"web_search_call","id":"ws_1","status":"completed"}]),
            "input[1] was ignored: items of type web_search_call are not read",
        ),
        (
            json!([user("a"), {"type":"hologram","x":[1]}]),
            "input[1] was ignored: items of type hologram are not read",
        ),
        (
            json!([{"role":"user","content":"a","mood":"good"}]),
            "input[0].mood was ignored: it is not a field of this request",
        ),
        (
            json!([user("a"), {"type":"reasoning","summary":[],"encrypted_content":"QUJD"}]),
            "input[1].encrypted_content was ignored: this server, as it runs, did not seal it",
        ),
        (
            json!([user("a"), {"type":"compaction","encrypted_content":"QUJD"}]),
            "input[1] was ignored: this server, as it runs, did not seal it",
        ),
        (
            json!([{"type":"compaction_trigger"}, user("a")]),
            "input[0] was ignored: something follows it",
        ),
        (
            json!([{"role":"user","content":[
                {"type":"input_text","text":"a"}, {"type":"smell","x":1},
            ]}]),
            "input[0].content[1] was ignored: parts of type smell are not read",
        ),
    ];
    for (input, told) in cases {
        let (found, notes) = messages(input.clone());
        assert_eq!((found, notes), (vec![user("a")], vec![told.to_owned()]), "{input}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let part = |part: Value| json!({ "input": [{ "role": "user", "content": [part] }] });
    let with = |name: &str, value: Value| json!({ "input": "a", name: value });
    let cases = [
        (json!({}), "input", None),
        (json!({ "input": [] }), "input", None),
        (json!({ "input": 7 }), "input", None),
        (json!({ "input": ["a"] }), "input[0]", None),
        (json!({ "input": [{ "role": "bot", "content": "a" }] }), "input[0].role", None),
        (json!({ "input": [{ "role": "user" }] }), "input[0].content", None),
        (
            part(json!({ "type": "input_image", "image_url": "data:," })),
            "input[0].content[0].image_url",
            None,
        ),
        (
            part(json!({ "type": "input_image", "file_id": "f" })),
            "input[0].content[0].file_id",
            Some("unsupported"),
        ),
        (
            part(json!({ "type": "input_file", "file_id": "f" })),
            "input[0].content[0]",
            Some("unsupported"),
        ),
        (part(json!({ "type": "input_text" })), "input[0].content[0].text", None),
        (
            json!({ "input": [{ "type": "item_reference", "id": "x" }] }),
            "input[0]",
            Some("unsupported"),
        ),
        (json!({ "input": [{ "type": "function_call", "call_id": "x" }] }), "input[0].name", None),
        (
            with("previous_response_id", json!("resp_1")),
            "previous_response_id",
            Some("unsupported"),
        ),
        (with("conversation", json!({ "id": "c" })), "conversation", Some("unsupported")),
        (with("background", json!(true)), "background", Some("unsupported")),
        (with("prompt", json!({ "id": "p" })), "prompt", Some("unsupported")),
        (with("max_output_tokens", json!(0)), "max_output_tokens", None),
        (with("truncation", json!("middle")), "truncation", None),
        (with("reasoning", json!({ "effort": "much" })), "reasoning.effort", None),
        (with("reasoning", json!({ "summary": "long" })), "reasoning.summary", None),
        (with("text", json!({ "format": { "type": "xml" } })), "text.format.type", None),
        (with("text", json!({ "format": { "type": "json_schema" } })), "text.format.schema", None),
        (with("n", json!(2)), "n", Some("unsupported")),
        (with("metadata", json!("a")), "metadata", None),
        (with("tools", json!([{ "type": "function", "name": "a b" }])), "tools[0].name", None),
        (
            with(
                "tools",
                json!([{ "type": "function", "name": "f" }, { "type": "custom", "name": "f" }]),
            ),
            "tools[1]",
            None,
        ),
        (with("tool_choice", json!("required")), "tool_choice", None),
        (with("tool_choice", json!({ "type": "function", "name": "f" })), "tool_choice", None),
        (
            with("tool_choice", json!({ "type": "file_search" })),
            "tool_choice.type",
            Some("unsupported"),
        ),
    ];
    for (body, param, code) in cases {
        let error = asked(body.clone(), &Seal::default()).err().expect("refused");
        assert_eq!((error.param.as_deref(), error.code), (Some(param), code), "{body}");
    }
}

#[test]
fn tools_are_offered_as_functions_and_known_by_their_own_names() {
    let function = |name: &str| json!({ "type": "function", "name": name, "strict": false });
    let grammar = json!({ "type": "grammar", "syntax": "lark", "definition": "start: \"a\"" });
    let body = json!({
        "tools": [
            function("f"),
            { "type": "custom", "name": "patch", "description": "d", "format": grammar },
            { "type": "namespace", "name": "agents", "description": "d", "tools": [
                function("close"), function("f"),
            ] },
            { "type": "tool_search", "execution": "client", "description": "d",
                "parameters": { "type": "object" } },
            { "type": "web_search", "external_web_access": true },
        ],
        "input": [
            { "type": "additional_tools", "role": "developer", "tools": [
                { "type": "namespace", "name": "clock", "tools": [function("sleep")] }, function("f"),
            ] },
            user("q"),
            { "type": "function_call", "call_id": "1", "name": "f", "namespace": "agents",
                "arguments": "{}" },
            { "type": "function_call_output", "call_id": "1", "output": "" },
            { "type": "tool_search_call", "call_id": "2", "execution": "client",
                "arguments": { "query": "x" } },
            { "type": "tool_search_output", "call_id": "2", "execution": "client", "tools": [
                { "type": "function", "name": "found", "defer_loading": true },
            ] },
        ],
        "parallel_tool_calls": false,
    });
    let (asked, notes) = asked(body, &Seal::default()).expect("read");
    let offered: Vec<&str> = talk(&asked).tools.offered.iter().map(|t| t.name.as_str()).collect();
    let names = ["f", "patch", "close", "agents__f", "tool_search", "sleep", "found"];
    assert_eq!(offered, names);
    let known = |offered: &str, form, name: &str, namespace: Option<&str>| Known {
        offered: offered.into(),
        form,
        name: name.into(),
        namespace: namespace.map(str::to_owned),
    };
    assert_eq!(
        asked.style.tools,
        [
            known("f", Form::Function, "f", None),
            known("patch", Form::Custom, "patch", None),
            known("close", Form::Function, "close", Some("agents")),
            known("agents__f", Form::Function, "f", Some("agents")),
            known("tool_search", Form::Search, "tool_search", None),
            known("sleep", Form::Function, "sleep", Some("clock")),
            known("found", Form::Function, "found", None),
        ]
    );
    let told = ["tools[4] was ignored: this server runs no web_search"];
    assert_eq!(notes, told);
    let custom = &talk(&asked).tools.offered[1];
    assert_eq!(custom.input, Some(Constraint::Lark("start: \"a\"".into())));
    assert_eq!(custom.parameters["required"], json!(["input"]));
    assert!(custom.description.as_ref().is_some_and(|d| d.ends_with("start: \"a\"")));
    let values = talk(&asked).values(false);
    assert_eq!(values[1]["tool_calls"][0]["function"]["name"], "agents__f");
    let found = "These tools can be called now: found\n<tools>\n{\"type\": \"function\", \
                 \"function\": {\"name\": \"found\", \"parameters\": {\"type\": \"object\", \
                 \"properties\": {}}}}\n</tools>";
    assert_eq!(values[4]["content"], found);
    let shown = talk(&asked).tools.shown().expect("tools");
    assert_eq!(shown.as_array().map(Vec::len), Some(names.len() - 1), "it stands there alone");
    assert!(talk(&asked).tools.single);
}

#[test]
fn a_choice_says_what_may_be_called() {
    let tools = json!([
        { "type": "function", "name": "f" }, { "type": "custom", "name": "c" },
        { "type": "namespace", "name": "n", "tools": [{ "type": "function", "name": "f" }] },
    ]);
    for (choice, calling, only) in [
        (json!("none"), Calling::None, None),
        (json!("required"), Calling::Required, None),
        (json!({ "type": "function", "name": "f" }), Calling::Required, Some(vec!["f"])),
        (json!({ "type": "custom", "name": "c" }), Calling::Required, Some(vec!["c"])),
        (
            json!({ "type": "function", "name": "f", "namespace": "n" }),
            Calling::Required,
            Some(vec!["n__f"]),
        ),
        (
            json!({ "type": "allowed_tools", "mode": "auto", "tools": [
                { "type": "custom", "name": "c" }, { "type": "mcp", "server_label": "x" },
            ] }),
            Calling::Auto,
            Some(vec!["c"]),
        ),
    ] {
        let body = json!({ "input": "a", "tools": tools, "tool_choice": choice });
        let (asked, _) = asked(body, &Seal::default()).expect("read");
        let found = &talk(&asked).tools;
        let only = only.map(|names| names.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!((found.calling, &found.only), (calling, &only), "{choice}");
    }
}

#[test]
fn members_have_their_effect() {
    let schema = json!({ "type": "object" });
    let body = json!({
        "model": "m", "input": "a", "instructions": "be brief", "max_output_tokens": 9,
        "temperature": 0.5, "top_p": 0.9, "store": true, "truncation": "auto", "stream": true,
        "include": ["reasoning.encrypted_content", "message.output_text.logprobs",
            "web_search_call.action.sources"],
        "reasoning": { "effort": "low", "summary": "auto", "context": "all_turns" },
        "text": { "verbosity": "low", "format": {
            "type": "json_schema", "name": "n", "schema": schema, "strict": true,
        } },
        "metadata": { "a": "b" }, "user": "u", "prompt_cache_key": "k", "top_logprobs": 2,
        "client_metadata": {}, "surprise": 1, "background": false, "conversation": null,
        "safety_identifier": "s", "max_tool_calls": 3, "service_tier": "auto",
    });
    let (asked, notes) = asked(body, &Seal::default()).expect("read");
    let manner = &asked.ask.manner;
    assert_eq!(manner.sampling.max_tokens, Some(9));
    assert_eq!((manner.sampling.temperature, manner.sampling.top_p), (Some(0.5), Some(0.9)));
    assert_eq!((manner.logprobs, manner.user.as_deref()), (Some(2), Some("u")));
    assert!(manner.lease.is_some());
    let held = manner.constrained.as_ref().expect("held");
    assert_eq!((&held.what, held.param), (&Constraint::JsonSchema(schema), "text.format"));
    assert!(asked.delivery.stream && asked.style.sealed && asked.style.summary);
    let variables = talk(&asked).variables.as_ref().expect("variables");
    assert_eq!(variables.get("reasoning_effort"), Some(&json!("low")));
    assert_eq!(talk(&asked).values(false)[0]["content"], "be brief");
    let told = [
        "reasoning.context was ignored: the model's template says what of it is shown",
        "text.verbosity was ignored: models are not told how much to say",
        "include[2] was ignored: web_search_call.action.sources: no answer of this server has any",
        "client_metadata was ignored: it is the client's own",
        "surprise was ignored: it is not a field of this request",
        "safety_identifier was ignored: this server keeps no accounts of end users",
        "max_tool_calls was ignored: this server runs no tools itself",
        "service_tier was ignored: there is one tier",
        "store was ignored: this server stores no answers",
        "truncation was ignored: a prompt that does not fit is refused, never cut",
    ];
    assert_eq!(notes, told);
    let echo = &asked.style.echo;
    assert_eq!((&echo["store"], &echo["metadata"]["a"]), (&json!(false), &json!("b")));
    assert_eq!(echo["reasoning"], json!({ "effort": "low", "summary": "auto" }));
}

#[test]
fn what_is_repeated_is_bounded() {
    let long = "x".repeat(64 << 10);
    let function = json!({ "type": "function", "name": "f", "description": long });
    let schema = json!({ "type": "object", "description": long });
    let body = json!({
        "input": "a", "instructions": long, "tools": [function], "user": "u".repeat(4 << 10),
        "text": { "format": { "type": "json_schema", "name": "n", "schema": schema } },
        "metadata": { "k".repeat(64): "é".repeat(512) },
    });
    let (asked, notes) = asked(body, &Seal::default()).expect("read");
    let echo = &asked.style.echo;
    let told = (&echo["instructions"], &echo["tools"], &echo["text"]["format"], &echo["user"]);
    assert_eq!(told, (&Value::Null, &json!([]), &Value::Null, &Value::Null));
    assert_eq!(talk(&asked).tools.offered.len(), 1, "it has its effect");
    assert_eq!(echo["metadata"].as_object().map(|pairs| pairs.len()), Some(1));
    let path = |note: &String| note.split_once(" is not repeated").map(|(path, _)| path.to_owned());
    let paths: Vec<String> = notes.iter().filter_map(path).collect();
    assert_eq!(paths, ["instructions", "text.format", "tools", "user"]);
}

#[test]
fn metadata_has_the_limits_of_openai() {
    let many: serde_json::Map<String, Value> =
        (0..17).map(|i| (i.to_string(), json!("v"))).collect();
    for (metadata, param) in [
        (json!(many), "metadata"),
        (json!({ "k".repeat(65): "v" }), "metadata"),
        (json!({ "k": "v".repeat(513) }), "metadata.k"),
        (json!({ "k": 1 }), "metadata.k"),
    ] {
        let error = asked(json!({ "input": "a", "metadata": metadata }), &Seal::default());
        assert_eq!(error.err().expect("refused").param.as_deref(), Some(param), "{metadata}");
    }
}

#[test]
fn tools_are_counted_as_they_come() {
    let tools = |from: usize, to: usize| -> Value {
        (from..to).map(|i| json!({ "type": "function", "name": format!("f{i}") })).collect()
    };
    let spaces = |last: usize| {
        let space =
            |name: &str, tools| json!({ "type": "namespace", "name": name, "tools": tools });
        json!([space("a", tools(0, 1000)), space("b", tools(1000, last))])
    };
    let read = |last| asked(json!({ "input": "a", "tools": spaces(last) }), &Seal::default());
    let (found, _) = read(1024).expect("read");
    assert_eq!(found.style.tools.len(), 1024);
    let error = read(1025).err().expect("refused");
    assert_eq!(error.param.as_deref(), Some("tools[1].tools[24]"));
    assert!(error.message.contains("more than 1024 tools"), "{}", error.message);
}

#[test]
fn a_choice_of_what_was_left_out_says_so() {
    let hosted = json!([{ "type": "web_search", "name": "s" }]);
    for choice in [json!("required"), json!({ "type": "function", "name": "s" })] {
        let body = json!({ "input": "a", "tools": hosted, "tool_choice": choice });
        let error = asked(body, &Seal::default()).err().expect("refused");
        assert!(error.message.ends_with("was left out: this server does not run it"), "{choice}");
    }
}

#[test]
fn errors_say_input_where_other_calls_say_messages() {
    let told = |error: &ApiError| (DIALECT.error)(error)["error"]["param"].clone();
    assert_eq!(told(&ApiError::bad("messages", "m")), "input");
    assert_eq!(told(&ApiError::unsupported("messages", "m")), "messages");
    assert_eq!(told(&ApiError::bad("tools", "m")), "tools");
}

//! Requests as they are read, and whole streams as they are written.

use serde_json::{Value, json};
use tokenmill_engine::constraint::Constraint;
use tokenmill_engine::{StopReason, TokenInfo, Usage};
use tokenmill_output::Piece;

use super::catalogue::{Form, Known};
use super::members::{IGNORED, REFUSED, TAKEN};
use super::request::{self, Asked, Style};
use super::writer::Answer;
use super::{items, read};
use crate::ask::{Choice, Head, Input, Writer};
use crate::config::Limits;
use crate::conversation::{Calling, Conversation};
use crate::error::ApiError;
use crate::fields::{Fields, Notes};
use crate::seal::{Kind, Seal};

/// A request read, and what was told of it.
fn asked(body: Value, seal: &Seal) -> Result<(Asked, Vec<String>), ApiError> {
    let mut notes = Notes::new(false).sealed_by(seal.clone());
    let asked = request::read(Fields::of(body, "")?, &Limits::default(), &mut notes)?;
    Ok((asked, notes.into_list()))
}

fn talk(asked: &Asked) -> &Conversation {
    match &asked.ask.input {
        Input::Conversation(talk) => talk,
        Input::Prompts { .. } => panic!("a conversation"),
    }
}

/// The messages of an input as templates get them, and what was told.
fn messages(input: Value) -> (Vec<Value>, Vec<String>) {
    let (asked, notes) = asked(json!({ "input": input }), &Seal::default()).expect("read");
    (talk(&asked).values(false), notes)
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
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
            "input[0].content[0]",
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
    let told = [
        "tools[1].format: the model is told the grammar, and not yet held to it",
        "tools[4] was ignored: this server runs no web_search",
    ];
    assert_eq!(notes, told);
    let custom = &talk(&asked).tools.offered[1];
    assert_eq!(custom.parameters["required"], json!(["input"]));
    assert!(custom.description.as_ref().is_some_and(|d| d.ends_with("start: \"a\"")));
    let values = talk(&asked).values(false);
    assert_eq!(values[1]["tool_calls"][0]["function"]["name"], "agents__f");
    assert_eq!(values[4]["content"], "These tools can be called now: found");
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

/// A head without warnings.
fn head() -> Head {
    Head { ticket: 0xab, created: 7, model: "m".into(), prompts: 1, choices: 1, ..Head::default() }
}

const USAGE: Usage = Usage {
    prompt_tokens: 5,
    cached_tokens: 3,
    disk_tokens: 0,
    leased_tokens: 0,
    completion_tokens: 4,
    reasoning_tokens: 2,
    accepted_drafts: 0,
    rejected_drafts: 0,
};

/// The events of an answer, checked for their form, and the response they end with.
fn streamed(style: &Style, pieces: &[Piece], finish: StopReason) -> (Vec<Value>, Value) {
    let mut answer = Answer::new(head(), style.clone());
    let mut out = String::new();
    answer.open(&mut out);
    pieces.iter().for_each(|piece| answer.piece(0, piece, &[], &mut out));
    answer.done(0, &finish, &mut out);
    answer.close(USAGE, &mut out);
    let mut events = Vec::new();
    for (number, text) in out.split_terminator("\n\n").enumerate() {
        let (name, data) = text.split_once('\n').expect("two lines");
        let event: Value = serde_json::from_str(&data["data: ".len()..]).expect("JSON");
        assert_eq!(name, format!("event: {}", event["type"].as_str().expect("a type")));
        assert_eq!(event["sequence_number"], number);
        events.push(event);
    }
    let last = events.last().expect("events")["response"].clone();
    let done: Vec<&Value> =
        events.iter().filter(|e| e["type"] == "response.output_item.done").collect();
    let items: Vec<&Value> = done.iter().map(|event| &event["item"]).collect();
    assert_eq!(json!(items), last["output"], "what came is what is told at the end");
    for (index, event) in done.iter().enumerate() {
        assert_eq!(event["output_index"], index);
    }
    // The whole says the same.
    let mut choice = Choice { finish: Some(finish), ..Choice::default() };
    pieces.iter().for_each(|piece| choice.add(piece.clone()));
    let mut whole = Answer::new(head(), style.clone()).whole(&[choice], USAGE);
    // (A seal of the same text is the same, for its ticket and number are.)
    assert_eq!(whole, last);
    whole.take();
    (events, last)
}

fn names(events: &[Value]) -> Vec<&str> {
    let name = |event: &'_ Value| event["type"].as_str().expect("a type").len();
    events
        .iter()
        .map(|e| &e["type"].as_str().expect("a type")["response.".len()..name(e)])
        .collect()
}

#[test]
fn a_text_is_a_message_with_every_event() {
    let pieces = [Piece::Text("Hel".into()), Piece::Text("lo".into())];
    let (events, last) = streamed(&Style::default(), &pieces, StopReason::EndOfText);
    let order = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(names(&events), order);
    let id = "msg_00000000000000ab000";
    let empty = json!({ "type": "output_text", "text": "", "annotations": [], "logprobs": [] });
    let part = json!({ "type": "output_text", "text": "Hello", "annotations": [], "logprobs": [] });
    let item = |status: &str, content: Value| {
        json!({
            "type": "message", "id": id, "role": "assistant", "content": content, "status": status,
        })
    };
    let place = json!({ "item_id": id, "output_index": 0, "content_index": 0 });
    let of = |number: u64, name: &str, members: Value| {
        let mut event = json!({ "type": format!("response.{name}"), "sequence_number": number });
        for more in [place.clone(), members] {
            event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        }
        event
    };
    assert_eq!(events[2]["item"], item("in_progress", json!([])));
    assert_eq!(events[3], of(3, "content_part.added", json!({ "part": empty })));
    assert_eq!(events[4], of(4, "output_text.delta", json!({ "delta": "Hel", "logprobs": [] })));
    assert_eq!(events[6], of(6, "output_text.done", json!({ "text": "Hello", "logprobs": [] })));
    assert_eq!(events[7], of(7, "content_part.done", json!({ "part": part })));
    assert_eq!(events[8]["item"], item("completed", json!([part])));
    assert_eq!(events[0]["response"]["status"], "in_progress");
    assert_eq!(events[0]["response"]["output"], json!([]));
    assert_eq!(
        (&last["status"], &last["id"]),
        (&json!("completed"), &json!("resp_00000000000000ab"))
    );
    let usage = json!({
        "input_tokens": 5,
        "input_tokens_details": {
            "cached_tokens": 3, "cache_write_tokens": 0, "disk_tokens": 0, "leased_tokens": 0,
        },
        "output_tokens": 4,
        "output_tokens_details": { "reasoning_tokens": 2 },
        "total_tokens": 9,
    });
    assert_eq!(last["usage"], usage);
}

/// A style whose tools are one of each form.
fn style() -> Style {
    let known = |offered: &str, form, name: &str, namespace: Option<&str>| Known {
        offered: offered.into(),
        form,
        name: name.into(),
        namespace: namespace.map(str::to_owned),
    };
    let tools = vec![
        known("agents__close", Form::Function, "close", Some("agents")),
        known("exec", Form::Custom, "exec", None),
        known("tool_search", Form::Search, "tool_search", None),
    ];
    Style { tools, ..Style::default() }
}

fn called(name: &str, arguments: &[&str]) -> Vec<Piece> {
    let mut pieces = vec![Piece::CallStart { name: name.into() }];
    pieces.extend(arguments.iter().map(|text| Piece::CallArguments((*text).into())));
    pieces.push(Piece::CallEnd);
    pieces
}

#[test]
fn reasoning_text_and_calls_are_items_in_their_order() {
    let mut pieces = vec![Piece::Reasoning("th".into()), Piece::Reasoning("ink".into())];
    pieces.extend([Piece::Text("\n\n".into()), Piece::Text("Let me.".into())]);
    pieces.extend(called("agents__close", &["{\"a\":", " 1}"]));
    pieces.push(Piece::Text("\n".into()));
    pieces.extend(called("exec", &["{\"input\": \"a\\", "nb\"}"]));
    pieces.extend(called("tool_search", &["{\"query\": \"x\"}"]));
    pieces.extend(called("other", &[]));
    let (events, last) = streamed(&style(), &pieces, StopReason::Calls);
    let order = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "output_item.added",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(names(&events), order);
    let output = json!([
        { "type": "reasoning", "id": "rs_00000000000000ab000", "summary": [],
          "content": [{ "type": "reasoning_text", "text": "think" }],
          "encrypted_content": null, "status": "completed" },
        { "type": "message", "id": "msg_00000000000000ab001", "role": "assistant", "content": [
            { "type": "output_text", "text": "\n\nLet me.", "annotations": [], "logprobs": [] },
          ], "status": "completed" },
        { "type": "function_call", "id": "fc_00000000000000ab002",
          "call_id": "call_00000000000000ab002", "name": "close", "arguments": "{\"a\": 1}",
          "namespace": "agents", "status": "completed" },
        { "type": "custom_tool_call", "id": "ctc_00000000000000ab003",
          "call_id": "call_00000000000000ab003", "name": "exec", "input": "a\nb",
          "status": "completed" },
        { "type": "tool_search_call", "id": "tsc_00000000000000ab004",
          "call_id": "call_00000000000000ab004", "execution": "client",
          "arguments": { "query": "x" }, "status": "completed" },
        { "type": "function_call", "id": "fc_00000000000000ab005",
          "call_id": "call_00000000000000ab005", "name": "other", "arguments": "{}",
          "status": "completed" },
    ]);
    assert_eq!(last["output"], output);
    let deltas: Vec<&Value> =
        events.iter().filter(|e| e["type"] == "response.custom_tool_call_input.delta").collect();
    assert_eq!((&deltas[0]["delta"], &deltas[1]["delta"]), (&json!("a"), &json!("\nb")));
}

#[test]
fn what_is_thought_may_be_a_summary_and_sealed() {
    let seal = Seal::random();
    let style = Style { summary: true, sealed: true, seal: seal.clone(), ..style() };
    let pieces = [Piece::Reasoning("think".into()), Piece::Text("t".into())];
    let (events, last) = streamed(&style, &pieces, StopReason::EndOfText);
    let order = [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ];
    assert_eq!(names(&events)[..8], order);
    assert_eq!(events[4]["summary_index"], 0);
    let item = &last["output"][0];
    assert_eq!(item["summary"], json!([{ "type": "summary_text", "text": "think" }]));
    let sealed = item["encrypted_content"].as_str().expect("sealed");
    assert_eq!(seal.open(Kind::Reasoning, sealed).as_deref(), Some("think"));
    // It comes back as what was thought, whatever the summary says by then.
    let mut item = item.clone();
    item["summary"] = json!([]);
    let body = json!({ "input": [user("q"), item, { "role": "assistant", "content": "t" }] });
    let (asked, notes) = asked(body, &seal).expect("read");
    assert_eq!(talk(&asked).values(false)[1]["reasoning_content"], "think");
    assert_eq!(notes, Vec::<String>::new());
}

#[test]
fn an_answer_that_is_cut_is_incomplete() {
    let (events, last) = streamed(&style(), &[Piece::Text("t".into())], StopReason::Length);
    assert_eq!(names(&events).last(), Some(&"incomplete"));
    assert_eq!(last["status"], "incomplete");
    assert_eq!(last["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    assert_eq!(last["output"][0]["status"], "incomplete");
    // A call that was cut never says that its arguments are whole.
    let pieces = [Piece::CallStart { name: "f".into() }, Piece::CallArguments("{\"a".into())];
    let (events, last) = streamed(&style(), &pieces, StopReason::Length);
    assert!(!names(&events).contains(&"function_call_arguments.done"));
    assert_eq!(last["output"][0]["status"], "incomplete");
    // What ended before the cut has ended.
    let pieces = called("agents__close", &["{}"]);
    let (_, last) = streamed(&style(), &pieces, StopReason::Length);
    assert_eq!(
        (&last["output"][0]["status"], &last["status"]),
        (&json!("completed"), &json!("incomplete"))
    );
    // An answer without a word is a message without one.
    let (events, last) = streamed(&style(), &[], StopReason::EndOfText);
    assert_eq!(names(&events).len(), 8);
    assert_eq!(last["output"][0]["content"][0]["text"], "");
}

#[test]
fn a_compaction_is_one_item_whatever_the_model_says() {
    let seal = Seal::random();
    let trigger = json!({ "type": "compaction_trigger" });
    let tools = json!([{ "type": "function", "name": "f" }]);
    let body = json!({ "input": [user("q"), trigger], "tools": tools, "tool_choice": "required" });
    let (first, _) = asked(body, &seal).expect("read");
    let offered = &talk(&first).tools;
    assert_eq!((offered.calling, offered.callable().count()), (Calling::Auto, 0));
    assert!(offered.shown().is_some(), "the prompt begins as it did");
    let values = talk(&first).values(false);
    assert_eq!((values.len(), &values[0]), (2, &user("q")));
    let mut pieces = vec![Piece::Reasoning("r".into()), Piece::Text("It was ".into())];
    pieces.extend(called("f", &["{}"]));
    pieces.push(Piece::Text("so.".into()));
    let (events, last) = streamed(&first.style, &pieces, StopReason::EndOfText);
    let order = [
        "created",
        "in_progress",
        "output_item.added",
        "compaction.compacting",
        "compaction.compacting",
        "output_item.done",
        "completed",
    ];
    assert_eq!(names(&events), order);
    let output = last["output"].as_array().expect("items");
    assert_eq!((output.len(), &output[0]["type"]), (1, &json!("compaction")));
    let body = json!({ "input": [output[0], user("go on")] });
    let (next, notes) = asked(body, &seal).expect("read");
    let values = talk(&next).values(false);
    assert!(values[0]["content"].as_str().is_some_and(|text| text.ends_with("\n\nIt was so.")));
    assert_eq!((values.len(), notes), (2, Vec::new()));
    // Without a word it is an item all the same.
    let (_, last) = streamed(&first.style, &[], StopReason::Length);
    assert_eq!(last["output"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_failure_ends_the_stream_with_its_reason() {
    let mut answer = Answer::new(head(), Style::default());
    let mut out = String::new();
    answer.fail(&ApiError::internal(), &mut out);
    let data = out.trim_end().split_once("data: ").expect("data").1;
    let event: Value = serde_json::from_str(data).expect("JSON");
    assert_eq!(
        (&event["type"], &event["response"]["status"]),
        (&json!("response.failed"), &json!("failed"))
    );
    assert_eq!(event["response"]["error"]["code"], "server_error");
    assert!(out.starts_with("event: response.failed\n"));
}

#[test]
fn log_probabilities_come_with_their_text() {
    let token = |bytes: &[u8]| TokenInfo {
        id: 1,
        bytes: bytes.to_vec(),
        logprob: Some(-0.5),
        top: Vec::new(),
    };
    let mut answer = Answer::new(Head { logprobs: true, ..head() }, Style::default());
    let mut out = String::new();
    let (e, acute) = (token(&[0xc3]), token(&[0xa9]));
    answer.piece(0, &Piece::Text("a".into()), &[token(b"a")], &mut out);
    answer.piece(0, &Piece::Text(String::new()), &[e], &mut out);
    answer.piece(0, &Piece::Text("é".into()), &[acute], &mut out);
    answer.done(0, &StopReason::EndOfText, &mut out);
    answer.close(USAGE, &mut out);
    let told: Vec<usize> = out
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str::<Value>(data).expect("JSON"))
        .filter(|event| event["type"] == "response.output_text.delta")
        .map(|event| event["logprobs"].as_array().map_or(0, Vec::len))
        .collect();
    assert_eq!(told, [1, 2]);
}

/// Members of `ResponseCreateParams` and `InputTokenCountParams` of openai-python 3.57.0.
const CLIENT: &[&str] = &[
    "access_programs",
    "background",
    "background_options",
    "context_management",
    "conversation",
    "image",
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "moderation",
    "parallel_tool_calls",
    "personality",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
];

#[test]
fn every_member_of_the_official_client_is_known() {
    let taken = TAKEN.iter().map(|(name, _)| *name);
    let known: Vec<&str> =
        taken.chain(IGNORED.iter().map(|i| i.name)).chain(REFUSED.iter().map(|u| u.name)).collect();
    for name in CLIENT {
        assert_eq!(known.iter().filter(|known| *known == name).count(), 1, "{name}");
    }
    for (name, _) in TAKEN {
        let mut notes = Notes::new(true);
        let body = Fields::of(json!({ "input": "a", *name: "?" }), "").expect("an object");
        if let Err(error) = read(body, &Limits::default(), &mut notes) {
            assert_ne!(error.code, Some("unknown_field"), "{name}");
        }
    }
}

#[test]
fn the_page_says_what_becomes_of_every_member_and_item() {
    let page = include_str!("../../../../../docs/responses.md");
    let mut rows: Vec<String> = Vec::new();
    rows.extend(TAKEN.iter().map(|(name, effect)| format!("| `{name}` | taken | {effect} |")));
    rows.extend(IGNORED.iter().map(|i| format!("| `{}` | warned of | {} |", i.name, i.because)));
    rows.extend(REFUSED.iter().map(|u| format!("| `{}` | refused |", u.name)));
    rows.extend(items::ITEMS.iter().map(|(name, effect)| format!("| `{name}` | {effect} |")));
    for row in &rows {
        assert!(page.contains(row.as_str()), "docs/responses.md lacks: {row}");
    }
    assert_eq!(page.matches("\n| `").count(), rows.len(), "and has no other");
}

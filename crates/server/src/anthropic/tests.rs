//! How requests are read: conversations, tools, and every member of docs/anthropic.md.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::answer::Shape;
use super::error_body;
use super::messages::{Budget, finish, generate};
use crate::ask::{Generate, Input};
use crate::config::Limits;
use crate::conversation::{Calling, Conversation};
use crate::error::ApiError;
use crate::fields::{Fields, Notes};
use crate::openai::page::judge;

const PAGE: &str = include_str!("../../../../docs/anthropic.md");
const MEMBERS: &str = include_str!("../../../../tests/http/fixtures/anthropic-members.txt");

/// What a request is read as.
#[derive(Debug, PartialEq)]
struct Told {
    ask: Generate,
    shape: Shape,
    stream: bool,
    notes: Vec<String>,
}

fn told(body: Value) -> Result<Told, ApiError> {
    let (mut fields, mut notes) = (Fields::of(body, "")?, Notes::new(false));
    let read = generate(&mut fields, &Limits::default(), &mut notes, Budget::OfAnswer);
    let (ask, shape) = read?;
    let stream = fields.flag("stream")?.unwrap_or(false);
    finish(fields, &mut notes)?;
    Ok(Told { ask, shape, stream, notes: notes.into_list() })
}

fn talk(told: &Told) -> &Conversation {
    match &told.ask.input {
        Input::Conversation(talk) => talk,
        _ => panic!("no conversation"),
    }
}

/// The conversation of messages as templates get it, and what was told.
fn said(body: Value) -> (Vec<Value>, Vec<String>, bool) {
    let told = told(body.clone()).unwrap_or_else(|e| panic!("{body}: {e:?}"));
    (talk(&told).values(false), told.notes.clone(), talk(&told).continues)
}

#[test]
fn every_status_has_its_type() {
    for (status, kind) in [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (408, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ] {
        let error = ApiError::new(StatusCode::from_u16(status).unwrap(), "m");
        let told = json!({ "type": kind, "message": "m" });
        assert_eq!(error_body(&error), json!({ "type": "error", "error": told }), "{status}");
    }
}

#[test]
fn a_prompt_that_is_too_long_says_so_in_numbers() {
    let told = error_body(&ApiError::context_length(9000, 4096, "messages"));
    let message = told["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("prompt is too long: 9000 tokens > 4096 maximum"), "{message}");
    let told = error_body(&ApiError::context_length(1024, 1024, "messages")).to_string();
    assert!(told.contains("prompt is too long: 1024 tokens > 1023 maximum"), "{told}");
}

#[test]
fn messages_become_what_templates_want() {
    let text = |text: &str| json!({ "type": "text", "text": text });
    let user = |content: Value| json!({ "role": "user", "content": content });
    let assistant = |content: Value| json!({ "role": "assistant", "content": content });
    let system = |content: Value| json!({ "role": "system", "content": content });
    let tool = |id: &str, content: &str| json!({ "role": "tool", "content": content, "name": "f", "tool_call_id": id });
    let used = |id: &str| json!({ "type": "tool_use", "id": id, "name": "f", "input": { "a": 1 } });
    let found = |id: &str, content: Value| json!({ "type": "tool_result", "tool_use_id": id, "content": content });
    let call = |id: &str| json!({ "id": id, "type": "function", "function": { "name": "f", "arguments": { "a": 1 } } });
    let calls = |content: Value, ids: &[&str]| {
        let calls: Vec<Value> = ids.iter().map(|id| call(id)).collect();
        json!({ "role": "assistant", "content": content, "tool_calls": calls })
    };
    let failed =
        json!({ "type": "tool_result", "tool_use_id": "y", "content": "no", "is_error": true });
    let thought = json!({ "type": "thinking", "thinking": "t", "signature": "s" });
    let thinking = json!({ "role": "assistant", "content": "a", "reasoning_content": "t" });
    let cases = [
        (vec![user(json!("q"))], vec![user(json!("q"))]),
        (vec![user(json!([text("q")]))], vec![user(json!("q"))]),
        (vec![user(json!([text("q"), text("r")]))], vec![user(json!([text("q"), text("r")]))]),
        // What one says in a row is one message, a reminder stays where it is.
        (
            vec![user(json!("q")), user(json!("r")), system(json!("s")), user(json!("t"))],
            vec![user(json!([text("q"), text("r")])), system(json!("s")), user(json!("t"))],
        ),
        (
            vec![
                user(json!("q")),
                assistant(json!([text("a"), used("toolu_1"), used("toolu_2")])),
                user(json!([
                    found("toolu_1", json!("1")),
                    found("toolu_2", json!([text("2")])),
                    text("r")
                ])),
            ],
            vec![
                user(json!("q")),
                calls(json!("a"), &["call00000", "call00001"]),
                tool("call00000", "1"),
                tool("call00001", "2"),
                user(json!("r")),
            ],
        ),
        (
            vec![
                user(json!("q")),
                assistant(json!([used("x")])),
                user(json!([found("x", Value::Null)])),
                assistant(json!([used("y")])),
                user(json!([failed])),
            ],
            vec![
                user(json!("q")),
                calls(Value::Null, &["call00000"]),
                tool("call00000", ""),
                calls(Value::Null, &["call00001"]),
                tool("call00001", "Error: no"),
            ],
        ),
        (
            vec![user(json!("q")), assistant(json!([thought, text("a")])), user(json!("r"))],
            vec![user(json!("q")), thinking, user(json!("r"))],
        ),
        (
            vec![user(json!([{ "type": "compaction", "content": "so far" }, text("q")]))],
            vec![user(json!([text("so far"), text("q")]))],
        ),
    ];
    for (messages, expect) in cases {
        let (values, notes, continues) = said(json!({ "messages": messages }));
        assert_eq!(values, expect, "{messages:?}");
        assert_eq!((notes, continues), (vec![], false), "{messages:?}");
    }
}

#[test]
fn instructions_come_first_without_who_asks() {
    let block = |text: &str| json!({ "type": "text", "text": text });
    let header = "x-anthropic-billing-header: cc_version=2.1; cch=00000;";
    for (system, expect) in [
        (Value::Null, None),
        (json!("s"), Some(json!("s"))),
        (json!([block("s")]), Some(json!("s"))),
        (json!([block(header), block("s")]), Some(json!("s"))),
        (json!([block("a"), block(header), block("b")]), Some(json!([block("a"), block("b")]))),
        (json!([block(header)]), None),
    ] {
        let question = json!([{ "role": "user", "content": "q" }]);
        let (values, notes, _) = said(json!({ "system": system, "messages": question }));
        let first = values.first().filter(|value| value["role"] == "system");
        assert_eq!(first.map(|value| &value["content"]), expect.as_ref(), "{system}");
        assert_eq!((values.len(), notes.len()), (1 + usize::from(expect.is_some()), 0));
    }
}

#[test]
fn the_last_message_may_be_begun() {
    let with = |content: Value| {
        json!({ "messages": [
            { "role": "user", "content": "q" }, { "role": "assistant", "content": content },
        ] })
    };
    let (values, notes, continues) = said(with(json!("{")));
    assert_eq!((values.len(), notes.len(), continues), (2, 0, true));
    for empty in [json!(""), json!([]), json!([{ "type": "redacted_thinking", "data": "x" }])] {
        let (values, notes, continues) = said(with(empty));
        assert_eq!((values.len(), continues), (1, false));
        assert!(notes.last().is_some_and(|note| note.contains("the last message")), "{notes:?}");
    }
    let called = json!([{ "type": "tool_use", "id": "x", "name": "f", "input": {} }]);
    assert_eq!(told(with(called)).unwrap_err().param.as_deref(), Some("messages"));
}

#[test]
fn a_choice_says_what_may_be_called() {
    let tool = |name: &str| json!({ "name": name, "input_schema": { "type": "object" } });
    let only = |name: &str| Some(vec![name.to_owned()]);
    for (choice, calling, names, single) in [
        (Value::Null, Calling::Auto, None, false),
        (json!({ "type": "auto" }), Calling::Auto, None, false),
        (json!({ "type": "auto", "disable_parallel_tool_use": true }), Calling::Auto, None, true),
        (json!({ "type": "any" }), Calling::Required, None, false),
        (
            json!({ "type": "any", "disable_parallel_tool_use": true }),
            Calling::Required,
            None,
            true,
        ),
        (json!({ "type": "tool", "name": "g" }), Calling::Required, only("g"), true),
        (json!({ "type": "none" }), Calling::None, None, false),
    ] {
        let question = json!([{ "role": "user", "content": "q" }]);
        let tools = json!([tool("f"), { "type": "bash_20250124", "name": "bash" }, tool("g")]);
        let body = json!({ "messages": question, "tools": tools, "tool_choice": choice });
        let told = told(body).expect("read");
        let tools = &talk(&told).tools;
        assert_eq!((tools.calling, &tools.only, tools.single), (calling, &names, single));
        assert_eq!(tools.offered.len(), 2, "{choice}");
        assert_eq!(told.notes, ["tools[1] was ignored: this server has no tool bash_20250124"]);
    }
}

#[test]
fn the_longest_mark_holds_wherever_it_is() {
    let mark = |ttl: &str| json!({ "type": "ephemeral", "ttl": ttl });
    let body = json!({
        "system": [{ "type": "text", "text": "s", "cache_control": mark("5m") }],
        "tools": [{ "name": "f", "input_schema": {}, "cache_control": mark("1h") }],
        "messages": [{ "role": "user", "content": [
            { "type": "text", "text": "q", "cache_control": { "type": "ephemeral" } },
        ] }],
    });
    let lease = told(body).expect("read").ask.manner.lease.expect("a lease");
    assert_eq!((lease.ttl, lease.name), (Duration::from_secs(3600), 0));
}

/// A request in which every place of a member is there.
fn full() -> Value {
    json!({
        "model": "m",
        "max_tokens": 100,
        "system": [{ "type": "text", "text": "s" }],
        "cache_control": { "type": "ephemeral" },
        "thinking": { "type": "adaptive" },
        "output_config": { "format": { "type": "json_schema", "schema": {} } },
        "tools": [{ "name": "f", "input_schema": {} }, { "name": "g", "input_schema": {} }],
        "tool_choice": { "type": "any" },
        "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "q" }] },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "t", "signature": "s" },
                { "type": "tool_use", "id": "x", "name": "f", "input": {} },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "x", "content": [
                    { "type": "tool_reference", "tool_name": "f" },
                ] },
            ] },
        ],
    })
}

/// The rows of a table of the page: its cells without the quotes.
fn rows(section: &str) -> Vec<Vec<String>> {
    let start = format!("\n## {section}\n");
    let text = PAGE.split(&start).nth(1).unwrap_or_else(|| panic!("no section {section}"));
    let text = text.split("\n## ").next().unwrap_or_default();
    let cell = |cell: &str| cell.trim().trim_matches('`').replace("\\|", "|");
    let row = |line: &str| line.trim_matches('|').split(" | ").map(cell).collect();
    text.lines().filter(|line| line.starts_with("| `")).map(row).collect()
}

/// Sets a member: in the object at `path`, or that object itself where the example is all of it.
fn set(body: &mut Value, path: &str, example: Value) {
    let (parent, name) = path.rsplit_once('.').map_or((None, path), |(p, n)| (Some(p), n));
    let place = match parent {
        None => body,
        Some(parent) => {
            let pointer = format!("/{}", parent.replace("[]", ".0").replace('.', "/"));
            if body.pointer(&pointer).is_none() {
                body[parent] = json!({});
            }
            body.pointer_mut(&pointer).expect("a place")
        }
    };
    match example.as_object().filter(|all| parent.is_some() && all.contains_key(name)) {
        Some(all) => *place = json!(all),
        None => place[name] = example,
    }
}

/// Holds what the page says of a request beside the full one against what is read.
fn check(row: &[String], body: Value, becomes: &str) {
    let (plain, read) = (told(full()).expect("the full request"), told(body));
    judge(row, becomes, plain, read, |told| std::mem::take(&mut told.notes));
}

#[test]
fn the_page_says_of_every_member_what_becomes_of_it() {
    let rows = rows("Members of a request");
    for row in &rows {
        let example: Value =
            serde_json::from_str(&row[1]).unwrap_or_else(|e| panic!("{row:?}: {e}"));
        let mut body = full();
        set(&mut body, &row[0], example);
        check(row, body, &row[2]);
    }
    assert!(rows.len() > 40);
}

#[test]
fn the_page_says_of_every_block_what_becomes_of_it() {
    for row in rows("Blocks") {
        let mut block: Value =
            serde_json::from_str(&row[2]).unwrap_or_else(|e| panic!("{row:?}: {e}"));
        block["type"] = json!(row[0]);
        let mut body = full();
        let place = match row[1].as_str() {
            "user" => "/messages/0/content",
            "assistant" => "/messages/1/content",
            "result" => "/messages/2/content/0/content",
            other => panic!("{other:?} says nothing"),
        };
        body.pointer_mut(place).and_then(Value::as_array_mut).expect("blocks").push(block);
        check(&row, body, &row[3]);
    }
}

#[test]
fn the_page_says_of_every_member_of_blocks_what_becomes_of_it() {
    let places = [
        ("text", "/messages/0/content/0"),
        ("thinking", "/messages/1/content/0"),
        ("tool_use", "/messages/1/content/1"),
        ("tool_result", "/messages/2/content/0"),
        ("tool_reference", "/messages/2/content/0/content/0"),
    ];
    for row in rows("Members of blocks") {
        let (block, member) = row[0].split_once('.').expect("a block and its member");
        let example: Value =
            serde_json::from_str(&row[1]).unwrap_or_else(|e| panic!("{row:?}: {e}"));
        let mut body = full();
        let place = places.iter().find(|(name, _)| *name == block).expect("a block").1;
        body.pointer_mut(place).expect("its place")[member] = example;
        check(&row, body, &row[2]);
    }
}

#[test]
fn the_page_leaves_out_nothing_that_the_client_can_ask() {
    let members: Vec<Vec<String>> =
        ["Members of a request", "Members of blocks"].iter().flat_map(|s| rows(s)).collect();
    let blocks = rows("Blocks");
    let mut tools = 0;
    for line in MEMBERS.lines().filter(|line| !line.starts_with('#')) {
        let tool = line.strip_prefix("tools[").and_then(|rest| rest.strip_suffix(']'));
        if let Some(kind) = tool {
            let mut body = full();
            let tool = json!({ "type": kind, "name": "h" });
            body["tools"].as_array_mut().expect("tools").push(tool);
            let notes = told(body).expect("read").notes;
            assert!(notes[0].contains(kind), "{line}: {notes:?}");
            tools += 1;
            continue;
        }
        let named = |rows: &[Vec<String>], name: &str| rows.iter().any(|row| row[0] == name);
        match line.strip_prefix("block ") {
            Some(block) => assert!(named(&blocks, block), "no row of the block {block}"),
            None => assert!(named(&members, line), "no row of {line}"),
        }
    }
    assert!(tools > 20, "{tools}");
}

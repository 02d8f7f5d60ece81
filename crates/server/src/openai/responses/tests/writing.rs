//! Whole streams, made of pieces by hand.

use serde_json::{Value, json};
use tokenmill_engine::{StopReason, TokenInfo, Usage};
use tokenmill_output::Piece;

use super::super::catalogue::{Form, Known};
use super::super::request::Style;
use super::super::writer::Answer;
use super::{asked, talk, user};
use crate::ask::{Choice, Head, Writer};
use crate::conversation::Calling;
use crate::error::ApiError;
use crate::seal::{Kind, Seal};

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
    // (A seal of the same text is the same, for its ticket and number are.)
    assert_eq!(Answer::new(head(), style.clone()).whole(&[choice], USAGE), last);
    (events, last)
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["type"].as_str()?.strip_prefix("response.")).collect()
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
    let seal = Seal::new(None);
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
    let seal = Seal::new(None);
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
        "output_item.done",
        "completed",
    ];
    let mut found = names(&events);
    found.dedup();
    assert_eq!(found, order);
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

#[test]
fn the_whole_has_the_log_probabilities_of_the_stream() {
    let token = |id: u32| TokenInfo { id, bytes: vec![b'x'], logprob: Some(-0.5), top: Vec::new() };
    let text = |text: &str| Piece::Text(text.into());
    let cases = [
        (vec![text("a"), Piece::Reasoning("r".into()), text("\n"), text("b")], vec![1, 2]),
        (vec![text("a"), text(""), Piece::Reasoning("r".into()), text("b")], vec![2, 1]),
        (vec![text("a"), text("")], vec![2]),
        (vec![text("")], vec![1]),
        (vec![Piece::Reasoning("r".into()), text("\n"), text("b")], vec![2]),
    ];
    for (pieces, expect) in cases {
        let head = Head { logprobs: true, ..head() };
        let mut answer = Answer::new(head.clone(), Style::default());
        let (mut out, mut choice) = (String::new(), Choice::default());
        for (id, piece) in (0..).zip(&pieces) {
            answer.piece(0, piece, &[token(id)], &mut out);
            choice.add(piece.clone());
            choice.tell(vec![token(id)]);
        }
        answer.done(0, &StopReason::EndOfText, &mut out);
        answer.close(USAGE, &mut out);
        let last = out.trim_end().rsplit("data: ").next().expect("an event");
        let last: Value = serde_json::from_str(last).expect("JSON");
        choice.finish = Some(StopReason::EndOfText);
        let whole = Answer::new(head, Style::default()).whole(&[choice], USAGE);
        assert_eq!(whole, last["response"], "{pieces:?}");
        let output = whole["output"].as_array().expect("items");
        let messages = output.iter().filter(|item| item["type"] == "message");
        let told = |item: &Value| item["content"][0]["logprobs"].as_array().map_or(0, Vec::len);
        let told: Vec<usize> = messages.map(told).collect();
        assert_eq!(told.iter().sum::<usize>(), expect.iter().sum::<usize>(), "{pieces:?}");
        assert!(told.contains(&expect[0]), "{told:?} {pieces:?}");
    }
}

#[test]
fn a_call_that_broke_off_is_incomplete() {
    let broken =
        [Piece::CallStart { name: "agents__close".into() }, Piece::CallArguments("{\"a".into())];
    for (next, finish) in [
        (vec![Piece::Text("no".into())], StopReason::EndOfText),
        (vec![Piece::Reasoning("no".into())], StopReason::EndOfText),
        (called("other", &["{}"]), StopReason::Calls),
    ] {
        let pieces = [&broken[..], &next].concat();
        let (events, last) = streamed(&style(), &pieces, finish);
        let whole = names(&events).iter().filter(|n| **n == "function_call_arguments.done").count();
        assert_eq!(whole, usize::from(next.len() > 1), "{next:?}");
        assert_eq!(last["output"][0]["status"], "incomplete");
        assert_eq!(last["output"][1]["status"], "completed");
    }
}

//! Answers drawn from masks alone where a request asks for more than calls: a document in the place
//! of calls, and texts of calls that hold a client's grammar.

mod answers;
mod drawn;

use std::sync::Arc;

use answers::{joined, read, tools};
use drawn::{Draws, HELD, Tokens, compiled, draw, is_valid, leads, takes};
use serde_json::{Value, json};
use tokenmill_grammar::{Constraint, Grammar, Settings, compile};
use tokenmill_output::{Ask, Calls, Format, INPUT, Parser, Tool};

/// Answers drawn for each row and way to ask.
const ANSWERS: usize = 4;

/// Patches, as an agent describes them.
const PATCH: &str = include_str!("../../grammar/tests/patch.lark");

fn ask<'a>(
    tools: &'a [Tool],
    special: &'a dyn Fn(&str) -> Option<u32>,
    (calls, parallel, begun): (Calls, bool, bool),
) -> Ask<'a> {
    Ask { tools, calls, parallel, reasons: true, reasoning_begun: begun, special }
}

/// A tool that is called with a text of that grammar.
fn with_text(what: Constraint) -> Arc<[Tool]> {
    let schema = json!({
        "type": "object", "properties": { INPUT: { "type": "string" } }, "required": [INPUT],
        "additionalProperties": false,
    });
    let mut tool = tools(&[("apply_patch", schema)])[0].clone();
    tool.input = Some(what);
    Arc::new([tool])
}

/// Whether a grammar takes a text in bytes.
fn holds(grammar: &Grammar, text: &str) -> bool {
    let ids: Vec<u32> = text.bytes().map(u32::from).collect();
    let mut matcher = grammar.start();
    takes(&mut matcher, &ids) && matcher.may_end()
}

fn own(what: &Constraint) -> Grammar {
    let tokens = Tokens::new(Format::PLAIN, false);
    compile(what, &tokens.vocabulary, &Settings::default()).unwrap()
}

#[test]
fn texts_of_calls_hold_the_grammar_of_their_tool() {
    let sums = "start: sum\nsum: INT (\" + \" INT)* \"\\n\"?\n%import common.INT";
    let nested = "start: list\nlist: \"[\" list* \"]\" | /[a-z\\u00e9]+/";
    let (mut ended, mut read_back) = (0, 0);
    for (at, row) in HELD.iter().enumerate() {
        let format = Format::named(row).unwrap();
        for (way, what) in [
            Constraint::Lark(PATCH.into()),
            Constraint::Lark(sums.into()),
            Constraint::Regex("[a-c\"\\\\\n]{2,9}".into()),
            Constraint::Lark(nested.into()),
        ]
        .into_iter()
        .enumerate()
        {
            let (tools, client) = (with_text(what.clone()), own(&what));
            if let Err(why) = format.holds_input(&tools[0]) {
                assert!(way == 3 && why.contains("circle"), "{row}: {why}");
                continue;
            }
            for are_special in [false, true] {
                let tokens = Tokens::new(format, are_special);
                let special = |text: &str| tokens.id(text);
                let calls = if are_special { Calls::Required } else { Calls::Auto };
                let ask = ask(&tools, &special, (calls, false, false));
                let grammar = compiled(&format.hold(&ask).unwrap(), &tokens);
                let grammar = grammar.unwrap_or_else(|refused| panic!("{row} {way}: {refused}"));
                let mut leads = leads(format);
                let marks = ["*** Begin Patch", "*** End Patch", "*** Add File: a", "\\n", "+x"];
                leads.extend(marks.map(str::to_owned));
                let mut draws = Draws((at * 8 + way * 2) as u64 + 1 + u64::from(are_special));
                for _ in 0..ANSWERS {
                    let Some(text) = draw(&grammar, &tokens, &leads, &mut draws) else { continue };
                    ended += 1;
                    let answer = joined(&read(row, &tools, false, [text.as_str()], false));
                    let told = format!("{row} {way} {are_special}: {text:?}: {answer:?}");
                    assert_eq!(answer.cut, None, "{told}");
                    for (_, arguments) in &answer.calls {
                        let arguments: Value = serde_json::from_str(arguments).expect(&told);
                        let input = arguments[INPUT].as_str().expect(&told);
                        // (Lexemes of the client's own grammar are the longest there are.)
                        let is_held = way == 3 || holds(&client, input);
                        assert!(is_held, "{told}: {input:?}");
                        read_back += 1;
                    }
                }
            }
        }
    }
    assert!(ended > 280 && read_back > 170, "{ended} ended, {read_back} calls");
}

#[test]
fn an_answer_is_calls_or_the_document() {
    let tools = tools(&[
        ("get_time", json!({"type": "object", "properties": {}, "additionalProperties": false})),
        (
            "look",
            json!({"type": "object", "properties": {"at": {"enum": ["a", "b"]}},
            "required": ["at"], "additionalProperties": false}),
        ),
    ]);
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"},
        "n": {"type": "integer"}}, "required": ["name", "n"], "additionalProperties": false});
    let what = Constraint::JsonSchema(schema.clone());
    let (mut documents, mut called) = (0, 0);
    for (at, row) in HELD.iter().enumerate() {
        let format = Format::named(row).unwrap();
        for way in 0..4 {
            let (parallel, begun, are_special) = (way & 1 == 0, way == 3, way & 1 == 1);
            let tokens = Tokens::new(format, are_special);
            let special = |text: &str| tokens.id(text);
            let ask = ask(&tools, &special, (Calls::Auto, parallel, begun));
            let Some(constraint) = format.hold_either(&what, &ask) else {
                assert!(["llama3", "llama4"].contains(row), "{row}");
                continue;
            };
            let grammar = compiled(&constraint, &tokens);
            let grammar = grammar.unwrap_or_else(|refused| panic!("{row} {way}: {refused}"));
            let leads = [leads(format), vec!["{\"name\": \"".into(), "{".into()]].concat();
            let mut draws = Draws((at * 4 + way) as u64 + 1);
            for _ in 0..ANSWERS {
                let Some(text) = draw(&grammar, &tokens, &leads, &mut draws) else { continue };
                let parser = Parser::new(format, tools.clone(), begun);
                let mut parser = parser.keep_reasoning().calls_first();
                let mut pieces = Vec::new();
                parser.push(&text, &mut pieces);
                parser.finish(false, &mut pieces);
                let answer = joined(&pieces);
                let told = format!("{row} {way}: {text:?}: {answer:?}");
                assert_eq!(answer.cut, None, "{told}");
                if answer.calls.is_empty() {
                    let document = serde_json::from_str(&answer.content).expect(&told);
                    assert!(jsonschema::is_valid(&schema, &document), "{told}");
                    documents += 1;
                    continue;
                }
                assert_eq!(answer.content.trim(), "", "{told}");
                assert!(parallel || answer.calls.len() == 1, "{told}");
                for (name, arguments) in &answer.calls {
                    assert!(is_valid(&tools, name, arguments), "{told}");
                }
                called += 1;
            }
        }
    }
    assert!(documents > 60 && called > 60, "{documents} documents, {called} with calls");
}

/// A mark in the document is a part of it.
#[test]
fn calls_come_first_or_not_at_all() {
    let tools = tools(&[("f", json!({"type": "object", "properties": {}}))]);
    for (row, text) in [
        ("qwen3-coder", "{\"a\": \"<tool_call><function=f></function></tool_call>\"}"),
        ("hermes", "{\"a\": 1}<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"),
        (
            "harmony",
            "<|channel|>final<|message|>\"<|start|>assistant<|channel|>commentary to=functions.f\
             <|message|>{}<|call|>\"",
        ),
    ] {
        let read = |calls_first: bool| {
            let parser = Parser::new(Format::named(row).unwrap(), tools.clone(), false);
            let mut parser = if calls_first { parser.calls_first() } else { parser };
            let mut pieces = Vec::new();
            parser.push(text, &mut pieces);
            parser.finish(false, &mut pieces);
            joined(&pieces)
        };
        let answer = read(true);
        assert!(answer.calls.is_empty() && text.ends_with(&answer.content), "{row}: {answer:?}");
        assert_eq!(read(false).calls.len(), 1, "{row}");
    }
}

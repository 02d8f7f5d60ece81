//! Answers drawn from the masks of a row's grammar alone: its parser reads calls in them, whole, of
//! offered tools, with arguments that another's validator finds valid.

mod answers;
mod drawn;

use std::sync::Arc;

use answers::{joined, read, tools};
use drawn::{Draws, HELD, Tokens, draw, grammar_of, is_valid, leads, takes};
use serde_json::{Value, json};
use tokenmill_grammar::{Constraint, Grammar, Settings, compile};
use tokenmill_output::{Ask, Calls, Format, Tool, enforceable};

/// Answers drawn for each row and way to ask.
const ANSWERS: usize = 8;

fn offered() -> Arc<[Tool]> {
    tools(&[
        ("get_time", json!({"type": "object", "properties": {}, "additionalProperties": false})),
        (
            "write-file",
            json!({"type": "object", "additionalProperties": false, "required": ["path", "mode"],
            "properties": {
                "path": {"type": "string"},
                "mode": {"enum": ["new", "append"]},
                "lines": {"type": "integer"},
                "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
                "keep": {"type": "boolean"},
            }}),
        ),
    ])
}

fn grammar(format: &Format, tokens: &Tokens, calls: Calls, parallel: bool, begun: bool) -> Grammar {
    let grammar = grammar_of(&offered(), format, tokens, (calls, parallel, begun));
    grammar.unwrap_or_else(|refused| panic!("{}: {refused}", format.name))
}

#[test]
fn answers_that_are_held_have_calls_of_offered_tools() {
    let tools = offered();
    let (mut ended, mut called) = (0, 0);
    for (at, row) in HELD.iter().enumerate() {
        let format = Format::named(row).unwrap();
        let leads = leads(format);
        for way in 0..16 {
            let (calls, parallel) =
                (if way & 1 == 0 { Calls::Required } else { Calls::Auto }, way & 2 == 0);
            let (begun, are_special) = (way & 4 == 0, way & 8 == 0);
            let tokens = Tokens::new(format, are_special);
            let grammar = grammar(format, &tokens, calls, parallel, begun);
            let mut draws = Draws((at * 16 + way) as u64 + 1);
            for _ in 0..ANSWERS {
                let Some(text) = draw(&grammar, &tokens, &leads, &mut draws) else {
                    continue;
                };
                ended += 1;
                let answer = joined(&read(row, &tools, begun, [text.as_str()], false));
                let told = format!("{row} {calls:?} {parallel} {begun} {are_special}: {text:?}");
                called += answer.calls.len();
                for (name, arguments) in &answer.calls {
                    assert!(is_valid(&tools, name, arguments), "{told}: {name} {arguments}");
                }
                assert_eq!(answer.cut, None, "{told}");
                if calls == Calls::Required {
                    assert!(!answer.calls.is_empty(), "{told}: {answer:?}");
                }
                assert!(parallel || answer.calls.len() <= 1, "{told}: {answer:?}");
            }
        }
    }
    assert!(ended > 1500 && called > 1000, "{ended} ended, {called} calls");
}

const NAMES: &[&str] = &[
    "f",
    "_f",
    "f-1",
    "a.b",
    "a=b",
    "a,b",
    "a;b",
    "a:b",
    "a:1",
    "3d",
    "srv/do",
    "a b",
    "a>b",
    "é",
    "functions.f",
    "user",
    "\"",
    "a\nb",
    "<|x|>",
    "a{",
    "",
];
const KEYS: &[&str] = &[
    "k",
    "k-1",
    "é",
    "3d",
    "a b",
    " k",
    "k ",
    "a>b",
    "a\nb",
    "a\"",
    "a:b",
    "a=b",
    "a{",
    "",
    "$k",
    "</arg_key>",
    "a.b",
];

/// A tool that can be called has calls that its row's reader reads, whatever its name and keys.
#[test]
fn names_and_keys_are_written_as_they_are_read() {
    let schema = |key: &str| {
        json!({"type": "object", "additionalProperties": false, "required": [key],
            "properties": {key: {"type": "integer"}}})
    };
    let names = NAMES.iter().map(|name| (*name, schema("k")));
    let all: Vec<_> = names.chain(KEYS.iter().map(|key| ("f", schema(key)))).collect();
    for row in HELD {
        let format = Format::named(row).unwrap();
        let (tokens, leads) = (Tokens::new(format, true), leads(format));
        let mut draws = Draws(1);
        for (name, schema) in &all {
            let told = format!("{row}: {name:?} {schema}");
            let tools = tools(&[(name, schema.clone())]);
            if !format.can_call(&tools[0]) {
                let (special, calls) = (&|text: &str| tokens.id(text), Calls::Auto);
                let (parallel, reasons, reasoning_begun) = (false, false, false);
                let ask = Ask { tools: &tools, calls, parallel, reasons, reasoning_begun, special };
                assert_eq!(format.hold(&ask), None, "{told}");
                continue;
            }
            let grammar =
                grammar_of(&tools, format, &tokens, (Calls::Required, false, false)).unwrap();
            let text = (0..8).find_map(|_| draw(&grammar, &tokens, &leads, &mut draws)).unwrap();
            let answer = joined(&read(row, &tools, false, [text.as_str()], false));
            assert_eq!(answer.calls.len(), 1, "{told}: {text:?}");
            assert_eq!(answer.calls[0].0, *name, "{told}: {text:?}");
            assert!(is_valid(&tools, name, &answer.calls[0].1), "{told}: {text:?}");
        }
    }
}

#[test]
fn tools_that_can_be_called() {
    for (row, name, key, can) in [
        ("hermes", "a=b, \"c\"", "a\nb>", true),
        ("hermes", "", "k", false),
        ("harmony", "srv/do", "a>b", true),
        ("harmony", "user", "k", false),
        ("qwen3-coder", "srv/do", "a b", true),
        ("qwen3-coder", "a=b", "k", false),
        ("qwen3-coder", "f", "a>b", false),
        ("qwen3-coder", "f", "a\nb", false),
        ("glm45", "f", "a>b", true),
        ("mistral-v11", "a,b", "k", false),
        ("gemma", "a;b", "k", false),
        ("gemma", "f", "a-b", true),
        ("kimi-k2", "a:b", "{}", true),
        ("lfm2", "a.b-c", "k-1", true),
        ("lfm2", "3d", "k", false),
        ("llama4", "srv/do", "k", false),
        ("llama4", "f", "a b", false),
        ("plain", "f", "k", false),
    ] {
        let format = Format::named(row).unwrap();
        let tools = tools(&[(name, json!({"properties": {key: {"type": "string"}}}))]);
        assert_eq!(format.can_call(&tools[0]), can, "{row}: {name:?} {key:?}");
    }
    let listed = tools(&[("f", json!({"properties": {"k": {"enum": ["a</parameter>"]}}}))]);
    assert!(!Format::named("qwen3-coder").unwrap().can_call(&listed[0]));
    assert!(Format::named("glm45").unwrap().can_call(&listed[0]));
}

/// One tool that cannot be called takes none of the others along.
#[test]
fn a_tool_that_cannot_be_called_is_left_out() {
    let tools = tools(&[("f", json!({})), ("a=b", json!({})), ("g", json!({}))]);
    let format = Format::named("qwen3-coder").unwrap();
    let tokens = Tokens::new(format, true);
    let grammar = grammar_of(&tools, format, &tokens, (Calls::Required, false, false)).unwrap();
    for (name, is_taken) in [("f", true), ("a=b", false), ("g", true)] {
        let call = format!("<tool_call>\n<function={name}>\n</function>\n</tool_call>");
        assert_eq!(takes(&mut grammar.start(), &tokens.ids(&call)), is_taken, "{name}");
    }
}

#[test]
fn what_a_grammar_takes() {
    let held = |row: &str, calls, text: &str| {
        let format = Format::named(row).unwrap();
        let tokens = Tokens::new(format, true);
        let mut matcher = grammar(format, &tokens, calls, true, false).start();
        takes(&mut matcher, &tokens.ids(text)) && matcher.may_end()
    };
    let call = "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>";
    let other = "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>";
    for (row, calls, text, is_taken) in [
        ("hermes", Calls::Auto, "Text.", true),
        ("hermes", Calls::Required, "Text.", false),
        ("hermes", Calls::Auto, "Write <tool_call> first.", true),
        ("hermes", Calls::Auto, &format!("Text {call} more {call}"), true),
        ("hermes", Calls::Required, &format!("<think>a</think>\n\n{call}\n{call}"), true),
        ("hermes", Calls::Required, &format!("{call} more"), false),
        ("hermes", Calls::Auto, other, false),
        ("hermes", Calls::Auto, &format!("<think>a {other} b</think>c"), true),
        ("hermes", Calls::Auto, &format!("<think>a</think>{other}"), false),
        ("llama3", Calls::Auto, "{\"name\": \"get_time\", \"parameters\": {}}", true),
        ("llama3", Calls::Auto, "{\"name\": \"other\", \"parameters\": {}}", false),
        ("llama3", Calls::Auto, "{\"total\": 1}", true),
        ("mistral-v11", Calls::Auto, "Yes.[TOOL_CALLS]get_time[ARGS]{}", true),
        ("mistral-v11", Calls::Auto, "Yes.[TOOL_CALLS]other[ARGS]{}", false),
        ("qwen3-coder", Calls::Auto, "Use <function=NAME>.", true),
        ("qwen3-coder", Calls::Auto, "Now <function=get_time>\n</function>", true),
        ("qwen3-coder", Calls::Auto, "Now <function=get_time> is", false),
        ("llama4", Calls::Auto, "[get_time(), get_time()]", true),
        ("llama4", Calls::Auto, "[1] says", true),
        ("llama4", Calls::Auto, "[get_time() says", false),
        ("lfm2", Calls::Required, "<|tool_call_start|>[get_time()]<|tool_call_end|>", true),
        ("gemma", Calls::Auto, "A <|tool_call>call:get_time{}<tool_call|>", true),
        ("gemma", Calls::Auto, "A <|tool_call>call:other{}<tool_call|>", false),
        ("deepseek-v3", Calls::Auto, "<｜tool▁call▁begin｜>other", false),
        ("command", Calls::Auto, "<|START_RESPONSE|>Hi.<|END_RESPONSE|>", true),
        ("harmony", Calls::Auto, "<|channel|>final<|message|>Hi.", true),
        ("harmony", Calls::Required, "<|channel|>final<|message|>Hi.", false),
    ] {
        assert_eq!(held(row, calls, text), is_taken, "{row} {calls:?}: {text}");
    }
}

#[test]
fn rows_without_a_grammar_say_so() {
    let tools = offered();
    for row in ["plain", "think"] {
        let ask = Ask {
            tools: &tools,
            calls: Calls::Required,
            parallel: true,
            reasons: true,
            reasoning_begun: false,
            special: &|_| None,
        };
        assert_eq!(Format::named(row).unwrap().hold(&ask), None, "{row}");
    }
}

#[test]
fn what_cannot_be_enforced_is_left_out() {
    let tokens = Tokens::new(Format::PLAIN, false);
    let whole = |schema: &Value| enforceable(schema, &tokens.vocabulary, &Settings::default());
    let schema = json!({"properties": {
        "a": {"type": "string", "not": {"const": "x"}}, "b": {"type": "integer"}
    }, "required": ["b"], "if": {}, "then": {"required": ["a"]}});
    let (rest, left_out) = whole(&schema);
    assert_eq!(rest["properties"], json!({"a": {"type": "string"}, "b": {"type": "integer"}}));
    assert_eq!((&rest["required"], &rest["type"]), (&json!(["b"]), &json!("object")));
    assert!(left_out.iter().any(|name| name == "not at /properties/a"), "{left_out:?}");
    let (rest, left_out) = whole(&json!({"type": "object", "properties": {"a": {"type": "odd"}}}));
    assert_eq!(left_out.len(), 1, "{left_out:?}");
    assert!(rest["type"] == "object" && rest["properties"]["a"].get("type").is_none(), "{rest}");
    assert_eq!(whole(&json!({})), (json!({"type": "object"}), vec![]));
}

#[test]
fn many_tools_with_many_parameters_can_be_held() {
    let parameter = |at: usize| {
        let kind = ["string", "integer", "boolean", "number"][at % 4];
        (format!("p{at}"), json!({"type": kind, "description": format!("number {at}")}))
    };
    let properties: serde_json::Map<String, Value> = (0..8).map(parameter).collect();
    let schema = json!({"type": "object", "properties": properties, "required": ["p0"]});
    let names: Vec<String> = (0..60).map(|at| format!("tool_{at}")).collect();
    let list: Vec<(&str, Value)> = names.iter().map(|n| (n.as_str(), schema.clone())).collect();
    let tools = tools(&list);
    for row in HELD {
        let format = Format::named(row).unwrap();
        let tokens = Tokens::new(format, true);
        let special = |text: &str| tokens.id(text);
        for calls in [Calls::Auto, Calls::Required] {
            let ask = Ask {
                tools: &tools,
                calls,
                parallel: true,
                reasons: true,
                reasoning_begun: false,
                special: &special,
            };
            let constraint = format.hold(&ask).unwrap();
            let grammar = compile(&constraint, &tokens.vocabulary, &Settings::default());
            grammar.unwrap_or_else(|refused| panic!("{row} {calls:?}: {refused}"));
        }
    }
}

/// What is asked of an answer holds behind its reasoning, which stays free.
#[test]
fn reasoning_stays_free_before_what_is_asked() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let held = |row: &str, what: &Constraint, begun, text: &str| {
        let format = Format::named(row).unwrap();
        let tokens = Tokens::new(format, true);
        let special = |text: &str| tokens.id(text);
        let (calls, special) = (Calls::Auto, &special);
        let ask = Ask {
            tools: &[],
            calls,
            parallel: false,
            reasons: true,
            reasoning_begun: begun,
            special,
        };
        let constraint = format.behind_reasoning(what, &ask).unwrap();
        let grammar = compile(&constraint, &tokens.vocabulary, &Settings::default()).unwrap();
        let mut matcher = grammar.start();
        takes(&mut matcher, &tokens.ids(text)) && matcher.may_end()
    };
    let (schema, choice) =
        (Constraint::JsonSchema(schema), Constraint::Choice(vec!["yes".into(), "no".into()]));
    for (row, what, begun, text, is_taken) in [
        ("think", &schema, false, "{\"a\":1}", true),
        ("think", &schema, false, "{\"a\":\"1\"}", false),
        ("think", &schema, false, "<think>{\"a\"</think>\n\n{\"a\":1}", true),
        ("think", &schema, false, "<think>{\"a\":1}", false),
        ("think", &schema, true, "hm</think>{\"a\":1}", true),
        ("think", &schema, true, "{\"a\":1}", false),
        ("hermes", &choice, true, "hm</think>\nno", true),
        ("hermes", &choice, true, "hm</think>\nperhaps", false),
        ("mistral-v11", &choice, false, "[THINK]hm[/THINK]yes", true),
        ("harmony", &schema, false, "<|channel|>final<|message|>{\"a\":1}", true),
        ("harmony", &schema, false, "<|channel|>final<|message|>a", false),
        (
            "harmony",
            &schema,
            false,
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>{\"a\":1}",
            true,
        ),
    ] {
        assert_eq!(held(row, what, begun, text), is_taken, "{row}: {text}");
    }
    let none = |text: &str| text.is_empty().then_some(0);
    let ask = Ask {
        tools: &[],
        calls: Calls::Auto,
        parallel: false,
        reasons: true,
        reasoning_begun: true,
        special: &none,
    };
    let regex = Constraint::Regex("a".into());
    assert_eq!(Format::named("think").unwrap().behind_reasoning(&regex, &ask), None);
    assert_eq!(Format::named("llama3").unwrap().behind_reasoning(&choice, &ask), None);
}

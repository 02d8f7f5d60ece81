//! Answers and schemas made to cost their square, or worse: they are read as any other.

mod answers;

use answers::{tools, whole};
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tokenmill_grammar::{Settings, Vocabulary, Whitespace, compile};
use tokenmill_output::{Ask, Calls, Format, MOST_HELD, Tool};

const BLANKS: usize = 300_000;

/// White space wherever a mark may follow.
#[test]
fn long_white_space_is_read_in_one_pass() {
    let tools = tools(&[("f", json!({"properties": {"text": {"type": "string"}}}))]);
    let blanks = " ".repeat(BLANKS);
    for (row, text, calls) in [
        ("hermes", "<tool_call>{\"name\": \"f\"}~</tool_call>", 1),
        ("hermes", "<tool_call>{\"name\": \"f\"}~x", 1),
        ("kimi-k2", "<|tool_calls_section_begin|>~<|tool_call_begin|>functions.f:0", 0),
        ("qwen3-coder", "<function=f>~<parameter=text>~</parameter>~</function>", 1),
        ("glm45", "<tool_call>f~<arg_key>text</arg_key>~<arg_value>a</arg_value>~</tool_call>", 1),
        ("harmony", "~<|start|>assistant<|channel|>final<|message|>a", 0),
    ] {
        let text = text.replace('~', &blanks);
        assert_eq!(whole(row, &tools, &text).calls.len(), calls, "{row}");
    }
}

/// Each definition refers to the next by many ways.
fn fan(alternatives: &str) -> Value {
    let mut defs = serde_json::Map::new();
    for at in 0..32 {
        let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
        defs.insert(format!("d{at}"), json!({ alternatives: vec![next; 12] }));
    }
    defs.insert("d32".to_owned(), json!({"type": "integer"}));
    let ways = vec![json!({"anyOf": [{"$ref": "#/$defs/d31"}]}); 3];
    json!({"properties": {"n": {"anyOf": ways}, "deep": {"$ref": "#/$defs/d0"}}, "$defs": defs})
}

#[test]
fn schemas_that_branch_are_followed_once() {
    for alternatives in ["anyOf", "allOf", "oneOf"] {
        let tools = tools(&[("f", fan(alternatives))]);
        let text = "<function=f>\n<parameter=n>\n3\n</parameter>\n\
            <parameter=deep>\nx\n</parameter>\n</function>";
        let answer = whole("qwen3-coder", &tools, text);
        assert_eq!(answer.calls[0].1, "{\"n\": 3, \"deep\": \"x\"}");
    }
    // Without references, a tree of alternatives.
    let mut tree = json!({"type": "integer"});
    for _ in 0..10 {
        tree = json!({"anyOf": [tree, tree]});
    }
    let tools = tools(&[("f", json!({"properties": {"n": tree}}))]);
    let text = "<function=f>\n".to_owned() + &"<parameter=n>\n3\n</parameter>\n".repeat(2000);
    let answer = whole("qwen3-coder", &tools, &(text + "</function>"));
    assert_eq!(answer.calls[0].1, "{\"n\": 3}");
}

/// Definitions stand in the grammar of each parameter that refers to one, up to a length.
#[test]
fn a_grammar_too_long_is_none() {
    let hold = |properties: usize| {
        let defs = json!({"d": {"type": "object", "required": vec!["a".repeat(20_000)]}});
        let properties: serde_json::Map<String, Value> = (0..properties)
            .map(|at| (format!("p{at}"), json!({"$ref": "#/$defs/d", "maxProperties": at})))
            .collect();
        let tools = tools(&[("f", json!({"properties": properties, "$defs": defs}))]);
        let ask = Ask {
            tools: &tools,
            calls: Calls::Required,
            parallel: true,
            reasons: false,
            reasoning_begun: false,
            special: &|_| None,
        };
        Format::named("lfm2").unwrap().hold(&ask)
    };
    assert!(hold(4).is_some());
    assert_eq!(hold(60), None);
    assert_eq!(hold(20_000), None);
}

fn many(count: usize) -> Arc<[Tool]> {
    let schema = json!({"type": "object", "required": ["path"], "properties": {
        "path": {"type": "string"}, "line": {"type": "integer", "minimum": 1},
        "mode": {"enum": ["read", "write", "append"]}, "deep": {"type": "array", "items": {
            "type": "object", "properties": {"x": {"type": "number"}}}}}});
    let names: Vec<String> = (0..count).map(|at| format!("server_{}__tool_{at}", at % 7)).collect();
    tools(&names.iter().map(|name| (name.as_str(), schema.clone())).collect::<Vec<_>>())
}

fn no_token(_: &str) -> Option<u32> {
    None
}

fn ask(tools: &[Tool], calls: Calls) -> Ask<'_> {
    let (parallel, reasons, reasoning_begun) = (true, false, false);
    Ask { tools, calls, parallel, reasons, reasoning_begun, special: &no_token }
}

/// As many tools as agents with many servers offer. How long it takes is printed, not asserted.
#[test]
fn hundreds_of_tools_hold() {
    let bytes = (0..=255u8).map(|b| vec![b]).chain([b"<end>".to_vec()]);
    let vocabulary = Arc::new(Vocabulary::new(bytes, &[256], &[256]).unwrap());
    let whitespace = Whitespace::Separators { item: ", ".into(), key: ": ".into() };
    let settings = Settings { whitespace, ..Settings::default() };
    for (row, call, count) in [
        (
            "hermes",
            "<tool_call>\n{\"name\": \"~\", \"arguments\": {\"path\": \"a\"}}\n</tool_call>",
            512,
        ),
        (
            "qwen3-coder",
            "<tool_call>\n<function=~>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>",
            200,
        ),
        ("llama3", "{\"name\": \"~\", \"parameters\": {\"path\": \"a\"}}", 200),
    ] {
        for calls in [Calls::Auto, Calls::Required] {
            let Some(format) = Format::named(row) else { panic!("no row {row}") };
            let (few, tools) = (many(1), many(count));
            let start = Instant::now();
            let constraint = format.hold(&ask(&tools, calls)).expect("a grammar");
            let grammar = compile(&constraint, &vocabulary, &settings);
            let grammar = grammar.unwrap_or_else(|e| panic!("{row} {calls:?}: {e}"));
            let compiled = start.elapsed();
            let says = |text: &str| {
                let mut matcher = grammar.start();
                text.bytes().all(|b| matcher.accept(u32::from(b)).is_ok()) && matcher.may_end()
            };
            let last = call.replace('~', &tools[count - 1].name);
            assert!(says(&last), "{row} {calls:?}");
            assert!(!says(&call.replace('~', "server_0__tool_9999")), "{row} {calls:?}");
            let (mut matcher, mut longest) = (grammar.start(), std::time::Duration::ZERO);
            let (mut bits, mut work, start) = (vec![0; vocabulary.words()], 0, Instant::now());
            for b in last.bytes() {
                let (start, before) = (Instant::now(), matcher.work());
                matcher.mask(&mut bits).unwrap();
                longest = longest.max(start.elapsed());
                work = work.max(matcher.work() - before);
                matcher.accept(u32::from(b)).unwrap();
            }
            println!(
                "{row} {calls:?}, {count} tools: compiled {compiled:?}, {} masks {:?}, longest {longest:?}, {work} units",
                last.len(),
                start.elapsed()
            );
            assert!(format.hold(&ask(&few, calls)).is_some());
            assert_eq!(format.hold(&ask(&many(MOST_HELD + 1), calls)), None, "too many");
        }
    }
}

/// A list that many parameters refer to is looked at so often, and no more.
#[test]
fn a_long_list_of_many_parameters_cannot_be_called() {
    let row = Format::named("qwen3-coder").unwrap();
    let can_call = |parameters: usize| {
        let list: Vec<String> = (0..20_000).map(|at| at.to_string()).collect();
        let properties: serde_json::Map<String, Value> =
            (0..parameters).map(|at| (format!("p{at}"), json!({"$ref": "#/$defs/e"}))).collect();
        let schema = json!({"properties": properties, "$defs": {"e": {"enum": list}}});
        row.can_call(&tools(&[("f", schema)])[0])
    };
    assert!(can_call(2));
    assert!(!can_call(10_000));
}

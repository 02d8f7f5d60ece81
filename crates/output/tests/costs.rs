//! Answers and schemas made to cost their square, or worse: they are read as any other.

mod answers;

use answers::{tools, whole};
use serde_json::{Value, json};
use tokenmill_output::{Ask, Calls, Format};

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

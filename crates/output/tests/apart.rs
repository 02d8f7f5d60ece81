//! The rules that hold for rows, each with texts of its own: what looks like a call and is none,
//! what is cut, where marks are data.

mod answers;

use answers::{Answer, at_every_split, joined, read, some, tools};
use serde_json::{Value, json};
use tokenmill_output::{FORMATS, Format, Parser, Piece};

/// An answer to be expected: calls as `name arguments`, arguments as JSON.
fn expect(format: &str, text: &str, reasoning: &str, content: &str, calls: &[(&str, Value)]) {
    check(format, false, text, false, reasoning, content, calls);
}

fn check(
    format: &str,
    begun: bool,
    text: &str,
    cut: bool,
    reasoning: &str,
    content: &str,
    calls: &[(&str, Value)],
) {
    let answer = at_every_split(format, &some(&["f", "g"]), begun, text, cut);
    let got: Vec<(String, Value)> = answer
        .calls
        .iter()
        .map(|(name, text)| (name.clone(), serde_json::from_str(text).expect(text)))
        .collect();
    let expect: Vec<(String, Value)> =
        calls.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    assert_eq!(got, expect, "{format}: {text:?}");
    assert_eq!(answer.reasoning, reasoning, "{format}: {text:?}");
    assert_eq!(answer.content, content, "{format}: {text:?}");
}

/// A call of `f` with a text and a number in every row that has calls, whole.
fn calls() -> Vec<(String, String)> {
    let line = |line: &str| {
        let call: Value = serde_json::from_str(line).unwrap();
        (call["row"].as_str().unwrap().to_owned(), call["text"].as_str().unwrap().to_owned())
    };
    include_str!("calls.jsonl").lines().map(line).collect()
}

fn is_one(answer: &Answer) -> bool {
    let arguments = json!({"text": "é }", "count": 2});
    matches!(&answer.calls[..], [(name, text)] if name == "f"
        && serde_json::from_str::<Value>(text).is_ok_and(|value| value == arguments))
}

#[test]
fn every_row_has_a_call() {
    let rows = FORMATS.iter().map(|format| format.name);
    for row in rows.filter(|row| !matches!(*row, "plain" | "think")) {
        assert!(calls().iter().any(|(name, _)| *name == row), "{row}");
    }
    for (format, text) in &calls() {
        let answer = at_every_split(format, &some(&["f"]), false, text, false);
        assert!(is_one(&answer), "{format}: {text}: {answer:?}");
        assert_eq!((answer.content.as_str(), answer.reasoning.as_str()), ("", ""), "{format}");
    }
}

/// Cut by the limit at every character: nothing of the call is text, and no call is whole before
/// its last argument.
#[test]
fn a_cut_call_is_no_text_and_not_whole() {
    for (format, text) in &calls() {
        let marks_end = text.find("f").unwrap_or(0);
        for at in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
            let part = &text[..at];
            let answer = joined(&read(format, &some(&["f"]), false, [part], true));
            assert_eq!(answer.reasoning, "", "{format}: {part:?}");
            // The beginning of a mark alone can be text.
            let is_begun = at > marks_end + 30.min(text.len() / 3);
            assert!(answer.content.is_empty() || !is_begun, "{format}: {part:?}: {answer:?}");
            let is_whole = part.contains('2');
            assert!(is_whole || answer.calls.is_empty(), "{format}: {part:?}: {answer:?}");
        }
    }
}

/// Where the model stops inside a call it is none: all of it is text.
#[test]
fn what_is_not_whole_when_the_model_stops_is_text() {
    for (format, text) in calls().iter().filter(|(format, _)| *format != "harmony") {
        for at in (1..text.len()).filter(|at| text.is_char_boundary(*at)) {
            let part = &text[..at];
            let answer = joined(&read(format, &some(&["f"]), false, [part], false));
            if answer.calls.is_empty() {
                assert_eq!(answer.content.trim(), part.trim(), "{format}");
            } else if answer.calls[0].1 == "{}" {
                // Only a mark that arguments follow stands behind the name.
                assert!(part.trim_end().ends_with(['>', ']', 'n']), "{format}: {part:?}");
            } else {
                let is_told = part.contains("é }") && !answer.content.contains("é }");
                assert!(is_told, "{format}: {part:?}");
            }
        }
    }
}

#[test]
fn without_tools_all_is_text() {
    for (format, text) in calls().iter().filter(|(format, _)| *format != "harmony") {
        let answer = at_every_split(format, &some(&[]), false, text, false);
        assert_eq!((answer.content.as_str(), answer.calls.len()), (text.as_str(), 0), "{format}");
    }
    // A header is never text; the body is.
    let answer = at_every_split(
        "harmony",
        &some(&[]),
        false,
        &calls().iter().find(|(format, _)| format == "harmony").unwrap().1,
        false,
    );
    assert!(answer.calls.is_empty() && !answer.content.contains("to="), "{answer:?}");
}

#[test]
fn text_stands_on_both_sides_of_a_call() {
    for (format, text) in &calls() {
        let bare = text.starts_with(['{', '[']) && format.starts_with("llama");
        if bare || *format == "harmony" {
            continue;
        }
        let text = format!("One. {text}\nTwo.");
        let answer = at_every_split(format, &some(&["f"]), false, &text, false);
        assert!(is_one(&answer), "{format}: {answer:?}");
        assert_eq!(answer.content, "One. \nTwo.", "{format}");
    }
}

#[test]
fn a_mark_in_prose_is_text() {
    for (format, text) in [
        ("hermes", "Write <tool_call> and then JSON."),
        ("hermes", "<tool_call></tool_call> is empty."),
        ("hermes", "<tool_call>{\"nom\": \"f\"}</tool_call>"),
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>"),
        ("hermes", "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>"),
        ("hermes", "`<tool_call>`, `</tool_call>`, <tool_ and <"),
        ("qwen3-coder", "<tool_call>\n{\"name\": \"f\"}\n</tool_call>"),
        ("qwen3-coder", "<function=h>\n<parameter=a>\n1\n</parameter>\n</function>"),
        ("qwen3-coder", "Use <function=NAME> and <parameter=KEY>."),
        ("llama3", "{\"name\": \"h\", \"parameters\": {}}"),
        ("llama3", "{\"f\": {\"name\": \"f\", \"parameters\": {}}}"),
        ("llama3", "[{\"name\": \"f\", \"parameters\": {}}]"),
        ("llama3", "See: {\"name\": \"f\", \"parameters\": {}}"),
        ("llama3", "<|python_tag|>print(1)"),
        ("llama4", "[1] is a source, [f] another."),
        ("llama4", "[f(), h()]"),
        ("llama4", "[]"),
        ("llama4", "Then [f()]"),
        ("mistral", "[TOOL_CALLS] is a mark. [{\"name\": \"f\"}]"),
        ("mistral", "[TOOL_CALLS]{\"name\": \"f\", \"arguments\": {}}"),
        ("mistral-v11", "[TOOL_CALLS] and [ARGS] are marks"),
        ("mistral-v11", "[TOOL_CALLS]f[ARGS] then text"),
        ("deepseek-v3", "<｜tool▁calls▁begin｜> begins calls."),
        ("glm45", "A <tool_call>f and more</tool_call>"),
        ("kimi-k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"),
        ("minimax-m2", "<invoke name=\"f\"></invoke>"),
        ("gemma", "<|tool_call>f{}"),
        ("gemma", "<|tool_call>call:f{a:b c}"),
        ("phi4", "functools is a module of Python; functools[0]"),
        ("lfm2", "<|tool_call_start|>f()"),
        ("lfm2", "<|tool_call_start|>[f(1)]<|tool_call_end|>"),
        ("nemotron", "<TOOLCALL>{\"name\": \"f\"}</TOOLCALL>"),
        ("command", "<|END_RESPONSE|> ends an answer."),
    ] {
        expect(format, text, "", text, &[]);
    }
}

#[test]
fn a_call_follows_what_only_looked_like_one() {
    let call = "<tool_call>{\"name\": \"g\", \"arguments\": {\"count\": 1}}</tool_call>";
    let g = [("g", json!({"count": 1}))];
    expect("hermes", &format!("Use <tool_call> {call}"), "", "Use <tool_call>", &g);
    let broken = "<tool_call>{\"name\": \"f\", \"arguments\": {oops}}</tool_call>";
    expect("hermes", &format!("{broken}{call}"), "", broken, &g);
    let fence = format!("```\n{call}\n```");
    expect("hermes", &fence, "", "```\n\n```", &g);
    let unknown = "<tool_call>{\"name\": \"h\"}</tool_call>";
    expect("hermes", unknown, "", "", &[("h", json!({}))]);
}

#[test]
fn members_of_a_call_come_in_any_order_and_form() {
    for call in [
        r#"{"arguments": {"count": 1}, "name": "f"}"#,
        r#"{"id": "x", "type": "function", "name": "f", "parameters": {"count": 1}}"#,
        r#"{"name" : "f" , "arguments" : "{\"count\": 1}" }"#,
        r#"{"\u006eame": "\u0066", "arguments": {"count": 1}, "extra": [1, {"name": "g"}]}"#,
    ] {
        expect("hermes", &format!("<tool_call>{call}"), "", "", &[("f", json!({"count": 1}))]);
    }
    for call in [
        r#"{"name": "f"}"#,
        r#"{"name": "f", "arguments": null}"#,
        r#"{"name": "f", "arguments": ""}"#,
        r#"{"name": "f", "arguments": {}}"#,
    ] {
        expect("hermes", &format!("<tool_call>{call}</tool_call>"), "", "", &[("f", json!({}))]);
    }
}

#[test]
fn json_goes_on_as_written() {
    let arguments = r#"{"text":"\u00e9\/\n","count":  12345678901234567890.10,"z":[1e5,-0]}"#;
    let text = format!("<tool_call>{{\"name\": \"f\", \"arguments\": {arguments}}}</tool_call>");
    let answer = at_every_split("hermes", &some(&["f"]), false, &text, false);
    assert_eq!(answer.calls, [("f".to_owned(), arguments.to_owned())]);
    let raw = text.replace("\\n", "\n");
    let answer = at_every_split("hermes", &some(&["f"]), false, &raw, false);
    assert_eq!(answer.calls, [("f".to_owned(), arguments.to_owned())]);
}

#[test]
fn reasoning_begins_at_the_start_and_ends_once() {
    expect(
        "think",
        " \n<think>a</think> b </think> <think>c</think>",
        "a",
        "b </think> <think>c</think>",
        &[],
    );
    expect("think", "b<think>a</think>", "", "b<think>a</think>", &[]);
    expect("think", "</think>\n\nb", "", "b", &[]);
    expect("think", "<think> </think>", "", "", &[]);
    expect("think", "<think>a </thin> </thinking> </think>b", "a </thin> </thinking>", "b", &[]);
    expect("think", "  b  \n", "", "  b  \n", &[]);
    expect("think", " ", "", " ", &[]);
    check("think", true, "\n<think>\na</think>b", false, "a", "b", &[]);
    check("think", true, "</think>b", false, "", "b", &[]);
    check("think", true, "a <think> b", false, "a <think> b", "", &[]);
    check("think", true, "a </thi", true, "a </thi", "", &[]);
    expect("granite", "Here's my thought process: a\nHere's my response: b", "a", "b", &[]);
    expect("granite", "Here is my response: b", "", "b", &[]);
    expect("gemma", "<|channel>thought\n<channel|>b", "", "b", &[]);
    expect("mistral-v11", "[THINK]a[/THINK]b [/THINK]", "a", "b [/THINK]", &[]);
}

#[test]
fn a_call_in_reasoning_that_is_not_closed_ends_it() {
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"</think>\"}}</tool_call>";
    let f = [("f", json!({"text": "</think>"}))];
    expect("hermes", &format!("<think>a\n{call}"), "a", "", &f);
    expect("hermes", &format!("<think>a {call} b"), "a", "b", &f);
    check("hermes", true, &format!("a {call}"), true, "a", "", &f);
    let both = [f[0].clone(), f[0].clone()];
    expect("hermes", &format!("<think>a {call}\n{call}"), "a", "", &both);
    // It is closed after all: the call was a thought.
    let thought = format!("a {call} b");
    expect("hermes", &format!("<think>{thought}</think>c"), &thought, "c", &[]);
    let two = format!("{call}{call}");
    expect("hermes", &format!("<think>{two}\n</think>c {call}"), &two, "c", &f);
    // Of no tool on offer, or none at all.
    let unknown = call.replace("\"f\"", "\"h\"").replace("</think>", "x");
    expect("hermes", &format!("<think>a {unknown}"), &format!("a {unknown}"), "", &[]);
    let named = "Say <tool_call> or <tool_call>{}, then <function=f>.";
    check("hermes", true, named, false, named, "", &[]);
    check("qwen3-coder", true, named, false, named, "", &[]);
}

#[test]
fn calls_in_reasoning_can_be_kept_there() {
    let kept = |row: &str, begun, text: &str| {
        let mut parser =
            Parser::new(Format::named(row).unwrap(), some(&["f"]), begun).keep_reasoning();
        let mut pieces = Vec::new();
        text.chars().for_each(|c| parser.push(c.encode_utf8(&mut [0; 4]), &mut pieces));
        parser.finish(false, &mut pieces);
        let answer = joined(&pieces);
        (answer.reasoning, answer.content, answer.calls.len())
    };
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let function = "<function=f>\n</function>";
    let thought = |thought: String, calls| (thought, String::new(), calls);
    assert_eq!(kept("hermes", false, &format!("<think>a {call}")), thought(format!("a {call}"), 0));
    assert_eq!(kept("hermes", true, &format!("a {call} b")), thought(format!("a {call} b"), 0));
    let both = format!("a {call}</think>{call}");
    assert_eq!(kept("hermes", true, &both), thought(format!("a {call}"), 1));
    assert_eq!(kept("hermes", false, call), thought(String::new(), 1));
    assert_eq!(kept("qwen3-coder", true, function), thought(function.to_owned(), 0));
    let message = "<|channel|>analysis to=functions.f<|message|>{}<|call|>";
    assert_eq!(kept("harmony", false, message), thought("{}".to_owned(), 0));
    let message = message.replace("analysis", "commentary");
    assert_eq!(kept("harmony", false, &message), thought(String::new(), 1));
}

#[test]
fn values_in_tags_have_the_type_of_the_schema() {
    let schema = json!({"type": "object", "$defs": {"n": {"type": "integer"}}, "properties": {
        "s": {"type": "string"}, "i": {"type": "integer"}, "b": {"type": "boolean"},
        "n": {"type": "number"}, "o": {"type": "object"}, "l": {"type": "array"},
        "sn": {"type": ["string", "null"]},
        "si": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "r": {"$ref": "#/$defs/n"}, "e": {"enum": [1, "2", null, true]}, "c": {"const": 3},
        "all": {"allOf": [{"type": "integer"}, {"minimum": 1}]}, "any": {},
    }});
    let tools = tools(&[("f", schema)]);
    for (key, text, value) in [
        ("s", "007", json!("007")),
        ("s", " null ", json!(" null ")),
        ("s", "{\"a\": \"\\n\"}\t", json!("{\"a\": \"\\n\"}\t")),
        ("i", "5", json!(5)),
        ("i", " -5.00 ", json!(-5)),
        ("i", "5.5", json!("5.5")),
        ("i", "null", json!("null")),
        ("b", "True", json!(true)),
        ("b", "false", json!(false)),
        ("b", "1", json!("1")),
        ("n", "1e3", json!(1000.0)),
        ("n", "abc", json!("abc")),
        ("o", "{\"a\": [1]}", json!({"a": [1]})),
        ("o", "[1]", json!("[1]")),
        ("l", "[1, {\"b\": null}]", json!([1, {"b": null}])),
        ("l", "[1", json!("[1")),
        ("sn", "null", json!(null)),
        ("sn", "None", json!("None")),
        ("sn", "5", json!("5")),
        ("si", "5", json!(5)),
        ("si", "5x", json!("5x")),
        ("r", "7", json!(7)),
        ("e", "1", json!(1)),
        ("e", "2", json!("2")),
        ("e", "None", json!(null)),
        ("e", "4", json!("4")),
        ("c", "3", json!(3)),
        ("all", "9", json!(9)),
        ("any", "{\"a\": 1}", json!({"a": 1})),
        ("any", "5", json!("5")),
        ("other", "[]", json!([])),
        ("other", "true", json!("true")),
    ] {
        for (row, call) in [
            (
                "minimax-m2",
                format!(
                    "<minimax:tool_call><invoke name=\"f\"><parameter name=\"{key}\">{text}\
                     </parameter></invoke></minimax:tool_call>"
                ),
            ),
            (
                "glm45",
                format!(
                    "<tool_call>f<arg_key>{key}</arg_key><arg_value>{text}</arg_value></tool_call>"
                ),
            ),
            (
                "qwen3-coder",
                format!(
                    "<tool_call><function=f><parameter={key}>\n{text}\n</parameter>\
                     </function></tool_call>"
                ),
            ),
        ] {
            let answer = at_every_split(row, &tools, false, &call, false);
            let arguments: Value = serde_json::from_str(&answer.calls[0].1).unwrap();
            let same = match (&arguments[key], &value) {
                (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
                (a, b) => a == b,
            };
            assert!(same, "{row} {key} {text:?}: {arguments}, not {value}");
        }
    }
}

#[test]
fn slips_of_models_that_are_taken() {
    let f = [("f", json!({"text": "a", "count": 1}))];
    let glm = "<tool_call>f<arg_key>text</arg_key></arg_key><arg_value>a</arg_value>\
               <arg_key>count</arg_key>\n<arg_value>1</arg_value>";
    expect("glm45", glm, "", "", &f);
    let coder =
        "<function=f><parameter=text>a<parameter=count>1</parameter></function></tool_call>";
    expect("qwen3-coder", coder, "", "", &f);
    expect("qwen3-coder", "<tool_call><function=f>\n</function>", "", "", &[("f", json!({}))]);
    let other = "<tool_call><function=f><parameter=text>a<parameter=b></parameter></function>";
    expect("qwen3-coder", other, "", "", &[("f", json!({"text": "a<parameter=b>"}))]);
    let again = "<tool_call><function=f><parameter=text>a</parameter><parameter=text>b</parameter>";
    expect("qwen3-coder", again, "", "", &[("f", json!({"text": "a"}))]);
    let gemma = "<|tool_call>call:f{\"text\":\"a\",<|\"|>count<|\"|>: 1}<tool_call|>";
    expect("gemma", gemma, "", "", &f);
    let ends = "[TOOL_CALLS]f{\"text\": \"a\", \"count\": 1}";
    expect("mistral-v11", ends, "", "", &f);
}

#[test]
fn values_of_python() {
    let wide = r#"{"k": 'a', 2: (1,), "n": ()}"#;
    for (text, value) in [
        ("'it\\'s'", json!("it's")),
        ("\"\\u00e9\\x41\\U0001F914\\ud83e\\udd14\\n\\q\"", json!("éA🤔🤔\n\\q")),
        ("''", json!("")),
        ("'''a'b\n'''", json!("a'b\n")),
        ("-3", json!(-3)),
        ("+4.50", json!(4.5)),
        (".5", json!(0.5)),
        ("1_000", json!(1000)),
        ("2e3", json!(2000.0)),
        ("[True, false, None, null,]", json!([true, false, null, null])),
        ("(1, 2)", json!([1, 2])),
        ("(1)", json!(1)),
        ("((1,), [])", json!([[1], []])),
        (wide, json!({"k": "a", "2": [1], "n": []})),
    ] {
        let call = format!("<|tool_call_start|>[f(any = {text} , lambda=1)]<|tool_call_end|>");
        expect("lfm2", &call, "", "", &[("f", json!({"any": value, "lambda": 1}))]);
    }
    for bad in ["f(any=nan)", "f(any=)", "f(any=1 2)", "f(any=[1)", "f(any=01)", "f(any=x)"] {
        let call = format!("<|tool_call_start|>[{bad}]<|tool_call_end|>");
        expect("lfm2", &call, "", &call, &[]);
    }
}

#[test]
fn messages_of_harmony() {
    let f = |count: i32| ("f", json!({ "count": count }));
    let ends = "<|start|>assistant";
    expect(
        "harmony",
        &format!(
            "<|channel|>analysis<|message|>a<|end|>{ends}<|channel|>analysis<|message|>b\
             <|end|>{ends}<|channel|>final<|message|>c<|return|>"
        ),
        "a\nb",
        "c",
        &[],
    );
    expect("harmony", "Plain text, no header.", "", "Plain text, no header.", &[]);
    expect(
        "harmony",
        "<|channel|>final<|message|>Say to=functions.f and {}",
        "",
        "Say to=functions.f and {}",
        &[],
    );
    expect(
        "harmony",
        "<|channel|>commentary to=functions.f<|message|><|call|>",
        "",
        "",
        &[("f", json!({}))],
    );
    expect("harmony", "<|channel|>final to=user<|message|>a", "", "a", &[]);
    expect(
        "harmony",
        "<|channel|>commentary to=functions.f code<|message|>not JSON<|call|>",
        "",
        "not JSON",
        &[],
    );
    expect(
        "harmony",
        "<|channel|>commentary to=functions.f<|message|>{\"count\": 1",
        "",
        "{\"count\": 1",
        &[],
    );
    let mark = "<|channel|>commentary to=functions.f<|message|>{\"text\": \"<|call|>\"}<|call|>";
    expect("harmony", mark, "", "", &[("f", json!({"text": "<|call|>"}))]);
    let text = format!(
        "<|channel|>commentary to=functions.f<|message|>{{\"count\": 1}}<|call|>{ends} \
         to=functions.f<|channel|>commentary<|message|>{{\"count\": 2}}<|call|>"
    );
    expect("harmony", &text, "", "", &[f(1), f(2)]);
    check(
        "harmony",
        true,
        "a<|end|><|start|>assistant<|channel|>final<|message|>b",
        false,
        "a",
        "b",
        &[],
    );
    check("harmony", false, "<|channel|>final<|message|>a<|en", true, "", "a<|en", &[]);
}

/// Held-back text and work are bounded: a long answer goes out as it comes, and planted beginnings
/// of calls do not cost their square.
#[test]
fn nothing_waits_longer_than_needed() {
    let mut parser = tokenmill_output::Parser::new(
        tokenmill_output::Format::named("hermes").unwrap(),
        some(&["f"]),
        false,
    );
    let mut pieces = Vec::new();
    parser.push("Hello, <b>", &mut pieces);
    assert_eq!(joined(&pieces).content, "Hello, <b>");
    parser.push("<tool_c", &mut pieces);
    assert_eq!(joined(&pieces).content, "Hello, <b>");
    parser.push("all>{\"name\": \"f\", \"arguments\": {\"text\": \"ab", &mut pieces);
    let begun = joined(&pieces).cut.unwrap();
    assert_eq!(begun, ("f".to_owned(), "{\"text\": \"ab".to_owned()));
    let count = pieces.len();
    parser.push("c", &mut pieces);
    assert_eq!(pieces[count..], [Piece::CallArguments("c".to_owned())]);

    let coder = "<tool_call><function=f><parameter=text>\nab";
    let begun = joined(&read("qwen3-coder", &some(&["f"]), false, [coder], true)).cut.unwrap();
    assert_eq!(begun.1, "{\"text\": \"ab");

    for planted in [
        "<tool_call>{\"a\": \"",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\":\"",
        "<tool_call>",
    ] {
        let text = planted.repeat(20_000);
        let answer = joined(&read("hermes", &some(&["f"]), false, [text.as_str()], false));
        assert_eq!(answer.content.len(), text.len(), "{planted}");
    }
}

/// What is made to come at the end of a budget ends the reasoning of each row that has one; what was
/// begun in an answer before is known too.
#[test]
fn reasoning_can_be_ended_in_every_row() {
    let mut without = Vec::new();
    for format in FORMATS {
        let Some(end) = format.end_of_reasoning() else {
            without.push(format.name);
            continue;
        };
        let mut parser = Parser::new(format, some(&["f"]), true);
        let mut pieces = Vec::new();
        assert!(parser.reasons(), "{}", format.name);
        parser.push("hm, <tool", &mut pieces);
        let mut other = parser.clone();
        parser.push(end, &mut pieces);
        assert!(!parser.reasons() && other.reasons(), "{}", format.name);
        parser.push("said", &mut pieces);
        parser.finish(false, &mut pieces);
        let text = |wanted: fn(&&Piece) -> bool| {
            pieces.iter().filter(wanted).map(Piece::text).collect::<String>()
        };
        assert_eq!(text(|p| matches!(p, Piece::Text(_))), "said", "{}", format.name);
        assert_eq!(text(|p| matches!(p, Piece::Reasoning(_))), "hm, <tool", "{}", format.name);
        // The copy goes its own way.
        other.push(" on", &mut pieces);
        assert!(other.reasons(), "{}", format.name);
    }
    assert_eq!(without, ["plain", "llama3", "llama4", "mistral"]);
    let think = Format::named("think").expect("a row");
    for (begun, reasons) in [
        ("<think>\nLet me", true),
        (" <think>", true),
        ("<think>a</think>b", false),
        ("To think, <think>", false),
        ("", false),
    ] {
        assert_eq!(think.reasons_after(begun), reasons, "{begun}");
    }
}

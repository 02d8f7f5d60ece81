//! Schemas of strict tools: what a row says it enforces, it does, by another's validator; what it
//! does not, it names.

mod answers;
mod drawn;

use answers::{joined, read, tools, whole};
use drawn::{Draws, HELD, Tokens, draw, grammar_of, is_valid, leads, takes};
use serde_json::{Value, json};
use tokenmill_output::{Calls, Format};

const ANSWERS: usize = 6;

fn of(own: Value) -> Value {
    json!({"type": "object", "properties": {"k": own}, "required": ["k"],
        "additionalProperties": false, "$defs": {
            "e": {"enum": ["a", "b"]},
            "s": {"type": "string", "minLength": 3},
            "o": {"type": "object", "properties": {"k": {"type": "string", "minLength": 2}},
                "required": ["k"], "additionalProperties": false}}})
}

/// Schemas of arguments.
fn schemas() -> Vec<Value> {
    let mut all: Vec<Value> = [
        json!({"type": "string"}),
        json!({"type": "string", "minLength": 3}),
        json!({"type": "string", "maxLength": 3}),
        json!({"type": "string", "pattern": "^[a-f/]+$"}),
        json!({"type": "string", "format": "date"}),
        json!({"type": ["string", "null"]}),
        json!({"type": ["string", "integer"]}),
        json!({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]}),
        json!({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]}),
        json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}),
        json!({"oneOf": [{"type": "string"}, {"type": "null"}]}),
        json!({"anyOf": [{"$ref": "#/$defs/e"}, {"type": "null"}]}),
        json!({"$ref": "#/$defs/e"}),
        json!({"$ref": "#/$defs/s"}),
        json!({"$ref": "#/$defs/o"}),
        json!({"allOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}),
        json!({"allOf": [{"$ref": "#/$defs/e"}]}),
        json!({"enum": ["a", "b", 1, "1", null]}),
        json!({"enum": ["a", 1], "type": "integer"}),
        json!({"enum": ["a", "bcd"], "minLength": 2}),
        json!({"const": "a"}),
        json!({"type": "integer", "minimum": 10, "maximum": 99}),
        json!({"type": "array", "items": {"type": "string"}, "maxItems": 2}),
        json!({"type": "array", "items": {"$ref": "#/$defs/s"}, "maxItems": 2}),
        json!({"minimum": 3}),
        json!({}),
    ]
    .map(of)
    .to_vec();
    let mut root = of(json!({}));
    root["$ref"] = json!("#/$defs/o");
    root.as_object_mut().unwrap().retain(|name, _| name.starts_with('$'));
    all.push(root);
    let mut both = of(json!({"type": "string"}));
    both["anyOf"] = json!([{"required": ["k"]}, {"required": ["n"]}]);
    all.push(both);
    all
}

#[test]
fn what_a_row_says_it_enforces_it_does() {
    let (mut drawn, mut enforced) = (0, 0);
    for (at, row) in HELD.iter().enumerate() {
        let format = Format::named(row).unwrap();
        let (tokens, leads) = (Tokens::new(format, false), leads(format));
        let mut draws = Draws(at as u64 + 1);
        for schema in schemas() {
            let tools = tools(&[("f", schema.clone())]);
            if format.enforces(&tools[0]).is_err() {
                continue;
            }
            let ask = (Calls::Required, false, false);
            let Ok(grammar) = grammar_of(&tools, format, &tokens, ask) else {
                continue;
            };
            enforced += 1;
            let before = drawn;
            for _ in 0..ANSWERS {
                let Some(text) = draw(&grammar, &tokens, &leads, &mut draws) else {
                    continue;
                };
                drawn += 1;
                let answer = joined(&read(row, &tools, false, [text.as_str()], false));
                let told = format!("{row} {schema}: {text:?}: {answer:?}");
                assert_eq!(answer.calls.len(), 1, "{told}");
                let arguments = &answer.calls[0].1;
                // (A number with a great exponent is one, but not to the validator.)
                let read: Result<Value, _> = serde_json::from_str(arguments);
                if !read.is_err_and(|error| error.to_string().contains("out of range")) {
                    assert!(is_valid(&tools, "f", arguments), "{told}");
                }
            }
            // (Messages of reasoning go on and on.)
            assert!(drawn > before || *row == "harmony", "{row} {schema}: no answer ends");
        }
    }
    assert!(enforced > 300 && drawn > 1500, "{enforced} {drawn}");
}

#[test]
fn what_a_row_does_not_enforce_it_names() {
    for (own, what) in [
        (json!({"type": "string", "minLength": 3}), "`minLength` of the parameter `k`"),
        (json!({"type": "string", "pattern": "a"}), "`pattern`"),
        (json!({"type": "string", "format": "date"}), "`format`"),
        (json!({"$ref": "#/$defs/s"}), "`minLength`"),
        (json!({"allOf": [{"enum": ["a", "b"]}, {"enum": ["b"]}]}), "`allOf`"),
        (json!({"enum": ["a", 1], "type": "integer"}), "`enum`"),
        (json!({"oneOf": [{"type": "string"}, {"enum": ["a"]}]}), "`oneOf`"),
        (json!({"minimum": 3}), "`minimum`"),
        (json!({"items": {"type": "string"}}), "`type`"),
    ] {
        let tools = tools(&[("f", of(own.clone()))]);
        for row in ["qwen3-coder", "glm45", "minimax-m2"] {
            let error = Format::named(row).unwrap().enforces(&tools[0]).unwrap_err();
            assert!(error.contains(what) && error.contains(row), "{own}: {error}");
        }
        for row in ["hermes", "kimi-k2", "harmony", "lfm2"] {
            assert_eq!(Format::named(row).unwrap().enforces(&tools[0]), Ok(()), "{own}");
        }
    }
    for (name, value) in [
        ("anyOf", json!([{"required": ["k"]}])),
        ("allOf", json!([{"required": ["k"]}])),
        ("minProperties", json!(1)),
        ("patternProperties", json!({"k": {"maxLength": 2}})),
    ] {
        let mut schema = of(json!({"type": "integer"}));
        schema[name] = value;
        let tools = tools(&[("f", schema)]);
        for row in ["qwen3-coder", "lfm2", "llama4", "gemma"] {
            let error = Format::named(row).unwrap().enforces(&tools[0]).unwrap_err();
            assert!(error.contains(&format!("`{name}`")), "{row}: {error}");
        }
        assert_eq!(Format::named("hermes").unwrap().enforces(&tools[0]), Ok(()));
    }
    let tree = json!({"properties": {"k": {"type": "array", "items": {"$ref": "#"}}}});
    let error = Format::named("lfm2").unwrap().enforces(&tools(&[("f", tree)])[0]).unwrap_err();
    assert!(error.contains("`$ref` to `#`"), "{error}");
}

/// A root that only refers has the parameters of what it refers to.
#[test]
fn a_reference_at_the_root_is_followed() {
    let schema = json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object",
        "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}, "n": {"type": "integer"}}});
    let tools = tools(&[("f", schema)]);
    for (row, call, empty) in [
        ("lfm2", "<|tool_call_start|>[f(n=3)]<|tool_call_end|>", "<|tool_call_start|>[f()"),
        (
            "qwen3-coder",
            "<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>",
            "<tool_call>\n<function=f>\n</function>",
        ),
        ("gemma", "<|tool_call>call:f{n:3}<tool_call|>", "<|tool_call>call:f{}"),
    ] {
        let format = Format::named(row).unwrap();
        let tokens = Tokens::new(format, true);
        let ask = (Calls::Required, false, false);
        let grammar = grammar_of(&tools, format, &tokens, ask).unwrap();
        assert_eq!(format.enforces(&tools[0]), Ok(()), "{row}");
        assert!(takes(&mut grammar.start(), &tokens.ids(call)), "{row}");
        assert!(!takes(&mut grammar.start(), &tokens.ids(empty)), "{row}");
        assert_eq!(whole(row, &tools, call).calls[0].1, "{\"n\": 3}", "{row}");
    }
}

/// A value that can only be JSON may have the tag that ends it in its strings.
#[test]
fn a_tag_in_a_string_of_json_is_data() {
    let tools = tools(&[("f", json!({"properties": {"l": {"type": "array"}}}))]);
    let value = "[\"a\n</parameter>\"]";
    let text = format!("<function=f>\n<parameter=l>\n{value}\n</parameter>\n</function>");
    let answer = answers::at_every_split("qwen3-coder", &tools, false, &text, false);
    assert_eq!(answer.calls[0].1, "{\"l\": [\"a\\n</parameter>\"]}");
    // What is no JSON ends at its tag.
    let text = text.replace("[\"a", "[a \"b");
    let answer = answers::at_every_split("qwen3-coder", &tools, false, &text, false);
    assert_eq!(answer.calls[0].1, "{\"l\": \"[a \\\"b\"}");
}

/// Bare text ends at its tag, which the text itself cannot have.
#[test]
fn bare_text_can_end() {
    let schema = json!({"properties": {"k": {"type": "string"}}, "required": ["k"]});
    let tools = tools(&[("f", schema)]);
    for (row, call) in [
        (
            "qwen3-coder",
            "<tool_call>\n<function=f>\n<parameter=k>\na\nb <\n</parameter>\n</function>\n</tool_call>",
        ),
        ("glm45", "<tool_call>f<arg_key>k</arg_key><arg_value>a < b</arg_value></tool_call>"),
        ("gemma", "<|tool_call>call:f{k:<|\"|>a < b<|\"|>}<tool_call|>"),
    ] {
        let format = Format::named(row).unwrap();
        for are_special in [true, false] {
            let tokens = Tokens::new(format, are_special);
            let ask = (Calls::Required, false, false);
            let grammar = grammar_of(&tools, format, &tokens, ask).unwrap();
            assert!(takes(&mut grammar.start(), &tokens.ids(call)), "{row} {are_special}");
        }
    }
}

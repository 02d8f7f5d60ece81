//! Schemas that other engines fail open on, or die of: each is enforced, or refused by the word
//! that a client looks for.

mod bytes;

use bytes::{holds, of_bytes};
use serde_json::{Value, json};
use tokenmill_grammar::{Constraint, Refused};

#[track_caller]
fn refused(schema: Value, words: &[&str]) {
    let error = of_bytes(&Constraint::JsonSchema(schema)).unwrap_err().to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

#[track_caller]
fn check(schema: Value, taken: &[&str], not: &[&str]) {
    let grammar = of_bytes(&Constraint::JsonSchema(schema)).unwrap_or_else(|e| panic!("{e}"));
    for text in taken {
        assert!(holds(&grammar, text), "does not take {text}");
    }
    for text in not {
        assert!(!holds(&grammar, text), "takes {text}");
    }
}

fn closed(name: &str, schema: Value) -> Value {
    json!({
        "type": "object", "properties": {name: schema}, "required": [name],
        "additionalProperties": false,
    })
}

#[test]
fn malformed_schemas_say_the_value() {
    refused(json!({"type": "not-a-type"}), &["type", "not-a-type"]);
    refused(
        closed("a", json!({"type": "string", "minLength": "x"})),
        &["minLength", "\"x\"", "/properties/a"],
    );
    refused(json!({"type": "array", "items": {"enum": "red"}}), &["enum", "red"]);
    refused(json!({"type": "object", "properties": {"foo": "bar"}}), &["foo", "bar"]);
    refused(json!("x"), &["a schema is an object"]);
    refused(json!({"required": "a"}), &["required"]);
    refused(json!({"required": [1]}), &["required"]);
    refused(json!({"properties": [1]}), &["properties"]);
    refused(json!({"anyOf": {}}), &["anyOf"]);
    refused(json!({"anyOf": []}), &["anyOf"]);
    refused(json!({"multipleOf": 0}), &["multipleOf"]);
    refused(json!({"minimum": "1"}), &["minimum"]);
    refused(json!({"$ref": "https://example.com/a.json"}), &["$ref", "within the document"]);
    refused(json!({"$ref": "#/nowhere"}), &["$ref", "nothing"]);
    refused(json!({"$schema": "http://json-schema.org/draft-03/schema#"}), &["$schema"]);
    let long = "y".repeat(1 << 16);
    let error = of_bytes(&Constraint::JsonSchema(json!({"type": long}))).unwrap_err().to_string();
    assert!(error.len() < 600, "{}", error.len());
}

#[test]
fn recursion() {
    let node = json!({
        "$defs": {"node": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 6},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1},
            },
            "required": ["name", "children"],
            "additionalProperties": false,
        }},
        "$ref": "#/$defs/node",
    });
    let mut deep = String::from(r#"{"name":"a","children":[]}"#);
    for _ in 0..50 {
        deep = format!(r#"{{"name":"b","children":[{deep}]}}"#);
    }
    check(node, &[&deep], &[r#"{"name":"a"}"#, r#"{"name":"1234567","children":[]}"#]);
    let list = json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": false});
    check(list, &["{}", r#"{"next":{"next":{}}}"#], &[r#"{"next":1}"#]);
    refused(closed("next", json!({"$ref": "#"})), &["nothing satisfies", "required"]);
    refused(json!({"$ref": "#"}), &["$ref"]);
    refused(
        json!({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}),
        &["$ref"],
    );
    // What has no finite value is left out where it may be.
    let half = json!({
        "$defs": {"x": {"type": "object", "properties": {"x": {"$ref": "#/$defs/x"}}, "required": ["x"]}},
        "type": "object", "properties": {"x": {"$ref": "#/$defs/x"}, "y": {"type": "null"}},
        "additionalProperties": false,
    });
    check(half, &["{}", r#"{"y":null}"#], &[r#"{"x":{"#]);
}

#[test]
fn patterns() {
    for bad in ["^+[a-z]$", "^{2}times$", "(((", "(?=a)b", "\\bword"] {
        refused(closed("s", json!({"type": "string", "pattern": bad})), &["pattern"]);
    }
    check(
        closed("s", json!({"type": "string", "pattern": "^[a-c]{3}$"})),
        &[r#"{"s":"abc"}"#],
        &[r#"{"s":"abcd"}"#, r#"{"s":"abd"}"#],
    );
    check(json!({"pattern": "^a|b$"}), &["\"ax\"", "\"xb\"", "1"], &["\"xa\""]);
    check(
        json!({"type": "string", "pattern": "^.$"}),
        &["\"\\\"\"", "\"é\""],
        &["\"\\n\"", "\"\\r\"", "\"\""],
    );
    check(
        json!({"type": "string", "pattern": "^\\s$"}),
        &["\"\\t\"", "\" \"", "\"\u{feff}\""],
        &["\"a\""],
    );
}

#[test]
fn every_keyword_is_enforced_or_refused() {
    let n = json!({"type": "integer", "minimum": 0, "maximum": 99, "multipleOf": 7});
    check(
        closed("n", n),
        &[r#"{"n":14}"#, r#"{"n":0}"#],
        &[r#"{"n":13}"#, r#"{"n":105}"#, r#"{"n":-7}"#],
    );
    for (keyword, value) in [
        ("uniqueItems", json!(true)),
        ("not", json!({"const": "yes"})),
        ("contains", json!({"type": "integer"})),
        ("if", json!({"type": "string"})),
        ("dependentRequired", json!({"a": ["b"]})),
        ("dependentSchemas", json!({"a": {"required": ["b"]}})),
        ("dependencies", json!({"a": ["b"]})),
        ("propertyNames", json!({"maxLength": 3})),
        ("format", json!("phone")),
        ("$dynamicRef", json!("#x")),
        ("divisibleBy", json!(2)),
    ] {
        let schema = json!({keyword: value, "then": {"type": "null"}});
        refused(schema, &[keyword]);
    }
    refused(json!({"allOf": [{"multipleOf": 1000}, {"multipleOf": 0.0001}]}), &["multipleOf"]);
    refused(json!({"multipleOf": 86_400}), &["multipleOf"]);
    refused(json!({"oneOf": [{"type": "integer"}, {"minimum": 2}]}), &["oneOf", "disjoint"]);
    refused(json!({"minProperties": 2}), &["minProperties"]);
    refused(json!({"properties": {"a": {}}, "maxProperties": 3}), &["maxProperties"]);
    refused(
        json!({"patternProperties": {"a": {"type": "null"}, "b": {"type": "string"}}}),
        &["patternProperties"],
    );
    refused(
        json!({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"properties": {"b": true}}}, "unevaluatedProperties": false}),
        &["unevaluatedProperties"],
    );
    refused(json!({"$ref": "#/$defs/a", "$defs": {"a": {"$id": "other.json"}}}), &["$id"]);
}

#[test]
fn what_fails_open_elsewhere() {
    check(
        json!({"type": "object", "required": ["a"], "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9}, "maxProperties": 2}),
        &[r#"{"a":1}"#, r#"{"a":1,"b":2}"#],
        &["{}", r#"{"b":1}"#, r#"{"a":10}"#, r#"{"a":1,"b":2,"c":3}"#],
    );
    // An escaped letter would be another spelling of a declared name.
    check(
        json!({"type": "object", "properties": {"a": {"type": "integer"}}}),
        &[r#"{"a":1}"#, r#"{"b":"x"}"#, r#"{"a":1,"A":null}"#],
        &[r#"{"\u0061":"x"}"#, r#"{"a":"x"}"#, r#"{"b":1,"a":"x"}"#],
    );
    check(
        json!({"prefixItems": [{"type": "null"}], "additionalItems": false}),
        &["[]", "[null]"],
        &["[1]", "[null,1]"],
    );
    check(
        json!({"additionalProperties": false, "patternProperties": {"^x": {"type": "null"}}, "properties": {"xy": true}}),
        &[r#"{"xy":null}"#, r#"{"xa":null}"#],
        &[r#"{"xy":1}"#, r#"{"a":1}"#],
    );
    check(
        json!({"x-guidance": {"lenient": true, "whitespace_flexible": true}, "type": "array"}),
        &["[1]"],
        &["[1 ]"],
    );
    check(
        json!({"type": "integer", "minimum": 1000, "maximum": 9000}),
        &["1000", "9000"],
        &["1000.0", "1e3", "999"],
    );
    check(
        json!({"enum": [1.0, "在线", "say \"q\"", "a\\b", "l\n", {"b": 1, "a": [2.5]}]}),
        &["1", "\"在线\"", "\"say \\\"q\\\"\"", "\"a\\\\b\"", "\"l\\n\"", r#"{"b":1,"a":[2.5]}"#],
        &["1.0", "2", r#"{"b":1}"#],
    );
    refused(json!({"enum": ["\u{1}"]}), &["enum", "control character"]);
    check(
        json!({"unevaluatedProperties": false, "properties": {"a": true}}),
        &[r#"{"a":1}"#],
        &[r#"{"b":1}"#],
    );
    check(
        json!({"propertyNames": {"enum": ["a", "b.c"]}}),
        &[r#"{"a":1,"b.c":2}"#, "1"],
        &[r#"{"bxc":1}"#],
    );
    check(
        json!({"type": "object", "properties": {"b": true, "a": true}, "required": ["a", "b"]}),
        &[r#"{"b":1,"a":2}"#],
        &[r#"{"a":2,"b":1}"#],
    );
    check(json!({"exclusiveMinimum": true, "minimum": 3, "type": "integer"}), &["4"], &["3"]);
}

#[test]
fn one_of_where_it_is_any_of() {
    let side = |tag: Value, more: &str| json!({"type": "object", "properties": {"k": {"const": tag}, more: true}, "required": ["k"], "additionalProperties": false});
    let union = json!({
        "$defs": {"a": side(json!(1), "x"), "b": side(json!(2), "y")},
        "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"type": "null"}],
    });
    check(union, &[r#"{"k":1,"x":0}"#, r#"{"k":2}"#, "null"], &[r#"{"k":2,"x":0}"#, "1"]);
    for list in [
        json!([{"properties": {"k": {"const": 1}}, "required": ["k"]}, {"properties": {"k": {"const": 2}}, "required": ["k"]}]),
        json!([{"type": "object", "properties": {"k": {"const": 1}}}, {"type": "object", "properties": {"k": {"const": 2}}}]),
        json!([{"enum": [1, 2]}, {"enum": [2, 3]}]),
        json!([{"type": ["integer", "null"]}, {"type": "number"}]),
        json!([{"const": 1}, {"type": "number"}]),
    ] {
        refused(json!({"oneOf": list}), &["oneOf"]);
    }
}

#[test]
fn nothing_satisfies() {
    let cases = [
        (json!({"type": "integer", "minimum": 5, "maximum": 3}), "minimum"),
        (json!({"enum": []}), "enum"),
        (json!({"type": "string", "minLength": 4, "maxLength": 2}), "Length"),
        (json!({"type": "array", "minItems": 4, "maxItems": 2}), "Items"),
        (json!({"type": "string", "const": 1}), "const"),
        (json!({"allOf": [{"type": "string"}, {"type": "integer"}]}), "allOf"),
        (json!({"type": "string", "pattern": "^a$", "minLength": 2}), "pattern"),
        (json!({"type": "number", "exclusiveMinimum": 1, "maximum": 1}), "exclusiveMinimum"),
        (json!({"type": "integer", "multipleOf": 10, "minimum": 1, "maximum": 9}), "multipleOf"),
        (json!(false), "required"),
    ];
    for (schema, word) in cases {
        let error = of_bytes(&Constraint::JsonSchema(closed("n", schema.clone()))).unwrap_err();
        assert!(matches!(error, Refused::Unsatisfiable { .. }), "{schema}: {error}");
        assert!(error.to_string().contains(word), "{schema}: {error}");
    }
    refused(json!({"not": {}}), &["not"]);
    refused(json!(false), &["false"]);
}

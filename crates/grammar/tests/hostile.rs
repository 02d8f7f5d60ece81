//! Constraints written to blow up: each ends within its limits, in a stack of two megabytes,
//! refused in words or taken and harmless.

mod bytes;

use std::fmt::Write as _;
use std::time::Instant;

use bytes::{Draws, END, allowed};
use serde_json::{Map, Value, json};
use tokenmill_grammar::{Constraint, Dead, Refused, Settings, compile};

/// Stack of a thread that compiles, bytes: what tokio's blocking threads have.
const STACK: usize = 2 << 20;

/// Peak memory of this process so far, kB.
fn peak() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Compiles, and draws a few hundred tokens if that went well. What came of it, in a word.
fn run(name: &'static str, make: impl FnOnce() -> Constraint + Send + 'static) -> String {
    let thread = std::thread::Builder::new().stack_size(STACK);
    let outcome = thread.spawn(move || {
        let vocabulary = bytes::pieces(2000);
        let constraint = make();
        let (start, before) = (Instant::now(), peak());
        let compiled = compile(&constraint, &vocabulary, &Settings::default());
        let took = start.elapsed();
        let outcome = match compiled {
            Ok(grammar) => {
                let mut matcher = grammar.start();
                let (mut bits, mut draws) = (vec![0; vocabulary.words()], Draws(5));
                let (mut steps, mut longest) = (0, std::time::Duration::ZERO);
                let end = loop {
                    let start = Instant::now();
                    let masked = matcher.mask(&mut bits);
                    longest = longest.max(start.elapsed());
                    if let Err(dead) = masked {
                        break dead.to_string();
                    }
                    let ids: Vec<u32> =
                        allowed(&bits).into_iter().filter(|id| *id != END).collect();
                    if ids.is_empty() || steps == 40 {
                        break "goes on or ends".to_owned();
                    }
                    if let Err(dead) = matcher.accept(ids[draws.below(ids.len())]) {
                        break dead.to_string();
                    }
                    steps += 1;
                };
                format!("taken; {steps} tokens, longest mask {longest:?}, then {end}")
            }
            Err(refused) => {
                let words = refused.to_string();
                assert!(words.len() < 700, "{} bytes of words", words.len());
                format!("refused: {words}")
            }
        };
        let more = peak().saturating_sub(before) / 1024;
        println!("{name}: {took:?}, {more} MB more at the peak; {outcome}");
        std::mem::forget(constraint); // a deep value overflows as it is dropped
        outcome
    });
    outcome.unwrap().join().unwrap_or_else(|_| panic!("{name}: panicked"))
}

fn schema(value: Value) -> Constraint {
    Constraint::JsonSchema(value)
}

fn deep(levels: usize, wrap: impl Fn(Value) -> Value) -> Value {
    (0..levels).fold(json!({"type": "integer"}), |inner, _| wrap(inner))
}

/// An object of one member, made without a walk over its value.
fn under(key: &str, value: Value) -> Value {
    Value::Object(Map::from_iter([(key.to_owned(), value)]))
}

#[track_caller]
fn is(outcome: &str, word: &str) {
    assert!(outcome.contains(word), "{outcome}");
}

#[test]
fn deep_schemas() {
    is(&run("items 10 000 deep", || schema(deep(10_000, |s| under("items", s)))), "levels");
    is(
        &run("allOf 10 000 deep", || {
            schema(deep(10_000, |s| under("allOf", Value::Array(vec![s]))))
        }),
        "levels",
    );
    is(
        &run("an enum 10 000 deep", || {
            schema(under("enum", deep(10_000, |s| Value::Array(vec![s]))))
        }),
        "levels",
    );
    run("items 60 deep", || schema(deep(60, |s| json!({"type": "array", "items": s}))));
    run("anyOf 60 deep", || schema(deep(60, |s| json!({"anyOf": [s, {"type": "null"}]}))));
    is(
        &run("a chain of 4000 references", || {
            let defs: Map<String, Value> = (0..4000)
                .map(|i| {
                    (format!("d{i}"), json!({"items": {"$ref": format!("#/$defs/d{}", i + 1)}}))
                })
                .chain([("d4000".to_owned(), json!({}))])
                .collect();
            schema(json!({"$ref": "#/$defs/d0", "$defs": defs}))
        }),
        "chain",
    );
    run("a chain of 120 references", || {
        let defs: Map<String, Value> = (0..120)
            .map(|i| (format!("d{i}"), json!({"items": {"$ref": format!("#/$defs/d{}", i + 1)}})))
            .chain([("d120".to_owned(), json!({}))])
            .collect();
        schema(json!({"$ref": "#/$defs/d0", "$defs": defs}))
    });
}

#[test]
fn products() {
    run("allOf of 12 anyOf of 4", || {
        let of = |i: usize| json!({"anyOf": (0..4).map(|j| json!({"pattern": format!("^.*{i}{j}")})).collect::<Vec<_>>()});
        schema(json!({"type": "string", "allOf": (0..12).map(of).collect::<Vec<_>>()}))
    });
    run("allOf of 20 objects of anyOf", || {
        let of = |i: usize| json!({"anyOf": (0..5).map(|j| json!({"properties": {format!("p{i}"): {"const": j}}, "required": [format!("p{i}")]})).collect::<Vec<_>>()});
        schema(json!({"type": "object", "allOf": (0..20).map(of).collect::<Vec<_>>()}))
    });
    run("references that double 40 times", || {
        let defs: Map<String, Value> = (0..40)
            .map(|i| {
                let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
                (
                    format!("d{i}"),
                    json!({"allOf": [{"properties": {"a": next}}, {"properties": {"b": next}}]}),
                )
            })
            .chain([("d40".to_owned(), json!({"type": "null"}))])
            .collect();
        schema(json!({"$ref": "#/$defs/d0", "$defs": defs}))
    });
    run("oneOf of 128 objects", || {
        let of = |i: usize| json!({"properties": {"k": {"const": i}}, "required": ["k"]});
        schema(json!({"type": "object", "oneOf": (0..128).map(of).collect::<Vec<_>>()}))
    });
    run("32 optional properties, at least one", || {
        let of = |i: usize| (format!("p{i}"), json!({"type": "null"}));
        let properties: Map<String, Value> = (0..32).map(of).collect();
        schema(
            json!({"type": "object", "properties": properties, "additionalProperties": false, "minProperties": 1}),
        )
    });
    let taken = run("400 optional properties", || {
        let properties: Map<String, Value> =
            (0..400).map(|i| (format!("p{i}"), json!({"type": "null"}))).collect();
        schema(json!({"type": "object", "properties": properties}))
    });
    is(&taken, "goes on");
    is(
        &run("30 000 properties", || {
            let properties: Map<String, Value> =
                (0..15_000).map(|i| (format!("p{i}"), json!(true))).collect();
            schema(json!({"type": "object", "properties": properties}))
        }),
        "properties of an object",
    );
    is(
        &run("100 000 values", || {
            schema(json!({"enum": (0..100_000).map(|i| format!("v{i}")).collect::<Vec<_>>()}))
        }),
        "at most",
    );
    run("5000 values", || {
        schema(json!({"enum": (0..5000).map(|i| format!("value {i}")).collect::<Vec<_>>()}))
    });
    run("5000 numbers", || {
        schema(json!({"type": "integer", "enum": (0..5000).collect::<Vec<_>>()}))
    });
}

#[test]
fn patterns() {
    let string = |pattern: &str| schema(json!({"type": "string", "pattern": pattern}));
    is(&run("a pattern of 1 MB", move || string(&"a|".repeat(500_000))), "bytes of");
    is(&run("a{1,1000000}", move || string("a{1,1000000}")), "at most 10000");
    run("a{1,10000}", move || string("^a{1,10000}$"));
    run("((a{100}){100}){100}", move || string("^((a{100}){100}){100}$"));
    run("(x+x+)+y", move || string("^(x+x+)+y$"));
    run("(a|b)*a(a|b){200}", move || string("^(a|b)*a(a|b){200}$"));
    run("((a?){50}){50}a{50}", move || string("^((a?){50}){50}a{50}$"));
    run("many classes", move || string(&"[\\p{L}\\p{N}]{0,50}".repeat(100)));
    is(&run("groups in groups", move || string(&"(".repeat(4000))), "groups within groups");
    run("intersections", || {
        let of = |i: usize| json!({"type": "string", "pattern": format!("(a|b)*{}(a|b){{{}}}$", ["a", "b"][i % 2], i + 3)});
        schema(json!({"allOf": (0..24).map(of).collect::<Vec<_>>()}))
    });
    run("two that meet", || {
        let of = |n| json!({"type": "string", "pattern": format!("(a|b)*a(a|b){{{n}}}$")});
        schema(json!({"allOf": [of(40), of(41)]}))
    });
    run("intersections of one property", || {
        let of = |i: usize| json!({"properties": {"a": {"items": {"type": "string", "pattern": format!("x.*{i}$")}}}});
        schema(json!({"allOf": (0..24).map(of).collect::<Vec<_>>()}))
    });
    run("alternatives that meet", || {
        let of = |c: &str| json!({"type": "string", "pattern": (0..90).map(|i| format!(".*{c}{i}")).collect::<Vec<_>>().join("|")});
        schema(json!({"allOf": [of("x"), of("y")]}))
    });
    run("32 patterns of names", || {
        let of = |i: usize| (format!("^(x|y){{{i}}}z.*{i}"), json!({"type": "null"}));
        schema(json!({"patternProperties": (0..32).map(of).collect::<Map<_, _>>()}))
    });
    run("a regex of 8 kB", || Constraint::Regex("(a|bc)*d?".repeat(900)));
    run("lengths", || {
        schema(json!({"type": "string", "minLength": 10_000, "maxLength": 4_000_000_000u64}))
    });
    is(
        &run("a length over the limit", || schema(json!({"minLength": 4_000_000_000u64}))),
        "minLength",
    );
    run("items", || {
        schema(
            json!({"type": "array", "items": {"type": "array", "minItems": 9999}, "minItems": 9999}),
        )
    });
    run("multiples of 997", || {
        schema(json!({"type": "integer", "multipleOf": 997, "minimum": 1, "maximum": 5_000_000}))
    });
    is(
        &run("multiples that meet", || {
            schema(json!({"allOf": [{"multipleOf": 991}, {"multipleOf": 997}]}))
        }),
        "multipleOf",
    );
}

#[test]
fn grammars() {
    let gbnf = |text: String| Constraint::Gbnf(text);
    run("left recursion", move || gbnf("root ::= root root | \"a\" | ".into()));
    run("hidden left recursion", move || gbnf("root ::= a root \"x\" | \"y\"\na ::= | a a".into()));
    run("ambiguity", move || gbnf("root ::= s\ns ::= s s | s s s | [a-z] | ".into()));
    is(
        &run("a chain of rules", move || {
            let mut text = String::from("root ::= a0\n");
            for i in 0..300 {
                writeln!(text, "a{i} ::= \"(\" a{} \")\"", i + 1).unwrap();
            }
            gbnf(text + "a300 ::= \"x\"\n")
        }),
        "rules within rules",
    );
    is(
        &run("many rules", move || {
            gbnf((0..50_000).map(|i| format!("a{i} ::= \"x\"\n")).collect())
        }),
        "rules",
    );
    is(&run("parentheses", move || gbnf(format!("root ::= {}", "(".repeat(10_000)))), "brackets");
    is(
        &run("repeats of repeats", move || gbnf(format!("root ::= \"a\"{}", "?".repeat(10_000)))),
        "repetitions",
    );
    run("counts of counts", move || {
        gbnf("root ::= \"(\" root \")\" | ((\"a\"{1,999}){1,999}){1,999}".into())
    });
    run("counts of rules", move || gbnf("root ::= (\"(\" root \")\" | \"a\"){9999}".into()));
    let lark = |text: String| Constraint::Lark(text);
    is(
        &run("lark, parentheses", move || lark(format!("start: {}", "(".repeat(10_000)))),
        "brackets",
    );
    is(
        &run("lark, a chain of terminals", move || {
            let mut text = String::from("start: A\n");
            for i in 0..5000 {
                writeln!(text, "A{}: A{}", "_".repeat(i), "_".repeat(i + 1)).unwrap();
            }
            lark(text)
        }),
        "at most",
    );
    is(
        &run("lark, negations", move || lark(format!("start: A\nA: {}\"x\"", "~".repeat(10_000)))),
        "in a row",
    );
    is(
        &run("lark, negations apart", move || {
            lark(format!("start: A\nA: {}\"x\"", "~ ".repeat(10_000)))
        }),
        "refused",
    );
    run("lark, counts", move || lark("start: A\nA: ((\"a\"{1,30000}){1,30000}){1,30000}".into()));
    run("lark, nested schemas", move || {
        lark(format!("start: {}", "%json {\"type\": \"object\"} ".repeat(100)))
    });
    run("lark, intersections", move || {
        let of = |i| format!("/(a|b)*a(a|b){{{i}}}/");
        lark(format!("start: A\nA: {}", (5..20).map(of).collect::<Vec<_>>().join(" & ")))
    });
    run("lark, negated intersections", move || {
        let of = |i| format!("~/(a|b)*a(a|b){{{i}}}/");
        lark(format!("start: A\nA: {}", (5..20).map(of).collect::<Vec<_>>().join(" & ")))
    });
    run("lark, blow-up", move || {
        lark("start: A\nA: /(a|b)*a(a|b){60}/ & ~/(a|b)*b(a|b){59}/".into())
    });
    run("choices", || Constraint::Choice((0..5000).map(|i| format!("choice {i}")).collect()));
    is(&run("too many choices", || Constraint::Choice(vec![String::new(); 1 << 20])), "choices");
}

#[test]
fn the_limits_are_those_of_the_settings() {
    let mut settings = Settings::default();
    settings.bounds.values = 2;
    let enough = compile(&schema(json!({"enum": [1, 2]})), &bytes::bytes(), &settings);
    assert!(enough.is_ok());
    let more =
        compile(&schema(json!({"enum": [1, 2, 3]})), &bytes::bytes(), &settings).unwrap_err();
    assert_eq!(more, Refused::Bound { what: "values of `enum`", found: 3, limit: 2 });
    settings.bounds.compile_fuel = 10;
    let fuel = compile(&schema(json!({"type": "object"})), &bytes::bytes(), &settings).unwrap_err();
    assert!(matches!(fuel, Refused::Complex { .. }), "{fuel}");
    let mut settings = Settings::default();
    settings.bounds.mask_items = 200;
    let ambiguous = Constraint::Gbnf("root ::= s\ns ::= s s | s s s | [a-z] | ".into());
    let mut matcher = compile(&ambiguous, &bytes::bytes(), &settings).unwrap().start();
    let mut bits = vec![0; bytes::bytes().words()];
    let masks =
        (0..1000).map(|_| matcher.mask(&mut bits).and_then(|()| matcher.accept(b'a'.into())));
    let dead = { masks }.find_map(Result::err).expect("it passes the limit");
    assert!(matches!(dead, Dead::Limit(_)), "{dead}");
}

//! Answers drawn from the masks of a row's grammar alone: its parser reads calls in them, whole, of
//! offered tools, with arguments that another's validator finds valid.

mod answers;

use std::sync::Arc;

use answers::{joined, read, tools};
use serde_json::{Value, json};
use tokenmill_grammar::{Constraint, Grammar, Matcher, Settings, Vocabulary, Whitespace, compile};
use tokenmill_output::{Ask, Calls, Format, Tool, enforceable};

const END: u32 = 256;
/// Answers drawn for each row and way to ask.
const ANSWERS: usize = 8;
/// Tokens after which an answer is led to its end, and given up.
const LONG: usize = 150;
const LONGEST: usize = 4000;

/// Rows with a grammar.
const HELD: &[&str] = &[
    "hermes",
    "qwen3-coder",
    "llama3",
    "llama4",
    "mistral",
    "mistral-v11",
    "deepseek-v3",
    "deepseek-r1",
    "deepseek-v31",
    "glm45",
    "kimi-k2",
    "minimax-m2",
    "harmony",
    "gemma",
    "granite",
    "phi4",
    "command",
    "lfm2",
    "nemotron",
];

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

/// A seeded series of draws (xorshift).
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit.max(1)
    }
}

/// Bytes, an end, and the row's marks as special tokens, or not.
struct Tokens {
    vocabulary: Arc<Vocabulary>,
    specials: Vec<&'static str>,
}

impl Tokens {
    fn new(format: &Format, are_special: bool) -> Self {
        let mut specials = format.markers();
        // What is written in letters is no special token.
        specials.retain(|mark| are_special && mark.ends_with(['>', ']']) && !mark.contains('/'));
        specials.retain(|mark| mark.contains('|') || mark.contains('｜') || mark.starts_with('['));
        let bytes = (0..=255u8).map(|b| vec![b]).chain([b"<|no|>".to_vec()]);
        let tokens: Vec<Vec<u8>> =
            bytes.chain(specials.iter().map(|mark| mark.as_bytes().to_vec())).collect();
        let ids: Vec<u32> = (END..tokens.len() as u32).collect();
        let vocabulary = Arc::new(Vocabulary::new(tokens, &ids, &[END]).unwrap());
        Self { vocabulary, specials }
    }

    fn id(&self, text: &str) -> Option<u32> {
        let at = self.specials.iter().position(|mark| *mark == text)?;
        Some(END + 1 + at as u32)
    }

    /// A text in tokens.
    fn ids(&self, text: &str) -> Vec<u32> {
        let (mut ids, mut rest) = (Vec::new(), text);
        while let Some(c) = rest.chars().next() {
            let mark = self.specials.iter().find(|mark| rest.starts_with(**mark));
            match mark.and_then(|mark| Some((self.id(mark)?, mark.len()))) {
                Some((id, length)) => {
                    ids.push(id);
                    rest = &rest[length..];
                }
                None => {
                    ids.extend(rest[..c.len_utf8()].bytes().map(u32::from));
                    rest = &rest[c.len_utf8()..];
                }
            }
        }
        ids
    }

    fn bytes(&self, ids: &[u32]) -> Vec<u8> {
        let of = |id: &u32| match id.checked_sub(END + 1) {
            Some(at) => self.specials[at as usize].as_bytes().to_vec(),
            None => vec![*id as u8],
        };
        ids.iter().flat_map(of).collect()
    }
}

fn grammar(format: &Format, tokens: &Tokens, calls: Calls, parallel: bool, begun: bool) -> Grammar {
    grammar_of(&offered(), format, tokens, (calls, parallel, begun))
}

fn grammar_of(
    tools: &[Tool],
    format: &Format,
    tokens: &Tokens,
    (calls, parallel, begun): (Calls, bool, bool),
) -> Grammar {
    let special = |text: &str| tokens.id(text);
    let (reasons, special) = (true, &special);
    let ask = Ask { tools, calls, parallel, reasons, reasoning_begun: begun, special };
    let constraint = format.hold(&ask).unwrap_or_else(|| panic!("{}: no grammar", format.name));
    let whitespace = Whitespace::Separators { item: ", ".to_owned(), key: ": ".to_owned() };
    let settings = Settings { whitespace, ..Settings::default() };
    compile(&constraint, &tokens.vocabulary, &settings).unwrap_or_else(|refused| {
        let Constraint::Lark(text) = constraint else { panic!() };
        panic!("{}: {refused}\n{text}", format.name)
    })
}

/// Takes all of the tokens, or none.
fn takes(matcher: &mut Matcher, ids: &[u32]) -> bool {
    let mut ahead = matcher.clone();
    let all = ids.iter().all(|id| ahead.accept(*id).is_ok());
    if all {
        *matcher = ahead;
    }
    all
}

/// An answer from masks alone, now and then led through a mark; `None` where it finds no end.
fn draw(grammar: &Grammar, tokens: &Tokens, leads: &[String], draws: &mut Draws) -> Option<String> {
    let mut matcher = grammar.start();
    let mut ids: Vec<u32> = Vec::new();
    let mut bits = vec![0u32; tokens.vocabulary.words()];
    while ids.len() < LONGEST {
        let is_long = ids.len() > LONG;
        if matcher.may_end() && (is_long || draws.below(12) == 0) || matcher.is_done() {
            return String::from_utf8(tokens.bytes(&ids)).ok();
        }
        let lead = &leads[draws.below(leads.len())];
        let lead = tokens.ids(lead);
        if draws.below(if is_long { 1 } else { 4 }) == 0 && takes(&mut matcher, &lead) {
            ids.extend(lead);
            continue;
        }
        matcher.mask(&mut bits).unwrap();
        let is_set = |id: &u32| bits[*id as usize / 32] >> (id % 32) & 1 == 1 && *id != END;
        let mut allowed: Vec<u32> = (0..tokens.vocabulary.len() as u32).filter(is_set).collect();
        let letters: Vec<u32> =
            allowed.iter().copied().filter(|id| (0x20..0x7f).contains(id)).collect();
        if !letters.is_empty() && draws.below(8) > 0 {
            allowed = letters;
        }
        let id = allowed[draws.below(allowed.len())];
        matcher.accept(id).unwrap();
        ids.push(id);
    }
    None
}

fn leads(format: &Format) -> Vec<String> {
    let mut leads: Vec<String> = format.markers().iter().map(|mark| (*mark).to_owned()).collect();
    let lined: Vec<String> = leads.iter().map(|mark| format!("\n{mark}")).collect();
    leads.extend(lined);
    let others = ["\"", "}", "]", "\"}", "\"]", "{", "functools[", "Here is my response:", "\n"];
    leads.extend(others.map(str::to_owned));
    leads.extend(["<tool_call>{", "<tool_call>get_time", "get_time"].map(str::to_owned));
    leads
}

fn is_valid(tools: &[Tool], name: &str, arguments: &str) -> bool {
    let tool = tools.iter().find(|tool| tool.name == name);
    let value: Option<Value> = serde_json::from_str(arguments).ok();
    match (tool, value) {
        (Some(tool), Some(value)) => jsonschema::is_valid(&tool.parameters, &value),
        _ => false,
    }
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
            let grammar = grammar_of(&tools, format, &tokens, (Calls::Required, false, false));
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
    let grammar = grammar_of(&tools, format, &tokens, (Calls::Required, false, false));
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

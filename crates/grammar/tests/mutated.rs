//! Constraints with bytes changed, dropped, doubled and joined at random: refused or compiled,
//! never a panic, and what a mask has is accepted.

mod bytes;

use bytes::{Draws, END, allowed};
use tokenmill_grammar::{Bounds, Constraint, Dead, Settings, compile};

const SCHEMAS: &[&str] = &[
    r##"{"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer","minimum":0},"next":{"$ref":"#/$defs/n"}},"required":["v"],"additionalProperties":false}},"$ref":"#/$defs/n"}"##,
    r#"{"type":"object","properties":{"a":{"enum":[1,"x",null]},"b":{"type":"string","pattern":"^[a-c]{1,3}$","maxLength":2}},"required":["a"],"minProperties":1}"#,
    r#"{"oneOf":[{"type":"array","items":{"type":"number","multipleOf":0.5}},{"type":"string","format":"date"}],"allOf":[{"minItems":1},{"maxItems":3}]}"#,
    r#"{"type":["object","null"],"patternProperties":{"^x":{"const":[1,{"a":2}]}},"propertyNames":{"pattern":"^[xy]"},"additionalProperties":{"type":"boolean"},"maxProperties":2}"#,
    r#"{"prefixItems":[{"type":"integer","exclusiveMaximum":5},{"anyOf":[{"const":1.5},{"type":"null"}]}],"items":false,"unevaluatedProperties":false}"#,
];
const OTHERS: &[&str] = &[
    r"^(a|b)*c{2,4}[^x-z\d]\u0041(?:\.|\w+)?$",
    "root ::= \"{\" (item (\",\" item)*)? \"}\" # end\nitem ::= [a-z0-9_]+ \":\" (root | \"x\"{1,3} | .)\n",
    "start: a+ | B\na: \"x\" a? \"y\" | %json {\"type\": \"integer\"}\nB: /[0-9]+/ & ~/7+/\n%ignore /[ ]/\n",
];

fn mutated(seed: &[u8], other: &[u8], draws: &mut Draws) -> String {
    let mut text = seed.to_vec();
    for _ in 0..1 + draws.below(4) {
        let at = draws.below(text.len().max(1));
        match draws.below(5) {
            0 if !text.is_empty() => text[at] = b"{}[]\",:0-1aA*+?^$|&~%/.\\ "[draws.below(25)],
            1 if !text.is_empty() => drop(text.remove(at)),
            2 => {
                let end = (at + draws.below(12)).min(text.len());
                let piece = text[at.min(end)..end].to_vec();
                text.splice(at.min(end)..at.min(end), piece);
            }
            3 => {
                let from = draws.below(other.len());
                let piece = other[from..(from + draws.below(30)).min(other.len())].to_vec();
                text.splice(at.min(text.len())..at.min(text.len()), piece);
            }
            _ => text.truncate(text.len().max(1) - draws.below(3).min(text.len().max(1) - 1)),
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn nothing_panics() {
    let vocabulary = bytes::bytes();
    let bounds = Bounds {
        compile_fuel: 50_000,
        mask_fuel: 20_000,
        mask_items: 5000,
        row_items: 300,
        states: 2000,
        symbols: 5000,
        repeat: 50,
        ..Bounds::default()
    };
    let settings = Settings { bounds, ..Settings::default() };
    let (mut draws, mut bits) = (Draws(20_261_129), vec![0; vocabulary.words()]);
    let (mut taken, mut refused) = (0, 0);
    for round in 0..6000 {
        let constraint = if round % 2 == 0 {
            let (seed, other) = (draws.below(SCHEMAS.len()), draws.below(SCHEMAS.len()));
            let text = mutated(SCHEMAS[seed].as_bytes(), SCHEMAS[other].as_bytes(), &mut draws);
            let Ok(schema) = serde_json::from_str(&text) else { continue };
            Constraint::JsonSchema(schema)
        } else {
            let kind = draws.below(3);
            let text = mutated(OTHERS[kind].as_bytes(), OTHERS[kind].as_bytes(), &mut draws);
            [Constraint::Regex, Constraint::Gbnf, Constraint::Lark][kind](text)
        };
        let grammar = match compile(&constraint, &vocabulary, &settings) {
            Ok(grammar) => grammar,
            Err(why) => {
                assert!(!why.to_string().contains("panic"), "{why}: {constraint:?}");
                refused += 1;
                continue;
            }
        };
        taken += 1;
        let mut matcher = grammar.start();
        for _ in 0..16 {
            match matcher.mask(&mut bits) {
                Ok(()) => {}
                Err(Dead::Limit(_)) => break,
                // llguidance 1.9.1 loses track of a schema at the end of a rule where `%ignore`
                // differs. It says so and the answer ends: no wrong token comes.
                Err(Dead::Broken(why)) if why.contains("grammar stack empty") => {
                    assert!(matches!(constraint, Constraint::Lark(_)), "{why}: {constraint:?}");
                    break;
                }
                Err(dead) => panic!("{dead}: {constraint:?}"),
            }
            let ids = allowed(&bits);
            let id = ids[draws.below(ids.len())];
            match matcher.accept(id) {
                Ok(()) if id == END => break,
                Ok(()) => {}
                Err(Dead::Limit(_)) => break,
                Err(dead) => panic!("{dead}: {constraint:?}"),
            }
        }
    }
    println!("{taken} taken, {refused} refused");
    assert!(taken > 500 && refused > 500, "{taken} taken, {refused} refused");
}

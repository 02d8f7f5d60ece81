//! Matchers: masks, clones, ends, known text, and how long they take.

mod bytes;

use std::sync::Arc;
use std::time::Instant;

use bytes::{END, allowed, of_bytes, piece_bytes};
use serde_json::json;
use tokenmill_grammar::{
    BadVocabulary, Constraint, Dead, Grammar, Matcher, Settings, Vocabulary, Whitespace, compile,
    lenient,
};

fn feed(matcher: &mut Matcher, text: &str) {
    for b in text.bytes() {
        matcher.accept(u32::from(b)).unwrap_or_else(|e| panic!("{e} in {text:?}"));
    }
}

fn mask(matcher: &mut Matcher) -> Vec<u32> {
    let mut bits = vec![u32::MAX; 9];
    matcher.mask(&mut bits).unwrap();
    allowed(&bits)
}

fn object() -> Constraint {
    Constraint::JsonSchema(json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": false,
    }))
}

#[test]
fn shared_and_sent() {
    fn is<T: Clone + Send + Sync>() {}
    fn goes<T: Clone + Send>() {}
    is::<Grammar>();
    goes::<Matcher>();
}

#[test]
fn masks_and_ends() {
    let mut matcher = of_bytes(&object()).unwrap().start();
    assert_eq!(mask(&mut matcher), [u32::from(b'{')]);
    assert_eq!(matcher.accept(u32::from(b'x')), Err(Dead::NotAllowed(120)));
    assert_eq!(matcher.accept(9999), Err(Dead::NotAllowed(9999)));
    assert_eq!(matcher.accept(END), Err(Dead::NotAllowed(END)));
    feed(&mut matcher, "{\"name\":\"");
    let inside = mask(&mut matcher);
    assert!(!inside.contains(&END) && !inside.contains(&10) && inside.contains(&65));
    feed(&mut matcher, "Größe <|end|>\",\"age\":4");
    assert!(!matcher.may_end());
    assert!(!mask(&mut matcher).contains(&END));
    feed(&mut matcher, "2}");
    assert!(matcher.may_end() && matcher.is_done());
    assert_eq!(mask(&mut matcher), [END]);
    assert_eq!(matcher.accept(125), Err(Dead::NotAllowed(125)));
    matcher.accept(END).unwrap();
    assert!(matcher.is_done());
}

#[test]
fn an_answer_may_go_on_past_its_end() {
    let mut matcher = of_bytes(&Constraint::Regex("a+".into())).unwrap().start();
    feed(&mut matcher, "a");
    assert_eq!(mask(&mut matcher), [97, END]);
    assert!(matcher.may_end() && !matcher.is_done());
    matcher.accept(END).unwrap();
    assert!(matcher.is_done());
    assert_eq!(mask(&mut matcher), [END]);
}

#[test]
fn clones_go_their_own_ways() {
    let mut one = of_bytes(&Constraint::Regex("ab|ac+d".into())).unwrap().start();
    feed(&mut one, "a");
    let mut two = one.clone();
    feed(&mut one, "b");
    feed(&mut two, "ccc");
    assert!(one.is_done() && !two.may_end());
    feed(&mut two, "d");
    assert!(two.is_done());
}

#[test]
fn nothing_fits() {
    let tokens = [b"a".as_slice(), b"b", b"<e>"];
    let vocabulary = Arc::new(Vocabulary::new(tokens, &[2], &[2]).unwrap());
    let constraint = Constraint::Regex("a(b|c)c".into());
    let mut matcher = compile(&constraint, &vocabulary, &Settings::default()).unwrap().start();
    let mut bits = [0];
    matcher.mask(&mut bits).unwrap();
    assert_eq!(bits, [1]);
    matcher.accept(0).unwrap();
    matcher.accept(1).unwrap();
    assert_eq!(matcher.mask(&mut bits), Err(Dead::NothingFits));
    assert_eq!(bits, [0]);
    assert_eq!(matcher.accept(0), Err(Dead::NothingFits));
    let none = compile(&Constraint::Regex("c".into()), &vocabulary, &Settings::default());
    assert!(none.unwrap_err().to_string().contains("no text of the vocabulary"));
}

#[test]
fn a_limit_ends_an_answer_and_no_other() {
    let mut settings = Settings::default();
    settings.bounds.states = 60;
    let constraint = Constraint::Regex("(a|b)*a(a|b){12}".into());
    let grammar = compile(&constraint, &bytes::bytes(), &settings).unwrap();
    let run = || {
        let mut matcher = grammar.start();
        let mut draws = bytes::Draws(3);
        let mut bits = vec![0; 9];
        for step in 0..200 {
            if let Err(dead) = matcher.mask(&mut bits) {
                return (step, dead);
            }
            if let Err(dead) = matcher.accept(97 + draws.below(2) as u32) {
                return (step, dead);
            }
        }
        panic!("no limit met");
    };
    let (step, dead) = run();
    assert!(matches!(dead, Dead::Limit(_)) && step > 0, "{step} {dead}");
    assert_eq!(run(), (step, dead));
}

/// The longest piece first: what a tokenizer does, near enough.
fn longest_first(tokens: &[Vec<u8>]) -> tokenmill_grammar::Tokenize {
    let pieces: Vec<(Vec<u8>, u32)> = tokens.iter().cloned().zip(0..).collect();
    Arc::new(move |text: &[u8]| {
        let (mut ids, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let fits = pieces.iter().filter(|(piece, _)| rest.starts_with(piece));
            let (piece, id) = fits.max_by_key(|(piece, _)| piece.len()).unwrap();
            ids.push(*id);
            rest = &rest[piece.len()..];
        }
        ids
    })
}

/// Answers whose known text comes in one cut are answers of the same grammar in any cut; a copy, and
/// one that was looked ahead from, go on alike.
#[test]
fn known_text_is_part_of_what_may_come() {
    let tokens = piece_bytes(2000);
    let plain = Vocabulary::new(&tokens, &[END], &[END]).unwrap();
    let cut = Vocabulary::new(&tokens, &[END], &[END]).unwrap();
    let (plain, cut) = (Arc::new(plain), Arc::new(cut.tokenized_by(longest_first(&tokens))));
    let long = "a known text with blanks, signs: {\"}\\ and é日本 ".repeat(40);
    let schemas = [
        json!({"const": {"a": long, "b": [1, 2, 3]}}),
        json!({"enum": [{"same begin": 1}, {"same begin": 2}, {"same then not": true}]}),
        json!({"type": "object", "properties": {"first name": {"type": "string"}, "when": {
            "type": "string", "format": "date"}, "kind": {"const": "false true null"}},
            "required": ["first name", "when", "kind"], "additionalProperties": false}),
        json!({"type": "array", "items": {"const": "again and again"}, "minItems": 3}),
    ];
    let (mut certain, mut all) = (0, 0);
    for (schema, seed) in schemas.iter().flat_map(|s| (1..6).map(move |seed| (s, seed))) {
        let constraint = Constraint::JsonSchema(schema.clone());
        let start = |v| compile(&constraint, v, &Settings::default()).unwrap().start();
        let (mut any, mut one) = (start(&plain), start(&cut));
        let (mut draws, mut text) = (bytes::Draws(seed), Vec::new());
        let mut bits = [vec![0; plain.words()], vec![0; plain.words()]];
        while text.len() < 2500 {
            any.mask(&mut bits[0]).unwrap();
            one.mask(&mut bits[1]).unwrap();
            let is_part = bits[1].iter().zip(&bits[0]).all(|(part, whole)| part & !whole == 0);
            let ids = allowed(&bits[1]);
            assert!(is_part && !ids.is_empty(), "{:?}", String::from_utf8_lossy(&text));
            if one.forced().len() > 0 {
                assert_eq!(ids, one.forced().take(1).collect::<Vec<_>>());
                certain += 1;
            }
            all += 1;
            let ahead = (draws.below(16) == 0).then(|| one.apart());
            let id = ids[draws.below(ids.len())];
            any.accept(id).unwrap();
            one.accept(id).unwrap();
            if id == END {
                break;
            }
            text.extend(&tokens[id as usize]);
            if let Some(mut ahead) = ahead {
                ahead.accept(id).unwrap();
                ahead.mask(&mut bits[0]).unwrap();
                one.mask(&mut bits[1]).unwrap();
                assert_eq!(bits[0], bits[1], "{:?}", String::from_utf8_lossy(&text));
            }
        }
    }
    assert!(certain * 4 > all, "{certain} of {all} tokens were certain");
}

#[test]
fn known_text() {
    let mut matcher = of_bytes(&object()).unwrap().start();
    assert_eq!(matcher.forced_bytes(), b"{\"name\":\"");
    assert_eq!(matcher.forced().len(), 0, "without a tokenizer nothing is known of tokens");
    feed(&mut matcher, "{\"na");
    assert_eq!(matcher.forced_bytes(), b"me\":\"");
    feed(&mut matcher, "me\":\"x\"");
    assert_eq!(matcher.forced_bytes(), b",\"age\":");

    let tokens = piece_bytes(2000);
    let vocabulary = Vocabulary::new(&tokens, &[END], &[END]).unwrap();
    let vocabulary = vocabulary.tokenized_by(longest_first(&tokens));
    let vocabulary = Arc::new(vocabulary);
    let mut matcher = compile(&object(), &vocabulary, &Settings::default()).unwrap().start();
    let known: Vec<u32> = matcher.forced().collect();
    let text: Vec<u8> = known.iter().flat_map(|id| tokens[*id as usize].clone()).collect();
    assert!(text.starts_with(b"{\"name") && known.len() < text.len(), "{known:?}");
    known.iter().for_each(|id| matcher.accept(*id).unwrap());
    let mut bits = vec![0; vocabulary.words()];
    matcher.mask(&mut bits).unwrap();
    assert!(!allowed(&bits).is_empty());
}

/// A special token ends a known text, and another begins behind it.
#[test]
fn known_text_around_a_special_token() {
    let (tokens, mark) = (piece_bytes(2000), 300);
    let vocabulary = Vocabulary::new(&tokens, &[END, mark], &[END]).unwrap();
    let vocabulary = Arc::new(vocabulary.tokenized_by(longest_first(&tokens)));
    let text = "start: \"before the mark\" <[300]> \"behind the mark: \" /[a-z]/";
    let constraint = Constraint::Lark(text.into());
    let mut matcher = compile(&constraint, &vocabulary, &Settings::default()).unwrap().start();
    let mut bits = vec![0; vocabulary.words()];
    let take = |matcher: &mut Matcher| {
        let known: Vec<u32> = matcher.forced().collect();
        known.iter().for_each(|id| matcher.accept(*id).unwrap());
        known.iter().flat_map(|id| tokens[*id as usize].clone()).collect::<Vec<u8>>()
    };
    assert_eq!(take(&mut matcher), b"before the mark");
    matcher.mask(&mut bits).unwrap();
    assert_eq!((allowed(&bits), matcher.forced().len()), (vec![mark], 0));
    matcher.accept(mark).unwrap();
    matcher.mask(&mut bits).unwrap();
    assert!(take(&mut matcher).starts_with(b"behind the mar"));
}

#[test]
fn vocabularies_refused() {
    assert_eq!(Vocabulary::new([b"a"], &[], &[]).unwrap_err(), BadVocabulary::NoEnd);
    let id = Vocabulary::new([b"a"], &[7], &[0]).unwrap_err();
    assert_eq!(id, BadVocabulary::Id { id: 7, tokens: 1 });
}

#[test]
fn odd_tokens_are_never_allowed() {
    let long = vec![b'a'; 3000];
    let tokens = [b"a".as_slice(), b"", b"\xff", b"\xffa", &long, b"a", b"<e>", b"</s>"];
    let vocabulary = Arc::new(Vocabulary::new(tokens, &[6], &[6, 7]).unwrap());
    let constraint = Constraint::Lark("start: /(?s:.)*/".into());
    let mut matcher = compile(&constraint, &vocabulary, &Settings::default()).unwrap().start();
    let mut bits = [0];
    matcher.mask(&mut bits).unwrap();
    assert_eq!(allowed(&bits), [0, 5, 6, 7], "two of the same bytes, two ends");
    for odd in [1, 2, 3, 4] {
        assert_eq!(matcher.accept(odd), Err(Dead::NotAllowed(odd)));
    }
    matcher.accept(5).unwrap();
    matcher.accept(7).unwrap();
}

#[test]
fn white_space() {
    let with = |whitespace| {
        let settings = Settings { whitespace, ..Settings::default() };
        compile(&object(), &bytes::bytes(), &settings).unwrap()
    };
    let own = with(Whitespace::Separators { item: ", ".into(), key: ": ".into() });
    assert!(bytes::holds(&own, r#"{"name": "a", "age": 1}"#));
    assert!(!bytes::holds(&own, r#"{"name":"a","age":1}"#));
    let free = with(Whitespace::Flexible);
    assert!(bytes::holds(&free, "{\n    \"name\": \"a\",\n    \"age\": 1\n}"));
    assert!(bytes::holds(&free, r#"{"name":"a","age":1}"#));
    assert!(!bytes::holds(&free, "{\n\n\"name\": \"a\",\"age\":1}"));
    let bad = Whitespace::Separators { item: ";".into(), key: ":".into() };
    let settings = Settings { whitespace: bad, ..Settings::default() };
    assert!(compile(&object(), &bytes::bytes(), &settings).is_err());
}

#[test]
fn leniency_names_what_it_leaves_out() {
    let run = |schema| {
        let vocabulary = bytes::bytes();
        lenient(&Constraint::JsonSchema(schema), &vocabulary, &Settings::default()).unwrap()
    };
    let (grammar, left_out) = run(json!({
        "type": "object",
        "properties": {
            "l": {"type": "array", "items": {"type": "integer"}, "uniqueItems": true},
            "o": {"oneOf": [{"type": "integer", "minimum": 5}, {"type": "integer"}]},
            "s": {"type": "string", "format": "phone", "pattern": "(?=a)"},
        },
        "required": ["l", "o", "s"],
        "additionalProperties": false,
    }));
    for word in ["uniqueItems", "oneOf", "format", "pattern"] {
        assert!(left_out.iter().any(|l| l.contains(word)), "{word}: {left_out:?}");
    }
    assert!(bytes::holds(&grammar, r#"{"l":[1,1],"o":6,"s":"a"}"#));
    assert!(!bytes::holds(&grammar, r#"{"l":["a"],"o":6,"s":"a"}"#));
    assert!(!bytes::holds(&grammar, r#"{"l":[1],"o":"6","s":"a"}"#));
    let (grammar, left_out) = run(json!({"type": "object", "properties": {"a": "b"}}));
    assert_eq!(left_out, ["`a` at /properties/a"]);
    assert!(bytes::holds(&grammar, r#"{"a":[]}"#));
    let (grammar, left_out) = run(json!({"enum": []}));
    assert!(left_out[0].contains("as a whole"), "{left_out:?}");
    assert!(bytes::holds(&grammar, "{}") && !bytes::holds(&grammar, "1"));
    let (grammar, left_out) =
        run(json!({"type": "object", "additionalProperties": {"type": "null"}}));
    assert!(left_out.is_empty() && bytes::holds(&grammar, r#"{"a":null}"#));
}

/// Printed, not asserted: `cargo test --release -p tokenmill-grammar --test matcher -- --nocapture`.
#[test]
fn how_long_it_takes() {
    let start = Instant::now();
    let tokens = piece_bytes(50_000);
    let vocabulary = Arc::new(Vocabulary::new(&tokens, &[END], &[END]).unwrap());
    println!("vocabulary of {}: {:?}", tokens.len(), start.elapsed());
    let mixed = json!({
        "type": "object",
        "properties": {
            "title": {"type": "string", "maxLength": 400},
            "kind": {"enum": ["book", "film", "song"]},
            "rating": {"type": "number", "minimum": 0, "maximum": 10},
            "when": {"type": "string", "format": "date-time"},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
        },
        "required": ["title", "kind", "rating", "when", "tags"],
    });
    let json_gbnf = "root ::= v\nv ::= \"{\" (s \":\" v (\",\" s \":\" v)*)? \"}\" | \"[\" (v (\",\" v)*)? \
                     \"]\" | s | [0-9]+\ns ::= \"\\\"\" [^\"\\\\\\x00-\\x1f]* \"\\\"\"";
    let cases = [
        ("string", Constraint::JsonSchema(json!({"type": "string"}))),
        (
            "string of at most 400",
            Constraint::JsonSchema(json!({"type": "string", "maxLength": 400})),
        ),
        ("object", Constraint::JsonObject),
        ("mixed", Constraint::JsonSchema(mixed)),
        ("regex", Constraint::Regex("[a-z ]{1,200}@[a-z]+".into())),
        ("gbnf", Constraint::Gbnf(json_gbnf.into())),
    ];
    for (name, constraint) in cases {
        let start = Instant::now();
        let grammar = compile(&constraint, &vocabulary, &Settings::default()).unwrap();
        let compiled = start.elapsed();
        let start = Instant::now();
        let mut matcher = grammar.start();
        let started = start.elapsed();
        let mut draws = bytes::Draws(11);
        let mut bits = vec![0; vocabulary.words()];
        let mut times = Vec::new();
        let mut accepts = std::time::Duration::ZERO;
        for _ in 0..300 {
            let start = Instant::now();
            matcher.mask(&mut bits).unwrap();
            times.push(start.elapsed().as_nanos() as f64 / 1e3);
            let ids = allowed(&bits);
            let ids: Vec<u32> = ids.into_iter().filter(|id| *id != END).collect();
            if ids.is_empty() {
                break;
            }
            let start = Instant::now();
            matcher.accept(ids[draws.below(ids.len())]).unwrap();
            accepts += start.elapsed();
        }
        let start = Instant::now();
        let copies: Vec<Matcher> = (0..100).map(|_| matcher.clone()).collect();
        let cloned = start.elapsed() / copies.len() as u32;
        let (first, count) = (times[0], times.len());
        times.sort_by(f64::total_cmp);
        println!(
            "{name}: compiled {compiled:?}, started {started:?}; {count} masks: median {:.0} µs, \
             p95 {:.0}, most {:.0}, first {first:.0}; accept {:?}; clone {cloned:?}",
            times[count / 2],
            times[count * 95 / 100],
            times[count - 1],
            accepts / count as u32,
        );
    }
}

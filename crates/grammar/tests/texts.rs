//! Regular expressions, grammars, choices and structural tags: which texts they take.

mod bytes;

use bytes::{END, holds, of_bytes, reach};
use serde_json::json;
use std::sync::Arc;
use tokenmill_grammar::{Constraint, Refused, Settings, Tag, Vocabulary, compile};

fn gbnf(text: &str) -> Constraint {
    Constraint::Gbnf(text.to_owned())
}

#[track_caller]
fn check(constraint: &Constraint, taken: &[&str], not: &[&str]) {
    let grammar = of_bytes(constraint).unwrap_or_else(|e| panic!("{e}"));
    for text in taken {
        assert!(holds(&grammar, text), "takes only {} of {text:?}", reach(&grammar, text));
    }
    for text in not {
        assert!(!holds(&grammar, text), "takes {text:?}");
    }
}

#[track_caller]
fn refused(constraint: &Constraint, word: &str) {
    match of_bytes(constraint) {
        Ok(_) => panic!("taken: {constraint:?}"),
        Err(e) => assert!(e.to_string().contains(word), "{e}"),
    }
}

#[test]
fn regular_expressions() {
    let regex = |text: &str| Constraint::Regex(text.to_owned());
    check(&regex("[0-9]{3}"), &["123"], &["12", "1234", "12a", "a123"]);
    check(&regex(r"^a|bc$"), &["a", "bc"], &["abc", ""]);
    check(&regex(r"\d+(\.\d{2})?"), &["1", "12.34"], &["1.2", "."]);
    check(&regex(r"(?<y>\w+)-(?:x|y)?"), &["a_1-", "b-x"], &["-", "a-z"]);
    check(&regex(r"[^\]\-a-c]\/[[&&]"), &["d/[", "x/&"], &["a/[", "-/&", "]/["]);
    check(&regex(r"\u00e9\x41\u{1F600}.\s"), &["éA😀x\u{3000}"], &["eA😀x "]);
    check(&regex(r"a*?b+?"), &["b", "aabb"], &["a"]);
    for (text, word) in [
        ("^+[a-z]$", "nothing to repeat"),
        ("^{2}times$", "nothing to repeat"),
        ("(((", "not closed"),
        ("a(?=b)", "lookahead"),
        ("(?<!b)a", "lookbehind"),
        (r"(a)\1", "back references"),
        (r"\bword", "word boundaries"),
        ("a{2,1}", "at least 2 and at most 1"),
        ("a{1,1000000}", "at most 10000"),
        ("[z-a]", "a range"),
        ("[]", "empty class"),
        (r"\ud800", "surrogate"),
        ("a**", "nothing to repeat"),
    ] {
        refused(&regex(text), word);
    }
}

#[test]
fn choices() {
    let choice = |list: &[&str]| Constraint::Choice(list.iter().map(|s| (*s).to_owned()).collect());
    check(&choice(&["left", "right"]), &["left", "right"], &["", "lef", "leftx", "up"]);
    check(&choice(&["a", "ab", "a\"\\\n", "ä\u{7f}"]), &["a", "ab", "a\"\\\n", "ä\u{7f}"], &["b"]);
    check(&choice(&["", "x"]), &["", "x"], &["xx"]);
    refused(&choice(&[]), "empty list");
}

#[test]
fn grammars_of_llama_cpp() {
    let json = r##"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"##;
    check(
        &gbnf(json),
        &["{}", r#"{"a": [1, -2.5e3, {"b":null}], "é\n":"x\u00e9"} "#, "{\n\t\"a\":true}", "{ }"],
        &["", "[]", r#"{"a":}"#, r#"{"a":1,}"#, r#"{"a":01}"#],
    );
    let arithmetic = r#"
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"#;
    check(
        &gbnf(arithmetic),
        &["1+2=3\n", "(a +1)*b=c\nx=1\n"],
        &["1+=3\n", "a + 1=2\n", "(1=2\n", "1=2"],
    );
    let list = r#"root ::= item+
# a list
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n""#;
    check(&gbnf(list), &["- a\n", "- a\n- b c\n"], &["- \n", "a\n", "- a"]);
    let chess = r#"root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?"#;
    check(&gbnf(chess), &["1. e4 e5\n2. Nf3 Nc6\n"], &["1. e4 e5\n", "1. e9 e5\n2. a3 a6\n"]);
    let left = r#"root ::= root "a" | "b""#;
    check(&gbnf(left), &["b", "baa"], &["a", "ab", ""]);
    let other = "root ::= a{2,3} .\na ::= \"x\" | \"日本\" | [\\U0001F600]\n\t| \"y\"{0,0}";
    check(&gbnf(other), &["xxz", "x日本y", "😀😀x😀"], &["", "xxxxxx"]);
}

#[test]
fn grammars_refused() {
    for (text, word) in [
        ("", "no rule `root`"),
        ("a ::= \"x\"", "no rule `root`"),
        ("root ::= b", "`b` is used and not defined"),
        ("root ::= \"x", "not closed"),
        ("root ::= [a-", "not closed"),
        ("root ::= (\"a\"", "not closed"),
        ("root ::= *", "nothing to repeat"),
        ("root ::= <think> \"x\"", "tokens"),
        ("root ::= \"x\" )", "should end"),
        ("root ::= \"x\"\nroot ::= \"y\"", "twice"),
        ("root ::= \"\\q\"", "escape"),
        ("root := \"x\"", "::="),
        ("root ::= \"a\"{1,1000000}", "at most"),
        ("root ::= root", ""),
        ("root ::= \"a\" root", ""),
    ] {
        refused(&gbnf(text), word);
    }
}

#[test]
fn lark() {
    let lark = |text: &str| Constraint::Lark(text.to_owned());
    let call = "start: \"call \" args\nargs: %json {\"type\": \"object\", \"properties\": \
                {\"n\": {\"type\": \"integer\"}}, \"required\": [\"n\"], \"additionalProperties\": \
                false} // 100% \"\n";
    check(&lark(call), &["call {\"n\":1}"], &["call {\"n\": 1}", "call {}", "call {\"n\":1.0}"]);
    check(&lark("start: start \"a\" | \"b\""), &["b", "baa"], &["ab"]);
    check(&lark("start: A+\n%ignore /[ ]/\nA: \"a\" | \"b\"i"), &["a B", "ab"], &["c"]);
    for (text, word) in [
        ("start: %json {\"type\": \"object\", \"if\": {}, \"then\": {}}", "`if`"),
        (
            "start: %json {\"x-guidance\": {\"lenient\": true}, \"uniqueItems\": true}",
            "uniqueItems",
        ),
        ("start: %json {\"type\"", "after %json"),
        ("%llguidance {\"allow_invalid_utf8\": true}\nstart: \"a\"", "allow_invalid_utf8"),
        ("start: a\na[stop=\"x\"]: /.*/", "`stop`"),
        ("start: a\na[temperature = 0.5]: /.*/", "`temperature`"),
        ("start: \"a\" </x> %json {\"uniqueItems\": true} </x>", "uniqueItems"),
        ("start: /x\n\"/ %json {\"uniqueItems\": true} \"a\"", "uniqueItems"),
        ("start: \"a\" // %json {}", "%json"),
        ("start: b", "b"),
        ("nostart: \"a\"", "start"),
        ("start: start", ""),
        ("start: \"a", ""),
    ] {
        refused(&lark(text), word);
    }
}

fn tag(begin: &str, end: &str) -> Tag {
    let schema = json!({
        "type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],
        "additionalProperties": false,
    });
    Tag { begin: begin.to_owned(), schema, end: end.to_owned() }
}

#[test]
fn structural_tags() {
    let constraint = Constraint::Structural {
        triggers: vec!["<f=".into(), "<<".into()],
        tags: vec![tag("<f=a>", "</f>"), tag("<f=b>", "</f>"), tag("<<", ">>")],
    };
    check(
        &constraint,
        &["", "hi < f {}", "<f=a>{\"x\":1}</f>", "so <<{\"x\":2}>> and <f=b>{\"x\":-1}</f>.", "<f"],
        &["<f=", "<f=c>", "<f=a>{\"x\":1.5}</f>", "<f=a>{}", "a <<{\"x\":1}> >", "<f=a></f>", "<<"],
    );
    let free =
        Settings { whitespace: tokenmill_grammar::Whitespace::Flexible, ..Settings::default() };
    let grammar = compile(&constraint, &bytes::bytes(), &free).unwrap();
    assert!(holds(&grammar, "a <<{\n \"x\": 1 }>> b") && !holds(&grammar, "<<{\"x\":1.5}>>"));
    let bare = Tag { schema: json!({"type": "integer"}), ..tag("<<", "") };
    let bare = Constraint::Structural { triggers: vec!["<<".into()], tags: vec![bare] };
    for settings in [Settings::default(), free] {
        let grammar = compile(&bare, &bytes::bytes(), &settings).unwrap();
        for text in ["<<1", "<<12 b", "a <<12 <<3", ""] {
            assert!(holds(&grammar, text), "{text} to {}", reach(&grammar, text));
        }
    }
    let Constraint::Structural { triggers, tags } = constraint else { unreachable!() };
    let odd = Constraint::Structural { triggers: triggers.clone(), tags: vec![tag("[x]", "")] };
    refused(&odd, "trigger");
    let mut strict = tags;
    strict[0].schema = json!({"type": "array", "uniqueItems": true});
    refused(&Constraint::Structural { triggers, tags: strict }, "uniqueItems");
}

#[test]
fn structural_tags_of_special_tokens() {
    let texts = (0..=255u8).map(|b| vec![b]);
    let specials = [&b"<|end|>"[..], b"<tool>", b"</tool>"].map(<[u8]>::to_vec);
    let vocabulary = Vocabulary::new(texts.chain(specials), &[256, 257, 258], &[END]).unwrap();
    let vocabulary = Arc::new(vocabulary);
    let constraint = Constraint::Structural {
        triggers: vec!["<tool>".into()],
        tags: vec![tag("<tool>", "\n</tool>")],
    };
    let grammar = compile(&constraint, &vocabulary, &Settings::default()).unwrap();
    let mut matcher = grammar.start();
    let feed = |matcher: &mut tokenmill_grammar::Matcher, text: &str| {
        text.bytes().for_each(|b| matcher.accept(u32::from(b)).unwrap());
    };
    feed(&mut matcher, "text <tool> spelled");
    assert!(matcher.may_end());
    assert!(matcher.accept(258).is_err(), "the end marker in free text");
    matcher.accept(257).unwrap();
    assert!(!matcher.may_end() && matcher.accept(257).is_err() && matcher.accept(END).is_err());
    feed(&mut matcher, "{\"x\":7}\n");
    matcher.accept(258).unwrap();
    feed(&mut matcher, "more");
    matcher.accept(END).unwrap();
    assert!(matcher.is_done());
}

#[test]
fn refusals_are_typed() {
    let syntax = of_bytes(&gbnf("")).unwrap_err();
    assert!(matches!(syntax, Refused::Syntax { kind: "grammar", .. }));
}

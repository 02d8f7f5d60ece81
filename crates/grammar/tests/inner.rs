//! Grammars inside JSON strings and inside marks: what they take is what the client's own take.

mod bytes;

use bytes::{END, allowed, bytes, holds, piece_bytes, pieces};
use serde_json::Value;
use tokenmill_grammar::{Constraint, Grammar, Refused, Settings, Spelling, compile, inner};

/// A grammar of patches, as an agent sends it.
const PATCH: &str = include_str!("patch.lark");

const SUMS: &str = r#"// A sum, blanks anywhere.
start: sum
?sum: product ("+" product)*
    | product "-" sum
product: factor ~ 1..3
factor: INT | "(" sum ")" | name{1,2}
name: "x".."z" | "pi"i
%import common (INT, WS_INLINE)
%ignore WS_INLINE
"#;

fn compiled(lark: &str) -> Grammar {
    let lark = Constraint::Lark(lark.to_owned());
    let made = compile(&lark, &bytes(), &Settings::default());
    made.unwrap_or_else(|e| panic!("{e}: {lark:?}"))
}

/// The grammar of a JSON string that holds the other.
fn in_json(what: &Constraint) -> Result<Grammar, Refused> {
    let inner = inner(what, "g", Spelling::Json)?;
    Ok(compiled(&format!("{}start: \"\\\"\" {} \"\\\"}}\"\n", inner.rules, inner.start)))
}

fn in_marks(what: &Constraint, mark: &str) -> Result<Grammar, Refused> {
    let inner = inner(what, "g", Spelling::Plain(&[mark]))?;
    let (rules, all, mark) = (inner.rules, inner.start, Value::from(mark).to_string());
    Ok(compiled(&format!("{rules}ENDED: {all} {mark}\nstart: \"<\" ENDED\n")))
}

fn lark(text: &str) -> Constraint {
    Constraint::Lark(text.to_owned())
}

#[test]
fn what_stands_inside_is_what_the_client_asks_for() {
    let patches = [
        ("*** Begin Patch\n*** Add File: a\"b.txt\n+x\\y\t\"z\"\n+\n*** End Patch\n", true),
        ("*** Begin Patch\n*** Delete File: a\n*** End Patch", true),
        ("*** Begin Patch\n*** Update File: a\n@@ f()\n-a\n+grüß 🦀 </p\n*** End Patch", true),
        ("*** Begin Patch\n*** Update File: a\n*** Move to: b\n*** End Patch\n", true),
        ("*** Begin Patch\n*** End Patch\n", false),
        ("*** Begin Patch\n*** Add File: a\nx\n*** End Patch\n", false),
        ("*** Begin Patch\n*** Add File: a\n+x\n*** End Patch\n\n", false),
        ("a", false),
    ];
    let sums = [("1+2", true), (" ( x +12 )  ", true), ("xx PI", true), ("1 - (2-y)z", true)];
    let not = [("", false), ("1+", false), ("(1", false), ("w", false), ("1 1 1 1", false)];
    let lists = [("[a, b]", true), ("[]", true), ("[a", false)];
    let cases = [
        (lark(PATCH), patches.as_slice()),
        (lark(SUMS), &[sums.as_slice(), not.as_slice()].concat()),
        (
            Constraint::Regex(r#"^\w+: "[^"]*"(\n|\t)?$"#.into()),
            &[("a: \"b\\c\"\n", true), ("a: \"\"", true), ("a: \"b\"\n\n", false)],
        ),
        (lark("start: \"[\" (NAME (\", \" NAME)*)? \"]\"\nNAME: /[a-z]+/ & /.{1,3}/\n"), &lists),
        (
            lark("start: value\nvalue: \"[\" value* \"]\" | S\n%import common.ESCAPED_STRING -> S"),
            &[("[\"a\\n\"[\"\"]]", true), ("[\"a\"", false)],
        ),
    ];
    for (what, texts) in cases {
        let quoted = in_json(&what).unwrap_or_else(|e| panic!("{e}: {what:?}"));
        let own = compile(&what, &bytes(), &Settings::default()).unwrap();
        for (text, is_taken) in texts {
            let written = format!("{}}}", Value::from(*text));
            assert_eq!(holds(&quoted, &written), *is_taken, "{written}");
            // (A lexer that takes the longest lexeme takes less than the grammar says.)
            assert!(*is_taken || !holds(&own, text), "{text:?}");
            if let Ok(plain) = in_marks(&what, "</p>") {
                assert_eq!(holds(&plain, &format!("<{text}</p>")), *is_taken, "{text:?}");
            }
        }
    }
}

#[test]
fn marks_stand_behind_the_text_alone() {
    let all = in_marks(&lark("start: LINE+\nLINE: /.*/ \"\\n\"\n"), "</p>").unwrap();
    assert!(holds(&all, "<a\n</p>") && holds(&all, "<</\n</p>"));
    assert!(!holds(&all, "<a</p>\n</p>"));
}

#[test]
fn control_characters_are_those_that_json_has_letters_for() {
    let any = in_json(&Constraint::Regex("[^a]{1,3}".into())).unwrap();
    for (text, is_taken) in [(r"\n\t\b", true), (r"\u0001", false), ("é/", true), (r"\/", false)] {
        assert_eq!(holds(&any, &format!("\"{text}\"}}")), is_taken, "{text}");
    }
    let why = in_json(&lark("start: \"\\u0001\"")).unwrap_err().to_string();
    assert!(why.contains("control character 0x01"), "{why}");
}

#[test]
fn what_cannot_stand_inside_is_named() {
    for (text, word) in [
        ("start: a", "no rule is a"),
        ("a: \"b\"", "no rule is start"),
        ("start: \"a\"\nstart: \"b\"", "two rules start"),
        ("start: %json {}", "%json"),
        ("%llguidance {}\nstart: \"a\"", "%llguidance"),
        ("%declare A\nstart: A", "%declare"),
        ("%import other.A\nstart: A", "common"),
        ("%import common.NONE\nstart: NONE", "common.NONE"),
        ("start: <|a|>", "<|a|>"),
        ("start: @b", "@b"),
        ("start: ~\"a\"", "complement"),
        ("start[lazy]: \"a\"", "attributes"),
        ("start.2: \"a\"", "priorities"),
        ("start: f{\"a\"}", "complement"),
        ("f{x}: x\nstart: \"a\"", "templates"),
        ("start: (\"a\"", "not closed"),
        ("start: \"a\")", "closes nothing"),
        ("start: \"a", "not closed"),
        ("start: /a", "not closed"),
        ("start: /(/", "unclosed group"),
        ("start: /a\\bb/", "word boundaries"),
        ("start: \"b\"..\"a\"", "range"),
        ("start: \"a\"~3..2", "counts"),
        ("start: \"a\"{100000}", "repetitions"),
        ("start: \"(\" start \")\" | /[^)]+/ \"\\n\"", "goes on"),
        ("start: \"(\" S start \")\" | /\\s+/\n%import common.ESCAPED_STRING -> S", "S begins"),
        ("Start: \"a\"", "no name"),
    ] {
        let why = in_json(&lark(text)).map(|_| ()).unwrap_err().to_string();
        assert!(why.contains(word), "{text}: {why}");
    }
    assert!(in_json(&Constraint::JsonObject).is_err());
    let why = in_marks(&lark("start: \"(\" start? \")\""), "</p>").unwrap_err().to_string();
    assert!(why.contains("circle"), "{why}");
}

/// With tokens of many bytes: no mask passes a limit, and the text is drawn from them to its end.
#[test]
fn masks_of_texts_inside_are_small() {
    let inner = inner(&lark(PATCH), "g", Spelling::Json).unwrap();
    let text = format!("{}start: \"\\\"\" {} \"\\\"}}\"\n", inner.rules, inner.start);
    let vocabulary = pieces(8000);
    let made = compile(&lark(&text), &vocabulary, &Settings::default()).unwrap();
    let tokens = piece_bytes(8000);
    let patch =
        "*** Begin Patch\n*** Update File: a/b.rs\n@@ fn a()\n-  co\n+  \"be\"\n*** End Patch\n";
    let wanted = format!("{}}}", Value::from(patch));
    let (mut matcher, mut at) = (made.start(), 0);
    let mut bits = vec![0u32; vocabulary.words()];
    while at < wanted.len() {
        matcher.mask(&mut bits).unwrap();
        let rest = &wanted.as_bytes()[at..];
        let fits = |id: &u32| *id != END && rest.starts_with(&tokens[*id as usize]);
        let longest =
            allowed(&bits).into_iter().filter(fits).max_by_key(|id| tokens[*id as usize].len());
        let id = longest.unwrap_or_else(|| panic!("nothing goes on: {}", &wanted[at..]));
        matcher.accept(id).unwrap();
        at += tokens[id as usize].len();
    }
    assert!(matcher.may_end());
}

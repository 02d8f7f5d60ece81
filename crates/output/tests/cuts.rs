//! Random texts of marks, beginnings of marks and what stands inside, cut at random.

mod answers;

use std::sync::Arc;

use answers::{joined, merged, read, some};
use tokenmill_output::{FORMATS, Format, Piece, Tool};

/// Texts drawn for each row.
const TEXTS: usize = 400;

/// What stands between marks, and looks like it.
const INSIDE: &[&str] = &[
    "{\"name\": \"f\", \"arguments\": {\"text\": \"a\"}}",
    "[{\"name\": \"f\", \"parameters\": {}}, {\"name\": \"g\"}]",
    "{\"name\": \"h\"}",
    "{\"tool_name\": \"f\", \"parameters\": {\"count\": 1}}",
    "{\"count\": 1}",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "'",
    "(",
    ")",
    ",",
    ";",
    ":",
    "\\",
    "=",
    ">",
    "\">",
    "f",
    "g",
    "h",
    "f()",
    "[f(count=1, text='x')]",
    "f.call(count=1)",
    "functions.f:0",
    "call:f{",
    "text:",
    "text",
    "count",
    "1",
    "null",
    "True",
    " ",
    "\n",
    "é思🤔",
    "```json",
    "```",
    "functools",
    "assistant",
    "analysis",
    "commentary to=functions.f ",
    "final",
    "word ",
];

/// A seeded series of draws (xorshift).
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit.max(1)
    }

    fn text(&mut self, marks: &[&str]) -> String {
        let mut text = String::new();
        for _ in 0..self.below(25) {
            match self.below(10) {
                0..=4 if !marks.is_empty() => text.push_str(marks[self.below(marks.len())]),
                5 if !marks.is_empty() => {
                    let mark = marks[self.below(marks.len())];
                    let ends: Vec<usize> = mark.char_indices().map(|(at, _)| at).collect();
                    text.push_str(&mark[..ends[self.below(ends.len())]]);
                }
                _ => text.push_str(INSIDE[self.below(INSIDE.len())]),
            }
        }
        text
    }

    /// The text in parts, some of them empty.
    fn parts<'a>(&mut self, text: &'a str) -> Vec<&'a str> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let mut at = self.below(9).min(rest.len());
            while !rest.is_char_boundary(at) {
                at += 1;
            }
            let (part, more) = rest.split_at(at);
            parts.push(part);
            rest = more;
        }
        parts
    }
}

fn is_well_formed(pieces: &[Piece]) -> bool {
    let answer = joined(pieces);
    answer.calls.iter().all(|(name, arguments)| {
        let value: Result<serde_json::Value, _> = serde_json::from_str(arguments);
        !name.is_empty() && value.is_ok_and(|value| value.is_object())
    })
}

#[test]
fn the_pieces_do_not_depend_on_the_cuts() {
    for (at, format) in FORMATS.iter().enumerate() {
        let mut draws = Draws(at as u64 + 7);
        let marks = format.markers();
        for _ in 0..TEXTS {
            let text = draws.text(&marks);
            let tools: Arc<[Tool]> =
                if draws.below(6) == 0 { some(&[]) } else { some(&["f", "g"]) };
            let (begun, cut) = (draws.below(3) == 0, draws.below(2) == 0);
            let whole = merged(&read(format.name, &tools, begun, [text.as_str()], cut));
            let parts = draws.parts(&text);
            let parted = merged(&read(format.name, &tools, begun, parts, cut));
            assert_eq!(whole, parted, "{} {begun} {cut}: {text:?}", format.name);
            assert!(is_well_formed(&whole), "{}: {text:?}: {whole:?}", format.name);
            // Nothing is said twice, but for calls that turned out to be text.
            let answer = joined(&whole);
            if answer.calls.is_empty() && answer.cut.is_none() {
                let said = answer.content.len() + answer.reasoning.len();
                assert!(said <= text.len() + 32, "{}: {text:?}: {whole:?}", format.name);
            }
        }
    }
}

#[test]
fn without_tools_no_text_is_lost() {
    for (at, format) in FORMATS.iter().enumerate().filter(|(_, f)| f.name != "harmony") {
        let mut draws = Draws(at as u64 + 77);
        let marks: Vec<&str> = format.markers();
        let marks: Vec<&str> = marks.into_iter().filter(|mark| !is_of_text(format, mark)).collect();
        for _ in 0..TEXTS {
            let text = draws.text(&marks);
            let cut = draws.below(2) == 0;
            let answer = joined(&read(format.name, &some(&[]), false, [text.as_str()], cut));
            assert_eq!(answer.content, text, "{}", format.name);
            assert!(answer.reasoning.is_empty() && answer.calls.is_empty());
        }
    }
}

/// Whether a mark is one of reasoning or the answer, or begins with one.
fn is_of_text(format: &Format, mark: &str) -> bool {
    let answer = joined(&read(format.name, &some(&[]), false, [mark], false));
    answer.content != mark
}

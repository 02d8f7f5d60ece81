//! Answers as a client gets them: pieces, joined.
#![allow(dead_code)] // each test file uses its part

use std::sync::Arc;

use serde_json::{Value, json};
use tokenmill_output::{Format, Parser, Piece, Tool};

/// An answer, its pieces joined.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    pub reasoning: String,
    pub content: String,
    /// Names and arguments of whole calls.
    pub calls: Vec<(String, String)>,
    /// A call that was not ended, last.
    pub cut: Option<(String, String)>,
}

/// Tools by name, with the schemas of their arguments.
pub fn tools(list: &[(&str, Value)]) -> Arc<[Tool]> {
    let tool = |(name, parameters): &(&str, Value)| Tool {
        name: (*name).to_owned(),
        parameters: parameters.clone(),
        input: None,
    };
    list.iter().map(tool).collect()
}

/// Tools of the names, with parameters of all types.
pub fn some(names: &[&str]) -> Arc<[Tool]> {
    let schema = json!({"type": "object", "properties": {
        "text": {"type": "string"}, "count": {"type": "integer"}, "any": {}
    }});
    let list: Vec<_> = names.iter().map(|name| (*name, schema.clone())).collect();
    tools(&list)
}

/// Reads an answer that comes in these parts.
pub fn read<'a>(
    format: &str,
    tools: &Arc<[Tool]>,
    begun: bool,
    parts: impl IntoIterator<Item = &'a str>,
    cut: bool,
) -> Vec<Piece> {
    let format = Format::named(format).unwrap();
    let mut parser = Parser::new(format, tools.clone(), begun);
    let mut pieces = Vec::new();
    for part in parts {
        parser.push(part, &mut pieces);
    }
    parser.finish(cut, &mut pieces);
    pieces
}

/// Joins pieces of a kind that follow each other.
pub fn merged(pieces: &[Piece]) -> Vec<Piece> {
    let mut merged: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (merged.last_mut(), piece) {
            (Some(Piece::Text(a)), Piece::Text(b))
            | (Some(Piece::Reasoning(a)), Piece::Reasoning(b))
            | (Some(Piece::CallArguments(a)), Piece::CallArguments(b)) => a.push_str(b),
            _ => merged.push(piece.clone()),
        }
    }
    merged
}

/// What a client has in the end.
pub fn joined(pieces: &[Piece]) -> Answer {
    let mut answer = Answer::default();
    for piece in pieces {
        match piece {
            Piece::Text(text) => answer.content.push_str(text),
            Piece::Reasoning(text) => answer.reasoning.push_str(text),
            Piece::CallStart { name } => answer.cut = Some((name.clone(), String::new())),
            Piece::CallArguments(text) => {
                answer.cut.as_mut().expect("arguments without a call").1.push_str(text);
            }
            Piece::CallEnd => answer.calls.extend(answer.cut.take()),
        }
    }
    answer
}

/// An answer in one part, read to its end.
pub fn whole(format: &str, tools: &Arc<[Tool]>, text: &str) -> Answer {
    joined(&read(format, tools, false, [text], false))
}

/// Asserts that the pieces are the same in one part, in two at every place, and in characters;
/// gives them.
pub fn at_every_split(
    format: &str,
    tools: &Arc<[Tool]>,
    begun: bool,
    text: &str,
    cut: bool,
) -> Answer {
    let pieces = merged(&read(format, tools, begun, [text], cut));
    for at in (0..=text.len()).filter(|at| text.is_char_boundary(*at)) {
        let (a, b) = text.split_at(at);
        let two = merged(&read(format, tools, begun, [a, b], cut));
        assert_eq!(two, pieces, "{format}: {text:?} split at {at}");
    }
    let chars = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
    let single = merged(&read(format, tools, begun, chars, cut));
    assert_eq!(single, pieces, "{format}: {text:?} in characters");
    joined(&pieces)
}

//! docs/llamacpp.md against the code, and against all that llama.cpp's own server looks for.

use serde_json::{Value, json};
use tokenmill_engine::{StopReason, TokenInfo, Usage};
use tokenmill_output::Piece;

use super::{completion, infill, numbers};
use crate::ask::{Choice, Head, MakeWriter, Read};
use crate::openai::page::{check, rows_of};
use crate::openai::rerank;

const PAGE: &str = include_str!("../../../../docs/llamacpp.md");
const MEMBERS: &str = include_str!("../../../../tests/http/fixtures/llamacpp-members.txt");

/// A section of the page, its name among the members (empty: none), what reads it, and a request in which
/// every place of a member is there.
type Row = (&'static str, &'static str, Read, fn() -> Value);

const ROUTES: &[Row] = &[
    ("Completion", "completion", completion::read, full),
    ("Infill", "infill", infill::read, || json!({ "input_prefix": "a", "input_suffix": "b" })),
    ("Embedding", "embedding", numbers::embed, || json!({ "content": "c" })),
    ("Rerank", "rerank", numbers::rank, || json!({ "query": "q", "documents": ["d", "e"] })),
    ("Rerank as TEI has it", "", numbers::rank, || json!({ "query": "q", "texts": ["d", "e"] })),
    (
        "Rerank as Cohere has it",
        "",
        rerank::read_cohere,
        || json!({ "model": "m", "query": "q", "documents": ["d", "e"] }),
    ),
];

/// Sections whose members are asked from outside: `tests/http/tests/llamacpp.rs`.
const OTHERS: &[(&str, &str)] = &[("Tokenize", "tokenize"), ("Detokenize", "detokenize")];

/// (Every number belongs to a sampler that is on.)
fn full() -> Value {
    json!({
        "prompt": "p", "n_probs": 1, "dynatemp_range": 0.1, "xtc_probability": 0.1,
        "dry_multiplier": 0.1,
    })
}

/// A whole answer of one token.
fn whole(writer: MakeWriter) -> String {
    let head = Head { prompts: 1, choices: 1, ..Head::default() };
    let token = TokenInfo { id: 1, bytes: Vec::new(), logprob: None, top: Vec::new() };
    let choice = Choice {
        pieces: vec![Piece::Text("t".into())],
        tokens: vec![token],
        finish: Some(StopReason::Length),
        ..Choice::default()
    };
    writer(head).whole(&[choice], Usage::default()).to_string()
}

#[test]
fn the_page_says_of_every_member_what_becomes_of_it() {
    for (section, _, read, full) in ROUTES {
        let rows = rows_of(PAGE, section);
        rows.iter().for_each(|row| check((*read, whole), &full(), "", row));
        assert!(rows.len() > 3, "{section}");
    }
}

#[test]
fn the_page_leaves_out_nothing_that_llama_cpp_looks_for() {
    let all = ROUTES.iter().map(|(section, route, ..)| (*section, *route));
    let all = all.filter(|(_, route)| !route.is_empty());
    for (section, route) in all.chain(OTHERS.iter().copied()) {
        let mut rows = rows_of(PAGE, section);
        if route == "rerank" {
            rows.extend(rows_of(PAGE, "Rerank as TEI has it"));
        }
        let members = MEMBERS.lines().filter_map(|line| line.strip_prefix(&format!("{route} ")));
        for member in members {
            assert!(rows.iter().any(|row| row[0] == member), "{section}: no row of {member}");
        }
    }
}

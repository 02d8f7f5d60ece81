//! docs/ollama.md against the code, and against all that Ollama's client and its own types can ask.

use serde_json::{Value, json};

use super::{chat, embed, generate};
use crate::ask::Read;
use crate::openai::page::{check, closed, rows_of};

const PAGE: &str = include_str!("../../../../docs/ollama.md");
const MEMBERS: &str = include_str!("../../../../tests/http/fixtures/ollama-members.txt");

/// A section of the page: its name among the members, what reads it, a request in which every place
/// of a member is there, and where in it the section's members stand.
type Row = (&'static str, &'static str, Read, fn() -> Value, &'static str);

const ROUTES: &[Row] = &[
    ("Chat", "chat", chat::read, full_chat, ""),
    ("Generate", "generate", generate::read, full_generate, ""),
    ("Options", "options", generate::read, full_generate, "options."),
    ("Embed", "embed", embed::read, || json!({ "model": "m", "input": "i" }), ""),
    ("Embeddings", "embeddings", embed::read_one, || json!({ "model": "m", "prompt": "p" }), ""),
    (
        "Rerank",
        "rerank",
        embed::rank,
        || json!({ "model": "m", "query": "q", "documents": ["d", "e"] }),
        "",
    ),
];

/// Sections whose members are asked from outside: `tests/http/tests/ollama.rs`.
const OTHERS: &[(&str, &str)] = &[
    ("Show", "show"),
    ("Create", "create"),
    ("Copy", "copy"),
    ("Delete", "delete"),
    ("Pull", "pull"),
];

fn full_generate() -> Value {
    json!({ "model": "m", "prompt": "p", "logprobs": true })
}

fn full_chat() -> Value {
    let called = json!({ "name": "f", "arguments": {} });
    let call = json!({ "id": "x", "type": "function", "function": called });
    json!({
        "model": "m",
        "messages": [
            { "role": "user", "content": "q" },
            { "role": "assistant", "content": "a", "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "x", "content": "t" },
        ],
        "tools": [{ "type": "function", "function": { "name": "f" } }],
        "logprobs": true,
    })
}

#[test]
fn the_page_says_of_every_member_what_becomes_of_it() {
    for (section, _, read, full, place) in ROUTES {
        let rows = rows_of(PAGE, section);
        rows.iter().for_each(|row| check((*read, closed), &full(), place, row));
        assert!(rows.len() > 3, "{section}");
    }
}

#[test]
fn the_page_leaves_out_nothing_that_clients_can_ask() {
    let all = ROUTES.iter().map(|(section, route, ..)| (*section, *route));
    for (section, route) in all.chain(OTHERS.iter().copied()) {
        let rows = rows_of(PAGE, section);
        let members = MEMBERS.lines().filter_map(|line| line.strip_prefix(&format!("{route} ")));
        for member in members {
            assert!(rows.iter().any(|row| row[0] == member), "{section}: no row of {member}");
        }
    }
}

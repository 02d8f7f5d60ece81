//! docs/ollama.md against the code, and against all that Ollama's client and its own types can ask.

use serde_json::{Value, json};
use tokenmill_engine::{KeepAlive, Usage};

use super::{chat, embed, generate};
use crate::ask::{Ask, Found, Generate, Head, Numbers, NumbersHead, Read};
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Notes};
use crate::models;
use crate::openai::page::{judge, rows_of, set};

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

/// What a request is read as, and how its answer would be written.
#[derive(Debug, PartialEq)]
struct Told {
    keep: Option<KeepAlive>,
    text: Option<(Generate, bool)>,
    numbers: Option<Numbers>,
    written: String,
    notes: Vec<String>,
}

fn told(read: Read, body: Value) -> Result<Told, ApiError> {
    let mut fields = Fields::of(body, "")?;
    let keep = models::keep_alive(&mut fields)?;
    let mut notes = Notes::new(false);
    let ask = read(fields, &Limits::default(), &mut notes)?;
    let notes = notes.into_list();
    let (mut text, mut numbers, mut written) = (None, None, String::new());
    match ask {
        Ask::Generate { ask, stream, writer } => {
            writer(Head::default()).close(Usage::default(), &mut written);
            text = Some((*ask, stream));
        }
        Ask::Numbers { ask, write } => {
            let head = NumbersHead { ticket: 0, model: String::new(), warnings: Vec::new() };
            written = write(&head, Found { rows: vec![vec![1.0], vec![2.0]], prompt_tokens: 1 });
            numbers = Some(ask);
        }
        Ask::Count { ask, .. } => text = Some((*ask, false)),
        Ask::Look { .. } => panic!("nothing is looked up here"),
    }
    Ok(Told { keep, text, numbers, written, notes })
}

/// Holds what a row says of a request beside the full one against what is read.
fn check(read: Read, full: &Value, place: &str, row: &[String]) {
    let example = serde_json::from_str(&row[1]).unwrap_or_else(|e| panic!("{row:?}: {e}"));
    let mut body = full.clone();
    set(&mut body, &format!("{place}{}", row[0]), example);
    let plain = told(read, full.clone()).expect("the full request");
    judge(row, &row[2], plain, told(read, body), |told| std::mem::take(&mut told.notes));
}

#[test]
fn the_page_says_of_every_member_what_becomes_of_it() {
    for (section, _, read, full, place) in ROUTES {
        let rows = rows_of(PAGE, section);
        rows.iter().for_each(|row| check(*read, &full(), place, row));
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

//! Requests as they are read, whole streams as they are written, and the page about both.

mod reading;
mod writing;

use serde_json::{Value, json};

use super::members::{IGNORED, REFUSED, TAKEN};
use super::request::{self, Asked};
use super::{items, read};
use crate::ask::Input;
use crate::config::Limits;
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::fields::{Fields, Notes};
use crate::seal::Seal;

/// A request read, and what was told of it.
fn asked(body: Value, seal: &Seal) -> Result<(Asked, Vec<String>), ApiError> {
    let mut notes = Notes::new(false).sealed_by(seal.clone());
    let asked = request::read(Fields::of(body, "")?, &Limits::default(), &mut notes)?;
    Ok((asked, notes.into_list()))
}

fn talk(asked: &Asked) -> &Conversation {
    match &asked.ask.input {
        Input::Conversation(talk) => talk,
        _ => panic!("a conversation"),
    }
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

/// What the official client can ask of this API.
fn members() -> impl Iterator<Item = &'static str> {
    let all = include_str!("../../../../../../tests/http/fixtures/openai-members.txt");
    all.lines().filter_map(|line| line.strip_prefix("responses "))
}

/// Those of a list of objects: the types that they name themselves by.
fn types(list: &str) -> impl Iterator<Item = &'static str> {
    members().filter_map(move |line| line.strip_prefix(list)?.strip_prefix('[')?.strip_suffix(']'))
}

#[test]
fn every_member_of_the_official_client_is_known() {
    let taken = TAKEN.iter().map(|(name, _)| *name);
    let known: Vec<&str> =
        taken.chain(IGNORED.iter().map(|i| i.name)).chain(REFUSED.iter().map(|u| u.name)).collect();
    let client: Vec<&str> = members().filter(|name| !name.contains(['[', '.'])).collect();
    assert!(client.len() > 30, "{client:?}");
    for name in client {
        assert_eq!(known.iter().filter(|known| **known == name).count(), 1, "{name}");
    }
    for (name, _) in TAKEN {
        let mut notes = Notes::new(true);
        let body = Fields::of(json!({ "input": "a", *name: "?" }), "").expect("an object");
        if let Err(error) = read(body, &Limits::default(), &mut notes) {
            assert_ne!(error.code, Some("unknown_field"), "{name}");
        }
    }
}

#[test]
fn the_page_says_what_becomes_of_every_member_and_item() {
    let page = include_str!("../../../../../../docs/responses.md");
    let mut rows: Vec<String> = Vec::new();
    rows.extend(TAKEN.iter().map(|(name, effect)| format!("| `{name}` | taken | {effect} |")));
    rows.extend(IGNORED.iter().map(|i| format!("| `{}` | warned of | {} |", i.name, i.because)));
    rows.extend(REFUSED.iter().map(|u| format!("| `{}` | refused |", u.name)));
    rows.extend(items::ITEMS.iter().map(|(name, effect)| format!("| `{name}` | {effect} |")));
    for row in &rows {
        assert!(page.contains(row.as_str()), "docs/responses.md lacks: {row}");
    }
    assert_eq!(page.matches("\n| `").count(), rows.len(), "and has no other");
}

#[test]
fn the_page_names_every_member_of_what_is_looked_into() {
    let page = include_str!("../../../../../../docs/responses.md");
    for member in members().filter_map(|line| line.split_once('.')).map(|(_, member)| member) {
        assert!(page.contains(&format!("`{member}`")), "{member}");
    }
}

#[test]
fn every_type_of_the_official_client_is_read_or_told() {
    let seal = Seal::default();
    let mut told = 0;
    for kind in types("input") {
        let known = items::ITEMS.iter().any(|(name, _)| *name == kind);
        let item = json!({ "type": kind, "id": "i", "call_id": "c" });
        match asked(json!({ "input": [user("a"), item] }), &seal) {
            Ok((_, notes)) if !known => {
                assert!(notes.iter().any(|note| note.contains(kind)), "{kind}: {notes:?}");
                told += 1;
            }
            read => assert!(known, "{kind}: {:?}", read.err()),
        }
    }
    for kind in types("tools") {
        let known = ["function", "custom", "namespace", "tool_search"].contains(&kind);
        let tool = json!({ "type": kind, "name": "t" });
        match asked(json!({ "input": "a", "tools": [tool] }), &seal) {
            Ok((_, notes)) if !known => {
                assert!(notes.iter().any(|note| note.contains(kind)), "{kind}: {notes:?}");
                told += 1;
            }
            read => assert!(known, "{kind}: {:?}", read.err()),
        }
    }
    assert!(told > 20, "{told}");
}

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
        Input::Prompts { .. } => panic!("a conversation"),
    }
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

/// Members of `ResponseCreateParams` and `InputTokenCountParams` of openai-python 3.57.0.
const CLIENT: &[&str] = &[
    "access_programs",
    "background",
    "background_options",
    "context_management",
    "conversation",
    "image",
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "moderation",
    "parallel_tool_calls",
    "personality",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
];

#[test]
fn every_member_of_the_official_client_is_known() {
    let taken = TAKEN.iter().map(|(name, _)| *name);
    let known: Vec<&str> =
        taken.chain(IGNORED.iter().map(|i| i.name)).chain(REFUSED.iter().map(|u| u.name)).collect();
    for name in CLIENT {
        assert_eq!(known.iter().filter(|known| *known == name).count(), 1, "{name}");
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

//! docs/openai.md against the code, and against all that OpenAI's client can ask.

use serde_json::{Value, json};
use tokenmill_engine::{KeepAlive, Usage};

use super::parameters::{IGNORED, UNBUILT};
use super::{chat, completion, embedding};
use crate::ask::{Ask, Found, Generate, Head, MakeWriter, Numbers, NumbersHead, Read};
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Notes};
use crate::models;

const PAGE: &str = include_str!("../../../../docs/openai.md");
const MEMBERS: &str = include_str!("../../../../tests/http/fixtures/openai-members.txt");

/// A route: its section of the page, its name among the members, what reads it, and a request in which
/// every place of a member is there.
type Row = (&'static str, &'static str, Read, fn() -> Value);

const ROUTES: &[Row] = &[
    ("Chat completions", "chat", chat::read, full_chat),
    (
        "Completions",
        "completions",
        completion::read,
        || json!({ "model": "m", "prompt": "p", "stream": true, "stream_options": {} }),
    ),
    ("Embeddings", "embeddings", embedding::read, || json!({ "model": "m", "input": "i" })),
];

fn full_chat() -> Value {
    let text = |text: &str| json!([{ "type": "text", "text": text }]);
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let image = json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBORw0KGgo=" } });
    json!({
        "model": "m",
        "messages": [
            { "role": "system", "content": text("s") },
            { "role": "developer", "content": text("d") },
            { "role": "user", "content": [{ "type": "text", "text": "q" }, image] },
            { "role": "assistant", "content": text("a"), "tool_calls": [
                { "id": "x", "type": "function", "function": { "name": "f", "arguments": "{}" } },
            ] },
            { "role": "tool", "tool_call_id": "x", "content": text("t") },
        ],
        "tools": [tool("f"), tool("g")],
        "tool_choice": "required",
        "response_format": { "type": "json_schema", "json_schema": { "name": "n", "schema": {} } },
        "prediction": { "type": "content", "content": text("p") },
        "stream": true,
        "stream_options": {},
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

/// Writes some answer.
pub(crate) type Write = fn(MakeWriter) -> String;

/// The end of a stream.
pub(crate) fn closed(writer: MakeWriter) -> String {
    let mut written = String::new();
    writer(Head::default()).close(Usage::default(), &mut written);
    written
}

fn told(read: Read, body: Value, write_text: Write) -> Result<Told, ApiError> {
    let mut fields = Fields::of(body, "")?;
    let keep = models::keep_alive(&mut fields)?;
    let mut notes = Notes::new(false);
    let ask = read(fields, &Limits::default(), &mut notes)?;
    let notes = notes.into_list();
    let (mut text, mut numbers, mut written) = (None, None, String::new());
    match ask {
        Ask::Generate { ask, stream, writer } => {
            written = write_text(writer);
            text = Some((*ask, stream));
        }
        Ask::Numbers { ask, write } => {
            let head = NumbersHead { ticket: 0, model: String::new(), warnings: Vec::new() };
            let found = Found { rows: vec![vec![0.6, 0.8], vec![0.8, 0.6]], prompt_tokens: 1 };
            written = write(&head, found);
            numbers = Some(ask);
        }
        Ask::Count { ask, .. } => text = Some((*ask, false)),
        Ask::Look { .. } => panic!("nothing is looked up here"),
    }
    Ok(Told { keep, text, numbers, written, notes })
}

fn rows(section: &str) -> Vec<Vec<String>> {
    rows_of(PAGE, section)
}

/// The rows of the tables of a page's section: their cells without the quotes.
pub(crate) fn rows_of(page: &str, section: &str) -> Vec<Vec<String>> {
    let start = format!("\n## {section}\n");
    let text = page.split(&start).nth(1).unwrap_or_else(|| panic!("no section {section}"));
    let text = text.split("\n## ").next().unwrap_or_default();
    let cell = |cell: &str| cell.trim().trim_matches('`').replace("\\|", "|");
    let row = |line: &str| line.trim_matches('|').split(" | ").map(cell).collect();
    text.lines().filter(|line| line.starts_with("| `")).map(row).collect()
}

/// Whether an object names itself so.
fn is(value: &Value, label: &str) -> bool {
    value["type"] == label || value["role"] == label
}

/// The place behind a step of a path such as `messages[user]`: made where it is missing.
fn step<'a>(place: &'a mut Value, step: &str) -> &'a mut Value {
    let (name, label) = match step.split_once('[') {
        Some((name, label)) => (name, Some(label.trim_end_matches(']'))),
        None => (step, None),
    };
    let place = &mut place[name];
    let Some(label) = label else {
        if !place.is_object() {
            *place = json!({});
        }
        return place;
    };
    let naming = if name == "messages" { "role" } else { "type" };
    if place.is_array() {
        let items = place.as_array_mut().expect("a list");
        let at = items.iter().position(|item| is(item, label)).unwrap_or_else(|| {
            items.push(json!({ naming: label }));
            items.len() - 1
        });
        return &mut items[at];
    }
    if !is(place, label) {
        *place = json!({ naming: label });
    }
    place
}

/// Sets a member: in the object at `path`, or that object itself where the example is all of it.
fn set(body: &mut Value, path: &str, example: Value) {
    let (parent, last) = path.rsplit_once('.').map_or((None, path), |(p, n)| (Some(p), n));
    let place = parent.into_iter().flat_map(|parent| parent.split('.')).fold(body, step);
    let members = |place: &mut Value, all: &Value| {
        for (name, value) in all.as_object().expect("an object") {
            place[name] = value.clone();
        }
    };
    match example.as_object() {
        Some(_) if last.ends_with(']') => members(step(place, last), &example),
        Some(all) if parent.is_some() && all.contains_key(last) => members(place, &example),
        _ => place[last] = example,
    }
}

/// Holds what a row says of a request beside the full one, in which its members stand at `place`, against
/// what is read.
pub(crate) fn check((read, write): (Read, Write), full: &Value, place: &str, row: &[String]) {
    let example = serde_json::from_str(&row[1]).unwrap_or_else(|e| panic!("{row:?}: {e}"));
    let mut body = full.clone();
    set(&mut body, &format!("{place}{}", row[0]), example);
    let plain = told(read, full.clone(), write).expect("the full request");
    judge(row, &row[2], plain, told(read, body, write), |told| std::mem::take(&mut told.notes));
}

/// Holds what a request with one member more is read as against the request without it.
pub(crate) fn judge<T: PartialEq + std::fmt::Debug>(
    row: &[String],
    becomes: &str,
    mut plain: T,
    read: Result<T, ApiError>,
    notes: impl Fn(&mut T) -> Vec<String>,
) {
    let mut read = match (becomes, read) {
        ("refused", read) => return assert!(read.is_err(), "{row:?}: {read:?}"),
        (_, read) => read.unwrap_or_else(|error| panic!("{row:?}: {error:?}")),
    };
    let is_told = notes(&mut read) != notes(&mut plain);
    let expected = match becomes {
        "warned" => (true, true),
        "effect" => (false, false),
        "effect, warned" => (true, false),
        "nothing to do" => (false, true),
        other => panic!("{row:?}: what is {other:?}?"),
    };
    assert_eq!((is_told, read == plain), expected, "{row:?}: {read:?}");
}

#[test]
fn the_page_says_of_every_member_what_becomes_of_it() {
    for (section, _, read, full) in ROUTES {
        let rows = rows(section);
        rows.iter().for_each(|row| check((*read, closed), &full(), "", row));
        assert!(rows.len() > 4, "{section}");
    }
}

#[test]
fn the_page_leaves_out_nothing_that_the_client_can_ask() {
    for (section, route, ..) in ROUTES {
        let rows = rows(section);
        let members = MEMBERS.lines().filter_map(|line| line.strip_prefix(&format!("{route} ")));
        for member in members {
            assert!(rows.iter().any(|row| row[0] == member), "{section}: no row of {member}");
        }
    }
}

#[test]
fn the_page_tells_of_members_of_other_servers() {
    let rows = rows("Chat completions");
    let names = UNBUILT.iter().map(|u| u.name).chain(IGNORED.iter().map(|i| i.name));
    for name in names {
        assert!(rows.iter().any(|row| row[0] == name), "no row of {name}");
    }
}

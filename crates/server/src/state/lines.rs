//! The lines of batches: what is wrong with those that come, and how those are written that go.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use rusqlite::Connection;
use serde_json::{Value, json};

use super::batches::{Dialect, Open, Output, Pending};
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::shown;
use crate::strict_json::{self, JsonLimits};

/// Most characters of the name that a client gives a line.
const MOST_CUSTOM_ID: usize = 512;
/// Most faults that are told of one file.
const MOST_ERRORS: usize = 50;
/// Bytes of a line beside its request: its name, the path, spaces.
const FRAME_BYTES: usize = 64 << 10;

/// A line that was checked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NewLine {
    pub number: u64,
    pub custom_id: String,
    pub at: u64,
    pub bytes: u64,
}

/// A file that was checked.
#[derive(Debug)]
pub(super) struct Checked {
    pub lines: Vec<NewLine>,
    /// What is wrong, as a batch tells it.
    pub errors: Vec<Value>,
}

/// Reads all lines of a file whose requests are for one path.
pub(super) fn check(file: File, endpoint: &str, limits: &Limits) -> io::Result<Checked> {
    let mut checked = Checked { lines: Vec::new(), errors: Vec::new() };
    let mut names: HashMap<String, u64> = HashMap::new();
    let most = limits.body_bytes.saturating_add(FRAME_BYTES);
    let mut reader = BufReader::new(file);
    let (mut at, mut text) = (0u64, Vec::new());
    for number in 1.. {
        text.clear();
        let mut one = reader.by_ref().take(most as u64 + 1);
        let bytes = one.read_until(b'\n', &mut text)? as u64;
        if bytes == 0 || checked.errors.len() >= MOST_ERRORS {
            break;
        }
        let begin = at;
        at += bytes;
        if text.len() > most {
            let message = format!("the line has more than {most} bytes, which is the limit");
            checked.errors.push(fault(Some(number), ("line_too_long", None), &message));
            break;
        }
        if text.trim_ascii().is_empty() {
            continue; // (the end of a file, mostly)
        }
        if checked.lines.len() >= limits.batch_lines {
            let message = format!("the file has more than {} lines, the limit", limits.batch_lines);
            checked.errors.push(fault(Some(number), ("too_many_lines", None), &message));
            break;
        }
        match read(&text, endpoint, limits) {
            Err((why, message)) => checked.errors.push(fault(Some(number), why, &message)),
            Ok(custom_id) => match names.insert(custom_id.clone(), number) {
                None => checked.lines.push(NewLine { number, custom_id, at: begin, bytes }),
                Some(first) => {
                    let name = shown(&custom_id);
                    let message = format!("the custom_id {name:?} is that of line {first} too");
                    let why = ("duplicate_custom_id", Some("custom_id"));
                    checked.errors.push(fault(Some(number), why, &message));
                }
            },
        }
    }
    if checked.lines.is_empty() && checked.errors.is_empty() {
        checked.errors.push(fault(None, ("empty_file", None), "the file has no line"));
    }
    Ok(checked)
}

/// A word for programs, and the member at fault.
type Why = (&'static str, Option<&'static str>);

fn fault(line: Option<u64>, (code, param): Why, message: &str) -> Value {
    json!({ "code": code, "line": line, "message": message, "param": param })
}

/// The name of a line that is a request for that path.
fn read(text: &[u8], endpoint: &str, limits: &Limits) -> Result<String, (Why, String)> {
    let limits = JsonLimits { depth: limits.json_depth, values: limits.json_values };
    let line = strict_json::parse(text, limits).map_err(|why| {
        (("invalid_json_line", None), format!("the line is not valid JSON: {why}"))
    })?;
    let wrong =
        |param: &'static str, message: String| Err((("invalid_line", Some(param)), message));
    if !line.is_object() {
        return Err((("invalid_json_line", None), "the line is no JSON object".to_owned()));
    }
    if line["method"] != "POST" {
        return wrong("method", "method must be \"POST\"".to_owned());
    }
    if line["url"] != endpoint {
        let message = format!("url must be {endpoint:?}, which is the endpoint of the batch");
        return wrong("url", message);
    }
    if !line["body"].is_object() {
        return wrong("body", "body must be an object".to_owned());
    }
    let name = custom_id(&line["custom_id"], MOST_CUSTOM_ID);
    name.map_err(|message| (("invalid_line", Some("custom_id")), message))
}

/// The name that a client gives a line.
///
/// # Errors
/// What of it is no such name.
pub fn custom_id(value: &Value, most: usize) -> Result<String, String> {
    match value.as_str() {
        Some(name) if (1..=most).contains(&name.chars().count()) => Ok(name.to_owned()),
        _ => Err(format!("custom_id must be a text of 1 to {most} characters")),
    }
}

/// The request of a line of a file.
pub(super) fn line_of(mut file: File, line: &Pending) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(line.at))?;
    let mut text = Vec::new();
    file.take(line.bytes).read_to_end(&mut text)?;
    let mut line: Value = serde_json::from_slice(&text)?;
    Ok(line["body"].take().to_string().into_bytes())
}

/// How a batch ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Completed,
    Cancelled,
    Expired,
}

impl End {
    pub(super) fn status(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }

    /// The member that tells when.
    pub(super) fn time(self) -> &'static str {
        match self {
            Self::Completed => "completed_at",
            Self::Cancelled => "cancelled_at",
            Self::Expired => "expired_at",
        }
    }

    /// What is told of a line without an answer: by OpenAI, in words, by Anthropic.
    fn without_answer(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Completed | Self::Cancelled => (
                "batch_cancelled",
                "the batch was cancelled before this line was answered",
                "canceled",
            ),
            Self::Expired => {
                ("batch_expired", "the batch's time ended before this line was answered", "expired")
            }
        }
    }
}

/// Writes what came of each line, in the order of the lines.
pub(super) fn results(
    db: &Connection,
    open: &Open,
    end: End,
    (output, errors): (&mut Output, &mut Output),
) -> Result<(), ApiError> {
    let mut found = db.prepare(
        "SELECT number, custom_id, status, answer FROM lines WHERE batch = ? ORDER BY number",
    )?;
    let mut rows = found.query([&open.id])?;
    while let Some(row) = rows.next()? {
        let (number, custom_id): (i64, String) = (row.get(0)?, row.get(1)?);
        let (status, answer): (Option<u16>, Option<String>) = (row.get(2)?, row.get(3)?);
        let answer = status.zip(answer);
        let is_good = answer.as_ref().is_some_and(|(status, _)| *status < 300);
        let name = Value::from(custom_id);
        match open.dialect {
            Dialect::Anthropic => output.line(&message_line(&name, answer, end))?,
            Dialect::OpenAi => {
                let id = format!("batch_req_{}_{number}", open.id.trim_start_matches("batch_"));
                let line = line(&id, &name, answer, end);
                if is_good { output.line(&line)? } else { errors.line(&line)? }
            }
        }
    }
    Ok(())
}

/// A line as OpenAI writes it. (An answer is JSON already, in one line.)
fn line(id: &str, name: &Value, answer: Option<(u16, String)>, end: End) -> String {
    let Some((status, body)) = answer else {
        let (code, message, _) = end.without_answer();
        let error = json!({ "code": code, "message": message });
        return format!(
            "{{\"id\": \"{id}\", \"custom_id\": {name}, \"response\": null, \"error\": {error}}}"
        );
    };
    let error = match status < 300 {
        true => Value::Null,
        false => {
            let told: Value = serde_json::from_str(&body).unwrap_or_default();
            json!({ "code": told["error"]["code"], "message": told["error"]["message"] })
        }
    };
    format!(
        "{{\"id\": \"{id}\", \"custom_id\": {name}, \"response\": {{\"status_code\": {status}, \
         \"request_id\": \"{id}\", \"body\": {body}}}, \"error\": {error}}}"
    )
}

/// The same as Anthropic does.
fn message_line(name: &Value, answer: Option<(u16, String)>, end: End) -> String {
    let result = match answer {
        Some((status, body)) if status < 300 => {
            format!("{{\"type\": \"succeeded\", \"message\": {body}}}")
        }
        Some((_, body)) => format!("{{\"type\": \"errored\", \"error\": {body}}}"),
        None => json!({ "type": end.without_answer().2 }).to_string(),
    };
    format!("{{\"custom_id\": {name}, \"result\": {result}}}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// What is wrong with a file, by line, and how many lines are right.
    fn checked(text: &str) -> (Vec<(Option<u64>, String)>, usize) {
        let mut file = tempfile();
        file.write_all(text.as_bytes()).unwrap();
        file.rewind().unwrap();
        let limits = Limits { batch_lines: 4, body_bytes: 1000, ..Limits::default() };
        let Checked { lines, errors } = check(file, "/v1/embeddings", &limits).unwrap();
        let told = |e: &Value| (e["line"].as_u64(), e["code"].as_str().unwrap().to_owned());
        (errors.iter().map(told).collect(), lines.len())
    }

    fn tempfile() -> File {
        let name =
            format!("tokenmill-lines-{}-{:?}", std::process::id(), std::thread::current().id());
        let place = std::env::temp_dir().join(name);
        let file = super::super::db::create(&place).unwrap();
        file.set_len(0).unwrap();
        std::fs::remove_file(place).unwrap();
        file
    }

    #[test]
    fn every_line_is_a_request_with_a_name_of_its_own() {
        let line = |id: &str| json!({ "custom_id": id, "method": "POST", "url": "/v1/embeddings", "body": {} });
        let with = |name: &str, value: Value| {
            let mut line = line("x");
            line[name] = value;
            format!("{line}\n")
        };
        let (a, b) = (line("a"), line("b"));
        assert_eq!(checked(&format!("{a}\n\n  \r\n{b}")), (vec![], 2));
        let one = |code: &str| vec![(Some(1), code.to_owned())];
        let long = format!("{{\"custom_id\": \"{}\"}}\n", "x".repeat(70_000));
        for (text, code) in [
            ("{\"custom_id\": \n".to_owned(), "invalid_json_line"),
            ("[]\n".to_owned(), "invalid_json_line"),
            ("{\"custom_id\":\"a\",\"custom_id\":\"b\"}\n".to_owned(), "invalid_json_line"),
            (with("method", json!("GET")), "invalid_line"),
            (with("url", json!("/v1/completions")), "invalid_line"),
            (with("body", json!("{}")), "invalid_line"),
            (with("custom_id", json!("")), "invalid_line"),
            (with("custom_id", json!(7)), "invalid_line"),
            (with("custom_id", json!("x".repeat(513))), "invalid_line"),
            (long, "line_too_long"),
        ] {
            assert_eq!(checked(&text).0, one(code), "{text}");
        }
        let twice = vec![(Some(3), "duplicate_custom_id".to_owned())];
        assert_eq!(checked(&format!("{a}\n{b}\n{a}\n")).0, twice);
        assert_eq!(checked("\n \n"), (vec![(None, "empty_file".to_owned())], 0));
        let many: String = (0..5).map(|n| format!("{}\n", line(&n.to_string()))).collect();
        assert_eq!(checked(&many).0, vec![(Some(5), "too_many_lines".to_owned())]);
    }
}

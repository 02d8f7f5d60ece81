//! Requests that run and those that ran lately, each with its id and where its time and its prompt's
//! tokens went; never a word of what was asked or answered.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use tokenmill_engine::{Miss, Part, Timekeeper, Timeline};

use crate::error::ApiError;
use crate::fields::shown;
use crate::keys::Caller;
use crate::shared::Shared;
use crate::shares::Party;
use crate::visit::Told;

/// Requests that are remembered; of those that have ended the oldest is forgotten first.
const MOST: usize = 512;
/// Prompts of one request whose timelines are.
pub const MOST_PROMPTS: usize = 8;
/// Longest id that a client may choose.
const ID_CHARS: usize = 64;

/// What a request is called, in its answer, in the log and by who asks about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId {
    /// What answers are named by; no other request of this server has it.
    pub ticket: u64,
    /// Its `x-request-id`: the client's, where that is one.
    pub name: Arc<str>,
    /// Its place in a trace.
    pub trace: Option<Trace>,
}

/// A `traceparent` as W3C has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// 32 hexadecimal digits.
    pub trace: String,
    /// The caller's span, 16 of them.
    pub parent: String,
}

impl RequestId {
    /// That of a request with these headers.
    pub fn of(headers: &HeaderMap, ticket: u64) -> Self {
        let given = headers.get("x-request-id").and_then(|value| value.to_str().ok());
        let name = match given.filter(|name| is_id(name)) {
            Some(name) => name.into(),
            None => format!("req-{ticket:016x}").into(),
        };
        let trace = headers.get("traceparent").and_then(|value| Trace::parse(value.to_str().ok()?));
        Self { ticket, name, trace }
    }

    /// As a header.
    pub fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.name).ok()
    }

    /// Whether that names it: its id, or one of its answer (`chatcmpl-…`, `msg_…`, `resp_…`).
    fn is(&self, asked: &str) -> bool {
        let last = asked.rsplit(['-', '_']).next().unwrap_or_default();
        let is_ticket = last.len() == 16 && u64::from_str_radix(last, 16) == Ok(self.ticket);
        *self.name == *asked || is_ticket
    }
}

fn is_id(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    (1..=ID_CHARS).contains(&text.len()) && text.chars().all(is_plain)
}

impl Trace {
    /// `00-<trace>-<span>-<flags>`; none where it is not that.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (version, trace, parent, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |part: &str, digits: usize| {
            let lower = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
            part.len() == digits && part.chars().all(lower)
        };
        let is_some = |part: &str| part.chars().any(|c| c != '0');
        let is_known = is_hex(version, 2) && version != "ff" && is_hex(flags, 2);
        let good = is_hex(trace, 32) && is_some(trace) && is_hex(parent, 16) && is_some(parent);
        // (Later versions may have more behind the flags.)
        let ends = version != "00" || parts.next().is_none();
        (is_known && good && ends)
            .then(|| Self { trace: trace.to_owned(), parent: parent.to_owned() })
    }
}

/// One request.
#[derive(Debug)]
pub struct Seen {
    /// What it is called.
    pub id: RequestId,
    /// Its method.
    pub method: String,
    /// Its path without the query, where some put secrets.
    pub path: String,
    /// The name of its key.
    pub key: Option<String>,
    /// Who may ask about it beside who runs the server.
    pub party: Party,
    /// When it came.
    pub came: SystemTime,
    /// The same.
    pub started: Instant,
    /// What becomes known on the way.
    pub told: Mutex<Told>,
}

impl Seen {
    /// What is known so far.
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is in a list.
    fn summary(&self) -> Map<String, Value> {
        let told = self.told();
        let lines: Vec<Timeline> = told.prompts.iter().map(|keeper| keeper.read()).collect();
        let sum = |of: fn(&Timeline) -> u32| lines.iter().map(of).sum::<u32>();
        let total = told.took.unwrap_or_else(|| self.started.elapsed());
        let came = self.came.duration_since(UNIX_EPOCH).unwrap_or_default();
        let ending = lines.last().and_then(|line| line.ending).map(|ending| ending.name());
        let first = lines.first().and_then(|line| line.to_first_token);
        let first = first
            .zip(told.handed)
            .map(|(parts, handed)| seconds(handed + Duration::from_nanos(parts.iter().sum())));
        let running = told.took.is_none();
        let mut map = Map::new();
        let mut put = |name: &str, value: Value| map.insert(name.to_owned(), value);
        put("id", json!(&*self.id.name));
        put("answer", json!(format!("{:016x}", self.id.ticket)));
        put("path", json!(self.path));
        put("model", json!(told.model));
        put("key", json!(self.key));
        put("created", json!(seconds(came)));
        put("state", json!(if running { "running" } else { "ended" }));
        put("status", json!(told.status));
        put("end", json!(told.end.filter(|_| !running)));
        put("finish_reason", json!(ending));
        put("seconds", json!(seconds(total)));
        put("first_token_s", json!(first));
        put("prompt_tokens", json!(told.prompt_tokens.unwrap_or(0)));
        put("cached_tokens", json!(sum(|line| line.memory_tokens + line.disk_tokens)));
        put("disk_tokens", json!(sum(|line| line.disk_tokens)));
        put("completion_tokens", json!(sum(|line| line.tokens)));
        map
    }

    /// All that is known of it.
    pub fn detail(&self) -> Value {
        let mut map = self.summary();
        let told = self.told();
        let total = told.took.unwrap_or_else(|| self.started.elapsed());
        let trace = self.id.trace.as_ref().map(|trace| trace.trace.as_str());
        map.insert("trace_id".into(), json!(trace));
        map.insert("parts".into(), parts(&told, total));
        let prompts = told.prompts.iter().map(|keeper| prompt(&keeper.read()));
        map.insert("prompts".into(), prompts.collect());
        if let Some(receipt) = &told.receipt {
            map.insert("receipt".into(), receipt.clone());
        }
        Value::Object(map)
    }
}

/// Seconds, to the microsecond.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e6
}

fn of_nanos(nanos: u64) -> f64 {
    seconds(Duration::from_nanos(nanos))
}

/// Where the time of a request went: to the server, then to the prompt that ended last, and what is
/// left of it to the writing of the answer. Seconds, of which `total` is the sum.
fn parts(told: &Told, total: Duration) -> Value {
    let longest = told.prompts.iter().map(|keeper| keeper.read()).max_by_key(Timeline::nanos);
    let handed = told.handed.unwrap_or(total).min(total);
    let read = told.read.unwrap_or(handed).min(handed);
    let load = told.load.min(handed - read);
    let engine = longest.map_or(Duration::ZERO, |line| Duration::from_nanos(line.nanos()));
    // The engine may note the end a moment after whom it told.
    let total = total.max(handed + engine);
    let left = total - handed - engine;
    let mut map = Map::new();
    let mut put = |name: &str, time: f64| map.insert(name.to_owned(), json!(time));
    put("read", seconds(read));
    put("load", seconds(load));
    put("prepare", seconds(handed - read - load));
    for part in Part::ALL {
        put(part.name(), longest.map_or(0.0, |line| of_nanos(line.parts[part as usize])));
    }
    let rest = match told.prompts.len() {
        _ if told.took.is_none() => "now",
        0 | 1 => "deliver",
        _ => "rest", // others of its prompts
    };
    put(rest, seconds(left));
    put("total", seconds(total));
    Value::Object(map)
}

/// What is told of a prompt.
fn prompt(line: &Timeline) -> Value {
    let by_part = |parts: &[u64; Part::ALL.len()]| -> Value {
        let told =
            Part::ALL.iter().map(|p| (p.name().to_owned(), json!(of_nanos(parts[*p as usize]))));
        Value::Object(told.collect())
    };
    let chunks = line.chunks.iter().take(line.chunk_count as usize);
    let chunk = |c: &tokenmill_engine::Chunk| json!({ "step": c.step, "tokens": c.tokens, "seconds": of_nanos(c.nanos) });
    let found = line.memory_tokens + line.disk_tokens;
    json!({
        "prompt_tokens": line.prompt_tokens,
        "memory_tokens": line.memory_tokens,
        "disk_tokens": line.disk_tokens,
        "computed_tokens": line.miss.map(|_| line.prompt_tokens - found.min(line.prompt_tokens)),
        "miss": line.miss.map(|miss| json!({ "reason": word(miss), "why": why(miss) })),
        "chunks": chunks.map(chunk).collect::<Vec<_>>(),
        "chunk_count": line.chunk_count,
        "first_step": line.first_step,
        "last_step": line.last_step,
        "steps": line.steps,
        "displaced": line.displaced,
        "completion_tokens": line.tokens,
        "drafts": { "verified": line.drafted, "accepted": line.accepted },
        "finish_reason": line.ending.map(|ending| ending.name()),
        "parts": by_part(&line.parts),
        "to_first_token": line.to_first_token.as_ref().map(by_part),
    })
}

/// The word for why no more of a prompt was found.
fn word(miss: Miss) -> &'static str {
    match miss {
        Miss::Nothing => "none",
        Miss::Short => "short",
        Miss::Unshared => "unshared",
        Miss::Rows => "rows",
        Miss::New => "new",
        Miss::Differs => "differs",
        Miss::Evicted => "evicted",
        Miss::Incomplete => "incomplete",
    }
}

/// The same for people.
fn why(miss: Miss) -> &'static str {
    match miss {
        Miss::Nothing => "all was found but the last block, which is always computed",
        Miss::Short => "the prompt is shorter than a block",
        Miss::Unshared => "this model shares no prefixes",
        Miss::Rows => "numbers of the prompt's own tokens are asked for",
        Miss::New => "no prompt of this account began like it",
        Miss::Differs => "what was cached goes on differently there, or ends",
        Miss::Evicted => "it was cached, and gave its place to others",
        Miss::Incomplete => "its windows or states are not kept there",
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Requests(Mutex<VecDeque<Arc<Seen>>>);

impl Requests {
    fn all(&self) -> MutexGuard<'_, VecDeque<Arc<Seen>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers one more.
    pub fn keep(&self, seen: Arc<Seen>) {
        let mut all = self.all();
        if all.len() >= MOST {
            let ended = all.iter().position(|seen| seen.told().took.is_some());
            all.remove(ended.unwrap_or(0));
        }
        all.push_back(seen);
    }

    /// Those that somebody may ask about, the last one first.
    fn of(&self, party: Party, caller: Option<&Caller>) -> Vec<Arc<Seen>> {
        let runs_it = caller.is_some_and(|caller| caller.reads_metrics);
        let may = |seen: &&Arc<Seen>| runs_it || seen.party == party;
        self.all().iter().rev().filter(may).cloned().collect()
    }
}

/// `GET /requests`.
pub async fn list(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let found = shared.requests.of(shared.party(&request), Caller::of(&request).as_deref());
    let data: Vec<Value> = found.iter().map(|seen| Value::Object(seen.summary())).collect();
    Json(json!({ "object": "list", "data": data })).into_response()
}

/// `GET /requests/{id}`.
///
/// # Errors
/// 404.
pub async fn one(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let found = shared.requests.of(shared.party(&request), Caller::of(&request).as_deref());
    let seen = found.into_iter().find(|seen| seen.id.is(&id)).ok_or_else(|| {
        let message = format!(
            "no request {:?} is known: the last {MOST} are, to who sent them and to who runs the \
             server (GET /requests lists them)",
            shown(&id)
        );
        ApiError { code: Some("unknown_request"), ..ApiError::new(StatusCode::NOT_FOUND, message) }
    })?;
    Ok(Json(seen.detail()).into_response())
}

/// A timeline for a prompt of that request.
pub fn keeper(seen: &Seen) -> Arc<Timekeeper> {
    let keeper = Arc::new(Timekeeper::named(Arc::clone(&seen.id.name)));
    let mut told = seen.told();
    if told.prompts.len() < MOST_PROMPTS {
        told.prompts.push(Arc::clone(&keeper));
    }
    keeper
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_clients_are_kept_where_they_are_some() {
        let of = |name: &str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-request-id", HeaderValue::from_str(value).unwrap());
            headers.insert("traceparent", HeaderValue::from_str(name).unwrap());
            RequestId::of(&headers, 0xab)
        };
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(&*of(good, "a-1.b:c").name, "a-1.b:c");
        for bad in ["", "a b", "a\"b", &"x".repeat(65)] {
            assert_eq!(&*of(good, bad).name, "req-00000000000000ab", "{bad}");
        }
        let id = of(good, "mine");
        assert_eq!(id.trace.as_ref().unwrap().parent, "00f067aa0ba902b7");
        for asked in ["mine", "chatcmpl-00000000000000ab", "msg_00000000000000ab"] {
            assert!(id.is(asked), "{asked}");
        }
        assert!(!id.is("ab") && !id.is("chatcmpl-00000000000000ac"));
        for bad in [
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "nothing",
        ] {
            assert_eq!(of(bad, "x").trace, None, "{bad}");
        }
    }
}

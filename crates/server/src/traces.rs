//! Requests as spans of OpenTelemetry, in the JSON of its protocol (OTLP 1.x, `opentelemetry-proto`
//! `trace/v1`; names of attributes by its semantic conventions for HTTP and generative AI).

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use tokenmill_engine::{Part, Timeline};
use tokenmill_ir::sampling::splitmix;

use crate::requests::Seen;
use crate::visit::Told;

/// Requests that wait to be sent; others are not told when nobody takes them.
const MOST_WAITING: usize = 1024;
/// The kind of a span that serves a request, and of one inside.
const SERVER: u8 = 2;
const INTERNAL: u8 = 1;
/// The status of a span that failed.
const FAILED: u8 = 2;

/// Where finished requests are told.
#[derive(Clone)]
pub struct Traces(SyncSender<Vec<Value>>);

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Traces")
    }
}

/// A span of a request: its name, and nanoseconds since the request came.
struct Span {
    name: &'static str,
    begin: u64,
    end: u64,
}

impl Traces {
    /// One end, and the spans of each request as they come out of the other.
    pub fn new() -> (Self, Receiver<Vec<Value>>) {
        let (sender, receiver) = sync_channel(MOST_WAITING);
        (Self(sender), receiver)
    }

    /// The body that a collector takes, with these spans.
    pub fn body(spans: Vec<Value>) -> Value {
        let text = |key: &str, text: &str| json!({ "key": key, "value": { "stringValue": text } });
        let version = env!("CARGO_PKG_VERSION");
        json!({ "resourceSpans": [{
            "resource": { "attributes": [
                text("service.name", "tokenmill"), text("service.version", version),
            ] },
            "scopeSpans": [{ "scope": { "name": "tokenmill", "version": version }, "spans": spans }],
        }] })
    }

    /// Tells of a request that has ended, where its body was read.
    pub fn tell(&self, seen: &Seen, route: Option<&str>, told: &Told) {
        if told.read.is_some() {
            let _ = self.0.try_send(spans(seen, route, told)); // lost where nobody takes them
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What a request did one after another. Parts of waiting among steps stay inside these.
fn stages(told: &Told) -> Vec<Span> {
    let took = nanos(told.took.unwrap_or_default());
    let Some(handed) = told.handed.map(nanos) else {
        return vec![Span { name: "prepare", begin: 0, end: took }];
    };
    let lines = told.prompts.iter().map(|keeper| keeper.read());
    let line = lines.max_by_key(Timeline::nanos).unwrap_or_default();
    let waited: u64 = Part::BEFORE.iter().map(|part| line.parts[*part as usize]).sum();
    let first = line.to_first_token.map_or(line.nanos(), |parts| parts.iter().sum());
    let ends = [
        ("prepare", handed),
        ("queue", handed + waited),
        ("prompt", handed + first),
        ("answer", handed + line.nanos()),
        ("deliver", took),
    ];
    let mut begin = 0;
    let mut span = |(name, end): (&'static str, u64)| {
        let end = end.clamp(begin, took.max(begin));
        let span = Span { name, begin, end };
        begin = end;
        span
    };
    ends.into_iter().map(&mut span).collect()
}

fn spans(seen: &Seen, route: Option<&str>, told: &Told) -> Vec<Value> {
    let ticket = seen.id.ticket;
    let id = |n: u64| format!("{:016x}", splitmix(ticket ^ n << 56).max(1));
    let own = || format!("{:016x}{:016x}", splitmix(!ticket), splitmix(ticket));
    let trace = seen.id.trace.as_ref().map_or_else(own, |trace| trace.trace.clone());
    let came = nanos(seen.came.duration_since(UNIX_EPOCH).unwrap_or_default());
    let at = |offset: u64| (came + offset).to_string();
    let mut root = json!({
        "traceId": trace,
        "spanId": id(0),
        "name": format!("{} {}", seen.method, route.unwrap_or("unknown")),
        "kind": SERVER,
        "startTimeUnixNano": at(0),
        "endTimeUnixNano": at(nanos(told.took.unwrap_or_default())),
        "attributes": attributes(seen, route, told),
        "status": { "code": if told.status.is_none_or(|s| s >= 500) { FAILED } else { 0 } },
    });
    if let Some(trace) = &seen.id.trace {
        root["parentSpanId"] = json!(trace.parent);
    }
    let stage = |(n, span): (u64, Span)| {
        json!({
            "traceId": trace,
            "spanId": id(n),
            "parentSpanId": id(0),
            "name": span.name,
            "kind": INTERNAL,
            "startTimeUnixNano": at(span.begin),
            "endTimeUnixNano": at(span.end),
        })
    };
    let inside: Vec<Value> = (1..).zip(stages(told)).map(stage).collect();
    std::iter::once(root).chain(inside).collect()
}

fn attributes(seen: &Seen, route: Option<&str>, told: &Told) -> Vec<Value> {
    let text = |key: &str, value: Option<&str>| {
        Some(json!({ "key": key, "value": { "stringValue": value? } }))
    };
    let number = |key: &str, value: Option<u64>| {
        Some(json!({ "key": key, "value": { "intValue": value?.to_string() } }))
    };
    let finish = told.prompts.iter().filter_map(|keeper| keeper.read().ending);
    let finish: Vec<Value> = finish.map(|ending| json!({ "stringValue": ending.name() })).collect();
    let finish = (!finish.is_empty()).then(|| {
        json!({
            "key": "gen_ai.response.finish_reasons", "value": { "arrayValue": { "values": finish } },
        })
    });
    let all = [
        text("http.request.method", Some(&seen.method)),
        text("http.route", route),
        number("http.response.status_code", told.status.map(u64::from)),
        text("tokenmill.request.id", Some(&seen.id.name)),
        text("tokenmill.end", told.end),
        text("gen_ai.request.model", told.model.as_deref()),
        number("gen_ai.usage.input_tokens", told.prompt_tokens.map(u64::from)),
        number("gen_ai.usage.output_tokens", told.completion_tokens.map(u64::from)),
        number("tokenmill.usage.cached_tokens", told.cached_tokens.map(u64::from)),
        finish,
    ];
    all.into_iter().flatten().collect()
}

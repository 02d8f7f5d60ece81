//! The reader of request bodies on any bytes: what it takes is JSON, within its limits.
#![no_main]

#[path = "../../crates/chat/src/strict_json.rs"]
mod strict_json;

use serde_json::Value;
use strict_json::{JsonLimits, parse};

const LIMITS: JsonLimits = JsonLimits { depth: 16, values: 1000 };

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(value) = parse(bytes, LIMITS) else { return };
    assert!(depth(&value) <= LIMITS.depth, "{value}");
    let again: Value = serde_json::from_slice(bytes).expect("what is strict is JSON");
    assert_eq!(value, again);
});

fn depth(value: &Value) -> u32 {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

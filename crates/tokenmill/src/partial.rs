//! A JSON document that is not whole yet, as the value that is known of it.

use serde_json::{Map, Value};

/// Values within values, at most.
const DEPTH: u32 = 128;

/// What is known of a document by its beginning: strings as far as they go, arrays and objects with what is in
/// them; a number or a word only when something follows it, for it might go on. `None`: nothing is.
pub fn begun(text: &str) -> Option<Value> {
    Reader { rest: text }.value(DEPTH)
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        self.rest.chars().next()
    }

    /// Whether that sign comes next; then it is behind us.
    fn has(&mut self, sign: char) -> bool {
        let is_next = self.peek() == Some(sign);
        if is_next {
            self.rest = &self.rest[sign.len_utf8()..];
        }
        is_next
    }

    fn value(&mut self, depth: u32) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        match self.peek()? {
            '{' => Some(self.object(depth)),
            '[' => Some(self.array(depth)),
            '"' => Some(self.string().0.into()),
            _ => self.word(),
        }
    }

    fn object(&mut self, depth: u32) -> Value {
        let mut members = Map::new();
        self.rest = &self.rest[1..];
        while self.peek() == Some('"') {
            let (name, true) = self.string() else { break };
            if !self.has(':') {
                break;
            }
            let Some(value) = self.value(depth) else { break };
            members.insert(name, value);
            if !self.has(',') {
                break;
            }
        }
        self.has('}');
        Value::Object(members)
    }

    fn array(&mut self, depth: u32) -> Value {
        let mut items = Vec::new();
        self.rest = &self.rest[1..];
        while let Some(value) = self.value(depth) {
            items.push(value);
            if !self.has(',') {
                break;
            }
        }
        self.has(']');
        Value::Array(items)
    }

    /// A string, and whether it is whole.
    fn string(&mut self) -> (String, bool) {
        let inside = &self.rest[1..];
        let mut escaped = false;
        let end = inside.char_indices().find(|(_, sign)| {
            let is_end = *sign == '"' && !escaped;
            escaped = *sign == '\\' && !escaped;
            is_end
        });
        let text = end.map_or(inside, |(at, _)| &inside[..at]);
        self.rest = end.map_or("", |(at, _)| &inside[at + 1..]);
        (unescaped(text), end.is_some())
    }

    /// A number, or true, false, null.
    fn word(&mut self) -> Option<Value> {
        let end = self.rest.find([',', '}', ']', ' ', '\t', '\r', '\n'])?;
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        serde_json::from_str(word).ok()
    }
}

/// The longest beginning of a string's inside that is whole.
fn unescaped(text: &str) -> String {
    // (An escape has at most twelve characters: two halves of a pair.)
    let cuts = text.char_indices().rev().map(|(at, _)| at).take(12);
    std::iter::once(text.len())
        .chain(cuts)
        .find_map(|cut| serde_json::from_str(&format!("\"{}\"", &text[..cut])).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_known_so_far() {
        for (text, expect) in [
            ("", None),
            ("12", None),
            ("tru", None),
            ("12 ", Some(json!(12))),
            ("{", Some(json!({}))),
            (r#"{"a"#, Some(json!({}))),
            (r#"{"a": "#, Some(json!({}))),
            (r#"{"a": "x"#, Some(json!({"a": "x"}))),
            (r#"{"a": "x\"#, Some(json!({"a": "x"}))),
            (r#"{"a": "x\u00e"#, Some(json!({"a": "x"}))),
            (r#"{"a": "x\ud83d\ude0"#, Some(json!({"a": "x"}))),
            (r#"{"a": "x\ud83d\ude00"#, Some(json!({"a": "x😀"}))),
            (r#"{"a": "\\"#, Some(json!({"a": "\\"}))),
            (r#"{"a": "\"", "b": 1"#, Some(json!({"a": "\""}))),
            (r#"{"a":1,"b":[true,{"c":nul"#, Some(json!({"a": 1, "b": [true, {}]}))),
            (r#"[1,2.5e3,-0]"#, Some(json!([1, 2.5e3, -0.0]))),
            (r#"{"a":[]}"#, Some(json!({"a": []}))),
        ] {
            assert_eq!(begun(text), expect, "{text}");
        }
        assert!(begun(&"[".repeat(1_000_000)).is_some(), "deep, and nobody minds");
    }

    #[test]
    fn every_beginning_leads_to_the_whole() {
        let whole = json!({"name": "a\"\\\n😀é", "list": [1, -2.5, {"x": null, "y": [[], {}]}], "end": false});
        let text = whole.to_string();
        let mut last = json!({});
        for (cut, _) in text.char_indices().skip(1).chain([(text.len(), ' ')]) {
            let now = begun(&text[..cut]).unwrap();
            let grows = |a: &Value, b: &Value| a.to_string().len() <= b.to_string().len();
            assert!(grows(&last, &now), "{last} {now}");
            last = now;
        }
        assert_eq!(last, whole);
    }
}

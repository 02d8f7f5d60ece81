//! The text that a custom tool is called with, out of the JSON that a model writes for it, as it
//! comes.

use serde_json::Value;

/// The member that holds it.
const MEMBER: &str = "input";

/// Reads `{"input": "…"}`.
#[derive(Debug, Clone, Default)]
pub struct Input {
    /// All of the JSON so far.
    json: String,
    /// Bytes of it that are read.
    at: usize,
    state: State,
    /// The text so far.
    pub text: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// Before the text.
    #[default]
    Before,
    /// In it.
    Inside,
    /// Behind it.
    Behind,
    /// The JSON begins otherwise: its end is waited for.
    Other,
}

impl Input {
    /// Takes more JSON; what it adds to the text.
    pub fn push(&mut self, json: &str) -> String {
        self.json.push_str(json);
        if self.state == State::Before {
            self.state = self.begin();
        }
        let mut more = String::new();
        while self.state == State::Inside && self.character(&mut more) {}
        self.text.push_str(&more);
        more
    }

    /// The JSON has ended; what that adds to the text. What was no such JSON is the text itself.
    pub fn finish(&mut self) -> String {
        if !matches!(self.state, State::Before | State::Other) {
            return String::new();
        }
        let found = match serde_json::from_str(&self.json) {
            Ok(Value::String(text)) => Some(text),
            Ok(Value::Object(members)) => {
                members.get(MEMBER).and_then(Value::as_str).map(str::to_owned)
            }
            _ => None,
        };
        self.text = found.unwrap_or_else(|| std::mem::take(&mut self.json));
        self.text.clone()
    }

    /// Whether the JSON begins with the member, and reads so far.
    fn begin(&mut self) -> State {
        let quoted = format!("\"{MEMBER}\"");
        let mut rest = self.json.as_str();
        for sign in ["{", &quoted, ":", "\""] {
            rest = rest.trim_start_matches([' ', '\t', '\n', '\r']);
            match rest.strip_prefix(sign) {
                Some(more) => rest = more,
                None if sign.starts_with(rest) => return State::Before,
                None => return State::Other,
            }
        }
        self.at = self.json.len() - rest.len();
        State::Inside
    }

    /// Reads a character; false where it has not come in full, or the text has ended.
    fn character(&mut self, out: &mut String) -> bool {
        let rest = self.json.get(self.at..).unwrap_or_default();
        let mut chars = rest.chars();
        let (taken, found) = match chars.next() {
            None => return false,
            Some('"') => {
                self.state = State::Behind;
                return false;
            }
            Some('\\') => match escaped(&rest[1..]) {
                Some((taken, found)) => (1 + taken, found),
                None => return false,
            },
            Some(found) => (found.len_utf8(), found),
        };
        self.at += taken;
        out.push(found);
        true
    }
}

/// A character behind a backslash and the bytes it takes; none where it has not come in full.
fn escaped(rest: &str) -> Option<(usize, char)> {
    let sign = rest.chars().next()?;
    let plain = match sign {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'u' => return unicode(rest),
        other => other,
    };
    Some((sign.len_utf8(), plain))
}

/// `uXXXX`, or two of them for a character beyond 16 bits.
fn unicode(rest: &str) -> Option<(usize, char)> {
    const LOST: char = char::REPLACEMENT_CHARACTER;
    let bytes = rest.as_bytes();
    let unit = |from: usize| {
        let hex = std::str::from_utf8(bytes.get(from..from + 4)?).unwrap_or_default();
        Some(u32::from_str_radix(hex, 16).unwrap_or(LOST.into()))
    };
    let high = unit(1)?;
    if !(0xd800..0xdc00).contains(&high) {
        let taken = if rest.is_char_boundary(5) { 5 } else { 1 };
        return Some((taken, char::from_u32(high).unwrap_or(LOST)));
    }
    if !b"\\u".starts_with(bytes.get(5..bytes.len().min(7))?) {
        return Some((5, LOST));
    }
    match unit(7)? {
        low @ 0xdc00..0xe000 => {
            let joined = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
            Some((11, char::from_u32(joined).unwrap_or(LOST)))
        }
        _ => Some((5, LOST)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The text of a call that comes in pieces of so many characters.
    fn read(json: &str, step: usize) -> String {
        let mut input = Input::default();
        let chars: Vec<char> = json.chars().collect();
        let mut told: String =
            chars.chunks(step).map(|piece| input.push(&piece.iter().collect::<String>())).collect();
        told.push_str(&input.finish());
        assert_eq!(told, input.text, "{json}");
        told
    }

    #[test]
    fn the_text_is_the_same_wherever_its_json_is_cut() {
        let texts =
            ["", "a", "a\"b\\c/\n\t\u{8}\u{c}\r", "grüß 世界 🦀", "\u{1}{\"input\": \"x\"}"];
        for text in texts {
            for json in [json!({ "input": text }).to_string(), json!(text).to_string()] {
                for step in [1, 2, 3, 100] {
                    assert_eq!(read(&json, step), text, "{json} by {step}");
                }
            }
        }
        let cases = [
            (r#" { "input" : "\ud83e\udd80\u00e9\/" } "#, "🦀é/"),
            (r#"{"input":"\ud83ex"}"#, "\u{fffd}x"),
            (r#"{"input":"\ud83e\u0041"}"#, "\u{fffd}A"),
            (r#"{"input":"\ud83e世界"}"#, "\u{fffd}世界"),
            (r#"{"input":"\ud83e\u世界"}"#, "\u{fffd}\u{fffd}世界"),
            (r#"{"other":1,"input":"late"}"#, "late"),
            ("*** Begin Patch", "*** Begin Patch"),
            (r#"{"input":7}"#, r#"{"input":7}"#),
            (r#"{"input":"cut"#, "cut"),
            (r#"{"input":"cut\"#, "cut"),
            ("", ""),
        ];
        for (json, text) in cases {
            for step in [1, 5, 100] {
                assert_eq!(read(json, step), text, "{json} by {step}");
            }
        }
    }
}

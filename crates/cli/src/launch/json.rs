//! JSON with comments, edited in place: members are set and every other byte stays.

use std::ops::Range;

use serde_json::{Map, Value};

/// How deep a file may nest before it is no settings.
const MAX_DEPTH: usize = 64;

/// The text with members set, each by its path; a text without anything becomes an object.
///
/// # Errors
/// Why the text cannot be edited.
pub fn set(text: &str, members: &[(Vec<String>, Value)]) -> Result<String, String> {
    let mut text = if text.trim().is_empty() { "{}\n".to_owned() } else { text.to_owned() };
    let mut expected = plain(&text)?;
    for (path, value) in members {
        put(&mut expected, path, value);
        text = set_one(&text, path, value)?;
    }
    // What came out says what was meant, and nothing else changed.
    match plain(&text)? == expected {
        true => Ok(text),
        false => Err("its form is not understood".to_owned()),
    }
}

/// What a text says, its comments and trailing commas aside.
fn plain(text: &str) -> Result<Value, String> {
    let mut scan = Scan { text, at: 0 };
    let mut out = String::new();
    loop {
        let before = scan.at;
        scan.space();
        let Some(first) = text[scan.at..].chars().next() else { break };
        let from = scan.at;
        match first {
            '"' => scan.string()?,
            _ => scan.at += first.len_utf8(),
        }
        let is_trailing = || {
            let mut next = Scan { text, at: scan.at };
            next.space();
            text[next.at..].starts_with(['}', ']'])
        };
        if first == ',' && is_trailing() {
            continue;
        }
        // What was apart stays apart.
        out.push_str(if from > before { " " } else { "" });
        out.push_str(&text[from..scan.at]);
    }
    let value: Value = serde_json::from_str(&out).map_err(|e| format!("it is not JSON: {e}"))?;
    if value.is_object() { Ok(value) } else { Err("it is no JSON object".to_owned()) }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '+' | '.')
}

/// Sets a member of a value, with the objects on the way to it.
fn put(value: &mut Value, path: &[String], new: &Value) {
    let Some((name, rest)) = path.split_first() else {
        *value = new.clone();
        return;
    };
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    if let Value::Object(map) = value {
        put(map.entry(name.clone()).or_insert(Value::Null), rest, new);
    }
}

fn set_one(text: &str, path: &[String], new: &Value) -> Result<String, String> {
    let mut scan = Scan { text, at: 0 };
    scan.space();
    let (mut open, mut depth) = (scan.at, 0);
    loop {
        let Some((name, rest)) = path.get(depth).zip(path.get(depth + 1..)) else {
            return Err("a member has no name".to_owned());
        };
        let object = Object::read(text, open)?;
        let nested = rest.iter().rev().fold(new.clone(), |value, name| {
            Value::Object(Map::from_iter([(name.clone(), value)]))
        });
        match object.members.iter().rfind(|member| member.name == *name) {
            None => return Ok(object.with(text, name, &nested, depth)),
            Some(member) if !rest.is_empty() && text[member.value.clone()].starts_with('{') => {
                (open, depth) = (member.value.start, depth + 1);
            }
            Some(member) => {
                let indent = line_indent(text, member.key);
                let new = rendered(&nested, &indent);
                return Ok([&text[..member.value.start], &new, &text[member.value.end..]].concat());
            }
        }
    }
}

/// The blanks that begin the line of a place.
fn line_indent(text: &str, at: usize) -> String {
    let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
    text[line..at].chars().take_while(|c| matches!(c, ' ' | '\t')).collect()
}

/// A value whose lines after the first begin with some blanks.
fn rendered(value: &Value, indent: &str) -> String {
    format!("{value:#}").replace('\n', &format!("\n{indent}"))
}

struct Member {
    name: String,
    /// Where its name begins.
    key: usize,
    value: Range<usize>,
}

/// An object of a text.
struct Object {
    members: Vec<Member>,
    /// A comma stands behind the last member.
    has_comma: bool,
    /// Behind the last member and its comma, or behind the brace.
    last: usize,
    /// Its closing brace.
    close: usize,
}

impl Object {
    fn read(text: &str, open: usize) -> Result<Self, String> {
        let mut scan = Scan { text, at: open };
        scan.sign('{')?;
        let (mut members, mut has_comma, mut last) = (Vec::new(), false, scan.at);
        loop {
            scan.space();
            if text[scan.at..].starts_with('}') {
                return Ok(Self { members, has_comma, last, close: scan.at });
            }
            let key = scan.at;
            scan.string()?;
            let name = serde_json::from_str(&text[key..scan.at]);
            let name = name.map_err(|e| format!("a name cannot be read: {e}"))?;
            scan.space();
            scan.sign(':')?;
            scan.space();
            let from = scan.at;
            scan.value()?;
            members.push(Member { name, key, value: from..scan.at });
            last = scan.at;
            scan.space();
            has_comma = text[scan.at..].starts_with(',');
            if has_comma {
                scan.at += 1;
                last = scan.at;
            }
        }
    }

    /// The text with a member more, on a line of its own.
    fn with(&self, text: &str, name: &str, value: &Value, depth: usize) -> String {
        let outer = line_indent(text, self.close);
        // As the last member stands, if that has a line of its own.
        let last = self.members.last().map(|member| (member, line_indent(text, member.key)));
        let alone = last.filter(|(member, indent)| {
            text[..member.key].strip_suffix(indent).is_some_and(|before| before.ends_with('\n'))
        });
        let deeper =
            || format!("{outer}{}", "  ".repeat(if outer.is_empty() { depth + 1 } else { 1 }));
        let indent = alone.map_or_else(deeper, |(_, indent)| indent);
        let comma = if self.members.is_empty() || self.has_comma { "" } else { "," };
        let (name, value) = (Value::from(name), rendered(value, &indent));
        let member = format!("{comma}\n{indent}{name}: {value}");
        // The closing brace goes to a line of its own.
        let is_apart = text[self.last..self.close].contains('\n');
        let end = if is_apart { String::new() } else { format!("\n{outer}") };
        [&text[..self.last], &member, &end, &text[self.last..]].concat()
    }
}

/// A place in a text.
struct Scan<'a> {
    text: &'a str,
    at: usize,
}

impl Scan<'_> {
    /// Past blanks and comments.
    fn space(&mut self) {
        loop {
            let rest = &self.text[self.at..];
            let trimmed = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
            self.at += rest.len() - trimmed.len();
            let end = match trimmed.get(..2) {
                Some("//") => trimmed.find('\n').unwrap_or(trimmed.len()),
                Some("/*") => trimmed.find("*/").map_or(trimmed.len(), |end| end + 2),
                _ => return,
            };
            self.at += end;
        }
    }

    fn sign(&mut self, sign: char) -> Result<(), String> {
        if self.text[self.at..].starts_with(sign) {
            self.at += sign.len_utf8();
            return Ok(());
        }
        let line = self.text[..self.at].matches('\n').count() + 1;
        Err(format!("line {line} has no {sign:?} where one is expected"))
    }

    /// Past a text in quotes.
    fn string(&mut self) -> Result<(), String> {
        self.sign('"')?;
        let mut escaped = false;
        for (at, c) in self.text[self.at..].char_indices() {
            match c {
                '"' if !escaped => {
                    self.at += at + 1;
                    return Ok(());
                }
                _ => escaped = c == '\\' && !escaped,
            }
        }
        Err("a text has no end".to_owned())
    }

    /// Past a value of any kind.
    fn value(&mut self) -> Result<(), String> {
        let mut depth = 0;
        loop {
            self.space();
            let Some(first) = self.text[self.at..].chars().next() else {
                return Err("it ends too early".to_owned());
            };
            match first {
                '"' => self.string()?,
                '{' | '[' => {
                    (self.at, depth) = (self.at + 1, depth + 1);
                    if depth > MAX_DEPTH {
                        return Err(format!("it nests deeper than {MAX_DEPTH}"));
                    }
                }
                '}' | ']' if depth > 0 => (self.at, depth) = (self.at + 1, depth - 1),
                ',' | ':' if depth > 0 => self.at += 1,
                c if is_word(c) => {
                    let rest = &self.text[self.at..];
                    self.at += rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                }
                other => return Err(format!("{other:?} begins no value")),
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn path(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn members_are_set_and_all_else_stays() {
        for (text, names, value, expect) in [
            ("", &["a"][..], json!(1), "{\n  \"a\": 1\n}\n"),
            ("{}", &["a", "b"], json!(true), "{\n  \"a\": {\n    \"b\": true\n  }\n}"),
            ("{\"a\":1}", &["a"], json!("x"), "{\"a\":\"x\"}"),
            ("{\"a\":1}", &["b"], json!(2), "{\"a\":1,\n  \"b\": 2\n}"),
            (
                "{\n\t// mine\n\t\"a\": { \"c\": [1, 2,], }, /* } */\n}\n",
                &["a", "b"],
                json!(2),
                "{\n\t// mine\n\t\"a\": { \"c\": [1, 2,],\n\t  \"b\": 2\n\t }, /* } */\n}\n",
            ),
            (
                "{\n    \"a\": \"x // \\\" }\" // note\n}",
                &["b"],
                json!({ "c": 1 }),
                "{\n    \"a\": \"x // \\\" }\",\n    \"b\": {\n      \"c\": 1\n    } // note\n}",
            ),
            ("{\"a\": null}", &["a", "b"], json!(1), "{\"a\": {\n  \"b\": 1\n}}"),
            ("{\"a\": 1, \"a\": 2}", &["a"], json!(3), "{\"a\": 1, \"a\": 3}"),
        ] {
            let found = set(text, &[(path(names), value)]).expect(text);
            assert_eq!(found, expect, "{text}");
        }
    }

    #[test]
    fn what_is_no_object_is_not_edited() {
        for text in
            ["[]", "1", "{", "{\"a\" 1}", "{\"a\": 1} x", "{'a': 1}", "{\"a\": 1/**/2}", "//"]
        {
            set(text, &[(path(&["a"]), json!(1))]).expect_err(text);
        }
    }

    #[test]
    fn setting_twice_changes_nothing_more() {
        let members = [(path(&["a", "b"]), json!({ "c": [1] })), (path(&["d"]), json!("e"))];
        for text in ["", "{\n  \"x\": 1,\n}\n", "{ \"a\": {} }"] {
            let once = set(text, &members).expect(text);
            assert_eq!(set(&once, &members).expect(text), once);
        }
    }
}

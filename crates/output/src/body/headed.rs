//! Calls whose name stands behind the mark, and then the arguments as JSON.

use super::{Calls, Header, Step, is_name};
use crate::json::{self, Json};

/// Longest header, bytes.
const LONGEST: usize = 512;

const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";
const ARGUMENT: &str = "<|tool_call_argument_begin|>";
const SEP: &str = "<｜tool▁sep｜>";
const FENCE: &str = "```json";
/// Those that may be special tokens.
pub(super) const MARKS: &[&str] = &[ARGS, CALL_ID, ARGUMENT, SEP];

/// Reads one call.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    header: Header,
    /// The header so far.
    text: String,
    name: String,
    value: Option<Value>,
}

#[derive(Debug, Clone)]
enum Value {
    /// An object goes on as it comes.
    Object(Json),
    /// Null, or a string that holds an object.
    Other(Json, String),
}

/// What a header that has begun can be.
enum Begun<'a> {
    /// Nothing.
    Bad,
    /// More must come.
    Part,
    /// Only a brace may follow, or more of the header.
    Brace(&'a str),
    /// Arguments follow.
    Whole(&'a str),
}

impl Reader {
    pub fn new(header: Header) -> Self {
        Self { header, text: String::new(), name: String::new(), value: None }
    }

    pub fn feed(&mut self, c: char, calls: &mut Calls) -> Step {
        match &mut self.value {
            None => self.header(c, calls),
            Some(Value::Object(json)) => {
                let in_text = json.in_text();
                if json.feed(c).is_none() {
                    return Step::Fail;
                }
                let mut text = String::new();
                json::push(&mut text, c, in_text);
                calls.arguments(&text);
                if !json.is_done() {
                    return Step::More;
                }
                calls.end();
                Step::Done(0)
            }
            Some(Value::Other(json, text)) => {
                let in_text = json.in_text();
                if json.feed(c).is_none() {
                    return Step::Fail;
                }
                json::push(text, c, in_text);
                if !json.is_done() {
                    return Step::More;
                }
                let held = json::unquoted(text).unwrap_or_default();
                let object = json::value(&held).filter(|text| text.starts_with('{'));
                if !held.trim().is_empty() && object.is_none() {
                    return Step::Fail;
                }
                self.call(object.as_deref().unwrap_or("{}"), calls);
                Step::Done(0)
            }
        }
    }

    fn header(&mut self, c: char, calls: &mut Calls) -> Step {
        let (name, is_whole) = match begun(self.header, &self.text) {
            Begun::Bad => return Step::Fail,
            Begun::Part => (String::new(), false),
            Begun::Brace(name) => (name.to_owned(), false),
            Begun::Whole(name) => (name.to_owned(), true),
        };
        let begins = c == '{' || (is_whole && matches!(c, '"' | 'n'));
        if begins && !name.is_empty() {
            if !calls.may_call(&name) {
                return Step::Fail;
            }
            self.name = name;
            if c == '{' {
                calls.start(&self.name);
                self.value = Some(Value::Object(Json::new()));
            } else {
                self.value = Some(Value::Other(Json::new(), String::new()));
            }
            return self.feed(c, calls);
        }
        self.text.push(c);
        match begun(self.header, &self.text) {
            Begun::Bad if is_whole && matches!(c, '<' | '[') && calls.may_call(&name) => {
                // The next mark stands where the arguments would.
                self.name = name;
                self.call("{}", calls);
                Step::Done(1)
            }
            Begun::Bad => Step::Fail,
            _ if self.text.len() > LONGEST => Step::Fail,
            _ => Step::More,
        }
    }

    fn call(&self, arguments: &str, calls: &mut Calls) {
        calls.start(&self.name);
        calls.arguments(arguments);
        calls.end();
    }

    /// The model stopped here: missing arguments are none.
    pub fn finish(&mut self, calls: &mut Calls) -> bool {
        match (&self.value, begun(self.header, &self.text)) {
            (None, Begun::Whole(name)) if calls.may_call(name) => {
                self.name = name.to_owned();
                self.call("{}", calls);
                true
            }
            _ => false,
        }
    }
}

/// What of a header stands in `text`.
fn begun(header: Header, text: &str) -> Begun<'_> {
    match header {
        Header::NameArgs => name_args(text),
        Header::IdArgument => match text.split_once(ARGUMENT) {
            Some((id, rest)) => ended(name_of_id(id), rest),
            None => part(name_of_id(without_begun(text, ARGUMENT))),
        },
        Header::NameSep => match text.split_once(SEP) {
            Some((name, rest)) => ended(name.trim(), rest),
            None => part(without_begun(text, SEP).trim()),
        },
        Header::TypeSepNameFence => type_name_fence(text),
    }
}

fn name_args(text: &str) -> Begun<'_> {
    let (name, rest) = text.split_at(text.find('[').unwrap_or(text.len()));
    let name = name.trim();
    if rest.is_empty() {
        return match part(name) {
            Begun::Part if !name.is_empty() => Begun::Brace(name),
            begun => begun,
        };
    }
    if !is_name(name) {
        return Begun::Bad;
    }
    let rest = match rest.strip_prefix(CALL_ID) {
        Some(rest) => {
            let (id, rest) = rest.split_at(rest.find('[').unwrap_or(rest.len()));
            if id.trim().contains(char::is_whitespace) {
                return Begun::Bad;
            }
            if rest.is_empty() {
                return Begun::Brace(name);
            }
            rest
        }
        None if CALL_ID.starts_with(rest) => return Begun::Part,
        None => rest,
    };
    match rest.strip_prefix(ARGS) {
        Some(rest) => ended(name, rest),
        None if ARGS.starts_with(rest) => Begun::Part,
        None => Begun::Bad,
    }
}

fn type_name_fence(text: &str) -> Begun<'_> {
    let Some((_, rest)) = text.split_once(SEP) else {
        return part(without_begun(text, SEP).trim());
    };
    let Some((name, rest)) = rest.trim_start().split_once('\n') else {
        return part(rest.trim());
    };
    let name = name.trim();
    match rest.trim_start() {
        _ if !is_name(name) => Begun::Bad,
        "" => Begun::Brace(name),
        fence if FENCE.starts_with(fence) && fence.len() < FENCE.len() => Begun::Part,
        fence => match fence.strip_prefix(FENCE) {
            Some(rest) => ended(name, rest),
            None => Begun::Bad,
        },
    }
}

/// A name that has begun.
fn part(name: &str) -> Begun<'_> {
    if name.is_empty() || is_name(name) { Begun::Part } else { Begun::Bad }
}

/// A header that only white space may follow.
fn ended<'a>(name: &'a str, rest: &str) -> Begun<'a> {
    let is_good = is_name(name) && rest.trim().is_empty();
    if is_good { Begun::Whole(name) } else { Begun::Bad }
}

/// The text without the beginning of the mark at its end.
fn without_begun<'a>(text: &'a str, mark: &str) -> &'a str {
    let begun = mark.char_indices().map(|(at, _)| at).rev();
    let length = begun.filter_map(|at| mark.get(..at)).find(|start| text.ends_with(start));
    text.get(..text.len() - length.map_or(0, str::len)).unwrap_or(text)
}

/// The name in `functions.NAME:N`, whose ends may be missing.
fn name_of_id(id: &str) -> &str {
    let id = id.trim();
    let id = id.strip_prefix("functions.").unwrap_or(id);
    match id.rsplit_once(':') {
        Some((name, number)) if number.trim().bytes().all(|b| b.is_ascii_digit()) => name.trim(),
        _ => id,
    }
}

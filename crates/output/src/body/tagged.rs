//! Calls in tags: a name, then parameters whose values the tool's schema types.

use std::collections::HashSet;
use std::sync::Arc;

use super::schema::Types;
use super::{Calls, Step, Tags, is_name};
use crate::json::{self, Json};

/// Longest name or key with its end and white space, bytes.
const LONGEST: usize = 512;
/// Longest key.
const LONGEST_KEY: usize = 256;

/// Reads one call, behind the mark in front of its name.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    tags: Tags,
    /// Marks behind which there is no more of the call.
    ends: &'static [&'static str],
    place: Place,
    /// What may be the beginning of a tag.
    held: String,
    /// White space before it, characters.
    blanks: usize,
    name: String,
    /// The keys so far.
    keys: HashSet<String>,
    /// The present parameter's types, and its text as far as it is not given out.
    types: Arc<Types>,
    text: String,
    /// It, where it can only be JSON: tags in its strings are data.
    json: Option<Json>,
    /// The present key came before: its value is dropped.
    is_again: bool,
    is_started: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Name,
    /// Before a parameter or the end.
    Between,
    Key,
    /// Between key and value.
    Opening,
    /// The value's first character.
    First,
    Value,
}

/// What the held text is.
enum Held {
    Part,
    Tag(usize),
    Other,
}

impl Reader {
    pub fn new(tags: Tags, ends: &'static [&'static str]) -> Self {
        Self {
            tags,
            ends,
            place: Place::Name,
            held: String::new(),
            blanks: 0,
            name: String::new(),
            keys: HashSet::new(),
            types: Arc::default(),
            text: String::new(),
            json: None,
            is_again: false,
            is_started: false,
        }
    }

    pub fn feed(&mut self, c: char, calls: &mut Calls) -> Step {
        match self.place {
            Place::Name => self.in_name(c, calls),
            Place::Between => self.between(c, calls),
            Place::Key => self.in_key(c, calls),
            Place::Opening => self.opening(c),
            Place::First => {
                self.place = Place::Value;
                if self.tags.is_lined && c == '\n' {
                    return Step::More;
                }
                self.in_value(c, calls)
            }
            Place::Value => self.in_value(c, calls),
        }
    }

    /// The name so far, until a parameter has begun.
    pub fn name(&self) -> Option<&str> {
        Some(self.name.trim())
    }

    /// The model stopped here: a call is whole where a parameter was closed last.
    pub fn finish(&mut self, calls: &mut Calls) -> bool {
        let is_whole = self.is_whole() && self.held.is_empty();
        if is_whole {
            self.end(calls);
        }
        is_whole
    }

    fn is_whole(&self) -> bool {
        self.place == Place::Between && !self.keys.is_empty()
    }

    fn in_name(&mut self, c: char, calls: &Calls) -> Step {
        let is_first = self.name.trim().is_empty();
        let has_ended = match self.tags.name_end {
            "" => c == '<' || (c.is_whitespace() && !is_first),
            _ => false,
        };
        if has_ended {
            self.place = Place::Between;
            if c.is_whitespace() {
                self.blanks = 1;
            } else {
                self.held.push(c);
            }
            return if self.is_named(calls) { Step::More } else { Step::Fail };
        }
        self.name.push(c);
        if let Some(name) = self.name.strip_suffix(self.tags.name_end)
            && !self.tags.name_end.is_empty()
        {
            self.name.truncate(name.len());
            self.place = Place::Between;
            return if self.is_named(calls) { Step::More } else { Step::Fail };
        }
        let name = self.name.trim().trim_end_matches('"');
        let is_odd = !name.is_empty() && !is_name(name);
        if is_odd || self.name.len() > LONGEST { Step::Fail } else { Step::More }
    }

    fn is_named(&self, calls: &Calls) -> bool {
        let name = self.name.trim();
        is_name(name) && calls.may_call(name)
    }

    fn between(&mut self, c: char, calls: &mut Calls) -> Step {
        if self.held.is_empty() && c.is_whitespace() {
            self.blanks += 1;
            return Step::More;
        }
        self.held.push(c);
        let tags = [self.tags.parameter, self.tags.end];
        let ends = self.ends.iter().copied();
        let tag = match held(&self.held, tags.into_iter().chain(ends)) {
            Held::Part => return Step::More,
            Held::Tag(tag) => tag,
            Held::Other if self.keys.is_empty() => return Step::Fail,
            Held::Other => {
                self.end(calls);
                return Step::Done(self.blanks + self.held.chars().count());
            }
        };
        match tag {
            0 => {
                self.held.clear();
                self.place = Place::Key;
                return Step::More;
            }
            1 => self.end(calls),
            _ => {
                self.end(calls);
                return Step::Done(self.held.chars().count());
            }
        }
        Step::Done(0)
    }

    fn in_key(&mut self, c: char, calls: &mut Calls) -> Step {
        self.held.push(c);
        let Some(key) = self.held.strip_suffix(self.tags.key_end) else {
            let is_odd = is_odd_in_key(&self.tags, c);
            return if is_odd || self.held.len() > LONGEST { Step::Fail } else { Step::More };
        };
        let key = key.trim().to_owned();
        self.held.clear();
        if !is_key(&self.tags, &key) {
            return Step::Fail;
        }
        self.begin(key, calls);
        Step::More
    }

    /// A parameter's value comes next.
    fn begin(&mut self, key: String, calls: &mut Calls) {
        if !self.is_started {
            calls.start(self.name.trim());
            self.is_started = true;
        }
        self.types = calls.offer.types(self.name.trim(), &key);
        self.json = (!self.types.takes_text() && !self.types.is_listed()).then(Json::new);
        self.is_again = self.keys.contains(&key);
        self.place = if self.tags.value.is_empty() { Place::First } else { Place::Opening };
        if self.is_again {
            return;
        }
        calls.arguments(if self.keys.is_empty() { "{" } else { ", " });
        calls.arguments(&json::quoted(&key));
        calls.arguments(": ");
        if self.types.is_text() {
            calls.arguments("\"");
        }
        self.keys.insert(key);
    }

    fn opening(&mut self, c: char) -> Step {
        if self.held.is_empty() && c.is_whitespace() {
            return Step::More;
        }
        self.held.push(c);
        // A closing tag too many behind a key.
        let tags = [self.tags.value, self.tags.key_end, self.tags.value_end];
        match held(&self.held, tags.into_iter()) {
            Held::Part => return Step::More,
            Held::Tag(0) => self.place = Place::First,
            Held::Tag(_) => {}
            Held::Other => return Step::Fail,
        }
        self.held.clear();
        Step::More
    }

    fn in_value(&mut self, c: char, calls: &mut Calls) -> Step {
        self.held.push(c);
        loop {
            if self.json.as_ref().is_some_and(Json::in_text) {
                let Some(first) = self.held.chars().next() else {
                    return Step::More;
                };
                self.held.drain(..first.len_utf8());
                self.write(first, calls);
                continue;
            }
            let (line, tag) = match self.held.strip_prefix('\n') {
                Some(tag) if self.tags.is_lined => ("\n", tag),
                _ => ("", self.held.as_str()),
            };
            if tag == self.tags.value_end {
                self.held.clear();
                self.close(calls);
                (self.place, self.blanks) = (Place::Between, 0);
                return Step::More;
            }
            match self.reopened(tag, calls) {
                Held::Part => return Step::More,
                Held::Tag(length) => {
                    let key = tag.get(length..tag.len() - self.tags.key_end.len());
                    let key = key.unwrap_or_default().trim().to_owned();
                    self.held.clear();
                    self.close(calls);
                    self.begin(key, calls);
                    return Step::More;
                }
                Held::Other if self.tags.value_end.starts_with(tag) => return Step::More,
                Held::Other => {}
            }
            let first = if line.is_empty() { tag.chars().next() } else { Some('\n') };
            let Some(first) = first else {
                return Step::More;
            };
            self.held.drain(..first.len_utf8());
            self.write(first, calls);
            if self.held.is_empty() {
                return Step::More;
            }
        }
    }

    /// Whether the next parameter of the tool begins, although the value was not closed.
    fn reopened(&self, tag: &str, calls: &Calls) -> Held {
        let mark = self.tags.parameter;
        if !self.tags.may_reopen || tag.is_empty() {
            return Held::Other;
        }
        if mark.starts_with(tag) {
            return Held::Part;
        }
        let tool = calls.offer.tool(self.name.trim());
        let keys = tool.and_then(|tool| tool.parameters.get("properties")?.as_object());
        let Some((rest, keys)) = tag.strip_prefix(mark).zip(keys) else {
            return Held::Other;
        };
        let key = rest.strip_suffix(self.tags.key_end);
        match key {
            Some(key) if keys.contains_key(key.trim()) => Held::Tag(mark.len()),
            None if keys.keys().any(|key| key.starts_with(rest)) => Held::Part,
            _ => Held::Other,
        }
    }

    fn write(&mut self, c: char, calls: &mut Calls) {
        if self.json.as_mut().is_some_and(|json| json.feed(c).is_none()) {
            self.json = None;
        }
        if self.is_again {
            return;
        }
        if self.types.is_text() {
            let mut text = String::new();
            json::escape(&mut text, c);
            calls.arguments(&text);
        } else {
            self.text.push(c);
        }
    }

    fn close(&mut self, calls: &mut Calls) {
        if self.is_again {
            return;
        }
        if self.types.is_text() {
            calls.arguments("\"");
        } else {
            calls.arguments(&self.types.value(&std::mem::take(&mut self.text)));
        }
    }

    fn end(&mut self, calls: &mut Calls) {
        if !self.is_started {
            calls.start(self.name.trim());
        }
        calls.arguments(if self.keys.is_empty() { "{}" } else { "}" });
        calls.end();
    }
}

/// Whether a parameter can have that key.
pub(super) fn is_key(tags: &Tags, key: &str) -> bool {
    let has_end = format!("{key}{}", tags.key_end).find(tags.key_end) != Some(key.len());
    let is_odd = has_end || key.contains(|c| is_odd_in_key(tags, c));
    !key.is_empty() && key.trim() == key && key.len() <= LONGEST_KEY && !is_odd
}

fn is_odd_in_key(tags: &Tags, c: char) -> bool {
    c == '\n' && tags.value.is_empty()
}

/// Which of the tags a text is, or begins.
fn held<'a>(text: &str, tags: impl Iterator<Item = &'a str>) -> Held {
    let mut is_part = false;
    for (at, tag) in tags.enumerate() {
        if tag == text {
            return Held::Tag(at);
        }
        is_part |= tag.starts_with(text);
    }
    if is_part { Held::Part } else { Held::Other }
}

//! Gemma's notation of calls: `call:NAME{key:value}`, strings between quotes of its own.

use super::{Calls, LONGEST_NAME, Step, is_name};
use crate::json::{self, Json};

/// Longest name, key, number or word, bytes.
const LONGEST: usize = 512;

const CALL: &str = "call:";

/// Reads one call.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    quote: &'static str,
    place: Place,
    name: String,
    /// A bare key, number or word; what may be the beginning of a quote.
    word: String,
    /// Open objects and lists: whether it is an object, and how many items it has.
    open: Vec<(bool, usize)>,
    /// The string of JSON that is open.
    json: Json,
    /// Of the string between quotes, its JSON has begun.
    has_begun: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Name,
    /// A key, or the end of an object.
    Key,
    /// A bare key.
    BareKey,
    Colon,
    /// A value, or the end of a list.
    Value,
    /// The beginning of a quote.
    Quote {
        is_key: bool,
    },
    /// Between quotes.
    Quoted {
        is_key: bool,
    },
    /// A string of JSON.
    Text {
        is_key: bool,
    },
    Word,
    After,
}

impl Reader {
    pub fn new(quote: &'static str) -> Self {
        let (name, word, open) = (String::new(), String::new(), Vec::new());
        let (place, json) = (Place::Name, Json::new());
        Self { quote, place, name, word, open, json, has_begun: false }
    }

    pub fn feed(&mut self, c: char, calls: &mut Calls) -> Step {
        match self.take(c, calls) {
            None => Step::Fail,
            Some(()) if self.open.is_empty() && self.place == Place::After => Step::Done(0),
            Some(()) => Step::More,
        }
    }

    fn take(&mut self, c: char, calls: &mut Calls) -> Option<()> {
        match self.place {
            Place::Name => self.name(c, calls),
            Place::Quote { is_key } => self.quote(c, is_key),
            Place::Quoted { is_key } => {
                self.quoted(c, is_key, calls);
                Some(())
            }
            Place::Text { is_key } => self.text(c, is_key, calls),
            Place::BareKey if c == ':' => {
                is_key(self.word.trim()).then_some(())?;
                calls.arguments(&json::quoted(self.word.trim()));
                self.place = Place::Colon;
                self.take(c, calls)
            }
            Place::BareKey => {
                self.word.push(c);
                (is_of_key(c) && self.word.len() <= LONGEST).then_some(())
            }
            Place::Word if c.is_alphanumeric() || "+-._".contains(c) => {
                self.word.push(c);
                (self.word.len() <= LONGEST).then_some(())
            }
            Place::Word => {
                let word = match self.word.as_str() {
                    "None" => "null",
                    "True" => "true",
                    "False" => "false",
                    word => word,
                };
                calls.arguments(&json::value(word)?);
                self.place = Place::After;
                self.take(c, calls)
            }
            _ if c.is_whitespace() => Some(()),
            Place::Key => self.key(c, calls),
            Place::Colon => {
                calls.arguments(": ");
                self.place = Place::Value;
                (c == ':').then_some(())
            }
            Place::Value => self.value(c, calls),
            Place::After => self.after(c, calls),
        }
    }

    fn name(&mut self, c: char, calls: &mut Calls) -> Option<()> {
        let begun = self.name.trim_start();
        if c != '{' || begun.len() < CALL.len() {
            self.name.push(c);
            let begun = self.name.trim_start();
            let is_good = match begun.strip_prefix(CALL) {
                Some(name) => name.trim().is_empty() || is_name(name.trim()),
                None => CALL.starts_with(begun),
            };
            return (is_good && self.name.len() <= LONGEST).then_some(());
        }
        let name = begun.strip_prefix(CALL)?.trim().to_owned();
        calls.may_call(&name).then_some(())?;
        calls.start(&name);
        self.open(true, calls);
        Some(())
    }

    fn open(&mut self, is_object: bool, calls: &mut Calls) {
        calls.arguments(if is_object { "{" } else { "[" });
        self.open.push((is_object, 0));
        self.place = if is_object { Place::Key } else { Place::Value };
    }

    fn close(&mut self, is_object: bool, calls: &mut Calls) -> Option<()> {
        (self.open.pop()?.0 == is_object).then_some(())?;
        calls.arguments(if is_object { "}" } else { "]" });
        self.place = Place::After;
        if self.open.is_empty() {
            calls.end();
        }
        Some(())
    }

    fn begin_item(&mut self, calls: &mut Calls) {
        if let Some((_, items)) = self.open.last_mut() {
            if *items > 0 {
                calls.arguments(", ");
            }
            *items += 1;
        }
    }

    fn key(&mut self, c: char, calls: &mut Calls) -> Option<()> {
        if c == '}' {
            return self.close(true, calls);
        }
        self.begin_item(calls);
        self.word.clear();
        match c {
            '"' => {
                self.json = Json::new();
                self.place = Place::Text { is_key: true };
                return self.text(c, true, calls);
            }
            c if self.quote.starts_with(c) => {
                self.place = Place::Quote { is_key: true };
                return self.quote(c, true);
            }
            ':' | ',' | '{' | '[' | ']' => return None,
            c => {
                self.word.push(c);
                self.place = Place::BareKey;
            }
        }
        Some(())
    }

    fn value(&mut self, c: char, calls: &mut Calls) -> Option<()> {
        let is_list = matches!(self.open.last(), Some((false, _)));
        if c == ']' && is_list {
            return self.close(false, calls);
        }
        if is_list {
            self.begin_item(calls);
        }
        self.word.clear();
        match c {
            '{' | '[' => self.open(c == '{', calls),
            '"' => {
                self.json = Json::new();
                self.place = Place::Text { is_key: false };
                return self.text(c, false, calls);
            }
            c if self.quote.starts_with(c) => {
                self.place = Place::Quote { is_key: false };
                return self.quote(c, false);
            }
            c if c.is_alphanumeric() || "+-.".contains(c) => {
                self.word.push(c);
                self.place = Place::Word;
            }
            _ => return None,
        }
        Some(())
    }

    fn quote(&mut self, c: char, is_key: bool) -> Option<()> {
        self.word.push(c);
        if self.word == self.quote {
            self.word.clear();
            self.place = Place::Quoted { is_key };
            return Some(());
        }
        self.quote.starts_with(&self.word).then_some(())
    }

    fn quoted(&mut self, c: char, is_key: bool, calls: &mut Calls) {
        if !self.has_begun {
            calls.arguments("\"");
            self.has_begun = true;
        }
        self.word.push(c);
        while !self.quote.starts_with(&self.word) {
            let first = self.word.remove(0);
            let mut text = String::new();
            json::escape(&mut text, first);
            calls.arguments(&text);
        }
        if self.word == self.quote {
            self.word.clear();
            self.has_begun = false;
            calls.arguments("\"");
            self.place = if is_key { Place::Colon } else { Place::After };
        }
    }

    fn text(&mut self, c: char, is_key: bool, calls: &mut Calls) -> Option<()> {
        self.json.feed(c)?;
        let mut text = String::new();
        json::push(&mut text, c, true);
        calls.arguments(&text);
        if self.json.is_done() {
            self.place = if is_key { Place::Colon } else { Place::After };
        }
        Some(())
    }

    fn after(&mut self, c: char, calls: &mut Calls) -> Option<()> {
        let is_object = self.open.last()?.0;
        match (c, is_object) {
            (',', true) => self.place = Place::Key,
            (',', false) => self.place = Place::Value,
            ('}', true) => return self.close(true, calls),
            (']', false) => return self.close(false, calls),
            _ => return None,
        }
        Some(())
    }
}

/// Whether a key can stand without quotes.
pub(super) fn is_key(text: &str) -> bool {
    let is_whole = !text.is_empty() && text.trim() == text;
    is_whole && text.len() <= LONGEST_NAME && text.chars().all(|c| c != ':' && is_of_key(c))
}

fn is_of_key(c: char) -> bool {
    !c.is_control() && !"{}[],<>\"".contains(c)
}

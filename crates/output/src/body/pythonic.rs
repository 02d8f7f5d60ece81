//! Calls in Python's syntax: a list of them, or one call of a tool's method `call`.

use std::collections::HashSet;

use super::{Calls, LONGEST_NAME, Step};
use crate::json;

/// Longest name, number or word, bytes.
const LONGEST: usize = 512;

/// Reads the calls. Arguments are given out one by one.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    is_list: bool,
    place: Place,
    /// The call's name.
    name: String,
    /// A keyword, number or word so far.
    word: String,
    /// The arguments as JSON, as far as they are not given out.
    json: String,
    keywords: HashSet<String>,
    is_started: bool,
    open: Vec<Open>,
    text: Text,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    /// Before the list.
    Before,
    /// A call, or in a list's beginning or behind a comma its end.
    Call,
    Name,
    /// A keyword or the closing parenthesis.
    Keyword,
    /// Behind a keyword.
    Equals,
    /// A value, or the end of what is open.
    Value,
    Text,
    Word,
    /// Behind a value.
    After,
    /// Behind a call.
    Called,
}

/// What is open inside an argument.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Open {
    List {
        items: usize,
    },
    /// Parentheses: a tuple from its first comma on; where it stands in the JSON.
    Tuple {
        items: usize,
        at: usize,
        is_tuple: bool,
    },
    /// A dict, before a key or before its value.
    Dict {
        items: usize,
        is_key: bool,
    },
}

/// A string that is being read.
#[derive(Debug, Clone, Default)]
struct Text {
    quote: char,
    /// Quotes in a row, at the beginning or, of a string in three, at the end.
    quotes: usize,
    is_open: bool,
    is_triple: bool,
    escape: Option<String>,
    /// The first half of a character written as two escapes.
    half: Option<u16>,
}

impl Reader {
    pub fn list() -> Self {
        Self {
            is_list: true,
            place: Place::Before,
            name: String::new(),
            word: String::new(),
            json: String::new(),
            keywords: HashSet::new(),
            is_started: false,
            open: Vec::new(),
            text: Text::default(),
        }
    }

    pub fn method() -> Self {
        Self { is_list: false, place: Place::Call, ..Self::list() }
    }

    /// Between two calls.
    pub fn is_between(&self) -> bool {
        self.place == Place::Called
    }

    /// The name so far.
    pub fn name(&self) -> Option<&str> {
        Some(&self.name)
    }

    pub fn feed(&mut self, c: char, calls: &mut Calls) -> Step {
        match self.take(c, calls) {
            Some(step) => step,
            None => Step::Fail,
        }
    }

    fn take(&mut self, c: char, calls: &mut Calls) -> Option<Step> {
        let is_space = c.is_whitespace();
        match self.place {
            Place::Text if self.text.is_empty_before(c) => {
                self.text_ended();
                return self.take(c, calls);
            }
            Place::Text => self.text(c)?,
            Place::Word if is_word(c) => {
                self.word.push(c);
                (self.word.len() <= LONGEST).then_some(())?;
            }
            Place::Word => {
                self.word_ended()?;
                return self.take(c, calls);
            }
            Place::Name => self.name_goes_on(c, calls)?,
            Place::Equals => self.equals(c)?,
            _ if is_space => {}
            Place::Before => {
                (c == '[').then_some(())?;
                self.place = Place::Call;
            }
            Place::Call if c == ']' && self.is_list && calls.whole > 0 => {
                return Some(Step::Done(0));
            }
            Place::Call => {
                begins_word(c).then_some(())?;
                self.name.clear();
                self.name.push(c);
                self.place = Place::Name;
            }
            Place::Keyword if c == ')' => return self.called(calls),
            Place::Keyword => {
                begins_word(c).then_some(())?;
                self.word.clear();
                self.word.push(c);
                self.place = Place::Equals;
            }
            Place::Value => self.value(c)?,
            Place::After => return self.after(c, calls),
            Place::Called => match c {
                ',' => self.place = Place::Call,
                ']' => return Some(Step::Done(0)),
                _ => return None,
            },
        }
        Some(Step::More)
    }

    fn name_goes_on(&mut self, c: char, calls: &Calls) -> Option<()> {
        if c != '(' {
            self.name.push(c);
            return (is_of_name(c) && self.name.len() <= LONGEST).then_some(());
        }
        if !self.is_list {
            let length = self.name.strip_suffix(".call")?.len();
            self.name.truncate(length);
        }
        (is_name(&self.name) && calls.may_call(&self.name)).then_some(())?;
        self.json.clear();
        self.json.push('{');
        self.keywords.clear();
        self.is_started = false;
        self.place = Place::Keyword;
        Some(())
    }

    fn equals(&mut self, c: char) -> Option<()> {
        let has_ended = self.word.ends_with(' ');
        if c == '=' {
            let word = self.word.trim_end().to_owned();
            if !is_key(&word) || self.keywords.contains(&word) {
                return None;
            }
            if !self.keywords.is_empty() {
                self.json.push_str(", ");
            }
            self.json.push_str(&json::quoted(&word));
            self.json.push_str(": ");
            self.keywords.insert(word);
            self.place = Place::Value;
            return Some(());
        }
        if c.is_whitespace() {
            if !has_ended {
                self.word.push(' ');
            }
            return Some(());
        }
        self.word.push(c);
        let is_good = !has_ended && is_of_key(c);
        (is_good && self.word.len() <= LONGEST).then_some(())
    }

    /// The first character of a value or a key, or what closes an empty or trailing place.
    fn value(&mut self, c: char) -> Option<()> {
        match (self.open.last(), c) {
            (Some(Open::List { .. }), ']')
            | (Some(Open::Tuple { .. }), ')')
            | (Some(Open::Dict { is_key: true, .. }), '}') => return self.close(),
            _ => {}
        }
        let is_key = matches!(self.open.last(), Some(Open::Dict { is_key: true, .. }));
        self.begin_item();
        match c {
            '\'' | '"' => {
                self.text = Text { quote: c, quotes: 1, ..Text::default() };
                self.json.push('"');
                self.place = Place::Text;
            }
            '[' | '(' | '{' if !is_key => {
                let at = self.json.len();
                self.open.push(match c {
                    '[' => Open::List { items: 0 },
                    '(' => Open::Tuple { items: 0, at, is_tuple: false },
                    _ => Open::Dict { items: 0, is_key: true },
                });
                if c != '(' {
                    self.json.push(c);
                }
            }
            c if is_word(c) => {
                self.word.clear();
                self.word.push(c);
                self.place = Place::Word;
            }
            _ => return None,
        }
        Some(())
    }

    fn begin_item(&mut self) {
        let items = match self.open.last_mut() {
            Some(Open::List { items } | Open::Tuple { items, .. }) => items,
            Some(Open::Dict { items, is_key: true }) => items,
            _ => return,
        };
        *items += 1;
        if *items > 1 {
            self.json.push_str(", ");
        }
    }

    fn close(&mut self) -> Option<()> {
        match self.open.pop()? {
            Open::List { .. } => self.json.push(']'),
            Open::Dict { .. } => self.json.push('}'),
            Open::Tuple { is_tuple: true, .. } => self.json.push(']'),
            Open::Tuple { items: 0, .. } => self.json.push_str("[]"),
            Open::Tuple { .. } => {}
        }
        self.place = Place::After;
        Some(())
    }

    fn after(&mut self, c: char, calls: &mut Calls) -> Option<Step> {
        let Some(open) = self.open.last_mut() else {
            match c {
                ',' => {
                    self.place = Place::Keyword;
                    self.give(calls);
                }
                ')' => return self.called(calls),
                _ => return None,
            }
            return Some(Step::More);
        };
        match (open, c) {
            (Open::List { .. }, ']') | (Open::Tuple { .. }, ')') => self.close()?,
            (Open::Dict { is_key: false, .. }, '}') => self.close()?,
            (Open::Dict { is_key, .. }, ':') if *is_key => {
                *is_key = false;
                self.json.push_str(": ");
                self.place = Place::Value;
            }
            (Open::Dict { is_key, .. }, ',') if !*is_key => {
                *is_key = true;
                self.place = Place::Value;
            }
            (Open::Tuple { at, is_tuple, .. }, ',') => {
                if !*is_tuple {
                    self.json.insert(*at, '[');
                }
                *is_tuple = true;
                self.place = Place::Value;
            }
            (Open::List { .. }, ',') => self.place = Place::Value,
            _ => return None,
        }
        Some(Step::More)
    }

    fn give(&mut self, calls: &mut Calls) {
        if !self.is_started {
            calls.start(&self.name);
            self.is_started = true;
        }
        calls.arguments(&self.json);
        self.json.clear();
    }

    fn called(&mut self, calls: &mut Calls) -> Option<Step> {
        self.json.push('}');
        self.give(calls);
        calls.end();
        self.place = Place::Called;
        Some(if self.is_list { Step::More } else { Step::Done(0) })
    }

    fn word_ended(&mut self) -> Option<()> {
        let is_key = matches!(self.open.last(), Some(Open::Dict { is_key: true, .. }));
        let value = match self.word.as_str() {
            "True" | "true" => "true".to_owned(),
            "False" | "false" => "false".to_owned(),
            "None" | "null" => "null".to_owned(),
            word => number(word)?,
        };
        self.json.push_str(&if is_key { json::quoted(&value) } else { value });
        self.place = Place::After;
        Some(())
    }

    fn text(&mut self, c: char) -> Option<()> {
        let text = &mut self.text;
        if let Some(escape) = &mut text.escape {
            escape.push(c);
            let Some(units) = unescaped(escape)? else {
                return Some(());
            };
            text.escape = None;
            units.into_iter().for_each(|unit| text.push(unit, &mut self.json));
            return Some(());
        }
        if !text.is_open {
            if c == text.quote {
                text.quotes += 1;
                text.is_triple = text.quotes == 3;
                text.is_open = text.is_triple;
                text.quotes %= 3;
                return Some(());
            }
            text.is_open = true;
            text.quotes = 0;
        }
        match c {
            c if c == text.quote && !text.is_triple => self.text_ended(),
            c if c == text.quote => {
                text.quotes += 1;
                if text.quotes == 3 {
                    self.text_ended();
                }
            }
            c => {
                for _ in 0..std::mem::take(&mut text.quotes) {
                    text.push(text.quote as u32, &mut self.json);
                }
                match c {
                    '\\' => text.escape = Some(String::new()),
                    c => text.push(c as u32, &mut self.json),
                }
            }
        }
        Some(())
    }

    fn text_ended(&mut self) {
        self.text.flush(&mut self.json);
        self.json.push('"');
        self.place = Place::After;
    }
}

impl Text {
    /// Two quotes came and now another character: an empty string.
    fn is_empty_before(&self, c: char) -> bool {
        !self.is_open && self.quotes == 2 && c != self.quote
    }

    /// Takes a character or half of one.
    fn push(&mut self, unit: u32, json: &mut String) {
        if let Some(high) = self.half.take() {
            if (0xDC00..0xE000).contains(&unit) {
                let whole = 0x10000 + ((u32::from(high) - 0xD800) << 10) + (unit - 0xDC00);
                json.extend(char::from_u32(whole));
                return;
            }
            json.push('\u{fffd}');
        }
        match char::from_u32(unit) {
            Some(c) => json::escape(json, c),
            None if (0xD800..0xDC00).contains(&unit) => self.half = Some(unit as u16),
            None => json.push('\u{fffd}'),
        }
    }

    fn flush(&mut self, json: &mut String) {
        if self.half.take().is_some() {
            json.push('\u{fffd}');
        }
    }
}

/// Whether a text may be a tool's name.
pub(super) fn is_name(text: &str) -> bool {
    text.starts_with(begins_word) && text.len() <= LONGEST_NAME && text.chars().all(is_of_name)
}

/// Whether a text may be a keyword.
pub(super) fn is_key(text: &str) -> bool {
    text.starts_with(begins_word) && text.len() <= LONGEST_NAME && text.chars().all(is_of_key)
}

fn begins_word(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

fn is_of_name(c: char) -> bool {
    is_of_key(c) || c == '.'
}

fn is_of_key(c: char) -> bool {
    c.is_alphanumeric() || "_-".contains(c)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || "_.+-".contains(c)
}

/// What follows a backslash, as characters or halves; nothing while more must come.
fn unescaped(text: &str) -> Option<Option<Vec<u32>>> {
    let first = text.chars().next()?;
    let digits = text.get(first.len_utf8()..).unwrap_or_default();
    let hex = |length: usize| match digits.len() {
        n if n < length => digits.bytes().all(|b| b.is_ascii_hexdigit()).then_some(None),
        _ => Some(Some(vec![u32::from_str_radix(digits, 16).ok()?])),
    };
    let one = match first {
        'x' => return hex(2),
        'u' => return hex(4),
        'U' => return hex(8),
        '\n' => return Some(Some(Vec::new())),
        '\\' | '\'' | '"' => first as u32,
        'n' => 10,
        'r' => 13,
        't' => 9,
        'b' => 8,
        'f' => 12,
        'v' => 11,
        'a' => 7,
        '0' => 0,
        other => return Some(Some(vec!['\\' as u32, other as u32])),
    };
    Some(Some(vec![one]))
}

/// A number of Python as JSON has it.
fn number(word: &str) -> Option<String> {
    let (sign, digits) = match word.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", word.strip_prefix('+').unwrap_or(word)),
    };
    let digits = digits.replace('_', "");
    let mut written = String::from(sign);
    if digits.starts_with('.') {
        written.push('0');
    }
    written.push_str(&digits);
    if digits.ends_with('.') {
        written.push('0');
    }
    let written = written.replace(".e", ".0e").replace(".E", ".0E");
    let is_number = written.ends_with(|c: char| c.is_ascii_digit());
    if is_number { json::value(&written) } else { None }
}

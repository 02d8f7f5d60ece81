//! llama.cpp's GBNF, read and written anew as Lark.
//!
//! A rule that does not contain itself is a regular expression, and is written as one terminal; a
//! grammar all of such rules is exactly one. In other grammars the matcher takes the longest
//! terminal at each place, so that some texts with two readings are turned away; none is taken
//! that the grammar does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::bounds::Bounds;
use crate::lark::{chain, quoted};
use crate::pattern::push_char;
use crate::refused::{Refused, cut, within};

/// What a rule is made of.
#[derive(Debug)]
enum Part {
    Text(String),
    /// A class, as the `regex` crate writes it.
    Class(String),
    Rule(String),
    /// Alternatives of sequences.
    Group(Vec<Vec<Part>>),
    /// At least and at most so many.
    Repeat(Box<Part>, usize, Option<usize>),
}

type Rules = BTreeMap<String, Vec<Vec<Part>>>;

/// The grammar as Lark, from its rule `root`.
pub(crate) fn to_lark(text: &str, bounds: &Bounds) -> Result<String, Refused> {
    within("bytes of the grammar", text.len(), bounds.source_bytes)?;
    let mut reader = Reader { rest: text, line: 1, depth: 0, bounds };
    let rules = reader.rules()?;
    if !rules.contains_key("root") {
        return Err(bad(0, "no rule `root`"));
    }
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, alternatives) in &rules {
        used(alternatives, uses.entry(name).or_default());
    }
    if let Some(name) = uses.values().flatten().find(|name| !rules.contains_key(**name)) {
        return Err(bad(0, format!("the rule `{}` is used and not defined", cut(name))));
    }
    chain(&uses, "root", bounds.chain)?;
    Ok(written(&rules, &uses))
}

fn bad(line: usize, why: impl AsRef<str>) -> Refused {
    let at = if line > 0 { format!("line {line}: ") } else { String::new() };
    Refused::syntax("grammar", format!("{at}{}", why.as_ref()))
}

fn used<'a>(alternatives: &'a [Vec<Part>], names: &mut BTreeSet<&'a str>) {
    for mut part in alternatives.iter().flatten() {
        while let Part::Repeat(inner, ..) = part {
            part = inner;
        }
        match part {
            Part::Rule(name) => drop(names.insert(name)),
            Part::Group(inner) => used(inner, names),
            _ => {}
        }
    }
}

/// The rules reached from `root`, those that end in texts alone as terminals.
fn written(rules: &Rules, uses: &BTreeMap<&str, BTreeSet<&str>>) -> String {
    let mut flat: BTreeSet<&str> = BTreeSet::new();
    loop {
        let is_flat = |name: &str| uses.get(name).is_some_and(|u| u.iter().all(|n| flat.contains(n)));
        let more: Vec<&str> =
            uses.keys().copied().filter(|n| !flat.contains(n) && is_flat(n)).collect();
        if more.is_empty() {
            break;
        }
        flat.extend(more);
    }
    let (mut open, mut seen) = (vec!["root"], BTreeSet::from(["root"]));
    while let Some(name) = open.pop() {
        let next = uses.get(name).into_iter().flatten().copied().filter(|n| seen.insert(n));
        open.extend(next.collect::<Vec<_>>());
    }
    let called: BTreeMap<&str, String> = seen.iter().enumerate().map(|(i, name)| {
        let is_flat = flat.contains(name);
        (*name, if is_flat { format!("T{}", letters(i)) } else { format!("r{i}") })
    }).collect();
    let mut out = format!("%llguidance {{}}\nstart: {}\n", called.get("root").map_or("", |n| n));
    for (name, alternatives) in rules {
        if let Some(own) = called.get(name.as_str()) {
            let _ = writeln!(out, "{own}: {}", group(alternatives, &called));
        }
    }
    out
}

/// A number in capital letters: names of terminals have no small ones.
fn letters(number: usize) -> String {
    number.to_string().bytes().map(|b| (b - b'0' + b'A') as char).collect()
}

fn group(alternatives: &[Vec<Part>], called: &BTreeMap<&str, String>) -> String {
    let one = |parts: &Vec<Part>| {
        let parts = parts.iter().map(|p| part(p, called)).collect::<Vec<_>>();
        // An alternative of nothing is written as the empty text.
        if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") }
    };
    alternatives.iter().map(one).collect::<Vec<_>>().join(" | ")
}

fn part(of: &Part, called: &BTreeMap<&str, String>) -> String {
    match of {
        Part::Text(text) => quoted(text),
        Part::Class(class) => format!("/{class}/"),
        Part::Rule(name) => called.get(name.as_str()).cloned().unwrap_or_default(),
        Part::Group(inner) => format!("({})", group(inner, called)),
        Part::Repeat(_, _, Some(0)) => "\"\"".to_owned(),
        Part::Repeat(inner, least, most) => {
            let inner = part(inner, called);
            match (least, most) {
                (0, None) => format!("({inner})*"),
                (1, None) => format!("({inner})+"),
                (0, Some(1)) => format!("({inner})?"),
                (least, None) => format!("({inner}){{{least},}}"),
                (least, Some(most)) => format!("({inner}){{{least},{most}}}"),
            }
        }
    }
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
    depth: usize,
    bounds: &'a Bounds,
}

impl<'a> Reader<'a> {
    fn bad<T>(&self, why: impl AsRef<str>) -> Result<T, Refused> {
        Err(bad(self.line, why))
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.rest = self.rest.get(c.len_utf8()..).unwrap_or_default();
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn take_if(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Blanks and comments; line ends too where the grammar may go on.
    fn blanks(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => drop(self.take()),
                '\r' | '\n' if lines => drop(self.take()),
                '#' => {
                    let length = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.rest = self.rest.get(length..).unwrap_or_default();
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> &'a str {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let length = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at_checked(length).unwrap_or((self.rest, ""));
        self.rest = rest;
        name
    }

    fn rules(&mut self) -> Result<Rules, Refused> {
        let mut rules = Rules::new();
        self.blanks(true);
        while !self.rest.is_empty() {
            let name = self.name();
            if name.is_empty() {
                return self.bad(format!("{:?} where a rule's name should be", self.peek()));
            }
            self.blanks(false);
            if !self.take_if("::=") {
                return self.bad(format!("no `::=` after `{}`", cut(name)));
            }
            self.blanks(true);
            let alternatives = self.alternatives()?;
            if rules.insert(name.to_owned(), alternatives).is_some() {
                return self.bad(format!("the rule `{}` is defined twice", cut(name)));
            }
            if !matches!(self.peek(), None | Some('\r' | '\n')) {
                return self.bad(format!("{:?} where the rule should end", self.peek()));
            }
            self.blanks(true);
        }
        Ok(rules)
    }

    fn alternatives(&mut self) -> Result<Vec<Vec<Part>>, Refused> {
        let mut list = vec![self.sequence()?];
        loop {
            // A line that begins with `|` goes on with the rule.
            let (rest, line) = (self.rest, self.line);
            self.blanks(true);
            if !self.take_if("|") {
                (self.rest, self.line) = (rest, line);
                return Ok(list);
            }
            self.blanks(true);
            list.push(self.sequence()?);
        }
    }

    fn sequence(&mut self) -> Result<Vec<Part>, Refused> {
        let mut parts: Vec<Part> = Vec::new();
        while let Some(c) = self.peek() {
            let part = match c {
                '"' => self.text()?,
                '[' => self.class()?,
                '(' => self.parenthesis()?,
                '.' => {
                    self.take();
                    Part::Class("(?s:.)".to_owned())
                }
                '*' | '+' | '?' | '{' => {
                    let Some(last) = parts.pop() else {
                        return self.bad(format!("nothing to repeat before `{c}`"));
                    };
                    self.repeat(last)?
                }
                '<' | '!' => return self.bad("tokens in `<…>` are not supported"),
                c if c.is_ascii_alphanumeric() => Part::Rule(self.name().to_owned()),
                _ => break,
            };
            parts.push(part);
            self.blanks(self.depth > 0);
        }
        Ok(parts)
    }

    fn parenthesis(&mut self) -> Result<Part, Refused> {
        self.take();
        self.depth += 1;
        within("brackets within brackets of the grammar", self.depth, self.bounds.depth)?;
        self.blanks(true);
        let inner = self.alternatives()?;
        self.blanks(true);
        if !self.take_if(")") {
            return self.bad("a `(` that is not closed");
        }
        self.depth -= 1;
        Ok(Part::Group(inner))
    }

    fn repeat(&mut self, last: Part) -> Result<Part, Refused> {
        let mut levels = 0;
        let mut inner = &last;
        while let Part::Repeat(deeper, ..) = inner {
            (inner, levels) = (deeper, levels + 1);
        }
        within("repetitions of repetitions", levels, self.bounds.depth)?;
        let (least, most) = match self.take() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            _ => self.counts()?,
        };
        within("repetitions", least.max(most.unwrap_or(0)), self.bounds.repeat)?;
        if most.is_some_and(|most| least > most) {
            return self.bad("a repetition of at least more than at most");
        }
        Ok(Part::Repeat(Box::new(last), least, most))
    }

    fn counts(&mut self) -> Result<(usize, Option<usize>), Refused> {
        let Some((text, rest)) = self.rest.split_once('}') else {
            return self.bad("a `{` that is not closed");
        };
        self.rest = rest;
        let number = |text: &str| text.trim().parse::<usize>();
        let read = match text.split_once(',') {
            None => number(text).map(|n| (n, Some(n))),
            Some((least, most)) if most.trim().is_empty() => number(least).map(|n| (n, None)),
            Some((least, most)) if least.trim().is_empty() => number(most).map(|n| (0, Some(n))),
            Some((least, most)) => number(least).and_then(|l| Ok((l, Some(number(most)?)))),
        };
        read.or_else(|_| self.bad(format!("counts that cannot be read: {{{}}}", cut(text))))
    }

    fn text(&mut self) -> Result<Part, Refused> {
        self.take();
        let mut text = String::new();
        loop {
            match self.take() {
                Some('"') => return Ok(Part::Text(text)),
                Some('\\') => text.push(self.escape()?),
                Some(c) => text.push(c),
                None => return self.bad("a text that is not closed"),
            }
        }
    }

    fn class(&mut self) -> Result<Part, Refused> {
        self.take();
        let mut class = String::from(if self.take_if("^") { "[^" } else { "[" });
        let empty = class.len();
        loop {
            let from = match self.take() {
                Some(']') => break,
                Some('\\') => self.escape()?,
                Some(c) => c,
                None => return self.bad("a `[` that is not closed"),
            };
            push_char(&mut class, from);
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.take();
                let to = match self.take() {
                    Some('\\') => self.escape()?,
                    Some(c) => c,
                    None => return self.bad("a `[` that is not closed"),
                };
                if from > to {
                    return self.bad(format!("a range from {from:?} to {to:?}"));
                }
                class.push('-');
                push_char(&mut class, to);
            }
        }
        if class.len() == empty {
            return self.bad("an empty class");
        }
        class.push(']');
        Ok(Part::Class(class))
    }

    fn escape(&mut self) -> Result<char, Refused> {
        let digits = match self.take() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            other => return self.bad(format!("the escape `\\{}`", other.map_or(' ', |c| c))),
        };
        let code = self.rest.get(..digits).and_then(|t| u32::from_str_radix(t, 16).ok());
        let Some(c) = code.and_then(char::from_u32) else {
            return self.bad(format!("an escape that is not {digits} hexadecimal digits of a character"));
        };
        self.rest = self.rest.get(digits..).unwrap_or_default();
        Ok(c)
    }
}

//! Reads GBNF.

use super::{Part, Rules, Set, bad};
use crate::bounds::Bounds;
use crate::pattern::push_char;
use crate::refused::{Refused, cut, within};

/// The rules of a grammar.
pub(super) fn rules(text: &str, bounds: &Bounds) -> Result<Rules, Refused> {
    Reader { rest: text, line: 1, depth: 0, bounds }.rules()
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
                    Part::Class("(?s:.)".to_owned(), vec![(0, LAST)])
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
        let negated = self.take_if("^");
        let (mut class, mut set) = (String::from(if negated { "[^" } else { "[" }), Set::new());
        loop {
            let from = match self.take() {
                Some(']') => break,
                Some('\\') => self.escape()?,
                Some(c) => c,
                None => return self.bad("a `[` that is not closed"),
            };
            push_char(&mut class, from);
            let mut last = from;
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
                last = to;
            }
            set.push((from as u32, last as u32));
        }
        if set.is_empty() {
            return self.bad("an empty class");
        }
        class.push(']');
        Ok(Part::Class(class, if negated { complement(set) } else { set }))
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
            return self
                .bad(format!("an escape that is not {digits} hexadecimal digits of a character"));
        };
        self.rest = self.rest.get(digits..).unwrap_or_default();
        Ok(c)
    }
}

const LAST: u32 = char::MAX as u32;

fn complement(mut set: Set) -> Set {
    set.sort_unstable();
    let (mut out, mut next) = (Set::new(), 0);
    for (from, to) in set {
        if from > next {
            out.push((next, from - 1));
        }
        next = next.max(to + 1);
    }
    if next <= LAST {
        out.push((next, LAST));
    }
    out
}

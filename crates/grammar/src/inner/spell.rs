//! Texts and expressions as they stand in the content of a JSON string.

use std::fmt::Write as _;

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind};

use crate::pattern::push_char;
use crate::refused::Refused;

/// Characters with an escape, and its letter.
const ESCAPES: &[(char, char)] = &[
    ('"', '"'),
    ('\\', '\\'),
    ('\u{8}', 'b'),
    ('\u{c}', 'f'),
    ('\n', 'n'),
    ('\r', 'r'),
    ('\t', 't'),
];

fn escape(c: char) -> Option<char> {
    ESCAPES.iter().find(|(plain, _)| *plain == c).map(|(_, letter)| *letter)
}

/// Whether a JSON string has an escape for it.
pub fn is_escaped(c: char) -> bool {
    escape(c).is_some()
}

fn control(c: char) -> Refused {
    let why = format!("the control character {:#04x}, which JSON strings here lack", c as u32);
    Refused::syntax("lark", why)
}

/// A text as JSON strings have it.
pub fn text(text: &str) -> Result<String, Refused> {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match escape(c) {
            Some(letter) => out.extend(['\\', letter]),
            None if c < ' ' => return Err(control(c)),
            None => out.push(c),
        }
    }
    Ok(out)
}

/// Whether text that an expression takes may go on, inside it, with a character that is escaped:
/// all but those of one character.
pub fn goes_on(hir: &Hir) -> bool {
    let is_one = matches!(hir.kind(), HirKind::Class(_));
    !is_one && has_escaped(hir)
}

/// Whether one is anywhere in it.
pub fn has_escaped(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => false,
        HirKind::Literal(literal) => {
            std::str::from_utf8(&literal.0).map_or(true, |text| text.contains(is_escaped))
        }
        HirKind::Class(Class::Unicode(class)) => {
            let has = |c: char| class.iter().any(|r| r.start() <= c && c <= r.end());
            ESCAPES.iter().any(|(c, _)| has(*c))
        }
        HirKind::Class(Class::Bytes(_)) => true,
        HirKind::Repetition(repetition) => has_escaped(&repetition.sub),
        HirKind::Capture(capture) => has_escaped(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().any(has_escaped),
    }
}

/// Whether text that an expression takes may begin with one.
pub fn begins(hir: &Hir) -> bool {
    let is_empty = |hir: &Hir| hir.properties().minimum_len() == Some(0);
    match hir.kind() {
        HirKind::Literal(literal) => {
            std::str::from_utf8(&literal.0).map_or(true, |text| text.starts_with(is_escaped))
        }
        HirKind::Repetition(repetition) => begins(&repetition.sub),
        HirKind::Capture(capture) => begins(&capture.sub),
        HirKind::Alternation(parts) => parts.iter().any(begins),
        HirKind::Concat(parts) => {
            let may_be_first = parts.iter().scan(true, |first, part| {
                let now = *first;
                *first &= is_empty(part);
                now.then_some(part)
            });
            may_be_first.into_iter().any(begins)
        }
        HirKind::Empty | HirKind::Look(_) | HirKind::Class(_) => has_escaped(hir),
    }
}

/// An expression anew: of the same texts, or of what they are in a JSON string. It matches whole
/// texts, so anchors at its ends say nothing.
pub fn regex(hir: &Hir, is_json: bool) -> Result<String, Refused> {
    let mut writer = Writer { out: String::new(), is_json };
    let parts = match hir.kind() {
        HirKind::Concat(parts) => parts.as_slice(),
        _ => std::slice::from_ref(hir),
    };
    let is_anchor = |hir: &Hir| matches!(hir.kind(), HirKind::Look(_));
    let from = parts.iter().position(|part| !is_anchor(part)).unwrap_or(parts.len());
    let to = parts.iter().rposition(|part| !is_anchor(part)).map_or(from, |at| at + 1);
    for part in parts.get(from..to).unwrap_or_default() {
        writer.part(part)?;
    }
    if writer.out.is_empty() {
        writer.out.push_str("(?:)");
    }
    Ok(writer.out)
}

struct Writer {
    out: String,
    is_json: bool,
}

impl Writer {
    fn part(&mut self, hir: &Hir) -> Result<(), Refused> {
        match hir.kind() {
            HirKind::Empty => self.out.push_str("(?:)"),
            HirKind::Look(_) => {
                let why = "anchors and word boundaries inside an expression are not supported";
                return Err(Refused::syntax("lark", why));
            }
            HirKind::Literal(literal) => {
                let text = std::str::from_utf8(&literal.0).map_err(|_| bytes())?;
                for c in text.chars() {
                    self.character(c)?;
                }
            }
            HirKind::Class(Class::Unicode(class)) => self.class(class)?,
            HirKind::Class(Class::Bytes(_)) => return Err(bytes()),
            HirKind::Repetition(repetition) => {
                self.group(std::slice::from_ref(&*repetition.sub), "")?;
                let least = repetition.min;
                let _ = match repetition.max {
                    None if least == 0 => write!(self.out, "*"),
                    None if least == 1 => write!(self.out, "+"),
                    None => write!(self.out, "{{{least},}}"),
                    Some(1) if least == 0 => write!(self.out, "?"),
                    Some(most) => write!(self.out, "{{{least},{most}}}"),
                };
            }
            HirKind::Capture(capture) => self.group(std::slice::from_ref(&*capture.sub), "")?,
            HirKind::Concat(parts) => self.group(parts, "")?,
            HirKind::Alternation(parts) => self.group(parts, "|")?,
        }
        Ok(())
    }

    fn group(&mut self, parts: &[Hir], between: &str) -> Result<(), Refused> {
        self.out.push_str("(?:");
        for (at, part) in parts.iter().enumerate() {
            if at > 0 {
                self.out.push_str(between);
            }
            self.part(part)?;
        }
        self.out.push(')');
        Ok(())
    }

    fn character(&mut self, c: char) -> Result<(), Refused> {
        match escape(c).filter(|_| self.is_json) {
            Some(letter) => {
                self.out.push_str(r"\\");
                push_char(&mut self.out, letter);
            }
            None if self.is_json && c < ' ' => return Err(control(c)),
            None => push_char(&mut self.out, c),
        }
        Ok(())
    }

    fn class(&mut self, class: &ClassUnicode) -> Result<(), Refused> {
        if !self.is_json {
            self.out.push_str(&ranges(class));
            return Ok(());
        }
        let has = |c: char| class.iter().any(|r| r.start() <= c && c <= r.end());
        let letters: String =
            ESCAPES.iter().filter(|(c, _)| has(*c)).map(|(_, letter)| *letter).collect();
        let mut plain = class.clone();
        let odd = [('\0', '\u{1f}'), ('"', '"'), ('\\', '\\')];
        let odd = odd.map(|(from, to)| ClassUnicodeRange::new(from, to));
        plain.difference(&ClassUnicode::new(odd));
        let is_empty = plain.ranges().is_empty();
        if is_empty && letters.is_empty() {
            let why = "an expression of nothing but control characters, which JSON strings lack";
            return Err(Refused::syntax("lark", why));
        }
        self.out.push_str("(?:");
        if !is_empty {
            self.out.push_str(&ranges(&plain));
        }
        if !letters.is_empty() {
            self.out.push_str(if is_empty { "" } else { "|" });
            self.out.push_str(r"\\[");
            letters.chars().for_each(|letter| push_char(&mut self.out, letter));
            self.out.push(']');
        }
        self.out.push(')');
        Ok(())
    }
}

fn bytes() -> Refused {
    Refused::syntax("lark", "an expression of bytes that are no characters")
}

fn ranges(class: &ClassUnicode) -> String {
    let mut out = String::from("[");
    for range in class.iter() {
        push_char(&mut out, range.start());
        if range.start() < range.end() {
            out.push('-');
            push_char(&mut out, range.end());
        }
    }
    out.push(']');
    out
}

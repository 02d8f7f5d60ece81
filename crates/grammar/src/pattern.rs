//! Regular expressions of ECMAScript, written anew in the syntax of the `regex` crate.
//!
//! What the two read differently (`.`, `\d`, `\s`, `\w`, nested classes) is spelled out, what
//! has no counterpart (lookaround, back references, word boundaries) is refused in words.

use std::fmt::Write as _;
use std::iter::Peekable;
use std::str::Chars;

/// Deepest nesting of groups.
const NESTED: usize = 50;
/// ECMAScript's white space and line ends.
const SPACE: &str = r"\t\n\x0b\x0c\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}";
const DIGIT: &str = "0-9";
const WORD: &str = "0-9A-Za-z_";

/// The expression anew. `most_repeats` bounds every count; `quoted` says that the text will
/// stand in a JSON string, which has no control characters but those with a short escape.
pub(crate) fn translate(text: &str, most_repeats: usize, quoted: bool) -> Result<String, String> {
    let chars = text.chars().peekable();
    let mut reader = Reader {
        chars,
        out: String::with_capacity(2 * text.len()),
        depth: 0,
        most_repeats,
        quoted,
    };
    reader.expression()?;
    Ok(reader.out)
}

struct Reader<'a> {
    chars: Peekable<Chars<'a>>,
    out: String,
    depth: usize,
    most_repeats: usize,
    quoted: bool,
}

/// What a backslash stands for.
enum Escape {
    Char(char),
    /// The inside of a class, and whether it is everything else.
    Class(String, bool),
    /// `\p{…}`, as it stands.
    Property(String),
}

impl Reader<'_> {
    fn expression(&mut self) -> Result<(), String> {
        // Whether a quantifier may come, that is, whether an atom just did.
        let mut atom = false;
        while let Some(c) = self.chars.next() {
            match c {
                '^' | '$' => self.out.push(c),
                '|' => self.out.push('|'),
                '(' => self.open()?,
                ')' if self.depth == 0 => return Err("a `)` that closes nothing".to_owned()),
                ')' => {
                    self.depth -= 1;
                    self.out.push(')');
                }
                '*' | '+' | '?' | '{' if !atom => {
                    return Err(format!("nothing to repeat before `{c}`"));
                }
                '*' | '+' | '?' => self.quantifier(c.to_string()),
                '{' => {
                    let counts = self.counts()?;
                    self.quantifier(counts);
                }
                '[' => self.class()?,
                '.' => self.out.push_str(r"[^\n\r\x{2028}\x{2029}]"),
                '\\' => match self.escape()? {
                    Escape::Char(c) => self.literal(c)?,
                    Escape::Class(inside, negated) => {
                        let _ = write!(self.out, "[{}{inside}]", if negated { "^" } else { "" });
                    }
                    Escape::Property(text) => self.out.push_str(&text),
                },
                c => self.literal(c)?,
            }
            atom = !matches!(c, '^' | '$' | '|' | '(' | '*' | '+' | '?' | '{');
        }
        if self.depth > 0 { Err("a `(` that is not closed".to_owned()) } else { Ok(()) }
    }

    fn open(&mut self) -> Result<(), String> {
        self.depth += 1;
        if self.depth > NESTED {
            return Err(format!("groups within groups, more than {NESTED}"));
        }
        self.out.push_str("(?:");
        if self.chars.next_if_eq(&'?').is_none() {
            return Ok(());
        }
        match self.chars.next() {
            Some(':') => Ok(()),
            Some('=' | '!') => Err("lookahead is not supported".to_owned()),
            Some(c @ ('<' | 'P')) => {
                if c == 'P' && self.chars.next_if_eq(&'<').is_none() {
                    return Err("a group that begins with `(?P`".to_owned());
                }
                if matches!(self.chars.peek(), Some('=' | '!')) {
                    return Err("lookbehind is not supported".to_owned());
                }
                let name: String = self.chars.by_ref().take_while(|c| *c != '>').collect();
                let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
                if name.is_empty() || !name.chars().all(is_name) {
                    return Err("a group's name cannot be read".to_owned());
                }
                Ok(())
            }
            _ => Err("a group that begins with `(?` and no `:`".to_owned()),
        }
    }

    fn quantifier(&mut self, text: String) {
        self.out.push_str(&text);
        // Lazy or not, the same texts match.
        self.chars.next_if_eq(&'?');
    }

    fn counts(&mut self) -> Result<String, String> {
        let text: String = self.chars.by_ref().take_while(|c| *c != '}').take(24).collect();
        let number = |s: &str| {
            let most = self.most_repeats;
            let is_number = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
            let count = s.parse::<usize>().ok().filter(|_| is_number);
            let count = count.ok_or_else(|| format!("counts that cannot be read: `{{{text}}}`"))?;
            if count > most {
                Err(format!("repeated {count} times, at most {most}"))
            } else {
                Ok(count)
            }
        };
        match text.split_once(',') {
            None => Ok(format!("{{{}}}", number(&text)?)),
            Some((least, "")) => Ok(format!("{{{},}}", number(least)?)),
            Some((least, most)) => {
                let (least, most) = (number(least)?, number(most)?);
                if least > most {
                    return Err(format!("repeated at least {least} and at most {most} times"));
                }
                Ok(format!("{{{least},{most}}}"))
            }
        }
    }

    fn literal(&mut self, c: char) -> Result<(), String> {
        let has_escape = matches!(c, '\t' | '\n' | '\r' | '\x08' | '\x0c');
        if self.quoted && c < ' ' && !has_escape {
            return Err(format!(
                "the control character {:#04x}, which JSON strings here lack",
                c as u32
            ));
        }
        push_char(&mut self.out, c);
        Ok(())
    }

    fn escape(&mut self) -> Result<Escape, String> {
        let c = self.chars.next().ok_or("a backslash at the end")?;
        let class = |inside: &str, negated| Ok(Escape::Class(inside.to_owned(), negated));
        match c {
            'd' => class(DIGIT, false),
            'D' => class(DIGIT, true),
            'w' => class(WORD, false),
            'W' => class(WORD, true),
            's' => class(SPACE, false),
            'S' => class(SPACE, true),
            'b' | 'B' => Err("word boundaries are not supported".to_owned()),
            'A' | 'Z' | 'z' | 'G' => Err(format!("`\\{c}` is not of ECMAScript")),
            '1'..='9' | 'k' => Err("back references are not supported".to_owned()),
            'n' => Ok(Escape::Char('\n')),
            'r' => Ok(Escape::Char('\r')),
            't' => Ok(Escape::Char('\t')),
            'f' => Ok(Escape::Char('\x0c')),
            'v' => Ok(Escape::Char('\x0b')),
            '0' => Ok(Escape::Char('\0')),
            'c' => match self.chars.next() {
                Some(c) if c.is_ascii_alphabetic() => Ok(Escape::Char((c as u8 % 32) as char)),
                _ => Err("`\\c` without a letter".to_owned()),
            },
            'x' => self.hex(2).map(Escape::Char),
            'u' if self.chars.next_if_eq(&'{').is_some() => {
                let text: String = self.chars.by_ref().take_while(|c| *c != '}').take(8).collect();
                let code = u32::from_str_radix(&text, 16).ok().and_then(char::from_u32);
                Ok(Escape::Char(code.ok_or("`\\u{…}` that is no character")?))
            }
            'u' => self.utf16().map(Escape::Char),
            'p' | 'P' => self.property(c).map(Escape::Property),
            c if c.is_ascii_alphabetic() => Err(format!("`\\{c}` is not known")),
            c => Ok(Escape::Char(c)),
        }
    }

    fn digits(&mut self, count: usize) -> Result<u32, String> {
        let text: String = self.chars.by_ref().take(count).collect();
        let is_hex = text.len() == count && text.bytes().all(|b| b.is_ascii_hexdigit());
        let code = u32::from_str_radix(&text, 16).ok().filter(|_| is_hex);
        code.ok_or_else(|| format!("`{text}` are not {count} hexadecimal digits"))
    }

    fn hex(&mut self, count: usize) -> Result<char, String> {
        let code = self.digits(count)?;
        char::from_u32(code).ok_or_else(|| format!("{code:#x} is no character"))
    }

    /// Four digits, or twice four where they are a pair of surrogates.
    fn utf16(&mut self) -> Result<char, String> {
        let high = self.digits(4)?;
        if !(0xD800..0xDC00).contains(&high) {
            return char::from_u32(high).ok_or_else(|| "half a surrogate pair".to_owned());
        }
        let follows = self.chars.next() == Some('\\') && self.chars.next() == Some('u');
        let low = if follows { self.digits(4)? } else { 0 };
        if !(0xDC00..0xE000).contains(&low) {
            return Err("half a surrogate pair".to_owned());
        }
        let code = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
        char::from_u32(code).ok_or_else(|| "half a surrogate pair".to_owned())
    }

    fn property(&mut self, p: char) -> Result<String, String> {
        if self.chars.next_if_eq(&'{').is_none() {
            return Err(format!("`\\{p}` without a property in braces"));
        }
        let name: String = self.chars.by_ref().take_while(|c| *c != '}').take(64).collect();
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'=';
        if name.is_empty() || !name.bytes().all(is_name) {
            return Err("a Unicode property that cannot be read".to_owned());
        }
        Ok(format!("\\{p}{{{name}}}"))
    }

    fn class(&mut self) -> Result<(), String> {
        let negated = self.chars.next_if_eq(&'^').is_some();
        let mut inside = String::new();
        loop {
            let c = self.chars.next().ok_or("a `[` that is not closed")?;
            let first = match c {
                ']' => break,
                '\\' => self.class_escape()?,
                c => Escape::Char(c),
            };
            let is_range = self.chars.peek() == Some(&'-') && {
                let mut ahead = self.chars.clone();
                ahead.next();
                ahead.next().is_some_and(|c| c != ']')
            };
            match first {
                Escape::Char(from) if is_range => {
                    self.chars.next();
                    let last = match self.chars.next() {
                        Some('\\') => self.class_escape()?,
                        Some(c) => Escape::Char(c),
                        None => return Err("a `[` that is not closed".to_owned()),
                    };
                    let Escape::Char(to) = last else {
                        return Err("a range in `[…]` that ends with a class".to_owned());
                    };
                    if from > to {
                        return Err(format!("a range from {from:?} to {to:?}"));
                    }
                    push_char(&mut inside, from);
                    inside.push('-');
                    push_char(&mut inside, to);
                }
                Escape::Char(c) => push_char(&mut inside, c),
                _ if is_range => return Err("a range in `[…]` that begins with a class".to_owned()),
                Escape::Class(class, false) => inside.push_str(&class),
                Escape::Class(class, true) => {
                    let _ = write!(inside, "[^{class}]");
                }
                Escape::Property(text) => inside.push_str(&text),
            }
        }
        match (negated, inside.is_empty()) {
            (false, true) => return Err("an empty class `[]`, which nothing matches".to_owned()),
            (true, true) => self.out.push_str(r"[\x00-\x{10ffff}]"),
            _ => {
                let _ = write!(self.out, "[{}{inside}]", if negated { "^" } else { "" });
            }
        }
        Ok(())
    }

    fn class_escape(&mut self) -> Result<Escape, String> {
        match self.chars.peek() {
            Some('b') => {
                self.chars.next();
                Ok(Escape::Char('\x08'))
            }
            Some('-') => {
                self.chars.next();
                Ok(Escape::Char('-'))
            }
            _ => self.escape(),
        }
    }
}

/// A character that stands for itself, inside a class or out.
pub(crate) fn push_char(out: &mut String, c: char) {
    if c.is_ascii_alphanumeric() || c == '_' || c > '\x7f' {
        out.push(c);
    } else {
        let _ = write!(out, "\\x{{{:x}}}", c as u32);
    }
}

/// A text as an expression that matches just it.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::new();
    text.chars().for_each(|c| push_char(&mut out, c));
    out
}

/// A text as an expression of ECMAScript that matches just it.
pub(crate) fn escaped_for_ecma(text: &str) -> String {
    let each = |c: char| {
        if c.is_ascii_alphanumeric() || c > '\x7f' {
            c.to_string()
        } else {
            format!("\\x{:02x}", c as u32)
        }
    };
    text.chars().map(each).collect()
}
